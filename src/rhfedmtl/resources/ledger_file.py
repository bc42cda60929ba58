"""Save a ledger and load it again: as plain values, JSON, or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import DataError, MissingExtraError
from rhfedmtl.maths.runs import Runs
from rhfedmtl.resources.billing import CLOUD, STATION, STATION_LINK, TIERS, Charge
from rhfedmtl.resources.charge_log import COLUMNS, rows_of
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.ledger import Ledger

_ROWS_AT_ONCE = 1_000_000


def save_ledger(ledger: Ledger, path: str | Path) -> None:
    """Write a ledger as JSON, or as Parquet (a row per charge and node) if the path ends in ``.parquet``."""
    path = Path(path)
    if path.suffix == ".parquet":
        _save_parquet(ledger, path)
    else:
        path.write_text(json.dumps(ledger_to_dict(ledger), allow_nan=False), encoding="utf-8")


def load_ledger(path: str | Path) -> Ledger:
    """Read what `save_ledger` wrote."""
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            return _load_parquet(path)
        return ledger_from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DataError(f"{path} is not a ledger: {type(error).__name__}: {error}") from error


def ledger_to_dict(ledger: Ledger) -> dict[str, Any]:
    """Return the ledger as plain values that `ledger_from_dict` reads back exactly."""
    layouts = ledger.log.layouts()
    rows = []
    for charge in ledger.log.charges:
        nodes = None if charge.nodes is None else charge.nodes.tolist()
        amount = charge.amount.tolist() if isinstance(charge.amount, np.ndarray) else charge.amount
        rows.append([charge.round, charge.tier, charge.type, _position(layouts, charge), nodes, amount])
    return _head(ledger, layouts) | {"charges": rows}


def ledger_from_dict(table: Mapping[str, Any]) -> Ledger:
    """Read what `ledger_to_dict` returned."""
    ledger, layouts = _from_head(table)
    stored = []
    for round_, tier, type_, position, nodes, amount in table["charges"]:
        ids = None if nodes is None else np.array(nodes, dtype=np.int64)
        value = np.array(amount) if isinstance(amount, list) else amount
        stored.append(Charge.make(round_, _check_tier(tier), type_, layouts[position], ids, value))
    ledger.log.add(stored)
    return ledger


def _head(ledger: Ledger, layouts: list[Placement]) -> dict[str, Any]:
    """Return all plain values except the charges; a layout is the run-length encoding of the terminals' stations."""
    runs = [Runs.of(layout.terminal_task) for layout in layouts]
    return {
        "format": 1,
        "cost": ledger.cost.to_dict(),
        "budget": dict(ledger.budget),
        "reserved": [[number, amounts] for number, amounts in ledger.reservations.items()],
        "next_reservation": ledger.next_reservation,
        "layouts": [[a.n_tasks, b.values.tolist(), b.counts.tolist()] for a, b in zip(layouts, runs, strict=True)],
    }


def _from_head(table: Mapping[str, Any]) -> tuple[Ledger, list[Placement]]:
    if table["format"] != 1:
        raise DataError(f"ledger format {table['format']} is newer than this version reads (1): upgrade rhfedmtl")
    ledger = Ledger(table["cost"], table["budget"])
    ledger.reservations = {number: dict(amounts) for number, amounts in table["reserved"]}
    ledger.next_reservation = table["next_reservation"]
    return ledger, [
        Placement(np.repeat(np.array(task, dtype=np.int64), *(counts or [1])), n)
        for n, task, *counts in table["layouts"]
    ]


def _save_parquet(ledger: Ledger, path: Path) -> None:
    pa, pq = _pyarrow()
    layouts = ledger.log.layouts()
    words = pa.dictionary(pa.int8(), pa.string())
    kinds = {"tier": words, "type": words, "amount": pa.float64()}
    names = ("charge", "layout", *COLUMNS, "amount")
    head = {"rhfedmtl": json.dumps(_head(ledger, layouts), allow_nan=False)}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in names], metadata=head)
    with pq.ParquetWriter(path, schema) as writer:
        for group in _groups(ledger.log.charges):
            parts = [rows_of(charge) for _, charge in group]
            table = {name: np.concatenate([part[name] for part in parts]) for name in (*COLUMNS, "amount")}
            sizes = [len(part["round"]) for part in parts]
            positions = [_position(layouts, charge) for _, charge in group]
            table["charge"], table["layout"] = np.repeat([i for i, _ in group], sizes), np.repeat(positions, sizes)
            writer.write_table(pa.table({name: table[name] for name in names}).cast(schema))


def _load_parquet(path: Path) -> Ledger:
    _, pq = _pyarrow()
    with pq.ParquetFile(path) as file:
        ledger, layouts = _from_head(json.loads(file.schema_arrow.metadata[b"rhfedmtl"]))
        for i in range(file.num_row_groups):
            group = file.read_row_group(i)
            column = {name: group[name].to_numpy() for name in group.column_names}
            starts = np.flatnonzero(np.diff(column["charge"], prepend=-1))
            for rows in np.split(np.arange(len(column["charge"])), starts[1:]):
                ledger.log.add([_from_rows(column, rows, layouts)])
    return ledger


def _groups(charges: list[Charge]) -> Iterator[list[tuple[int, Charge]]]:
    """Yield numbered charges in groups of about a million rows, to bound memory."""
    sizes = [charge.layout.n_terminals if charge.nodes is None else len(charge.nodes) for charge in charges]
    group_of = (np.cumsum(sizes) // _ROWS_AT_ONCE).tolist()
    for _, group in groupby(enumerate(charges), key=lambda numbered: group_of[numbered[0]]):
        yield list(group)


def _from_rows(column: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[np.int64], layouts: list[Placement]) -> Charge:
    first = rows[0]
    tier = _check_tier(str(column["tier"][first]))
    nodes = None if tier == CLOUD else column["task" if tier in (STATION, STATION_LINK) else "terminal"][rows]
    layout = layouts[column["layout"][first]]
    amount = column["amount"][rows].astype(np.float64)
    return Charge.make(int(column["round"][first]), tier, str(column["type"][first]), layout, nodes, amount)


def _position(layouts: list[Placement], charge: Charge) -> int:
    """Return the position of the charge's layout in the list."""
    return next(i for i, layout in enumerate(layouts) if layout.equals(charge.layout))


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
