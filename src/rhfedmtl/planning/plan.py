"""Plan before a run: the work, the rounds and the cost that a budget buys.

The command ``plan`` and the dashboard's what-if page call `plan`. A plan is a dry run (`rhfedmtl.planning.dry_run`):
the policy plans as in a run, the module prices its server iterations as the ledger would, and nothing is trained. A
progress model estimates the remaining suboptimality; with data, a pilot predicts the gap (`rhfedmtl.planning.pilot`).
The result is a `PlanReport`; `rhfedmtl.planning.words` turns it into text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.display import amounts, facts_html
from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.maths import theory
from rhfedmtl.maths.relationships import weights_of
from rhfedmtl.plain import plain
from rhfedmtl.planning.data_shape import DataShape, cheapest_plan, situation_of, width_of
from rhfedmtl.planning.dry_run import DryRun, Frozen, dry_run, effort, is_constant, steps_of
from rhfedmtl.planning.pilot import LEVEL, PILOTS, Forecast, Pilot, fly, pilot_length
from rhfedmtl.policies.base import Policy, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.policies.measured.progress import prior_keep
from rhfedmtl.policies.theoretical import Theoretical
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import BY_BUDGET, amounts_text, binding, fits, times_affordable
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.steps import cost_curve, steps_affordable
from rhfedmtl.selection.weights import OpenWeights
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.privacy import RESOURCE, Privacy, PrivatePlan, design
from rhfedmtl.training.settings import Settings

CURVE_POINTS = 48
PRIOR = (
    "the remaining suboptimality is a prior estimate: use it to compare plans; it is too optimistic for long runs; "
    "with --data a pilot predicts the gap"
)
MOST_PLANNED_STEPS = 10_000
"""Largest H in ranges of feasible H."""
_NUDGE = 0.1  # Shadow prices are slopes over ±10 % of a budget: rounds are integers, so smaller changes jump.


@dataclass(frozen=True)
class CurvePoint:
    """Cost of a round with this H, the affordable rounds, and the remaining suboptimality; with a bound also K.

    ``remaining_suboptimality`` is the share of the initial suboptimality after the affordable rounds, by the model of
    progress. ``bound_rounds`` is K(H) of the policy's bound, and ``cost`` is the cost of M K(H) rounds.
    """

    local_steps: int
    round_cost: dict[str, float]
    affordable_rounds: int
    remaining_suboptimality: float
    bound_rounds: float | None = None
    cost: dict[str, float] | None = None


@dataclass(frozen=True, repr=False)
class PlanReport:
    """A plan in plain values.

    ``local_steps`` is H of the first server iteration (the median if terminals differ) and ``local_steps_range`` covers
    all iterations; ``station_rounds`` is K, ``cloud_rounds`` M. ``feasible_steps`` are the H that each budget allows,
    as ranges (up to `MOST_PLANNED_STEPS`); ``together`` are the H that all budgets allow. ``shadow_price`` is the fall
    of the logarithm of the remaining suboptimality, per unit of the type. ``privacy`` is the plan of a private run; the
    shadow price of epsilon is the fall of the logarithm of the cost of noise. ``weights`` are the planned λ1 and λ2.
    """

    policy: str
    federation: dict[str, Any]
    local_steps: int
    local_steps_range: tuple[int, int]
    local_steps_by_station: list[list[int]] | None
    station_rounds: int
    station_rounds_by_station: list[int] | None
    cloud_rounds: int
    rounds: int
    terminal_steps: int
    budget: dict[str, float]
    cost: dict[str, float]
    share: dict[str, float]
    binding: str | None
    case: str | None
    case_by: str | None
    feasible_steps: dict[str, list[list[int]]]
    shadow_price: dict[str, float]
    remaining_suboptimality: float
    predicted_gap: Forecast | None
    curve: list[CurvePoint]
    stopped: str
    notes: list[str] = field(default_factory=list)
    privacy: PrivatePlan | None = None
    weights: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        work = f"H {self.local_steps}, K {self.station_rounds}, M {self.cloud_rounds}"
        return f"<Plan by policy {self.policy}: {work}; {amounts(self.cost, self.budget)}>"

    def _repr_html_(self) -> str:
        facts = {
            "H, local steps in a round": self.local_steps,
            "K, rounds in a server iteration": self.station_rounds,
            "M, server iterations": self.cloud_rounds,
            "rounds": self.rounds,
            "cost": amounts(self.cost, self.budget),
            "binding": self.binding,
            "remaining suboptimality": self.remaining_suboptimality,
            "predicted gap": None if self.predicted_gap is None else self.predicted_gap.expected,
        }
        return facts_html(f"Plan by policy {self.policy}", facts)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON; infinite values become None."""
        table: dict[str, Any] = plain(self)
        return table


