"""Runs: round zero, the loop of `training/loop.py`, and the result with its certificate.

`train` runs a method on a federation. `Run` is for callers that go on after the loop has ended: the choice of weights,
pilots and real networks.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.network import Excludes, IntArray, Outcome
from rhfedmtl.errors import ConfigError, IncompleteError
from rhfedmtl.maths.quasi_newton import Solver
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.policies.base import REMEMBERED, Observation, Plan, Policy, Situation
from rhfedmtl.resources.costs import BudgetLike
from rhfedmtl.resources.events import Event, Placement, RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.channel import keyed
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.training import loop, snapshot
from rhfedmtl.training.accounting import Accounting, DeclaredAccounting
from rhfedmtl.training.certifying import Certification, Certifier, target_reached
from rhfedmtl.training.checkpoint import Checkpoint, Keeper
from rhfedmtl.training.clouds import make_cloud, regularisation, solvers
from rhfedmtl.training.faults import Faults, FaultSchedule
from rhfedmtl.training.pricing import RoundPricing
from rhfedmtl.training.privacy import KEY_BYTES, PrivatePlan
from rhfedmtl.training.result import BROKEN, Metrics, Progress, Result, Watcher
from rhfedmtl.training.round_zero import round_zero
from rhfedmtl.training.settings import NEVER, Settings
from rhfedmtl.training.site import Environment, Evaluation, LocalEvaluation, Site
from rhfedmtl.training.snapshot import Before
from rhfedmtl.training.state import RunState


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
    """Scale the rows, learn as the policy plans and the ledger allows, and certify the result.

    Parameters
    ----------
    federation : Federation
        Tasks, terminals and their rows.
    method : Method
        What terminals compute and how stations merge it.
    policy : Policy
        Chooses H and K of every server iteration.
    settings : Settings, optional
        How to run.
    ledger : Ledger, optional
        Prices and budgets; free and unlimited by default.
    faults : Faults, optional
        Simulated faults; by default nothing goes wrong.
    judged : Federation, optional
        Federation whose tasks are evaluated, if the method has regrouped them: tasks may share a station.
    watch : callable, optional
        Called after every BS iteration. If it returns False the run ends there, and is certified and returned.
    keep : Keeper, optional
        Writes checkpoints.
    start : Checkpoint, optional
        Checkpoint to go on from, to the bit.
    before : Before, optional
        Work before the run that counts to it.
    private : PrivatePlan, optional
        Privacy plan of the method's channel and the ledger (`training.privacy`): the run has a single certificate, at
        its end, with noise.

    Returns
    -------
    Result
    """
    key = None if start is None else start.noise_key
    run = Run(
        federation, method, settings or Settings(), ledger or Ledger({}), faults, judged, private=private, noise_key=key
    )
    try:
        if start is not None:
            snapshot.resume(run, start)
        elif before is not None:
            snapshot.begin(run, before)
        return run.result(run.learn(policy, watch, keep))
    finally:
        run.close()


class Run:
    """A run, simulated unless ``site`` says where it takes place.

    In a simulation a station that has finished a BS iteration begins the next at once. A private run draws its noise
    from ``noise_key``, the secret key of its checkpoint; a new run makes its own. ``scalers`` come from an earlier run
    on the same rows; then nobody is asked for sums.
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
        scalers: list[Scaler] | None = None,
    ) -> None:
        faults, judged = faults or Faults(), judged or federation
        if site is None and federation.preparation is not None:  # numbers come first; 0/1 columns need no map
            method = replace(method, features=method.features.of_first(len(federation.preparation.numbers)))
        self.started = time.perf_counter()
        self.settings = settings if private is None else replace(settings, certify_every=NEVER)
        self.noise_key: bytes | None = None
        if private is not None and site is None:
            if settings.noise_from_seed:
                private = private.simulated()
            else:
                self.noise_key = noise_key or secrets.token_bytes(KEY_BYTES)
                method = method.hidden(keyed(method.channel, self.noise_key))
        self.method, self.private, self._simulated = method, private, site is None
        self.environment: Environment | None
        self.accounting: Accounting
        if site is None:
            schedule = FaultSchedule(faults, federation, method.channel.summed) if faults.any else None
            self.environment = schedule
            self.accounting = DeclaredAccounting(ledger, faults.planning_prices(ledger.cost))
            execution, present = settings.execution, federation.sizes if schedule is None else schedule.present
            self.network = execution.entry(federation, method, seed=settings.seed, present=present, execution=execution)
        else:
            self.environment, self.accounting, self.network = site.environment, site.accounting, site.network
        rows = np.diff(federation.terminal_offsets[federation.task_offsets])
        self.cloud = make_cloud(method, rows, self.network.shape)
        self.state = RunState(noise=np.zeros(federation.n_tasks))
        self.interrupted = False
        self.membership: Placement | None = None
        self.memo: dict[str, Any] = {}
        self._lam, self._coupling = regularisation(method, federation.n_tasks)
        self._solvers = solvers(method)
        self.task_station = np.arange(judged.n_tasks) if federation.n_tasks > 1 else np.zeros(judged.n_tasks, dtype=int)
        certifier = Certifier(self.network, self.cloud, method, self.state, self._layout, free=settings.free_evaluation)
        self.certification = Certification(
            certifier,
            self.cloud,
            self.accounting,
            self.settings,
            private,
            self.task_station,
            self.charge,
            self._evaluate,
        )
        self.pricing = RoundPricing(method, self.cloud, self.accounting, self.certification, simulated=site is None)
        try:
            self.units = round_zero(
                federation,
                self.network,
                method,
                self.settings,
                self._layout(),
                federation.feature_names if site is None else site.feature_names,
                federation.n_features if site is None else site.n_columns,
                private=private is not None,
                earlier=scalers,
                check=lambda events: self.pricing.check_round_zero(events, self.situation(), settings.scale),
                charge=self.charge,
            )
            self.accounting.close(0, self._layout())
        except BaseException:
            self.close()
            raise
        self.evaluation: Evaluation = (
            LocalEvaluation(judged, self.task_station, self.units.scalers) if site is None else site.evaluation
        )
        self.certification.budget.set_aside(self.situation())

    @property
    def ledger(self) -> Ledger:
        """Ledger of the run, with all charges."""
        return self.accounting.ledger

    def learn(self, policy: Policy, watch: Watcher | None = None, keep: Keeper | None = None) -> str:
        """Run server iterations until the policy, a budget, a target or the limit on rounds ends them."""
        with self.certification.budget.kept_aside():
            return loop.learn(self, policy, watch, keep)

    def result(self, stopped: str) -> Result:
        """Certify the models and return the result; ``stopped`` is the reason that `learn` returned."""
        state = self.state
        for _ in self.evaluation.tries():
            if not state.is_certified:
                state.reported = None
                self.review()
            while not state.is_certified and self._leave_out():
                self.review()
            if state.is_certified:
                break
        certificate = self.certification.tighten(self.certify(), self.situation())
        self.accounting.close(state.round, self._layout())
        return Result(
            self.units.as_given(certificate.models)[self.task_station],
            [self.units.scalers[b] for b in self.task_station],
            certificate,
            state.metrics,
            self.ledger,
            state.events,
            state.observed,
            state.round,
            self.cloud.cloud_round,
            state.terminal_steps,
            BROKEN if certificate.broken else stopped,
            time.perf_counter() - self.started,
            state.history,
            getattr(self.cloud, "relationship", None),
            self.private,
            dict(state.rounds_by_solver),
        )

    def certify(self) -> Certificate:
        """Return the certificate of the present models."""
        return self.certification.certify(self.situation(), interrupted=self.interrupted)

    # The loop calls these, in this order.

    def reason_to_end(self) -> str | None:
        """Return why no server iteration is to follow: a target, a broken certificate or the limit on rounds."""
        certificate = self.state.certificate
        if certificate is not None and self.state.is_certified:
            reached = target_reached(certificate, self.settings)
            if reached is not None and not self.cloud.learn():  # a W-step is solved; it may not be the last
                return reached
        if certificate is not None and certificate.broken:
            return BROKEN
        return "limit on rounds reached" if self.state.round >= self.settings.max_rounds else None

    def update_members(self) -> bool:
        """Let terminals move and rows arrive, and tell the cloud at once; return True if anything has changed."""
        left_out = self._leave_out()
        if self.environment is None or not self.environment.change(self.state.round + 1, self.network):
            return left_out
        self._problem_changed()
        return True

    def situation(self) -> Situation:
        """Return the situation that a policy plans from."""
        if self.accounting.update_prices():
            self.memo = {}
        return Situation(
            self.network.sizes,
            self._layout(),
            self.ledger,
            lam=self._lam,
            gamma=self.method.loss.smoothness,
            coupling=self._coupling,
            bytes=self.network.message_sizes,
            certificate_bytes=self.certification.certifier.most_bytes,
            cloud_rounds=self.cloud.cloud_round,
            rounds=self.state.round,
            observed=self.state.observed[-REMEMBERED:],
            solvers=self._solvers,
            planning_prices=self.accounting.planning_prices,
            certify_every=self.settings.certify_every,
            passes=self.cloud.passes,
            seed=self.settings.seed,
            memo=self.memo,
        )

    def broadcast_anchors(self, situation: Situation, plan: Plan) -> None:
        """Send every station its anchor, and charge that; models that all terminals know are not sent again."""
        anchors, sizes = self.cloud.assign(plan.solver), situation.bytes
        known = self.cloud.starts_at_anchor and self.certification.certifier.knows(self.cloud.models)
        self.charge(situation.cloud_event(sizes.begin if known else sizes.anchor))
        self.network.assign(anchors)

    def record_round(self, event: RoundEvent, steps: IntArray, outcome: Outcome, solver: Solver) -> None:
        """Add a BS iteration to the state: its charges and observations."""
        state = self.state
        state.rounds_done += 1
        state.events.append(event)
        done = steps if event.terminals is None else np.where(event.terminals, steps, 0)
        total = int(done.sum())
        state.terminal_steps += total
        worked = done if total else steps
        observation = Observation(state.round, worked, outcome.answers, outcome.factor, outcome.gains, solver)
        state.observed.append(observation)
        name = solver if self.method.has_duals else "gradient-steps"
        state.rounds_by_solver[name] = state.rounds_by_solver.get(name, 0) + 1
        if self.private is not None:
            answers = outcome.answers.astype(np.float64)
            variance = self.method.channel.noise_variance(answers)
            state.noise = state.noise + np.where(answers > 0, outcome.factor, 0.0) ** 2 * variance
        state.history.append(self.certification.moment())
        if not self._simulated:  # a training on a real network may never end
            del state.events[:-1], state.observed[:-REMEMBERED], state.history[:-1]

    def collect_reports(self) -> None:
        """Let the stations report, unless they have since the last BS iteration."""
        now = self.cloud.cloud_round, self.state.round
        if self.state.reported != now:
            for report in self.network.reports(self.cloud.cloud_round):
                self.cloud.receive(report)
            self.state.reported = now

    def try_to_certify(self, situation: Situation) -> None:
        """Certify, if all stations answer; the run goes on if one does not."""
        with contextlib.suppress(IncompleteError):
            self.certification.certify(situation, interrupted=self.interrupted)

    def progress(self, plan: Plan) -> Progress:
        """Return where the run stands, for a watcher."""
        state = self.state
        return Progress(
            state.round,
            self.cloud.cloud_round,
            plan,
            state.terminal_steps,
            self.ledger.left,
            state.certificate,
            state.metrics,
            dict(state.rounds_by_solver),
        )

    # Callers use these between two calls of `learn`.

    def go_on(self, budget: BudgetLike, **settings: Any) -> None:
        """Let `learn` go on from where it ended, with this budget in all and other `Settings`."""
        self.accounting.ledger = self.ledger.with_budget(budget)
        self.settings = self.certification.settings = replace(self.settings, **settings)
        self.memo, self.interrupted, self.state.plan = {}, False, None
        self.started = time.perf_counter()
        self.certification.budget.set_aside(self.situation())

    def restore(self, alpha: npt.NDArray[np.float64], models: Models | None = None) -> None:
        """Start from these dual variables of the same rows, and from models of the stations; before the first round."""
        if not (isinstance(self.network, InProcess) and isinstance(self.cloud, Cloud)):
            raise ConfigError("only a method with duals, in one process, can start from dual variables")
        self.network.restore(alpha)
        self.cloud.warm_start(self.network.reports(0), models)

    def reweigh(self, relationship: Relationship) -> None:
        """Go on with a relationship of other weights, and rows that may have come or gone: this is another problem."""
        assert isinstance(self.cloud, Cloud)
        assert isinstance(self.method, DualMethod)
        self.cloud.relationship = relationship
        self.cloud.forget_bound()
        self.method = replace(self.method, relationship=relationship)
        self._lam, self._coupling = regularisation(self.method, self.cloud.n_tasks)
        self.state.certificate = None
        self._problem_changed()

    def meet(self) -> None:
        """Update the members before a run goes on; a certificate for other members does not hold for these."""
        if self.update_members():
            self.state.certificate = None

    def close(self) -> None:
        """Release resources of the network outside of this process."""
        getattr(self.network, "close", lambda: None)()

    def review(self) -> None:
        """Collect reports and certify, if all stations answer."""
        self.collect_reports()
        self.try_to_certify(self.situation())

    def _evaluate(self, certificate: Certificate) -> Metrics:
        models = self.units.as_given(certificate.models)[self.task_station]
        return self.evaluation.metrics(models, certificate.combination)

    def _leave_out(self) -> bool:
        """Go on with the problem of the other tasks if stations were excluded; return True if the list has grown."""
        if not (isinstance(self.network, Excludes) and isinstance(self.cloud, Cloud)):
            return False
        news = sorted(set(self.network.excluded) & set(self.cloud.tasks.tolist()))
        for b in news:
            self.cloud.leave_out(b)
        if news:
            self.state.certificate = None
            self._problem_changed()
        return bool(news)

    def _problem_changed(self) -> None:
        """Forget the results of the old problem, and let the stations report to the cloud."""
        self.memo = {}
        self.state.reported = self.state.last_sent = self.state.probed = None
        if self.cloud.cloud_round:
            self.collect_reports()

    def _layout(self) -> Placement:
        """Return the membership for the ledger; the same object until a terminal moves."""
        station, layout = self.network.station, self.membership
        if layout is None or type(layout.terminal_task) is not type(station) or not layout.matches(station):
            self.membership = layout = Placement(station, self.cloud.n_tasks)
        return layout

    def charge(self, event: Event) -> None:
        """Charge an event outside of the BS iterations."""
        self.accounting.charge(event)
        self.state.events.append(event)
