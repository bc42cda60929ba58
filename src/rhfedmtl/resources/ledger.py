"""The ledger records every charge with round, tier, task, terminal and type, and refuses to overspend a budget.

A run reserves the worst case of a round before it starts, and settles the reservation afterwards. `billing` computes
the charges.

Rounding. Amounts are added exactly and rounded once at the end, so 14 rounds of 100 fill a budget of 1400 to the last
bit. A limit has a relative slack of 1e-12, because three decimal steps at 0.1 must fit a budget of 0.3. A total within
that slack is reported as the limit, hence the reported ``spent <= budget`` always holds. Only `Ledger.settle` of a
measured type can record more than the limit, because the amount has been spent already. `overshoot` returns the
excess, and the ledger refuses further charges of that type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.display import amounts, facts_html
from rhfedmtl.errors import BudgetError, ConfigError, DataError, MissingExtraError
from rhfedmtl.maths.runs import Runs
from rhfedmtl.resources.billing import (
    CLOUD,
    STATION,
    STATION_LINK,
    TIERS,
    Charge,
    CloudEvent,
    Event,
    Placement,
    ReleaseEvent,
    RoundEvent,
    charges,
    totals,
)
from rhfedmtl.resources.costs import SLACK, Budget, BudgetLike, Cost, CostLike, fits

Spending = Event | Iterable[Charge] | Mapping[str, float]
COLUMNS = ("round", "tier", "task", "terminal", "type")
_ROWS_AT_ONCE = 1_000_000


class Ledger:
    """Charges and reservations of a run against hard limits.

    Parameters
    ----------
    cost
        Prices; they also define the types and how these add up.
    budget
        Limits per type; types without a limit are recorded and not limited.
    """

    def __init__(self, cost: CostLike, budget: BudgetLike = None) -> None:
        self.cost = Cost.of(cost)
        self.budget = Budget.of(budget)
        self.budget.check(self.cost)
        self._charges: list[Charge] = []
        self._last: dict[tuple[str, str], npt.NDArray[np.float64]] = {}  # latest array of amounts, by tier and type
        self._amounts = self._condensed = 0  # single amounts in memory, and the number of sums over rounds among them
        self._spent = {name: _ExactSum() for name in self.cost}
        self._reserved: dict[int, dict[str, float]] = {}
        self._next_reservation = 0

    @classmethod
    def replay(cls, cost: CostLike, budget: BudgetLike, events: Iterable[Event]) -> Ledger:
        """Recompute a ledger from the events of a run; it equals the ledger of the run."""
        ledger = cls(cost, budget)
        for event in events:
            ledger.charge(event)
        return ledger

    @property
    def spent(self) -> dict[str, float]:
        """Amount spent of each type."""
        return {name: self._reported(name, total.value) for name, total in self._spent.items()}

    @property
    def reserved(self) -> dict[str, float]:
        """Amount of each type that is reserved for rounds under way."""
        return {name: math.fsum(amounts.get(name, 0.0) for amounts in self._reserved.values()) for name in self.cost}

    @property
    def left(self) -> dict[str, float]:
        """Amount of each type that may still be spent, for display: without slack, and infinite without a limit."""
        reserved = self.reserved
        return {
            name: max(0.0, math.fsum((self.budget.get(name, math.inf), -spent, -reserved[name])))
            for name, spent in self.spent.items()
        }

    @property
    def remaining(self) -> dict[str, float]:
        """Largest total of each limited type that `charge` accepts now: `left` plus the slack of the limit."""
        return {name: self._remaining(name) for name in self.budget}

    @property
    def overshoot(self) -> dict[str, float]:
        """Amount by which measured types exceed their limit."""
        over = {name: self.spent[name] - limit for name, limit in self.budget.items()}
        return {name: amount for name, amount in over.items() if amount > 0}

    def can_afford(self, spending: Spending) -> bool:
        """Return True if an event, its charges or totals per type fit into the remaining budget of every type."""
        amounts, _ = self._priced(spending)
        return fits(amounts, {name: self._remaining(name) for name in amounts})

    def charge(self, spending: Event | Iterable[Charge]) -> dict[str, float]:
        """Record an event or charges and return their totals.

        Raises
        ------
        BudgetError
            If the charges would exceed a budget; nothing is recorded.
        """
        amounts, new_charges = self._priced(spending)
        self._refuse(amounts, new_charges)
        self._record(new_charges)
        return amounts

    def reserve(self, spending: Spending) -> int:
        """Reserve the worst case of a planned event and return the number of the reservation.

        Raises
        ------
        BudgetError
            If the worst case would exceed a budget; nothing is reserved.
        """
        amounts, new_charges = self._priced(spending)
        self._refuse(amounts, new_charges)
        self._reserved[self._next_reservation] = amounts
        self._next_reservation += 1
        return self._next_reservation - 1

    def settle(
        self, reservation: int, spending: Event | Iterable[Charge], measured: Collection[str] = ()
    ) -> dict[str, float]:
        """Replace a reservation by the actual charges and return their totals.

        Types in ``measured`` may exceed the reservation, because their amounts have been spent already. For other types
        this raises `BudgetError`.
        """
        reserved = self._reservation(reservation)
        amounts, actual = self._priced(spending)
        for name, amount in amounts.items():
            if name not in measured and amount > reserved.get(name, 0.0) * (1 + SLACK):
                raise BudgetError(
                    f"{name}: {amount:g} spent, but only {reserved.get(name, 0.0):g} reserved; "
                    "reserve the worst case, or name the type as measured"
                )
        self._record(actual)
        del self._reserved[reservation]
        return amounts

    def exact_sums(self) -> dict[str, list[float]]:
        """Return per type a list of numbers whose exact sum is the amount spent; `restore` reads it."""
        return {name: list(total.parts) for name, total in self._spent.items()}

    def restore(self, stored: Iterable[Charge], sums: Mapping[str, list[float]]) -> None:
        """Record stored charges and the `exact_sums` that belong to them.

        The sums are needed because older charges may have been condensed, which rounds them.
        """
        self._record(stored)
        for name, parts in sums.items():
            self._spent[name].parts = list(parts)

    def release(self, reservation: int) -> None:
        """Cancel a reservation of which nothing was used."""
        self._reservation(reservation)
        del self._reserved[reservation]

    def totals(self, *by: str) -> dict[str, dict[Any, float]]:
        """Return totals per type, and within a type by any of round, tier, task and terminal.

        Keys are values of the column, or tuples of values for several columns. Task and terminal are -1 for charges
        without them. For example ``totals("tier")["energy"]["station"]`` is the energy of the stations.
        """
        for name in by:
            if name not in COLUMNS[:-1]:
                raise ConfigError(f"totals by '{name}': there are {', '.join(COLUMNS[:-1])}; type is always apart")
        by_node = "task" in by or "terminal" in by
        sums = self._totals_by_node(by) if by_node else self._totals_by_charge(by)
        return {
            name: {key: self._reported(name, total) for key, total in table.items()} for name, table in sums.items()
        }

    def charges(self) -> tuple[Charge, ...]:
        """Return every charge so far, in order."""
        return tuple(self._charges)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return all charges as a table with a row per charge and node: round, tier, task, terminal, type, amount."""
        parts = [_rows(charge) for charge in self._charges] or [_NO_ROWS]
        return {name: np.concatenate([part[name] for part in parts]) for name in (*COLUMNS, "amount")}

    def with_budget(self, budget: BudgetLike) -> Ledger:
        """Return a ledger with the same charges and a new budget, for a run that continues with a larger budget."""
        ledger = Ledger(self.cost, budget)
        ledger.charge(self._charges)
        return ledger

    def condense(self, max_amounts: int) -> None:
        """Add up the older half of the charges over rounds if the ledger holds more than ``max_amounts`` amounts.

        This bounds the memory of an endless training. All totals except those by round stay the same; the sums count
        to the last round that they contain.
        """
        if self._amounts <= max(max_amounts, 2 * self._condensed):
            return
        half = int(np.searchsorted(np.cumsum(list(map(_amounts, self._charges))), self._amounts / 2)) + 1
        older, newer = self._charges[:half], self._charges[half:]
        nodes, last = _by_node(older, ("tier",)).values(), older[-1].round
        sums = [Charge.make(last, c.tier, c.type, c.layout, None, array) for c, array in nodes]
        self._charges = sums + newer
        self._condensed = sum(map(_amounts, sums))
        self._amounts = self._condensed + sum(map(_amounts, newer))

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as plain values that `from_dict` reads back exactly."""
        layouts = self._layouts()
        rows = []
        for charge in self._charges:
            position = next(i for i, layout in enumerate(layouts) if layout.equals(charge.layout))
            nodes = None if charge.nodes is None else charge.nodes.tolist()
            amount = charge.amount.tolist() if isinstance(charge.amount, np.ndarray) else charge.amount
            rows.append([charge.round, charge.tier, charge.type, position, nodes, amount])
        return self._head(layouts) | {"charges": rows}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Ledger:
        """Read what `to_dict` wrote."""
        ledger, layouts = cls._from_head(table)
        stored = []
        for round_, tier, type_, position, nodes, amount in table["charges"]:
            ids = None if nodes is None else np.array(nodes, dtype=np.int64)
            value = np.array(amount) if isinstance(amount, list) else amount
            stored.append(Charge.make(round_, _check_tier(tier), type_, layouts[position], ids, value))
        ledger._record(stored)
        return ledger

    def save(self, path: str | Path) -> None:
        """Write the ledger as JSON, or as Parquet (a row per charge and node) if the path ends in ``.parquet``."""
        path = Path(path)
        if path.suffix == ".parquet":
            self._save_parquet(path)
        else:
            path.write_text(json.dumps(self.to_dict(), allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """Read what `save` wrote."""
        path = Path(path)
        try:
            if path.suffix == ".parquet":
                return cls._load_parquet(path)
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise DataError(f"{path} is not a ledger: {type(error).__name__}: {error}") from error

    def __eq__(self, ledger: object) -> bool:
        return (
            isinstance(ledger, Ledger)
            and self.cost == ledger.cost
            and self.budget == ledger.budget
            and self._reserved == ledger._reserved
            and len(self._charges) == len(ledger._charges)
            and all(a.equals(b) for a, b in zip(self._charges, ledger._charges, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._charges)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Ledger {len(self._charges)} charges: {amounts(self.spent, self.budget)}>"

    def _repr_html_(self) -> str:
        tiers = {name: ", ".join(f"{tier} {x:g}" for tier, x in by.items()) for name, by in self.totals("tier").items()}
        return facts_html("Ledger", {"spent": amounts(self.spent, self.budget), **tiers})

    def _remaining(self, name: str) -> float:
        """Return the limit with slack minus spent and reserved amounts, rounded once."""
        limit = self.budget.get(name)
        if limit is None:
            return math.inf
        reserved = (-amounts.get(name, 0.0) for amounts in self._reserved.values())
        return math.fsum((limit, limit * SLACK, *(-part for part in self._spent[name].parts), *reserved))

    def _reported(self, name: str, total: float) -> float:
        """Return the total, or the limit if the total exceeds it only within the slack."""
        limit = self.budget.get(name, math.inf)
        return limit if limit < total <= limit + 2 * limit * SLACK else total

    def _priced(self, spending: Spending) -> tuple[dict[str, float], tuple[Charge, ...]]:
        """Return totals per type and the charges behind them (empty if ``spending`` is totals)."""
        priced: tuple[Charge, ...] = ()
        if isinstance(spending, Mapping):
            amounts = {name: float(amount) for name, amount in spending.items()}
        else:
            is_event = isinstance(spending, RoundEvent | CloudEvent | ReleaseEvent)
            priced = charges(self.cost, spending) if is_event else tuple(spending)  # type: ignore[arg-type]
            amounts = totals(priced)
        for name, amount in amounts.items():
            if name not in self.cost:
                raise BudgetError(f"'{name}' has no price; there are prices for: {', '.join(self.cost)}")
            if not 0 <= amount < math.inf:
                raise BudgetError(f"{name}: a charge of {amount} is not finite and >= 0")
        return amounts, priced

    def _refuse(self, amounts: Mapping[str, float], priced: tuple[Charge, ...]) -> None:
        """Raise `BudgetError` if a type would be overspent."""
        if fits(amounts, {name: self._remaining(name) for name in amounts}):
            return
        left = self.left
        short = [
            f"{name} {amount:g} of which {left[name]:g} is left (budget {self.budget[name]:g})"
            for name, amount in amounts.items()
            if amount > self._remaining(name)
        ]
        subject = f"round {priced[0].round}" if priced else "this"
        raise BudgetError(f"{subject} would cost {', '.join(short)}; raise the budget or do fewer local steps")

    def _record(self, new_charges: Iterable[Charge]) -> None:
        for charge in map(self._shared, new_charges):
            self._spent[charge.type].add(charge.total)
            self._charges.append(charge)
            self._amounts += _amounts(charge)

    def _shared(self, charge: Charge) -> Charge:
        """Return the charge with the array of the previous round if the amounts are equal, to save memory."""
        if not isinstance(charge.amount, np.ndarray):
            return charge
        key = charge.tier, charge.type
        if key not in self._last or not np.array_equal(self._last[key], charge.amount):
            self._last[key] = charge.amount
        return charge._replace(amount=self._last[key])

    def _reservation(self, reservation: int) -> dict[str, float]:
        try:
            return self._reserved[reservation]
        except KeyError:
            raise BudgetError(
                f"reservation {reservation} is not open: it was settled, released or never made"
            ) from None

    def _totals_by_charge(self, by: tuple[str, ...]) -> dict[str, dict[Any, float]]:
        """Return totals by columns in which a charge has a single value."""
        groups: dict[str, dict[Any, list[float]]] = {name: {} for name in self.cost}
        for charge in self._charges:
            key = tuple(getattr(charge, name) for name in by)
            groups[charge.type].setdefault(key[0] if len(by) == 1 else key, []).append(charge.total)
        return {name: {key: math.fsum(parts) for key, parts in table.items()} for name, table in groups.items()}

    def _totals_by_node(self, by: tuple[str, ...]) -> dict[str, dict[Any, float]]:
        """Return totals by task or terminal: add up arrays per node first, then assign the keys."""
        result: dict[str, dict[Any, float]] = {name: {} for name in self.cost}
        for charge, array in _by_node(self._charges, by).values():
            _add_keyed(result[charge.type], by, charge, array)
        return result

    def _layouts(self) -> list[Placement]:
        """Return every distinct layout, in order of appearance."""
        layouts: list[Placement] = []
        for charge in self._charges:
            if not any(layout.equals(charge.layout) for layout in layouts):
                layouts.append(charge.layout)
        return layouts

    def _head(self, layouts: list[Placement]) -> dict[str, Any]:
        return {
            "format": 1,
            "cost": self.cost.to_dict(),
            "budget": dict(self.budget),
            "reserved": [[number, amounts] for number, amounts in self._reserved.items()],
            "next_reservation": self._next_reservation,
            "layouts": [_layout_row(layout) for layout in layouts],
        }

    @classmethod
    def _from_head(cls, table: Mapping[str, Any]) -> tuple[Ledger, list[Placement]]:
        if table["format"] != 1:
            raise DataError(f"ledger format {table['format']} is newer than this version reads (1): upgrade rhfedmtl")
        ledger = cls(table["cost"], table["budget"])
        ledger._reserved = {number: dict(amounts) for number, amounts in table["reserved"]}
        ledger._next_reservation = table["next_reservation"]
        return ledger, [
            Placement(np.repeat(np.array(task, dtype=np.int64), *(counts or [1])), n)
            for n, task, *counts in table["layouts"]
        ]

    def _save_parquet(self, path: Path) -> None:
        pa, pq = _pyarrow()
        layouts = self._layouts()
        words = pa.dictionary(pa.int8(), pa.string())
        kinds = {"tier": words, "type": words, "amount": pa.float64()}
        names = ("charge", "layout", *COLUMNS, "amount")
        head = {"rhfedmtl": json.dumps(self._head(layouts), allow_nan=False)}
        schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in names], metadata=head)
        with pq.ParquetWriter(path, schema) as writer:
            for group in self._groups():
                parts = [_rows(charge) for _, charge in group]
                table = {name: np.concatenate([part[name] for part in parts]) for name in (*COLUMNS, "amount")}
                sizes = [len(part["round"]) for part in parts]
                positions = [next(i for i, layout in enumerate(layouts) if layout.equals(c.layout)) for _, c in group]
                table["charge"], table["layout"] = np.repeat([i for i, _ in group], sizes), np.repeat(positions, sizes)
                writer.write_table(pa.table({name: table[name] for name in names}).cast(schema))

    def _groups(self) -> Iterator[list[tuple[int, Charge]]]:
        """Yield numbered charges in groups of about a million rows, to bound memory."""
        group: list[tuple[int, Charge]] = []
        rows = 0
        for i, charge in enumerate(self._charges):
            group.append((i, charge))
            rows += charge.layout.n_terminals if charge.nodes is None else len(charge.nodes)
            if rows >= _ROWS_AT_ONCE:
                yield group
                group, rows = [], 0
        if group:
            yield group

    @classmethod
    def _load_parquet(cls, path: Path) -> Ledger:
        _, pq = _pyarrow()
        with pq.ParquetFile(path) as file:
            ledger, layouts = cls._from_head(json.loads(file.schema_arrow.metadata[b"rhfedmtl"]))
            for i in range(file.num_row_groups):
                group = file.read_row_group(i)
                column = {name: group[name].to_numpy() for name in group.column_names}
                starts = np.flatnonzero(np.diff(column["charge"], prepend=-1))
                for rows in np.split(np.arange(len(column["charge"])), starts[1:]):
                    ledger._record([_from_rows(column, rows, layouts)])
        return ledger


class _ExactSum:
    """An exact running sum as a list of non-overlapping floats (Shewchuk 1997); only `value` rounds."""

    def __init__(self) -> None:
        self.parts: list[float] = []

    @property
    def value(self) -> float:
        return math.fsum(self.parts)

    def add(self, x: float) -> None:
        parts = []
        for y in self.parts:
            if abs(x) < abs(y):
                x, y = y, x  # noqa: PLW2901
            high = x + y
            low = y - (high - x)
            if low:
                parts.append(low)
            x = high
        self.parts = [*parts, x]


def _amounts(charge: Charge) -> int:
    """Return the number of amounts or of nodes that a charge stores, whichever is larger."""
    return max(np.size(charge.nodes), np.size(charge.amount))  # type: ignore[arg-type]


def _by_node(charges: Iterable[Charge], by: tuple[str, ...]) -> dict[Any, tuple[Charge, npt.NDArray[np.float64]]]:
    """Return sums per node for each type, layout, kind of node, and for round and tier if they are in ``by``.

    Each array of sums comes with the first charge that belongs to it.
    """
    sums: dict[Any, tuple[Charge, npt.NDArray[np.float64]]] = {}
    for charge in charges:
        kind = 0 if charge.tier == CLOUD else 1 if charge.tier in (STATION, STATION_LINK) else 2
        values = tuple(getattr(charge, name) for name in by if name in ("round", "tier"))
        size = (1, charge.layout.n_tasks, charge.layout.n_terminals)[kind]
        _, array = sums.setdefault((charge.type, id(charge.layout), kind, *values), (charge, np.zeros(size)))
        array[slice(None) if charge.nodes is None else charge.nodes] += charge.amount
    return sums


def _layout_row(layout: Placement) -> list[Any]:
    """Return the number of stations, and the run-length encoding of the terminals' stations."""
    runs = Runs.of(layout.terminal_task)
    return [layout.n_tasks, runs.values.tolist(), runs.counts.tolist()]


