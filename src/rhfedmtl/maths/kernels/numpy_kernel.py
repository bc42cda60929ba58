"""The kernel for machines without a compiler: `kernel.Kernel` in NumPy, meant for the rows of a single terminal.

It visits the same rows in the same order with the same formulas as `sdca.py` and `sgd.py`, which explain them. The
order of additions differs, so numbers agree to 1e-12 relative for rows in double precision, and not to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.maths.kernels.rounds import (
    ANY,
    BETA,
    CURVE,
    FACTORS,
    MEAN_SQUARE,
    RHO,
    SAMPLES,
    SQUARE,
    THETAS,
    Answers,
    Duals,
    Float64Array,
    IntArray,
    Layout,
    Orders,
    Rows,
    Slots,
    draw,
    dual_length,
    next_pass,
    stream,
)
from rhfedmtl.maths.losses import Loss, has_corners


class _Job(NamedTuple):
    """A terminal of a layout: the row of its answer, its station, its index, and the place of its rows."""

    row: int
    station: int
    terminal: int
    place: slice

    @property
    def n(self) -> int:
        """Number of rows of the terminal."""
        return int(self.place.stop - self.place.start)


def _jobs(rows: Rows, layout: Layout) -> Iterator[_Job]:
    counts = np.diff(layout.blocks)
    by_terminal = zip(np.repeat(layout.row, counts), np.repeat(layout.station, counts), layout.order, strict=True)
    for row, station, t in by_terminal:
        yield _Job(int(row), int(station), int(t), slice(int(rows.starts[t]), int(rows.ends[t])))


def _key(rows: Rows, orders: Orders, terminal: int) -> Any:
    """Return the start of the terminal's stream, as an array: scalars would warn when they wrap."""
    return stream(np.array([orders.seed]), np.array([orders.round]), rows.ids[[terminal]])


def _row_order(key: Any, n: int, steps: int, uniform: bool) -> list[int]:
    """Return the rows of all steps: uniform draws, or passes over a shuffled deck."""
    if uniform:
        return [int(k) for k in draw(key, np.arange(steps), n)]
    deck, order = list(range(n)), []
    for h in range(0, steps, n):
        order += _deal(key, h, deck, n)
    return order[:steps]


def _deal(key: Any, h: int, deck: list[int], n: int) -> list[int]:
    """Shuffle the first n of the deck (Fisher–Yates) with the draws from step h on, and return the rows of a pass."""
    places = np.arange(n)
    for place, swap in enumerate((places + draw(key, h + places, n - places)).tolist()):
        deck[place], deck[swap] = deck[swap], deck[place]
    return deck[:n]


def _scores(rows: Rows, which: Any, models: Any) -> Any:
    """Return the scores of some rows, or of a single row, under models (a row each), with the constant feature."""
    X = rows.X[which]
    d = X.shape[-1]
    z = np.asarray(X @ models[:, :d].T, dtype=np.float64)
    return z + rows.constant * models[:, d].astype(np.float64) if models.shape[1] > d else z


def _add_row(c: Any, rows: Rows, i: int, models: Any) -> None:
    """Compute models += c x_iᵀ, including the constant feature."""
    d = rows.X.shape[1]
    models[:, :d] += np.multiply.outer(c.astype(models.dtype), rows.X[i])
    if models.shape[1] > d:
        models[:, d] += (c * rows.constant).astype(models.dtype)


def _products(factors: Float64Array, rows: Rows, which: Any, width: int) -> Float64Array:
    """Return Σ_i f_i x_iᵀ over some rows for each column of factors, in double precision, with the constant feature."""
    X = rows.X[which].astype(np.float64, copy=False)
    total = np.empty((factors.shape[1], width))
    total[:, : X.shape[1]] = factors.T @ X
    total[:, X.shape[1] :] = factors.sum(axis=0)[:, None] * rows.constant
    return total


def _settle(duals: Duals, job: _Job) -> None:
    duals.alpha[job.place] += duals.settle[job.terminal] * duals.pending[job.place]
    duals.pending[job.place] = 0.0
    duals.settle[job.terminal], duals.n_visited[job.terminal] = 0.0, ANY


def ascend(
    loss: Loss,
    rows: Rows,
    layout: Layout,
    duals: Duals,
    orders: Orders,
    *,
    profile_length: int = 0,
    threads: int = 1,
) -> Answers:
    """Take the coordinate steps of all terminals with steps > 0; return the sums of each station."""
    n, shape = len(layout.starts) - 1, orders.models.shape[1:]
    answers = Answers(np.zeros((n, *shape)), np.zeros((n, CURVE)), np.zeros((n, profile_length)))
    if profile_length and loss.quadratic:
        answers.profile[:, 2] = np.inf
    for job in _jobs(rows, layout):
        if orders.steps[job.terminal] > 0:
            _settle(duals, job)
            order = _ascend(loss, rows, duals, orders, job, answers.gains[job.row])
            visited = np.unique(order) + job.place.start
            answers.delta[job.row] += _products(duals.pending[visited], rows, visited, shape[1])
            if profile_length:
                _add_profile(answers.profile[job.row], _profile(loss, rows, duals, job, profile_length), loss.quadratic)
    return answers


