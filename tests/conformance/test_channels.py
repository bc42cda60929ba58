"""Simulations show what deployments do: every channel gives the same numbers batched and message by message."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.conformance.test_engines_agree import assert_same, script
from tests.engines.shards import sharded
from tests.reference.problems import certify, cloud_of, federation
from tests.roles.channels import SAMPLES
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Channel
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.objective import scaled_dual
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.channel import Int8, MaskedSums
from rhfedmtl.testing.runs import BUDGET, COST, FAULTS, same
from rhfedmtl.testing.runs import federation as synthetic
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

CHANGING = [name for name, channel in SAMPLES.items() if not channel.identity]


@pytest.mark.parametrize(("name", "merge", "loss"), in_turn(CHANGING, MERGES, ["smoothed-hinge", "logistic"]))
def test_channels_agree_to_the_bit(name: str, merge: str, loss: str) -> None:
    """With drop-outs, moves, late rows, weights and several columns; and the channel changed something."""
    method = DualMethod(LOSSES[loss](), MeanRegularised(1e-2, 3e-2), MERGES[merge](), channel=SAMPLES[name])
    data = federation("classes", sizes=((7, 3, 12), (5, 4), (9, 4, 2, 6)), weighted=True)
    present = np.diff(data.terminal_offsets) - np.array([1, 0, 2, 0, 1, 0, 2, 0, 1])
    present[[0, 2, 4, 6]] = [5, 9, 3, 2]
    batched, linked = (engine(data, method, seed=4, present=present) for engine in (InProcess, MessagePassing))
    found = script(batched, method, late=True)
    assert_same(found, script(linked, method, late=True))
    plain = InProcess(data, replace(method, channel=Channel()), seed=4, present=present)
    assert np.abs(found[-3] - script(plain, method, late=True)[-3]).max() > 0.0


@pytest.mark.parametrize(("name", "dtype"), in_turn(CHANGING, [np.float32, np.float64]))
def test_many_terminals_agree_to_the_bit(name: str, dtype: Any) -> None:
    """Stations with several blocks of terminals are summed in the same order after the channel as without one."""
    method = DualMethod(merge=MERGES["line-search"](), channel=SAMPLES[name])
    data = federation(sizes=((2,) * 35, (3,) * 17), dtype=dtype)
    assert_same(*(script(engine(data, method, seed=1), method) for engine in (InProcess, MessagePassing)))


@pytest.mark.parametrize("per_station", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_round_zero_through_a_channel_agrees_to_the_bit(name: str, per_station: bool) -> None:
    """Moments and all that follows, in every engine; those of channels that round are in single precision."""
    method, data = DualMethod(channel=SAMPLES[name]), federation(sizes=((7, 3, 12), (5, 4), (9, 4, 2, 6)))
    networks = [engine(data, method, seed=1) for engine in (InProcess, MessagePassing, sharded)]
    first, *others = (np.array([[m.mean, m.spread] for m in network.moments()]) for network in networks)
    for other in others:
        np.testing.assert_array_equal(other, first)
    exact = np.array([[m.mean, m.spread] for m in InProcess(data, DualMethod(), seed=1).moments()])
    if name in ("float32", "int16", "int8"):
        np.testing.assert_array_equal(first[:, 0].astype(np.float32), first[:, 0])
        assert 0.0 < np.abs(first - exact).max() < 1e-5
    elif name != "masked":  # masked sums add up in an order of their own
        np.testing.assert_array_equal(first, exact)
    one, *rest = (script(network, method, how="standard-unit", per_station=per_station) for network in networks)
    for seen in rest:
        assert_same(one, seen)


def learn(algorithm: str, channel: str, engine: str) -> Result:
    """A run with all kinds of faults."""
    built = build(algorithm, Options(), "binary")
    method = replace(built.method, channel=SAMPLES[channel])
    settings = Settings(certify_every=5, max_rounds=40, execution=Execution(engine))
    ledger = Ledger(COST, BUDGET)
    return train(synthetic(), method, built.policy, settings, ledger=ledger, faults=FAULTS["everything"])


@pytest.mark.parametrize(
    ("name", "algorithm"), in_turn(CHANGING, ["rhfedmtl", "fedavg", "ditto", "fedem", "adaptive-fl"])
)
def test_runs_through_a_channel_agree_to_the_bit(algorithm: str, name: str) -> None:
    """Models, metrics and the bill of methods by coordinate and by gradient steps."""
    same(learn(algorithm, name, "inprocess"), learn(algorithm, name, "message-passing"))


@pytest.mark.parametrize("name", CHANGING)
def test_what_is_held_and_kept_back_is_the_sum(name: str) -> None:
    """U_b + residuals = Xᵀα in the batch, after rounds with drop-outs and moves."""
    method = DualMethod(merge=MERGES["add"](), intercept=False, channel=SAMPLES[name])
    data = federation()
    network = InProcess(data, method, seed=2)
    script(network, method)
    state = network.state()
    rows = np.repeat(np.arange(data.n_terminals), np.diff(data.terminal_offsets))
    for b, U in enumerate(state.U):
        mine = state.station[rows] == b
        kept = 0.0 if state.residual is None else state.residual[state.station == b].sum(axis=0)
        np.testing.assert_allclose(U + kept, state.alpha[mine].T @ data.X[mine], atol=1e-12)


class RoughReports(Int8):
    """Reports of which three digits are left, so that what they lack is seen."""

    report_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float16)


def test_certificates_count_what_reports_lack() -> None:
    """The bound of a cloud that knows rounded v_b is never above the dual of the terminals' α; without, it would be."""
    method = DualMethod(merge=MERGES["add"](), channel=RoughReports())
    data = federation()
    network = InProcess(data, method, seed=2)
    cloud, n = cloud_of(network, method.relationship), np.bincount(data.row_task).astype(float)
    certified, exact, uncounted = [], [], []
    for number in range(1, 13):
        network.assign(cloud.assign())
        network.round(number, np.full(9, 5))
        certificate = certify(network, cloud)
        certified.append(certificate.primal - certificate.single_gap)
        terms = np.array([each.dual for each in network.sums(cloud.candidates()) if each is not None])
        V = network.station_shares() / n[:, None, None]
        exact.append(scaled_dual(terms, n, V, method.relationship).bound(method.relationship))
        uncounted.append(scaled_dual(terms, n, cloud.V, method.relationship).bound(method.relationship))
    assert (np.array(certified) <= np.maximum.accumulate(exact)).all()
    assert (np.array(uncounted) > exact).any()
    assert certified[-1] > 0.9 * exact[-1]


