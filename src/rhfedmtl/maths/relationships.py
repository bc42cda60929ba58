"""Relationships between tasks. Each reaches the base stations as an anchor: a centre c_b and a weight λ_b.

To add a relationship, write a frozen dataclass with ``precision`` (and, if it is learned, ``learn`` and ``learns``),
and its line in `registry`. The base class makes the anchors (`coupling.py`), and the cloud calls `anchors` once per
server iteration. V are the v_b of the stations, and G is the inverse of Q.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rhfedmtl.maths.coupling import (
    MOST_ANCHOR_WEIGHT,
    Anchors,
    Matrix,
    Models,
    Relationship,
    Safe,
    Vector,
    check_weight,
)
from rhfedmtl.maths.learned import Clusters, Graph, Learned
from rhfedmtl.maths.registry import LAMBDA1, LAMBDA2

__all__ = [
    "Anchors",
    "Clusters",
    "Graph",
    "Learned",
    "MeanRegularised",
    "Models",
    "Relationship",
    "Safe",
    "Unrelated",
]


# Largest λ2/λ1 of a coupled start: more does not change its first rounds.
# Measured: benchmarks/results/constants.md; ×0.5: +0.02 ± 0.04 points, −0.00 ± 0.01 decades;
# ×2: −0.01 ± 0.02 points, +0.00 ± 0.00 decades.
MOST_START_RATIO = 100.0


@dataclass(frozen=True)
class MeanRegularised(Relationship):
    """Q = λ1 I + λ2 (I − 11ᵀ/N): λ2 holds models near their mean. Anchors follow the paper's alternation.

    ``plain`` keeps the paper's anchors: always λ_b = λ1+λ2, and never the safe joint form.
    """

    lambda1: float = LAMBDA1
    lambda2: float = LAMBDA2
    plain: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for weights that leave the problem without a unique solution."""
        check_weight("lambda1", self.lambda1, positive=True)
        check_weight("lambda2", self.lambda2, positive=False)

    @property
    def may_turn_safe(self) -> bool:
        """True except with the paper's anchors."""
        return not self.plain

    def precision(self, n_tasks: int) -> Matrix:
        """Return λ1 I + λ2 (I − 11ᵀ/N)."""
        return self.lambda1 * np.eye(n_tasks) + self.lambda2 * (np.eye(n_tasks) - 1.0 / n_tasks)

    def energy(self, W: Models) -> float:
        """Return λ1 ‖W‖² + λ2 Σ_b ‖w_b − w̄‖²."""
        return float(self.lambda1 * np.sum(W * W) + self.lambda2 * np.sum(np.square(W - W.mean(axis=0))))

    def dual_energy(self, V: Models) -> float:
        """Return Σ_b ‖v_b − v̄‖²/(λ1+λ2) + N ‖v̄‖²/λ1."""
        mean = V.mean(axis=0)
        deviations = np.sum(np.square(V - mean)) / (self.lambda1 + self.lambda2)
        return float(deviations + len(V) * np.sum(mean * mean) / self.lambda1)

    def largest_energy(self, r: Vector) -> float:
        """Return tr(R G Rᵀ) of parallel R_b, which is the largest because no entry of G is negative."""
        return self.dual_energy(r[:, None, None])

    def coupling(self, n_tasks: int) -> float:
        """Return λ2/(λ1+λ2), the share of its error that the alternation keeps in each step."""
        return self.lambda2 / (self.lambda1 + self.lambda2)

    def solve(self, V: Models) -> Models:
        """Return V G in linear time: G = (I + (λ2/λ1) 11ᵀ/N)/(λ1+λ2)."""
        mean: Models = V.mean(axis=0)
        return (V + (self.lambda2 / self.lambda1) * mean) / (self.lambda1 + self.lambda2)

    def apply(self, W: Models) -> Models:
        """Return (λ1+λ2) W − λ2 W̄ in linear time."""
        return np.asarray((self.lambda1 + self.lambda2) * W - self.lambda2 * W.mean(axis=0))

    def precondition(self, W: Models, curvature: float) -> Models:
        """Return the mean divided by λ1+h plus the deviations from it divided by λ1+λ2+h."""
        mean: Models = W.mean(axis=0)
        return (W - mean) / (self.lambda1 + self.lambda2 + curvature) + mean / (self.lambda1 + curvature)

    def anchors(self, W: Models, V: Models, n: Vector | None = None) -> Anchors:
        """Return the anchors of the alternation: r = mean_b w_b, c_b = λ2 r/λ, λ_b = λ = λ1+λ2.

        The constant is λ1 λ2 ‖r‖²/(2λ). Setting r to its fixed point V̄/λ1 at once would look faster, but diverges for
        λ2 ≫ λ1. If λ is more than the stations' ``n`` samples need (2/n̄), the alternation would be slow. Then
        λ_b = max(λ1, 2/n̄), and the deviations from the mean follow at once:
        c_b = (1 − λ1/λ_b) r + (1/λ − 1/λ_b)(v_b − v̄).
        """
        lam = self.lambda1 + self.lambda2
        r = W.mean(axis=0)
        weight = lam if n is None or self.plain else self._anchored(n)
        center = np.broadcast_to((1.0 - self.lambda1 / weight) * r, W.shape)
        if weight < lam:
            center = center + (1.0 / lam - 1.0 / weight) * (V - V.mean(axis=0))
        constant = self.lambda1 * (1.0 - self.lambda1 / weight) / 2.0 * np.sum(r * r)
        return Anchors(center.copy(), np.full(len(W), weight), np.full(len(W), constant))

    def extra_coupling(self, V: Models) -> float:
        """Return how far λ2 must rise for G to give the mean and the deviations from it the sizes that V has.

        By modes, G is 1/λ1 for the mean and 1/(λ1+λ2) for each of the N − 1 others, and V has N‖v̄‖² and
        Σ_b ‖v_b − v̄‖². The result is 0 if λ2 is at least λ1.
        """
        mean = V.mean(axis=0)
        common, deviations = (len(V) - 1) * len(V) * float(np.sum(mean * mean)), float(np.sum(np.square(V - mean)))
        if self.lambda2 >= self.lambda1 or common == 0.0:
            return 0.0
        ratio = common / max(deviations, common / (1.0 + MOST_START_RATIO)) - 1.0
        return max(ratio * self.lambda1 - self.lambda2, 0.0)

    def with_extra_coupling(self, extra: float) -> MeanRegularised:
        """Return the relationship with λ2 + ``extra``."""
        return replace(self, lambda2=self.lambda2 + extra)

    def _anchored(self, n: Vector) -> float:
        """Return λ_b for stations with this many samples."""
        return min(self.lambda1 + self.lambda2, max(self.lambda1, MOST_ANCHOR_WEIGHT / float(np.mean(n))))


