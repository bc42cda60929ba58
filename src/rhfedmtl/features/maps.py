"""Sums of feature maps as text: ``splines=8+pairs=200``, or ``splines@5`` for the first 5 columns only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import LEVELS, FeatureMap, FloatArray, Function, Statistics
from rhfedmtl.features.registry import FEATURES, NO_MAP

COUNTS = "counts"
"""Name of the columns whose means are the shares of rows up to each edge, for quantiles."""


@dataclass(frozen=True)
class Features:
    """A sum of maps by its text; mapped rows have the columns of the rows, and then the columns of each map.

    After "@" stands the number of columns that are mapped, from the first; by default all are.
    """

    text: str = NO_MAP

    def __post_init__(self) -> None:
        """Refuse unknown maps and parameters."""
        self.n_mapped(len(self.maps))

    def __bool__(self) -> bool:
        return self.text != NO_MAP

    @property
    def maps(self) -> tuple[FeatureMap, ...]:
        """The maps."""
        return _maps(self.text.partition("@")[0])

    def of_first(self, count: int) -> Features:
        """Return the maps of the first columns, unless the text says how many."""
        return self if "@" in self.text or not self else Features(f"{self.text}@{count}")

    def n_mapped(self, n_columns: int) -> int:
        """Return the number of columns that are mapped."""
        name, has_count, count = self.text.partition("@")
        if not has_count:
            return n_columns
        if not count.isdecimal():
            raise ConfigError(f"features {self.text!r}: write the number of mapped columns after '@', as in {name}@5")
        return min(int(count), n_columns)

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
        parts = [np.full(part.columns(mapped), least * part.bounded) for part in self.maps]
        return np.concatenate([np.zeros(n_columns), *parts])

    def function(self, statistics: Statistics) -> Function:
        """Return the function from rows to mapped rows."""
        mapped = self.n_mapped(statistics.n_columns)
        first = Statistics(statistics.quantiles[:mapped], statistics.seed)
        if self.is_counts:
            edges = first.quantiles
            return lambda rows: (rows[:, :mapped, None] <= edges).reshape(len(rows), -1).astype(np.float64)
        functions = [part.function(first) for part in self.maps]
        return lambda rows: np.concatenate([rows, *(function(rows[:, :mapped]) for function in functions)], axis=1)


@lru_cache(maxsize=64)
def _maps(text: str) -> tuple[FeatureMap, ...]:
    if text in (NO_MAP, COUNTS):
        return ()
    maps = []
    for part in text.split("+"):
        name, has_value, value = part.strip().partition("=")
        if name == NO_MAP:
            raise ConfigError(f"features {text!r}: 'none' stands alone; leave it out of the sum")
        entry = FEATURES[name]
        try:
            parameters = [int(word) if word.lstrip("-").isdigit() else word for word in value.split(":")]
            maps.append(entry(*parameters) if has_value else entry())
        except TypeError:
            raise ConfigError(f"features {part!r}: write {entry.title.partition(':')[0]}") from None
    return tuple(maps)
