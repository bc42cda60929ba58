"""Progress files: a running run as a file with a line per round, a sweep as a count of finished runs.

`written` wraps the watcher of a training; the dashboard and ``runs`` commands read the files. The first line of a run
is its record before the first round, every other line is a round. The file lies in the folder of the run until
``run.json`` replaces it. The file of a sweep lies next to its records until they are complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rhfedmtl.errors import ConfigError
from rhfedmtl.files import write_whole
from rhfedmtl.plain import plain, read
from rhfedmtl.resources.costs import binding
from rhfedmtl.runs.records import FORMAT, Number, Record, RoundTable, Summary, columns
from rhfedmtl.training.result import Progress, Watcher, mean

PROGRESS_FILE = "progress.jsonl"
SWEEP = "sweep.progress"
LINES_PER_SECOND = 20.0
"""Faster trainings skip the lines of some rounds. The final record has all rounds."""
MAX_TASKS_SHOWN = 200
"""With more tasks than this, a line has only the mean over tasks."""


@dataclass(frozen=True)
class RoundLine:
    """A line of the file: a round with its metrics by task, or only their mean if there are many tasks."""

    round: int
    cloud_round: int
    spent: dict[str, float]
    local_steps: float
    terminal_steps: int
    primal: Number
    dual: Number
    gap: Number
    relative_gap: Number
    metrics: dict[str, list[Number]]
    rounds_by_solver: dict[str, int] = field(default_factory=dict)


@contextmanager
def written(folder: Path, record: Record, watch: Watcher | None) -> Iterator[Watcher]:
    """Return a watcher that writes rounds to a file and then calls ``watch``; a full disk does not end the training."""
    with contextlib.ExitStack() as stack:
        file: TextIO | None = None
        with contextlib.suppress(OSError):
            file = stack.enter_context((folder / PROGRESS_FILE).open("a", encoding="utf-8"))
            file.write(json.dumps({"pid": os.getpid(), "record": record.to_dict()}) + "\n")
            file.flush()
        due, budget = 0.0, record.configuration.budget

        def watched(progress: Progress) -> bool | None:
            nonlocal due
            if file is not None and (now := time.monotonic()) >= due:
                due = now + 1.0 / LINES_PER_SECOND
                with contextlib.suppress(OSError):
                    file.write(json.dumps(plain(_line(progress, budget))) + "\n")
                    file.flush()
            return None if watch is None else watch(progress)

        yield watched


def _line(progress: Progress, budget: dict[str, float]) -> RoundLine:
    names = ("primal", "dual", "gap", "relative_gap")
    certificate = {name: getattr(progress.certificate, name, None) for name in names}
    return RoundLine(
        round=progress.round,
        cloud_round=progress.cloud_round,
        spent={name: limit - progress.left[name] for name, limit in budget.items() if name in progress.left},
        local_steps=float(np.median(progress.plan.local_steps)),
        terminal_steps=progress.terminal_steps,
        **certificate,
        metrics={n: v.tolist() if len(v) <= MAX_TASKS_SHOWN else [mean(v)] for n, v in progress.metrics.items()},
        rounds_by_solver=dict(progress.rounds_by_solver),
    )


def forget(folder: Path) -> None:
    """Remove the progress file of a run that has a record now."""
    (folder / PROGRESS_FILE).unlink(missing_ok=True)


@dataclass(frozen=True)
class Running:
    """A running run, or a run that ended without a record; ``record`` has the rounds so far."""

    record: Record
    pid: int

    @property
    def alive(self) -> bool:
        """True if its process exists on this machine; unknown for a process of another machine."""
        return _alive(self.pid)


@dataclass(frozen=True)
class Sweeping:
    """A running or interrupted sweep: number of recorded runs out of the total."""

    done: int
    total: int
    pid: int

    @property
    def alive(self) -> bool:
        """True if its process exists."""
        return _alive(self.pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def count(folder: Path, done: int, total: int) -> None:
    """Write the progress of a sweep next to its records, or remove the file at the end. A full disk does not matter."""
    with contextlib.suppress(OSError):
        if done < total:
            write_whole(folder / SWEEP, json.dumps(plain(Sweeping(done, total, os.getpid()))))
        else:
            (folder / SWEEP).unlink(missing_ok=True)


def load_sweep(path: Path) -> Sweeping | None:
    """Return the progress of a sweep; None if the sweep has just ended."""
    try:
        return read(Sweeping, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load(path: Path) -> Running:
    """Return the rounds of a progress file as a record; skip an incomplete last line, which is still being written."""
    head: dict[str, Any] = {}
    rounds: list[RoundLine] = []
    try:
        for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if not text.endswith("\n"):
                continue
            line = json.loads(text)
            if "record" in line:
                head = line
            else:
                rounds.append(read(RoundLine, line))
        if head["record"]["format"] != FORMAT:
            raise ValueError("another format")
        return Running(_so_far(read(Record, head["record"]), rounds), head["pid"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as the progress of a run: {error}") from error


def _so_far(record: Record, lines: list[RoundLine]) -> Record:
    if not lines:
        return record
    last, names = lines[-1], lines[-1].metrics
    by_task = {name: values for name, values in names.items() if len(values) == len(record.tasks)}
    budget = record.configuration.budget
    means = {name: _mean(values) for name, values in names.items()}
    summary = Summary(
        metrics=means,
        worst_task=means,
        primal=last.primal,
        dual=last.dual,
        gap=last.gap,
        relative_gap=last.relative_gap,
        rounds=last.round,
        cloud_rounds=last.cloud_round,
        terminal_steps=last.terminal_steps,
        local_steps=[int(line.local_steps) for line in lines],
        stopped="running",
        spent=last.spent,
        budget=budget,
        binding=binding(last.spent, budget),
        seconds=0.0,
        rounds_by_solver=last.rounds_by_solver,
    )
    table = RoundTable(
        **columns(lines, last.spent),
        station_gap=[None] * len(lines),
        local_steps=[[line.local_steps] for line in lines],
        ordered=[[0]] * len(lines),
        answered=[[0]] * len(lines),
        metrics={name: [line.metrics.get(name) for line in lines] for name in names},
    )
    return replace(record, result=summary, by_task=by_task, rounds=table)


def _mean(values: list[Number]) -> Number:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
