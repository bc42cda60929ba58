"""The charges of a ledger as a few columns, for checkpoints: a training has many rounds, most of them alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rhfedmtl.resources.billing import Charge, Layout


def folded(charges: Iterable[Charge]) -> dict[str, Any]:
    """Columns with one number for each charge; nodes and amounts of those that need more stand apart."""
    layouts: dict[int, Layout] = {}
    words: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    amounts: list[float] = []
    apart: dict[int, tuple[Any, Any]] = {}
    places: dict[int, int] = {}
    for i, charge in enumerate(charges):
        layouts[id(charge.layout)] = charge.layout
        place = places.setdefault(id(charge.layout), len(places))
        names = (words.setdefault(name, len(words)) for name in (charge.tier, charge.type))
        rows.append((charge.round, place, *names))
        plain = charge.nodes is None and not isinstance(charge.amount, np.ndarray)
        amounts.append(float(charge.amount) if plain else 0.0)
        if not plain:
            apart[i] = charge.nodes, charge.amount
    return {
        "rows": np.array(rows, dtype=np.int64).reshape(-1, 4),
        "amounts": np.array(amounts),
        "apart": apart,
        "words": list(words),
        "layouts": list(layouts.values()),
    }


def unfolded(table: dict[str, Any]) -> list[Charge]:
    """The charges that `folded` took."""
    words, layouts, apart = table["words"], table["layouts"], table["apart"]
    made = []
    for i, (round_, place, tier, type_) in enumerate(table["rows"].tolist()):
        nodes, amount = apart.get(i, (None, float(table["amounts"][i])))
        made.append(Charge.make(round_, words[tier], words[type_], layouts[place], nodes, amount))
    return made
