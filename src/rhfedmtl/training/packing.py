"""Convert the state of a run into plain values and arrays, and back.

`checkpoint` writes the result to files. It does not use pickle, so reading a checkpoint never runs foreign code.

A state may contain missing values, texts, numbers, lists, tuples, dictionaries, arrays, and dataclasses and NamedTuples
of this package that consist of these. Objects keep their identity: an object that occurs twice in the state is a single
object again after reading.
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
External = Mapping[str, object]
MODULE_PREFIX = "rhfedmtl."


class BestEffort(NamedTuple):
    """A dictionary that is packed without the entries that cannot be written; its owner can compute them again."""

    values: Mapping[Any, Any]


class Packer:
    """Packs values into JSON types; collects objects and arrays in lists, each once.

    ``external`` names objects that are not packed, because the reader supplies them.
    """

    def __init__(self, external: External | None = None) -> None:
        self.arrays: list[Array | Later] = []
        self.objects: list[tuple[str, dict[str, Any]]] = []
        self._names = {id(value): name for name, value in (external or {}).items()}
        # The values contain the objects: as long as an object exists, no other object can have its id.
        self._packed: dict[int, tuple[dict[str, Any], object]] = {}

    def pack(self, value: Any) -> Any:
        """Return the value in plain form."""
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.str, self.pack(value.item())]}
        if isinstance(value, float):
            return value if np.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Mapping | BestEffort):
            return {"dict": list(self._entries(value))}
        if type(value) in (list, tuple):
            parts = [self.pack(part) for part in value]
            return parts if isinstance(value, list) else {"tuple": parts}
        return self._shared(value)

    def _entries(self, value: Mapping[Any, Any] | BestEffort) -> Iterator[list[Any]]:
        skip = isinstance(value, BestEffort)
        for entry in (value.values if isinstance(value, BestEffort) else value).items():
            with contextlib.suppress(*([ConfigError] if skip else [])):
                yield [self.pack(part) for part in entry]

    def _shared(self, value: Any) -> dict[str, Any]:
        if id(value) in self._names:
            return {"known": self._names[id(value)]}
        if id(value) not in self._packed:
            plain = self._array(value) if isinstance(value, np.ndarray | Later) else self._object(value)
            self._packed[id(value)] = plain, value
        return self._packed[id(value)][0]

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
        if not kind.__module__.startswith(MODULE_PREFIX) or not _fields(kind):
            raise ConfigError(f"{kind.__module__}.{kind.__qualname__} cannot be written into a checkpoint")
        parts = {name: self.pack(getattr(value, name)) for name in _fields(kind)}
        self.objects.append((f"{kind.__module__}:{kind.__qualname__}", parts))
        return {"object": len(self.objects) - 1}


class Unpacker:
    """Unpacks the output of a `Packer`; arrays are read-only."""

    def __init__(self, arrays: Sequence[Array], objects: Sequence[Any], external: External | None = None) -> None:
        self._arrays, self._plain, self._external = arrays, objects, external or {}
        self._objects: dict[int, Any] = {}
        self._forms: dict[str, Callable[[Any], Any]] = {
            "scalar": lambda content: np.dtype(content[0]).type(self.unpack(content[1])),
            "float": float,
            "dict": lambda content: {self.unpack(key): self.unpack(value) for key, value in content},
            "tuple": lambda content: tuple(self.unpack(part) for part in content),
            "array": self._arrays.__getitem__,
            "full": lambda content: np.broadcast_to(self.unpack(content[1]), content[0]),
            "known": self._external.__getitem__,
            "object": self._object,
        }

    def unpack(self, plain: Any) -> Any:
        """Return the value of a plain form."""
        if isinstance(plain, list):
            return [self.unpack(part) for part in plain]
        if not isinstance(plain, dict):
            return plain
        ((form, content),) = plain.items()
        return self._forms[form](content)

    def _object(self, position: int) -> Any:
        if position not in self._objects:
            name, parts = self._plain[position]
            self._objects[position] = _class(name)(**{part: self.unpack(value) for part, value in parts.items()})
        return self._objects[position]


def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or NamedTuple; an empty tuple for other classes."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.init)
    return tuple(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else ()


def _class(name: str) -> Any:
    """Return the class with this name if it is a dataclass or NamedTuple of this package."""
    module, _, qualified = name.partition(":")
    if module.startswith(MODULE_PREFIX) and qualified.isidentifier():
        kind = getattr(import_module(module), qualified, None)
        if isinstance(kind, type) and _fields(kind):
            return kind
    raise DataError(f"the checkpoint contains {name!r}, which is not a record of this version")