def _rows(charge: Charge) -> dict[str, npt.NDArray[Any]]:
    task, terminal, amount = charge.columns()
    same = {name: np.full(len(task), getattr(charge, name)) for name in ("round", "tier", "type")}
    return same | {"task": task, "terminal": terminal, "amount": amount}


def _from_rows(column: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[np.int64], layouts: list[Placement]) -> Charge:
    first = rows[0]
    tier = _check_tier(str(column["tier"][first]))
    nodes = None if tier == CLOUD else column["task" if tier in (STATION, STATION_LINK) else "terminal"][rows]
    layout = layouts[column["layout"][first]]
    amount = column["amount"][rows].astype(np.float64)
    return Charge.make(int(column["round"][first]), tier, str(column["type"][first]), layout, nodes, amount)


def _add_keyed(table: dict[Any, float], by: tuple[str, ...], charge: Charge, sums: npt.NDArray[np.float64]) -> None:
    """Add the sums per node to ``table``, under the keys of the columns ``by``; ``charge`` supplies the columns."""
    nodes = np.flatnonzero(sums)
    if not len(nodes):
        return
    task, terminal, _ = charge._replace(nodes=nodes, amount=0.0).columns()
    values = {"task": task.tolist(), "terminal": terminal.tolist()}
    columns = [values.get(name) or [getattr(charge, name)] * len(nodes) for name in by]
    for key, amount in zip(zip(*columns, strict=True), sums[nodes].tolist(), strict=True):
        short = key[0] if len(by) == 1 else key
        table[short] = table.get(short, 0.0) + amount


def _check_tier(tier: str) -> str:
    if tier not in TIERS:
        raise DataError(f"unknown tier '{tier}'; known are {', '.join(TIERS)}")
    return tier


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'rhfedmtl[parquet]'") from None
    return pa, pq


_NO_ROWS: dict[str, npt.NDArray[Any]] = {
    "round": np.empty(0, dtype=np.int64),
    "tier": np.empty(0, dtype=np.str_),
    "task": np.empty(0, dtype=np.int64),
    "terminal": np.empty(0, dtype=np.int64),
    "type": np.empty(0, dtype=np.str_),
    "amount": np.empty(0),
}
