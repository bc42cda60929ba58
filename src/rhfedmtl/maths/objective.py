"""Primal and dual objectives, of one base station at its anchor and of all tasks jointly, and the gap between them.

All functions take sums over samples that a station may report (Σ s L, Σ −s L*(−α/s)), never the samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.coupling import squared_norms
from rhfedmtl.maths.relationships import Anchors, Models, Relationship

Vector = npt.NDArray[np.float64]


def held_models(anchors: Anchors, V: Models) -> Models:
    """w_b = c_b + v_b/λ_b, what the stations hold."""
    return anchors.center + V / anchors.lam[:, None, None]


def station_primal(losses: Vector, n: Vector, W: Models, anchors: Anchors) -> Vector:
    """P_b(w) = (1/n_b) Σ L + λ_b/2 ‖w_b − c_b‖² + constant_b."""
    return losses / n + anchors.lam / 2.0 * squared_norms(W - anchors.center) + anchors.constant


def station_dual(dual_sums: Vector, n: Vector, V: Models, anchors: Anchors) -> Vector:
    """D_b(α) = (1/n_b) Σ −L*(−α) − ‖v_b‖²/(2λ_b) − c_bᵀv_b + constant_b."""
    quadratic = squared_norms(V) / (2.0 * anchors.lam)
    return dual_sums / n - quadratic - _inner(anchors.center, V) + anchors.constant


def joint_primal(losses: Vector, n: Vector, W: Models, relationship: Relationship) -> float:
    """P(W) = (1/N) [Σ_b (1/n_b) Σ L + ½ tr(W Q Wᵀ)]."""
    return float((np.sum(losses / n) + relationship.energy(W) / 2.0) / len(W))


def joint_dual(dual_sums: Vector, n: Vector, V: Models, relationship: Relationship) -> float:
    """D(α) = (1/N) [Σ_b (1/n_b) Σ −L*(−α) − ½ tr(V G Vᵀ)], a lower bound on P(W) for every W."""
    return float((np.sum(dual_sums / n) - relationship.dual_energy(V) / 2.0) / len(V))


def _inner(A: Models, B: Models) -> Vector:
    """⟨A_b, B_b⟩ of every task."""
    products: Vector = np.einsum("bcd,bcd->b", A, B)
    return products
