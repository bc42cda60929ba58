"""Choose λ1 and λ2 by validation on training rows.

Runs without a budget use this search; `weights` chooses them within a budget.

The search solves a path of problems on every fold, from strong to weak weights, each from the previous solution. First
it tries every λ2, then λ1 at the best λ2, down and up while the score improves, then again the neighbours of the best
λ2.

The score of a task is its loss on held-out rows divided by the loss of its zero model there: 1 means nothing learned.
(The zero model of a regression task predicts the mean of its training labels.) The score of a pair of weights is the
trimmed mean over tasks, because no single task should decide for all. Of weights with equal scores the search takes the
largest, and of λ2 the largest within half a standard error of the best, because held-out rows are few.

By default the search compares the loss. With a few dozen rows per task, accuracy changes in steps of a row, and the
best of many settings is the luckiest. Name a metric if the loss does not follow it (AUC with few positives).

Large data: from `SEARCH_ROWS` rows on, the search draws `SEARCH_ROWS` rows and holds out a fifth of them, in a single
fold. It solves with the weights divided by the share of rows that it drew. The loss is a mean over rows, so a weight
acts like a prior of the same strength only if it shrinks as rows grow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import trim_mean

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.maths.registry import LAMBDA1
from rhfedmtl.maths.relationships import Relationship, Safe
from rhfedmtl.selection.folds import (
    Effort,
    Float64Array,
    Fold,
    Precision,
    Solution,
    default_folds,
    error_share,
    held_out_scores,
    make_folds,
    sample,
    solve,
    task_metric,
    without,
    zero_scores,
)
from rhfedmtl.training.settings import Settings

# λ1 to try, from strong to weak.
# Measured: benchmarks/results/constants.md; ×0.5: −0.09 ± 0.23 points;
# ×2: −0.15 ± 0.59 points.
PATH1 = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
# λ2 to try, from strong to weak.
# Measured: benchmarks/results/constants.md; ×0.5: −0.28 ± 0.33 points;
# ×2: −0.11 ± 0.25 points.
PATH2 = (10.0, 3.0, 1.0, 0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3, 0.0)
# A path ends after this many trials in a row that are worse than the best.
# Measured: benchmarks/results/constants.md; ×0.5: same digits;
# ×2: same digits.
PATIENCE = 2
# Take a larger λ2 if it is behind the best by at most this many standard errors (paired over tasks).
# Measured: benchmarks/results/constants.md; ×0.5: same digits;
# ×2: −0.05 ± 0.07 points.
STANDARD_ERRORS = 0.5
# A mean over tasks leaves out this share of the tasks at each end.
# Measured: benchmarks/results/constants.md; ×0.5: −0.05 ± 0.06 points;
# ×2: +0.04 ± 0.27 points.
TRIM = 0.1
# A choice of weights uses about this many rows of larger data: of all rows on folds, of those held out in a run.
# Measured: benchmarks/results/constants.md; ×0.5: +0.02 ± 0.05 points;
# ×2: +0.02 ± 0.05 points.
SEARCH_ROWS = 20_000


class Trial(NamedTuple):
    """A pair of weights with the metric of every task, the scores and the share of wrong classes on held-out rows."""

    lambda1: float
    lambda2: float
    tasks: Float64Array
    scores: Float64Array
    errors: float
    effort: Effort

    @property
    def score(self) -> float:
        """Trimmed mean of the metric over tasks."""
        return float(trim_mean(self.tasks[np.isfinite(self.tasks)], TRIM))


@dataclass(frozen=True, eq=False)
class Choice:
    """Chosen weights, all trials in order with their cost, and the held-out loss of every task's zero model."""

    lambda1: float
    lambda2: float
    metric: str
    trials: tuple[Trial, ...]
    zero: Float64Array

    def __repr__(self) -> str:
        """Return a short text without the metrics of single tasks."""
        weights = f"lambda1={self.lambda1:g}, lambda2={self.lambda2:g}"
        return f"<Choice {weights}: the best {self.metric} of {len(self.trials)} trials{self.edge}>"

    @property
    def edge(self) -> str:
        """A warning if λ2 is the largest or the smallest value of the search; else an empty text."""
        tried = {trial.lambda2 for trial in self.trials}
        if len(tried) < 2 or min(tried) < self.lambda2 < max(tried):
            return ""
        if self.lambda2 == 0.0:
            return "; tasks learn best without each other"
        end, direction = ("largest", "larger") if self.lambda2 == max(tried) else ("smallest", "smaller")
        return f"; lambda2 is the {end} that was tried, a {direction} value may be better"

    @property
    def effort(self) -> Effort:
        """Work of all trials."""
        return sum((trial.effort for trial in self.trials), Effort())

    @property
    def best(self) -> Trial:
        """The trial of the chosen weights."""
        return next(t for t in self.trials if (t.lambda1, t.lambda2) == (self.lambda1, self.lambda2))


