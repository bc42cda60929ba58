"""Fair tuning: the same number of trials for every method, on a validation part of the training rows alone.

Every candidate of a method's grid is run with the same prices, budget and faults as the run it is tuned for, and judged
by rows that it did not see; the best third of them by other such rows too. The best of these wins, and is then trained
anew on all training rows. What was tried is on record; it is not charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, NamedTuple

import numpy as np

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

TRIALS = 24
"""Candidates of every method that has anything to tune."""
NEVER = 10**9
FINALISTS = 3
"""One candidate of so many is judged on all parts: where a part is a few recordings, one alone misleads."""
ENOUGH_SAID = 0.4
"""Relative gap below which a certificate tells enough; with all rows it is a little larger than in a trial."""
SLACK = 0.01
"""Share of the metric that a certificate which tells enough may cost: validation rows are few, and tell no better."""


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, and their metrics on the validation rows; or why there are none.

    Settings whose certificate ``tells`` little at this budget are chosen only where they are clearly better. A
    ``finalist`` was judged on all parts.
    """

    settings: dict[str, Any]
    metrics: Annotated[dict[str, float], BESIDE]
    failed: str | None = None
    tells: bool = True
    finalist: bool = True


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
    """How candidates are judged: ``parts`` of ``folds`` parts of the training rows are held out, one after the other.

    All are judged on the first of them, the best third on the others too. ``metric`` is the balanced accuracy, or for a
    regression the error, unless another is named. Ties go to the larger AUC where there is one, then to the candidate
    that comes first.
    """

    folds: int = 4
    parts: int = 2
    metric: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse parts that are not there."""
        if self.folds < 2 or not 1 <= self.parts <= self.folds:
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
    held = [hold_out(federation, validation.folds, part, validation.seed) for part in range(validation.parts)]
    metric = validation.metric or ("balanced_accuracy" if federation.class_names else "rmse")
    every = candidates(config, federation, grid, trials, validation.seed)
    tried = [_judge(config, settings, held[:1], metric, threads) for settings in every]
    if len(held) > 1:
        order = sorted(range(len(tried)), key=lambda k: _rank(tried[k], metric), reverse=True)
        finalists = math.ceil(len(tried) / FINALISTS)
        for k in order[:finalists]:
            tried[k] = _joined(tried[k], _judge(config, every[k], held[1:], metric, threads), len(held))
        for k in order[finalists:]:
            tried[k] = replace(tried[k], finalist=False)
    best = _best(tried, metric)
    if best.failed is not None:
        raise ConfigError(f"none of {len(tried)} settings of {config.algorithm} could be run: {best.failed}")
    record = TuningRecord(
        best.settings,
        metric,
        best.metrics[metric],
        len(tried),
        tried,
        validation.folds,
        validation.parts,
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
    means = {name: float(np.mean([mean(result.metrics[name]) for result in results])) for name in results[0].metrics}
    if metric not in means:
        raise ConfigError(f"no metric {metric!r} to tune by: choose from {', '.join(means)}")
    if not np.isfinite(means[metric]):
        return Candidate(settings, {}, f"{metric} is not a number")
    told = not certified or max(result.certificate.relative_gap for result in results) < ENOUGH_SAID
    return Candidate(settings, means, tells=told)


def _joined(first: Candidate, others: Candidate, parts: int) -> Candidate:
    """Judged on the first part and on the others, of so many in all: means over all of them."""
    if first.failed or others.failed:
        return first if first.failed else others
    means = {name: value + (others.metrics[name] - value) * (1 - 1 / parts) for name, value in first.metrics.items()}
    return replace(first, metrics=means, tells=first.tells and others.tells)


def _best(tried: list[Candidate], metric: str) -> Candidate:
    """The best finalist on the validation rows, or one nearly as good whose certificate tells more."""
    finalists = [each for each in tried if each.finalist]
    first = max(finalists, key=lambda candidate: _rank(candidate, metric))
    slack = SLACK * abs(_rank(first, metric)[0])
    near = [each for each in finalists if each.tells and _rank(each, metric)[0] >= _rank(first, metric)[0] - slack]
    return max(near, key=lambda candidate: _rank(candidate, metric), default=first)


def _rank(candidate: Candidate, metric: str) -> tuple[float, float]:
    if candidate.failed is not None:
        return -np.inf, -np.inf
    value = candidate.metrics[metric]
    return -value if metric == "rmse" else value, candidate.metrics.get("auc", 0.0)


def _step_unit(config: RunConfig, federation: Federation) -> float:
    """Steps shrink as ‖x‖² grows: it is 1 unless rows are standardised alone, then about the number of features."""
    return 1.0 / federation.n_features if config.scale == "standard" else 1.0
