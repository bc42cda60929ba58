"""Dual coordinate ascent: a round of any number of terminals in a single call of compiled code.

`compiled_kernel.py` offers these functions as a `kernel.Kernel`; `loops.py` has the inner loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.maths.kernels.compiled import compiled, fetch_row, inlined
from rhfedmtl.maths.kernels.loops import (
    add,
    add_answers,
    add_blocks,
    add_row,
    add_rows,
    cuts,
    deal,
    dot_four,
    in_threads,
    next_pass,
    score,
    stream,
)
from rhfedmtl.maths.kernels.rounds import (
    ANY,
    CURVE,
    FACTORS,
    THETAS,
    Answers,
    Duals,
    Float64Array,
    FloatArray,
    IntArray,
    Layout,
    Orders,
    Rows,
    dual_length,
)
from rhfedmtl.maths.losses import Loss, conjugate, dual_step, has_corners, is_quadratic, line, value

# Terminals with more rows than this never make a Gram matrix.
GRAM_ROWS = 256


@inlined
def prefers_gram(n: Any, d: Any, steps: Any) -> Any:
    """Return True if the Gram matrix makes H steps on n rows of d features cheaper: the same iterates, O(n) a step.

    The matrix costs n(n + 1)/2 products, each about a fifth of a step; and a step must become cheaper. The rule depends
    on these three numbers alone, so every engine takes the same branch.
    """
    return n <= GRAM_ROWS and d > n and 5 * steps > n * (n + 5)


class DualWorkspace(NamedTuple):
    """Buffers for a terminal at a time: local model, Gram matrix, scores, deck, and the results."""

    w: FloatArray
    gram: Float64Array
    scores: Float64Array
    deck: IntArray
    changed: IntArray
    factors: Float64Array
    delta: Float64Array
    curve: Float64Array
    profile: Float64Array


@inlined
def _settle(duals: Any, t: Any, start: Any, stop: Any) -> None:
    """Apply the pending change with its factor: α += factor Δα. Nothing is pending afterwards."""
    factor, n = duals.settle[t], duals.n_visited[t]
    for c in range(duals.alpha.shape[1]):
        if n == ANY:
            for i in range(start, stop):
                duals.alpha[i, c] += factor * duals.pending[i, c]
                duals.pending[i, c] = 0.0
        for place in range(start, start + n):
            i = start + duals.visited[place]
            duals.alpha[i, c] += factor * duals.pending[i, c]
            duals.pending[i, c] = 0.0
    duals.settle[t] = 0.0
    duals.n_visited[t] = 0


@inlined
def _prepare(rows: Any, orders: Any, start: Any, n: Any, b: Any, by_gram: Any, workspace: Any) -> None:
    """Copy the station's model; with a Gram matrix, compute it and the scores under the model."""
    for c in range(workspace.w.shape[0]):
        for j in range(workspace.w.shape[1]):
            workspace.w[c, j] = orders.models[b, c, j]
    if by_gram:
        _fill_gram(rows, start, n, workspace)


@inlined
def _fill_gram(rows: Any, start: Any, n: Any, workspace: Any) -> None:
    """Compute the products of all rows with each other and with the model, including the constant feature."""
    X, constant, last = rows.X, rows.constant, start + n - 1
    for k in range(0, n, 4):
        i = start + k
        four = (i, min(i + 1, last), min(i + 2, last), min(i + 3, last))
        for c in range(workspace.w.shape[0]):
            products = dot_four(X, four, workspace.w, c)
            for p in range(4):
                workspace.scores[c, k + p] = products[p]
                if constant > 0.0:
                    workspace.scores[c, k + p] += constant * workspace.w[c, X.shape[1]]
        for m in range(k, n):
            products = dot_four(X, four, X, start + m)
            for p in range(4):
                workspace.gram[k + p, m] = workspace.gram[m, k + p] = products[p] + constant * constant


