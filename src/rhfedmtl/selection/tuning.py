"""Tune the settings of a method fairly: every method gets the same number of trials, on training rows only.

`--tune` and the study commands use this module. Each candidate of a method's grid runs with the same prices, budget and
faults as the run that it is tuned for, and is judged by cross-validation. Validation rows are few, so their metrics are
noisy. Therefore the metric of a candidate is averaged with its neighbours in the grid, and the AUC counts next to the
accuracy. The run then trains the best candidate on all training rows. The trials are recorded but not charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import build
from rhfedmtl.algorithms.registry import ALGORITHMS, Grid, is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.plain import INLINE
from rhfedmtl.selection.folds import DRAW, hold_out
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import mean

Vector = npt.NDArray[np.float64]

# Candidates of every method that has anything to tune.
# Measured: benchmarks/results/constants.md; ×0.5: −0.18 ± 0.53 points;
# ×2: same digits.
TRIALS = 24
NEVER_CERTIFY = 10**9
# Weight of a neighbour in the grid, relative to a candidate's own metric.
# Measured: benchmarks/results/constants.md; ×0.5: −0.07 ± 0.61 points;
# ×2: same digits.
NEIGHBOUR_WEIGHT = 0.5
# Weight of the AUC, relative to a metric of predicted classes: a few rows move that metric in steps.
# Measured: benchmarks/results/constants.md; ×0.5: +0.12 ± 0.26 points;
# ×2: +0.04 ± 0.09 points.
AUC_WEIGHT = 0.5
# A certificate is informative below this relative gap. With all rows the gap is a little larger than in a trial.
# Measured: benchmarks/results/constants.md; ×0.5: +0.12 ± 0.26 points;
# ×2: same digits.
INFORMATIVE_GAP = 0.4
# Prefer an informative certificate if it costs at most this share of the metric: validation rows are few.
# Measured: benchmarks/results/constants.md; ×0.5: same digits;
# ×2: +0.00 ± 0.01 points.
METRIC_TOLERANCE = 0.003


@dataclass(frozen=True)
class Candidate:
    """Settings of a trial, and their metrics on the validation rows or the reason of their failure (``failed``).

    ``tells`` is False if the certificates are loose at this budget. Such settings must be clearly better to be chosen.
    """

    settings: dict[str, Any]
    metrics: Annotated[dict[str, float], INLINE]
    failed: str | None = None
    tells: bool = True


@dataclass(frozen=True)
class TuningRecord:
    """Record of a choice of settings: the metric, the candidates, and the parts of the training rows."""

    chosen: dict[str, Any]
    metric: str
    value: float
    trials: int
    tried: list[Candidate]
    folds: int
    parts: int
    seed: int
    charged: bool = False


class Tuned(NamedTuple):
    """The run with the chosen settings, and the record of the choice."""

    config: RunConfig
    record: TuningRecord


@dataclass(frozen=True)
class Validation:
    """Validation of candidates: hold out ``parts`` of ``folds`` parts of the training rows (0: all) in turn.

    ``metric`` is by default the balanced accuracy, or for a regression the error (RMSE). Ties go to the first
    candidate.
    """

    folds: int = 4
    parts: int = 0
    metric: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a number of parts that exceeds the folds."""
        if self.folds < 2 or not 0 <= self.parts <= self.folds:
            raise ConfigError(f"of {self.folds} parts (2 or more) {self.parts} cannot be held out in turn")


def tuned(
    config: RunConfig, federation: Federation, *, threads: int | None = None
) -> tuple[RunConfig, TuningRecord | None]:
    """Return the run with tuned settings and the record, or the unchanged run and None if it asks for no tuning."""
    if not config.tune:
        return config, None
    metric = None if config.tune == "auto" else config.tune
    return tune(config, federation, validation=Validation(metric=metric, seed=config.seed), threads=threads)


def tune(
    config: RunConfig,
    federation: Federation,
    *,
    grid: Grid | None = None,
    trials: int = TRIALS,
    validation: Validation | None = None,
    threads: int | None = None,
) -> Tuned:
    """Choose the settings of ``config`` from the grid of its algorithm, without test rows.

    Candidates that diverge or exceed the budget lose. If the grid has more candidates than ``trials``, a random sample
    of them is tried.
    """
    validation = validation or Validation(seed=config.seed)
    parts = range(validation.parts or validation.folds)
    splits = [hold_out(federation, validation.folds, part, validation.seed) for part in parts]
    metric = validation.metric or ("balanced_accuracy" if federation.class_names else "rmse")
    settings_to_try = candidates(config, federation, grid, trials, validation.seed)
    tried = [_judge(config, settings, splits, metric, threads) for settings in settings_to_try]
    best = best_of(tried, metric)
    if best.failed is not None:
        raise ConfigError(f"all {len(tried)} settings of {config.algorithm} failed: {best.failed}")
    value, folds, seed = best.metrics[metric], validation.folds, validation.seed
    record = TuningRecord(best.settings, metric, value, len(tried), tried, folds, len(splits), seed)
    return Tuned(config.changed(**best.settings), record)


