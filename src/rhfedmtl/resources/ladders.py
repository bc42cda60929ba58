"""Ways to share out the work of a round over terminals that differ: each is a ladder, with more work on every rung.

A ladder answers three questions for a rung h: how many steps does each terminal take, what does the round cost, and
how much of their problems do the terminals solve (φ of measured.py, averaged).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.resources.billing import Lines, event_totals, lines, longest_wait
from rhfedmtl.resources.planning import Situation

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# One pass over a terminal's rows solves about 1 − e^{−1.15} = 68 % of its problem (measured: 0.65 to 0.72).
PASS_RATE = 1.15
_RUNGS = 33
_BINS = 64


class Ladder(Protocol):
    """A way to share out work; see the top of this file."""

    def cost(self, rung: float) -> dict[str, float]:
        """Cost of a round on this rung, by type."""

    def affordable(self, limits: dict[str, FloatArray], most: int) -> FloatArray:
        """Highest rung within each set of limits; below 1 where there is none."""

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ on each rung, c = rate."""

    def steps(self, rung: float) -> IntArray:
        """H of every terminal."""


class Pace:
    """How far H steps bring terminals of S rows: the mean over rows of 1 − e^{−c H/S}, for many c and H at once.

    ``ratios`` H/S with their weights are gathered into at most ``_BINS``: a million terminals cost no more than these.
    """

    def __init__(self, ratios: FloatArray, weights: FloatArray) -> None:
        if len(ratios) > _BINS:
            order = np.argsort(ratios)
            starts = np.unique(np.linspace(0, len(ratios) - 1, _BINS).astype(np.int64))
            mass = np.add.reduceat(weights[order], starts)
            ratios, weights = np.add.reduceat((weights * ratios)[order], starts) / mass, mass
        self.ratios, self.weights = ratios, weights / weights.sum()

    def progress(self, rate: float, steps: FloatArray) -> FloatArray:
        """Mean for each number of steps (times the ratios)."""
        return np.asarray(-np.expm1(-rate * np.outer(steps, self.ratios)) @ self.weights)