def plan(
    subject: Federation | DataShape | Pilot,
    method: DualMethod | None = None,
    policy: Policy | None = None,
    settings: Settings | None = None,
    *,
    ledger: Ledger,
    pilot_rounds: int | None = None,
    faults: Faults | None = None,
    keep: Path | None = None,
    weights: OpenWeights | None = None,
) -> PlanReport:
    """Return the work that ``policy`` would do with the budget of ``ledger``, its cost, and the expected result.

    With data, a pilot of ``pilot_rounds`` rounds (default: a quarter of the run, 5 to 256) is simulated in memory to
    predict the gap. The pilot is not charged, and ``ledger`` does not change. Raises a `BudgetError` if the budget
    cannot pay one round.

    Parameters
    ----------
    subject : Federation, DataShape or Pilot
        Data, sizes alone, or a saved pilot.
    method, policy, settings : optional
        Problem, choice of H and K, and seed of the run. Default: `DualMethod()`, `Measured()`, `Settings()`.
    ledger : Ledger
        Prices and budget.
    pilot_rounds : int, optional
        Length of the pilot; 0 plans from the sizes alone.
    faults, weights : optional
        Faults to simulate, and open λ1 and λ2, which the pilot chooses as a run would.
    keep : Path, optional
        File to save the pilot in.
    """
    method, policy, settings = method or DualMethod(), policy or Measured(), settings or Settings()
    faults, pilot, cost = faults or Faults(), None, ledger.cost
    start = subject.opened(cost) if isinstance(subject, Pilot) else situation_of(subject, method, settings, cost)
    start = replace(start, planning_prices=faults.planning_prices(cost))
    if not ledger.budget and not (isinstance(policy, Fixed) and policy.cloud_rounds is not None):
        fixed = ", or --cloud-rounds" if is_constant(policy) and isinstance(policy, Fixed) else ""
        raise BudgetError(f"policy '{policy_name(policy)}' plans for a budget: give one, as in energy=1400{fixed}")
    _check_affordable(start, policy, ledger)
    start = replace(start, ledger=start.ledger.with_budget(ledger.budget))
    if not isinstance(subject, Federation) or pilot_rounds == 0:
        unpredictable = [name for name in ("station_away", "moves", "churn", "late_rows") if getattr(faults, name)]
        if unpredictable:
            raise ConfigError(
                f"the effect of {', '.join(unpredictable)} is unknown without rounds: give --data, so that a pilot "
                "can simulate it"
            )
    if isinstance(subject, Pilot):
        pilot = subject.under(start, faults)
    elif isinstance(subject, Federation) and pilot_rounds != 0:
        length = pilot_rounds or pilot_length(dry_run(policy, start, most_rounds=settings.max_rounds), policy, method)
        pilot = fly(subject, method, policy, settings, ledger, length, faults, weights)
        start = pilot.start
        if keep is not None:
            pilot.save(keep)
    used = weights_of(method.relationship, start.layout.n_tasks) if pilot is None else pilot.weights
    report = _Planner(subject, policy, settings, start, pilot, faults, used).report()
    if weights is None:
        return report
    if weights.record is not None:
        note = f"weights chosen in the first rounds, as `train` does: {weights.record.text()}"
    else:
        note = f"`train` may choose another {' and '.join(weights.auto)} unless you give it"
    return replace(report, notes=[*report.notes, note])


