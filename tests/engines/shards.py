"""Shards in this process: what an engine over many machines does, without the machines."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.outline import Outline
from rhfedmtl.engines.cluster.ray import FromRecipe
from rhfedmtl.engines.cluster.shard import RowBatch, RowSource, Shard
from rhfedmtl.engines.cluster.sharded import Sharded, share_out
from rhfedmtl.engines.registry import ENGINES, EngineEntry, Execution


@dataclass(frozen=True)
class Held:
    """Rows of a federation that is in memory."""

    federation: Federation

    def rows(self, first: int, last: int) -> RowBatch:
        """Rows first … last − 1."""
        f, span = self.federation, slice(first, last)
        return RowBatch(f.X[span], f.y[span], None if f.sample_weight is None else f.sample_weight[span])


class Here:
    """Shards in this process; all that is said to them passes through bytes, as between machines."""

    def __init__(self, shards: list[Shard], make: Any = None) -> None:
        self.shards = shards
        self.make = make

    def post(self, shard: int, name: str, *given: Any) -> None:
        """Call at once."""
        getattr(self.shards[shard], name)(*pickle.loads(pickle.dumps(given)))

    def ask(self, name: str, calls: Mapping[int, tuple[Any, ...]], *, changes: bool = False) -> dict[int, Any]:
        """Call one after the other."""
        found = {s: getattr(self.shards[s], name)(*pickle.loads(pickle.dumps(given))) for s, given in calls.items()}
        return pickle.loads(pickle.dumps(found))

    def rest(self) -> None:
        """Replace every shard by a new one from its snapshot, where one knows how: it must not matter."""
        if self.make is not None:
            for s, shard in enumerate(self.shards):
                fresh = self.make(s)
                fresh.restore(pickle.loads(pickle.dumps(shard.snapshot())))
                self.shards[s] = fresh

    def close(self) -> None:
        """Nothing to give back."""


def sharded(
    federation: Federation, method: Method, *, seed: int = 0, present: Any = None, n: int = 2, anew: bool = False
) -> Sharded:
    """Network of ``n`` shards in this process; ``anew`` makes them anew after every round."""
    source: RowSource = Held(federation)
    if isinstance(federation, Outline) and federation.recipe is not None:
        source = FromRecipe(federation.recipe)
    else:
        method.check(federation)
    parts = share_out(federation, [1.0] * n, federation.sizes if present is None else present)

    def make(s: int) -> Shard:
        return Shard(parts[s], source, method, seed=seed, threads=1)

    return Sharded(federation, method, parts, Here([make(s) for s in range(len(parts))], make if anew else None))


def network(federation: Federation, method: Method, *, seed: int, present: Any, execution: Execution) -> Sharded:
    """Engine ``sharded``."""
    return sharded(federation, method, seed=seed, present=present, n=execution.actors or 2)


SHARDED = EngineEntry("in shards, in this process", f"{__name__}:network", keeps_checkpoints=True, sharded=True)
ENGINES.add("sharded", SHARDED)
LOCAL = [name for name, entry in ENGINES.items() if entry.exact and not entry.cluster]
"""Engines that give the same bits and need no cluster: those of the library, and shards in this process."""
