"""Fair tuning: the same number of trials for every method, on a validation part of the training rows alone.

Every candidate of a method's grid is run with the same prices, budget and faults as the run it is tuned for. The one
with the best metric on the validation rows wins, and is then trained anew on all training rows. What was tried is on
record; it is not charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.registry import build
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import BudgetError, ConfigError, DivergenceError
from rhfedmtl.plain import BESIDE
from rhfedmtl.selection.folds import DRAW, hold_out
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.run import mean

Grid = Mapping[str, Sequence[Any]]

TRIALS = 24
"""Candidates of every method that has anything to tune."""
NEVER = 10**9

_STEPS = (0.1, 0.3, 1.0, 3.0)
_VISITS = (2, 10, 40)


def _powers(low: float, high: float, count: int) -> tuple[float, ...]:
    """``count`` numbers from low to high by equal factors, rounded to two digits."""
    return tuple(float(f"{x:.1e}") for x in np.geomspace(low, high, count))


GRIDS: dict[str, Grid] = {
    "rhfedmtl": {"lambda1": (1e-4, 1e-3), "lambda2": _powers(1e-4, 10.0, 6), "merge": ("average", "add")},
    "hfedmtl": {"local_steps": _VISITS, "lambda1": (1e-4, 1e-3), "lambda2": _powers(1e-3, 1.0, 4)},
    "local": {"lambda1": _powers(1e-5, 1.0, 12), "merge": ("average", "add")},
    "cocoa": {"local_steps": _VISITS, "lambda1": _powers(1e-5, 1e-1, 8)},
    "cocoa+": {"local_steps": _VISITS, "lambda1": _powers(1e-5, 1e-1, 8)},
    "mocha": {"lambda1": (1e-4, 1e-3, 1e-2), "lambda2": _powers(1e-6, 1e-1, 8)},
    "fedavg": {"step": (0.03, *_STEPS, 10.0), "local_steps": (2, 5, 15, 40)},
    "fedprox": {"step": _STEPS, "local_steps": _VISITS, "mu": (0.01, 0.1)},
    "hierfavg": {"step": _STEPS, "local_steps": _VISITS, "station_rounds": (2, 4)},
    "adaptive-fl": {"step": (0.03, *_STEPS, 10.0), "phi": (2.5e-5, 2.5e-4, 2.5e-3, 2.5e-2)},
    "ditto": {"step": _STEPS, "local_steps": _VISITS, "mu": (0.01, 0.3)},
    "fedem": {"step": (0.3, 1.0, 3.0, 10.0), "local_steps": _VISITS, "components": (2, 3)},
    "pooled": {"lambda1": _powers(1e-5, 1.0, 24)},
    "constant": {},
}
"""What is tried of each algorithm; step sizes are those for rows of norm 1."""


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, and their metrics on the validation rows; or why there are none."""

    settings: dict[str, Any]
    metrics: Annotated[dict[str, float], BESIDE]
    failed: str | None = None


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

    ``metric`` is the balanced accuracy, or for a regression the error, unless another is named. Ties go to the larger
    AUC where there is one, then to the candidate that comes first.
    """

    folds: int = 4
    parts: int = 1
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
    tried = [
        _judge(config, settings, held, metric, threads)
        for settings in candidates(config, federation, grid, trials, validation.seed)
    ]
    best = max(tried, key=lambda candidate: _rank(candidate, metric))
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
    return replace(config, options=replace(config.options, **settings))


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
    if config.algorithm not in GRIDS:
        raise ConfigError(f"no grid for {config.algorithm!r}: add one to GRIDS, or give one")
    if config.algorithm == "hfedmtl" and config.options.local_steps is not None:
        return GRIDS["rhfedmtl"]
    return GRIDS[config.algorithm]


def _judge(
    config: RunConfig, settings: dict[str, Any], held: list[Federation], metric: str, threads: int | None
) -> Candidate:
    """Metrics on the validation rows, as means over tasks and parts; or why there are none."""
    config = _with(config, settings)
    yardstick = build(config.algorithm, config.options, held[0].kind).yardstick
    ends = not yardstick and bool(config.budget or config.options.cloud_rounds)
    config = replace(config, certify_every=NEVER if ends else 5)
    try:
        results = [config.run(part, threads=threads) for part in held]
    except (DivergenceError, BudgetError) as error:
        return Candidate(settings, {}, str(error))
    means = {name: float(np.mean([mean(result.metrics[name]) for result in results])) for name in results[0].metrics}
    if metric not in means:
        raise ConfigError(f"no metric {metric!r} to tune by: choose from {', '.join(means)}")
    if not np.isfinite(means[metric]):
        return Candidate(settings, {}, f"{metric} is not a number")
    return Candidate(settings, means)


def _rank(candidate: Candidate, metric: str) -> tuple[float, float]:
    if candidate.failed is not None:
        return -np.inf, -np.inf
    value = candidate.metrics[metric]
    return -value if metric == "rmse" else value, candidate.metrics.get("auc", 0.0)


def _step_unit(config: RunConfig, federation: Federation) -> float:
    """Steps shrink as ‖x‖² grows: it is 1 for unit rows, and about the number of features for standardised ones."""
    scale = config.scale or ("standard" if federation.kind == "regression" else "standard-unit")
    return 1.0 / federation.n_features if scale == "standard" else 1.0
