"""Facts of a network's trainings for operators: progress, curve, bill, and the files of the result.

`Trainer` reports every round and the end of a training here. `Commands` and `OperatorApi` read the facts and files.
This module only observes a training: it never changes models or costs.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import TrainingJournal
from rhfedmtl.deploy.cloud.remote_network import RemoteNetwork
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.failpoints import failpoint
from rhfedmtl.maths.losses import Loss
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.plain import plain
from rhfedmtl.resources.ledger_file import save_ledger
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.words import how_many
from rhfedmtl.runs.recording import summary
from rhfedmtl.training import checkpoint, snapshot
from rhfedmtl.training.privacy import STATEMENT
from rhfedmtl.training.result import Progress, Result, mean
from rhfedmtl.training.run import Run

BILL_S = 2.0
"""While a training runs, add up the bill at most every so many seconds."""
MOST_POINTS = 500
"""Keep at most so many points of the curve; thin out older points."""


class TrainingProgress:
    """The present facts of a training, the curve of its rounds, and the bill of each node.

    `Trainer` notes every round here, and `Commands` reads. It also sets the meters and writes the log. It never changes
    the training.
    """

    def __init__(self, config: CloudConfig, network: RemoteNetwork, log: Log, meters: Meters) -> None:
        self._config, self._network, self._log, self._meters = config, network, log, meters
        self.run: Run | None = None
        self.facts: dict[str, Any] = {}
        """Facts of the present training, or of the last training after its end."""
        self._curve: list[dict[str, Any]] = []
        self._bill: dict[tuple[int, int], dict[str, float]] = {}
        self._bill_due = 0.0

    def bill(self, *, running: bool) -> dict[tuple[int, int], dict[str, float]]:
        """Return the use of every type by each terminal (station, terminal), and by each station (station, -1).

        While a training is ``running`` the bill may be some seconds old.
        """
        now = time.monotonic()
        if self.run is not None and (now >= self._bill_due or not running):
            bill: dict[tuple[int, int], dict[str, float]] = {}
            for name, by_node in self.run.ledger.totals("task", "terminal").items():
                for node, amount in by_node.items():
                    bill.setdefault(node, {})[name] = amount
            self._bill_due, self._bill = now + BILL_S, bill
        return self._bill

    def curve(self) -> list[dict[str, Any]]:
        """Return the rounds since the cloud was started, thinned out if they are many."""
        return list(self._curve)

    def excluded(self) -> dict[str, str]:
        """Return the tasks of excluded stations, with the reasons."""
        tasks = self._config.learning.tasks
        return {tasks[b]: f"station {b} told {reason}" for b, reason in sorted(self._network.excluded.items())}

    def absent(self, certificate: Certificate) -> list[str]:
        """Return the absent terminals, for which a certificate assumes the worst case, with their numbers of rows."""
        sizes = self._network.sizes
        return [f"terminal {t} ({how_many(int(sizes[t]), 'row')})" for t in certificate.absent if t < len(sizes)]

    def facts_of(self, result: Result, silent: list[str]) -> dict[str, Any]:
        """Return the facts of a training that has ended; ``silent`` are the members that were missing at its end."""
        certificate = result.certificate
        facts: dict[str, Any] = plain(summary(result))
        facts |= {"state": "ended", "overshoot": plain(result.ledger.overshoot), "left": plain(result.ledger.left)}
        facts |= {"round": result.rounds, "cloud_round": result.cloud_rounds}
        facts |= {"certified_round": certificate.round, "silent": silent, "excluded": self.excluded()}
        facts["absent"] = self.absent(certificate)
        if certificate.round < result.rounds and not silent:
            facts["incomplete"] = self._network.partners.incomplete
        facts["local_steps"] = (facts["local_steps"] or [0])[-1]
        return facts

    def note(self, run: Run, progress: Progress) -> None:
        """Take over the facts of a round: set the meters, extend the curve, and write the log."""
        certificate, meters = progress.certificate, self._meters
        metrics = {name: mean(values) for name, values in progress.metrics.items()}
        facts: dict[str, Any] = {
            "round": progress.round,
            "cloud_round": progress.cloud_round,
            "local_steps": int(run.state.observed[-1].local_steps.max(initial=0)),
            "answered": run.state.observed[-1].answers.tolist(),
            "spent": run.ledger.spent,
            "left": progress.left,
            "primal": certificate.primal if certificate else None,
            "dual": certificate.dual if certificate else None,
            "gap": certificate.gap if certificate else None,
            "relative_gap": certificate.relative_gap if certificate else None,
            "certified_round": certificate.round if certificate else None,
            "excluded": self.excluded(),
            "absent": self.absent(certificate) if certificate else [],
            **metrics,
        }
        self.facts = {**self.facts, **plain(facts)}
        self._curve.append({name: fact for name, fact in self.facts.items() if name not in ("spec", "answered")})
        if len(self._curve) > MOST_POINTS:
            del self._curve[1::2]
        meters.round.set(progress.round)
        if certificate is not None:
            meters.gap.set(certificate.gap)
        for name, value in metrics.items():
            meters.accuracy.labels(name).set(value)
        for name, amount in run.ledger.spent.items():
            meters.spent.labels(name).set(amount)
        for name, amount in progress.left.items():
            meters.left.labels(name).set(amount)
        self._log("round", "debug", **facts)


class TrainingFiles:
    """The result of the last training that ended, as files: models with their certificate, ledger, status.

    `Trainer` keeps a result here and saves it in the cloud's folder; `OperatorApi` exports it.
    """

    def __init__(self, config: CloudConfig, progress: TrainingProgress) -> None:
        self._config, self._progress = config, progress
        self._last: tuple[Result, Loss] | None = None

    def keep(self, result: Result, loss: Loss) -> None:
        """Take the result of a training, and the loss that it was trained with."""
        self._last = result, loss

    def save(self, folder: Path, status: dict[str, Any]) -> list[str]:
        """Write the files into a folder, and return their names."""
        if self._last is None:
            raise ConfigError("nothing to export yet: no training has ended; run `rhfedmtl network train` first")
        learning, (result, loss) = self._config.learning, self._last
        folder.mkdir(parents=True, exist_ok=True)
        models = TaskModels(
            models=result.models,
            scalers=tuple(result.scalers),
            tasks=np.array(learning.tasks),
            classes=np.array(learning.classes, dtype=np.str_),
            n_features=learning.features,
            loss=loss,
            feature_names=learning.feature_names,
            certificate=result.certificate,
            ledger={"spent": result.ledger.spent, "budget": dict(result.ledger.budget)},
            provenance={
                "network": self._config.node.network,
                "algorithm": learning.algorithm,
                "seed": learning.seed,
                "options": json.loads(learning.job().options),
                **({} if result.private is None else {STATEMENT: result.private.statement()}),
                **({"without_certificate": excluded} if (excluded := self._progress.excluded()) else {}),
            },
        )
        models.save(folder / "model.npz")
        save_ledger(result.ledger, folder / "ledger.json")
        (folder / "result.json").write_text(json.dumps(status, indent=1) + "\n")
        return ["model.npz", "ledger.json", "result.json"]

    def put_by(self, status: dict[str, Any]) -> None:
        """Save the files in the cloud's folder, where operators find them while no cloud runs; delete the old files.

        The new files are complete under a draft name before the old folder is deleted.
        """
        place = self._config.result
        draft = place.with_name(f"{place.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        failpoint("result", "before")
        self.save(draft, status)
        shutil.rmtree(place, ignore_errors=True)
        failpoint("result", "between")
        draft.rename(place)
        failpoint("result", "after")


class Shortener(checkpoint.Keeper):
    """Replaces a long journal by a checkpoint, between two server iterations.

    `Run.learn` calls it. The journal decides when a checkpoint is due.
    """

    def __init__(self, journal: TrainingJournal, spec: dict[str, Any]) -> None:
        self._journal, self._spec = journal, json.dumps(spec)

    @property
    def due(self) -> bool:
        """Return True if the journal is long."""
        return self._journal.due

    def keep(self, run: Run) -> None:
        """Shorten the journal, unless an operator has just ended the training: only the journal records that stop."""
        if self.due and run.state.plan is not None and run.state.iteration_is_over and not run.interrupted:
            state, parts = snapshot.take(run), {"ledger": run.ledger}
            self._journal.shorten(self._spec, lambda path: checkpoint.write(path, {}, state, parts))


def start_or_resume(run: Run, journal: TrainingJournal) -> None:
    """Note in the journal that round zero is over, and resume the run from a checkpoint if the journal names one."""
    try:
        if (path := journal.mark_started()) is not None:
            snapshot.resume(run, checkpoint.read(path))
    except DataError as error:
        raise CorruptError(f"{error}; put back a copy, or start over with `rhfedmtl network reset`") from None
