"""Couplings of tasks: closed forms against dense algebra, and anchors that do what they promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.request import Request
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.coupling import LearningSchedule
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.maths.relationships import Clusters, Graph, Learned, MeanRegularised, Relationship, Safe, Unrelated
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.roles.messages import Report, StationSums
from rhfedmtl.training.config import RunConfig

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
    """V G, tr(W Q Wᵀ) and tr(V G Vᵀ) in linear time are products with the dense Q and its inverse."""
    relationship = RELATIONSHIPS[name](*weights)
    W = models()
    Q = relationship.precision(5)
    solved = np.einsum("ab,bcd->acd", np.linalg.inv(Q), W)
    np.testing.assert_allclose(relationship.solve(W), solved, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.einsum("ab,bcd->acd", Q, relationship.solve(W)), W, rtol=1e-9, atol=1e-9)
    for form in (relationship, Safe(relationship)):
        assert form.energy(W) == pytest.approx(np.einsum("ab,acd,bcd->", Q, W, W), rel=1e-10)
        assert form.dual_energy(W) == pytest.approx(np.sum(W * solved), rel=1e-9)


@pytest.mark.parametrize("weights", [(1e-12, 1e6), (1e-6, 1e6), (1e6, 1e-12)])
def test_weights_far_apart_leave_energies_as_they_are(weights: tuple[float, float]) -> None:
    """Models that nearly agree have a tiny energy, not what is left of large numbers that cancel."""
    relationship = MeanRegularised(*weights)
    W = 1e3 + 1e-9 * models()
    exact = W.astype(np.longdouble)
    apart = exact - exact.mean(axis=0)
    energy = weights[0] * np.sum(exact**2) + weights[1] * np.sum(apart**2)
    dual = np.sum(apart**2) / sum(weights) + 5 * np.sum(exact.mean(axis=0) ** 2) / weights[0]
    assert relationship.energy(W) == pytest.approx(float(energy), rel=1e-3)
    assert relationship.dual_energy(W) == pytest.approx(float(dual), rel=1e-12)


@pytest.mark.parametrize("name", ["graph", "clusters"])
def test_a_coupling_that_hides_lambda1_is_refused(name: str) -> None:
    """Where λ2 is 10¹⁸ times λ1, no table of doubles holds both."""
    with pytest.raises(ConfigError, match="raise lambda1, lower lambda2"):
        RELATIONSHIPS[name](1e-12, 1e6)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_mean_form_is_the_papers_penalty(weights: tuple[float, float]) -> None:
    """½ tr(W Q Wᵀ) is Σ λ1/2‖w_b‖² + λ2/2‖w_b − r‖² at the mean r."""
    lambda1, lambda2 = weights
    W = models()
    penalty = lambda1 / 2 * np.sum(W**2) + lambda2 / 2 * np.sum((W - W.mean(axis=0)) ** 2)
    assert MeanRegularised(*weights).energy(W) / 2 == pytest.approx(penalty)


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
    np.testing.assert_allclose(anchors.models_at(V), relationship.solve(V), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("merge", ["average", "add"])
@pytest.mark.parametrize("weights", [(1e-2, 1e-3), (1e-2, 1.0), (1e-3, 10.0)])
def test_the_safe_form_never_lowers_the_joint_dual(weights: tuple[float, float], merge: str) -> None:
    """With a graph between tasks, all stations work at once and the joint dual climbs to the primal."""
    method = DualMethod(relationship=Safe(Chain(*weights)), merge=MERGES[merge]())
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


@pytest.mark.parametrize("weights", [(1e-100, 0.01), (1e100, 0.01), (1e-3, 1e100), (1e-100, 1e100)])
def test_weights_at_the_ends_of_their_range_can_be_run(weights: tuple[float, float]) -> None:
    """Whatever the certificate says of them, a run ends as others do; beyond, they are refused with the range."""
    options = Options(lambda1=weights[0], lambda2=weights[1])
    config = RunConfig(request=Request(tasks=2, terminals=2), options=options, budget=("energy=500",))
    config.check_heeded()
    assert np.isfinite(config.run(config.federation()).models).all()
    for beyond in (1e-101, 1e101):
        with pytest.raises(ConfigError, match=r"lambda1 must lie between 1e-100 and 1e\+100, got 1e"):
            MeanRegularised(beyond, 0.1)


@pytest.mark.parametrize("lambda2", [-1e-9, float("nan"), float("inf")])
def test_lambda2_must_not_be_negative(lambda2: float) -> None:
    """λ2 < 0 pushes models apart, and is refused; λ2 = 0 means unrelated tasks."""
    with pytest.raises(ConfigError, match="lambda2 must be a finite number >= 0, got"):
        MeanRegularised(0.1, lambda2)
    W = models()
    np.testing.assert_array_equal(MeanRegularised(0.1, 0.0).solve(W), Unrelated(0.1).solve(W))


ANY_Q = {
    "mean": MeanRegularised(1e-3, 1.0),
    "learned": Learned(1e-3, 1e-2).learn(models(4)),
    "opposites": Learned(1e-3, 1e-2, omega=np.array([[2, -1, 0, 0], [-1, 2, 0, 0], [0, 0, 2, 1], [0, 0, 1, 2]]) / 8),
    "graph": Graph(1e-3, 1.0).learn(models(4)),
    "clusters": Clusters(1e-3, 1.0, groups=(0, 0, 1, 1)),
}


@pytest.mark.parametrize("name", ANY_Q)
def test_safe_anchors_never_lower_the_joint_dual_of_any_relationship(name: str) -> None:
    """Whatever the coupling and whoever is missing, the joint dual climbs under the safe form."""
    method = DualMethod(relationship=Safe(ANY_Q[name]))
    network = InProcess(federation(sizes=((6, 5), (7,), (4, 3, 5), (8,))), method)
    cloud = cloud_of(network, method.relationship)
    cloud.changes = 10**9
    duals, rng = [], np.random.default_rng(0)
    for number in range(1, 50):
        network.assign(cloud.assign())
        network.round(number, np.full(7, 4), rng.random(7) < 0.7)
        cloud.forget_bound()
        duals.append(certify(network, cloud).dual)
    assert np.all(np.diff(duals) >= -1e-12)


@pytest.mark.parametrize("merge", ["average", "add"])
@pytest.mark.parametrize("name", ANY_Q)
def test_fast_anchors_reach_a_gap_of_1e_8(name: str, merge: str) -> None:
    """Split anchors close the joint gap, with stations of unequal size and updates that get lost."""
    method = DualMethod(relationship=ANY_Q[name], merge=MERGES[merge]())
    network = InProcess(federation(sizes=((6, 5), (7,), (4, 3, 5), (20,))), method)
    cloud = cloud_of(network, method.relationship)
    cloud.changes, rng = 10**9, np.random.default_rng(0)
    for number in range(1, 4000):
        network.assign(cloud.assign())
        network.round(number, 2 * network.sizes, rng.random(7) < 0.9)
        if number % 100 == 0 and certify(network, cloud).gap <= 1e-8:
            break
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
    certificate = certify(network, cloud)
    assert -1e-12 <= certificate.gap <= 1e-8
    assert not isinstance(cloud.relationship, Safe)


def test_split_anchors_are_the_alternation_for_light_stations_and_safe_for_heavy_ones() -> None:
    """Few samples give λ_b above Q and the mean form's alternation; very many give the safe joint form."""
    W, V = models(4), models(4, seed=1)
    relationship = Graph(0.1, 0.3)
    few, many = (relationship.anchors(W, V, np.full(4, n)) for n in (1.0, 1e9))
    alternation, safe = MeanRegularised(0.1, 0.3).anchors(W, V), relationship.anchors(W, V)
    np.testing.assert_allclose(few.center, alternation.center, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(few.lam, alternation.lam)
    np.testing.assert_allclose(many.center, safe.center, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(many.lam, 0.1)


@pytest.mark.parametrize("n", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("name", ANY_Q)
def test_the_optimum_is_a_fixed_point_of_the_anchors(name: str, n: float) -> None:
    """Stations that hold W = V G go on holding it, whatever λ_b they are given."""
    V = models(4)
    W = ANY_Q[name].solve(V)
    anchors = ANY_Q[name].anchors(W, V, np.full(4, n))
    np.testing.assert_allclose(anchors.models_at(V), W, rtol=1e-8, atol=1e-8)


def test_strong_coupling_is_no_reason_to_leave_the_alternation() -> None:
    """What stations hold where they are to follow says nothing: judged by it, these runs were called astray."""
    method = DualMethod(relationship=MeanRegularised(1e-3, 10.0), merge=MERGES["add"]())
    network = InProcess(federation(sizes=[[40, 40, 40]] * 6, d=8), method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 13):
        network.assign(cloud.assign())
        network.round(number, network.sizes)
        certificate = certify(network, cloud)
    assert not isinstance(cloud.relationship, Safe)
    assert certificate.held < certificate.zero
    assert certificate.relative_gap < 0.2


def test_an_omega_step_has_trace_1_and_is_positive_definite() -> None:
    """Ω = (WᵀW + εI)^½/tr(·), also for models that are all zero, and its square is WᵀW + εI up to scale."""
    for W in (models(6), np.zeros((6, 1, 3)), np.ones((6, 2, 2))):
        omega = Learned(1e-3, 1e-3, tolerance=0.0).learn(W).covariance(6)
        assert np.trace(omega) == pytest.approx(1.0)
        assert np.linalg.eigvalsh(omega)[0] > 0.0
        flat = W.reshape(6, -1)
        square, expected = omega @ omega, flat @ flat.T + 0.1 * np.eye(6)
        np.testing.assert_allclose(square / np.trace(square), expected / np.trace(expected), atol=1e-12)


def test_lambda2_of_learned_acts_as_that_of_mean() -> None:
    """At Ω = I/N a task is held by λ1 + λ2, as far from the others' mean; whatever N is."""
    for n in (2, 5, 40):
        relationship = Learned(0.1, 0.3)
        np.testing.assert_allclose(relationship.precision(n), 0.4 * np.eye(n))
        apart = np.random.default_rng(n).normal(size=(n, 1, 3))
        apart -= apart.mean(axis=0)
        assert relationship.energy(apart) == pytest.approx(MeanRegularised(0.1, 0.3).energy(apart))
        assert relationship.coupling(n) == pytest.approx(MeanRegularised(0.1, 0.3).coupling(n))


def test_a_change_that_is_too_small_is_none() -> None:
    """Ω, graph and clusters stay the same object when learned again from the same models."""
    W = models(6)
    for relationship in (Learned(0.1, 0.1), Graph(0.1, 0.1), Clusters(0.1, 0.1)):
        learned = relationship.learn(W)
        assert learned.learn(W) is learned


def test_affinity_says_who_helps_whom() -> None:
    """Correlations: 1 on the diagonal, within [−1, 1], 0 for strangers, below 0 for opposites."""
    for relationship in [*ANY_Q.values(), Unrelated(0.1), Safe(ANY_Q["opposites"])]:
        affinity = relationship.affinity(4)
        np.testing.assert_allclose(np.diag(affinity), 1.0)
        assert np.abs(affinity).max() <= 1.0
    assert ANY_Q["opposites"].affinity(4)[0, 1] < 0.0
    np.testing.assert_allclose(Unrelated(0.1).affinity(4), np.eye(4))
    assert ANY_Q["clusters"].affinity(4)[0, 1] > 0.9
    assert ANY_Q["clusters"].affinity(4)[0, 2] == pytest.approx(0.0, abs=1e-9)


def test_a_given_graph_keeps_its_ties() -> None:
    """The precision follows from the ties, and a given graph does not learn."""
    ties = np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    laplacian = np.diag(ties.sum(axis=0)) - ties
    graph = Graph(0.1, 0.5, ties)
    np.testing.assert_allclose(graph.precision(3), 0.1 * np.eye(3) + 0.5 * laplacian)
    assert graph.learns() is None
    assert graph.learn(models(3)) is graph


def test_as_many_clusters_as_stand_out_are_found() -> None:
    """Two groups of opposite models are two clusters; models that are all alike are one."""
    apart = np.concatenate([np.ones((3, 1, 4)), -np.ones((3, 1, 4))]) + 0.1 * models(6)[:, :1, :1]
    assert Clusters(0.1, 0.1).learn(apart).groups == (0, 0, 0, 1, 1, 1)
    assert Clusters(0.1, 0.1).learn(np.ones((6, 1, 4))).groups == (0,) * 6
    assert Clusters(0.1, 0.1, count=1).learn(apart).groups == (0,) * 6


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Learned(0.1, 0.1, omega=-np.eye(2)), "positive definite"),
        (lambda: Learned(0.1, 0.1, omega=np.eye(3)).precision(2), "omega is about 3 tasks, but there are 2"),
        (lambda: Graph(0.1, 0.1, adjacency=np.array([[0.0, 1.0], [0.5, 0.0]])), "symmetric"),
        (lambda: Graph(0.1, 0.1, adjacency=-np.ones((2, 2))), "no negative ties"),
        (lambda: Graph(0.1, 0.1, neighbours=0), "neighbours"),
        (lambda: Clusters(0.1, 0.1, count=0), "count of clusters"),
        (lambda: LearningSchedule(growth=0.5), "cannot work"),
    ],
)
def test_what_cannot_be_a_relationship_is_refused(build: Any, message: str) -> None:
    """Errors say what is wrong with a matrix or a number."""
    with pytest.raises(ConfigError, match=message):
        build()


