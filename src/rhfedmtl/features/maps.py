"""Sums of feature maps as text: ``splines=8+pairs=200``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import LEVELS, FeatureMap, Function, Statistics
from rhfedmtl.features.registry import FEATURES, NO_MAP

COUNTS = "counts"
"""Name of the columns whose means are the shares of rows up to each edge, for quantiles."""


@dataclass(frozen=True)
class Features:
    """A sum of maps by its text; mapped rows have the columns of the rows, and then those of each map."""

    text: str = NO_MAP

    def __post_init__(self) -> None:
        """Refuse unknown maps and parameters."""
        self.maps  # noqa: B018

    def __bool__(self) -> bool:
        return self.text != NO_MAP

    @property
    def maps(self) -> tuple[FeatureMap, ...]:
        """The maps."""
        return _maps(self.text)

    @property
    def needs_quantiles(self) -> bool:
        """True if a map needs quantiles."""
        return any(part.needs_quantiles for part in self.maps)

    def columns(self, n_columns: int) -> int:
        """Return the number of columns of a mapped row."""
        if self.text == COUNTS:
            return n_columns * len(LEVELS)
        return n_columns + sum(part.columns(n_columns) for part in self.maps)

    def function(self, statistics: Statistics) -> Function:
        """Return the function from rows to mapped rows."""
        if self.text == COUNTS:
            edges = statistics.quantiles
            return lambda rows: (rows[:, :, None] <= edges).reshape(len(rows), -1).astype(np.float64)
        functions = [part.function(statistics) for part in self.maps]
        return lambda rows: np.concatenate([rows, *(function(rows) for function in functions)], axis=1)


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
