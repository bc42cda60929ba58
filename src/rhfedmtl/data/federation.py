"""A federation: the training rows of every terminal under every base station, and the test rows of every task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import DataError

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
Kind = Literal["binary", "classes", "regression"]


@dataclass(frozen=True)
class Origin:
    """Where data came from and under which terms."""

    name: str
    source: str = "given in memory"
    licence: str = "unknown"
    citation: str = ""


@dataclass(frozen=True, eq=False)
class Source:
    """Rows from one place, before they are split into tasks and terminals.

    ``y`` holds codes into ``class_names``, or numbers where ``class_names`` is empty (regression). ``task`` and
    ``terminal`` hold codes. Rows of one ``group`` belong together and a grouped split keeps them so; within a
    task, rows stand in the order in which they were recorded.
    """

    X: FloatArray
    y: npt.NDArray[Any]
    task: IntArray
    task_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    terminal: IntArray | None = None
    group: IntArray | None = None
    origin: Origin = Origin("unnamed")


@dataclass(frozen=True, eq=False)
class Federation:
    """Tasks × terminals, as read-only arrays that lie one after the other.

    Rows of terminal ``t`` are ``X[terminal_offsets[t]:terminal_offsets[t + 1]]``; terminals of task ``b`` are
    ``task_offsets[b]:task_offsets[b + 1]``; test rows of task ``b`` are
    ``test_X[test_offsets[b]:test_offsets[b + 1]]``. Sizes may differ everywhere.
    """

    X: FloatArray
    y: npt.NDArray[Any]
    terminal_offsets: IntArray
    task_offsets: IntArray
    test_X: FloatArray
    test_y: npt.NDArray[Any]
    test_offsets: IntArray
    task_names: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    sample_weight: FloatArray | None = None
    origin: Origin = Origin("unnamed")

    def __post_init__(self) -> None:
        """Check the shapes against each other and make every array read-only."""
        for name in ("terminal_offsets", "task_offsets", "test_offsets"):
            offsets = np.asarray(getattr(self, name), dtype=np.int64)
            if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
                raise DataError(f"{name} must start at 0 and never fall, got {offsets[:8]}")
            object.__setattr__(self, name, offsets)
        self._check_sizes()
        for name in ("X", "y", "terminal_offsets", "task_offsets", "test_X", "test_y", "test_offsets", "sample_weight"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    def _check_sizes(self) -> None:
        for X, y, what in ((self.X, self.y, "training"), (self.test_X, self.test_y, "test")):
            if X.ndim != 2 or len(X) != len(y):
                raise DataError(f"{what} rows have shape {X.shape}, their labels {y.shape}: they must pair up")
        if self.X.shape[1] != self.test_X.shape[1]:
            raise DataError(f"training rows have {self.X.shape[1]} features, test rows {self.test_X.shape[1]}")
        if self.terminal_offsets[-1] != len(self.X):
            raise DataError(f"terminals hold {self.terminal_offsets[-1]} rows, but there are {len(self.X)}")
        if self.task_offsets[-1] != self.n_terminals or len(self.task_offsets) != self.n_tasks + 1:
            raise DataError(
                f"tasks hold {self.task_offsets[-1]} terminals in {len(self.task_offsets) - 1} tasks, "
                f"but there are {self.n_terminals} terminals and {self.n_tasks} task names"
            )
        if len(self.test_offsets) != self.n_tasks + 1 or self.test_offsets[-1] != len(self.test_X):
            raise DataError(f"test_offsets end at {self.test_offsets[-1]}, but there are {len(self.test_X)} test rows")
        if self.feature_names and len(self.feature_names) != self.X.shape[1]:
            raise DataError(f"{len(self.feature_names)} feature names for {self.X.shape[1]} features")
        if self.sample_weight is not None and self.sample_weight.shape != (len(self.X),):
            raise DataError(f"{self.sample_weight.shape} sample weights for {len(self.X)} training rows")

    @property
    def n_tasks(self) -> int:
        """Number of tasks, which is the number of base stations."""
        return len(self.task_names)

    @property
    def n_terminals(self) -> int:
        """Number of terminals under all base stations."""
        return len(self.terminal_offsets) - 1

    @property
    def n_features(self) -> int:
        """Number of features of a row, without the intercept."""
        return int(self.X.shape[1])

    @property
    def kind(self) -> Kind:
        """``binary``, ``classes`` (three or more) or ``regression``."""
        if not self.class_names:
            return "regression"
        return "binary" if len(self.class_names) == 2 else "classes"

    @cached_property
    def terminal_task(self) -> IntArray:
        """Task of every terminal."""
        return np.repeat(np.arange(self.n_tasks), np.diff(self.task_offsets))

    @cached_property
    def row_task(self) -> IntArray:
        """Task of every training row."""
        return np.repeat(self.terminal_task, np.diff(self.terminal_offsets))

    def targets(self) -> npt.NDArray[np.float64]:
        """Labels as the losses want them: ±1 in one column, one-vs-rest columns of ±1, or numbers in one column."""
        return encode(self.y, self.class_names)

    def test_rows(self, task: int) -> tuple[FloatArray, npt.NDArray[Any]]:
        """Test rows and labels of one task."""
        rows = slice(self.test_offsets[task], self.test_offsets[task + 1])
        return self.test_X[rows], self.test_y[rows]

    def with_rows(self, X: FloatArray, test_X: FloatArray) -> Federation:
        """Return the same federation over other (scaled) rows."""
        return replace(self, X=X, test_X=test_X)

    def fingerprint(self) -> str:
        """SHA-256 over everything that can change a result."""
        digest = hashlib.sha256()
        for array in (self.X, self.y, self.terminal_offsets, self.task_offsets, self.test_X, self.test_y):
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(memoryview(np.ascontiguousarray(array)).cast("B"))
        if self.sample_weight is not None:
            digest.update(memoryview(np.ascontiguousarray(self.sample_weight)).cast("B"))
        digest.update(repr((self.task_names, self.class_names)).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return (
            f"<Federation {self.origin.name}: {self.n_tasks} tasks, {self.n_terminals} terminals, "
            f"{len(self.X)} + {len(self.test_X)} rows, {self.n_features} features, {self.kind}>"
        )


def encode(y: npt.NDArray[Any], class_names: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Labels as columns: numbers as they are, two classes as one column of ±1, more as one-vs-rest columns."""
    if not class_names:
        return np.ascontiguousarray(y, dtype=np.float64).reshape(len(y), -1)
    codes = np.arange(len(class_names)) if len(class_names) > 2 else np.array([1])
    return np.where(np.asarray(y)[:, None] == codes[None, :], 1.0, -1.0)


def _read_only(array: Any) -> Any:
    if array is None:
        return None
    array = np.ascontiguousarray(array)
    view: npt.NDArray[Any] = array.view()
    view.flags.writeable = False
    return view
