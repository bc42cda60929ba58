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
        self._pace = Pace(1.0 / s.rows, s.rows)

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

    Every station must have members. Each has eight cells at least if it has as many terminals: a million terminals
    cost no more than these.
    """

    def __init__(self, s: Situation) -> None:
        self.s = s
        top = 8.0 * float(s.largest.max())
        self.rungs = np.unique(np.round(np.geomspace(1.0, max(top, 2.0), _RUNGS)))
        order = np.lexsort((s.rows, s.home))
        self.order = np.arange(len(s.sizes))[s.here][order]
        self.sizes = np.maximum(s.rows[order], 1.0)
        self.task = s.home[order]
        self.counts = s.members
        self.starts = np.cumsum(s.members) - s.members
        self.samples = np.add.reduceat(self.sizes, self.starts)
        most = max(8, 256 // len(self.counts))
        cell = np.arange(len(self.task)) - np.repeat(self.starts, self.counts)
        cell = cell * np.minimum(most, self.counts).repeat(self.counts) // self.counts.repeat(self.counts)
        new = np.append(True, (np.diff(cell) != 0) | (np.diff(self.task) != 0))
        self.cells = np.flatnonzero(new)
        self.cell_rows = np.add.reduceat(self.sizes, self.cells)
        self.cell_starts = np.searchsorted(self.cells, self.starts)
        self.cell_share = self.cell_rows / self.samples.repeat(np.diff(np.append(self.cell_starts, len(self.cells))))

    def round_costs(self, prices: Prices, H: FloatArray) -> FloatArray:
        """Cost of a round at each station (columns) on every rung (rows), H by terminal as in ``order``."""
        step, station = prices.terminal_step, prices.station_round
        link = longest_wait(prices, self.s.round_event(0))[self.order]
        each = H * (step[self.order] if isinstance(step, np.ndarray) else step) + link
        add = np.maximum if prices.adds == "elapsed" else np.add
        return np.asarray(add.reduceat(each, self.starts, axis=1) + station)


class Shaped:
    """H by a given shape: rungs are worked out once, and those between are not used.

    ``shape`` has H of every rung (rows), for each station or for each terminal, in the order of ``ground``.
    """

    def __init__(self, ground: Ground, shape: FloatArray) -> None:
        self.ground, self.rungs, self._shape = ground, ground.rungs, shape
        by_terminal = self._by_terminal(shape)
        s = ground.s
        self.costs = {name: ground.round_costs(s.prices[name], by_terminal) for name in s.ledger.budget}
        self._ratios = np.add.reduceat(by_terminal, ground.cells, axis=1) / ground.cell_rows
        self._progress: tuple[float, FloatArray] = (np.nan, np.empty(0))

    def _by_terminal(self, shape: FloatArray) -> FloatArray:
        one_each = shape.shape[-1] == len(self.ground.order)
        return shape if one_each else np.repeat(shape, self.ground.counts, axis=-1)

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
        index: IntArray | int = len(self.rungs)
        for name, limit in limits.items():
            index = np.minimum(index, np.searchsorted(np.maximum.accumulate(self._cost[name]), limit, side="right"))
        return np.where(np.asarray(index) > 0, self.rungs[np.maximum(index, 1) - 1], 0.0)

    def by_station(self, rate: float) -> FloatArray:
        """φ of every station (columns) on every rung (rows)."""
        if self._progress[0] != rate:
            ground = self.ground
            left = np.exp(-rate * self._ratios) * ground.cell_share
            self._progress = rate, 1.0 - np.add.reduceat(left, ground.cell_starts, axis=1)
        return self._progress[1]

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ of the highest rung up to each; 0 below the lowest."""
        done = np.append(0.0, self.by_station(rate) @ (self.ground.samples / self.ground.samples.sum()))
        return np.asarray(done[np.searchsorted(self.rungs, rungs * (1.0 + 1e-12), side="right")])

    def steps(self, rung: float) -> IntArray:
        """H of the highest rung up to this one; 1 for who is no member."""
        H = np.ones(len(self.ground.s.sizes), dtype=np.int64)
        H[self.ground.order] = self._by_terminal(self._shape[self._index(rung)])
        return H

    def _index(self, rung: float) -> int:
        return max(0, int(np.searchsorted(self.rungs, rung * (1.0 + 1e-12), side="right")) - 1)


def shapes(s: Situation, least_steps: int = 1) -> list[Shaped]:
    """Ways other than alike that can differ from it: by what a step buys at each station, and by a deadline."""
    value, in_time = _value_of_step(s), _speeds_differ(s)
    by_value = np.ptp(value) > 1e-9 * value.max() or s.largest.min() < s.largest.max()
    if not (by_value or in_time) or not s.members.all():
        return []
    ground = Ground(s)
    found = [_by_value(s, value, ground.rungs)] if by_value else []
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


def _by_value(s: Situation, value: FloatArray, rungs: FloatArray) -> FloatArray:
    """H_b at which a step buys the same everywhere: b_b e^{−b_b H_b} value_b alike, with H = rung on average."""
    rates = PASS_RATE / np.maximum(s.largest, 1.0)
    price = np.log(rates * value)
    level = np.mean((rates * rungs[:, None] - price) / rates, axis=1) / np.mean(1.0 / rates)
    return np.round((price + level[:, None]) / rates)


def _by_deadline(s: Situation, rungs: FloatArray) -> FloatArray:
    """H, and fewer where a terminal would need longer than a terminal of median speed needs for it."""
    steps = np.repeat(rungs[:, None], len(s.sizes), axis=1)
    for prices in s.prices.types.values():
        if prices.adds == "elapsed":
            link = longest_wait(prices, s.round_event(0))
            each = np.broadcast_to(np.asarray(prices.terminal_step, dtype=np.float64), len(link))
            deadline = np.median(link + rungs[:, None] * each, axis=1)
            steps = np.minimum(steps, (deadline[:, None] - link) / np.where(each > 0.0, each, np.inf))
    return np.floor(steps + 1e-9)


def _speeds_differ(s: Situation) -> bool:
    return any(
        prices.adds == "elapsed"
        and name in s.ledger.budget
        and any(
            np.size(part) > 1 for part in (prices.terminal_step, prices.terminal_byte_up, prices.terminal_byte_down)
        )
        for name, prices in s.prices.types.items()
    )
