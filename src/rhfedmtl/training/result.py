"""What a run tells while it goes on, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.scaling import Scaler
from rhfedmtl.display import BudgetDisplay, LearningCurveDisplay, amounts, facts_html
from rhfedmtl.maths import metrics
from rhfedmtl.maths.metrics import scores
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.policies.base import Observation, Plan
from rhfedmtl.resources.billing import Event
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Certificate
from rhfedmtl.training.privacy import PrivatePlan

Metrics = dict[str, npt.NDArray[np.float64]]

BROKEN = "certificate broken"
"""How a run ends whose objective lies below its bound: whatever it learned, nothing says how good it is."""


@dataclass(frozen=True, eq=False)
class Progress:
    """Where a run stands after a round, for whoever watches; metrics and certificate are the latest ones."""

    round: int
    cloud_round: int
    plan: Plan
    terminal_steps: int
    left: dict[str, float]
    certificate: Certificate | None
    metrics: Metrics
    rounds_by_solver: dict[str, int] = field(default_factory=dict)


Watcher = Callable[[Progress], bool | None]


@dataclass(frozen=True, eq=False)
class Moment:
    """A run right after a BS iteration: NaN, and no metrics, where it was not certified.

    ``metrics`` has a value for each task; ``station_gaps`` are those of the stations' own problems.
    """

    round: int
    cloud_round: int
    spent: dict[str, float]
    primal: float = float("nan")
    dual: float = float("nan")
    station_gaps: npt.NDArray[np.float64] | None = None
    metrics: Metrics = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        """Whether gap and metrics were computed."""
        return bool(self.metrics) or not np.isnan(self.primal)

    @property
    def gap(self) -> float:
        """P − D."""
        return self.primal - self.dual


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a run leaves behind: models, the scaling that belongs to them, the certificate, and what was done.

    ``metrics`` has a value for each task; ``history`` an entry for each BS iteration, as ``observed`` has;
    ``events`` is all that was charged, from which the ledger can be recomputed. ``relationship`` is the one that
    the cloud ended with, None where there is none; ``private`` the plan of a run under a bound on privacy.
    """

    models: Models
    scalers: list[Scaler]
    certificate: Certificate
    metrics: Metrics
    ledger: Ledger
    events: list[Event]
    observed: list[Observation]
    rounds: int
    cloud_rounds: int
    terminal_steps: int
    stopped: str
    seconds: float
    history: list[Moment]
    relationship: Relationship | None = None
    private: PrivatePlan | None = None
    rounds_by_solver: dict[str, int] = field(default_factory=dict)

    @property
    def reference(self) -> Models:
        """r, the mean model: for tasks that were not seen."""
        return np.asarray(self.models.mean(axis=0))

    @property
    def local_steps(self) -> list[int]:
        """H of every round: the median over the terminals that worked."""
        return [_median(seen.local_steps) for seen in self.observed]

    def plot(self, axes: Sequence[Any] | None = None, *, metric: str | None = None) -> LearningCurveDisplay:
        """Draw a metric and the certified gap along what was spent; needs matplotlib."""
        return LearningCurveDisplay.from_result(self, metric=metric).plot(axes)

    def plot_budget(self, axes: Sequence[Any] | None = None) -> BudgetDisplay:
        """Draw what each tier took of every type; needs matplotlib."""
        return BudgetDisplay.from_result(self).plot(axes)

    def __repr__(self) -> str:
        found = ", ".join(f"{name.replace('_', ' ')} {mean(values):.3f}" for name, values in self.metrics.items())
        return f"<Result: {found or 'no test rows'}; {self.certificate.words}; {self.rounds} rounds, {self.stopped}>"

    def _repr_html_(self) -> str:
        found: dict[str, Any] = {name.replace("_", " "): mean(values) for name, values in self.metrics.items()}
        found |= {"certificate": self.certificate.words, "rounds": self.rounds, "stopped": self.stopped}
        return facts_html("Result", {**found, "spent": amounts(self.ledger.spent, self.ledger.budget)})


def evaluate(models: Models, tests: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]], n_classes: int) -> Metrics:
    """Metrics of every task on its (scaled) test rows; NaN where a task has none."""
    rows = [metrics.measure(y, scores(X, models[b]), n_classes) if len(y) else {} for b, (X, y) in enumerate(tests)]
    names = next((list(row) for row in rows if row), [])
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _median(steps: npt.NDArray[np.int64]) -> int:
    return int(steps[0]) if steps.strides == (0,) else int(np.median(steps[steps > 0]))


def mean(values: npt.NDArray[np.float64]) -> float:
    """Mean over the tasks that have a value."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
