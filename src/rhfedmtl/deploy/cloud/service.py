"""The process of the cloud: stations attach to it, operators command it, and trainings run in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from grpc import aio

from rhfedmtl.deploy.cloud.commands import Commands
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.enrolment import Enrolment
from rhfedmtl.deploy.cloud.journal import Answers, TrainingJournal
from rhfedmtl.deploy.cloud.operator_api import OperatorApi
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.station_sessions import StationSessions
from rhfedmtl.deploy.cloud.trainer import Trainer, Training
from rhfedmtl.deploy.node.acceptor import NotReadyError
from rhfedmtl.deploy.node.audit import AUDIT, AuditTrail
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.server import listen, server_options
from rhfedmtl.deploy.node.state import CorruptError
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError

RETRY_S = 0.2


class CloudService:
    """The cloud."""

    def __init__(self, config: CloudConfig, log: Log, meters: Meters) -> None:
        self.config, self._log = config, log
        log.trail = AuditTrail(config.state / AUDIT, config.node.fsync)
        self._credentials = config.credentials()
        self.registry = NodeRegistry.open(config)
        self.stations = StationSessions(config, self.registry, self._welcome, log, meters)
        self.journal = TrainingJournal(
            config.state / "journal",
            self.ask_all,
            asyncio.get_running_loop(),
            fsync=config.node.fsync,
            longest=config.journal_bytes,
        )
        if self.journal.cut:
            reason = f"{self.journal.cut} bytes of an entry that was being written when the cloud ended are taken off"
            log("journal cut", "warning", reason=reason)
        self.trainer = Trainer(
            config, self.journal, self.stations.rosters.memberships, self._wait_until_ready, log, meters
        )
        self.stations.requests.counts_bytes = lambda: "bytes" in self.trainer.measured
        self.stations.excluded = lambda: self.trainer.network.excluded
        self.enrolment = Enrolment(config, self.registry, log)
        parts = config, self.registry, self.stations, self.trainer
        self.commands = Commands(*parts, self.enrolment, log, log.trail)
        self.operator_api = OperatorApi(*parts, self.commands, log, log.trail)
        self._server: Any = None
        self._closed = asyncio.Event()
        self._behind = ""  # why no training can go on, whatever stations answer

    @property
    def healthy(self) -> bool:
        """Whether the training has not broken down."""
        return self.trainer.state is not Training.BROKEN

    async def run(self) -> None:
        """Serve until `close`."""
        # gRPC would end the stream of who sends more without a word of why: it gets to see what is a little too large.
        self._server = aio.server(options=server_options(self.config.limits.connections, 2 * self.stations.largest))
        self._server.add_generic_rpc_handlers((self.stations.handler(), self.operator_api.handler()))
        await listen(self._server, self.config.node.listen, self._credentials.server(), self._log)
        await self._server.start()
        await self.enrolment.open(self._credentials)
        self.trainer.start()
        await self._closed.wait()

    async def close(self) -> None:
        """Drain: stop the training between two requests, and force the journal to disk."""
        self.stations.close()
        self.journal.close()
        if await asyncio.to_thread(self.trainer.join, 10.0):
            self.journal.finish()
        await self.enrolment.close()
        if self._server is not None:
            await self._server.stop(0.5)
        self._closed.set()

    def renew(self) -> None:
        """The server takes new credentials by itself; who has none any more is cut off."""
        self.stations.acceptor.end_expired()

    async def ask_all(self, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Answers of all stations that were asked, in their order; one that does not answer says so.

        Where not one of them is there, or has a terminal for a round, the cloud waits until one is: a training does not
        run through empty rounds, which would only cost.
        """
        while True:
            if self._behind:
                raise CorruptError(self._behind)
            questions = (
                self.stations.requests.ask(b, request, seconds, training=True) for b, request in requests.items()
            )
            found = await asyncio.gather(*questions)
            if self.journal.stopping or not all(answer.away for answer in found):
                return dict(zip(requests, found, strict=True))
            await asyncio.sleep(RETRY_S)

    def _welcome(self, station: int, hello: wire.Hello) -> wire.Welcome:
        """What a station is to know when it comes: if it lost its memory, round zero and anchor as they are now.

        Rounds count up: a station that is behind what it told was put back from an old copy, and begins anew. One that
        is ahead of the journal shows that the cloud was, and then nobody knows what was spent.
        """
        if self.journal.replaying:
            raise NotReadyError("the cloud is still going through its journal: try again")
        network = self.trainer.network
        if hello.round > network.announced:
            reason = (
                f"station {station} has done round {hello.round}, the journal ends with round {network.announced}: the "
                "cloud was put back from an old copy, and what was spent since is not in it. Put back a later copy of "
                "the cloud's state, or begin anew with `rhfedmtl network reset`"
            )
            if not self._behind:
                self._log("journal behind", "error", reason=reason)
            self._behind = reason
            raise PeerError(reason)
        welcome = wire.Welcome(
            protocol=codec.PROTOCOL,
            job=self.config.learning.job(),
            allowed=self.registry.allowed(station),
            revoked=sorted(self.registry.revoked),
        )
        if network.is_behind(station, hello):
            welcome.epoch = hello.epoch
        network.agreed(station).write(welcome)
        if (anchor := network.anchors.get(station)) is not None:
            welcome.anchor.CopyFrom(codec.to_wire(anchor))
        return welcome

    def _wait_until_ready(self, seconds: float, *, members: bool = False) -> list[str]:
        """Wait, in the thread of the training, for all stations and their terminals, but not longer than this."""
        until = time.monotonic() + seconds
        missing = self.stations.awaited = partial(self.stations.missing, members=members)
        while time.monotonic() < until and not self.journal.stopping and missing():
            time.sleep(0.02)
        self.stations.awaited = None
        return missing()
