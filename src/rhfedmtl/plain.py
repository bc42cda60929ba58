"""Convert dataclasses to plain values for JSON, and back with a check of all types.

Records, settings and journals use `plain` to write and `read` to load. `read` raises a ``ValueError`` that names the
field, and never builds an object with a missing field or a wrong type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_SIMPLE = frozenset({int, str, bool, NoneType})
INLINE = object()
"""``Annotated[dict[str, …], INLINE]`` marks a field whose entries are written among the other fields."""


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, tuples as lists, and NaN and infinity as None, because JSON lacks them."""
    if is_dataclass(value):
        value = _table(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):  # lists have many numbers, and a call for each would be slow
        return [
            part if type(part) in _SIMPLE or (type(part) is float and math.isfinite(part)) else plain(part)
            for part in value
        ]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(value: Any) -> dict[str, Any]:
    if hasattr(value, "to_plain"):  # a class whose fields depend on the installed plugins
        fields_of_class: dict[str, Any] = value.to_plain()
        return fields_of_class
    table: dict[str, Any] = {}
    for name, info in _fields(value.__class__).items():
        part = getattr(value, name)
        table |= part if info.inline else {name: part}
    return table


def read(kind: type[T], value: Any) -> T:
    """Build the dataclass from the result of `plain`; a `ValueError` names a field that is missing or of a wrong type.

    Unknown entries are ignored. Numbers in lists are not checked, because there can be millions.
    """
    instance: T = _read_table(kind, value, "")
    return instance


def _read_table(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _type_error(where.rstrip(".") or "it", "a table", value)
    if hasattr(kind, "from_plain"):
        return kind.from_plain(value)
    infos, arguments = _fields(kind), {}
    for name, info in infos.items():
        if info.inline:
            arguments[name] = _read(info.hint, {k: v for k, v in value.items() if k not in infos}, where + name)
        elif name in value:
            arguments[name] = _read(info.hint, value[name], where + name)
        elif info.required:
            raise ValueError(f"{where}{name} is missing")
    return kind(**arguments)


class _Field(NamedTuple):
    hint: Any
    required: bool
    inline: bool


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    hints, marked = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    return {
        item.name: _Field(
            hints[item.name],
            item.default is MISSING and item.default_factory is MISSING,
            INLINE in getattr(marked[item.name], "__metadata__", ()),
        )
        for item in fields(kind)
    }


def _read(hint: Any, value: Any, where: str) -> Any:
    """Read a value of the type ``hint``: a dataclass, a union, a list, a tuple, a table, or a single value."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        return _read_table(hint, value, f"{where}.")
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _read_union(parts, value, where)
    if origin in (list, tuple) and isinstance(value, list):
        items = [_read(parts[0], part, where) for part in value] if is_dataclass(parts[0]) else value
        return items if origin is list else tuple(items)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {name: _read(parts[1], part, f"{where}.{name}") for name, part in value.items()}
    number = hint is float and isinstance(value, int) and not isinstance(value, bool)
    if origin is not None or not (isinstance(value, hint) or number):
        raise _type_error(where, getattr(origin or hint, "__name__", hint), value)
    return value


def _type_error(where: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{where} must be {expected}, got {str(value)[:40]!r}")


def _read_union(parts: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in parts:
        return None
    errors: list[ValueError] = []
    for part in parts:
        try:
            return _read(part, value, where)
        except ValueError as error:
            errors.append(error)
    raise errors[0]
