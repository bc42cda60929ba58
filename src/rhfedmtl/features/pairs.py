"""Products of pairs of columns on their quantile scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import FeatureMap, FloatArray, Function, Graph, Statistics


@dataclass(frozen=True)
class Pairs(FeatureMap):
    """Products of all pairs of columns, or of ``most`` pairs drawn with the seed."""

    most: int = 500

    needs_quantiles: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = -1.0, 1.0

    def __post_init__(self) -> None:
        """Refuse a number of pairs below 1."""
        if self.most < 1:
            raise ConfigError(f"pairs={self.most}: give at least 1 pair")

    def columns(self, n_columns: int) -> int:
        """Return the number of pairs."""
        return min(self.most, n_columns * (n_columns - 1) // 2)

    def function(self, statistics: Statistics) -> Function:
        """Return the products."""
        first, second = self._chosen(statistics)

        def multiply(rows: FloatArray) -> FloatArray:
            ranks = statistics.ranks(rows)
            return np.asarray(ranks[:, first] * ranks[:, second])

        return multiply

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add the products."""
        ranks = statistics.rank_nodes(graph, rows)
        factors = [
            graph.node("Gather", [ranks, graph.integers(part.tolist())], axis=1) for part in self._chosen(statistics)
        ]
        return graph.node("Mul", factors)

    def _chosen(self, statistics: Statistics) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the first and the second column of each pair."""
        first, second = np.triu_indices(statistics.n_columns, 1)
        if len(first) <= self.most:
            return first, second
        chosen = np.sort(statistics.generator("pairs").choice(len(first), self.most, replace=False))
        return first[chosen], second[chosen]
