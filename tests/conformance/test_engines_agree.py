"""The batched engine gives, to the bit, what the roles give message by message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation
from tests.roles.channels import SAMPLES
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import SCALES, scalers
from rhfedmtl.engines.cluster.sharded import Sharded
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.roles.messages import Message
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal
from rhfedmtl.training.round_zero import row_maps
from rhfedmtl.training.settings import Settings

BLOCKS = ((2,) * 35, (3,) * 17)  # more terminals than fit into one block of the summation


def script(
    network: Any,
    method: DualMethod,
    *,
    how: str = "none",
    per_station: bool = False,
    late: bool = False,
    mapped: Federation | None = None,
) -> list[Any]:
    """A run with drop-outs, unequal work, idle stations and moves; returns every number that came out of it.

    Rows of a federation that is ``mapped`` go through the feature maps of the method.
    """
    rng = np.random.default_rng(3)
    cloud = cloud_of(network, method.relationship)
    kind, mappings = method.channel.moments_dtype, None
    if mapped is not None:
        settings = Settings(scale=how, scale_per_station=per_station, seed=2)
        mappings = row_maps(network, (mapped.n_tasks, mapped.n_features), method.features, settings, kind, ())
    moments = network.moments() if mappings is None else network.moments(mappings)
    network.scale(scalers(moments, how, per_station, kind, (), mappings))
    n_terminals = len(network.station)
    seen: list[Any] = []
    number = 0
    for m in range(4):
        network.assign(cloud.assign())
        for _ in range(3):
            number += int(rng.integers(1, 3))
            steps = rng.integers(0, 9, size=n_terminals)
            seen += network.round(number, steps, rng.random(n_terminals) < 0.7)
            seen.append(network.V)
        certificate = certify(network, cloud)
        seen += [certificate.primal, certificate.dual, certificate.models, certificate.station_gaps]
        seen += [alpha_of(network), network.message_sizes]
        seen.append([report.n_samples for report in network.reports(cloud.cloud_round)])
        for terminal, station in ((0, 1), (n_terminals - 1, -1), (1, 1), (n_terminals - 1, 0))[m : m + 2]:
            network.move(terminal, station)
        if late:
            network.grow(2 * m, 1 + m % 2)
        seen += [network.V, network.station.copy(), network.sizes]
    return seen


def alpha_of(network: Any) -> Any:
    """All dual variables of rows that are there, after a probe settled them."""
    if isinstance(network, InProcess):
        return np.concatenate(
            [
                network.alpha[a:b]
                for a, b in zip(network.terminals.rows.starts, network.terminals.rows.ends, strict=True)
            ]
        )
    if isinstance(network, Sharded):
        alpha, starts = network.state().alpha.array(), network._offsets
        return np.concatenate([alpha[a : a + n] for a, n in zip(starts[:-1], network.sizes, strict=True)])
    return np.concatenate([terminal.state.alpha for terminal in network.terminals])


def assert_same(left: list[Any], right: list[Any]) -> None:
    """Equal to the bit."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("loss", "merge", "relationship"), in_turn(LOSSES, MERGES, RELATIONSHIPS))
def test_engines_agree_to_the_bit(loss: str, merge: str, relationship: str) -> None:
    """Drop-outs, moves, unequal sizes, weights and several columns: both paths give the same numbers."""
    method = DualMethod(LOSSES[loss](), RELATIONSHIPS[relationship](1e-2, 3e-2), MERGES[merge](), intercept=True)
    data = federation("regression" if loss == "squared" else "classes", weighted=True)
    batched = InProcess(data, method, seed=4, threads=2)
    assert_same(script(batched, method), script(MessagePassing(data, method, seed=4), method))


