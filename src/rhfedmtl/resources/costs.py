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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl import toml
from rhfedmtl.errors import BudgetError, ConfigError, nearest
from rhfedmtl.resources.prices import (
    BOTH_WAYS,
    Prices,
    check_name,
    format_prices,
    read_number,
    read_prices,
    refuse_repeats,
    split_types,
)
from rhfedmtl.resources.registry import RESOURCES

SLACK = 1e-12
"""Relative slack of a limit against rounding: three steps at 0.1 fit a budget of 0.3, although 3 * 0.1 > 0.3."""

_STATION_PRICES = ("station_round", "station_byte_up", "station_byte_down")
_TERMINAL_PRICES = ("terminal_step", "terminal_byte_up", "terminal_byte_down")


@dataclass(frozen=True)
class Cost(Mapping[str, Prices]):
    """Prices of named resource types: a read-only mapping from type to `Prices`."""

    types: Mapping[str, Prices]

    def __post_init__(self) -> None:
        """Check the names."""
        for name in self.types:
            check_name(name)
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
            return cls({str(name): read_prices(str(name), prices) for name, prices in source.items()})
        if isinstance(source, float | int):
            raise ConfigError(f"cost {source:g} names no resource type; write it as in energy={source:g},10")
        texts = [source] if isinstance(source, str) else list(source)
        items = [item for text in texts for item in split_types(text, "--cost energy=0.1,10")]
        refuse_repeats(name for name, _ in items)
        return cls({name: read_prices(name, spec) for name, spec in items})

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
        return tuple(f"{name}={format_prices(prices)}" for name, prices in self.types.items())

    def __getitem__(self, name: str) -> Prices:
        try:
            return self.types[name]
        except KeyError:
            raise ConfigError(
                f"no prices for '{name}'; there are prices for: {', '.join(self.types) or 'nothing'}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.types

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def has_bytes(self, names: Iterable[str]) -> bool:
        """Return True if any of these types has a price for bytes."""
        tables = (self.types[name] for name in names if name in self.types)
        return any(np.any(getattr(prices, field)) for prices in tables for field in BOTH_WAYS["byte"])

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
            check_name(name)
            value = read_number(f"budget {name}", limit)
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
        items = [item for text in texts for item in split_types(text, "--budget energy=1400")]
        refuse_repeats(name for name, _ in items)
        return cls({name: read_number(f"budget {name}", spec) for name, spec in items})

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


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Return amounts in the syntax of a budget, without infinite amounts."""
    return ", ".join(f"{name}={amount:.12g}" for name, amount in amounts.items() if math.isfinite(amount))


def _table(value: Any, path: str | Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a table of resource types, got {value!r}")
    return value
