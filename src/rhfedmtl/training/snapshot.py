"""Snapshots of a run: all that a run with the same data, method and settings needs to go on from there, to the bit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.algorithms.sgd import Server
from rhfedmtl.engines.network import Keeping
from rhfedmtl.engines.registry import ENGINES
from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.events import Event
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.packing import BestEffort
from rhfedmtl.training.state import copied

if TYPE_CHECKING:
    from rhfedmtl.training.checkpoint import Checkpoint
    from rhfedmtl.training.run import Run

Snapshot = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Before:
    """Work done before a run that counts to it: charged ``events``, or the ``snapshot`` of its first rounds."""

    events: list[Event] = field(default_factory=list)
    snapshot: Snapshot | None = None


def take(run: Run) -> Snapshot:
    """Return the snapshot of a run; later rounds may change its lists."""
    budget = run.certification.budget
    return {
        "run": run.state,
        "certificates": [budget.spent, budget.aside, budget.unpaid],
        "memo": BestEffort(run.memo),
        "cloud": {name: part for name, part in vars(run.cloud).items() if not isinstance(part, Server | Channel)},
        "environment": None if run.environment is None else run.environment.state(),
        "network": _checkpointed(run).state(),
        **run.accounting.state(),
        "seconds": time.perf_counter() - run.started,
    }


def begin(run: Run, before: Before) -> None:
    """Charge earlier work as part of round zero, or go on from it; call it before the first round."""
    if before.snapshot is not None:
        resume(run, before.snapshot)
    for event in before.events:
        run.charge(replace(event, round=run.state.round))


def resume(run: Run, source: Snapshot | Checkpoint) -> None:
    """Go on from a snapshot or checkpoint of the same run; call it before the first round."""
    network = _checkpointed(run)
    run.accounting.ledger = Ledger(run.ledger.cost, run.ledger.budget)
    snapshot = source if isinstance(source, dict) else source.state({"ledger": run.ledger})
    run.state.restore(snapshot["run"])
    run.accounting.resume(snapshot | {"events": run.state.events})
    run.certification.budget.resume(*snapshot["certificates"])
    run.memo = dict(snapshot["memo"])
    if run.state.events:
        run.membership = run.state.events[-1].layout
    for name, value in snapshot["cloud"].items():
        setattr(run.cloud, name, copied(value))
    if run.environment is not None:
        run.environment.resume(snapshot["environment"])
    network.resume(snapshot["network"])
    run.started = time.perf_counter() - snapshot["seconds"]


def _checkpointed(run: Run) -> Keeping:
    """Return the network of a run, if it can be written to a checkpoint."""
    if isinstance(run.network, Keeping):
        return run.network
    able = ", ".join(name for name, entry in ENGINES.items() if entry.keeps_checkpoints)
    raise ConfigError(f"engine {run.settings.execution.engine!r} keeps no checkpoints: use one of {able}")