@pytest.mark.parametrize("per_station", [False, True])
@pytest.mark.parametrize("how", SCALES)
def test_scaling_agrees_to_the_bit(how: str, per_station: bool) -> None:
    """Round zero by moments of terminals gives what the batch computes at once."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-2))
    data = federation()
    batched, linked = (engine(data, method, seed=1) for engine in (InProcess, MessagePassing))
    assert_same(
        script(batched, method, how=how, per_station=per_station),
        script(linked, method, how=how, per_station=per_station),
    )


@pytest.mark.parametrize("per_station", [False, True])
def test_rows_that_arrive_late_agree_to_the_bit(per_station: bool) -> None:
    """Terminals that begin with a part of their rows and get the rest on the way, at home, away or elsewhere."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-2))
    data = federation(sizes=((7, 3, 12), (5, 4), (9, 4, 2, 6)), weighted=True)
    present = np.diff(data.terminal_offsets) - np.array([1, 0, 2, 0, 1, 0, 2, 0, 1])
    present[[0, 2, 4, 6]] = [5, 9, 3, 2]
    batched, linked = (engine(data, method, seed=1, present=present) for engine in (InProcess, MessagePassing))
    assert_same(
        script(batched, method, how="standard-unit", per_station=per_station, late=True),
        script(linked, method, how="standard-unit", per_station=per_station, late=True),
    )


@pytest.mark.parametrize("merge", MERGES)
def test_many_terminals_agree_to_the_bit(merge: str) -> None:
    """Stations with several blocks of terminals are summed in one canonical order, drawing rows with replacement."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-2), merge=MERGES[merge](), uniform=True)
    data = federation(sizes=BLOCKS)
    batched, linked = (engine(data, method, seed=1) for engine in (InProcess, MessagePassing))
    assert_same(script(batched, method), script(linked, method))


def test_float32_rows_agree_to_the_bit() -> None:
    """The two paths agree in single precision too."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-2), intercept=True)
    data = federation(dtype=np.float32)
    batched, linked = (engine(data, method, seed=1) for engine in (InProcess, MessagePassing))
    assert_same(script(batched, method), script(linked, method))


@pytest.mark.parametrize("engine", [InProcess, MessagePassing])
def test_a_station_may_lose_all_of_its_terminals(engine: Any) -> None:
    """A task without terminals keeps its place, and the certificate of the others stays sound."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-2), merge=MERGES["add"]())
    network = engine(federation(sizes=((4, 5), (6,))), method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 30):
        if number == 4:
            network.move(2, 0)
        network.assign(cloud.assign())
        network.round(number, np.full(3, 20))
        assert certify(network, cloud).gap >= -1e-12
    np.testing.assert_allclose(network.V[1], 0.0, atol=1e-15)
    assert [report.n_samples for report in network.reports(cloud.cloud_round)] == [15, 0]


# Masked sums travel in messages of their own, whose sizes tests/roles/test_masking.py holds to those charged.
@pytest.mark.parametrize("channel", [name for name, sample in SAMPLES.items() if not sample.sums_only])
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("loss", ["smoothed-hinge", "logistic"])
def test_messages_have_the_sizes_that_are_charged(
    monkeypatch: pytest.MonkeyPatch, loss: str, merge: str, channel: str
) -> None:
    """What the roles really send is as large as the sizes by which a batch is charged."""
    sent: dict[str, set[int]] = {}

    def note(message: Message | None) -> None:
        if message is not None:
            sent.setdefault(type(message).__name__, set()).add(message.n_bytes)

    work, take = Terminal.work, BaseStation.receive_anchor

    def recorded(terminal: Terminal, order: Any) -> Any:
        update = work(terminal, order)
        note(order)
        note(update)
        return update

    monkeypatch.setattr(Terminal, "work", recorded)
    monkeypatch.setattr(BaseStation, "receive_anchor", lambda station, anchor: (note(anchor), take(station, anchor)))
    method = DualMethod(LOSSES[loss](), MeanRegularised(1e-2, 1e-2), MERGES[merge](), channel=SAMPLES[channel])
    linked = MessagePassing(federation("classes"), method)
    linked.assign(cloud_of(linked, method.relationship).assign())
    linked.round(1, np.full(9, 3))
    for report in linked.reports(1):
        note(report)
    sizes = InProcess(federation("classes"), method).message_sizes
    assert sent == {
        "WorkOrder": {sizes.order},
        "Update": {sizes.update},
        "Anchor": {sizes.anchor},
        "Report": {sizes.report},
    }
