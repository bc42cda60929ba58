"""A federation without its training rows: all that is to be known of it where the rows themselves are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request

_NAMES = ("task_names", "class_names", "feature_names", "terminal_names", "origin")
_SMALL = ("terminal_offsets", "task_offsets", "test_X", "test_y", "test_offsets")


class Recipe(NamedTuple):
    """How to come by a federation, wherever that is done."""

    request: Request
    seed: int

    def federation(self) -> Federation:
        """Load, or make, and split."""
        return self.request.federation(self.seed)


@dataclass(frozen=True, eq=False)
class Outline(Federation):
    """Sizes, names and test rows of a federation; its training rows are made by ``recipe`` where they are needed.

    ``X`` and ``y`` have the right shapes and take no memory: they hold nothing. ``digest`` is the fingerprint of the
    federation with its rows.
    """

    recipe: Recipe | None = None
    digest: str = ""

    def __post_init__(self) -> None:
        """Check the sizes alone: there is nothing else here."""
        self._check_sizes()

    @classmethod
    def made(cls, facts: dict[str, Any], recipe: Recipe) -> Outline:
        """Outline from what `facts` found where the rows are."""
        shapes = facts["rows"].items()
        empty: dict[str, Any] = {name: np.broadcast_to(np.zeros((), kind), shape) for name, (kind, shape) in shapes}
        return cls(**empty, **facts["small"], recipe=recipe, digest=facts["digest"])

    def fingerprint(self) -> str:
        """SHA-256 over everything that can change a result, as computed where the rows are."""
        return self.digest


def facts(federation: Federation) -> dict[str, Any]:
    """What an outline needs to know: as much as the test rows, and a few numbers for each terminal."""
    big = {name: getattr(federation, name) for name in ("X", "y", "sample_weight")}
    return {
        "rows": {name: (array.dtype.str, array.shape) for name, array in big.items() if array is not None},
        "small": {name: getattr(federation, name) for name in (*_SMALL, *_NAMES)},
        "digest": federation.fingerprint(),
    }
