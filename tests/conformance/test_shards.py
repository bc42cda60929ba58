"""Stations in shards give, to the bit, what one process that holds all of them gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.test_engines_agree import BLOCKS, assert_same, script
from tests.conformance.test_methods import learn
from tests.engines.shards import sharded
from tests.reference.problems import certify, cloud_of, federation
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.scaling import SCALES
from rhfedmtl.engines.cluster.sharded import share_out
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import Later
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.testing.runs import FAULTS, same

MEAN = MeanRegularised(1e-2, 1e-2)
LATE = np.array([5, 3, 9, 3, 3, 9, 2, 2, 5])


@pytest.mark.parametrize(("loss", "merge", "n"), in_turn(LOSSES, MERGES, [1, 2, 3]))
def test_the_number_of_shards_changes_no_number(loss: str, merge: str, n: int) -> None:
    """Drop-outs, unequal work, and terminals that move from shard to shard with their duals."""
    method = DualMethod(LOSSES[loss](), MeanRegularised(1e-2, 3e-2), MERGES[merge](), intercept=True)
    data = federation("regression" if loss == "squared" else "classes", weighted=True)
    assert_same(script(InProcess(data, method, seed=4), method), script(sharded(data, method, seed=4, n=n), method))


@pytest.mark.parametrize(("how", "per_station", "anew"), in_turn(SCALES, [False, True], [False, True]))
def test_a_shard_can_be_made_anew_at_any_time(how: str, per_station: bool, anew: bool) -> None:
    """From its snapshot after every round: with visitors, late rows, and rows that were scaled at their home."""
    method = DualMethod(relationship=MEAN)
    data = federation(sizes=((7, 3, 12), (5, 4), (9, 4, 2, 6)), weighted=True)
    whole = InProcess(data, method, seed=1, present=LATE)
    parts = sharded(data, method, seed=1, present=LATE, n=3, anew=anew)
    words: dict[str, Any] = {"how": how, "per_station": per_station, "late": True}
    assert_same(script(whole, method, **words), script(parts, method, **words))


def test_many_terminals_and_single_precision_in_shards() -> None:
    """Several blocks of terminals under a station are summed in the same order."""
    method = DualMethod(relationship=MEAN, uniform=True)
    data = federation(sizes=BLOCKS, dtype=np.float32)
    assert_same(script(InProcess(data, method, seed=1), method), script(sharded(data, method, seed=1), method))


def test_a_state_can_be_taken_up_by_any_number_of_shards() -> None:
    """What one process has come to goes on in three shards, and what shards have come to in one process."""
    method = DualMethod(relationship=MEAN)
    data = federation(sizes=((7, 3, 12), (5, 4), (9, 4, 2, 6)))
    seen: list[list[Any]] = []
    for source in range(4):
        networks = [InProcess(data, method, seed=1), *(sharded(data, method, seed=1, n=n) for n in (1, 2, 3))]
        first = networks[source]
        cloud = cloud_of(first, method.relationship)
        first.assign(cloud.assign())
        first.round(1, np.full(9, 5))
        for terminal, station in ((0, 2), (5, 0), (7, -1), (0, 1)):
            first.move(terminal, station)
        state = first.state()
        state = state._replace(alpha=state.alpha.array() if isinstance(state.alpha, Later) else state.alpha)
        for network in networks:
            if network is not first:
                network.resume(state)
            network.move(7, 2)
            network.round(2, np.arange(9), np.arange(9) % 4 > 0)
            points = Points(np.stack([network.models, network.V]), np.array([[1.0, 0.0], [0.5, 0.25]]), gradient=True)
            sums = [(s.losses, s.dual, s.gradient, s.n_samples, s.membership) for s in network.sums(points) if s]
            seen.append([network.V, network.models, network.station.copy(), *(x for s in sums for x in s)])
    for other in seen[1:]:
        assert_same(seen[0], other)


@pytest.mark.parametrize("weather", FAULTS)
@pytest.mark.parametrize("name", ["rhfedmtl", "fedem"])
def test_three_shards_run_as_one(name: str, weather: str) -> None:
    """Whole runs under every kind of fault; two shards are among the engines that all methods pass."""
    same(learn(name, weather), learn(name, weather, "sharded", actors=3))


def test_stations_are_shared_out_by_their_rows() -> None:
    """In proportion to the weights, each shard at least one station, and no more shards than stations."""
    data = federation(sizes=((10,), (10,), (10,), (30,), (10,), (10,)))
    sizes = np.diff(data.terminal_offsets)

    def bounds(*weights: float) -> list[int]:
        return [part.station for part in share_out(data, weights, sizes)]

    assert bounds(1.0) == [0]
    assert bounds(1.0, 1.0) == [0, 3]
    assert bounds(1.0, 3.0) == [0, 2]
    assert bounds(1.0, 1e-9, 1e-9) == [0, 4, 5]
    assert bounds(1e-9, 1e-9, 1.0) == [0, 1, 2]
    assert bounds(*[1.0] * 9) == [0, 1, 2, 3, 4, 5]


def test_what_cannot_be_is_refused_before_it_is_sent() -> None:
    """Moves to nowhere, rows that are not there, models and steps of the wrong shape, and anchors for some alone."""
    method = DualMethod(relationship=MEAN)
    network = sharded(federation(), method)
    cloud = cloud_of(network, method.relationship)
    with pytest.raises(ProtocolError, match="no move of terminal 0 to station 9"):
        network.move(0, 9)
    with pytest.raises(ProtocolError, match="has no 1 rows that could still arrive"):
        network.grow(0, 1)
    with pytest.raises(ProtocolError, match="each needs one"):
        network.assign(cloud.assign()[:1])
    with pytest.raises(ProtocolError, match="steps of shape"):
        network.round(1, np.ones(3, dtype=np.int64))
    with pytest.raises(PeerError, match="do not fit"):
        network.sums(Points(np.zeros((1, 2)), np.eye(1)))
    network.assign(cloud.assign())
    network.round(1, np.full(9, 2))
    assert certify(network, cloud).gap >= 0.0
    with pytest.raises(ProtocolError, match="round 1 is done"):
        network.round(1, np.full(9, 2))
