"""Piecewise-linear encoding: each column becomes columns that rise from 0 to 1 between two neighbouring knots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import LEVELS, FeatureMap, FloatArray, Function, Statistics


@dataclass(frozen=True)
class Splines(FeatureMap):
    """``knots`` pieces of each column, between quantiles at equal distances of rank.

    A column with fewer different values has pieces of width 0, which are 0 everywhere.
    """

    knots: int = 8

    needs_quantiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse fewer than two pieces, which are no more than the column itself."""
        if not 2 <= self.knots <= 1000:
            raise ConfigError(f"splines={self.knots}: give 2 to 1000 pieces per column")

    def columns(self, n_columns: int) -> int:
        """Return ``knots`` columns for each column."""
        return self.knots * n_columns

    def function(self, statistics: Statistics) -> Function:
        """Return the encoding between the quantiles."""
        levels = np.linspace(LEVELS[0], LEVELS[-1], self.knots + 1)
        edges = np.array([np.interp(levels, LEVELS, quantiles) for quantiles in statistics.quantiles])
        low, width = edges[:, :-1], np.diff(edges, axis=1)

        def encode(rows: FloatArray) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore"):
                pieces = np.clip((rows[:, :, None] - low) / width, 0.0, 1.0)
            return np.where(width > 0.0, pieces, 0.0).reshape(len(rows), -1)

        return encode
