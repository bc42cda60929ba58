"""One run with a folder of its own: begun, put away while it goes on, taken up again, recorded."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ClusterError, DataError, RHFedMTLError
from rhfedmtl.files import Lock
from rhfedmtl.models.task_models import UnseenModel
from rhfedmtl.provenance import versions
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs import progress, recording, records
from rhfedmtl.runs.records import Record
from rhfedmtl.selection.unseen import pooled_for
from rhfedmtl.selection.weights import Chosen, choose_settings
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import SECONDS, Checkpoint, Keeper
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Result, Watcher

CHECKPOINT = "checkpoint"


@contextmanager
def ready(how: Execution) -> Iterator[None]:
    """Be connected to the cluster, where there is one."""
    if how.cluster is None:
        yield
        return
    # A cluster's software prints what happens to its processes; what is printed here is the result alone.
    with contextlib.redirect_stdout(sys.stderr), how.cluster.session(how.address):
        yield


def _federation(how: Execution, config: RunConfig) -> Federation:
    """The data of a run; of a run on a cluster the outline alone, as its rows are read there."""
    if how.cluster is None:
        return config.federation()
    outline: Federation = how.cluster.outline(config.request, config.seed)
    return outline


def _settled(config: RunConfig, how: Execution) -> Chosen:
    return choose_settings(config, config.federation(), execution=replace(how, threads=1))


def _pooled(config: RunConfig) -> UnseenModel | None:
    return pooled_for(config, config.federation(), threads=1)


@dataclass(frozen=True)
class Session:
    """A run that is about to begin, or to go on; ``chosen`` is what it makes of ``config`` after tuning."""

    config: RunConfig
    chosen: Chosen
    how: Execution
    federation: Federation
    folder: Path
    seconds: float = SECONDS
    start: Checkpoint | None = None

    @property
    def checkpoint(self) -> Path:
        """Where it is put away."""
        return self.folder / CHECKPOINT

    def run(self, watch: Watcher | None = None) -> Result:
        """Carry it out; where it fails for good, or is ended before it kept anything, nothing of it is left."""
        keep = Keeper(self.checkpoint, self._notes(), self.seconds) if self.how.entry.keeps_checkpoints else None
        lock = Lock(self.folder)
        try:
            if self.start is not None:
                read(self.folder)  # another process may have ended it meanwhile
            with progress.written(self.folder, self.record(None), watch) as watched:
                return self.chosen.config.run(
                    self.federation,
                    ledger=Ledger(*self.config.resources()),
                    watch=watched,
                    keep=keep,
                    start=self.start,
                    before=self.chosen.before,
                    execution=self.how,
                )
        except ClusterError as error:
            if self.checkpoint.exists():
                raise ClusterError(f"{error}; go on with: {go_on(self.folder)}") from error
            self._drop()
            raise
        except KeyboardInterrupt:
            if self.checkpoint.exists():
                raise KeyboardInterrupt(f"go on with: {go_on(self.folder)}") from None
            self._drop()
            raise
        except RHFedMTLError:
            self._drop()
            raise
        finally:
            lock.release()

    def finish(self, result: Result) -> Record:
        """Record the run, and forget how to go on where it is complete."""
        known = self.record(result)
        unseen = None if result.stopped == "interrupted" else self._pooled()
        records.save(self.folder, known, self.federation, result, unseen)
        progress.forget(self.folder)
        if result.stopped != "interrupted":
            checkpoint.discard(self.checkpoint)
        return known

    def _pooled(self) -> UnseenModel | None:
        """The model for unseen tasks, trained where the data is."""
        config, cluster = self.chosen.config, self.how.cluster
        if cluster is None:
            return pooled_for(config, self.federation, self.how.threads)
        with cluster.Pool() as pool:
            unseen: UnseenModel | None = pool.submit(_pooled, config).result()
        return unseen

    def record(self, result: Result | None) -> Record:
        """The record of this run; None before it has a result."""
        tuning, selection = self.chosen.tuning, self.chosen.selection
        known = recording.record(self.config, self.federation, result, tuning=tuning, selection=selection)
        return replace(known, command=shlex.join([*shlex.split(known.command), *self.how.words()]))

    def _notes(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "chosen": self.chosen.config,
            "tuning": self.chosen.tuning,
            "selection": self.chosen.selection,
            "how": self.how,
            "data": self.federation.fingerprint(),
            "versions": versions(),
        }

    def _drop(self) -> None:
        """Remove a folder that holds nothing; what was there before a resume stays."""
        if self.start is None:
            checkpoint.discard(self.checkpoint)
            progress.forget(self.folder)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def go_on(folder: Path) -> str:
    """The words that take a run up again."""
    return shlex.join(["rhfedmtl", "train", "--resume", str(folder)])


def begin(
    config: RunConfig, how: Execution, out: Path, seconds: float = SECONDS, watch: Watcher | None = None
) -> Session:
    """Read the data, choose what is to be chosen, and make a folder for a new run; within `ready`."""
    federation = _federation(how, config)
    if how.cluster is None or not (config.tune or config.to_choose):
        chosen = choose_settings(config, federation, execution=how, watch=watch)
    else:  # where the data is
        with how.cluster.Pool() as pool:
            chosen = pool.submit(_settled, config, how).result()
    folder = records.new_folder(out, f"{config.algorithm}-{config.request.data}-{config.seed}")
    return Session(config, chosen, how, federation, folder, seconds)


def read(folder: Path) -> Checkpoint:
    """The checkpoint in the folder of a run."""
    if not folder.is_dir():
        raise DataError(f"no run {folder}: give the folder of an interrupted run, as in runs/20260101-120000-…")
    if not (folder / CHECKPOINT).exists():
        if (folder / records.RECORD).exists():
            raise DataError(f"{folder} is complete: there is nothing to resume")
        waiting = sorted(path.parent for path in folder.glob(f"*/{CHECKPOINT}"))
        way = f"go on with: {go_on(waiting[-1])}" if waiting else "give the folder of an interrupted run"
        raise DataError(f"{folder} has no checkpoint: {way}")
    return checkpoint.read(folder / CHECKPOINT)


def take_up(start: Checkpoint, how: Execution, seconds: float = SECONDS) -> Session:
    """Read the data of an interrupted run again, and make sure that all is as it was; within `ready`."""
    notes = start.notes
    mine = versions()
    if other := {name: was for name, was in notes["versions"].items() if was != mine.get(name)}:
        found = ", ".join(f"{name} {was} (here {mine.get(name)})" for name, was in other.items())
        raise DataError(f"{start.path} was written with {found}: use these versions, or start the run anew")
    federation = _federation(how, notes["config"])
    if federation.fingerprint() != notes["data"]:
        raise DataError(f"the data is not what the run in {start.path.parent} began with: start the run anew")
    chosen = Chosen(notes["chosen"], notes["tuning"], notes["selection"])
    return Session(notes["config"], chosen, how, federation, start.path.parent, seconds, start)
