"""Turn scores into probabilities: a logistic curve per task, shrunk to a common curve.

A curve has a slope a ≥ 0 and an offset b for each class. The probabilities are softmax(a z + b); for two classes this
is Platt's curve σ(a z + b). The curves are fitted to scores of held-out rows. The scores of two classes may first pass
a bend, a rising piecewise linear function that all tasks share: a hinge loss pushes most scores to ±1, where a logistic
curve is not steep enough.

A task with few rows cannot determine its own curve. So the curve θ_t = (a_t, b_t) of a task has the prior
θ_t ~ N(common curve, spread²), with a spread for slopes and a spread for offsets. `fit_curves` estimates the common
curve and both spreads from all tasks (empirical Bayes, by EM with a Laplace approximation). Tasks that differ keep
curves of their own, tasks that do not differ share the common curve, and no strength of the shrinkage is tuned.

Offsets can move the largest probability to another class than the largest score. So curves have offsets only if they
fit better, by the conditional AIC (Vaida and Blanchard 2005); ``class_weight`` and rare classes need them. The same
criterion chooses the number of knots of the bend: 0, 1, 3, 7 and so on, at equally spaced quantiles.

The fit only needs quantiles of the scores, and sums over the held-out rows of a task: the log loss, its gradient and
its Hessian.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CONVERGED = 1e-3
"""EM ends if no spread or common parameter changes by more than this. Scores have root mean square 1 here."""
MOST_STEPS = 100
"""Most steps of EM, and of Newton's method. They bound the time; fewer steps are the rule."""
LEAST_SPREAD = 1e-4
"""Tasks with a smaller spread share a curve; the prior stays finite."""


@dataclass(frozen=True, eq=False)
class ProbabilityCurves:
    """Curves of the tasks, and last the common curve: a slope, then the offset of every score column.

    ``rows`` counts the rows of each task that the curves were fitted to, ``words`` says which rows these are. ``bend``
    has the start of each piece of the bend, −∞ first, and its slope. It is empty if scores are used unchanged.
    """

    curves: Float64Array
    rows: IntArray
    words: str
    bend: Float64Array = field(default_factory=lambda: np.empty((2, 0)))

    def probabilities(self, scores: Float64Array, task: IntArray) -> Float64Array:
        """Return class probabilities; ``task`` is the index of each row's task, −1 for the common curve."""
        from scipy.special import expit, softmax

        curve = self.curves[task]
        logits = curve[:, :1] * bent(scores, self.bend) + curve[:, 1:]
        if scores.shape[1] > 1:
            return np.asarray(softmax(logits, axis=1))
        return np.hstack([expit(-logits), expit(logits)])

    def with_new_task(self) -> ProbabilityCurves:
        """Return the curves with the common curve for a further task, which is the last."""
        return ProbabilityCurves(
            np.insert(self.curves, -1, self.curves[-1], axis=0), np.append(self.rows, 0), self.words
        )

    def only(self, b: int) -> ProbabilityCurves:
        """Return the curve of a task, or for −1 the common curve, as curves of a single task."""
        rows = self.rows[b : b + 1] if b >= 0 else self.rows.sum(keepdims=True)
        return ProbabilityCurves(self.curves[[b, -1]], rows, self.words, self.bend)


def bent(scores: Float64Array, bend: Float64Array) -> Float64Array:
    """Return the scores after the bend: the sum over pieces of slope times the part of the score in the piece."""
    if bend.shape[1] == 0:
        return scores
    return np.asarray(_parts(scores[:, 0], bend[0]) @ bend[1])[:, None]


