"""Primal, dual and gap: against the samples, and with the constant that makes them fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.reference.problems import cloud_of, federation, learn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths import objective
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.relationships import MeanRegularised

SIZES = ((8, 4), (6,), (5, 9))


def solved(lambda1: float, lambda2: float, cloud_rounds: int) -> tuple[InProcess, Any, Any]:
    """A network after some server iterations, its cloud, and its certificate."""
    method = DualMethod(relationship=MeanRegularised(lambda1, lambda2), intercept=False)
    network = InProcess(federation(sizes=SIZES), method)
    cloud = cloud_of(network, method.relationship)
    certificate = learn(network, cloud, cloud_rounds=cloud_rounds, station_rounds=10, steps=30)
    return network, cloud, certificate


def test_objectives_are_those_of_the_samples() -> None:
    """Sums over stations give what one computes from all rows and all duals at once."""
    network, cloud, certificate = solved(1e-2, 3e-2, 3)
    data, loss = federation(sizes=SIZES), network.method.loss
    y, task = data.targets()[:, 0], data.row_task
    primal = dual = 0.0
    for b, w in enumerate(certificate.models[:, 0]):
        own = task == b
        primal += np.mean([loss.value(z, label) for z, label in zip(data.X[own] @ w, y[own], strict=True)])
        dual -= np.mean([loss.conjugate(a, label) for a, label in zip(network.alpha[own, 0], y[own], strict=True)])
    Q = network.method.relationship.precision(3)
    W = certificate.models[:, 0]
    V = np.array([network.alpha[task == b, 0] @ data.X[task == b] / np.sum(task == b) for b in range(3)])
    primal += np.trace(W.T @ Q @ W) / 2
    dual -= np.trace(V.T @ np.linalg.inv(Q) @ V) / 2
    assert certificate.primal == pytest.approx(primal / 3, rel=1e-12)
    told = [s for s in network.sums(cloud.candidates()) if s is not None]
    plain, n = dual_sums(np.array([s.dual for s in told])), np.array([float(s.n_samples) for s in told])
    assert objective.joint_dual(plain, n, network.V, cloud.relationship) == pytest.approx(dual / 3, rel=1e-10)
    assert dual / 3 <= certificate.dual <= certificate.primal
    np.testing.assert_allclose(network.V[:, 0], V, rtol=1e-12, atol=1e-14)


def station_gap(lambda1: float, lambda2: float, printed_constant: bool) -> Any:
    """Gap of each station at its anchor, near its optimum; with the paper's λ2² ‖r‖²/(2λ) in its dual, or not."""
    network, cloud, _ = solved(lambda1, lambda2, 5)
    # Many rounds at one anchor: each station is at the optimum of its own problem.
    network.assign(cloud.assign())
    for number in range(1000, 1600):
        network.round(number, np.full(5, 30))
    for report in network.reports(cloud.cloud_round):
        cloud.receive(report)
    certificate = cloud.certify(network.sums(cloud.candidates(next_anchors=False)))
    assert certificate is not None
    lam = lambda1 + lambda2
    r = cloud.anchors.center[0] * lam / lambda2
    change = (lambda2**2 - lambda1 * lambda2) / (2 * lam) * np.sum(r * r)
    return certificate.station_gaps - (change if printed_constant else 0.0)


def test_with_the_papers_dual_constant_weak_duality_breaks() -> None:
    """λ2²‖r‖² instead of λ1λ2‖r‖² lifts the dual above the primal for λ2 > λ1."""
    assert np.all(station_gap(1e-2, 5e-2, printed_constant=True) < -1e-6)
    right = station_gap(1e-2, 5e-2, printed_constant=False)
    assert np.all(right >= -1e-12)
    assert np.all(right < 1e-8)


def test_with_the_papers_dual_constant_the_gap_stalls() -> None:
    """λ2²‖r‖² instead of λ1λ2‖r‖² keeps the gap away from zero for λ2 < λ1, at the very optimum."""
    assert np.all(station_gap(5e-2, 1e-2, printed_constant=True) > 1e-6)
    right = station_gap(5e-2, 1e-2, printed_constant=False)
    assert np.all(right >= -1e-12)
    assert np.all(right < 1e-8)


def test_held_models_stand_where_the_anchor_and_the_duals_put_them() -> None:
    """w_b = c_b + v_b/λ_b, and at zero duals the primal is the anchor's penalty plus the loss."""
    V = np.random.default_rng(0).normal(size=(2, 1, 3))
    anchors = MeanRegularised(0.1, 0.3).anchors(V, V)
    held = anchors.models_at(V)
    np.testing.assert_allclose(held, anchors.center + V / 0.4)
    primal = objective.station_primal(np.array([2.0, 4.0]), np.array([4.0, 4.0]), held, anchors)
    penalty = 0.2 * np.sum((V / 0.4) ** 2, axis=(1, 2))
    np.testing.assert_allclose(primal, np.array([0.5, 1.0]) + penalty + anchors.constant)


@pytest.mark.parametrize("seed", range(20))
def test_what_lies_between_rounded_duals_counts_what_was_kept_back(seed: int) -> None:
    """The bound is better than those of both ends and not above D at V + R, as duals make it; uncounted it would be."""
    relationship = MeanRegularised(0.1, 0.3)
    V, other = np.random.default_rng(seed).normal(size=(2, 4, 1, 6))
    R = 0.02 * (other - V)  # kept back at the one end, and −R at the other
    f = [1.0 + np.sum(v * relationship.solve((V + other) / 2.0), axis=(1, 2)) for v in (V, other)]
    lost = [np.sum(r * relationship.solve(v), axis=(1, 2)) for v, r in ((V, R), (other, -R))]
    norms = np.sqrt(np.sum(R * R, axis=(1, 2)))
    ends = [objective.Dual(f[k] - lost[k], v, norms) for k, v in enumerate((V, other))]
    mixed = objective.between(*ends, relationship)
    share = np.sum((mixed.V - V) * R, axis=(1, 2)) / np.sum((other - V) * R, axis=(1, 2))
    kept = (1.0 - 2.0 * share)[:, None, None] * R
    exact = objective.Dual(f[0] + share * (f[1] - f[0]), mixed.V + kept).bound(relationship)
    uncounted = objective.between(*(end._replace(norms=None) for end in ends), relationship)
    np.testing.assert_allclose(uncounted.V, mixed.V)
    assert max(end.bound(relationship) for end in ends) < mixed.bound(relationship) <= exact
    assert uncounted.bound(relationship) > exact
