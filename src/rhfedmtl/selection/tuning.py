"""Fair tuning: the same number of trials for every method, on a validation part of the training rows alone.

Every candidate of a method's grid is run with the same prices, budget and faults as the run it is tuned for, and judged
by rows that it did not see, all training rows in turn. Such rows are few, and their verdict is noisy: a candidate is
judged together with its neighbours in the grid, and by how it orders rows beside which side it puts them on. The best
is then trained anew on all training rows. What was tried is on record; it is not charged.
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
from rhfedmtl.plain import BESIDE
from rhfedmtl.selection.folds import DRAW, hold_out
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.run import mean

Vector = npt.NDArray[np.float64]

TRIALS = 24
"""Candidates of every method that has anything to tune."""
NEVER = 10**9
NEIGHBOUR = 0.5
"""How much a candidate one step away in the grid counts beside a candidate's own metric."""
ORDER = 0.5
"""How much the AUC counts beside a metric of predicted classes, which a few rows move in steps."""
ENOUGH_SAID = 0.4
"""Relative gap below which a certificate tells enough; with all rows it is a little larger than in a trial."""
SLACK = 0.003
"""Share of the metric that a certificate which tells enough may cost: validation rows are few, and tell no better."""


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, and their metrics on the validation rows; or why there are none.

    Settings whose certificate ``tells`` little at this budget are chosen only where they are clearly better.
    """

    settings: dict[str, Any]
    metrics: Annotated[dict[str, float], BESIDE]
    failed: str | None = None
    tells: bool = True


@dataclass(frozen=True)
class TuningRecord:
    """How settings were chosen: by which metric, from which candidates, on which part of the training rows."""

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
    """The run to make with what was chosen, and the record of how it was chosen."""

    config: RunConfig
    record: TuningRecord


@dataclass(frozen=True)
class Validation:
    """How candidates are judged: ``parts`` of ``folds`` parts of the training rows (0: all) are held out in turn.

    ``metric`` is the balanced accuracy, or for a regression the error, unless another is named. Ties go to the
    candidate that comes first.
    """

    folds: int = 4
    parts: int = 0
    metric: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse parts that are not there."""
        if self.folds < 2 or not 0 <= self.parts <= self.folds:
            raise ConfigError(f"of {self.folds} parts (2 or more) {self.parts} cannot be held out in turn")


def tuned(
    config: RunConfig, federation: Federation, *, threads: int | None = None
) -> tuple[RunConfig, TuningRecord | None]:
    """The run with its settings chosen as it asks for; as it is, and with nothing on record, where it does not ask."""
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
    """Choose the settings of ``config`` from the grid of its algorithm; candidates that diverge or cost too much lose.

    A grid with more candidates than ``trials`` is drawn from with the seed. Test rows play no part.
    """
    validation = validation or Validation(seed=config.seed)
    held = [
        hold_out(federation, validation.folds, part, validation.seed)
        for part in range(validation.parts or validation.folds)
    ]
    metric = validation.metric or ("balanced_accuracy" if federation.class_names else "rmse")
    every = candidates(config, federation, grid, trials, validation.seed)
    tried = [_judge(config, settings, held, metric, threads) for settings in every]
    best = best_of(tried, metric)
    if best.failed is not None:
        raise ConfigError(f"none of {len(tried)} settings of {config.algorithm} could be run: {best.failed}")
    record = TuningRecord(
        best.settings,
        metric,
        best.metrics[metric],
        len(tried),
        tried,
        validation.folds,
        len(held),
        validation.seed,
    )
    return Tuned(_with(config, best.settings), record)


def _with(config: RunConfig, settings: dict[str, Any]) -> RunConfig:
    return replace(config, options=config.options.changed(**settings))


def candidates(
    config: RunConfig, federation: Federation, grid: Grid | None, trials: int, seed: int
) -> list[dict[str, Any]]:
    """Settings to try, in the order of the grid."""
    if grid is None:
        grid = _grid(config)
    if trials < 1:
        raise ConfigError(f"tuning needs at least 1 trial, got {trials}")
    unit = _step_unit(config, federation)
    every = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if len(every) > trials:
        drawn = np.random.default_rng([seed, DRAW]).choice(len(every), trials, replace=False)
        every = [every[i] for i in sorted(drawn)]
    return [{name: value * unit if name == "step" else value for name, value in each.items()} for each in every]