def plan_private(
    subject: Federation | DataShape,
    options: Options,
    settings: Settings,
    privacy: Privacy,
    *,
    ledger: Ledger,
    faults: Faults | None = None,
) -> PlanReport:
    """Plan a run with a bound on privacy and a budget: R, H, C and noise, from public numbers alone."""
    kind = subject.kind if isinstance(subject, Federation) else "classes" if subject.columns > 1 else "binary"
    method = options.changed(merge="add").method(kind)
    start = situation_of(subject, method, settings, ledger.cost)
    _check_affordable(start, Fixed(1), ledger)
    start = replace(start, ledger=start.ledger.with_budget(ledger.budget))
    features, columns = width_of(subject, ledger.cost)
    options, private_plan = design("rhfedmtl", options, kind, start, privacy, (columns, features + options.intercept))
    algorithm = private_plan.applied(build("rhfedmtl", options, kind))
    limited = private_plan.ledger(ledger)
    assert isinstance(algorithm.method, DualMethod)
    report = plan(subject, algorithm.method, algorithm.policy, settings, ledger=limited, pilot_rounds=0, faults=faults)
    cost = {**report.cost, RESOURCE: report.cost[RESOURCE] + private_plan.certificate_price}
    return replace(
        report,
        privacy=private_plan,
        cost=cost,
        share={**report.share, RESOURCE: cost[RESOURCE] / report.budget[RESOURCE]},
        binding=binding(cost, report.budget),
        shadow_price={**report.shadow_price, **private_plan.shadow_price},
        notes=[*(note for note in report.notes if note != PRIOR), *private_plan.notes],
    )


def policy_name(policy: Policy) -> str:
    """Return the name of a policy on the command line."""
    return "paper" if isinstance(policy, Theoretical) else type(policy).__name__.lower()


