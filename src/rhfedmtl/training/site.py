"""Interfaces between a run and the place where it happens: members and faults, evaluation, and `Site`.

A simulation has random faults, declared prices, and all rows in memory. A deployment passes a `Site` with real members,
measured prices, and test rows on other machines. The training loop is the same in both cases.
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
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.training.accounting import Accounting
from rhfedmtl.training.result import Metrics, evaluate


class Environment(Protocol):
    """Membership and faults of a run; a run without faults has no environment."""

    def change(self, number: int, network: Network) -> bool:
        """Let members join, leave and move as is due before round ``number``; return True if any did."""

    def start_round(self, planned: RoundEvent, cost: Cost, network: Network) -> tuple[RoundEvent, BoolArray | None]:
        """Return the round that can take place, and the mask of updates that arrive (None: all)."""

    def end_round(self, event: RoundEvent) -> RoundEvent:
        """Return the actual round, which is charged."""

    def state(self) -> dict[str, Any]:
        """Return the state that the next round needs."""

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a value of `state`."""


class Evaluation(Protocol):
    """Test metrics, and the attempts at a last certificate: on a real network a member may not answer."""

    def tries(self) -> Iterator[None]:
        """Yield for each attempt at a certificate after the end of a run.

        After the last attempt the run uses the certificate of an earlier round.
        """

    def metrics(self, models: Models, combination: npt.NDArray[np.float64] | None = None) -> Metrics:
        """Return the metrics of every task under its model.

        ``combination`` expresses the models as a linear combination of the models of the last probe, if possible.
        """


class LocalEvaluation:
    """Evaluation on test rows in memory; every task answers."""

    def __init__(self, judged: Federation, task_station: npt.NDArray[np.int64], scalers: list[Scaler]) -> None:
        rows = map(judged.test_rows, range(judged.n_tasks))
        self._tests = [(scalers[b].transform(X), y) for b, (X, y) in zip(task_station, rows, strict=True)]
        self._n_classes = len(judged.class_names)

    def tries(self) -> Iterator[None]:
        """Yield nothing, because a simulation certifies its result without further attempts."""
        return iter(())

    def metrics(self, models: Models, combination: npt.NDArray[np.float64] | None = None) -> Metrics:
        """Return the metrics of every task on its scaled test rows."""
        return evaluate(models, self._tests, self._n_classes)


@dataclass(frozen=True)
class Site:
    """The place of a run that is not a simulation.

    On a site, stations wait for each other after every BS iteration, and not only at server iterations. The run forgets
    rounds that policies no longer use, because a training may be endless. ``feature_names`` are the names of the
    features on the other machines, if available. ``n_columns`` is their number.
    """

    network: Network
    environment: Environment
    accounting: Accounting
    evaluation: Evaluation
    n_columns: int
    feature_names: tuple[str, ...] = ()
