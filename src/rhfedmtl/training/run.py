"""One run: round zero, then server iterations as the policy plans them, and a certificate for what comes out.

The loop here is the clock. What to do is decided by the policy and the roles, and carried out by the network.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Channel, Method
from rhfedmtl.algorithms.sgd import Server
from rhfedmtl.data import centring
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import SCALES, Scaler, scalers
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import Excludes, Keeping, LabelCentring
from rhfedmtl.engines.registry import ENGINES, Execution
from rhfedmtl.errors import BudgetError, ConfigError, IncompleteError
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.metrics import scores
from rhfedmtl.maths.quasi_newton import ASCENT, Solver
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.policies.base import (
    AUTO,
    MOST_COUNT,
    REMEMBERED,
    Observation,
    Plan,
    Policy,
    Situation,
    check_certify_every,
    least_of,
)
from rhfedmtl.resources.billing import (
    Event,
    Placement,
    ReleaseEvent,
    RoundEvent,
    event_totals,
    round_zero_events,
    waited,
)
from rhfedmtl.resources.costs import BudgetLike, amounts_text
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.channel import keyed
from rhfedmtl.roles.cloud import Certificate, Cloud
from rhfedmtl.roles.messages import round_zero_bytes
from rhfedmtl.training.accounting import Accounting, DeclaredAccounting
from rhfedmtl.training.certifying import CertificateBudget, Certifier
from rhfedmtl.training.checkpoint import Checkpoint, Keeper
from rhfedmtl.training.clouds import make_cloud, regularisation, solvers
from rhfedmtl.training.faults import Faults, FaultSchedule
from rhfedmtl.training.packing import Loose
from rhfedmtl.training.privacy import KEY_BYTES, RESOURCE, PrivatePlan
from rhfedmtl.training.result import BROKEN, Metrics, Moment, Progress, Result, Watcher, mean
from rhfedmtl.training.site import Environment, Evaluation, LocalEvaluation, Site

NEVER = MOST_COUNT
"""``certify_every`` of a run whose rounds are not certified."""

CLOSE = 1e-6
"""A relative gap that says enough: no gradient is asked for to make it smaller."""

LAST_DIGITS = 4e-15
"""A gap of so much of the objective of models that are zero is rounding, however small the objective is."""

__all__ = [
    "Moment",
    "Progress",
    "Result",
    "Run",
    "Settings",
    "Watcher",
    "make_cloud",
    "mean",
    "scores",
    "train",
]


@dataclass(frozen=True)
class Settings:
    """How to run, as opposed to what to learn.

    Every ``certify_every`` BS iterations the gap and the test metrics are computed. Their messages are charged by their
    bytes, their passes over the data are not. "auto" does so in every iteration where it costs nothing that is limited,
    and else as seldom as decisions need it. The last iteration is always certified, and paid for from the start; a
    certificate on the way that cannot be paid is left out. ``free_evaluation`` declares all of this free. A run ends
    early once the
    gap is at most ``target_gap``, or at most ``target_relative_gap`` of the objective (0: no such target), once a
    certificate is broken, and in any case after ``max_rounds`` BS iterations. A private run draws its noise from the
    operating system; with ``noise_from_seed`` it draws the noise from ``seed`` and is a simulation.
    """

    scale: str = "standard-unit"
    scale_per_station: bool = False
    certify_every: int | str = AUTO
    free_evaluation: bool = False
    seed: int = 0
    noise_from_seed: bool = False
    target_gap: float = 0.0
    target_relative_gap: float = 0.0
    max_rounds: int = 100_000
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        """Refuse settings that name nothing."""
        if self.scale not in SCALES:
            raise ConfigError(f"unknown scaling {self.scale!r}: choose one of {', '.join(SCALES)}")
        for name in ("target_gap", "target_relative_gap"):
            check_weight(name, getattr(self, name))
        check_certify_every(self.certify_every)
        for name, least in (("max_rounds", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Before:
    """What was done before a run and counts to it: charged ``events``, or the ``state`` of its first rounds."""

    events: list[Event] = field(default_factory=list)
    state: dict[str, Any] | None = None


def train(
    federation: Federation,
    method: Method,
    policy: Policy,
    settings: Settings | None = None,
    *,
    ledger: Ledger | None = None,
    faults: Faults | None = None,
    judged: Federation | None = None,
    watch: Watcher | None = None,
    keep: Keeper | None = None,
    start: Checkpoint | None = None,
    before: Before | None = None,
    private: PrivatePlan | None = None,
) -> Result:
    """Scale, learn as the policy plans and the ledger allows, certify. ``watch`` is called after every BS iteration.

    A watcher that returns False ends the run there; what was learned until then is certified and returned. ``judged``
    is the federation whose tasks are evaluated, where a method has regrouped them: tasks may share a station. ``keep``
    writes checkpoints; a run that ``start`` takes up goes on as if it had not been interrupted. ``private`` is the plan
    that the method's channel and the ledger were made by (`training.privacy`): one certificate, at the end, is hidden
    in noise.
    """
    key = None if start is None else start.noise_key
    run = Run(
        federation, method, settings or Settings(), ledger or Ledger({}), faults, judged, private=private, noise_key=key
    )
    try:
        if start is not None:
            run.resume(start)
        elif before is not None:
            run.follow(before)
        return run.result(run.learn(policy, watch, keep))
    finally:
        run.close()


class Run:
    """The running state of `train`, simulated unless a ``site`` says where it takes place.

    In a simulation what time a station has left of a BS iteration goes to its next. A private run
    draws its noise from ``noise_key``, the secret key of its checkpoint; a new run makes its own.
    """

    def __init__(
        self,
        federation: Federation,
        method: Method,
        settings: Settings,
        ledger: Ledger,
        faults: Faults | None = None,
        judged: Federation | None = None,
        *,
        site: Site | None = None,
        private: PrivatePlan | None = None,
        noise_key: bytes | None = None,
    ) -> None:
        faults, judged = faults or Faults(), judged or federation
        self._started = time.perf_counter()
        self.settings = settings if private is None else replace(settings, certify_every=NEVER)
        self.noise_key: bytes | None = None
        if private is not None and site is None:
            if settings.noise_from_seed:
                private = private.simulated()
            else:
                self.noise_key = noise_key or secrets.token_bytes(KEY_BYTES)
                method = method.hidden(keyed(method.channel, self.noise_key))
        self.method = method
        self.private = private
        schedule = FaultSchedule(faults, federation, method.channel.summed)
        self.environment: Environment = schedule if site is None else site.environment
        declared = DeclaredAccounting(ledger, faults.planning_prices(ledger.cost))
        self.accounting: Accounting = declared if site is None else site.accounting
        self._simulated = site is None
        how = settings.execution
        self.network = (
            site.network
            if site
            else how.entry(federation, method, seed=settings.seed, present=schedule.present, execution=how)
        )
        rows = np.diff(federation.terminal_offsets[federation.task_offsets])
        self.cloud = make_cloud(method, rows, self.network.shape)
        self._membership: Placement | None = None
        self._interrupted = False
        self._under_way: tuple[Plan, int] | None = None  # a server iteration, and how many BS iterations of it are done
        self._memo: dict[str, Any] = {}
        self.round = 0
        self.terminal_steps = 0
        self.certificate: Certificate | None = None
        self.noise = np.zeros(federation.n_tasks)  # variance of the noise in every station's sum
        self._released = -1  # round of the last certificate that was charged for what it tells
        self.metrics: Metrics = {}
        self.events: list[Event] = []
        self._certificates = CertificateBudget(self.accounting)
        self._collected: tuple[int, int] | None = None  # server iteration and round of the last reports
        free = settings.free_evaluation
        self._certifier = Certifier(self.network, self.cloud, method, self._layout, free=free)
        self.observed: list[Observation] = []
        self._rounds_by_solver: dict[str, int] = {}
        self.history: list[Moment] = []
        self._lam, self._coupling = regularisation(method, federation.n_tasks)
        self._solvers = solvers(method)
        try:
            names = federation.feature_names if site is None else site.feature_names
            self.scalers, self.levels = self._round_zero(federation, names)
        except BaseException:
            self.close()
            raise
        self.task_station = np.arange(judged.n_tasks) if federation.n_tasks > 1 else np.zeros(judged.n_tasks, dtype=int)
        self.evaluation: Evaluation = (
            LocalEvaluation(judged, self.task_station, self.scalers) if site is None else site.evaluation
        )
        self._certificates.set_aside(self.situation())

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        return self.accounting.ledger

    @property
    def between_server_iterations(self) -> bool:
        """Whether the present server iteration has had all its BS iterations, and the run goes on."""
        return self._under_way is not None and self._iteration_is_over and not self._interrupted

    @property
    def _iteration_is_over(self) -> bool:
        """Whether no BS iteration is left of the present server iteration."""
        plan, done = self._under_way or (None, 0)
        return plan is None or done >= int(plan.station_rounds.max())

    def learn(self, policy: Policy, watch: Watcher | None = None, keep: Keeper | None = None) -> str:
        """Run server iterations until the policy, the budget, the target gap or the limit on rounds ends it."""
        self._certificates.keep_aside()
        try:
            return self._learn(policy, watch, keep)
        finally:
            self._certificates.give_back()

    def _learn(self, policy: Policy, watch: Watcher | None, keep: Keeper | None) -> str:
        while True:
            if self._under_way is None:
                if (reached := self._reached()) is not None:
                    return reached
                if self.certificate is not None and self.certificate.broken:
                    return BROKEN
                if self.round >= self.settings.max_rounds:
                    return "limit on rounds reached"
                self._change()
                situation = self.situation()
                plan = policy.plan(situation)
                if plan is None or not self._begin(situation, plan):
                    return self._spent(situation, plan, least_of(situation, getattr(policy, "least_steps", 1)))
            self._station_iterations(self.situation(), watch, keep)
            if self._interrupted:
                return "interrupted"

    def result(self, stopped: str) -> Result:
        """What the run leaves behind, certified as it stands now; ``stopped`` is what `learn` said."""
        for _ in self.evaluation.tries():
            if not self._is_certified():
                self._collected = None
                self._review()
            while not self._is_certified() and self._leave_out():
                self._review()
            if self._is_certified():
                break
        certificate = self._closed(self.certify())
        self.accounting.close(self.round, self._layout())
        return Result(
            self.as_given(certificate.models)[self.task_station],
            [self.scalers[b] for b in self.task_station],
            certificate,
            self.metrics,
            self.ledger,
            self.events,
            self.observed,
            self.round,
            self.cloud.cloud_round,
            self.terminal_steps,
            BROKEN if certificate.broken else stopped,
            time.perf_counter() - self._started,
            self.history,
            getattr(self.cloud, "relationship", None),
            self.private,
            dict(self._rounds_by_solver),
        )

    def restore(self, alpha: npt.NDArray[np.float64], models: Models | None = None) -> None:
        """Start from these dual variables of the same rows, and from models of the stations; before the first round."""
        if not (isinstance(self.network, InProcess) and isinstance(self.cloud, Cloud)):
            raise ConfigError("only a method with duals, in one process, can start from dual variables")
        self.network.restore(alpha)
        self.cloud.resume(self.network.reports(0), models)

    def follow(self, before: Before) -> None:
        """Charge what was done before, as part of round zero, or go on from it; before the first round."""
        for event in before.events:
            self._charge(replace(event, round=0))
        if (state := before.state) is not None:
            self._take_up(lambda _: state)

    def reweigh(self, relationship: Relationship) -> None:
        """Go on with a relationship of other weights, and rows that may have come or gone: the problem is another."""
        assert isinstance(self.cloud, Cloud)
        assert isinstance(self.method, DualMethod)
        self.cloud.relationship = relationship
        self.cloud.forget_bound()
        self.method = replace(self.method, relationship=relationship)
        self._lam, self._coupling = regularisation(self.method, self.cloud.n_tasks)
        self.certificate = None
        self._start_anew()

    @property
    def can_look(self) -> bool:
        """Whether the budget pays for a certificate and for `looked_at`, beside what is set aside for the last one."""
        self._certificates.keep_aside()
        event = self.situation().certificate_event()
        try:
            return self.ledger.can_afford(self.accounting.worst(event, event))
        finally:
            self._certificates.give_back()

    def looked_at(self) -> Certificate:
        """The certificate of now, for somebody who looks how its models do on other rows, which is charged as well."""
        self._review()
        certificate = self.certify()
        self._charge_certificate()
        return certificate

    def go_on(self, budget: BudgetLike, **settings: Any) -> None:
        """Let `learn` go on from where it ended, under these limits in all and other `Settings`, with new plans."""
        self.accounting.ledger = self.ledger.with_budget(budget)
        self.settings = replace(self.settings, **settings)
        self._memo, self._interrupted, self._under_way = {}, False, None
        self._started = time.perf_counter()
        self._certificates.set_aside(self.situation())

    def state(self) -> dict[str, Any]:
        """All that a run with the same data, method and settings needs to go on from here, to the bit."""
        network = self._keeping()
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "known": [self._certifier.ordered, self._certifier.asked],
            "certificates": [self._certificates.spent, self._certificates.aside, self._certificates.unpaid],
            "memo": Loose(self._memo),
            "cloud": {name: part for name, part in vars(self.cloud).items() if not isinstance(part, Server | Channel)},
            "environment": self.environment.state(),
            "network": network.state(),
            **self.accounting.state(),
            "seconds": time.perf_counter() - self._started,
        }

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same run; before the first round."""
        self._take_up(lambda ledger: checkpoint.state({"ledger": ledger}))

    def _take_up(self, kept: Callable[[Ledger], dict[str, Any]]) -> None:
        """Go on from a state that was ``kept``, in which this run's ledger stands for its own."""
        network = self._keeping()
        self.accounting.ledger = Ledger(self.ledger.cost, self.ledger.budget)
        state = kept(self.ledger)
        self.accounting.resume(state)
        self._certificates.resume(*state["certificates"])
        self._memo = dict(state["memo"])
        for name in _KEPT:
            setattr(self, name, _copied(state[name]))
        self._certifier.ordered, self._certifier.asked = state["known"]
        self._membership = self.events[-1].layout if self.events else None
        for name, value in state["cloud"].items():
            setattr(self.cloud, name, _copied(value))
        self.environment.resume(state["environment"])
        network.resume(state["network"])
        self._started = time.perf_counter() - state["seconds"]

    def _keeping(self) -> Keeping:
        """The network, if it can be put away."""
        if isinstance(self.network, Keeping):
            return self.network
        able = ", ".join(name for name, entry in ENGINES.items() if entry.keeps_checkpoints)
        raise ConfigError(f"engine {self.settings.execution.engine!r} keeps no checkpoints: use one of {able}")

    def close(self) -> None:
        """Give back what the network holds outside of this process."""
        getattr(self.network, "close", lambda: None)()

    def _is_certified(self) -> bool:
        return self.certificate is not None and self.certificate.round == self.round

    def _reached(self) -> str | None:
        """Which of the targets is reached, where nothing more is learned from that."""
        words = self._target()
        return None if words is None or self.cloud.learn() else words  # a W-step is solved; it may not be the last

    def _target(self) -> str | None:
        """Which of the targets the certificate has reached; a target of 0 is none."""
        certificate = self.certificate
        if certificate is None or not self._is_certified() or certificate.broken:
            return None
        target, relative = self.settings.target_gap, self.settings.target_relative_gap
        if 0.0 < target >= certificate.gap:
            return "target gap reached"
        if not relative > 0.0:
            return None
        if relative >= certificate.relative_gap:
            return f"relative gap of {relative:g} reached"
        return "solved up to rounding" if certificate.gap <= LAST_DIGITS * abs(certificate.zero) else None

    def _spent(self, situation: Situation, plan: Plan | None, fewest: int | npt.NDArray[np.int64]) -> str:
        """Why no server iteration follows: the budget, or the plan; an error where not even the first could be paid.

        ``fewest`` is the smallest H that the policy asks for.
        """
        first = fewest if plan is None else plan.local_steps
        price = self.price_of_round(situation, first)
        if self.ledger.can_afford(price):
            return "plan completed"
        if self.round:
            return "budget spent"
        least = self.price_of_round(situation, fewest)
        asked = "" if plan is None else f" of H={np.max(first)}, which costs {amounts_text(price)}"
        raise BudgetError(
            f"{self.shortage} cannot pay one round{asked}: the cheapest plan (H={np.max(fewest)}, K=1, M=1) costs "
            f"{amounts_text(least)}; {self.way_out(least)} or lower the prices"
        )

    def price_of_round(self, situation: Situation, steps: int | npt.NDArray[np.int64]) -> dict[str, float]:
        """The most that a server iteration of one round takes, and the last certificate if that is not paid yet."""
        unpaid = (situation.certificate_event(),) if self._certificates.unpaid else ()
        return self.accounting.worst(situation.cloud_event(), situation.round_event(steps), *unpaid)

    @property
    def shortage(self) -> str:
        """The budget of a run that cannot begin, and what of it is gone before the first round."""
        uses = {"spent before it": self.ledger.spent, "kept for its certificate": self.ledger.reserved}
        limited = {
            use: {n: x for n, x in by.items() if x > 0.0 and n in self.ledger.budget} for use, by in uses.items()
        }
        before = " and ".join(f"{amounts_text(taken)} is {use}" for use, taken in limited.items() if taken)
        return f"budget {amounts_text(self.ledger.budget)}{f', of which {before},' if before else ''}"

    def way_out(self, least: dict[str, float]) -> str:
        """What would pay a first round that takes so much."""
        taken = self.ledger.spent, self.ledger.reserved, least
        enough = {name: sum(each.get(name, 0.0) for each in taken) for name in self.ledger.budget}
        if not self._simulated:  # messages are measured, and those of another time have a few bytes more
            enough = {name: math.ceil(1.01 * amount) for name, amount in enough.items()}
        few = " (less with --precision int8)" if "bytes" in enough and self.method.channel.identity else ""
        return f"raise the budget to {amounts_text(enough)}{few}"

    def situation(self) -> Situation:
        """What the policy may know now."""
        if self.accounting.update_prices():
            self._memo = {}
        return Situation(
            self.network.sizes,
            self._layout(),
            self.ledger,
            lam=self._lam,
            gamma=self.method.loss.smoothness,
            coupling=self._coupling,
            bytes=self.network.message_sizes,
            certificate_bytes=self._certifier.most_bytes,
            cloud_rounds=self.cloud.cloud_round,
            rounds=self.round,
            observed=self.observed[-REMEMBERED:],
            solvers=self._solvers,
            planning_prices=self.accounting.planning_prices,
            in_step=not self._simulated,
            certify_every=self.settings.certify_every,
            passes=self.cloud.passes,
            seed=self.settings.seed,
            memo=self._memo,
        )

    def certify(self) -> Certificate:
        """Certificate and test metrics of the models as they stand now; computed once for a round.

        While somebody does not tell its sums it is that of the last round in which all did.
        """
        if self.certificate is not None and self._is_certified():
            return self.certificate
        try:
            self.certificate = certificate = self._certificate()
        except IncompleteError:
            if self.certificate is None:
                raise
            return self.certificate
        self._charge_certificate()
        if self.observed:
            astray = certificate.held > certificate.zero
            self.observed[-1] = self.observed[-1]._replace(gap=certificate.single_gap, astray=astray)
        if self._wants_metrics(certificate):
            given = self.as_given(certificate.models)[self.task_station]
            self.metrics = self.evaluation.metrics(given, certificate.combination)
        self.history[-1:] = [self._moment(certificate)]
        return certificate

    def _closed(self, certificate: Certificate) -> Certificate:
        """The last certificate, made tighter where it says little yet and that takes nothing that is limited."""
        says_enough = certificate.relative_gap <= CLOSE or self._target() is not None
        if (
            says_enough
            or self.private is not None
            or not self._is_certified()
            or not self._certifier.can_close
            or self.situation().certificates_cost
        ):
            return certificate
        closed = self._certifier.close(certificate)
        if closed is None:
            return certificate
        self.certificate = closed
        self._charge_certificate()
        self.history[-1:] = [self._moment(closed)]
        return closed

    def _wants_metrics(self, certificate: Certificate) -> bool:
        """Whether test metrics are those of other models, or a station did not tell its own."""
        tasks = np.isin(self.task_station, self.cloud.tasks) if isinstance(self.cloud, Cloud) else slice(None)
        missing = not self.metrics or any(np.isnan(values[tasks]).any() for values in self.metrics.values())
        return missing or certificate.found == certificate.round

    def _certificate(self) -> Certificate:
        """A certificate of now; of a private run what is charged before it, and nothing where it is interrupted."""
        if self.private is None:
            return self._certifier.make(self.round, ahead=self._iteration_is_over)
        if self._interrupted or not self._certifier.tells_noised:
            return self._certifier.make_void(self.round)
        if self._released != self.round:  # asked again, stations answer the same
            self._charge(ReleaseEvent(self.round, self._layout(), {RESOURCE: self.private.certificate_price}))
            self._released = self.round
        return self._certifier.make_private(self.private, np.asarray(self.noise), self.settings.seed)

    def _next_models(self) -> Models | None:
        """What the next orders start from, as far as the cloud knows."""
        if self.round and (self._collected is None or self._collected[1] < self.round):
            return None
        models, told = self.cloud.models, self._certifier.ordered
        return models if self._begins else self.method.channel.models(models, models if told is None else told)

    @property
    def _begins(self) -> bool:
        """Whether stations begin at a point of the last certificate."""
        return isinstance(self.cloud, Cloud) and self.cloud.begins

    @property
    def constant(self) -> float:
        """Value of the feature that stands for the intercept; 1 where there is none."""
        return self.scalers[0].constant(self.network.shape[1] - 1) if self.method.intercept else 1.0

    def as_given(self, models: Models) -> Models:
        """Models of the stations whose last number is the intercept itself, for labels as they were given."""
        return centring.with_intercepts(models, self.constant, self.levels)

    def as_learned(self, models: Models) -> Models:
        """Models of the stations as rounds have them: undoes `as_given`."""
        return centring.without_intercepts(models, self.constant, self.levels)

    def _round_zero(
        self, federation: Federation, names: tuple[str, ...]
    ) -> tuple[list[Scaler], npt.NDArray[np.float64] | None]:
        """Common scaling and levels of labels, from sums over training rows, charged by their bytes alone."""
        settings, channel = self.settings, self.method.channel
        layout, known = self._layout(), federation.preparation
        among = channel.masked_among(layout.members)
        if known is not None and (among or self.private is not None):
            known.refuse_told("--masked" if among else "--privacy", means=self.private is not None)
        features = self.network.shape[1] - self.method.intercept if settings.scale.startswith("standard") else 0
        labels = self.method.intercept and federation.kind == "regression"
        centring_network = self.network if labels and isinstance(self.network, LabelCentring) else None
        sizes = round_zero_bytes(
            features, labels=centring_network is not None, preparation=known, masked_among=among, channel=channel
        )
        events = round_zero_events(layout, *sizes)
        self._check_round_zero(events)
        used = scalers(self.network.moments(), settings.scale, settings.scale_per_station, channel.moments_dtype, names)
        levels = None
        if centring_network is not None:
            levels = centring.levels(centring_network.labels())
            centring_network.centre(levels)
        for event in events:
            self._charge(event)
        self.network.scale(used)
        self.accounting.close(0, layout)
        return used, levels

    def _check_round_zero(self, events: list[Event]) -> None:
        """Refuse, before anybody tells anything, a budget that round zero alone would pass."""
        situation = self.situation()
        price = self.accounting.worst(*events)
        if not self.ledger.can_afford(price):
            first = situation.cloud_event(), situation.round_event(1), situation.certificate_event()
            alone = ", or scale each row alone, as --scale unit does" if self.settings.scale != "unit" else ""
            raise BudgetError(
                f"{self.shortage} cannot pay round zero, in which terminals tell means and spreads of their rows and "
                f"which costs {amounts_text({name: price[name] for name in self.ledger.budget})}: "
                f"{self.way_out(self.accounting.worst(*events, *first))}{alone}"
            )

    def meet(self) -> None:
        """See who is there before a run goes on: what was certified for others is no certificate for these."""
        if self._change():
            self.certificate = None

    def _change(self) -> bool:
        """Let terminals move and rows arrive; the cloud hears of it at once. True if anything has changed."""
        left_out = self._leave_out()
        if not self.environment.change(self.round + 1, self.network):
            return left_out
        self._start_anew()
        return True

    def _leave_out(self) -> bool:
        """Go on with the problem of the other tasks where stations were excluded; True if that is news."""
        if not (isinstance(self.network, Excludes) and isinstance(self.cloud, Cloud)):
            return False
        news = sorted(set(self.network.excluded) & set(self.cloud.tasks.tolist()))
        for b in news:
            self.cloud.leave_out(b)
        if news:
            self.certificate = None
            self._start_anew()
        return bool(news)

    def _start_anew(self) -> None:
        """Let the stations report to a cloud for which the problem has changed."""
        self._memo, self._collected, self._certifier.ordered, self._certifier.asked = {}, None, None, None
        if self.cloud.cloud_round:
            self._collect()

    def _review(self) -> None:
        """Certify between two BS iterations, from what the stations report now; where it cannot be, the run goes on."""
        self._collect()
        with contextlib.suppress(IncompleteError):
            self.certify()

    def _collect(self) -> None:
        """Let the stations report, unless they have since the last BS iteration."""
        now = self.cloud.cloud_round, self.round
        if self._collected != now:
            for report in self.network.reports(self.cloud.cloud_round):
                self.cloud.receive(report)
            self._collected = now

    def _certificate_event(self, situation: Situation) -> RoundEvent:
        """A certificate now; in the middle of a server iteration stations report for it."""
        event = situation.certificate_event()
        if self._iteration_is_over:
            return event
        return replace(event, result_bytes=float(situation.certificate_bytes.result + situation.bytes.report))

    def _charge_certificate(self) -> None:
        """Charge its messages, where bytes have a price."""
        situation = replace(self.situation(), certificate_bytes=self._certifier.probed)
        event = self._certificate_event(situation)
        price = event_totals(situation.prices, event)
        if any(price.values()):
            self._certificates.charged(price)
            self._charge(event)

    def _begin(self, situation: Situation, plan: Plan) -> bool:
        """Start a server iteration: anchors down; False if it cannot be paid with a first BS iteration."""
        planned = self._round_event(situation, plan, 0)
        price = self.accounting.worst(situation.cloud_event(), planned)
        if self._certificates.unpaid or not self.ledger.can_afford(price):
            return False
        anchors, sizes = self.cloud.assign(plan.solver), situation.bytes
        down = sizes.begin if self._begins and self._certifier.knows(self.cloud.models) else sizes.anchor
        self._charge(replace(situation.cloud_event(), bytes_down=float(down)))
        self.network.assign(anchors)
        self._under_way = replace(plan, local_steps=_compact(plan.local_steps)), 0
        return True

    def _station_iterations(self, situation: Situation, watch: Watcher | None, keep: Keeper | None) -> None:
        """The BS iterations that are left of a server iteration, each certified where it is due; reports up."""
        assert self._under_way is not None
        plan, done = self._under_way
        for k in range(done, int(plan.station_rounds.max())):
            planned = self._round_event(situation, plan, k)
            worst = self.accounting.worst(planned)
            if self.round >= self.settings.max_rounds or not self.ledger.can_afford(worst):
                break
            self._station_iteration(planned, worst, plan.solver)
            self._under_way = plan, k + 1
            if self._certificates.is_due(situation, plan, self.round, self._certificate_event(situation)):
                self._review()
            self._interrupted = watch is not None and watch(self._progress(plan)) is False
            if keep is not None and (self._interrupted or keep.due):
                keep.keep(self)
            if self._interrupted:
                break
        self._under_way = None
        self._collect()

    def _round_event(self, situation: Situation, plan: Plan, k: int) -> RoundEvent:
        stations = plan.station_rounds > k
        event = situation.round_event(plan.local_steps, None if stations.all() else stations)
        held = (event for event in reversed(self.events) if isinstance(event, RoundEvent) and event.merges)
        before = next(held, None) if k and self._simulated else None
        ahead = None if before is None else waited(self.ledger.cost, before)
        models = self._next_models()
        sizes = situation.bytes
        down = sizes.named if models is not None and self._certifier.knows(models) else sizes.order
        up = sizes.update if plan.solver == ASCENT else sizes.gradient
        return replace(event, round=self.round + 1, bytes_down=float(down), bytes_up=float(up), ahead=ahead)

    def _station_iteration(self, planned: RoundEvent, worst: dict[str, float], solver: Solver) -> None:
        """Reserve the worst case, let the round be held by who is there, and charge what was really used."""
        models = self._next_models()
        self._certifier.ordered = None if models is None else models.copy()  # the cloud goes on in the same array
        self.round = planned.round
        reservation = self.accounting.reserve(worst)
        event, steps, outcome = self.environment.hold(planned, self.ledger.cost, self.network)
        self.accounting.settle(reservation, event)
        self.events.append(event)
        done = steps if event.terminals is None else np.where(event.terminals, steps, 0)
        total = int(done.sum())
        self.terminal_steps += total
        seen = done if total else steps
        self.observed.append(Observation(self.round, seen, outcome.answers, outcome.factor, outcome.gains, solver))
        took = solver if self.method.has_duals else "gradient-steps"
        self._rounds_by_solver[took] = self._rounds_by_solver.get(took, 0) + 1
        if self.private is not None:
            heard = outcome.answers.astype(np.float64)
            variance = self.method.channel.noise_variance(heard)
            self.noise = self.noise + np.where(heard > 0, outcome.factor, 0.0) ** 2 * variance
        self.history.append(self._moment())
        if not self._simulated:
            del self.events[:-1], self.observed[:-REMEMBERED], self.history[:-1]

    def _layout(self) -> Placement:
        """Membership as the ledger wants it; the same object until somebody moves."""
        station, known = self.network.station, self._membership
        if known is None or type(known.terminal_task) is not type(station) or not known.places(station):
            self._membership = known = Placement(station, self.cloud.n_tasks)
        return known

    def _charge(self, event: Event) -> None:
        self.accounting.charge(event)
        self.events.append(event)

    def _moment(self, certificate: Certificate | None = None) -> Moment:
        if certificate is None:
            return Moment(self.round, self.cloud.cloud_round, self.ledger.spent)
        return Moment(
            self.round,
            self.cloud.cloud_round,
            self.ledger.spent,
            certificate.primal,
            certificate.dual,
            certificate.station_gaps,
            self.metrics,
        )

    def _progress(self, plan: Plan) -> Progress:
        return Progress(
            self.round,
            self.cloud.cloud_round,
            plan,
            self.terminal_steps,
            self.ledger.left,
            self.certificate,
            self.metrics,
            dict(self._rounds_by_solver),
        )


def _copied(part: Any) -> Any:
    """A part of a state that a run may change without changing the state."""
    return part.copy() if isinstance(part, np.ndarray | list) else part


def _compact(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same values, which take no memory where they are all alike: rounds are many, and so are terminals."""
    if len(values) and values.strides != (0,) and (values == values[0]).all():
        return np.broadcast_to(values[0], values.shape)
    return values


_KEPT = (
    "round",
    "terminal_steps",
    "certificate",
    "noise",
    "_released",
    "metrics",
    "events",
    "observed",
    "_rounds_by_solver",
    "history",
    "_under_way",
    "_collected",
)
"""What of a run is put away as it is."""
