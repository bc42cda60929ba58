"""Methods side by side at equal cost: the same data, splits, prices and budgets for all, seed by seed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.registry import DECIDES
from rhfedmtl.errors import ConfigError
from rhfedmtl.experiments.configs import RunConfig
from rhfedmtl.experiments.sweep import Record, Store, Watch, interval, sweep


@dataclass(frozen=True)
class Cell:
    """One method at one budget: mean over seeds, half of its 95 % interval, and both of its difference to the first.

    ``mean`` is None where the budget pays no round.
    """

    algorithm: str
    budget: str
    seeds: int
    mean: float | None
    half: float
    minus_first: tuple[float, float] | None
    rounds: float


@dataclass(frozen=True)
class Comparison:
    """All cells, and which metric they show."""

    metric: str
    algorithms: tuple[str, ...]
    budgets: tuple[str, ...]
    cells: tuple[Cell, ...]

    def cell(self, algorithm: str, budget: str) -> Cell:
        """The cell of one method at one budget."""
        return next(c for c in self.cells if (c.algorithm, c.budget) == (algorithm, budget))

    def best(self, budget: str) -> str | None:
        """Method with the best mean at a budget; yardsticks, which do not pay, are out of the running."""
        sign = -1.0 if self.metric == "rmse" else 1.0
        running = [c for c in self.cells if c.budget == budget and c.mean is not None and c.algorithm not in YARDSTICKS]
        return max(running, key=lambda c: sign * (c.mean or 0.0)).algorithm if running else None

    def to_csv(self, path: Path) -> None:
        """Write one row a cell."""
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            for c in self.cells:
                difference = c.minus_first or ("", "")
                table.writerow([c.algorithm, c.budget, self.metric, c.mean, c.half, *difference, c.seeds])


YARDSTICKS = ("pooled", "constant")
COLUMNS = ("algorithm", "budget", "metric", "mean", "ci95", "minus_first", "minus_first_ci95", "seeds")


def compare(
    base: RunConfig,
    algorithms: Sequence[str],
    budgets: Sequence[str],
    seeds: Sequence[int],
    store: Store,
    *,
    metric: str | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Run every method at every budget with every seed, and put them side by side."""
    if not (algorithms and budgets and seeds):
        raise ConfigError("a comparison needs at least one algorithm, one budget and one seed")
    # Runs on the same split stand together: a process then reads and splits its data once.
    grid = [(a, b, s) for s in seeds for a in algorithms for b in budgets]
    configs = [_config(base, a, b, s) for a, b, s in grid]
    found = dict(zip(grid, sweep(configs, store, workers=workers, watch=watch), strict=True))
    metric = metric or _metric(list(found.values()))
    cells = [_cell(a, b, seeds, algorithms[0], metric, found) for a in algorithms for b in budgets]
    return Comparison(metric, tuple(algorithms), tuple(budgets), tuple(cells))


def _config(base: RunConfig, algorithm: str, budget: str, seed: int) -> RunConfig:
    """One run; a method that decides its work is not told how much to do."""
    options = base.options
    if algorithm in DECIDES:
        options = replace(options, local_steps=None, station_rounds=None, cloud_rounds=None)
    return replace(base, algorithm=algorithm, options=options, budget=(budget,), seed=seed, certify_every=10**9)


def _metric(found: list[Record]) -> str:
    """What to show unless told: error for numbers, else balanced accuracy."""
    result = next((record["result"] for record in found if record.get("result")), None)
    if result is None:
        raise ConfigError("no budget pays a round: raise the budgets, or lower the prices")
    return "rmse" if "rmse" in result else "balanced_accuracy"


def _cell(algorithm: str, budget: str, seeds: Sequence[int], first: str, metric: str, found: dict[Any, Record]) -> Cell:
    ours = [found[algorithm, budget, s]["result"] for s in seeds]
    if any(result is None or result.get(metric) is None for result in ours):
        return Cell(algorithm, budget, len(seeds), None, 0.0, None, 0.0)
    values = np.array([result[metric] for result in ours], dtype=np.float64)
    theirs = [found[first, budget, s]["result"] for s in seeds]
    against = None
    if algorithm != first and all(result is not None for result in theirs):
        against = interval(values - np.array([result[metric] for result in theirs]))
    mean, half = interval(values)
    return Cell(algorithm, budget, len(seeds), mean, half, against, float(np.mean([r["rounds"] for r in ours])))
