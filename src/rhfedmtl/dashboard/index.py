"""Index of a folder: a row for every run, finished, running or interrupted, kept up to date.

A thread reads new and changed files, newest first. Of a finished run it reads only the head of the record, up to the
rounds; `Index.record` reads the rest when a reader opens the run. Damaged files get a row with the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.display import METRICS
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.intervals import interval
from rhfedmtl.roles.words import in_words, solver_shares
from rhfedmtl.runs import lookup, progress, records
from rhfedmtl.runs.records import RECORD, Record

DONE, RUNNING, INTERRUPTED, REFUSED, UNREADABLE = "done", "running", "interrupted", "refused", "unreadable"
STATES = (RUNNING, INTERRUPTED, UNREADABLE, REFUSED, DONE)
"""States in the order in which they need attention."""
MERGED = ("relative_gap", "spent", "rounds")
PERIOD_S = 0.5
MOST_OF_THE_TIME = 0.1
"""Largest share of time for reading a folder; the index reads a large folder less often."""
FIRST = 200
"""Number of newest runs to read before the first page is shown."""
HEAD, TAIL = 1 << 14, 1 << 8
"""Bytes at both ends of a record that have its facts."""
Span = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """A run in the table, or the runs of a configuration with several seeds, which are its ``members``.

    ``value`` belongs to ``metric``: a mean over seeds, with ``half`` of its 95 % interval. ``spent`` is the share of
    the binding budget. ``lambda2`` and ``local_steps`` are smallest and largest values. Runs of a ``group`` differ only
    in the seed.
    """

    name: str
    state: str
    changed: float
    algorithm: str = ""
    data: str = ""
    seed: int | None = None
    budget: str = ""
    metric: str = ""
    value: float | None = None
    relative_gap: float | None = None
    rounds: int | None = None
    spent: float | None = None
    certified: str = ""
    why: str = ""
    sweep: str = ""
    lambda2: Span | None = None
    local_steps: Span | None = None
    rounds_by_solver: Mapping[str, int] = field(default_factory=dict)
    group: str = ""
    half: float | None = None
    members: tuple[Row, ...] = ()

    @property
    def solver(self) -> str:
        """Solvers with their shares of the rounds."""
        return solver_shares(self.rounds_by_solver)

    @property
    def when(self) -> str:
        """Date and time of the last change."""
        return datetime.fromtimestamp(self.changed).strftime("%Y-%m-%d %H:%M")

    def matches(self, words: str) -> bool:
        """Return True if every word occurs in the row."""
        facts = (
            self.name,
            self.algorithm,
            self.data,
            self.state,
            f"seed={self.seed}",
            self.budget,
            f"sweep={self.sweep}",
            f"group={self.group}",
        )
        text = " ".join(facts).lower()
        return all(word in text for word in words.lower().split())


def grouped(rows: Iterable[Row]) -> list[Row]:
    """Return a row for each configuration; its seeds are merged."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.changed):
        groups.setdefault(row.group or row.name, []).append(row)
    return [members[0] if len(members) == 1 else _merged(members) for members in groups.values()]


def _merged(members: Sequence[Row]) -> Row:
    newest = members[-1]
    # A repeated seed counts once, as its newest run.
    by_seed = {row.seed: row.value for row in members if row.value is not None and row.metric == newest.metric}
    values = list(by_seed.values())
    mean, half = interval(np.array(values)) if values else (None, None)
    gaps, spent, rounds = ([v for row in members if (v := getattr(row, name)) is not None] for name in MERGED)
    solvers: Counter[str] = Counter()
    for row in members:
        solvers.update(row.rounds_by_solver)
    return replace(
        newest,
        state=next(state for state in STATES if any(row.state == state for row in members)),
        value=mean,
        half=half,
        relative_gap=max(gaps, default=None),
        spent=max(spent, default=None),
        rounds=round(sum(rounds) / len(rounds)) if rounds else None,
        certified=max(members, key=lambda row: row.relative_gap or 0.0).certified,
        lambda2=_span([v for row in members for v in row.lambda2 or ()]),
        local_steps=_span([v for row in members for v in row.local_steps or ()]),
        rounds_by_solver=solvers,
        members=tuple(members),
    )


