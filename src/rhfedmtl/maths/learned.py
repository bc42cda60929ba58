"""Relationships that training learns, or that the user defines task by task: a covariance Ω, a graph, clusters.

The cloud calls ``learn`` with the current models. A relationship is a frozen value: ``learn`` returns a new object, or
the same object if the change is not worth a new certificate. Before there are models to learn from, no two tasks are
closer than any other two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.coupling import (
    LearningSchedule,
    Matrix,
    Models,
    Relationship,
    check_ratio,
    check_weight,
)
from rhfedmtl.maths.registry import LAMBDA1, LAMBDA2

Groups = tuple[int, ...]

# Keep all tasks in a single cluster if the mean silhouette is not above this.
# Measured: benchmarks/results/constants.md; ×0.5: −0.26 ± 0.64 points;
# ×2: −0.27 ± 0.71 points.
LEAST_SILHOUETTE = 0.1
# Most clusters to try.
MOST_CLUSTERS = 8


@dataclass(frozen=True, eq=False)
class Learned(Relationship):
    """Q = λ1 I + (λ2/N) Ω⁻¹ with Ω ← (WᵀW + εI)^½ / tr(·).

    Ω starts at I/N: there λ2 acts as in `mean`. Tasks are columns of W; several classes form a single long column. No
    exact step raises the outer objective

        (1/N) [Σ_b loss_b + λ1/2 ‖W‖² + λ2/(2N) (tr(W Ω⁻¹ Wᵀ) + ε tr(Ω⁻¹))].

    The paper's λ2 is this λ2 divided by 2N: with tr Ω = 1 the paper's λ2 acts 2N times as strongly. Ω stays if its
    relative change is at most ``tolerance``.
    """

    lambda1: float = LAMBDA1
    lambda2: float = LAMBDA2
    omega: Matrix | None = None
    epsilon: float = 0.1
    tolerance: float = 1e-2
    schedule: LearningSchedule | None = field(default_factory=LearningSchedule)

    def __post_init__(self) -> None:
        """Raise ConfigError for weights or matrices that leave the problem without a unique solution."""
        check_weight("lambda1", self.lambda1, positive=True)
        check_weight("lambda2", self.lambda2, positive=False)
        check_weight("epsilon", self.epsilon, positive=True)
        if self.omega is not None:
            omega = _square("omega", self.omega)
            if np.linalg.eigvalsh(omega)[0] <= 0.0:
                raise ConfigError("omega must be positive definite: add a little to its diagonal")
            object.__setattr__(self, "omega", omega)

    def learns(self) -> LearningSchedule | None:
        """Return the schedule."""
        return self.schedule

    def covariance(self, n_tasks: int) -> Matrix:
        """Return Ω, tasks × tasks; a learned Ω has trace 1."""
        return np.eye(n_tasks) / n_tasks if self.omega is None else self.omega

    def precision(self, n_tasks: int) -> Matrix:
        """Return λ1 I + (λ2/N) Ω⁻¹."""
        omega = self.covariance(n_tasks)
        _check_size("omega", len(omega), n_tasks)
        inverse = np.linalg.inv(omega)
        return np.asarray(self.lambda1 * np.eye(n_tasks) + self.lambda2 / (2.0 * n_tasks) * (inverse + inverse.T))

    def coupling(self, n_tasks: int) -> float:
        """Return the share that Q ties; before Ω is learned, the share λ2/(λ1 + λ2) that it will tie."""
        return super().coupling(n_tasks) if self.omega is not None else self.lambda2 / (self.lambda1 + self.lambda2)

    def affinity(self, n_tasks: int) -> Matrix:
        """Return Ω_bb′/√(Ω_bb Ω_b′b′)."""
        omega = self.covariance(n_tasks)
        root = np.sqrt(np.diag(omega))
        return np.asarray(np.clip(omega / np.outer(root, root), -1.0, 1.0))

    def learn(self, W: Models) -> Self:
        """Return the relationship with the Ω of trace 1 that is best for these models (Ω-step)."""
        flat = W.reshape(len(W), -1)
        eigenvalues, U = np.linalg.eigh(flat @ flat.T + self.epsilon * np.eye(len(W)))
        root = (U * np.sqrt(np.maximum(eigenvalues, self.epsilon))) @ U.T
        omega = (root + root.T) / (2.0 * np.trace(root))
        before = self.covariance(len(W))
        if np.linalg.norm(omega - before) <= self.tolerance * np.linalg.norm(before):
            return self
        return replace(self, omega=omega)

    def without(self, task: int) -> Self:
        """Return Ω of the remaining tasks, scaled to the same trace."""
        if self.omega is None:
            return self
        omega = _without(self.omega, task)
        return replace(self, omega=omega * (np.trace(self.omega) / np.trace(omega)))


@dataclass(frozen=True, eq=False)
class Graph(Relationship):
    """Q = λ1 I + λ2 L, with the Laplacian L of a graph of tasks: tied tasks attract each other.

    An ``adjacency`` (or `from_laplacian`) fixes the graph. Without it, each task is tied to the ``neighbours`` tasks
    with the most similar models (cosine). The ties of a task add up to about 1, as in `mean`, where the graph starts.
    ``found`` holds the ties learned so far.
    """

    lambda1: float = LAMBDA1
    lambda2: float = LAMBDA2
    adjacency: Matrix | None = None
    neighbours: int = 3
    found: Matrix | None = None
    schedule: LearningSchedule | None = field(default_factory=LearningSchedule)

    def __post_init__(self) -> None:
        """Raise ConfigError if the weights or the adjacency do not describe a graph."""
        check_weight("lambda1", self.lambda1, positive=True)
        check_weight("lambda2", self.lambda2, positive=False)
        check_ratio(self.lambda1, self.lambda2)
        if self.neighbours < 1:
            raise ConfigError(f"neighbours must be at least 1, got {self.neighbours}")
        if self.adjacency is not None:
            adjacency = _square("adjacency", self.adjacency)
            if np.any(adjacency < 0.0) or np.any(np.diag(adjacency) != 0.0):
                raise ConfigError("adjacency must have no negative ties and no tie of a task to itself")
            object.__setattr__(self, "adjacency", adjacency)

    def learns(self) -> LearningSchedule | None:
        """Return the schedule, unless the user fixed the graph."""
        return self.schedule if self.adjacency is None else None

    def ties(self, n_tasks: int) -> Matrix:
        """Return the weights of the ties, tasks × tasks."""
        ties = self.found if self.adjacency is None else self.adjacency
        if ties is None:
            return (np.ones((n_tasks, n_tasks)) - np.eye(n_tasks)) / n_tasks
        _check_size("the graph", len(ties), n_tasks)
        return ties

    def precision(self, n_tasks: int) -> Matrix:
        """Return λ1 I + λ2 (degrees − ties)."""
        ties = self.ties(n_tasks)
        return self.lambda1 * np.eye(n_tasks) + self.lambda2 * (np.diag(ties.sum(axis=0)) - ties)

    def learn(self, W: Models) -> Self:
        """Return the graph in which each task is tied to its nearest tasks, and they to it."""
        if self.adjacency is not None or len(W) < 2:
            return self
        flat = W.reshape(len(W), -1)
        norm = np.linalg.norm(flat, axis=1)
        similarity = flat @ flat.T / np.maximum(np.outer(norm, norm), np.finfo(float).tiny)
        np.fill_diagonal(similarity, -np.inf)
        k = min(self.neighbours, len(W) - 1)
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        chosen = np.zeros_like(similarity)
        np.put_along_axis(chosen, nearest, 1.0 / k, axis=1)
        ties = (chosen + chosen.T) / 2.0
        if np.array_equal(ties, self.ties(len(W))):
            return self
        return replace(self, found=ties)

    def without(self, task: int) -> Self:
        """Return the ties between the remaining tasks."""
        parts = (None if ties is None else _without(ties, task) for ties in (self.adjacency, self.found))
        return replace(self, **dict(zip(("adjacency", "found"), parts, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Clusters(Relationship):
    """Q = λ1 I + λ2 (I − M), where M averages within clusters: λ2 holds models near the mean of their cluster.

    k-means on the directions of the models makes ``count`` clusters. Without ``count`` it makes as many as stand out
    (the largest mean silhouette), and a single cluster if no number of clusters does. Every task starts in its own
    cluster: a common mean before the first grouping would hide the clusters, and a wrong grouping confirms itself.
    """

    lambda1: float = LAMBDA1
    lambda2: float = LAMBDA2
    count: int | None = None
    groups: Groups | None = None
    schedule: LearningSchedule | None = field(default_factory=lambda: LearningSchedule(first=5))

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid weights or fewer than one cluster."""
        check_weight("lambda1", self.lambda1, positive=True)
        check_weight("lambda2", self.lambda2, positive=False)
        check_ratio(self.lambda1, self.lambda2)
        if self.count is not None and self.count < 1:
            raise ConfigError(f"count of clusters must be at least 1, got {self.count}")

    def learns(self) -> LearningSchedule | None:
        """Return the schedule."""
        return self.schedule

    def members(self, n_tasks: int) -> npt.NDArray[np.int64]:
        """Return the cluster of every task, numbered from 0 in the order of tasks."""
        if self.groups is None:
            return np.arange(n_tasks)
        _check_size("groups", len(self.groups), n_tasks)
        return np.array(self.groups, dtype=np.int64)

    def precision(self, n_tasks: int) -> Matrix:
        """Return λ1 I + λ2 (I − M) with M_bb′ = 1/(size of the cluster) for tasks of the same cluster."""
        member = self.members(n_tasks)
        same = member[:, None] == member[None, :]
        deviation = np.eye(n_tasks) - same / same.sum(axis=1)
        return np.asarray(self.lambda1 * np.eye(n_tasks) + self.lambda2 * deviation)

    def coupling(self, n_tasks: int) -> float:
        """Return λ2/(λ1+λ2), also before the first grouping."""
        return self.lambda2 / (self.lambda1 + self.lambda2)

    def learn(self, W: Models) -> Self:
        """Return the relationship with the clusters of these models."""
        flat = W.reshape(len(W), -1)
        norm = np.linalg.norm(flat, axis=1, keepdims=True)
        groups = _ordered(self._group(flat / np.maximum(norm, np.finfo(float).tiny)))
        return self if groups == _ordered(self.members(len(W))) else replace(self, groups=groups)

    def without(self, task: int) -> Self:
        """Return the clusters of the remaining tasks."""
        if self.groups is None:
            return self
        return replace(self, groups=_ordered(np.delete(np.array(self.groups), task)))

    def _group(self, points: Matrix) -> npt.NDArray[np.int64]:
        """Return the group of each point: ``count`` groups, or the number of groups with the clearest borders."""
        if self.count is not None:
            return k_means(points, min(self.count, len(points)))
        groupings = [k_means(points, k) for k in range(2, min(MOST_CLUSTERS, len(points) - 1) + 1)]
        clarity = [silhouette(points, groups) for groups in groupings]
        best = int(np.argmax(clarity)) if clarity else -1
        return (
            groupings[best] if best >= 0 and clarity[best] > LEAST_SILHOUETTE else np.zeros(len(points), dtype=np.int64)
        )