def test_a_run_that_is_taken_up_again_knows_what_was_kept_back() -> None:
    """The state of a network has the residuals, and the rounds after it are the same to the bit, in any engine."""
    method = DualMethod(channel=SAMPLES["int8"])
    for engines in product((InProcess, sharded), repeat=2):
        first, second = (engine(federation(), method, seed=3) for engine in engines)
        cloud = cloud_of(first, method.relationship)
        first.assign(cloud.assign())
        first.round(1, np.full(9, 5))
        second.resume(first.state())
        for network in (first, second):
            network.round(2, np.full(9, 5))
        np.testing.assert_array_equal(first.V, second.V)


@pytest.mark.parametrize("name", CHANGING)
def test_shards_clip_and_round_alike(name: str) -> None:
    """With drop-outs, and moves from shard to shard; also where every shard is made anew after each round."""
    method = DualMethod(channel=SAMPLES[name])
    data = federation(sizes=((7, 3, 12, 4), (5, 4, 3, 6), (9, 4, 2, 6)))
    found = script(InProcess(data, method, seed=1), method)
    for anew in (False, True):
        other = sharded(data, method, seed=1, anew=anew)
        assert_same(found, script(other, method))
        assert other.message_sizes == InProcess(data, method, seed=1).message_sizes


def test_a_round_with_too_few_answers_is_void() -> None:
    """Below the least number of answers nothing of a round is merged, in either engine, and the next one goes on."""
    method = DualMethod(merge=MERGES["add"](), channel=MaskedSums())
    data = federation(sizes=((4, 4, 4, 4), (3, 3, 3)))
    for engine in (InProcess, MessagePassing):
        network = engine(data, method, seed=1)
        network.assign(cloud_of(network, method.relationship).assign())
        arrives = np.array([True, True, True, False, True, True, False])
        outcome = network.round(1, np.full(7, 5), arrives)
        np.testing.assert_array_equal(outcome.answers, [3, 0])
        assert network.V[0].any()
        assert not network.V[1].any()
        assert not outcome.gains[1].any()
        assert (network.round(2, np.full(7, 5)).answers == [4, 3]).all()


def test_stations_too_small_for_masks_are_refused() -> None:
    """And so is a least number that hides nobody."""
    with pytest.raises(DataError, match="has 2 terminals: sums that hide them need 3"):
        InProcess(federation(sizes=((4, 4), (3, 3, 3))), DualMethod(channel=MaskedSums()))
    with pytest.raises(ConfigError, match="a sum over one hides nothing"):
        MaskedSums(least_summed=1)