def _span(values: Sequence[float]) -> Span | None:
    return (min(values), max(values)) if values else None


@dataclass(frozen=True)
class SweepLine:
    """A sweep or study: the numbers of its finished runs and of all its runs, as far as they are recorded."""

    name: str
    state: str
    done: int
    total: int


@dataclass(frozen=True)
class RunFile:
    """A file of a run, with its time and size when it was read."""

    path: Path
    stamp: tuple[int, int]


@dataclass
class Index:
    """Rows of all runs in a folder; ``version`` increases with every change."""

    folder: Path
    version: int = 0
    total: int = 0
    _rows: dict[str, Row] = field(default_factory=dict)
    _files: dict[str, RunFile] = field(default_factory=dict)
    _sweeps: dict[str, SweepLine] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def sweeps(self) -> list[SweepLine]:
        """Sweeps and studies: finished ones with their numbers of runs, others with the numbers that they report."""
        counts = Counter(row.sweep for row in self.rows if row.sweep)
        by_name = {name: SweepLine(name, DONE, count, count) for name, count in counts.items()} | self._sweeps
        return [by_name[name] for name in sorted(by_name)]

    @property
    def rows(self) -> list[Row]:
        """Rows that have been read so far."""
        return list(self._rows.values())

    def refresh(self, max_files: int | None = None) -> None:
        """Read the folder once, and at most ``max_files`` new or changed files."""
        files: dict[str, RunFile] = {}
        sweeps: dict[str, SweepLine] = {}
        paths: dict[str, Path] = {}
        with contextlib.suppress(ConfigError):  # A deleted folder is empty, and may come back.
            paths = lookup.find(self.folder, under_way=True)
        for name, path in paths.items():
            if path.name != progress.SWEEP:
                with contextlib.suppress(OSError):  # The run has just ended.
                    facts = path.stat()
                    files[name] = RunFile(path, (facts.st_mtime_ns, facts.st_size))
            elif (sweep := progress.load_sweep(path)) is not None:
                sweep_name = _sweep_name(path.parent, self.folder)
                sweeps[sweep_name] = SweepLine(
                    sweep_name, RUNNING if sweep.alive else INTERRUPTED, sweep.done, sweep.total
                )
        self.total = len(files)
        removed = self._rows.keys() - files.keys()
        for name in removed:
            del self._rows[name], self._files[name]
        fresh = [n for n, f in files.items() if n not in self._files or self._files[n].stamp != f.stamp]
        fresh += [n for n, row in self._rows.items() if row.state == RUNNING and n not in fresh]
        fresh.sort(key=lambda name: files[name].stamp[0], reverse=True)
        old_rows = {name: self._rows.get(name) for name in fresh}
        for name in fresh[:max_files]:
            self._rows[name], self._files[name] = self._row(name, files[name]), files[name]
        sweeps_changed = sweeps != self._sweeps
        self._sweeps = sweeps
        self.version += (
            bool(removed) or sweeps_changed or any(self._rows.get(name) != row for name, row in old_rows.items())
        )

    def _row(self, name: str, file: RunFile) -> Row:
        row, place = _row(name, file), file.path.parent
        swept = place.name == "runs" and file.path.name not in (RECORD, progress.PROGRESS_FILE)
        if not swept:
            return row
        sweep = _sweep_name(place, self.folder)
        return replace(row, sweep=sweep, group=row.group and _digest(row.group, sweep))

    def start(self, changed: Callable[[], None]) -> None:
        """Update the index from now on, and call ``changed`` after every change."""
        self.refresh(FIRST)
        threading.Thread(target=self._follow, args=(changed,), daemon=True, name="index").start()

    def close(self) -> None:
        """Stop updating."""
        self._closing.set()

    def _follow(self, changed: Callable[[], None]) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            began, version = time.monotonic(), self.version
            self.refresh(5 * FIRST)
            duration = time.monotonic() - began
            pause = 0.01 if len(self._files) < self.total else max(PERIOD_S, duration / MOST_OF_THE_TIME)
            if self.version != version:
                changed()

    def row(self, name: str) -> Row:
        """Return the row of a run."""
        if name not in self._rows:
            raise ConfigError(f"no run {name!r} in {self.folder}")
        return self._rows[name]

    def record(self, name: str) -> Record:
        """Return the record of a run; for a running run, its record so far."""
        self.row(name)
        return lookup.load(self._files[name].path)

    def group(self, name: str) -> list[str]:
        """Return the names of the runs of a group, the oldest first."""
        return [row.name for row in sorted(self.rows, key=lambda row: row.changed) if row.group == name]

    def place(self, name: str) -> Path:
        """Return the folder of a run, or of its sweep."""
        folder = self._files[name].path.parent
        return folder.parent if self.row(name).sweep else folder


