"""A pilot: the first rounds of a run, simulated in memory and not charged, and the gap that they let expect.

Let x be the progress that the model of the policy ``measured`` sees (minus the logarithm of what it believes to be
left). Near its end a pilot shows gap ∝ x^(−q). From there to the end of the run the fall lies between a power law and
an exponential:

    log gap(r x) = log gap(x) − factor · 2q (√r − 1)

How far it goes was measured, not derived (`benchmarks/forecasts.py`), and it depends on the loss. Under a loss for
classes, rows settle at the ends of their boxes and the rest gets easier. The squared loss has no box: directions in
which rows hardly vary stay slow, so that the same pilot is followed by a fall two thirds as far, and at the slow end
by one third of that. A third case are pilots that cannot tell: with a single certificate, or with a dual that is not
yet above 0, where the gap is the objective itself and drops all of a sudden.
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
from rhfedmtl.planning.data_shape import situation_of
from rhfedmtl.planning.dry_run import DryRun, dry_run, effort
from rhfedmtl.policies.base import Plan, Policy, Situation
from rhfedmtl.policies.measured.policy import Measured, Outlook
from rhfedmtl.resources.costs import BudgetLike
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Before, Moment, Result, Settings, train

FloatArray = npt.NDArray[np.float64]

LEVEL = 0.9
PILOTS = 3
LEAST_ROUNDS, MANY_ROUNDS, MOST_ROUNDS = 5, 64, 256
MOST_STEPS = 2_000_000  # of all terminals, in a pilot of more than MANY_ROUNDS
LEAST_FALL, MOST_FALL = 0.1, 6.0  # q is held between these
_NOISE, _NOISE_WEIGHT = 0.08, 3.0  # log gaps of runs that differ only in their random numbers: believed deviation
_NEXT_SEED = 7919
_ROUNDING = 1e-15  # of the objective: a smaller gap cannot be told from none


class Edges(NamedTuple):
    """How a gap goes on: factors on the fall that a pilot shows; 5 % of runs lie beyond either end.

    Quantiles over runs; how often they hold on other problems stands in benchmarks/results/forecasts.txt.
    """

    lower: float
    centre: float
    upper: float

    def falls(self, q: float, stretch: float) -> tuple[float, float, float]:
        """How far the logarithm of the gap falls while progress grows by the factor ``stretch``."""
        shown = 2.0 * q * (math.sqrt(stretch) - 1.0)
        return self.lower * shown, self.centre * shown, self.upper * shown


CLASSES, NUMBERS = Edges(2.0, 1.35, 0.6), Edges(1.8, 0.85, 0.23)
UNTOLD = Edges(3.2, 0.63, 0.12)  # with q = 1


@dataclass(frozen=True)
class Forecast:
    """Gap that a run is expected to end with: an interval that holds it with probability ``level``.

    ``low`` is 0 where the run may get as near to the optimum as rounding lets it.
    """

    low: float
    expected: float
    high: float
    level: float
    pilot_rounds: int


@dataclass(frozen=True, eq=False)
class Pilot:
    """What the first rounds showed: the situation at their start and end, and the certified gaps between.

    ``result`` belongs to the run that is planned, ``others`` to runs that differ from it in their random numbers.
    ``edges`` are those of the loss.
    """

    start: Situation
    end: Situation
    first: Plan | None
    result: Result
    others: list[Result]
    edges: Edges

    @property
    def rounds(self) -> int:
        """BS iterations that were simulated."""
        return self.result.rounds

    @cached_property
    def outlook(self) -> Outlook:
        """Model of progress as the policy ``measured`` would see it now."""
        return Measured().outlook(self.end)

    @cached_property
    def simulated(self) -> DryRun:
        """The pilot as the first part of a plan."""
        steps = [seen.local_steps[seen.local_steps > 0] for seen in self.result.observed]
        before = self.start.ledger.spent
        return DryRun(
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

    def whole(self, policy: Policy, budget: BudgetLike, most_rounds: int) -> DryRun:
        """The rounds of the pilot and, on paper, what the policy does with the rest of a budget."""
        rest = replace(self.end, ledger=self.end.ledger.with_budget(budget))
        return self.simulated.then(dry_run(policy, rest, self.outlook, most_rounds - self.end.rounds))

    def stretch(self, whole: DryRun) -> float:
        """How many times the pilot's progress a plan makes that begins with it."""
        return max(1.0, whole.log_left / min(self.simulated.log_left, -1e-12))

    def forecast(self, whole: DryRun) -> Forecast:
        """Interval for the gap at the end of ``whole``, a plan that begins with this pilot."""
        gap, noise = self.gap
        edges, q = (UNTOLD, 1.0) if self.fall is None else (self.edges, self.fall)
        low, expected, high = (gap * math.exp(-fall) for fall in edges.falls(q, self.stretch(whole)))
        low = low / noise if low / noise > self._least else 0.0
        return Forecast(low, max(expected, self._least), max(high * noise, self._least), LEVEL, self.rounds)

    @cached_property
    def _least(self) -> float:
        """Smallest gap that is more than rounding."""
        return max(_ROUNDING * abs(self.result.certificate.primal), np.finfo(float).tiny)

    @cached_property
    def gap(self) -> tuple[float, float]:
        """Gap at the end of the pilot (geometric mean), and the factor by which that of one more run may differ."""
        gaps = np.log([max(result.certificate.gap, self._least) for result in (self.result, *self.others)])
        variance = (_NOISE_WEIGHT * _NOISE**2 + np.sum((gaps - gaps.mean()) ** 2)) / (_NOISE_WEIGHT + len(gaps) - 1)
        half = 2.0 * math.sqrt(float(variance) * (1.0 + 1.0 / len(gaps)))
        return math.exp(gaps.mean()), math.exp(half)

    @cached_property
    def fall(self) -> float | None:
        """q = −d log gap / d log x over the second half of the pilot, on average; None where it cannot be told."""
        if self.result.certificate.dual <= 0.0 or len(_ends(self.result)) < 2:
            return None
        falls = [self._fall(result) for result in (self.result, *self.others)]
        return float(np.clip(np.mean(falls), LEAST_FALL, MOST_FALL))

    def _progress(self, result: Result) -> FloatArray:
        """x at the end of every server iteration."""
        ends = np.array([moment.round for moment in _ends(result)])
        counts = np.diff(np.append(0, ends))
        phi = [effort(self.start, self.outlook, seen.local_steps) for seen in result.observed]
        last = np.maximum(ends - 1, 0)
        return np.cumsum([-float(self.outlook.log_left(phi[i], k)) for i, k in zip(last, counts, strict=True)])

    def _fall(self, result: Result) -> float:
        gaps = np.log(np.maximum([moment.gap for moment in _ends(result)], self._least))
        first = max(0, len(gaps) // 2 - 1)
        x = np.log(self._progress(result)[first:])
        if len(x) < 2 or x[-1] - x[0] < 1e-9:
            return LEAST_FALL
        return -float(np.polyfit(x, gaps[first:], 1)[0])


def _ends(result: Result) -> list[Moment]:
    """The last BS iteration of every server iteration."""
    return list({moment.cloud_round: moment for moment in result.history}.values())


def pilot_length(planned: DryRun) -> int:
    """Rounds of a pilot: a quarter of the run, with three certificates in it where that is not too much.

    No more than 256, and no more than 64 where these are much work already.
    """
    K = 1 if planned.first is None else int(planned.first.station_rounds.max())
    quick = MOST_STEPS * planned.rounds // max(planned.terminal_steps, 1)
    most = min(max(quick, MANY_ROUNDS), MOST_ROUNDS)
    return min(most, max(LEAST_ROUNDS, -(-planned.rounds // 4), 3 * K))


def fly(
    federation: Federation, method: DualMethod, policy: Policy, settings: Settings, ledger: Ledger, rounds: int
) -> Pilot:
    """Simulate the first rounds of a run under copies of ``ledger``, a few times with different random numbers."""
    scout = _Scout(policy)
    how = settings.execution.in_process
    short = replace(settings, execution=how, certify_every=1, free_evaluation=True, max_rounds=rounds)
    known = situation_of(federation, method, settings, ledger.cost)
    last = Before([known.certificate_event()])  # its own certificates are free; the run pays for its last one

    def run(number: int) -> Result:
        seeded = replace(short, seed=settings.seed + number * _NEXT_SEED)
        return train(federation, method, scout, seeded, ledger=Ledger(ledger.cost, ledger.budget), before=last)

    result, *others = [run(number) for number in range(PILOTS)]
    first = replace(scout.seen[0], certificate_bytes=known.certificate_bytes, certify_every=settings.certify_every)
    end = replace(
        first,
        ledger=result.ledger,
        observed=result.observed,
        rounds=result.rounds,
        cloud_rounds=result.cloud_rounds,
    )
    edges = CLASSES if method.loss.classifier else NUMBERS
    return Pilot(first, end, scout.first, result, others, edges)


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
