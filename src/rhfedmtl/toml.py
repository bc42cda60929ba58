"""Read TOML with strict checks, and write settings as TOML.

All configuration files go through `read` and `build`: an unknown key is refused with a hint at the most similar key,
and every value must have the type of its field. `write` omits default values.
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
    """Return the table in a file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def check_words(table: Iterable[str], names: Iterable[str], kind: str, where: str = "") -> None:
    """Refuse unknown words; ``kind`` says what they should be, as in "option of learning"."""
    names = list(names)
    for word in table:
        if word not in names:
            raise ConfigError(f"{where}unknown {kind} {word!r}{nearest(word, names)}")


def build(cls: type[T], table: Any, where: str = "") -> T:
    """Build a dataclass from a table; fields that its constructor does not take are not allowed."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where.rstrip('.')} must be a table, got {table!r}")
    hints = get_type_hints(cls)
    settings = {item.name: item for item in fields(cls) if item.init}  # type: ignore[arg-type]
    check_words(table, settings, f"setting of {where.rstrip('.')}" if where else "setting")
    values = {name: _value(hints[name], value, f"{where}{name}") for name, value in table.items()}
    for name, item in settings.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"{where}{name} is missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where.rstrip('.')}: {error}" if where else str(error)) from None


def write(config: Any) -> str:
    """Return the TOML text of a dataclass, without fields that have their default."""
    lines: list[str] = []
    _write_table(_changed(config), (), lines)
    return "\n".join(lines) + "\n"


def _value(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return build(kind, value, f"{where}.")  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        return tuple(_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(kind) is not None:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value


def _changed(config: Any) -> Table:
    table: Table = {}
    for item in fields(config):
        value = getattr(config, item.name)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if item.init and (default is MISSING or value != default):
            table[item.name] = _plain(value)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _changed(value) if is_dataclass(value) else value


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    """Write plain values first, then nested tables."""
    for name, value in table.items():
        if not _is_table(value):
            lines.append(f"{name} = {_text(value)}")
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{'.'.join((*path, name))}]"]
            _write_table(value, (*path, name), lines)
        elif _is_table(value):
            for row in value:
                lines += ["", f"[[{'.'.join((*path, name))}]]"]
                _write_table(row, (*path, name), lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML must escape it, JSON need not
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return repr(value)
