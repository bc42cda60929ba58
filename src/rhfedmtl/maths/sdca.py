"""Dual coordinate ascent: a round of any number of terminals, in one call of compiled code.

One terminal and a million terminals run through the same machine code, so a single terminal on its own gives,
to the bit, what it gives inside a batch. Terminals are grouped under their base station into blocks of at most
``BLOCK``; a block is summed in the order of terminal ids, a station in the order of its blocks. Threads share
out whole blocks, so their number never changes a result.

Randomness is addressed by (seed, round, terminal id): a counter-based generator (SplitMix64), no state anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from rhfedmtl.maths.compiled import compiled, compiled_sum
from rhfedmtl.maths.losses import Loss, conjugate, dual_step, is_quadratic, line, value

FloatArray = npt.NDArray[np.floating[Any]]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BLOCK = 16
# A gain curve is the dual gain after 1, 2, 4, … 2^15 steps, and after all of them.
CURVE = 17
# Factors at which a terminal reports its dual sum, where the conjugate is not quadratic (line search).
FACTORS: Float64Array = 2.0 ** np.arange(-10.0, 6.5, 0.5)
# Below this many multiplications a round is faster on one thread than handed out to several.
WORK_PER_THREAD = 100_000
PARTS_PER_THREAD = 4

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
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


class Layout(NamedTuple):
    """Who is under which station: terminals by (station, id), cut into blocks.

    Block ``k`` has the terminals ``order[blocks[k]:blocks[k+1]]`` and belongs to ``station[k]``; station ``b``
    has the blocks ``starts[b]:starts[b+1]``.
    """

    order: IntArray
    blocks: IntArray
    station: IntArray
    starts: IntArray


class Duals(NamedTuple):
    """Dual variables, and the change of each that waits for its verdict: ``settle[t]`` is the factor to apply."""

    alpha: Float64Array
    pending: Float64Array
    settle: Float64Array


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


@register_jitable
def _mix(z: Any) -> Any:
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@register_jitable
def _key(seed: Any, number: Any, terminal: Any) -> Any:
    """Start of the stream of one terminal in one round."""
    return _mix(_mix(_mix(seed + _GOLDEN) + number * _GOLDEN) + np.uint64(terminal) * _GOLDEN)


@register_jitable
def _draw(key: Any, counter: Any, n: Any) -> Any:
    """Integer below n: draw number ``counter`` of a stream."""
    return np.int64(((_mix(key + np.uint64(counter + 1) * _GOLDEN) >> _S32) * np.uint64(n)) >> _S32)


@compiled_sum
def _dot(x: Any, w: Any, n: Any) -> Any:
    total = w.dtype.type(0)
    for j in range(n):
        total += x[j] * w[j]
    return total


@compiled_sum
def _add(c: Any, x: Any, w: Any, n: Any) -> None:
    factor = w.dtype.type(c)
    for j in range(n):
        w[j] += factor * x[j]


@compiled_sum
def _add_four(c: Any, x0: Any, x1: Any, x2: Any, x3: Any, w: Any, n: Any) -> None:
    """As four calls of `_add`, with one pass over w."""
    c0, c1, c2, c3 = c
    for j in range(n):
        w[j] = w[j] + c0 * x0[j] + c1 * x1[j] + c2 * x2[j] + c3 * x3[j]


@register_jitable
def _score(X: Any, i: Any, w: Any) -> Any:
    """Score xᵀw of row i; a model one longer than the row ends in its intercept."""
    z = np.float64(_dot(X[i], w, X.shape[1]))
    return z + w[X.shape[1]] if len(w) > X.shape[1] else z


@register_jitable
def _add_row(c: Any, X: Any, i: Any, w: Any) -> None:
    """w += c x_i, the constant feature included."""
    _add(c, X[i], w, X.shape[1])
    if len(w) > X.shape[1]:
        w[X.shape[1]] += w.dtype.type(c)


@register_jitable
def _add_rows(factors: Any, X: Any, chosen: Any, w: Any) -> None:
    """w += Σ c_i x_i over at most four rows, the constant feature included."""
    n = len(chosen)
    i0 = chosen[0]
    i1 = chosen[1] if n > 1 else i0
    i2 = chosen[2] if n > 2 else i0
    i3 = chosen[3] if n > 3 else i0
    c0 = factors[i0]
    c1 = factors[i1] if n > 1 else 0.0
    c2 = factors[i2] if n > 2 else 0.0
    c3 = factors[i3] if n > 3 else 0.0
    _add_four((c0, c1, c2, c3), X[i0], X[i1], X[i2], X[i3], w, X.shape[1])
    if len(w) > X.shape[1]:
        w[X.shape[1]] += c0 + c1 + c2 + c3


@register_jitable
def _settle(duals: Any, t: Any, start: Any, stop: Any) -> None:
    """Apply what became of the pending change: α += factor Δα. Nothing is pending afterwards."""
    factor = duals.settle[t]
    for i in range(start, stop):
        for c in range(duals.alpha.shape[1]):
            duals.alpha[i, c] += factor * duals.pending[i, c]
            duals.pending[i, c] = 0.0
    duals.settle[t] = 0.0


@register_jitable
def _pick(key: Any, h: Any, n: Any, uniform: Any, deck: Any) -> Any:
    """Row of step h: a uniform draw, or the next card of a deck shuffled anew every n steps (Fisher–Yates)."""
    if uniform:
        return _draw(key, h, n)
    place = h % n
    other = place + _draw(key, h, n - place)
    deck[place], deck[other] = deck[other], deck[place]
    return deck[place]


@register_jitable
def _ascend(loss: Any, rows: Any, duals: Any, orders: Any, t: Any, scale: Any, w: Any, deck: Any, curve: Any) -> None:
    """H coordinate steps of one terminal; changes ``duals.pending``, the local model ``w`` and the gain curve."""
    start = rows.starts[t]
    n = rows.ends[t] - start
    for j in range(n):
        deck[j] = j
    key = _key(orders.seed, orders.round, rows.ids[t])
    gain = 0.0
    point = 0
    for h in range(orders.steps[t]):
        i = start + _pick(key, h, n, orders.uniform, deck)
        s = rows.weight[i]
        q = rows.norm[i] / scale
        for c in range(duals.alpha.shape[1]):
            if s > 0.0:
                y = rows.y[i, c]
                z = _score(rows.X, i, w[c])
                a = (duals.alpha[i, c] + duals.pending[i, c]) / s
                step = dual_step(loss, a, y, z, q * s)
                gain += s * (
                    conjugate(loss, a, y) - conjugate(loss, a + step, y) - step * z - q * s * step * step / 2.0
                )
                if step != 0.0:
                    duals.pending[i, c] += s * step
                    _add_row(s * step / scale, rows.X, i, w[c])
        if h + 1 == 1 << point and point < CURVE - 1:
            curve[point] = gain
            point += 1
    for later in range(point, CURVE):
        curve[later] = gain


@register_jitable
def _collect(rows: Any, duals: Any, t: Any, changed: Any, delta: Any) -> None:
    """delta = X_tᵀΔα_t, in double precision and in the order of rows; ``changed`` is room for their indices."""
    for c in range(duals.alpha.shape[1]):
        n = 0
        for i in range(rows.starts[t], rows.ends[t]):
            if duals.pending[i, c] != 0.0:
                changed[n] = i
                n += 1
        delta[c] = 0.0
        for k in range(0, n, 4):
            _add_rows(duals.pending[:, c], rows.X, changed[k : min(k + 4, n)], delta[c])


@register_jitable
def _course(loss: Any, rows: Any, duals: Any, t: Any, lines: Any) -> None:
    """Course of Σ −s L*(−(α+ηΔα)/s) over η: (linear, quadratic, η_max), or its values at ``FACTORS``."""
    lines[:] = 0.0
    if is_quadratic(loss):
        lines[2] = np.inf
    for i in range(rows.starts[t], rows.ends[t]):
        s = rows.weight[i]
        for c in range(duals.alpha.shape[1]):
            if s > 0.0:
                a = duals.alpha[i, c] / s
                d = duals.pending[i, c] / s
                if is_quadratic(loss):
                    linear, quadratic, room = line(loss, a, rows.y[i, c], d)
                    lines[0] += s * linear
                    lines[1] += s * quadratic
                    # α + Δα lies in the box, even where rounding puts Δα a hair outside and says there is no room.
                    lines[2] = min(lines[2], max(room, 1.0))
                else:
                    for k in range(len(FACTORS)):
                        lines[k] -= s * conjugate(loss, a + FACTORS[k] * d, rows.y[i, c])


@register_jitable
def _merge_course(loss: Any, part: Any, into: Any) -> None:
    """Add up the courses of several terminals; the box of the sum is the smallest of theirs."""
    for k in range(len(part)):
        if is_quadratic(loss) and k == 2:
            into[k] = min(into[k], part[k])
        else:
            into[k] += part[k]


@compiled
def _round_blocks(
    loss: Any, rows: Any, layout: Any, duals: Any, orders: Any, answers: Any, largest: Any, first: Any, last: Any
) -> None:
    """Run the terminals of blocks first … last − 1; ``answers`` has a row for each block."""
    w = np.empty(orders.models.shape[1:], orders.models.dtype)
    delta = np.empty(orders.models.shape[1:], np.float64)
    deck = np.empty(largest, np.int64)
    curve = np.empty(CURVE, np.float64)
    course = np.empty(answers.lines.shape[1], np.float64)
    for block in range(first, last):
        b = layout.station[block]
        answers.delta[block] = 0.0
        answers.gains[block] = 0.0
        answers.lines[block] = 0.0
        if len(course) and is_quadratic(loss):
            answers.lines[block, 2] = np.inf
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            if orders.steps[t] > 0:
                _settle(duals, t, rows.starts[t], rows.ends[t])
                w[:] = orders.models[b]
                _ascend(loss, rows, duals, orders, t, orders.scale[b], w, deck, curve)
                _collect(rows, duals, t, deck, delta)
                answers.delta[block] += delta
                answers.gains[block] += curve
                if len(course):
                    _course(loss, rows, duals, t, course)
                    _merge_course(loss, course, answers.lines[block])


@compiled
def _sum_blocks(
    loss: Any, rows: Any, layout: Any, duals: Any, models: Any, losses: Any, duals_sum: Any, first: Any, last: Any
) -> None:
    """Settle, then add up each block's losses under every model, and its dual terms −s L*(−α/s)."""
    for block in range(first, last):
        losses[block] = 0.0
        duals_sum[block] = 0.0
        b = layout.station[block]
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            start, stop = rows.starts[t], rows.ends[t]
            _settle(duals, t, start, stop)
            for m in range(len(models)):
                total = 0.0
                for i in range(start, stop):
                    for c in range(rows.y.shape[1]):
                        if rows.weight[i] > 0.0:
                            total += rows.weight[i] * value(loss, _score(rows.X, i, models[m, b, c]), rows.y[i, c])
                losses[block, m] += total
            total = 0.0
            for i in range(start, stop):
                s = rows.weight[i]
                for c in range(rows.y.shape[1]):
                    if s > 0.0:
                        total -= s * conjugate(loss, duals.alpha[i, c] / s, rows.y[i, c])
            duals_sum[block] += total


