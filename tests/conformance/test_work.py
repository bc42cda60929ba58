"""An anchor and an order name the work they ask for, and every engine does that work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engines.shards import sharded
from tests.reference.problems import federation
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, NEWTON, Work
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.roles.messages import Anchor

ENGINES = {"inprocess": InProcess, "message-passing": MessagePassing, "sharded": sharded}


def data_of(loss: str) -> Federation:
    return federation("regression" if loss == "squared" else "binary", sizes=((7, 3), (5, 4), (6,)))


def anchors(network: Any, work: Work, lam: float = 0.7, number: int = 1) -> list[Anchor]:
    """Anchors of all stations, at centres that differ."""
    rng = np.random.default_rng(3)
    return [Anchor(number, b, 0.3 * rng.normal(size=network.shape), lam, work=work) for b in range(len(network.V))]


@pytest.mark.parametrize(("loss", "engine"), in_turn(LOSSES, ENGINES))
def test_an_anchor_for_a_gradient_gives_the_gradient_under_its_centre(loss: str, engine: str) -> None:
    """v_b = −Σ L′(z) x/n_b after a pass, from any duals. The model stays at the centre, and λ_b does not count."""
    method, data = DualMethod(LOSSES[loss](), MeanRegularised(1e-3, 1e-2)), data_of(loss)
    for lam in (0.7, 1e-9):
        network = ENGINES[engine](data, method, seed=2)
        network.assign(anchors(network, ASCENT))
        network.round(1, network.sizes)
        centres = anchors(network, GRADIENT, lam, number=2)
        network.assign(centres)
        outcome = network.round(2, network.sizes)
        np.testing.assert_array_equal(outcome.factor, 1.0)
        np.testing.assert_array_equal(network.models, [anchor.center for anchor in centres])
        for b, anchor in enumerate(centres):
            mine = data.row_task == b
            rows = np.column_stack([data.X[mine], np.ones(mine.sum())])
            slopes = [
                method.loss.slope(z, y) for z, y in zip(rows @ anchor.center[0], data.targets()[mine, 0], strict=True)
            ]
            np.testing.assert_allclose(network.V[b, 0], -np.array(slopes) @ rows / mine.sum(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_refuses_bad_lambda_and_unknown_work(engine: str) -> None:
    """For both kinds of work; the error names the value and the way out."""
    network = ENGINES[engine](data_of("smoothed-hinge"), DualMethod(), seed=2)
    for work in (ASCENT, GRADIENT):
        for lam in (np.inf, -np.inf, np.nan, 0.0, -0.5):
            with pytest.raises(PeerError, match=rf"lambda {lam}.*work='gradient'"):
                network.assign(anchors(network, work, lam))
    with pytest.raises(PeerError, match="asks for work 'guess': choose from dual-ascent, gradient"):
        network.assign(anchors(network, "guess"))  # type: ignore[arg-type]


def test_a_cloud_names_the_work_of_each_server_iteration() -> None:
    """Dual ascent, then a gradient; λ_b is finite in both."""
    cloud = Cloud(MeanRegularised(1e-3, 1e-2), 3, (1, 5))
    assert {anchor.work for anchor in cloud.assign()} == {ASCENT}
    search = cloud.assign(NEWTON)
    assert {anchor.work for anchor in search} == {GRADIENT}
    assert all(0.0 < anchor.lam < np.inf for anchor in search)
