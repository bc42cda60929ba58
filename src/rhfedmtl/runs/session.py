"""A single run with its folder: start it, checkpoint it, resume it, and record it.

``train`` calls `begin` or (with ``--resume``) `take_up`, then `Session.run` and `Session.finish`, all within `ready`.
After Ctrl-C or the loss of a cluster the folder keeps the last checkpoint. After an error a new run loses its
checkpoint and its folder, and a resumed run keeps them.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rhfedmtl.algorithms.options import build
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ClusterError, DataError, RHFedMTLError
from rhfedmtl.files import Lock
from rhfedmtl.models.task_models import Extras
from rhfedmtl.provenance import versions
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs import progress, recording, records
from rhfedmtl.runs.records import Record
from rhfedmtl.selection.probabilities import Trained, probability_curves
from rhfedmtl.selection.unseen import pooled_model
from rhfedmtl.selection.weights import Chosen, choose_settings
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import SECONDS, Checkpoint, Keeper
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Result, Watcher

CHECKPOINT = "checkpoint"


@contextlib.contextmanager
def ready(execution: Execution) -> Iterator[None]:
    """Connect to the cluster, if the run uses a cluster."""
    if execution.cluster is None:
        yield
        return
    # The cluster's software prints events of its processes; standard output must contain only the result.
    with contextlib.redirect_stdout(sys.stderr), execution.cluster.session(execution.address):
        yield


def _federation(execution: Execution, config: RunConfig) -> Federation:
    """Return the data of a run; for a run on a cluster an outline, because the rows are read there."""
    if execution.cluster is None:
        return config.federation()
    outline: Federation = execution.cluster.outline(config.request, config.seed)
    return outline


def _settled(config: RunConfig, execution: Execution) -> Chosen:
    return choose_settings(config, config.federation(), execution=replace(execution, threads=1))


def _extras(
    config: RunConfig, trained: Trained, federation: Federation | None = None, threads: int | None = 1
) -> Extras:
    """Train the model for unseen tasks, and fit the curves of the probabilities; a budget pays for neither."""
    if config.resources()[1] or config.privacy:
        return Extras()
    federation = config.federation() if federation is None else federation
    built = build(config.algorithm, config.options, federation.kind)
    settings = replace(config.settings(federation.kind, ended=False), execution=Execution(threads=threads))
    return Extras(pooled_model(built, federation, settings), probability_curves(built, federation, settings, trained))


@dataclass(frozen=True)
class Session:
    """A run that is about to start or resume; ``chosen`` is its configuration after tuning."""

    config: RunConfig
    chosen: Chosen
    execution: Execution
    federation: Federation
    folder: Path
    seconds: float = SECONDS
    start: Checkpoint | None = None

    @property
    def checkpoint(self) -> Path:
        """File of the checkpoint."""
        return self.folder / CHECKPOINT

    def run(self, watch: Watcher | None = None) -> Result:
        """Run the training. If it fails, or ends before its first checkpoint, remove its files."""
        keep = Keeper(self.checkpoint, self._notes(), self.seconds) if self.execution.entry.keeps_checkpoints else None
        lock = Lock(self.folder)
        try:
            if self.start is not None:
                read(self.folder)  # another process may have finished the run in the meantime
            with progress.written(self.folder, self.record(None), watch) as watched:
                return self.chosen.config.run(
                    self.federation,
                    ledger=Ledger(*self.config.resources()),
                    watch=watched,
                    keep=keep,
                    start=self.start,
                    before=self.chosen.before,
                    execution=self.execution,
                )
        except ClusterError as error:
            if self.checkpoint.exists():
                raise ClusterError(f"{error}; continue with: {go_on(self.folder)}") from error
            self._drop()
            raise
        except KeyboardInterrupt:
            if self.checkpoint.exists():
                raise KeyboardInterrupt(f"continue with: {go_on(self.folder)}") from None
            self._drop()
            raise
        except RHFedMTLError:
            self._drop()
            raise
        finally:
            lock.release()

    def finish(self, result: Result) -> Record:
        """Record the run, and delete the checkpoint if the run is complete."""
        record = self.record(result)
        extras = Extras() if result.stopped == "interrupted" else self._extras(Trained.of(result))
        records.save(self.folder, record, self.federation, result, extras)
        progress.forget(self.folder)
        if result.stopped != "interrupted":
            checkpoint.discard(self.checkpoint)
        return record

    def _extras(self, trained: Trained) -> Extras:
        """Return the extras of the models, made on the machine that has the data."""
        config, cluster = self.chosen.config, self.execution.cluster
        if cluster is None:
            return _extras(config, trained, self.federation, self.execution.threads)
        with cluster.Pool() as pool:
            extras: Extras = pool.submit(_extras, config, trained).result()
        return extras

    def record(self, result: Result | None) -> Record:
        """Return the record of this run; without ``result``, the record before the first round."""
        tuning, selection = self.chosen.tuning, self.chosen.selection
        record = recording.record(self.config, self.federation, result, tuning=tuning, selection=selection)
        return replace(record, command=shlex.join([*shlex.split(record.command), *self.execution.words()]))

    def _notes(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "chosen": self.chosen.config,
            "tuning": self.chosen.tuning,
            "selection": self.chosen.selection,
            "how": self.execution,
            "data": self.federation.fingerprint(),
            "versions": versions(),
        }

    def _drop(self) -> None:
        """Delete the files of a new run, and the folder if it is empty. A resumed run keeps its files."""
        if self.start is None:
            checkpoint.discard(self.checkpoint)
            progress.forget(self.folder)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def go_on(folder: Path) -> str:
    """Return the command that resumes a run."""
    return shlex.join(["rhfedmtl", "train", "--resume", str(folder)])


def begin(
    config: RunConfig, execution: Execution, out: Path, seconds: float = SECONDS, watch: Watcher | None = None
) -> Session:
    """Read the data, choose the open settings, and make a folder for a new run; call within `ready`."""
    federation = _federation(execution, config)
    if execution.cluster is None or not (config.tune or config.to_choose):
        chosen = choose_settings(config, federation, execution=execution, watch=watch)
    else:  # choose on the machine that has the data
        with execution.cluster.Pool() as pool:
            chosen = pool.submit(_settled, config, execution).result()
    folder = records.new_folder(out, f"{config.algorithm}-{config.request.data}-{config.seed}")
    return Session(config, chosen, execution, federation, folder, seconds)


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint in the folder of a run."""
    if not folder.is_dir():
        raise DataError(f"no run {folder}: give the folder of an interrupted run, as in runs/20260101-120000-…")
    if not (folder / CHECKPOINT).exists():
        if (folder / records.RECORD).exists():
            raise DataError(f"{folder} is complete: there is nothing to resume")
        waiting = sorted(path.parent for path in folder.glob(f"*/{CHECKPOINT}"))
        remedy = f"continue with: {go_on(waiting[-1])}" if waiting else "give the folder of an interrupted run"
        raise DataError(f"{folder} has no checkpoint: {remedy}")
    return checkpoint.read(folder / CHECKPOINT)


def take_up(start: Checkpoint, execution: Execution, seconds: float = SECONDS) -> Session:
    """Read the data of an interrupted run again, and check versions and data for changes; call within `ready`."""
    notes = start.notes
    mine = versions()
    if changed := {name: was for name, was in notes["versions"].items() if was != mine.get(name)}:
        listing = ", ".join(f"{name} {was} (here {mine.get(name)})" for name, was in changed.items())
        raise DataError(f"{start.path} was written with {listing}: use these versions, or start the run again")
    federation = _federation(execution, notes["config"])
    if federation.fingerprint() != notes["data"]:
        raise DataError(f"the data has changed since the run in {start.path.parent} started: start the run again")
    chosen = Chosen(notes["chosen"], notes["tuning"], notes["selection"])
    return Session(notes["config"], chosen, execution, federation, start.path.parent, seconds, start)