@compiled
def settle(rows: Any, layout: Any, duals: Any) -> None:
    """Apply, to every terminal of the layout, what became of its pending change."""
    for t in layout.order:
        _settle(duals, t, rows.starts[t], rows.ends[t])


@compiled
def _share_blocks(rows: Any, layout: Any, duals: Any, shares: Any, first: Any, last: Any) -> None:
    """Settle, then write u_t = X_tᵀα_t of every terminal of the blocks into ``shares``, in the layout's order."""
    for block in range(first, last):
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            _settle(duals, t, rows.starts[t], rows.ends[t])
            shares[place] = 0.0
            for i in range(rows.starts[t], rows.ends[t]):
                for c in range(duals.alpha.shape[1]):
                    if duals.alpha[i, c] != 0.0:
                        _add_row(duals.alpha[i, c], rows.X, i, shares[place, c])


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


def make_layout(station: IntArray, n_stations: int, ids: IntArray) -> Layout:
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
    return Layout(*(_integers(part) for part in (order, blocks, block_station, starts)))


def make_duals(rows: Rows) -> Duals:
    """All dual variables at zero, nothing pending."""
    return Duals(np.zeros(rows.y.shape), np.zeros(rows.y.shape), np.zeros(len(rows.ids)))


def run_round(
    loss: Loss,
    rows: Rows,
    layout: Layout,
    duals: Duals,
    orders: Orders,
    *,
    course_length: int = 0,
    threads: int = 1,
) -> Answers:
    """One BS iteration of all terminals with steps > 0; returns the sums of each station.

    ``course_length`` is 0 without a line search; with one, 3 for quadratic conjugates, else ``len(FACTORS)``.
    """
    n_blocks = len(layout.station)
    answers = Answers(
        np.empty((n_blocks, *orders.models.shape[1:])),
        np.empty((n_blocks, CURVE)),
        np.empty((n_blocks, course_length)),
    )
    largest = int(rows.sizes.max(initial=1))
    cuts = _cuts(layout, orders.steps, math.prod(orders.models.shape[1:]), threads)
    _in_threads(threads, cuts, lambda a, b: _round_blocks(loss, rows, layout, duals, orders, answers, largest, a, b))
    return _by_station(answers, layout, loss.quadratic)