@dataclass(frozen=True)
class Unrelated(Relationship):
    """Independent tasks: Q = λ1 I, anchors at zero. ``lambda2`` has no meaning for them."""

    lambda1: float = LAMBDA1

    def __post_init__(self) -> None:
        """Raise ConfigError for weights that leave the problem without a unique solution."""
        check_weight("lambda1", self.lambda1, positive=True)

    def precision(self, n_tasks: int) -> Matrix:
        """Return λ1 I."""
        return self.lambda1 * np.eye(n_tasks)

    def energy(self, W: Models) -> float:
        """Return λ1 ‖W‖²."""
        return float(self.lambda1 * np.sum(W * W))

    def dual_energy(self, V: Models) -> float:
        """Return ‖V‖²/λ1."""
        return float(np.sum(V * V) / self.lambda1)

    def largest_energy(self, r: Vector) -> float:
        """Return Σ_b r_b²/λ1."""
        return self.dual_energy(r[:, None, None])

    def coupling(self, n_tasks: int) -> float:
        """Return 0: no task influences another."""
        return 0.0

    def solve(self, V: Models) -> Models:
        """Return V/λ1."""
        return V / self.lambda1

    def apply(self, W: Models) -> Models:
        """Return λ1 W."""
        return self.lambda1 * W

    def precondition(self, W: Models, curvature: float) -> Models:
        """Return W/(λ1+h)."""
        return W / (self.lambda1 + curvature)

    def anchors(self, W: Models, V: Models, n: Vector | None = None) -> Anchors:
        """Return centre 0 and weight λ1 for every task."""
        return Anchors(np.zeros_like(W), np.full(len(W), self.lambda1), np.zeros(len(W)))


def weights_of(relationship: Relationship, n_tasks: int) -> dict[str, float]:
    """Return λ1 and λ2 by name, without λ2 if this many tasks are not coupled."""
    inner = relationship.inner if isinstance(relationship, Safe) else relationship
    weights = {name: float(getattr(inner, name)) for name in ("lambda1", "lambda2") if hasattr(inner, name)}
    if inner.coupling(n_tasks) == 0.0:
        weights.pop("lambda2", None)
    return weights


def unrelated(lambda1: float = LAMBDA1, lambda2: float = LAMBDA2) -> Unrelated:
    """Make relationship ``none`` from the two weights that every relationship takes."""
    return Unrelated(lambda1)
