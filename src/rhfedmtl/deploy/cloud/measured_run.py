"""A run over a real network: the same loop as everywhere, with members that come and go and costs that are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rhfedmtl.data.federation import Federation
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.prices import MeasuredPrices
from rhfedmtl.deploy.cloud.remote_network import RemoteNetwork, Round
from rhfedmtl.deploy.station.questions import MOST_SENT
from rhfedmtl.engines.network import BoolArray, Float64Array, IntArray, Network
from rhfedmtl.errors import BudgetError, ConfigError, PeerError
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import ONE_PASS, Plan, Policy, Situation, smallest_steps
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.billing import (
    CloudEvent,
    Event,
    Parts,
    Placement,
    RoundEvent,
    charges,
    event_totals,
    steps_by_deadline,
)
from rhfedmtl.resources.costs import Budget, Cost, amounts_text
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.training.config import GOOD_ENOUGH, default_scale
from rhfedmtl.training.privacy import RESOURCE, Privacy, PrivatePlan
from rhfedmtl.training.result import Metrics
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.site import Site

TRIES = 3
"""How often a last certificate is tried for before the one of an earlier round has to do."""
MOST_AMOUNTS = 1_000_000
"""Single amounts that the ledger keeps round by round."""


@dataclass(frozen=True)
class Careful:
    """Another policy, within what terminals allow: at least ``least_steps``, and no more than time permits.

    0 of them is a full pass over the rows of each terminal. A terminal that cannot do the least H by the ``deadline``
    sits out the round (H = 0), unless no terminal could by these prices, which may be first guesses. Where sums are
    masked all work ``alike``: as many steps, or, with a deadline and passes as the least, as many whole passes.
    """

    policy: Policy
    least_steps: int
    deadline: float | None = None
    alike: bool = False

    def plan(self, situation: Situation) -> Plan | None:
        """The other policy's plan, made fit; None where the least H cannot be paid."""
        plan = self.policy.plan(situation)
        if plan is None:
            return None
        rows = np.maximum(situation.sizes, 1)
        smallest = np.broadcast_to(self.least_steps or rows, len(rows))
        steps = np.maximum(plan.local_steps, smallest)
        works = np.full(len(rows), True)
        if self.deadline is not None:
            possible = steps_by_deadline(situation.prices, situation.round_event(1), {"time": self.deadline})
            if (possible >= smallest)[situation.member_index].any():
                works = possible >= smallest
                steps = np.where(works, np.minimum(steps, possible), 0)
        if self.alike and np.ptp(steps[works]) and np.ptp((steps / rows)[works]):
            steps = self._alike(steps, rows, works)
        return plan if np.array_equal(steps, plan.local_steps) else replace(plan, local_steps=steps)

    def _alike(self, steps: IntArray, rows: IntArray, works: BoolArray) -> IntArray:
        """Return the same work for all who work; it is no less than the least H of any of them."""
        if self.deadline is None:
            same = np.full_like(steps, steps[works].max())
        elif self.least_steps == ONE_PASS:
            same = rows * (steps // rows)[works].min()
        else:
            same = np.full_like(steps, steps[works].min())
        return np.where(works, same, 0)


class Membership:
    """The members of a real network: it reports who is present, and their work in the last round."""

    def __init__(self, network: RemoteNetwork) -> None:
        self._network = network

    def change(self, number: int, network: Network) -> bool:
        """Return True if members have changed since the last server iteration."""
        return self._network.sync()

    def start_round(self, planned: RoundEvent, cost: Cost, network: Network) -> tuple[RoundEvent, None]:
        """Return the round as planned: the stations find out who is there."""
        return planned, None

    def end_round(self, event: RoundEvent) -> RoundEvent:
        """Return the round as the stations say it took place."""
        return _as_it_was(event, self._network.last_round)

    def state(self) -> dict[str, Any]:
        """Nothing: the network knows its members."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Nothing to go on from."""


class MeasuredAccounting:
    """Declared types by their prices, the others by what the stations measured, as the last round of a network shows.

    The prices of plans follow the last rounds. The worst case of the next events is set aside: the network
    waits no longer than that, and sends nothing a third time.
    """

    def __init__(self, config: CloudConfig, network: RemoteNetwork, ledger: Ledger) -> None:
        self.ledger, self.planning_prices = ledger, ledger.cost
        self._network, self._patience = network, config.waits.patience
        self._prices = MeasuredPrices(config.resources, ledger.cost)

    def update_prices(self) -> bool:
        """Take over the prices of the last rounds, once they have moved."""
        before, sizes = self.planning_prices, self._network.message_sizes
        if self._prices:
            n, here = len(self._network.station), self._network.station[self._network.station >= 0]
            each = (sizes.each_request + sizes.each_result) * int(np.bincount(here).max(initial=0))
            above = sizes.anchor + sizes.report + sizes.request + sizes.result + each
            self.planning_prices = self._prices.planning(n, sizes.order + sizes.update, above)
        return self.planning_prices is not before

    def worst(self, *events: Event) -> dict[str, float]:
        """By the prices of a plan, and, where bytes are measured, all questions sent again; answers count once."""
        totals = event_totals(self.planning_prices, *events)
        if "bytes" in self._prices.names:
            order = self._network.message_sizes.order
            prices = Cost({"bytes": self.planning_prices["bytes"]})
            totals |= event_totals(prices, *(sent_again(event, order) for event in events))
        return totals

    def charge(self, event: Event) -> None:
        """Charge declared types, and amounts measured since the last charge: certificates are paid for at once."""
        self.ledger.charge(charges(self.ledger.cost, event, dict.fromkeys(self._prices.names, Parts())))
        self.close(event.round, event.layout)

    def reserve(self, worst: dict[str, float]) -> int:
        """Set the worst case aside, and limit all waits to it."""
        reservation = self.ledger.reserve(worst)
        self._network.deadline, self._network.partners.patience = self._prices.waits(
            worst, self.ledger.remaining, self._patience
        )
        return reservation

    def settle(self, reservation: int, event: RoundEvent) -> None:
        """Charge the work that the stations report, and learn prices from it; old charges become sums."""
        self._network.partners.patience = self._patience
        seen, layout = self._network.last_round, event.layout
        parts = self._prices.parts(seen, layout.n_terminals, layout.n_tasks)
        made = [*charges(self.ledger.cost, event, parts)]
        if self._prices:
            made += self._prices.link_charges(event.round, layout, self._network.partners.overhead, seen)
        self.ledger.settle(reservation, made, self._prices.names)
        if self._prices:
            self._prices.learn(seen)
        self.ledger.condense(MOST_AMOUNTS)

    def close(self, number: int, layout: Placement) -> None:
        """Charge what passed since the last charge."""
        if self._prices:
            left = self._prices.link_charges(number, layout, self._network.partners.overhead, None)
            self.ledger.settle(self.ledger.reserve({}), left, self._prices.names)

    def state(self) -> dict[str, Any]:
        """The charges themselves: what was measured cannot be charged again from events."""
        return {"charges": self.ledger.to_dict(), "spent": self.ledger.exact_sums(), "prices": self._prices.state()}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.ledger.restore(Ledger.from_dict(state["charges"]).charges(), state["spent"])
        self.planning_prices = self._prices.resume(state["prices"]) or self.planning_prices


class RemoteEvaluation:
    """Metrics are measured where test rows lie; who is silent may answer when it is back."""

    def __init__(self, network: RemoteNetwork, all_back: Callable[[], bool]) -> None:
        self._network, self._all_back = network, all_back

    def tries(self) -> Iterator[None]:
        """A few, after the first as long as all members are there, for whom it waits."""
        yield
        for _ in range(TRIES - 1):
            if self._all_back():
                yield

    def metrics(self, models: Models, combination: Float64Array | None = None) -> Metrics:
        """Metrics of every task; NaN where its station did not tell."""
        found = self._network.trial(models, combination)
        names = next((list(each) for each in found if each), [])
        return {name: np.array([each.get(name, np.nan) for each in found]) for name in METRICS if name in names}


def measured_run(
    config: CloudConfig,
    people: Federation,
    network: RemoteNetwork,
    ledger: Ledger,
    settings: Settings,
    private: PrivatePlan | None,
    all_back: Callable[[], bool],
) -> Run:
    """Return a run on the stations of a network, which hold their BS iterations together.

    ``all_back`` waits, at its end, for silent members, and returns True if they are present.
    """
    accounting = MeasuredAccounting(config, network, ledger)
    evaluation = RemoteEvaluation(network, all_back)
    site = Site(network, Membership(network), accounting, evaluation, config.learning.feature_names)
    return Run(people, network.method, settings, ledger, site=site, private=private)


def _as_it_was(planned: RoundEvent, seen: Round) -> RoundEvent:
    """Return the event with the terminals that got orders; all of a station that never answered may have worked."""
    layout = planned.layout
    ordered = np.isin(np.arange(layout.n_terminals), list(seen.efforts))
    mask = ordered | np.isin(layout.terminal_task, list(seen.unknown))
    away = np.array([answer.away for _, answer in sorted(seen.answers.items())])
    stations = ~away if planned.stations is None else planned.stations & ~away
    expected = np.zeros(layout.n_terminals, dtype=bool)
    expected[slice(None) if planned.terminal_ids is None else planned.terminal_ids] = True
    return replace(
        planned, terminals=None if mask[expected].all() else mask, stations=None if stations.all() else stations
    )


def sent_again(event: Event, order: float) -> Event:
    """An event in which all that goes down is sent as often as it may be; a round's ``order`` is in full then.

    The model that it names was carried by a stream that is no more.
    """
    if isinstance(event, RoundEvent):
        again = (MOST_SENT - 1) * np.maximum(event.bytes_down, order if event.merges else 0.0)
        return replace(event, bytes_down=event.bytes_down + again, request_bytes=MOST_SENT * event.request_bytes)
    return replace(event, bytes_down=MOST_SENT * event.bytes_down) if isinstance(event, CloudEvent) else event


def settings_of(config: CloudConfig, kind: str, target_gap: float, *, ended: bool, private: bool = False) -> Settings:
    """How to run, from the configuration; without any end, until the gap is small beside the objective."""
    learning = config.learning
    return Settings(
        scale=learning.scale or default_scale(kind, private=private),
        certify_every=learning.certify_every,
        seed=learning.seed,
        target_gap=target_gap,
        target_relative_gap=learning.target_relative_gap if ended else GOOD_ENOUGH,
        max_rounds=learning.max_rounds,
    )


def suited(policy: Policy, config: CloudConfig, cost: Cost, *, masked: bool) -> Policy:
    """Return the algorithm's policy within the limits of the terminals."""
    least_steps = config.learning.least_steps
    if isinstance(policy, Measured):
        policy = replace(policy, least_steps=least_steps and max(least_steps, policy.least_steps))
    timed = "time" in cost and cost["time"].adds == "elapsed"
    if least_steps == 1 and not timed and not masked:
        return policy
    return Careful(policy, least_steps, config.resources.deadline if timed else None, masked)


def first_situation(network: RemoteNetwork, ledger: Ledger) -> Situation:
    """Return the situation before the first round."""
    members = network.station >= 0
    return Situation(
        network.sizes[members],
        Placement(network.station[members], network.n_stations),
        ledger,
        lam=0.0,
        gamma=network.method.loss.smoothness,
        bytes=network.message_sizes,
    )


def check_round(run: Run, least_steps: int) -> None:
    """Refuse, before any terminal works, a budget that cannot pay a round with the smallest H that terminals allow.

    ``least_steps`` is that H; 0 is a pass over each terminal's rows. If the budget seems too small, `Run.meet` comes
    first: terminals that went into quarantine in round zero are members no more, and in no price.
    """

    def price() -> dict[str, float]:
        situation = run.situation()
        event = situation.round_event(least_steps or np.maximum(situation.sizes, 1))
        return event_totals(situation.prices, situation.cloud_event(), event)

    if run.state.round or run.ledger.can_afford(price()):
        return
    run.meet()
    if run.ledger.can_afford(total := price()):
        return
    way_out = run.pricing.way_out(
        run.pricing.one_round(situation := run.situation(), smallest_steps(situation, least_steps))
    )
    work = f"{least_steps} steps" if least_steps else "one pass over its own rows"
    raise BudgetError(
        f"{run.pricing.shortage} cannot pay one round in which every terminal takes {work}, which costs "
        f"{amounts_text(total)}: {way_out}. Fewer steps than a pass, which let a station reconstruct "
        "rows, take a new network with --least-steps and a line of every owner"
    )


def check_spent(spent: dict[str, float], budget: Budget) -> None:
    """Refuse a limit below the amount that earlier trainings have spent."""
    for name, limit in budget.items():
        if spent.get(name, 0.0) > limit:
            raise BudgetError(
                f"{name}: {spent[name]:.12g} is spent already, and a budget is for all trainings together: give "
                f"more than {limit:.12g}, or forget them with `rhfedmtl network reset`"
            )


def bounded(run: Run, private: Privacy | None, budget: Budget) -> Budget:
    """Return the limits of a training that goes on: its bound is for all trainings, and a certificate ends it."""
    bound = run.private.privacy if run.private else None
    if (bound is None) != (private is None) or (bound and private and bound != private):
        raise ConfigError(
            f"this network has learned with {bound or 'no bound'}, and what was told stays told: go on with the "
            "same, or forget it with `rhfedmtl network reset`"
        )
    if run.private is None:
        return budget
    if run.state.certificate is not None and np.isfinite(run.state.certificate.gap):
        raise ConfigError(
            "the one certificate of a private training is told, and its bound is spent: begin anew with "
            "`rhfedmtl network reset`, where the owners of terminals allow more: a larger epsilon in terminal.toml"
        )
    return Budget({**budget, RESOURCE: run.private.privacy.mu**2})


def refuse_broken(certificate: Certificate) -> None:
    """Refuse the result of a training whose objective lies below its bound."""
    if certificate.broken:
        names = ", ".join(map(str, certificate.suspects))
        blamed = f" The numbers of station {names} cannot be true: its losses lie below what its duals prove."
        blamed = blamed if names else ""
        raise PeerError(
            f"the certificate is broken: in round {certificate.round} the objective {certificate.primal:.6g} lies "
            f"{-certificate.gap:.2g} below its bound.{blamed} A node sent wrong numbers, or has the state of an old "
            "copy: remove it, or begin again with `rhfedmtl network reset`"
        )
