"""What must hold in every run: weak duality, a dual that does not fall, and merges that keep their promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Arrived, LineSearch
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths import objective
from rhfedmtl.maths.kernels import rounds, sdca
from rhfedmtl.maths.kernels.rounds import FACTORS, dual_sums
from rhfedmtl.maths.losses import Hinge
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.maths.relationships import MeanRegularised

over_losses = pytest.mark.parametrize("loss", LOSSES)


def problem(loss: str, **more: Any) -> Any:
    return federation("regression" if loss == "squared" else "binary", **more)


def station_duals(network: InProcess, cloud: Any) -> Any:
    """D_b of every station at its present anchor."""
    sums = network.sums(Points(np.zeros((1, *network._U.shape)), np.eye(1)))
    duals = dual_sums(np.array([s.dual for s in sums if s is not None]))
    return objective.station_dual(duals, network._n, network.V, cloud.anchors)


@pytest.mark.parametrize(
    ("loss", "relationship", "weights"), in_turn(LOSSES, RELATIONSHIPS, [(1e-2, 1e-3), (1e-3, 1e-1)])
)
def test_weak_duality_holds_at_every_round(loss: str, relationship: str, weights: tuple[float, float]) -> None:
    """P − D ≥ 0, jointly and at every station, whatever the merge, the drop-outs and the weights of samples."""
    for merge in MERGES:
        method = DualMethod(LOSSES[loss](), RELATIONSHIPS[relationship](*weights), MERGES[merge](), intercept=True)
        network = InProcess(problem(loss, weighted=True), method)
        cloud, rng, number = cloud_of(network, method.relationship), np.random.default_rng(0), 0
        for _ in range(6):
            network.assign(cloud.assign())
            for _ in range(4):
                number += 1
                network.round(number, rng.integers(0, 30, 9), rng.random(9) < 0.8)
                certificate = certify(network, cloud)
                assert certificate.gap >= -1e-12
                assert np.all(certificate.station_gaps >= -1e-12)


@pytest.mark.parametrize(
    ("loss", "relationship", "weights"),
    in_turn(LOSSES, ["mean", "none"], [(1e-12, 1e6), (1e-12, 0.0), (1e-6, 1e6), (1e6, 1e-12), (1e6, 1e6)]),
)
def test_certificates_hold_at_extreme_weights(loss: str, relationship: str, weights: tuple[float, float]) -> None:
    """With λ from 1e-12 to 1e6, the objective is that of exact sums, and no bound lies above what a model reaches."""
    data = problem(loss)
    if loss != "squared":
        data = replace(data, y=np.where(data.row_task == 1, 1, data.y))  # one task with a single class
    X = data.X.copy()
    X[::5], X[1::7] = 0.0, X[1]
    method = DualMethod(LOSSES[loss](), RELATIONSHIPS[relationship](*weights), intercept=False)
    network = InProcess(replace(data, X=X), method)
    cloud, values = cloud_of(network, method.relationship), np.vectorize(method.loss.value)
    for number in range(1, 13):
        network.assign(cloud.assign())
        network.round(number, np.full(9, 40))
        certificate = certify(network, cloud)
        W = certificate.models[:, 0].astype(np.longdouble)
        z, n = np.einsum("ij,ij->i", X, W[data.row_task]), np.bincount(data.row_task)
        terms = values(z.astype(float), data.targets()[:, 0])
        tied = weights[1] * np.sum((W - W.mean(axis=0)) ** 2) if relationship == "mean" else 0.0
        primal = float((np.sum(terms / n[data.row_task]) + (weights[0] * np.sum(W**2) + tied) / 2) / len(W))
        assert certificate.primal == pytest.approx(primal, rel=1e-6, abs=1e-12)
        assert certificate.dual <= primal + 1e-9 * abs(primal)
        assert certificate.dual <= np.sum(values(0.0 * terms, data.targets()[:, 0]) / n[data.row_task]) / len(W) + 1e-9


@over_losses
@pytest.mark.parametrize("merge", ["average", "add"])
def test_the_dual_of_no_station_falls_within_a_server_iteration(loss: str, merge: str) -> None:
    """At fixed anchors D_b never falls under average and add, also with drop-outs, and climbs over all."""
    method = DualMethod(LOSSES[loss](), MeanRegularised(1e-3, 1e-2), MERGES[merge]())
    network = InProcess(problem(loss), method)
    cloud, rng, number = cloud_of(network, method.relationship), np.random.default_rng(1), 0
    for _ in range(5):
        network.assign(cloud.assign())
        before = start = station_duals(network, cloud)
        for _ in range(8):
            number += 1
            network.round(number, rng.integers(0, 12, 9), rng.random(9) < 0.6)
            now = station_duals(network, cloud)
            assert np.all(now >= before - 1e-12)
            before = now
        assert now.sum() > start.sum()
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)


@over_losses
@pytest.mark.parametrize("steps", [2, 40])
def test_a_line_search_never_gains_less_than_the_average(loss: str, steps: int) -> None:
    """From the same state and the same updates; 40 steps are many passes, after which rounding crowds the box."""
    networks = [
        InProcess(problem(loss), DualMethod(LOSSES[loss](), MeanRegularised(1e-3, 1e-3), MERGES[merge]()), seed=2)
        for merge in ("average", "line-search")
    ]
    for k in range(12):
        gains = []
        for network in networks:
            # Both start where the line search stands.
            network._U, duals = networks[1]._U.copy(), networks[1].terminals.duals
            network.terminals.duals = type(duals)(*map(np.copy, duals))
        cloud = cloud_of(networks[1], networks[1].method.relationship)
        cloud.V, cloud.W = networks[1].V, cloud.relationship.solve(networks[1].V)
        anchors = cloud.assign()
        for network in networks:
            network.assign(anchors)
            before = station_duals(network, cloud)
            network.round(k + 1, np.full(9, steps))
            gains.append(station_duals(network, cloud) - before)
        assert np.all(gains[1] >= gains[0] - 1e-12)


def test_rounding_at_the_edge_of_the_box_does_not_stop_a_line_search() -> None:
    """A row that left the box's edge and came back is a hair outside: that is room for the whole step, not for none."""
    rows = rounds.make_rows(np.ones((2, 1)), np.ones((2, 1)), np.array([0, 2]))
    duals = rounds.make_duals(rows)
    duals.alpha[:] = [[1.0], [0.25]]
    # The first row went down by 0.3 and up again, which leaves a rounding error; the second made a real step.
    duals.pending[:] = [[-0.3 + (1.0 - (1.0 - 0.3))], [0.5]]
    assert duals.pending[0, 0] > 0.0
    layout = rounds.make_layout(np.zeros(1, dtype=np.int64), 1, rows.ids)
    assert sdca.run_profiles(Hinge(), rows, layout, duals, 3)[0, 2] == 1.0


