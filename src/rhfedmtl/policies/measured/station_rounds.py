"""K_b: stations whose rounds are faster or cheaper than others' make more of them in a server iteration.

Between two server iterations stations do not wait for each other: while a slow one makes its only round, a fast one
makes several, and they take no time. Of a ``sum`` type every round has its price. On every level of an allocation,
station b may make as many rounds as go into one of the slowest (or of the dearest) station, 2, 4 or 8 at most: which
of these, if any, is the model's choice.

The dual is a sum over stations, and so is what is left of the suboptimality. Of equal parts at the beginning, station
b leaves e^{M l_b} of its own after M server iterations, l_b as the model of progress has it for its φ_b and K_b. Work
that fast stations do is no help to slow ones in this sum, so these are not forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rhfedmtl.policies.base import FloatArray, IntArray, Situation
from rhfedmtl.policies.measured.allocation import BestLevel, Grid, StationCells, UnequalSteps, differ, raised
from rhfedmtl.policies.measured.progress import ProgressModel, kept_by_merge

_MOST = (2, 4, 8)
# What a plan with different K_b must promise: that a fifth less is left than with one K for all; and, if it gives up
# server iterations, that its logarithm is a tenth lower. Rounds at old anchors are worth less than the model says.
_CLEARLY = 0.2
_LONGER = 0.1
_PRICES = ("terminal_step", "terminal_byte_up", "terminal_byte_down", "station_round")


class RoundPattern(NamedTuple):
    """An allocation, and how many rounds each station (columns) makes on every level (rows)."""

    allocation: UnequalSteps
    rounds: IntArray


class StationRounds:
    """Ways to let stations make different numbers of rounds, and one round for all on the same allocations."""

    def __init__(self, allocations: list[UnequalSteps]) -> None:
        cells = allocations[0].cells
        self._patterns = [
            RoundPattern(allocation, rounds) for allocation in allocations for rounds in _round_numbers(allocation)
        ]
        self._same = np.array([bool((pattern.rounds == 1).all()) for pattern in self._patterns])
        self._levels = cells.levels
        self._cost = {
            name: np.maximum.accumulate([_cost(pattern, name) for pattern in self._patterns], axis=1)
            for name in allocations[0].costs
        }
        kept = np.array([kept_by_merge(float(n)) for n in cells.counts])
        self._kept = kept / kept_by_merge(float(cells.counts.mean()))

    @classmethod
    def of(cls, s: Situation, shaped: list[UnequalSteps], least: int | IntArray) -> StationRounds | None:
        """All ways, on H alike and by the shapes given; None where stations keep in step or do not differ."""
        differs = any(differ(s.prices[name], _PRICES) for name in s.ledger.budget)
        if s.in_step or not differs or not s.members.all():
            return None
        cells = shaped[0].cells if shaped else StationCells(s)
        alike = np.repeat(cells.levels[:, None], len(cells.counts), axis=1)
        found = cls([UnequalSteps(cells, raised(cells, alike, least)), *shaped])
        return None if found._same.all() else found

    def search(self, outlook: ProgressModel, grid: Grid) -> BestLevel | None:
        """The plan that leaves least, if it promises clearly more than the same K for all on these allocations."""
        M, K, limits = grid.pairs
        level = np.min([_highest(self._cost[name], limit) for name, limit in limits.items()], axis=0)
        left = np.stack(
            [self._log_left(outlook, M, K, pattern, each) for pattern, each in zip(self._patterns, level, strict=True)]
        )
        left = np.where((level >= 0) & (self._levels[level] >= grid.least_steps), left, 0.0)
        pattern, place = divmod(int(left.argmin()), len(M))
        same = left[self._same].min(axis=0)
        one = float(same.min())
        fewer = M[place] < M[int(same.argmin())]
        if self._same[pattern] or left[pattern, place] > min(one - _CLEARLY, (1.0 + _LONGER) * one if fewer else one):
            return None
        allocation, rounds = self._patterns[pattern]
        r = int(level[pattern, place])
        return BestLevel(
            float(left[pattern, place]), int(M[place]), rounds[r] * int(K[place]), float(self._levels[r]), allocation
        )

    def _log_left(
        self, outlook: ProgressModel, M: FloatArray, K: FloatArray, pattern: RoundPattern, level: IntArray
    ) -> FloatArray:
        """Log of what is left, for each M and K and the level that goes with it; by stations before they are added up.

        What a merge keeps of φ depends on the number of members.
        """
        phi = np.minimum(pattern.allocation.by_station(outlook.rate) * self._kept, 1.0)[level]
        exponent = M[:, None] * outlook.log_left(phi, K[:, None] * pattern.rounds[level])
        top = exponent.max(axis=1)
        return np.asarray(top + np.log(np.exp(exponent - top[:, None]).mean(axis=1)))


def _round_numbers(allocation: UnequalSteps) -> Iterator[IntArray]:
    """One round for all; then as many as go into one of the slowest, or of the dearest, station."""
    prices, budget = allocation.cells.s.prices, allocation.cells.s.ledger.budget
    times = [_times(costs) for name, costs in allocation.costs.items() if prices[name].adds == "elapsed"]
    sums = [
        costs / budget[name] for name, costs in allocation.costs.items() if prices[name].adds == "sum" and budget[name]
    ]
    most = [np.min(times, axis=0)] if times else []
    most += [_times(np.sum(sums, axis=0))] if sums else []
    found = [np.ones((len(allocation.cells.levels), len(allocation.cells.counts)), dtype=np.int64)]
    found += [np.minimum(limit, rounds) for rounds in most for limit in _MOST]
    yield from {rounds.tobytes(): rounds for rounds in found}.values()


def _times(costs: FloatArray) -> IntArray:
    """How many rounds of each station go into one of the dearest; at least one."""
    times = costs.max(axis=1, keepdims=True) / np.maximum(costs, 1e-300)
    return np.asarray(np.clip(times * (1.0 + 1e-9), 1.0, 1e9), dtype=np.int64)


def _cost(pattern: RoundPattern, name: str) -> FloatArray:
    """Cost of the rounds of all stations, on every level."""
    whole = pattern.rounds * pattern.allocation.costs[name]
    return np.asarray(
        whole.max(axis=1) if pattern.allocation.cells.s.prices[name].adds == "elapsed" else whole.sum(axis=1)
    )


def _highest(cost: FloatArray, limit: FloatArray) -> IntArray:
    """Highest level within each limit (columns) for every pattern (rows); -1 where there is none."""
    return np.asarray(np.sum(cost[:, None, :] <= limit[:, None], axis=2)) - 1
