"""Journal of a training: it makes a training survive a kill of the cloud, with equal bits.

The training thread calls `TrainingJournal` for everything that could differ between two executions: the answers of the
stations, the set of present nodes, orders and stops of the operator. It never checks the content of an answer.

Theory of operation. A training is a deterministic function of the journal's entries. The journal writes each answer to
disk before the training continues. After a kill the cloud runs the training again, and the journal replays the recorded
entries instead of asking. At most a single request is open at the kill: the journal sends it again, and the stations
answer it without carrying it out twice.

If the journal grows too long, it keeps the entries of round zero and replaces the rest by a checkpoint.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import queue
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from rhfedmtl.deploy.node.state import CorruptError, Journal
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import RHFedMTLError
from rhfedmtl.failpoints import failpoint

Answers = dict[int, wire.Answer]
Asker = Callable[[Mapping[int, wire.Request], float], Coroutine[Any, Any, Answers]]


LONGEST_JOURNAL = 1 << 26
"""Shorten the journal above this size in bytes."""
CHECKPOINT = "checkpoint"


class ClosingError(RHFedMTLError):
    """The cloud shuts down; the training continues from the journal after the next start."""


class Checkpoints:
    """Checkpoint files next to the journal; files without an entry in the journal are deleted."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        self._folder = folder
        self.size = 0
        self.keep_only(names)

    def add(self, number: int, write: Callable[[Path], None]) -> str:
        """Write a checkpoint, and return its file name."""
        path = self._folder / f"{CHECKPOINT}-{number}"
        write(path)
        self.size = path.stat().st_size
        return path.name

    def find(self, name: str) -> Path:
        """Return the path of a checkpoint; raise an error if the file is missing."""
        path = self._folder / name
        if Path(name).name != name or not path.exists():
            raise CorruptError(
                f"the journal goes on from {path}, which is not there: put back a copy of the folder, or start over "
                "with `rhfedmtl network reset`"
            )
        self.size = path.stat().st_size
        return path

    def keep_only(self, names: set[str]) -> None:
        """Delete all checkpoints with other names."""
        for path in self._folder.glob(f"{CHECKPOINT}-*"):
            if path.name not in names:
                path.unlink()


