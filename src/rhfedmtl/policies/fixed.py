"""The policy with fixed H and K: HFedMTL, and the default of methods that do not adapt."""

from __future__ import annotations

from dataclasses import dataclass

from rhfedmtl.policies.base import Plan, Situation, check_count


@dataclass(frozen=True)
class Fixed:
    """Use the same H and K for M server iterations, or until the budget is spent."""

    local_steps: int = 2
    station_rounds: int = 1
    cloud_rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        for name in ("local_steps", "station_rounds", "cloud_rounds"):
            check_count(name, getattr(self, name), optional=name == "cloud_rounds")

    def plan(self, situation: Situation) -> Plan | None:
        """Return the same plan until M server iterations have finished."""
        if self.cloud_rounds is not None and situation.cloud_rounds >= self.cloud_rounds:
            return None
        return Plan.uniform(situation, self.local_steps, self.station_rounds)
