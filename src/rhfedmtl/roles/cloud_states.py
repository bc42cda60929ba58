"""States of a cloud: before its first anchors, or in a server iteration. Both kinds of cloud use them."""

from __future__ import annotations

from enum import Enum

from rhfedmtl.roles.messages import Anchor, Report, StationSums
from rhfedmtl.roles.states import Event, Table, follow, frozen


class CloudPhase(Enum):
    """State of a cloud: before its first anchors, or in a server iteration."""

    FRESH = "before its first server iteration"
    ITERATING = "in a server iteration"


CLOUD: Table[CloudPhase] = frozen(
    {
        CloudPhase.FRESH: {
            "resume": CloudPhase.FRESH,
            Anchor: CloudPhase.ITERATING,
            Report: CloudPhase.FRESH,
        },
        CloudPhase.ITERATING: {
            Anchor: CloudPhase.ITERATING,
            Report: CloudPhase.ITERATING,
            StationSums: CloudPhase.ITERATING,
        },
    }
)


class CloudStates:
    """State of a cloud by the table ``CLOUD``. Anchors and reports are possible in both states."""

    cloud_round: int

    @property
    def passes(self) -> int:
        """Passes over the rows that the next server iteration asks for, if the policy follows the method."""
        return 1

    @property
    def starts_at_anchor(self) -> bool:
        """True if stations are at models where the current anchors let them start; terminals know these."""
        return False

    @property
    def phase(self) -> CloudPhase:
        """Current state."""
        return CloudPhase.ITERATING if self.cloud_round else CloudPhase.FRESH

    def _check(self, event: Event) -> None:
        follow("the cloud", CLOUD, self.phase, event)
