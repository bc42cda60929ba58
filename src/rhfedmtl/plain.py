"""Dataclasses as plain values that JSON can hold, and back: what is read is checked against the types of the fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_SIMPLE = frozenset({int, str, bool, NoneType})
BESIDE = object()
"""``Annotated[dict[str, …], BESIDE]`` is a field whose entries stand beside the others, in no table of their own."""


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, tuples as lists, and NaN and infinity, which JSON does not have, as None."""
    if is_dataclass(value):
        value = _table(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):  # there are many numbers in lists: no call for each
        return [
            part if type(part) in _SIMPLE or (type(part) is float and math.isfinite(part)) else plain(part)
            for part in value
        ]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(value: Any) -> dict[str, Any]:
    if hasattr(value, "to_plain"):  # a class whose fields depend on what is installed
        own: dict[str, Any] = value.to_plain()
        return own
    table: dict[str, Any] = {}
    for name, each in _fields(value.__class__).items():
        part = getattr(value, name)
        table |= part if each.beside else {name: part}
    return table


def read(kind: type[T], value: Any) -> T:
    """The dataclass that `plain` wrote; a `ValueError` says what is missing or of another type.

    What the class does not know is passed over. Numbers in lists are not looked at one by one: there are millions.
    """
    found: T = _read_table(kind, value, "")
    return found


def _read_table(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _other(where.rstrip(".") or "it", "a table", value)
    if hasattr(kind, "from_plain"):
        return kind.from_plain(value)
    known, given = _fields(kind), {}
    for name, each in known.items():
        if each.beside:
            given[name] = _read(each.hint, {k: v for k, v in value.items() if k not in known}, where + name)
        elif name in value:
            given[name] = _read(each.hint, value[name], where + name)
        elif each.required:
            raise ValueError(f"{where}{name} is missing")
    return kind(**given)


class _Field(NamedTuple):
    hint: Any
    required: bool
    beside: bool


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    hints, marked = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    return {
        each.name: _Field(
            hints[each.name],
            each.default is MISSING and each.default_factory is MISSING,
            BESIDE in getattr(marked[each.name], "__metadata__", ()),
        )
        for each in fields(kind)
    }


def _read(hint: Any, value: Any, where: str) -> Any:
    """A value of the type ``hint``: another dataclass, a union, a list, a tuple, a table, or a single value."""
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
        raise _other(where, getattr(origin or hint, "__name__", hint), value)
    return value


def _other(where: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{where} must be {wanted}, got {str(value)[:40]!r}")


def _read_union(parts: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in parts:
        return None
    failed: list[ValueError] = []
    for part in parts:
        try:
            return _read(part, value, where)
        except ValueError as error:
            failed.append(error)
    raise failed[0]
