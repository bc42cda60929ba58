"""The optimum is the one that independent solvers find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation
from tests.reference.solvers import by_cvxpy
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.roles.certificates import Certificate

pytest.importorskip("cvxpy", reason="cvxpy is not installed")

LAMBDA1, LAMBDA2 = 5e-2, 8e-2


def solve(data: Any, method: DualMethod, *, gap: float = 3e-8, limit: int = 40_000) -> Certificate:
    """Run until the relative gap is small; K = 1, so that anchors follow every round."""
    network = InProcess(data, method)
    cloud = cloud_of(network, method.relationship)
    steps = 2 * network.sizes
    for number in range(1, limit):
        network.assign(cloud.assign())
        network.round(number, steps)
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
        if number % 100 == 0:
            certificate = certify(network, cloud)
            if certificate.relative_gap < gap:
                return certificate
    raise AssertionError(f"no convergence: relative gap {certificate.relative_gap}")


@pytest.mark.parametrize(
    ("name", "kind", "relationship"), in_turn(LOSSES, ["plain", "weights and intercept"], ["mean", "none"])
)
def test_the_objective_is_cvxpys(name: str, kind: str, relationship: str) -> None:
    """For every loss and relationship, the objective agrees to 1e-6, and so does the certified model's."""
    loss, rich = LOSSES[name](), kind != "plain"
    data = federation("regression" if name == "squared" else "binary", weighted=rich, sizes=((6, 5), (4,), (5, 3)))
    method = DualMethod(loss, RELATIONSHIPS[relationship](LAMBDA1, LAMBDA2), MERGES["add"](), intercept=rich)
    certificate = solve(data, method)
    best, models = by_cvxpy(data, loss, LAMBDA1, LAMBDA2 if relationship == "mean" else None, rich)
    assert certificate.primal == pytest.approx(best, rel=1e-6)
    assert certificate.dual == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(certificate.models, models, atol=2e-3)


@pytest.mark.parametrize("relationship", ["mean", "none"])
def test_several_classes_are_cvxpys(relationship: str) -> None:
    """One-vs-rest columns that share their rows add up to the sum of their problems."""
    data = federation("classes", weighted=True, sizes=((6, 5), (7,)))
    method = DualMethod(SmoothedHinge(0.5), RELATIONSHIPS[relationship](LAMBDA1, LAMBDA2), intercept=True)
    certificate = solve(data, method)
    best, models = by_cvxpy(data, method.loss, LAMBDA1, LAMBDA2 if relationship == "mean" else None, True)
    assert certificate.primal == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(certificate.models, models, atol=1e-3)
