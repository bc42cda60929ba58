"""The records of a run: `Progress` during the run, `Moment` per BS iteration, and `Result` at the end.

The training loop makes these records. Watchers, reports and the command line read them.
"""

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
from rhfedmtl.resources.events import Event
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.training.privacy import PrivatePlan

Metrics = dict[str, npt.NDArray[np.float64]]

BROKEN = "certificate broken"
"""How a run ends whose objective lies below its bound: whatever it learned, nothing says how good it is."""


@dataclass(frozen=True, eq=False)
class Progress:
    """State of a run after a round, for a watcher; metrics and certificate are the latest available."""

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
    """State of a run right after a BS iteration; without a certificate the values are NaN and ``metrics`` is empty.

    ``metrics`` has a value per task. ``station_gaps`` are the duality gaps of the stations' local problems.
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
        """True if gap and metrics were computed."""
        return bool(self.metrics) or not np.isnan(self.primal)

    @property
    def gap(self) -> float:
        """Duality gap P − D."""
        return self.primal - self.dual


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Result of a run: models, the scaling that belongs to them, the certificate, and the record of the work.

    Attributes
    ----------
    metrics
        Test metrics, with a value per task.
    ledger, events
        Spending, and all events that were charged. `Ledger.replay` recomputes the ledger from the events.
    observed, history
        Observation and state of each BS iteration.
    stopped
        Reason of the end.
    relationship
        The cloud's last relationship; None for methods without a relationship.
    private
        Plan of a private run.
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
        """The mean model r, for unseen tasks."""
        return np.asarray(self.models.mean(axis=0))

    @property
    def local_steps(self) -> list[int]:
        """H of every round: the median over the terminals that took part."""
        return [_median(observation.local_steps) for observation in self.observed]

    def plot(self, axes: Sequence[Any] | None = None, *, metric: str | None = None) -> LearningCurveDisplay:
        """Draw a metric and the certified gap over the spent amount; needs matplotlib."""
        return LearningCurveDisplay.from_result(self, metric=metric).plot(axes)

    def plot_budget(self, axes: Sequence[Any] | None = None) -> BudgetDisplay:
        """Draw the amount of every type that each tier used; needs matplotlib."""
        return BudgetDisplay.from_result(self).plot(axes)

    def __repr__(self) -> str:
        quality = ", ".join(f"{name.replace('_', ' ')} {mean(values):.3f}" for name, values in self.metrics.items())
        return f"<Result: {quality or 'no test rows'}; {self.certificate.words}; {self.rounds} rounds, {self.stopped}>"

    def _repr_html_(self) -> str:
        facts: dict[str, Any] = {name.replace("_", " "): mean(values) for name, values in self.metrics.items()}
        facts |= {"certificate": self.certificate.words, "rounds": self.rounds, "stopped": self.stopped}
        return facts_html("Result", {**facts, "spent": amounts(self.ledger.spent, self.ledger.budget)})


def evaluate(models: Models, tests: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]], n_classes: int) -> Metrics:
    """Return the metrics of every task on its (scaled) test rows; NaN for a task without test rows."""
    rows = [metrics.measure(y, scores(X, models[b]), n_classes) if len(y) else {} for b, (X, y) in enumerate(tests)]
    names = next((list(row) for row in rows if row), [])
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _median(steps: npt.NDArray[np.int64]) -> int:
    return int(steps[0]) if steps.strides == (0,) else int(np.median(steps[steps > 0]))


def mean(values: npt.NDArray[np.float64]) -> float:
    """Return the mean over the tasks that have a value."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")