def _ascend(loss: Loss, rows: Rows, duals: Duals, orders: Orders, job: _Job, curve: Float64Array) -> list[int]:
    """Take H coordinate steps of a terminal and return the rows it visited.

    The steps change ``duals.pending`` and add to the gain curve.
    """
    key, steps = _key(rows, orders, job.terminal), int(orders.steps[job.terminal])
    columns = [_Column(loss, rows, duals, orders, job, c) for c in range(rows.y.shape[1])]
    if has_corners(loss) and not orders.uniform:
        order, gains = _ascend_active(columns, key, job.n, steps)
    else:
        order = _row_order(key, job.n, steps, orders.uniform)
        gains = np.sum([column.visit(order)[:, 0] for column in columns], axis=0)
    for c, column in enumerate(columns):
        duals.pending[job.place, c] = column.change
    curve_steps = np.minimum(np.append(2 ** np.arange(CURVE - 1), steps), steps)
    curve += np.cumsum(gains)[curve_steps - 1]
    return order


def _ascend_active(columns: list[_Column], key: Any, n: int, steps: int) -> tuple[list[int], Float64Array]:
    """Take passes without rows that rest (`next_pass`); return the visited rows, and the gain of each step."""
    order: list[int] = []
    deck, gains, active, limit, full_pass_move = list(range(n)), [np.zeros(0)], n, np.inf, 0.0
    while len(order) < steps:
        rows = _deal(key, len(order), deck, active)[: steps - len(order)]
        gained, moved, excess = np.array([column.visit(rows) for column in columns]).transpose(2, 0, 1)
        order, gains = order + rows, [*gains, gained.sum(axis=0)]
        n_staying = 0
        for place in np.flatnonzero(excess.min(axis=0) <= limit).tolist():
            deck[n_staying], deck[place] = deck[place], deck[n_staying]
            n_staying += 1
        active, limit, full_pass_move = next_pass(n, active, n_staying, float(moved.max()), full_pass_move)
    return order, np.concatenate(gains)


class _Column:
    """Dual variables and local model of a column; columns are independent.

    Scalars are Python's: for a single number they are faster than NumPy's.
    """

    def __init__(self, loss: Loss, rows: Rows, duals: Duals, orders: Orders, job: _Job, column: int) -> None:
        self.loss, self.corners = loss, has_corners(loss)
        self.X, self.constant = rows.X[job.place], rows.constant
        self.per_scale = 0.0 if orders.gradient[job.station] else 1.0 / float(orders.scale[job.station])
        self.y, self.weight, self.norm = (
            part[job.place].tolist() for part in (rows.y[:, column], rows.weight, rows.norm)
        )
        self.alpha, self.change = duals.alpha[job.place, column].tolist(), [0.0] * job.n
        model, d = orders.models[job.station, column], self.X.shape[1]
        self.w, self.intercept = model[:d].copy(), model[d:].copy()

    def visit(self, order: list[int]) -> Float64Array:
        """Take a step for each of these rows; return gain, move, and the slope that the end of the box leaves over."""
        return np.array([self._step(k) for k in order])

    def _step(self, k: int) -> tuple[float, float, float]:
        s, x, loss = self.weight[k], self.X[k], self.loss
        if s <= 0.0:
            return 0.0, 0.0, np.inf
        z = float(x @ self.w) + (self.constant * float(self.intercept[0]) if len(self.intercept) else 0.0)
        y, a, q = self.y[k], (self.alpha[k] + self.change[k]) / s, s * self.norm[k] * self.per_scale
        step = loss.dual_step(a, y, z, q)
        gain = s * (loss.conjugate(a, y) - loss.conjugate(a + step, y) - step * z - q * step * step / 2.0)
        if step != 0.0:
            self.change[k] += s * step
            self.w += self.w.dtype.type(s * step * self.per_scale) * x
            self.intercept += self.w.dtype.type(s * step * self.per_scale * self.constant)
        excess = abs(loss.line(a + step, y, 1.0)[0] - z - q * step) if self.corners else 0.0
        return gain, q * abs(step), excess


