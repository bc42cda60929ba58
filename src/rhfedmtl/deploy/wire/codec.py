"""Messages of the roles as protobuf and back. What comes from a peer is checked here before a role sees it.

Numbers travel as float64. Orders and updates may travel as float32, if the network is set up so.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles import messages as said

PROTOCOL = 1
"""Version that this code speaks, and the oldest that it understands."""
MOST_NUMBERS = 1 << 26
MOST_AXES = 4

P = TypeVar("P", bound=Proto)
Vector = npt.NDArray[np.float64]


def parse(kind: type[P], data: bytes) -> P:
    """Protobuf message of this kind; anything else is a fault of the peer."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError, TypeError) as error:
        raise PeerError(f"{len(data)} bytes are no {kind.__name__}: {error}") from None


def body(message: Proto) -> tuple[str, Any]:
    """Name and content of what a message carries; a message without any is a fault of the peer."""
    name = message.WhichOneof("body")
    if name is None:
        raise PeerError(f"a {type(message).__name__} that says nothing, or something newer than protocol {PROTOCOL}")
    return name, getattr(message, name)


def tensor(values: npt.ArrayLike, *, single: bool = False) -> wire.Tensor:
    """Numbers for the wire."""
    array = np.asarray(values, dtype="<f4" if single else "<f8")
    precision = wire.FLOAT32 if single else wire.FLOAT64
    return wire.Tensor(shape=array.shape, precision=precision, data=array.tobytes())


def array(given: wire.Tensor, what: str, *, finite: bool = True) -> Vector:
    """Numbers from the wire, always as float64; refuses sizes that do not fit, NaN, and infinity unless allowed."""
    shape = tuple(given.shape)
    if given.precision not in (wire.FLOAT64, wire.FLOAT32) or len(shape) > MOST_AXES:
        raise PeerError(f"{what} has precision {given.precision} and {len(shape)} axes: at most {MOST_AXES} are read")
    width = 4 if given.precision == wire.FLOAT32 else 8
    count = math.prod(shape)
    if count > MOST_NUMBERS or count * width != len(given.data):
        raise PeerError(f"{what} claims the shape {shape} and brings {len(given.data)} bytes")
    numbers = np.frombuffer(given.data, dtype=f"<f{width}").astype(np.float64).reshape(shape)
    if np.isnan(numbers).any() if not finite else not np.isfinite(numbers).all():
        raise PeerError(f"{what} holds numbers that are not finite")
    return numbers


def finite(value: float, what: str) -> float:
    """A number that is finite."""
    if not math.isfinite(value):
        raise PeerError(f"{what} is {value}")
    return value


def verdict_out(verdict: said.Verdict) -> wire.Verdict:
    """What became of an update."""
    return wire.Verdict(
        round=verdict.round, factor=verdict.factor, until=verdict.until, incarnation=verdict.incarnation
    )


def verdict_in(given: wire.Verdict) -> said.Verdict:
    """What became of an update."""
    return said.Verdict(given.round, finite(given.factor, "the factor of a verdict"), given.until, given.incarnation)


def anchor_out(anchor: said.Anchor) -> wire.Anchor:
    """Cloud to station."""
    return wire.Anchor(cloud_round=anchor.cloud_round, task=anchor.task, center=tensor(anchor.center), lam=anchor.lam)


def anchor_in(given: wire.Anchor) -> said.Anchor:
    """Cloud to station."""
    return said.Anchor(given.cloud_round, given.task, array(given.center, "an anchor"), finite(given.lam, "lambda"))


def order_out(order: said.WorkOrder, *, single: bool = False) -> wire.WorkOrder:
    """Station to terminal."""
    return wire.WorkOrder(
        round=order.round,
        terminal=order.terminal,
        model=tensor(order.model, single=single),
        scale=order.scale,
        local_steps=order.local_steps,
        verdict=verdict_out(order.verdict),
    )


def order_in(given: wire.WorkOrder) -> said.WorkOrder:
    """Station to terminal."""
    return said.WorkOrder(
        given.round,
        given.terminal,
        array(given.model, "the model of an order"),
        finite(given.scale, "the scale of an order"),
        given.local_steps,
        verdict_in(given.verdict),
    )


def update_out(update: said.Update, *, single: bool = False) -> wire.Update:
    """Terminal to station."""
    return wire.Update(
        round=update.round,
        terminal=update.terminal,
        delta=tensor(update.delta, single=single),
        gains=tensor(update.gains),
        profile=tensor(update.profile),
    )


def update_in(given: wire.Update) -> said.Update:
    """Terminal to station; a profile may hold infinities, where a factor leaves the box."""
    return said.Update(
        given.round,
        given.terminal,
        array(given.delta, "an update"),
        array(given.gains, "the gains of an update"),
        array(given.profile, "the profile of an update", finite=False),
    )


