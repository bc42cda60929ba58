"""Arithmetic of federated standardisation: sums that terminals may share, and the scaling made from them.

Only arithmetic lives here; who sends what to whom is the business of the roles.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from rhfedmtl.data import sums
from rhfedmtl.data.federation import FloatArray, IntArray, as_rows
from rhfedmtl.data.mapped import room_like
from rhfedmtl.errors import ConfigError

SCALES = ("standard-unit", "standard", "unit", "none")


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
        """Moments of the rows of one terminal, by the same kernel as the moments of a million of them."""
        mean, spread = sums.of_rows(as_rows(X))
        return cls(len(X), mean, spread)

    def __add__(self, other: Moments) -> Moments:
        """Moments of both sets of rows together (Chan, Golub and LeVeque 1979)."""
        mean, spread = self.mean.copy(), self.spread.copy()
        count = sums.merge(self.count, mean, spread, other.count, other.mean, other.spread)
        return Moments(int(count), mean, spread)


@dataclass(frozen=True, eq=False)
class Scaler:
    """Subtract a mean, divide by a scale, then divide each row by its norm; each part may be absent."""

    mean: npt.NDArray[np.float64] | None = None
    scale: npt.NDArray[np.float64] | None = None
    unit: bool = False

    @classmethod
    def from_moments(cls, moments: Moments | None, how: str) -> Scaler:
        """Scaler called ``how`` (one of ``SCALES``); constant features keep scale 1, as in scikit-learn."""
        if how not in SCALES:
            raise ConfigError(f"unknown scaling {how!r}: choose one of {', '.join(SCALES)}")
        if not how.startswith("standard"):
            return cls(unit=how == "unit")
        if moments is None or moments.count == 0:
            raise ConfigError(f"scaling {how!r} needs the moments of at least one training row")
        variance = moments.spread / moments.count
        # A spread below the rounding of the mean is a constant feature.
        constant = variance <= (10 * np.finfo(np.float64).eps * np.abs(moments.mean)) ** 2
        return cls(moments.mean, np.where(constant, 1.0, np.sqrt(variance)), how.endswith("unit"))

    def transform(self, X: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Scaled rows in the dtype of ``X``, into ``out`` if given (which may be ``X`` itself); zero rows stay zero."""
        if self.mean is None and not self.unit and out is None:
            return X
        if out is None:
            out = room_like(X)
        for start in range(0, len(X), 4096):
            out[start : start + 4096] = self._transform(X[start : start + 4096])
        return out

    def _transform(self, X: FloatArray) -> npt.NDArray[np.float64]:
        rows: npt.NDArray[np.float64] = np.asarray(X, dtype=np.float64)
        if self.mean is not None and self.scale is not None:
            rows = (rows - self.mean) / self.scale
        if self.unit:
            norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
            rows = rows / np.where(norms > 0, norms, 1.0)
        return rows


def terminal_moments(X: FloatArray, offsets: IntArray) -> list[Moments]:
    """Moments of every terminal's rows, each equal to the bit to what the terminal computes alone."""
    mean, spread = sums.of_parts(as_rows(X), np.asarray(offsets, dtype=np.int64))
    counts = np.diff(offsets).tolist()
    return [Moments(count, mean[t], spread[t]) for t, count in enumerate(counts)]


def station_moments(X: FloatArray, terminal_offsets: IntArray, task_offsets: IntArray) -> list[Moments]:
    """Moments of every base station's rows, merged terminal by terminal in the order of ids.

    Equal to the bit to ``total(terminal_moments(...))`` of each station, without an array of the size
    terminals × features: a million terminals take seconds.
    """
    terminals, tasks = (np.asarray(offsets, dtype=np.int64) for offsets in (terminal_offsets, task_offsets))
    mean, spread = sums.of_stations(as_rows(X), terminals, tasks)
    counts = np.diff(terminals[tasks]).tolist()
    return [Moments(count, mean[b], spread[b]) for b, count in enumerate(counts)]


def total(moments: list[Moments]) -> Moments:
    """Sum in the given order, which is the order of ids: the result never depends on who answered first."""
    if not moments:
        raise ConfigError("a sum of moments needs at least one part")
    return reduce(operator.add, moments)


def scalers(stations: list[Moments], how: str, per_station: bool = False) -> list[Scaler]:
    """Scaler of every base station: all the same, from the sums of all, or each from its own sums."""
    if per_station:
        return [Scaler.from_moments(moments, how) for moments in stations]
    return [Scaler.from_moments(total(stations), how)] * len(stations)
