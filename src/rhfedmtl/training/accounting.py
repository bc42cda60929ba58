"""How a run pays: prices to plan by, the worst case set aside before a round, and what is charged after it.

`DeclaredAccounting` charges by declared prices what the events say happened. A deployment measures instead: it has an
accounting of its own, and the same run.
"""

from __future__ import annotations

from typing import Any, Protocol

from rhfedmtl.resources.billing import Event, Placement, RoundEvent, event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger


class Accounting(Protocol):
    """What a run asks of whoever keeps its ledger."""

    ledger: Ledger

    @property
    def planning_prices(self) -> Cost:
        """Prices to plan by."""

    def worst(self, *events: Event) -> dict[str, float]:
        """The most that events can take, per type: what must be left, and is set aside, before they begin."""

    def update_prices(self) -> bool:
        """Bring them up to date before a plan is made; whether they changed."""

    def charge(self, event: Event) -> None:
        """Charge what happened, with nothing set aside for it."""

    def reserve(self, worst: dict[str, float]) -> int:
        """Set aside the worst case of a round that is about to begin."""

    def settle(self, reservation: int, event: RoundEvent) -> None:
        """Charge the round as it was in the place of what was set aside."""

    def close(self, number: int, layout: Placement) -> None:
        """Charge what is left over, at the end and before the first plan is made."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold besides the events."""

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, with an empty ledger."""


class DeclaredAccounting:
    """Declared prices: an event says all that there is to charge."""

    def __init__(self, ledger: Ledger, planning_prices: Cost | None = None) -> None:
        self.ledger = ledger
        self.planning_prices = ledger.cost if planning_prices is None else planning_prices

    def worst(self, *events: Event) -> dict[str, float]:
        """By the prices of a plan."""
        return event_totals(self.planning_prices, *events)

    def update_prices(self) -> bool:
        """Declared prices stay as they are."""
        return False

    def charge(self, event: Event) -> None:
        """By its prices."""
        self.ledger.charge(event)

    def reserve(self, worst: dict[str, float]) -> int:
        """In the ledger."""
        return self.ledger.reserve(worst)

    def settle(self, reservation: int, event: RoundEvent) -> None:
        """By its prices."""
        self.ledger.settle(reservation, event)

    def close(self, number: int, layout: Placement) -> None:
        """Nothing is left over: every event is charged when it happens."""

    def state(self) -> dict[str, Any]:
        """Nothing: what was charged follows from the events."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Charge all events again."""
        for event in state["events"]:
            self.ledger.charge(event)
