"""Membership of a station's terminals: joining, leaving, moving, forgetting and quarantine.

Every change waits until no round is open (it takes ``memory.turn``), and is on disk before the terminal hears of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from rhfedmtl.deploy.node.acceptor import PeerSession
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.attendance import Attendance
from rhfedmtl.deploy.station.memory import NOWHERE, Memory
from rhfedmtl.deploy.station.questions import Questions
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import Goodbye, Join, Leave


class Membership:
    """Changes the members of a station, never while a round is open.

    `TerminalSessions` passes on the requests of terminals to join or leave; `StationService` and `Transfers` pass on
    the decisions of operators. It never asks terminals for numbers.
    """

    def __init__(
        self,
        config: StationConfig,
        memory: Memory,
        attendance: Attendance,
        questions: Questions,
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        self._limits, self._answer_s = config.limits, config.waits.answer
        self._memory, self._attendance, self._questions = memory, attendance, questions
        self._changed, self._log = changed, log
        self._wishes: dict[int, tuple[PeerSession, Join | Leave]] = {}
        self._quarantined = set() if memory.role is None else set(memory.role.quarantined)
        self.awaited: set[int] = set()
        """Terminals that `assemble` waits for."""
        self._awaited_until = attendance.started
        self._tasks: set[asyncio.Task[None]] = set()

    # A station without members.

    def begin(self) -> None:
        """Start without members, and wait a while for the terminals: they may bring duals of earlier rounds."""
        self.awaited = self._memory.allowed - set(self._memory.station.members)
        self._awaited_until = time.monotonic() + self._answer_s

    async def begin_again(self, reason: str) -> None:
        """Start a new epoch: cut off all terminals, which join again with their duals, so U_b is computed again."""
        async with self._memory.turn:
            self._memory.start_epoch(reason)
            self.begin()
            for session in list(self._attendance.acceptor.sessions.values()):
                session.end("its station begins again")
        self._changed()

    def begin_again_soon(self, epoch: str, reason: str) -> None:
        """Start a new epoch when no round is open, unless another terminal has already caused it."""

        async def begin_again() -> None:
            if epoch == self._memory.epoch:
                await self.begin_again(reason)

        self._later(begin_again())

    async def assemble(self) -> None:
        """Wait for the terminals of a station that began without members, so no round goes on without them."""
        while self.awaited & self._memory.allowed and time.monotonic() < self._awaited_until:
            await self._attendance.wait(self._awaited_until)

    # Joining and leaving.

    def refusal(self, terminal: int) -> str:
        """Return the reason for refusing a terminal that does not belong to this station."""
        return (
            f"terminal {terminal} is no member of station {self._memory.task}, or none any more: it was forgotten, has "
            "left, or belongs elsewhere; an operator can let it come again with `rhfedmtl network invite`"
        )

    def join(self, session: PeerSession, join: Join) -> None:
        """Check a join. A member takes its place again; a newcomer is admitted as soon as no round is open."""
        member = self._memory.station.members.get(join.terminal)
        if member is None and join.terminal not in self._memory.allowed:
            return session.end(self.refusal(join.terminal))  # no fault: it may not have heard of its exclusion yet
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(join.share))
        if join.n_samples > self._limits.samples or norm > self._limits.norm * max(join.n_samples, 1):
            raise PeerError(f"a join with {join.n_samples} samples and a share of norm {norm:.3g}")
        if join.share.shape != self._memory.station.shape or join.n_samples < 1:
            raise PeerError(f"a join with {join.n_samples} samples and a share of shape {join.share.shape}")
        if member is not None and join.incarnation <= member.incarnation:
            session.incarnation = join.incarnation
            self._attendance.news.set()
        else:
            self.change(session, join)

    def change(self, session: PeerSession, wish: Join | Leave) -> None:
        """Admit or release a terminal as soon as no round is open; of several requests, the latest counts.

        Until then it answers no question.
        """
        terminal = session.number
        self._questions.lose(terminal)
        waits = terminal in self._wishes
        self._wishes[terminal] = session, wish
        self._attendance.changing.add(terminal)
        if not waits:
            self._later(self._carry_out(terminal))

    async def _carry_out(self, terminal: int) -> None:
        async with self._memory.turn:
            session, wish = self._wishes.pop(terminal)
            self._attendance.changing.discard(terminal)
            try:
                if isinstance(wish, Join):
                    self._admit(session, wish)
                else:
                    goodbye = self._memory.station.roster.remove(wish)
                    self._memory.save()
                    self.part_from(goodbye, session)
            except (PeerError, OSError) as error:  # the terminal tries again with its next stream
                self.heed_quarantine()
                session.end(str(error))

    def _admit(self, session: PeerSession, join: Join) -> None:
        memory, terminal = self._memory, join.terminal
        member = memory.station.members.get(terminal)
        if memory.sealed and member is not None and member.applied_round and join.incarnation > member.incarnation:
            # It starts with α = 0. Removing its old part would reveal that part, so the whole sum starts again.
            reason = f"terminal {terminal} has lost its part of a masked or noised sum"
            return self.begin_again_soon(memory.epoch, reason)
        memory.station.roster.admit(join)
        memory.leaving.pop(terminal, None)
        memory.save()
        self.awaited.discard(terminal)
        session.incarnation = join.incarnation
        self._questions.note_probe([terminal], ())
        self._log("joined", peer=f"terminal {terminal}", samples=join.n_samples, incarnation=join.incarnation)
        self._attendance.news.set()
        self._changed()

    def part_from(self, goodbye: Goodbye, session: PeerSession | None) -> None:
        """Send a terminal, if it is connected, its goodbye with its new station."""
        message, place = codec.to_wire(goodbye), self._memory.leaving.get(goodbye.terminal)
        moves = place is not None and place.station != NOWHERE
        if place is not None and moves:
            message.destination.CopyFrom(place)
        if session is not None:
            session.send(goodbye=message)
        self._log("left", peer=f"terminal {goodbye.terminal}", to=message.destination.station if moves else None)
        self._changed()

    def release_when_idle(self, terminal: int) -> None:
        """Ask a terminal to leave, as soon as no round is open."""

        async def release() -> None:
            async with self._memory.turn:
                if terminal in self._memory.station.members:
                    message = codec.to_wire(self._memory.station.roster.release(terminal, self._memory.station.round))
                    self._attendance.tell(terminal, release=message)

        self._later(release())

    def let_stay_behind(self, terminal: int) -> None:
        """Let a terminal go whose part stays in a noised sum; it remains a member that no round asks any more.

        The caller holds the turn.
        """
        if terminal not in self._memory.leaving and (member := self._memory.station.members.get(terminal)):
            self._memory.leaving[terminal] = wire.Place(station=NOWHERE)
            self._memory.save()
            session = self._attendance.acceptor.sessions.get(terminal)
            self.part_from(Goodbye(terminal, member.incarnation), session)

    def forget(self, terminal: int) -> None:
        """Remove a terminal and its share; if it is connected, it must join again. The caller holds the turn."""
        self._memory.station.roster.forget(terminal)
        self._memory.save()
        if (session := self._attendance.acceptor.sessions.get(terminal)) is not None:
            session.end("its station has forgotten it")
        self._changed()

    # Quarantine.

    def suspect_soon(self, terminal: int, reason: str) -> None:
        """Put a terminal into quarantine as soon as no round is open."""

        async def suspect() -> None:
            async with self._memory.turn:
                self._memory.station.roster.suspect(terminal, reason)
                self.heed_quarantine()

        self._later(suspect())

    def heed_quarantine(self) -> list[int]:
        """Save and cut off the terminals that went into quarantine since the last call; the caller holds the turn."""
        reasons = self._memory.station.quarantined
        new = [t for t in reasons if t not in self._quarantined]
        self._quarantined = set(reasons)
        for t in new:
            self._log("quarantined", "error", peer=f"terminal {t}", reason=f"it told {reasons[t]}")
            if (session := self._attendance.acceptor.sessions.get(t)) is not None:
                session.end(f"it told {reasons[t]}")
        if new:
            self._memory.save()
            self._changed()
        return new

    # Work that waits until no round is open.

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this work in the background, so the stream that caused it can go on."""

        def note_end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._log("membership", "error", reason=f"{type(error).__name__}: {error}")

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(note_end)
