"""How the training rows of one task fall to its terminals.

A partition names a terminal for every row, so each row lands in exactly one place by construction. A new way of
dividing rows is one class here and its line in ``PARTITIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError, DataError

IntArray = npt.NDArray[np.int64]


class TaskRows(NamedTuple):
    """What a partition may look at: the training rows of one task, in the order of recording."""

    name: str
    stratum: IntArray
    """Class of every row; for regression, its tenth of the task's labels."""
    terminal: npt.NDArray[np.integer[Any]] | None = None
    """Code of the terminal column, where the data has one."""


class Partition(Protocol):
    """One way of dividing the rows of a task among its terminals."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Terminal, from 0, of every row; each terminal gets at least one."""
        ...


@dataclass(frozen=True)
class Iid:
    """At random, in sizes that differ by at most one."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Shuffle the even blocks."""
        return rng.permutation(Blocks().assign(rows, n_terminals, rng))


@dataclass(frozen=True)
class Blocks:
    """Contiguous stretches of the recording, in sizes that differ by at most one."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Cut where the recording stands; nothing is drawn."""
        check_enough(rows, n_terminals)
        return np.repeat(np.arange(n_terminals), even(len(rows.stratum), n_terminals))


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: each class is shared out by its own draw from Dirichlet(alpha, …, alpha).

    Small ``alpha`` gives terminals that see few classes; large ``alpha`` comes near to ``iid``.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ConfigError(f"dirichlet needs alpha > 0, got {self.alpha}")

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Share out class by class, then give each empty terminal one row of the largest."""
        check_enough(rows, n_terminals)
        chosen = np.empty(len(rows.stratum), dtype=np.int64)
        for stratum in np.unique(rows.stratum):
            members = rng.permutation(np.flatnonzero(rows.stratum == stratum))
            shares = rng.dirichlet(np.full(n_terminals, self.alpha))
            chosen[members] = np.repeat(np.arange(n_terminals), apportion(len(members), shares))
        sizes = np.bincount(chosen, minlength=n_terminals)
        for empty in np.flatnonzero(sizes == 0):
            largest = int(np.argmax(sizes))
            chosen[rng.choice(np.flatnonzero(chosen == largest))] = empty
            sizes[largest] -= 1
            sizes[empty] = 1
        return chosen


@dataclass(frozen=True)
class PowerLaw:
    """Sizes proportional to rank^-exponent, ranks dealt at random; the rows themselves at random."""

    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < np.inf:
            raise ConfigError(f"powerlaw needs an exponent of at least 0, got {self.exponent}")

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """One row for everybody, the others by the law."""
        check_enough(rows, n_terminals)
        weights = np.arange(1, n_terminals + 1, dtype=np.float64) ** -self.exponent
        sizes = 1 + apportion(len(rows.stratum) - n_terminals, rng.permutation(weights))
        return rng.permutation(np.repeat(np.arange(n_terminals), sizes))


@dataclass(frozen=True)
class Column:
    """By the terminal column of the data: as many terminals as a task has values there."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Follow the column; nothing is drawn."""
        if rows.terminal is None:
            raise ConfigError("partition 'column' needs a terminal column, and this data has none: name it, or use iid")
        return np.asarray(np.unique(rows.terminal, return_inverse=True)[1], dtype=np.int64)


def even(total: int, parts: int) -> IntArray:
    """Sizes of ``parts`` parts that differ by at most one; the first ones are larger."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def apportion(total: int, weights: npt.ArrayLike) -> IntArray:
    """Whole numbers in proportion to ``weights`` that add up to ``total``, by largest remainder.

    With whole weights whose sum is at least ``total``, no part exceeds its weight.
    """
    shares = np.asarray(weights, dtype=np.float64)
    scale = shares.sum()
    # Tiny alphas can underflow every Dirichlet share to 0; then all parts are alike.
    exact = total * (shares / scale) if scale > 0 else np.full(len(shares), total / len(shares))
    whole: IntArray = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[: total - int(whole.sum())]] += 1
    return whole


def check_enough(rows: TaskRows, n_terminals: int) -> None:
    """Every terminal must get a row."""
    if len(rows.stratum) < n_terminals:
        raise DataError(
            f"task {rows.name!r} has {len(rows.stratum)} training rows for {n_terminals} terminals: "
            "ask for fewer terminals or more samples per task"
        )


PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "blocks": Blocks,
    "dirichlet": Dirichlet,
    "powerlaw": PowerLaw,
    "column": Column,
}
