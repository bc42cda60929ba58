"""Landmine: radar images of 29 fields, 9 features a row, mine or clutter; each field is a task.

``load`` reads the data set as published. ``load_authors`` follows the public code of the RHFedMTL paper, which differs:
it joins 1,464 rows of all fields and cuts them into equal stretches that it calls tasks. The last tenth of each stretch
is the test set, and nothing is random. Use it only to compare with the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl import unpacking
from rhfedmtl.data import cache
from rhfedmtl.data.federation import Federation, Origin, Source
from rhfedmtl.errors import ConfigError, DataError

CLASSES = ("clutter", "mine")
AUTHORS_ROWS = 1464
CELLS = (("feature", "label"), ("X", "Y"), ("x", "y"))
LICENCE = "not stated by its authors"
CITATION = (
    "Y. Xue, X. Liao, L. Carin, B. Krishnapuram: Multi-Task Learning for Classification with Dirichlet Process "
    "Priors. Journal of Machine Learning Research 8, 2007"
)


@dataclass(frozen=True)
class Recut:
    """The cut of the paper's code: number of tasks, terminals per task, and share of test rows."""

    tasks: int = 5
    terminals: int = 5
    test_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.terminals < 1 or not 0 <= self.test_fraction < 1:
            raise ConfigError(f"{self} cannot work: at least one task and terminal, test_fraction in [0, 1)")


def load(path: Path | None = None) -> Source:
    """Load the source from ``LandmineData.mat`` (cells ``feature``, ``label``) or an ``.npz`` with ``X, y, task``."""
    path = path or cache.find(["landmine.npz", "LandmineData.mat"])
    if path is None:
        raise DataError("landmine has no official download: give --path LandmineData.mat or an .npz with X, y, task")
    X, y, task = _read(cache.existing(path))
    order = np.argsort(task, kind="stable")
    codes, task = np.unique(task[order], return_inverse=True)
    return Source(
        X=X[order],
        y=y[order],
        task=task,
        task_names=tuple(f"field-{number + 1}" for number in range(len(codes))),
        class_names=CLASSES,
        feature_names=tuple(f"radar-{j + 1}" for j in range(X.shape[1])),
        origin=Origin("landmine", str(path), LICENCE, CITATION),
    )


def load_authors(path: Path | None = None, recut: Recut | None = None) -> Federation:
    """Make the federation of the paper's code from ``small.mat``: join the rows and cut them, without randomness.

    With n rows, a terminal gets s = ⌊n / (tasks · terminals)⌋ and a task the next s · terminals rows; the first
    ⌊s · terminals · (1 − test_fraction) / terminals⌋ · terminals of these are training rows.
    """
    recut = recut or Recut()
    path = path or cache.find(["small.mat"])
    if path is None:
        raise DataError(
            "landmine-authors needs --path small.mat, from the public code of the RHFedMTL paper or of MOCHA"
        )
    X, y, _ = _read(cache.existing(path))
    if len(X) != AUTHORS_ROWS:
        raise DataError(
            f"{path} has {len(X)} rows, the authors' cut has {AUTHORS_ROWS}: use --data landmine for others"
        )
    task_rows = AUTHORS_ROWS // (recut.tasks * recut.terminals) * recut.terminals
    terminal_rows = int(task_rows * (1 - recut.test_fraction) / recut.terminals)
    if terminal_rows < 1:
        raise ConfigError(f"{AUTHORS_ROWS} rows are too few for {recut.tasks} × {recut.terminals} terminals")
    place = np.arange(recut.tasks * task_rows) % task_rows
    train = np.flatnonzero(place < terminal_rows * recut.terminals)
    test = np.flatnonzero(place >= terminal_rows * recut.terminals)
    return Federation(
        X=X[train],
        y=y[train],
        terminal_offsets=np.arange(recut.tasks * recut.terminals + 1) * terminal_rows,
        task_offsets=np.arange(recut.tasks + 1) * recut.terminals,
        test_X=X[test],
        test_y=y[test],
        test_offsets=np.arange(recut.tasks + 1) * (len(test) // recut.tasks),
        task_names=tuple(f"stretch-{b + 1}" for b in range(recut.tasks)),
        class_names=CLASSES,
        feature_names=tuple(f"radar-{j + 1}" for j in range(X.shape[1])),
        origin=Origin("landmine-authors", str(path), "Apache-2.0 (code of MOCHA)", CITATION),
    )


def _read(path: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int16], npt.NDArray[Any]]:
    """Return rows, labels 0/1 and task codes, in the order of the file."""
    X, y, task = _read_npz(path) if path.suffix == ".npz" else _read_mat(path)
    if len(X) != len(y) or len(X) != len(task):
        raise DataError(f"{path}: {len(X)} rows, {len(y)} labels and {len(task)} task codes must be as many")
    values = np.unique(y)
    if not (set(values) <= {0, 1} or set(values) <= {-1, 1}):
        raise DataError(f"{path}: labels must be 0 and 1, or -1 and 1, got {values[:5]}")
    return X, (y > 0).astype(np.int16), task


def _read_npz(path: Path) -> tuple[Any, Any, Any]:
    try:
        arrays = unpacking.read_npz(path, ("X", "y", "task"))
        return arrays["X"], arrays["y"], arrays["task"]
    except DataError:
        raise
    except unpacking.READING as error:
        reason = unpacking.why(error)
        raise DataError(f"{path} cannot be read as an .npz with the arrays X, y and task ({reason})") from error


def _read_mat(path: Path) -> tuple[Any, Any, Any]:
    from scipy.io import loadmat

    try:
        unpacking.check_mat(path)
        file = loadmat(path)
    except DataError:
        raise
    except (OSError, ValueError, NotImplementedError, TypeError) as error:
        raise DataError(f"{path} cannot be read as a .mat of MATLAB 5 to 7.2 ({error})") from error
    names = next((pair for pair in CELLS if pair[0] in file and pair[1] in file), None)
    if names is None or file[names[0]].dtype != object:
        raise DataError(f"{path} must hold cells of rows and labels, named feature and label, or X and Y")
    rows, labels = (list(file[name].ravel()) for name in names)
    task = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    try:
        return np.concatenate(rows).astype(np.float64), np.concatenate([np.ravel(part) for part in labels]), task
    except ValueError as error:
        raise DataError(f"{path}: the cells of {names[0]} do not all have the same columns ({error})") from error
