"""Stochastic gradient steps on the same rows, blocks and random numbers as coordinate ascent.

A terminal starts from the matrix that its station sent, takes one step for each row it visits, and answers with
n_t times the change of the matrix; stations divide by the samples of those who answered. The matrix has ``slots`` of
models, one below the other (``columns`` rows each). Slot p minimises

    Σ q_p L(xᵀw_p, y) + λ/2 ‖w_p‖² + μ_p/2 ‖w_p − ref_p‖²,

ref_p being where slot ``anchor[p]`` started, and q_p = 1 unless the slots form a mixture: then the row that follows
them holds, in its first places, the shares π of the slots, and q_p ∝ π_p e^{−L_p} is how much slot p answers for a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.maths.kernels.compiled import compiled, inlined
from rhfedmtl.maths.kernels.loops import add_answers, add_row, cuts, draw, in_threads, pick_row, score, stream
from rhfedmtl.maths.kernels.rounds import (
    BETA,
    CURVE,
    MEAN_SQUARE,
    RHO,
    SAMPLES,
    SQUARE,
    Answers,
    Float64Array,
    IntArray,
    Layout,
    Orders,
    Rows,
    Slots,
)
from rhfedmtl.maths.losses import Loss, slope, value


class SgdWorkspace(NamedTuple):
    """Room for the work of one terminal after the other.

    Matrix of models and where it started, gradients before and below them after the steps, deck, probes, q and their
    shares, and the estimates.
    """

    w: Float64Array
    start: Float64Array
    gradients: Float64Array
    deck: IntArray
    chosen: IntArray
    q: Float64Array
    share: Float64Array
    curve: Float64Array


@inlined
def _responsibilities(loss: Any, rows: Any, i: Any, w: Any, slots: Any, q: Any) -> None:
    """q_p ∝ π_p e^{−L_p}, without overflow; all 1 where there is no mixture."""
    n_slots, columns = len(slots.mu), rows.y.shape[1]
    if not slots.mixture:
        for p in range(n_slots):
            q[p] = 1.0
        return
    top = -np.inf
    for p in range(n_slots):
        q[p] = np.log(max(w[n_slots * columns, p], 1e-12))
        for c in range(columns):
            q[p] -= value(loss, score(rows.X, i, w, p * columns + c), rows.y[i, c])
        top = max(top, q[p])
    total = 0.0
    for p in range(n_slots):
        q[p] = np.exp(q[p] - top)
        total += q[p]
    for p in range(n_slots):
        q[p] /= total


@inlined
def _step(loss: Any, rows: Any, i: Any, w: Any, start: Any, slots: Any, q: Any, eta: Any) -> None:
    """One gradient step of every slot for row i."""
    columns = rows.y.shape[1]
    for p in range(len(slots.mu)):
        for c in range(columns):
            row = p * columns + c
            z = score(rows.X, i, w, row)
            g = rows.weight[i] * q[p] * slope(loss, z, rows.y[i, c])
            keep = 1.0 - eta * (slots.lam + slots.mu[p])
            pull = eta * slots.mu[p]
            reference = slots.anchor[p] * columns + c
            for j in range(w.shape[1]):
                w[row, j] = keep * w[row, j] + pull * start[reference, j]
            add_row(-eta * g, rows.X, i, w, row)


@inlined
def _choose(rows: Any, orders: Any, t: Any, steps: Any, chosen: Any) -> None:
    """Rows for the estimates: drawn with replacement, after the draws of the steps."""
    key = stream(orders.seed, orders.round, rows.ids[t])
    for j in range(len(chosen)):
        chosen[j] = rows.starts[t] + draw(key, steps + j, rows.ends[t] - rows.starts[t])


@inlined
def _gradient(loss: Any, rows: Any, chosen: Any, w: Any, lam: Any, gradients: Any, first: Any) -> Any:
    """Mean loss over the ``chosen`` rows, of the first slot, and its gradient into the rows from ``first`` on."""
    total = 0.0
    for c in range(rows.y.shape[1]):
        for j in range(w.shape[1]):
            gradients[first + c, j] = lam * w[c, j]
            total += lam * w[c, j] * w[c, j] / 2.0
        for k in range(len(chosen)):
            i = chosen[k]
            z = score(rows.X, i, w, c)
            total += rows.weight[i] * value(loss, z, rows.y[i, c]) / len(chosen)
            g = rows.weight[i] * slope(loss, z, rows.y[i, c]) / len(chosen)
            add_row(g, rows.X, i, gradients, first + c)
    return total


@inlined
def _square(a: Any, first: Any, n: Any) -> Any:
    """Σ a² over n rows."""
    total = 0.0
    for c in range(first, first + n):
        for j in range(a.shape[1]):
            total += a[c, j] * a[c, j]
    return total


@inlined
def _distance(a: Any, b: Any, first: Any, n: Any) -> Any:
    """‖a − b‖ over n rows, in b those from ``first`` on."""
    total = 0.0
    for c in range(n):
        for j in range(a.shape[1]):
            total += (a[c, j] - b[first + c, j]) ** 2
    return np.sqrt(total)


@inlined
def _estimate(loss: Any, rows: Any, t: Any, slots: Any, workspace: Any) -> None:
    """What the control of Wang et al. needs, times n_t, into ``curve``; the gradient goes below the model.

    ρ = |F(w) − F(w₀)|/‖w − w₀‖, β = ‖∇F(w) − ∇F(w₀)‖/‖w − w₀‖, ‖∇F_t(w₀)‖², the same of the mean gradient that the
    order brought (of the round before), and 1. F is the mean over the probes.
    """
    columns = rows.y.shape[1]
    n = rows.ends[t] - rows.starts[t]
    w, gradients, curve = workspace.w, workspace.gradients, workspace.curve
    before = _gradient(loss, rows, workspace.chosen, workspace.start, slots.lam, gradients, 0)
    after = _gradient(loss, rows, workspace.chosen, w, slots.lam, gradients, columns)
    moved = _distance(w, workspace.start, 0, columns)
    curve[RHO] = n * abs(after - before) / moved if moved > 0.0 else 0.0
    curve[BETA] = n * _distance(gradients, gradients, columns, columns) / moved if moved > 0.0 else 0.0
    curve[SQUARE] = n * _square(gradients, 0, columns)
    curve[MEAN_SQUARE] = n * _square(workspace.start, columns, columns)
    curve[SAMPLES] = n
    for c in range(columns):
        for j in range(w.shape[1]):
            w[columns + c, j] = gradients[c, j]


@inlined
def _descend(loss: Any, rows: Any, orders: Any, t: Any, steps: Any, eta: Any, slots: Any, workspace: Any) -> None:
    """Gradient steps of one terminal, from ``start`` into ``w``."""
    first = rows.starts[t]
    n = rows.ends[t] - first
    for k in range(n):
        workspace.deck[k] = k
    for p in range(len(slots.mu)):
        workspace.share[p] = 0.0
    key = stream(orders.seed, orders.round, rows.ids[t])
    total = 0.0
    for h in range(steps):
        i = first + pick_row(key, h, n, orders.uniform, workspace.deck)
        _responsibilities(loss, rows, i, workspace.w, slots, workspace.q)
        for p in range(len(slots.mu)):
            workspace.share[p] += rows.weight[i] * workspace.q[p]
        total += rows.weight[i]
        _step(loss, rows, i, workspace.w, workspace.start, slots, workspace.q, eta)
    if slots.mixture and total > 0.0:
        for p in range(len(slots.mu)):
            workspace.w[len(slots.mu) * rows.y.shape[1], p] = workspace.share[p] / total


@compiled
def _descend_blocks(
    loss: Any, rows: Any, layout: Any, orders: Any, slots: Any, answers: Any, workspace: Any, first: Any, last: Any
) -> None:
    """Run the terminals of blocks first … last − 1; ``answers`` has a row for each block."""
    w, start = workspace.w, workspace.start
    for block in range(first, last):
        b = layout.station[block]
        for place in range(layout.blocks[block], layout.blocks[block + 1]):
            t = layout.order[place]
            if orders.steps[t] > 0:
                for r in range(w.shape[0]):
                    for j in range(w.shape[1]):
                        start[r, j] = orders.models[b, r, j]
                        w[r, j] = start[r, j]
                n = rows.ends[t] - rows.starts[t]
                steps = orders.steps[t] - 2 * slots.probes
                probed = slots.probes > 0 and steps > 0
                steps = steps if probed else orders.steps[t]
                _descend(loss, rows, orders, t, steps, orders.scale[b], slots, workspace)
                if probed:
                    _choose(rows, orders, t, steps, workspace.chosen)
                    _estimate(loss, rows, t, slots, workspace)
                    for k in range(CURVE):
                        answers.gains[block, k] += workspace.curve[k]
                for r in range(w.shape[0]):
                    for j in range(w.shape[1]):
                        answers.delta[block, r, j] += n * (w[r, j] - start[r, j])


def _make_workspace(largest: int, columns: int, shape: tuple[int, ...], slots: Slots) -> SgdWorkspace:
    """An empty workspace for terminals of up to so many rows, and models of this shape."""
    return SgdWorkspace(
        np.empty(shape),
        np.empty(shape),
        np.zeros((2 * columns, shape[1])),
        np.empty(largest, np.int64),
        np.empty(slots.probes, np.int64),
        np.ones(len(slots.mu)),
        np.zeros(len(slots.mu)),
        np.zeros(CURVE),
    )


def run_round(loss: Loss, rows: Rows, layout: Layout, orders: Orders, slots: Slots, *, threads: int = 1) -> Answers:
    """One BS iteration of all terminals with steps > 0; Σ_t n_t (w_t − w) of each station."""
    n_blocks, shape = len(layout.station), orders.models.shape[1:]
    answers = Answers(np.zeros((n_blocks, *shape)), np.zeros((n_blocks, CURVE)), np.empty((n_blocks, 0)))
    orders = orders._replace(models=np.ascontiguousarray(orders.models, dtype=np.float64))
    parts, largest = cuts(layout, orders.steps, math.prod(shape), threads), rows.largest

    def work(stretches: Iterator[tuple[int, int]]) -> None:
        workspace = _make_workspace(largest, rows.y.shape[1], shape, slots)
        for first, last in stretches:
            _descend_blocks(loss, rows, layout, orders, slots, answers, workspace, first, last)

    in_threads(threads, parts, work)
    return add_answers(answers, layout.starts, quadratic=False)