def test_learning_gets_rarer() -> None:
    """After 2 server iterations, then at half as many again each time; 1 as growth means every one."""
    assert [m for m in range(30) if LearningSchedule().due(m)] == [2, 3, 5, 8, 12, 18, 27]
    assert all(LearningSchedule(first=1, growth=1.0).due(m) for m in range(1, 9))


def test_models_that_went_astray_bring_the_safe_form() -> None:
    """Alternation has no guarantee: once it holds models ten times as bad as zero ones, anchors are safe ones."""
    cloud = Cloud(MeanRegularised(0.1, 10.0), 2, (1, 1))
    for losses, expected in ((1.0, MeanRegularised), (9.0, MeanRegularised), (11.0, Safe)):
        cloud.assign()
        for task in range(2):
            cloud.receive(Report(cloud.cloud_round, task, 1, np.ones((1, 1)), 1, 0))
        told = np.append(np.full(len(cloud.candidates().combinations) - 1, losses), 1.0)
        cloud.certify([StationSums(task, 1, told, np.zeros(2), np.empty(0), 1, 0) for task in range(2)])
        assert isinstance(cloud.relationship, expected)
    safe = Safe(MeanRegularised(0.1, 10.0)).anchors(cloud.W, cloud.V, np.ones(2))
    cloud.assign()
    assert cloud.anchors is not None
    np.testing.assert_array_equal(cloud.anchors.lam, safe.lam)


