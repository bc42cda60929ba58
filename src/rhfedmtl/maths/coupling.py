"""What every coupling of tasks offers: Q, its inverse, and anchors for the base stations.

The problem is (1/N) [Σ_b loss_b + ½ tr(W Q Wᵀ)] with Q positive definite and G = Q⁻¹. Models and dual vectors
of all tasks are arrays (task, column, feature); "W G" means that G mixes the task axis.

**Anchors by splitting.** A station can only have a weight of its own, λ_b, so the coupling is split: with
D = diag(λ_b) and the eigenmodes of D^-½ Q D^-½, a mode of eigenvalue κ

* above 1 is tighter than its stations are told: they may follow it at once, and stand at W = V G in this mode;
* below 1 is looser: the stations are held back by an anchor at what they held last, as in the paper's alternation.

At fixed anchors the dual never falls for any D. With D ≤ Q all modes are of the first kind: this is the safe joint
form, in which the joint dual never falls. With D ≥ Q all are of the second: for `mean` the paper's alternation.
Between the two lies the D that is fastest: a station's own problem gets no easier beyond λ_b ≈ 2/n_b, and every
further increase slows down the loose modes, which are what the tasks have in common.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError

Models = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# λ_b n_b beyond which coordinate steps of a station get no better (rows of unit norm, losses with γ near 1).
ENOUGH = 2.0
# Weights beyond which, or below the inverse of which, squares overflow.
MOST_WEIGHT = 1e100
# λ2/λ1 beyond which Q, tasks × tasks, is too near to singular to be inverted.
MOST_RATIO = 1e9


class Anchors(NamedTuple):
    """What base station b needs of the coupling: minimise loss_b + λ_b/2 ‖w − c_b‖² + constant_b.

    ``center`` is what a station holds whose v_b is ``origin``, which is zero where there is none: then it is c_b.
    With ``gradient``, stations hold c_b at any v_b: λ_b does not count, and its place takes the limit ∞.
    """

    center: Models
    lam: Vector
    constant: Vector
    origin: Models | None = None
    gradient: bool = False

    def held(self, V: Models) -> Models:
        """w_b = c_b + v_b/λ_b, what stations hold whose v_b is this: to the bit the centre at the origin."""
        moved = V if self.origin is None else V - self.origin
        return np.asarray(self.center + moved / (np.inf if self.gradient else self.lam[:, None, None]))

    def held_by(self, b: int, v: Models) -> Models:
        """The same of one station."""
        moved = v if self.origin is None else v - self.origin[b]
        return np.asarray(self.center[b] + moved / (np.inf if self.gradient else self.lam[b]))

    def without(self, b: int) -> Anchors:
        """Anchors of the other stations."""
        center, lam, constant = (np.delete(part, b, axis=0) for part in self[:3])
        origin = None if self.origin is None else np.delete(self.origin, b, axis=0)
        return Anchors(center, lam, constant, origin, self.gradient)

    @property
    def zero(self) -> Models:
        """c_b, which a station holds whose v_b is zero."""
        return self.held(np.zeros_like(self.center))


class Dense(NamedTuple):
    """Q with its inverse and modes Q = U diag(κ) Uᵀ, and the diagonals next to it: diag(least) ≤ Q ≤ diag(most)."""

    Q: Matrix
    G: Matrix
    kappa: Vector
    U: Matrix
    least: Vector
    most: Vector


class Splitting(NamedTuple):
    """λ_b, and the matrices that make c = A W + B V: A for the modes that alternate, B for those that follow."""

    lam: Vector
    A: Matrix
    B: Matrix


@dataclass(frozen=True)
class LearningSchedule:
    """When a relationship learns: after ``first`` server iterations, then each time there are ``growth`` as many.

    W-steps get longer as models settle, and few changes are made late. ``most`` changes are made in all.
    """

    first: int = 2
    growth: float = 1.5
    most: int = 40

    def __post_init__(self) -> None:
        """Refuse a schedule that stands still."""
        if self.first < 1 or not self.growth >= 1.0 or self.most < 0:
            raise ConfigError(f"{self} cannot work: first >= 1, growth >= 1 and most >= 0 needed")

    def due(self, cloud_rounds: int) -> bool:
        """Whether to learn after so many server iterations."""
        at = self.first
        while at < cloud_rounds:
            at = max(at + 1, math.ceil(at * self.growth))
        return at == cloud_rounds


class Relationship(ABC):
    """A coupling of tasks."""

    @abstractmethod
    def precision(self, n_tasks: int) -> Matrix:
        """Q, tasks × tasks."""

    @property
    def may_turn_safe(self) -> bool:
        """A cloud may go on in the safe joint form when models diverge."""
        return True

    def learns(self) -> LearningSchedule | None:
        """When it learns; None for a relationship that is given."""
        return None

    def energy(self, W: Models) -> float:
        """tr(W Q Wᵀ) as a sum of squares: what cancels cannot make it negative, and a certificate wrong."""
        dense = self.dense(len(W))
        return float(dense.kappa @ squared_norms(mix(dense.U.T, W)))

    def dual_energy(self, V: Models) -> float:
        """tr(V G Vᵀ), likewise."""
        dense = self.dense(len(V))
        return float((1.0 / dense.kappa) @ squared_norms(mix(dense.U.T, V)))

    def solve(self, V: Models) -> Models:
        """W = V G, the models that belong to the dual vectors V under the whole coupling."""
        return mix(self.dense(len(V)).G, V)

    def apply(self, W: Models) -> Models:
        """W Q."""
        return mix(self.dense(len(W)).Q, W)

    def precondition(self, W: Models, curvature: float) -> Models:
        """W (Q + h I)⁻¹: a metric that knows the coupling, and of the losses their curvature h."""
        dense = self.dense(len(W))
        return mix((dense.U / (dense.kappa + curvature)) @ dense.U.T, W)

    def anchors(self, W: Models, V: Models, n: Vector | None = None) -> Anchors:
        """λ_b = 2/n_b, but within diag(least) ≤ D ≤ diag(most), and c = A W + B V; see the top of this file.

        ``W`` is what the stations hold, ``n`` their samples; without it, the safe joint form.
        """
        lam, A, B = self._split(len(V), n)
        return Anchors(mix(A, W) + mix(B, V), lam, np.zeros(len(V)))

    def coupling(self, n_tasks: int) -> float:
        """Share of a station's weight that ties it to other tasks: 1 − (smallest eigenvalue of Q)/(its diagonal)."""
        Q = self.dense(n_tasks).Q
        return float(1.0 - np.linalg.eigvalsh(Q)[0] / np.max(np.diag(Q)))

    def affinity(self, n_tasks: int) -> Matrix:
        """Who helps whom: G_bb′/√(G_bb G_b′b′), in [−1, 1].

        It is the correlation of two models before any data is seen: 1 for tasks that are one, 0 for strangers,
        below 0 for opposites.
        """
        G = self.dense(n_tasks).G
        root = np.sqrt(np.diag(G))
        return np.asarray(np.clip(G / np.outer(root, root), -1.0, 1.0))

    def largest_energy(self, r: Vector) -> float:
        """The most that tr(R G Rᵀ) can be where ‖R_b‖ ≤ r_b: Σ_bb′ |G_bb′| r_b r_b′."""
        return float(r @ np.abs(self.dense(len(r)).G) @ r)

    def learn(self, W: Models) -> Self:
        """Return the relationship as these models suggest it; a given one stays as it is."""
        return self

    def without(self, task: int) -> Relationship:
        """Return the relationship of the other tasks; their learned coupling stays."""
        return self

    def likeness(self, V: Models) -> float:
        """By how much more tasks would have to be drawn to their mean to be as alike as these V are; 0: they need not.

        Where tasks have few rows and hardly any coupling, ascent gets faster to its optimum from such a start.
        """
        return 0.0

    def drawn(self, pull: float) -> Relationship:
        """The same with tasks drawn to their mean by so much more, if it can be."""
        return self

    def dense(self, n_tasks: int) -> Dense:
        """Q and what follows from it, computed once."""
        if n_tasks not in self._dense:
            Q = self.precision(n_tasks)
            kappa, U = modes(Q)
            G = (U / kappa) @ U.T
            G = (G + G.T) / 2.0
            root = np.sqrt(np.diag(Q))
            top = float(np.linalg.eigvalsh(Q / np.outer(root, root))[-1])
            self._dense[n_tasks] = Dense(Q, G, kappa, U, 1.0 / np.abs(G).sum(axis=1), np.diag(Q) * top)
        return self._dense[n_tasks]

    @cached_property
    def _dense(self) -> dict[int, Dense]:
        return {}

    @cached_property
    def _splittings(self) -> dict[tuple[float, ...] | int, Splitting]:
        return {}

    def _split(self, n_tasks: int, n: Vector | None) -> Splitting:
        key = n_tasks if n is None else tuple(n.tolist())
        if key not in self._splittings:
            dense = self.dense(n_tasks)
            lam = dense.least if n is None else np.clip(ENOUGH / n, dense.least, dense.most)
            self._splittings.clear()  # membership changes seldom, and old ones do not come back
            self._splittings[key] = split(dense.Q, lam)
        return self._splittings[key]


