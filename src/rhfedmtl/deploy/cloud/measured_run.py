"""A run over a real network: the same loop as everywhere, with members that come and go and costs that are measured."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation
from rhfedmtl.deploy.cloud.ledger_state import folded, unfold
from rhfedmtl.deploy.cloud.prices import MeasuredPrices, efforts_mask, unpriced
from rhfedmtl.deploy.cloud.remote_network import IncompleteError, RemoteNetwork
from rhfedmtl.deploy.node.config import CloudConfig
from rhfedmtl.engines.network import Network
from rhfedmtl.policies.base import Observation, Plan, Policy, Situation
from rhfedmtl.resources.billing import Event, RoundEvent, charges, steps_by_deadline
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Certificate
from rhfedmtl.training.config import GOOD_ENOUGH
from rhfedmtl.training.faults import Faults, FaultSchedule
from rhfedmtl.training.run import Run, Settings

TRIES = 3
"""How often a last certificate is tried for before the one of an earlier round has to do."""


REMEMBERED = 64
"""Rounds that policies may look back to."""
MOST_AMOUNTS = 1_000_000
"""Single amounts that the ledger keeps round by round."""


class Membership(FaultSchedule):
    """Nothing is drawn here: the network says who is there."""

    @property
    def calm(self) -> bool:
        """Faults happen by themselves."""
        return True

    def change(self, number: int, network: Network) -> bool:
        """Whether members have changed since the last server iteration."""
        return isinstance(network, RemoteNetwork) and network.sync()


@dataclass(frozen=True)
class Careful:
    """Another policy, within what terminals allow: never fewer steps than ``least``, and no more than time permits."""

    policy: Policy
    least: int
    deadline: float | None = None

    def plan(self, situation: Situation) -> Plan | None:
        """The other policy's plan, made fit; None where the least H cannot be paid."""
        plan = self.policy.plan(situation)
        if plan is None:
            return None
        steps = np.asarray(plan.local_steps)
        if self.deadline is not None:
            event = situation.round_event(1)
            steps = np.minimum(steps, steps_by_deadline(situation.prices, event, {"time": self.deadline}))
        steps = np.maximum(steps, self.least)
        return plan if np.array_equal(steps, plan.local_steps) else replace(plan, local_steps=steps)


