"""The terminals of a base station, as it sees them: who is there, what they are asked, and what comes back in time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
import numpy as np

from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.credentials import TERMINAL
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.link import Acceptor, NotReadyError, PeerSession
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.memory import NOWHERE, Memory
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.masked_sums import MaskRoom
from rhfedmtl.roles.masking import Deal, Key
from rhfedmtl.roles.messages import (
    Goodbye,
    Join,
    Leave,
    Probe,
    Vector,
    Verdict,
    WorkOrder,
)
from rhfedmtl.roles.station import Member

GATHER_S = 3.0
"""How long a terminal that has just gone may take to come back before a round goes on without it."""

MOST_SENT = 2
"""How often a terminal is asked the same: once more where its link broke, so that bytes have a bound."""

MISSED_PROBES = 2
"""After so many probes in a row without an answer, certificates count the rows of a terminal at their worst."""

WORK = ("update", "masked")
"""Answers to an order."""

REASON_LENGTH = 200
"""Characters of a terminal's own words that are passed on."""


class Arrival(NamedTuple):
    """An answer: what it says, how many bytes it had, and how long the terminal says that it worked for it."""

    content: Any
    n_bytes: int
    seconds: float


Sent = wire.TerminalDown | WorkOrder | Probe
"""What a terminal is asked. Orders and probes share their models, and get their form when they are sent."""


class Question:
    """Messages to some terminals and their answers so far; if ``again``, who connects anew gets its own once more."""

    def __init__(
        self, answer: str, messages: Mapping[int, Sent], fits: Callable[[Any], bool], *, again: bool = True
    ) -> None:
        self.answer, self.messages, self.fits, self.again = answer, messages, fits, again
        self.arrived: dict[int, Arrival] = {}
        self.at: dict[int, float] = {}
        self.sent: dict[int, int] = dict.fromkeys(messages, 0)
        self.down: dict[int, int] = dict.fromkeys(messages, 0)
        self.lost: set[int] = set()
        self.began = time.monotonic()

    def n_bytes(self, terminal: int) -> tuple[int, int]:
        """Bytes to a terminal, and of its answer, with what its link puts around them."""
        arrival = self.arrived.get(terminal)
        return self.down.get(terminal, 0), 0 if arrival is None else framed(arrival.n_bytes)

    def take(self, terminal: int, arrival: Arrival) -> None:
        """Note what a terminal answered, and when."""
        self.arrived[terminal] = arrival
        self.at[terminal] = time.monotonic()

    @property
    def missing(self) -> list[int]:
        """Terminals that may still answer."""
        return [t for t in self.messages if t not in self.arrived and t not in self.lost]


