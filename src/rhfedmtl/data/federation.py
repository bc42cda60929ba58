"""The data structures of a training: `Source` (rows before the split) and `Federation` (tasks × terminals).

Loaders return a `Source`, `split.federate` turns it into a `Federation`, and every engine trains on a federation. Both
classes check their arrays on construction and make them read-only, so a federation never changes. To change how rows
are divided, see `split` and `partition`; to add a data set, see `registry`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.preparation import Preparation, Spelled
from rhfedmtl.display import facts_html
from rhfedmtl.errors import DataError

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
LARGEST = 1e100
"""Larger features and labels are refused: the sum of their squares could overflow."""
Kind = Literal["binary", "classes", "regression"]
ARRAYS = ("X", "y", "terminal_offsets", "task_offsets", "test_X", "test_y", "test_offsets", "sample_weight")
"""Arrays that a saved federation contains. Groups are not saved: the test rows are already separate."""


@dataclass(frozen=True)
class Origin:
    """Name, source, licence and citation of a data set."""

    name: str
    source: str = "given in memory"
    licence: str = "unknown"
    citation: str = ""


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of a data set before they are split into tasks and terminals.

    Within a task, rows have the order in which they were recorded.

    Attributes
    ----------
    X
        Rows × features. If ``spelled`` is set, a table with gaps as NaN and texts as codes; a split turns it into
        features (`preparation`).
    y
        Codes into ``class_names``; plain numbers for a regression, which has no class names.
    task, terminal
        Codes of every row's task and terminal.
    group
        Code of every row's group. A grouped split keeps all rows of a group on the same side.
    spelled
        For each column of a table, the texts that its codes stand for.
    gap_words
        Words that the user added for gaps.
    small_tasks
        Treatment of tasks with a single row or a single class in a split (`loaders.table`).
    notes
        Facts about the origin of the rows that a user should read.
    treatment
        For each column of a table, its use in words.
    overlap
        The overlap between rows of a group, in words. A split that separates such rows says so in its notes.
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
    terminal_names: tuple[str, ...] = ()
    spelled: Spelled = ()
    gap_words: tuple[str, ...] = ()
    small_tasks: str = "error"
    notes: tuple[str, ...] = ()
    treatment: tuple[tuple[str, str], ...] = ()
    overlap: str = ""

    def __post_init__(self) -> None:
        """Refuse wrong sizes, unknown codes and NaN, and make every array read-only."""
        object.__setattr__(self, "X", as_rows(self.X))
        for name in ("y", "task", "terminal", "group"):
            column = getattr(self, name)
            if column is not None and np.shape(column) != (len(self.X),):
                raise DataError(f"{self.origin.name}: {np.shape(column)} values of {name} for {len(self.X)} rows")
        check_codes(self.task, len(self.task_names), "task")
        if self.feature_names and len(self.feature_names) != self.X.shape[1]:
            raise DataError(f"{len(self.feature_names)} feature names for {self.X.shape[1]} features")
        check_labels(self.y, self.class_names)
        if not self.spelled:
            check_finite(self.X, self.feature_names, lambda row: f" (task {self.task_names[int(self.task[row])]!r})")
        for name in ("X", "y", "task", "terminal", "group"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    @property
    def kind(self) -> Kind:
        """``binary``, ``classes`` (three or more) or ``regression``."""
        return kind_of(self.class_names)

    def __repr__(self) -> str:
        return (
            f"<Source {self.origin.name}: {len(self.task_names)} tasks, {len(self.X)} rows, "
            f"{self.X.shape[1]} features, {self.kind}>"
        )


@dataclass(frozen=True, eq=False)
class Federation:
    """Tasks × terminals, as read-only arrays in which the rows of a terminal are contiguous.

    Rows of terminal ``t`` are ``X[terminal_offsets[t]:terminal_offsets[t + 1]]``; terminals of task ``b`` are
    ``task_offsets[b]:task_offsets[b + 1]``; test rows of task ``b`` are
    ``test_X[test_offsets[b]:test_offsets[b + 1]]``. Sizes may differ between tasks and between terminals.

    Attributes
    ----------
    group
        Group of every training row, if the split was grouped. Code that holds out more rows must keep groups together.
    preparation
        Encoding that turned a table with gaps or texts into features.
    notes
        Facts about the data that a user should read.
    terminals_drawn
        True if rows were assigned to terminals at random, which means that the terminals are not real devices.
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
    terminal_names: tuple[str, ...] = ()
    group: npt.NDArray[Any] | None = None
    preparation: Preparation | None = None
    notes: tuple[str, ...] = ()
    terminals_drawn: bool = False

    def __post_init__(self) -> None:
        """Check the shapes against each other and make every array read-only."""
        for name in ("terminal_offsets", "task_offsets", "test_offsets"):
            offsets = np.asarray(getattr(self, name), dtype=np.int64)
            if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
                raise DataError(f"{name} must start at 0 and never fall, got {offsets[:8]}")
            object.__setattr__(self, name, offsets)
        self._check_sizes()
        for y in (self.y, self.test_y):
            check_labels(y, self.class_names)
        for name in (*ARRAYS, "group"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    def _check_sizes(self) -> None:
        for X, y, role in ((self.X, self.y, "training"), (self.test_X, self.test_y, "test")):
            if X.ndim != 2 or len(X) != len(y):
                raise DataError(f"{role} rows have shape {X.shape}, their labels {y.shape}: they must pair up")
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
        if self.group is not None and self.group.shape != (len(self.X),):
            raise DataError(f"{self.group.shape} groups for {len(self.X)} training rows")
        if self.terminal_names and len(self.terminal_names) != self.n_terminals:
            raise DataError(f"{len(self.terminal_names)} terminal names for {self.n_terminals} terminals")

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
        return kind_of(self.class_names)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training rows of every terminal."""
        return np.diff(self.terminal_offsets)

    @cached_property
    def terminal_task(self) -> IntArray:
        """Task of every terminal."""
        return np.repeat(np.arange(self.n_tasks), np.diff(self.task_offsets))

    @cached_property
    def row_task(self) -> IntArray:
        """Task of every training row."""
        return np.repeat(self.terminal_task, np.diff(self.terminal_offsets))

    @classmethod
    def untested(cls, X: FloatArray, y: npt.NDArray[Any], terminals: IntArray, tasks: IntArray, **more: Any) -> Self:
        """Build a federation without test rows; ``more`` are further fields by name."""
        # Empty arrays with their own memory: an empty slice of X would keep all rows alive.
        nothing = np.empty_like(X, shape=(0, X.shape[1])), np.empty_like(y, shape=0)
        return cls(X, y, terminals, tasks, *nothing, np.zeros(len(tasks), dtype=np.int64), **more)

    def targets(self) -> npt.NDArray[np.float64]:
        """Return labels in the form of the losses: ±1 or numbers in a single column, or one-vs-rest columns of ±1."""
        return encode(self.y, self.class_names)

    def test_rows(self, task: int) -> tuple[FloatArray, npt.NDArray[Any]]:
        """Return test rows and labels of a task."""
        rows = slice(self.test_offsets[task], self.test_offsets[task + 1])
        return self.test_X[rows], self.test_y[rows]

    def fingerprint(self) -> str:
        """Return the SHA-256 over everything that can change a result; computed once, as a federation never changes."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        places = (self.terminal_offsets, self.task_offsets, self.test_offsets)
        for array in (self.X, self.y, self.test_X, self.test_y, *places, self.sample_weight):
            if array is not None:
                digest.update(repr((array.dtype.str, array.shape)).encode())
                digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        digest.update(repr((self.task_names, self.class_names)).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return (
            f"<Federation {self.origin.name}: {self.n_tasks} tasks, {self.n_terminals} terminals, "
            f"{len(self.X)} + {len(self.test_X)} rows, {self.n_features} features, {self.kind}>"
        )

    def _repr_html_(self) -> str:
        tasks = ", ".join(self.task_names[:8]) + (", …" if self.n_tasks > 8 else "")
        rows = f"{len(self.X):,} for training, {len(self.test_X):,} for tests"
        facts = {"tasks": f"{self.n_tasks}: {tasks}", "terminals": self.n_terminals, "rows": rows}
        return facts_html(f"Federation {self.origin.name}", {**facts, "features": self.n_features, "kind": self.kind})


def offsets(sizes: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the start of each of several consecutive parts with these sizes, and the end of the last part."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])


def kind_of(class_names: tuple[str, ...]) -> Kind:
    """Return ``regression`` for no classes, ``binary`` for two classes, ``classes`` for more."""
    if not class_names:
        return "regression"
    return "binary" if len(class_names) == 2 else "classes"


def encode(y: npt.NDArray[Any], class_names: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Return labels as columns: numbers unchanged, two classes as a column of ±1, more as one-vs-rest columns."""
    if not class_names:
        return np.ascontiguousarray(y, dtype=np.float64).reshape(len(y), -1)
    codes = np.arange(len(class_names)) if len(class_names) > 2 else np.array([1])
    return np.where(np.asarray(y)[:, None] == codes[None, :], 1.0, -1.0)


def class_weights(y: npt.NDArray[Any], task: IntArray) -> npt.NDArray[np.float64]:
    """Return the weight n_b/(C_b n_bc) of every row, which gives all C_b classes of a task equal weight in its loss."""
    pairs, place, counts = np.unique(np.column_stack([task, y]), axis=0, return_inverse=True, return_counts=True)
    tasks = pairs[:, 0].astype(np.int64)
    pair_weights = np.bincount(task)[tasks] / (np.bincount(tasks)[tasks] * counts)
    return np.asarray(pair_weights[place.ravel()])


def as_rows(X: Any) -> FloatArray:
    """Return rows as a two-dimensional array of floats; floats keep their dtype and stay memory-mapped."""
    rows = np.asarray(X)
    if rows.ndim != 2:
        raise DataError(f"rows must form a table (two dimensions), got an array of shape {rows.shape}")
    if rows.dtype.kind == "f" and rows.dtype.itemsize in (4, 8):
        return rows
    if rows.dtype.kind not in "fiub":
        raise DataError(f"features must be numbers, got dtype {rows.dtype}: encode or drop the columns that are not")
    return rows.astype(np.float64)


def check_codes(codes: npt.NDArray[Any], n_names: int, kind: str) -> None:
    """Refuse codes outside of their list of names; the check uses little memory for any number of rows."""
    if codes.dtype.kind not in "iu":
        raise DataError(f"{kind} codes must be whole numbers, got dtype {codes.dtype}")
    if len(codes) and not (codes.min() >= 0 and codes.max() < n_names):
        row = int(np.flatnonzero((codes < 0) | (codes >= n_names))[0])
        raise DataError(f"row {row}: {kind} code {codes[row]} has no name, there are {n_names} names")


def check_labels(y: npt.NDArray[Any], class_names: tuple[str, ...]) -> None:
    """Refuse labels that are neither codes into the class names nor (without class names) finite numbers."""
    if len(class_names) == 1:
        raise DataError(f"all rows have the class {class_names[0]!r}: there is nothing to tell apart")
    if class_names:
        return check_codes(y, len(class_names), "class")
    if y.dtype.kind not in "fiub":
        raise DataError(f"labels of a regression must be numbers, got dtype {y.dtype}; or give class names")
    bad = np.flatnonzero(~(np.abs(y) <= LARGEST)) if y.dtype.kind == "f" else np.empty(0, dtype=np.int64)
    if len(bad):
        raise DataError(
            f"row {bad[0]}: label {y[bad[0]]} is not a finite number of at most {LARGEST:g}: drop, repair or rescale it"
        )
    return None


def check_finite(X: FloatArray, feature_names: tuple[str, ...], where: Callable[[int], str]) -> None:
    """Refuse NaN, infinity and numbers whose square overflows; the error names row and column. Works in blocks."""
    step = max(1, 2**18 // max(1, X.shape[1]))
    limit = min(LARGEST, float(np.finfo(X.dtype).max)) if X.dtype.kind == "f" else LARGEST
    for start in range(0, len(X), step):
        # NaN compares as false, so it is refused as well.
        finite = np.abs(X[start : start + step]) <= limit
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            name = repr(feature_names[column]) if feature_names else str(column)
            value, row = X[start + row, column], start + row
            why = f", beyond {LARGEST:g}" if np.isfinite(value) else ""
            raise DataError(f"row {row}{where(row)}, column {name} holds {value}{why}: drop or fill such rows first")


def _read_only(array: Any) -> Any:
    if array is None:
        return None
    array = np.ascontiguousarray(array)
    view: npt.NDArray[Any] = array.view()
    view.flags.writeable = False
    return view


def one_terminal_per_task(federation: Federation) -> Federation:
    """Merge the terminals of every station into a single terminal with all of its rows."""
    return replace(
        federation,
        terminal_offsets=federation.terminal_offsets[federation.task_offsets],
        task_offsets=np.arange(federation.n_tasks + 1),
        terminal_names=(),
    )
