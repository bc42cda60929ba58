"""Find the smallest budget that reaches a target: the inverse of a plan.

With data, `seek` trains in memory over a geometric grid of budgets and several seeds. It takes the smallest budget
whose mean result reaches the target, and refines it by bisection. Without data, `seek_in_theory` answers for a gap: the
paper's bound gives a necessary budget, the sound bound a sufficient budget. `PlanRequest.seek` calls both; neither
charges the user's ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.maths.relationships import weights_of
from rhfedmtl.plain import plain
from rhfedmtl.planning.data_shape import DataShape, cheapest_plan, situation_of
from rhfedmtl.planning.plan import policy_name
from rhfedmtl.policies.base import Policy, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.theoretical import Bound, Theoretical
from rhfedmtl.resources.costs import Budget, Cost, amounts_text, fits
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.steps import cost_curve
from rhfedmtl.selection.weights import OpenWeights
from rhfedmtl.training.result import Result, mean
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

FALLING = ("gap", "rmse")
TARGETS = ("gap", "accuracy", "balanced_accuracy", "auc", "rmse")
LEVEL = 0.9
_WIDEST = 1024.0  # Without a budget, the grid ends at this multiple of the cheapest plan.
_CLOSE_ENOUGH = 1.05


@dataclass(frozen=True)
class Target:
    """Target of a search: a gap or an RMSE of at most ``value``, or an accuracy or AUC of at least ``value``."""

    name: str
    value: float

    def __post_init__(self) -> None:
        """Refuse targets that every model or no model reaches."""
        if self.name not in TARGETS:
            raise ConfigError(f"unknown target {self.name!r}: choose from {', '.join(TARGETS)}")
        largest = math.inf if self.name in FALLING else 1.0
        if not 0.0 < self.value <= largest or not math.isfinite(self.value):
            rule = "a finite number > 0" if self.name in FALLING else "a share, > 0 and at most 1"
            raise ConfigError(f"target {self.name}={self.value:g}: it must be {rule}")

    @classmethod
    def of(cls, text: str) -> Target:
        """Read ``gap=1e-3`` or ``accuracy=0.9``."""
        name, _, value = text.partition("=")
        try:
            return cls(name.strip().replace("-", "_"), float(value))
        except ConfigError:
            raise
        except ValueError:
            raise ConfigError(f"target {text!r}: write it as in gap=1e-3 or accuracy=0.9") from None

    @property
    def falling(self) -> bool:
        """True if smaller is better."""
        return self.name in FALLING

    def reached_by(self, result: float) -> bool:
        """Return True if ``result`` is good enough."""
        return result <= self.value if self.falling else result >= self.value

    def better(self, result: float, reference: float) -> bool:
        """Return True if ``result`` is better than ``reference``."""
        return result < reference if self.falling else result > reference

    def measure(self, result: Result) -> float:
        """Return the value of a run; refuse a metric that the labels do not have."""
        facts = {"gap": result.certificate.gap, **{name: mean(values) for name, values in result.metrics.items()}}
        if self.name not in facts:
            available = ", ".join(name for name in TARGETS if name in facts)
            raise ConfigError(f"these labels have no {self.name}: choose from {available}")
        value = facts[self.name]
        if math.isnan(value):
            raise ConfigError(f"no {self.name}: there are no test rows; raise the test fraction")
        return value


@dataclass(frozen=True)
class TargetPoint:
    """Mean result at a budget, a confidence interval for the mean (over seeds), and the mean spending.

    A point is ``pareto`` if no cheaper point is as good. ``lambda2`` has the λ2 of each simulated run.
    """

    budget: float
    result: float
    low: float
    high: float
    spent: dict[str, float]
    rounds: float
    reached: bool
    pareto: bool = False
    lambda2: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TargetReport:
    """Result of `seek` or `seek_in_theory`: cost against result, and the smallest budget that reaches the target.

    ``budget`` is None if no budget of the grid reached the target; ``best`` is the best result on the grid.
    """

    target: Target
    policy: str
    resource: str
    found_by: str
    reached: bool
    budget: float | None
    spent: dict[str, float] | None
    best: float
    seeds: int
    level: float | None
    limits: dict[str, float]
    curve: list[TargetPoint]
    bounds: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        table: dict[str, Any] = plain(self)
        return table


Watcher = Callable[[int, int, TargetPoint | None], None]


def seek(
    federations: Sequence[Federation],
    target: Target,
    method: DualMethod,
    policy: Policy,
    settings: Settings | None = None,
    *,
    cost: Cost,
    budget: Budget | None = None,
    resource: str | None = None,
    points: int = 11,
    refinements: int = 6,
    watch: Watcher = lambda done, total, point: None,
    weights: OpenWeights | None = None,
) -> TargetReport:
    """Return the smallest budget of ``resource`` with which runs reach ``target`` on average.

    Parameters
    ----------
    federations : sequence of Federation
        Data; every budget gets a run on each federation.
    target : Target
        Gap or metric to reach.
    method : DualMethod
        Loss, relationship and channel.
    policy : Policy
        Chooses H and K.
    settings : Settings, optional
        Seed, scaling and largest number of rounds.
    cost : Cost
        Prices of all types.
    budget : Budget, optional
        A budget of ``resource`` ends the grid; budgets of other types are limits.
    resource : str, optional
        Type whose budget is target_resource; see `target_resource`.
    points : int
        Budgets on the grid.
    refinements : int
        Steps of the bisection.
    watch : callable
        Receives the number of finished and of all budgets, and the last point.
    weights : OpenWeights, optional
        Open λ1 and λ2; every run chooses them.

    Returns
    -------
    TargetReport
        The curve and the budget.
    """
    settings, budget = settings or Settings(), budget or Budget({})
    if points < 2 or refinements < 0:
        raise ConfigError(f"points={points} must be at least 2, refinements={refinements} at least 0")
    if isinstance(policy, Fixed) and policy.cloud_rounds is not None:
        raise ConfigError("a search for a budget needs runs that end with it: leave out --cloud-rounds")
    resource = target_resource(cost, budget, resource)
    limits = {name: limit for name, limit in budget.items() if name != resource}
    if not federations:
        raise ConfigError("give at least one federation, or a shape for an answer from theory")
    settings = replace(settings, execution=settings.execution.in_process)
    simulation = _Simulation(federations, target, method, policy, settings, cost, resource, limits, watch, weights)
    cheapest = simulation.cheapest()
    top = budget[resource] if resource in budget else _WIDEST * cheapest
    if top < cheapest:
        raise BudgetError(
            f"budget {resource}={top:g} cannot pay one round: the cheapest feasible plan costs "
            f"{resource}={cheapest:.6g}"
        )
    simulation.climb(np.geomspace(cheapest, top, points).tolist())
    simulation.refine(refinements)
    return simulation.report()


def seek_in_theory(
    shape: DataShape | Federation,
    target: Target,
    method: DualMethod,
    settings: Settings | None = None,
    *,
    cost: Cost,
    budget: Budget | None = None,
    resource: str | None = None,
    policy: Policy | None = None,
) -> TargetReport:
    """Return the smallest budget by theory: the paper's necessary budget and the sound bound's sufficient budget.

    The notes of the report compare a ``budget`` with both.
    """
    if target.name != "gap":
        raise ConfigError(f"without data only a gap can be predicted, not {target.name}: give --data")
    budget = budget or Budget({})
    limits, resource = budget.with_slack(), target_resource(cost, budget, resource)
    start = situation_of(shape, method, settings or Settings(), cost)
    limited = replace(start, ledger=Ledger(cost, {resource: 1.0}))
    chosen: Bound = policy.bound if isinstance(policy, Theoretical) else "sound"
    bounds = {bound: _by_bound(limited, bound, target.value) for bound in dict.fromkeys(("text", "sound", chosen))}
    curve = []
    for epsilon in np.geomspace(max(1.0, 10 * target.value), target.value / 10, 9).tolist():
        bound_plan = _by_bound(limited, chosen, epsilon)
        reached = target.reached_by(epsilon * (1 - 1e-12))
        amount = bound_plan.cost[resource]
        curve.append(TargetPoint(amount, epsilon, epsilon, epsilon, bound_plan.cost, bound_plan.rounds, reached))
    return TargetReport(
        target=target,
        policy=chosen,
        resource=resource,
        found_by="theory",
        reached=True,
        budget=bounds[chosen].cost[resource],
        spent=bounds[chosen].cost,
        best=target.value,
        seeds=0,
        level=None,
        limits=dict(budget),
        curve=mark_pareto(curve, target),
        bounds={str(name): asdict(bound) for name, bound in bounds.items()},
        notes=[
            "bound 'text' is necessary, not sufficient; 'sound' is sufficient in expectation, and very conservative",
            *(
                f"the budget {'pays' if fits(bound.cost, limits) else 'does not pay'} the plan by the bound '{name}'"
                for name, bound in (bounds.items() if budget else ())
            ),
        ],
    )


@dataclass(frozen=True)
class BoundPlan:
    """Cheapest H by a bound, its rounds and their cost."""

    local_steps: int
    rounds: float
    cost: dict[str, float]


def _by_bound(situation: Situation, bound: str, epsilon: float) -> BoundPlan:
    """Return the cheapest plan, in the limited type, with which this bound reaches ``epsilon``."""
    largest = 4 * int(situation.sizes.max()) + 64
    K = np.maximum(1.0, np.ceil(Theoretical(bound, epsilon).forecast(situation, largest).K))  # type: ignore[arg-type]
    per_round = cost_curve(situation.prices, situation.round_event(1), np.arange(1, largest + 1))
    i = int(np.argmin(K * per_round[next(iter(situation.ledger.budget))]))
    return BoundPlan(i + 1, float(K[i]), {name: float(K[i] * curve[i]) for name, curve in per_round.items()})


def target_resource(cost: Cost, budget: Budget, resource: str | None) -> str:
    """Return ``resource``, or the first type with a price and without a budget, or else the first type with a price."""
    if not cost:
        raise ConfigError("nothing has a price: give one, for instance --cost energy=0.1,10")
    if resource is not None:
        if resource not in cost:
            raise ConfigError(f"no prices for '{resource}'; there are prices for: {', '.join(cost)}")
        return resource
    return next((name for name in cost if name not in budget), next(iter(cost)))


def mark_pareto(curve: Sequence[TargetPoint], target: Target) -> list[TargetPoint]:
    """Return the points ordered by budget; a point is marked if no cheaper point is as good."""
    ordered = sorted(curve, key=lambda point: (point.budget, point.result if target.falling else -point.result))
    marked: list[TargetPoint] = []
    best: float | None = None
    for point in ordered:
        pareto = best is None or target.better(point.result, best)
        best = point.result if pareto else best
        marked.append(replace(point, pareto=pareto))
    return marked


@dataclass
class _Simulation:
    """Runs at several budgets and their results."""

    federations: Sequence[Federation]
    target: Target
    method: DualMethod
    policy: Policy
    settings: Settings
    cost: Cost
    resource: str
    limits: dict[str, float]
    watch: Watcher
    weights: OpenWeights | None = None
    points: list[TargetPoint] = field(default_factory=list)

    def cheapest(self) -> float:
        """Return the smallest amount of the resource that pays a round everywhere; refuse limits that pay no round."""
        steps = self.policy.local_steps if isinstance(self.policy, Fixed) else 1
        prices = [
            cheapest_plan(situation_of(federation, self.method, self.settings, self.cost), steps)
            for federation in self.federations
        ]
        for price in prices:
            if not fits({name: price[name] for name in self.limits}, Budget(self.limits).with_slack()):
                price_text = amounts_text({name: price[name] for name in self.limits})
                raise BudgetError(f"the limits cannot pay one round: the cheapest feasible plan costs {price_text}")
        smallest = max(price[self.resource] for price in prices)
        if not smallest > 0.0:
            raise BudgetError(f"a round costs nothing of '{self.resource}': there is no budget of it to look for")
        return smallest

    def climb(self, budgets: list[float]) -> None:
        """Train at rising budgets, and stop a point past the first that reaches the target."""
        for i, amount in enumerate(budgets):
            self.points.append(self.at(amount))
            self.watch(i + 1, len(budgets), self.points[-1])
            if len(self.points) > 1 and self.points[-2].reached:
                return

    def refine(self, times: int) -> None:
        """Bisect, in the logarithm, between the last budget that misses the target and the first that reaches it."""
        first = next((i for i, point in enumerate(self.points) if point.reached), None)
        if not first:
            return
        low, high = self.points[first - 1].budget, self.points[first].budget
        for i in range(times):
            if high <= low * _CLOSE_ENOUGH:
                return
            point = self.at(math.sqrt(low * high))
            self.points.append(point)
            self.watch(i + 1, times, point)
            low, high = (low, point.budget) if point.reached else (point.budget, high)

    def at(self, amount: float) -> TargetPoint:
        """Return the mean result over the federations with this budget."""
        limits = {**self.limits, self.resource: amount}
        results, lambda2 = [], list[float]()
        for i, federation in enumerate(self.federations):
            settings = replace(self.settings, seed=self.settings.seed + i)
            method, ledger, before = self.method, Ledger(self.cost, limits), None
            if self.weights is not None:
                method, before = self.weights.begin(method, self.policy, federation, settings, ledger)
            lambda2 += [
                x for name, x in weights_of(method.relationship, federation.n_tasks).items() if name == "lambda2"
            ]
            results.append(train(federation, method, self.policy, settings, ledger=ledger, before=before))
        values = np.array([self.target.measure(result) for result in results])
        mean, low, high = mean_interval(values, logarithmic=self.target.name == "gap")
        spent = {name: float(np.mean([r.ledger.spent[name] for r in results])) for name in self.cost}
        rounds = float(np.mean([result.rounds for result in results]))
        reached = self.target.reached_by(mean)
        return TargetPoint(amount, mean, low, high, spent, rounds, reached, lambda2=lambda2)

    def report(self) -> TargetReport:
        """Return the curve, and its smallest budget that reaches the target."""
        curve = mark_pareto(self.points, self.target)
        hits = [point for point in curve if point.reached]
        results = [point.result for point in curve]
        notes = ["all runs were simulated on the data in memory; nothing was charged"]
        if used := sorted(value for point in curve for value in point.lambda2):
            notes.append(f"lambda2 of the runs: {' to '.join(dict.fromkeys(f'{x:.3g}' for x in (used[0], used[-1])))}")
        if not hits:
            notes.append(f"not reached up to {self.resource}={curve[-1].budget:g}: raise --budget, or lower the target")
        return TargetReport(
            target=self.target,
            policy=policy_name(self.policy),
            resource=self.resource,
            found_by="simulation",
            reached=bool(hits),
            budget=hits[0].budget if hits else None,
            spent=hits[0].spent if hits else None,
            best=min(results) if self.target.falling else max(results),
            seeds=len(self.federations),
            level=LEVEL if len(self.federations) > 1 else None,
            limits=self.limits,
            curve=curve,
            notes=notes,
        )


def mean_interval(values: np.ndarray[Any, np.dtype[np.float64]], *, logarithmic: bool) -> tuple[float, float, float]:
    """Return the mean (of logarithms, for gaps) and its t-interval; a single value is its own interval."""
    x = np.log(np.maximum(values, 1e-300)) if logarithmic else values
    mean, half = interval(x, LEVEL)
    half = half or 0.0
    ends = (mean, mean - half, mean + half)
    return tuple(math.exp(end) for end in ends) if logarithmic else ends  # type: ignore[return-value]