def run_sums(
    loss: Loss, rows: Rows, layout: Layout, duals: Duals, models: Float64Array, *, threads: int = 1
) -> tuple[Float64Array, Float64Array]:
    """Loss sums of each station under each model of ``models`` (m, station, column, feature), and dual sums."""
    n_blocks = len(layout.station)
    losses, dual_sums = np.empty((n_blocks, len(models))), np.empty(n_blocks)
    models = np.ascontiguousarray(models, dtype=np.float64)
    cuts = _cuts(layout, rows.sizes, math.prod(models.shape[2:]), threads)
    _in_threads(threads, cuts, lambda a, b: _sum_blocks(loss, rows, layout, duals, models, losses, dual_sums, a, b))
    return add_blocks(losses, layout.starts), add_blocks(dual_sums, layout.starts)


def run_shares(rows: Rows, layout: Layout, duals: Duals, width: int) -> Float64Array:
    """u_t = X_tᵀα_t of every terminal in the layout, in its order: terminals × columns × features."""
    shares = np.zeros((len(layout.order), rows.y.shape[1], width))
    _share_blocks(rows, layout, duals, shares, 0, len(layout.station))
    return shares


def add_blocks(parts: Float64Array, starts: IntArray) -> Float64Array:
    """Sum of each station's blocks, in their order."""
    if parts.size == 0:
        return np.zeros((len(starts) - 1, *parts.shape[1:]))
    counts = starts[1:] - starts[:-1]
    if (counts == 1).all():
        return parts + 0.0
    total = np.zeros((len(counts), *parts.shape[1:]))
    for k in range(int(counts.max(initial=0))):
        has = np.flatnonzero(counts > k)
        total[has] += parts[starts[has] + k]
    return total


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


