"""Inner loops of the compiled kernels, and threads that share the blocks.

A single terminal and a million terminals run through the same machine code, so a terminal gives the same bits alone and
inside a batch. Threads take whole blocks, so their number never changes a result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from rhfedmtl.maths.kernels import rounds
from rhfedmtl.maths.kernels.compiled import compiled, compiled_sum, inlined
from rhfedmtl.maths.kernels.rounds import Answers, Float64Array, FloatArray, IntArray, Layout

# Below this many multiplications work is faster on one thread than handed out to several.
WORK_PER_THREAD = 100_000

inlined(rounds.mix)
stream, draw, next_pass = inlined(rounds.stream), inlined(rounds.draw), inlined(rounds.next_pass)


@compiled_sum
def dot(X: Any, i: Any, w: Any, r: Any) -> Any:
    """Return x_iᵀw_r over the features of the row, in the precision of w.

    Kernels pass whole arrays with the number of a row: slicing costs more than the work on a small row.
    """
    total = w.dtype.type(0)
    for j in range(X.shape[1]):
        total += X[i, j] * w[r, j]
    return total


@compiled_sum
def add(c: Any, X: Any, i: Any, w: Any, r: Any, n: Any) -> None:
    """Compute w_r += c x_i over the first n places, in the precision of w."""
    factor = w.dtype.type(c)
    for j in range(n):
        w[r, j] += factor * X[i, j]


@compiled_sum
def _add_four(c: Any, X: Any, rows: Any, w: Any, r: Any) -> None:
    """Do the work of four calls of `add`, with a single pass over w."""
    c0, c1, c2, c3 = c
    i0, i1, i2, i3 = rows
    for j in range(X.shape[1]):
        w[r, j] = w[r, j] + c0 * X[i0, j] + c1 * X[i1, j] + c2 * X[i2, j] + c3 * X[i3, j]


@compiled_sum
def dot_four(X: Any, rows: Any, w: Any, r: Any) -> Any:
    """Return the results of four calls of `dot`, with a single pass over w."""
    i0, i1, i2, i3 = rows
    t0 = t1 = t2 = t3 = w.dtype.type(0)
    for j in range(X.shape[1]):
        t0 += X[i0, j] * w[r, j]
        t1 += X[i1, j] * w[r, j]
        t2 += X[i2, j] * w[r, j]
        t3 += X[i3, j] * w[r, j]
    return t0, t1, t2, t3


@inlined
def score(rows: Any, i: Any, w: Any, r: Any) -> Any:
    """Return the score x_iᵀw_r, including the constant feature."""
    d = rows.X.shape[1]
    z = np.float64(dot(rows.X, i, w, r))
    return z + rows.constant * w[r, d] if w.shape[1] > d else z


@inlined
def add_row(c: Any, rows: Any, i: Any, w: Any, r: Any) -> None:
    """Compute w_r += c x_i, including the constant feature."""
    d = rows.X.shape[1]
    add(c, rows.X, i, w, r, d)
    if w.shape[1] > d:
        w[r, d] += w.dtype.type(c * rows.constant)


@inlined
def add_rows(c: Any, rows: Any, four: Any, w: Any, r: Any) -> None:
    """Compute w_r += Σ c_k x_k over four rows, including the constant feature."""
    d = rows.X.shape[1]
    _add_four(c, rows.X, four, w, r)
    if w.shape[1] > d:
        w[r, d] += (c[0] + c[1] + c[2] + c[3]) * rows.constant


@inlined
def deal(key: Any, h: Any, place: Any, n: Any, uniform: Any, deck: Any) -> Any:
    """Return the row of step h: a uniform draw, or this place of the deck.

    The first n cards of the deck are shuffled while they are dealt.
    """
    if uniform:
        return draw(key, h, n)
    swap = place + draw(key, h, n - place)
    deck[place], deck[swap] = deck[swap], deck[place]
    return deck[place]


@inlined
def pick_row(key: Any, h: Any, n: Any, uniform: Any, deck: Any) -> Any:
    """Return the row of step h in passes over all n rows (Fisher–Yates), or a uniform draw."""
    return deal(key, h, h if h < n else h % n, n, uniform, deck)


@compiled
def _row_norms(X: Any, first: Any, norm: Any) -> None:
    for i in range(len(X)):
        total = first
        for j in range(X.shape[1]):
            total += np.float64(X[i, j]) * np.float64(X[i, j])
        norm[i] = total


def row_norms(X: FloatArray, constant: float) -> Float64Array:
    """Return `rounds.row_norms` to the bit, fast enough for millions of rows."""
    norm = np.empty(len(X))
    _row_norms(rounds.fixed(X), constant * constant, norm)
    return norm


@compiled
def _add_blocks(parts: Any, starts: Any, total: Any) -> None:
    for b in range(total.shape[0]):
        for k in range(starts[b], starts[b + 1]):
            for j in range(total.shape[1]):
                total[b, j] += parts[k, j]


def add_blocks(parts: Float64Array, starts: IntArray) -> Float64Array:
    """Return the sum of each station's blocks, in their order."""
    n_stations, shape = len(starts) - 1, parts.shape[1:]
    total = np.zeros((n_stations, math.prod(shape)))
    if total.size:
        _add_blocks(parts.reshape(len(parts), total.shape[1]), starts, total)
    return total.reshape(n_stations, *shape)


