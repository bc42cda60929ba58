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
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl import array_file
from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import DataError
from rhfedmtl.maths.relationships import weights_of
from rhfedmtl.planning.data_shape import opening, situation_of
from rhfedmtl.planning.dry_run import DryRun, dry_run, effort, empty_dry_run
from rhfedmtl.policies.base import Plan, Policy, Situation
from rhfedmtl.policies.measured.policy import Measured, ProgressModel
from rhfedmtl.policies.measured.progress import prior_keep
from rhfedmtl.resources.billing import Event
from rhfedmtl.resources.costs import BudgetLike, Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection.weights import OpenWeights
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.packing import Packer, Unpacker
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

FloatArray = npt.NDArray[np.float64]

FILE = array_file.Kind("pilot", 1, [str(i) for i in range(64)])
ENDING = ".pilot"
"""How names of such files end, by custom."""
LEVEL = 0.9
PILOTS = 3
LEAST_ROUNDS, MANY_ROUNDS, MOST_ROUNDS = 5, 64, 256
MOST_STEPS = 2_000_000  # of all terminals, in a pilot of more than MANY_ROUNDS
LEAST_FALL, MOST_FALL = 0.1, 6.0  # q is held between these
_NOISE, _NOISE_WEIGHT = 0.08, 3.0  # log gaps of runs that differ only in their random numbers: believed deviation
_NEXT_SEED = 7919
_ROUNDING = 1e-12  # of the objective: where a run ends, and a smaller gap is hardly told from none


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
DOUBT = 1.6
"""`Pilot.doubt` of a pilot that was flown for other prices and budgets."""


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
class Flight:
    """One simulation: x and the certified gap at the end of every server iteration, and its last certificate."""

    progress: FloatArray
    gaps: FloatArray
    gap: float
    primal: float
    dual: float

    def gap_at(self, x: float, least: float) -> float:
        """Logarithm of the gap after so much progress."""
        return float(np.interp(math.log(x), np.log(self.progress), np.log(np.maximum(self.gaps, least))))

    def fall(self, least: float) -> float:
        """q over the second half."""
        first = max(0, len(self.gaps) // 2 - 1)
        gaps, x = np.log(np.maximum(self.gaps[first:], least)), np.log(self.progress[first:])
        if len(x) < 2 or x[-1] - x[0] < 1e-9:
            return LEAST_FALL
        return -float(np.polyfit(x, gaps, 1)[0])


@dataclass(frozen=True, eq=False)
class Pilot:
    """What the first rounds showed: the situation at their start and end, and the certified gaps between.

    The first of ``flights`` belongs to the run that is planned, the others to runs that differ from it in their random
    numbers; ``simulated`` is it as the first part of a plan. ``edges`` are those of the loss, ``opening`` what round
    zero charges, ``dropout`` the share of updates that got lost, ``doubt`` the factor by which progress on paper may be
    misjudged in either direction. ``weights`` are the λ1 and λ2 of the first flight.
    """

    start: Situation
    end: Situation
    simulated: DryRun
    outlook: ProgressModel
    flights: list[Flight]
    edges: Edges
    rounds: int
    opening: list[Event]
    dropout: float = 0.0
    doubt: float = 1.0
    weights: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Keep in a file what a plan needs of it: sizes, and what the last rounds and the gaps showed."""
        start = replace(self.start, observed=self.end.observed[-Measured.memory :], planning_prices=None, memo={})
        packer = Packer({"ledger": start.ledger})
        bare = replace(self, start=start, end=start, simulated=empty_dry_run(()))
        header = {"pilot": packer.pack(bare), "objects": packer.objects}
        array_file.write(path, FILE, header, {str(i): np.asarray(each) for i, each in enumerate(packer.arrays)})

    @classmethod
    def load(cls, path: Path) -> Pilot:
        """A pilot that was kept."""
        header, arrays = array_file.read(path, FILE)
        try:
            unpacker = Unpacker([arrays[str(i)] for i in range(len(arrays))], header["objects"], {"ledger": Ledger({})})
            found = unpacker.unpack(header["pilot"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"{path} does not fit this version ({error!r}): make the pilot anew") from error
        assert isinstance(found, Pilot)
        return found

    def opened(self, cost: Cost) -> Situation:
        """The situation before the first round of another run, under these prices: it knows what the pilot showed."""
        start = replace(self.start, observed=self.end.observed, ledger=Ledger.replay(cost, None, self.opening), memo={})
        start.ledger.charge(start.certificate_event())
        return start

    def under(self, start: Situation, faults: Faults) -> Pilot:
        """The same evidence for a run that begins so, nothing of it done."""
        kept = prior_keep(start, faults.dropout) / prior_keep(start, self.dropout)
        outlook = self.outlook._replace(keep=min(self.outlook.keep * kept, 0.999))
        nothing = empty_dry_run(start.ledger.cost)
        return replace(self, start=start, end=start, simulated=nothing, outlook=outlook, doubt=DOUBT)

    def whole(self, policy: Policy, budget: BudgetLike, most_rounds: int) -> DryRun:
        """The rounds that were simulated and, on paper, what the policy does with the rest of a budget."""
        rest = replace(self.end, ledger=self.end.ledger.with_budget(budget))
        return self.simulated.then(dry_run(policy, rest, self.outlook, most_rounds - self.end.rounds))

    def stretch(self, whole: DryRun) -> float:
        """How many times the pilot's progress a plan makes."""
        return -whole.log_left / max(float(self.flights[0].progress[-1]), 1e-12)

    def forecast(self, whole: DryRun) -> Forecast:
        """Interval for the gap at the end of ``whole``: a plan that begins with this pilot, or one for other prices."""
        (_, noise), stretch = self.gap, self.stretch(whole)
        low = self._after(stretch * self.doubt)[0] / noise
        expected, high = self._after(stretch)[1], self._after(stretch / self.doubt)[2] * noise
        low = low if low > self._least else 0.0
        return Forecast(low, max(expected, self._least), max(high, self._least), LEVEL, self.rounds)

    def _after(self, stretch: float) -> tuple[float, float, float]:
        """Gaps after so many times the pilot's progress: seen on the way where it is less, else by the edges."""
        if stretch < 1.0 - 1e-9:
            x = stretch * float(self.flights[0].progress[-1])
            return (math.exp(np.mean([each.gap_at(x, self._least) for each in self.flights])),) * 3
        edges, q = (UNTOLD, 1.0) if self.fall is None else (self.edges, self.fall)
        low, expected, high = (self.gap[0] * math.exp(-fall) for fall in edges.falls(q, max(stretch, 1.0)))
        return low, expected, high

    @cached_property
    def _least(self) -> float:
        """Smallest gap that is more than rounding."""
        return max(_ROUNDING * abs(self.flights[0].primal), np.finfo(float).tiny)

    @cached_property
    def gap(self) -> tuple[float, float]:
        """Gap at the end of the pilot (geometric mean), and the factor by which that of one more run may differ."""
        gaps = np.log([max(each.gap, self._least) for each in self.flights])
        variance = (_NOISE_WEIGHT * _NOISE**2 + np.sum((gaps - gaps.mean()) ** 2)) / (_NOISE_WEIGHT + len(gaps) - 1)
        half = 2.0 * math.sqrt(float(variance) * (1.0 + 1.0 / len(gaps)))
        return math.exp(gaps.mean()), math.exp(half)

    @cached_property
    def fall(self) -> float | None:
        """q = −d log gap / d log x over the second half of the pilot, on average; None where it cannot be told."""
        if self.flights[0].dual <= 0.0 or len(self.flights[0].gaps) < 2:
            return None
        falls = [each.fall(self._least) for each in self.flights]
        return float(np.clip(np.mean(falls), LEAST_FALL, MOST_FALL))


def pilot_length(planned: DryRun, policy: Policy, method: DualMethod) -> int:
    """Rounds of a pilot: a quarter of the run, with three certificates in it where that is not too much.

    A run that may search, for which it changes to another solver on the way, cannot be told from its beginning: where
    it is not too long it is simulated as a whole. No more than 256 rounds, and no more than 64 where these are much
    work already.
    """
    K = 1 if planned.first is None else int(planned.first.station_rounds.max())
    quick = MOST_STEPS * planned.rounds // max(planned.terminal_steps, 1)
    most = min(max(quick, MANY_ROUNDS), MOST_ROUNDS)
    if isinstance(policy, Measured) and method.adapts and planned.rounds <= most:
        return most
    return min(most, max(LEAST_ROUNDS, -(-planned.rounds // 4), 3 * K))


def fly(
    federation: Federation,
    method: DualMethod,
    policy: Policy,
    settings: Settings,
    ledger: Ledger,
    rounds: int,
    faults: Faults | None = None,
    weights: OpenWeights | None = None,
) -> Pilot:
    """Simulate the first rounds of a run under copies of ``ledger``, a few times with different random numbers.

    Where ``weights`` are open each simulation chooses them, as the run will. Certificates come in every round, unless
    they take what is limited: then they come, and are paid, as in the run, which goes by what they tell.
    """
    scout, faults = _Scout(policy), faults or Faults()
    short = replace(settings, execution=settings.execution.in_process, max_rounds=rounds)
    known, last = situation_of(federation, method, settings, ledger.cost), None
    if not replace(known, ledger=ledger).certificates_cost:
        short = replace(short, certify_every=1, free_evaluation=True)
        last = Before([known.certificate_event()])  # its own certificates are free; the run pays for its last one

    def run(number: int) -> tuple[DualMethod, Result]:
        seeded = replace(short, seed=settings.seed + number * _NEXT_SEED)
        limits, with_weights, before = Ledger(ledger.cost, ledger.budget), method, None
        if weights is not None:
            with_weights, before = weights.begin(method, scout, federation, seeded, limits)
        result = train(federation, with_weights, scout, seeded, ledger=limits, faults=faults, before=before or last)
        return with_weights, result

    runs = [run(number) for number in range(PILOTS)]
    results = [result for _, result in runs]
    method, result = runs[0]
    assert scout.start is not None
    known = situation_of(federation, method, settings, ledger.cost)
    first = replace(
        scout.start,
        sizes=known.sizes,
        lam=known.lam,
        coupling=known.coupling,
        certificate_bytes=known.certificate_bytes,
        certify_every=settings.certify_every,
        memo={},
    )
    end = replace(
        first,
        ledger=result.ledger,
        observed=result.observed,
        rounds=result.rounds,
        cloud_rounds=result.cloud_rounds,
    )
    outlook = Measured().progress_model(end)
    flights = [_flight(first, outlook, each) for each in results]
    return Pilot(
        first,
        end,
        _simulated(first, end, scout.first, result, flights[0]),
        outlook,
        flights,
        CLASSES if method.loss.classifier else NUMBERS,
        result.rounds,
        opening(federation, method, settings, ledger.cost),
        faults.dropout,
        weights=weights_of(method.relationship, federation.n_tasks),
    )


def _flight(start: Situation, outlook: ProgressModel, result: Result) -> Flight:
    """Gaps at the end of every server iteration that was certified, each with the progress until then."""
    moments = list({moment.cloud_round: moment for moment in result.history if moment.certified}.values())
    ends = np.array([moment.round for moment in moments])
    counts, last = np.diff(np.append(0, ends)), np.maximum(ends - 1, 0)
    phi = [effort(start, outlook, seen.local_steps) for seen in result.observed]
    progress = np.cumsum([-float(outlook.log_left(phi[i], k)) for i, k in zip(last, counts, strict=True)])
    certificate = result.certificate
    gaps = np.array([moment.gap for moment in moments])
    return Flight(progress, gaps, certificate.gap, certificate.primal, certificate.dual)


def _simulated(start: Situation, end: Situation, first: Plan | None, result: Result, flight: Flight) -> DryRun:
    """A pilot as the first part of a plan."""
    steps = [seen.local_steps[seen.local_steps > 0] for seen in result.observed]
    before = start.ledger.spent
    return DryRun(
        first,
        result.rounds,
        result.cloud_rounds,
        result.terminal_steps,
        min(int(H.min()) for H in steps),
        max(int(H.max()) for H in steps),
        {name: amount - before[name] for name, amount in end.ledger.spent.items()},
        -float(flight.progress[-1]),
        result.stopped,
    )


class _Scout:
    """The policy itself, and what it saw first."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.start: Situation | None = None
        self.first: Plan | None = None

    def plan(self, situation: Situation) -> Plan | None:
        """Plan as the policy does."""
        plan = self._policy.plan(situation)
        if self.start is None:
            # The run goes on to charge its ledger and to append what it observes: keep both as they are now.
            frozen = situation.ledger.with_budget(situation.ledger.budget)
            self.start, self.first = replace(situation, ledger=frozen, observed=[]), plan
        return plan
