"""Trainings of a network, one after the other, in a thread of their own."""

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
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import ClosingError, TrainingJournal
from rhfedmtl.deploy.cloud.measured_run import (
    bounded,
    check_round,
    check_spent,
    first_situation,
    measured_run,
    refuse_broken,
    settings_of,
    suited,
)
from rhfedmtl.deploy.cloud.partners import WAY_OUT
from rhfedmtl.deploy.cloud.prices import costs_and_limits, measured_types
from rhfedmtl.deploy.cloud.progress import Shortener, TrainingFiles, TrainingProgress, take_up
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
"""Waits so many seconds for all that are expected, or only for ``members``, and says who is not there."""


class Training(StrEnum):
    """Where the training of a network stands."""

    IDLE = "idle"
    RECOVERING = "recovering"
    """It goes through the journal of a cloud that was killed."""
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    """It could not go on, for a reason that an operator can remove."""
    STOPPED = "stopped"
    """An operator ended it before its first round: it has no result."""
    BROKEN = "broken"
    """What was spent can no longer be known, or written down: only a cloud that is started again goes on."""


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
    """Runs the trainings that operators order, each after the other, in a thread.

    `Commands` orders and stops trainings. The journal keeps every order and every answer, so a cloud that was killed
    continues the same training. `TrainingProgress` shows it, and `TrainingFiles` keeps its result. The trainer never
    talks to a station itself: `RemoteNetwork` does.
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
        self.measured = config.resources.measured  # types, in the present training
        self._run: Run | None = None
        self._silent: list[str] = []  # who was waited for in vain before the last certificate
        self.network.partners.on_excluded = self._note_excluded
        self._thread = threading.Thread(target=self._work, name="training", daemon=True)
        self._machine = Machine(TRAINING, Training.RECOVERING if journal.replaying else Training.IDLE)
        self.progress = TrainingProgress(config, self.network, log, meters)
        self.files = TrainingFiles(config, self.progress)
        journal.caught_up = self._catch_up

    @property
    def state(self) -> Training:
        """Where the training stands."""
        return self._machine.state

    @property
    def status(self) -> dict[str, Any]:
        """Where the training stands, and what is known of it."""
        return {"state": self.state.value, **self.progress.facts}

    def order(self, spec: dict[str, Any]) -> None:
        """Begin a training, or go on with a larger budget; refused while one is under way, or if none could follow."""
        if not self._machine.takes("order"):
            raise ConfigError(f"a training is {self.state}: {self.progress.facts.get('error', 'stop it first')}")
        cost = None if self._run is None else self._run.ledger.cost
        spec = {**spec, "measured": measured_types(self._config.resources, spec, cost)}
        Ledger(*costs_and_limits(self._config.resources, spec, self.measured))
        self._machine.on("order")
        self.progress.facts = {"spec": spec}
        self._journal.order(json.dumps(spec))

    def _note_excluded(self, station: int, reason: str) -> None:
        """Say of a station that it told what cannot be, and what becomes of its task."""
        task = self._config.learning.tasks[station]
        words = (
            f"station {station} told {reason}: it is asked no more, task {task!r} keeps its model without a "
            f"certificate, and the other tasks go on. {WAY_OUT}"
        )
        self._log("excluded", "error", again=self._journal.replaying, peer=f"station {station}", reason=words)

    def stop(self) -> None:
        """End the training after the present round, or before the first one while it waits for somebody."""
        self._journal.stop()

    def start(self) -> None:
        """Begin to work off orders."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end, after `TrainingJournal.close`; False if it does not."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """Take orders until the cloud closes."""
        try:
            while True:
                if self._journal.replaying:
                    self._machine.on("replay")
                self._one(json.loads(self._journal.next_order()))
        except ClosingError:
            return
        except Exception as error:
            self._machine.on("break")
            reason = unwritten(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self.progress.facts |= {"error": str(reason)}
            self._log("training broke", "error", reason=str(reason))
            if not isinstance(error, RHFedMTLError):
                raise

    def _one(self, spec: dict[str, Any]) -> None:
        """One training, from the order to its end."""
        self.progress.facts = {"spec": spec}
        self._catch_up()
        self._log("training begins", again=self._journal.replaying, **spec)
        try:
            end = self._learn(spec)
        except (CorruptError, ClosingError):
            raise
        except RHFedMTLError as error:
            again = self._journal.replaying  # it was told when it came to pass
            self._log("training failed", "info" if again else "error", again=again, reason=str(error))
            end = {"state": "failed", "error": str(error)}
        end = {**end, "seconds": time.time() - spec["at"]}
        again = self._journal.replaying
        found = json.loads(self._journal.mark("end", json.dumps(end)))
        event = _EVENTS.get(found.pop("state"), "end")
        self.progress.facts |= found
        told = {name: fact for name, fact in self.progress.facts.items() if name not in ("spec", "local_steps")}
        self._log("training ended", again=again, **told)
        if self._journal.replaying:  # another training follows: nobody is to take this one for the last
            return
        self._machine.on(event)
        if event == "end":
            self._log.over("training failed")
            self.files.put_by(self.status)

    def _catch_up(self) -> None:
        """Note when the end of the journal is reached."""
        if self.state is Training.RECOVERING and not self._journal.replaying:
            self._machine.on("caught up")

    def _learn(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.measured = tuple(spec.get("measured", self.measured))
        cost, budget = costs_and_limits(self._config.resources, spec, self.measured)
        learning = self._config.learning
        private = learning.check_private(spec["privacy"]) if spec["privacy"] else None
        ended = bool(budget or spec["target_gap"] or learning.options.get("cloud_rounds"))
        settings = settings_of(self._config, self._kind, spec["target_gap"], ended=ended, private=private is not None)
        self._journal.write_once("ready", lambda: self._ready(self._config.waits.start))
        if self._journal.stopped():
            return _STOPPED_EARLY
        if self._run is None:
            self.network.sync(first=True)
            people = census(self._config, self.network)
            ledger, plan = Ledger(cost, budget), None
            if private is not None:  # the plan of a private training comes from public numbers
                start = first_situation(self.network, ledger)
                self._algorithm, plan = learning.private_plan(start, private, self._kind, self.network.shape)
                self.network.hide(self._algorithm.method, plan)
                ledger = plan.ledger(ledger)
            config = replace(self._config, resources=replace(self._config.resources, measured=self.measured))
            try:
                run = measured_run(config, people, self.network, ledger, settings, plan, self._all_back)
            except PeerError:
                if self._journal.stopped():  # which left no station the time to answer
                    return _STOPPED_EARLY
                raise
            take_up(run, self._journal)
            check_round(run, learning.least_steps)
            self._run = self.progress.run = run
        else:
            check_spent(self._run.ledger.spent, budget)
            budget = bounded(self._run, private, budget)
            limits = {"target_gap": settings.target_gap, "target_relative_gap": settings.target_relative_gap}
            self._run.go_on(budget, **limits)
            self._run.meet()
        policy = suited(self._algorithm.policy, self._config, cost, masked=self.network.method.channel.sums_only)
        self._silent = []
        result = self._run.result(self._run.learn(policy, self._watch, Shortener(self._journal, spec)))
        refuse_broken(result.certificate)
        self.files.keep(result, self._algorithm.method.loss)
        return self.progress.facts_of(result, self._silent)

    def _all_back(self) -> bool:
        """Wait, before a last certificate is tried for again, for members that are silent; whether all are there."""
        wait = partial(self._ready, self._config.waits.answer, members=True)
        self._silent = self._journal.write_once("back", wait)
        return not self._silent

    def _watch(self, progress: Progress) -> bool:
        assert self._run is not None
        self.progress.note(self._run, progress)
        return not self._journal.stopped()
