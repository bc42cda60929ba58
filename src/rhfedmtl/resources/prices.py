"""Prices of a resource type, and the text, table or list that they are read from.

`costs.Cost` holds the `Prices` of all types of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.registry import RESOURCES, Adds

FloatArray = npt.NDArray[np.float64]
Price = float | FloatArray

_SHORT = {"step": "terminal_step", "station": "station_round", "cloud": "cloud_round"}
BOTH_WAYS = {
    "terminal_byte": ("terminal_byte_up", "terminal_byte_down"),
    "station_byte": ("station_byte_up", "station_byte_down"),
    "byte": ("terminal_byte_up", "terminal_byte_down", "station_byte_up", "station_byte_down"),
}
"""Short names of a price for both directions."""
_POSITIONS = ("terminal_step", "station_round", "cloud_round")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of a resource type: each is a number, or an array with a value per terminal or per station.

    ``terminal_step`` (a row visited), ``terminal_byte_up`` and ``terminal_byte_down`` (terminal ↔ station) may
    differ by terminal; ``station_round`` (a BS iteration), ``station_byte_up`` and ``station_byte_down``
    (station ↔ cloud) by station; ``cloud_round`` is the price of a server iteration.
    """

    terminal_step: Price = 0.0
    station_round: Price = 0.0
    cloud_round: float = 0.0
    terminal_byte_up: Price = 0.0
    terminal_byte_down: Price = 0.0
    station_byte_up: Price = 0.0
    station_byte_down: Price = 0.0
    adds: Adds = "sum"

    def __post_init__(self) -> None:
        """Check every price and freeze the arrays."""
        for name in PRICE_NAMES:
            object.__setattr__(self, name, _price(name, getattr(self, name)))
        if self.adds not in ("sum", "elapsed"):
            raise ConfigError(f"adds={self.adds!r}: a resource type adds up as 'sum' or as 'elapsed'")

    def to_dict(self) -> dict[str, float | list[float] | str]:
        """Return every price that is not zero, and ``adds``."""
        table: dict[str, float | list[float] | str] = {}
        for name in PRICE_NAMES:
            price = getattr(self, name)
            if isinstance(price, np.ndarray):
                table[name] = price.tolist()
            elif price:
                table[name] = price
        return table | {"adds": self.adds}

    def __eq__(self, prices: object) -> bool:
        return isinstance(prices, Prices) and self.to_dict() == prices.to_dict()

    __hash__ = None  # type: ignore[assignment]


PRICE_NAMES = tuple(field.name for field in fields(Prices) if field.name != "adds")


def _price(name: str, value: Any) -> Price:
    """Check a price: finite, not negative, and a number or a flat array."""
    try:
        price = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r} is not a price: use a number, or a number per node") from None
    if price.ndim > 1 or price.size == 0 or (price.ndim and name == "cloud_round"):
        raise ConfigError(f"{name} has shape {price.shape}: give a number, or a number per node")
    bad = ~(np.isfinite(price) & (price >= 0))
    if bad.any():
        where = f" at node {int(np.argmax(bad))}" if price.ndim else ""
        raise ConfigError(f"{name}={price[bad][0]:g}{where}: a price is a finite number >= 0")
    if not price.ndim:
        return float(price)
    price.flags.writeable = False
    return price


def read_prices(name: str, source: Any) -> Prices:
    """Read the prices of a type from `Prices`, a table, a list by position, a number or text."""
    if isinstance(source, Prices):
        return source
    if isinstance(source, str):
        table = _parse_prices(name, source)
    elif isinstance(source, Mapping):
        table = _full_names(name, source.items())
    elif isinstance(source, Sequence):
        table = _by_position(name, source)
    else:
        table = {"terminal_step": source}
    table.setdefault("adds", RESOURCES[name].adds if name in RESOURCES else "sum")
    try:
        return Prices(**table)
    except ConfigError as error:
        raise ConfigError(f"cost {name}: {error}") from None


def _parse_prices(name: str, text: str) -> dict[str, Any]:
    """Read ``0.1,10`` or ``step:0.1,station:10`` or ``0.1,cloud:5`` into a table with full names."""
    parts = [part.strip() for part in text.split(",")]
    n_bare = next((i for i, part in enumerate(parts) if ":" in part), len(parts))
    table = _by_position(name, [_parse_price(name, part) for part in parts[:n_bare]])
    pairs = []
    for part in parts[n_bare:]:
        key, colon, value = part.partition(":")
        if not colon:
            raise ConfigError(f"cost {name}: '{part}' comes after named prices; name it too, as in step:{part}")
        pairs.append((key.strip(), value if key.strip() == "adds" else _parse_price(name, value)))
    named = _full_names(name, pairs)
    refuse_repeats([*table, *named])
    return table | named


def _parse_price(name: str, text: str) -> float | list[float]:
    values = [read_number(f"cost {name}", value) for value in text.removesuffix("/").split("/")]
    return values if "/" in text else values[0]


def _by_position(name: str, values: Sequence[Any]) -> dict[str, Any]:
    if len(values) > len(_POSITIONS):
        raise ConfigError(f"cost {name}: {len(values)} prices by position; the positions are {', '.join(_POSITIONS)}")
    return dict(zip(_POSITIONS, values, strict=False))


def _full_names(name: str, pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Replace short names by full names, and a price for both directions by a price for each."""
    table: dict[str, Any] = {}
    both_ways: dict[str, Any] = {}
    for key, value in pairs:
        if key in BOTH_WAYS:
            both_ways |= dict.fromkeys(BOTH_WAYS[key], value)
            continue
        full = _SHORT.get(key, key)
        if full not in (*PRICE_NAMES, "adds"):
            names = ", ".join((*_SHORT, *BOTH_WAYS, *PRICE_NAMES, "adds"))
            raise ConfigError(f"cost {name}: unknown price '{key}'; known are {names}")
        refuse_repeats((*table, full))
        table[full] = value
    return both_ways | table


def format_prices(prices: Prices) -> str:
    """Return a text that `read_prices` reads back."""
    parts = []
    for key, value in prices.to_dict().items():
        if isinstance(value, list):
            value = "/".join(map(repr, value)) + "/" * (len(value) == 1)  # noqa: PLW2901
        parts.append(f"{key}:{value}")
    return ",".join(parts)


def split_types(text: str, example: str) -> list[tuple[str, str]]:
    """Split ``a=1,2,b=3`` into [("a", "1,2"), ("b", "3")]."""
    items: list[tuple[str, str]] = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            items.append((name.strip(), value))
        elif items:
            items[-1] = (items[-1][0], f"{items[-1][1]},{part}")
        else:
            name = part.strip()
            if _NAME.fullmatch(name):
                raise ConfigError(f"'{name}' has no number: write it as in {example}")
            raise ConfigError(f"'{text}' names no resource type; write it as in {example}")
    return items


def read_number(label: str, value: Any) -> float:
    """Return the value as a number; the error starts with ``label``."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{label}: '{value}' is not a number") from None


def check_name(name: Any) -> None:
    """Refuse a name that no resource type may have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"'{name}' is not a name for a resource type: use letters, digits, '_' and '-'")


def refuse_repeats(names: Iterable[str]) -> None:
    """Refuse a repeated name."""
    unique: set[str] = set()
    for name in names:
        if name in unique:
            raise ConfigError(f"'{name}' is given twice; give it once")
        unique.add(name)
