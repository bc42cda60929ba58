"""Generate linear tasks of known relatedness, for any number of terminals.

Task ``b`` of cluster ``k`` has the true model  w_b = √ρ c_k + √(1−ρ) e_b  with c_k, e_b ~ N(0, I/d): ``relatedness``
ρ is the correlation of two tasks of a cluster. Rows of terminal ``t`` are  x = m_t + N(0, I)  with
m_t ~ N(0, heterogeneity² I). Labels are the largest score (or its sign), or the score itself plus noise.

Every number comes from a counter-based generator with the key (seed, stream, terminal, row). A terminal generated alone
therefore equals the same terminal of the full federation to the bit, in any order of work. The kernels call only
functions of this file, because numba's cache does not notice edits in other files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from rhfedmtl.data.federation import Federation, FloatArray, Origin, offsets
from rhfedmtl.data.loaders.saved import allocate, save
from rhfedmtl.data.partition import apportion, even
from rhfedmtl.data.threads import share_out
from rhfedmtl.errors import ConfigError, DataError

CENTRE, TASK_PART, SIZE = range(3)  # streams of numpy's generator: a few numbers per task
SHIFT, ROW, TEST, CHOICE, NOISE = (np.uint64(stream) for stream in range(5))  # streams of the compiled one
ORIGIN = Origin("synthetic", "made by rhfedmtl.data.loaders.synthetic", "CC0-1.0 (no rights reserved)")


@dataclass(frozen=True)
class Synthetic:
    """Settings of a generated federation.

    Parameters
    ----------
    tasks, terminals
        Number of tasks, and of terminals under each.
    samples
        Training rows of a terminal, on average.
    test
        Test rows of a task.
        Number of test rows of a task.
    features
        Number of features.
    classes
        Number of classes; 0 makes a regression.
    relatedness
        Correlation of the true models of two tasks of a cluster: 0 for unrelated tasks, 1 for equal models.
    clusters
        Number of groups of related tasks; tasks of different groups are unrelated.
    noise
        Share of labels replaced by another class; for a regression the standard deviation of the noise (scores
        have standard deviation 1).
    heterogeneity
        Standard deviation of the terminals' mean rows, in standard deviations of a feature.
    unequal
        Spread of terminal sizes: standard deviation of their logarithm; 0 gives equal sizes.
    rows
        Training rows of a task, instead of ``samples`` × ``terminals``.
    """

    tasks: int = 5
    terminals: int = 5
    samples: int = 10
    test: int = 200
    features: int = 20
    classes: int = 2
    relatedness: float = 0.8
    clusters: int = 1
    noise: float = 0.05
    heterogeneity: float = 0.3
    unequal: float = 0.3
    rows: int | None = None

    def __post_init__(self) -> None:
        minimum = {"tasks": 1, "terminals": 1, "samples": 1, "test": 0, "features": 1, "classes": 0, "clusters": 1}
        for name, bound in minimum.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"synthetic needs {name} >= {bound}, got {getattr(self, name)}")
        if self.classes == 1:
            raise ConfigError("synthetic needs two or more classes, or classes=0 for a regression")
        if not 0 <= self.relatedness <= 1:
            raise ConfigError(f"relatedness is a correlation in [0, 1], got {self.relatedness}")
        if self.classes and not 0 <= self.noise <= 1:
            raise ConfigError(f"noise is a share of labels in [0, 1], got {self.noise}")
        for name in ("noise", "heterogeneity", "unequal"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.task_rows < self.terminals:
            raise ConfigError(f"{self.task_rows} training rows cannot fill {self.terminals} terminals of a task")

    @property
    def task_rows(self) -> int:
        """Training rows of every task."""
        return self.samples * self.terminals if self.rows is None else self.rows


def make(settings: Synthetic | None = None, seed: int = 0, folder: Path | None = None) -> Federation:
    """Generate the federation of all terminals; with ``folder``, its rows are memory-mapped files in that folder."""
    settings = settings or Synthetic()
    if seed < 0:
        raise ConfigError(f"a seed must not be negative, got {seed}")
    if settings.unequal == 0:
        sizes = np.tile(even(settings.task_rows, settings.terminals), settings.tasks)
    else:
        sizes = np.concatenate([task_sizes(settings, seed, b) for b in range(settings.tasks)])
    terminal_offsets = offsets(sizes)
    train = _allocate(folder, "X", "y", settings.tasks * settings.task_rows, settings)
    test = _allocate(folder, "test_X", "test_y", settings.tasks * settings.test, settings)
    models = task_models(settings, seed, range(settings.tasks))
    controls = _controls(settings, seed, models)
    share_out(
        lambda first, last: _terminals(first, last, terminal_offsets, *controls, *train),
        settings.tasks * settings.terminals,
        train[0].size,
    )
    share_out(lambda first, last: _tests(first, last, settings.test, *controls, *test), settings.tasks, test[0].size)
    return Federation(
        *train,
        terminal_offsets,
        np.arange(settings.tasks + 1) * settings.terminals,
        *test,
        np.arange(settings.tasks + 1) * settings.test,
        tuple(f"task-{b}" for b in range(settings.tasks)),
        class_names=tuple(f"class-{c}" for c in range(settings.classes)),
        feature_names=tuple(f"x{j}" for j in range(settings.features)),
        origin=ORIGIN,
    )


def load(path: Path | None = None, settings: Synthetic | None = None, seed: int = 0) -> Federation:
    """Generate the federation with these settings; ``path`` is a folder for its rows."""
    if path is not None and path.is_file():
        raise DataError(f"{path} is a file, and synthetic data is made in a folder; for a table use --data table")
    federation = make(settings, seed, path)
    if path is not None:
        save(federation, path)
    return federation


def terminal_rows(settings: Synthetic, seed: int, terminal: int) -> tuple[FloatArray, npt.NDArray[Any]]:
    """Generate the rows and labels of a single terminal (numbered through all tasks)."""
    task = terminal // settings.terminals
    n = int(task_sizes(settings, seed, task)[terminal % settings.terminals])
    X, y = _allocate(None, "X", "y", n, settings)
    models = np.zeros((task + 1, max(1, settings.classes if settings.classes != 2 else 1), settings.features))
    models[task] = task_models(settings, seed, [task])[0]
    offsets = np.zeros(terminal + 2, dtype=np.int64)
    offsets[-1] = n
    _terminals(terminal, terminal + 1, offsets, *_controls(settings, seed, models), X, y)
    return X, y


def _controls(
    settings: Synthetic, seed: int, models: FloatArray
) -> tuple[np.uint64, int, FloatArray, float, float, int]:
    """Return the arguments of compiled code; an integer noise share would trigger another compilation."""
    noise, heterogeneity = float(settings.noise), float(settings.heterogeneity)
    return np.uint64(seed), settings.terminals, models, noise, heterogeneity, settings.classes


def task_sizes(settings: Synthetic, seed: int, task: int) -> npt.NDArray[np.int64]:
    """Return the number of training rows of every terminal of a task."""
    if settings.unequal == 0:
        return even(settings.task_rows, settings.terminals)
    rng = np.random.default_rng([seed, SIZE, task])
    weights = rng.lognormal(sigma=settings.unequal, size=settings.terminals)
    return 1 + apportion(settings.task_rows - settings.terminals, weights)


def task_models(settings: Synthetic, seed: int, tasks: Any) -> npt.NDArray[np.float64]:
    """Return the true models, tasks × columns × features: a single column for two classes or a regression."""
    columns = settings.classes if settings.classes > 2 else 1
    shape = (columns, settings.features)
    centres = [np.random.default_rng([seed, CENTRE, k]).normal(size=shape) for k in range(settings.clusters)]
    task_parts = [np.random.default_rng([seed, TASK_PART, b]).normal(size=shape) for b in tasks]
    cluster_weight, task_weight = np.sqrt(settings.relatedness), np.sqrt(1 - settings.relatedness)
    parts = zip(tasks, task_parts, strict=True)
    models = [cluster_weight * centres[b % settings.clusters] + task_weight * e for b, e in parts]
    return np.asarray(np.stack(models) / np.sqrt(settings.features))


def _allocate(folder: Path | None, rows: str, labels: str, n: int, settings: Synthetic) -> tuple[Any, Any]:
    label = np.int16 if settings.classes else np.float64
    return allocate(folder, rows, (n, settings.features), np.float32), allocate(folder, labels, (n,), label)


@njit(cache=True, nogil=True)
def _mix(x: Any) -> Any:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood 2014): each bit of ``x`` changes half of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def _key(seed: Any, stream: Any, index: Any) -> Any:
    """Return the address of a sequence of random numbers."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return _mix(_mix(_mix(seed + golden) + stream * golden) + np.uint64(index) * golden)


