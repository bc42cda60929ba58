"""Layout of rows, models and blocks of terminals on a graphics card, as the kernels need them.

Only plain arithmetic on the CPU: `engines.gpu.terminals` copies the results to the card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.engines.network import Float64Array, IntArray
from rhfedmtl.maths.kernels import rounds
from rhfedmtl.maths.kernels.rounds import FloatArray, Layout, Orders

CARD_CHUNK = 2**27
"""Numbers that are moved or scaled at a time."""
CARD_VISITS = 2**26
"""Largest number of row visits that are drawn in advance."""
LANES = 32
ADDENDS = 128
"""Blocks that a program adds up."""


@dataclass(frozen=True)
class CardLayout:
    """Layout of rows and models on the card: ``stride`` numbers a row, read as ``main`` and ``rest``."""

    features: int
    constant: float
    """Value of the intercept's feature. On the card a model holds its product with the intercept."""

    @property
    def intercept(self) -> bool:
        """True if models have an intercept."""
        return self.constant > 0.0

    @property
    def stride(self) -> int:
        """Numbers of a row with padding: complete lines of memory, except for short rows."""
        line = 32 if self.features > 64 else 16
        return -(-self.features // line) * line

    @property
    def filled(self) -> int:
        """Numbers of a row that the kernels read."""
        return min(self.stride, -(-self.features // 8) * 8)

    @property
    def width(self) -> int:
        """Numbers of a model; the intercept comes after the padding."""
        return self.stride + self.intercept

    @property
    def main(self) -> int:
        """Largest power of two that a row fills."""
        return max(16, int(2 ** math.floor(math.log2(self.filled))))

    @property
    def rest(self) -> int:
        """Smallest power of two for the other numbers; 0 without others."""
        left_over = self.filled - self.main
        return int(2 ** math.ceil(math.log2(left_over))) if left_over > 0 else 0

    @property
    def warps(self) -> int:
        """Warps of a program: 16 features of the model per lane."""
        return max(1, min(16, self.main // (16 * LANES)))

    def pad(self, models: FloatArray, dtype: Any) -> Any:
        """Return models with padding, and with the intercept in its place."""
        padded = np.zeros((*models.shape[:-1], self.width), dtype)
        padded[..., : self.features] = models[..., : self.features]
        if self.intercept:
            padded[..., -1] = models[..., -1] * self.constant
        return padded

    def cut(self, sums: Float64Array) -> Float64Array:
        """Return sums from the card without padding."""
        intercept = [sums[..., -1:] * self.constant] if self.intercept else []
        return np.concatenate([sums[..., : self.features], *intercept], axis=-1)


@dataclass(frozen=True, eq=False)
class SentLayout:
    """A layout of terminals, and its arrays on the card.

    ``sizes`` are the ends of the terminals' rows that were sent. ``small`` is True if every terminal has few rows.
    """

    layout: Layout
    sizes: IntArray
    small: bool
    sums: list[Any]
    ends: Any
    station: Any
    order: Any
    blocks: Any
    station_of_block: Any

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.layout.station)


class Stretch(NamedTuple):
    """Blocks of a launch, their terminals with steps, and the visits of these terminals."""

    blocks: slice
    terminals: slice
    visits: slice


@dataclass(frozen=True, eq=False)
class CardCohort:
    """Terminals with steps in a round, in the blocks of a layout, with their arrays on the card.

    ``offsets`` are the starts of each terminal's visits. ``once`` is True if no terminal makes more than a pass, or
    more than 32 steps. ``sums`` receives the answers of the blocks; blocks without steps stay at zero.
    """

    layout: SentLayout
    requested: IntArray
    once: bool
    stretches: list[Stretch]
    sums: Any
    order: Any
    offsets: Any
    blocks: Any


def groups(starts: IntArray) -> list[IntArray]:
    """Return the cuts for sums with few addends: groups of blocks, then the groups of each station."""
    counts = np.diff(starts)
    n_groups = -(-counts // ADDENDS)
    if (n_groups <= 1).all():
        return [starts]
    first_group = np.concatenate([[0], np.cumsum(n_groups)])
    station = np.repeat(np.arange(len(counts)), n_groups)
    within = np.arange(first_group[-1]) - first_group[station]
    return [np.append(starts[station] + within * ADDENDS, starts[-1]), first_group]


def stretches(blocks: IntArray, offsets: IntArray) -> list[Stretch]:
    """Return stretches of blocks with at most `CARD_VISITS` visits, but at least a block."""
    visits, cuts, n_blocks = offsets[blocks], [0], len(blocks) - 1
    while cuts[-1] < n_blocks:
        within = int(np.searchsorted(visits, visits[cuts[-1]] + CARD_VISITS, side="right")) - 1
        cuts.append(min(max(within, cuts[-1] + 1), n_blocks))
    scales = (np.arange(n_blocks + 1), blocks, visits)
    parts = [Stretch(*(slice(int(by[a]), int(by[b])) for by in scales)) for a, b in pairwise(cuts)]
    return [part for part in parts if part.visits.stop > part.visits.start]


def pieces(rows: slice, width: int) -> list[slice]:
    """Return slices of rows with at most `CARD_CHUNK` numbers each."""
    step = max(1, CARD_CHUNK // width)
    return [slice(a, min(a + step, rows.stop)) for a in range(rows.start, rows.stop, step)]


def first_key(orders: Orders) -> IntArray:
    """Return the common part of all terminals' random streams in a round, as bits: see `rounds.stream`."""
    seed, number = np.array([orders.seed]), np.array([orders.round])
    with np.errstate(over="ignore"):
        return np.asarray(rounds.mix(rounds.mix(seed + rounds.GOLDEN) + number * rounds.GOLDEN)).view(np.int64)
