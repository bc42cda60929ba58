"""Prices and budgets of J named resource types.

`Cost` holds the prices and `Budget` the limits; both read text, tables and TOML files. `billing` applies the prices to
events, and `ledger` enforces the limits. This module never charges anything.

There are two ways in which a type adds up. ``sum``: every charge counts (energy, bytes, money). ``elapsed``: nodes work
in parallel, so only the slowest path of a round counts (time), and rounds add up:

    elapsed of a BS iteration = max_b [ station_round_b + max_t (H_t terminal_step_t + bytes on the link of t) ]

Within a server iteration a station need not wait for others before its next round. Time that it spends waiting is not
charged twice (``ahead`` of a round).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl import toml
from rhfedmtl.errors import BudgetError, ConfigError, nearest
from rhfedmtl.resources.registry import RESOURCES, Adds

FloatArray = npt.NDArray[np.float64]
Price = float | FloatArray

SLACK = 1e-12
"""Relative slack of a limit against rounding: three steps at 0.1 fit a budget of 0.3, although 3 * 0.1 > 0.3."""

_STATION_PRICES = ("station_round", "station_byte_up", "station_byte_down")
_TERMINAL_PRICES = ("terminal_step", "terminal_byte_up", "terminal_byte_down")
_SHORT = {"step": "terminal_step", "station": "station_round", "cloud": "cloud_round"}
_BOTH_WAYS = {
    "terminal_byte": ("terminal_byte_up", "terminal_byte_down"),
    "station_byte": ("station_byte_up", "station_byte_down"),
    "byte": ("terminal_byte_up", "terminal_byte_down", "station_byte_up", "station_byte_down"),
}
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


@dataclass(frozen=True)
class Cost(Mapping[str, Prices]):
    """Prices of named resource types: a read-only mapping from type to `Prices`."""

    types: Mapping[str, Prices]

    def __post_init__(self) -> None:
        """Check the names."""
        for name in self.types:
            _check_name(name)
        object.__setattr__(self, "types", dict(self.types))

    @classmethod
    def of(cls, source: CostLike) -> Cost:
        """Read prices from a text, several texts, a table, or the path of a TOML file.

        A text is ``energy=0.1,10`` (terminal_step, station_round, cloud_round in this order) or, by name,
        ``energy=step:0.1,station:10,cloud:5,byte:1e-6,adds:sum``. ``/`` separates the values of single terminals or
        stations, as in ``step:0.1/0.2`` (a list of a single value ends in ``/``). A table holds the same names, short
        or full.
        """
        if isinstance(source, Cost):
            return source
        if isinstance(source, Path):
            return cls.from_toml(source)
        if isinstance(source, Mapping):
            return cls({str(name): _read_prices(str(name), prices) for name, prices in source.items()})
        if isinstance(source, float | int):
            raise ConfigError(f"cost {source:g} names no resource type; write it as in energy={source:g},10")
        texts = [source] if isinstance(source, str) else list(source)
        items = [item for text in texts for item in _split(text, "--cost energy=0.1,10")]
        _refuse_repeats(name for name, _ in items)
        return cls({name: _read_prices(name, spec) for name, spec in items})

    @classmethod
    def from_toml(cls, path: str | Path) -> Cost:
        """Read the table ``[cost]`` of a TOML file, or the whole file if it has no such table."""
        document = toml.read(path)
        rest = {name: prices for name, prices in document.items() if name != "budget"}
        return cls.of(_table(document.get("cost", rest), path))

    def to_dict(self) -> dict[str, dict[str, float | list[float] | str]]:
        """Return the table that `of` reads back."""
        return {name: prices.to_dict() for name, prices in self.types.items()}

    def to_toml(self) -> str:
        """Return the text of a price file that `from_toml` reads back."""
        lines = []
        for name, table in self.to_dict().items():
            lines += [f"[cost.{name}]"]
            lines += [f'{key} = "{v}"' if isinstance(v, str) else f"{key} = {v!r}" for key, v in table.items()]
            lines += [""]
        return "\n".join(lines)

    def format(self) -> tuple[str, ...]:
        """Return a text per type that `of` reads back."""
        return tuple(f"{name}={_format_prices(prices)}" for name, prices in self.types.items())

    def __getitem__(self, name: str) -> Prices:
        try:
            return self.types[name]
        except KeyError:
            raise ConfigError(f"no prices for '{name}'; there are prices for: {_listed(self.types)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.types

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def has_bytes(self, names: Iterable[str]) -> bool:
        """Return True if any of these types has a price for bytes."""
        tables = (self.types[name] for name in names if name in self.types)
        return any(np.any(getattr(prices, field)) for prices in tables for field in _BOTH_WAYS["byte"])

    def check(self, n_terminals: int, n_stations: int) -> None:
        """Refuse price arrays that do not have a value per terminal or per station."""
        for name, prices in self.types.items():
            for fields_of_tier, count, tier in (
                (_TERMINAL_PRICES, n_terminals, "terminals"),
                (_STATION_PRICES, n_stations, "stations"),
            ):
                for field in fields_of_tier:
                    price = getattr(prices, field)
                    if isinstance(price, np.ndarray) and len(price) != count:
                        raise ConfigError(
                            f"cost {name}: {field} has {len(price)} values, but there are {count} {tier}; "
                            "give a value for each, or a single number for all"
                        )


CostLike = Cost | str | Sequence[str] | Mapping[str, Any] | Path


@dataclass(frozen=True)
class Budget(Mapping[str, float]):
    """Hard limits on spending, by resource type. A type without a limit is recorded and not limited."""

    limits: Mapping[str, float]

    def __post_init__(self) -> None:
        """Check the names and values."""
        clean = {}
        for name, limit in self.limits.items():
            _check_name(name)
            value = _number(f"budget {name}", limit)
            if not 0 <= value < math.inf:
                raise BudgetError(
                    f"budget {name}={limit}: a limit is a finite number >= 0; leave it out for 'unlimited'"
                )
            clean[name] = value
        object.__setattr__(self, "limits", clean)

    @classmethod
    def of(cls, source: BudgetLike) -> Budget:
        """Read limits from a text (``energy=1400``, ``energy=1400,time=60``), texts, a table, or a TOML file."""
        if source is None:
            return cls({})
        if isinstance(source, Budget):
            return source
        if isinstance(source, Path):
            return cls.from_toml(source)
        if isinstance(source, Mapping):
            return cls(source)
        if isinstance(source, Real):
            raise ConfigError(f"budget {source:g} names no resource type; write it as in energy={source:g}")
        texts = [source] if isinstance(source, str) else list(source)
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"budget {texts} names no resource type; write it as in ['energy=1400']")
        items = [item for text in texts for item in _split(text, "--budget energy=1400")]
        _refuse_repeats(name for name, _ in items)
        return cls({name: _number(f"budget {name}", spec) for name, spec in items})

    @classmethod
    def from_toml(cls, path: str | Path) -> Budget:
        """Read the table ``[budget]`` of a TOML file; a file without it limits nothing."""
        return cls(_table(toml.read(path).get("budget", {}), path))

    def format(self) -> tuple[str, ...]:
        """Return a text per type that `of` reads back."""
        return tuple(f"{name}={limit!r}" for name, limit in self.limits.items())

    def check(self, cost: Cost) -> None:
        """Refuse a limit on a type that has no price: nothing would ever be charged to it."""
        for name in self.limits:
            if name not in cost:
                priced = f"; there are prices for: {', '.join(cost)}" if len(cost) else ""
                example = f"{name}=byte:1" if name == "bytes" else f"{name}=0.1,10 (or {name}=byte:1)"
                raise BudgetError(
                    f"budget {name}={self.limits[name]:g} has no price: set it, as in --cost {example}{priced}"
                    f"{nearest(name, {'energy', *cost} - {name})}"
                )

    def with_slack(self) -> dict[str, float]:
        """Return the limits plus their `SLACK`: the amounts that a plan may spend."""
        return {name: limit + limit * SLACK for name, limit in self.limits.items()}

    def __getitem__(self, name: str) -> float:
        return self.limits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.limits)

    def __len__(self) -> int:
        return len(self.limits)


BudgetLike = Budget | str | Sequence[str] | Mapping[str, float] | Path | None


def read_resources(
    cost: Sequence[str] | None, budget: Sequence[str] | None, *, default: Sequence[str] = ()
) -> tuple[Cost, Budget]:
    """Read prices and limits from the command line: texts, or a single file of prices.

    Without prices, each limited type gets its default prices from `RESOURCES`; without a budget, the types in
    ``default`` do. Energy costs 0.1 per step and 10 per round, as in the paper. Types without default
    prices get no price.
    """
    limits = Budget.of(budget)
    texts = list(cost or ())
    files = [text for text in texts if "=" not in text]
    if len(files) > 1 or (files and len(texts) > 1):
        raise ConfigError(f"--cost {files[0]}: give one file of prices, or prices as in energy=0.1,10, not both")
    if files:
        return Cost.of(Path(files[0])), limits
    priced = [name for name in (limits or default) if name in RESOURCES and RESOURCES[name].prices]
    return Cost.of(texts or [f"{name}={RESOURCES[name].prices}" for name in priced]), limits


def fits(totals: Mapping[str, float], limits: Mapping[str, float]) -> bool:
    """Return True if no type exceeds its limit; types without a limit always fit."""
    return all(not amount or amount <= limits.get(name, math.inf) for name, amount in totals.items())


def times_affordable(totals: Mapping[str, float], limits: Mapping[str, float], max_times: int) -> int:
    """Return how often ``totals`` can be spent within ``limits``, at most ``max_times``."""
    times = max_times
    for name, amount in totals.items():
        limit = limits.get(name, math.inf)
        if amount > 0 and limit < times * amount:
            times = math.floor(limit / amount)
            times = max(0, times - (times * amount > limit))
    return times


BY_BUDGET = ("budget spent", "plan completed")
"""Endings of runs and plans that are due to a budget."""


def binding(totals: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Return the type that runs out first if ``totals`` is spent repeatedly, or None without a limited type."""
    shares = {
        name: amount / limits[name] if limits[name] else math.inf
        for name, amount in totals.items()
        if amount > 0 and name in limits
    }
    return max(shares, key=shares.__getitem__) if shares else None


