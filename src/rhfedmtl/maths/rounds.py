"""What every kernel of a round shares: rows, who is under which station, orders and answers, random numbers, threads.

One terminal and a million terminals run through the same machine code, so a single terminal on its own gives,
to the bit, what it gives inside a batch. Terminals are grouped under their base station into blocks of at most
``BLOCK``; a block is summed in the order of terminal ids, a station in the order of its blocks. Threads share
out whole blocks, so their number never changes a result.

Randomness is addressed by (seed, round, terminal id): a counter-based generator (SplitMix64), no state anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.compiled import compiled, compiled_sum, inlined

FloatArray = npt.NDArray[np.floating[Any]]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BLOCK = 16
# A gain curve is the dual gain after 1, 2, 4, … 2^15 steps, and after all of them.
CURVE = 17
# Below this many multiplications work is faster on one thread than handed out to several.
WORK_PER_THREAD = 100_000
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


class Rows(NamedTuple):
    """What the terminals hold: rows one after the other, terminal ``t`` from ``starts[t]`` up to ``ends[t]``.

    Rows between an end and the next start have not arrived yet. ``norm`` is ‖x‖², with the constant feature where
    the models have one.
    """

    X: FloatArray
    y: Float64Array
    weight: Float64Array
    norm: Float64Array
    starts: IntArray
    ends: IntArray
    ids: IntArray

    @property
    def sizes(self) -> IntArray:
        """Rows that each terminal has."""
        return self.ends - self.starts

    @property
    def largest(self) -> int:
        """Rows of the terminal that has most."""
        return int(self.sizes.max(initial=1))


class Blocks(NamedTuple):
    """Who is under which station: terminals by (station, id), cut into blocks.

    Block ``k`` has the terminals ``order[blocks[k]:blocks[k+1]]`` and belongs to ``station[k]``; station ``b``
    has the blocks ``starts[b]:starts[b+1]``.
    """

    order: IntArray
    blocks: IntArray
    station: IntArray
    starts: IntArray


class Orders(NamedTuple):
    """What a round asks of the terminals.

    ``models[b]`` is w_b (one row per column of y) and ``scale[b]`` is λ_b n_b/σ′_b. ``steps[t]`` is H; 0 leaves
    the terminal alone. ``uniform`` draws rows with replacement instead of in passes.
    """

    models: FloatArray
    scale: Float64Array
    steps: IntArray
    seed: np.uint64
    round: np.uint64
    uniform: bool


class Answers(NamedTuple):
    """What a round returns, a row for each block or station: XᵀΔα, gain curve, course along Δα (line search)."""

    delta: Float64Array
    gains: Float64Array
    lines: Float64Array


@inlined
def mix(z: Any) -> Any:
    """Finaliser of SplitMix64: every bit of z changes half of the result."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@inlined
def stream(seed: Any, number: Any, terminal: Any) -> Any:
    """Start of the stream of one terminal in one round."""
    return mix(mix(mix(seed + GOLDEN) + number * GOLDEN) + np.uint64(terminal) * GOLDEN)


@inlined
def draw(key: Any, counter: Any, n: Any) -> Any:
    """Integer below n: draw number ``counter`` of a stream."""
    return np.int64(((mix(key + np.uint64(counter + 1) * GOLDEN) >> _S32) * np.uint64(n)) >> _S32)


@compiled_sum
def dot(X: Any, i: Any, w: Any, r: Any) -> Any:
    """x_iᵀw_r over the features of the row, in the precision of w.

    Kernels hand on whole arrays with the number of a row: cutting rows out costs more than small rows do.
    """
    total = w.dtype.type(0)
    for j in range(X.shape[1]):
        total += X[i, j] * w[r, j]
    return total


@compiled_sum
def add(c: Any, X: Any, i: Any, w: Any, r: Any, n: Any) -> None:
    """w_r += c x_i over the first n places, in the precision of w."""
    factor = w.dtype.type(c)
    for j in range(n):
        w[r, j] += factor * X[i, j]


