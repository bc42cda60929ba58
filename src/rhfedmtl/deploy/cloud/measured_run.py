"""Parts of a run over a real network: members that change, measured costs, and test metrics measured on the nodes.

`Trainer` calls `measured_run`, which plugs these parts into the same training loop that simulations use (`Run`). The
other functions turn the configuration of the cloud into settings, policies and checks before and after a run. Nothing
here talks to a station: `RemoteNetwork` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rhfedmtl.data.federation import Federation
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.prices import MeasuredPrices
from rhfedmtl.deploy.cloud.remote_network import RemoteNetwork
from rhfedmtl.deploy.station.questions import MOST_SENT
from rhfedmtl.engines.network import Float64Array, Network
from rhfedmtl.errors import BudgetError, ConfigError, PeerError
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import ONE_PASS, Plan, Policy, Situation, smallest_steps
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.billing import Parts, charges, event_totals
from rhfedmtl.resources.costs import Budget, Cost, amounts_text
from rhfedmtl.resources.events import CloudEvent, Event, Placement, RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.ledger_file import ledger_from_dict, ledger_to_dict
from rhfedmtl.resources.steps import steps_by_deadline
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.training.config import GOOD_ENOUGH, default_scale
from rhfedmtl.training.privacy import RESOURCE, Privacy, PrivatePlan
from rhfedmtl.training.result import Metrics
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.site import Site

TRIES = 3
"""Attempts at the last certificate; after these the result has the certificate of an earlier round."""
MAX_AMOUNTS = 1_000_000
"""Above this number of amounts the ledger replaces the amounts of old rounds by their sums."""


@dataclass(frozen=True)
class LimitedPolicy:
    """Policy that changes the plans of another ``policy`` to the H that the terminals allow and the deadline permits.

    Parameters
    ----------
    policy : Policy
        Makes the plans.
    least_steps : int
        Smallest H of every terminal; 0 means a pass over its rows.
    deadline : float or None
        Seconds for the work of a round. A terminal that cannot do the smallest H in this time skips the round (H = 0).
        If no terminal could, all work: the prices of time may be first guesses.
    equal_work : bool
        All terminals do the same work, as masked sums require: the same H, or, with a deadline and ``least_steps`` of
        0, the same number of full passes.
    """

    policy: Policy
    least_steps: int
    deadline: float | None = None
    equal_work: bool = False

    def plan(self, situation: Situation) -> Plan | None:
        """Return the plan within the limits, or None if the policy has no plan that the budget pays."""
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
        if self.equal_work and np.ptp(steps[works]) and np.ptp((steps / rows)[works]):
            # The same work for all terminals that work, at least the smallest H of each terminal.
            if self.deadline is None:
                same = np.full_like(steps, steps[works].max())
            elif self.least_steps == ONE_PASS:
                same = rows * (steps // rows)[works].min()
            else:
                same = np.full_like(steps, steps[works].min())
            steps = np.where(works, same, 0)
        return plan if np.array_equal(steps, plan.local_steps) else replace(plan, local_steps=steps)


class RemoteEnvironment:
    """The environment of a run on a real network: it reports the present members, and their work in the last round."""

    def __init__(self, network: RemoteNetwork) -> None:
        self._network = network

    def change(self, number: int, network: Network) -> bool:
        """Return True if members have changed since the last server iteration."""
        return self._network.sync()

    def start_round(self, planned: RoundEvent, cost: Cost, network: Network) -> tuple[RoundEvent, None]:
        """Return the round as planned: only the stations know which terminals are present."""
        return planned, None

    def end_round(self, event: RoundEvent) -> RoundEvent:
        """Return the round with only the terminals that received orders.

        If a station never answered, all its terminals count, because they may have worked.
        """
        layout, last_round = event.layout, self._network.last_round
        ordered = np.isin(np.arange(layout.n_terminals), list(last_round.efforts))
        mask = ordered | np.isin(layout.terminal_task, list(last_round.unknown))
        present = ~np.array([answer.away for _, answer in sorted(last_round.answers.items())])
        stations = present if event.stations is None else event.stations & present
        expected = np.zeros(layout.n_terminals, dtype=bool)
        expected[slice(None) if event.terminal_ids is None else event.terminal_ids] = True
        return replace(
            event, terminals=None if mask[expected].all() else mask, stations=None if stations.all() else stations
        )

    def state(self) -> dict[str, Any]:
        """Return an empty state: `RemoteNetwork` keeps the members."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""