class TerminalSessions:
    """Sessions with the terminals of one station."""

    def __init__(
        self, config: StationConfig, memory: Memory, changed: Callable[[], None], log: Log, meters: Meters
    ) -> None:
        self._memory, self._changed, self._log, self._meters = memory, changed, log, meters
        self._limits = config.limits
        network, limits, greeting_s = config.node.network, config.limits, 2.0 * config.waits.link
        self.acceptor = Acceptor(TERMINAL_TO_STATION, network, TERMINAL, limits, log, meters, greeting_s=greeting_s)
        self._question: Question | None = None
        self._news = asyncio.Event()
        self._gone: dict[int, float] = {}
        self._silent: set[int] = set()
        self._barred = set() if memory.role is None else set(memory.role.quarantined)
        self.started = time.monotonic()
        self._awaited: set[int] = set()
        self._awaited_until = self.started
        self._answer_s = config.waits.answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._wishes: dict[int, tuple[PeerSession, Join | Leave]] = {}
        self._resting: set[int] = set()
        self.n_bytes = 0
        """Of all questions so far and their answers, with what links put around them."""
        self.declined: dict[int, wire.Declined] = {}
        """Orders that the site of a terminal declined last."""
        self._room: MaskRoom | None = None
        self.missed: Counter[int] = Counter()
        """Probes in a row that a terminal left unanswered."""

    @property
    def room(self) -> MaskRoom:
        """Keys and deals of the terminals, where sums are masked; keys are for one stream, so slots begin anew."""
        if self._room is None:
            self._room = MaskRoom(self._memory.station.method.channel.least)
        return self._room

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for terminals."""
        return self.acceptor.handler(self.greet, self.receive, self.on_gone)

    def present(self) -> list[int]:
        """Members that are connected, are who the station knows, and do not owe an answer since a deadline."""
        members = self._memory.station.members
        here = [t for t in sorted(members) if self._incarnation(t) == members[t].incarnation and t not in self._silent]
        return [t for t in here if t in self.room] if self._memory.masked else here

    def rows(self, terminal: int) -> int:
        """How many rows a member has."""
        return self._memory.station.members[terminal].n_samples

    def changes(self, terminal: int) -> bool:
        """Whether a terminal waits to be let out, or in anew: it answers nothing before."""
        return terminal in self._wishes

    def declines(self, terminal: int, steps: int) -> bool:
        """Whether a terminal's site has declined as many steps, and has not said that it allows them now."""
        return terminal in self.declined and self.declined[terminal].local_steps == steps

    def begin(self) -> None:
        """Note that the station begins without members: its terminals may have much to bring."""
        self._awaited = self._memory.allowed - set(self._memory.station.members)
        self._awaited_until = time.monotonic() + self._answer_s

    async def begin_anew(self, reason: str) -> None:
        """Make U_b anew from the terminals: all of them come again, and join with what they know."""
        async with self._memory.turn:
            self._memory.begin_anew(reason)
            self.begin()
            for session in list(self.acceptor.sessions.values()):
                session.end("its station begins anew")
        self._changed()

    async def _blame(self, terminal: int, reason: str) -> None:
        async with self._memory.turn:
            self._memory.station.suspect(terminal, reason)
            self.heed_quarantine()

    async def _catch_up_with(self, epoch: str, reason: str) -> None:
        if epoch == self._memory.epoch:  # not where another terminal has said so already
            await self.begin_anew(reason)

    async def assemble(self) -> None:
        """Wait for the terminals of a station that began without members, so that no round is held without them."""
        while self._awaited & self._memory.allowed and time.monotonic() < self._awaited_until:
            await self._hear(self._awaited_until)

    def heed_access(self) -> None:
        """Cut off who is revoked; whoever waits for terminals looks again who may still come."""
        self.acceptor.revoke(self._memory.revoked)
        self._news.set()

    async def gather(self, wanted: Iterable[int], asleep: float = 0.0) -> list[int]:
        """Those of ``wanted`` that are present, after a little for who has just gone, ``asleep`` for who rests."""
        wanted = set(wanted)
        while True:
            here = set(self.present())
            until = max((self._due(t, asleep) for t in wanted - here), default=0.0)
            if time.monotonic() >= until:
                return sorted(wanted & here)
            await self._hear(until)

    async def ask(
        self,
        answer: str,
        messages: Mapping[int, Sent],
        seconds: float,
        fits: Callable[[Any], bool] = lambda _: True,
        *,
        again: bool = True,
    ) -> Question:
        """Send to each terminal its message and collect answers of kind ``answer``, until all are there or time is up.

        Terminals that have gone are waited for only a little, and those that are about to change not at all.
        """
        question = Question(answer, messages, fits, again=again)
        question.lost.update(filter(self.changes, messages))
        self._question = question
        for t in question.missing:
            self._send_question(t)
        until = time.monotonic() + seconds
        while question.missing and time.monotonic() < (limit := self._limit(question, until)):
            await self._hear(limit)
        self._question = None
        self._silent.update(t for t in question.missing if t in self.acceptor.sessions)
        question.lost.clear()
        self.n_bytes += sum(sum(question.n_bytes(t)) for t in question.messages)
        return question

    def absent(self) -> list[int]:
        """Members that left so many probes unanswered that certificates go on without them."""
        return [t for t in sorted(self._memory.station.members) if self.missed[t] >= MISSED_PROBES]

    def note_probe(self, arrived: Iterable[int], missing: Iterable[int]) -> None:
        """Count the missed probes of terminals; an answer clears them."""
        for t in arrived:
            self.missed.pop(t, None)
        for t in missing:
            self.missed[t] += 1
            if self.missed[t] == MISSED_PROBES:
                self._log("absent", "warning", peer=f"terminal {t}", reason=f"no answer to {MISSED_PROBES} probes")

    def is_connected(self, terminal: int) -> bool:
        """Return True if there is a stream with a terminal, whether it answers or not."""
        return terminal in self.acceptor.sessions

    def withdraws(self, terminal: int) -> bool:
        """Whether the owner of a terminal wants it to leave the network."""
        session = self.acceptor.sessions.get(terminal)
        return session is not None and session.withdraws

    def tell(self, terminal: int, **body: Any) -> bool:
        """Send a message that nobody waits for."""
        session = self.acceptor.sessions.get(terminal)
        return session is not None and session.send(**body)

    def silent(self, seconds: float) -> list[int]:
        """Members that have said nothing for so long, and are not asked any more."""
        since, here = time.monotonic() - seconds, set(self.present())
        return [t for t in sorted(self._memory.station.members) if t not in here and self._heard(t) < since]

    def forget(self, terminal: int) -> None:
        """Take out, in a turn, what a terminal contributed; one that is there after all has to come anew."""
        self._memory.station.forget(terminal)
        self._memory.save()
        if (session := self.acceptor.sessions.get(terminal)) is not None:
            session.end("its station has forgotten it")
        self._changed()

    def heed_quarantine(self) -> list[int]:
        """Write down, in a turn, who was put into quarantine since this was last called, and cut them off."""
        barred = self._memory.station.quarantined
        new = [t for t in barred if t not in self._barred]
        self._barred = set(barred)
        for t in new:
            self._log("quarantined", "error", peer=f"terminal {t}", reason=f"it told {barred[t]}")
            if (session := self.acceptor.sessions.get(t)) is not None:
                session.end(f"it told {barred[t]}")
        if new:
            self._memory.save()
            self._changed()
        return new

    def let_stay_behind(self, terminal: int) -> None:
        """Let a terminal go, in a turn, whose part stays in a noised sum: it is a member still that nobody asks."""
        if terminal not in self._memory.leaving and (member := self._memory.station.members.get(terminal)):
            self._memory.leaving[terminal] = wire.Place(station=NOWHERE)
            self._memory.save()
            self.part_from(Goodbye(terminal, member.incarnation), self.acceptor.sessions.get(terminal))

    def release_when_idle(self, terminal: int) -> None:
        """Let a terminal go that is to leave, as soon as no round is open."""
        self._later(self._release(terminal))

    # Messages from terminals.

    def greet(self, session: PeerSession, hello: wire.Hello) -> wire.Welcome:
        """Answer a terminal that says hello; one that does not belong here is refused."""
        memory, t = self._memory, session.number
        role = memory.station
        known = memory.seat(t)
        if not (t in memory.allowed or t in role.members or t in memory.leaving):
            raise PeerError(self._not_of_here(t))
        if t in role.quarantined:
            raise PeerError(
                f"terminal {t} is in quarantine: it told {role.quarantined[t]}. An operator can let it in again with "
                "`rhfedmtl network readmit`"
            )
        if hello.epoch == memory.epoch and self._knows_more(hello, known):
            reason = f"terminal {t} has worked in round {hello.round}, this state knows none after {memory.latest}"
            if not memory.from_disk:  # no terminal can have seen more of it
                self._later(self._blame(t, f"of round {hello.round}, where {memory.latest} is the last"))
                raise PeerError(f"{reason}: there was none")
            self._later(self._catch_up_with(hello.epoch, f"{reason}: it was put back from an old copy"))
            raise NotReadyError(f"station {memory.task} was put back from an old copy and begins anew: try again")
        session.incarnation = hello.incarnation if hello.epoch == memory.epoch else 0
        welcome = wire.Welcome(
            protocol=codec.PROTOCOL, epoch=memory.epoch, job=memory.job, incarnation=known.incarnation if known else 0
        )
        self._resting.discard(t)
        self.declined.pop(t, None)
        self.room.forget(t)  # its key was for the stream before
        memory.agreed.write(welcome, private_only=hello.prepared)
        behind = role.method.channel.noised and t in memory.leaving and t not in memory.allowed
        if t in role.members and not behind:
            asyncio.get_running_loop().call_soon(self._catch_up, session)
        elif t not in memory.allowed and (memory.leaving[t].station != NOWHERE or memory.sealed):
            welcome.place.CopyFrom(memory.leaving[t])  # it went there, and may have forgotten, or missed the goodbye
        else:
            welcome.verdict.CopyFrom(codec.to_wire(known.verdict(role.round) if known else Verdict()))
        return welcome

    def _not_of_here(self, terminal: int) -> str:
        return (
            f"terminal {terminal} is no member of station {self._memory.task}, or none any more: it was forgotten, has "
            "left, or belongs elsewhere; an operator can let it come again with `rhfedmtl network invite`"
        )

    def _knows_more(self, hello: wire.Hello, known: Member | None) -> bool:
        """Whether a terminal tells of a round, or of an order to a membership, that this station never wrote down."""
        incarnation = known.incarnation if known else 0
        return hello.round > self._memory.latest or (hello.pending_round > 0 and hello.incarnation > incarnation)

    def _catch_up(self, session: PeerSession) -> None:
        """What a terminal that connects anew has missed."""
        t = session.number
        if self.acceptor.sessions.get(t) is not session:
            return
        self._news.set()
        member = self._memory.station.members.get(t)
        if self._question is not None and t in self._question.missing:
            known = member is not None and self._incarnation(t) == member.incarnation
            if not (known and self._question.again and self._send_question(t)):
                self._question.lost.add(t)  # it comes as somebody new, or was asked often enough
        if t in self._memory.leaving and not self._memory.sealed:
            self.release_when_idle(t)

    async def receive(self, session: PeerSession, data: bytes) -> None:
        """Take a message of a terminal: it speaks for itself, and says what could be."""
        name, content, message = session.read(data)
        self._silent.discard(session.number)
        self._meters.messages.labels("up", name).inc()
        seconds = codec.finite(message.seconds, "the seconds of a message")
        try:
            read = _READERS.get(name, codec.read)(content)
        except codec.NotFiniteError as error:
            question = self._question
            if question is not None and question.answer == name and session.number in question.missing:
                self._memory.station.suspect(session.number, str(error))
            raise
        speaker = getattr(read, "terminal", getattr(read, "sender", session.number))
        if speaker != session.number:
            raise PeerError(f"terminal {session.number} speaks for terminal {speaker}")
        if isinstance(read, Join):
            self._on_join(session, read)
        elif isinstance(read, Leave):
            self._change(session, read)
        elif name == "withdraw":
            session.withdraws = True
            self._changed()
        elif name == "rest":
            session.rests = True
        elif isinstance(read, Key):
            self.room.admit(read, frozenset(content.group))
            self._news.set()
        elif name == "declined":
            self._on_declined(session.number, Arrival(read, len(data), 0.0))
        else:
            if name == "masked" and content.HasField("next"):
                self.room.receive(codec.from_wire(Deal, content.next))
            self._on_answer(session.number, name, Arrival(read, len(data), max(0.0, seconds)))

    def _on_answer(self, t: int, name: str, arrival: Arrival) -> None:
        """Take the answer to the present question; any other is late, or was not asked for, and changes nothing."""
        question, read = self._question, arrival.content
        if name == "sums" and self.missed[t] >= MISSED_PROBES:  # a late answer: ask again
            self.missed[t] = MISSED_PROBES - 1
        if question is None or question.answer != name or t not in question.missing or not question.fits(read):
            return
        question.take(t, arrival)
        if name in WORK:
            self.declined.pop(t, None)
        self._news.set()

    def _on_declined(self, t: int, arrival: Arrival) -> None:
        """Go on without a terminal whose site does not allow what it was asked for; the cloud hears of it."""
        question, said = self._question, arrival.content
        asked = question is not None and t in question.missing
        if not said.reason:
            self.declined.pop(t, None)
        elif asked and not said.round:  # it keeps its part of a sum to itself
            self._lose(t)
        elif not said.round:
            self._awaited.discard(t)
            self.declined[t] = said
        elif question is not None and asked and question.answer in WORK:
            question.take(t, arrival)
            self.declined[t] = said
        else:
            return
        if said.reason:
            self._log("declined", "warning", peer=f"terminal {t}", round=said.round or None, reason=said.reason)
        self._news.set()
        self._changed()

    def _on_join(self, session: PeerSession, join: Join) -> None:
        member = self._memory.station.members.get(join.terminal)
        if member is None and join.terminal not in self._memory.allowed:
            return session.end(self._not_of_here(join.terminal))  # no fault of its own: it has not heard of it yet
        norm = _norm(join.share)
        if join.n_samples > self._limits.samples or norm > self._limits.norm * max(join.n_samples, 1):
            raise PeerError(f"a join with {join.n_samples} samples and a share of norm {norm:.3g}")
        if join.share.shape != self._memory.station.shape or join.n_samples < 1:
            raise PeerError(f"a join with {join.n_samples} samples and a share of shape {join.share.shape}")
        if member is not None and join.incarnation <= member.incarnation:
            session.incarnation = join.incarnation
            self._news.set()
        else:
            self._change(session, join)

    def _change(self, session: PeerSession, wish: Join | Leave) -> None:
        """Let a terminal in or out as soon as no round is open; of several wishes of one, the latest counts.

        Who comes anew, or is on its way out, no longer answers what it was asked.
        """
        self._lose(session.number)
        waits = session.number in self._wishes
        self._wishes[session.number] = session, wish
        if not waits:
            self._later(self._carry_out(session.number))

    def _lose(self, terminal: int) -> None:
        """Wait no longer for the answer of a terminal."""
        if self._question is not None and terminal in self._question.missing:
            self._question.lost.add(terminal)
            self._news.set()

    async def _carry_out(self, terminal: int) -> None:
        async with self._memory.turn:
            session, wish = self._wishes.pop(terminal)
            try:
                if isinstance(wish, Join):
                    self._admit(session, wish)
                else:
                    self._remove(session, wish)
            except (PeerError, OSError) as error:  # what could not be written down is tried again with the next link
                self.heed_quarantine()
                session.end(str(error))

    def _admit(self, session: PeerSession, join: Join) -> None:
        known = self._memory.station.members.get(join.terminal)
        if self._memory.sealed and known is not None and known.applied_round and join.incarnation > known.incarnation:
            # It begins with nothing, and the sum without it would tell what it put in.
            reason = f"terminal {join.terminal} has lost what it put into a masked or noised sum"
            return self._later(self._catch_up_with(self._memory.epoch, reason))
        self._memory.station.admit(join)
        self._memory.leaving.pop(join.terminal, None)
        self._memory.save()
        self._awaited.discard(join.terminal)
        session.incarnation = join.incarnation
        self.missed.pop(join.terminal, None)
        self._log("joined", peer=f"terminal {join.terminal}", samples=join.n_samples, incarnation=join.incarnation)
        self._news.set()
        self._changed()

    async def _release(self, terminal: int) -> None:
        async with self._memory.turn:
            if terminal in self._memory.station.members:
                self.tell(terminal, release=codec.to_wire(self._memory.station.release(terminal)))

    def _remove(self, session: PeerSession, leave: Leave) -> None:
        goodbye = self._memory.station.remove(leave)
        self._memory.save()
        self.part_from(goodbye, session)

    def part_from(self, told: Goodbye, session: PeerSession | None) -> None:
        """Tell a terminal, if it is there, that it is out, and where to go."""
        goodbye, place = codec.to_wire(told), self._memory.leaving.get(told.terminal)
        moves = place is not None and place.station != NOWHERE
        if place is not None and moves:
            goodbye.destination.CopyFrom(place)
        if session is not None:
            session.send(goodbye=goodbye)
        self._log("left", peer=f"terminal {told.terminal}", to=goodbye.destination.station if moves else None)
        self._changed()

    def on_gone(self, session: PeerSession) -> None:
        """Note when a stream ended."""
        self._gone[session.number] = time.monotonic()
        if self._question is not None and not self._question.again:
            self._lose(session.number)
        self._silent.discard(session.number)
        if session.rests:
            self._resting.add(session.number)
        if self.acceptor.sessions.get(session.number) in (None, session):
            self.declined.pop(session.number, None)
        self._news.set()

    # Waiting.

    def _limit(self, question: Question, until: float) -> float:
        """When to stop waiting: at the deadline, or when all who are missing have been gone for a while."""
        missing = question.missing
        if any(t in self.acceptor.sessions for t in missing):
            return until
        return min(until, max(map(self._due, missing)))

    def _due(self, terminal: int, asleep: float = 0.0) -> float:
        """Until when to wait for a terminal that is away: a little, and not at all where it is not let in."""
        if self.acceptor.bars(terminal):
            return 0.0
        return self._gone.get(terminal, self.started) + (asleep if terminal in self._resting else GATHER_S)

    def _heard(self, terminal: int) -> float:
        """When a terminal was heard from, or seen to go, for the last time."""
        session = self.acceptor.sessions.get(terminal)
        return self._gone.get(terminal, self.started) if session is None else session.heard

    async def _hear(self, until: float) -> None:
        """Wait until something happens, or the time has come."""
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    def _send_question(self, terminal: int) -> bool:
        session, question = self.acceptor.sessions.get(terminal), self._question
        if session is None or question is None or question.sent[terminal] >= MOST_SENT:
            return False
        message, kind = _form(question.messages[terminal]), self._memory.station.method.channel.model_dtype
        n_bytes = session.send_message(f"question {question.answer}", message, kind)
        if n_bytes:
            question.sent[terminal] += 1
            question.down[terminal] += framed(n_bytes)
        return bool(n_bytes)

    def _incarnation(self, terminal: int) -> int:
        session = self.acceptor.sessions.get(terminal)
        return 0 if session is None else session.incarnation

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry on with reading; work that needs a turn is done when it comes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("membership", "error", reason=f"{type(error).__name__}: {error}")


def _form(message: Sent) -> wire.TerminalDown:
    if isinstance(message, WorkOrder):
        return wire.TerminalDown(order=codec.to_wire(message))
    return wire.TerminalDown(probe=codec.to_wire(message)) if isinstance(message, Probe) else message


def _norm(values: Vector) -> float:
    """Euclidean norm; infinite where it overflows."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(values))


def checked_tally(given: wire.Tally) -> wire.Tally:
    """How a model does on test rows, if it can be."""
    codec.finite(given.squares, "squared errors")
    counts = codec.array(given.counts, "counts")
    if counts.ndim != 2 or (counts < 0.0).any() or counts.sum() > given.rows or given.squares < 0.0:
        raise PeerError("a tally that cannot be")
    return given


def _declined(given: wire.Declined) -> wire.Declined:
    return wire.Declined(round=given.round, reason=given.reason[:REASON_LENGTH], local_steps=given.local_steps)


_READERS: dict[str, Callable[[Any], Any]] = {"tally": checked_tally, "declined": _declined}
"""What is no message of the roles, and needs a look of its own."""
