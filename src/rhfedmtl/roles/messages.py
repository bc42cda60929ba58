"""What the three tiers say to each other. Messages are frozen and know their size in bytes.

A size is that of the wire (`deploy/wire`): the fields in protobuf, what says which kind of message it is, and what
gRPC, HTTP/2 and TLS put around it. Whole numbers count as small ones, which leaves out a byte now and then.
Samples and dual variables are in no message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.data.centring import NUMBERS
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, WORKS, Work
from rhfedmtl.resources.sizes import CertificateSizes, MessageSizes, framed

Vector = npt.NDArray[np.float64]

FLOAT64: np.dtype[Any] = np.dtype(np.float64)
PLAIN = Channel()
ENVELOPE = 11
"""Seconds of work, or the number of a request: what a stream adds to a message."""
EMPTY = framed(ENVELOPE + 2)
"""A message without a content: what asks for a report of round zero, and what says that something was heeded."""
_NUMBER, _WHOLE = 9, 2


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages."""

    @property
    def n_bytes(self) -> int:
        """Size on the wire."""
        return _size(self)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a station tells a terminal about its updates.

    Of all updates of rounds up to ``until`` the station applied, last, that of ``round`` with ``factor``; any other
    was dropped. A terminal with an update from a later round knows that the message is stale. ``incarnation`` is
    the membership that the station speaks of: a terminal counts its joins.
    """

    round: int = 0
    factor: float = 0.0
    until: int = 0
    incarnation: int = 0


@dataclass(frozen=True, eq=False)
class Anchor(Message):
    """Cloud to station: minimise your loss + λ_b/2 ‖w − c_b‖², until the next server iteration.

    If the ``work`` is "gradient": set every α_i to −L′(z_i) under c_b. λ_b then does not count.
    ``center`` is c_b; with an ``origin``, which is the v_b that the station has reported, it is the model to begin at:
    w_b = center + (v_b − origin)/λ_b, to the bit, so that terminals know it that were asked about it.
    """

    cloud_round: int
    task: int
    center: Vector
    lam: float
    dtype: np.dtype[Any] = FLOAT64
    origin: Vector | None = None
    work: Work = ASCENT


def check_anchors(*anchors: Anchor) -> None:
    """Refuse anchors with unknown work, or with a λ_b that is no finite positive number."""
    for anchor in anchors:
        if anchor.work not in WORKS:
            raise unknown_work(f"anchor for task {anchor.task}", anchor.work)
        if not 0.0 < anchor.lam < math.inf:
            raise PeerError(
                f"anchor for task {anchor.task} with lambda {anchor.lam} does not fit: a finite number > 0 is needed; "
                f"work={GRADIENT!r} asks for a gradient"
            )


def unknown_work(message: str, work: object) -> PeerError:
    """Error for a message that asks for unknown work."""
    return PeerError(f"{message} asks for work {work!r}: choose from {', '.join(WORKS)}")


@dataclass(frozen=True, eq=False)
class WorkOrder(Message):
    """Station to terminal: take H steps from w_b; and what became of your last update.

    ``scale`` is λ_b n_b/σ′. If the ``work`` is "gradient", it does not count: steps do not move the model, and a pass
    sets every α_i to −L′(z_i). ``dtype`` is how the numbers of the model cross the wire: integers as multiples of a
    step, added to a model that the terminal knows.
    """

    round: int
    terminal: int
    model: Vector
    scale: float
    local_steps: int
    verdict: Verdict
    dtype: np.dtype[Any] = FLOAT64
    work: Work = ASCENT

    @property
    def per_scale(self) -> float:
        """Change of the model per change of XᵀΔα: 1/scale, or 0 in a gradient round."""
        return 1.0 / self.scale if self.work == ASCENT else 0.0


@dataclass(frozen=True, eq=False)
class Update(Message):
    """Terminal to station: X_tᵀΔα_t as the channel sends it, the dual gain along the steps, the profile along Δα.

    The profile serves a line search. ``dtype`` is how the numbers of ``delta`` cross the wire, which holds them
    exactly: floats as they are, integers as multiples of a step that goes with them.
    """

    round: int
    terminal: int
    delta: Vector
    gains: Vector
    profile: Vector
    dtype: np.dtype[Any] = FLOAT64


@dataclass(frozen=True, eq=False)
class Probe(Message):
    """Station to terminal: sum your losses at these points; and what became of your last update.

    A point is a combination of the models, a row of ``points`` each: many points cost few vectors. ``number`` tells
    the answers to one probe from those to another. With ``gradient`` the gradient under the first model is asked for.
    With ``noise``, where updates are noised, Σ L(z) + L*(−α) + αz at the one point is asked for, alone: its sum over
    the station's terminals is hidden in noise of this deviation.
    """

    terminal: int
    number: int
    models: Vector
    points: Vector
    gradient: bool
    verdict: Verdict
    noise: float | None = None
    dtype: np.dtype[Any] = FLOAT64


@dataclass(frozen=True, eq=False)
class Sums(Message):
    """Terminal to station, in answer to probe ``number``: Σ s L at each point, what Σ −s L*(−θα/s) is made from.

    ``gradient`` is −Σ s L′(z) x under the first model where it was asked for, else empty. ``residual`` is there where
    updates are rounded: the norm of what was kept back, and its product with each model.
    """

    terminal: int
    number: int
    losses: Vector
    dual: Vector
    gradient: Vector
    residual: Vector | None = None


@dataclass(frozen=True, eq=False)
class Report(Message):
    """Station to cloud after its K iterations: v_b as of a round, and over how many samples.

    ``membership`` counts the changes of who is under the station: another count means another problem. ``dtype`` is
    how the numbers of ``v`` cross the wire, which holds them exactly.
    """

    cloud_round: int
    task: int
    round: int
    v: Vector
    n_samples: int
    membership: int
    dtype: np.dtype[Any] = FLOAT64


@dataclass(frozen=True, eq=False)
class StationSums(Message):
    """Station to cloud: the terminals' sums added up, for the certificate, as of a round.

    Rows of ``absent`` terminals add at most ``worst`` to ``losses``, and ``dual`` counts them with the least they add.
    """

    task: int
    round: int
    losses: Vector
    dual: Vector
    gradient: Vector
    n_samples: int
    membership: int
    residual: Vector | None = None
    worst: Vector | None = None
    absent: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Join(Message):
    """Terminal to station: I am here with so many samples, and u_t = X_tᵀα_t. Replaces what was known of me.

    ``mean_weight`` is that of the samples: with it the station knows what the terminal can say (`plausibility`).
    """

    terminal: int
    incarnation: int
    n_samples: int
    share: Vector
    mean_weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Release(Message):
    """Station to a terminal that goes: what became of your last update, so that you leave with nothing pending."""

    terminal: int
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Leave(Message):
    """Terminal to station: I go, and take u_t = X_tᵀα_t with me."""

    terminal: int
    incarnation: int
    share: Vector


@dataclass(frozen=True, eq=False)
class Goodbye(Message):
    """Station to terminal: your share is out of my sum, you may join elsewhere."""

    terminal: int
    incarnation: int


@dataclass(frozen=True, eq=False)
class MomentsReport(Message):
    """Terminal to station, or station to cloud, in round zero: count, mean and spread of training rows.

    ``dtype`` is how the numbers cross the wire, which holds them exactly; where that is float32, ``spread`` is the root
    of what is meant.
    """

    sender: int
    count: int
    mean: Vector
    spread: Vector
    dtype: np.dtype[Any] = FLOAT64

    @classmethod
    def of(cls, sender: int, moments: Moments, dtype: np.dtype[Any]) -> MomentsReport:
        """Message that tells these moments, rounded to this type."""
        told = moments.rounded(dtype)
        spread = told.spread if dtype == FLOAT64 else np.sqrt(told.spread)
        return cls(sender, told.count, told.mean, spread, dtype)

    @property
    def moments(self) -> Moments:
        """What this message tells."""
        spread = self.spread if self.dtype == FLOAT64 else np.square(self.spread)
        return Moments(self.count, self.mean, spread)


@dataclass(frozen=True, eq=False)
class RowProbe(Message):
    """Station to terminal in round zero, where sums are masked: your part of a sum over rows, or over labels.

    The first sum has no ``about``; the second is about the mean that came out of the first (`roles.round_zero`).
    """

    labels: bool
    about: Vector


@dataclass(frozen=True, eq=False)
class ShareProbe(Message):
    """Station to terminal that stays, where sums are masked and others go: your share; what became of your update."""

    terminal: int
    number: int
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Trial(Message):
    """Station to terminal: say how this model does on your test rows."""

    number: int
    model: Vector


@dataclass(frozen=True, eq=False)
class Scaling(Message):
    """Cloud to stations to terminals in round zero: subtract this mean, divide by this scale, then unit rows or not.

    ``dtype`` is how the numbers cross the wire, which holds them exactly.
    """

    mean: Vector
    scale: Vector
    unit: bool
    dtype: np.dtype[Any] = FLOAT64

    @classmethod
    def of(cls, scaler: Scaler, dtype: np.dtype[Any] = FLOAT64) -> Scaling:
        """Message that says what this scaler does; empty vectors where it does not standardise."""
        empty = np.empty(0)
        mean, scale = scaler.mean, scaler.scale
        return cls(empty if mean is None else mean, empty if scale is None else scale, scaler.unit, dtype)

    @property
    def scaler(self) -> Scaler:
        """What this message says to do."""
        return Scaler(self.mean, self.scale, self.unit) if len(self.mean) else Scaler(unit=self.unit)


@dataclass(frozen=True, eq=False)
class ColumnsReport(Message):
    """Terminal to station, or station to cloud, in round zero of a table with gaps or texts (`data.preparation`).

    How many values each column has, their sums where they are numbers, and the different ones where they are texts.
    """

    sender: int
    counts: Vector
    sums: Vector
    vocabulary: bytes


@dataclass(frozen=True, eq=False)
class ColumnsAgreed(Message):
    """Cloud to stations to terminals in round zero of such a table: what fills gaps, which columns have any, texts."""

    fill: Vector
    gaps: Vector
    vocabulary: bytes


@dataclass(frozen=True, eq=False)
class LabelsReport(Message):
    """Terminal to station, or station to cloud, in round zero of a regression: sums of labels (`data.centring`)."""

    sender: int
    sums: Vector


@dataclass(frozen=True)
class Centring(Message):
    """Cloud to stations to terminals in round zero of a regression: subtract this level from the labels."""

    level: float


@dataclass(frozen=True)
class Noising(Message):
    """Cloud to stations to terminals before the first round of a private training: clip updates to C, hide sums in s.

    ``delta`` is that of the bound on what is learned of a terminal.
    """

    clip: float
    noise: float
    delta: float


DENSE = 50
"""Neighbours of a terminal in small groups of masked sums (`roles.secure.masking`); in a small station, all others."""
SEAT, SHARE = 10, 16
"""Bytes of what a terminal is asked that others are not, and of a share of a secret."""


def mask_reach(group: int) -> int:
    """How far neighbours reach to both sides on a ring of terminals with groups of this size.

    So far that two of a group have most neighbours in common: no two sets get the shares of one and not of the other.
    """
    return max(DENSE // 2, 3 * group // 2)


def masking_bytes(terminals: int, least: int) -> tuple[int, int]:
    """Bytes down to and up from one terminal of a masked round, besides its order and its words.

    Partners go with the order, the deal for the next slot with the words.
    """
    if not terminals:
        return 0, 0
    largest = -(-terminals // max(terminals // least, 1))
    near, members = min(terminals - 1, 2 * mask_reach(largest)), _bytes(bytes(4 + -(-terminals // 8)))
    shares = _bytes(bytes(2 * SHARE * near))
    partners = _delimited(_WHOLE + members + _bytes(bytes(SEAT * near)) + shares)
    unmask = framed(ENVELOPE + _delimited(_WHOLE + members))
    deal = _delimited(2 * _WHOLE + shares + _bytes(bytes(SHARE * near)))
    opened = framed(ENVELOPE + _delimited(2 * _WHOLE + _bytes(bytes(SHARE * (near + 1)))))
    return partners + unmask, deal + opened


@cache
def message_sizes(
    shape: tuple[int, int],
    shared_rows: int,
    profile_length: int,
    channel: Channel = PLAIN,
    masked_among: int = 0,
) -> MessageSizes:
    """What an engine charges that does not make the messages.

    For orders and updates of this shape, of which so many rows travel between station and cloud; where sums are masked,
    with what that takes among the terminals of the largest station.
    """
    down, up = masking_bytes(masked_among, channel.least)
    w, shared = np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (shared_rows, shape[1]))
    gains, profile = np.broadcast_to(0.0, CURVE), np.broadcast_to(0.0, profile_length)
    asked, told = 2 * _delimited(0) + _WHOLE + _NUMBER, _WHOLE + 2 * _NUMBER + _bytes(gains)
    order = WorkOrder(0, 0, w, 1.0, 0, Verdict(), channel.model_dtype)
    anchor, name = Anchor(0, 0, shared, 1.0, channel.model_dtype), _model(shared.shape)
    return MessageSizes(
        order.n_bytes + down,
        Update(0, 0, w, gains, profile, channel.dtype).n_bytes + up,
        anchor.n_bytes,
        Report(0, 0, 0, shared, 0, 0, channel.report_dtype).n_bytes,
        framed(ENVELOPE + _delimited(asked)),
        framed(ENVELOPE + _delimited(told)),
        3,
        _delimited(3 * _WHOLE + 2 * _NUMBER + 6),
        _size(order, model=_model(shape)) + down,
        Update(0, 0, w, gains, profile, channel.for_gradients.dtype).n_bytes + up,
        _size(anchor, center=name, origin=name),
    )


@cache
def certificate_sizes(
    shape: tuple[int, int],
    n_models: int,
    n_points: int,
    dual_length: int,
    channel: Channel,
    *,
    gradient: bool = False,
    residual: bool = False,
    known: int = 0,
    masked_among: int = 0,
) -> CertificateSizes:
    """Sizes of a certificate that looks at so many combinations of so many models of this shape, some of them known.

    Of one of the combinations a station measures test metrics too.
    """
    down, up = masking_bytes(masked_among, channel.least)
    kept = np.broadcast_to(0.0, 1 + n_models) if residual else None
    model, models = np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (n_models, *shape))
    points, losses, dual = (np.broadcast_to(0.0, n) for n in ((n_points, n_models), n_points, dual_length))
    slope = model if gradient else np.empty(0)
    told = (n_models - known) * _model(shape, channel.model_dtype) + known * _model(shape)
    trial = framed(ENVELOPE + _delimited(_model(shape) + n_models * _NUMBER))
    metrics = framed(ENVELOPE + 4 * _delimited(25))
    return CertificateSizes(
        _size(Probe(0, 0, models, points, gradient, Verdict()), models=told) + down,
        Sums(0, 0, losses, dual, slope, kept).n_bytes + up,
        framed(ENVELOPE + _delimited(told + _bytes(points))) + trial,
        StationSums(0, 0, losses, dual, slope, 0, 0, kept).n_bytes + metrics,
    )


WIDE = 3
"""Words of a number in a masked sum of round zero (`roles.round_zero`)."""


def round_zero_bytes(
    n_features: int,
    *,
    labels: bool = False,
    preparation: Preparation | None = None,
    masked_among: int = 0,
    channel: Channel = PLAIN,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes up and down of a terminal, and of a station, in round zero.

    For the scaling of features (if any), levels of labels, columns of a table. Every node is charged for the whole
    vocabulary: no terminal has more to say. Where sums are masked, terminals tell moments, label sums, and counts and
    sums of columns under masks.
    """
    features, kind = np.broadcast_to(0.0, n_features), channel.moments_dtype
    reports: list[tuple[int, Message]] = []
    columns: list[Message] = []
    down: list[Message] = []
    if n_features:
        reports.append((n_features, MomentsReport(0, 0, features, features, kind)))
        down.append(Scaling(features, features, True, kind))
    if preparation is not None:
        each, words = np.zeros(len(preparation.columns)), preparation.vocabulary
        columns.append(ColumnsReport(0, each, each, words))
        down.append(ColumnsAgreed(each, each, words))
    if labels:
        reports.append((1, LabelsReport(0, np.zeros(NUMBERS))))
        down.append(Centring(0.0))
    rest, told = (sum(message.n_bytes for message in part) for part in (columns, down))
    asked = len(columns) + len(reports)
    station = rest + sum(message.n_bytes for _, message in reports) + len(down) * EMPTY, told + asked * EMPTY
    if not masked_among:
        return station, station
    each_sum = [size for width, _ in reports for size in ((0, 1 + width), (width, width))]
    if preparation is not None:
        each_sum.append((0, 2 * len(preparation.columns)))
    sums = [_masked_sum(about, told_of, masking_bytes(masked_among, channel.least)) for about, told_of in each_sum]
    return (sum(each for each, _ in sums), told + sum(each for _, each in sums)), station


