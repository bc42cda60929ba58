"""Prices of the next round: whether a budget can pay it, and the words of an error where it cannot."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.quasi_newton import ASCENT
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import Plan, Situation
from rhfedmtl.resources.costs import amounts_text
from rhfedmtl.resources.events import Event, RoundEvent
from rhfedmtl.resources.waiting import waiting_times
from rhfedmtl.roles.averaging import AveragingCloud
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.training.accounting import Accounting
from rhfedmtl.training.certifying import Certification


class RoundPricing:
    """Plans the next BS iteration as an event with its bytes, and says whether the budget can pay it.

    The errors of a budget that cannot pay the first round are worded here. In a simulation (``simulated``) a station
    that has finished a BS iteration begins the next at once; on a real network later messages may be slightly longer.
    """

    def __init__(
        self,
        method: Method,
        cloud: Cloud | AveragingCloud,
        accounting: Accounting,
        certification: Certification,
        *,
        simulated: bool,
    ) -> None:
        self._channel, self._cloud, self._accounting = method.channel, cloud, accounting
        self._certifier, self._budget, self._simulated = certification.certifier, certification.budget, simulated

    def next_round(self, situation: Situation, plan: Plan) -> tuple[RoundEvent, Models | None]:
        """Return the next BS iteration of a plan, with the models of its orders as far as the cloud knows them."""
        state, sizes, models = self._certifier.state, situation.bytes, None
        if not state.round or (state.reported is not None and state.reported[1] >= state.round):
            models = self._cloud.models
            if not self._cloud.starts_at_anchor:
                models = self._channel.models(models, models if state.last_sent is None else state.last_sent)
        k = 0 if state.plan is None else state.rounds_done
        stations, waiting = plan.station_rounds > k, None
        if k and self._simulated:
            before = next((e for e in reversed(state.events) if isinstance(e, RoundEvent) and e.merges), None)
            waiting = None if before is None else waiting_times(self._accounting.ledger.cost, before)
        planned = situation.round_event(
            plan.local_steps,
            None if stations.all() else stations,
            number=state.round + 1,
            down=sizes.named if models is not None and self._certifier.knows(models) else sizes.order,
            up=sizes.update if plan.solver == ASCENT else sizes.gradient,
            waiting=waiting,
        )
        return planned, None if models is None else models.copy()

    def can_begin(self, situation: Situation, plan: Plan) -> bool:
        """Return True if the budget can pay the server iteration with its first BS iteration."""
        first, _ = self.next_round(situation, plan)
        price = self._accounting.worst(situation.cloud_event(), first)
        return not self._budget.unpaid and self._accounting.ledger.can_afford(price)

    def one_round(self, situation: Situation, steps: int | npt.NDArray[np.int64]) -> dict[str, float]:
        """Return the most that a server iteration with K = 1 can cost, with the last certificate if it is unpaid."""
        unpaid = (situation.certificate_event(),) if self._budget.unpaid else ()
        return self._accounting.worst(situation.cloud_event(), situation.round_event(steps), *unpaid)

    def reason_or_error(self, situation: Situation, plan: Plan | None, fewest: int | npt.NDArray[np.int64]) -> str:
        """Return why no server iteration follows; raise a BudgetError if the budget cannot pay any iteration.

        ``fewest`` is the smallest H that the policy asks for.
        """
        ledger = self._accounting.ledger
        first = fewest if plan is None else plan.local_steps
        price = self.one_round(situation, first)
        if ledger.can_afford(price):
            return "plan completed"
        if situation.rounds:
            return "budget spent"
        cheapest = self.one_round(situation, fewest)
        steps = "" if plan is None else f" of H={np.max(first)}, which costs {amounts_text(price)}"
        raise BudgetError(
            f"{self.shortage} cannot pay one round{steps}: the cheapest plan (H={np.max(fewest)}, K=1, M=1) costs "
            f"{amounts_text(cheapest)}; {self.way_out(cheapest)} or lower the prices",
            self.needed(cheapest),
        )

    def check_round_zero(self, events: list[Event], situation: Situation, scale: str) -> None:
        """Refuse, before any message, a budget that round zero alone would exceed."""
        worst, ledger = self._accounting.worst, self._accounting.ledger
        price = worst(*events)
        if not ledger.can_afford(price):
            first = situation.cloud_event(), situation.round_event(1), situation.certificate_event()
            other = ", or scale each row alone, as --scale unit does" if scale != "unit" else ""
            raise BudgetError(
                f"{self.shortage} cannot pay round zero, in which terminals tell means and spreads of their rows and "
                f"which costs {amounts_text({name: price[name] for name in ledger.budget})}: "
                f"{self.way_out(worst(*events, *first))}{other}",
                self.needed(worst(*events, *first)),
            )

    @property
    def shortage(self) -> str:
        """The budget, with the amounts spent or set aside before the first round."""
        ledger = self._accounting.ledger
        uses = {"spent before it": ledger.spent, "kept for its certificate": ledger.reserved}
        limited = {use: {n: x for n, x in by.items() if x > 0.0 and n in ledger.budget} for use, by in uses.items()}
        before = " and ".join(f"{amounts_text(amounts)} is {use}" for use, amounts in limited.items() if amounts)
        return f"budget {amounts_text(ledger.budget)}{f', of which {before},' if before else ''}"

    def needed(self, price: dict[str, float]) -> dict[str, float]:
        """Return the budget that would pay a first round of this price."""
        ledger = self._accounting.ledger
        parts = ledger.spent, ledger.reserved, price
        budget = {name: sum(amounts.get(name, 0.0) for amounts in parts) for name in ledger.budget}
        return budget if self._simulated else {name: math.ceil(1.01 * amount) for name, amount in budget.items()}

    def way_out(self, price: dict[str, float]) -> str:
        """Return the advice to raise the budget, so that it pays a first round of this price."""
        budget = self.needed(price)
        few = " (less with --precision int8)" if "bytes" in budget and self._channel.identity else ""
        return f"raise the budget to {amounts_text(budget)}{few}"
