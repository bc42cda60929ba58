"""Stochastic gradient steps on the same rows, blocks and random numbers as coordinate ascent.

A terminal starts from the matrix that its station sent, takes a step for each row it visits, and answers with n_t times
the change of the matrix; stations divide by the samples of the terminals that answered. The matrix is a stack of
``slots``, each with a model (``columns`` rows). Slot p minimises

    Σ q_p L(xᵀw_p, y) + λ/2 ‖w_p‖² + μ_p/2 ‖w_p − ref_p‖².

ref_p is the start of slot ``anchor[p]``, and q_p = 1 unless the slots form a mixture. In a mixture, the row below the
slots holds, in its first places, the shares π of the slots, and q_p ∝ π_p e^{−L_p} is the responsibility of slot p for
a row.

With ``inner`` steps (pFedMe) slot 1 is anchored to the current slot 0. After every ``inner`` steps, and after the last
step, slot 0 moves a share ``outer`` of the way to slot 1.

Steps with ``control`` (SCAFFOLD, Scaffnew) are corrected. Each step subtracts the terminal's mean gradient
c_t = (1/n_t) Σ_i a_i x_i, with a_i in the place of its dual variables, and adds the mean over all terminals, c, from
the rows below the model. After H steps with gradients g_k and ρ = 1 − ηλ

    c_t ← (1 − pS) c_t + p Σ_k ρ^{H−1−k} g_k,   S = Σ_k ρ^{H−1−k}.

This is h_t ← h_t + (p/η)(w̄ − w_t) of ProxSkip for h_t = c_t − c, in a form that needs no other terminal; p = 1/H is
option II of SCAFFOLD. (Regularisation adds the same term to every c_t, which cancels in c_t − c.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.maths.kernels.compiled import compiled, inlined
from rhfedmtl.maths.kernels.loops import add_answers, add_row, cuts, draw, in_threads, pick_row, score, stream
from rhfedmtl.maths.kernels.rounds import (
    ANY,
    BETA,
    CURVE,
    MEAN_SQUARE,
    RHO,
    SAMPLES,
    SQUARE,
    Answers,
    Duals,
    Float64Array,
    IntArray,
    Layout,
    Orders,
    Rows,
    Slots,
)
from rhfedmtl.maths.losses import Loss, slope, value


class SgdWorkspace(NamedTuple):
    """Buffers for a terminal at a time.

    They hold the matrix of models and its start, the gradients before and (below them) after the steps, the deck, the
    probes, q, the shares of slots, and the estimates. Corrected steps also need c − c_t and the part of each row in
    c_t.
    """

    w: Float64Array
    start: Float64Array
    gradients: Float64Array
    deck: IntArray
    chosen: IntArray
    q: Float64Array
    share: Float64Array
    curve: Float64Array
    drift: Float64Array
    slopes: Float64Array


@inlined
def _responsibilities(loss: Any, rows: Any, i: Any, w: Any, slots: Any, q: Any) -> None:
    """Compute q_p ∝ π_p e^{−L_p} without overflow; all are 1 without a mixture."""
    n_slots, columns = len(slots.mu), rows.y.shape[1]
    if not slots.mixture:
        for p in range(n_slots):
            q[p] = 1.0
        return
    top = -np.inf
    for p in range(n_slots):
        q[p] = np.log(max(w[n_slots * columns, p], 1e-12))
        for c in range(columns):
            q[p] -= value(loss, score(rows, i, w, p * columns + c), rows.y[i, c])
        top = max(top, q[p])
    total = 0.0
    for p in range(n_slots):
        q[p] = np.exp(q[p] - top)
        total += q[p]
    for p in range(n_slots):
        q[p] /= total


@inlined
def _step(loss: Any, rows: Any, i: Any, w: Any, start: Any, slots: Any, q: Any, eta: Any) -> None:
    """Take a gradient step of every slot for row i; the first slot is skipped if it follows the second."""
    columns = rows.y.shape[1]
    for p in range(1 if slots.inner > 0 else 0, len(slots.mu)):
        for c in range(columns):
            row = p * columns + c
            z = score(rows, i, w, row)
            g = rows.weight[i] * q[p] * slope(loss, z, rows.y[i, c])
            keep = 1.0 - eta * (slots.lam + slots.mu[p])
            pull = eta * slots.mu[p]
            reference = slots.anchor[p] * columns + c
            for j in range(w.shape[1]):
                target = w[reference, j] if slots.inner > 0 else start[reference, j]
                w[row, j] = keep * w[row, j] + pull * target
            add_row(-eta * g, rows, i, w, row)


@inlined
def _move_common(w: Any, columns: Any, rate: Any) -> None:
    """Move slot 0 towards slot 1."""
    for c in range(columns):
        for j in range(w.shape[1]):
            w[c, j] += rate * (w[columns + c, j] - w[c, j])


@inlined
def _prepare_correction(rows: Any, t: Any, alpha: Any, workspace: Any) -> None:
    """Compute c − c_t, and clear the slopes of all rows."""
    start, stop = rows.starts[t], rows.ends[t]
    columns = rows.y.shape[1]
    for c in range(columns):
        for j in range(workspace.w.shape[1]):
            workspace.drift[c, j] = workspace.start[columns + c, j]
        for i in range(start, stop):
            add_row(-alpha[i, c] / (stop - start), rows, i, workspace.drift, c)
            workspace.slopes[i - start, c] = 0.0


@inlined
def _note_gradient(loss: Any, rows: Any, t: Any, i: Any, share: Any, workspace: Any) -> None:
    """Add the slope of the next step, for row i, to the coefficients of c_t."""
    for c in range(rows.y.shape[1]):
        g = rows.weight[i] * slope(loss, score(rows, i, workspace.w, c), rows.y[i, c])
        workspace.slopes[i - rows.starts[t], c] += share * g


@inlined
def _correct(w: Any, drift: Any, eta: Any) -> None:
    """Apply the correction to a step: w ← w − η (c − c_t)."""
    for c in range(drift.shape[0]):
        for j in range(drift.shape[1]):
            w[c, j] -= eta * drift[c, j]


@inlined
def _update_correction(rows: Any, t: Any, steps: Any, rho: Any, slots: Any, duals: Any, workspace: Any) -> None:
    """Set the pending change of a_i; the change of c_t goes below the model."""
    start, stop = rows.starts[t], rows.ends[t]
    columns = rows.y.shape[1]
    p = slots.control if slots.control > 0.0 else 1.0 / steps
    total = 0.0
    for k in range(steps):
        total += rho**k
    for c in range(columns):
        for i in range(start, stop):
            change = p * (stop - start) * workspace.slopes[i - start, c] - p * total * duals.alpha[i, c]
            duals.pending[i, c] = change
            add_row(change / (stop - start), rows, i, workspace.w, columns + c)
    duals.n_visited[t] = ANY


@inlined
def _draw_probes(rows: Any, orders: Any, t: Any, steps: Any, chosen: Any) -> None:
    """Draw rows for the estimates with replacement, after the draws of the steps."""
    key = stream(orders.seed, orders.round, rows.ids[t])
    for j in range(len(chosen)):
        chosen[j] = rows.starts[t] + draw(key, steps + j, rows.ends[t] - rows.starts[t])


@inlined
def _gradient(loss: Any, rows: Any, chosen: Any, w: Any, lam: Any, gradients: Any, first: Any) -> Any:
    """Return the mean loss of the first slot over the ``chosen`` rows; its gradient goes to rows ``first`` and on."""
    total = 0.0
    for c in range(rows.y.shape[1]):
        for j in range(w.shape[1]):
            gradients[first + c, j] = lam * w[c, j]
            total += lam * w[c, j] * w[c, j] / 2.0
        for k in range(len(chosen)):
            i = chosen[k]
            z = score(rows, i, w, c)
            total += rows.weight[i] * value(loss, z, rows.y[i, c]) / len(chosen)
            g = rows.weight[i] * slope(loss, z, rows.y[i, c]) / len(chosen)
            add_row(g, rows, i, gradients, first + c)
    return total


@inlined
def _square(a: Any, first: Any, n: Any) -> Any:
    """Return Σ a² over n rows."""
    total = 0.0
    for c in range(first, first + n):
        for j in range(a.shape[1]):
            total += a[c, j] * a[c, j]
    return total


@inlined
def _distance(a: Any, b: Any, first: Any, n: Any) -> Any:
    """Return ‖a − b‖ over n rows; the rows of b start at ``first``."""
    total = 0.0
    for c in range(n):
        for j in range(a.shape[1]):
            total += (a[c, j] - b[first + c, j]) ** 2
    return np.sqrt(total)


@inlined
def _estimate(loss: Any, rows: Any, t: Any, slots: Any, workspace: Any) -> None:
    """Compute the estimates for the control of Wang et al., times n_t; the gradient goes below the model.

    ``curve`` gets ρ = |F(w) − F(w₀)|/‖w − w₀‖, β = ‖∇F(w) − ∇F(w₀)‖/‖w − w₀‖, ‖∇F_t(w₀)‖², the squared norm of the mean
    gradient in the order (of the round before), and 1. F is the mean over the probes.
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
    """Take the gradient steps of a terminal, from ``start`` into ``w``."""
    first = rows.starts[t]
    n = rows.ends[t] - first
    for k in range(n):
        workspace.deck[k] = k
    for p in range(len(slots.mu)):
        workspace.share[p] = 0.0
    key = stream(orders.seed, orders.round, rows.ids[t])
    total, rho = 0.0, 1.0 - eta * slots.lam
    for h in range(steps):
        i = first + pick_row(key, h, n, orders.uniform, workspace.deck)
        _responsibilities(loss, rows, i, workspace.w, slots, workspace.q)
        for p in range(len(slots.mu)):
            workspace.share[p] += rows.weight[i] * workspace.q[p]
        total += rows.weight[i]
        if slots.control >= 0.0:
            _note_gradient(loss, rows, t, i, rho ** (steps - 1 - h), workspace)
        _step(loss, rows, i, workspace.w, workspace.start, slots, workspace.q, eta)
        if slots.control >= 0.0:
            _correct(workspace.w, workspace.drift, eta)
        if slots.inner > 0 and ((h + 1) % slots.inner == 0 or h + 1 == steps):
            _move_common(workspace.w, rows.y.shape[1], slots.outer)
    if slots.mixture and total > 0.0:
        for p in range(len(slots.mu)):
            workspace.w[len(slots.mu) * rows.y.shape[1], p] = workspace.share[p] / total


