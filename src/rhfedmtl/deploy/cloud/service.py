"""The process of the cloud: stations attach to it, operators command it, and trainings run in it."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio

from rhfedmtl.deploy.cloud.checks import AnswerChecks
from rhfedmtl.deploy.cloud.journal import Answers, TrainingJournal
from rhfedmtl.deploy.cloud.operator_api import OperatorApi
from rhfedmtl.deploy.cloud.registry import Registry
from rhfedmtl.deploy.cloud.trainer import Trainer
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import CloudConfig, credentials_of
from rhfedmtl.deploy.node.credentials import STATION
from rhfedmtl.deploy.node.link import Acceptor, NotReadyError, PeerSession, listen, server_options
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.memory import NOWHERE
from rhfedmtl.deploy.station.terminal_sessions import MOST_SENT
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import Scaling

MESSAGE_BYTES = 1 << 28
RETRY_S = 0.2
AT_ONCE = 16
"""Requests to a station that are open before it is asked to let one more terminal go."""


@dataclass
class Pending:
    """A request that has not been answered."""

    request: wire.Request
    data: bytes
    answer: asyncio.Future[wire.Answer]
    sent: int = 0
    began: float = field(default_factory=time.monotonic)


class CloudService:
    """The cloud."""

    def __init__(self, config: CloudConfig, log: Log, meters: Meters) -> None:
        self.config, self._log, self._meters = config, log, meters
        self._credentials = credentials_of(config.node, config.folder)
        self.registry = Registry.open(config)
        self.acceptor = Acceptor(config.node.network, STATION, config.limits, log, meters)
        self.acceptor.revoke(self.registry.revoked)
        self._ids = itertools.count(secrets.randbits(31) << 32)
        self._pending: dict[int, dict[int, Pending]] = {b: {} for b in range(len(config.stations))}
        self._heard = dict.fromkeys(self._pending, time.monotonic())
        self._asked: dict[int, dict[tuple[int, int], float]] = {b: {} for b in self._pending}
        self._tasks: set[asyncio.Task[wire.Answer]] = set()
        self._absent: set[int] = set()
        self.outlooks: dict[int, wire.Outlook] = {}
        self._job = jobs.job_of(config.learning)
        self._checker = AnswerChecks(self._job, config.limits, config.waits.patience)
        self._server: Any = None
        self._closed = asyncio.Event()
        self._operator_api = OperatorApi(self)
        journal = Path(config.folder, config.node.state, "journal")
        self.journal = TrainingJournal(
            journal, self.ask_all, asyncio.get_running_loop(), fsync=config.node.fsync, longest=config.journal_bytes
        )
        self.trainer = Trainer(config, self.journal, self._memberships, self._wait_until_ready, log, meters)

    @property
    def healthy(self) -> bool:
        """Whether the training has not broken down."""
        return bool(self.trainer.status["state"] != "broken")

    async def run(self) -> None:
        """Serve until `close`."""
        limit = self.config.limits.message_bytes or MESSAGE_BYTES
        self._server = aio.server(options=server_options(limit))
        stations = self.acceptor.handler("Cloud", _first, _refusal, self._greet, self._receive, self._on_gone)
        self._server.add_generic_rpc_handlers((stations, self._operator_api.control()))
        listen(self._server, self.config.node.listen, self._credentials.server())
        await self._server.start()
        await self._operator_api.open(self._credentials)
        self.trainer.start()
        await self._closed.wait()

    async def close(self) -> None:
        """Drain: stop the training between two requests, and force the journal to disk."""
        for task in self._tasks:
            task.cancel()
        self.journal.close()
        if await asyncio.to_thread(self.trainer.join, 10.0):
            self.journal.finish()
        for session in list(self.acceptor.sessions.values()):
            session.send(wire.StationDown(drain=wire.Nothing()).SerializeToString())
        await self._operator_api.close()
        if self._server is not None:
            await self._server.stop(0.5)
        self._closed.set()

    def renew(self) -> None:
        """The server takes new credentials by itself."""

    # Requests to stations.

    async def ask_all(self, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Answers of all stations that were asked, in their order; one that does not answer says so.

        Where not one of them is there, or has a terminal for a round, the cloud waits until one is: a training does not
        run through empty rounds, which would only cost.
        """
        while True:
            found = await asyncio.gather(*(self.ask(b, request, seconds) for b, request in requests.items()))
            if self.journal.stopping or not all(answer.away for answer in found):
                return dict(zip(requests, found, strict=True))
            await asyncio.sleep(RETRY_S)

    async def ask(self, station: int, request: wire.Request, seconds: float) -> wire.Answer:
        """Answer of one station; the request is sent again where it may have got lost.

        Stations tell every second how they stand: one that has been silent for longer than the cloud has patience is
        away, and is neither asked nor waited for.
        """
        request.id = next(self._ids)
        data = wire.StationDown(request=request).SerializeToString()
        pending = Pending(request, data, asyncio.get_running_loop().create_future())
        self._pending[station][request.id] = pending
        until = pending.began + seconds
        if self._left(station, until) > 0.0:
            self._deliver(station, pending)
        try:
            while not pending.answer.done() and (left := self._left(station, until)) > 0.0:
                done, _ = await asyncio.wait([pending.answer], timeout=min(left, self.config.waits.again))
                if not done:
                    self._deliver(station, pending)
            answer = pending.answer.result() if pending.answer.done() else self._silence(station, pending)
        finally:
            del self._pending[station][request.id]
        answer.seconds = time.monotonic() - pending.began
        answer.bytes_down = len(data) * pending.sent
        if answer.away and station not in self._absent:  # of one that stays away, it is said once
            self._log("no answer", "warning", reason=answer.trouble)
        (self._absent.add if answer.away else self._absent.discard)(station)
        return answer

    def _left(self, station: int, until: float) -> float:
        """How much longer to wait for a station."""
        return min(until, self._heard[station] + self.config.waits.patience) - time.monotonic()

    def _deliver(self, station: int, pending: Pending) -> None:
        """Send a request, or send it again; where bytes are measured, only once again."""
        session = self.acceptor.sessions.get(station)
        spent = pending.sent >= MOST_SENT and "bytes" in self.config.resources.measured
        if session is not None and not spent and session.send(pending.data):
            pending.sent += 1

    def _silence(self, station: int, pending: Pending) -> wire.Answer:
        if pending.sent == 0:
            return wire.Answer(trouble=f"station {station} is away", away=True)
        self._log("no answer", "warning", reason=f"station {station} does not answer")
        return wire.Answer(trouble=f"station {station} does not answer")

    # Stations.

    async def _greet(self, session: PeerSession, hello: wire.Hello) -> bytes:
        b, scalers, anchor = session.number, self.trainer.scaling, self.trainer.anchor(session.number)
        if b not in self._pending:
            raise PeerError(f"there is no station {b}: there are {len(self._pending)}, from 0")
        if self.journal.replaying:  # a station that lost its memory needs scaling and anchor as they are now
            raise NotReadyError("the cloud is still going through its journal: try again")
        welcome = wire.Welcome(
            protocol=codec.PROTOCOL,
            job=self._job,
            allowed=self.registry.allowed(b),
            revoked=sorted(self.registry.revoked),
        )
        self._heard[b] = time.monotonic()
        if scalers is not None:
            welcome.scaling.CopyFrom(codec.scaling_out(Scaling.of(scalers[b])))
        if anchor is not None:
            welcome.anchor.CopyFrom(codec.anchor_out(anchor))
        asyncio.get_running_loop().call_soon(self._catch_up, session)
        return wire.StationDown(welcome=welcome).SerializeToString()

    def _catch_up(self, session: PeerSession) -> None:
        if self.acceptor.sessions.get(session.number) is session:
            for pending in list(self._pending[session.number].values()):
                self._deliver(session.number, pending)

    async def _receive(self, session: PeerSession, data: bytes) -> None:
        b = session.number
        name, content = codec.body(codec.parse(wire.StationUp, data))
        self._meters.messages.labels("up", name).inc()
        self._heard[b] = time.monotonic()
        if name == "outlook":
            self._checker.roster(content.roster, self.registry.station)
            self._strike(b, content.roster)
            self.outlooks[b] = content
            if self.registry.arrived(b, (seat.terminal for seat in content.roster.seats)):
                self.tell_standing()
            self._straighten(b)
        elif name == "answer":
            pending = self._pending[b].get(content.id)
            if pending is not None and not pending.answer.done():
                self._checker.answer(b, pending.request, content, self.registry.station)
                self._strike(b, content.roster)
                content.bytes_up = len(data)
                content.away &= pending.request.HasField("round") and not content.HasField("round")
                pending.answer.set_result(content)
        else:
            raise PeerError("a second hello")

    def _strike(self, station: int, roster: wire.Roster) -> None:
        """Strike out members that are with another station, where they belong: nobody else can claim them."""
        kept = [seat for seat in roster.seats if not self._is_elsewhere(station, seat.terminal)]
        if len(kept) < len(roster.seats):
            del roster.seats[:]
            roster.seats.extend(kept)

    def _is_elsewhere(self, station: int, terminal: int) -> bool:
        home = self.registry.station.get(terminal, -1)
        there = self.outlooks.get(home, wire.Outlook()).roster.seats if home != station else ()
        return any(seat.terminal == terminal for seat in there)

    def _on_gone(self, session: PeerSession) -> None:
        self._log("station gone", "warning", reason=session.reason or "connection lost", station=session.number)

    def tell_standing(self) -> None:
        """Tell all stations who may join, and whose credentials are revoked."""
        self.acceptor.revoke(self.registry.revoked)
        for b, session in list(self.acceptor.sessions.items()):
            access = wire.Access(allowed=self.registry.allowed(b), revoked=sorted(self.registry.revoked))
            session.send(wire.StationDown(access=access).SerializeToString())

    def _straighten(self, station: int) -> None:
        """Ask a station to let go whom the registry has elsewhere, and again where nothing has come of it for a while.

        Only some at once, those first that were not asked for yet: more would fill the queue of a station's messages.
        """
        seats = self.outlooks[station].roster.seats
        moves = [(seat.terminal, self.registry.station.get(seat.terminal, -1)) for seat in seats]
        asked = {move: self._asked[station].get(move, -math.inf) for move in moves if move[1] != station}
        now, room = time.monotonic(), max(0, AT_ONCE - len(self._pending[station]))
        due = [move for move, at in asked.items() if at + self.config.waits.again <= now]
        for move in sorted(due, key=lambda each: asked[each])[:room]:
            asked[move] = now
            self._let_go(station, *move)
        self._asked[station] = asked

    def _let_go(self, station: int, terminal: int, home: int) -> None:
        place = wire.Place(station=NOWHERE if home < 0 else home, address=self.registry.address.get(home, ""))
        request = wire.Request(transfer=wire.Transfer(terminal=terminal, destination=place))
        task = asyncio.create_task(self.ask(station, request, self.config.waits.answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def station_of(self, terminal: int) -> int:
        """Station that has a terminal as a member, as it told last; −1 where none has."""
        return next(
            (b for b, o in self.outlooks.items() if any(seat.terminal == terminal for seat in o.roster.seats)), -1
        )

    def _memberships(self) -> dict[int, int]:
        return {b: outlook.membership for b, outlook in sorted(self.outlooks.items())}

    def _wait_until_ready(self, seconds: float) -> None:
        """Wait, in the thread of the training, for all stations and their terminals, but not longer than this."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.journal.stopping and not self._complete():
            time.sleep(0.02)

    def _complete(self) -> bool:
        for b in self._pending:
            here = {seat.terminal for seat in self.outlooks.get(b, wire.Outlook()).roster.seats if seat.connected}
            if b not in self.acceptor.sessions or not here or self.registry.expected(b) - here:
                return False
        return True


def _first(data: bytes) -> wire.Hello:
    name, content = codec.body(codec.parse(wire.StationUp, data))
    if name != "hello":
        raise PeerError(f"{name} before hello")
    return content  # type: ignore[no-any-return]


def _refusal(refusal: wire.Refusal) -> bytes:
    return wire.StationDown(refusal=refusal).SerializeToString()
