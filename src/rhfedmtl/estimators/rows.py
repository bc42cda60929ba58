"""From the arrays that an estimator is given to a federation: rows by task and terminal, and their weights."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation, Origin, offsets
from rhfedmtl.data.loaders.table import coded_features, frame_table
from rhfedmtl.data.partition import Iid, TaskRows
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.errors import ConfigError, DataError, in_python
from rhfedmtl.maths.losses import Loss

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GivenRows:
    """What an estimator learns from; ``y`` holds codes into ``classes``, or numbers where there are none.

    Terminals and groups of different tasks are different ones, whatever their names.
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
    """Dual variables by row as it was given, per unit of weight: feasible for any X, λ, relationship and weights."""

    loss: Loss
    targets: Float64Array
    alpha: Float64Array


@dataclass(frozen=True, eq=False)
class Places:
    """How a federation came about: its row i is row ``order[i]`` of the ``n_rows`` given; those of weight 0 are gone.

    ``tasks`` are the names as given, ``targets`` and ``weight`` those of the federation's rows.
    """

    order: IntArray
    n_rows: int
    tasks: Array
    targets: Float64Array
    weight: Float64Array

    def duals(self, loss: Loss, alpha: Float64Array) -> WarmDuals:
        """Dual variables of the federation's rows, by the rows as given."""
        known = WarmDuals(loss, np.zeros((self.n_rows, alpha.shape[1])), np.zeros((self.n_rows, alpha.shape[1])))
        known.targets[self.order] = self.targets
        known.alpha[self.order] = alpha / self.weight[:, None]
        return known

    def start(self, loss: Loss, known: WarmDuals) -> Float64Array | None:
        """Dual variables to start from: rows by their place, at 0 where the label changed; None under another loss."""
        if loss != known.loss or type(loss) is not type(known.loss) or known.alpha.shape[1] != self.targets.shape[1]:
            return None
        alpha = np.zeros_like(self.targets)
        there = self.order < len(known.alpha)
        old = self.order[there]
        same = known.targets[old] == self.targets[there] if loss.classifier else True
        alpha[there] = np.where(same, known.alpha[old] * self.weight[there, None], 0.0)
        return alpha


def gather(rows: GivenRows, *, n_terminals: int, seed: int) -> tuple[Federation, Places]:
    """Sort rows by task and terminal; without terminals, share each task out evenly to ``n_terminals`` (or fewer)."""
    n_terminals = whole("n_terminals", n_terminals)
    kept = np.arange(len(rows.y)) if rows.weight is None else np.flatnonzero(rows.weight > 0.0)
    tasks, task = np.unique(rows.task, return_inverse=True)
    gone = np.flatnonzero(np.bincount(task[kept], minlength=len(tasks)) == 0)
    if len(gone):
        raise DataError(f"all rows of task {str(tasks[gone[0]])!r} have weight zero: leave the task out")
    task = task[kept]
    if rows.terminal is None:
        terminal = np.zeros(len(task), dtype=np.int64)
        for b, name in enumerate(tasks.tolist()):
            here = np.flatnonzero(task == b)
            together = TaskRows(str(name), np.zeros(len(here), dtype=np.int64))
            terminal[here] = Iid().assign(together, min(n_terminals, len(here)), np.random.default_rng([seed, b]))
    else:
        terminal = np.unique(rows.terminal[kept], return_inverse=True)[1]
    order = np.lexsort((terminal, task))
    pairs, sizes = np.unique(np.column_stack([task, terminal]), axis=0, return_counts=True)
    y = rows.y[kept].astype(np.int32 if len(rows.classes) else np.float64)
    weight = None
    if rows.weight is not None:  # mean 1 in every task, so that its loss is a weighted mean
        weight = rows.weight[kept]
        weight = np.asarray(weight * (np.bincount(task) / np.bincount(task, weight))[task])[order]
    federation = Federation.untested(
        rows.X[kept[order]],
        y[order],
        offsets(sizes),
        offsets(np.bincount(pairs[:, 0], minlength=len(tasks))),
        task_names=tuple(map(str, tasks.tolist())),
        class_names=tuple(map(str, rows.classes.tolist())),
        feature_names=rows.feature_names,
        sample_weight=weight,
        origin=Origin("arrays", "given in memory", "the user's own"),
        group=None if rows.group is None else np.unique(rows.group[kept][order], return_inverse=True)[1],
        preparation=rows.preparation,
        terminals_drawn=rows.terminal is None,
    )
    given = federation.sample_weight
    weight = np.ones(len(order)) if given is None else np.asarray(given, dtype=np.float64)
    return federation, Places(kept[order], len(rows.y), tasks, federation.targets(), weight)


