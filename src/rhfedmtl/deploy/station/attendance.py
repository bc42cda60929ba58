"""Attendance of a station's terminals: which are connected, which rest, and how long to wait for absent terminals.

A member is present if it is connected with the incarnation that the station knows, and does not owe an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from rhfedmtl.deploy.node.acceptor import Acceptor, PeerSession
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.credentials import TERMINAL
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.roles.secure.masked_sums import MaskRoom

GATHER_S = 3.0
"""Seconds that a terminal may take to reconnect before a round goes on without it."""


class Attendance:
    """Streams with the terminals of a station, and the times of their start, last message and end.

    `Questions`, `Membership` and the requests of the cloud look up who is present, and wait for news. It never changes
    the members, and never asks a question.
    """

    def __init__(self, config: StationConfig, memory: Memory, log: Log, meters: Meters) -> None:
        self._memory = memory
        network, limits, greeting_s = config.node.network, config.limits, 2.0 * config.waits.link
        self.acceptor = Acceptor(TERMINAL_TO_STATION, network, TERMINAL, limits, log, meters, greeting_s=greeting_s)
        self.news = asyncio.Event()
        """Set to wake up tasks that wait for terminals."""
        self.started = time.monotonic()
        self.silent: set[int] = set()
        """Terminals that missed a deadline and have sent nothing since."""
        self.changing: set[int] = set()
        """Terminals that are joining or leaving: they answer no question before this change."""
        self._ended_at: dict[int, float] = {}
        self._resting: set[int] = set()
        self._room: MaskRoom | None = None

    @property
    def room(self) -> MaskRoom:
        """Keys and deals of the terminals if sums are masked. They belong to a stream and end with it."""
        if self._room is None:
            self._room = MaskRoom(self._memory.station.method.channel.least)
        return self._room

    def present(self) -> list[int]:
        """Return the members that are connected with the known incarnation and do not owe an answer."""
        members = self._memory.station.members
        present = [t for t in sorted(members) if self.incarnation(t) == members[t].incarnation and t not in self.silent]
        return [t for t in present if t in self.room] if self._memory.masked else present

    def rows(self, terminal: int) -> int:
        """Return the number of rows of a member."""
        return self._memory.station.members[terminal].n_samples

    def is_connected(self, terminal: int) -> bool:
        """Return True if there is a stream with a terminal, whether it answers or not."""
        return terminal in self.acceptor.sessions

    def incarnation(self, terminal: int) -> int:
        """Return the incarnation of a connected terminal; 0 if it is not connected."""
        session = self.acceptor.sessions.get(terminal)
        return 0 if session is None else session.incarnation

    def withdraws(self, terminal: int) -> bool:
        """Return True if a connected terminal has sent the withdrawal of its owner."""
        session = self.acceptor.sessions.get(terminal)
        return session is not None and session.withdraws

    def tell(self, terminal: int, **body: Any) -> bool:
        """Send a message that needs no answer."""
        session = self.acceptor.sessions.get(terminal)
        return session is not None and session.send(**body)

    def long_silent(self, seconds: float) -> list[int]:
        """Return the absent members whose last sign of life is older than this."""
        since, present, terminals = time.monotonic() - seconds, set(self.present()), []
        for t in sorted(self._memory.station.members):
            session = self.acceptor.sessions.get(t)
            last_sign = self._ended_at.get(t, self.started) if session is None else session.last_heard
            if t not in present and last_sign < since:
                terminals.append(t)
        return terminals

    def note_greeting(self, terminal: int) -> None:
        """Note that a stream has started."""
        self._resting.discard(terminal)
        self.room.forget(terminal)  # its key was for the previous stream

    def note_end(self, session: PeerSession) -> None:
        """Note that a stream has ended."""
        self._ended_at[session.number] = time.monotonic()
        self.silent.discard(session.number)
        if session.rests:
            self._resting.add(session.number)
        self.news.set()

    # Waiting.

    async def gather(self, terminals: Iterable[int], asleep: float = 0.0) -> list[int]:
        """Return the present terminals among ``terminals``, after a short wait for reconnects.

        For a resting terminal, the wait is ``asleep`` seconds.
        """
        expected = set(terminals)
        while True:
            present = set(self.present())
            until = max((self.due(t, asleep) for t in expected - present), default=0.0)
            if time.monotonic() >= until:
                return sorted(expected & present)
            await self.wait(until)

    def due(self, terminal: int, asleep: float = 0.0) -> float:
        """Return the time until which to wait for an absent terminal; 0 if the acceptor does not let it in."""
        if self.acceptor.bars(terminal):
            return 0.0
        return self._ended_at.get(terminal, self.started) + (asleep if terminal in self._resting else GATHER_S)

    async def wait(self, until: float) -> None:
        """Wait for news, but no longer than ``until``."""
        self.news.clear()
        try:
            await asyncio.wait_for(self.news.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return