@compiled_sum
def _add_four(c: Any, X: Any, rows: Any, w: Any, r: Any) -> None:
    """As four calls of `add`, with one pass over w."""
    c0, c1, c2, c3 = c
    i0, i1, i2, i3 = rows
    for j in range(X.shape[1]):
        w[r, j] = w[r, j] + c0 * X[i0, j] + c1 * X[i1, j] + c2 * X[i2, j] + c3 * X[i3, j]


@compiled_sum
def dot_four(X: Any, rows: Any, w: Any, r: Any) -> Any:
    """As four calls of `dot`, with one pass over w."""
    i0, i1, i2, i3 = rows
    t0 = t1 = t2 = t3 = w.dtype.type(0)
    for j in range(X.shape[1]):
        t0 += X[i0, j] * w[r, j]
        t1 += X[i1, j] * w[r, j]
        t2 += X[i2, j] * w[r, j]
        t3 += X[i3, j] * w[r, j]
    return t0, t1, t2, t3


@inlined
def score(X: Any, i: Any, w: Any, r: Any) -> Any:
    """Score x_iᵀw_r; a model one longer than the row ends in its intercept."""
    z = np.float64(dot(X, i, w, r))
    return z + w[r, X.shape[1]] if w.shape[1] > X.shape[1] else z


@inlined
def add_row(c: Any, X: Any, i: Any, w: Any, r: Any) -> None:
    """w_r += c x_i, the constant feature included."""
    add(c, X, i, w, r, X.shape[1])
    if w.shape[1] > X.shape[1]:
        w[r, X.shape[1]] += w.dtype.type(c)


@inlined
def add_rows(c: Any, X: Any, rows: Any, w: Any, r: Any) -> None:
    """w_r += Σ c_k x_k over four rows, the constant feature included."""
    _add_four(c, X, rows, w, r)
    if w.shape[1] > X.shape[1]:
        w[r, X.shape[1]] += c[0] + c[1] + c[2] + c[3]


@inlined
def pick_row(key: Any, h: Any, n: Any, uniform: Any, deck: Any) -> Any:
    """Row of step h: a uniform draw, or the next card of a deck shuffled anew every n steps (Fisher–Yates)."""
    if uniform:
        return draw(key, h, n)
    place = h if h < n else h % n
    other = place + draw(key, h, n - place)
    deck[place], deck[other] = deck[other], deck[place]
    return deck[place]


@compiled
def _row_norms(X: Any, constant: Any, norm: Any) -> None:
    for i in range(len(X)):
        total = constant
        for j in range(X.shape[1]):
            total += np.float64(X[i, j]) * np.float64(X[i, j])
        norm[i] = total


def make_rows(
    X: FloatArray,
    y: Float64Array,
    offsets: IntArray,
    *,
    ids: IntArray | None = None,
    weight: Float64Array | None = None,
    intercept: bool = False,
) -> Rows:
    """Rows ready for the kernels; ``X`` is used where it lies, never copied if it is contiguous."""
    X = np.ascontiguousarray(X)
    norm = np.empty(len(X))
    _row_norms(_fixed(X), 1.0 if intercept else 0.0, norm)
    weight = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
    ids = np.arange(len(offsets) - 1) if ids is None else ids
    y = np.ascontiguousarray(y, dtype=np.float64)
    starts, ends = _integers(offsets[:-1]), _integers(offsets[1:])
    return Rows(*(_fixed(part) for part in (X, y, weight, norm, starts, ends, _integers(ids))))


def with_sizes(rows: Rows, sizes: IntArray) -> Rows:
    """The same rows, of which each terminal has only the first so many yet."""
    return rows._replace(ends=_fixed(rows.starts + _integers(sizes)))


