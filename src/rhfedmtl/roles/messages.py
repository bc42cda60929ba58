"""Messages between terminal, station and cloud.

All messages are frozen dataclasses, and each knows its size in bytes. The roles make and read them; an engine or a
deployment carries them. A message never holds samples or dual variables.

**Theory of operation.** One server iteration uses these messages:

1. The cloud sends each station an `Anchor`.
2. The station sends each terminal a `WorkOrder`; the terminal answers with an `Update`. This repeats K times.
3. The station sends the cloud a `Report`.
4. For a certificate the station sends each terminal a `Probe`; the terminal answers with `Sums`, and the station sends
   their total to the cloud as `StationSums`.

Round zero prepares the data: moments, labels and columns go up, scaling, centring and texts go down. `Join`,
`Release`, `Leave` and `Goodbye` change who is under a station. Each message from a station to a terminal carries a
`Verdict`: it says which update of the terminal the station applied, and with which factor.

Sizes are those on the wire (`deploy/wire`): the protobuf fields, the kind of the message, and the overhead of gRPC,
HTTP/2 and TLS. Integers count as small ones, so a size may be a byte too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.errors import PeerError
from rhfedmtl.features.base import Statistics
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, WORKS, Work
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles import encoding
from rhfedmtl.roles.encoding import FLOAT64

Vector = npt.NDArray[np.float64]

ENVELOPE = 11
"""Bytes that a stream adds to a message: the seconds of work, or the number of a request."""
EMPTY = framed(ENVELOPE + 2)
"""Bytes of a message without content: the request for a report of round zero, or an acknowledgement."""
SEAT = 10
"""Bytes of a seat: the part of a masked request that differs between terminals (`roles.secure.masking.seat`)."""
WIDE_FIELDS = 3
"""Words of a number in a masked sum of round zero (`roles.round_zero`)."""


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages."""

    @property
    def n_bytes(self) -> int:
        """Size on the wire."""
        return size_of(self)


@dataclass(frozen=True, eq=False)
class Verdict:
    """Part of a message from a station to a terminal: the fate of the terminal's updates.

    The station last applied the update of ``round``, with ``factor``. It dropped a pending update of any other round up
    to ``until``. If the terminal has an update from a round after ``until``, the message is stale. ``incarnation``
    identifies the membership: a terminal counts its joins.
    """

    round: int = 0
    factor: float = 0.0
    until: int = 0
    incarnation: int = 0


@dataclass(frozen=True, eq=False)
class Anchor(Message):
    """Cloud to station: minimise your loss + λ_b/2 ‖w − c_b‖² until the next server iteration.

    If ``work`` is "gradient", set every α_i to −L′(z_i) under c_b instead; λ_b does not count.

    ``center`` is c_b. With an ``origin``, the v_b that the station has reported, ``center`` is the model to start from:
    w_b = center + (v_b − origin)/λ_b. This is exact to the bit, so terminals that evaluated the model know it already.
    """

    cloud_round: int
    task: int
    center: Vector
    lam: float
    dtype: np.dtype[Any] = FLOAT64
    origin: Vector | None = None
    work: Work = ASCENT


def check_anchors(*anchors: Anchor) -> None:
    """Refuse anchors with unknown work, or with a λ_b that is not a finite positive number."""
    for anchor in anchors:
        if anchor.work not in WORKS:
            raise unknown_work(f"anchor for task {anchor.task}", anchor.work)
        if not 0.0 < anchor.lam < math.inf:
            raise PeerError(
                f"anchor for task {anchor.task} with lambda {anchor.lam} does not fit: a finite number > 0 is needed; "
                f"work={GRADIENT!r} asks for a gradient"
            )


def unknown_work(message: str, work: object) -> PeerError:
    """Return the error for a message with unknown work."""
    return PeerError(f"{message} asks for work {work!r}: choose from {', '.join(WORKS)}")


@dataclass(frozen=True, eq=False)
class WorkOrder(Message):
    """Station to terminal: take H steps from w_b; with the verdict on your last update.

    ``scale`` is λ_b n_b/σ′. If ``work`` is "gradient", the scale does not count: steps do not move the model, and a
    pass sets every α_i to −L′(z_i). ``dtype`` is the encoding of the model on the wire: integers are multiples of a
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
    """Terminal to station: X_tᵀΔα_t after the channel, the dual gain along the steps, and the profile along Δα.

    The line search needs the profile. ``dtype`` is the encoding of ``delta`` on the wire. It is exact: the channel has
    already rounded the numbers to floats of this type, or to integer multiples of a step that is sent with them.
    """

    round: int
    terminal: int
    delta: Vector
    gains: Vector
    profile: Vector
    dtype: np.dtype[Any] = FLOAT64


@dataclass(frozen=True, eq=False)
class Probe(Message):
    """Station to terminal: return the sum of your losses at these points; with the verdict on your last update.

    Each row of ``points`` combines the models, so many points cost few vectors. ``number`` identifies the probe in the
    answers. With ``gradient`` the station also requests the gradient under the first model. With ``noise``, where
    updates are noised, it requests only Σ L(z) + L*(−α) + αz at a single point; the sum over the station's terminals is
    hidden in noise of this standard deviation.
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
    """Terminal to station, answer to probe ``number``: Σ s L at each point, and the terms of Σ −s L*(−θα/s).

    ``gradient`` is −Σ s L′(z) x under the first model if requested, else empty. ``residual`` is present where updates
    are rounded: the norm of the residual, and its product with each model.
    """

    terminal: int
    number: int
    losses: Vector
    dual: Vector
    gradient: Vector
    residual: Vector | None = None


