"""Random cosine features of all columns, or of a few columns each (Rahimi and Recht 2007; Yu et al. 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import FeatureMap, FloatArray, Function, Graph, Statistics

KERNELS = ("gaussian", "laplace")
COSINES = -math.sqrt(2.0), math.sqrt(2.0)
"""Smallest and largest feature."""
VARIABLES = 3
"""Columns that a feature of `SparseFourier` reads."""


def _check(name: str, columns: int) -> None:
    if columns < 2:
        raise ConfigError(f"{name}={columns}: give at least 2 columns")


BLOCK = 64
"""Rows of a block: sums of a block stay in the cache."""


def _cosines(rows: FloatArray, frequencies: FloatArray, phases: FloatArray) -> FloatArray:
    """Return √2 cos(x ω + b), a column for each frequency.

    Products are added column after column, so a row gives the same bits in every batch (`FeatureMap.function`).
    """
    result = np.empty((len(rows), len(phases)))
    product = np.empty((min(BLOCK, len(rows)), len(phases)))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        angles, part = result[start : start + BLOCK], product[: len(block)]
        angles[:] = phases
        for j, frequency in enumerate(frequencies):
            angles += np.multiply(block[:, j : j + 1], frequency, out=part)
    return np.multiply(math.sqrt(2.0), np.cos(result, out=result), out=result)


def _cosine_nodes(graph: Graph, rows: str, frequencies: FloatArray, phases: FloatArray) -> str:
    """Add `_cosines` to an ONNX graph, as sines: every runtime has them in double precision."""
    products = graph.node("MatMul", [rows, graph.constant(frequencies)])
    angles = graph.node("Add", [products, graph.constant(phases + 0.5 * np.pi)])
    return graph.node("Mul", [graph.node("Sin", [angles]), graph.constant(np.array(math.sqrt(2.0)))])


def _orthonormal(matrix: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the columns, by the modified Gram–Schmidt method.

    A library's decomposition has other last digits with other numbers of threads; here all machines agree.
    """
    basis = matrix.copy()
    for j in range(basis.shape[1]):
        basis[:, j] /= math.sqrt(float(np.square(basis[:, j]).sum()))
        rest = basis[:, j + 1 :]
        rest -= basis[:, j, None] * (basis[:, j, None] * rest).sum(axis=0)
    return basis


@lru_cache(maxsize=8)
def _dense_frequencies(n_columns: int, size: int, kernel: str, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return the frequencies and phases of `Fourier`; terminals and stations need them many times."""
    random = Statistics(np.empty((n_columns, 0)), seed).generator("fourier")
    if kernel == "laplace":
        frequencies = random.standard_cauchy((n_columns, size)) / n_columns
    else:
        blocks = []
        for start in range(0, size, n_columns):
            count = min(n_columns, size - start)
            directions = _orthonormal(random.normal(size=(n_columns, count)))
            blocks.append(directions * np.sqrt(random.chisquare(n_columns, size=count)))
        frequencies = math.sqrt(2.0 / n_columns) * np.concatenate(blocks, axis=1)
    return frequencies, random.uniform(0.0, 2.0 * np.pi, size)


@lru_cache(maxsize=8)
def _sparse_frequencies(n_columns: int, size: int, seed: int) -> tuple[npt.NDArray[Any], FloatArray, FloatArray]:
    """Return the columns of each cosine of `SparseFourier` and their weights (variables × cosines), and phases."""
    random = Statistics(np.empty((n_columns, 0)), seed).generator("sparse-fourier")
    count = min(VARIABLES, n_columns)
    read, weights = np.empty((count, size), dtype=np.int64), np.empty((count, size))
    for column in range(size):
        read[:, column] = random.choice(n_columns, count, replace=False)
        weights[:, column] = math.sqrt(2.0 / count) * math.sqrt(3.0) * random.normal(size=count)
    return read, weights, random.uniform(0.0, 2.0 * np.pi, size)


@dataclass(frozen=True)
class Fourier(FeatureMap):
    """Orthogonal random features for the kernel exp(−‖x − x′‖²/d), or exp(−‖x − x′‖₁/d) with ``laplace``.

    The width is that of scikit-learn's ``gamma="scale"`` for standardised columns.
    """

    size: int = 500
    kernel: str = "gaussian"

    bounds: ClassVar[tuple[float, float]] = COSINES

    def __post_init__(self) -> None:
        """Refuse too few columns, or an unknown kernel."""
        _check("fourier", self.size)
        if self.kernel not in KERNELS:
            raise ConfigError(f"fourier={self.size}:{self.kernel}: choose the kernel from {', '.join(KERNELS)}")

    def columns(self, n_columns: int) -> int:
        """Return ``size``."""
        return self.size

    def function(self, statistics: Statistics) -> Function:
        """Return the cosines."""
        frequencies, phases = self._frequencies(statistics)
        return lambda rows: _cosines(rows, frequencies, phases)

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add the cosines."""
        return _cosine_nodes(graph, rows, *self._frequencies(statistics))

    def _frequencies(self, statistics: Statistics) -> tuple[FloatArray, FloatArray]:
        """Return random frequencies (column, cosine) and phases."""
        return _dense_frequencies(statistics.n_columns, self.size, self.kernel, statistics.seed)


@dataclass(frozen=True)
class SparseFourier(FeatureMap):
    """Random cosine features of three columns each, on their quantile scale, for the Gaussian kernel of these three."""

    size: int = 500

    needs_quantiles: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = COSINES

    def __post_init__(self) -> None:
        """Refuse too few columns."""
        _check("sparse-fourier", self.size)

    def columns(self, n_columns: int) -> int:
        """Return ``size``."""
        return self.size

    def function(self, statistics: Statistics) -> Function:
        """Return the cosines; a rank has variance 1/3, so √3 standardises it."""
        read, weights, phases = _sparse_frequencies(statistics.n_columns, self.size, statistics.seed)

        def transform(rows: FloatArray) -> FloatArray:
            ranks = statistics.ranks(rows)
            angles = sum((ranks[:, j] * w for j, w in zip(read, weights, strict=True)), phases)
            return np.asarray(math.sqrt(2.0) * np.cos(angles))

        return transform

    def add_nodes(self, graph: Graph, rows: str, statistics: Statistics) -> str:
        """Add the cosines."""
        read, weights, phases = _sparse_frequencies(statistics.n_columns, self.size, statistics.seed)
        frequencies = np.zeros((statistics.n_columns, self.size))
        frequencies[read, np.arange(self.size)] = weights
        return _cosine_nodes(graph, statistics.rank_nodes(graph, rows), frequencies, phases)