def whole(name: str, value: Any) -> int:
    """A parameter that counts something, from 1 on."""
    if not isinstance(value, int | float | np.number) or not value >= 1 or not float(value).is_integer():
        raise ConfigError(f"{name} must be at least 1 and a whole number, got {value!r}")
    return int(value)


def is_frame(X: Any) -> bool:
    """Whether it is a frame of pandas or Polars with a row at least."""
    return hasattr(X, "columns") and hasattr(X, "to_numpy") and len(X) > 0


def features_of(X: Any) -> tuple[Any, Preparation | None]:
    """Rows as they are, or, of a frame with gaps or texts, the features made of them and how."""
    if type(X).__name__ == "LazyFrame":
        raise DataError("X is a LazyFrame, which has no rows yet: collect() it first")
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


def column(values: Any, n_rows: int, what: str) -> Array:
    """Names of tasks or terminals, one for each row: text, numbers or truth values, and none of them missing."""
    array = np.asarray(values)
    if array.shape == (n_rows, 1):
        array = array[:, 0]
    if array.shape != (n_rows,):
        found = f"is {values!r}" if array.ndim == 0 else f"has shape {array.shape}"
        raise DataError(f"{what} {found} for {n_rows} rows: name the {what} of every row")
    if array.dtype.kind not in "biu":
        _refuse_gaps(values, what)
    if array.dtype.kind in "biuU":
        return array
    if array.dtype.kind in "mM":  # dates of pandas 2 would turn into whole numbers
        raise DataError(f"{what} holds the date {array[0]!s}: use text or numbers")
    known = array.tolist()
    if array.dtype.kind == "f":
        return array
    if all(isinstance(value, int | float | np.number) for value in known):
        return np.array(known)
    if not all(isinstance(value, str) for value in known):
        found = "mixes types, as" if len({type(value) for value in known}) > 1 else "holds"
        raise DataError(f"{what} {found} {known[0]!r}: use text or numbers for all of them")
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


def labelled(y: Any) -> Any:
    """Labels as they are; scikit-learn sees the gaps among numbers, and no others."""
    array = np.asarray(y)
    if array.dtype.kind in "OU" and (array.ndim == 1 or array.shape[1:] == (1,)):
        _refuse_gaps(y, "label")
    return y


def _refuse_gaps(values: Any, what: str) -> None:
    """Name the first row that has none: of the values as given, as NumPy makes texts of all beside a text."""
    known = np.asarray(values, dtype=object).ravel().tolist()
    # NaN and NaT differ from themselves; pandas' NA will not say.
    missing = (i for i, value in enumerate(known) if value is None or (value == value) is not True)  # noqa: PLR0124
    if (first := next(missing, None)) is not None:
        raise DataError(f"row {first} has no {what}: fill it, or drop the row")


def weights(values: Any, n_rows: int) -> Float64Array | None:
    """Weights of rows: finite, not negative, not all zero; a number stands for all."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    array = np.full(n_rows, float(array)) if array.ndim == 0 else array
    if array.shape != (n_rows,):
        raise DataError(f"sample_weight has shape {array.shape} for {n_rows} rows: give one number for each")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0.0)))
    if len(bad):
        raise DataError(f"row {bad[0]} has the weight {array[bad[0]]}: weights are finite and not negative")
    if not array.any():
        raise DataError("all rows have weight zero: there is nothing to learn from")
    return array
