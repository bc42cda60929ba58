"""A federation without its training rows, for a driver process whose rows live in other processes.

The cluster engines use it: the machines that hold the rows send `facts`, and the driver builds an `Outline` that looks
like a `Federation`. It has the sizes, names, test rows and fingerprint, and it can rebuild the rows from its recipe.
"""

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
    """The request and the seed that produce a federation on any machine."""

    request: Request
    seed: int

    def federation(self) -> Federation:
        """Load (or generate) the data and split it."""
        return self.request.federation(self.seed)


@dataclass(frozen=True, eq=False)
class Outline(Federation):
    """Sizes, names and test rows of a federation; ``recipe`` makes the training rows where they are needed.

    ``X`` and ``y`` have the right shapes but hold no data and take no memory. ``digest`` is the fingerprint of the
    federation with its rows. The outline stores how many terminals of each station have how many rows, and fetches the
    rows per terminal on request (`rhfedmtl.maths.runs`); terminals have no names. ``mapped`` is True if the rows are
    memory-mapped, so a process can read a part of them without reading all.
    """

    recipe: Recipe | None = None
    digest: str = ""
    mapped: bool = False

    def __post_init__(self) -> None:
        """Check the sizes only: an outline has no rows to check."""
        self._check_sizes()

    @classmethod
    def from_facts(cls, facts: dict[str, Any], recipe: Recipe, fetch: Callable[[], npt.NDArray[np.int64]]) -> Outline:
        """Build an outline from the result of `facts`; ``fetch`` requests the number of rows of every terminal."""
        shapes = facts["rows"].items()
        empty: dict[str, Any] = {name: np.broadcast_to(np.zeros((), kind), shape) for name, (kind, shape) in shapes}
        small = facts["small"]
        starts: Any = Starts(Tally(small["task_offsets"], facts["sizes"], fetch))
        properties = {name: facts[name] for name in ("digest", "mapped")}
        return cls(**empty, **small, terminal_offsets=starts, recipe=recipe, **properties)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training rows of every terminal: a tally, or a plain array after terminals were regrouped."""
        starts: Any = self.terminal_offsets
        sizes_or_tally: Any = starts.sizes if isinstance(starts, Starts) else np.diff(starts)
        sizes: npt.NDArray[np.int64] = sizes_or_tally
        return sizes

    @property
    def terminal_task(self) -> IntArray:
        """Task of every terminal, as runs of equal numbers."""
        runs: Any = Runs.repeat(np.arange(self.n_tasks), np.diff(self.task_offsets))
        task: IntArray = runs
        return task

    def fingerprint(self) -> str:
        """Return the SHA-256 over everything that can change a result, as computed where the rows are."""
        return self.digest


def facts(federation: Federation) -> dict[str, Any]:
    """Return all facts that an outline needs; they are about as large as the test rows."""
    big = {name: getattr(federation, name) for name in ("X", "y", "sample_weight")}
    return {
        "rows": {name: (array.dtype.str, array.shape) for name, array in big.items() if array is not None},
        "small": {name: getattr(federation, name) for name in _SMALL},
        "sizes": tally_cells(federation.sizes, np.asarray(federation.task_offsets)),
        "digest": federation.fingerprint(),
        "mapped": map_of(federation.X) is not None,
    }
