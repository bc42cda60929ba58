"""Sort the arrays that an estimator gets into a federation of tasks and terminals.

`TaskEstimator.fit` uses `features_of` for dataframes, `gather` to build the federation, and the checks in between.
`Places` remembers where each row went, so a warm start can return the dual variables to their rows. Invalid rows raise
a `DataError` that names the row or the column.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation, Origin, offsets
from rhfedmtl.data.loaders.table import coded_features, frame_table, listing
from rhfedmtl.data.partition import Iid, TaskRows
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.errors import ConfigError, DataError, in_python, nearest
from rhfedmtl.maths.losses import Loss

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training rows of an estimator; ``y`` has codes into ``classes``, or numbers if ``classes`` is empty.

    Terminals and groups of different tasks are different, even with equal names.
    """

    X: Array
    y: Array
    classes: Array
    task: Array
    terminal: Array | None = None
    weight: Float64Array | None = None
    group: Array | None = None
    feature_names: tuple[str, ...] = ()
    preparation: Preparation | None = None


class WarmDuals(NamedTuple):
    """Dual variables in the order of the user's rows, per unit of weight.

    They are feasible for any X, λ, relationship and weights.
    """

    loss: Loss
    targets: Float64Array
    alpha: Float64Array


@dataclass(frozen=True, eq=False)
class Places:
    """Order of the rows in a federation: its row i is row ``order[i]`` of the user's ``n_rows`` rows.

    Rows of weight 0 are missing in the federation. ``tasks`` has the user's names of tasks; ``targets`` and ``weight``
    belong to the federation's rows.
    """

    order: IntArray
    n_rows: int
    tasks: Array
    targets: Float64Array
    weight: Float64Array

    def duals(self, loss: Loss, alpha: Float64Array) -> WarmDuals:
        """Return the dual variables of the federation's rows in the order of the user's rows."""
        duals = WarmDuals(loss, np.zeros((self.n_rows, alpha.shape[1])), np.zeros((self.n_rows, alpha.shape[1])))
        duals.targets[self.order] = self.targets
        duals.alpha[self.order] = alpha / self.weight[:, None]
        return duals

    def start(self, loss: Loss, duals: WarmDuals) -> Float64Array | None:
        """Return dual variables to start from: by row, and 0 if the label changed. Return None under another loss."""
        if loss != duals.loss or type(loss) is not type(duals.loss) or duals.alpha.shape[1] != self.targets.shape[1]:
            return None
        alpha = np.zeros_like(self.targets)
        existing = self.order < len(duals.alpha)
        old = self.order[existing]
        same = duals.targets[old] == self.targets[existing] if loss.classifier else True
        alpha[existing] = np.where(same, duals.alpha[old] * self.weight[existing, None], 0.0)
        return alpha