def pieces(starts: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return start and end of the pieces of a bend, and the score at which the part in a piece is 0."""
    return starts, np.r_[starts[1:], np.inf], np.r_[starts[1], starts[1:]]


def _parts(scores: Float64Array, starts: Float64Array) -> Float64Array:
    """Return the part of each score in each piece; in the first piece it is negative."""
    start, end, zero = pieces(starts)
    return np.clip(scores[:, None], start, end) - zero


class _Rows(NamedTuple):
    """Scores and target probabilities (class × row), weights and tasks of rows; the first axis keeps sums fast."""

    scores: Float64Array
    targets: Float64Array
    weight: Float64Array
    task: IntArray
    n_tasks: int

    def pooled(self) -> _Rows:
        """Return the rows as those of a single task."""
        return self._replace(task=np.zeros_like(self.task), n_tasks=1)

    def loss(self, curves: Float64Array) -> Float64Array:
        """Return the log loss of every task under its curve."""
        logits, norm = self._logits(curves)
        return self._by_task(norm - np.sum(self.targets * logits, axis=0))

    def slopes(self, curves: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return gradient and Hessian of the log loss of every task."""
        logits, norm = self._logits(curves)
        odds = np.exp(logits - norm)
        width = len(odds) + 1
        gradient, hessian = np.empty((self.n_tasks, width)), np.empty((self.n_tasks, width, width))
        difference = odds - self.targets
        mixed = odds * (self.scores - np.sum(odds * self.scores, axis=0))
        gradient[:, 0] = self._by_task(np.sum(difference * self.scores, axis=0))
        hessian[:, 0, 0] = self._by_task(np.sum(mixed * self.scores, axis=0))
        for i in range(1, width):
            gradient[:, i] = self._by_task(difference[i - 1])
            hessian[:, 0, i] = hessian[:, i, 0] = self._by_task(mixed[i - 1])
            for j in range(1, i + 1):
                product = odds[i - 1] * ((i == j) - odds[j - 1])
                hessian[:, i, j] = hessian[:, j, i] = self._by_task(product)
        return gradient, hessian

    def _by_task(self, values: Float64Array) -> Float64Array:
        """Return the weighted sum over the rows of each task."""
        return np.asarray(np.bincount(self.task, self.weight * values, minlength=self.n_tasks), dtype=np.float64)

    def _logits(self, curves: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the logits, and the logarithm of the sum of their exponentials over the classes."""
        logits = curves.T[:1, self.task] * self.scores + curves.T[1:, self.task]
        top = logits.max(axis=0)
        return logits, top + np.log(np.exp(logits - top).sum(axis=0))


def fit_curves(
    scores: Float64Array,
    codes: npt.NDArray[Any],
    task: IntArray,
    n_tasks: int,
    n_classes: int,
    words: str,
    weight: Float64Array | None = None,
) -> ProbabilityCurves:
    """Fit a curve for every task to scores of held-out rows (row, column).

    Parameters
    ----------
    scores, codes, task
        Scores, class codes and tasks of the rows. Of two classes, the only column is the score of the second.
    n_tasks, n_classes
        Numbers of tasks and classes. A task without rows gets the common curve.
    words
        Description of the rows.
    weight
        Weights of the rows; by default, they are equal.
    """
    codes = codes.astype(np.int64)
    weight = np.ones(len(task)) if weight is None else weight / weight.mean()
    targets = _targets(codes, n_classes, weight)
    counts = np.bincount(task, minlength=n_tasks)

    def fit(scores: Float64Array, *, offsets: bool) -> _Fit:
        both = np.hstack([-scores / 2.0, scores / 2.0]) if scores.shape[1] == 1 else scores
        unit = float(np.sqrt(np.mean(np.square(both)))) or 1.0
        curves, aic = _fit(_Rows(both.T.copy() / unit, targets.T.copy(), weight, task, n_tasks), offsets=offsets)
        curves[:, 0] /= unit
        return _Fit(
            curves if scores.shape[1] > 1 else np.column_stack([curves[:, 0], curves[:, 2] - curves[:, 1]]), aic
        )

    # 1. Logistic curves, with offsets if they fit better.
    best = min((fit(scores, offsets=offsets) for offsets in (False, True)), key=lambda fitted: fitted.aic)
    bend = np.empty((2, 0))
    # 2. Bends with 1, 3, 7 … knots, while they fit better.
    knots = 1
    while scores.shape[1] == 1 and knots < len(scores):
        candidate = _bend(scores[:, 0], targets[:, 1], weight, knots)
        if candidate is None:
            break
        curves, aic = fit(bent(scores, candidate), offsets=True)
        if not (aic := aic + 2.0 * (candidate.shape[1] - 1)) < best.aic:
            break
        best, bend, knots = _Fit(curves, aic), candidate, 2 * knots + 1
    return ProbabilityCurves(best.curves, counts, words, bend)


def _bend(scores: Float64Array, targets: Float64Array, weight: Float64Array, count: int) -> Float64Array | None:
    """Return the bend with the least log loss over all rows: knots at equally spaced quantiles, and slopes ≥ 0."""
    from scipy.optimize import minimize
    from scipy.special import expit

    starts = np.r_[-np.inf, np.unique(np.quantile(scores, np.arange(1, count + 1) / (count + 1)))]
    parts = _parts(scores, starts)
    reach = np.sqrt(np.mean(np.square(parts), axis=0))
    if not (reach > 0.0).all():
        return None
    columns = np.column_stack([parts / reach, np.ones(len(parts))])

    def loss(point: Float64Array) -> tuple[float, Float64Array]:
        logits = columns @ point
        value = weight @ (np.logaddexp(0.0, logits) - targets * logits)
        return float(value) / len(logits), columns.T @ (weight * (expit(logits) - targets)) / len(logits)

    bounds = [(0.0, None)] * len(reach) + [(None, None)]
    fitted = minimize(loss, np.ones(len(bounds)), jac=True, bounds=bounds, method="L-BFGS-B")
    slopes = fitted.x[:-1] / reach
    return np.array([starts, slopes]) if slopes.any() else None


def _targets(codes: IntArray, n_classes: int, weight: Float64Array) -> Float64Array:
    """Return target probabilities of the classes: a class of n rows gets 1 − 1/(n + 2) of its rows (Platt 1999).

    Targets of 0 and 1 would give curves without end if the scores separate the classes.
    """
    rest = 1.0 / (np.bincount(codes, weight, minlength=n_classes) + 2.0)
    targets = np.repeat((rest / (n_classes - 1))[codes][:, None], n_classes, axis=1)
    targets[np.arange(len(codes)), codes] = 1.0 - rest[codes]
    return targets


class _Fit(NamedTuple):
    """Curves of all tasks, with the common curve as the last, and their conditional AIC."""

    curves: Float64Array
    aic: float


def _fit(rows: _Rows, *, offsets: bool) -> _Fit:
    """Fit the curves of all tasks and the common curve by EM; without ``offsets``, all offsets are 0."""
    width, count = len(rows.scores) + 1, rows.n_tasks
    free = np.r_[True, np.full(width - 1, offsets)]
    # 1. Begin with the curve of all rows.
    flat = np.zeros(width)
    common = _newton(rows.pooled(), np.r_[1.0, flat[1:]][None], flat, flat, free)[0][0]
    present = np.bincount(rows.task, minlength=count) > 0
    curves, spread, precision = np.tile(common, (count, 1)), np.ones(2), flat
    hessian = np.zeros((count, width, width))
    for _ in range(MOST_STEPS if present.sum() > 1 else 0):
        # 2. Fit every task with the prior, and measure how uncertain its curve is.
        precision = 1.0 / np.square(np.r_[spread[0], np.full(width - 1, spread[1])])
        curves, hessian = _newton(rows, curves, common, precision, free)
        uncertain = np.diagonal(np.linalg.inv(hessian), axis1=1, axis2=2)[present]
        # 3. Estimate the common curve and the spreads from the tasks.
        last = np.r_[common, spread]
        common = curves[present].mean(axis=0)
        squares = (np.square(curves[present] - common) + uncertain).mean(axis=0)
        spread = np.maximum(np.sqrt([squares[0], squares[1:].mean()]), LEAST_SPREAD)
        if np.abs(np.r_[common, spread] - last).max() <= CONVERGED:
            break
    curves[~present] = common
    # 4. Count parameters: those of the common curve, and of each further task the part that the prior leaves to it.
    parameters = 1.0 + offsets * (width - 2)
    if present.sum() > 1:
        _, fitted = rows.slopes(curves)
        inverse = np.linalg.inv(hessian)[present][:, free][:, :, free]
        own = np.einsum("bij,bji->", inverse, fitted[present][:, free][:, :, free])
        parameters += (1.0 - 1.0 / present.sum()) * float(own)
    return _Fit(np.vstack([curves, common]), 2.0 * (float(rows.loss(curves).sum()) + parameters))


def _newton(
    rows: _Rows,
    start: Float64Array,
    centre: Float64Array,
    precision: Float64Array,
    free: npt.NDArray[np.bool_],
) -> tuple[Float64Array, Float64Array]:
    """Return the curves with the least penalised log loss and slopes of at least 0, and the Hessians there.

    The penalty of a curve θ is Σ precision (θ − centre)² / 2. Parameters that are not ``free`` keep their value.
    """
    curves, width = start.copy(), start.shape[1]
    gauge = np.zeros((width, width))
    gauge[1:, 1:] = 1.0 / (width - 1)  # the loss ignores a number that is added to all offsets

    def penalised(curves: Float64Array) -> Float64Array:
        return rows.loss(curves) + np.square(curves - centre) @ precision / 2.0

    values = penalised(curves)
    for _ in range(MOST_STEPS):
        gradient, hessian = rows.slopes(curves)
        gradient += precision * (curves - centre)
        hessian += np.diag(precision) + gauge
        hessian[:, 0, 0] += 1e-9  # scores that are all 0 leave the slope free
        # 1. Step to the minimum of the parabola. A slope of 0 stays if the loss would fall below it.
        fixed = np.tile(~free, (len(curves), 1))
        fixed[:, 0] |= (curves[:, 0] <= 0.0) & (gradient[:, 0] > 0.0)
        solved = np.where(fixed[:, :, None] | fixed[:, None, :], np.eye(width), hessian)
        step = -np.linalg.solve(solved, np.where(fixed, 0.0, gradient)[:, :, None])[:, :, 0]
        # 2. Halve the step of a task until its loss does not grow.
        size = np.ones(len(curves))
        for _ in range(MOST_STEPS):
            new = curves + size[:, None] * step
            new[:, 0] = np.maximum(new[:, 0], 0.0)
            new_values = penalised(new)
            worse = new_values > values + 1e-12 * np.abs(values)
            if not worse.any():
                break
            size[worse] /= 2.0
        decrement = -np.sum(step * gradient, axis=1)
        curves, values = np.where(worse[:, None], curves, new), np.where(worse, values, new_values)
        if (decrement <= 1e-10 * (1.0 + np.abs(values))).all():
            break
    return curves, hessian
