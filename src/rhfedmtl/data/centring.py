"""Centre the labels of a regression: sums that terminals may share, and the level of every task.

A penalised, coupled intercept costs accuracy if the label means of the tasks lie far apart. In round zero a regression
therefore subtracts a level from the labels of every task; after training the level is added to the intercept. With many
rows the level is the task's own mean, which amounts to an unpenalised intercept. With few rows it shrinks towards the
mean of all tasks. This module has only the arithmetic; the roles send the sums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
LABEL_NUMBERS = 3
"""Length of the message about a set of labels with weights s: Σs, the mean, and Σ s (y − mean)²."""


def label_sums(
    y: Float64Array, weight: Float64Array | None, terminals: npt.ArrayLike, tasks: npt.ArrayLike
) -> Float64Array:
    """Return the sums of every station's labels (station × ``LABEL_NUMBERS``), terminals added in the order of ids."""
    s = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=np.float64)
    starts, ends = np.asarray(terminals)[:-1], np.asarray(terminals)[1:]
    parts = np.zeros((len(starts), LABEL_NUMBERS))
    some = np.flatnonzero(ends > starts)
    if len(some):
        total = np.add.reduceat(s, starts[some])
        mean = np.add.reduceat(s * y, starts[some]) / np.where(total > 0.0, total, 1.0)
        deviation = np.square(y - np.repeat(mean, (ends - starts)[some]))
        parts[some] = np.column_stack([total, mean, np.add.reduceat(s * deviation, starts[some])])
    first = np.asarray(tasks)
    return np.array([combined_label_sums(parts[first[b] : first[b + 1]]) for b in range(len(first) - 1)]).reshape(
        -1, LABEL_NUMBERS
    )


def combined_label_sums(parts: npt.ArrayLike) -> Float64Array:
    """Return the sums over several sets of labels together, added in the order of ``parts``."""
    weight, mean, spread = np.ascontiguousarray(np.asarray(parts, dtype=np.float64).reshape(-1, LABEL_NUMBERS).T)
    total = weight.sum()
    common = float(weight @ mean / total) if total > 0.0 else 0.0
    return np.array([total, common, spread.sum() + weight @ np.square(mean - common)])


def levels(labels: Float64Array) -> Float64Array:
    """Return the level of every task, μ + (m_b − μ) τ²/(τ² + σ²/n_b), from the label sums of all tasks.

    m_b is the task's own mean, σ² the variance of labels within tasks and τ² the variance of the means between tasks
    (both by analysis of variance). μ is the mean of the m_b, weighted by their precision.
    """
    n, mean, spread = labels.T
    tasks, total = len(n), n.sum()
    common = float(n @ mean / total)
    if tasks == 1 or total <= tasks:  # without several tasks and rows, σ² and τ² cannot be separated
        return np.full(tasks, common)
    within = spread.sum() / (total - tasks)
    excess = n @ np.square(mean - common) - (tasks - 1) * within
    between = excess / (total - n @ n / total)
    if not between > 0.0:
        return np.full(tasks, common)
    trust = between / (between + within / n)
    level = trust @ mean / trust.sum()
    return np.asarray(level + trust * (mean - level))


def with_intercepts(models: Float64Array, constant: float, levels: Float64Array | None = None) -> Float64Array:
    """Return models (station, column, feature) whose last number is the intercept itself, including the label level.

    Training learns this number as the weight of a feature that has the value ``constant`` in every row.
    """
    if constant == 1.0 and levels is None:
        return models
    shifted = models.copy()
    shifted[:, :, -1] *= constant
    if levels is not None:
        shifted[:, :, -1] += levels[:, None]
    return shifted


def without_intercepts(models: Float64Array, constant: float, levels: Float64Array | None = None) -> Float64Array:
    """Return the models in the form in which they are learned; the inverse of `with_intercepts`."""
    learned = models.copy()
    if levels is not None:
        learned[:, :, -1] -= levels[:, None]
    if constant != 1.0:
        learned[:, :, -1] /= constant
    return learned