class TrainingJournal:
    """Replays the recorded entries first, then asks the stations and records their answers.

    Parameters
    ----------
    path : Path
        The journal file.
    ask : Asker
        Coroutine that sends requests to the stations and returns their answers; it runs on ``loop``.
    loop : asyncio.AbstractEventLoop
        Event loop of the cloud.
    fsync : bool
        Force every entry to disk.
    longest : int
        Size in bytes above which `shorten` is due.
    """

    def __init__(
        self, path: Path, ask: Asker, loop: asyncio.AbstractEventLoop, *, fsync: bool, longest: int = LONGEST_JOURNAL
    ) -> None:
        self._journal = Journal(path, fsync=fsync)
        self._past = deque(_read(data, path) for data in self._journal.entries())
        self._index = 1 + max((entry.index for entry in self._past), default=-1)
        self._checkpoints = Checkpoints(path.parent, {e.text for e in self._past if e.kind == CHECKPOINT})
        self._longest = longest
        self._opening: list[wire.Entry] = []
        self._started = False
        self._ask, self._loop = ask, loop
        self._orders: queue.Queue[str | None] = queue.Queue()
        self._stop = False
        self.closing = False
        self.caught_up: Callable[[], None] = lambda: None
        """Called before the first request, or the first fact, that the journal does not have yet."""

    @property
    def cut(self) -> int:
        """Size of an incomplete last entry that was removed at the start, in bytes."""
        return self._journal.cut

    @property
    def replaying(self) -> bool:
        """True while the training still repeats recorded entries."""
        return bool(self._past)

    def ask(self, kind: str, note: Any, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Return the answers of the stations, from the journal if it has them.

        ``note`` identifies the request: a replay refuses an entry with another note. Before a round, an entry
        ``intent`` goes to disk, so the journal knows every round that stations may have started.
        """
        text = json.dumps(note)
        if kind == "round":
            self._replay_or_write("intent", lambda: text, expected=text, force=True)
        if self._past:
            return dict(self._next(kind, text).answers.items())
        answers = self._live(requests, seconds)
        self._write(kind, text, answers)
        return answers

    def write_once(self, kind: str, make: Callable[[], Any]) -> Any:
        """Return a fact that varies between executions, such as the present members: recorded, or made now."""

        def make_text() -> str:
            self.caught_up()
            text = json.dumps(make())
            if self.closing:  # `make` may have stopped waiting because of it, so its result does not count
                raise ClosingError("closing")
            return text

        return json.loads(self._replay_or_write(kind, make_text))

    def mark(self, kind: str, text: str) -> str:
        """Record ``text``; in a replay, return the recorded text instead."""
        return self._replay_or_write(kind, lambda: text)

    # A short journal.

    def mark_started(self) -> Path | None:
        """Note that round zero is over; return the checkpoint to continue from, if the journal has a checkpoint."""
        self._started = True
        if self._past and self._past[0].kind == CHECKPOINT:
            return self._checkpoints.find(self._past.popleft().text)
        return None

    @property
    def due(self) -> bool:
        """True if the journal is longer than its limit and longer than the last checkpoint."""
        return not self._past and self._journal.size > max(self._longest, self._checkpoints.size)

    def shorten(self, spec: str, write: Callable[[Path], None]) -> None:
        """Replace all entries after round zero by a checkpoint, which ``write`` writes to a path.

        ``spec`` is the operator's order of this training. The old journal is valid until the new file is on disk.
        """
        name = self._checkpoints.add(self._index, write)
        failpoint("journal", "shorten", "before")
        entries = [self._entry("train", spec), *self._opening, self._entry(CHECKPOINT, name)]
        self._journal.replace(entry.SerializeToString() for entry in entries)
        failpoint("journal", "shorten", "after")
        self._checkpoints.keep_only({name})

    # Orders of the operator.

    def order(self, text: str) -> None:
        """Queue the order of a training; call it from any thread."""
        self._stop = False
        self._orders.put(text)

    def stop(self) -> None:
        """End the training after the present round; call it from any thread."""
        self._stop = True

    @property
    def stopping(self) -> bool:
        """True if an operator has stopped the training, or the cloud shuts down."""
        return self._stop or self.closing

    def next_order(self) -> str:
        """Return the next order; wait until an operator gives an order."""
        return self._replay_or_write("train", self._ordered)

    def _ordered(self) -> str:
        text = self._orders.get()
        if text is None or self.closing:
            raise ClosingError("closing")
        return text

    def stopped(self) -> bool:
        """Return True if the operator ends the training after this round, and record it."""
        if self._past:
            if self._past[0].kind != "stop":
                return False
            self._past.popleft()
            return True
        if self._stop:
            self._write("stop", "{}")
        return self._stop

    def close(self) -> None:
        """End the training thread at its next call, and record nothing: the training continues after a restart."""
        self.closing = True
        self._orders.put(None)

    def finish(self) -> None:
        """Force the journal to disk."""
        self._journal.close()

    # The journal.

    def _live(self, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Ask on the event loop, and wait; a shutdown of the cloud cancels the request."""
        if self.closing:
            raise ClosingError("closing")
        self.caught_up()
        future = asyncio.run_coroutine_threadsafe(self._ask(requests, seconds), self._loop)
        while True:
            concurrent.futures.wait([future], timeout=0.5)
            if future.done():
                return future.result()
            self._check_open(future)

    def _check_open(self, future: concurrent.futures.Future[Answers]) -> None:
        if self.closing:
            future.cancel()
            raise ClosingError("closing")

    def _replay_or_write(
        self, kind: str, make: Callable[[], str], *, expected: str | None = None, force: bool = False
    ) -> str:
        """Return the recorded text, which must equal ``expected``; after the replay, make and record it."""
        if self._past:
            return self._next(kind, expected).text
        text = make()
        self._write(kind, text, force=force)
        return text

    def _write(self, kind: str, text: str, answers: Answers | None = None, *, force: bool = False) -> None:
        entry = self._entry(kind, text, answers)
        failpoint("journal", kind, "before")
        self._journal.append(entry.SerializeToString(), force=force or kind in ("train", "end"))
        failpoint("journal", kind, "after")
        self._note(entry)

    def _entry(self, kind: str, text: str, answers: Answers | None = None) -> wire.Entry:
        entry = wire.Entry(index=self._index, kind=kind, text=text)
        for b, answer in (answers or {}).items():
            entry.answers[b].CopyFrom(answer)
        self._index += 1
        return entry

    def _note(self, entry: wire.Entry) -> None:
        """Remember the entries between the order and the end of round zero: a shortened journal keeps them."""
        if not self._started:
            self._opening = [] if entry.kind == "train" else [*self._opening, entry]

    def _next(self, kind: str, text: str | None) -> wire.Entry:
        entry = self._past.popleft()
        if entry.kind != kind or (text is not None and entry.text != text):
            raise CorruptError(
                f"the journal tells of {entry.kind} {entry.text[:80]} where the training comes to {kind} "
                f"{(text or '')[:80]}: the configuration or the software has changed since. Put the old version back, "
                "or start over with `rhfedmtl network reset`"
            )
        self._note(entry)
        return entry


def _read(data: bytes, path: Path) -> wire.Entry:
    try:
        return wire.Entry.FromString(data)
    except Exception as error:
        raise CorruptError(f"{path} holds an entry that cannot be read: {error}") from None
