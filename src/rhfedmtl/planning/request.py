"""Turn the plain values of a command line or a web page into a plan.

The commands ``plan`` and the what-if page of the dashboard fill a `PlanRequest` and call `PlanRequest.plan` (from a
budget to its result) or `PlanRequest.seek` (from a target to its budget). Values that do not fit raise a `ConfigError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import AUTO, Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.registry import DATASETS
from rhfedmtl.data.request import Request, parse_partition
from rhfedmtl.errors import ConfigError
from rhfedmtl.plain import plain
from rhfedmtl.planning.data_shape import DataShape
from rhfedmtl.planning.pilot import Pilot
from rhfedmtl.planning.plan import PlanReport, plan, plan_private
from rhfedmtl.planning.target import Target, TargetReport, Watcher, seek, seek_in_theory
from rhfedmtl.policies.base import Policy
from rhfedmtl.resources.costs import Budget, Cost, read_resources
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection.weights import OpenWeights
from rhfedmtl.training.config import MAX_ROUNDS, RunConfig, default_scale
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.privacy import Privacy
from rhfedmtl.training.settings import Settings


@dataclass(frozen=True)
class PlanRequest:
    """Input of a plan: data, sizes alone, or a saved pilot; options of learning; prices and budgets.

    Without data, ``request`` has only sizes, and ``features`` and ``columns`` are the fields of `DataShape`. ``keep``
    is a file in which a plan with data saves its pilot.
    """

    request: Request
    options: Options
    with_data: bool = False
    cost: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    features: int | None = None
    columns: int = 1
    scale: str | None = None
    seed: int = 0
    privacy: str = ""
    faults: str = ""
    pilot: Pilot | None = None
    keep: Path | None = None

    def plan(self, pilot_rounds: int | None = None) -> PlanReport:
        """Return the plan for the budget, with a bound on privacy if ``privacy`` sets it."""
        faults, ledger = Faults.parse(self.faults, self.seed), Ledger(*self.resources)
        if self.pilot is not None:
            return plan(self.pilot, *self._learner(self._kind), ledger=ledger, faults=faults)
        if self.privacy:
            RunConfig(options=self.options, scale=self.scale, privacy=self.privacy, faults=self.faults).check()
        subject = self._federations(1)[0] if self.with_data else self._shape()
        kind = subject.kind if isinstance(subject, Federation) else self._kind
        if self.privacy:
            bound = Privacy.parse(self.privacy)
            return plan_private(subject, self.options, self._settings(kind), bound, ledger=ledger, faults=faults)
        learner = self._learner(kind)
        extra: dict[str, Any] = {"pilot_rounds": pilot_rounds, "keep": self.keep, "weights": self._weights()}
        return plan(subject, *learner, ledger=ledger, faults=faults, **extra)

    def seek(self, target: Target, resource: str | None, *, seeds: int, points: int, watch: Watcher) -> TargetReport:
        """Return the budget that reaches ``target``: by simulation with ``seeds`` seeds, or by theory without data."""
        cost, budget = self.resources
        budget.check(cost)
        limits: dict[str, Any] = {"cost": cost, "budget": budget, "resource": resource}
        if not self.with_data:
            method, policy, settings = self._learner(self._kind)
            return seek_in_theory(self._shape(), target, method, settings, policy=policy, **limits)
        federations = self._federations(seeds)
        learner = self._learner(federations[0].kind)
        return seek(federations, target, *learner, points=points, watch=watch, weights=self._weights(), **limits)

    def configuration(self) -> dict[str, Any]:
        """Return the request in plain values."""
        return {
            "command": "plan",
            "data": self.request.to_dict() if self.with_data else None,
            "options": plain(self.options),
            "cost": self.resources[0].to_dict(),
            "seed": self.seed,
        }

    @cached_property
    def resources(self) -> tuple[Cost, Budget]:
        """Prices and budgets."""
        return read_resources(self.cost, self.budget, default=("energy",))

    @property
    def _kind(self) -> str:
        """Kind of labels if there is no data to show it."""
        return "classes" if self.columns > 1 else "regression" if self.options.loss == "squared" else "binary"

    def _learner(self, kind: str) -> tuple[DualMethod, Policy, Settings]:
        """Return method, policy and settings for labels of this kind."""
        if self.options.features == AUTO:
            raise ConfigError("--features auto: a run chooses the map; name a map to plan with, such as splines")
        return self.options.method(kind), self.options.chosen_policy("measured"), self._settings(kind)

    def _weights(self) -> OpenWeights | None:
        """Return the weights that a run would choose in its first rounds."""
        return OpenWeights.of(RunConfig(options=self.options, faults=self.faults))

    def _settings(self, kind: str) -> Settings:
        scale = self.scale or default_scale(kind, private=bool(self.privacy))
        return Settings(scale=scale, seed=self.seed, max_rounds=MAX_ROUNDS)

    def _federations(self, count: int) -> list[Federation]:
        """Return the data split with ``count`` seeds; files are read once."""
        if self.features is not None or self.columns != 1:
            raise ConfigError("--n-features and --columns describe a plan without data: leave them out with --data")
        source = None if DATASETS[self.request.data].federated else self.request.source()
        return [self.request.federation(seed, source) for seed in range(self.seed, self.seed + count)]

    def _shape(self) -> DataShape:
        """Return the sizes from the options of the split."""
        request = self.request
        for name in ("positive", "test_rest", "grouped"):
            if getattr(request, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} needs data: name it with --data")
        if request.settings:
            raise ConfigError("--set needs data: name it with --data")
        tasks = request.tasks if request.tasks is None or isinstance(request.tasks, int) else len(request.tasks)
        sizes = {
            "tasks": tasks,
            "terminals": request.terminals,
            "samples_per_task": request.samples_per_task,
            "test_fraction": request.test_fraction,
            "features": self.features,
            "partition": None if request.partition is None else parse_partition(request.partition),
        }
        fields: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
        return DataShape(**fields, columns=self.columns, seed=self.seed)