def _by_station(answers: Answers, layout: Layout, quadratic: bool) -> Answers:
    lines = add_blocks(answers.lines, layout.starts)
    if quadratic and lines.shape[1]:
        room = np.full(len(lines), np.inf)
        np.minimum.at(room, layout.station, answers.lines[:, 2])
        lines[:, 2] = room
    return Answers(add_blocks(answers.delta, layout.starts), add_blocks(answers.gains, layout.starts), lines)


def _cuts(layout: Layout, steps: IntArray, width: int, threads: int) -> IntArray:
    """Block boundaries that share out the steps evenly; a single part where the work is too small to share.

    There are more parts than threads, so that a thread whose core is busy with other things takes fewer of them.
    """
    n_blocks = len(layout.station)
    parts = min(PARTS_PER_THREAD * threads, n_blocks, int(steps.sum()) * width // WORK_PER_THREAD)
    if threads <= 1 or parts <= 1:
        return np.array([0, n_blocks])
    work = np.concatenate([[0], np.cumsum(steps[layout.order])])[layout.blocks]
    inner = np.searchsorted(work, work[-1] * np.arange(1, parts) / parts)
    return np.concatenate([[0], inner, [n_blocks]])


def _in_threads(threads: int, cuts: IntArray, task: Callable[[int, int], None]) -> None:
    if len(cuts) == 2:
        task(int(cuts[0]), int(cuts[1]))
        return
    jobs = [_pool(threads).submit(task, int(a), int(b)) for a, b in pairwise(cuts)]
    for job in jobs:
        job.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rhfedmtl")


# A forked process has the pool's memory but none of its threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


def _integers(array: Any) -> IntArray:
    return np.ascontiguousarray(array, dtype=np.int64)


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only view: one array type for the compiler, whoever made the array."""
    view = array.view()
    view.flags.writeable = False
    return view
