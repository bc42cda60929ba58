"""Primal and dual objectives, of a base station at its anchor and of all tasks jointly, and the duality gap.

The cloud makes certificates from them. All functions take sums over samples that a station may report (Σ s L,
Σ −s L*(−α/s)), never the samples.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.coupling import squared_norms
from rhfedmtl.maths.kernels.rounds import THETAS
from rhfedmtl.maths.mixtures import combined
from rhfedmtl.maths.relationships import Anchors, Models, Relationship

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Models4 = npt.NDArray[np.float64]

# With more tasks the certificate has a single θ: a θ per task needs a matrix of products of all tasks.
MOST_SCALED_TASKS = 512
# Most sweeps of coordinate ascent over the θ_b. It stops earlier once none moves.
MOST_SWEEPS = 100


def station_primal(losses: Vector, n: Vector, W: Models, anchors: Anchors) -> Vector:
    """Return P_b(w) = (1/n_b) Σ L + λ_b/2 ‖w_b − c_b‖² + constant_b."""
    distances, lam = squared_norms(W - anchors.zero), np.inf if anchors.gradient else anchors.lam
    return losses / n + np.where(distances > 0.0, lam, 0.0) / 2.0 * distances + anchors.constant


def station_dual(
    dual_sums: Vector, n: Vector, V: Models, anchors: Anchors, residuals: ResidualBounds | None = None
) -> Vector:
    """Return D_b(α) = (1/n_b) Σ −L*(−α) − ‖v_b‖²/(2λ_b) − c_bᵀv_b + constant_b; with ``residuals`` a lower bound."""
    lam = np.inf if anchors.gradient else anchors.lam
    quadratic = squared_norms(V) / (2.0 * lam)
    dual = dual_sums / n - quadratic - _inner(anchors.zero, V) + anchors.constant
    if residuals is None:
        return dual
    return np.asarray(dual - residuals.largest_product(anchors.models_at(V)) - residuals.norms**2 / (2.0 * lam))


def joint_primal(losses: Vector, n: Vector, W: Models, relationship: Relationship) -> float:
    """Return P(W) = (1/N) [Σ_b (1/n_b) Σ L + ½ tr(W Q Wᵀ)]."""
    return float((np.sum(losses / n) + relationship.energy(W) / 2.0) / len(W))


def joint_dual(
    dual_sums: Vector, n: Vector, V: Models, relationship: Relationship, residuals: ResidualBounds | None = None
) -> float:
    """Return D(α) = (1/N) [Σ_b (1/n_b) Σ −L*(−α) − ½ tr(V G Vᵀ)], a lower bound on P(W) for every W.

    With ``residuals`` it is a lower bound on D(α).
    """
    increase = 0.0 if residuals is None else residuals.largest_increase(V, relationship)
    return float((np.sum(dual_sums / n) - relationship.dual_energy(V) / 2.0 - increase) / len(V))


def _inner(A: Models, B: Models) -> Vector:
    """Return ⟨A_b, B_b⟩ of every task."""
    products: Vector = np.einsum("bcd,bcd->b", A, B)
    return products


class Points(NamedTuple):
    """Models to evaluate: combinations (a row each) of a few ``models`` (m, task, column, feature).

    Scores are linear in the model, so a terminal computes its losses at any number of points from its scores under a
    few models. ``gradient`` also requests the gradient of the losses under the first model.
    """

    models: Models4
    combinations: Matrix
    gradient: bool = False

    def at(self, k: int) -> Models:
        """Return the k-th point."""
        return combined(self.combinations[k], self.models)


def any_models(models: Models) -> Points:
    """Return the points that certify these models: their losses, the losses of zero models, and a gradient."""
    return Points(models[None], np.array([[1.0], [0.0]]), gradient=True)


class ResidualBounds(NamedTuple):
    """Bounds on R, where stations hold V but their terminals' duals make V + R because updates were rounded.

    ``norms`` bound ‖R_b‖; ``products`` (task, model) are ⟨R_b, W_b⟩ under a few ``models`` (m, task, column, feature).
    """

    norms: Vector
    products: Matrix
    models: Models4

    def largest_product(self, X: Models) -> Vector:
        """Return a bound on ⟨R_b, X_b⟩: exact along a model, at most ‖R_b‖ ‖·‖ across it, for the best model."""
        bounds = []
        for W, product in zip(self.models, self.products.T, strict=True):
            squares = squared_norms(W)
            along = np.divide(_inner(W, X), squares, out=np.zeros(len(X)), where=squares > 0.0)
            across = np.sqrt(squared_norms(X - along[:, None, None] * W))
            bounds.append(along * product + self.norms * across)
        return np.asarray(np.min(bounds, axis=0))

    def largest_increase(self, V: Models, relationship: Relationship) -> float:
        """Return a bound on ½ tr((V+R) G (V+R)ᵀ) − ½ tr(V G Vᵀ), which is ⟨R, V G⟩ + ½ tr(R G Rᵀ)."""
        return float(self.largest_product(relationship.solve(V)).sum()) + relationship.largest_energy(self.norms) / 2.0


def joint_primals(losses: Matrix, n: Vector, points: Points, relationship: Relationship) -> Vector:
    """Return P at every point from the loss sums (task, point): tr(W Q Wᵀ) is quadratic in the combination."""
    models = points.models
    squares = np.array([relationship.energy(W) for W in models])
    products = np.diag(squares)
    for i, j in itertools.combinations(range(len(models)), 2):
        products[i, j] = products[j, i] = (relationship.energy(models[i] + models[j]) - squares[i] - squares[j]) / 2.0
    energies = np.einsum("ki,ij,kj->k", points.combinations, products, points.combinations)
    return np.asarray((losses.T @ (1.0 / n) + np.maximum(energies, 0.0) / 2.0) / len(n))


class Dual(NamedTuple):
    """A point of the joint dual as the cloud knows it: f_b = (1/n_b) Σ −L*(−α) of every task, or less, and v_b.

    If updates were rounded, α makes V + R: f is lower by the bound on ⟨R, V G⟩, and ``norms`` bound ‖R_b‖.
    """

    f: Vector
    V: Models
    norms: Vector | None = None

    @classmethod
    def zero(cls, like: Models) -> Dual:
        """Return α = 0, whose dual value 0 is a valid bound: losses are never negative, so no objective is."""
        return cls(np.zeros(len(like)), np.zeros_like(like))

    def bound(self, relationship: Relationship) -> float:
        """Return D or less, a lower bound on every objective."""
        increase = 0.0 if self.norms is None else relationship.largest_energy(self.norms) / (2.0 * len(self.f))
        return joint_dual(self.f, np.ones(len(self.f)), self.V, relationship) - increase


def between(a: Dual, b: Dual, relationship: Relationship) -> Dual:
    """Return the best dual between two, with a separate share for each task; at least the better of the two.

    α_b + t_b (α′_b − α_b) is feasible, and as f is concave, f_b + t_b (f′_b − f_b) is at most its value there.
    """
    step = b.V - a.V
    slopes = b.f - a.f - _inner(relationship.solve(a.V), step)
    shares = _best_shares(np.column_stack([slopes, np.zeros(len(slopes))]), step, relationship)
    f, norms = a.f + shares * (b.f - a.f), None
    for end, part, offset in ((a, 1.0 - shares, shares), (b, shares, shares - 1.0)):
        if end.norms is not None:  # f contains a bound on ⟨R, V G⟩ for V at this end: add the distance to the mixture
            distance = np.sqrt(squared_norms(relationship.solve(offset[:, None, None] * step)))
            f, norms = f - part * end.norms * distance, part * end.norms + (0.0 if norms is None else norms)
    mixed = Dual(f, a.V + shares[:, None, None] * step, norms)
    bounds = mixed.bound(relationship), b.bound(relationship), a.bound(relationship)
    return (mixed, b, a)[bounds.index(max(bounds))]


def gradient_dual(losses: Vector, n: Vector, W: Models, V: Models) -> Dual:
    """Return the dual point of any W, from its losses and V = [−∇loss_b(w_b)]: α_i = −L′(z_i) is feasible.

    Σ −L*(−α) = Σ L + Σ αz, so it needs no conjugate.
    """
    return Dual(losses / n + _inner(V, W), V)


def scaled_dual(
    sums: Matrix, n: Vector, V: Models, relationship: Relationship, residuals: ResidualBounds | None = None
) -> Dual:
    """Return the dual with the largest D(θ_b α_b), with θ_b in [0, 1] for each task.

    ``sums`` (task, …) describe f_b(θ) = Σ −L*(−θα): (linear, quadratic), or values at `THETAS`. Between these values
    the chord lies below f, so the bound holds. The θ_b are the best for V; ``residuals`` do not change them.
    """
    curves = sums / n[:, None]
    theta = _best_shares(curves, V, relationship)
    f = np.array([_curve(curve, share) for curve, share in zip(curves, theta.tolist(), strict=True)])
    scaled = theta[:, None, None] * V
    if residuals is None:
        return Dual(f, scaled)
    return Dual(f - theta * residuals.largest_product(relationship.solve(scaled)), scaled, theta * residuals.norms)


def _best_shares(curves: Matrix, V: Models, relationship: Relationship) -> Vector:
    """Return θ_b in [0, 1] with the largest Σ f_b(θ_b) − ½ tr(θV G (θV)ᵀ).

    Beyond ``MOST_SCALED_TASKS`` tasks all tasks share a θ. Each sweep solves for one θ_b after the other: the argmax of
    f_b(θ) − θ cross − θ² square/2. If the f_b are parabolas, a Newton step follows for the θ_b between the bounds.
    """
    n_tasks = len(V)
    if n_tasks > MOST_SCALED_TASKS:
        curves, K = curves.sum(axis=0, keepdims=True), np.array([[relationship.dual_energy(V)]])
    else:
        flat = V.reshape(n_tasks, -1)
        K = relationship.dense(n_tasks).G * (flat @ flat.T)
    squares, theta, parabolas = np.diag(K).tolist(), np.ones(len(curves)), curves.shape[1] == 2
    A = K + np.diag(curves[:, 1]) if parabolas else K
    for _ in range(MOST_SWEEPS):
        before = theta.copy()
        for b, (curve, square) in enumerate(zip(curves.tolist() if parabolas else curves, squares, strict=True)):
            cross = float(K[b] @ theta) - square * float(theta[b])
            if parabolas:
                slope, curvature = curve[0] - cross, curve[1] + square
                theta[b] = min(max(slope / curvature, 0.0), 1.0) if curvature > 0.0 else float(slope > 0.0)
            else:
                theta[b] = _best_on_chords(curve, cross, square)
        free = np.flatnonzero((theta > 0.0) & (theta < 1.0))
        if parabolas and len(free) > 1:
            gradient, part, step = curves[:, 0] - A @ theta, A[np.ix_(free, free)], np.zeros(len(theta))
            ridge = 1e-12 * float(np.trace(part)) * np.eye(len(free))
            step[free] = np.clip(theta[free] + np.linalg.solve(part + ridge, gradient[free]), 0.0, 1.0) - theta[free]
            if gradient @ step > step @ A @ step / 2.0:  # the value grows
                theta += step
        if np.abs(theta - before).max() <= 1e-9:
            break
    return theta if len(theta) == n_tasks else np.full(n_tasks, theta[0])


def _curve(curve: Vector, theta: float) -> float:
    """Return f(θ), or less between the points where it is sampled."""
    if len(curve) == 2:
        return float(theta * curve[0] - theta * theta * curve[1] / 2.0)
    return float(np.interp(theta, np.append(0.0, THETAS), np.append(0.0, curve)))


def _best_on_chords(curve: Vector, cross: float, square: float) -> float:
    """Argmax over θ in [0, 1] of  f(θ) − θ cross − θ² square/2, for an f sampled at `THETAS`."""
    grid, values = np.append(0.0, THETAS), np.append(0.0, curve)
    slopes = np.diff(values) / np.diff(grid) - cross
    best = np.clip(slopes / square, grid[:-1], grid[1:]) if square > 0.0 else np.where(slopes > 0, grid[1:], grid[:-1])
    gains = np.interp(best, grid, values) - best * cross - best * best * square / 2.0
    return float(best[int(np.argmax(gains))])
