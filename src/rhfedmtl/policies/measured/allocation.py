"""Allocations: ways to share out the work of a round over terminals that differ, with more work on every level.

An allocation knows for a level h how many steps each terminal takes, what the round costs, and how much of their
problems the terminals solve (φ of progress.py, averaged over rows). So it can say which number of server iterations,
with as high a level as can be paid then, leaves least.
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
from rhfedmtl.resources.billing import CostLines, lines, longest_wait
from rhfedmtl.resources.costs import Prices

_SLACK = 1.0 + 1e-12
_LEVELS = 33
_MANY = 500  # pairs of M and K
_WAITS = ("terminal_step", "terminal_byte_up", "terminal_byte_down")


@dataclass(frozen=True)
class Grid:
    """Numbers of server iterations to try (M), in rising order, and of rounds in each (K).

    Every round gets an equal part of ``room``, after the cost of the server iteration.
    """

    counts: Sequence[int]
    rounds: Sequence[int]
    room: dict[str, float]
    cloud: dict[str, float]
    least_steps: int
    most_steps: int

    @cached_property
    def pairs(self) -> tuple[FloatArray, FloatArray, dict[str, FloatArray]]:
        """All M and K, and what a round may cost for each of them."""
        M, K = (part.ravel() for part in np.meshgrid(self.counts, self.rounds, indexing="ij"))
        return M.astype(np.float64), K.astype(np.float64), {name: self.part(name, M, K) for name in self.room}

    def part(self, name: str, M: Any, K: Any) -> Any:
        """What a round may cost of a type; numbers or arrays."""
        return (self.room[name] / M - self.cloud[name]) / K * _SLACK


class BestLevel(NamedTuple):
    """The best level of an allocation, with its M and K."""

    log_left: float
    cloud_rounds: int
    station_rounds: int
    level: float
    allocation: Allocation


class Allocation(Protocol):
    """A way to share out work; see the top of this file."""

    def search(self, outlook: ProgressModel, grid: Grid) -> BestLevel:
        """The M and K that leave least, each with the highest level that can be paid."""

    def cost(self, level: float) -> dict[str, float]:
        """Cost of a round on this level, of the types that are limited."""

    def steps(self, level: float) -> IntArray:
        """H of every terminal."""


class EqualSteps:
    """The same H for all: cost is the largest of a few straight lines in H.

    Plain loops, unless M and K are many: beside a short run, a few dozen numbers are faster than arrays.
    """

    def __init__(self, s: Situation) -> None:
        self._n = len(s.sizes)
        every = lines(s.prices, s.round_event(1))
        self._lines = {name: _pairs(every[name]) for name in s.ledger.budget}
        self._progress = LocalProgress(s.sizes[s.here])

    def search(self, outlook: ProgressModel, grid: Grid) -> BestLevel:
        """The M and K that leave least."""
        best = BestLevel(0.0, 1, 1, 0.0, self)
        if len(grid.counts) * len(grid.rounds) > _MANY:
            return self._search_many(outlook, grid, best)
        for K in grid.rounds:
            for M in grid.counts:
                h = self._affordable(grid, M, K)
                if h < grid.least_steps:
                    break
                left = M * math.log(outlook.left(self._progress.progress(outlook.rate, h), K))
                if left < best.log_left:
                    best = BestLevel(left, M, K, h, self)
        return best

    def _search_many(self, outlook: ProgressModel, grid: Grid, nothing: BestLevel) -> BestLevel:
        """The same with arrays."""
        M, K, parts = grid.pairs
        H = np.full(len(M), float(grid.most_steps))
        for name, line in self._lines.items():
            for fixed, slope in line:
                free = np.where(parts[name] < fixed, 0.0, np.inf)
                H = np.minimum(H, (parts[name] - fixed) / slope if slope > 0.0 else free)
        H = np.floor(H)
        paid = np.flatnonzero(grid.least_steps <= H)
        if not len(paid):
            return nothing
        levels, place = np.unique(H[paid], return_inverse=True)
        progress = np.array([self._progress.progress(outlook.rate, h) for h in levels.tolist()])[place]
        left = M[paid] * np.log(outlook.left(progress, K[paid]))
        i = int(np.argmin(left))
        best = paid[i]
        return BestLevel(float(left[i]), int(M[best]), int(K[best]), int(H[best]), self)

    def _affordable(self, grid: Grid, M: int, K: int) -> int:
        """Largest whole H that can be paid."""
        H: float = grid.most_steps
        for name, line in self._lines.items():
            part = grid.part(name, M, K)
            for fixed, slope in line:
                if slope > 0.0:
                    H = min(H, (part - fixed) / slope)
                elif part < fixed:
                    return 0
        return math.floor(H)

    def cost(self, level: float) -> dict[str, float]:
        """Cost at H = level."""
        return {name: max(fixed + slope * level for fixed, slope in line) for name, line in self._lines.items()}

    def steps(self, level: float) -> IntArray:
        """H for all."""
        return np.broadcast_to(np.int64(level), self._n)


def _pairs(line: CostLines) -> list[tuple[float, float]]:
    return list(zip(line.fixed.tolist(), line.slope.tolist(), strict=True))


class StationCells:
    """Members by station, and the cells of terminals of one station and of similar size that count as one.

    Every station must have members. Each has four cells at least if it has as many terminals: a million terminals
    cost no more than these. H comes as a table, levels by stations or levels by terminals in ``order``.
    """

    def __init__(self, s: Situation) -> None:
        self.s = s
        self.levels = np.unique(np.round(np.geomspace(1.0, max(8.0 * float(s.largest.max()), 2.0), _LEVELS)))
        order = np.argsort(s.home * (s.rows.max() + 1.0) + s.rows, kind="stable")
        sizes = np.maximum(s.rows[order], 1.0)
        self.order = np.arange(len(s.sizes))[s.here][order]
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
        """H of every terminal."""
        return H if H.shape[-1] == len(self.order) else H.repeat(self.counts, axis=-1)

    def costs(self, prices: Prices, H: FloatArray) -> FloatArray:
        """Cost of a round of each station (columns) on every level (rows)."""
        step, link = prices.terminal_step, longest_wait(prices, self.s.round_event(0))[self.order]
        elapsed = prices.adds == "elapsed"
        if H.shape[-1] == len(self.counts) and not differ(prices, _WAITS):
            each = H * step + link[0]
            return np.asarray((each if elapsed else each * self.counts) + prices.station_round)
        each = self.spread(H) * (step[self.order] if isinstance(step, np.ndarray) else step) + link
        return np.asarray(
            (np.maximum if elapsed else np.add).reduceat(each, self._starts, axis=1) + prices.station_round
        )

    def passes(self, H: FloatArray) -> FloatArray:
        """H/S of each cell (columns) on every level (rows)."""
        if H.shape[-1] == len(self.counts):
            members = np.diff(np.append(self._cells, len(self.order)))
            return np.asarray(H.repeat(self._cells_of_station, axis=1) * (members / self._cell_rows))
        return np.asarray(np.add.reduceat(H, self._cells, axis=1) / self._cell_rows)

    def progress(self, rate: float, passes: FloatArray) -> FloatArray:
        """φ of each station (columns) on every level (rows)."""
        left = np.exp(-rate * passes) * self._cell_share
        return np.asarray(1.0 - np.add.reduceat(left, self._cell_starts, axis=1))


class UnequalSteps:
    """H by a given shape, a table as `StationCells` has it: levels are worked out once, none between is used."""

    def __init__(self, cells: StationCells, shape: FloatArray) -> None:
        self.cells, self._shape = cells, shape
        s = cells.s
        self.costs = {name: cells.costs(s.prices[name], shape) for name in s.ledger.budget}
        self._passes = cells.passes(shape)
        self._progress: tuple[float, FloatArray] = (np.nan, np.empty(0))

    @cached_property
    def _cost(self) -> dict[str, FloatArray]:
        """Cost of a round on every level."""
        prices = self.cells.s.prices
        return {
            name: costs.max(axis=1) if prices[name].adds == "elapsed" else costs.sum(axis=1)
            for name, costs in self.costs.items()
        }

    def cost(self, level: float) -> dict[str, float]:
        """Cost of the highest level up to this one (of the lowest, if it is below that)."""
        return {name: float(cost[self._index(level)]) for name, cost in self._cost.items()}

    def search(self, outlook: ProgressModel, grid: Grid) -> BestLevel:
        """The M and K that leave least."""
        M, K, limits = grid.pairs
        index = np.min(
            [np.searchsorted(np.maximum.accumulate(self._cost[name]), limits[name], "right") for name in limits], axis=0
        )
        levels, phi = (
            np.append(0.0, part) for part in (self.cells.levels, self.by_station(outlook.rate) @ self.cells.share)
        )
        index = np.where(levels[index] < grid.least_steps, 0, index)
        left = M * outlook.log_left(phi[index], K)
        i = int(left.argmin())
        return BestLevel(float(left[i]), int(M[i]), int(K[i]), float(levels[index[i]]), self)

    def by_station(self, rate: float) -> FloatArray:
        """φ of every station (columns) on every level (rows)."""
        if self._progress[0] != rate:
            self._progress = rate, self.cells.progress(rate, self._passes)
        return self._progress[1]

    def steps(self, level: float) -> IntArray:
        """H of the highest level up to this one; 1 for who is no member."""
        H = np.ones(len(self.cells.s.sizes), dtype=np.int64)
        H[self.cells.order] = self.cells.spread(self._shape[self._index(level)])
        return H

    def _index(self, level: float) -> int:
        return max(0, int(np.searchsorted(self.cells.levels, level * (1.0 + 1e-12), side="right")) - 1)


def raised(cells: StationCells, shape: FloatArray, least: int | IntArray) -> FloatArray:
    """A shape with H of at least so many steps."""
    if isinstance(least, np.ndarray):
        return np.maximum(cells.spread(shape), least[cells.order])
    return np.maximum(least, shape)


def by_rows(s: Situation, least: IntArray) -> UnequalSteps:
    """The same H for all but those whose smallest H is more."""
    cells = StationCells(s)
    return UnequalSteps(cells, raised(cells, np.repeat(cells.levels[:, None], len(cells.counts), axis=1), least))


def by_deadline(s: Situation, least: int | IntArray = 1) -> list[UnequalSteps]:
    """Return the allocation by a deadline if time is limited and terminals differ in speed, else nothing."""
    limited = [s.prices[name] for name in s.ledger.budget]
    in_time = any(prices.adds == "elapsed" and differ(prices, _WAITS) for prices in limited)
    if not in_time or not s.members.all():
        return []
    cells = StationCells(s)
    return [UnequalSteps(cells, raised(cells, _by_deadline(s, cells.levels)[:, cells.order], least))]


def _by_deadline(s: Situation, levels: FloatArray) -> FloatArray:
    """H, and fewer where a terminal would need longer than a terminal of median speed needs for it."""
    steps = np.repeat(levels[:, None], len(s.sizes), axis=1)
    for prices in s.prices.types.values():
        if prices.adds == "elapsed":
            link = longest_wait(prices, s.round_event(0))
            each = np.broadcast_to(np.asarray(prices.terminal_step, dtype=np.float64), len(link))
            deadline = np.median(link + levels[:, None] * each, axis=1)
            spare = deadline[:, None] - link
            steps = np.minimum(steps, np.divide(spare, each, out=np.full_like(steps, np.inf), where=each > 0.0))
    return np.asarray(np.floor(steps + 1e-9))


def differ(prices: Prices, names: tuple[str, ...]) -> bool:
    """Whether any of these prices has a value for each node."""
    return any(isinstance(getattr(prices, name), np.ndarray) for name in names)
