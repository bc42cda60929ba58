"""A stream carries a model once: later it is named, or what has changed of it is sent, and both ends have the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.deploy.wire.models import ModelMemory
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.mixtures import between, combined, rounded_share
from rhfedmtl.roles.channel import Float32, Int8, Int16
from rhfedmtl.roles.encoding import FLOAT64
from rhfedmtl.roles.messages import Anchor, Probe, Report, Update, Verdict, WorkOrder

D = 300
RNG = np.random.default_rng(5)


def order(model: Any) -> wire.TerminalDown:
    """An order to start from this model."""
    return wire.TerminalDown(order=codec.to_wire(WorkOrder(3, 0, model, 2.0, 5, Verdict())))


def probe(*models: Any) -> wire.TerminalDown:
    """A probe of these models."""
    return wire.TerminalDown(probe=codec.to_wire(Probe(0, 1, np.array(models), np.eye(len(models)), False, Verdict())))


class Stream:
    """Both ends of one."""

    def __init__(self, dtype: Any = FLOAT64) -> None:
        self.above, self.below, self.dtype = ModelMemory(), ModelMemory(), dtype

    def carry(self, message: wire.TerminalDown) -> int:
        """Bytes that it takes; what comes out is what went in."""
        data = self.above.shortened(message, self.dtype).SerializeToString()
        arrived = wire.TerminalDown.FromString(data)
        self.below.restore(arrived)
        kind, sent = codec.body(message)
        got = getattr(arrived, kind)
        pairs = zip(sent.models, got.models, strict=True) if kind == "probe" else [(sent.model, got.model)]
        for one, other in pairs:
            np.testing.assert_array_equal(codec.array(one, "sent"), codec.array(other, "arrived"))
        return len(data)


def test_a_model_that_was_sent_is_named() -> None:
    """An order for a model of the last probe, and a probe of the model of the last order, carry no vector."""
    stream, (w, joint, later) = Stream(), RNG.normal(size=(3, 1, D))
    assert stream.carry(probe(w, joint)) > 2 * 8 * D
    assert stream.carry(order(w)) < 100
    assert stream.carry(probe(w, joint)) < 200
    assert stream.carry(order(later)) > 8 * D
    assert 8 * D < stream.carry(probe(later, w + joint)) < 8 * D + 200


def test_streams_that_carry_the_same_model_remember_one_array() -> None:
    """A station with thousands of terminals keeps a model once, and nobody can change it for the others."""
    first, second, message = ModelMemory(), ModelMemory(), order(RNG.normal(size=(1, D)))
    for stream in (first, second):
        stream.shortened(message, FLOAT64)
    (one,), (other,) = first._models["order"], second._models["order"]
    assert one is other
    assert not one.flags.writeable


def test_a_model_between_two_that_were_asked_about_is_told_by_its_share() -> None:
    """An order, or the next probe, for a point on their line carries no vector; of a point beside it, it does."""
    for dtype in (FLOAT64, np.dtype(np.int8)):
        stream, models = Stream(dtype), RNG.normal(size=(2, 1, D))
        stream.carry(probe(*models))
        assert stream.carry(order(between(rounded_share(0.3), models))) < 100
        assert stream.carry(probe(models[0], between(rounded_share(1.7), models))) < 200
        assert stream.carry(order(models[0] + RNG.normal(size=(1, D)))) > 8 * D


def test_an_anchor_at_a_known_model_carries_no_vector() -> None:
    """Station and cloud both know what was asked about, and v of the last report; of an older one, it is refused."""
    above, below, (w, joint, v) = ModelMemory(), ModelMemory(), RNG.normal(size=(3, 1, D))
    asked = wire.SumsRequest(models=[codec.tensor(w), codec.tensor(joint)], points=codec.tensor(np.eye(2)))
    report = wire.Answer(id=5, report=codec.to_wire(Report(1, 0, 3, v, 40, 1)))
    for end in (above, below):
        end.heard(wire.StationUp(answer=report))
    below.restore(above.shortened(wire.StationDown(request=wire.Request(sums=asked)), FLOAT64))
    anchor = Anchor(2, 0, between(0.5, np.array([w, joint])), 0.1, origin=v)
    message = wire.StationDown(request=wire.Request(assign=codec.to_wire(anchor)))
    data = above.shortened(message, FLOAT64).SerializeToString()
    assert len(data) < 80
    arrived = wire.StationDown.FromString(data)
    below.restore(arrived)
    got = codec.from_wire(Anchor, arrived.request.assign)
    assert got.origin is not None
    np.testing.assert_array_equal(got.center, anchor.center)
    np.testing.assert_array_equal(got.origin, v)
    report.id = 6
    below.heard(wire.StationUp(answer=report))
    with pytest.raises(PeerError, match="as of answer 5: the last was 6"):
        below.restore(wire.StationDown.FromString(data))


@pytest.mark.parametrize("channel", [Int8(), Int16()])
def test_of_a_rounded_model_what_has_changed_is_sent(channel: Int8) -> None:
    """So many bytes a number, however far the models have gone, also where differences lose their last digits."""
    stream, told = Stream(channel.model_dtype), np.zeros((1, 1, D))
    wanted = 100.0 * RNG.normal(size=(1, 1, D))
    for shrink in range(40):
        told = channel.models(wanted + 3.0**-shrink * RNG.normal(size=(1, 1, D)), told)
        assert stream.carry(order(told[0])) < channel.model_dtype.itemsize * D + 60
    np.testing.assert_allclose(told, wanted, atol=1e-6)


def test_single_precision_takes_four_bytes_and_anything_else_eight() -> None:
    """What cannot be written shorter without a loss is not."""
    w = RNG.normal(size=(1, 1, D))
    assert Stream(np.dtype(np.float32)).carry(order(Float32().models(w, w)[0])) < 4 * D + 60
    for kind in (np.float32, np.int8):
        assert Stream(np.dtype(kind)).carry(order(w[0])) > 8 * D


def test_a_model_to_be_tried_is_told_by_what_it_is_made_of() -> None:
    """With the level of a regression in its intercept; a model that is something else is sent whole."""
    stream, models, weights = Stream(), RNG.normal(size=(2, 1, D)), np.array([0.3, 0.7])
    stream.carry(probe(*models))
    model = combined(weights, models)
    model[:, -1] += 2.5
    for shift, least, most in ((2.5, 0, 100), (2.0, 8 * D, 9 * D)):
        given = codec.tensor(model)
        given.MergeFrom(wire.Tensor(weights=weights.tolist(), shift=shift))
        assert least < stream.carry(wire.TerminalDown(trial=wire.Trial(number=1, model=given))) < most


def test_a_model_is_tried_on_a_stream_that_has_carried_none() -> None:
    """As where a private training is stopped before its certificate: it is made of nothing, and sent whole."""
    given = codec.tensor(RNG.normal(size=(1, D)))
    assert Stream().carry(wire.TerminalDown(trial=wire.Trial(number=1, model=given))) > 8 * D


def test_updates_are_as_short_as_they_were_rounded() -> None:
    """And read as they were."""
    for channel, width in ((Float32(), 4), (Int8(), 1), (Int8().for_gradients, 2)):
        delta = channel.send(RNG.normal(size=(1, 1, D)), None).delta[0]
        sent = codec.to_wire(Update(1, 0, delta, np.ones(3), np.empty(0), channel.dtype))
        assert width * D < len(sent.SerializeToString()) < width * D + 80
        np.testing.assert_array_equal(codec.from_wire(Update, sent).delta, delta)


@pytest.mark.parametrize(
    "model",
    [
        wire.Tensor(shape=(1, D), base=2),
        wire.Tensor(shape=(1, D), share=3),
        wire.Tensor(shape=(1, D), reported=7),
        wire.Tensor(shape=(1, D + 1), base=1),
        wire.Tensor(shape=(1 << 20, 1 << 20), base=1),
        wire.Tensor(shape=(1, D), base=1, data=b"12"),
        wire.Tensor(shape=(1, D), weights=(0.5, 0.5)),
        wire.Tensor(shape=(1, D), weights=(float("nan"),)),
        wire.Tensor(shape=(1, D), precision=wire.INT8, step=float("inf"), data=bytes(D)),
    ],
)
def test_a_name_of_nothing_is_refused(model: wire.Tensor) -> None:
    """Of a model that the stream has not carried, of another shape, or with numbers that are none."""
    stream = Stream()
    stream.carry(probe(RNG.normal(size=(1, D))))
    with pytest.raises(PeerError):
        stream.below.restore(wire.TerminalDown(trial=wire.Trial(model=model)))