def _masked_sum(about: int, width: int, masking: tuple[int, int]) -> tuple[int, int]:
    """Bytes up and down of a masked sum of so many numbers, for which a mean of so many is told."""
    down, up = masking
    words = framed(ENVELOPE + _delimited(2 * _WHOLE + _delimited(8 * WIDE * width)))
    return words + up, RowProbe(False, np.broadcast_to(0.0, about)).n_bytes + down


def _size(message: Message, **told: int) -> int:
    """Size on the wire, of which some fields take so many bytes; models as if the receiver did not know them."""
    typed, size = _TYPED.get(type(message), ((), _tensor))
    for name in typed:
        told.setdefault(name, size(getattr(message, name).shape, message.dtype))  # type: ignore[attr-defined]
    each = (told.get(field.name, _bytes(getattr(message, field.name))) for field in fields(message))
    return framed(ENVELOPE + _delimited(sum(each)))


def _model(shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> int:
    """A model: all of it, what has changed of a known one (integers), or, without a type, the name of that."""
    if dtype is None:
        return _tensor((*shape, 0), FLOAT64) - 1 + _WHOLE
    return _tensor(shape, dtype) + (_WHOLE if dtype.kind == "i" else 0)


def _models(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Models one by one."""
    return shape[0] * _model(shape[1:], dtype)


def _bytes(value: object) -> int:
    """A field of a message in protobuf; one that is not there takes none."""
    if value is None or isinstance(value, np.dtype):
        return 0
    if isinstance(value, np.ndarray):
        return _tensor(value.shape, FLOAT64)
    if isinstance(value, str):
        return 0 if value == ASCENT else _WHOLE  # protobuf does not send the first kind of work
    if isinstance(value, Verdict):
        return _delimited(3 * _WHOLE + _NUMBER)
    if isinstance(value, bytes | tuple):
        return _delimited(len(value)) if value else 0  # what is empty is not sent
    return _NUMBER if isinstance(value, float) else _WHOLE


def _tensor(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Numbers in rows: their shape, how they are written where that is not float64, and the numbers."""
    sizes = sum(_varint(size) for size in shape)
    kind = 0 if dtype == FLOAT64 else _WHOLE + (_NUMBER if dtype.kind == "i" else 0)
    n_bytes = math.prod(shape) * dtype.itemsize
    return _delimited(_delimited(sizes) + kind + (_delimited(n_bytes) if n_bytes else 0))


_TYPED: dict[type[Message], tuple[tuple[str, ...], Callable[[tuple[int, ...], np.dtype[Any]], int]]] = {
    Anchor: (("center",), _model),
    WorkOrder: (("model",), _model),
    Probe: (("models",), _models),
    Update: (("delta",), _tensor),
    Report: (("v",), _tensor),
    MomentsReport: (("mean", "spread"), _tensor),
    Scaling: (("mean", "scale"), _tensor),
}
"""The fields of a message whose numbers cross the wire in its ``dtype``."""


def _delimited(n_bytes: int) -> int:
    """So many bytes with the number of their field and their length."""
    return 1 + _varint(n_bytes) + n_bytes


def _varint(value: int) -> int:
    return max(1, -(-int(value).bit_length() // 7))
