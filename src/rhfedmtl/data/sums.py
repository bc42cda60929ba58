"""Compiled sums behind the moments of standardisation.

One terminal alone and a million at once run the same two functions, and additions keep their order, so both give
the same numbers to the bit. The kernels call nothing outside of this file: numba's cache does not notice edits in
other files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from rhfedmtl.data.threads import share_out

Matrix = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def _rows(X: Any, start: int, stop: int, mean: Any, spread: Any) -> None:
    """Write Σx/n and Σ(x − mean)² of the rows ``start:stop``; two passes, so that nothing cancels."""
    mean[:] = 0.0
    spread[:] = 0.0
    for i in range(start, stop):
        for j in range(X.shape[1]):
            mean[j] += X[i, j]
    if stop > start:
        for j in range(X.shape[1]):
            mean[j] /= stop - start
    for i in range(start, stop):
        for j in range(X.shape[1]):
            deviation = X[i, j] - mean[j]
            spread[j] += deviation * deviation


@njit(cache=True, nogil=True)
def merge(count: float, mean: Any, spread: Any, more: float, more_mean: Any, more_spread: Any) -> float:
    """Add the second moments to the first, in place (Chan, Golub and LeVeque 1979); returns the new count."""
    both = count + more
    if more == 0:
        return both
    part = more / both
    for j in range(len(mean)):
        shift = more_mean[j] - mean[j]
        mean[j] += shift * part
        spread[j] += more_spread[j] + shift * shift * (count * part)
    return both


@njit(cache=True, nogil=True)
def _parts(X: Any, offsets: Any, first: int, last: int, mean: Any, spread: Any) -> None:
    for t in range(first, last):
        _rows(X, offsets[t], offsets[t + 1], mean[t], spread[t])


@njit(cache=True, nogil=True)
def _stations(X: Any, terminals: Any, tasks: Any, first: int, last: int, mean: Any, spread: Any) -> None:
    part_mean, part_spread = np.empty(X.shape[1]), np.empty(X.shape[1])
    for b in range(first, last):
        count: Any = np.int64(0)
        for t in range(tasks[b], tasks[b + 1]):
            _rows(X, terminals[t], terminals[t + 1], part_mean, part_spread)
            count = merge(count, mean[b], spread[b], terminals[t + 1] - terminals[t], part_mean, part_spread)


@njit(cache=True, nogil=True)
def _labels(y: Any, weight: Any, start: int, stop: int, mean: Any, spread: Any) -> float:
    """Write the weighted mean of the labels ``start:stop`` and their Σ s (y − mean)²; returns Σs."""
    total, mean[0], spread[0] = 0.0, 0.0, 0.0
    for i in range(start, stop):
        total += weight[i]
        mean[0] += weight[i] * y[i]
    if total > 0.0:
        mean[0] /= total
    for i in range(start, stop):
        spread[0] += weight[i] * (y[i] - mean[0]) ** 2
    return total


@njit(cache=True, nogil=True)
def _station_labels(y: Any, weight: Any, terminals: Any, tasks: Any, out: Any) -> None:
    part_mean, part_spread = np.empty(1), np.empty(1)
    for b in range(len(out)):
        for t in range(tasks[b], tasks[b + 1]):
            more = _labels(y, weight, terminals[t], terminals[t + 1], part_mean, part_spread)
            out[b, 0] = merge(out[b, 0], out[b, 1:2], out[b, 2:3], more, part_mean, part_spread)


def of_labels(y: Any, weight: Any, terminals: Offsets, tasks: Offsets) -> Matrix:
    """Σs, mean and Σ s (y − mean)² of the labels of each base station, merged in the order of ids."""
    out = np.zeros((len(tasks) - 1, 3))
    _station_labels(y, weight, terminals, tasks, out)
    return out


def of_rows(X: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and summed squared deviation of all rows."""
    mean, spread = np.empty(X.shape[1]), np.empty(X.shape[1])
    _rows(X, 0, len(X), mean, spread)
    return mean, spread


def of_parts(X: Any, offsets: Offsets) -> tuple[Matrix, Matrix]:
    """Mean and summed squared deviation of each part of the rows."""
    mean, spread = np.zeros((len(offsets) - 1, X.shape[1])), np.zeros((len(offsets) - 1, X.shape[1]))
    share_out(lambda first, last: _parts(X, offsets, first, last, mean, spread), len(offsets) - 1, X.size)
    return mean, spread


def of_stations(X: Any, terminals: Offsets, tasks: Offsets) -> tuple[Matrix, Matrix]:
    """Mean and summed squared deviation of each base station, its terminals merged in the order of ids."""
    mean, spread = np.zeros((len(tasks) - 1, X.shape[1])), np.zeros((len(tasks) - 1, X.shape[1]))
    share_out(lambda first, last: _stations(X, terminals, tasks, first, last, mean, spread), len(tasks) - 1, X.size)
    return mean, spread