@inlined
def _step(
    loss: Any, rows: Any, duals: Any, i: Any, k: Any, n: Any, per_scale: Any, by_gram: Any, workspace: Any
) -> Any:
    """Take a coordinate step of every column for row i, the k-th of n; return the dual gain, the move and the excess.

    The last two, for losses with corners, are slopes of the dual: the largest that a column's step made up for, and the
    smallest that the end of the box left over.
    """
    gain, moved, excess = 0.0, 0.0, np.inf
    s = rows.weight[i]
    q = s * rows.norm[i] * per_scale
    for c in range(duals.alpha.shape[1]):
        if s > 0.0:
            y = rows.y[i, c]
            z = workspace.scores[c, k] if by_gram else score(rows, i, workspace.w, c)
            a = (duals.alpha[i, c] + duals.pending[i, c]) / s
            step = dual_step(loss, a, y, z, q)
            gain += s * (conjugate(loss, a, y) - conjugate(loss, a + step, y) - step * z - q * step * step / 2.0)
            if step != 0.0:
                duals.pending[i, c] += s * step
                if by_gram:
                    add(s * step * per_scale, workspace.gram, k, workspace.scores, c, n)
                else:
                    add_row(s * step * per_scale, rows, i, workspace.w, c)
            if has_corners(loss):
                moved = max(moved, q * abs(step))
                excess = min(excess, abs(line(loss, a + step, y, 1.0)[0] - z - q * step))
    return gain, moved, excess


@inlined
def _ascend(
    loss: Any, rows: Any, duals: Any, orders: Any, t: Any, per_scale: Any, by_gram: Any, workspace: Any
) -> None:
    """Take H coordinate steps of a terminal; change ``duals.pending``, the local model ``w`` and the gain curve.

    With a loss that has corners, a pass leaves out rows that rest (`next_pass`); rows that stay come first in the deck.
    """
    start, steps, uniform, deck = rows.starts[t], orders.steps[t], orders.uniform, workspace.deck
    n = rows.ends[t] - start
    key = stream(orders.seed, orders.round, rows.ids[t])
    gain, point = 0.0, 0
    place, active, n_staying, largest_move, limit, full_pass_move = 0, n, 0, 0.0, np.inf, 0.0
    k = following = deal(key, 0, 0, n, uniform, deck)
    for h in range(steps):
        last = place + 1 == active and not uniform
        if not last:
            following = deal(key, h + 1, place + 1, active, uniform, deck) if h + 1 < steps else k
            if h + 1 < n and not by_gram:
                fetch_row(rows.X, start + following)
        gained, moved, excess = _step(loss, rows, duals, start + k, k, n, per_scale, by_gram, workspace)
        gain += gained
        if has_corners(loss) and not uniform:
            largest_move = max(largest_move, moved)
            if excess <= limit:
                deck[n_staying], deck[place] = deck[place], deck[n_staying]
                n_staying += 1
        place += 1
        if last:
            if has_corners(loss):
                active, limit, full_pass_move = next_pass(n, active, n_staying, largest_move, full_pass_move)
            place, n_staying, largest_move = 0, 0, 0.0
            following = deal(key, h + 1, 0, active, uniform, deck) if h + 1 < steps else k
        k = following
        if h + 1 == 1 << point and point < CURVE - 1:
            workspace.curve[point] = gain
            point += 1
    for later in range(point, CURVE):
        workspace.curve[later] = gain


@inlined
def _list_changes(duals: Any, start: Any, visited: Any, c: Any, workspace: Any) -> Any:
    """List the rows of the first ``visited`` cards that changed, with their changes; return their number.

    The list ends in three entries that change nothing, because callers read it in fours.
    """
    n = 0
    for k in range(visited):
        i = start + workspace.deck[k]
        if duals.pending[i, c] != 0.0:
            workspace.changed[n], workspace.factors[n] = i, duals.pending[i, c]
            n += 1
    for k in range(n, n + 3):
        workspace.changed[k], workspace.factors[k] = workspace.changed[max(n - 1, 0)], 0.0
    return n


@inlined
def _collect(rows: Any, duals: Any, start: Any, visited: Any, workspace: Any, answers: Any, block: Any) -> None:
    """Add X_tᵀΔα_t, summed in double precision, to the block."""
    changed, factors, width = workspace.changed, workspace.factors, workspace.delta.shape[1]
    for c in range(duals.alpha.shape[1]):
        n = _list_changes(duals, start, visited, c, workspace)
        for j in range(width if n else 0):
            workspace.delta[c, j] = 0.0
        for k in range(0, n, 4):
            four = (changed[k], changed[k + 1], changed[k + 2], changed[k + 3])
            by = (factors[k], factors[k + 1], factors[k + 2], factors[k + 3])
            add_rows(by, rows, four, workspace.delta, c)
        for j in range(width if n else 0):
            answers.delta[block, c, j] += workspace.delta[c, j]