@dataclass(frozen=True, eq=False)
class Report(Message):
    """Station to cloud after its K iterations: v_b as of a round, and the number of samples.

    ``membership`` counts the changes of members under the station: a new count means a new problem. ``dtype`` is the
    encoding of ``v`` on the wire, which is exact.
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

    Rows of ``absent`` terminals add at most ``worst`` to ``losses``. ``dual`` counts them with their lower bound.
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
    """Terminal to station: admit me with this many samples and u_t = X_tᵀα_t. It replaces an earlier record.

    ``mean_weight`` is the mean weight of the samples. The station needs it to bound the terminal's later messages
    (`roles.plausibility`).
    """

    terminal: int
    incarnation: int
    n_samples: int
    share: Vector
    mean_weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Release(Message):
    """Station to a terminal that wants to leave: the verdict on its last update, so it leaves with nothing pending."""

    terminal: int
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Leave(Message):
    """Terminal to station: I leave, and take u_t = X_tᵀα_t with me."""

    terminal: int
    incarnation: int
    share: Vector


@dataclass(frozen=True, eq=False)
class Goodbye(Message):
    """Station to terminal: your share is removed from my sum; you may join another station."""

    terminal: int
    incarnation: int


@dataclass(frozen=True, eq=False)
class MomentsReport(Message):
    """Terminal to station, or station to cloud, in round zero: count, mean and spread of training rows.

    ``dtype`` is the encoding of the numbers on the wire, which is exact. With float32, ``spread`` holds the square root
    of the spread.
    """

    sender: int
    count: int
    mean: Vector
    spread: Vector
    dtype: np.dtype[Any] = FLOAT64

    @classmethod
    def of(cls, sender: int, moments: Moments, dtype: np.dtype[Any]) -> MomentsReport:
        """Return the message with these moments, rounded to this type."""
        rounded = moments.rounded(dtype)
        spread = rounded.spread if dtype == FLOAT64 else np.sqrt(rounded.spread)
        return cls(sender, rounded.count, rounded.mean, spread, dtype)

    @property
    def moments(self) -> Moments:
        """Moments that this message carries."""
        spread = self.spread if self.dtype == FLOAT64 else np.square(self.spread)
        return Moments(self.count, self.mean, spread)


@dataclass(frozen=True, eq=False)
class ShareProbe(Message):
    """Station to a terminal that stays while others leave, if sums are masked: return your share; with the verdict."""

    terminal: int
    number: int
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Trial(Message):
    """Station to terminal: measure this model on your test rows."""

    number: int
    model: Vector


@dataclass(frozen=True, eq=False)
class FeatureMapping(Message):
    """Cloud to stations to terminals in round zero: compute these features of your rows.

    Rows are scaled by ``mean``, ``scale`` and ``unit`` as by `Scaling`, and then mapped. ``features`` is the text of
    the maps, and ``quantiles`` the statistics of the columns. ``dtype`` is the encoding of the numbers on the wire,
    which is exact.
    """

    features: bytes
    mean: Vector
    scale: Vector
    unit: bool
    quantiles: Vector
    seed: int
    dtype: np.dtype[Any] = FLOAT64

    @classmethod
    def of(cls, mapping: RowMap, dtype: np.dtype[Any] = FLOAT64) -> FeatureMapping:
        """Return the message for a mapping."""
        first, statistics = Scaling.of(mapping.first), mapping.statistics
        text = mapping.features.text.encode()
        return cls(text, first.mean, first.scale, first.unit, statistics.quantiles, statistics.seed, dtype)

    @cached_property
    def mapping(self) -> RowMap:
        """Mapping that this message describes."""
        first = Scaling(self.mean, self.scale, self.unit).scaler
        return RowMap(Features(self.features.decode()), first, Statistics(self.quantiles, self.seed))


@dataclass(frozen=True, eq=False)
class MomentsRequest(Message):
    """Cloud to stations to terminals in round zero: return the moments of your rows, as the mapping makes them."""

    mapping: FeatureMapping | None = None

    @classmethod
    def of(cls, mapping: RowMap | None, dtype: np.dtype[Any]) -> MomentsRequest:
        """Return the request for the moments of rows, with numbers in this type."""
        return cls(None if mapping is None else FeatureMapping.of(mapping, dtype))

    @property
    def row_map(self) -> RowMap | None:
        """Map of the rows, if they are mapped."""
        return None if self.mapping is None else self.mapping.mapping


@dataclass(frozen=True, eq=False)
class RowProbe(Message):
    """Station to terminal in round zero, if sums are masked: return your part of a sum over rows, or over labels.

    The first sum has an empty ``about``. The second sums squares around the mean ``about`` that the first sum gave
    (`roles.round_zero`). Rows are those that the mapping makes.
    """

    labels: bool
    about: Vector
    mapping: FeatureMapping | None = None

    @property
    def row_map(self) -> RowMap | None:
        """Map of the rows, if they are mapped."""
        return None if self.mapping is None else self.mapping.mapping


@dataclass(frozen=True, eq=False)
class Scaling(Message):
    """Cloud to stations to terminals in round zero: map rows, subtract this mean, and divide by this scale.

    With ``unit``, rows are then scaled to norm 1. ``dtype`` is the encoding of the numbers on the wire, which is exact.
    """

    mean: Vector
    scale: Vector
    unit: bool
    dtype: np.dtype[Any] = FLOAT64
    mapping: FeatureMapping | None = None

    @classmethod
    def of(cls, scaler: Scaler, dtype: np.dtype[Any] = FLOAT64) -> Scaling:
        """Return the message for a scaler, with empty vectors if it does not standardise."""
        empty = np.empty(0)
        mean, scale = scaler.mean, scaler.scale
        mapping = None if scaler.mapping is None else FeatureMapping.of(scaler.mapping, dtype)
        return cls(empty if mean is None else mean, empty if scale is None else scale, scaler.unit, dtype, mapping)

    @cached_property
    def scaler(self) -> Scaler:
        """Scaler that this message describes."""
        mapping = None if self.mapping is None else self.mapping.mapping
        if not len(self.mean):
            return Scaler(unit=self.unit, mapping=mapping)
        return Scaler(self.mean, self.scale, self.unit, mapping)


@dataclass(frozen=True, eq=False)
class ColumnsReport(Message):
    """Terminal to station, or station to cloud, in round zero of a table with gaps or texts (`data.preparation`).

    It holds the number of values of each column, the sums of numeric columns, and the distinct values of text columns.
    """

    sender: int
    counts: Vector
    sums: Vector
    vocabulary: bytes


@dataclass(frozen=True, eq=False)
class ColumnsAgreed(Message):
    """Cloud to stations to terminals in round zero of such a table: fill values, the columns with gaps, and texts."""

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
    """Cloud to stations to terminals before the first round of a private training: clip updates to C, add noise s.

    ``delta`` is the δ of the privacy bound for a terminal.
    """

    clip: float
    noise: float
    delta: float


_TYPED: dict[type[Message], tuple[tuple[str, ...], Callable[[tuple[int, ...], np.dtype[Any]], int]]] = {
    Anchor: (("center",), encoding.model),
    WorkOrder: (("model",), encoding.model),
    Probe: (("models",), encoding.models),
    Update: (("delta",), encoding.tensor),
    Report: (("v",), encoding.tensor),
    MomentsReport: (("mean", "spread"), encoding.tensor),
    Scaling: (("mean", "scale"), encoding.tensor),
    FeatureMapping: (("mean", "scale", "quantiles"), encoding.tensor),
}
"""Fields of a message whose numbers cross the wire in the message's ``dtype``."""


