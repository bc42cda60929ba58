"""Primal and dual objectives, of one base station at its anchor and of all tasks jointly, and the gap between them.

All functions take sums over samples that a station may report (Σ s L, Σ −s L*(−α/s)), never the samples.
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

# Tasks beyond which a matrix of their products costs more than a certificate with a θ for each is worth.
MOST_SCALED = 512
# Sweeps of coordinate ascent over the θ_b; it stops when none moves.
SWEEPS = 100


def station_primal(losses: Vector, n: Vector, W: Models, anchors: Anchors) -> Vector:
    """P_b(w) = (1/n_b) Σ L + λ_b/2 ‖w_b − c_b‖² + constant_b."""
    apart, lam = squared_norms(W - anchors.zero), np.inf if anchors.gradient else anchors.lam
    return losses / n + np.where(apart > 0.0, lam, 0.0) / 2.0 * apart + anchors.constant


def station_dual(dual_sums: Vector, n: Vector, V: Models, anchors: Anchors, kept: KeptBack | None = None) -> Vector:
    """D_b(α) = (1/n_b) Σ −L*(−α) − ‖v_b‖²/(2λ_b) − c_bᵀv_b + constant_b, at least."""
    lam = np.inf if anchors.gradient else anchors.lam
    quadratic = squared_norms(V) / (2.0 * lam)
    dual = dual_sums / n - quadratic - _inner(anchors.zero, V) + anchors.constant
    if kept is None:
        return dual
    return np.asarray(dual - kept.most(anchors.held(V)) - kept.norms**2 / (2.0 * lam))


def joint_primal(losses: Vector, n: Vector, W: Models, relationship: Relationship) -> float:
    """P(W) = (1/N) [Σ_b (1/n_b) Σ L + ½ tr(W Q Wᵀ)]."""
    return float((np.sum(losses / n) + relationship.energy(W) / 2.0) / len(W))


def joint_dual(
    dual_sums: Vector, n: Vector, V: Models, relationship: Relationship, kept: KeptBack | None = None
) -> float:
    """D(α) = (1/N) [Σ_b (1/n_b) Σ −L*(−α) − ½ tr(V G Vᵀ)], at least: a lower bound on P(W) for every W."""
    lost = 0.0 if kept is None else kept.lost(V, relationship)
    return float((np.sum(dual_sums / n) - relationship.dual_energy(V) / 2.0 - lost) / len(V))


def _inner(A: Models, B: Models) -> Vector:
    """⟨A_b, B_b⟩ of every task."""
    products: Vector = np.einsum("bcd,bcd->b", A, B)
    return products


class Points(NamedTuple):
    """Models to look at: combinations (a row each) of a few ``models`` (m, task, column, feature).

    Scores are linear in the model, so a terminal finds its losses at any number of points from its scores under a few
    models. ``gradient`` asks for the gradient of the losses under the first of them too.
    """

    models: Models4
    combinations: Matrix
    gradient: bool = False

    def at(self, k: int) -> Models:
        """The k-th point."""
        return combined(self.combinations[k], self.models)


def any_models(models: Models) -> Points:
    """What to ask of the stations to certify these models: their losses, those of zero models, and a gradient."""
    return Points(models[None], np.array([[1.0], [0.0]]), gradient=True)


class KeptBack(NamedTuple):
    """What is known of R, where stations hold V and their terminals' duals make V + R: updates were rounded.

    ``norms`` bound ‖R_b‖, ``products`` (task, model) are ⟨R_b, W_b⟩ under a few ``models`` (m, task, column, feature).
    """

    norms: Vector
    products: Matrix
    models: Models4

    def most(self, X: Models) -> Vector:
        """The most that ⟨R_b, X_b⟩ can be: known along the models, and at most ‖R_b‖ ‖·‖ across the best of them."""
        bounds = []
        for W, product in zip(self.models, self.products.T, strict=True):
            squares = squared_norms(W)
            along = np.divide(_inner(W, X), squares, out=np.zeros(len(X)), where=squares > 0.0)
            across = np.sqrt(squared_norms(X - along[:, None, None] * W))
            bounds.append(along * product + self.norms * across)
        return np.asarray(np.min(bounds, axis=0))

    def lost(self, V: Models, relationship: Relationship) -> float:
        """The most that ½ tr((V+R) G (V+R)ᵀ) can be above ½ tr(V G Vᵀ): ⟨R, V G⟩ + ½ tr(R G Rᵀ)."""
        return float(self.most(relationship.solve(V)).sum()) + relationship.largest_energy(self.norms) / 2.0


def joint_primals(losses: Matrix, n: Vector, points: Points, relationship: Relationship) -> Vector:
    """P at every point, from the loss sums (task, point): tr(W Q Wᵀ) is quadratic in the combination."""
    models = points.models
    squares = np.array([relationship.energy(W) for W in models])
    products = np.diag(squares)
    for i, j in itertools.combinations(range(len(models)), 2):
        products[i, j] = products[j, i] = (relationship.energy(models[i] + models[j]) - squares[i] - squares[j]) / 2.0
    energies = np.einsum("ki,ij,kj->k", points.combinations, products, points.combinations)
    return np.asarray((losses.T @ (1.0 / n) + np.maximum(energies, 0.0) / 2.0) / len(n))


class Dual(NamedTuple):
    """A point of the joint dual, as a cloud knows it: of every task f_b = (1/n_b) Σ −L*(−α), or less, and v_b.

    Where updates were rounded α makes V + R: f has lost the most that ⟨R, V G⟩ can be, and ``norms`` bound ‖R_b‖.
    """

    f: Vector
    V: Models
    norms: Vector | None = None

    @classmethod
    def zero(cls, like: Models) -> Dual:
        """α = 0: losses are not negative, so no objective is."""
        return cls(np.zeros(len(like)), np.zeros_like(like))

    def bound(self, relationship: Relationship) -> float:
        """D, or less, which is below every objective."""
        lost = 0.0 if self.norms is None else relationship.largest_energy(self.norms) / (2.0 * len(self.f))
        return joint_dual(self.f, np.ones(len(self.f)), self.V, relationship) - lost


def between(a: Dual, b: Dual, relationship: Relationship) -> Dual:
    """The best that lies between two duals, with a share of its own for each task; at least the better of the two.

    α_b + t_b (α′_b − α_b) is feasible, and as f is concave f_b + t_b (f′_b − f_b) is no more than it has there.
    """
    step = b.V - a.V
    slopes = b.f - a.f - _inner(relationship.solve(a.V), step)
    shares = _best_shares(np.column_stack([slopes, np.zeros(len(slopes))]), step, relationship)
    f, norms = a.f + shares * (b.f - a.f), None
    for end, part, way in ((a, 1.0 - shares, shares), (b, shares, shares - 1.0)):
        if end.norms is not None:  # ⟨R, V G⟩ was counted for V at this end, which is so far from there
            apart = np.sqrt(squared_norms(relationship.solve(way[:, None, None] * step)))
            f, norms = f - part * end.norms * apart, part * end.norms + (0.0 if norms is None else norms)
    mixed = Dual(f, a.V + shares[:, None, None] * step, norms)
    return max(mixed, b, a, key=lambda dual: dual.bound(relationship))


def gradient_dual(losses: Vector, n: Vector, W: Models, V: Models) -> Dual:
    """The dual that belongs to any W, from its losses and V = [−∇loss_b(w_b)]: α_i = −L′(z_i) is feasible.

    Σ −L*(−α) = Σ L + Σ αz, so it needs no conjugate.
    """
    return Dual(losses / n + _inner(V, W), V)


def scaled_dual(sums: Matrix, n: Vector, V: Models, relationship: Relationship, kept: KeptBack | None = None) -> Dual:
    """Largest D(θ_b α_b) over one θ_b in [0, 1] per task.

    ``sums`` (task, …) describe f_b(θ) = Σ −L*(−θα): (linear, quadratic), or values at `THETAS`, between which the
    chord lies below f, so that the bound holds. The θ_b are those that are best as far as V says, whatever was ``kept``
    back.
    """
    curves = sums / n[:, None]
    theta = _best_shares(curves, V, relationship)
    f = np.array([_curve(curve, share) for curve, share in zip(curves, theta.tolist(), strict=True)])
    scaled = theta[:, None, None] * V
    if kept is None:
        return Dual(f, scaled)
    return Dual(f - theta * kept.most(relationship.solve(scaled)), scaled, theta * kept.norms)


def _best_shares(curves: Matrix, V: Models, relationship: Relationship) -> Vector:
    """θ_b in [0, 1] with the largest Σ f_b(θ_b) − ½ tr(θV G (θV)ᵀ); beyond ``MOST_SCALED`` tasks the same for all.

    Each sweep solves for one θ_b after the other: the argmax of f_b(θ) − θ pull − θ² square/2.
    """
    n_tasks = len(V)
    if n_tasks > MOST_SCALED:
        curves, K = curves.sum(axis=0, keepdims=True), np.array([[relationship.dual_energy(V)]])
    else:
        flat = V.reshape(n_tasks, -1)
        K = relationship.dense(n_tasks).G * (flat @ flat.T)
    squares, theta = np.diag(K).tolist(), np.ones(len(curves))
    for _ in range(SWEEPS):
        before = theta.copy()
        for b, (curve, square) in enumerate(zip(curves, squares, strict=True)):
            pull = float(K[b] @ theta) - square * float(theta[b])
            if len(curve) == 2:
                slope, bend = float(curve[0]) - pull, float(curve[1]) + square
                theta[b] = min(max(slope / bend, 0.0), 1.0) if bend > 0.0 else float(slope > 0.0)
            else:
                theta[b] = _best_on_chords(curve, pull, square)
        if np.abs(theta - before).max() <= 1e-9:
            break
    return theta if len(theta) == n_tasks else np.full(n_tasks, theta[0])


def _curve(curve: Vector, theta: float) -> float:
    """f(θ), or less between the points where it is known."""
    if len(curve) == 2:
        return float(theta * curve[0] - theta * theta * curve[1] / 2.0)
    return float(np.interp(theta, np.append(0.0, THETAS), np.append(0.0, curve)))


def _best_on_chords(curve: Vector, pull: float, square: float) -> float:
    """Argmax over θ in [0, 1] of  f(θ) − θ pull − θ² square/2, for an f given by its values at `THETAS`."""
    grid, values = np.append(0.0, THETAS), np.append(0.0, curve)
    slopes = np.diff(values) / np.diff(grid) - pull
    best = np.clip(slopes / square, grid[:-1], grid[1:]) if square > 0.0 else np.where(slopes > 0, grid[1:], grid[:-1])
    gains = np.interp(best, grid, values) - best * pull - best * best * square / 2.0
    return float(best[int(np.argmax(gains))])
