"""Ways to share out the work of a round over terminals that differ: each is a ladder, with more work on every rung.

A ladder answers three questions for a rung h: how many steps does each terminal take, what does the round cost, and
how much of their problems do the terminals solve (φ of progress.py, averaged over rows).
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.resources.billing import Lines, lines, longest_wait
from rhfedmtl.resources.costs import Prices
from rhfedmtl.resources.planning import Situation
from rhfedmtl.resources.progress import PASS_RATE, Pace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_RUNGS = 33
_STEP = ("terminal_step",)
_WAITS = ("terminal_step", "terminal_byte_up", "terminal_byte_down")


class Ladder(Protocol):
    """A way to share out work; see the top of this file."""

    def cost(self, rung: float) -> dict[str, float]:
        """Cost of a round on this rung, of the types that are limited."""

    def affordable(self, limits: dict[str, FloatArray], most: int) -> FloatArray:
        """Highest rung within each set of limits; below 1 where there is none."""

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ on each rung, c = rate."""

    def steps(self, rung: float) -> IntArray:
        """H of every terminal."""


class Alike:
    """The same H for all: cost is the largest of a few straight lines in H."""

    def __init__(self, s: Situation) -> None:
        self._n = len(s.sizes)
        every = lines(s.prices, s.round_event(1))
        self._lines = {name: _pairs(every[name]) for name in s.ledger.budget}
        self._pace = Pace(s.sizes[s.here])

    def cost(self, rung: float) -> dict[str, float]:
        """Cost at H = rung."""
        return {name: max(fixed + slope * rung for fixed, slope in line) for name, line in self._lines.items()}

    def affordable(self, limits: dict[str, FloatArray], most: int) -> FloatArray:
        """Largest whole H within the limits."""
        H: FloatArray | float = float(most)
        for name, limit in limits.items():
            for fixed, slope in self._lines[name]:
                spare = limit - fixed
                H = np.minimum(H, spare / slope if slope > 0.0 else np.where(spare >= 0.0, H, 0.0))
        return np.floor(H)

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ of H = rung."""
        return self._pace.progress(rate, rungs)

    def steps(self, rung: float) -> IntArray:
        """H for all."""
        return np.full(self._n, int(rung))


def _pairs(line: Lines) -> list[tuple[float, float]]:
    return list(zip(line.fixed.tolist(), line.slope.tolist(), strict=True))


class Ground:
    """Members by station, and the cells of terminals of one station and of similar size that count as one.

    Every station must have members. Each has four cells at least if it has as many terminals: a million terminals
    cost no more than these. H comes as a table, rungs by stations or rungs by terminals in ``order``.
    """

    def __init__(self, s: Situation) -> None:
        self.s = s
        self.rungs = np.unique(np.round(np.geomspace(1.0, max(8.0 * float(s.largest.max()), 2.0), _RUNGS)))
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
        """Cost of a round of each station (columns) on every rung (rows)."""
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
        """H/S of each cell (columns) on every rung (rows)."""
        if H.shape[-1] == len(self.counts):
            members = np.diff(np.append(self._cells, len(self.order)))
            return np.asarray(H.repeat(self._cells_of_station, axis=1) * (members / self._cell_rows))
        return np.asarray(np.add.reduceat(H, self._cells, axis=1) / self._cell_rows)

    def progress(self, rate: float, passes: FloatArray) -> FloatArray:
        """φ of each station (columns) on every rung (rows)."""
        left = np.exp(-rate * passes) * self._cell_share
        return np.asarray(1.0 - np.add.reduceat(left, self._cell_starts, axis=1))


class Shaped:
    """H by a given shape, a table as `Ground` has it: rungs are worked out once, and those between are not used."""

    def __init__(self, ground: Ground, shape: FloatArray) -> None:
        self.ground, self._shape = ground, shape
        s = ground.s
        self.costs = {name: ground.costs(s.prices[name], shape) for name in s.ledger.budget}
        self._passes = ground.passes(shape)
        self._progress: tuple[float, FloatArray] = (np.nan, np.empty(0))

    @cached_property
    def _cost(self) -> dict[str, FloatArray]:
        """Cost of a round on every rung."""
        prices = self.ground.s.prices
        return {
            name: costs.max(axis=1) if prices[name].adds == "elapsed" else costs.sum(axis=1)
            for name, costs in self.costs.items()
        }

    def cost(self, rung: float) -> dict[str, float]:
        """Cost of the highest rung up to this one (of the lowest, if it is below that)."""
        return {name: float(cost[self._index(rung)]) for name, cost in self._cost.items()}

    def affordable(self, limits: dict[str, FloatArray], most: int) -> FloatArray:
        """Highest rung within the limits."""
        index: IntArray | int = len(self.ground.rungs)
        for name, limit in limits.items():
            index = np.minimum(index, np.searchsorted(np.maximum.accumulate(self._cost[name]), limit, side="right"))
        return np.where(np.asarray(index) > 0, self.ground.rungs[np.maximum(index, 1) - 1], 0.0)

    def by_station(self, rate: float) -> FloatArray:
        """φ of every station (columns) on every rung (rows)."""
        if self._progress[0] != rate:
            self._progress = rate, self.ground.progress(rate, self._passes)
        return self._progress[1]

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ of the highest rung up to each; 0 below the lowest."""
        done = np.append(0.0, self.by_station(rate) @ self.ground.share)
        return np.asarray(done[np.searchsorted(self.ground.rungs, rungs * (1.0 + 1e-12), side="right")])

    def steps(self, rung: float) -> IntArray:
        """H of the highest rung up to this one; 1 for who is no member."""
        H = np.ones(len(self.ground.s.sizes), dtype=np.int64)
        H[self.ground.order] = self.ground.spread(self._shape[self._index(rung)])
        return H

    def _index(self, rung: float) -> int:
        return max(0, int(np.searchsorted(self.ground.rungs, rung * (1.0 + 1e-12), side="right")) - 1)


