"""Compute the moments of the rows of many terminals at once, in compiled code.

Every engine that simulates a whole network calls `station_moments` for standardisation. The additions have the same
order as in `scaling.py`, where each terminal adds up its own rows, so both give the same numbers to the bit. The
kernels call only functions of this file, because numba's cache does not notice edits in other files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from rhfedmtl.data.federation import FloatArray, IntArray, as_rows
from rhfedmtl.data.scaling import Moments
from rhfedmtl.data.threads import share_out
from rhfedmtl.maths.kernels.rounds import fixed

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@njit(cache=True, nogil=True)
def _rows(X: Any, start: int, stop: int, mean: Any, spread: Any) -> None:
    """Write Σx/n and Σ(x − mean)² of the rows ``start:stop``, in two passes to avoid cancellation.

    The mean of a constant column equals its value to the bit, so the scaled column is exactly zero and has no weight.
    """
    mean[:] = 0.0
    spread[:] = 0.0
    for i in range(start, stop):
        for j in range(X.shape[1]):
            mean[j] += X[i, j]
            if X[i, j] != X[start, j]:
                spread[j] = 1.0
    if stop > start:
        for j in range(X.shape[1]):
            mean[j] = mean[j] / (stop - start) if spread[j] > 0.0 else np.float64(X[start, j])
            spread[j] = 0.0
    for i in range(start, stop):
        for j in range(X.shape[1]):
            deviation = X[i, j] - mean[j]
            spread[j] += deviation * deviation


@njit(cache=True, nogil=True)
def _merge(count: int, mean: Any, spread: Any, more: int, more_mean: Any, more_spread: Any) -> int:
    """Add the second moments to the first, in place (Chan, Golub and LeVeque 1979); return the new count."""
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
def _round(mean: Any, spread: Any) -> None:
    """Round to single precision in place, as `Moments.rounded` does."""
    for j in range(len(mean)):
        mean[j] = np.float64(np.float32(min(max(mean[j], -LARGEST), LARGEST)))
        if spread[j] > 0.0:
            root = np.float64(np.float32(min(max(np.sqrt(spread[j]), SMALLEST), LARGEST)))
            spread[j] = root * root


@njit(cache=True, nogil=True)
def _stations(first: int, last: int, X: Any, terminals: Any, tasks: Any, mean: Any, spread: Any, single: bool) -> None:
    part_mean, part_spread = np.empty(X.shape[1]), np.empty(X.shape[1])
    for b in range(first, last):
        count: Any = np.int64(0)
        for t in range(tasks[b], tasks[b + 1]):
            _rows(X, terminals[t], terminals[t + 1], part_mean, part_spread)
            if single:
                _round(part_mean, part_spread)
            count = _merge(count, mean[b], spread[b], terminals[t + 1] - terminals[t], part_mean, part_spread)


def station_moments(
    X: FloatArray, terminal_offsets: IntArray, task_offsets: IntArray, dtype: npt.DTypeLike = np.float64
) -> list[Moments]:
    """Return the moments of every base station's rows, merged terminal by terminal in the order of ids.

    The result equals ``total`` of the moments of each station's terminals to the bit, without building these objects:
    a million terminals take seconds. Moments of terminals and of stations are rounded to ``dtype``, float64 or float32.
    """
    X = fixed(as_rows(X))
    terminals, tasks = (np.asarray(part, dtype=np.int64) for part in (terminal_offsets, task_offsets))
    mean, spread = np.zeros((len(tasks) - 1, X.shape[1])), np.zeros((len(tasks) - 1, X.shape[1]))
    dtype = np.dtype(dtype)
    arguments = X, terminals, tasks, mean, spread, dtype == np.float32
    share_out(lambda first, last: _stations(first, last, *arguments), len(tasks) - 1, X.size)
    counts = np.diff(terminals[tasks]).tolist()
    return [Moments(count, mean[b], spread[b]).rounded(dtype) for b, count in enumerate(counts)]