def _price(name: str, value: Any) -> Price:
    """Check a price: finite, not negative, and a number or a one-dimensional array."""
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


def _read_prices(name: str, source: Any) -> Prices:
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
    _refuse_repeats([*table, *named])
    return table | named


def _parse_price(name: str, text: str) -> float | list[float]:
    values = [_number(f"cost {name}", value) for value in text.removesuffix("/").split("/")]
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
        if key in _BOTH_WAYS:
            both_ways |= dict.fromkeys(_BOTH_WAYS[key], value)
            continue
        full = _SHORT.get(key, key)
        if full not in (*PRICE_NAMES, "adds"):
            names = ", ".join((*_SHORT, *_BOTH_WAYS, *PRICE_NAMES, "adds"))
            raise ConfigError(f"cost {name}: unknown price '{key}'; known are {names}")
        _refuse_repeats((*table, full))
        table[full] = value
    return both_ways | table


def _format_prices(prices: Prices) -> str:
    parts = []
    for key, value in prices.to_dict().items():
        if isinstance(value, list):
            value = "/".join(map(repr, value)) + "/" * (len(value) == 1)  # noqa: PLW2901
        parts.append(f"{key}:{value}")
    return ",".join(parts)


def _split(text: str, example: str) -> list[tuple[str, str]]:
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


def _number(label: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{label}: '{value}' is not a number") from None


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"'{name}' is not a name for a resource type: use letters, digits, '_' and '-'")


def _refuse_repeats(names: Iterable[str]) -> None:
    unique: set[str] = set()
    for name in names:
        if name in unique:
            raise ConfigError(f"'{name}' is given twice; give it once")
        unique.add(name)


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Return amounts in the syntax of a budget, without infinite amounts."""
    return ", ".join(f"{name}={amount:.12g}" for name, amount in amounts.items() if math.isfinite(amount))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _table(value: Any, path: str | Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a table of resource types, got {value!r}")
    return value
