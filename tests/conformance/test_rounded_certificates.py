"""A certificate holds where updates are rounded: it counts what terminals keep back."""

from __future__ import annotations

from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.reference.problems import certify, cloud_of, federation
from tests.reference.solvers import by_cvxpy
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Channel
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.maths.coupling import Safe
from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.roles.channel import FixedPoint, Float32, Int8

CHANNELS = (Float32(), Int8(), FixedPoint(2.0**-3), FixedPoint(0.5))
STRONG = (0.3, 1e-2)
"""Weights under which the cloud asks for losses at other models than those that stations hold."""
WEIGHTS = ((5e-2, 8e-2), (1e-3, 1e-1), STRONG)


def problem(loss: str) -> Any:
    return federation("regression" if loss == "squared" else "binary", sizes=((6, 5, 2), (4,), (5, 3)))


@cache
def optimum(loss: str, weights: tuple[float, float]) -> float:
    """The least objective there is, by another solver."""
    pytest.importorskip("cvxpy", reason="cvxpy is not installed")
    return by_cvxpy(problem(loss), LOSSES[loss](), *weights, False)[0]


@settings(max_examples=60)
@given(
    loss=st.sampled_from(sorted(LOSSES)),
    weights=st.sampled_from(WEIGHTS),
    merge=st.sampled_from(sorted(MERGES)),
    channel=st.sampled_from(CHANNELS),
    solvers=st.lists(st.sampled_from([ASCENT, ASCENT, NEWTON]), min_size=1, max_size=8),
    linked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_certificate_claims_more_than_there_is(
    loss: str, weights: Any, merge: str, channel: Channel, solvers: Any, linked: bool, seed: int
) -> None:
    """D ≤ the least objective, so that P − D bounds the distance from it; also with drop-outs, and after moves."""
    method = DualMethod(
        LOSSES[loss](), RELATIONSHIPS["mean"](*weights), MERGES[merge](), intercept=False, channel=channel
    )
    network: Any = (MessagePassing if linked else InProcess)(problem(loss), method, seed=seed)
    cloud, rng, best = cloud_of(network, method.relationship), np.random.default_rng(seed), optimum(loss, weights)
    for number, solver in enumerate(solvers, 1):
        network.assign(cloud.assign(solver))
        network.round(number, rng.integers(0, 30, 6), rng.random(6) < 0.8)
        certificate = certify(network, cloud)
        assert certificate.dual <= best + 1e-8 <= certificate.primal + 2e-8
        if solver == ASCENT and weights != STRONG:
            assert np.all(certificate.station_gaps >= -1e-12)
        if number == 3:  # away, and back with an exact share
            network.move(0, 1)
            network.move(0, 0)


@pytest.mark.parametrize(("relationship", "loss"), in_turn(sorted(RELATIONSHIPS), ["smoothed-hinge", "logistic"]))
def test_what_is_lost_by_rounding_is_of_second_order(relationship: str, loss: str) -> None:
    """A grid ten times finer leaves about a hundredth of the gap that rounding causes."""

    def gap(step: float) -> float:
        method = DualMethod(
            LOSSES[loss](), RELATIONSHIPS[relationship](5e-2, 8e-2), MERGES["average"](), channel=FixedPoint(step)
        )
        network = InProcess(problem(loss), method)
        cloud = cloud_of(network, method.relationship)
        for number in range(1, 301):
            network.assign(cloud.assign())
            network.round(number, 2 * network.sizes)
            for report in network.reports(cloud.cloud_round):
                cloud.receive(report)
        return certify(network, cloud).gap

    coarse, fine = gap(1e-2), gap(1e-3)
    assert 0.0 <= fine < coarse / 20.0
    assert coarse < 1e-2


@pytest.mark.parametrize("relationship", sorted(RELATIONSHIPS))
def test_the_largest_energy_is_one(relationship: str) -> None:
    """No R of these norms has more, also in the safe form, and parallel ones reach it where G has no negative entry."""
    rng, r = np.random.default_rng(1), np.array([0.3, 0.0, 2.0, 1.0])
    made = RELATIONSHIPS[relationship](1e-2, 3e-1).learn(rng.normal(size=(4, 1, 3)))
    for each in (made, Safe(made)):
        most = each.largest_energy(r)
        for _ in range(100):
            R = rng.normal(size=(4, 1, 3))
            R *= (r / np.linalg.norm(R, axis=(1, 2)))[:, None, None]
            assert each.dual_energy(R) <= most * (1 + 1e-12)
        assert most == pytest.approx(float(r @ np.abs(each.dense(4).G) @ r))