@inlined
def _record_visits(duals: Any, t: Any, start: Any, n: Any, visited: Any, workspace: Any) -> None:
    """Record the visited rows unless all were visited, and sort the deck: only visited rows are out of place."""
    duals.n_visited[t] = visited if visited < n else ANY
    for k in range(visited):
        card = workspace.deck[k]
        if visited < n:
            duals.visited[start + k] = card
        if card >= visited:
            workspace.deck[card] = card
    for k in range(visited):
        workspace.deck[k] = k


@inlined
def _fill_profile(loss: Any, rows: Any, duals: Any, t: Any, profile: Any) -> None:
    """Compute the profile of Σ −s L*(−(α+ηΔα)/s) over η: (linear, quadratic, η_max), or its values at ``FACTORS``."""
    for k in range(len(profile)):
        profile[k] = 0.0
    if is_quadratic(loss):
        profile[2] = np.inf
    for i in range(rows.starts[t], rows.ends[t]):
        s = rows.weight[i]
        for c in range(duals.alpha.shape[1]):
            if s > 0.0:
                a = duals.alpha[i, c] / s
                d = duals.pending[i, c] / s
                if is_quadratic(loss):
                    linear, quadratic, end = line(loss, a, rows.y[i, c], d)
                    profile[0] += s * linear
                    profile[1] += s * quadratic
                    # α + Δα lies in the box, even if rounding puts Δα slightly outside and η_max below 1.
                    profile[2] = min(profile[2], max(end, 1.0))
                else:
                    for k in range(len(FACTORS)):
                        profile[k] -= s * conjugate(loss, a + FACTORS[k] * d, rows.y[i, c])


@inlined
def _add_profile(loss: Any, part: Any, profile: Any, block: Any) -> None:
    """Add the profile of a terminal; the box of the sum is the smallest box."""
    for k in range(len(part)):
        if is_quadratic(loss) and k == 2:
            profile[block, k] = min(profile[block, k], part[k])
        else:
            profile[block, k] += part[k]


@inlined
def _clear(loss: Any, answers: Any, block: Any) -> None:
    for c in range(answers.delta.shape[1]):
        for j in range(answers.delta.shape[2]):
            answers.delta[block, c, j] = 0.0
    for k in range(CURVE):
        answers.gains[block, k] = 0.0
    for k in range(answers.profile.shape[1]):
        answers.profile[block, k] = 0.0
    if answers.profile.shape[1] and is_quadratic(loss):
        answers.profile[block, 2] = np.inf


@compiled
def _round_blocks(
    loss: Any, rows: Any, layout: Any, duals: Any, orders: Any, answers: Any, workspace: Any, first: Any, last: Any
) -> None:
    """Run the terminals of blocks first … last − 1; ``answers`` has a row for each block."""
    for block in range(first, last):
        b = layout.station[block]
        _clear(loss, answers, block)
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            steps = orders.steps[t]
            if steps > 0:
                start = rows.starts[t]
                n = rows.ends[t] - start
                by_gram = prefers_gram(n, rows.X.shape[1], steps)
                _settle(duals, t, start, start + n)
                _prepare(rows, orders, start, n, b, by_gram, workspace)
                per_scale = 0.0 if orders.gradient[b] else 1.0 / orders.scale[b]
                _ascend(loss, rows, duals, orders, t, per_scale, by_gram, workspace)
                visited = n if orders.uniform else min(n, steps)
                _collect(rows, duals, start, visited, workspace, answers, block)
                _record_visits(duals, t, start, n, visited, workspace)
                for k in range(CURVE):
                    answers.gains[block, k] += workspace.curve[k]
                if len(workspace.profile):
                    _fill_profile(loss, rows, duals, t, workspace.profile)
                    _add_profile(loss, workspace.profile, answers.profile, block)