class Alike:
    """The same H for all: cost is the largest of a few straight lines in H."""

    def __init__(self, s: Situation) -> None:
        self._n = len(s.sizes)
        self._lines: dict[str, Lines] = lines(s.prices, s.round_event(1))
        sizes = s.sizes[s.layout.terminal_task >= 0].astype(np.float64)
        self._pace = Pace(1.0 / sizes, sizes)

    def cost(self, rung: float) -> dict[str, float]:
        """Cost at H = rung."""
        return {name: float(line.at(rung)) for name, line in self._lines.items()}

    def affordable(self, limits: dict[str, FloatArray], most: int) -> FloatArray:
        """Largest whole H within the limits."""
        size = len(next(iter(limits.values())))
        H = np.full(size, float(most))
        for name, limit in limits.items():
            line = self._lines[name]
            for fixed, slope in zip(line.fixed.tolist(), line.slope.tolist(), strict=True):
                spare = limit - fixed
                H = np.minimum(H, spare / slope if slope > 0.0 else np.where(spare >= 0.0, H, 0.0))
        return np.asarray(np.floor(H))

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ of H = rung."""
        return self._pace.progress(rate, rungs)

    def steps(self, rung: float) -> IntArray:
        """H for all."""
        return np.full(self._n, int(rung))


class Shaped:
    """H by a given shape: rungs are tried out once, and those between are not used."""

    def __init__(self, s: Situation, rungs: FloatArray, shape: list[IntArray]) -> None:
        here = s.layout.terminal_task >= 0
        sizes = np.maximum(s.sizes[here].astype(np.float64), 1.0)
        self._rungs, self._shape = rungs, shape
        self._paces = [Pace(H[here] / sizes, sizes) for H in shape]
        costs = [event_totals(s.prices, s.round_event(H)) for H in shape]
        self._cost = {name: np.array([cost[name] for cost in costs]) for name in s.prices}

    def cost(self, rung: float) -> dict[str, float]:
        """Cost of the highest rung up to this one (of the lowest, if it is below that)."""
        return {name: float(cost[self._index(rung)]) for name, cost in self._cost.items()}

    def affordable(self, limits: dict[str, FloatArray], most: int) -> FloatArray:
        """Highest rung within the limits."""
        size = len(next(iter(limits.values())))
        index = np.full(size, len(self._rungs))
        for name, limit in limits.items():
            index = np.minimum(index, np.searchsorted(np.maximum.accumulate(self._cost[name]), limit, side="right"))
        return np.where(index > 0, self._rungs[np.maximum(index - 1, 0)], 0.0)

    def progress(self, rate: float, rungs: FloatArray) -> FloatArray:
        """φ of the highest rung up to each."""
        once = np.ones(1)
        done = np.array([pace.progress(rate, once)[0] for pace in self._paces])
        index = np.searchsorted(self._rungs, rungs * (1.0 + 1e-12), side="right") - 1
        return np.asarray(done[np.maximum(index, 0)])

    def steps(self, rung: float) -> IntArray:
        """H of the highest rung up to this one."""
        return self._shape[self._index(rung)]

    def _index(self, rung: float) -> int:
        return max(0, int(np.searchsorted(self._rungs, rung * (1.0 + 1e-12), side="right")) - 1)


def ladders(s: Situation) -> list[Ladder]:
    """All ways to share out work that can differ in this situation; worked out once for it."""
    found: list[Ladder] | None = s.memo.get("ladders")
    if found is None:
        found = s.memo["ladders"] = _ladders(s)
    return found


def _ladders(s: Situation) -> list[Ladder]:
    found: list[Ladder] = [Alike(s)]
    value = _value_of_step(s)
    top = 8.0 * float(s.largest.max())
    rungs = np.unique(np.round(np.geomspace(1.0, max(top, 2.0), _RUNGS)))
    if np.ptp(value) > 1e-9 * value.max() or np.ptp(s.largest) > 0.0:
        found.append(Shaped(s, rungs, [_by_value(s, value, h) for h in rungs.tolist()]))
    if _speeds_differ(s):
        found.append(Shaped(s, rungs, [_by_deadline(s, h) for h in rungs.tolist()]))
    return found


def _value_of_step(s: Situation) -> FloatArray:
    """What a step of all terminals of a station buys, up to a common factor: N_b over what it costs there.

    Types without a limit do not count; the others count by the share of their limit that a step takes.
    """
    task = s.layout.terminal_task
    here = task >= 0
    spent = np.zeros(s.layout.n_tasks)
    for name, limit in s.ledger.budget.items():
        if s.prices[name].adds == "sum" and limit > 0.0:
            price = np.broadcast_to(np.asarray(s.prices[name].terminal_step, dtype=np.float64), len(task))
            spent += np.bincount(task[here], price[here], s.layout.n_tasks) / limit
    members = np.maximum(s.members, 1)
    return np.where(spent > 0.0, members / np.where(spent > 0.0, spent, 1.0), 1.0)


def _by_value(s: Situation, value: FloatArray, h: float) -> IntArray:
    """H_b at which a step buys the same everywhere: b_b e^{−b_b H_b} value_b alike, with H = h on average."""
    rates = PASS_RATE / np.maximum(s.largest, 1.0)
    price = np.log(rates * value)
    level = float(np.mean((rates * h - price) / rates) / np.mean(1.0 / rates))
    H = np.maximum(1, np.round((price + level) / rates)).astype(np.int64)
    return np.where(s.layout.terminal_task >= 0, H[s.layout.terminal_task], 1)


def _by_deadline(s: Situation, h: float) -> IntArray:
    """H, and fewer where a terminal would need longer than a terminal of median speed needs for h; at least 1."""
    steps = np.full(len(s.sizes), h)
    for prices in s.prices.types.values():
        if prices.adds == "elapsed":
            link = longest_wait(prices, s.round_event(0))
            each = np.broadcast_to(np.asarray(prices.terminal_step, dtype=np.float64), len(steps))
            deadline = float(np.median(link + h * each))
            steps = np.minimum(steps, (deadline - link) / np.where(each > 0.0, each, np.inf))
    return np.maximum(1, np.floor(steps + 1e-9)).astype(np.int64)


def _speeds_differ(s: Situation) -> bool:
    return any(
        prices.adds == "elapsed"
        and name in s.ledger.budget
        and any(
            np.size(part) > 1 for part in (prices.terminal_step, prices.terminal_byte_up, prices.terminal_byte_down)
        )
        for name, prices in s.prices.types.items()
    )
