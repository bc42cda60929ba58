"""Feature maps, and the statistics of the data that they use.

A map has only its parameters. It says how many columns it adds to rows of d columns, and if it needs the quantiles of
round zero. `FeatureMap.function` then returns a pure function of rows: all terminals compute the same columns
from the same statistics and seed.

To add a map, write a frozen dataclass in a file of this package, and a line in `registry`.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]

LEVELS = np.array([0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995])
"""Levels of the quantiles that round zero estimates, with an edge for each level in a pass."""
PASSES = 6
"""Passes of counts for quantiles. A pass divides a bin with all levels into 16 parts, so the last bins are 1e-6 wide:
rows beside outliers of 1e6 standard deviations lie in such a narrow place.
Measured: tests/features/test_quantiles.py, errors in ranks at most 0.01 if skewed, 0.035 beside such outliers;
×0.5: 0.05, 0.5; ×2: 0.003, 0.003."""
FARTHEST = float(np.sqrt(1.0 / LEVELS[0] - 1.0))
"""No quantile at `LEVELS` lies more standard deviations from the mean (Cantelli's inequality)."""


class Graph(Protocol):
    """Builder of an ONNX graph, to which maps add their nodes; each method returns the name of a value."""

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Add an operator of ONNX."""

    def constant(self, values: FloatArray) -> str:
        """Add numbers."""

    def integers(self, values: list[int]) -> str:
        """Add whole numbers, as for shapes and indices."""

    def embed(self, encoder: bytes, rows: str) -> str:
        """Add the graph of an ONNX file."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics for maps: the number of columns, their quantiles at `LEVELS` (columns × levels), and the seed."""

    quantiles: FloatArray
    seed: int = 0

    @property
    def n_columns(self) -> int:
        """Number of columns of the rows before the map."""
        return len(self.quantiles)

    def generator(self, name: str) -> np.random.Generator:
        """Return random numbers for the map of this name; only the seed travels."""
        digest = hashlib.sha256(name.encode()).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest[:8], "big")])

    def ranks(self, rows: FloatArray) -> FloatArray:
        """Return the rows on their quantile scale: −1 at the lowest quantile, 1 at the highest, linear between."""
        scaled = np.empty_like(rows)
        for j, quantiles in enumerate(self.quantiles):
            scaled[:, j] = np.interp(rows[:, j], quantiles, 2.0 * LEVELS - 1.0)
        return scaled

    def rank_nodes(self, graph: Graph, rows: str) -> str:
        """Add `ranks` to an ONNX graph, as a sum of pieces that rise from 0 to 1 between neighbouring quantiles."""
        low, width = self.quantiles[:, :-1], np.diff(self.quantiles, axis=1)
        rising = piece_nodes(graph, rows, low, width)
        # Equal quantiles are a step: rows at this place have the highest rank of them.
        places = graph.node("Unsqueeze", [rows, graph.integers([2])])
        below = graph.node("Less", [places, graph.constant(low)])
        step = graph.node("Where", [below, graph.constant(np.zeros(1)), graph.constant((width == 0.0).astype(float))])
        rises = graph.constant(2.0 * np.diff(LEVELS))
        total = graph.node("MatMul", [graph.node("Add", [rising, step]), rises])
        return graph.node("Add", [total, graph.constant(2.0 * LEVELS[:1] - 1.0)])


def piece_nodes(graph: Graph, rows: str, low: FloatArray, width: FloatArray) -> str:
    """Add columns × pieces to an ONNX graph that rise from 0 at ``low`` to 1 after ``width``; 0 if the width is 0."""
    places = graph.node("Unsqueeze", [rows, graph.integers([2])])
    above = graph.node("Sub", [places, graph.constant(low)])
    shares = graph.node("Div", [above, graph.constant(np.where(width > 0.0, width, 1.0))])
    clipped = graph.node("Clip", [shares, graph.constant(np.array(0.0)), graph.constant(np.array(1.0))])
    return graph.node("Mul", [clipped, graph.constant((width > 0.0).astype(float))])


class FeatureMap(ABC):
    """A map from scaled rows to further columns."""

    needs_quantiles: ClassVar[bool] = False
    """True if the map needs the quantiles of the columns."""
    bounds: ClassVar[tuple[float, float]] = -math.inf, math.inf
    """Smallest and largest value of the columns that the map adds: stations refuse sums that no such rows have."""

    @abstractmethod
    def columns(self, n_columns: int) -> int:
        """Return the number of columns that the map adds to rows of ``n_columns`` columns."""

    @abstractmethod
    def function(self, statistics: Statistics) -> Function:
        """Return the pure function from rows to the columns that the map adds.

        A row alone must give the same bits as in a batch, because terminals and engines hold different batches. Matrix
        products do not: BLAS adds in another order for another number of rows.
        """

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add `function` to an ONNX graph and return the name of its columns, for the export of models."""
        raise ConfigError(f"feature map {type(self).__name__} cannot be exported to ONNX: it has no method add_nodes")

    @property
    def pinned(self) -> str | None:
        """Parameters that mean the same map on another machine, for records; None: as the user wrote them."""
        return None


def normal_quantiles(n_columns: int, deviation: float = 1.0) -> FloatArray:
    """Return the quantiles of columns that are normal with mean 0: public, so no row is needed."""
    normal = deviation * np.array([NormalDist().inv_cdf(level) for level in LEVELS.tolist()])
    return np.broadcast_to(normal, (n_columns, len(LEVELS))).copy()


def between_edges(edges: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the edges of the next pass: levels in the same bin divide it into equal parts.

    ``shares`` are the shares of rows up to each edge so far (both columns × edges, in order).
    """
    following = np.empty((len(edges), len(LEVELS)))
    for j, (at, up_to) in enumerate(zip(edges, shares, strict=True)):
        places = np.concatenate([[min(-FARTHEST, at[0])], at, [max(FARTHEST, at[-1])]])
        bins = np.searchsorted(up_to, LEVELS)  # bin k ends at the first edge with a share of at least the level
        for k in np.unique(bins).tolist():
            members = bins == k
            parts = np.arange(1, members.sum() + 1) / (members.sum() + 1)
            following[j, members] = places[k] + (places[k + 1] - places[k]) * parts
    return following


def at_edges(edges: FloatArray, shares: FloatArray) -> FloatArray:
    """Return for each of `LEVELS` the edge with the nearest share: columns of few values have few quantiles."""
    nearest = np.abs(shares[:, :, None] - LEVELS).argmin(axis=1)
    return np.take_along_axis(edges, nearest, 1)
