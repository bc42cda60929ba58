"""Optima of the whole problem by other people's solvers, from the rows themselves and MATHS §2 alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from rhfedmtl.data.federation import Federation
from rhfedmtl.maths.losses import Hinge, Logistic, SmoothedHinge, Squared, SquaredHinge


def tables(data: Federation, intercept: bool) -> list[tuple[Any, Any, Any]]:
    """Rows (with a constant feature), labels by column and weights of every task."""
    X = np.asarray(data.X, dtype=float)
    X = np.column_stack([X, np.ones(len(X))]) if intercept else X
    y, weight = data.targets(), np.ones(len(X)) if data.sample_weight is None else data.sample_weight
    return [(X[data.row_task == b], y[data.row_task == b], weight[data.row_task == b]) for b in range(data.n_tasks)]


def by_cvxpy(data: Federation, loss: Any, lambda1: float, lambda2: float | None, intercept: bool) -> tuple[float, Any]:
    """Objective and models (task, column, feature); ``lambda2`` of None leaves the tasks unrelated."""
    import cvxpy as cp

    parts = tables(data, intercept)
    d, columns = parts[0][0].shape[1], parts[0][1].shape[1]
    W = [cp.Variable((columns, d)) for _ in parts]
    r = cp.Variable((columns, d))
    total, constraints = 0.0, []
    for w, (X, y, weight) in zip(W, parts, strict=True):
        for c in range(columns):
            terms, limits = _terms(cp, loss, X @ w[c], y[:, c])
            total += weight @ terms / len(X)
            constraints += limits
        total += lambda1 / 2 * cp.sum_squares(w)
        if lambda2 is not None:
            total += lambda2 / 2 * cp.sum_squares(w - r)
    problem = cp.Problem(cp.Minimize(total / len(parts)), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(problem.value), np.array([w.value for w in W])


def _terms(cp: Any, loss: Any, z: Any, y: Any) -> tuple[Any, list[Any]]:
    margin = 1 - cp.multiply(y, z)
    if isinstance(loss, SmoothedHinge):
        bent, straight = cp.Variable(len(y)), cp.Variable(len(y), nonneg=True)
        return cp.square(bent) / (2 * loss.gamma) + straight, [bent >= 0, bent + straight >= margin]
    if isinstance(loss, Hinge):
        return cp.pos(margin), []
    if isinstance(loss, SquaredHinge):
        return cp.square(cp.pos(margin)) / 2, []
    if isinstance(loss, Logistic):
        return cp.logistic(-cp.multiply(y, z)), []
    assert isinstance(loss, Squared)
    return cp.square(z - y) / 2, []


def by_lbfgs(data: Federation, loss: SmoothedHinge, Q: Any, intercept: bool = False) -> tuple[float, Any]:
    """Objective and models of tasks coupled by Q (MATHS §6) under the smoothed hinge, by L-BFGS on the primal."""
    parts = tables(data, intercept)
    shape = len(parts), parts[0][0].shape[1]

    def primal(flat: Any) -> tuple[float, Any]:
        W = flat.reshape(shape)
        gradient = Q @ W
        value = np.sum(gradient * W) / 2
        for b, (X, y, _) in enumerate(parts):
            margin = 1 - y[:, 0] * (X @ W[b])
            slope = np.clip(margin / loss.gamma, 0.0, 1.0)
            value += np.mean(slope * margin - loss.gamma * slope**2 / 2)
            gradient[b] -= X.T @ (slope * y[:, 0]) / len(X)
        return value / len(parts), gradient.ravel() / len(parts)

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-18, "gtol": 1e-12, "maxcor": 50}
    found = minimize(primal, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun), found.x.reshape(len(parts), 1, -1)
