"""Products of pairs of columns on their quantile scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import FeatureMap, FloatArray, Function, Statistics


@dataclass(frozen=True)
class Pairs(FeatureMap):
    """Products of all pairs of columns, or of ``most`` pairs drawn with the seed."""

    most: int = 500

    needs_quantiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a number of pairs below 1."""
        if self.most < 1:
            raise ConfigError(f"pairs={self.most}: give at least 1 pair")

    def columns(self, n_columns: int) -> int:
        """Return the number of pairs."""
        return min(self.most, n_columns * (n_columns - 1) // 2)

    def function(self, statistics: Statistics) -> Function:
        """Return the products."""
        first, second = np.triu_indices(statistics.n_columns, 1)
        if len(first) > self.most:
            chosen = np.sort(statistics.generator("pairs").choice(len(first), self.most, replace=False))
            first, second = first[chosen], second[chosen]

        def multiply(rows: FloatArray) -> FloatArray:
            ranks = statistics.ranks(rows)
            return np.asarray(ranks[:, first] * ranks[:, second])

        return multiply