class SumsWorkspace(NamedTuple):
    """Buffers for the sums of a terminal at a time: scores of a row, losses at every point, f(θ)."""

    scores: Float64Array
    losses: Float64Array
    dual: Float64Array


@inlined
def _fill(table: Any, row: Any) -> None:
    for k in range(table.shape[1]):
        table[row, k] = 0.0


@inlined
def _add_losses(
    loss: Any, rows: Any, i: Any, models: Any, station: Any, n_stations: Any, points: Any, workspace: Any
) -> None:
    """Add the losses of row i at every point."""
    columns = rows.y.shape[1]
    for c in range(columns):
        for m in range(points.shape[1]):
            workspace.scores[m] = score(rows, i, models, (m * n_stations + station) * columns + c)
        for k in range(points.shape[0]):
            z = 0.0
            for m in range(points.shape[1]):
                z += points[k, m] * workspace.scores[m]
            workspace.losses[0, k] += rows.weight[i] * value(loss, z, rows.y[i, c])


@inlined
def _add_dual(loss: Any, rows: Any, duals: Any, i: Any, total: Any) -> None:
    """Add row i's part of f(θ) = Σ −s L*(−θα/s): linear and quadratic term, or its values at ``THETAS``."""
    s = rows.weight[i]
    for c in range(duals.alpha.shape[1]):
        a = duals.alpha[i, c] / s
        if is_quadratic(loss):
            linear, quadratic, _ = line(loss, 0.0, rows.y[i, c], a)
            total[0, 0] += s * linear
            total[0, 1] += s * quadratic
        else:
            for k in range(len(THETAS)):
                total[0, k] -= s * conjugate(loss, THETAS[k] * a, rows.y[i, c])


@compiled
def _sum_blocks(
    loss: Any,
    rows: Any,
    layout: Any,
    duals: Any,
    models: Any,
    points: Any,
    losses: Any,
    dual_sums: Any,
    workspace: Any,
    first: Any,
    last: Any,
) -> None:
    """Settle, then add up the losses of each block at every point, and the numbers that describe f(θ).

    ``models`` has a row for each (model, station, column); ``points`` combines models, a row for each point.
    """
    n_stations = len(models) // (points.shape[1] * rows.y.shape[1])
    for block in range(first, last):
        _fill(losses, block)
        _fill(dual_sums, block)
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            start, stop = rows.starts[t], rows.ends[t]
            _settle(duals, t, start, stop)
            _fill(workspace.losses, 0)
            _fill(workspace.dual, 0)
            for i in range(start, stop):
                if rows.weight[i] > 0.0:
                    _add_losses(loss, rows, i, models, layout.station[block], n_stations, points, workspace)
                    _add_dual(loss, rows, duals, i, workspace.dual)
            for k in range(losses.shape[1]):
                losses[block, k] += workspace.losses[0, k]
            for k in range(dual_sums.shape[1]):
                dual_sums[block, k] += workspace.dual[0, k]


@compiled
def _profile_terminals(loss: Any, rows: Any, layout: Any, duals: Any, part: Any, profiles: Any) -> None:
    """Compute the profile of every terminal of the layout, in its order; ``part`` is a buffer for a single profile."""
    for place in range(len(layout.order)):
        _fill_profile(loss, rows, duals, layout.order[place], part)
        for k in range(len(part)):
            profiles[place, k] = part[k]


@compiled
def settle(rows: Any, layout: Any, duals: Any) -> None:
    """Apply the pending change of every terminal of the layout, times its factor."""
    for t in layout.order:
        _settle(duals, t, rows.starts[t], rows.ends[t])


@compiled
def _share_blocks(rows: Any, layout: Any, duals: Any, shares: Any, first: Any, last: Any) -> None:
    """Settle, then add u_t = X_tᵀα_t of every terminal of the blocks to ``shares``, in the layout's order.

    ``shares`` has a row for each (terminal, column).
    """
    columns = duals.alpha.shape[1]
    for block in range(first, last):
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            _settle(duals, t, rows.starts[t], rows.ends[t])
            for i in range(rows.starts[t], rows.ends[t]):
                for c in range(columns):
                    if duals.alpha[i, c] != 0.0:
                        add_row(duals.alpha[i, c], rows, i, shares, place * columns + c)


