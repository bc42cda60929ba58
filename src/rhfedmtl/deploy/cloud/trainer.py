"""Run the trainings that operators order, in sequence, in a separate thread.

`CloudService` starts a `Trainer`, and `Commands` orders and stops trainings through it. The result goes to
`TrainingFiles`. The trainer never talks to a station: `RemoteNetwork` does.

Theory of operation. A training is a state machine (`TRAINING`): idle, recovering or running, then ended, failed,
stopped or broken. Each training takes these steps:

1. Read the order from the journal. After a kill, the journal gives the same orders and answers again (recovering).
2. Wait until all expected nodes are present.
3. First training: ask for the members, settle round zero, check that the budget pays a round. Later trainings
   continue the same run with a larger budget.
4. Run the training loop. After every round, `TrainingProgress` shows the facts, and the journal is shortened if it is
   long.
5. Check the certificate and keep the result.

An error that an operator can remove ends in *failed*, and the next order may continue. If the journal cannot be read or
written, the amounts spent are unknown: the state is *broken* until the cloud is started again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any

from rhfedmtl.data.federation import kind_of
from rhfedmtl.deploy.cloud.active_stations import WAY_OUT
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import ClosingError, TrainingJournal
from rhfedmtl.deploy.cloud.measured_run import (
    check_round,
    check_spent,
    continued_budget,
    first_situation,
    limited_policy,
    measured_run,
    refuse_broken,
    settings_of,
)
from rhfedmtl.deploy.cloud.prices import costs_and_limits, measured_types
from rhfedmtl.deploy.cloud.progress import Shortener, TrainingFiles, TrainingProgress, start_or_resume
from rhfedmtl.deploy.cloud.remote_network import RemoteNetwork, census
from rhfedmtl.deploy.methods import algorithm_of
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError, unwritten
from rhfedmtl.deploy.node.states import Machine, Table
from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.result import Progress
from rhfedmtl.training.run import Run

Ready = Callable[..., list[str]]
"""Waits up to so many seconds for all expected nodes, or only for ``members``, and returns the missing nodes."""


class Training(StrEnum):
    """State of the training of a network."""

    IDLE = "idle"
    RECOVERING = "recovering"
    """The training repeats the journal of a cloud that was killed."""
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    """The training could not continue, for a reason that an operator can remove."""
    STOPPED = "stopped"
    """An operator ended the training before its first round: it has no result."""
    BROKEN = "broken"
    """The amounts spent cannot be read or written: only a restart of the cloud can continue."""


_UNDER_WAY = {"end": Training.ENDED, "fail": Training.FAILED, "stop": Training.STOPPED, "break": Training.BROKEN}
_AT_REST = {"order": Training.RUNNING, "replay": Training.RECOVERING, "break": Training.BROKEN}
TRAINING: Table[Training] = {
    Training.IDLE: _AT_REST,
    Training.RECOVERING: {**_UNDER_WAY, "replay": Training.RECOVERING, "caught up": Training.RUNNING},
    Training.RUNNING: _UNDER_WAY,
    Training.ENDED: _AT_REST,
    Training.FAILED: _AT_REST,
    Training.STOPPED: _AT_REST,
    Training.BROKEN: {},
}
"""An operator orders, a journal is replayed; then a training ends, fails, is stopped, or breaks."""
_EVENTS = {Training.FAILED: "fail", Training.STOPPED: "stop"}
_STOPPED_EARLY = {"state": Training.STOPPED, "error": "an operator ended it before its first round"}


class Trainer:
    """Takes orders, runs each training in a thread, and keeps its state, facts and result.

    Parameters
    ----------
    config : CloudConfig
        Configuration of the cloud.
    journal : TrainingJournal
        Keeps every order and every answer.
    memberships : Callable[[], dict[int, int]]
        Returns the number of membership changes of each station.
    ready : Ready
        Waits for the expected nodes.
    log : Log
        Log of the cloud.
    meters : Meters
        Metrics of the cloud.
    """

    def __init__(
        self,
        config: CloudConfig,
        journal: TrainingJournal,
        memberships: Callable[[], dict[int, int]],
        ready: Ready,
        log: Log,
        meters: Meters,
    ) -> None:
        self._config, self._journal, self._log = config, journal, log
        self._ready = ready
        self._kind = kind_of(config.learning.classes)
        self._algorithm = algorithm_of(config.learning.job())
        self.network = RemoteNetwork(config, self._algorithm.method, journal, memberships)
        self.measured = config.resources.measured  # resource types that the present training measures
        self._run: Run | None = None
        self._silent: list[str] = []  # members that were still missing before the last certificate
        self.network.partners.on_excluded = self._note_excluded
        self._thread = threading.Thread(target=self._work, name="training", daemon=True)
        self._machine = Machine(TRAINING, Training.RECOVERING if journal.replaying else Training.IDLE)
        self.progress = TrainingProgress(config, self.network, log, meters)
        self.files = TrainingFiles(config, self.progress)
        journal.caught_up = self._catch_up

    @property
    def state(self) -> Training:
        """State of the training."""
        return self._machine.state

    @property
    def status(self) -> dict[str, Any]:
        """State and facts of the present or last training, as plain values."""
        return {"state": self.state.value, **self.progress.facts}

    def order(self, spec: dict[str, Any]) -> None:
        """Order a training, or its continuation with a larger budget.

        Raise a `ConfigError` while a training is under way or after it broke, and if the budget or the prices are
        invalid.
        """
        if not self._machine.takes("order"):
            raise ConfigError(f"a training is {self.state}: {self.progress.facts.get('error', 'stop it first')}")
        cost = None if self._run is None else self._run.ledger.cost
        spec = {**spec, "measured": measured_types(self._config.resources, spec, cost)}
        Ledger(*costs_and_limits(self._config.resources, spec, self.measured))
        self._machine.on("order")
        self.progress.facts = {"spec": spec}
        self._journal.order(json.dumps(spec))

    def _note_excluded(self, station: int, reason: str) -> None:
        """Log the exclusion of a station that sent impossible numbers, and its consequence for the task."""
        task = self._config.learning.tasks[station]
        message = (
            f"station {station} told {reason}: the cloud excludes it, task {task!r} keeps its model without a "
            f"certificate, and the other tasks go on. {WAY_OUT}"
        )
        self._log("excluded", "error", again=self._journal.replaying, peer=f"station {station}", reason=message)

    def stop(self) -> None:
        """End the training after the present round, or before the first round while it still waits for nodes."""
        self._journal.stop()

    def start(self) -> None:
        """Start the training thread."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread after `TrainingJournal.close`; return False if it still runs."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """Take orders until the cloud closes."""
        try:
            while True:
                if self._journal.replaying:
                    self._machine.on("replay")
                self._run_order(json.loads(self._journal.next_order()))
        except ClosingError:
            return
        except Exception as error:
            self._machine.on("break")
            reason = unwritten(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self.progress.facts |= {"error": str(reason)}
            self._log("training broke", "error", reason=str(reason))
            if not isinstance(error, RHFedMTLError):
                raise

    def _run_order(self, spec: dict[str, Any]) -> None:
        """Run a training from its order to its end, and record the end."""
        self.progress.facts = {"spec": spec}
        self._catch_up()
        self._log("training begins", again=self._journal.replaying, **spec)
        try:
            end = self._learn(spec)
        except (CorruptError, ClosingError):
            raise
        except RHFedMTLError as error:
            again = self._journal.replaying  # the log has this error from the first time
            self._log("training failed", "info" if again else "error", again=again, reason=str(error))
            end = {"state": "failed", "error": str(error)}
        end = {**end, "seconds": time.time() - spec["at"]}
        again = self._journal.replaying
        facts = json.loads(self._journal.mark("end", json.dumps(end)))
        event = _EVENTS.get(facts.pop("state"), "end")
        self.progress.facts |= facts
        logged = {name: fact for name, fact in self.progress.facts.items() if name not in ("spec", "local_steps")}
        self._log("training ended", again=again, **logged)
        if self._journal.replaying:  # another training follows, so this result must not be saved as the last
            return
        self._machine.on(event)
        if event == "end":
            self._log.over("training failed")
            self.files.put_by(self.status)

    def _catch_up(self) -> None:
        """Change from recovering to running when the journal has no more recorded entries."""
        if self.state is Training.RECOVERING and not self._journal.replaying:
            self._machine.on("caught up")

    def _learn(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Run the training of an order, and return the facts of its end."""
        # 1. Settings of this order.
        self.measured = tuple(spec.get("measured", self.measured))
        cost, budget = costs_and_limits(self._config.resources, spec, self.measured)
        learning = self._config.learning
        private = learning.check_private(spec["privacy"]) if spec["privacy"] else None
        ended = bool(budget or spec["target_gap"] or learning.options.get("cloud_rounds"))
        settings = settings_of(self._config, self._kind, spec["target_gap"], ended=ended, private=private is not None)
        # 2. Wait for the expected nodes.
        self._journal.write_once("ready", lambda: self._ready(self._config.waits.start))
        if self._journal.stopped():
            return _STOPPED_EARLY
        # 3. Start the run, or continue it.
        if self._run is None:
            self.network.sync(first=True)
            federation = census(self._config, self.network)
            ledger, plan = Ledger(cost, budget), None
            if private is not None:  # the plan of a private training uses public numbers only
                start = first_situation(self.network, ledger)
                self._algorithm, plan = learning.private_plan(start, private, self._kind, self.network.shape)
                self.network.hide(self._algorithm.method, plan)
                ledger = plan.ledger(ledger)
            config = replace(self._config, resources=replace(self._config.resources, measured=self.measured))
            try:
                run = measured_run(config, federation, self.network, ledger, settings, plan, self._all_back)
            except PeerError:
                if self._journal.stopped():  # the stop, not a fault, left the stations too little time to answer
                    return _STOPPED_EARLY
                raise
            start_or_resume(run, self._journal)
            check_round(run, learning.least_steps)
            self._run = self.progress.run = run
        else:
            check_spent(self._run.ledger.spent, budget)
            budget = continued_budget(self._run, private, budget)
            limits = {"target_gap": settings.target_gap, "target_relative_gap": settings.target_relative_gap}
            self._run.go_on(budget, **limits)
            self._run.meet()
        # 4. Learn.
        masked = self.network.method.channel.sums_only
        policy = limited_policy(self._algorithm.policy, self._config, cost, masked=masked)
        self._silent = []
        result = self._run.result(self._run.learn(policy, self._watch, Shortener(self._journal, spec)))
        # 5. Check and keep the result.
        refuse_broken(result.certificate)
        self.files.keep(result, self._algorithm.method.loss)
        return self.progress.facts_of(result, self._silent)

    def _all_back(self) -> bool:
        """Wait for missing members before another attempt at the last certificate; return True if all are present."""
        wait = partial(self._ready, self._config.waits.answer, members=True)
        self._silent = self._journal.write_once("back", wait)
        return not self._silent

    def _watch(self, progress: Progress) -> bool:
        """Show a round, and return False if the operator ends the training after it."""
        assert self._run is not None
        self.progress.note(self._run, progress)
        return not self._journal.stopped()