def arrived(delta: float, profile: Any, answers: int = 2) -> Arrived:
    return Arrived(answers, np.array([[delta]]), np.zeros((1, 1)), 1.0, np.asarray(profile))


def test_a_straight_profile_ends_at_the_box() -> None:
    """Zero rows under the hinge have no curvature: the whole step is best, where the average would take a part."""
    assert LineSearch().factor(arrived(0.0, [2.0, 0.0, 1.0])) == 1.0
    assert LineSearch().factor(arrived(0.0, [-2.0, 0.0, 1.0])) == 0.0
    assert LineSearch().factor(arrived(0.0, [0.0, 0.0, np.inf])) == 0.0


def test_a_profile_on_a_grid_falls_back_to_the_average() -> None:
    """The average is taken where no point of the grid is surely as good, or where none lies in the box."""
    top = 1.0 / 7.0
    profile = -1e3 * (FACTORS - top) ** 2
    assert LineSearch().factor(arrived(0.0, profile, answers=7)) == pytest.approx(top)
    assert LineSearch().factor(arrived(0.0, np.full(len(FACTORS), -np.inf), answers=3)) == pytest.approx(1 / 3)
    assert LineSearch().factor(arrived(0.0, -((FACTORS - 4.0) ** 2), answers=5)) == 4.0


@pytest.mark.parametrize("merge", MERGES)
def test_every_merge_reaches_the_optimum(merge: str) -> None:
    """The gap closes to rounding."""
    method = DualMethod(relationship=MeanRegularised(1e-1, 3e-2), merge=MERGES[merge]())
    network = InProcess(federation(sizes=((5, 6), (7, 4))), method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 1500):
        if number % 3 == 1:
            network.assign(cloud.assign())
        network.round(number, np.full(4, 15))
        if number % 3 == 0:
            for report in network.reports(cloud.cloud_round):
                cloud.receive(report)
    assert -1e-12 <= certify(network, cloud).gap < 1e-12


def test_single_precision_rows_reach_a_small_gap() -> None:
    """Rows in single precision are learned from to about their precision, and the certificate stays sound."""
    method = DualMethod(relationship=MeanRegularised(1e-1, 1e-1))
    network = InProcess(federation(dtype=np.float32), method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 300):
        network.assign(cloud.assign())
        network.round(number, np.full(9, 10))
        certificate = certify(network, cloud)
    assert -1e-12 <= certificate.gap < 1e-6
