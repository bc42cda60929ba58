"""Couplings of tasks: closed forms against dense algebra, and anchors that do what they promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import MERGES
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths import objective
from rhfedmtl.maths.relationships import RELATIONSHIPS, MeanRegularised, Relationship, Safe, Unrelated

WEIGHTS = [(1e-2, 1e-3), (1e-3, 1.0), (0.5, 0.0), (1e-4, 1e-6)]


@dataclass(frozen=True)
class Chain(Relationship):
    """A graph in which each task is tied to the next: Q = λ1 I + λ2 Laplacian."""

    lambda1: float
    lambda2: float

    def precision(self, n_tasks: int) -> Any:
        """Dense Q; everything else comes from the base class."""
        ties = np.eye(n_tasks, k=1) + np.eye(n_tasks, k=-1)
        return self.lambda1 * np.eye(n_tasks) + self.lambda2 * (np.diag(ties.sum(axis=0)) - ties)


def models(n_tasks: int = 5, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n_tasks, 2, 3))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", RELATIONSHIPS)
def test_closed_forms_equal_dense_algebra(name: str, weights: tuple[float, float]) -> None:
    """W Q and V G in linear time are products with the dense Q and its inverse."""
    relationship = RELATIONSHIPS[name](*weights)
    W = models()
    Q = relationship.precision(5)
    np.testing.assert_allclose(relationship.couple(W), np.einsum("ab,bcd->acd", Q, W), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        relationship.solve(W), np.einsum("ab,bcd->acd", np.linalg.inv(Q), W), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(relationship.couple(relationship.solve(W)), W, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_mean_form_is_the_papers_penalty(weights: tuple[float, float]) -> None:
    """½ tr(W Q Wᵀ) is Σ λ1/2‖w_b‖² + λ2/2‖w_b − r‖² at the mean r."""
    lambda1, lambda2 = weights
    W = models()
    penalty = lambda1 / 2 * np.sum(W**2) + lambda2 / 2 * np.sum((W - W.mean(axis=0)) ** 2)
    assert np.sum(W * MeanRegularised(*weights).couple(W)) / 2 == pytest.approx(penalty)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_anchored_problem_is_the_papers_problem_at_fixed_r(weights: tuple[float, float]) -> None:
    """λ1/2‖w‖² + λ2/2‖w−r‖² = λ/2‖w−c‖² + constant for every w."""
    lambda1, lambda2 = weights
    W = models()
    r = W.mean(axis=0)
    anchors = MeanRegularised(*weights).anchors(W, W)
    for b, w in enumerate(models(seed=1)):
        direct = lambda1 / 2 * np.sum(w**2) + lambda2 / 2 * np.sum((w - r) ** 2)
        anchored = anchors.lam[b] / 2 * np.sum((w - anchors.center[b]) ** 2) + anchors.constant[b]
        assert anchored == pytest.approx(direct)


def test_unrelated_tasks_have_their_anchor_at_zero() -> None:
    """Without a relationship each station solves its own ridge problem."""
    anchors = Unrelated(0.3).anchors(models(), models(seed=1))
    assert not anchors.center.any()
    assert not anchors.constant.any()
    np.testing.assert_array_equal(anchors.lam, 0.3)


@pytest.mark.parametrize("weights", [(1e-2, 1e-3), (1e-2, 1.0), (1e-3, 10.0)])
def test_the_safe_form_stands_at_the_joint_models(weights: tuple[float, float]) -> None:
    """At the safe anchors the stations hold W = V G."""
    V = models()
    relationship = Chain(*weights)
    anchors = relationship.anchors(np.zeros_like(V), V)
    np.testing.assert_allclose(objective.held_models(anchors, V), relationship.solve(V), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("merge", ["average", "add"])
@pytest.mark.parametrize("weights", [(1e-2, 1e-3), (1e-2, 1.0), (1e-3, 10.0)])
def test_the_safe_form_never_lowers_the_joint_dual(weights: tuple[float, float], merge: str) -> None:
    """With a graph between tasks, all stations work at once and the joint dual climbs to the primal."""
    method = DualMethod(relationship=Safe(Chain(*weights)), merge=MERGES[merge])
    network = InProcess(federation(sizes=((6, 5), (7,), (4, 3, 5), (8,))), method)
    cloud = cloud_of(network, method.relationship)
    duals, rng = [], np.random.default_rng(0)
    for number in range(1, 60):
        network.assign(cloud.assign())
        network.round(number, np.full(7, 6), rng.random(7) < 0.8)
        cloud.forget_bound()
        duals.append(certify(network, cloud).dual)
    assert np.all(np.diff(duals) >= -1e-12)
    assert duals[-1] > duals[0]


def test_a_given_relationship_does_not_learn() -> None:
    """Only learned relationships change with the models."""
    relationship = MeanRegularised(0.1, 0.1)
    assert relationship.learn(models()) is relationship


@pytest.mark.parametrize("name", RELATIONSHIPS)
@pytest.mark.parametrize("lambda1", [0.0, -1.0, float("nan"), float("inf")])
def test_lambda1_must_be_positive(name: str, lambda1: float) -> None:
    """λ1 ≤ 0 leaves no unique solution, and is refused with its value."""
    with pytest.raises(ConfigError, match="lambda1 must be a finite number > 0, got"):
        RELATIONSHIPS[name](lambda1, 0.1)


@pytest.mark.parametrize("lambda2", [-1e-9, float("nan"), float("inf")])
def test_lambda2_must_not_be_negative(lambda2: float) -> None:
    """λ2 < 0 pushes models apart, and is refused; λ2 = 0 means unrelated tasks."""
    with pytest.raises(ConfigError, match="lambda2 must be a finite number >= 0, got"):
        MeanRegularised(0.1, lambda2)
    W = models()
    np.testing.assert_array_equal(MeanRegularised(0.1, 0.0).solve(W), Unrelated(0.1).solve(W))