def _make_workspace(largest: int, orders: Orders, profile_length: int) -> DualWorkspace:
    """Return buffers for terminals of up to ``largest`` rows; tables have three extra rows for loops in fours."""
    shape, table = orders.models.shape[1:], min(largest, GRAM_ROWS) + 3
    return DualWorkspace(
        np.empty(shape, orders.models.dtype),
        np.empty((table, table)),
        np.empty((shape[0], table)),
        np.arange(largest),
        np.empty(largest + 3, np.int64),
        np.empty(largest + 3),
        np.empty(shape),
        np.empty(CURVE),
        np.empty(profile_length),
    )


def run_round(
    loss: Loss,
    rows: Rows,
    layout: Layout,
    duals: Duals,
    orders: Orders,
    *,
    profile_length: int = 0,
    threads: int = 1,
) -> Answers:
    """Run a BS iteration of all terminals with steps > 0; return the sums of each station.

    ``profile_length`` is 0 without a line search; with it, 3 for quadratic conjugates, else ``len(FACTORS)``.
    """
    n_blocks, largest = len(layout.station), rows.largest
    answers = Answers(
        np.empty((n_blocks, *orders.models.shape[1:])),
        np.empty((n_blocks, CURVE)),
        np.empty((n_blocks, profile_length)),
    )

    def work(stretches: Iterable[tuple[int, int]]) -> None:
        workspace = _make_workspace(largest, orders, profile_length)
        for first, last in stretches:
            _round_blocks(loss, rows, layout, duals, orders, answers, workspace, first, last)

    if threads <= 1:
        work([(0, n_blocks)])
    else:
        in_threads(threads, cuts(layout, orders.steps, math.prod(orders.models.shape[1:]), threads), work)
    if np.array_equal(layout.starts, np.arange(n_blocks + 1)):  # a single block per row: nothing to add up
        return answers
    return add_answers(answers, layout.starts, quadratic=loss.quadratic)


def run_sums(
    loss: Loss,
    rows: Rows,
    layout: Layout,
    duals: Duals,
    models: Float64Array,
    points: Float64Array,
    *,
    threads: int = 1,
) -> tuple[Float64Array, Float64Array]:
    """Return the loss sums of each station at each point, and the numbers that describe its f(θ) (`scaled_dual`).

    A point is a combination of the ``models`` (m, station, column, feature); ``points`` has a row for each point.
    """
    n_blocks = len(layout.station)
    losses = np.empty((n_blocks, len(points)))
    dual_sums = np.empty((n_blocks, dual_length(loss)))
    models = np.ascontiguousarray(models, dtype=np.float64)
    points = np.ascontiguousarray(points, dtype=np.float64)
    parts = cuts(layout, rows.sizes, math.prod(models.shape[2:]), threads)
    flat = models.reshape(-1, models.shape[-1])

    def work(stretches: Iterable[tuple[int, int]]) -> None:
        workspace = SumsWorkspace(np.empty(len(models)), np.empty((1, len(points))), np.empty((1, dual_sums.shape[1])))
        for first, last in stretches:
            _sum_blocks(loss, rows, layout, duals, flat, points, losses, dual_sums, workspace, first, last)

    in_threads(threads, parts, work)
    return add_blocks(losses, layout.starts), add_blocks(dual_sums, layout.starts)


def run_shares(rows: Rows, layout: Layout, duals: Duals, width: int) -> Float64Array:
    """Return u_t = X_tᵀα_t of every terminal in the layout, in its order: terminals × columns × features."""
    columns = rows.y.shape[1]
    shares = np.zeros((len(layout.order) * columns, width))
    _share_blocks(rows, layout, duals, shares, 0, len(layout.station))
    return shares.reshape(-1, columns, width)


def run_profiles(loss: Loss, rows: Rows, layout: Layout, duals: Duals, length: int) -> Float64Array:
    """Return the profile of every terminal along its pending change, in layout order: terminals × ``length``."""
    profiles = np.empty((len(layout.order), length))
    if length:
        _profile_terminals(loss, rows, layout, duals, np.empty(length), profiles)
    return profiles