def choose(
    federation: Federation,
    method: DualMethod,
    *,
    folds: int | None = None,
    metric: str = "loss",
    lambda1: Sequence[float] = PATH1,
    lambda2: Sequence[float] = PATH2,
    precision: Precision | None = None,
    settings: Settings | None = None,
    judged: Federation | None = None,
) -> Choice:
    """Choose λ1 and λ2 for the relationship of ``method`` by validation on training rows.

    Parameters
    ----------
    federation, method
        Training rows and the problem.
    folds
        Number of folds (None: `default_folds`, or a single fold of a sample if there are many rows).
    metric
        The loss, or the name of a metric.
    lambda1, lambda2
        Values to try, from strong to weak.
    precision, settings
        Tolerance and settings of the solutions.
    judged
        A federation with the same training rows in other tasks; the metric is measured for these tasks. A method with
        a single model for all tasks needs it.
    """
    path = _path(federation, method, folds, metric, judged, precision, settings or Settings())
    if method.relationship.coupling(federation.n_tasks) > 0.0:
        start = min(range(len(lambda1)), key=lambda k: abs(np.log(lambda1[k] / LAMBDA1)))
        path.leg([(lambda1[start], value) for value in lambda2], patience=len(lambda2))
        for side in (lambda1[start + 1 :], lambda1[:start][::-1]):
            path.leg([(value, path.best().lambda2) for value in side])
        best = path.best()
        near = lambda2.index(best.lambda2)
        path.leg([(best.lambda1, value) for value in lambda2[max(near - 1, 0) : near + 2]])
    else:
        path.leg([(value, 0.0) for value in lambda1])
    best = path.most_coupled()
    return Choice(best.lambda1, best.lambda2, metric, tuple(path.trials), path.zero)


def lambda1_path(
    federation: Federation,
    method: DualMethod,
    *,
    weights: Mapping[str, float],
    settings: Settings,
    judged: Federation | None = None,
) -> Choice:
    """Return the best λ1 for this λ2. A λ1 that is not the default is the only one to try.

    It uses as many of the folds as hold out about as many rows as the single fold of large data.
    """
    values, lambda2 = PATH1 if weights["lambda1"] == LAMBDA1 else (weights["lambda1"],), weights["lambda2"]
    limit = math.ceil(SEARCH_ROWS / len(federation.X))
    path = _path(federation, method, None, "loss", judged, None, settings, limit)
    start = min(range(len(values)), key=lambda k: abs(np.log(values[k] / LAMBDA1)))
    path.leg([(values[start], lambda2)])
    for side in (values[start + 1 :], values[:start][::-1]):
        path.leg([(value, lambda2) for value in side])
    best = path.best()
    return Choice(best.lambda1, best.lambda2, "loss", tuple(path.trials), path.zero)


def _path(
    federation: Federation,
    method: DualMethod,
    folds: int | None,
    metric: str,
    judged: Federation | None,
    precision: Precision | None,
    settings: Settings,
    limit: int | None = None,
) -> _Path:
    """Return a path without trials; ``limit`` is the number of folds that are used."""
    large, share = len(federation.X) >= SEARCH_ROWS, 1.0
    if large:
        drawn = sample(federation, SEARCH_ROWS, settings.seed)
        share = float(np.mean(np.bincount(federation.row_task[drawn]) / np.bincount(federation.row_task)))
        federation, judged = without(federation, ~drawn), None if judged is None else without(judged, ~drawn)
    limit = 1 if large and not folds else limit
    parts = make_folds(federation, folds or default_folds(federation), settings.seed, limit)
    return _Path(federation, parts, method, metric, judged or federation, precision, settings, share)


