"""Engines agree to the bit behind feature maps: with moves, late rows, rounding and masks. Bytes are those sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.test_engines_agree import assert_same, script
from tests.engines.shards import sharded
from tests.reference.problems import federation
from tests.roles.channels import SAMPLES
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Channel
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import SCALES
from rhfedmtl.deploy.wire import codec
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.features.base import PASSES
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.channel import FixedPoint, Int8
from rhfedmtl.roles.message_sizes import round_zero_bytes
from rhfedmtl.roles.messages import EMPTY, Message, MomentsReport, MomentsRequest, Scaling
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

MAPS = "splines=3+pairs=4+fourier=5+sparse-fourier=5"
SIZES = (7, 3, 12), (5, 4), (9, 4, 2, 6)


def method(channel: Channel, text: str = MAPS) -> DualMethod:
    """A method behind maps."""
    return DualMethod(relationship=MeanRegularised(1e-2, 1e-2), channel=channel, features=Features(text))


def script_of(engine: Any, data: Federation, how: str, channel: Channel, **more: Any) -> list[Any]:
    """Return the numbers of a run."""
    late = "present" in more
    per_station = more.pop("per_station", False)
    network = engine(data, method(channel), seed=4, **more)
    return script(network, method(channel), how=how, per_station=per_station, late=late, mapped=data)


@pytest.mark.parametrize(
    ("how", "name", "per_station"),
    in_turn(SCALES, [name for name, sample in SAMPLES.items() if not sample.noised], [False, True]),
)
def test_engines_agree_behind_maps(how: str, name: str, per_station: bool) -> None:
    """Compare a process, messages and shards for every scaling and channel."""
    data = federation("classes", sizes=SIZES, weighted=True)
    words: dict[str, Any] = {"how": how, "channel": SAMPLES[name], "per_station": per_station}
    expected = script_of(InProcess, data, **words)
    assert_same(expected, script_of(MessagePassing, data, **words))
    assert_same(expected, script_of(sharded, data, n=2, **words))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_arrive_late_are_mapped(dtype: Any) -> None:
    """Rows of the home station and of another station get the map of the home."""
    data = federation(sizes=SIZES, dtype=dtype)
    words: dict[str, Any] = {"how": "standard-unit", "channel": Channel(), "per_station": True}
    words["present"] = np.array([5, 3, 9, 3, 3, 9, 2, 2, 5])
    expected = script_of(InProcess, data, **words)
    assert_same(expected, script_of(MessagePassing, data, **words))
    assert_same(expected, script_of(sharded, data, n=3, **words))


@pytest.mark.parametrize(
    ("scale", "text", "channel"),
    in_turn(
        ("standard-unit", "unit", "none", "standard-rms"),
        ("splines=4+fourier=6", "fourier=6", "pairs=5", MAPS),
        (Channel(), Int8()),
    ),
)
def test_round_zero_is_charged_by_its_messages(
    scale: str, text: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests with their maps, moments and counts, and the scaling, as protobuf writes them."""
    data, sent = federation(sizes=SIZES, d=30), []
    moments = InProcess.moments

    def noted(network: InProcess, mappings: Any = None) -> Any:
        answers = moments(network, mappings)
        sent.append((MomentsRequest.of(mappings and mappings[0], channel.moments_dtype), answers[0]))
        return answers

    monkeypatch.setattr(InProcess, "moments", noted)
    run = Run(data, method(channel, text), Settings(scale=scale), Ledger("bytes=byte:1"))
    (up, down), station = round_zero_bytes(30, scale=scale, channel=channel, maps=Features(text))
    assert (up, down) == station
    assert run.ledger.spent["bytes"] == (9 + 3) * (up + down)

    def written(messages: list[Message]) -> int:
        forms = (len(codec.to_wire(message).SerializeToString()) for message in messages)
        return sum(framed(size) if size else EMPTY for size in forms)

    requests = [request for request, _ in sent]
    reports = [MomentsReport.of(0, answer, channel.moments_dtype) for _, answer in sent]
    scaling = Scaling.of(run.units.scalers[0], channel.moments_dtype)
    n = 1 + len(sent)
    assert 0 <= down - written([*requests, scaling]) <= 24 * n
    assert 0 <= up - written(list(reports)) - EMPTY <= 24 * n
    assert (len(sent) == 0) == (scale == "unit")


def test_masked_counts_are_charged_by_their_words() -> None:
    """Two sums for each survey, each with its map."""
    plain = round_zero_bytes(30, channel=FixedPoint(), masked_among=4)
    mapped = round_zero_bytes(30, channel=FixedPoint(), masked_among=4, maps=Features("splines=4"))
    counts, columns = PASSES * 2 * 30 * 15, 2 * 30 * 5
    assert 0 <= mapped[0][0] - plain[0][0] - 24 * (counts + columns) <= 2 * (1 + PASSES) * 2000
    request = MomentsRequest.of(None, np.dtype(np.float64)).n_bytes
    assert mapped[0][1] - plain[0][1] > 8 * (counts + columns) / 2 + 2 * (1 + PASSES) * 8 * 30 * 17 + request
