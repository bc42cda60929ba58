"""How tasks are coupled. Every coupling reaches the base stations as an anchor: a centre c_b and a weight λ_b.

The problem is (1/N) [Σ_b loss_b + ½ tr(W Q Wᵀ)] with Q positive definite and G = Q⁻¹. Models and dual vectors
of all tasks are arrays (task, column, feature); "W G" means that G mixes the task axis.

Add a relationship: write a frozen dataclass with ``precision`` (and, where it is learned, ``learn``), add it to
``RELATIONSHIPS``. The safe joint form of the anchors comes with the base class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError

Models = npt.NDArray[np.float64]


class Anchors(NamedTuple):
    """What base station b needs of the coupling: minimise loss_b + λ_b/2 ‖w − c_b‖² + constant_b."""

    center: Models
    lam: npt.NDArray[np.float64]
    constant: npt.NDArray[np.float64]


class Relationship(ABC):
    """A coupling of tasks."""

    @abstractmethod
    def precision(self, n_tasks: int) -> npt.NDArray[np.float64]:
        """Q, tasks × tasks."""

    def couple(self, W: Models) -> Models:
        """W Q."""
        return _mix(self.precision(len(W)), W)

    def solve(self, V: Models) -> Models:
        """W = V G, the models that belong to the dual vectors V under the whole coupling."""
        return _mix(_inverse(self.precision(len(V))), V)

    def anchors(self, W: Models, V: Models) -> Anchors:
        """Safe joint form: λ_b = 1/(s G_bb), c_b = w_b − v_b/λ_b at W = V G, with s = max_b Σ_b′|G_bb′|/G_bb.

        All stations may then work at once and their updates be added: the joint dual never falls. ``W``, what
        the stations hold, is not needed here; alternating forms use it.
        """
        G = _inverse(self.precision(len(V)))
        diagonal = np.diag(G)
        spread = np.max(np.abs(G).sum(axis=1) / diagonal)
        lam = 1.0 / (spread * diagonal)
        center = _mix(G, V) - V / lam[:, None, None]
        return Anchors(center, lam, np.zeros(len(V)))

    def coupling(self, n_tasks: int) -> float:
        """Share of a station's weight that ties it to other tasks: 1 − (smallest eigenvalue of Q)/(its diagonal)."""
        Q = self.precision(n_tasks)
        return float(1.0 - np.linalg.eigvalsh(Q)[0] / np.max(np.diag(Q)))

    def learn(self, W: Models) -> Self:
        """Return the relationship as these models suggest it; a given one stays as it is."""
        return self


@dataclass(frozen=True)
class MeanRegularised(Relationship):
    """Models are drawn to their mean: Q = λ1 I + λ2 (I − 11ᵀ/N). Anchors follow the paper's alternation."""

    lambda1: float = 1e-4
    lambda2: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse weights for which the problem has no unique solution."""
        _check("lambda1", self.lambda1, positive=True)
        _check("lambda2", self.lambda2, positive=False)

    def precision(self, n_tasks: int) -> npt.NDArray[np.float64]:
        """λ1 I + λ2 (I − 11ᵀ/N)."""
        return (self.lambda1 + self.lambda2) * np.eye(n_tasks) - self.lambda2 / n_tasks

    def couple(self, W: Models) -> Models:
        """W Q in linear time."""
        mean: Models = W.mean(axis=0)
        return (self.lambda1 + self.lambda2) * W - self.lambda2 * mean

    def coupling(self, n_tasks: int) -> float:
        """λ2/(λ1+λ2): what the alternation keeps of its error in one step."""
        return self.lambda2 / (self.lambda1 + self.lambda2)

    def solve(self, V: Models) -> Models:
        """V G in linear time: G = (I + (λ2/λ1) 11ᵀ/N)/(λ1+λ2)."""
        mean: Models = V.mean(axis=0)
        return (V + (self.lambda2 / self.lambda1) * mean) / (self.lambda1 + self.lambda2)

    def anchors(self, W: Models, V: Models) -> Anchors:
        """r = mean_b w_b, c_b = λ2 r/λ, λ_b = λ = λ1+λ2; the constant is λ1 λ2 ‖r‖²/(2λ).

        Setting r to its fixed point V̄/λ1 at once would look faster, and diverges for λ2 ≫ λ1.
        """
        lam = self.lambda1 + self.lambda2
        r = W.mean(axis=0)
        constant = self.lambda1 * self.lambda2 / (2.0 * lam) * np.sum(r * r)
        center = np.broadcast_to(self.lambda2 / lam * r, W.shape)
        return Anchors(center.copy(), np.full(len(W), lam), np.full(len(W), constant))


@dataclass(frozen=True)
class Unrelated(Relationship):
    """Every task on its own: Q = λ1 I, anchors at zero. ``lambda2`` has no meaning here."""

    lambda1: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse weights for which the problem has no unique solution."""
        _check("lambda1", self.lambda1, positive=True)

    def precision(self, n_tasks: int) -> npt.NDArray[np.float64]:
        """λ1 I."""
        return self.lambda1 * np.eye(n_tasks)

    def couple(self, W: Models) -> Models:
        """λ1 W."""
        return self.lambda1 * W

    def coupling(self, n_tasks: int) -> float:
        """No task knows of another."""
        return 0.0

    def solve(self, V: Models) -> Models:
        """V/λ1."""
        return V / self.lambda1

    def anchors(self, W: Models, V: Models) -> Anchors:
        """Centre 0, weight λ1."""
        return Anchors(np.zeros_like(W), np.full(len(W), self.lambda1), np.zeros(len(W)))


def _mix(matrix: npt.NDArray[np.float64], W: Models) -> Models:
    """Mix the task axis: symmetric matrix times W, in the order of tasks whatever the number of threads."""
    mixed: Models = np.einsum("ab,bcd->acd", matrix, W)
    return mixed


def _inverse(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _check(name: str, weight: float, *, positive: bool) -> None:
    if not math.isfinite(weight) or weight < 0.0 or (positive and weight == 0.0):
        bound = "> 0" if positive else ">= 0"
        raise ConfigError(f"{name} must be a finite number {bound}, got {weight}")


RELATIONSHIPS: dict[str, Callable[[float, float], Relationship]] = {
    "mean": MeanRegularised,
    "none": lambda lambda1, _lambda2: Unrelated(lambda1),
}
