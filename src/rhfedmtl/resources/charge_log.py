"""Keep the charges of a run, and add them up by round, tier, task, terminal and type.

Amounts are added exactly and rounded once at the end, so 14 rounds of 100 fill a budget of 1400 to the last bit. The
`ledger` has a log and enforces the limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.billing import CLOUD, STATION, STATION_LINK, Charge
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.exact import ExactSum

COLUMNS = ("round", "tier", "task", "terminal", "type")
_NO_ROWS: dict[str, npt.NDArray[Any]] = {
    "round": np.empty(0, dtype=np.int64),
    "tier": np.empty(0, dtype=np.str_),
    "task": np.empty(0, dtype=np.int64),
    "terminal": np.empty(0, dtype=np.int64),
    "type": np.empty(0, dtype=np.str_),
    "amount": np.empty(0),
}


class ChargeLog:
    """Log of all charges in order (``charges``), with the exact total of each type (``sums``)."""

    def __init__(self, types: Iterable[str]) -> None:
        self.charges: list[Charge] = []
        self.sums = {name: ExactSum() for name in types}
        self._last: dict[tuple[str, str], npt.NDArray[np.float64]] = {}  # latest array of amounts, by tier and type
        self._amounts = self._condensed = 0  # single amounts in memory, and the number of sums over rounds among them

    def add(self, new_charges: Iterable[Charge]) -> None:
        """Record charges. To save memory, equal arrays of successive rounds become the same array."""
        for new in new_charges:
            charge = new
            if isinstance(new.amount, np.ndarray):
                last = self._last.get((new.tier, new.type))
                if last is None or not np.array_equal(last, new.amount):
                    last = self._last[new.tier, new.type] = new.amount
                charge = new._replace(amount=last)
            self.sums[charge.type].add(charge.total)
            self.charges.append(charge)
            self._amounts += _amounts(charge)

    def exact_sums(self) -> dict[str, list[float]]:
        """Return per type a list of numbers whose exact sum is the amount spent; `restore` reads it."""
        return {name: list(total.parts) for name, total in self.sums.items()}

    def restore(self, stored: Iterable[Charge], sums: Mapping[str, list[float]]) -> None:
        """Record stored charges and the `exact_sums` that belong to them.

        The sums are needed because older charges may have been condensed, which rounds them.
        """
        self.add(stored)
        for name, parts in sums.items():
            self.sums[name].parts = list(parts)

    def condense(self, max_amounts: int) -> None:
        """Add up the older half of the charges over rounds if the log holds more than ``max_amounts`` amounts.

        This bounds the memory of an endless training. All totals except those by round stay the same; the sums count
        to the last round that they contain.
        """
        if self._amounts <= max(max_amounts, 2 * self._condensed):
            return
        half = int(np.searchsorted(np.cumsum(list(map(_amounts, self.charges))), self._amounts / 2)) + 1
        older, newer = self.charges[:half], self.charges[half:]
        nodes, last = _by_node(older, ("tier",)).values(), older[-1].round
        sums = [Charge.make(last, c.tier, c.type, c.layout, None, array) for c, array in nodes]
        self.charges = sums + newer
        self._condensed = sum(map(_amounts, sums))
        self._amounts = self._condensed + sum(map(_amounts, newer))

    def totals(self, *by: str) -> dict[str, dict[Any, float]]:
        """Return totals per type, and within a type by any of round, tier, task and terminal.

        Keys are values of the column, or tuples of values for several columns. Task and terminal are -1 for charges
        without them.
        """
        for name in by:
            if name not in COLUMNS[:-1]:
                raise ConfigError(f"totals by '{name}': there are {', '.join(COLUMNS[:-1])}; type is always apart")
        result: dict[str, dict[Any, float]] = {name: {} for name in self.sums}
        if "task" in by or "terminal" in by:  # add up arrays per node first, then assign the keys
            for charge, sums in _by_node(self.charges, by).values():
                nodes, table = np.flatnonzero(sums), result[charge.type]
                task, terminal, _ = charge._replace(nodes=nodes, amount=0.0).columns()
                values = {"task": task.tolist(), "terminal": terminal.tolist()}
                columns = [values.get(name) or [getattr(charge, name)] * len(nodes) for name in by]
                for keys, amount in zip(zip(*columns, strict=True), sums[nodes].tolist(), strict=True):
                    key = keys[0] if len(by) == 1 else keys
                    table[key] = table.get(key, 0.0) + amount
            return result
        groups: dict[tuple[str, Any], list[float]] = {}
        for charge in self.charges:
            key = tuple(getattr(charge, name) for name in by)
            groups.setdefault((charge.type, key[0] if len(by) == 1 else key), []).append(charge.total)
        for (name, group), parts in groups.items():
            result[name][group] = math.fsum(parts)
        return result

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return all charges as a table with a row per charge and node: round, tier, task, terminal, type, amount."""
        parts = [rows_of(charge) for charge in self.charges] or [_NO_ROWS]
        return {name: np.concatenate([part[name] for part in parts]) for name in (*COLUMNS, "amount")}

    def layouts(self) -> list[Placement]:
        """Return every distinct layout, in order of appearance."""
        layouts: list[Placement] = []
        for charge in self.charges:
            if not any(layout.equals(charge.layout) for layout in layouts):
                layouts.append(charge.layout)
        return layouts

    def equals(self, log: ChargeLog) -> bool:
        """Return True if both hold the same charges in the same order."""
        return len(self) == len(log) and all(a.equals(b) for a, b in zip(self.charges, log.charges, strict=True))

    def __len__(self) -> int:
        return len(self.charges)


def rows_of(charge: Charge) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a charge, with a row per node."""
    task, terminal, amount = charge.columns()
    same = {name: np.full(len(task), getattr(charge, name)) for name in ("round", "tier", "type")}
    return same | {"task": task, "terminal": terminal, "amount": amount}


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
