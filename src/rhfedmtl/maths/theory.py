"""Predictions of the theory before any measurement: convergence, rounds and cost (docs/mathematics.md).

Plans, the policy ``theoretical`` and studies call them. They hold for γ > 0 ((1/γ)-smooth losses), averaging, a fixed
anchor, sampling with replacement, and in expectation. λ is λ1 + λ2, n = n_b the samples of a station, ñ the samples of
its largest terminal, R = max ‖x‖ (1 after unit scaling), N_b the terminals of a station. Arguments may be arrays that
broadcast.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Case = Literal["starved", "enough", "surplus"]


class PaperChoice(NamedTuple):
    """The H of the paper's procedure, and which of its three cases the budget is."""

    H: IntArray
    case: Case


def Theta(
    H: npt.ArrayLike, n: npt.ArrayLike, n_largest: npt.ArrayLike, lam: float, gamma: float, R: float = 1.0
) -> FloatArray:
    """Return Θ(H) = (1 − (λnγ / (R² + λnγ)) / ñ)^H, the share of a terminal's suboptimality that H steps leave."""
    _check_smooth(lam, gamma)
    s = lam * np.asarray(n, dtype=np.float64) * gamma
    base = 1.0 - s / (R * R + s) / np.asarray(n_largest, dtype=np.float64)
    return np.asarray(base ** np.asarray(H, dtype=np.float64))


def sigma_size_bound(n_largest: npt.ArrayLike, R: float = 1.0) -> FloatArray:
    """Return ñ R² ≥ σ_min = largest eigenvalue of blockdiag_t(X_t X_tᵀ) − X Xᵀ; it needs no data."""
    return np.asarray(n_largest, dtype=np.float64) * (R * R)


def eta(n: npt.ArrayLike, sigma: npt.ArrayLike, lam: float, gamma: float) -> FloatArray:
    """Return η_b = λ n_b γ / (σ + λ n_b γ), the share of the terminals' progress that merging keeps."""
    _check_smooth(lam, gamma)
    s = lam * np.asarray(n, dtype=np.float64) * gamma
    return np.asarray(s / (np.asarray(sigma, dtype=np.float64) + s))


def beta(theta: npt.ArrayLike, eta_b: npt.ArrayLike, n_terminals: npt.ArrayLike) -> FloatArray:
    """Return β = (1 − Θ) min_b η_b / max_b N_b, the least share of the dual gap that a BS iteration closes.

    ``theta`` is Θ = max_b Θ_b, a number or a curve over H.
    """
    return np.asarray((1.0 - np.asarray(theta, dtype=np.float64)) * np.min(eta_b) / np.max(n_terminals))


def log_target(n: npt.ArrayLike, epsilon: float) -> float:
    """Return L = log(mean_b n_b / ε_D)."""
    if not epsilon > 0:
        raise ConfigError(f"epsilon={epsilon}: the target gap must be > 0")
    return float(np.log(np.mean(np.asarray(n, dtype=np.float64)) / epsilon))


def rounds_text(beta_H: npt.ArrayLike, L: float) -> FloatArray:
    """Return K = (1 − β) L: the paper's bound; necessary, not sufficient."""
    return np.asarray((1.0 - np.asarray(beta_H, dtype=np.float64)) * L)


def rounds_sound(beta_H: npt.ArrayLike, L: float) -> FloatArray:
    """Return K = L / −log(1 − β): guaranteed; infinite for β = 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(L / -np.log1p(-np.asarray(beta_H, dtype=np.float64)))


def rounds_drawn(H: npt.ArrayLike, n_largest: float, L: float) -> FloatArray:
    """Return K = ⌊L (1 − 1/ñ)^H⌋: the curve in the paper's cost figure."""
    return np.floor(L * (1.0 - 1.0 / n_largest) ** np.asarray(H, dtype=np.float64))


def predicted_cost(K: npt.ArrayLike, round_cost: npt.ArrayLike, M: int = 1) -> FloatArray:
    """Return f(H) = M · K(H) · Σ_b (C_BS + Σ_t H C_dev), from K(H) and the cost of one BS iteration of all stations."""
    return np.asarray(M * np.asarray(K, dtype=np.float64) * np.asarray(round_cost, dtype=np.float64))


def budget_share(f: npt.ArrayLike, budget: npt.ArrayLike) -> FloatArray:
    """Return max_j f_j(H) / C_bud,j: cost of several types (rows of f) as a single curve against a budget of 1."""
    limits = np.asarray(budget, dtype=np.float64)[:, None]
    costs = np.asarray(f, dtype=np.float64)
    free = np.where(costs > 0, np.inf, 0.0)
    return np.asarray(np.divide(costs, limits, out=free, where=limits > 0).max(axis=0))


def feasible_steps(f: npt.ArrayLike, budget: float) -> IntArray:
    """Return {H : f(H) ≤ budget}, with f at H = 1, 2, …: the range of the paper's second theorem."""
    return np.flatnonzero(np.asarray(f) <= budget) + 1


def paper_choice(f: npt.ArrayLike, budget: float, S: npt.ArrayLike) -> PaperChoice:
    """Return H = min {h ≤ S : f(h) ≤ budget < f(h + 1)}, else argmin_{h ≤ S} f(h): the paper's procedure.

    ``f`` has its values at h = 1 … max S + 1; ``S`` holds the samples of each terminal (at least 1). Of equally cheap h
    the largest wins, as the scan runs downwards. Cases, over h = 1 … max S: no h is affordable (starved), some are
    (enough), all are up to max S + 1 (surplus).
    """
    costs, sizes = np.asarray(f, dtype=np.float64), np.asarray(S, dtype=np.int64)
    largest = int(sizes.max())
    if len(costs) != largest + 1 or sizes.min() < 1:
        raise ConfigError(
            f"f needs {largest + 1} values (h = 1 to max S + 1) and S >= 1, got {len(costs)} and {sizes.min()}"
        )
    crossings = np.flatnonzero((costs[:-1] <= budget) & (costs[1:] > budget)) + 1
    lowest = np.minimum.accumulate(costs[:-1])
    cheapest = np.maximum.accumulate(np.where(costs[:-1] <= lowest, np.arange(1, largest + 1), 0))
    H = cheapest[sizes - 1]
    if len(crossings):
        H = np.where(sizes >= crossings[0], crossings[0], H)
    affordable = costs <= budget
    case: Case = "starved" if not affordable[:-1].any() else "surplus" if affordable.all() else "enough"
    return PaperChoice(H, case)


def _check_smooth(lam: float, gamma: float) -> None:
    if not (lam > 0 and gamma > 0):
        raise ConfigError(
            f"lambda={lam}, gamma={gamma}: the theory needs both > 0 (a smooth loss, not the plain hinge)"
        )