@compiled
def _descend_blocks(
    loss: Any,
    rows: Any,
    layout: Any,
    duals: Any,
    orders: Any,
    slots: Any,
    answers: Any,
    workspace: Any,
    first: Any,
    last: Any,
) -> None:
    """Run the terminals of blocks first … last − 1; ``answers`` has a row for each block."""
    w, start = workspace.w, workspace.start
    controlled = slots.control >= 0.0
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
                if controlled:
                    _prepare_correction(rows, t, duals.alpha, workspace)
                _descend(loss, rows, orders, t, steps, orders.scale[b], slots, workspace)
                if controlled:
                    rho = 1.0 - orders.scale[b] * slots.lam
                    _update_correction(rows, t, steps, rho, slots, duals, workspace)
                if probed:
                    _draw_probes(rows, orders, t, steps, workspace.chosen)
                    _estimate(loss, rows, t, slots, workspace)
                    for k in range(CURVE):
                        answers.gains[block, k] += workspace.curve[k]
                for r in range(w.shape[0]):
                    for j in range(w.shape[1]):
                        answers.delta[block, r, j] += n * (w[r, j] - start[r, j])


def _make_workspace(largest: int, columns: int, shape: tuple[int, ...], slots: Slots) -> SgdWorkspace:
    """Return buffers for terminals of up to ``largest`` rows, and models of this shape."""
    return SgdWorkspace(
        np.empty(shape),
        np.empty(shape),
        np.zeros((2 * columns, shape[1])),
        np.empty(largest, np.int64),
        np.empty(slots.probes, np.int64),
        np.ones(len(slots.mu)),
        np.zeros(len(slots.mu)),
        np.zeros(CURVE),
        np.empty((columns, shape[1])),
        np.empty((largest if slots.control >= 0.0 else 0, columns)),
    )


def run_round(
    loss: Loss, rows: Rows, layout: Layout, duals: Duals, orders: Orders, slots: Slots, *, threads: int = 1
) -> Answers:
    """Run a BS iteration of all terminals with steps > 0; return Σ_t n_t (w_t − w) of each station."""
    n_blocks, shape = len(layout.station), orders.models.shape[1:]
    answers = Answers(np.zeros((n_blocks, *shape)), np.zeros((n_blocks, CURVE)), np.empty((n_blocks, 0)))
    orders = orders._replace(models=np.ascontiguousarray(orders.models, dtype=np.float64))
    parts, largest = cuts(layout, orders.steps, math.prod(shape), threads), rows.largest

    def work(stretches: Iterator[tuple[int, int]]) -> None:
        workspace = _make_workspace(largest, rows.y.shape[1], shape, slots)
        for first, last in stretches:
            _descend_blocks(loss, rows, layout, duals, orders, slots, answers, workspace, first, last)

    in_threads(threads, parts, work)
    return add_answers(answers, layout.starts, quadratic=False)
