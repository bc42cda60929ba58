"""A pilot: the first rounds of a run, simulated in memory and not charged, and the gap that they let expect.

Let x be the progress that the model of the policy ``measured`` sees (minus the logarithm of what it believes to be
left). Near its end a pilot shows gap ∝ x^(−q). Between there and the end of the run the fall lies between a power law
and an exponential:

    log gap(r x) = log gap(x) − q (r^τ − 1)/τ        τ → 0: power law, τ = 1: exponential

Where it lies was measured, not derived: the edges below were fitted to 2,000 runs over HAR, Landmine and synthetic
federations (random sizes, weights, losses, prices, budgets and policies). On 458 other problems of that kind, each run
with other random numbers than its pilot, they held 90 % of final gaps (regression: 78 %); on HAR and two synthetic
federations, 20 seeds by 4 budgets by 3 policies, 96 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.training import Moment, Result, Settings, train
from rhfedmtl.experiments.walks import Walk, effort
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.measured import Measured, Outlook
from rhfedmtl.resources.planning import Plan, Policy, Situation

FloatArray = npt.NDArray[np.float64]

LEVEL = 0.9
PILOTS = 3
LEAST_ROUNDS, MOST_ROUNDS = 5, 64
_TYPICAL_FALL = 0.6  # q where a pilot has too few certificates to tell
_NOISE, _NOISE_WEIGHT = 0.08, 3.0  # log gaps of runs that differ only in their random numbers: believed deviation
_NEXT_SEED = 7919
_SMALLEST = 1e-16


class Edge(NamedTuple):
    """One way to go on: ``factor`` times the fall q that the pilot showed, held in a range and bent by ``bend`` (τ)."""

    factor: float
    bend: float
    least: float
    most: float

    def fall(self, q: float, stretch: float) -> float:
        """How far the logarithm of the gap falls while progress grows by the factor ``stretch``."""
        held = min(max(q, self.least), self.most)
        return self.factor * held * math.expm1(self.bend * math.log(stretch)) / self.bend


# Fitted by the interval score; see the top of this file for how often they hold.
LOWER, CENTRE, UPPER = Edge(1.45, 0.7, 0.15, 8.0), Edge(1.1, 0.45, 0.06, 1.2), Edge(0.58, 0.43, 0.05, 0.9)


@dataclass(frozen=True)
class Forecast:
    """Gap that a run is expected to end with: an interval that holds it with probability ``level``."""

    low: float
    expected: float
    high: float
    level: float
    pilot_rounds: int


@dataclass(frozen=True, eq=False)
class Pilot:
    """What the first rounds showed: the situation at their start and end, and the certified gaps between.

    ``result`` belongs to the run that is planned, ``others`` to runs that differ from it in their random numbers.
    """

    start: Situation
    end: Situation
    first: Plan | None
    result: Result
    others: list[Result]

    @property
    def rounds(self) -> int:
        """BS iterations that were simulated."""
        return self.result.rounds

    @cached_property
    def outlook(self) -> Outlook:
        """Model of progress as the policy ``measured`` would see it now."""
        return Measured().outlook(self.end)

    @cached_property
    def walked(self) -> Walk:
        """The pilot as the first part of a plan."""
        steps = [seen.local_steps[seen.local_steps > 0] for seen in self.result.observed]
        before = self.start.ledger.spent
        return Walk(
            self.first,
            self.result.rounds,
            self.result.cloud_rounds,
            self.result.terminal_steps,
            min(int(H.min()) for H in steps),
            max(int(H.max()) for H in steps),
            {name: amount - before[name] for name, amount in self.end.ledger.spent.items()},
            -float(self._progress(self.result)[-1]),
            self.result.stopped,
        )

    def forecast(self, whole: Walk) -> Forecast:
        """Interval for the gap at the end of ``whole``, a plan that begins with this pilot."""
        stretch = max(1.0, whole.log_left / min(self.walked.log_left, -1e-12))
        gap, noise = self.gap
        low, expected, high = (gap * math.exp(-edge.fall(self.fall, stretch)) for edge in (LOWER, CENTRE, UPPER))
        return Forecast(max(low / noise, _SMALLEST), max(expected, _SMALLEST), high * noise, LEVEL, self.rounds)

    @cached_property
    def gap(self) -> tuple[float, float]:
        """Gap at the end of the pilot (geometric mean), and the factor by which that of one more run may differ."""
        gaps = np.log([max(result.certificate.gap, _SMALLEST) for result in (self.result, *self.others)])
        variance = (_NOISE_WEIGHT * _NOISE**2 + np.sum((gaps - gaps.mean()) ** 2)) / (_NOISE_WEIGHT + len(gaps) - 1)
        half = 2.0 * math.sqrt(float(variance) * (1.0 + 1.0 / len(gaps)))
        return math.exp(gaps.mean()), math.exp(half)

    @cached_property
    def fall(self) -> float:
        """q = −d log gap / d log x over the second half of the pilot, on average."""
        return float(np.clip(np.mean([self._fall(result) for result in (self.result, *self.others)]), 0.05, 8.0))

    def _progress(self, result: Result) -> FloatArray:
        """x at the end of every server iteration."""
        ends = np.array([moment.round for moment in _ends(result)])
        counts = np.diff(np.append(0, ends))
        phi = [effort(self.start, self.outlook, seen.local_steps) for seen in result.observed]
        last = np.maximum(ends - 1, 0)
        return np.cumsum([-float(self.outlook.log_left(phi[i], k)) for i, k in zip(last, counts, strict=True)])

    def _fall(self, result: Result) -> float:
        gaps = np.log(np.maximum([moment.gap for moment in _ends(result)], _SMALLEST))
        first = max(0, len(gaps) // 2 - 1)
        x = np.log(self._progress(result)[first:])
        if len(x) < 2 or x[-1] - x[0] < 1e-9:
            return _TYPICAL_FALL
        return -float(np.polyfit(x, gaps[first:], 1)[0])


def _ends(result: Result) -> list[Moment]:
    """The last BS iteration of every server iteration."""
    return list({moment.cloud_round: moment for moment in result.history}.values())


def pilot_length(planned: Walk) -> int:
    """Rounds of a pilot: a quarter of the run, with three certificates in it where that is not too much."""
    K = 1 if planned.first is None else int(planned.first.station_rounds.max())
    return min(MOST_ROUNDS, max(LEAST_ROUNDS, -(-planned.rounds // 4), 3 * K))


def fly(
    federation: Federation, method: DualMethod, policy: Policy, settings: Settings, ledger: Ledger, rounds: int
) -> Pilot:
    """Simulate the first rounds of a run under copies of ``ledger``, a few times with different random numbers."""
    scout = _Scout(policy)
    short = replace(settings, engine="inprocess", certify_every=1, max_rounds=rounds)

    def run(number: int) -> Result:
        seeded = replace(short, seed=settings.seed + number * _NEXT_SEED)
        return train(federation, method, scout, seeded, ledger=Ledger(ledger.cost, ledger.budget))

    result, *others = [run(number) for number in range(PILOTS)]
    end = replace(
        scout.seen[0],
        ledger=result.ledger,
        observed=result.observed,
        rounds=result.rounds,
        cloud_rounds=result.cloud_rounds,
    )
    return Pilot(scout.seen[0], end, scout.first, result, others)


class _Scout:
    """The policy itself, and what it saw first."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.seen: list[Situation] = []
        self.first: Plan | None = None

    def plan(self, situation: Situation) -> Plan | None:
        """Plan as the policy does."""
        plan = self._policy.plan(situation)
        if not self.seen:
            # The run goes on to charge its ledger and to append what it observes: keep both as they are now.
            frozen = situation.ledger.with_budget(situation.ledger.budget)
            self.seen.append(replace(situation, ledger=frozen, observed=[]))
            self.first = plan
        return plan
