"""State of a run: everything that its rounds have changed, apart from the states of the cloud and the network.

`training/loop.py` updates it, and a checkpoint writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import Observation, Plan
from rhfedmtl.resources.events import Event
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.training.result import Metrics, Moment


@dataclass
class RunState:
    """State of a run, as a checkpoint keeps it.

    Attributes
    ----------
    round, terminal_steps
        BS iterations so far, and rows that terminals have visited in them.
    plan, rounds_done
        Plan of the server iteration under way, or None, and its BS iterations so far.
    reported
        Server iteration and round of the last reports to the cloud.
    certificate, metrics
        The latest certificate and test metrics.
    last_sent, probed
        Models of the last orders, and points of the last certificate: terminals know them.
    noise, released
        Variance of the noise in each station's sum, and the round of the last private certificate.
    events, observed, history
        Charges, observations and spending and quality of all BS iterations.
    rounds_by_solver
        BS iterations of each solver.
    """

    round: int = 0
    terminal_steps: int = 0
    plan: Plan | None = None
    rounds_done: int = 0
    reported: tuple[int, int] | None = None
    certificate: Certificate | None = None
    metrics: Metrics = field(default_factory=dict)
    last_sent: Models | None = None
    probed: Points | None = None
    noise: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    released: int = -1
    events: list[Event] = field(default_factory=list)
    observed: list[Observation] = field(default_factory=list)
    history: list[Moment] = field(default_factory=list)
    rounds_by_solver: dict[str, int] = field(default_factory=dict)

    @property
    def is_certified(self) -> bool:
        """True if the certificate belongs to the last round."""
        return self.certificate is not None and self.certificate.round == self.round

    @property
    def iteration_is_over(self) -> bool:
        """True if the present server iteration has no more BS iterations."""
        return self.plan is None or self.rounds_done >= int(self.plan.station_rounds.max())

    def restore(self, source: RunState) -> None:
        """Take over a copy of another state."""
        for part in fields(self):
            setattr(self, part.name, copied(getattr(source, part.name)))


def copied(part: Any) -> Any:
    """Return a copy of an array, list or dictionary; other values cannot change."""
    return part.copy() if isinstance(part, np.ndarray | list | dict) else part