@dataclass(frozen=True)
class Safe(Relationship):
    """The same coupling in the safe joint form: slower, and the joint dual never falls whatever the work.

    λ_b = 1/Σ_b′|G_bb′|, c_b = w_b − v_b/λ_b at W = V G; updates of all stations are added.
    """

    inner: Relationship

    @property
    def may_turn_safe(self) -> bool:
        """False: the form is safe already."""
        return False

    def precision(self, n_tasks: int) -> Matrix:
        """Q of the inner one."""
        return self.inner.precision(n_tasks)

    def energy(self, W: Models) -> float:
        """As the inner one says."""
        return self.inner.energy(W)

    def dual_energy(self, V: Models) -> float:
        """As the inner one says."""
        return self.inner.dual_energy(V)

    def largest_energy(self, r: Vector) -> float:
        """As the inner one says."""
        return self.inner.largest_energy(r)

    def solve(self, V: Models) -> Models:
        """As the inner one says."""
        return self.inner.solve(V)

    def apply(self, W: Models) -> Models:
        """As the inner one says."""
        return self.inner.apply(W)

    def precondition(self, W: Models, curvature: float) -> Models:
        """As the inner one says."""
        return self.inner.precondition(W, curvature)

    def learns(self) -> LearningSchedule | None:
        """When the inner one learns."""
        return self.inner.learns()

    def affinity(self, n_tasks: int) -> Matrix:
        """As the inner one says."""
        return self.inner.affinity(n_tasks)

    def anchors(self, W: Models, V: Models, n: Vector | None = None) -> Anchors:
        """Safe joint form, whatever is known of the stations."""
        return super().anchors(W, V)

    def coupling(self, n_tasks: int) -> float:
        """As the inner one says."""
        return self.inner.coupling(n_tasks)

    def without(self, task: int) -> Relationship:
        """Leave the task out of the inner relationship."""
        return type(self)(self.inner.without(task))

    def learn(self, W: Models) -> Self:
        """Let the inner one learn."""
        learned = self.inner.learn(W)
        return self if learned is self.inner else type(self)(learned)


