"""The state of a run as plain values and arrays, and back: no pickle, so reading it runs nobody's code.

What can be written: None, texts, numbers, lists, tuples, dictionaries, arrays, and dataclasses and NamedTuples of this
package made of these. An object or array that is met twice is the same one again after reading, as it was before.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.engines.network import Later
from rhfedmtl.errors import ConfigError, DataError

Array = npt.NDArray[Any]
Known = Mapping[str, object]
PACKAGE = "rhfedmtl."


class Loose(NamedTuple):
    """A dictionary of which entries that cannot be written are left out: what their owner can work out again."""

    values: Mapping[Any, Any]


class Packer:
    """Turns values into what JSON can hold, and puts objects and arrays aside, each once.

    ``known`` names objects that are not written: whoever reads has them.
    """

    def __init__(self, known: Known | None = None) -> None:
        self.arrays: list[Array | Later] = []
        self.objects: list[tuple[str, dict[str, Any]]] = []
        self._names = {id(value): name for name, value in (known or {}).items()}
        self._seen: dict[int, tuple[dict[str, Any], object]] = {}  # with the object: while it lives, its id is its own

    def pack(self, value: Any) -> Any:
        """The value in plain form."""
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.str, self.pack(value.item())]}
        if isinstance(value, float):
            return value if np.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Mapping | Loose):
            return {"dict": list(self._entries(value))}
        return self._sequence(value) if type(value) in (list, tuple) else self._shared(value)

    def _sequence(self, value: Any) -> Any:
        parts = [self.pack(part) for part in value]
        return parts if isinstance(value, list) else {"tuple": parts}

    def _entries(self, value: Mapping[Any, Any] | Loose) -> Iterator[list[Any]]:
        loose = isinstance(value, Loose)
        for entry in (value.values if isinstance(value, Loose) else value).items():
            with contextlib.suppress(*([ConfigError] if loose else [])):
                yield [self.pack(part) for part in entry]

    def _shared(self, value: Any) -> dict[str, Any]:
        if id(value) in self._names:
            return {"known": self._names[id(value)]}
        if id(value) not in self._seen:
            plain = self._array(value) if isinstance(value, np.ndarray | Later) else self._object(value)
            self._seen[id(value)] = plain, value
        return self._seen[id(value)][0]

    def _array(self, value: Array | Later) -> dict[str, Any]:
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biuf":
                raise ConfigError(f"an array of {value.dtype} cannot be written into a checkpoint")
            if value.size > 1 and (value == value.flat[0]).all():
                return {"full": [list(value.shape), self.pack(value.flat[0])]}
        self.arrays.append(value)
        return {"array": len(self.arrays) - 1}

    def _object(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        if not kind.__module__.startswith(PACKAGE) or not _fields(kind):
            raise ConfigError(f"{kind.__module__}.{kind.__qualname__} cannot be written into a checkpoint")
        parts = {name: self.pack(getattr(value, name)) for name in _fields(kind)}
        self.objects.append((f"{kind.__module__}:{kind.__qualname__}", parts))
        return {"object": len(self.objects) - 1}


class Unpacker:
    """Turns what `Packer` made back into values; arrays are read-only."""

    def __init__(self, arrays: Sequence[Array], objects: Sequence[Any], known: Known | None = None) -> None:
        self._arrays, self._plain, self._known = arrays, objects, known or {}
        self._made: dict[int, Any] = {}
        self._forms: dict[str, Callable[[Any], Any]] = {
            "scalar": lambda content: np.dtype(content[0]).type(self.unpack(content[1])),
            "float": float,
            "dict": lambda content: {self.unpack(key): self.unpack(value) for key, value in content},
            "tuple": lambda content: tuple(self.unpack(part) for part in content),
            "array": self._arrays.__getitem__,
            "full": lambda content: np.broadcast_to(self.unpack(content[1]), content[0]),
            "known": self._known.__getitem__,
            "object": self._object,
        }

    def unpack(self, plain: Any) -> Any:
        """The value of a plain form."""
        if isinstance(plain, list):
            return [self.unpack(part) for part in plain]
        if not isinstance(plain, dict):
            return plain
        ((form, content),) = plain.items()
        return self._forms[form](content)

    def _object(self, place: int) -> Any:
        if place not in self._made:
            name, parts = self._plain[place]
            self._made[place] = _class(name)(**{part: self.unpack(value) for part, value in parts.items()})
        return self._made[place]


def _fields(kind: type) -> tuple[str, ...]:
    """What a dataclass or NamedTuple is made from; nothing for any other class."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.init)
    return tuple(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else ()


def _class(name: str) -> Any:
    """The class of that name, if it is a dataclass or NamedTuple of this package."""
    module, _, qualified = name.partition(":")
    if module.startswith(PACKAGE) and qualified.isidentifier():
        found = getattr(import_module(module), qualified, None)
        if isinstance(found, type) and _fields(found):
            return found
    raise DataError(f"a checkpoint with {name!r}, which is no record of this version")
