"""Methods that learn by dual coordinate ascent: a loss, a relationship between tasks, and a way to merge.

HFedMTL, RHFedMTL, CoCoA, MOCHA and local models are all settings of this one method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.merges import Average, Merge
from rhfedmtl.data.federation import Federation, check_finite
from rhfedmtl.errors import DataError
from rhfedmtl.maths.losses import Loss, SmoothedHinge, check_loss
from rhfedmtl.maths.relationships import MeanRegularised, Relationship
from rhfedmtl.maths.sdca import FACTORS


@dataclass(frozen=True)
class DualMethod:
    """What is learned and how updates are merged; how much work to do is the policy's business.

    ``uniform`` draws rows with replacement, as in the paper, instead of in passes over a shuffled deck.
    """

    loss: Loss = field(default_factory=SmoothedHinge)
    relationship: Relationship = field(default_factory=MeanRegularised)
    merge: Merge = field(default_factory=Average)
    intercept: bool = False
    uniform: bool = False

    def __post_init__(self) -> None:
        """Refuse a loss whose parameters make no sense."""
        check_loss(self.loss)

    @property
    def course_length(self) -> int:
        """How many numbers describe the course of a terminal's dual sum along its update."""
        if not self.merge.line_search:
            return 0
        return 3 if self.loss.quadratic else len(FACTORS)

    def check(self, federation: Federation) -> None:
        """Refuse data that this loss cannot learn from; names the task and terminal of the first bad row."""
        if self.loss.classifier and federation.kind == "regression":
            raise DataError(
                f"{type(self.loss).__name__} needs classes, but the labels of {federation.origin.name!r} are "
                "numbers: use loss 'squared' for regression, or name the classes"
            )
        names = federation.task_names
        empty = np.flatnonzero(np.diff(federation.terminal_offsets) == 0)
        if len(empty):
            task = names[federation.terminal_task[empty[0]]]
            raise DataError(f"terminal {empty[0]} of task {task!r} has no rows: leave it out, or give it at least one")
        idle = np.flatnonzero(np.diff(federation.task_offsets) == 0)
        if len(idle):
            raise DataError(f"task {names[idle[0]]!r} has no terminals: leave it out, or give it training rows")

        def where(row: int) -> str:
            terminal = int(np.searchsorted(federation.terminal_offsets, row, side="right")) - 1
            return f" (terminal {terminal} of task {names[federation.terminal_task[terminal]]!r})"

        _check_rows(federation.X, federation.feature_names, where)
        _check_rows(federation.test_X, federation.feature_names, lambda row: " of the test rows")
        _check_weights(federation.sample_weight, len(federation.X), where)

    def check_terminal(
        self, terminal: int, X: npt.NDArray[Any], y: npt.NDArray[Any], weight: npt.NDArray[Any] | None
    ) -> None:
        """Refuse rows of one terminal that this loss cannot learn from; ``y`` has a column for each model."""

        def where(row: int) -> str:
            return f" of terminal {terminal}"

        if len(X) == 0:
            raise DataError(f"terminal {terminal} has no rows: leave it out, or give it at least one")
        if X.ndim != 2 or y.ndim != 2 or len(y) != len(X):
            raise DataError(
                f"terminal {terminal} has rows of shape {X.shape} and labels of {y.shape}: two tables needed"
            )
        _check_rows(X, (), where)
        allowed = np.abs(y) == 1.0 if self.loss.classifier else np.isfinite(y)
        if not allowed.all():
            row, column = (int(i) for i in np.argwhere(~allowed)[0])
            needed = "-1 or +1" if self.loss.classifier else "a finite number"
            name = type(self.loss).__name__
            raise DataError(f"row {row}{where(row)} has the label {y[row, column]}: {name} needs {needed}")
        _check_weights(weight, len(X), where)


def _check_rows(X: npt.NDArray[Any], feature_names: tuple[str, ...], where: Callable[[int], str]) -> None:
    if X.dtype not in (np.float32, np.float64):
        raise DataError(f"rows are of type {X.dtype}: the kernels compute in float32 or float64, convert them first")
    check_finite(X, feature_names, where)


def _check_weights(weight: npt.NDArray[Any] | None, n_rows: int, where: Callable[[int], str]) -> None:
    if weight is None:
        return
    if weight.shape != (n_rows,):
        raise DataError(f"sample weights of shape {weight.shape} for {n_rows} rows{where(0)}")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0.0)))
    if len(bad):
        row = int(bad[0])
        raise DataError(f"row {row}{where(row)} has the weight {weight[row]}: weights are finite and not negative")
