"""Streams of a station's terminals: `TerminalSessions` answers greetings, and checks and passes on all later messages.

The acceptor of `Attendance` calls it for each stream. It never sends a question, and never changes the members itself.

Theory of operation. `greet` answers a hello:

- Refuse a terminal that is not allowed here, or is in quarantine.
- The terminal knows a later round than this station. If the station was restored from disk, the file was an old copy:
  start a new epoch. Otherwise the claim cannot be true, and the terminal goes into quarantine.
- A member is welcomed with its agreements. Right after, `_catch_up` sends it the open question again.
- A terminal that has moved gets its new place, in case it missed the goodbye.
- For any other terminal, the welcome says which of its last updates were merged (the verdict). It then joins.

`receive` decodes a message and checks that the sender speaks only for itself. Numbers that are not finite lead to
quarantine if the station was waiting for them. Joins and leaves go to `Membership`, keys and deals to the masked sums,
answers to `Questions`.
"""

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
"""Characters of a reason from a terminal that the station passes on."""


class TerminalSessions:
    """Takes every message of the terminals of a station.

    Parameters
    ----------
    config : StationConfig
        Configuration of the station.
    memory : Memory
        State of the station.
    changed : callable
        Called after a change of the members.
    log, meters : Log, Meters
        Log and metrics of the process.
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
        """Cut off terminals with a revoked certificate, and wake up the waits, which may now be shorter."""
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
        # Does the terminal know a round, or an order to an incarnation, that is not in this state?
        ahead_of_us = hello.round > memory.latest or (hello.pending_round > 0 and hello.incarnation > incarnation)
        if hello.epoch == memory.epoch and ahead_of_us:
            reason = f"terminal {t} has worked in round {hello.round}, but this state ends at round {memory.latest}"
            if not memory.from_disk:  # this state is the only copy, so the claim is false
                self.membership.suspect_soon(t, f"of round {hello.round}, where {memory.latest} is the last")
                raise PeerError(f"{reason}: there was none")
            self.membership.begin_again_soon(hello.epoch, f"{reason}: it was put back from an old copy")
            raise NotReadyError(f"station {memory.task} was put back from an old copy and starts again: try again")
        session.incarnation = hello.incarnation if hello.epoch == memory.epoch else 0
        welcome = wire.Welcome(protocol=codec.PROTOCOL, epoch=memory.epoch, job=memory.job, incarnation=incarnation)
        self.attendance.note_greeting(t)
        self.questions.declined.pop(t, None)
        memory.agreed.write(welcome, private_only=hello.prepared)
        behind = role.method.channel.noised and t in memory.leaving and t not in memory.allowed
        if t in role.members and not behind:
            asyncio.get_running_loop().call_soon(self._catch_up, session)
        elif t not in memory.allowed and (memory.leaving[t].station != NOWHERE or memory.sealed):
            welcome.place.CopyFrom(memory.leaving[t])  # it has moved, and may have missed the goodbye
        else:
            welcome.verdict.CopyFrom(codec.to_wire(seat.verdict(role.round) if seat else Verdict()))
        return welcome

    def _catch_up(self, session: PeerSession) -> None:
        """Send a reconnected member the messages that it missed."""
        t = session.number
        if self.attendance.acceptor.sessions.get(t) is not session:
            return
        self.attendance.news.set()
        self.questions.repeat(t)
        if t in self._memory.leaving and not self._memory.sealed:
            self.membership.release_when_idle(t)

    async def receive(self, session: PeerSession, data: bytes) -> None:
        """Check a message of a terminal and pass it on."""
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
        """Go on without a terminal whose site declines a request, and report this to the cloud."""
        questions, refusal = self.questions, arrival.content
        if not refusal.reason:
            questions.declined.pop(t, None)
        elif not refusal.round and questions.waits_for(t):  # it declines to send its part of a masked sum
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
    """Return the counts of a model on test rows; refuse impossible counts."""
    codec.finite(tally.squares, "squared errors")
    counts = codec.array(tally.counts, "counts")
    if counts.ndim != 2 or (counts < 0.0).any() or counts.sum() > tally.rows or tally.squares < 0.0:
        raise PeerError("a tally with impossible counts")
    return tally


def _declined(refusal: wire.Declined) -> wire.Declined:
    return wire.Declined(round=refusal.round, reason=refusal.reason[:REASON_LENGTH], local_steps=refusal.local_steps)


_READERS: dict[str, Callable[[Any], Any]] = {"tally": checked_tally, "declined": _declined}
"""Readers of messages that the roles do not know."""
