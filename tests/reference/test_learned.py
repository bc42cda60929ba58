"""Learned, graph and cluster couplings: optima by another solver, and the laws of the outer loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from tests.reference.problems import certify, cloud_of, federation
from tests.reference.solvers import _terms, tables

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.request import Request
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.maths.relationships import Clusters, Graph, Learned, Relationship, Unrelated
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.selection.folds import Precision, solve
from rhfedmtl.selection.regularisation import choose, weighted
from rhfedmtl.training.result import evaluate, mean

SIZES = ((6, 5), (4,), (5, 3), (7,))
OMEGA = np.array([[4, 2, -1, 0], [2, 3, 0, 0], [-1, 0, 2, 1], [0, 0, 1, 1]]) / 10


def rounds(network: InProcess, cloud: Cloud, start: int, gap: float, limit: int = 20_000) -> tuple[int, Certificate]:
    """Server iterations of one round each until the joint gap is small."""
    for number in range(start, start + limit):
        network.assign(cloud.assign())
        network.round(number, 2 * network.sizes)
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
        if number % 50 == 0:
            certificate = certify(network, cloud)
            if certificate.gap <= gap:
                return number + 1, certificate
    raise AssertionError(f"no convergence: gap {certificate.gap}")


def by_cvxpy(data: Any, loss: Any, Q: Any) -> tuple[float, Any]:
    """Objective and models for any Q, from the rows themselves."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy is not installed")
    parts = tables(data, intercept=False)
    columns, d = parts[0][1].shape[1], parts[0][0].shape[1]
    W = cp.Variable((len(parts), columns * d))
    total, limits = cp.sum_squares(np.linalg.cholesky(Q).T @ W) / 2, []
    for b, (X, y, weight) in enumerate(parts):
        for c in range(columns):
            terms, bounds = _terms(cp, loss, X @ W[b, c * d : (c + 1) * d], y[:, c])
            total += weight @ terms / len(X)
            limits += bounds
    problem = cp.Problem(cp.Minimize(total / len(parts)), limits)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(problem.value), W.value.reshape(len(parts), columns, d)


FIXED: dict[str, Relationship] = {
    "learned": Learned(1e-2, 3e-3, omega=OMEGA, schedule=None),
    "graph": Graph(3e-2, 0.5, adjacency=np.eye(4, k=1) + np.eye(4, k=-1)),
    "clusters": Clusters(1e-2, 1.0, groups=(0, 1, 0, 1), schedule=None),
}


@pytest.mark.parametrize("kind", ["binary", "classes"])
@pytest.mark.parametrize("name", FIXED)
def test_a_w_step_is_cvxpys_optimum(name: str, kind: str) -> None:
    """For fixed Ω, graph or clusters the joint gap falls to 1e-8, and objective and models are those of cvxpy."""
    relationship, loss = FIXED[name], SmoothedHinge()
    data = federation(kind, sizes=SIZES)
    network = InProcess(data, DualMethod(loss, relationship, MERGES["add"](), intercept=False))
    _, certificate = rounds(network, cloud_of(network, relationship), 1, 1e-9)
    best, models = by_cvxpy(data, loss, relationship.precision(4))
    assert -1e-12 <= certificate.gap < 1e-8
    assert certificate.primal == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(certificate.models, models, atol=2e-3)


@pytest.mark.parametrize("loss", ["squared", "logistic", "squared-hinge"])
def test_other_losses_reach_the_optimum_too(loss: str) -> None:
    """The gap of a W-step closes for every smooth loss, and the optimum is cvxpy's."""
    relationship = FIXED["learned"]
    data = federation("regression" if loss == "squared" else "binary", sizes=SIZES)
    network = InProcess(data, DualMethod(LOSSES[loss](), relationship, intercept=False))
    _, certificate = rounds(network, cloud_of(network, relationship), 1, 1e-8)
    assert certificate.primal == pytest.approx(by_cvxpy(data, LOSSES[loss](), relationship.precision(4))[0], rel=1e-6)


