"""Divide the training rows of a task among its terminals.

`split.federate` calls a partition once per task. A partition returns the terminal of every row, so each row belongs to
exactly one terminal by construction. To add a partition, write a class in this file and add a line to ``PARTITIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError, DataError

IntArray = npt.NDArray[np.int64]


class TaskRows(NamedTuple):
    """Input of a partition: the training rows of one task, in the order of recording."""

    name: str
    stratum: IntArray
    """Class of every row; for a regression, the decile of its label within the task."""
    terminal: npt.NDArray[np.integer[Any]] | None = None
    """Code of the terminal column, if the data has such a column."""


class Partition(Protocol):
    """A rule that divides the rows of a task among its terminals."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Return the terminal (from 0) of every row; each terminal gets at least one row."""
        ...


@dataclass(frozen=True)
class Iid:
    """Random assignment, in sizes that differ by at most 1."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Shuffle the assignment of `Blocks`."""
        return rng.permutation(Blocks().assign(rows, n_terminals, rng))


@dataclass(frozen=True)
class Blocks:
    """Contiguous stretches of the recording, in sizes that differ by at most 1."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Cut the recording in its order; ``rng`` is not used."""
        check_enough(rows, n_terminals)
        return np.repeat(np.arange(n_terminals), even(len(rows.stratum), n_terminals))


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: the rows of each class are divided by an independent draw from Dirichlet(alpha, …, alpha).

    With a small ``alpha`` a terminal sees few classes; a large ``alpha`` approaches ``iid``.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ConfigError(f"dirichlet needs alpha > 0, got {self.alpha}")

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Divide class by class, then give each empty terminal a row of the largest terminal."""
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
    """Sizes proportional to rank^-exponent; ranks and rows are assigned at random."""

    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < np.inf:
            raise ConfigError(f"powerlaw needs an exponent of at least 0, got {self.exponent}")

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Give every terminal a first row, and divide the remaining rows by the power law."""
        check_enough(rows, n_terminals)
        weights = np.arange(1, n_terminals + 1, dtype=np.float64) ** -self.exponent
        sizes = 1 + apportion(len(rows.stratum) - n_terminals, rng.permutation(weights))
        return rng.permutation(np.repeat(np.arange(n_terminals), sizes))


@dataclass(frozen=True)
class Column:
    """The terminal column of the data: each of a task's values in that column is a terminal."""

    def assign(self, rows: TaskRows, n_terminals: int, rng: np.random.Generator) -> IntArray:
        """Follow the column; ``rng`` is not used."""
        if rows.terminal is None:
            raise ConfigError("partition 'column' needs a terminal column, and this data has none: name it, or use iid")
        return np.asarray(np.unique(rows.terminal, return_inverse=True)[1], dtype=np.int64)


def even(total: int, parts: int) -> IntArray:
    """Return the sizes of ``parts`` parts that differ by at most 1; the first parts are larger."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def apportion(total: int, weights: npt.ArrayLike) -> IntArray:
    """Return whole numbers in proportion to ``weights`` that add up to ``total``, by largest remainder.

    If the weights are whole numbers with a sum of at least ``total``, no part exceeds its weight.
    """
    shares = np.asarray(weights, dtype=np.float64)
    scale = shares.sum()
    # Tiny alphas can underflow every Dirichlet share to 0; then all parts get equal shares.
    exact = total * (shares / scale) if scale > 0 else np.full(len(shares), total / len(shares))
    rounded: IntArray = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(rounded - exact, kind="stable")
    rounded[by_remainder[: total - int(rounded.sum())]] += 1
    return rounded


def check_enough(rows: TaskRows, n_terminals: int) -> None:
    """Refuse a task with fewer training rows than terminals."""
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