def shapes(s: Situation, least_steps: int = 1) -> list[Shaped]:
    """Ways other than alike that can differ from it: by what a step buys at each station, and by a deadline."""
    limited = [s.prices[name] for name in s.ledger.budget]
    in_time = any(prices.adds == "elapsed" and differ(prices, _WAITS) for prices in limited)
    by_value = any(prices.adds == "sum" and differ(prices, _STEP) for prices in limited)
    by_value = by_value or s.largest.min() < s.largest.max()
    if not (by_value or in_time) or not s.members.all():
        return []
    ground = Ground(s)
    found = [_by_value(s, ground.rungs)] if by_value else []
    found += [_by_deadline(s, ground.rungs)[:, ground.order]] if in_time else []
    return [Shaped(ground, np.maximum(least_steps, shape)) for shape in found]


def _value_of_step(s: Situation) -> FloatArray:
    """What a step of all terminals of a station buys, up to a common factor: N_b over what it costs there.

    Types without a limit do not count; the others count by the share of their limit that a step takes.
    """
    spent = np.zeros(s.layout.n_tasks)
    for name, limit in s.ledger.budget.items():
        step = s.prices[name].terminal_step
        if s.prices[name].adds == "sum" and limit > 0.0:
            whole = np.bincount(s.home, step[s.here], len(spent)) if isinstance(step, np.ndarray) else s.members * step
            spent += whole / limit
    return np.where(spent > 0.0, np.maximum(s.members, 1) / np.where(spent > 0.0, spent, 1.0), 1.0)


def _by_value(s: Situation, rungs: FloatArray) -> FloatArray:
    """H_b at which a step buys the same everywhere: b_b e^{−b_b H_b} value_b alike, with H = rung on average."""
    rates = PASS_RATE / np.maximum(s.largest, 1.0)
    price = np.log(rates * _value_of_step(s))
    level = np.mean((rates * rungs[:, None] - price) / rates, axis=1) / np.mean(1.0 / rates)
    return np.asarray(np.round((price + level[:, None]) / rates))


def _by_deadline(s: Situation, rungs: FloatArray) -> FloatArray:
    """H, and fewer where a terminal would need longer than a terminal of median speed needs for it."""
    steps = np.repeat(rungs[:, None], len(s.sizes), axis=1)
    for prices in s.prices.types.values():
        if prices.adds == "elapsed":
            link = longest_wait(prices, s.round_event(0))
            each = np.broadcast_to(np.asarray(prices.terminal_step, dtype=np.float64), len(link))
            deadline = np.median(link + rungs[:, None] * each, axis=1)
            steps = np.minimum(steps, (deadline[:, None] - link) / np.where(each > 0.0, each, np.inf))
    return np.asarray(np.floor(steps + 1e-9))


def differ(prices: Prices, names: tuple[str, ...]) -> bool:
    """Whether any of these prices has a value for each node."""
    return any(isinstance(getattr(prices, name), np.ndarray) for name in names)
