"""Dual coordinate ascent: a round of any number of terminals, in one call of compiled code (see rounds.py)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from rhfedmtl.maths.compiled import compiled
from rhfedmtl.maths.losses import Loss, conjugate, dual_step, is_quadratic, line, value
from rhfedmtl.maths.rounds import (
    CURVE,
    Answers,
    Float64Array,
    Layout,
    Orders,
    Rows,
    add_blocks,
    add_row,
    add_rows,
    cuts,
    in_threads,
    pick_row,
    score,
    stream,
)

# Factors at which a terminal reports its dual sum, where the conjugate is not quadratic (line search).
FACTORS: Float64Array = 2.0 ** np.arange(-10.0, 6.5, 0.5)


class Duals(NamedTuple):
    """Dual variables, and the change of each that waits for its verdict: ``settle[t]`` is the factor to apply."""

    alpha: Float64Array
    pending: Float64Array
    settle: Float64Array


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
def _ascend(loss: Any, rows: Any, duals: Any, orders: Any, t: Any, scale: Any, w: Any, deck: Any, curve: Any) -> None:
    """H coordinate steps of one terminal; changes ``duals.pending``, the local model ``w`` and the gain curve."""
    start = rows.starts[t]
    n = rows.ends[t] - start
    for j in range(n):
        deck[j] = j
    key = stream(orders.seed, orders.round, rows.ids[t])
    gain = 0.0
    point = 0
    for h in range(orders.steps[t]):
        i = start + pick_row(key, h, n, orders.uniform, deck)
        s = rows.weight[i]
        q = rows.norm[i] / scale
        for c in range(duals.alpha.shape[1]):
            if s > 0.0:
                y = rows.y[i, c]
                z = score(rows.X, i, w[c])
                a = (duals.alpha[i, c] + duals.pending[i, c]) / s
                step = dual_step(loss, a, y, z, q * s)
                gain += s * (
                    conjugate(loss, a, y) - conjugate(loss, a + step, y) - step * z - q * s * step * step / 2.0
                )
                if step != 0.0:
                    duals.pending[i, c] += s * step
                    add_row(s * step / scale, rows.X, i, w[c])
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
            add_rows(duals.pending[:, c], rows.X, changed[k : min(k + 4, n)], delta[c])


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
                            total += rows.weight[i] * value(loss, score(rows.X, i, models[m, b, c]), rows.y[i, c])
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
                        add_row(duals.alpha[i, c], rows.X, i, shares[place, c])


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
    parts = cuts(layout, orders.steps, math.prod(orders.models.shape[1:]), threads)
    in_threads(threads, parts, lambda a, b: _round_blocks(loss, rows, layout, duals, orders, answers, largest, a, b))
    return _by_station(answers, layout, loss.quadratic)


def run_sums(
    loss: Loss, rows: Rows, layout: Layout, duals: Duals, models: Float64Array, *, threads: int = 1
) -> tuple[Float64Array, Float64Array]:
    """Loss sums of each station under each model of ``models`` (m, station, column, feature), and dual sums."""
    n_blocks = len(layout.station)
    losses, dual_sums = np.empty((n_blocks, len(models))), np.empty(n_blocks)
    models = np.ascontiguousarray(models, dtype=np.float64)
    parts = cuts(layout, rows.sizes, math.prod(models.shape[2:]), threads)
    in_threads(threads, parts, lambda a, b: _sum_blocks(loss, rows, layout, duals, models, losses, dual_sums, a, b))
    return add_blocks(losses, layout.starts), add_blocks(dual_sums, layout.starts)


def run_shares(rows: Rows, layout: Layout, duals: Duals, width: int) -> Float64Array:
    """u_t = X_tᵀα_t of every terminal in the layout, in its order: terminals × columns × features."""
    shares = np.zeros((len(layout.order), rows.y.shape[1], width))
    _share_blocks(rows, layout, duals, shares, 0, len(layout.station))
    return shares


def _by_station(answers: Answers, layout: Layout, quadratic: bool) -> Answers:
    lines = add_blocks(answers.lines, layout.starts)
    if quadratic and lines.shape[1]:
        room = np.full(len(lines), np.inf)
        np.minimum.at(room, layout.station, answers.lines[:, 2])
        lines[:, 2] = room
    return Answers(add_blocks(answers.delta, layout.starts), add_blocks(answers.gains, layout.starts), lines)