def gather(rows: TrainingRows, *, n_terminals: int, seed: int) -> tuple[Federation, Places]:
    """Sort rows by task and terminal, and return the federation and the places of its rows.

    Without terminals, each task is split evenly over ``n_terminals`` terminals, or fewer if it has fewer rows.
    """
    n_terminals = positive_integer("n_terminals", n_terminals)
    positive = np.arange(len(rows.y)) if rows.weight is None else np.flatnonzero(rows.weight > 0.0)
    tasks, task = np.unique(rows.task, return_inverse=True)
    empty = np.flatnonzero(np.bincount(task[positive], minlength=len(tasks)) == 0)
    if len(empty):
        raise DataError(f"all rows of task {str(tasks[empty[0]])!r} have weight zero: leave the task out")
    task = task[positive]
    if rows.terminal is None:
        terminal = np.zeros(len(task), dtype=np.int64)
        for b, name in enumerate(tasks.tolist()):
            members = np.flatnonzero(task == b)
            task_rows = TaskRows(str(name), np.zeros(len(members), dtype=np.int64))
            terminal[members] = Iid().assign(
                task_rows, min(n_terminals, len(members)), np.random.default_rng([seed, b])
            )
    else:
        terminal = np.unique(rows.terminal[positive], return_inverse=True)[1]
    order = np.lexsort((terminal, task))
    pairs, sizes = np.unique(np.column_stack([task, terminal]), axis=0, return_counts=True)
    y = rows.y[positive].astype(np.int32 if len(rows.classes) else np.float64)
    weight = None
    if rows.weight is not None:  # Weights get mean 1 in every task, because its loss is a weighted mean.
        weight = rows.weight[positive]
        weight = np.asarray(weight * (np.bincount(task) / np.bincount(task, weight))[task])[order]
    federation = Federation.untested(
        rows.X[positive[order]],
        y[order],
        offsets(sizes),
        offsets(np.bincount(pairs[:, 0], minlength=len(tasks))),
        task_names=tuple(map(str, tasks.tolist())),
        class_names=tuple(map(str, rows.classes.tolist())),
        feature_names=rows.feature_names,
        sample_weight=weight,
        origin=Origin("arrays", "given in memory", "the user's own"),
        group=None if rows.group is None else np.unique(rows.group[positive][order], return_inverse=True)[1],
        preparation=rows.preparation,
        terminals_drawn=rows.terminal is None,
    )
    sample_weight = federation.sample_weight
    weight = np.ones(len(order)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    return federation, Places(positive[order], len(rows.y), tasks, federation.targets(), weight)


def positive_integer(name: str, value: Any) -> int:
    """Return a parameter as an integer; refuse values that are not an integer of at least 1."""
    if not isinstance(value, int | float | np.number) or not value >= 1 or not float(value).is_integer():
        raise ConfigError(f"{name} must be at least 1 and a whole number, got {value!r}")
    return int(value)


def is_frame(X: Any) -> bool:
    """Return True if X is a pandas or Polars frame with rows."""
    return hasattr(X, "columns") and hasattr(X, "to_numpy") and len(X) > 0


def split_tasks(X: Any, task: Any, name: Any) -> tuple[Any, Any]:
    """Return the rows without the column ``name``, and their tasks: ``task``, or else this column.

    ``name`` may be None. The column is never a feature, also if ``task`` names the tasks.
    """
    if type(X).__name__ == "LazyFrame":
        raise DataError("X is a LazyFrame, which has no rows yet: collect() it first")
    if name is None or (task is not None and not hasattr(X, "columns")):
        return X, task
    if not hasattr(X, "columns") or not hasattr(X, "drop"):
        raise DataError(
            f"task={name!r} names a column of a frame, but X is a {type(X).__name__}: give a pandas or Polars frame, "
            "or the tasks of all rows as the argument task of this method"
        )
    names = list(X.columns)
    labels = [label for label in names if label == name] or [label for label in names if str(label) == str(name)]
    if not labels:
        if task is not None:
            return X, task
        spelt = [str(label) for label in names]
        raise DataError(
            f"X has no column {name!r} that names the tasks: it has {listing(spelt)}{nearest(str(name), spelt)}"
        )
    if len(labels) > 1:
        raise DataError(f"X has {len(labels)} columns {name!r}, but one names the tasks: rename the others")
    rest = X.drop(columns=labels) if hasattr(X, "iloc") else X.drop(labels)
    return rest, X[labels[0]].to_numpy() if task is None else task


def features_of(X: Any) -> tuple[Any, Preparation | None]:
    """Return the rows and, for a frame with missing values or text, the preparation that encodes it."""
    if not is_frame(X):
        return X, None
    if {type(dtype).__name__ for dtype in X.dtypes} == {"SparseDtype"}:
        raise TypeError("X is a sparse frame, but dense data is required: use X.sparse.to_dense()")
    table = frame_table(X)
    names, coded, spelled, left_out = coded_features(table, "X")
    plain = not table.classes and all(cell.dtype.kind in "fiub" for cell in table.columns.values())
    if plain and not left_out and not np.isnan(coded).any():
        return X, None
    if left_out:
        reasons = (f"{name!r} {in_python(why)}" for name, why in left_out.items())
        warnings.warn("left out: " + "; ".join(reasons), stacklevel=4)
    preparation = Preparation.learned(names, coded, spelled)
    return preparation.encode(coded, spelled), preparation


def column(values: Any, n_rows: int, noun: str) -> Array:
    """Return the names of tasks or terminals of all rows: text, numbers or truth values, without missing values."""
    array = np.asarray(values)
    if array.shape == (n_rows, 1):
        array = array[:, 0]
    if array.shape != (n_rows,):
        problem = f"is {values!r}" if array.ndim == 0 else f"has shape {array.shape}"
        raise DataError(f"{noun} {problem} for {n_rows} rows: name the {noun} of every row")
    if array.dtype.kind not in "biu":
        _refuse_gaps(values, noun)
    if array.dtype.kind in "biuU":
        return array
    if array.dtype.kind in "mM":  # NumPy would turn dates of pandas 2 into integers.
        raise DataError(f"{noun} holds the date {array[0]!s}: use text or numbers")
    values_list = array.tolist()
    if array.dtype.kind == "f":
        return array
    if all(isinstance(value, int | float | np.number) for value in values_list):
        return np.array(values_list)
    if not all(isinstance(value, str) for value in values_list):
        problem = "mixes types, as" if len({type(value) for value in values_list}) > 1 else "holds"
        raise DataError(f"{noun} {problem} {values_list[0]!r}: use text or numbers for all of them")
    return array.astype(np.str_)


def check_index(X: Any, **columns: Any) -> None:
    """Refuse columns whose pandas index differs from the index of X: their values would go to the wrong rows."""
    if not hasattr(getattr(X, "index", None), "equals"):
        return
    for name, values in columns.items():
        index: Any = getattr(values, "index", None)
        if hasattr(index, "equals") and len(index) == len(X) and not X.index.equals(index):
            row = next(i for i, pair in enumerate(zip(X.index, index, strict=True)) if pair[0] != pair[1])
            raise DataError(
                f"{name} has another index than X: in row {row} it has {index[row]!r}, and X has {X.index[row]!r}; "
                f"give {name}.loc[X.index], or {name}.to_numpy() if the rows are in the same order"
            )


def checked_labels(y: Any) -> Any:
    """Return the labels unchanged, and refuse missing values that scikit-learn does not notice."""
    array = np.asarray(y)
    if array.dtype.kind in "OU" and (array.ndim == 1 or array.shape[1:] == (1,)):
        _refuse_gaps(y, "label")
    return y


def _refuse_gaps(values: Any, noun: str) -> None:
    """Raise an error for the first missing value; it reads the original values, because NumPy turns them into text."""
    originals = np.asarray(values, dtype=object).ravel().tolist()
    # NaN and NaT differ from themselves, and a comparison of pandas' NA gives NA.
    missing = (i for i, value in enumerate(originals) if value is None or (value == value) is not True)  # noqa: PLR0124
    if (first := next(missing, None)) is not None:
        raise DataError(f"row {first} has no {noun}: fill it, or drop the row")


def weights(values: Any, n_rows: int) -> Float64Array | None:
    """Return the weights of rows: finite, not negative, not all zero; a number applies to all rows."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    array = np.full(n_rows, float(array)) if array.ndim == 0 else array
    if array.shape != (n_rows,):
        raise DataError(f"sample_weight has shape {array.shape} for {n_rows} rows: give a number for each row")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0.0)))
    if len(bad):
        raise DataError(f"row {bad[0]} has the weight {array[bad[0]]}: weights are finite and not negative")
    if not array.any():
        raise DataError("all rows have weight zero: there is nothing to learn from")
    return array
