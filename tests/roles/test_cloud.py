"""What the cloud does with reports and sums, and what its certificate is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation, learn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Auto
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.roles.averaging import AveragingCloud
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.roles.messages import Report, StationSums

SHAPE = (1, 2)


def cloud() -> Cloud:
    made = Cloud(MeanRegularised(0.1, 0.1), 2, SHAPE)
    made.assign()
    return made


def report(task: int, number: int = 1, cloud_round: int = 1, membership: int = 0, value: float = 0.0) -> Report:
    return Report(cloud_round, task, number, np.full(SHAPE, value), 5, membership)


def sums(task: int, number: int = 1, membership: int = 0, dual: float = 0.0) -> StationSums:
    losses = np.full(len(cloud().candidates().combinations), 5.0)
    return StationSums(task, number, losses, np.array([dual, 0.0]), np.empty(0), 5, membership)


def test_a_report_of_an_earlier_server_iteration_is_ignored() -> None:
    """Late reports change nothing."""
    top = cloud()
    top.assign()
    assert not top.receive(report(0, cloud_round=1, value=1.0))
    assert not top.V.any()


def test_a_report_that_was_overtaken_is_ignored() -> None:
    """Of two reports in one server iteration the one of the later round counts, in whatever order they come."""
    top = cloud()
    assert top.receive(report(0, number=5, value=2.0))
    assert not top.receive(report(0, number=4, value=1.0))
    np.testing.assert_array_equal(top.V[0], 2.0)


@pytest.mark.parametrize(
    "bad",
    [
        Report(1, 2, 1, np.zeros(SHAPE), 5, 0),
        Report(1, 0, 1, np.zeros((1, 3)), 5, 0),
        Report(1, 0, 1, np.full(SHAPE, np.nan), 5, 0),
    ],
)
def test_a_report_that_cannot_be_right_is_refused(bad: Report) -> None:
    """An unknown task, another shape, or numbers that are not finite."""
    with pytest.raises(PeerError, match="does not fit"):
        cloud().receive(bad)


def test_there_is_no_certificate_from_sums_that_are_missing_or_out_of_step() -> None:
    """Sums must be of the round and of the members that were reported."""
    top = cloud()
    for task in range(2):
        top.receive(report(task))
    top.candidates()
    assert top.certify([sums(0), None]) is None
    assert top.certify([sums(0), sums(0)]) is None
    assert top.certify([sums(0), sums(1, number=2)]) is None
    assert top.certify([sums(0), sums(1, membership=3)]) is None
    assert top.certify([sums(1), sums(0)]) is not None


def test_nothing_is_certified_before_the_first_server_iteration() -> None:
    """A certificate needs anchors."""
    with pytest.raises(ProtocolError, match="before its first server iteration: StationSums is possible only"):
        Cloud(MeanRegularised(), 1, SHAPE).certify([])


def test_the_best_dual_is_kept_for_the_same_problem_only() -> None:
    """The bound never falls while nobody comes or goes, and starts anew when somebody does."""
    top = cloud()
    for task in range(2):
        top.receive(report(task))
    top.candidates()
    first = top.certify([sums(0, dual=2.0), sums(1, dual=2.0)])
    worse = top.certify([sums(0, dual=1.0), sums(1, dual=2.0)])
    top.receive(report(0, membership=1))
    anew = top.certify([sums(0, dual=1.0, membership=1), sums(1, dual=2.0)])
    assert first is not None
    assert worse is not None
    assert anew is not None
    assert worse.dual == first.dual
    assert anew.dual < first.dual


def test_without_duals_too_the_bound_is_kept_for_the_same_members_only() -> None:
    """Losses of rows that are gone bound nothing: as members change, it starts anew."""
    cloud, models, relationship = AveragingCloud(np.zeros((1, 2)), 1), np.zeros((1, 1, 2)), MeanRegularised(1.0, 1.0)

    def dual(loss: float, membership: int) -> float:
        told = StationSums(0, 1, np.array([loss, loss]), np.zeros(2), np.zeros((1, 2)), 1, membership)
        found = cloud.certify(models, [told], relationship)
        assert found is not None
        return found.dual

    assert [dual(0.5, 0), dual(0.2, 0), dual(0.2, 1)] == [0.5, 0.5, 0.2]


def test_two_terminals_of_equal_size_that_change_places_are_a_new_problem() -> None:
    """Counts of samples stay the same, the old bound does not hold: weak duality must survive the swap."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-3))
    data = federation(sizes=((8, 8), (8, 8)), seed=3)
    # Each task has one terminal that contradicts the other; after the swap those that agree are together.
    flipped = np.where(np.isin(np.arange(32) // 8, [0, 3]), 1 - data.y, data.y)
    network = InProcess(federation_with(data, flipped), method)
    top = cloud_of(network, method.relationship)
    learn(network, top, cloud_rounds=60, station_rounds=2, steps=20)
    network.move(0, 1)
    network.move(2, 0)
    for number in range(200, 500):
        network.assign(top.assign())
        network.round(number, np.full(4, 20))
        assert certify(network, top).gap >= -1e-12


def test_members_that_change_after_the_report_make_no_certificate() -> None:
    """Sums over other members than were reported do not fit the reported models."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-3))
    network = InProcess(federation(), method)
    top = cloud_of(network, method.relationship)
    learn(network, top, cloud_rounds=1, station_rounds=1, steps=5)
    network.move(0, 1)
    assert top.certify(network.sums(top.candidates())) is None


def federation_with(data: Any, y: Any) -> Any:
    return replace(data, y=y)


def test_tasks_that_are_alike_start_coupled_and_end_at_the_weights_of_their_problem() -> None:
    """After a first round by themselves anchors draw them together, ever less; certificates are for the problem."""
    data = federation(sizes=[(6, 5), (7, 4), (5, 6)], d=12)
    method = DualMethod(relationship=MeanRegularised(1e-3, 1e-5), merge=Auto())
    network = InProcess(data, method)
    top = Cloud(method.relationship, 3, network.shape, method.channel, steers=True)
    weights = []
    for number in range(1, 100):
        network.assign(top.assign())
        network.round(number, np.full(len(network.station), 20))
        certificate = certify(network, top)
        assert top.anchors is not None
        weights.append(float(top.anchors.lam[0]))
    own = 1e-3 + 1e-5
    assert weights[0] == own
    assert weights[1] > 1.1 * own
    assert weights[1:] == sorted(weights[1:], reverse=True)
    assert weights[-1] == pytest.approx(own, rel=1e-6)
    assert 0.0 <= certificate.gap < 1e-6
    by_itself = InProcess(data, DualMethod(relationship=method.relationship))
    solved = learn(by_itself, cloud_of(by_itself, method.relationship), cloud_rounds=300, station_rounds=1, steps=20)
    assert certificate.primal - certificate.gap <= solved.primal
    assert solved.dual <= certificate.primal


def test_alike_tasks_are_drawn_together_after_the_first_certificate() -> None:
    """The next anchors have more weight than λ1 + λ2."""
    top = Cloud(MeanRegularised(0.1, 0.0), 2, SHAPE, steers=True)
    top.assign()
    for task, value in enumerate((1.0, 0.5)):
        top.receive(report(task, value=value))
    losses = np.full(len(top.candidates().combinations), 5.0)
    assert top.certify([replace(sums(task), losses=losses) for task in range(2)]) is not None
    assert top.assign()[0].lam > 0.1


def test_models_that_cautious_terminals_leave_too_short_are_returned_longer_and_not_begun_from() -> None:
    """Of twenty terminals a task, with the objective that their rows give them."""
    data = federation(sizes=[[3] * 20, [2] * 20], d=6)
    method = DualMethod(relationship=MeanRegularised(1e-4, 1e-5), merge=Auto(), intercept=False)
    network = InProcess(data, method)
    top = Cloud(method.relationship, 2, network.shape, method.channel, steers=True)
    network.assign(top.assign())
    network.round(1, np.full(len(network.station), 3))
    certificate = certify(network, top)
    assert certificate.combination is not None
    assert certificate.combination.sum() > 1.0
    assert certificate.primal < certificate.held
    z = np.sum(network.terminals.rows.X * certificate.models[data.row_task, 0], axis=1)
    losses = [method.loss.value(score, y) for score, y in zip(z, data.targets()[:, 0], strict=True)]
    means = np.bincount(data.row_task, losses) / np.bincount(data.row_task)
    expected = (means.sum() + method.relationship.energy(certificate.models) / 2.0) / 2.0
    assert certificate.primal == pytest.approx(expected, rel=1e-9)
    top.assign()
    assert np.linalg.norm(top.models) < np.linalg.norm(certificate.models)
