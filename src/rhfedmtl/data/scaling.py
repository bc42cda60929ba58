"""Federated standardisation: sums that terminals may share, and the scaling that follows from the sums.

This module has only the arithmetic; the roles exchange the messages. Terminals compute `Moments`, stations and cloud
add them (`total`), and `scalers` turns them into a `Scaler` per station. If numbers cross the wire in single precision
(``dtype``), they are rounded in this module, so sender and receiver continue with equal numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import FloatArray, as_rows
from rhfedmtl.data.mapped import buffer_like
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.features.base import Function, Statistics
from rhfedmtl.features.maps import Features

SCALES = ("standard-auto", "standard-unit", "standard-rms", "standard", "unit", "none")
FEW_FEATURES = 16
"""Up to this many features, ``standard-auto`` keeps row lengths: unit norm would leave only the sign of one feature."""
CONSTANT_IN_FEATURES, MIN_CONSTANT = 3.0, 0.25
"""Size of the constant feature in typical features of a unit row, and its lower bound for many features."""
MAX_SHIFT = 1e-3
"""Rounding the mean may shift a scaled column by at most this."""
SMALLEST_FACTOR, LARGEST_FACTOR = 1e3, 1e-6
"""A scale must be at least the first times the smallest number of a type, and at most the second times the largest:
outside this range the numbers behind the scale do not fit into the type."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and summed squared deviation of a set of rows.

    This is the same information as (count, Σx, Σx²), but in a form without cancellation when a feature's mean is large
    compared with its spread.
    """

    count: int
    mean: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]

    @classmethod
    def of(cls, X: FloatArray) -> Moments:
        """Return the moments of a terminal's rows, in two passes to avoid cancellation; constants keep their value."""
        X = as_rows(X)
        mean = _add_rows(X, np.zeros(X.shape[1])) / max(len(X), 1)
        if len(X):
            first = np.asarray(X[0], dtype=np.float64)
            blocks = (X[start : start + 1024] for start in range(0, len(X), 1024))
            mean = np.where(np.all([(block == first).all(axis=0) for block in blocks], axis=0), first, mean)
        return cls(len(X), mean, _add_rows(X, mean, squared=True))

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        if other.count == 0:
            return self
        part, shift = other.count / count, other.mean - self.mean
        spread = self.spread + (other.spread + shift * shift * (self.count * part))
        return Moments(count, self.mean + shift * part, spread)

    def rounded(self, dtype: np.dtype[Any]) -> Moments:
        """Return the moments with mean and root of the spread rounded to ``dtype``; the root has the range of rows.

        Values outside the range of the type become its largest or smallest number; `Scaler.rounded` refuses the scaling
        that follows from them.
        """
        if dtype == np.float64:
            return self
        root = np.where(self.spread > 0.0, np.maximum(np.sqrt(self.spread), np.finfo(dtype).tiny), 0.0)
        return Moments(self.count, rounded(self.mean, dtype), np.square(rounded(root, dtype)))


NO_MOMENTS = Moments(0, np.empty(0), np.empty(0))
"""Moments of a station that sends no sums."""


@dataclass(frozen=True, eq=False)
class RowMap:
    """Feature maps with the scaling that comes before them, and their statistics."""

    features: Features
    first: Scaler
    statistics: Statistics

    @cached_property
    def _function(self) -> Function:
        return self.features.function(self.statistics)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone; the function follows from them."""
        return {name: value for name, value in vars(self).items() if name != "_function"}

    @property
    def columns(self) -> int:
        """Number of columns of a mapped row."""
        return self.features.columns(self.statistics.n_columns)

    def transform(self, X: FloatArray) -> npt.NDArray[np.float64]:
        """Return mapped rows."""
        rows: FloatArray = np.asarray(X, dtype=np.float64)
        return self._function(np.asarray(self.first.transform(rows), dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Return the map in plain values."""
        first, statistics = self.first, self.statistics
        return {
            "features": self.features.text,
            "mean": None if first.mean is None else first.mean.tolist(),
            "scale": None if first.scale is None else first.scale.tolist(),
            "unit": first.unit,
            "quantiles": statistics.quantiles.tolist(),
            "seed": statistics.seed,
        }

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> RowMap:
        """Return the map of `to_dict`."""
        mean, scale = (None if table[name] is None else np.array(table[name]) for name in ("mean", "scale"))
        statistics = Statistics(np.array(table["quantiles"]), int(table["seed"]))
        return cls(Features(table["features"]), Scaler(mean, scale, bool(table["unit"])), statistics)

    def moments(self, X: FloatArray) -> Moments:
        """Return the moments of the mapped rows."""
        mapped: FloatArray = self.transform(X)
        return Moments.of(mapped)


