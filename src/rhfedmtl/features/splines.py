"""Piecewise-linear encoding: each column becomes columns that rise from 0 to 1 between two neighbouring knots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import LEVELS, FeatureMap, FloatArray, Function, Graph, Statistics, piece_nodes


@dataclass(frozen=True)
class Splines(FeatureMap):
    """``knots`` pieces of each column, between quantiles at equal distances of rank.

    A column with fewer different values has pieces of width 0, which are 0 everywhere.
    """

    knots: int = 8

    needs_quantiles: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = 0.0, 1.0

    def __post_init__(self) -> None:
        """Refuse fewer than two pieces, which are no more than the column itself."""
        if not 2 <= self.knots <= 1000:
            raise ConfigError(f"splines={self.knots}: give 2 to 1000 pieces per column")

    def columns(self, n_columns: int) -> int:
        """Return ``knots`` columns for each column."""
        return self.knots * n_columns

    def function(self, statistics: Statistics) -> Function:
        """Return the encoding between the quantiles."""
        low, width = self._pieces(statistics)

        def encode(rows: FloatArray) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                pieces = np.clip((rows[:, :, None] - low) / width, 0.0, 1.0)
            return np.where(width > 0.0, pieces, 0.0).reshape(len(rows), width.size)

        return encode

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add the encoding."""
        pieces = piece_nodes(graph, rows, *self._pieces(statistics))
        return graph.node("Reshape", [pieces, graph.integers([-1, self.columns(statistics.n_columns)])])

    def _pieces(self, statistics: Statistics) -> tuple[FloatArray, FloatArray]:
        """Return the place where each piece of a column starts, and its width."""
        levels = np.linspace(LEVELS[0], LEVELS[-1], self.knots + 1)
        edges = np.array([np.interp(levels, LEVELS, quantiles) for quantiles in statistics.quantiles])
        return edges[:, :-1], np.diff(edges, axis=1)
