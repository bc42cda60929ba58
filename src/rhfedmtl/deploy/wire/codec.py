"""Convert the messages and the state of the roles to protobuf and back, and check everything that a peer sends.

All nodes call it for every message. `to_wire` and `from_wire` convert field by field: the table `FORMS` names the
protobuf message of each dataclass and the fields that need special treatment. A wrong message raises a `PeerError`
before a role sees it. To add a message, define it in ``wire.proto``, run `make proto`, and add a row to `FORMS`.

Numbers travel as float64. Updates, reports, moments and scaling travel in the type to which their channel has rounded
them. `wire.models` shortens models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from rhfedmtl.data.centring import LABEL_NUMBERS
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.features.base import LEVELS
from rhfedmtl.features.maps import MOST_COLUMNS
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, Work
from rhfedmtl.roles import messages
from rhfedmtl.roles.encoding import FLOAT64
from rhfedmtl.roles.roster import Member, StationState
from rhfedmtl.roles.secure import masking, masks
from rhfedmtl.roles.terminal import TerminalState

PROTOCOL = 5
"""Version of the protocol that this code speaks, and the oldest version that it understands."""
MAX_NUMBERS = 1 << 26
MAX_AXES = 4

P = TypeVar("P", bound=Proto)
M = TypeVar("M")
Vector = npt.NDArray[np.float64]


class NotFiniteError(PeerError):
    """A peer sent NaN or infinity."""


def parse(kind: type[P], data: bytes) -> P:
    """Return the protobuf message of this kind; other bytes raise a `PeerError`."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError, TypeError) as error:
        raise PeerError(f"{len(data)} bytes are no {kind.__name__}: {error}") from None


def body(message: Proto) -> tuple[str, Any]:
    """Return name and content of the body of a message; a message without a body raises a `PeerError`."""
    name = message.WhichOneof("body")
    if name is None:
        raise PeerError(f"a {type(message).__name__} that says nothing, or something newer than protocol {PROTOCOL}")
    return name, getattr(message, name)


def tensor(values: npt.ArrayLike, dtype: np.dtype[Any] = FLOAT64) -> wire.Tensor:
    """Return numbers for the wire: in this type if it holds them exactly, otherwise as float64."""
    array = np.asarray(values, dtype="<f8")
    if dtype == np.float32 and np.array_equal(single := array.astype("<f4"), array):
        return wire.Tensor(shape=array.shape, precision=wire.FLOAT32, data=single.tobytes())
    if dtype in STEPS:
        step, multiples = in_steps(array, dtype)
        if np.array_equal(step * multiples, array):
            return wire.Tensor(shape=array.shape, precision=STEPS[dtype], data=multiples.tobytes(), step=step)
    return wire.Tensor(shape=array.shape, data=array.tobytes())


def in_steps(values: Vector, dtype: np.dtype[Any]) -> tuple[float, npt.NDArray[Any]]:
    """Return the rounding step of these numbers and the nearest multiples of it.

    The step is that of `roles.channel.Int8`. Numbers that this channel has not rounded are no exact multiples of it, so
    callers compare the product with the numbers. A difference of two models may have lost its last digits.
    """
    bits, smallest = 8 * dtype.itemsize - 1, float(np.finfo(np.float64).smallest_subnormal)
    fraction, exponent = math.frexp(float(np.abs(values).max(initial=0.0)))
    step = max(math.ldexp(1.0, exponent - bits + (fraction > 1.0 - 0.75 * 0.5**bits)), smallest)
    return step, np.rint(values / step).astype(dtype.newbyteorder("<"))


STEPS = {np.dtype(np.int8): wire.INT8, np.dtype(np.int16): wire.INT16}
_WORKS: dict[Work, wire.Work] = {ASCENT: wire.DUAL_ASCENT, GRADIENT: wire.GRADIENT}
_KINDS = {wire.FLOAT64: "<f8", wire.FLOAT32: "<f4", wire.INT8: "i1", wire.INT16: "<i2"}


def shape_of(message: wire.Tensor, label: str) -> tuple[int, ...]:
    """Return the shape of a tensor; refuse unknown precisions and too large shapes. ``label`` names it in errors."""
    shape = tuple(message.shape)
    if message.precision not in _KINDS or len(shape) > MAX_AXES or math.prod(shape) > MAX_NUMBERS:
        raise PeerError(
            f"{label} has precision {message.precision} and the shape {shape[: MAX_AXES + 1]}: at most {MAX_AXES} axes "
            f"and {MAX_NUMBERS} numbers are read"
        )
    return shape