@compiled
def scale_rows(values: Any, starts: Any, ends: Any, terminals: Any, factors: Any) -> None:
    """Multiply the rows of each of these terminals by its factor."""
    for k in range(len(terminals)):
        if factors[k] != 1.0:
            for i in range(starts[terminals[k]], ends[terminals[k]]):
                for c in range(values.shape[1]):
                    values[i, c] *= factors[k]


def add_answers(answers: Answers, starts: IntArray, *, quadratic: bool) -> Answers:
    """Return the sums of answers from each start to the next; the third number of a quadratic profile is a minimum."""
    profile = add_blocks(answers.profile, starts)
    if quadratic and profile.shape[1]:
        profile[:, 2] = np.inf
        np.minimum.at(profile[:, 2], np.repeat(np.arange(len(profile)), np.diff(starts)), answers.profile[:, 2])
    return Answers(add_blocks(answers.delta, starts), add_blocks(answers.gains, starts), profile)


@compiled
def _steps_before(layout: Any, steps: Any, before: Any) -> None:
    """Count the steps of all terminals in the blocks before each block, and of all blocks."""
    total = 0
    for block in range(len(layout.station)):
        before[block] = total
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            total += steps[layout.order[place]]
    before[len(layout.station)] = total


def cuts(layout: Layout, steps: IntArray, width: int, threads: int) -> IntArray:
    """Return block boundaries of stretches for threads to take; a single stretch if the work is too small to share.

    Stretches get smaller towards the end. Then all threads end at about the same time, even if another process slows
    one of their cores.
    """
    n_blocks = len(layout.station)
    if threads <= 1:
        return np.array([0, n_blocks])
    work = np.empty(n_blocks + 1, np.int64)
    _steps_before(layout, steps, work)
    smallest = max(WORK_PER_THREAD / max(int(work[-1]) * width, 1), 1.0 / n_blocks, 1.0 / (16 * threads))
    done = [0.0]
    while done[-1] + 2.0 * smallest <= 1.0:
        done.append(done[-1] + max((1.0 - done[-1]) / (2 * threads), smallest))
    inner = np.searchsorted(work, work[-1] * np.array(done[1:]))
    return np.concatenate([[0], inner, [n_blocks]])


def in_threads(threads: int, parts: IntArray, job: Callable[[Iterator[tuple[int, int]]], None]) -> None:
    """Run ``job`` in every thread, including this thread, until no stretch of blocks between two cuts remains."""
    remaining = iter(list(pairwise(parts.tolist())))
    futures = [_pool(threads).submit(job, remaining) for _ in range(min(threads, len(parts) - 1) - 1)]
    try:
        job(remaining)
    finally:
        for future in futures:
            future.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rhfedmtl")


# A forked process has the pool's memory but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