@dataclass(frozen=True, eq=False)
class Scaler:
    """Scaling of rows: map, subtract a mean, divide by a scale, then divide each row by its norm; all are optional."""

    mean: npt.NDArray[np.float64] | None = None
    scale: npt.NDArray[np.float64] | None = None
    unit: bool = False
    mapping: RowMap | None = None

    @property
    def from_rows(self) -> bool:
        """True if the scaling, or that before the feature map, follows from sums over rows."""
        return self.mean is not None or (self.mapping is not None and self.mapping.first.mean is not None)

    def columns(self, n_columns: int) -> int:
        """Return the number of columns of scaled rows, for rows of ``n_columns`` columns."""
        return n_columns if self.mapping is None else self.mapping.columns

    def constant(self, features: int) -> float:
        """Return the value of the constant feature for the intercept, for rows that are scaled in this way.

        In a unit row a typical feature is about 1/√d. A constant of 1 would outweigh the features: it occurs in all
        rows, so all terminals change its weight at once and the first rounds are spent on it. A constant as large as a
        few features learns sooner.
        """
        return min(1.0, max(MIN_CONSTANT, CONSTANT_IN_FEATURES / math.sqrt(max(features, 1)))) if self.unit else 1.0

    def radius(self, width: int, *, intercept: bool) -> float:
        """Return the norm of the longest row of ``width`` numbers, constant included; infinite without unit norm."""
        if not self.unit:
            return math.inf
        return math.hypot(1.0, self.constant(width - 1)) if intercept else 1.0

    @classmethod
    def from_moments(cls, moments: Moments | None, method: str, mapping: RowMap | None = None) -> Scaler:
        """Return the scaler of a method (see ``SCALES``); constant features keep scale 1, as in scikit-learn."""
        if method not in SCALES:
            raise ConfigError(f"unknown scaling {method!r}: choose one of {', '.join(SCALES)}")
        if not method.startswith("standard"):
            return cls(unit=method == "unit", mapping=mapping)
        if moments is None or moments.count == 0:
            raise ConfigError(f"scaling {method!r} needs the moments of at least one training row")
        if method == "standard-auto":
            method = "standard-rms" if len(moments.mean) <= FEW_FEATURES else "standard-unit"
        variance = moments.spread / moments.count
        # Adding n equal numbers loses up to n eps of their mean (Chan, Golub and LeVeque 1983): a smaller deviation
        # means that the feature is constant.
        constant = variance <= (moments.count * np.finfo(np.float64).eps * np.abs(moments.mean)) ** 2
        deviation = np.sqrt(variance)
        if mapping is not None:
            n_columns = mapping.statistics.n_columns
            deviation = np.maximum(deviation, mapping.features.least_scales(n_columns, moments.count))
        # The root mean square of row norms becomes 1, so weights and steps have the same scale as for unit rows.
        length = np.sqrt(max(int(np.sum(~constant)), 1)) if method.endswith("rms") else 1.0
        return cls(moments.mean, np.where(constant, 1.0, length * deviation), method.endswith("unit"), mapping)

    def rounded(self, dtype: np.dtype[Any], names: Sequence[str] = ()) -> Scaler:
        """Return the scaler rounded to ``dtype``; refuse a column that loses too much precision."""
        if self.mean is None or self.scale is None or dtype == np.float64:
            return self
        mean, scale, holds = rounded(self.mean, dtype), rounded(self.scale, dtype), np.finfo(dtype)
        inside = (SMALLEST_FACTOR * holds.tiny <= scale) & (scale <= LARGEST_FACTOR * holds.max)
        fits = inside & (0.5 * holds.eps * np.abs(mean) <= MAX_SHIFT * scale)
        if not fits.all():
            j = int(np.argmin(fits))
            problem = (
                f"has a mean of {self.mean[j]:.6g} and a scale of {self.scale[j]:.3g}, of which {dtype} on the wire "
                "keeps too little: subtract a base from it"
                if inside[j]
                else f"has numbers that {dtype} on the wire does not hold: give it in another unit"
            )
            raise DataError(
                f"column {repr(names[j]) if names else j} {problem}, or take --precision float64 (auto is int8 where "
                "bytes are limited)"
            )
        return Scaler(mean, scale, self.unit, self.mapping)

    def transform(self, X: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Return scaled rows in the dtype of ``X``, in ``out`` if set (may be ``X`` itself); zero rows stay zero."""
        if self.mean is None and not self.unit and out is None and self.mapping is None:
            return X
        if out is None:
            out = buffer_like(X, None if self.mapping is None else self.mapping.columns)
        for start in range(0, len(X), 4096):
            rows: npt.NDArray[np.float64] = np.asarray(X[start : start + 4096], dtype=np.float64)
            if self.mapping is not None:
                rows = self.mapping.transform(rows)
            if self.mean is not None and self.scale is not None:
                rows = (rows - self.mean) / self.scale
            if self.unit:
                norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
                rows = rows / np.where(norms > 0, norms, 1.0)
            out[start : start + 4096] = rows
        return out


def _add_rows(X: FloatArray, mean: npt.NDArray[np.float64], *, squared: bool = False) -> npt.NDArray[np.float64]:
    """Return Σ (x − mean), or Σ (x − mean)², added from the first row to the last as in `sums.py`."""
    total = np.zeros((1, X.shape[1]))
    for start in range(0, len(X), 1024):
        rows = X[start : start + 1024] - mean
        total = np.add.accumulate(np.concatenate([total, rows * rows if squared else rows]))[-1:]
    return np.asarray(total[0])


def rounded(values: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """Return the nearest numbers of type ``dtype``."""
    largest = float(np.finfo(dtype).max)
    return np.clip(values, -largest, largest).astype(dtype).astype(np.float64)


def total(moments: list[Moments]) -> Moments:
    """Return the sum in the order of the list, which is the order of ids: arrival order cannot change the result."""
    if not moments:
        raise ConfigError("a sum of moments needs at least one part")
    return reduce(operator.add, moments)


def scalers(
    stations: list[Moments],
    method: str,
    per_station: bool = False,
    dtype: npt.DTypeLike = np.float64,
    names: Sequence[str] = (),
    mappings: Sequence[RowMap] | None = None,
) -> list[Scaler]:
    """Return the scaler of every base station: a common scaler from all sums, or each from the station's own sums.

    The numbers are rounded to ``dtype``; ``names`` are the column names for error messages. With ``mappings``, one for
    each station, the moments belong to mapped rows.
    """
    maps: Sequence[RowMap | None] = mappings or [None] * len(stations)
    if per_station:
        parts: Sequence[Moments | None] = stations if method.startswith("standard") else [None] * len(stations)
        pairs = zip(parts, maps, strict=True)
        return [Scaler.from_moments(part, method, row_map).rounded(np.dtype(dtype), names) for part, row_map in pairs]
    together = total(stations) if method.startswith("standard") else None
    return [Scaler.from_moments(together, method, maps[0]).rounded(np.dtype(dtype), names)] * len(stations)