class MeasuredAccounting:
    """Accounting with measured resource types: declared types cost their price, measured types the measured amounts.

    Prices for plans follow the last rounds (`MeasuredPrices`). Before each event the worst case is reserved. The
    network then waits no longer than the reserved time, and sends each request at most ``MOST_SENT`` times.
    """

    def __init__(self, config: CloudConfig, network: RemoteNetwork, ledger: Ledger) -> None:
        self.ledger, self.planning_prices = ledger, ledger.cost
        self._network, self._patience = network, config.waits.patience
        self._prices = MeasuredPrices(config.resources, ledger.cost)

    def update_prices(self) -> bool:
        """Take over the prices of the last rounds; return True if they have changed noticeably."""
        old_prices, sizes = self.planning_prices, self._network.message_sizes
        if self._prices:
            n, stations = len(self._network.station), self._network.station[self._network.station >= 0]
            per_terminal = (sizes.each_request + sizes.each_result) * int(np.bincount(stations).max(initial=0))
            station_bytes = sizes.anchor + sizes.report + sizes.request + sizes.result + per_terminal
            self.planning_prices = self._prices.planning(n, sizes.order + sizes.update, station_bytes)
        return self.planning_prices is not old_prices

    def worst(self, *events: Event) -> dict[str, float]:
        """Return the worst cost of events at the planning prices.

        If bytes are measured, every request counts as often as it may be sent; an answer counts once.
        """
        totals = event_totals(self.planning_prices, *events)
        if "bytes" in self._prices.names:
            order = self._network.message_sizes.order
            prices = Cost({"bytes": self.planning_prices["bytes"]})
            totals |= event_totals(prices, *(sent_again(event, order) for event in events))
        return totals

    def charge(self, event: Event) -> None:
        """Charge the declared types of an event, and the amounts measured since the last charge."""
        self.ledger.charge(charges(self.ledger.cost, event, dict.fromkeys(self._prices.names, Parts())))
        self.close(event.round, event.layout)

    def reserve(self, worst: dict[str, float]) -> int:
        """Reserve the worst case, and limit all waiting times to it."""
        reservation = self.ledger.reserve(worst)
        self._network.deadline, self._network.partners.patience = self._prices.waits(
            worst, self.ledger.remaining, self._patience
        )
        return reservation

    def settle(self, reservation: int, event: RoundEvent) -> None:
        """Charge the work that the stations report, learn prices from it, and condense old charges to sums."""
        self._network.partners.patience = self._patience
        last_round, layout = self._network.last_round, event.layout
        parts = self._prices.parts(last_round, layout.n_terminals, layout.n_tasks)
        all_charges = [*charges(self.ledger.cost, event, parts)]
        if self._prices:
            all_charges += self._prices.link_charges(event.round, layout, self._network.partners.overhead, last_round)
        self.ledger.settle(reservation, all_charges, self._prices.names)
        if self._prices:
            self._prices.learn(last_round)
        self.ledger.log.condense(MAX_AMOUNTS)

    def close(self, number: int, layout: Placement) -> None:
        """Charge the messages and seconds since the last charge."""
        if self._prices:
            link_charges = self._prices.link_charges(number, layout, self._network.partners.overhead, None)
            self.ledger.settle(self.ledger.reserve({}), link_charges, self._prices.names)

    def state(self) -> dict[str, Any]:
        """Return all charges and prices: events alone cannot restore measured amounts."""
        return {
            "charges": ledger_to_dict(self.ledger),
            "spent": self.ledger.log.exact_sums(),
            "prices": self._prices.state(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.ledger.log.restore(ledger_from_dict(state["charges"]).log.charges, state["spent"])
        self.planning_prices = self._prices.resume(state["prices"]) or self.planning_prices


class RemoteEvaluation:
    """Evaluation on the test rows of the nodes; a missing member may answer a later attempt."""

    def __init__(self, network: RemoteNetwork, all_back: Callable[[], bool]) -> None:
        self._network, self._all_back = network, all_back

    def tries(self) -> Iterator[None]:
        """Yield once for each attempt at the last certificate; wait for all members before the second and later."""
        yield
        for _ in range(TRIES - 1):
            if self._all_back():
                yield

    def metrics(self, models: Models, combination: Float64Array | None = None) -> Metrics:
        """Return the metrics of every task; NaN for a task whose station did not answer."""
        trials = self._network.trial(models, combination)
        names = next((list(trial) for trial in trials if trial), [])
        return {name: np.array([trial.get(name, np.nan) for trial in trials]) for name in METRICS if name in names}


def measured_run(
    config: CloudConfig,
    federation: Federation,
    network: RemoteNetwork,
    ledger: Ledger,
    settings: Settings,
    private: PrivatePlan | None,
    all_back: Callable[[], bool],
) -> Run:
    """Return a run on the stations of a network.

    ``federation`` has names and sizes, but no rows (`remote_network.census`). Before another attempt at the last
    certificate, ``all_back`` waits for missing members and returns True if all are present.
    """
    accounting = MeasuredAccounting(config, network, ledger)
    evaluation = RemoteEvaluation(network, all_back)
    learning = config.learning
    site = Site(network, RemoteEnvironment(network), accounting, evaluation, learning.features, learning.feature_names)
    return Run(federation, network.method, settings, ledger, site=site, private=private)


def sent_again(event: Event, order: float) -> Event:
    """Return an event in which every message to a lower node is sent as often as it may be.

    A repeated order of a round has its full size ``order``: it cannot refer to a model of the broken stream.
    """
    if isinstance(event, RoundEvent):
        again = (MOST_SENT - 1) * np.maximum(event.bytes_down, order if event.merges else 0.0)
        return replace(event, bytes_down=event.bytes_down + again, request_bytes=MOST_SENT * event.request_bytes)
    return replace(event, bytes_down=MOST_SENT * event.bytes_down) if isinstance(event, CloudEvent) else event


def settings_of(config: CloudConfig, kind: str, target_gap: float, *, ended: bool, private: bool = False) -> Settings:
    """Return the settings of a training from the configuration.

    If no limit ends the training (not ``ended``), it ends at a relative gap of ``GOOD_ENOUGH``.
    """
    learning = config.learning
    return Settings(
        scale=learning.scale or default_scale(kind, private=private, algorithm=learning.algorithm),
        certify_every=learning.certify_every,
        seed=learning.seed,
        target_gap=target_gap,
        target_relative_gap=learning.target_relative_gap if ended else GOOD_ENOUGH,
        max_rounds=learning.max_rounds,
    )


def limited_policy(policy: Policy, config: CloudConfig, cost: Cost, *, masked: bool) -> Policy:
    """Return the algorithm's policy within the limits of the terminals."""
    least_steps = config.learning.least_steps
    if isinstance(policy, Measured):
        policy = replace(policy, least_steps=least_steps and max(least_steps, policy.least_steps))
    timed = "time" in cost and cost["time"].adds == "elapsed"
    if least_steps == 1 and not timed and not masked:
        return policy
    return LimitedPolicy(policy, least_steps, config.resources.deadline if timed else None, masked)


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
    """Refuse, before any terminal works, a budget that cannot pay a round with the smallest H.

    ``least_steps`` is the smallest H that terminals allow; 0 means a pass over each terminal's rows. If the budget
    seems too small, call `Run.meet` and check again: terminals that went into quarantine in round zero cost nothing.
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
        f"{amounts_text(total)}: {way_out}. For fewer steps than a pass, make a new network with --least-steps and let "
        "every owner add least_steps to terminal.toml; a station can then reconstruct rows"
    )


def check_spent(spent: dict[str, float], budget: Budget) -> None:
    """Refuse a limit below the amount that earlier trainings have spent."""
    for name, limit in budget.items():
        if spent.get(name, 0.0) > limit:
            raise BudgetError(
                f"{name}: {spent[name]:.12g} is spent already, and a budget is for all trainings together: give "
                f"more than {limit:.12g}, or forget them with `rhfedmtl network reset`"
            )


def continued_budget(run: Run, private: Privacy | None, budget: Budget) -> Budget:
    """Return the limits of a training that continues.

    A privacy bound covers all trainings of the network together, and the certificate spends the rest of it. Refuse
    another bound than before, and a continuation after the certificate.
    """
    bound = run.private.privacy if run.private else None
    if (bound is None) != (private is None) or (bound and private and bound != private):
        raise ConfigError(
            f"this network has learned with {bound or 'no bound'}, and nothing takes back a released value: go on with "
            "the same bound, or forget it with `rhfedmtl network reset`"
        )
    if run.private is None:
        return budget
    if run.state.certificate is not None and np.isfinite(run.state.certificate.gap):
        raise ConfigError(
            "the private training has released its certificate, and its bound is spent: start over with `rhfedmtl "
            "network reset`, if the owners of terminals allow more by a larger epsilon in terminal.toml"
        )
    return Budget({**budget, RESOURCE: run.private.privacy.mu**2})


def refuse_broken(certificate: Certificate) -> None:
    """Refuse the result of a training whose objective lies below its lower bound: a node sent wrong numbers."""
    if certificate.broken:
        names = ", ".join(map(str, certificate.suspects))
        blamed = f" The numbers of station {names} cannot be true: its losses lie below what its duals prove."
        blamed = blamed if names else ""
        raise PeerError(
            f"the certificate is broken: in round {certificate.round} the objective {certificate.primal:.6g} lies "
            f"{-certificate.gap:.2g} below its bound.{blamed} A node sent wrong numbers, or has the state of an old "
            "copy: remove it, or start over with `rhfedmtl network reset`"
        )