def _profile(loss: Loss, rows: Rows, duals: Duals, job: _Job, length: int) -> Float64Array:
    """Profile of Σ −s L*(−(α+ηΔα)/s) over η: (linear, quadratic, η_max), or its values at ``FACTORS``."""
    profile = np.zeros(length)
    if loss.quadratic:
        profile[2] = np.inf
    for i in range(job.place.start, job.place.stop):
        s = float(rows.weight[i])
        if s > 0.0:
            places = ((duals.alpha[i] / s).tolist(), rows.y[i].tolist(), (duals.pending[i] / s).tolist())
            for a, y, d in zip(*places, strict=True):
                if loss.quadratic:
                    linear, quadratic, end = loss.line(a, y, d)
                    _add_profile(profile, np.array([s * linear, s * quadratic, max(end, 1.0)]), True)
                else:
                    profile -= s * np.array([loss.conjugate(a + factor * d, y) for factor in FACTORS.tolist()])
    return profile


def _add_profile(total: Float64Array, part: Float64Array, quadratic: bool) -> None:
    """Add a profile to a sum; the last number of a quadratic profile is a bound, whose minimum counts."""
    end = min(total[2], part[2]) if quadratic else None
    total += part
    if end is not None:
        total[2] = end


def profiles(loss: Loss, rows: Rows, layout: Layout, duals: Duals, length: int) -> Float64Array:
    """Return the profile of every terminal along its pending change, in the order of the layout."""
    jobs = _jobs(rows, layout) if length else ()
    return np.array([_profile(loss, rows, duals, job, length) for job in jobs]).reshape(len(layout.order), length)


def sums(
    loss: Loss,
    rows: Rows,
    layout: Layout,
    duals: Duals,
    models: Float64Array,
    points: Float64Array,
    *,
    threads: int = 1,
) -> tuple[Float64Array, Float64Array]:
    """Return the loss sums of each station at each point, and the numbers that describe its f(θ)."""
    n = len(layout.starts) - 1
    losses, dual_sums = np.zeros((n, len(points))), np.zeros((n, dual_length(loss)))
    value = np.frompyfunc(loss.value, 2, 1)
    for job in _jobs(rows, layout):
        _settle(duals, job)
        weighted = np.flatnonzero(rows.weight[job.place]) + job.place.start
        y, s = rows.y[weighted], rows.weight[weighted, None]
        scores = np.array([_scores(rows, weighted, model) for model in models[:, job.station]])
        for k, point in enumerate(points):
            losses[job.row, k] += float(np.sum(s * value(np.einsum("m,mic->ic", point, scores), y)))
        dual_sums[job.row] += _dual_terms(loss, duals.alpha[weighted] / s, y, s)
    return losses, dual_sums


def _dual_terms(loss: Loss, a: Float64Array, y: Float64Array, s: Float64Array) -> Float64Array:
    """Return Σ −s L*(−θα/s): its linear and quadratic term, or its values at `THETAS`."""
    if loss.quadratic:
        terms: Any = np.frompyfunc(loss.line, 3, 3)(0.0, y, a)
        return np.array([np.sum(s * terms[0]), np.sum(s * terms[1])], dtype=np.float64)
    conjugate = np.frompyfunc(loss.conjugate, 2, 1)
    return np.array([-np.sum(s * conjugate(theta * a, y)) for theta in THETAS], dtype=np.float64)


def settle(rows: Rows, layout: Layout, duals: Duals) -> None:
    """Apply the pending change of every terminal, times its factor."""
    for job in _jobs(rows, layout):
        _settle(duals, job)


def shares(rows: Rows, layout: Layout, duals: Duals, width: int) -> Float64Array:
    """Return u_t = X_tᵀα_t of every terminal, in the order of the layout."""
    settle(rows, layout, duals)
    return np.array([_products(duals.alpha[job.place], rows, job.place, width) for job in _jobs(rows, layout)])


def descend(
    loss: Loss, rows: Rows, layout: Layout, duals: Duals, orders: Orders, slots: Slots, *, threads: int = 1
) -> Answers:
    """Take the gradient steps of all terminals with steps > 0; return Σ_t n_t (w_t − w) of each station."""
    n = len(layout.starts) - 1
    answers = Answers(np.zeros((n, *orders.models.shape[1:])), np.zeros((n, CURVE)), np.empty((n, 0)))
    for job in _jobs(rows, layout):
        visits = int(orders.steps[job.terminal])
        if visits > 0:
            start = orders.models[job.station].astype(np.float64)
            probed = slots.probes > 0 and visits > 2 * slots.probes
            steps = visits - 2 * slots.probes if probed else visits
            w = _descend(loss, rows, duals, orders, job, steps, slots, start)
            if probed:
                chosen = job.place.start + draw(
                    _key(rows, orders, job.terminal), steps + np.arange(slots.probes), job.n
                )
                answers.gains[job.row] += _estimate(loss, rows, job.n, chosen, slots.lam, start, w)
            answers.delta[job.row] += job.n * (w - start)
    return answers