def make_layout(station: IntArray, n_stations: int, ids: IntArray) -> Blocks:
    """Order terminals by (station, id) and cut each station into blocks; a station of −1 leaves a terminal out."""
    station = np.asarray(station, dtype=np.int64)
    order = np.lexsort((ids, station))
    order = order[station[order] >= 0]
    counts = np.bincount(station[order], minlength=n_stations)
    per_station = -(-counts // BLOCK)
    starts = np.concatenate([[0], np.cumsum(per_station)])
    firsts = np.concatenate([[0], np.cumsum(counts)])
    block_station = np.repeat(np.arange(n_stations), per_station)
    blocks = firsts[block_station] + (np.arange(starts[-1]) - starts[block_station]) * BLOCK
    blocks = np.concatenate([blocks, [len(order)]])
    return Blocks(*(_integers(part) for part in (order, blocks, block_station, starts)))


@compiled
def _add_blocks(parts: Any, starts: Any, total: Any) -> None:
    for b in range(total.shape[0]):
        for k in range(starts[b], starts[b + 1]):
            for j in range(total.shape[1]):
                total[b, j] += parts[k, j]


def add_blocks(parts: Float64Array, starts: IntArray) -> Float64Array:
    """Sum of each station's blocks, in their order."""
    n_stations, shape = len(starts) - 1, parts.shape[1:]
    total = np.zeros((n_stations, math.prod(shape)))
    if total.size:
        _add_blocks(parts.reshape(len(parts), -1), starts, total)
    return total.reshape(n_stations, *shape)


def add_in_blocks(parts: Sequence[Float64Array | None], shape: tuple[int, ...]) -> Float64Array:
    """Sum of one station's terminals, given in id order (None: did not answer), exactly as the batch adds."""
    total = np.zeros(shape)
    for start in range(0, len(parts), BLOCK):
        block = np.zeros(shape)
        for part in parts[start : start + BLOCK]:
            if part is not None:
                block += part
        total += block
    return total


@compiled
def _steps_before(layout: Any, steps: Any, before: Any) -> None:
    """Steps of all terminals in the blocks before each, and of all blocks."""
    total = 0
    for block in range(len(layout.station)):
        before[block] = total
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            total += steps[layout.order[place]]
    before[len(layout.station)] = total


def cuts(layout: Blocks, steps: IntArray, width: int, threads: int) -> IntArray:
    """Block boundaries of stretches for threads to take; a single one where the work is too small to share.

    Stretches get smaller towards the end, so that all threads end at about the same time, also where one has a core
    that is busy with other things.
    """
    n_blocks = len(layout.station)
    if threads <= 1:
        return np.array([0, n_blocks])
    work = np.empty(n_blocks + 1, np.int64)
    _steps_before(layout, steps, work)
    least = max(WORK_PER_THREAD / max(int(work[-1]) * width, 1), 1.0 / n_blocks, 1.0 / (16 * threads))
    done = [0.0]
    while done[-1] + 2.0 * least <= 1.0:
        done.append(done[-1] + max((1.0 - done[-1]) / (2 * threads), least))
    inner = np.searchsorted(work, work[-1] * np.array(done[1:]))
    return np.concatenate([[0], inner, [n_blocks]])


def in_threads(threads: int, parts: IntArray, job: Callable[[Iterator[tuple[int, int]]], None]) -> None:
    """Let every thread, this one too, do its ``job`` with stretches of blocks between two cuts, while some are left."""
    left = iter(list(pairwise(parts.tolist())))
    others = [_pool(threads).submit(job, left) for _ in range(min(threads, len(parts) - 1) - 1)]
    try:
        job(left)
    finally:
        for other in others:
            other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rhfedmtl")


# A forked process has the pool's memory but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _integers(array: Any) -> IntArray:
    return np.ascontiguousarray(array, dtype=np.int64)


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only view: one array type for the compiler, whoever made the array."""
    view = array.view()
    view.flags.writeable = False
    return view
