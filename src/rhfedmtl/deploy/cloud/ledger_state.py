"""The ledger of a training as a few columns, for checkpoints: a training has many rounds, most of them alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.resources.billing import Charge, Placement
from rhfedmtl.resources.ledger import Ledger

_ONE = -1
"""Length of what is no array: all nodes, or one amount for all."""


def folded(ledger: Ledger) -> dict[str, Any]:
    """Columns with a number for each charge, or more of them one after the other; and what was spent, exactly."""
    layouts: dict[int, Placement] = {}
    words: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    nodes: list[npt.NDArray[Any]] = []
    amounts: list[npt.NDArray[Any]] = []
    places: dict[int, int] = {}
    for charge in ledger.charges():
        layouts[id(charge.layout)] = charge.layout
        place = places.setdefault(id(charge.layout), len(places))
        names = (words.setdefault(name, len(words)) for name in (charge.tier, charge.type))
        lengths = (_length(charge.nodes), _length(charge.amount))
        rows.append((charge.round, place, *names, *lengths))
        nodes.append(np.empty(0, dtype=np.int64) if charge.nodes is None else charge.nodes)
        amounts.append(np.atleast_1d(charge.amount))
    return {
        "rows": np.array(rows, dtype=np.int64).reshape(-1, 6),
        "nodes": np.concatenate([np.empty(0, dtype=np.int64), *nodes]),
        "amounts": np.concatenate([np.empty(0), *amounts]),
        "words": list(words),
        "layouts": list(layouts.values()),
        "spent": ledger.exact(),
    }


def unfold(table: dict[str, Any], ledger: Ledger) -> None:
    """Put into an empty ledger what `folded` took; what was measured may be more than its limit."""
    words, layouts, made = table["words"], table["layouts"], []
    at_node = at_amount = 0
    for round_, place, tier, type_, n_nodes, n_amounts in table["rows"].tolist():
        nodes = None if n_nodes == _ONE else np.array(table["nodes"][at_node : at_node + n_nodes])
        many = table["amounts"][at_amount : at_amount + abs(n_amounts)]
        at_node, at_amount = at_node + max(0, n_nodes), at_amount + abs(n_amounts)
        amount = float(many[0]) if n_amounts == _ONE else np.array(many)
        made.append(Charge.make(round_, words[tier], words[type_], layouts[place], nodes, amount))
    ledger.recall(made, table["spent"])


def _length(values: Any) -> int:
    return len(values) if isinstance(values, np.ndarray) else _ONE