@njit(cache=True, nogil=True)
def _uniform(key: Any, counter: Any) -> Any:
    """Return number ``counter`` of the sequence ``key``, uniform in (0, 1]."""
    bits = _mix(key + (np.uint64(counter) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return (np.float64(bits >> np.uint64(11)) + 1.0) * 2.0**-53


@njit(cache=True, nogil=True)
def _normals(key: Any, scale: float, out: Any) -> None:
    """Add ``scale`` times standard normal numbers to ``out``, in pairs (Box and Muller 1958)."""
    for j in range(0, len(out), 2):
        radius = scale * np.sqrt(-2.0 * np.log(_uniform(key, j)))
        angle = 2.0 * np.pi * _uniform(key, j + 1)
        out[j] += radius * np.cos(angle)
        if j + 1 < len(out):
            out[j + 1] += radius * np.sin(angle)


@njit(cache=True, nogil=True)
def _copy(source: Any, out: Any) -> None:
    """Copy a row; assigning a slice would take seconds to compile, to handle errors that cannot occur."""
    for j in range(len(out)):
        out[j] = source[j]


@njit(cache=True, nogil=True)
def _label(row: Any, model: Any, noise: float, classes: int, key: Any) -> float:
    """Return the class with the largest score (two classes: its sign), replaced at random; or score plus noise."""
    best, best_score = 0, -np.inf
    for c in range(model.shape[0]):
        score = 0.0
        for j in range(len(row)):
            score += row[j] * model[c, j]
        if score > best_score:
            best, best_score = c, score
    if classes == 0:
        normal = np.zeros(1)
        _normals(key, noise, normal)
        return best_score + normal[0]  # type: ignore[no-any-return]
    if classes == 2:
        best = 1 if best_score > 0 else 0
    if _uniform(key, 0) <= noise:
        alternative = min(classes - 2, int(_uniform(key, 1) * (classes - 1)))
        best = alternative if alternative < best else alternative + 1
    return best


@njit(cache=True, nogil=True)
def _terminals(
    first: int,
    last: int,
    offsets: Any,
    seed: Any,
    per_task: int,
    models: Any,
    noise: float,
    heterogeneity: float,
    classes: int,
    X: Any,
    y: Any,
) -> None:
    """Write the training rows of the terminals ``first:last``."""
    shift, row = np.empty(X.shape[1]), np.empty(X.shape[1])
    for t in range(first, last):
        shift[:] = 0.0
        _normals(_key(seed, SHIFT, t), heterogeneity, shift)
        rows_key, noise_key = _key(seed, ROW, t), _key(seed, NOISE, t)
        for i in range(offsets[t], offsets[t + 1]):
            local = np.uint64(i - offsets[t])
            _copy(shift, row)
            _normals(_key(rows_key, ROW, local), 1.0, row)
            _copy(row, X[i])
            y[i] = _label(row, models[t // per_task], noise, classes, _key(noise_key, ROW, local))


@njit(cache=True, nogil=True)
def _tests(
    first: int,
    last: int,
    size: int,
    seed: Any,
    per_task: int,
    models: Any,
    noise: float,
    heterogeneity: float,
    classes: int,
    X: Any,
    y: Any,
) -> None:
    """Write the test rows of the tasks ``first:last``; each row comes from a random terminal of the task."""
    row = np.empty(X.shape[1])
    for b in range(first, last):
        rows_key, noise_key, choice_key = _key(seed, TEST, b), _key(seed, NOISE, ~np.uint64(b)), _key(seed, CHOICE, b)
        for i in range(size):
            terminal = b * per_task + min(per_task - 1, int(_uniform(choice_key, i) * per_task))
            row[:] = 0.0
            _normals(_key(seed, SHIFT, terminal), heterogeneity, row)
            _normals(_key(rows_key, ROW, i), 1.0, row)
            _copy(row, X[b * size + i])
            y[b * size + i] = _label(row, models[b], noise, classes, _key(noise_key, ROW, i))
