"""Where a run takes place: its network, who is there and what happens, how it pays, and where test rows lie.

A simulation has faults drawn from a seed, declared prices and all rows at hand; a deployment has real members,
measured prices, and test rows elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.network import BoolArray, Network
from rhfedmtl.maths.relationships import Models
from rhfedmtl.resources.billing import RoundEvent
from rhfedmtl.resources.costs import Cost
from rhfedmtl.training.accounting import Accounting
from rhfedmtl.training.result import Metrics, evaluate


class Environment(Protocol):
    """Who takes part in a run, and what happens to its rounds; a run without faults has none."""

    def change(self, number: int, network: Network) -> bool:
        """Let members come, go and move as is due before round ``number``; return True if any did."""

    def start_round(self, planned: RoundEvent, cost: Cost, network: Network) -> tuple[RoundEvent, BoolArray | None]:
        """Return the round that can take place, and whose updates arrive (None: all)."""

    def end_round(self, event: RoundEvent) -> RoundEvent:
        """Return the round as it took place, which is charged."""

    def state(self) -> dict[str, Any]:
        """Return what the rounds so far leave for the next."""

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""


class Evaluation(Protocol):
    """Test metrics, and how often a last certificate is tried for: on a real network a member may be silent."""

    def tries(self) -> Iterator[None]:
        """Once for every time that a run which has ended may ask for it, before that of an earlier round has to do."""

    def metrics(self, models: Models, combination: npt.NDArray[np.float64] | None = None) -> Metrics:
        """Metrics of every task under its model, known to be a ``combination`` of those that were asked about last."""


class LocalEvaluation:
    """Test rows are at hand, and everybody answers."""

    def __init__(self, judged: Federation, task_station: npt.NDArray[np.int64], scalers: list[Scaler]) -> None:
        rows = map(judged.test_rows, range(judged.n_tasks))
        self._tests = [(scalers[b].transform(X), y) for b, (X, y) in zip(task_station, rows, strict=True)]
        self._n_classes = len(judged.class_names)

    def tries(self) -> Iterator[None]:
        """None: the certificate of a result is enough."""
        return iter(())

    def metrics(self, models: Models, combination: npt.NDArray[np.float64] | None = None) -> Metrics:
        """Metrics of every task on its scaled test rows."""
        return evaluate(models, self._tests, self._n_classes)


@dataclass(frozen=True)
class Site:
    """Where a run takes place, if it is no simulation.

    Stations then wait for each other after every BS iteration, and not at server iterations only. Of rounds that
    policies may no longer look back to nothing is kept, as a training may have no end. ``feature_names`` are those of
    rows that are elsewhere, where they are known.
    """

    network: Network
    environment: Environment
    accounting: Accounting
    evaluation: Evaluation
    feature_names: tuple[str, ...] = ()
