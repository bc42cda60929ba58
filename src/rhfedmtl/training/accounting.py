"""Charge a run: prices to plan by, the reservation before a round, and the charges after it.

A run calls its `Accounting` and never charges the ledger itself. `DeclaredAccounting` prices events by declared prices,
for simulations. A deployment implements the same protocol with measured prices (`deploy.cloud.measured_run`).
"""

from __future__ import annotations

from typing import Any, Protocol

from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import Event, Placement, RoundEvent
from rhfedmtl.resources.ledger import Ledger


class Accounting(Protocol):
    """Interface between a run and its ledger."""

    ledger: Ledger

    @property
    def planning_prices(self) -> Cost:
        """Prices to plan by."""

    def worst(self, *events: Event) -> dict[str, float]:
        """Return the worst-case cost of events per type, which must be affordable and is reserved before they start."""

    def update_prices(self) -> bool:
        """Update the prices before a plan; return True if they changed."""

    def charge(self, event: Event) -> None:
        """Charge an event without a reservation."""

    def reserve(self, worst: dict[str, float]) -> int:
        """Reserve the worst case of a round before it starts; return the number of the reservation."""

    def settle(self, reservation: int, event: RoundEvent) -> None:
        """Replace a reservation by the charges of the actual round."""

    def close(self, number: int, layout: Placement) -> None:
        """Charge outstanding amounts, before the first plan and at the end."""

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint must hold in addition to the events."""

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, with an empty ledger."""


class DeclaredAccounting:
    """Accounting by declared prices: the events determine all charges."""

    def __init__(self, ledger: Ledger, planning_prices: Cost | None = None) -> None:
        self.ledger = ledger
        self.planning_prices = ledger.cost if planning_prices is None else planning_prices

    def worst(self, *events: Event) -> dict[str, float]:
        """Return the cost of the events by the planning prices."""
        return event_totals(self.planning_prices, *events)

    def update_prices(self) -> bool:
        """Return False, because declared prices never change."""
        return False

    def charge(self, event: Event) -> None:
        """Charge the event by the declared prices."""
        self.ledger.charge(event)

    def reserve(self, worst: dict[str, float]) -> int:
        """Reserve the amounts in the ledger."""
        return self.ledger.reserve(worst)

    def settle(self, reservation: int, event: RoundEvent) -> None:
        """Replace the reservation by the charges of the round."""
        self.ledger.settle(reservation, event)

    def close(self, number: int, layout: Placement) -> None:
        """Do nothing, because every event is charged when it takes place."""

    def state(self) -> dict[str, Any]:
        """Return an empty state, because the charges follow from the events."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Charge all events again."""
        for event in state["events"]:
            self.ledger.charge(event)
