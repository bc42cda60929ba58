"""H and K fixed beforehand: HFedMTL, and every method that decides nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from rhfedmtl.policies.base import Plan, Situation, check_count


@dataclass(frozen=True)
class Fixed:
    """The same H and K in each server iteration, M of them or until the budget is spent: HFedMTL."""

    local_steps: int = 2
    station_rounds: int = 1
    cloud_rounds: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        for name in ("local_steps", "station_rounds", "cloud_rounds"):
            check_count(name, getattr(self, name), optional=name == "cloud_rounds")

    def plan(self, situation: Situation) -> Plan | None:
        """Return the same plan until M server iterations are done."""
        if self.cloud_rounds is not None and situation.cloud_rounds >= self.cloud_rounds:
            return None
        return Plan.uniform(situation, self.local_steps, self.station_rounds)
