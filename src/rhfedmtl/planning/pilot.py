"""Simulate the first rounds of a run in memory, free of charge, and extrapolate the certified gap to its end.

`plan` flies a pilot if it has data, and can save it to plan for other prices and budgets later. The result is a
`Pilot`; `Pilot.forecast` turns it into an interval for the final gap. A pilot never charges the user's ledger.

Let x be the progress by the model of the policy ``measured`` (minus the logarithm of the remaining share). Near its end
a pilot shows gap ∝ x^(−q). From there to the end of the run the fall lies between a power law and an exponential:

    log gap(r x) = log gap(x) − factor · 2q (√r − 1)

The factors are measured, not derived (`benchmarks/forecasts.py`), and they depend on the loss. With a loss for classes,
dual variables settle at the ends of their boxes and the remaining problem gets easier. The squared loss has no box:
directions in which the rows hardly vary stay slow. After the same pilot its gap falls two thirds as far, and one third
of that at the slow end. Some pilots cannot show the fall at all: with a single certificate, or with a dual that is not
yet above 0, where the gap is the objective itself and then drops suddenly.
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
from rhfedmtl.resources.costs import BudgetLike, Cost
from rhfedmtl.resources.events import Event
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection.weights import OpenWeights
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.packing import Packer, Unpacker
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.snapshot import Before

FloatArray = npt.NDArray[np.float64]

PILOT_FILE = array_file.Kind("pilot", 1, [str(i) for i in range(64)])
ENDING = ".pilot"
"""Usual ending of the names of such files."""
LEVEL = 0.9
PILOTS = 3
LEAST_ROUNDS, MANY_ROUNDS, PILOT_ROUNDS = 5, 64, 256
PILOT_STEPS = 2_000_000  # of all terminals, in a pilot of more than MANY_ROUNDS
LEAST_FALL, MOST_FALL = 0.1, 6.0  # q is clipped to this range.
_NOISE, _NOISE_WEIGHT = 0.08, 3.0  # Prior standard deviation of log gaps over seeds, and its weight in runs.
_NEXT_SEED = 7919
_ROUNDING = 1e-12  # Of the objective: a smaller gap cannot be told from rounding, so a run stops there.


class Edges(NamedTuple):
    """Factors on the fall that a pilot shows; 5 % of runs lie beyond either end.

    They are quantiles over runs; benchmarks/results/forecasts.txt says how often they hold on other problems.
    """

    lower: float
    centre: float
    upper: float

    def falls(self, q: float, stretch: float) -> tuple[float, float, float]:
        """Return the lower, central and upper fall of the logarithm of the gap if progress grows by ``stretch``."""
        fall = 2.0 * q * (math.sqrt(stretch) - 1.0)
        return self.lower * fall, self.centre * fall, self.upper * fall


CLASS_EDGES, NUMBER_EDGES = Edges(2.0, 1.35, 0.6), Edges(1.8, 0.85, 0.23)
UNCLEAR = Edges(3.2, 0.63, 0.12)  # with q = 1
DOUBT = 1.6
"""`Pilot.doubt` of a pilot that was simulated under other prices and budgets."""


@dataclass(frozen=True)
class Forecast:
    """Interval that contains the gap at the end of a run with probability ``level``.

    ``low`` is 0 if the run may reach the optimum up to rounding.
    """

    low: float
    expected: float
    high: float
    level: float
    pilot_rounds: int


@dataclass(frozen=True, eq=False)
class Flight:
    """A simulation: x and the certified gap at the end of every server iteration, and the last certificate."""

    progress: FloatArray
    gaps: FloatArray
    gap: float
    primal: float
    dual: float

    def gap_at(self, x: float, smallest_gap: float) -> float:
        """Return the logarithm of the gap at the progress ``x``."""
        return float(np.interp(math.log(x), np.log(self.progress), np.log(np.maximum(self.gaps, smallest_gap))))

    def fall(self, smallest_gap: float) -> float:
        """Return q over the second half of the flight."""
        first = max(0, len(self.gaps) // 2 - 1)
        gaps, x = np.log(np.maximum(self.gaps[first:], smallest_gap)), np.log(self.progress[first:])
        if len(x) < 2 or x[-1] - x[0] < 1e-9:
            return LEAST_FALL
        return -float(np.polyfit(x, gaps, 1)[0])


@dataclass(frozen=True, eq=False)
class Pilot:
    """Result of the simulated rounds: the situation at their start and end, and the certified gaps between.

    The first of ``flights`` uses the seed of the planned run, the others use further seeds. ``simulated`` is the first
    flight as the first part of a plan, ``edges`` are the factors for the loss, ``opening`` has the messages of round
    zero, and ``dropout`` is the share of lost updates. Predicted progress may be wrong by the factor ``doubt`` in
    either direction. ``weights`` are the λ1 and λ2 of the first flight.
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
        """Write the inputs of a plan to a file: sizes, the last rounds and the gaps."""
        start = replace(self.start, observed=self.end.observed[-Measured.memory :], planning_prices=None, memo={})
        packer = Packer({"ledger": start.ledger})
        bare = replace(self, start=start, end=start, simulated=empty_dry_run(()))
        header = {"pilot": packer.pack(bare), "objects": packer.objects}
        array_file.write(path, PILOT_FILE, header, {str(i): np.asarray(array) for i, array in enumerate(packer.arrays)})

    @classmethod
    def load(cls, path: Path) -> Pilot:
        """Read a pilot from a file."""
        header, arrays = array_file.read(path, PILOT_FILE)
        try:
            unpacker = Unpacker([arrays[str(i)] for i in range(len(arrays))], header["objects"], {"ledger": Ledger({})})
            pilot = unpacker.unpack(header["pilot"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"{path} does not fit this version ({error!r}): simulate the pilot again") from error
        assert isinstance(pilot, Pilot)
        return pilot

    def opened(self, cost: Cost) -> Situation:
        """Return the situation before the first round of another run under ``cost``, with the pilot's observations."""
        start = replace(self.start, observed=self.end.observed, ledger=Ledger.replay(cost, None, self.opening), memo={})
        start.ledger.charge(start.certificate_event())
        return start

    def under(self, start: Situation, faults: Faults) -> Pilot:
        """Return the pilot as evidence for a run from ``start`` of which nothing is simulated yet."""
        keep_ratio = prior_keep(start, faults.dropout) / prior_keep(start, self.dropout)
        outlook = self.outlook._replace(keep=min(self.outlook.keep * keep_ratio, 0.999))
        nothing = empty_dry_run(start.ledger.cost)
        return replace(self, start=start, end=start, simulated=nothing, outlook=outlook, doubt=DOUBT)

    def complete_run(self, policy: Policy, budget: BudgetLike, most_rounds: int) -> DryRun:
        """Return the simulated rounds followed by a dry run of ``policy`` with the remaining budget."""
        rest = replace(self.end, ledger=self.end.ledger.with_budget(budget))
        return self.simulated.then(dry_run(policy, rest, self.outlook, most_rounds - self.end.rounds))

    def stretch(self, run: DryRun) -> float:
        """Return the progress of ``run`` as a multiple of the pilot's progress."""
        return -run.log_left / max(float(self.flights[0].progress[-1]), 1e-12)

    def forecast(self, run: DryRun) -> Forecast:
        """Return the interval for the gap at the end of ``run``, which starts with this pilot or has other prices."""
        (_, noise), stretch = self.gap, self.stretch(run)
        low = self._after(stretch * self.doubt)[0] / noise
        expected, high = self._after(stretch)[1], self._after(stretch / self.doubt)[2] * noise
        low = low if low > self._smallest_gap else 0.0
        return Forecast(low, max(expected, self._smallest_gap), max(high, self._smallest_gap), LEVEL, self.rounds)

    def _after(self, stretch: float) -> tuple[float, float, float]:
        """Return low, expected and high gap at ``stretch`` times the pilot's progress.

        Below 1 they are interpolated from the flights, above 1 extrapolated by the edges.
        """
        if stretch < 1.0 - 1e-9:
            x = stretch * float(self.flights[0].progress[-1])
            return (math.exp(np.mean([flight.gap_at(x, self._smallest_gap) for flight in self.flights])),) * 3
        edges, q = (UNCLEAR, 1.0) if self.fall is None else (self.edges, self.fall)
        low, expected, high = (self.gap[0] * math.exp(-fall) for fall in edges.falls(q, max(stretch, 1.0)))
        return low, expected, high

    @cached_property
    def _smallest_gap(self) -> float:
        """Smallest gap that is larger than rounding."""
        return max(_ROUNDING * abs(self.flights[0].primal), np.finfo(float).tiny)

    @cached_property
    def gap(self) -> tuple[float, float]:
        """Gap at the end of the pilot (geometric mean), and the factor by which the gap of one more run may differ."""
        gaps = np.log([max(flight.gap, self._smallest_gap) for flight in self.flights])
        variance = (_NOISE_WEIGHT * _NOISE**2 + np.sum((gaps - gaps.mean()) ** 2)) / (_NOISE_WEIGHT + len(gaps) - 1)
        half = 2.0 * math.sqrt(float(variance) * (1.0 + 1.0 / len(gaps)))
        return math.exp(gaps.mean()), math.exp(half)

    @cached_property
    def fall(self) -> float | None:
        """Mean of q = −d log gap / d log x over the second half of the flights; None if the pilot cannot show it."""
        if self.flights[0].dual <= 0.0 or len(self.flights[0].gaps) < 2:
            return None
        falls = [flight.fall(self._smallest_gap) for flight in self.flights]
        return float(np.clip(np.mean(falls), LEAST_FALL, MOST_FALL))


def pilot_length(planned: DryRun, policy: Policy, method: DualMethod) -> int:
    """Return the number of rounds of a pilot: a quarter of the run, and at least three server iterations.

    The start of a run that may switch solvers does not predict its end: such a run is simulated completely if it is
    short enough. A pilot has at most 256 rounds, and at most 64 if these are a lot of work already.
    """
    K = 1 if planned.first is None else int(planned.first.station_rounds.max())
    affordable = PILOT_STEPS * planned.rounds // max(planned.terminal_steps, 1)
    max_rounds = min(max(affordable, MANY_ROUNDS), PILOT_ROUNDS)
    if isinstance(policy, Measured) and method.adapts and planned.rounds <= max_rounds:
        return max_rounds
    return min(max_rounds, max(LEAST_ROUNDS, -(-planned.rounds // 4), 3 * K))


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
    """Simulate the first rounds of a run under copies of ``ledger``, several times with different seeds.

    Each simulation chooses open ``weights`` as the run will. It computes a certificate in every round if certificates
    are free. If they cost a limited resource, they come and are charged as in the run, because the policy uses them.
    """
    recorder, faults = _RecordingPolicy(policy), faults or Faults()
    short = replace(settings, execution=settings.execution.in_process, max_rounds=rounds)
    situation, last = situation_of(federation, method, settings, ledger.cost), None
    if not replace(situation, ledger=ledger).certificates_cost:
        short = replace(short, certify_every=1, free_evaluation=True)
        last = Before([situation.certificate_event()])  # The pilot's certificates are free; the run pays its last one.

    def run(number: int) -> tuple[DualMethod, Result]:
        seeded = replace(short, seed=settings.seed + number * _NEXT_SEED)
        limits, with_weights, before = Ledger(ledger.cost, ledger.budget), method, None
        if weights is not None:
            with_weights, before = weights.begin(method, recorder, federation, seeded, limits)
        result = train(federation, with_weights, recorder, seeded, ledger=limits, faults=faults, before=before or last)
        return with_weights, result

    runs = [run(number) for number in range(PILOTS)]
    results = [result for _, result in runs]
    method, result = runs[0]
    assert recorder.start is not None
    situation = situation_of(federation, method, settings, ledger.cost)
    first = replace(
        recorder.start,
        sizes=situation.sizes,
        lam=situation.lam,
        coupling=situation.coupling,
        certificate_bytes=situation.certificate_bytes,
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
    flights = [_flight(first, outlook, entry) for entry in results]
    return Pilot(
        first,
        end,
        _simulated(first, end, recorder.first, result, flights[0]),
        outlook,
        flights,
        CLASS_EDGES if method.loss.classifier else NUMBER_EDGES,
        result.rounds,
        opening(federation, method, settings, ledger.cost),
        faults.dropout,
        weights=weights_of(method.relationship, federation.n_tasks),
    )


def _flight(start: Situation, outlook: ProgressModel, result: Result) -> Flight:
    """Return the gap and the progress at the end of every certified server iteration."""
    moments = list({moment.cloud_round: moment for moment in result.history if moment.certified}.values())
    ends = np.array([moment.round for moment in moments])
    counts, last = np.diff(np.append(0, ends)), np.maximum(ends - 1, 0)
    phi = [effort(start, outlook, observation.local_steps) for observation in result.observed]
    progress = np.cumsum([-float(outlook.log_left(phi[i], k)) for i, k in zip(last, counts, strict=True)])
    certificate = result.certificate
    gaps = np.array([moment.gap for moment in moments])
    return Flight(progress, gaps, certificate.gap, certificate.primal, certificate.dual)


def _simulated(start: Situation, end: Situation, first: Plan | None, result: Result, flight: Flight) -> DryRun:
    """Return the pilot as the first part of a plan."""
    steps = [observation.local_steps[observation.local_steps > 0] for observation in result.observed]
    spent_before = start.ledger.spent
    return DryRun(
        first,
        result.rounds,
        result.cloud_rounds,
        result.terminal_steps,
        min(int(H.min()) for H in steps),
        max(int(H.max()) for H in steps),
        {name: amount - spent_before[name] for name, amount in end.ledger.spent.items()},
        -float(flight.progress[-1]),
        result.stopped,
    )


class _RecordingPolicy:
    """Wrapper of a policy that records the first situation and plan."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.start: Situation | None = None
        self.first: Plan | None = None

    def plan(self, situation: Situation) -> Plan | None:
        """Return the plan of the wrapped policy."""
        plan = self._policy.plan(situation)
        if self.start is None:
            # The run changes its ledger and its list of observations later, so we copy both.
            frozen = situation.ledger.with_budget(situation.ledger.budget)
            self.start, self.first = replace(situation, ledger=frozen, observed=[]), plan
        return plan