class _Planner:
    """Builds a plan from the situation at the start and, with data, the pilot."""

    def __init__(
        self,
        subject: Federation | DataShape | Pilot,
        policy: Policy,
        settings: Settings,
        start: Situation,
        pilot: Pilot | None,
        faults: Faults,
        weights: dict[str, float],
    ) -> None:
        self.weights = weights
        self.subject, self.policy, self.settings, self.start, self.pilot = subject, policy, settings, start, pilot
        self.budget = dict(start.ledger.budget)
        believed = Measured().progress_model(start)._replace(keep=prior_keep(start, faults.dropout))
        self.outlook = believed if pilot is None else pilot.outlook
        self.dry_run = self._dry_run(policy, self.budget)

    def report(self) -> PlanReport:
        """Return the complete plan."""
        first, total = self.dry_run.first, self.spent(self.dry_run)
        if first is None:
            s, rejected_plan = self.start, self.policy.plan(self.start)
            steps = 1 if rejected_plan is None else int(rejected_plan.local_steps.max())
            round_price = event_totals(
                s.prices, s.cloud_event(), s.round_event(1 if rejected_plan is None else rejected_plan.local_steps)
            )
            raise BudgetError(
                f"policy '{policy_name(self.policy)}' plans H={steps}, and such a round costs "
                f"{amounts_text(round_price)} of {amounts_text(self.budget)}; the cheapest feasible plan (H=1, K=1, "
                f"M=1) costs {amounts_text(cheapest_plan(s))}: raise the budget, or take another policy"
            )
        H = steps_of(self.start, first)
        K = first.station_rounds
        case = case_by = None
        if self.budget and self.start.gamma > 0.0:  # the policy's bound or, for other policies, the paper's
            bound = self.policy if isinstance(self.policy, Theoretical) else Theoretical("text")
            forecast = bound.forecast(self.start, int(self.start.sizes.max()) + 1)
            case, case_by = theory.paper_choice(forecast.share, 1.0, self.start.sizes).case, bound.bound
        return PlanReport(
            policy=policy_name(self.policy),
            federation=self._shape(),
            local_steps=int(np.median(H)),
            local_steps_range=(self.dry_run.least_steps, self.dry_run.most_steps),
            local_steps_by_station=self._by_station() if len(np.unique(H)) > 1 else None,
            station_rounds=int(K.max()),
            station_rounds_by_station=K.tolist() if len(np.unique(K)) > 1 else None,
            cloud_rounds=self.dry_run.cloud_rounds,
            rounds=self.dry_run.rounds,
            terminal_steps=self.dry_run.terminal_steps,
            budget=self.budget,
            cost=total,
            share={name: total[name] / limit if limit else 0.0 for name, limit in self.budget.items()},
            binding=binding(total, self.budget) if self.dry_run.stopped in BY_BUDGET else None,
            case=case,
            case_by=case_by,
            feasible_steps=self._feasible(),
            shadow_price={name: self._shadow_price(name) for name in self.budget},
            remaining_suboptimality=math.exp(self.dry_run.log_left),
            predicted_gap=None if self.pilot is None else self.pilot.forecast(self.dry_run),
            curve=self._curve(),
            stopped=self.dry_run.stopped,
            notes=self._notes(),
            weights=self.weights,
        )

    def spent(self, run: DryRun) -> dict[str, float]:
        """Return the cost of a dry run and of round zero, at most the budget: the ledger allows a small slack."""
        opening_cost = self.start.ledger.spent
        total = {name: amount + opening_cost.get(name, 0.0) for name, amount in run.spent.items()}
        return {name: min(amount, self.budget.get(name, math.inf)) for name, amount in total.items()}

    def _dry_run(self, policy: Policy, budget: dict[str, float]) -> DryRun:
        """Run dry from the start, or from the end of the pilot."""
        if self.pilot is not None:
            return self.pilot.complete_run(policy, budget, self.settings.max_rounds)
        rest = replace(self.start, ledger=self.start.ledger.with_budget(budget))
        return dry_run(policy, rest, self.outlook, self.settings.max_rounds - self.start.rounds)

    def _shadow_price(self, name: str) -> float:
        """Return the fall of the predicted logarithm per unit of a budget, as a slope over ±10 % of it."""
        if self.spent(self.dry_run)[name] < self.budget[name] * (1.0 - _NUDGE):
            return 0.0
        # Policies of theory keep their plan.
        frozen = isinstance(self.policy, Theoretical) and self.dry_run.first is not None
        policy = Frozen(self.dry_run.first) if frozen and self.dry_run.first else self.policy
        ends = []
        paid = (self.start if self.pilot is None else self.pilot.end).ledger.spent[name]
        for factor in (1.0 + _NUDGE, 1.0 - _NUDGE):
            limit = self.budget[name] * factor
            if limit >= paid:
                ends.append((limit, self._value(self._dry_run(policy, {**self.budget, name: limit}))))
        if len(ends) < 2:
            ends.append((self.budget[name], self._value(self.dry_run)))
        (more, at_more), (less, at_less) = ends
        return max(0.0, (at_less - at_more) / (more - less)) if more > less else 0.0

    def _value(self, run: DryRun) -> float:
        """Return the logarithm of the predicted gap or, without a pilot, of the remaining suboptimality."""
        return run.log_left if self.pilot is None else math.log(max(self.pilot.forecast(run).expected, 1e-300))

    def _by_station(self) -> list[list[int]]:
        """Return the smallest and largest H of every station."""
        task, H = self.start.layout.terminal_task, self.dry_run.first.local_steps  # type: ignore[union-attr]
        return [[int(H[task == b].min()), int(H[task == b].max())] for b in range(self.start.layout.n_tasks)]

    def _most_steps(self) -> int:
        """Return the largest H of the curves: beyond the largest terminal, and at least 64."""
        return max(64, 2 * int(self.start.sizes.max())) + 1

    def _feasible(self) -> dict[str, list[list[int]]]:
        """Return the H that each budget allows and that all allow.

        A policy with a bound needs f(H) ≤ budget, any other policy an affordable round.
        """
        s, remaining = self.start, self.start.ledger.remaining
        if isinstance(self.policy, Theoretical):
            # Try H = 1, 2, … until f(H) exceeds every budget, or up to MOST_PLANNED_STEPS.
            largest, fits_any = self._most_steps(), True
            while fits_any:
                cost = self.policy.forecast(s, largest).cost
                within = {name: cost[name] <= limit for name, limit in remaining.items()}
                fits_any = any(mask[-1] for mask in within.values()) and largest < MOST_PLANNED_STEPS
                largest = min(4 * largest, MOST_PLANNED_STEPS)
            together = np.logical_and.reduce(list(within.values()))
            return {name: _ranges(mask) for name, mask in {**within, "together": together}.items()}
        cloud = event_totals(s.prices, s.cloud_event())
        highest = {
            name: steps_affordable(s.prices, s.round_event(1), {name: limit - cloud[name]}, MOST_PLANNED_STEPS)
            for name, limit in remaining.items()
        }
        return {
            name: [[1, largest]]
            for name, largest in {**highest, "together": min(highest.values(), default=MOST_PLANNED_STEPS)}.items()
        }

    def _curve(self) -> list[CurvePoint]:
        """Return the cost of each H from 1 to beyond the largest terminal, thinned out if there are many."""
        largest = self._most_steps()
        H = np.arange(1, largest + 1)
        if largest > CURVE_POINTS:
            H = np.unique(np.concatenate([np.arange(1, 17), np.geomspace(1, largest, CURVE_POINTS).astype(np.int64)]))
        rounds = cost_curve(self.start.prices, self.start.round_event(1), H)
        bound = self.policy.forecast(self.start, largest) if isinstance(self.policy, Theoretical) else None
        cloud = event_totals(self.start.prices, self.start.cloud_event())
        most_rounds = self.settings.max_rounds if self.budget else self.dry_run.rounds
        points = []
        for i, h in enumerate(H.tolist()):
            round_cost = {name: float(c[i]) for name, c in rounds.items()}
            price = {name: amount + cloud[name] for name, amount in round_cost.items()}
            times = times_affordable(price, self.start.ledger.remaining, most_rounds)
            remaining = math.exp(times * float(self.outlook.log_left(effort(self.start, self.outlook, h))))
            K = None if bound is None else float(bound.K[h - 1])
            cost = None if bound is None else {name: float(curve[h - 1]) for name, curve in bound.cost.items()}
            points.append(CurvePoint(h, round_cost, times, remaining, K, cost))
        return points

    def _shape(self) -> dict[str, Any]:
        """Return the sizes that the plan assumes."""
        s = self.start
        return {
            "tasks": s.layout.n_tasks,
            "terminals": int(s.members.sum()),
            "train_rows": int(s.sizes.sum()),
            "rows_per_terminal": [int(s.sizes.min()), int(s.sizes.max())],
            "from": SOURCE_NAMES[type(self.subject)],
        }

    def _notes(self) -> list[str]:
        """Return the limitations that a reader must know."""
        notes = []
        if self.pilot is not None:
            coverage = "covers the complete run" if self.pilot.stretch(self.dry_run) <= 1.0 else "is extrapolated"
            source = "a saved pilot had" if isinstance(self.subject, Pilot) else "a pilot had"
            notes.append(
                f"{source} {self.pilot.rounds} rounds, simulated in memory {PILOTS} times and not charged; "
                f"it {coverage}, and the interval should contain {100 * LEVEL:.0f} % of final gaps"
            )
        else:
            notes.append(PRIOR)
        if self.budget and binding(self.dry_run.spent, self.budget) is None:
            notes.append("no limited type has a price: only the limit on rounds ends this run")
        if isinstance(self.policy, Theoretical):
            if not (scale := self.settings.scale).endswith("unit"):
                few = " if there are few features" if scale == "standard-auto" else ""
                notes.append(f"theory assumes rows of norm 1, which scaling '{scale}' does not ensure{few}")
            notes.append(BOUND_NOTES[self.policy.bound])
        return notes


SOURCE_NAMES = {Federation: "data", DataShape: "numbers", Pilot: "a stored pilot"}
BOUND_NOTES = {
    "text": "the K of the paper's text is necessary, not sufficient: a run of K rounds may miss its target",
    "drawn": "the curve of the paper's cost figure guarantees nothing",
    "sound": "the sound K is guaranteed in expectation, and very conservative: use it to compare H",
}


def _check_affordable(start: Situation, policy: Policy, ledger: Ledger) -> None:
    """Refuse a budget that cannot pay round zero and one round; the error names the cost of the cheapest plan."""
    steps = policy.local_steps if isinstance(policy, Fixed) else 1
    price = cheapest_plan(start, steps)
    if not fits(price, ledger.budget.with_slack()):
        costs = amounts_text({name: price[name] for name in ledger.budget})
        raise BudgetError(
            f"budget {amounts_text(ledger.budget)} cannot pay one round: the cheapest feasible plan (H={steps}, K=1, "
            f"M=1) costs {costs}; raise the budget or lower the prices"
        )


def _ranges(mask: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Return the stretches of H = 1, 2, … where ``mask`` is True, as [first, last]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [[int(first) + 1, int(last)] for first, last in edges.reshape(-1, 2)]
