"""Sums of feature maps as text: ``splines=8+pairs=200``."""

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

MOST_COLUMNS = 1 << 16
"""Columns of a mapped row in a network; a station could otherwise fill the memory of its terminals."""


@dataclass(frozen=True)
class Features:
    """A sum of maps by its text; mapped rows have the columns of the rows, and then those of each map."""

    text: str = NO_MAP

    def __post_init__(self) -> None:
        """Refuse unknown maps and parameters, and name files by their contents (`FeatureMap.pinned`)."""
        if self.text not in (NO_MAP, COUNTS):
            object.__setattr__(self, "text", "+".join(_pinned(part.strip()) for part in self.text.split("+")))

    def __bool__(self) -> bool:
        return self.text != NO_MAP

    @property
    def maps(self) -> tuple[FeatureMap, ...]:
        """The maps."""
        return _maps(self.text)

    @property
    def surveys(self) -> tuple[str, ...]:
        """Texts of the maps whose moments round zero asks for."""
        return (self.text, COUNTS) if self.needs_quantiles else (self.text,)

    @property
    def needs_quantiles(self) -> bool:
        """True if a map needs quantiles."""
        return any(part.needs_quantiles for part in self.maps)

    def columns(self, n_columns: int) -> int:
        """Return the number of columns of a mapped row."""
        if self.text == COUNTS:
            return n_columns * len(LEVELS)
        return n_columns + sum(part.columns(n_columns) for part in self.maps)

    def most_numbers(self, n_columns: int) -> int:
        """Return a bound on the numbers of a message of round zero: moments or counts, with the statistics."""
        return self.columns(n_columns) + (2 + len(LEVELS)) * n_columns if self else n_columns

    def bounds(self, n_columns: int) -> tuple[FloatArray, FloatArray]:
        """Return the smallest and the largest value of each column of a mapped row; infinite for the row itself."""
        if self.text == COUNTS:
            ends, widths = [(0.0, 1.0)], [self.columns(n_columns)]
        else:
            ends = [(-math.inf, math.inf), *(part.bounds for part in self.maps)]
            widths = [n_columns, *(part.columns(n_columns) for part in self.maps)]
        low, high = np.repeat(np.array(ends), widths, axis=0).T
        return low, high

    def function(self, statistics: Statistics) -> Function:
        """Return the function from rows to mapped rows."""
        if self.text == COUNTS:
            edges = statistics.quantiles
            return lambda rows: (rows[:, :, None] <= edges).reshape(len(rows), edges.size).astype(np.float64)
        functions = [part.function(statistics) for part in self.maps]
        return lambda rows: np.concatenate([rows, *(function(rows) for function in functions)], axis=1)


def pinned(text: str) -> str:
    """Return the text with names and digests of files instead of paths; a sum with unknown maps is unchanged."""
    names = {part.partition("=")[0].strip() for part in text.split("+")}
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
    if name == NO_MAP:
        raise ConfigError("features: 'none' stands alone; leave it out of the sum")
    entry = FEATURES[name]
    try:
        return entry(*map(_parameter, value.split(":"))) if has_value else entry()
    except TypeError:
        raise ConfigError(f"features {part!r}: write {entry.title.partition(':')[0]}") from None


def _parameter(word: str) -> int | str:
    """Return a whole number, or the word."""
    return int(word) if word.removeprefix("-").isdecimal() and str(int(word)) == word else word