class MeasuredRun(Run):
    """The running state of a training over a network, which carries one BS iteration of all stations at a time."""

    in_step = True

    def __init__(
        self,
        config: CloudConfig,
        people: Federation,
        network: RemoteNetwork,
        ledger: Ledger,
        settings: Settings,
    ) -> None:
        self._remote = network
        self._patience = config.waits.patience
        self.prices = MeasuredPrices(config.resources, ledger.cost)
        super().__init__(people, network.method, settings, ledger)
        self.fault_schedule = Membership(Faults(), people)

    def _make_network(self, federation: Federation) -> Network:
        return self._remote

    @property
    def between(self) -> bool:
        """Whether a server iteration has had all its BS iterations, and the training goes on."""
        plan, done = self._under_way or (None, 0)
        return plan is not None and done >= int(plan.station_rounds.max()) and not self._interrupted

    def situation(self) -> Situation:
        """What the policy may know now; measured types at the prices of the last rounds."""
        if self.prices:
            sizes = self._remote.message_sizes
            n = len(self._remote.station)
            told = self.prices.planning(n, sizes.order + sizes.update, sizes.anchor + sizes.report)
            if told is not self._planning_prices:
                self._planning_prices, self._memo = told, {}
        return super().situation()

    def state(self) -> dict[str, Any]:
        """As everywhere, with the charges themselves: what was measured cannot be charged again from events."""
        return {**super().state(), "charges": folded(self.ledger), "prices": self.prices.state()}

    def _recall(self, ledger: Ledger, state: dict[str, Any]) -> None:
        unfold(state["charges"], ledger)
        self._planning_prices = self.prices.resume(state["prices"]) or self._planning_prices

    def certify(self) -> Certificate:
        """Certificate as of now, or, while a member is silent, as of the last round in which all answered."""
        if self.certificate is not None and self.certificate.round == self.round:
            return self.certificate
        try:
            certificate = self._complete()
        except IncompleteError:
            if self.certificate is None:
                raise
            return self.certificate
        self.certificate = certificate
        self.metrics = self._trial(certificate)
        self.history[-1:] = [self._moment(certificate)]
        return certificate

    def result(self, stopped: str) -> Any:
        """What the run leaves behind; the last certificate is tried for a few times."""
        for _ in range(TRIES):
            if self.certificate is None or self.certificate.round != self.round:
                self._review()
        if self.prices:
            left = self.prices.link_charges(self.round, self._layout(), self._remote.overhead, None)
            self.ledger.settle(self.ledger.reserve({}), left, self.prices.names)
        return super().result(stopped)

    def _complete(self) -> Certificate:
        certificate = self._certificate()
        if certificate is None:
            raise IncompleteError("no certificate this time: members have changed meanwhile")
        return certificate

    def _review(self) -> None:
        """As everywhere; while somebody has never told its sums, a training goes on without a certificate."""
        self._collect()
        with contextlib.suppress(IncompleteError):
            self.certify()

    def _trial(self, certificate: Certificate) -> dict[str, npt.NDArray[np.float64]]:
        """Metrics of every task, measured where its test rows lie."""
        found = self._remote.trial(certificate.models)
        names = next((list(each) for each in found if each), [])
        order = [name for name in ("accuracy", "balanced_accuracy", "auc", "rmse") if name in names]
        return {name: np.array([each.get(name, np.nan) for each in found]) for name in order}

    def _charge(self, event: Event) -> None:
        """Charge what is declared; what is measured comes with the next round."""
        if self.prices:
            self.ledger.charge(charges(self.ledger.cost, event, unpriced(self.ledger.cost, self.prices.names)))
            self.events.append(event)
        else:
            super()._charge(event)

    def _station_iteration(self, planned: RoundEvent, worst: dict[str, float]) -> None:
        """Reserve the worst case, let it happen, and charge what the stations say was done."""
        self.round = planned.round
        reservation = self.ledger.reserve(worst)
        waits = self.prices.waits(worst, self.ledger.room, self._patience)
        self._remote.deadline, self._remote.patience = waits
        steps = _asked(planned)
        outcome = self._remote.round(self.round, steps)
        self._remote.patience = self._patience
        event = self._as_it_was(planned)
        self._settle(reservation, event)
        self.events.append(event)
        done = steps if event.terminals is None else np.where(event.terminals, steps, 0)
        self.terminal_steps += int(done.sum())
        seen = done if done.any() else steps
        self.observed.append(Observation(self.round, seen, outcome.answers, outcome.factor, outcome.gains))
        self.history.append(self._moment())
        # A training without an end keeps what policies look at, and of charges long ago only their sums over rounds.
        del self.events[:-1], self.observed[:-REMEMBERED], self.history[:-1]
        self.ledger.condense(MOST_AMOUNTS)

    def _as_it_was(self, planned: RoundEvent) -> RoundEvent:
        """Who was given orders; of a station that was asked and never answered, all: they may have worked."""
        seen = self._remote.last
        assert seen is not None
        layout = planned.layout
        mask = efforts_mask(seen.efforts, layout.n_terminals) | np.isin(layout.terminal_task, list(seen.unknown))
        away = np.array([answer.away for _, answer in sorted(seen.answers.items())])
        stations = ~away if planned.stations is None else planned.stations & ~away
        expected = np.zeros(layout.n_terminals, dtype=bool)
        expected[slice(None) if planned.terminal_ids is None else planned.terminal_ids] = True
        return replace(
            planned,
            terminals=None if mask[expected].all() else mask,
            stations=None if stations.all() else stations,
        )

    def _settle(self, reservation: int, event: RoundEvent) -> None:
        if not self.prices:
            self.ledger.settle(reservation, event)
            return
        seen, layout = self._remote.last, event.layout
        assert seen is not None
        parts = self.prices.parts(seen, layout.n_terminals, layout.n_tasks)
        made = [*charges(self.ledger.cost, event, parts)]
        made += self.prices.link_charges(event.round, layout, self._remote.overhead, seen)
        self.ledger.settle(reservation, made, self.prices.names)
        self.prices.learn(seen)


def _asked(planned: RoundEvent) -> npt.NDArray[np.int64]:
    """H of every terminal, 0 of those that take no part; a view that takes no memory where all are alike."""
    steps = np.asarray(np.broadcast_to(planned.local_steps, planned.layout.n_terminals))
    if planned.terminal_ids is None:
        return steps
    asked = np.zeros_like(steps)
    asked[planned.terminal_ids] = steps[planned.terminal_ids]
    return asked


def settings_of(config: CloudConfig, kind: str, target_gap: float, *, ended: bool) -> Settings:
    """How to run, from the configuration; without any end, until the gap is small beside the objective."""
    learning = config.learning
    return Settings(
        scale=learning.scale or ("standard" if kind == "regression" else "standard-unit"),
        certify_every=learning.certify_every,
        seed=learning.seed,
        target_gap=target_gap,
        target_relative_gap=learning.target_relative_gap if ended else GOOD_ENOUGH,
        max_rounds=learning.max_rounds,
    )