def candidates(
    config: RunConfig, federation: Federation, grid: Grid | None, trials: int, seed: int
) -> list[dict[str, Any]]:
    """Return the settings to try, in the order of the grid."""
    if grid is None:
        grid = _grid(config)
    if trials < 1:
        raise ConfigError(f"tuning needs at least 1 trial, got {trials}")
    unit = _step_unit(config, federation)
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if len(combinations) > trials:
        drawn = np.random.default_rng([seed, DRAW]).choice(len(combinations), trials, replace=False)
        combinations = [combinations[i] for i in sorted(drawn)]
    return [
        {name: value * unit if name == "step" else value for name, value in combination.items()}
        for combination in combinations
    ]


def _grid(config: RunConfig) -> Grid:
    """Return the grid of the algorithm; if the user has set H, the grid varies only the weights."""
    entry = ALGORITHMS[config.algorithm]
    if entry.grid_for_given_steps is not None and config.options.local_steps is not None:
        return entry.grid_for_given_steps
    return entry.grid


def _judge(
    config: RunConfig, settings: dict[str, Any], splits: list[Federation], metric: str, threads: int | None
) -> Candidate:
    """Return the candidate with its metrics on the validation rows, as means over tasks and parts, or its failure."""
    config = config.changed(**settings)
    ends = not is_yardstick(config.algorithm) and bool(config.budget or config.options.cloud_rounds)
    certified = isinstance(build(config.algorithm, config.options, splits[0].kind).method, DualMethod)
    if not certified:  # certificates would not change the result, which is the last models
        config = replace(config, certify_every=NEVER_CERTIFY if ends else 5)
    try:
        results = [config.run(part, execution=Execution(threads=threads)) for part in splits]
    except (DivergenceError, BudgetError) as error:
        return Candidate(settings, {}, str(error))
    parts = {name: np.array([mean(result.metrics[name]) for result in results]) for name in results[0].metrics}
    means = {name: mean(values) for name, values in parts.items()}
    if metric not in means:
        raise ConfigError(f"no metric {metric!r} to tune by: choose from {', '.join(means)}")
    if not np.isfinite(means[metric]):
        return Candidate(settings, {}, f"{metric} is not a number")
    tight = not certified or max(result.certificate.relative_gap for result in results) < INFORMATIVE_GAP
    return Candidate(settings, means, tells=tight)


def best_of(tried: list[Candidate], metric: str) -> Candidate:
    """Return the best candidate, or a nearly equal candidate with tight certificates.

    If all candidates failed, return a failed candidate. If most certificates are loose, the budget is too small for
    them, and only over-regularised candidates have tight certificates. Then the metric alone decides.
    """
    scores = worth_of(tried, metric)
    order = sorted(range(len(tried)), key=lambda k: -scores[k])
    threshold = scores[order[0]] - METRIC_TOLERANCE * abs(scores[order[0]])
    if 2 * sum(candidate.tells for candidate in tried) < len(tried):
        return tried[order[0]]
    return tried[next((k for k in order if tried[k].tells and scores[k] >= threshold), order[0])]


def worth_of(tried: list[Candidate], metric: str) -> Vector:
    """Return the metric of every candidate, averaged with its neighbours in the grid; −∞ for failed candidates.

    Neighbours differ by a single grid step of a single number.
    """
    ran = np.array([candidate.failed is None for candidate in tried])
    values = np.array([_value(candidate.metrics, metric) if candidate.failed is None else 0.0 for candidate in tried])
    weight = np.where(_grid_distance(tried) == 1, NEIGHBOUR_WEIGHT, 0.0) * ran
    np.fill_diagonal(weight, 1.0)
    return np.where(ran, weight @ values / weight.sum(axis=1), -np.inf)


def _value(metrics: dict[str, float], metric: str) -> float:
    if metric == "rmse":
        return -metrics[metric]
    return metrics[metric] + (AUC_WEIGHT * metrics.get("auc", 0.0) if metric != "auc" else 0.0)


def _grid_distance(tried: list[Candidate]) -> npt.NDArray[np.int64]:
    """Return the grid steps between any two candidates; different values that are not numbers are never neighbours."""
    steps = np.zeros((len(tried), len(tried)), dtype=np.int64)
    for name in tried[0].settings:
        values = [candidate.settings[name] for candidate in tried]
        if all(isinstance(value, int | float) for value in values):
            position = np.unique(values, return_inverse=True)[1]
            steps += np.abs(position[:, None] - position)
        else:
            steps += np.array([[0 if a == b else len(tried) for b in values] for a in values])
    return steps


def _step_unit(config: RunConfig, federation: Federation) -> float:
    """Return the factor for step sizes, 1/‖x‖².

    ‖x‖² is 1 unless rows are only standardised; then it is about the number of columns.
    """
    return 1.0 / config.options.chosen_features().columns(federation.n_features) if config.scale == "standard" else 1.0
