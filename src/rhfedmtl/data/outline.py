"""A federation without its training rows: all that is to be known of it where the rows themselves are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation, IntArray
from rhfedmtl.data.mapped import map_of
from rhfedmtl.data.request import Request
from rhfedmtl.maths.runs import Runs, Starts, Tally, tally_cells

_SMALL = (
    "task_offsets",
    "test_X",
    "test_y",
    "test_offsets",
    "task_names",
    "class_names",
    "feature_names",
    "origin",
    "preparation",
    "notes",
)


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
    federation with its rows. Of terminals it knows how many have how many rows under every station, and fetches the
    rows of each if it is asked for them (`rhfedmtl.maths.runs`); they have no names here. ``mapped`` says that some of
    the rows can be had without reading all of them.
    """

    recipe: Recipe | None = None
    digest: str = ""
    mapped: bool = False

    def __post_init__(self) -> None:
        """Check the sizes alone: there is nothing else here."""
        self._check_sizes()

    @classmethod
    def made(cls, facts: dict[str, Any], recipe: Recipe, fetch: Callable[[], npt.NDArray[np.int64]]) -> Outline:
        """Outline from what `facts` found where the rows are; ``fetch`` asks there for the rows of every terminal."""
        shapes = facts["rows"].items()
        empty: dict[str, Any] = {name: np.broadcast_to(np.zeros((), kind), shape) for name, (kind, shape) in shapes}
        small = facts["small"]
        starts: Any = Starts(Tally(small["task_offsets"], facts["sizes"], fetch))
        known = {name: facts[name] for name in ("digest", "mapped")}
        return cls(**empty, **small, terminal_offsets=starts, recipe=recipe, **known)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training rows of every terminal, as a tally unless terminals were regrouped."""
        starts: Any = self.terminal_offsets
        known: Any = starts.sizes if isinstance(starts, Starts) else np.diff(starts)
        sizes: npt.NDArray[np.int64] = known
        return sizes

    @property
    def terminal_task(self) -> IntArray:
        """Task of every terminal, as stretches."""
        found: Any = Runs.repeat(np.arange(self.n_tasks), np.diff(self.task_offsets))
        task: IntArray = found
        return task

    def fingerprint(self) -> str:
        """SHA-256 over everything that can change a result, as computed where the rows are."""
        return self.digest


def facts(federation: Federation) -> dict[str, Any]:
    """What an outline needs to know: as much as the test rows, and how many terminals have how many rows."""
    big = {name: getattr(federation, name) for name in ("X", "y", "sample_weight")}
    return {
        "rows": {name: (array.dtype.str, array.shape) for name, array in big.items() if array is not None},
        "small": {name: getattr(federation, name) for name in _SMALL},
        "sizes": tally_cells(federation.sizes, np.asarray(federation.task_offsets)),
        "digest": federation.fingerprint(),
        "mapped": map_of(federation.X) is not None,
    }
