"""Policies decide how much work the next server iteration does: H for every terminal, K for every station."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Situation:
    """What a policy may know when it plans: sizes, membership, and how far the run has come."""

    sizes: IntArray
    station: IntArray
    n_stations: int
    cloud_rounds: int
    rounds: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Work of one server iteration: H of every terminal, K of every station."""

    local_steps: IntArray
    station_rounds: IntArray


class Policy(Protocol):
    """Turns what is known into a plan; None ends the run."""

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration."""


@dataclass(frozen=True)
class Fixed:
    """The same H, K in each of M server iterations: HFedMTL."""

    local_steps: int = 2
    station_rounds: int = 1
    cloud_rounds: int = 100

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        for name in ("local_steps", "station_rounds", "cloud_rounds"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {count!r}")

    def plan(self, situation: Situation) -> Plan | None:
        """Return the same plan until M server iterations are done."""
        if situation.cloud_rounds >= self.cloud_rounds:
            return None
        return Plan(
            np.full(len(situation.sizes), self.local_steps),
            np.full(situation.n_stations, self.station_rounds),
        )
