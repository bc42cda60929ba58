"""Streams of the cloud's stations: answer the greeting, check every message, and pass it on.

The gRPC acceptor calls `StationSessions` for each stream and message. Answers go to `StationRequests`, outlooks to
`Rosters`, both after a check by `AnswerChecks`. A station that sends something wrong is barred for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import grpc

from rhfedmtl.deploy.cloud.checks import AnswerChecks
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.rosters import Rosters
from rhfedmtl.deploy.cloud.station_requests import StationRequests
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.acceptor import Acceptor, PeerSession
from rhfedmtl.deploy.node.credentials import STATION
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.resources.sizes import framed

ROSTER_BYTES = 1 << 20
"""Bytes of a station's message for its terminals, in addition to the bytes of the models."""


class StationSessions:
    """Receives and checks all messages of the stations of a network; ``welcome`` makes the answer to a greeting.

    It never asks a station: `StationRequests` does.
    """

    def __init__(
        self,
        config: CloudConfig,
        registry: NodeRegistry,
        welcome: Callable[[int, wire.Hello], wire.Welcome],
        log: Log,
        meters: Meters,
    ) -> None:
        self._registry, self._welcome, self._log, self._meters = registry, welcome, log, meters
        self._n_stations = len(config.stations)
        self.acceptor = Acceptor(STATION_TO_CLOUD, config.node.network, STATION, config.limits, log, meters)
        self.acceptor.revoke(registry.revoked)
        self.requests = StationRequests(config, self.acceptor, log)
        self.rosters = Rosters(config, registry, self.acceptor, self.requests, log)
        self.awaited: Callable[[], list[str]] | None = None
        """Returns the missing nodes for which a training waits; None while it does not wait for nodes."""
        self.excluded: Callable[[], Iterable[int]] = tuple
        """Returns the stations that take no part."""
        job, limits = config.learning.job(), config.limits
        self.largest = jobs.message_limit(job, method_of(job), limits) + ROSTER_BYTES
        self._checker = AnswerChecks(job, limits, config.waits.patience)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC service for stations."""
        return self.acceptor.handler(self.greet, self.receive, self.on_gone)

    def close(self) -> None:
        """Cancel all requests, and tell the stations that the cloud goes away."""
        for task in self.rosters.tasks:
            task.cancel()
        for session in list(self.acceptor.sessions.values()):
            session.send(drain=wire.Nothing())

    def greet(self, session: PeerSession, hello: wire.Hello) -> wire.Welcome:
        """Answer the hello of a station."""
        b = session.number
        if b not in range(self._n_stations):
            raise PeerError(f"there is no station {b}: there are {self._n_stations}, from 0")
        welcome = self._welcome(b, hello)
        self.requests.forgive(b)
        if len({b, *self.acceptor.sessions}) == self._n_stations:
            self._log.over("station gone")

        def catch_up() -> None:
            if self.acceptor.sessions.get(b) is session:
                self.requests.deliver_again(b)

        asyncio.get_running_loop().call_soon(catch_up)
        return welcome

    async def receive(self, session: PeerSession, data: bytes) -> None:
        """Take a message of a station; a wrong message stays its fault until its next good answer."""
        try:
            if len(data) > self.largest:
                raise PeerError(f"a message of {len(data)} bytes: {self.largest} are the most")
            self._take(session, data)
        except PeerError as error:
            self.requests.blame(session.number, f"refused: {error}")
            self.acceptor.bar(session.number)
            self.requests.wake(session.number)
            raise

    def _take(self, session: PeerSession, data: bytes) -> None:
        """Check and pass on an outlook, or an answer to an open request."""
        b = session.number
        name, content, _ = session.read(data)
        self._meters.messages.labels("up", name).inc()
        self.requests.heard[b] = time.monotonic()
        if name == "outlook":
            self._checker.roster(b, content.roster, self._registry.station)
            self.rosters.hear(b, content)
        elif (pending := self.requests.find(b, content)) is not None:
            self._checker.answer(b, pending.request, content, self._registry.station)
            self.rosters.hear_round(b, content)
            content.bytes_up = framed(len(data))
            self.requests.take(b, pending, content)

    def on_gone(self, session: PeerSession) -> None:
        """Note that a stream has ended."""
        self.requests.note_break(session.number, self.largest)
        self._log("station gone", "warning", reason=session.reason or "connection lost", station=session.number)

    def waited_for(self) -> list[str]:
        """Return the nodes for which a training waits now, in words: for their presence, or for an answer."""
        return self.requests.waited_for() if self.awaited is None else self.awaited()

    def missing(self, *, members: bool = False) -> list[str]:
        """Return the stations that are not connected, and the expected terminals, or ``members``, that are absent."""
        words = []
        for b in sorted(set(range(self._n_stations)) - set(self.excluded())):
            roster = self.rosters.outlooks.get(b, wire.Outlook()).roster
            present = {seat.terminal for seat in roster.seats if seat.connected}
            if b not in self.acceptor.sessions:
                words.append(self.requests.stands(b))
            else:
                excused = {*roster.quarantined, *roster.declined}
                expected = {seat.terminal for seat in roster.seats} if members else self._registry.expected(b)
                words += [f"terminal {t}" for t in sorted(expected - present - excused)]
                words += [] if present else [f"station {b} (none of its terminals)"]
        return words
