"""Streams of a station's terminals: the greeting, and the messages that follow, each checked and passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from rhfedmtl.deploy.node.acceptor import NotReadyError, PeerSession
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.attendance import Attendance
from rhfedmtl.deploy.station.membership import Membership
from rhfedmtl.deploy.station.memory import NOWHERE, Memory
from rhfedmtl.deploy.station.questions import Arrival, Questions
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import Join, Leave, Verdict
from rhfedmtl.roles.secure.masking import Deal, Key

REASON_LENGTH = 200
"""Characters of a terminal's own words that are passed on."""


class TerminalSessions:
    """Takes every message of the terminals of one station: they speak for themselves, and say only what can be true.

    The acceptor of `Attendance` calls it for each stream. It passes answers to `Questions`, and wishes to join or leave
    to `Membership`. It never sends a question, and never changes the members.
    """

    def __init__(
        self, config: StationConfig, memory: Memory, changed: Callable[[], None], log: Log, meters: Meters
    ) -> None:
        self._memory, self._changed, self._log, self._meters = memory, changed, log, meters
        self.attendance = Attendance(config, memory, log, meters)
        self.questions = Questions(memory, self.attendance, log)
        self.membership = Membership(config, memory, self.attendance, self.questions, changed, log)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC service for terminals."""
        return self.attendance.acceptor.handler(self.greet, self.receive, self.on_gone)

    def heed_access(self) -> None:
        """Cut off terminals whose certificate is revoked; a wait for terminals looks again which may still come."""
        self.attendance.acceptor.revoke(self._memory.revoked)
        self.attendance.news.set()

    def greet(self, session: PeerSession, hello: wire.Hello) -> wire.Welcome:
        """Answer the hello of a terminal; refuse a terminal that does not belong here."""
        memory, t = self._memory, session.number
        role, seat = memory.station, memory.seat(t)
        incarnation = seat.incarnation if seat else 0
        if not (t in memory.allowed or t in role.members or t in memory.leaving):
            raise PeerError(self.membership.refusal(t))
        if t in role.quarantined:
            raise PeerError(
                f"terminal {t} is in quarantine: it told {role.quarantined[t]}. An operator can let it in again with "
                "`rhfedmtl network readmit`"
            )
        # A round, or an order to a membership, that this station never wrote down?
        ahead_of_us = hello.round > memory.latest or (hello.pending_round > 0 and hello.incarnation > incarnation)
        if hello.epoch == memory.epoch and ahead_of_us:
            reason = f"terminal {t} has worked in round {hello.round}, this state knows none after {memory.latest}"
            if not memory.from_disk:  # no terminal can have seen more of it
                self.membership.suspect_soon(t, f"of round {hello.round}, where {memory.latest} is the last")
                raise PeerError(f"{reason}: there was none")
            self.membership.begin_again_soon(hello.epoch, f"{reason}: it was put back from an old copy")
            raise NotReadyError(f"station {memory.task} was put back from an old copy and begins anew: try again")
        session.incarnation = hello.incarnation if hello.epoch == memory.epoch else 0
        welcome = wire.Welcome(protocol=codec.PROTOCOL, epoch=memory.epoch, job=memory.job, incarnation=incarnation)
        self.attendance.note_greeting(t)
        self.questions.declined.pop(t, None)
        memory.agreed.write(welcome, private_only=hello.prepared)
        behind = role.method.channel.noised and t in memory.leaving and t not in memory.allowed
        if t in role.members and not behind:
            asyncio.get_running_loop().call_soon(self._catch_up, session)
        elif t not in memory.allowed and (memory.leaving[t].station != NOWHERE or memory.sealed):
            welcome.place.CopyFrom(memory.leaving[t])  # it went there, and may have forgotten, or missed the goodbye
        else:
            welcome.verdict.CopyFrom(codec.to_wire(seat.verdict(role.round) if seat else Verdict()))
        return welcome

    def _catch_up(self, session: PeerSession) -> None:
        """Send a terminal that has reconnected the messages it missed."""
        t = session.number
        if self.attendance.acceptor.sessions.get(t) is not session:
            return
        self.attendance.news.set()
        self.questions.repeat(t)
        if t in self._memory.leaving and not self._memory.sealed:
            self.membership.release_when_idle(t)

    async def receive(self, session: PeerSession, data: bytes) -> None:
        """Check a message of a terminal, and pass it on."""
        name, content, message = session.read(data)
        t = session.number
        self.attendance.silent.discard(t)
        self._meters.messages.labels("up", name).inc()
        seconds = codec.finite(message.seconds, "the seconds of a message")
        try:
            read = _READERS.get(name, codec.read)(content)
        except codec.NotFiniteError as error:
            if self.questions.waits_for(t, name):
                self._memory.station.roster.suspect(t, str(error))
            raise
        speaker = getattr(read, "terminal", getattr(read, "sender", t))
        if speaker != t:
            raise PeerError(f"terminal {t} speaks for terminal {speaker}")
        if isinstance(read, Join):
            self.membership.join(session, read)
        elif isinstance(read, Leave):
            self.membership.change(session, read)
        elif name == "withdraw":
            session.withdraws = True
            self._changed()
        elif name == "rest":
            session.rests = True
        elif isinstance(read, Key):
            self.attendance.room.admit(read, frozenset(content.group))
            self.attendance.news.set()
        elif name == "declined":
            self._take_declined(t, Arrival(read, len(data), 0.0))
        else:
            if name == "masked" and content.HasField("next"):
                self.attendance.room.receive(codec.from_wire(Deal, content.next))
            self.questions.take(t, name, Arrival(read, len(data), max(0.0, seconds)))

    def _take_declined(self, t: int, arrival: Arrival) -> None:
        """Go on without a terminal whose site does not allow a request; the cloud hears of it."""
        questions, refusal = self.questions, arrival.content
        if not refusal.reason:
            questions.declined.pop(t, None)
        elif not refusal.round and questions.waits_for(t):  # it keeps its part of a sum to itself
            questions.lose(t)
        elif not refusal.round:
            self.membership.awaited.discard(t)
            questions.declined[t] = refusal
        elif not questions.take_refusal(t, arrival):
            return
        if refusal.reason:
            self._log("declined", "warning", peer=f"terminal {t}", round=refusal.round or None, reason=refusal.reason)
        self.attendance.news.set()
        self._changed()

    def on_gone(self, session: PeerSession) -> None:
        """Note that a stream has ended."""
        t = session.number
        self.questions.note_end(t)
        if self.attendance.acceptor.sessions.get(t) in (None, session):
            self.questions.declined.pop(t, None)
        self.attendance.note_end(session)


def checked_tally(tally: wire.Tally) -> wire.Tally:
    """Return the counts of a model on test rows, or refuse counts that cannot be."""
    codec.finite(tally.squares, "squared errors")
    counts = codec.array(tally.counts, "counts")
    if counts.ndim != 2 or (counts < 0.0).any() or counts.sum() > tally.rows or tally.squares < 0.0:
        raise PeerError("a tally that cannot be")
    return tally


def _declined(refusal: wire.Declined) -> wire.Declined:
    return wire.Declined(round=refusal.round, reason=refusal.reason[:REASON_LENGTH], local_steps=refusal.local_steps)


_READERS: dict[str, Callable[[Any], Any]] = {"tally": checked_tally, "declined": _declined}
"""Readers of messages that are no messages of the roles."""