def k_means(points: Matrix, k: int, rounds: int = 100) -> npt.NDArray[np.int64]:
    """Return the group of each point: Lloyd's alternation for argmin Σ_b ‖p_b − mean of its group‖².

    It is deterministic. Each of the first ten points is the first start of a run; the next start is always the point
    that is farthest from all starts so far. The run with the smallest sum wins.
    """
    best: npt.NDArray[np.int64] = np.zeros(len(points), dtype=np.int64)
    smallest = np.inf
    distance = _squared_distances(points, points)
    for first in range(min(len(points), 10)):
        starts = [first]
        while len(starts) < k:
            starts.append(int(np.argmax(distance[:, starts].min(axis=1))))
        centers = points[starts]
        for _ in range(rounds):
            groups = np.asarray(np.argmin(_squared_distances(points, centers), axis=1), dtype=np.int64)
            moved = np.stack(
                [points[groups == g].mean(axis=0) if np.any(groups == g) else centers[g] for g in range(k)]
            )
            if np.array_equal(moved, centers):
                break
            centers = moved
        spread = float(np.sum((points - centers[groups]) ** 2))
        if spread < smallest * (1.0 - 1e-12):
            best, smallest = groups, spread
    return best


def silhouette(points: Matrix, groups: npt.NDArray[np.int64]) -> float:
    """Mean of (b − a)/max(a, b), with a the mean distance within the group and b that to the nearest other group."""
    distance = np.sqrt(_squared_distances(points, points))
    names = np.unique(groups)
    if len(names) < 2:
        return 0.0
    to = np.stack([distance[:, groups == g].sum(axis=1) for g in names], axis=1)
    sizes = np.array([np.sum(groups == g) for g in names])
    group = np.searchsorted(names, groups)
    rows = np.arange(len(points))
    a = to[rows, group] / np.maximum(sizes[group] - 1, 1)
    distances = to / sizes
    distances[rows, group] = np.inf
    b = distances.min(axis=1)
    score = np.where(sizes[group] > 1, (b - a) / np.maximum(np.maximum(a, b), np.finfo(float).tiny), 0.0)
    return float(score.mean())


def _squared_distances(A: Matrix, B: Matrix) -> Matrix:
    squares = np.sum(A * A, axis=1)[:, None] + np.sum(B * B, axis=1)[None, :] - 2.0 * A @ B.T
    return np.asarray(np.maximum(squares, 0.0))


def _ordered(groups: npt.NDArray[np.int64]) -> Groups:
    """Return the same groups, numbered in the order of their first members."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return tuple(int(g) for g in rank[inverse])


def _without(matrix: Matrix, task: int) -> Matrix:
    """Return the matrix without the row and the column of a task."""
    return np.delete(np.delete(matrix, task, axis=0), task, axis=1)


def _square(name: str, matrix: npt.ArrayLike) -> Matrix:
    array = np.array(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not np.isfinite(array).all():
        raise ConfigError(f"{name} must be a square table of finite numbers, got shape {array.shape}")
    if not np.allclose(array, array.T, rtol=1e-9, atol=1e-12):
        raise ConfigError(f"{name} must be symmetric: entry (a, b) is entry (b, a)")
    array.flags.writeable = False
    return array


def _check_size(name: str, size: int, n_tasks: int) -> None:
    if size != n_tasks:
        raise ConfigError(f"{name} is about {size} tasks, but there are {n_tasks}")