def _grid(config: RunConfig) -> Grid:
    """Grid of the algorithm; H that was set by hand is kept, and the trials go into the weights instead."""
    entry = ALGORITHMS[config.algorithm]
    if entry.grid_for_given_steps is not None and config.options.local_steps is not None:
        return entry.grid_for_given_steps
    return entry.grid


def _judge(
    config: RunConfig, settings: dict[str, Any], held: list[Federation], metric: str, threads: int | None
) -> Candidate:
    """Metrics on the validation rows, as means over tasks and parts; or why there are none."""
    config = _with(config, settings)
    ends = not is_yardstick(config.algorithm) and bool(config.budget or config.options.cloud_rounds)
    certified = isinstance(build(config.algorithm, config.options, held[0].kind).method, DualMethod)
    if not certified:  # the last models are returned, whatever was certified on the way
        config = replace(config, certify_every=NEVER if ends else 5)
    try:
        results = [config.run(part, execution=Execution(threads=threads)) for part in held]
    except (DivergenceError, BudgetError) as error:
        return Candidate(settings, {}, str(error))
    parts = {name: np.array([mean(result.metrics[name]) for result in results]) for name in results[0].metrics}
    means = {name: mean(values) for name, values in parts.items()}
    if metric not in means:
        raise ConfigError(f"no metric {metric!r} to tune by: choose from {', '.join(means)}")
    if not np.isfinite(means[metric]):
        return Candidate(settings, {}, f"{metric} is not a number")
    told = not certified or max(result.certificate.relative_gap for result in results) < ENOUGH_SAID
    return Candidate(settings, means, tells=told)


def best_of(tried: list[Candidate], metric: str) -> Candidate:
    """The best on the validation rows, or one nearly as good whose certificate tells more; a failed one if all are.

    Where most certificates tell little the budget is too small for them, and those that tell more are of tasks held
    down: then the metric alone decides.
    """
    worth = worth_of(tried, metric)
    order = sorted(range(len(tried)), key=lambda k: -worth[k])
    enough = worth[order[0]] - SLACK * abs(worth[order[0]])
    if 2 * sum(each.tells for each in tried) < len(tried):
        return tried[order[0]]
    return tried[next((k for k in order if tried[k].tells and worth[k] >= enough), order[0])]


def worth_of(tried: list[Candidate], metric: str) -> Vector:
    """Metric of every candidate, smoothed over its neighbours: one value of a number apart. Of failed ones −∞."""
    ran = np.array([each.failed is None for each in tried])
    own = np.array([_value(each.metrics, metric) if each.failed is None else 0.0 for each in tried])
    weight = np.where(_apart(tried) == 1, NEIGHBOUR, 0.0) * ran
    np.fill_diagonal(weight, 1.0)
    return np.where(ran, weight @ own / weight.sum(axis=1), -np.inf)


def _value(metrics: dict[str, float], metric: str) -> float:
    if metric == "rmse":
        return -metrics[metric]
    return metrics[metric] + (ORDER * metrics.get("auc", 0.0) if metric != "auc" else 0.0)


def _apart(tried: list[Candidate]) -> npt.NDArray[np.int64]:
    """Steps in the grid between any two candidates; what is no number is never near."""
    steps = np.zeros((len(tried), len(tried)), dtype=np.int64)
    for name in tried[0].settings:
        values = [each.settings[name] for each in tried]
        if all(isinstance(value, int | float) for value in values):
            place = np.unique(values, return_inverse=True)[1]
            steps += np.abs(place[:, None] - place)
        else:
            steps += np.array([[0 if a == b else len(tried) for b in values] for a in values])
    return steps


def _step_unit(config: RunConfig, federation: Federation) -> float:
    """Steps shrink as ‖x‖² grows: it is 1 unless rows are standardised alone, then about the number of features."""
    return 1.0 / federation.n_features if config.scale == "standard" else 1.0
