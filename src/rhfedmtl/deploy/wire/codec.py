"""Messages and state of the roles as protobuf and back. What comes from a peer is checked before a role sees it.

Numbers travel as float64; those of updates, reports, moments and scaling as their channel has rounded them (`models`
for those of models).
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

from rhfedmtl.data.centring import NUMBERS
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, Work
from rhfedmtl.roles import messages as said
from rhfedmtl.roles.encoding import FLOAT64
from rhfedmtl.roles.roster import Member, StationState
from rhfedmtl.roles.secure import masking, masks
from rhfedmtl.roles.terminal import TerminalState

PROTOCOL = 4
"""Version that this code speaks, and the oldest that it understands."""
MOST_NUMBERS = 1 << 26
MOST_AXES = 4

P = TypeVar("P", bound=Proto)
M = TypeVar("M")
Vector = npt.NDArray[np.float64]


class NotFiniteError(PeerError):
    """A peer told numbers that are none."""


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


def tensor(values: npt.ArrayLike, dtype: np.dtype[Any] = FLOAT64) -> wire.Tensor:
    """Numbers for the wire, of this type where it holds them exactly."""
    array = np.asarray(values, dtype="<f8")
    if dtype == np.float32 and np.array_equal(single := array.astype("<f4"), array):
        return wire.Tensor(shape=array.shape, precision=wire.FLOAT32, data=single.tobytes())
    if dtype in STEPS:
        step, multiples = in_steps(array, dtype)
        if np.array_equal(step * multiples, array):
            return wire.Tensor(shape=array.shape, precision=STEPS[dtype], data=multiples.tobytes(), step=step)
    return wire.Tensor(shape=array.shape, data=array.tobytes())


def in_steps(values: Vector, dtype: np.dtype[Any]) -> tuple[float, npt.NDArray[Any]]:
    """The step that `roles.channel.Int8` has rounded these numbers to, if it has, and the nearest multiples of it.

    A difference to another number may have lost its last digits.
    """
    bits, least = 8 * dtype.itemsize - 1, float(np.finfo(np.float64).smallest_subnormal)
    fraction, exponent = math.frexp(float(np.abs(values).max(initial=0.0)))
    step = max(math.ldexp(1.0, exponent - bits + (fraction > 1.0 - 0.75 * 0.5**bits)), least)
    return step, np.rint(values / step).astype(dtype.newbyteorder("<"))


STEPS = {np.dtype(np.int8): wire.INT8, np.dtype(np.int16): wire.INT16}
_WORKS: dict[Work, wire.Work] = {ASCENT: wire.DUAL_ASCENT, GRADIENT: wire.GRADIENT}
_KINDS = {wire.FLOAT64: "<f8", wire.FLOAT32: "<f4", wire.INT8: "i1", wire.INT16: "<i2"}


def shape_of(given: wire.Tensor, what: str) -> tuple[int, ...]:
    """How many numbers there are along each axis; refuses what is not read."""
    shape = tuple(given.shape)
    if given.precision not in _KINDS or len(shape) > MOST_AXES or math.prod(shape) > MOST_NUMBERS:
        raise PeerError(
            f"{what} has precision {given.precision} and the shape {shape[: MOST_AXES + 1]}: at most {MOST_AXES} axes "
            f"and {MOST_NUMBERS} numbers are read"
        )
    return shape


def array(given: wire.Tensor, what: str, *, finite: bool = True) -> Vector:
    """Numbers from the wire, always as float64; refuses sizes that do not fit, NaN, and infinity unless allowed."""
    shape = shape_of(given, what)
    kind = np.dtype(_KINDS[given.precision])
    if math.prod(shape) * kind.itemsize != len(given.data):
        raise PeerError(f"{what} claims the shape {shape} and brings {len(given.data)} bytes")
    numbers = np.frombuffer(given.data, dtype=kind).astype(np.float64).reshape(shape)
    if kind.kind == "i":
        if not math.isfinite(given.step):
            raise NotFiniteError(f"{what} has a step of {given.step}")
        numbers *= given.step
    if np.isnan(numbers).any() if not finite else not np.isfinite(numbers).all():
        raise NotFiniteError(f"{what} holds numbers that are not finite")
    return numbers


def words(given: bytes, what: str) -> masks.Words:
    """Words under masks from the wire, which may have any bits; refuses a length that is none of theirs."""
    if not given or len(given) % 8 or len(given) > 8 * MOST_NUMBERS:
        raise PeerError(f"{what} has {len(given)} bytes: 8 for each word, and at most {MOST_NUMBERS} words are read")
    return np.frombuffer(given, dtype="<u8").astype(np.uint64)


def finite(value: float, what: str) -> float:
    """A number that is finite."""
    if not math.isfinite(value):
        raise PeerError(f"{what} is {value}")
    return value


def to_wire(message: Any, **more: Any) -> Any:
    """The protobuf form of a message, or of state, field by field; ``more`` is what only the network knows of it."""
    form = FORMS[type(message)]
    for each in fields(message):
        value = getattr(message, each.name)
        if each.name in form.rounded:
            more[each.name] = tensor(value, message.dtype)
        elif each.name in form.stacked:
            more[each.name] = [tensor(part) for part in value]
        elif each.name not in form.apart and value is not None:
            more[each.name] = _outwards(value)
    return form.proto(**more)


def from_wire(kind: type[M], given: Proto, **more: Any) -> M:
    """The message, or state, of this kind, once all that it says has been checked; ``more`` is read by the caller."""
    form = FORMS[kind]
    for name, reader in _readers(cast(type, kind)).items():
        if name not in form.apart:
            more[name] = reader(given, name)
    if form.rounded:
        more["dtype"] = np.dtype(_KINDS[getattr(given, form.rounded[-1]).precision])
    made = kind(**more)
    form.check(made)
    return made


def read(given: Any) -> Any:
    """The message of the roles that a peer sent, checked; one that no role knows is as it came."""
    kind = _KINDS_OF_FORM.get(type(given))
    return given if kind is None else from_wire(kind, given)


def _outwards(value: Any) -> Any:
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


@cache
def _readers(kind: type) -> dict[str, Reader]:
    """How each field of a message is read, by its type."""
    hints, form = get_type_hints(kind), FORMS[kind]
    return {
        each.name: _stack_reader if each.name in form.stacked else _reader(hints[each.name], form, kind.__name__)
        for each in fields(kind)
    }


def _stack_reader(given: Any, name: str) -> Vector:
    return stack(getattr(given, name), name)


def stack(given: Sequence[wire.Tensor], what: str) -> Vector:
    """Arrays of one shape from the wire, in one."""
    parts = [array(each, what) for each in given]
    if len({part.shape for part in parts}) != 1:
        raise PeerError(f"{what} have the shapes {sorted({part.shape for part in parts})}: one is needed")
    return np.stack(parts)


def _reader(hint: Any, form: Form, of: str) -> Reader:
    if get_origin(hint) is np.ndarray:
        return _array_reader(hint, form, of)
    if hint in _CHECKED:
        return lambda given, name: _CHECKED[hint](getattr(given, name), f"{name} of {of}")
    if hint in FORMS or get_origin(hint) is tuple:
        return _message_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda given, name: hint(getattr(given, name))
    if isinstance(hint, UnionType):  # a message, or None where the field is not set
        inner = _reader(get_args(hint)[0], form, of)
        return lambda given, name: inner(given, name) if given.HasField(name) else None
    return getattr


def _work(number: int, field: str) -> Work:
    for work, code in _WORKS.items():
        if code == number:
            return work
    raise PeerError(f"{field} is {number}: choose from {', '.join(_WORKS)}")


_CHECKED: dict[Any, Callable[[Any, str], Any]] = {float: finite, Work: _work}


def _array_reader(hint: Any, form: Form, of: str) -> Reader:
    if hint == masks.Words:
        return lambda given, name: words(getattr(given, name), f"{name} of {of}")
    return lambda given, name: array(getattr(given, name), f"{name} of {of}", finite=name not in form.infinite)


def _message_reader(hint: Any) -> Reader:
    """Of a message, or of any number of one kind."""
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        if kind is int:
            return lambda message, name: tuple(getattr(message, name))
        return lambda given, name: tuple(from_wire(kind, each) for each in getattr(given, name))
    return lambda given, name: from_wire(hint, getattr(given, name))


def _check_moments(moments: said.MomentsReport) -> None:
    mean, spread = moments.mean, moments.spread
    if mean.ndim != 1 or mean.shape != spread.shape or moments.count < 1 or (spread < 0.0).any():
        raise PeerError(f"moments of {moments.count} rows with means {mean.shape} and spreads {spread.shape}")


def _check_scaling(scaling: said.Scaling) -> None:
    mean, scale = scaling.mean, scaling.scale
    if mean.ndim != 1 or mean.shape != scale.shape or not (scale > 0.0).all():
        raise PeerError(f"scaling by means {mean.shape} and scales {scale.shape}, which must be positive")


def _check_labels(report: said.LabelsReport) -> None:
    sums = report.sums
    if sums.shape != (NUMBERS,) or not sums[0] > 0.0 or sums[2] < 0.0:
        raise PeerError(f"label sums {sums.tolist()[:NUMBERS]}: a positive weight, a mean and a spread >= 0 are needed")


def _check_noising(noising: said.Noising) -> None:
    if not (noising.clip > 0.0 and noising.noise > 0.0 and 0.0 < noising.delta < 1.0):
        raise PeerError(f"clip {noising.clip}, noise {noising.noise} and delta {noising.delta} hide nothing")


def _check_probe(probe: said.Probe) -> None:
    if probe.noise is not None and not 0.0 < probe.noise < math.inf:
        raise PeerError(f"a probe with noise {probe.noise}")


def _check_key(key: masking.Key) -> None:
    if len(key.public) != masks.PUBLIC:
        raise PeerError(f"a key of terminal {key.terminal} with {len(key.public)} bytes: {masks.PUBLIC} are needed")


def _check_circle(circle: masking.Circle) -> None:
    if len({key.terminal for key in circle.keys}) != len(circle.keys):
        raise PeerError("a circle with two keys of one terminal")
    masking.from_groups(circle.groups)


def _check_deal(deal: masking.Deal) -> None:
    if len(deal.shares) != 2 * len(deal.backup) or len(deal.backup) % masks.SEED:
        raise PeerError(
            f"a deal of terminal {deal.terminal}: {len(deal.shares)} bytes of shares, {len(deal.backup)} of seeds"
        )


def _check_partners(partners: masking.Partners) -> None:
    masking.from_bits(partners.everyone)
    asked, rest = divmod(len(partners.seats), said.SEAT)
    if rest or len(partners.shares) != 2 * masks.SEED * asked:
        raise PeerError(f"partners with {len(partners.seats)} bytes of seats and {len(partners.shares)} of shares")


def _check_unmask(unmask: masking.Unmask) -> None:
    masking.from_bits(unmask.arrived)


def _check_opened(opened: masking.Opened) -> None:
    if not opened.shares or len(opened.shares) % masks.SEED:
        raise PeerError(f"{len(opened.shares)} bytes of shares of terminal {opened.terminal}: {masks.SEED} for each")


@dataclass(frozen=True)
class Form:
    """How a message of the roles, or their state, looks on the wire: fields are those of the same name.

    ``rounded`` travel as the message's own ``dtype``, which is read off them, ``stacked`` one by one, ``infinite`` may
    hold infinities; fields that are ``apart`` have no counterpart of their own. ``check`` refuses what fits field by
    field, and not together.
    """

    proto: Callable[..., Any]
    rounded: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    infinite: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    check: Callable[[Any], None] = lambda _: None


FORMS: dict[type, Form] = {
    said.Verdict: Form(wire.Verdict),
    said.Anchor: Form(wire.Anchor, apart=("dtype",), check=said.check_anchors),
    said.WorkOrder: Form(wire.WorkOrder, apart=("dtype",)),
    said.Update: Form(wire.Update, rounded=("delta",), infinite=("profile",), apart=("dtype",)),
    said.Probe: Form(wire.Probe, stacked=("models",), apart=("dtype",), check=_check_probe),
    said.Sums: Form(wire.Sums),
    said.Report: Form(wire.Report, rounded=("v",), apart=("dtype",)),
    said.StationSums: Form(wire.StationSums),
    said.Join: Form(wire.Join),
    said.Release: Form(wire.Release),
    said.Leave: Form(wire.Leave),
    said.Goodbye: Form(wire.Goodbye),
    said.MomentsReport: Form(wire.MomentsReport, rounded=("mean", "spread"), apart=("dtype",), check=_check_moments),
    said.RowProbe: Form(wire.RowProbe),
    said.ShareProbe: Form(wire.ShareProbe),
    said.Trial: Form(wire.Trial),
    said.Scaling: Form(wire.Scaling, rounded=("mean", "scale"), apart=("dtype",), check=_check_scaling),
    said.LabelsReport: Form(wire.LabelsReport, check=_check_labels),
    said.Centring: Form(wire.Centring),
    said.Noising: Form(wire.Noising, check=_check_noising),
    said.ColumnsReport: Form(wire.ColumnsReport),
    said.ColumnsAgreed: Form(wire.ColumnsAgreed),
    masking.Key: Form(wire.Key, check=_check_key),
    masking.Circle: Form(wire.Circle, check=_check_circle),
    masking.Deal: Form(wire.Deal, check=_check_deal),
    masking.Partners: Form(wire.Partners, check=_check_partners),
    masking.Masked: Form(wire.Masked),
    masking.Unmask: Form(wire.Unmask, check=_check_unmask),
    masking.Opened: Form(wire.Opened, check=_check_opened),
    TerminalState: Form(wire.TerminalFile),
    Member: Form(wire.MemberFile),
    StationState: Form(wire.StationFile, apart=("members", "departed", "quarantined")),
}
"""A profile may hold infinities: there, a factor leaves the box."""
_KINDS_OF_FORM: dict[Any, type] = {form.proto: kind for kind, form in FORMS.items()}


def check_version(hello: wire.Hello) -> str:
    """Why the caller's protocol does not do; empty where it does."""
    if hello.oldest <= PROTOCOL <= hello.newest:
        return ""
    return (
        f"protocols {hello.oldest} to {hello.newest} (rhfedmtl {hello.software[:40]!r}) do not include {PROTOCOL}, "
        "which is spoken here: install the same version on all nodes"
    )