def _penalty(relationship: Learned, W: Any) -> float:
    """(1/N) [½ tr(W Q Wᵀ) + λ2/(2N) ε tr(Ω⁻¹)]: the outer objective without its losses."""
    inverse = np.linalg.inv(relationship.covariance(len(W)))
    spread = relationship.lambda2 * relationship.epsilon * np.trace(inverse) / len(W)
    return float((relationship.energy(W) + spread) / (2.0 * len(W)))


@pytest.mark.parametrize("lambda2", [8e-4, 8e-2])
def test_the_outer_objective_never_rises(lambda2: float) -> None:
    """With W-steps solved to a gap of 1e-8, losses + penalty + λ2 ε tr(Ω⁻¹)/N falls from Ω-step to Ω-step."""
    relationship = Learned(1e-3, lambda2, tolerance=0.0, schedule=None)
    network = InProcess(federation(sizes=SIZES), DualMethod(SmoothedHinge(), relationship, MERGES["add"]()))
    cloud, number, values = cloud_of(network, relationship), 1, []
    for _ in range(8):
        number, certificate = rounds(network, cloud, number, 1e-8)
        models = certificate.models
        losses = certificate.primal - cloud.relationship.energy(models) / (2 * len(models))
        values.append(losses + _penalty(relationship, models))
        relationship = relationship.learn(models)
        values.append(losses + _penalty(relationship, models))
        cloud.relationship = relationship
        cloud.forget_bound()
    assert np.all(np.diff(values) <= 2e-8)
    assert values[-1] < values[0] - 1e-4


def test_learned_omega_recovers_planted_clusters() -> None:
    """Tasks grouped by Ω's correlations are the planted clusters: adjusted Rand index of at least 0.9."""
    found = []
    for seed in range(3):
        data = Request(data="synthetic", tasks=12, settings={"clusters": 3, "relatedness": 0.85}).federation(seed)
        learned = solve(data, DualMethod(relationship=Learned(1e-3, 24e-3)), Precision(1e-3)).relationship
        groups = AgglomerativeClustering(3, metric="precomputed", linkage="average").fit_predict(
            1.0 - learned.affinity(12)
        )
        found.append(adjusted_rand_score(np.arange(12) % 3, groups))
    assert min(found) >= 0.9


@pytest.mark.parametrize("name", ["graph", "clusters"])
def test_graph_and_clusters_find_planted_clusters(name: str) -> None:
    """Ties lie within the planted clusters, or groups are the planted clusters, for nearly all tasks."""
    data = Request(data="synthetic", tasks=12, settings={"clusters": 3, "relatedness": 0.9}).federation(0)
    relationship: Any = solve(
        data, DualMethod(relationship=RELATIONSHIPS[name](1e-3, 1e-2)), Precision(1e-3)
    ).relationship
    same = np.arange(12)[:, None] % 3 == np.arange(12)[None, :] % 3
    if name == "graph":
        ties = relationship.ties(12)
        assert ties[same].sum() >= 0.9 * ties.sum()
    else:
        assert adjusted_rand_score(np.arange(12) % 3, relationship.members(12)) >= 0.9


@pytest.mark.slow
def test_unrelated_tasks_are_not_harmed() -> None:
    """On strangers, `learned` with a tuned λ stays within 0.5 points of `none` with a tuned λ, over several seeds."""
    request = Request(
        data="synthetic", tasks=6, terminals=1, settings={"relatedness": 0.0, "samples": 100, "test": 1000}
    )
    kinds: list[Relationship] = [Learned(1e-3, 1e-3), Unrelated(1e-3)]
    differences = []
    for seed in range(4):
        data, measured = request.federation(seed), []
        for relationship in kinds:
            method = DualMethod(relationship=relationship)
            choice = choose(data, method, precision=Precision(2e-2, 3.0, 30))
            tuned = replace(method, relationship=weighted(relationship, choice.lambda1, choice.lambda2))
            solved = solve(data, tuned, Precision(1e-3, 3.0))
            tests = [(solved.scalers[b].transform(X), y) for b, (X, y) in enumerate(map(data.test_rows, range(6)))]
            measured.append(mean(evaluate(solved.models, tests, 2)["balanced_accuracy"]))
        differences.append(measured[0] - measured[1])
    assert np.mean(differences) > -0.005
