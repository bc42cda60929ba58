"""One way to read TOML: every word must be known, every value of its kind; and to write what was set.

A word that is not known is answered with the nearest one that is.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rhfedmtl.errors import ConfigError, nearest

T = TypeVar("T")
Table = dict[str, Any]


def read(path: str | Path) -> Table:
    """The table of a file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def check_words(table: Iterable[str], known: Iterable[str], what: str, where: str = "") -> None:
    """Refuse words that are not known; ``what`` they should be, as in "option of learning"."""
    known = list(known)
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}unknown {what} {name!r}{nearest(name, known)}")


def build(cls: type[T], table: Any, where: str = "") -> T:
    """A dataclass from a table; fields that are not made by its constructor are not in the table."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where.rstrip('.')} must be a table, got {table!r}")
    hints = get_type_hints(cls)
    known = {each.name: each for each in fields(cls) if each.init}  # type: ignore[arg-type]
    check_words(table, known, f"setting of {where.rstrip('.')}" if where else "setting")
    given = {name: _value(hints[name], value, f"{where}{name}") for name, value in table.items()}
    for name, each in known.items():
        if name not in given and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{where}{name} is missing")
    try:
        return cls(**given)
    except ConfigError as error:
        raise ConfigError(f"{where.rstrip('.')}: {error}" if where else str(error)) from None


def write(config: Any) -> str:
    """The text of a dataclass; what has its default is left out."""
    lines: list[str] = []
    _write_table(_changed(config), (), lines)
    return "\n".join(lines) + "\n"


def _value(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return build(kind, value, f"{where}.")  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        return tuple(_value(get_args(kind)[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if get_origin(kind) is not None:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value


def _changed(config: Any) -> Table:
    table: Table = {}
    for each in fields(config):
        value = getattr(config, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.init and (default is MISSING or value != default):
            table[each.name] = _plain(value)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return _changed(value) if is_dataclass(value) else value


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    """Plain values first, then the tables within."""
    for name, value in table.items():
        if not _is_table(value):
            lines.append(f"{name} = {_text(value)}")
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{'.'.join((*path, name))}]"]
            _write_table(value, (*path, name), lines)
        elif _is_table(value):
            for each in value:
                lines += ["", f"[[{'.'.join((*path, name))}]]"]
                _write_table(each, (*path, name), lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # a text of JSON but for this character
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(each) for each in value) + "]"
    return repr(value)