def array(message: wire.Tensor, label: str, *, finite: bool = True) -> Vector:
    """Return numbers from the wire as float64.

    Refuse data that does not fit the shape, NaN, and with ``finite`` also infinity. ``label`` names the numbers in
    errors.
    """
    shape = shape_of(message, label)
    kind = np.dtype(_KINDS[message.precision])
    if math.prod(shape) * kind.itemsize != len(message.data):
        raise PeerError(f"{label} claims the shape {shape} and brings {len(message.data)} bytes")
    numbers = np.frombuffer(message.data, dtype=kind).astype(np.float64).reshape(shape)
    if kind.kind == "i":
        if not math.isfinite(message.step):
            raise NotFiniteError(f"{label} has a step of {message.step}")
        numbers *= message.step
    if np.isnan(numbers).any() if not finite else not np.isfinite(numbers).all():
        raise NotFiniteError(f"{label} holds numbers that are not finite")
    return numbers


def words(message: bytes, label: str) -> masks.Words:
    """Return masked words of 64 bits from the wire; their bits are arbitrary, so only the length is checked."""
    if not message or len(message) % 8 or len(message) > 8 * MAX_NUMBERS:
        raise PeerError(f"{label} has {len(message)} bytes: 8 for each word, and at most {MAX_NUMBERS} words are read")
    return np.frombuffer(message, dtype="<u8").astype(np.uint64)


def finite(value: float, label: str) -> float:
    """Return a number; refuse NaN and infinity."""
    if not math.isfinite(value):
        raise PeerError(f"{label} is {value}")
    return value


def to_wire(message: Any, **more: Any) -> Any:
    """Return the protobuf form of a message or state, field by field; ``more`` has fields that the dataclass lacks."""
    form = FORMS[type(message)]
    for attribute in fields(message):
        value = getattr(message, attribute.name)
        if attribute.name in form.rounded:
            more[attribute.name] = tensor(value, message.dtype)
        elif attribute.name in form.stacked:
            more[attribute.name] = [tensor(part) for part in value]
        elif attribute.name not in form.unmapped and value is not None:
            more[attribute.name] = _outwards(value)
    return form.proto(**more)


def from_wire(kind: type[M], message: Proto, **more: Any) -> M:
    """Return the checked message or state of this kind; ``more`` has fields that the caller has read itself."""
    form = FORMS[kind]
    for name, reader in _readers(cast(type, kind)).items():
        if name not in form.unmapped:
            more[name] = reader(message, name)
    if form.rounded:
        more["dtype"] = np.dtype(_KINDS[getattr(message, form.rounded[-1]).precision])
    result = kind(**more)
    form.check(result)
    return result


def read(message: Any) -> Any:
    """Return the checked message of the roles; a message without a form for the roles is returned unchanged."""
    kind = _KINDS_OF_FORM.get(type(message))
    return message if kind is None else from_wire(kind, message)


