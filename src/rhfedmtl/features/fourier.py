"""Random cosine features of all columns, or of a few columns each (Rahimi and Recht 2007; Yu et al. 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.features.base import FeatureMap, FloatArray, Function, Statistics

KERNELS = ("gaussian", "laplace")
VARIABLES = 3
"""Columns that a feature of `SparseFourier` reads."""


def _check(name: str, columns: int) -> None:
    if columns < 2:
        raise ConfigError(f"{name}={columns}: give at least 2 columns")


def _cosines(frequencies: FloatArray, phases: FloatArray) -> Function:
    """Return √2 cos(x ω + b), a column for each frequency."""

    def transform(rows: FloatArray) -> FloatArray:
        return np.asarray(math.sqrt(2.0) * np.cos(rows @ frequencies + phases))

    return transform


@dataclass(frozen=True)
class Fourier(FeatureMap):
    """Orthogonal random features for the kernel exp(−‖x − x′‖²/d), or exp(−‖x − x′‖₁/d) with ``laplace``.

    The width is that of scikit-learn's ``gamma="scale"`` for standardised columns.
    """

    size: int = 500
    kernel: str = "gaussian"

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
        random, d = statistics.generator("fourier"), statistics.n_columns
        if self.kernel == "laplace":
            frequencies = random.standard_cauchy((d, self.size)) / d
        else:
            blocks = []
            for _ in range(-(-self.size // d)):
                directions, _ = np.linalg.qr(random.normal(size=(d, d)))
                blocks.append(directions * np.sqrt(random.chisquare(d, size=d)))
            frequencies = math.sqrt(2.0 / d) * np.concatenate(blocks, axis=1)[:, : self.size]
        return _cosines(frequencies, random.uniform(0.0, 2.0 * np.pi, self.size))


@dataclass(frozen=True)
class SparseFourier(FeatureMap):
    """Random cosine features of three columns each, on their quantile scale, for the Gaussian kernel of these three."""

    size: int = 500

    needs_quantiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse too few columns."""
        _check("sparse-fourier", self.size)

    def columns(self, n_columns: int) -> int:
        """Return ``size``."""
        return self.size

    def function(self, statistics: Statistics) -> Function:
        """Return the cosines; a rank has variance 1/3, so √3 standardises it."""
        random, d = statistics.generator("sparse-fourier"), statistics.n_columns
        count = min(VARIABLES, d)
        frequencies = np.zeros((d, self.size))
        for column in range(self.size):
            read = random.choice(d, count, replace=False)
            frequencies[read, column] = math.sqrt(2.0 / count) * math.sqrt(3.0) * random.normal(size=count)
        cosines = _cosines(frequencies, random.uniform(0.0, 2.0 * np.pi, self.size))
        return lambda rows: cosines(statistics.ranks(rows))