def probe_out(probe: said.Probe) -> wire.Probe:
    """Station to terminal."""
    verdict = verdict_out(probe.verdict)
    return wire.Probe(terminal=probe.terminal, number=probe.number, models=tensor(probe.models), verdict=verdict)


def probe_in(given: wire.Probe) -> said.Probe:
    """Station to terminal."""
    models = array(given.models, "the models of a probe")
    return said.Probe(given.terminal, given.number, models, verdict_in(given.verdict))


def sums_out(sums: said.Sums) -> wire.Sums:
    """Terminal to station."""
    return wire.Sums(terminal=sums.terminal, number=sums.number, losses=tensor(sums.losses), dual=sums.dual)


def sums_in(given: wire.Sums) -> said.Sums:
    """Terminal to station."""
    losses = array(given.losses, "the losses of a terminal")
    return said.Sums(given.terminal, given.number, losses, finite(given.dual, "a dual sum"))


def report_out(report: said.Report) -> wire.Report:
    """Station to cloud."""
    return wire.Report(
        cloud_round=report.cloud_round,
        task=report.task,
        round=report.round,
        v=tensor(report.v),
        n_samples=report.n_samples,
        membership=report.membership,
    )


def report_in(given: wire.Report) -> said.Report:
    """Station to cloud."""
    v = array(given.v, "a report")
    return said.Report(given.cloud_round, given.task, given.round, v, given.n_samples, given.membership)


def station_sums_out(sums: said.StationSums) -> wire.StationSums:
    """Station to cloud."""
    return wire.StationSums(
        task=sums.task,
        round=sums.round,
        losses=tensor(sums.losses),
        dual=sums.dual,
        n_samples=sums.n_samples,
        membership=sums.membership,
    )


def station_sums_in(given: wire.StationSums) -> said.StationSums:
    """Station to cloud."""
    losses = array(given.losses, "the losses of a station")
    dual = finite(given.dual, "a dual sum")
    return said.StationSums(given.task, given.round, losses, dual, given.n_samples, given.membership)


def join_out(join: said.Join) -> wire.Join:
    """Terminal to station."""
    return wire.Join(
        terminal=join.terminal, incarnation=join.incarnation, n_samples=join.n_samples, share=tensor(join.share)
    )


def join_in(given: wire.Join) -> said.Join:
    """Terminal to station."""
    return said.Join(given.terminal, given.incarnation, given.n_samples, array(given.share, "a share"))


def leave_out(leave: said.Leave) -> wire.Leave:
    """Terminal to station."""
    return wire.Leave(terminal=leave.terminal, incarnation=leave.incarnation, share=tensor(leave.share))


def leave_in(given: wire.Leave) -> said.Leave:
    """Terminal to station."""
    return said.Leave(given.terminal, given.incarnation, array(given.share, "a share"))


def moments_out(report: said.MomentsReport) -> wire.MomentsReport:
    """Terminal to station, station to cloud."""
    return wire.MomentsReport(
        sender=report.sender, count=report.count, mean=tensor(report.mean), spread=tensor(report.spread)
    )


def moments_in(given: wire.MomentsReport) -> said.MomentsReport:
    """Terminal to station, station to cloud."""
    mean, spread = array(given.mean, "a mean"), array(given.spread, "a spread")
    if mean.ndim != 1 or mean.shape != spread.shape or given.count < 1 or (spread < 0.0).any():
        raise PeerError(f"moments of {given.count} rows with means {mean.shape} and spreads {spread.shape}")
    return said.MomentsReport(given.sender, given.count, mean, spread)


def scaling_out(scaling: said.Scaling) -> wire.Scaling:
    """Cloud to station, station to terminal."""
    return wire.Scaling(mean=tensor(scaling.mean), scale=tensor(scaling.scale), unit=scaling.unit)


def scaling_in(given: wire.Scaling) -> said.Scaling:
    """Cloud to station, station to terminal."""
    mean, scale = array(given.mean, "a mean"), array(given.scale, "a scale")
    if mean.ndim != 1 or mean.shape != scale.shape or not (scale > 0.0).all():
        raise PeerError(f"scaling by means {mean.shape} and scales {scale.shape}, which must be positive")
    return said.Scaling(mean, scale, given.unit)


def check_version(hello: wire.Hello) -> str:
    """Why the caller's protocol does not do; empty where it does."""
    if hello.oldest <= PROTOCOL <= hello.newest:
        return ""
    return (
        f"protocols {hello.oldest} to {hello.newest} (rhfedmtl {hello.software[:40]!r}) do not include {PROTOCOL}, "
        "which is spoken here: install the same version on all nodes"
    )
