"""The ledger records every charge with round, tier, task, terminal and type, and refuses to overspend a budget.

A run reserves the worst case of a round before it starts, and settles the reservation afterwards. `billing` computes
the charges.

Rounding. Amounts are added exactly and rounded once at the end, so 14 rounds of 100 fill a budget of 1400 to the last
bit. A limit has a relative slack of 1e-12, because three decimal steps at 0.1 must fit a budget of 0.3. A total within
that slack is reported as the limit, hence the reported ``spent <= budget`` always holds. Only `Ledger.settle` of a
measured type can record more than the limit, because the amount has been spent already. `overshoot` returns the
excess, and the ledger refuses further charges of that type.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rhfedmtl.display import amounts, facts_html
from rhfedmtl.errors import BudgetError
from rhfedmtl.resources.billing import Charge, charges, totals
from rhfedmtl.resources.charge_log import ChargeLog
from rhfedmtl.resources.costs import SLACK, Budget, BudgetLike, Cost, CostLike
from rhfedmtl.resources.events import CloudEvent, Event, ReleaseEvent, RoundEvent

Spending = Event | Iterable[Charge] | Mapping[str, float]


class Ledger:
    """Charges and reservations of a run against hard limits.

    Parameters
    ----------
    cost
        Prices; they also define the types and how these add up.
    budget
        Limits per type; types without a limit are recorded and not limited.
    """

    def __init__(self, cost: CostLike, budget: BudgetLike = None) -> None:
        self.cost = Cost.of(cost)
        self.budget = Budget.of(budget)
        self.budget.check(self.cost)
        self.log = ChargeLog(self.cost)
        self.reservations: dict[int, dict[str, float]] = {}
        self.next_reservation = 0

    @classmethod
    def replay(cls, cost: CostLike, budget: BudgetLike, events: Iterable[Event]) -> Ledger:
        """Recompute a ledger from the events of a run; it equals the ledger of the run."""
        ledger = cls(cost, budget)
        for event in events:
            ledger.charge(event)
        return ledger

    @property
    def spent(self) -> dict[str, float]:
        """Amount spent of each type."""
        return {name: self._reported(name, total.value) for name, total in self.log.sums.items()}

    @property
    def reserved(self) -> dict[str, float]:
        """Amount of each type that is reserved for rounds under way."""
        return {name: math.fsum(amounts.get(name, 0.0) for amounts in self.reservations.values()) for name in self.cost}

    @property
    def left(self) -> dict[str, float]:
        """Amount of each type that may still be spent, for display: without slack, and infinite without a limit."""
        reserved = self.reserved
        return {
            name: max(0.0, math.fsum((self.budget.get(name, math.inf), -spent, -reserved[name])))
            for name, spent in self.spent.items()
        }

    @property
    def remaining(self) -> dict[str, float]:
        """Largest total of each limited type that `charge` accepts now: `left` plus the slack of the limit."""
        return {name: self._remaining(name) for name in self.budget}

    @property
    def overshoot(self) -> dict[str, float]:
        """Amount by which measured types exceed their limit."""
        over = {name: self.spent[name] - limit for name, limit in self.budget.items()}
        return {name: amount for name, amount in over.items() if amount > 0}

    def can_afford(self, spending: Spending) -> bool:
        """Return True if an event, its charges or totals per type fit into the remaining budget of every type."""
        amounts, _ = self._priced(spending)
        return not self._overspent(amounts)

    def charge(self, spending: Event | Iterable[Charge]) -> dict[str, float]:
        """Record an event or charges and return their totals.

        Raises
        ------
        BudgetError
            If the charges would exceed a budget; nothing is recorded.
        """
        amounts, new_charges = self._priced(spending)
        self._refuse(amounts, new_charges)
        self.log.add(new_charges)
        return amounts

    def reserve(self, spending: Spending) -> int:
        """Reserve the worst case of a planned event and return the number of the reservation.

        Raises
        ------
        BudgetError
            If the worst case would exceed a budget; nothing is reserved.
        """
        amounts, new_charges = self._priced(spending)
        self._refuse(amounts, new_charges)
        self.reservations[self.next_reservation] = amounts
        self.next_reservation += 1
        return self.next_reservation - 1

    def settle(
        self, reservation: int, spending: Event | Iterable[Charge], measured: Collection[str] = ()
    ) -> dict[str, float]:
        """Replace a reservation by the actual charges and return their totals.

        Types in ``measured`` may exceed the reservation, because their amounts have been spent already. For other types
        this raises `BudgetError`.
        """
        reserved = self._reservation(reservation)
        amounts, actual = self._priced(spending)
        for name, amount in amounts.items():
            if name not in measured and amount > reserved.get(name, 0.0) * (1 + SLACK):
                raise BudgetError(
                    f"{name}: {amount:g} spent, but only {reserved.get(name, 0.0):g} reserved; "
                    "reserve the worst case, or name the type as measured"
                )
        self.log.add(actual)
        del self.reservations[reservation]
        return amounts

    def release(self, reservation: int) -> None:
        """Cancel a reservation of which nothing was used."""
        self._reservation(reservation)
        del self.reservations[reservation]

    def totals(self, *by: str) -> dict[str, dict[Any, float]]:
        """Return totals per type, and within a type by any of round, tier, task and terminal.

        Keys are values of the column, or tuples of values for several columns. Task and terminal are -1 for charges
        without them. For example ``totals("tier")["energy"]["station"]`` is the energy of the stations.
        """
        return {
            name: {key: self._reported(name, total) for key, total in table.items()}
            for name, table in self.log.totals(*by).items()
        }

    def with_budget(self, budget: BudgetLike) -> Ledger:
        """Return a ledger with the same charges and a new budget, for a run that continues with a larger budget."""
        ledger = Ledger(self.cost, budget)
        ledger.charge(self.log.charges)
        return ledger

    def __eq__(self, ledger: object) -> bool:
        return (
            isinstance(ledger, Ledger)
            and self.cost == ledger.cost
            and self.budget == ledger.budget
            and self.reservations == ledger.reservations
            and self.log.equals(ledger.log)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Ledger {len(self.log)} charges: {amounts(self.spent, self.budget)}>"

    def _repr_html_(self) -> str:
        tiers = {name: ", ".join(f"{tier} {x:g}" for tier, x in by.items()) for name, by in self.totals("tier").items()}
        return facts_html("Ledger", {"spent": amounts(self.spent, self.budget), **tiers})

    def _remaining(self, name: str) -> float:
        """Return the limit with slack minus spent and reserved amounts, rounded once."""
        limit = self.budget.get(name)
        if limit is None:
            return math.inf
        reserved = (-amounts.get(name, 0.0) for amounts in self.reservations.values())
        return math.fsum((limit, limit * SLACK, *(-part for part in self.log.sums[name].parts), *reserved))

    def _reported(self, name: str, total: float) -> float:
        """Return the total, or the limit if the total exceeds it only within the slack."""
        limit = self.budget.get(name, math.inf)
        return limit if limit < total <= limit + 2 * limit * SLACK else total

    def _priced(self, spending: Spending) -> tuple[dict[str, float], tuple[Charge, ...]]:
        """Return totals per type and the charges behind them (empty if ``spending`` is totals)."""
        priced: tuple[Charge, ...] = ()
        if isinstance(spending, Mapping):
            sums = spending
        else:
            is_event = isinstance(spending, RoundEvent | CloudEvent | ReleaseEvent)
            priced = charges(self.cost, spending) if is_event else tuple(spending)  # type: ignore[arg-type]
            sums = totals(priced)
        amounts = {}
        for name, amount in sums.items():
            if name not in self.cost.types:
                raise BudgetError(f"'{name}' has no price; there are prices for: {', '.join(self.cost)}")
            if not 0 <= amount < math.inf:
                raise BudgetError(f"{name}: a charge of {amount} is not finite and >= 0")
            amounts[name] = float(amount)
        return amounts, priced

    def _overspent(self, amounts: Mapping[str, float]) -> list[str]:
        """Return the types of which less remains than these amounts."""
        overspent = []
        for name, amount in amounts.items():
            if amount and amount > self._remaining(name):
                overspent.append(name)
        return overspent

    def _refuse(self, amounts: Mapping[str, float], priced: tuple[Charge, ...]) -> None:
        """Raise `BudgetError` if a type would be overspent."""
        if not (overspent := self._overspent(amounts)):
            return
        left = self.left
        short = [
            f"{name} {amounts[name]:g} of which {left[name]:g} is left (budget {self.budget[name]:g})"
            for name in overspent
        ]
        subject = f"round {priced[0].round}" if priced else "this"
        raise BudgetError(f"{subject} would cost {', '.join(short)}; raise the budget or do fewer local steps")

    def _reservation(self, reservation: int) -> dict[str, float]:
        try:
            return self.reservations[reservation]
        except KeyError:
            raise BudgetError(
                f"reservation {reservation} is not open: it was settled, released or never made"
            ) from None
