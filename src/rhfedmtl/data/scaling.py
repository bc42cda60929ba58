"""Arithmetic of federated standardisation: sums that terminals may share, and the scaling made from them.

Only arithmetic lives here; who sends what to whom is the business of the roles. Where numbers cross the wire in single
precision, ``dtype``, they are rounded here, so that all who have them have the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import FloatArray, as_rows
from rhfedmtl.data.mapped import room_like
from rhfedmtl.errors import ConfigError, DataError

SCALES = ("standard-auto", "standard-unit", "standard-rms", "standard", "unit", "none")
FEW_FEATURES = 16
"""Up to so many features ``standard-auto`` keeps the length of rows: of one feature norm 1 leaves the sign alone."""
FEATURES_WORTH, LEAST_CONSTANT = 3.0, 0.25
"""Size of the constant feature, in typical features of a row of norm 1; and where many features leave little of it."""
MOST_LOST = 1e-3
"""Scales by which a column may be shifted where its mean is rounded."""
SMALL, LARGE = 1e3, 1e-6
"""Of the smallest and the largest number that a type holds: scales beyond come of numbers that it does not hold."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and summed squared deviation of some rows.

    The same information as (count, Σx, Σx²), in the form that does not cancel when a feature's mean is large
    against its spread.
    """

    count: int
    mean: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]

    @classmethod
    def of(cls, X: FloatArray) -> Moments:
        """Moments of the rows of one terminal, in two passes so that nothing cancels; constants keep their value."""
        X = as_rows(X)
        mean = _add_rows(X, np.zeros(X.shape[1])) / max(len(X), 1)
        if len(X):
            first = np.asarray(X[0], dtype=np.float64)
            blocks = (X[start : start + 1024] for start in range(0, len(X), 1024))
            mean = np.where(np.all([(block == first).all(axis=0) for block in blocks], axis=0), first, mean)
        return cls(len(X), mean, _add_rows(X, mean, squared=True))

    def __add__(self, other: Moments) -> Moments:
        """Moments of both sets of rows together (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        if other.count == 0:
            return self
        part, shift = other.count / count, other.mean - self.mean
        spread = self.spread + (other.spread + shift * shift * (self.count * part))
        return Moments(count, self.mean + shift * part, spread)

    def rounded(self, dtype: np.dtype[Any]) -> Moments:
        """The same with a mean, and a root of the spread, that this type holds: the root has the range of the rows.

        What is too large or too small for it becomes the largest or the smallest that it holds, and is refused with the
        scaling that it makes.
        """
        if dtype == np.float64:
            return self
        root = np.where(self.spread > 0.0, np.maximum(np.sqrt(self.spread), np.finfo(dtype).tiny), 0.0)
        return Moments(self.count, _rounded(self.mean, dtype), np.square(_rounded(root, dtype)))


@dataclass(frozen=True, eq=False)
class Scaler:
    """Subtract a mean, divide by a scale, then divide each row by its norm; each part may be absent."""

    mean: npt.NDArray[np.float64] | None = None
    scale: npt.NDArray[np.float64] | None = None
    unit: bool = False

    def constant(self, features: int) -> float:
        """Value of the constant feature that stands for an intercept, beside rows scaled like this.

        In a row of norm 1 one of d features is about 1/√d. A constant of 1 would outweigh them: all rows share it, so
        all terminals move it at once, and the first rounds go into it. The size of a few features learns sooner.
        """
        return min(1.0, max(LEAST_CONSTANT, FEATURES_WORTH / math.sqrt(max(features, 1)))) if self.unit else 1.0

    def radius(self, width: int, *, intercept: bool) -> float:
        """Norm of the longest row of so many numbers, a constant feature included; infinite where nothing bounds it."""
        if not self.unit:
            return math.inf
        return math.hypot(1.0, self.constant(width - 1)) if intercept else 1.0

    @classmethod
    def from_moments(cls, moments: Moments | None, how: str) -> Scaler:
        """Scaler called ``how`` (one of ``SCALES``); constant features keep scale 1, as in scikit-learn."""
        if how not in SCALES:
            raise ConfigError(f"unknown scaling {how!r}: choose one of {', '.join(SCALES)}")
        if not how.startswith("standard"):
            return cls(unit=how == "unit")
        if moments is None or moments.count == 0:
            raise ConfigError(f"scaling {how!r} needs the moments of at least one training row")
        if how == "standard-auto":
            how = "standard-rms" if len(moments.mean) <= FEW_FEATURES else "standard-unit"
        variance = moments.spread / moments.count
        # Adding up n equal numbers loses up to n eps of their mean (Chan, Golub and LeVeque 1983): a deviation below
        # that is a constant feature.
        constant = variance <= (moments.count * np.finfo(np.float64).eps * np.abs(moments.mean)) ** 2
        # Rows of norm 1 in the root mean square, so that weights and steps mean what they do for unit rows.
        length = np.sqrt(max(int(np.sum(~constant)), 1)) if how.endswith("rms") else 1.0
        return cls(moments.mean, np.where(constant, 1.0, length * np.sqrt(variance)), how.endswith("unit"))

    def rounded(self, dtype: np.dtype[Any], names: Sequence[str] = ()) -> Scaler:
        """The same in numbers that this type holds; refuses a column of which it keeps too little."""
        if self.mean is None or self.scale is None or dtype == np.float64:
            return self
        mean, scale, holds = _rounded(self.mean, dtype), _rounded(self.scale, dtype), np.finfo(dtype)
        inside = (SMALL * holds.tiny <= scale) & (scale <= LARGE * holds.max)
        fits = inside & (0.5 * holds.eps * np.abs(mean) <= MOST_LOST * scale)
        if not fits.all():
            j = int(np.argmin(fits))
            what = (
                f"has a mean of {self.mean[j]:.6g} and a scale of {self.scale[j]:.3g}, of which {dtype} on the wire "
                "keeps too little: subtract a base from it"
                if inside[j]
                else f"has numbers that {dtype} on the wire does not hold: give it in another unit"
            )
            raise DataError(
                f"column {repr(names[j]) if names else j} {what}, or take --precision float64 (auto is int8 where "
                "bytes are limited)"
            )
        return Scaler(mean, scale, self.unit)

    def transform(self, X: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Scaled rows in the dtype of ``X``, into ``out`` if given (which may be ``X`` itself); zero rows stay zero."""
        if self.mean is None and not self.unit and out is None:
            return X
        if out is None:
            out = room_like(X)
        for start in range(0, len(X), 4096):
            rows: npt.NDArray[np.float64] = np.asarray(X[start : start + 4096], dtype=np.float64)
            if self.mean is not None and self.scale is not None:
                rows = (rows - self.mean) / self.scale
            if self.unit:
                norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
                rows = rows / np.where(norms > 0, norms, 1.0)
            out[start : start + 4096] = rows
        return out


def _add_rows(X: FloatArray, mean: npt.NDArray[np.float64], *, squared: bool = False) -> npt.NDArray[np.float64]:
    """Σ (x − mean), or of its squares, from the first row to the last: the order in which `sums.py` adds."""
    total = np.zeros((1, X.shape[1]))
    for start in range(0, len(X), 1024):
        rows = X[start : start + 1024] - mean
        total = np.add.accumulate(np.concatenate([total, rows * rows if squared else rows]))[-1:]
    return np.asarray(total[0])


def _rounded(values: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """The nearest numbers that a type holds."""
    largest = float(np.finfo(dtype).max)
    return np.clip(values, -largest, largest).astype(dtype).astype(np.float64)


def total(moments: list[Moments]) -> Moments:
    """Sum in the given order, which is the order of ids: the result never depends on who answered first."""
    if not moments:
        raise ConfigError("a sum of moments needs at least one part")
    return reduce(operator.add, moments)


def scalers(
    stations: list[Moments],
    how: str,
    per_station: bool = False,
    dtype: npt.DTypeLike = np.float64,
    names: Sequence[str] = (),
) -> list[Scaler]:
    """Scaler of every base station: all the same, from the sums of all, or each from its own sums.

    In numbers that ``dtype`` holds; ``names`` are those of the columns, where they are known.
    """
    if not how.startswith("standard"):
        return [Scaler.from_moments(None, how)] * len(stations)
    if per_station:
        return [Scaler.from_moments(moments, how).rounded(np.dtype(dtype), names) for moments in stations]
    return [Scaler.from_moments(total(stations), how).rounded(np.dtype(dtype), names)] * len(stations)
