"""The stations of a cloud, as it sees them: what they are asked and answer, who is with them, and who should not be."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc

from rhfedmtl.deploy.cloud.checks import AnswerChecks
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.credentials import STATION
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD
from rhfedmtl.deploy.node.link import Acceptor, PeerSession
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.memory import NOWHERE
from rhfedmtl.deploy.station.questions import MOST_SENT
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.resources.sizes import framed

ROSTER_BYTES = 1 << 20
"""What a station may say of its terminals, beyond what the shapes of models call for."""
QUIET_S = 3.0
"""Stations send a heartbeat every second. After this long without one, `status` lists the station as missing."""
BREAKS = 3
"""After so many broken streams without an answer, `status` shows a fault of the station."""
AT_ONCE = 16
"""Ask a station to let another terminal go only while fewer requests to it are open."""


STOP_S = 8.0
"""After an operator ends a training its requests take this long in all; an open round takes half of it."""


@dataclass
class Pending:
    """A request without an answer; ``news`` wakes the task that waits for it."""

    request: wire.Request
    answer: wire.Answer | None = None
    sent: int = 0
    n_bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> bool:
        """Wait for news, so long at most; return False if nothing happened."""
        self.news.clear()
        try:
            await asyncio.wait_for(self.news.wait(), seconds)
        except TimeoutError:
            return False
        return True


class StationSessions:
    """Sessions with the stations of a network. ``welcome`` says what a station is to know when it comes."""

    def __init__(
        self,
        config: CloudConfig,
        registry: NodeRegistry,
        welcome: Callable[[int, wire.Hello], wire.Welcome],
        log: Log,
        meters: Meters,
    ) -> None:
        self._config, self._registry, self._welcome = config, registry, welcome
        self._log, self._meters = log, meters
        self.acceptor = Acceptor(STATION_TO_CLOUD, config.node.network, STATION, config.limits, log, meters)
        self.acceptor.revoke(registry.revoked)
        self._ids = itertools.count(secrets.randbits(31) << 32)
        self._pending: dict[int, dict[int, Pending]] = {b: {} for b in range(len(config.stations))}
        self._heard = dict.fromkeys(self._pending, time.monotonic())
        # Seconds since the last answer of a station to each kind of request; no reconnection renews them.
        self._waited: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._owed: dict[int, wire.Request] = {}  # the last request of a station that used up the patience
        self._stop_at = math.inf
        self._asked: dict[int, dict[tuple[int, int], float]] = {b: {} for b in self._pending}
        self._tasks: set[asyncio.Task[wire.Answer]] = set()
        self._absent: set[int] = set()
        self._broke = dict.fromkeys(self._pending, 0)  # streams, since the last answer
        self.faults: dict[int, str] = {}
        """What is wrong with a station, until it answers what it is asked."""
        self.awaited: Callable[[], list[str]] | None = None  # who is to be there before a training goes on
        self.counts_bytes: Callable[[], bool] = lambda: True  # whether bytes are measured
        self.excluded: Callable[[], Iterable[int]] = tuple  # stations that take no part
        self.outlooks: dict[int, wire.Outlook] = {}
        self._kind = config.learning.channel.model_dtype
        job, limits = config.learning.job(), config.limits
        self.largest = jobs.message_limit(job, method_of(job), limits) + ROSTER_BYTES
        self._checker = AnswerChecks(job, limits, config.waits.patience)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for stations."""
        return self.acceptor.handler(self.greet, self.receive, self._on_gone)

    def close(self) -> None:
        """Ask nothing more, and tell the stations."""
        for task in self._tasks:
            task.cancel()
        for session in list(self.acceptor.sessions.values()):
            session.send(drain=wire.Nothing())

    # What they are asked.

    async def ask(self, station: int, request: wire.Request, seconds: float, *, training: bool = False) -> wire.Answer:
        """Answer of one station; the request is sent again where it may have got lost.

        Stations send a heartbeat every second. The cloud neither asks nor waits for a station that was silent for
        longer than its patience, or that may not connect after a refusal. Between two answers to requests of a kind it
        waits ``seconds`` in all: a new connection does not start them again. Then the station gets a single request,
        which it may answer late. A stop of the operator cuts requests of a ``training`` short.
        """
        request.id = next(self._ids)
        pending = Pending(request)
        self._pending[station][request.id] = pending
        kind = station, _name(request)
        until = pending.began + max(0.0, seconds - self._waited[kind])
        in_time = self._left(station, until, request, training) > 0.0
        owes = station in self._owed or pending.began >= self._ends(request, training)
        if in_time or not (owes or self._is_away(station)):
            self._deliver(station, pending)
        try:
            while pending.answer is None and (left := self._left(station, until, request, training)) > 0.0:
                if not await pending.wait(min(left, self._config.waits.again)):
                    self._deliver(station, pending)
        finally:
            del self._pending[station][request.id]
        answer = pending.answer
        if answer is None:
            self._waited[kind] += time.monotonic() - pending.began
            if pending.sent and self._waited[kind] >= seconds:
                self._owed[station] = request
            answer = self._silence(station, pending)
        answer.seconds = time.monotonic() - pending.began
        answer.bytes_down = pending.n_bytes
        if answer.away and station not in self._absent:  # of one that stays away, it is said once
            self._log("no answer", "warning", reason=answer.trouble)
        (self._absent.add if answer.away else self._absent.discard)(station)
        if not self._absent:
            self._log.over("no answer")
        return answer

    def _is_away(self, station: int) -> bool:
        """Return True for a station that may not connect, or was silent for longer than the cloud has patience."""
        return self.acceptor.bars(station) or self.quiet(station) >= self._config.waits.patience

    def _left(self, station: int, until: float, request: wire.Request, training: bool) -> float:
        """Seconds for which to wait for a station."""
        if self.acceptor.bars(station):
            return 0.0
        silent = self._heard[station] + self._config.waits.patience
        return min(until, silent, self._ends(request, training)) - time.monotonic()

    def _ends(self, request: wire.Request, training: bool) -> float:
        """Time at which an operator's stop ends a request."""
        if not training:
            return math.inf
        return self._stop_at + (0.5 if request.HasField("round") else 1.0) * STOP_S

    def stop(self) -> None:
        """Cut requests of the training short, because an operator ends it."""
        self._stop_at = min(self._stop_at, time.monotonic())
        for b in self._pending:
            self._wake(b)

    def go_on(self) -> None:
        """Let requests of a training take their time again."""
        self._stop_at = math.inf

    def _wake(self, station: int) -> None:
        for pending in self._pending[station].values():
            pending.news.set()

    def _deliver(self, station: int, pending: Pending) -> None:
        """Send a request, or send it again; where bytes are measured, only once again."""
        session = self.acceptor.sessions.get(station)
        spent = pending.sent >= MOST_SENT and self.counts_bytes()
        if session is None or spent:
            return
        message = wire.StationDown(request=pending.request)
        if n_bytes := session.send_message(_name(pending.request), message, self._kind):
            pending.sent += 1
            pending.n_bytes += framed(n_bytes)

    def _silence(self, station: int, pending: Pending) -> wire.Answer:
        fault = f": {self.fault(station)}" if self.fault(station) else ""
        if pending.sent == 0:
            return wire.Answer(trouble=f"station {station} is away{fault}", away=True)
        self._log("no answer", "warning", reason=f"station {station} does not answer{fault}")
        return wire.Answer(trouble=f"station {station} does not answer{fault}")

    # What stations say.

    def greet(self, session: PeerSession, hello: wire.Hello) -> wire.Welcome:
        """Answer a station that says hello."""
        b = session.number
        if b not in self._pending:
            raise PeerError(f"there is no station {b}: there are {len(self._pending)}, from 0")
        welcome = self._welcome(b, hello)
        self._owed.pop(b, None)  # its last stream may have lost the request
        if len({b, *self.acceptor.sessions}) == len(self._pending):
            self._log.over("station gone")
        asyncio.get_running_loop().call_soon(self._catch_up, session)
        return welcome

    def _catch_up(self, session: PeerSession) -> None:
        if self.acceptor.sessions.get(session.number) is session:
            for pending in list(self._pending[session.number].values()):
                self._deliver(session.number, pending)

    async def receive(self, session: PeerSession, data: bytes) -> None:
        """Take a message of a station; what is wrong with one is told of the station until it does better."""
        try:
            if len(data) > self.largest:
                raise PeerError(f"a message of {len(data)} bytes: {self.largest} are the most")
            self._take(session, data)
        except PeerError as error:
            self._blame(session.number, f"refused: {error}")
            self.acceptor.bar(session.number)
            self._wake(session.number)
            raise

    def fault(self, station: int) -> str:
        """Return the last wrong answer of a station, or the reason of its refusal; empty if it works."""
        return self.faults.get(station) or self.acceptor.refusals.get(station, "")

    def _blame(self, station: int, fault: str) -> None:
        if self.faults.get(station) != fault:
            self._log.seldom("fault", "warning", peer=f"station {station}", reason=f"station {station}: {fault}")
        self.faults[station] = fault

    def _take(self, session: PeerSession, data: bytes) -> None:
        """How a station stands, or an answer, checked against what it was asked."""
        b = session.number
        name, content, _ = session.read(data)
        self._meters.messages.labels("up", name).inc()
        self._heard[b] = time.monotonic()
        if name == "outlook":
            self._checker.roster(b, content.roster, self._registry.station)
            self._strike(b, content.roster)
            self._note_members(b, content.roster)
            self.outlooks[b] = content
            arrived = self._registry.arrived(b, (seat.terminal for seat in content.roster.seats))
            if self._heed_owners(b) or arrived:
                self.tell_access()
            self._straighten(b)
            return
        pending, owed = self._pending[b].get(content.id), self._owed.get(b)
        if pending is None and owed is not None and owed.id == content.id:  # late, but an answer
            pending = Pending(owed)
        if pending is not None and pending.answer is None:
            self._checker.answer(b, pending.request, content, self._registry.station)
            if owed is not None and owed.id == content.id:
                del self._owed[b]
            self._waited[b, _name(pending.request)] = 0.0
            self._strike(b, content.roster)
            if b in self.outlooks:  # which come every second, and rounds faster
                self.outlooks[b].round = max(self.outlooks[b].round, content.round.round)
            content.bytes_up = framed(len(data))
            content.away &= pending.request.HasField("round") and not content.HasField("round")
            self._broke[b] = 0
            if not content.trouble:
                self.faults.pop(b, None)
                if not self.faults:
                    self._log.over("fault")
            elif not content.away:
                self._blame(b, f"it answers {_name(pending.request)} with: {content.trouble}")
            pending.answer = content
            pending.news.set()

    def _note_members(self, station: int, roster: wire.Roster) -> None:
        """Say who has become a member of a station since it told last, who is one no more, and who is kept out."""
        old = self.outlooks.get(station, wire.Outlook()).roster
        before, now = ({(s.terminal, s.incarnation) for s in each.seats} for each in (old, roster))
        joined, gone = ([t for t, _ in sorted(some)] for some in (now - before, before - now))
        if joined or gone:
            self._log("members", peer=f"station {station}", joined=joined, gone=gone)
        for t in sorted({*roster.quarantined} - {*old.quarantined}):
            self._log("quarantined", "warning", peer=f"terminal {t}", reason=roster.quarantined[t], station=station)
        others = [outlook for b, outlook in self.outlooks.items() if b != station]
        if not any(each.quarantined for each in (roster, *(outlook.roster for outlook in others))):
            self._log.over("quarantined")

    def _heed_owners(self, station: int) -> bool:
        """Let those belong to no station any more whose owners withdraw them; whether there are any."""
        seats = self.outlooks[station].roster.seats
        leave = [s.terminal for s in seats if s.withdraws and self._registry.station.get(s.terminal) == station]
        for terminal in leave:
            self._log("withdrawn", "warning", reason=f"the owner of terminal {terminal} takes it out of the network")
            self._registry.place(terminal, -1)
        return bool(leave)

    def _strike(self, station: int, roster: wire.Roster) -> None:
        """Strike out members that are with another station, where they belong: nobody else can claim them."""
        kept = [seat for seat in roster.seats if not self._is_elsewhere(station, seat.terminal)]
        if len(kept) < len(roster.seats):
            del roster.seats[:]
            roster.seats.extend(kept)

    def _is_elsewhere(self, station: int, terminal: int) -> bool:
        home = self._registry.station.get(terminal, -1)
        there = self.outlooks.get(home, wire.Outlook()).roster.seats if home != station else ()
        return any(seat.terminal == terminal for seat in there)

    def _on_gone(self, session: PeerSession) -> None:
        b = session.number
        self._broke[b] += bool(self._pending[b])
        if self._broke[b] >= BREAKS and not self.acceptor.bars(b):
            more = f"its disk is full, a bad link, or messages above {self.largest} bytes"
            self._blame(b, f"its stream broke {self._broke[b]} times before it answered ({more})")
        self._log("station gone", "warning", reason=session.reason or "connection lost", station=session.number)

    def tell_access(self) -> None:
        """Tell all stations who may join, and whose credentials are revoked."""
        self.acceptor.revoke(self._registry.revoked)
        for b, session in list(self.acceptor.sessions.items()):
            access = wire.Access(allowed=self._registry.allowed(b), revoked=sorted(self._registry.revoked))
            session.send(access=access)

    def _straighten(self, station: int) -> None:
        """Ask a station to let go whom the registry has elsewhere, and again where nothing has come of it for a while.

        Only some at once, those first that were not asked for yet: more would fill the queue of a station's messages.
        """
        seats = self.outlooks[station].roster.seats
        moves = [(seat.terminal, self._registry.station.get(seat.terminal, -1)) for seat in seats]
        asked = {move: self._asked[station].get(move, -math.inf) for move in moves if move[1] != station}
        now, room = time.monotonic(), max(0, AT_ONCE - len(self._pending[station]))
        due = [move for move, at in asked.items() if at + self._config.waits.again <= now]
        for move in sorted(due, key=lambda each: asked[each])[:room]:
            asked[move] = now
            self._let_go(station, *move)
        self._asked[station] = asked

    def _let_go(self, station: int, terminal: int, home: int) -> None:
        place = wire.Place(station=NOWHERE if home < 0 else home, address=self._registry.address.get(home, ""))
        request = wire.Request(transfer=wire.Transfer(terminal=terminal, destination=place))
        task = asyncio.create_task(self.ask(station, request, self._config.waits.answer))
        self._tasks.add(task)
        task.add_done_callback(self._let_gone)

    def _let_gone(self, task: asyncio.Task[wire.Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("no answer", "warning", reason=f"{type(error).__name__}: {error}")

    def station_of(self, terminal: int) -> int:
        """Station that has a terminal as a member, as it told last; −1 where none has."""
        return next(
            (b for b, o in self.outlooks.items() if any(seat.terminal == terminal for seat in o.roster.seats)), -1
        )

    def members(self, station: int) -> list[int]:
        """Members of a station, as it told last."""
        return [seat.terminal for seat in self.outlooks.get(station, wire.Outlook()).roster.seats]

    def group(self, terminal: int) -> list[int]:
        """All who count together with a terminal in masked sums, as its station told last."""
        seats = (seat for o in self.outlooks.values() for seat in o.roster.seats if seat.terminal == terminal)
        return list(next(seats, wire.Seat()).group)

    def memberships(self) -> dict[int, int]:
        """How often the members of each station have changed, as it told last."""
        return {b: outlook.membership for b, outlook in sorted(self.outlooks.items())}

    def waited_for(self) -> list[str]:
        """Whom a training waits for now, in words: those that are to be there first, or that owe an answer."""
        if (awaited := self.awaited) is not None:
            return awaited()
        return [self._stands(b) for b in self._pending if self._is_waited_for(b)]

    def quiet(self, station: int) -> float:
        """Seconds since the last word of a station."""
        return time.monotonic() - self._heard[station]

    def _is_waited_for(self, station: int) -> bool:
        away = station not in self.acceptor.sessions or self.quiet(station) > QUIET_S
        owes = bool(self._pending[station]) and (away or self._broke[station] >= BREAKS)
        return owes or len(self._absent) == len(self._pending)

    def _stands(self, station: int) -> str:
        fault = self.fault(station)
        if station not in self.acceptor.sessions:
            return f"station {station} (not connected{f'; {fault}' if fault else ''})"
        quiet = self.quiet(station)
        if fault and quiet <= QUIET_S:
            return f"station {station} ({fault})"
        return f"station {station} ({f'silent for {quiet:.0f} s' if quiet > QUIET_S else 'none of its terminals'})"

    def missing(self, *, members: bool = False) -> list[str]:
        """Stations that are not connected, and terminals that are expected, or ``members``, and not there."""
        words = []
        for b in self._pending.keys() - set(self.excluded()):
            roster = self.outlooks.get(b, wire.Outlook()).roster
            here = {seat.terminal for seat in roster.seats if seat.connected}
            if b not in self.acceptor.sessions:
                words.append(self._stands(b))
            else:
                excused = {*roster.quarantined, *roster.declined}
                wanted = {seat.terminal for seat in roster.seats} if members else self._registry.expected(b)
                words += [f"terminal {t}" for t in sorted(wanted - here - excused)]
                words += [] if here else [f"station {b} (none of its terminals)"]
        return words


def _name(request: wire.Request) -> str:
    return f"request {request.WhichOneof('body')}"