def size_of(message: Message, **sizes: int) -> int:
    """Return the size on the wire; ``sizes`` replaces the bytes of some fields.

    Models count in full, as for a receiver that does not know them.
    """
    return framed(ENVELOPE + _delimited(message, sizes))


def _delimited(message: Message, sizes: dict[str, int]) -> int:
    """Return the bytes of a message inside another message."""
    typed, measure = _TYPED.get(type(message), ((), encoding.tensor))
    for name in typed:
        sizes.setdefault(name, measure(getattr(message, name).shape, message.dtype))  # type: ignore[attr-defined]
    parts = (sizes.get(field.name, field_bytes(getattr(message, field.name))) for field in fields(message))
    return encoding.delimited(sum(parts))


def field_bytes(value: object) -> int:
    """Return the bytes of a field in protobuf, 0 for one that is not sent."""
    if value is None or isinstance(value, np.dtype):
        return 0
    if isinstance(value, np.ndarray):
        return encoding.tensor(value.shape, FLOAT64)
    if isinstance(value, str):
        return 0 if value == ASCENT else encoding.INTEGER  # protobuf does not send the first kind of work
    if isinstance(value, Verdict | FeatureMapping):
        verdict = encoding.delimited(3 * encoding.INTEGER + encoding.NUMBER)
        return verdict if isinstance(value, Verdict) else _delimited(value, {})
    if isinstance(value, bytes | tuple):
        return encoding.delimited(len(value)) if value else 0  # protobuf does not send empty fields
    return encoding.NUMBER if isinstance(value, float) else encoding.INTEGER
