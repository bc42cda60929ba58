"""Arithmetic of centred labels: sums that terminals may share, and the level of every task made from them.

An intercept that is penalised and coupled like a feature costs accuracy where label means of tasks lie far apart. So
a regression subtracts a level from the labels of every task in round zero, and adds it to the intercepts that come
out. With many rows the level is the task's own mean, and the intercept is as good as unpenalised; with few it is drawn
to that of all tasks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
NUMBERS = 3
"""Numbers that travel of a set of labels, with weights s; they are Σs, mean and Σ s (y − mean)²."""


def label_sums(
    y: Float64Array, weight: Float64Array | None, terminals: npt.ArrayLike, tasks: npt.ArrayLike
) -> Float64Array:
    """Sums of every station's labels, its terminals added in the order of ids (station × ``NUMBERS``)."""
    s = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=np.float64)
    starts, ends = np.asarray(terminals)[:-1], np.asarray(terminals)[1:]
    parts = np.zeros((len(starts), NUMBERS))
    some = np.flatnonzero(ends > starts)
    if len(some):
        total = np.add.reduceat(s, starts[some])
        mean = np.add.reduceat(s * y, starts[some]) / np.where(total > 0.0, total, 1.0)
        away = np.square(y - np.repeat(mean, (ends - starts)[some]))
        parts[some] = np.column_stack([total, mean, np.add.reduceat(s * away, starts[some])])
    first = np.asarray(tasks)
    return np.array([added(parts[first[b] : first[b + 1]]) for b in range(len(first) - 1)]).reshape(-1, NUMBERS)


def added(parts: npt.ArrayLike) -> Float64Array:
    """Sums of several sets of labels together, in the given order."""
    weight, mean, spread = np.ascontiguousarray(np.asarray(parts, dtype=np.float64).reshape(-1, NUMBERS).T)
    total = weight.sum()
    common = float(weight @ mean / total) if total > 0.0 else 0.0
    return np.array([total, common, spread.sum() + weight @ np.square(mean - common)])


def levels(labels: Float64Array) -> Float64Array:
    """Level of every task: μ + (m_b − μ) τ²/(τ² + σ²/n_b), from the label sums of all.

    m_b is the task's own mean, σ² the variance of labels within tasks, τ² that of the means between them (both by
    analysis of variance), and μ the mean of the m_b, weighted by how well each is known.
    """
    n, mean, spread = labels.T
    tasks, total = len(n), n.sum()
    common = float(n @ mean / total)
    if tasks == 1 or total <= tasks:  # nothing to compare with, or nothing that tells σ² from τ²
        return np.full(tasks, common)
    within = spread.sum() / (total - tasks)
    apart = n @ np.square(mean - common) - (tasks - 1) * within
    between = apart / (total - n @ n / total)
    if not between > 0.0:
        return np.full(tasks, common)
    trust = between / (between + within / n)
    level = trust @ mean / trust.sum()
    return np.asarray(level + trust * (mean - level))


def with_intercepts(models: Float64Array, constant: float, levels: Float64Array | None = None) -> Float64Array:
    """Models (station, column, feature) whose last number is the intercept itself, levels of labels included.

    As learned it is the weight of a feature of this constant value.
    """
    if constant == 1.0 and levels is None:
        return models
    given = models.copy()
    given[:, :, -1] *= constant
    if levels is not None:
        given[:, :, -1] += levels[:, None]
    return given


def without_intercepts(models: Float64Array, constant: float, levels: Float64Array | None = None) -> Float64Array:
    """Models as they are learned: undoes `with_intercepts`."""
    learned = models.copy()
    if levels is not None:
        learned[:, :, -1] -= levels[:, None]
    if constant != 1.0:
        learned[:, :, -1] /= constant
    return learned
