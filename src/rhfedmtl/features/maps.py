"""Sums of feature maps as text: ``splines=8+pairs=200``, or ``splines@5`` for the first 5 columns only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import LEVELS, FeatureMap, FloatArray, Function, Graph, Statistics
from rhfedmtl.features.registry import FEATURES, NO_MAP

COUNTS = "counts"
"""Name of the columns whose means are the shares of rows up to each edge, for quantiles."""

MOST_COLUMNS = 1 << 16
"""Columns of a mapped row in a network; a station could otherwise fill the memory of its terminals."""


@dataclass(frozen=True)
class Features:
    """A sum of maps by its text; mapped rows have the columns of the rows, and then the columns of each map.

    After "@" stands the number of columns that are mapped, from the first; by default all are.
    """

    text: str = NO_MAP

    def __post_init__(self) -> None:
        """Refuse unknown maps and parameters, and name files by their contents (`FeatureMap.pinned`)."""
        name, has_count, count = self.text.partition("@")
        self.n_mapped(len(self.maps))
        if name not in (NO_MAP, COUNTS):
            maps = "+".join(_pinned(part.strip()) for part in name.split("+"))
            object.__setattr__(self, "text", maps + has_count + count)

    def __bool__(self) -> bool:
        return self.text != NO_MAP

    @property
    def maps(self) -> tuple[FeatureMap, ...]:
        """The maps."""
        return _maps(self.text.partition("@")[0])

    def of_first(self, count: int) -> Features:
        """Return the maps of the first columns, unless the text says how many."""
        if "@" in self.text or not self:
            return self
        if count == 0:
            raise ConfigError(f"features {self.text!r} need columns of numbers, and the table has none: leave them out")
        return Features(f"{self.text}@{count}")

    @property
    def counts(self) -> Features:
        """Columns of counts for the quantiles of the same columns."""
        _, has_count, count = self.text.partition("@")
        return Features(COUNTS + has_count + count)

    def n_mapped(self, n_columns: int) -> int:
        """Return the number of columns that are mapped."""
        name, has_count, count = self.text.partition("@")
        if not has_count:
            return n_columns
        if not count.isdecimal():
            raise ConfigError(f"features {self.text!r}: write the number of mapped columns after '@', as in {name}@5")
        return min(int(count), n_columns)

    @property
    def surveys(self) -> tuple[str, ...]:
        """Texts of the maps whose moments round zero asks for."""
        return (self.text, self.counts.text) if self.needs_quantiles else (self.text,)

    @property
    def needs_quantiles(self) -> bool:
        """True if a map needs quantiles."""
        return any(part.needs_quantiles for part in self.maps)

    def columns(self, n_columns: int) -> int:
        """Return the number of columns of a mapped row."""
        mapped = self.n_mapped(n_columns)
        if self.is_counts:
            return mapped * len(LEVELS)
        return n_columns + sum(part.columns(mapped) for part in self.maps)

    @property
    def is_counts(self) -> bool:
        """True if the columns are those of counts."""
        return self.text.partition("@")[0] == COUNTS

    def least_scales(self, n_columns: int, n_rows: int) -> FloatArray:
        """Return the smallest scale of each mapped column.

        Columns of a map with values of size 1 count as if a row at least had a 1: 1/√rows. Without this bound a column
        that hardly varies in training, as a product of two rare values, would be enormous in a new row.
        """
        mapped, least = self.n_mapped(n_columns), 1.0 / math.sqrt(max(n_rows, 1))
        parts = [np.full(part.columns(mapped), least * bool(np.isfinite(part.bounds).all())) for part in self.maps]
        return np.concatenate([np.zeros(n_columns), *parts])

    def most_numbers(self, n_columns: int) -> int:
        """Return a bound on the numbers of a message of round zero: moments or counts, with the statistics."""
        return self.columns(n_columns) + (2 + len(LEVELS)) * n_columns if self else n_columns

    def bounds(self, n_columns: int) -> tuple[FloatArray, FloatArray]:
        """Return the smallest and the largest value of each column of a mapped row; infinite for the row itself."""
        if self.is_counts:
            ends, widths = [(0.0, 1.0)], [self.columns(n_columns)]
        else:
            mapped = self.n_mapped(n_columns)
            ends = [(-math.inf, math.inf), *(part.bounds for part in self.maps)]
            widths = [n_columns, *(part.columns(mapped) for part in self.maps)]
        low, high = np.repeat(np.array(ends), widths, axis=0).T
        return low, high

    def function(self, statistics: Statistics) -> Function:
        """Return the function from rows to mapped rows."""
        mapped = self.n_mapped(statistics.n_columns)
        first = Statistics(statistics.quantiles[:mapped], statistics.seed)
        if self.is_counts:
            edges = first.quantiles
            return lambda rows: (rows[:, :mapped, None] <= edges).reshape(len(rows), edges.size).astype(np.float64)
        functions = [part.function(first) for part in self.maps]
        return lambda rows: np.concatenate([rows, *(function(rows[:, :mapped]) for function in functions)], axis=1)

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add `function` to an ONNX graph and return the name of the mapped rows."""
        mapped = self.n_mapped(statistics.n_columns)
        first = Statistics(statistics.quantiles[:mapped], statistics.seed)
        source = graph.node("Gather", [rows, graph.integers(list(range(mapped)))], axis=1)
        return graph.node("Concat", [rows, *(part.add_nodes(graph, source, first) for part in self.maps)], axis=1)


def pinned(text: str) -> str:
    """Return the text with names and digests of files instead of paths; a sum with unknown maps is unchanged."""
    names = {part.partition("=")[0].strip() for part in text.partition("@")[0].split("+")}
    return Features(text).text if all(name in FEATURES for name in names) else text


def _pinned(part: str) -> str:
    """Return a map of a sum as another machine reads it."""
    parameters = _map(part).pinned
    return part if parameters is None else f"{part.partition('=')[0]}={parameters}"


@lru_cache(maxsize=64)
def _maps(text: str) -> tuple[FeatureMap, ...]:
    return () if text in (NO_MAP, COUNTS) else tuple(map(_map, text.split("+")))


def _map(part: str) -> FeatureMap:
    """Return a map of a sum."""
    name, has_value, value = part.partition("=")
    if name in (NO_MAP, "auto"):
        raise ConfigError(f"features: {name!r} stands alone; leave it out of the sum")
    entry = FEATURES[name]
    try:
        return entry(*map(_parameter, value.split(":"))) if has_value else entry()
    except TypeError:
        raise ConfigError(f"features {part!r}: write {entry.title.partition(': ')[0]}") from None


def _parameter(word: str) -> int | str:
    """Return a whole number, or the word."""
    return int(word) if word.removeprefix("-").isdecimal() and str(int(word)) == word else word