def _outwards(value: Any) -> Any:
    """Return the protobuf form of the value of a field."""
    if isinstance(value, tuple):
        return [*map(_outwards, value)]
    if isinstance(value, np.ndarray) and value.dtype == np.uint64:
        return value.astype("<u8").tobytes()
    if isinstance(value, np.ndarray):
        return tensor(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return _WORKS[cast(Work, value)]
    return to_wire(value) if type(value) in FORMS else value


Reader = Callable[[Any, str], Any]
"""Reads the field with this name from a protobuf message."""


@cache
def _readers(kind: type) -> dict[str, Reader]:
    """Return the reader of each field of a dataclass, by its type hint."""
    hints, form = get_type_hints(kind), FORMS[kind]
    return {
        attribute.name: (lambda message, name: stack(getattr(message, name), name))
        if attribute.name in form.stacked
        else _reader(hints[attribute.name], form, kind.__name__)
        for attribute in fields(kind)
    }


def stack(tensors: Sequence[wire.Tensor], label: str) -> Vector:
    """Return arrays of the same shape from the wire, stacked along a new first axis."""
    parts = [array(part, label) for part in tensors]
    if len({part.shape for part in parts}) != 1:
        raise PeerError(f"{label} have the shapes {sorted({part.shape for part in parts})}: they must be equal")
    return np.stack(parts)


def _reader(hint: Any, form: Form, of: str) -> Reader:
    if hint in _CHECKED:
        return lambda message, name: _CHECKED[hint](getattr(message, name), f"{name} of {of}")
    if get_origin(hint) is np.ndarray:
        return lambda message, name: array(getattr(message, name), f"{name} of {of}", finite=name not in form.infinite)
    if hint in FORMS or get_origin(hint) is tuple:
        return _message_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda message, name: hint(getattr(message, name))
    if isinstance(hint, UnionType):  # the field is optional
        inner = _reader(get_args(hint)[0], form, of)
        return lambda message, name: inner(message, name) if message.HasField(name) else None
    return getattr


def _work(number: int, field: str) -> Work:
    for work, code in _WORKS.items():
        if code == number:
            return work
    raise PeerError(f"{field} is {number}: choose from {', '.join(_WORKS)}")


_CHECKED: dict[Any, Callable[[Any, str], Any]] = {float: finite, Work: _work, masks.Words: words}


def _message_reader(hint: Any) -> Reader:
    """Return the reader of a message, or of a tuple of messages or numbers."""
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        if kind is int:
            return lambda message, name: tuple(getattr(message, name))
        return lambda message, name: tuple(from_wire(kind, part) for part in getattr(message, name))
    return lambda message, name: from_wire(hint, getattr(message, name))


def _check_moments(moments: messages.MomentsReport) -> None:
    mean, spread = moments.mean, moments.spread
    if mean.ndim != 1 or mean.shape != spread.shape or moments.count < 1 or (spread < 0.0).any():
        raise PeerError(f"moments of {moments.count} rows with means {mean.shape} and spreads {spread.shape}")


def _check_scaling(scaling: messages.Scaling) -> None:
    mean, scale = scaling.mean, scaling.scale
    if mean.ndim != 1 or mean.shape != scale.shape or not (scale > 0.0).all():
        raise PeerError(f"scaling by means {mean.shape} and scales {scale.shape}, which must be positive")
    if scaling.mapping is not None and len(mean) not in (0, columns := scaling.mapping.mapping.columns):
        raise PeerError(f"scaling by {len(mean)} means behind a feature map of {columns} columns")


def _check_mapping(mapping: messages.FeatureMapping) -> None:
    mean, scale, quantiles = mapping.mean, mapping.scale, mapping.quantiles
    if quantiles.ndim != 2 or quantiles.shape[1] not in (0, len(LEVELS)):
        raise PeerError(f"a feature map with quantiles of shape {quantiles.shape}: {len(LEVELS)} for each column")
    n_columns = len(quantiles)
    if mean.shape != scale.shape or mean.shape not in ((0,), (n_columns,)) or not (scale > 0.0).all():
        raise PeerError(
            f"a feature map of {n_columns} columns behind means {mean.shape} and scales {scale.shape}, which must be "
            "positive"
        )
    try:
        features = mapping.mapping.features
    except (ConfigError, UnicodeDecodeError) as error:
        raise PeerError(f"a feature map that this node does not have: {str(error)[:400]}") from None
    if (columns := features.columns(n_columns)) > MOST_COLUMNS:
        raise PeerError(f"a feature map of {columns:,} columns: at most {MOST_COLUMNS:,} are computed")
    if features.needs_quantiles and not quantiles.shape[1]:
        raise PeerError(f"the feature map {features.text!r} without quantiles")


def _check_labels(report: messages.LabelsReport) -> None:
    sums = report.sums
    if sums.shape != (LABEL_NUMBERS,) or not sums[0] > 0.0 or sums[2] < 0.0:
        raise PeerError(
            f"label sums {sums.tolist()[:LABEL_NUMBERS]}: a positive weight, a mean and a spread >= 0 are needed"
        )


def _check_noising(noising: messages.Noising) -> None:
    if not (noising.clip > 0.0 and noising.noise > 0.0 and 0.0 < noising.delta < 1.0):
        raise PeerError(f"clip {noising.clip}, noise {noising.noise} and delta {noising.delta} hide nothing")


def _check_probe(probe: messages.Probe) -> None:
    if probe.noise is not None and not 0.0 < probe.noise < math.inf:
        raise PeerError(f"a probe with noise {probe.noise}")


def _check_key(key: masking.Key) -> None:
    if len(key.public) != masks.PUBLIC_KEY_BYTES:
        raise PeerError(
            f"a key of terminal {key.terminal} with {len(key.public)} bytes: {masks.PUBLIC_KEY_BYTES} are needed"
        )


def _check_circle(circle: masking.Circle) -> None:
    if len({key.terminal for key in circle.keys}) != len(circle.keys):
        raise PeerError("a circle with two keys of the same terminal")
    masking.from_groups(circle.groups)


def _check_deal(deal: masking.Deal) -> None:
    if len(deal.shares) != 2 * len(deal.backup) or len(deal.backup) % masks.SEED:
        raise PeerError(
            f"a deal of terminal {deal.terminal}: {len(deal.shares)} bytes of shares, {len(deal.backup)} of seeds"
        )


def _check_partners(partners: masking.Partners) -> None:
    masking.from_bits(partners.everyone)
    n_partners, rest = divmod(len(partners.seats), messages.SEAT)
    if rest or len(partners.shares) != 2 * masks.SEED * n_partners:
        raise PeerError(f"partners with {len(partners.seats)} bytes of seats and {len(partners.shares)} of shares")


def _check_unmask(unmask: masking.Unmask) -> None:
    masking.from_bits(unmask.arrived)


def _check_opened(opened: masking.Opened) -> None:
    if not opened.shares or len(opened.shares) % masks.SEED:
        raise PeerError(f"{len(opened.shares)} bytes of shares of terminal {opened.terminal}: {masks.SEED} for each")


@dataclass(frozen=True)
class Form:
    """Mapping of a message of the roles, or of their state, to protobuf: fields of the same name correspond.

    Attributes
    ----------
    proto : Callable
        Class of the protobuf message.
    rounded : tuple[str, ...]
        Arrays that travel in the ``dtype`` of the message; the receiver reads ``dtype`` from them.
    stacked : tuple[str, ...]
        Arrays whose first axis travels as separate tensors.
    infinite : tuple[str, ...]
        Arrays that may hold infinities.
    unmapped : tuple[str, ...]
        Fields without a field of the same name in the protobuf message.
    check : Callable
        Refuses contradictions between fields with a `PeerError`.
    """

    proto: Callable[..., Any]
    rounded: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    infinite: tuple[str, ...] = ()
    unmapped: tuple[str, ...] = ()
    check: Callable[[Any], None] = lambda _: None


FORMS: dict[type, Form] = {
    messages.Verdict: Form(wire.Verdict),
    messages.Anchor: Form(wire.Anchor, unmapped=("dtype",), check=messages.check_anchors),
    messages.WorkOrder: Form(wire.WorkOrder, unmapped=("dtype",)),
    messages.Update: Form(wire.Update, rounded=("delta",), infinite=("profile",), unmapped=("dtype",)),
    messages.Probe: Form(wire.Probe, stacked=("models",), unmapped=("dtype",), check=_check_probe),
    messages.Sums: Form(wire.Sums),
    messages.Report: Form(wire.Report, rounded=("v",), unmapped=("dtype",)),
    messages.StationSums: Form(wire.StationSums),
    messages.Join: Form(wire.Join),
    messages.Release: Form(wire.Release),
    messages.Leave: Form(wire.Leave),
    messages.Goodbye: Form(wire.Goodbye),
    messages.MomentsReport: Form(
        wire.MomentsReport, rounded=("mean", "spread"), unmapped=("dtype",), check=_check_moments
    ),
    messages.FeatureMapping: Form(
        wire.FeatureMapping, rounded=("mean", "scale", "quantiles"), unmapped=("dtype",), check=_check_mapping
    ),
    messages.MomentsRequest: Form(wire.MomentsRequest),
    messages.RowProbe: Form(wire.RowProbe),
    messages.ShareProbe: Form(wire.ShareProbe),
    messages.Trial: Form(wire.Trial),
    messages.Scaling: Form(wire.Scaling, rounded=("mean", "scale"), unmapped=("dtype",), check=_check_scaling),
    messages.LabelsReport: Form(wire.LabelsReport, check=_check_labels),
    messages.Centring: Form(wire.Centring),
    messages.Noising: Form(wire.Noising, check=_check_noising),
    messages.ColumnsReport: Form(wire.ColumnsReport),
    messages.ColumnsAgreed: Form(wire.ColumnsAgreed),
    masking.Key: Form(wire.Key, check=_check_key),
    masking.Circle: Form(wire.Circle, check=_check_circle),
    masking.Deal: Form(wire.Deal, check=_check_deal),
    masking.Partners: Form(wire.Partners, check=_check_partners),
    masking.Masked: Form(wire.Masked),
    masking.Unmask: Form(wire.Unmask, check=_check_unmask),
    masking.Opened: Form(wire.Opened, check=_check_opened),
    TerminalState: Form(wire.TerminalFile),
    Member: Form(wire.MemberFile),
    StationState: Form(wire.StationFile, unmapped=("members", "departed", "quarantined")),
}
"""Form of each message and state. The profile of an update is infinite where a factor leaves the dual box."""
_KINDS_OF_FORM: dict[Any, type] = {form.proto: kind for kind, form in FORMS.items()}


def check_version(hello: wire.Hello) -> str:
    """Return the reason why the caller's protocol does not fit; empty if it fits."""
    if hello.oldest <= PROTOCOL <= hello.newest:
        return ""
    return (
        f"protocols {hello.oldest} to {hello.newest} (rhfedmtl {hello.software[:40]!r}) do not include {PROTOCOL}, "
        "which is spoken here: install the same version on all nodes"
    )