def split(Q: Matrix, lam: Vector) -> Splitting:
    """Split Q at D = diag(λ_b): c = A W + B V with A = D^-½ (1 − κ)₊ D^½ and B = D^-½ (1/κ − 1)₋ D^-½ by modes."""
    root = np.sqrt(lam)
    kappa, U = modes(Q / np.outer(root, root))
    models = (U * np.maximum(1.0 - kappa, 0.0)) @ U.T / root[:, None] * root
    duals = (U * np.minimum(1.0 / kappa - 1.0, 0.0)) @ U.T / np.outer(root, root)
    return Splitting(lam, np.asarray(models), np.asarray(duals))


def modes(Q: Matrix) -> tuple[Vector, Matrix]:
    """Q = U diag(κ) Uᵀ with κ > 0: a mode so loose that rounding hides it is as loose as can be told."""
    kappa, U = np.linalg.eigh(Q)
    return np.maximum(kappa, len(Q) * np.finfo(float).eps * kappa[-1]), U


def squared_norms(W: Models) -> Vector:
    """‖W_b‖² of every task."""
    norms: Vector = np.einsum("bcd,bcd->b", W, W)
    return norms


def mix(matrix: Matrix, W: Models) -> Models:
    """Mix the task axis: matrix times W, in the order of tasks whatever the number of threads."""
    mixed: Models = np.einsum("ab,bcd->acd", matrix, W)
    return mixed


def check_ratio(lambda1: float, lambda2: float) -> None:
    """Refuse weights so far apart that λ1 is lost where Q is made: a sum of numbers of 16 digits."""
    if lambda2 > MOST_RATIO * lambda1:
        raise ConfigError(
            f"lambda2={lambda2:g} is more than {MOST_RATIO:g} times lambda1={lambda1:g}: double precision cannot tell "
            "this coupling from one without lambda1; raise lambda1, lower lambda2, or take relationship 'mean'"
        )


def check_weight(name: str, weight: float, *, positive: bool = False) -> None:
    """Refuse what is not a finite number of at least (or, if ``positive``, above) 0, and what overflows if squared."""
    if not math.isfinite(weight) or weight < 0.0 or (positive and weight == 0.0):
        bound = "> 0" if positive else ">= 0"
        raise ConfigError(f"{name} must be a finite number {bound}, got {weight}")
    if weight > MOST_WEIGHT or (positive and weight * MOST_WEIGHT < 1.0):
        least = f"{1.0 / MOST_WEIGHT:g}" if positive else "0"
        raise ConfigError(f"{name} must lie between {least} and {MOST_WEIGHT:g}, got {weight:g}")
