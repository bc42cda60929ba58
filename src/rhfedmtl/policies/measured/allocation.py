"""Allocations distribute the work of a round over terminals that differ; a higher level means more work.

`Measured` compares the allocations of this module. For a level h, an allocation computes the steps of each terminal,
the cost of the round, and the share of their problems that the terminals solve (φ of progress.py, averaged over rows).
Its `search` returns the numbers of server iterations and station rounds that leave the smallest suboptimality, each
with the highest affordable level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from rhfedmtl.policies.base import FloatArray, IntArray, Situation
from rhfedmtl.policies.measured.progress import LocalProgress, ProgressModel
from rhfedmtl.resources.prices import Prices
from rhfedmtl.resources.steps import CostLines, lines
from rhfedmtl.resources.waiting import longest_wait

# Rounding must not refuse a round that costs its part of the budget exactly.
_SLACK = 1.0 + 1e-12
# If H differs between terminals, a round has at most this many passes over the largest terminal.
# Measured: benchmarks/results/constants.md; ×0.5: −0.11 ± 0.19 points, −0.00 ± 0.02 decades;
# ×2: −0.05 ± 0.20 points, −0.04 ± 0.12 decades.
MOST_TABLE_PASSES = 8.0
# Levels of work that an allocation with unequal H tabulates.
# Measured: benchmarks/results/constants.md; ×0.5: −0.05 ± 0.12 points, +0.03 ± 0.06 decades;
# ×2: −0.13 ± 0.21 points, +0.03 ± 0.05 decades.
_LEVELS = 33
# With more pairs of M and K, search with arrays instead of a loop.
_MOST_LOOPED = 500
_WAITS = ("terminal_step", "terminal_byte_up", "terminal_byte_down")


@dataclass(frozen=True)
class Grid:
    """Candidates for the number of server iterations (M, ``counts``, rising) and of rounds in each (K, ``rounds``).

    Every round gets an equal part of the remaining budget, after the cost of the server iteration (``cloud``).
    """

    counts: Sequence[int]
    rounds: Sequence[int]
    remaining: dict[str, float]
    cloud: dict[str, float]
    min_steps: int
    max_steps: int

    @cached_property
    def pairs(self) -> tuple[FloatArray, FloatArray, dict[str, FloatArray]]:
        """Pairs of M and K, and the limit on the cost of a round for each pair."""
        M, K = (part.ravel() for part in np.meshgrid(self.counts, self.rounds, indexing="ij"))
        return M.astype(np.float64), K.astype(np.float64), {name: self.part(name, M, K) for name in self.remaining}

    def part(self, name: str, M: Any, K: Any) -> Any:
        """Return the amount of a type that a round may cost; M and K are numbers or arrays."""
        return (self.remaining[name] / M - self.cloud[name]) / K * _SLACK


class BestLevel(NamedTuple):
    """The best level of an allocation, with its M and K, and the log of the predicted remaining share."""

    log_left: float
    cloud_rounds: int
    station_rounds: int
    level: float
    allocation: Allocation


class Allocation(Protocol):
    """Interface of an allocation; see the top of this file."""

    def search(self, model: ProgressModel, grid: Grid) -> BestLevel:
        """Return the M and K that leave the smallest suboptimality, each with the highest affordable level."""

    def cost(self, level: float) -> dict[str, float]:
        """Return the cost of a round at this level for the limited types."""

    def steps(self, level: float) -> IntArray:
        """Return H of every terminal at this level."""


class EqualSteps:
    """Allocation with the same H for all terminals: the cost is the maximum of a few straight lines in H.

    A search over few pairs of M and K uses plain loops, which are faster than arrays for a few dozen numbers.
    """

    def __init__(self, s: Situation) -> None:
        self._n = len(s.sizes)
        cost_lines = lines(s.prices, s.round_event(1))
        self._lines = {name: _pairs(cost_lines[name]) for name in s.ledger.budget}
        self._progress = LocalProgress(s.sizes[s.member_index])

    def search(self, model: ProgressModel, grid: Grid) -> BestLevel:
        """Return the M and K that leave the smallest suboptimality."""
        best = BestLevel(0.0, 1, 1, 0.0, self)
        if len(grid.counts) * len(grid.rounds) > _MOST_LOOPED:
            return self._search_many(model, grid, best)
        for K in grid.rounds:
            for M in grid.counts:
                h = self._affordable(grid, M, K)
                if h < grid.min_steps:
                    break
                log_left = M * math.log(model.left(self._progress.progress(model.rate, h), K))
                if log_left < best.log_left:
                    best = BestLevel(log_left, M, K, h, self)
        return best

    def _search_many(self, model: ProgressModel, grid: Grid, default: BestLevel) -> BestLevel:
        """Search with arrays; return ``default`` if no pair is affordable."""
        M, K, parts = grid.pairs
        H = np.full(len(M), float(grid.max_steps))
        for name, line in self._lines.items():
            for fixed, slope in line:
                free = np.where(parts[name] < fixed, 0.0, np.inf)
                H = np.minimum(H, (parts[name] - fixed) / slope if slope > 0.0 else free)
        H = np.floor(H)
        affordable = np.flatnonzero(grid.min_steps <= H)
        if not len(affordable):
            return default
        levels, position = np.unique(H[affordable], return_inverse=True)
        progress = np.array([self._progress.progress(model.rate, h) for h in levels.tolist()])[position]
        log_left = M[affordable] * np.log(model.left(progress, K[affordable]))
        i = int(np.argmin(log_left))
        best = affordable[i]
        return BestLevel(float(log_left[i]), int(M[best]), int(K[best]), int(H[best]), self)

    def _affordable(self, grid: Grid, M: int, K: int) -> int:
        """Return the largest affordable integer H."""
        H: float = grid.max_steps
        for name, line in self._lines.items():
            part = grid.part(name, M, K)
            for fixed, slope in line:
                if slope > 0.0:
                    H = min(H, (part - fixed) / slope)
                elif part < fixed:
                    return 0
        return math.floor(H)

    def cost(self, level: float) -> dict[str, float]:
        """Return the cost at H = level."""
        return {name: max(fixed + slope * level for fixed, slope in line) for name, line in self._lines.items()}

    def steps(self, level: float) -> IntArray:
        """Return the same H for all terminals."""
        return np.broadcast_to(np.int64(level), self._n)


def _pairs(line: CostLines) -> list[tuple[float, float]]:
    return list(zip(line.fixed.tolist(), line.slope.tolist(), strict=True))


class StationCells:
    """Members sorted by station and size, and divided into cells of similar terminals of the same station.

    A cell is treated like a single terminal, which bounds the cost of a million terminals. Every station must have
    members, and has at least four cells if it has that many terminals. H is a table: levels by stations, or levels by
    terminals in ``order``.
    """

    def __init__(self, s: Situation) -> None:
        self.s = s
        self.levels = np.unique(
            np.round(np.geomspace(1.0, max(MOST_TABLE_PASSES * float(s.largest.max()), 2.0), _LEVELS))
        )
        order = np.argsort(s.member_station * (s.rows.max() + 1.0) + s.rows, kind="stable")
        sizes = np.maximum(s.rows[order], 1.0)
        self.order = np.arange(len(s.sizes))[s.member_index][order]
        self.counts = s.members
        self._starts = np.cumsum(self.counts) - self.counts
        self.share = np.add.reduceat(sizes, self._starts) / sizes.sum()
        cells = np.minimum(self.counts, max(4, 256 // len(self.counts)))
        self._cell_starts = np.cumsum(cells) - cells
        within = np.arange(cells.sum()) - self._cell_starts.repeat(cells)
        self._cells = self._starts.repeat(cells) + within * self.counts.repeat(cells) // cells.repeat(cells)
        self._cell_rows = np.add.reduceat(sizes, self._cells)
        self._cell_share = self._cell_rows / np.add.reduceat(self._cell_rows, self._cell_starts).repeat(cells)
        self._cells_of_station = cells

    def spread(self, H: FloatArray) -> FloatArray:
        """Return H of every terminal, in ``order``."""
        return H if H.shape[-1] == len(self.order) else H.repeat(self.counts, axis=-1)

    def costs(self, prices: Prices, H: FloatArray) -> FloatArray:
        """Return the cost of a round of each station (columns) at every level (rows)."""
        step, link = prices.terminal_step, longest_wait(prices, self.s.round_event(0))[self.order]
        elapsed = prices.adds == "elapsed"
        if H.shape[-1] == len(self.counts) and not differ(prices, _WAITS):
            cost = H * step + link[0]
            return np.asarray((cost if elapsed else cost * self.counts) + prices.station_round)
        cost = self.spread(H) * (step[self.order] if isinstance(step, np.ndarray) else step) + link
        return np.asarray(
            (np.maximum if elapsed else np.add).reduceat(cost, self._starts, axis=1) + prices.station_round
        )

    def passes(self, H: FloatArray) -> FloatArray:
        """Return H/S of each cell (columns) at every level (rows)."""
        if H.shape[-1] == len(self.counts):
            members = np.diff(np.append(self._cells, len(self.order)))
            return np.asarray(H.repeat(self._cells_of_station, axis=1) * (members / self._cell_rows))
        return np.asarray(np.add.reduceat(H, self._cells, axis=1) / self._cell_rows)

    def progress(self, rate: float, passes: FloatArray) -> FloatArray:
        """Return φ of each station (columns) at every level (rows)."""
        unsolved = np.exp(-rate * passes) * self._cell_share
        return np.asarray(1.0 - np.add.reduceat(unsolved, self._cell_starts, axis=1))


class UnequalSteps:
    """Allocation with H from a table ``shape`` (see `StationCells`); it uses only the levels of the table."""

    def __init__(self, cells: StationCells, shape: FloatArray) -> None:
        self.cells, self._shape = cells, shape
        s = cells.s
        self.costs = {name: cells.costs(s.prices[name], shape) for name in s.ledger.budget}
        self._passes = cells.passes(shape)
        self._progress: tuple[float, FloatArray] = (np.nan, np.empty(0))

    @cached_property
    def _cost(self) -> dict[str, FloatArray]:
        """Cost of a round at every level."""
        prices = self.cells.s.prices
        return {
            name: costs.max(axis=1) if prices[name].adds == "elapsed" else costs.sum(axis=1)
            for name, costs in self.costs.items()
        }

    def cost(self, level: float) -> dict[str, float]:
        """Return the cost at the highest table level up to ``level``, or at the lowest if all levels are higher."""
        return {name: float(cost[self._index(level)]) for name, cost in self._cost.items()}

    def search(self, model: ProgressModel, grid: Grid) -> BestLevel:
        """Return the M and K that leave the smallest suboptimality."""
        M, K, limits = grid.pairs
        index = np.min(
            [np.searchsorted(np.maximum.accumulate(self._cost[name]), limits[name], "right") for name in limits], axis=0
        )
        levels, phi = (
            np.append(0.0, part) for part in (self.cells.levels, self.by_station(model.rate) @ self.cells.share)
        )
        index = np.where(levels[index] < grid.min_steps, 0, index)
        log_left = M * model.log_left(phi[index], K)
        i = int(log_left.argmin())
        return BestLevel(float(log_left[i]), int(M[i]), int(K[i]), float(levels[index[i]]), self)

    def by_station(self, rate: float) -> FloatArray:
        """Return φ of every station (columns) at every level (rows)."""
        if self._progress[0] != rate:
            self._progress = rate, self.cells.progress(rate, self._passes)
        return self._progress[1]

    def steps(self, level: float) -> IntArray:
        """Return H of every terminal at the highest table level up to ``level``; 1 for terminals without a station."""
        H = np.ones(len(self.cells.s.sizes), dtype=np.int64)
        H[self.cells.order] = self.cells.spread(self._shape[self._index(level)])
        return H

    def _index(self, level: float) -> int:
        return max(0, int(np.searchsorted(self.cells.levels, level * (1.0 + 1e-12), side="right")) - 1)


def with_minimum(cells: StationCells, shape: FloatArray, min_steps: int | IntArray) -> FloatArray:
    """Return the shape with every H raised to at least ``min_steps``."""
    if isinstance(min_steps, np.ndarray):
        return np.maximum(cells.spread(shape), min_steps[cells.order])
    return np.maximum(min_steps, shape)


def by_rows(s: Situation, min_steps: IntArray) -> UnequalSteps:
    """Return the allocation with the same H for all terminals, except where ``min_steps`` is larger."""
    cells = StationCells(s)
    shape = np.repeat(cells.levels[:, None], len(cells.counts), axis=1)
    return UnequalSteps(cells, with_minimum(cells, shape, min_steps))


def by_deadline(s: Situation, min_steps: int | IntArray = 1) -> list[UnequalSteps]:
    """Return the allocation by a deadline if time is limited and terminals differ in speed, else an empty list."""
    limited = [s.prices[name] for name in s.ledger.budget]
    in_time = any(prices.adds == "elapsed" and differ(prices, _WAITS) for prices in limited)
    if not in_time or not s.members.all():
        return []
    cells = StationCells(s)
    return [UnequalSteps(cells, with_minimum(cells, _by_deadline(s, cells.levels)[:, cells.order], min_steps))]


def _by_deadline(s: Situation, levels: FloatArray) -> FloatArray:
    """Return H per level and terminal; a terminal gets fewer steps if it needs more time than the median terminal."""
    steps = np.repeat(levels[:, None], len(s.sizes), axis=1)
    for prices in s.prices.types.values():
        if prices.adds == "elapsed":
            link = longest_wait(prices, s.round_event(0))
            step = np.broadcast_to(np.asarray(prices.terminal_step, dtype=np.float64), len(link))
            deadline = np.median(link + levels[:, None] * step, axis=1)
            spare = deadline[:, None] - link
            steps = np.minimum(steps, np.divide(spare, step, out=np.full_like(steps, np.inf), where=step > 0.0))
    return np.asarray(np.floor(steps + 1e-9))


def differ(prices: Prices, names: tuple[str, ...]) -> bool:
    """Return True if any of these prices is an array with a value per node."""
    return any(isinstance(getattr(prices, name), np.ndarray) for name in names)