@pytest.mark.parametrize("lambda2", [0.0, 1e-6, 3e-4])
def test_extra_coupling_is_the_weight_under_which_such_models_are_likeliest(lambda2: float) -> None:
    """Of all λ2 it makes W ~ N(0, s G) most probable, for the scale s that suits it best."""
    random = np.random.default_rng(1)
    W = random.normal(size=(1, 1, 400)) + random.normal(size=(5, 1, 400))

    def likelihood(ratio: float) -> float:
        shape = MeanRegularised(1.0, ratio)
        return float(np.linalg.slogdet(shape.precision(5))[1] - 5 * np.log(shape.energy(W)))

    best = max(np.geomspace(0.5, 50.0, 400), key=likelihood)
    assert (MeanRegularised(1e-3, lambda2).extra_coupling(W) + lambda2) / 1e-3 == pytest.approx(best, rel=0.02)


def test_strangers_and_coupled_tasks_are_not_drawn_together() -> None:
    """Tasks with nothing in common, and those that their problem couples; for those that are one there is a bound."""
    strangers = np.eye(5)[:, None]
    assert MeanRegularised(1e-3, 1e-6).extra_coupling(strangers) == 0.0
    assert MeanRegularised(1e-3, 1e-2).extra_coupling(np.ones((5, 1, 3))) == 0.0
    assert MeanRegularised(1e-3, 0.0).extra_coupling(np.ones((5, 1, 3))) == pytest.approx(0.1)
    assert MeanRegularised(1e-3, 0.0).extra_coupling(np.zeros((5, 1, 3))) == 0.0
    assert MeanRegularised(1e-3, 0.0).extra_coupling(np.ones((1, 1, 3))) == 0.0
