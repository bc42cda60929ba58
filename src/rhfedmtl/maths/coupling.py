"""Coupling of tasks: Q, its inverse G, and the anchors of the base stations.

The problem is (1/N) [Σ_b loss_b + ½ tr(W Q Wᵀ)] with Q positive definite and G = Q⁻¹. Models and dual vectors
of all tasks are arrays (task, column, feature); "W G" means that G mixes the task axis. A relationship defines Q
(`relationships.py`, `learned.py`); the cloud makes anchors and certificates with it. No function sees a row of data.

**Anchors by splitting.** A station has a single weight, λ_b, so the coupling is split: with D = diag(λ_b) and the
eigenmodes of D^-½ Q D^-½, a mode of eigenvalue κ

* above 1 is tighter than the weights of its stations: they may follow it at once, and hold W = V G in this mode;
* below 1 is looser: an anchor at their last models holds the stations back, as in the paper's alternation.

At fixed anchors the dual never falls for any D. With D ≤ Q all modes are of the first kind: this is the safe joint
form, in which the joint dual never falls. With D ≥ Q all are of the second: for `mean` the paper's alternation.
The fastest D lies between the two: a station's own problem gets no easier beyond λ_b ≈ 2/n_b, and every further
increase slows down the loose modes, which describe the common part of the tasks.
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

# Largest λ_b n_b: more does not make coordinate steps faster (rows of unit norm, losses with γ near 1).
# Measured: benchmarks/results/constants.md; ×0.5: −0.04 ± 0.12 points, +0.02 ± 0.07 decades;
# ×2: +0.03 ± 0.05 points, −0.02 ± 0.06 decades.
MOST_ANCHOR_WEIGHT = 2.0
# Weights beyond which, or below the inverse of which, squares overflow.
MOST_WEIGHT = 1e100
# λ2/λ1 beyond which Q, tasks × tasks, is too near to singular to be inverted.
MOST_RATIO = 1e9


class Anchors(NamedTuple):
    """The problem of base station b: minimise loss_b + λ_b/2 ‖w − c_b‖² + constant_b.

    ``center`` is the model that a station holds when its v_b equals ``origin``. Without an ``origin`` that v_b is zero,
    and ``center`` is c_b. With ``gradient``, stations hold c_b at any v_b: λ_b does not count, and the limit ∞ replaces
    it.
    """

    center: Models
    lam: Vector
    constant: Vector
    origin: Models | None = None
    gradient: bool = False

    def models_at(self, V: Models) -> Models:
        """Return w_b = c_b + v_b/λ_b, the models that stations hold with v_b: at the origin exactly the centre."""
        moved = V if self.origin is None else V - self.origin
        return np.asarray(self.center + moved / (np.inf if self.gradient else self.lam[:, None, None]))

    def model_at(self, b: int, v: Models) -> Models:
        """Return the model that station ``b`` holds with this v_b."""
        moved = v if self.origin is None else v - self.origin[b]
        return np.asarray(self.center[b] + moved / (np.inf if self.gradient else self.lam[b]))

    def without(self, b: int) -> Anchors:
        """Return the anchors of all stations except ``b``."""
        center, lam, constant = (np.delete(part, b, axis=0) for part in self[:3])
        origin = None if self.origin is None else np.delete(self.origin, b, axis=0)
        return Anchors(center, lam, constant, origin, self.gradient)

    @property
    def zero(self) -> Models:
        """Return c_b, the models that stations hold with v_b = 0."""
        return self.models_at(np.zeros_like(self.center))


class Dense(NamedTuple):
    """Q with its inverse, its modes Q = U diag(κ) Uᵀ, and diagonal bounds: diag(lower) ≤ Q ≤ diag(upper)."""

    Q: Matrix
    G: Matrix
    kappa: Vector
    U: Matrix
    lower: Vector
    upper: Vector


class Splitting(NamedTuple):
    """Weights λ_b and the matrices of c = A W + B V: A for the modes that alternate, B for the modes that follow."""

    lam: Vector
    A: Matrix
    B: Matrix


@dataclass(frozen=True)
class LearningSchedule:
    """Server iterations after which a relationship learns.

    The first is ``first``. The next comes when the number of iterations has grown by the factor ``growth``: W-steps get
    longer as models settle, and late changes are rare. ``most`` limits the number of changes.
    """

    first: int = 2
    growth: float = 1.5
    most: int = 40

    def __post_init__(self) -> None:
        """Raise ConfigError if the schedule cannot advance."""
        if self.first < 1 or not self.growth >= 1.0 or self.most < 0:
            raise ConfigError(f"{self} cannot work: first >= 1, growth >= 1 and most >= 0 needed")

    def due(self, cloud_rounds: int) -> bool:
        """Return True if the relationship learns after this many server iterations."""
        at = self.first
        while at < cloud_rounds:
            at = max(at + 1, math.ceil(at * self.growth))
        return at == cloud_rounds


class Relationship(ABC):
    """A coupling of tasks. A subclass defines ``precision``; the other methods follow from it."""

    @abstractmethod
    def precision(self, n_tasks: int) -> Matrix:
        """Return Q, tasks × tasks."""

    @property
    def may_turn_safe(self) -> bool:
        """True if the cloud may continue in the safe joint form when models diverge."""
        return True

    def learns(self) -> LearningSchedule | None:
        """Return the schedule of learning, or None for a fixed relationship."""
        return None

    def energy(self, W: Models) -> float:
        """Return tr(W Q Wᵀ) as a sum of squares: rounding cannot make it negative and a certificate wrong."""
        dense = self.dense(len(W))
        return float(dense.kappa @ squared_norms(mix(dense.U.T, W)))

    def dual_energy(self, V: Models) -> float:
        """Return tr(V G Vᵀ) as a sum of squares, like `energy`."""
        dense = self.dense(len(V))
        return float((1.0 / dense.kappa) @ squared_norms(mix(dense.U.T, V)))

    def solve(self, V: Models) -> Models:
        """Return W = V G, the models that belong to the dual vectors V under the full coupling."""
        return mix(self.dense(len(V)).G, V)

    def apply(self, W: Models) -> Models:
        """Return W Q."""
        return mix(self.dense(len(W)).Q, W)

    def precondition(self, W: Models, curvature: float) -> Models:
        """Return W (Q + h I)⁻¹: a metric with the exact coupling, and the curvature h for the losses."""
        dense = self.dense(len(W))
        return mix((dense.U / (dense.kappa + curvature)) @ dense.U.T, W)

    def anchors(self, W: Models, V: Models, n: Vector | None = None) -> Anchors:
        """Return λ_b = 2/n_b, limited to diag(lower) ≤ D ≤ diag(upper), and c = A W + B V; see the top of this file.

        Parameters
        ----------
        W
            Models that the stations hold.
        V
            Their dual vectors.
        n
            Their samples; without them, the result is the safe joint form.
        """
        key = len(V) if n is None else tuple(n.tolist())
        if key not in self._splittings:
            dense = self.dense(len(V))
            lam = dense.lower if n is None else np.clip(MOST_ANCHOR_WEIGHT / n, dense.lower, dense.upper)
            self._splittings.clear()  # membership changes rarely, and an earlier membership does not return
            self._splittings[key] = split(dense.Q, lam)
        lam, A, B = self._splittings[key]
        return Anchors(mix(A, W) + mix(B, V), lam, np.zeros(len(V)))

    def coupling(self, n_tasks: int) -> float:
        """Return the share of a station's weight that ties it to other tasks: 1 − κ_min(Q)/max diag(Q).

        κ_min is the smallest eigenvalue.
        """
        Q = self.dense(n_tasks).Q
        return float(1.0 - np.linalg.eigvalsh(Q)[0] / np.max(np.diag(Q)))

    def affinity(self, n_tasks: int) -> Matrix:
        """Correlation of every two models before any data is seen: G_bb′/√(G_bb G_b′b′), in [−1, 1].

        It is 1 for identical tasks, 0 for unrelated tasks, and below 0 for opposite tasks.
        """
        G = self.dense(n_tasks).G
        root = np.sqrt(np.diag(G))
        return np.asarray(np.clip(G / np.outer(root, root), -1.0, 1.0))

    def largest_energy(self, r: Vector) -> float:
        """Return a bound on tr(R G Rᵀ) for ‖R_b‖ ≤ r_b: Σ_bb′ |G_bb′| r_b r_b′."""
        return float(r @ np.abs(self.dense(len(r)).G) @ r)

    def learn(self, W: Models) -> Self:
        """Return the relationship that these models suggest; a fixed relationship returns itself."""
        return self

    def without(self, task: int) -> Relationship:
        """Return the relationship of the remaining tasks; their learned coupling stays."""
        return self

    def extra_coupling(self, V: Models) -> float:
        """Return the extra coupling to the mean that would make tasks as similar as these V; 0 if they need no extra.

        If tasks have few rows and hardly any coupling, ascent reaches its optimum faster from such a start.
        """
        return 0.0

    def with_extra_coupling(self, extra: float) -> Relationship:
        """Return the relationship with extra coupling to the mean, or itself if it has no such form."""
        return self

    def dense(self, n_tasks: int) -> Dense:
        """Return Q and the matrices derived from it; each number of tasks is computed only the first time."""
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


@dataclass(frozen=True)
class Safe(Relationship):
    """The same coupling in the safe joint form: slower, but the joint dual never falls, however much stations work.

    λ_b = 1/Σ_b′|G_bb′|, c_b = w_b − v_b/λ_b at W = V G; updates of all stations are added.
    """

    inner: Relationship

    @property
    def may_turn_safe(self) -> bool:
        """False: this form is safe already."""
        return False

    def precision(self, n_tasks: int) -> Matrix:
        """Return Q of the inner relationship."""
        return self.inner.precision(n_tasks)

    def energy(self, W: Models) -> float:
        """Return `energy` of the inner relationship."""
        return self.inner.energy(W)

    def dual_energy(self, V: Models) -> float:
        """Return `dual_energy` of the inner relationship."""
        return self.inner.dual_energy(V)

    def largest_energy(self, r: Vector) -> float:
        """Return `largest_energy` of the inner relationship."""
        return self.inner.largest_energy(r)

    def solve(self, V: Models) -> Models:
        """Return `solve` of the inner relationship."""
        return self.inner.solve(V)

    def apply(self, W: Models) -> Models:
        """Return `apply` of the inner relationship."""
        return self.inner.apply(W)

    def precondition(self, W: Models, curvature: float) -> Models:
        """Return `precondition` of the inner relationship."""
        return self.inner.precondition(W, curvature)

    def learns(self) -> LearningSchedule | None:
        """Return the schedule of the inner relationship."""
        return self.inner.learns()

    def affinity(self, n_tasks: int) -> Matrix:
        """Return `affinity` of the inner relationship."""
        return self.inner.affinity(n_tasks)

    def anchors(self, W: Models, V: Models, n: Vector | None = None) -> Anchors:
        """Return the anchors of the safe joint form; the samples ``n`` are ignored."""
        return super().anchors(W, V)

    def coupling(self, n_tasks: int) -> float:
        """Return `coupling` of the inner relationship."""
        return self.inner.coupling(n_tasks)

    def without(self, task: int) -> Relationship:
        """Return the safe form of the inner relationship without this task."""
        return type(self)(self.inner.without(task))

    def learn(self, W: Models) -> Self:
        """Return the safe form of the inner relationship after learning."""
        learned = self.inner.learn(W)
        return self if learned is self.inner else type(self)(learned)


def split(Q: Matrix, lam: Vector) -> Splitting:
    """Split Q at D = diag(λ_b): c = A W + B V.

    By modes, A = D^-½ (1 − κ)₊ D^½ and B = D^-½ (1/κ − 1)₋ D^-½.
    """
    root = np.sqrt(lam)
    kappa, U = modes(Q / np.outer(root, root))
    models = (U * np.maximum(1.0 - kappa, 0.0)) @ U.T / root[:, None] * root
    duals = (U * np.minimum(1.0 / kappa - 1.0, 0.0)) @ U.T / np.outer(root, root)
    return Splitting(lam, np.asarray(models), np.asarray(duals))


def modes(Q: Matrix) -> tuple[Vector, Matrix]:
    """Return κ > 0 and U of Q = U diag(κ) Uᵀ; an eigenvalue that rounding hides is raised to the rounding error."""
    kappa, U = np.linalg.eigh(Q)
    return np.maximum(kappa, len(Q) * np.finfo(float).eps * kappa[-1]), U


def squared_norms(W: Models) -> Vector:
    """Return ‖W_b‖² of every task."""
    norms: Vector = np.einsum("bcd,bcd->b", W, W)
    return norms


def mix(matrix: Matrix, W: Models) -> Models:
    """Return matrix times W along the task axis, with bits that do not depend on the number of threads."""
    mixed: Models = np.einsum("ab,bcd->acd", matrix, W)
    return mixed


def check_ratio(lambda1: float, lambda2: float) -> None:
    """Raise ConfigError if λ2/λ1 is so large that Q, a sum of numbers with 16 digits, loses λ1."""
    if lambda2 > MOST_RATIO * lambda1:
        raise ConfigError(
            f"lambda2={lambda2:g} is more than {MOST_RATIO:g} times lambda1={lambda1:g}: double precision cannot tell "
            "this coupling from one without lambda1; raise lambda1, lower lambda2, or take relationship 'mean'"
        )


def check_weight(name: str, weight: float, *, positive: bool = False) -> None:
    """Raise ConfigError unless 0 ≤ weight ≤ `MOST_WEIGHT`; a ``positive`` weight must be at least 1/`MOST_WEIGHT`."""
    if not math.isfinite(weight) or weight < 0.0 or (positive and weight == 0.0):
        bound = "> 0" if positive else ">= 0"
        raise ConfigError(f"{name} must be a finite number {bound}, got {weight}")
    if weight > MOST_WEIGHT or (positive and weight * MOST_WEIGHT < 1.0):
        minimum = f"{1.0 / MOST_WEIGHT:g}" if positive else "0"
        raise ConfigError(f"{name} must lie between {minimum} and {MOST_WEIGHT:g}, got {weight:g}")
