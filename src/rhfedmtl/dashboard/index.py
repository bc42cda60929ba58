"""What a folder holds, kept up to date: a line for every run, finished, running or interrupted.

Files are looked through by a thread of its own, the newest first. Of a finished run the head of its record is read
alone, up to where the rounds begin; the rest when somebody opens it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rhfedmtl.display import METRICS
from rhfedmtl.errors import ConfigError
from rhfedmtl.roles.words import in_words
from rhfedmtl.runs import lookup, progress, records
from rhfedmtl.runs.records import RECORD, Record

DONE, RUNNING, INTERRUPTED, REFUSED, UNREADABLE = "done", "running", "interrupted", "refused", "unreadable"
PERIOD_S = 0.5
MOST_OF_THE_TIME = 0.1
"""Looking through a folder takes this share of the time at most: a large one is looked through less often."""
FIRST = 200
"""So many runs, the newest, are read before anything is shown."""
HEAD = 1 << 14


@dataclass(frozen=True)
class Row:
    """One run in a line; ``value`` is that of ``metric``, ``spent`` the share of the budget that binds."""

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

    @property
    def when(self) -> str:
        """Date and time of the last change."""
        return datetime.fromtimestamp(self.changed).strftime("%Y-%m-%d %H:%M:%S")

    def holds(self, words: str) -> bool:
        """Whether every word stands somewhere in the line."""
        facts = (
            self.name,
            self.algorithm,
            self.data,
            self.state,
            f"seed={self.seed}",
            self.budget,
            f"sweep={self.sweep}",
        )
        text = " ".join(facts).lower()
        return all(word in text for word in words.lower().split())


@dataclass(frozen=True)
class SweepLine:
    """A sweep or study: how many of its runs are there, of how many, as far as that is known."""

    name: str
    state: str
    done: int
    total: int


@dataclass(frozen=True)
class RunFile:
    """A file of a run, and when and how large it was when it was read."""

    path: Path
    stamp: tuple[int, int]


@dataclass
class Index:
    """Rows of all runs under a folder; ``version`` changes with any of them."""

    folder: Path
    version: int = 0
    total: int = 0
    _rows: dict[str, Row] = field(default_factory=dict)
    _found: dict[str, RunFile] = field(default_factory=dict)
    _sweeps: dict[str, SweepLine] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def sweeps(self) -> list[SweepLine]:
        """All sweeps: complete ones by the runs that they have, others as they say."""
        there = Counter(row.sweep for row in self.rows if row.sweep)
        found = {name: SweepLine(name, DONE, count, count) for name, count in there.items()} | self._sweeps
        return [found[name] for name in sorted(found)]

    @property
    def rows(self) -> list[Row]:
        """All rows that are known by now."""
        return list(self._rows.values())

    def refresh(self, most: int | None = None) -> None:
        """Look through the folder once; read at most so many files that are new or changed."""
        files: dict[str, RunFile] = {}
        sweeps: dict[str, SweepLine] = {}
        found: dict[str, Path] = {}
        with contextlib.suppress(ConfigError):  # a folder that is gone holds nothing, and may come back
            found = lookup.find(self.folder, under_way=True)
        for name, path in found.items():
            if path.name != progress.SWEEP:
                with contextlib.suppress(OSError):  # a run that has just ended
                    facts = path.stat()
                    files[name] = RunFile(path, (facts.st_mtime_ns, facts.st_size))
            elif (known := progress.load_sweep(path)) is not None:
                own = _sweep_name(path.parent, self.folder)
                sweeps[own] = SweepLine(own, RUNNING if known.alive else INTERRUPTED, known.done, known.total)
        self.total = len(files)
        gone = self._rows.keys() - files.keys()
        for name in gone:
            del self._rows[name], self._found[name]
        fresh = [n for n, f in files.items() if n not in self._found or self._found[n].stamp != f.stamp]
        fresh += [n for n, row in self._rows.items() if row.state == RUNNING and n not in fresh]
        fresh.sort(key=lambda name: files[name].stamp[0], reverse=True)
        before = {name: self._rows.get(name) for name in fresh}
        for name in fresh[:most]:
            self._rows[name], self._found[name] = self._row(name, files[name]), files[name]
        moved = sweeps != self._sweeps
        self._sweeps = sweeps
        self.version += bool(gone) or moved or any(self._rows.get(name) != row for name, row in before.items())

    def _row(self, name: str, found: RunFile) -> Row:
        row, place = _row(name, found), found.path.parent
        swept = place.name == "runs" and found.path.name not in (RECORD, progress.NAME)
        return replace(row, sweep=_sweep_name(place, self.folder)) if swept else row

    def start(self, changed: Callable[[], None]) -> None:
        """Keep up to date from now on, and say so at every change."""
        self.refresh(FIRST)
        threading.Thread(target=self._follow, args=(changed,), daemon=True, name="index").start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()

    def _follow(self, changed: Callable[[], None]) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            began, version = time.monotonic(), self.version
            self.refresh(5 * FIRST)
            taken = time.monotonic() - began
            pause = 0.01 if len(self._found) < self.total else max(PERIOD_S, taken / MOST_OF_THE_TIME)
            if self.version != version:
                changed()

    def row(self, name: str) -> Row:
        """The line of a run."""
        if name not in self._rows:
            raise ConfigError(f"no run {name!r} in {self.folder}")
        return self._rows[name]

    def record(self, name: str) -> Record:
        """All that is known of a run; of one that goes on, until now."""
        self.row(name)
        return lookup.load(self._found[name].path)

    def place(self, name: str) -> Path:
        """The folder of a run, or of the sweep that it belongs to."""
        own = self._found[name].path.parent
        return own.parent if self.row(name).sweep else own


def _sweep_name(place: Path, folder: Path) -> str:
    """The folder of a sweep, below the one that is looked at; its records lie in ``runs`` there."""
    own = place.parent
    below = own != folder and own.is_relative_to(folder)
    return str(own.relative_to(folder)) if below else own.resolve().name


def _row(name: str, found: RunFile) -> Row:
    changed = found.stamp[0] / 1e9
    try:
        if found.path.name == progress.NAME:
            running = progress.load(found.path)
            state = RUNNING if running.alive else INTERRUPTED
            return _line(name, state, changed, running.record.to_dict())
        table = _head(found.path)
        return _line(name, REFUSED if table.get("result") is None else DONE, changed, table)
    except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Row(name, UNREADABLE, changed, why=f"{found.path.name} is damaged: {error}")


def _head(path: Path) -> dict[str, Any]:
    """A record up to what is known by task and round, which stands at its end."""
    with path.open(encoding="utf-8") as file:
        text = file.read(HEAD)
        start, mark, _ = text.partition(', "by_task": {')
        table = json.loads(start + "}") if mark else json.loads(text + file.read())
    if table["format"] != records.FORMAT:
        raise ConfigError(f"{path} is no record of a run in format {records.FORMAT}")
    known: dict[str, Any] = table
    return known


def _line(name: str, state: str, changed: float, table: dict[str, Any]) -> Row:
    configuration, result = table["configuration"], table["result"] or {}
    metric = next((m for m in METRICS if result.get(m) is not None), "")
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
    )


def is_network(place: Path) -> bool:
    """Whether a folder is that of a network, or of an operator's credentials."""
    return any((place / name).exists() for name in ("operator/operator.toml", "operator.toml"))
