"""How a training reaches the stations, and how all that came back is written down.

A training is a function of what the stations answer. Every answer goes into the journal before the training goes on,
so a cloud that was killed goes through its journal again, comes out where it was, to the bit, and asks anew only the
one question that was open. Stations answer that one without doing it twice.

A journal that has grown too long is replaced by how the training began, and a checkpoint of where it stands.
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


LONGEST = 1 << 26
"""Bytes of a journal before it is shortened."""
CHECKPOINT = "checkpoint"


class ClosingError(RHFedMTLError):
    """The cloud goes down; the training goes on from the journal when it comes back."""


class Checkpoints:
    """Checkpoints in a folder; only those that the journal names count, others are left-overs."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        self._folder = folder
        self.size = 0
        self.keep_only(names)

    def add(self, number: int, write: Callable[[Path], None]) -> str:
        """Write one more; its name."""
        path = self._folder / f"{CHECKPOINT}-{number}"
        write(path)
        self.size = path.stat().st_size
        return path.name

    def find(self, name: str) -> Path:
        """The file of that name."""
        path = self._folder / name
        if Path(name).name != name or not path.exists():
            raise CorruptError(
                f"the journal goes on from {path}, which is not there: put back a copy of the folder, or begin anew "
                "with `rhfedmtl network reset`"
            )
        self.size = path.stat().st_size
        return path

    def keep_only(self, names: set[str]) -> None:
        """Remove all others."""
        for path in self._folder.glob(f"{CHECKPOINT}-*"):
            if path.name not in names:
                path.unlink()


class TrainingJournal:
    """Asks the stations for a training that runs in a thread of its own, and keeps the journal."""

    def __init__(
        self, path: Path, ask: Asker, loop: asyncio.AbstractEventLoop, *, fsync: bool, longest: int = LONGEST
    ) -> None:
        self._journal = Journal(path, fsync=fsync)
        self._past = deque(_read(data, path) for data in self._journal.entries())
        self._index = 1 + max((entry.index for entry in self._past), default=-1)
        self._checkpoints = Checkpoints(path.parent, {e.text for e in self._past if e.kind == CHECKPOINT})
        self._longest = longest
        self._opening: list[wire.Entry] = []
        self._begun = False
        self._ask, self._loop = ask, loop
        self._orders: queue.Queue[str | None] = queue.Queue()
        self._stop = False
        self.closing = False
        self.caught_up: Callable[[], None] = lambda: None  # called before anything is asked, or made, that is not in it

    @property
    def cut(self) -> int:
        """Bytes of an entry that was torn when the cloud ended, and was taken off."""
        return self._journal.cut

    @property
    def replaying(self) -> bool:
        """Whether the training still goes through what is written down."""
        return bool(self._past)

    def ask(self, kind: str, note: Any, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Answers of the stations, from the journal where they are in it; a round is announced before it begins."""
        text = json.dumps(note)
        if kind == "round":
            self._told("intent", lambda: text, expected=text, force=True)
        if self._past:
            return dict(self._next(kind, text).answers.items())
        answers = self._live(requests, seconds)
        self._write(kind, text, answers)
        return answers

    def write_once(self, kind: str, make: Callable[[], Any]) -> Any:
        """Something that is not the same every time, such as who is there: as the journal has it, or made now."""

        def made() -> str:
            self.caught_up()
            text = json.dumps(make())
            if self.closing:  # who waited gave up for that
                raise ClosingError("closing")
            return text

        return json.loads(self._told(kind, made))

    def mark(self, kind: str, text: str) -> str:
        """Write down that something ended; what the journal says of it, where it is in it already."""
        return self._told(kind, lambda: text)

    # A short journal.

    def begun(self) -> Path | None:
        """Say that a run stands as its first answers made it; the checkpoint to go on from, where there is one."""
        self._begun = True
        if self._past and self._past[0].kind == CHECKPOINT:
            return self._checkpoints.find(self._past.popleft().text)
        return None

    @property
    def due(self) -> bool:
        """Whether the journal has grown longer than it should, and than the last checkpoint."""
        return not self._past and self._journal.size > max(self._longest, self._checkpoints.size)

    def shorten(self, spec: str, write: Callable[[Path], None]) -> None:
        """Put a checkpoint, written by ``write``, in the place of all that came after the beginning.

        ``spec`` is the order that is being carried out. The old journal counts until the new one is on the disk.
        """
        name = self._checkpoints.add(self._index, write)
        failpoint("journal", "shorten", "before")
        entries = [self._entry("train", spec), *self._opening, self._entry(CHECKPOINT, name)]
        self._journal.replace(entry.SerializeToString() for entry in entries)
        failpoint("journal", "shorten", "after")
        self._checkpoints.keep_only({name})

    # Orders of the operator.

    def order(self, text: str) -> None:
        """Begin a training, from any thread."""
        self._stop = False
        self._orders.put(text)

    def stop(self) -> None:
        """End the training after the present round, from any thread."""
        self._stop = True

    @property
    def stopping(self) -> bool:
        """Whether nobody waits for the training any more."""
        return self._stop or self.closing

    def next_order(self) -> str:
        """The next training that was ordered; waits for one."""
        return self._told("train", self._ordered)

    def _ordered(self) -> str:
        text = self._orders.get()
        if text is None or self.closing:
            raise ClosingError("closing")
        return text

    def stopped(self) -> bool:
        """Whether the operator has ended the training after this round."""
        if self._past:
            if self._past[0].kind != "stop":
                return False
            self._past.popleft()
            return True
        if self._stop:
            self._write("stop", "{}")
        return self._stop

    def close(self) -> None:
        """Make the training end at its next step, without a trace of it in the journal."""
        self.closing = True
        self._orders.put(None)

    def finish(self) -> None:
        """Force the journal to disk."""
        self._journal.close()

    # The journal.

    def _live(self, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Let the event loop ask, and wait for it without missing that the cloud goes down."""
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

    def _told(self, kind: str, make: Callable[[], str], *, expected: str | None = None, force: bool = False) -> str:
        """What the journal says, which must be as ``expected``; or what is made, and written down, now."""
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
        """Remember how the run began: all between the order and the end of round zero."""
        if not self._begun:
            self._opening = [] if entry.kind == "train" else [*self._opening, entry]

    def _next(self, kind: str, text: str | None) -> wire.Entry:
        entry = self._past.popleft()
        if entry.kind != kind or (text is not None and entry.text != text):
            raise CorruptError(
                f"the journal tells of {entry.kind} {entry.text[:80]} where the training comes to {kind} "
                f"{(text or '')[:80]}: the configuration or the software has changed since. Put the old one back, or "
                "begin anew with `rhfedmtl network reset`"
            )
        self._note(entry)
        return entry


def _read(data: bytes, path: Path) -> wire.Entry:
    try:
        return wire.Entry.FromString(data)
    except Exception as error:
        raise CorruptError(f"{path} holds an entry that cannot be read: {error}") from None