def weighted(relationship: Relationship, lambda1: float, lambda2: float) -> Relationship:
    """Return the relationship with these weights; learned similarities do not change."""
    if isinstance(relationship, Safe):
        return Safe(weighted(relationship.inner, lambda1, lambda2))
    weights = {"lambda1": lambda1, "lambda2": lambda2}
    return replace(relationship, **{name: x for name, x in weights.items() if hasattr(relationship, name)})  # type: ignore[type-var]


@dataclass
class _Path:
    """Trials so far, and the last solution on every fold, from which the next trial starts."""

    federation: Federation
    folds: list[Fold]
    method: DualMethod
    metric: str
    judged: Federation
    precision: Precision | None
    settings: Settings
    share: float
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.zero = self._zero_loss()
        self._last: list[Solution | None] = [None] * len(self.folds)

    def leg(self, weights: Sequence[tuple[float, float]], patience: int = PATIENCE) -> None:
        """Try these weights in order, until ``patience`` in a row are worse than the best; skip repeated weights."""
        tried, worse = {(trial.lambda1, trial.lambda2) for trial in self.trials}, 0
        for pair in weights:
            if worse < patience and pair not in tried:
                self.trials.append(self._try(*pair))
                worse = 0 if self.best() is self.trials[-1] else worse + 1

    @property
    def _sign(self) -> float:
        return -1.0 if self.metric in ("loss", "rmse") else 1.0

    def best(self) -> Trial:
        """Return the trial with the best score; of equal scores, the trial with the largest weights."""
        return max(self.trials, key=lambda trial: (round(self._sign * trial.score, 12), trial.lambda1, trial.lambda2))

    def most_coupled(self) -> Trial:
        """Return the trial with the largest λ2 that is not significantly worse than the best."""
        best = self.best()
        return max(
            (trial for trial in self.trials if trial.lambda1 == best.lambda1 and self._is_level(trial, best)),
            key=lambda trial: trial.lambda2,
        )

    def _is_level(self, trial: Trial, best: Trial) -> bool:
        behind = self._sign * (best.tasks - trial.tasks)
        behind = behind[np.isfinite(behind)]
        return trial is best or bool(trim_mean(behind, TRIM) <= STANDARD_ERRORS * trimmed_error(behind))

    def _try(self, lambda1: float, lambda2: float) -> Trial:
        held_out = np.full((len(self.federation.X), self.federation.targets().shape[1]), np.nan)
        effort = Effort()
        for k, fold in enumerate(self.folds):
            last = self._last[k]
            learned = self.method.relationship if last is None else last.relationship
            method = replace(self.method, relationship=weighted(learned, lambda1 / self.share, lambda2 / self.share))
            solution = solve(fold.federation, method, self.precision, last, self.settings)
            held_out_scores(self.federation, fold, solution, held_out)
            self._last[k], effort = solution, effort + solution.effort
        tasks = task_metric(self.judged, held_out, self.metric, self.method.loss)
        tasks = tasks / self.zero if self.metric == "loss" else tasks
        errors = error_share(held_out, self.federation.y, len(self.federation.class_names))
        return Trial(lambda1, lambda2, tasks, held_out, errors, effort)

    def _zero_loss(self) -> Float64Array:
        """Return the loss of every task's zero model on its held-out rows."""
        scores = np.full((len(self.federation.X), self.federation.targets().shape[1]), np.nan)
        for fold in self.folds:
            zero_scores(self.federation, fold, scores)
        loss = task_metric(self.judged, scores, "loss", self.method.loss)
        return np.where(loss > 0.0, loss, np.nan)


def trimmed_error(values: Float64Array, share: float = TRIM) -> float:
    """Return the standard error of a trimmed mean, by the winsorized variance (Yuen 1974)."""
    count, cut = len(values), int(share * len(values))
    winsorized = np.pad(np.sort(values)[cut : count - cut], cut, mode="edge")
    return float(np.std(winsorized, ddof=1) / ((1.0 - 2.0 * cut / count) * np.sqrt(count))) if count > 1 else 0.0