def _sweep_name(place: Path, folder: Path) -> str:
    """Return the folder of a sweep below the folder of the index; its records are in ``runs``."""
    sweep_folder = place.parent
    below = sweep_folder != folder and sweep_folder.is_relative_to(folder)
    return str(sweep_folder.relative_to(folder)) if below else sweep_folder.resolve().name


def _row(name: str, file: RunFile) -> Row:
    changed = file.stamp[0] / 1e9
    try:
        if file.path.name == progress.PROGRESS_FILE:
            running = progress.load(file.path)
            state = RUNNING if running.alive else INTERRUPTED
            return _line(name, state, changed, running.record.to_dict())
        table = _head(file.path)
        return _line(name, REFUSED if table.get("result") is None else DONE, changed, table)
    except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Row(name, UNREADABLE, changed, why=f"{file.path.name} is damaged: {error}")


def _head(path: Path) -> dict[str, Any]:
    """Return a record without its values by task and round, which are between its facts and its weights."""
    with path.open("rb") as file:
        text = file.read(HEAD)
        start, mark, _ = text.partition(b', "by_task": {')
        if mark:
            file.seek(-min(TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
            _, weights_mark, weights = file.read().rpartition(b', "weights": ')
            table = json.loads(start + weights_mark + (weights if weights_mark else b"}"))
        else:
            table = json.loads(text + file.read())
    if table["format"] != records.FORMAT:
        raise ConfigError(f"{path} is no record of a run in format {records.FORMAT}")
    head: dict[str, Any] = table
    return head


def _line(name: str, state: str, changed: float, table: dict[str, Any]) -> Row:
    configuration, result = table["configuration"], table["result"] or {}
    metric = next((m for m in METRICS if result.get(m) is not None), "")
    same = {name: value for name, value in configuration.items() if name != "seed"}
    lambda2 = table.get("weights", {}).get("lambda2")
    shares = [result["spent"].get(kind, 0.0) / limit for kind, limit in result.get("budget", {}).items() if limit]
    return Row(
        name,
        state,
        changed,
        configuration["algorithm"],
        table["data"]["name"],
        configuration["seed"],
        ", ".join(f"{kind}={limit:g}" for kind, limit in configuration["budget"].items()),
        metric,
        result.get(metric),
        result.get("relative_gap"),
        result.get("rounds"),
        max(shares, default=None),
        in_words(result.get("relative_gap"), result.get("dual")) if result else "",
        table.get("refused") or "",
        lambda2=_span([] if lambda2 is None else [lambda2]),
        local_steps=_span(result.get("local_steps", [])),
        rounds_by_solver=result.get("rounds_by_solver", {}),
        group=_digest(table["data"]["name"], same),
    )


def _digest(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def is_network(place: Path) -> bool:
    """Return True if a folder belongs to a network, or has the credentials of an operator."""
    return any((place / name).exists() for name in ("operator/operator.toml", "operator.toml"))