def _descend(
    loss: Loss, rows: Rows, duals: Duals, orders: Orders, job: _Job, steps: int, slots: Slots, start: Float64Array
) -> Float64Array:
    """Take the gradient steps of a terminal from ``start``; return where they end."""
    w, columns, eta = start.copy(), rows.y.shape[1], float(orders.scale[job.station])
    models = w[: len(slots.mu) * columns]
    mu = np.repeat(slots.mu, columns)[:, None]
    references = np.repeat(slots.anchor, columns) * columns + np.tile(np.arange(columns), len(slots.mu))
    keep, pull = 1.0 - eta * (slots.lam + mu), eta * mu * start[references]
    moving = models[columns:] if slots.inner else models
    if slots.inner:
        keep, pull = keep[columns:], pull[columns:]
    slope, share, total = np.frompyfunc(loss.slope, 2, 1), np.zeros(len(slots.mu)), 0.0
    drift = None
    if slots.control >= 0.0:  # c − c_t
        drift = start[columns:] - _products(duals.alpha[job.place], rows, job.place, w.shape[1]) / job.n
    slopes, rho = np.zeros((job.n, columns)), 1.0 - eta * slots.lam
    for h, k in enumerate(_row_order(_key(rows, orders, job.terminal), job.n, steps, orders.uniform)):
        i = job.place.start + k
        s, y, z = float(rows.weight[i]), np.tile(rows.y[i], len(slots.mu)), _scores(rows, i, models)
        q = _responsibilities(loss, w, z, y, slots, columns)
        share, total = share + s * q, total + s
        g = s * np.repeat(q, columns) * slope(z, y).astype(np.float64)
        if slots.inner:
            g, pull = g[columns:], eta * slots.mu[1] * models[:columns]
        moving *= keep
        moving += pull
        _add_row(-eta * g, rows, i, moving)
        if drift is not None:
            slopes[k] += rho ** (steps - 1 - h) * g
            models -= eta * drift
        if slots.inner and ((h + 1) % slots.inner == 0 or h + 1 == steps):
            models[:columns] += slots.outer * (models[columns:] - models[:columns])
    if slots.mixture and total > 0.0:
        w[len(models), : len(share)] = share / total
    if drift is not None:
        p = slots.control if slots.control > 0.0 else 1.0 / steps
        change = p * job.n * slopes - p * float(np.sum(rho ** np.arange(steps))) * duals.alpha[job.place]
        duals.pending[job.place], duals.n_visited[job.terminal] = change, ANY
        w[columns:] += _products(change, rows, job.place, w.shape[1]) / job.n
    return w


def _responsibilities(loss: Loss, w: Any, z: Any, y: Any, slots: Slots, columns: int) -> Float64Array:
    """Return q_p ∝ π_p e^{−L_p} without overflow; all are 1 without a mixture."""
    n = len(slots.mu)
    if not slots.mixture:
        return np.ones(n)
    losses = np.frompyfunc(loss.value, 2, 1)(z, y).astype(np.float64).reshape(n, columns).sum(axis=1)
    logarithms = np.log(np.maximum(w[n * columns, :n], 1e-12)) - losses
    q = np.exp(logarithms - logarithms.max())
    return np.asarray(q / q.sum())


def _estimate(
    loss: Loss, rows: Rows, n: int, chosen: IntArray, lam: float, start: Float64Array, w: Float64Array
) -> Float64Array:
    """Return the estimates for the control of Wang et al., times n_t, as a curve; the gradient goes below the model."""
    columns = rows.y.shape[1]
    before, gradient = _gradient(loss, rows, chosen, lam, start[:columns])
    after, later = _gradient(loss, rows, chosen, lam, w[:columns])
    moved = float(np.linalg.norm(w[:columns] - start[:columns]))
    curve = np.zeros(CURVE)
    if moved > 0.0:
        curve[RHO], curve[BETA] = abs(after - before) / moved, np.linalg.norm(later - gradient) / moved
    curve[SQUARE], curve[MEAN_SQUARE] = np.sum(gradient**2), np.sum(start[columns : 2 * columns] ** 2)
    curve[SAMPLES] = 1.0
    w[columns : 2 * columns] = gradient
    return n * curve


def _gradient(loss: Loss, rows: Rows, chosen: IntArray, lam: float, models: Float64Array) -> tuple[float, Float64Array]:
    """Return the mean loss over the chosen rows, with the model's norm, and its gradient."""
    y, s = rows.y[chosen], rows.weight[chosen, None] / len(chosen)
    z = _scores(rows, chosen, models)
    values = s * np.frompyfunc(loss.value, 2, 1)(z, y).astype(np.float64)
    slopes = s * np.frompyfunc(loss.slope, 2, 1)(z, y).astype(np.float64)
    total = float(lam * np.sum(models**2) / 2.0 + np.sum(values))
    return total, lam * models + _products(slopes, rows, chosen, models.shape[1])
