"""The cloud process: stations connect to it, operators send it commands, and it runs the trainings.

`rhfedmtl serve cloud` starts a `CloudService`, which builds the parts, connects them, and answers the greeting of every
station. It holds no data rows and never connects outwards: stations and operators connect to it.

Theory of operation. Two threads work together:

1. The event loop serves gRPC. `StationSessions` receives every message of the stations, and `OperatorApi` every command
   of an operator.
2. The training thread (`Trainer`) runs the usual training loop. `RemoteNetwork` turns each step of the loop into
   requests to the stations. `TrainingJournal` passes the requests to `CloudService.ask_all` on the event loop, waits,
   and writes the answers to disk before the loop continues.

After a kill, the training thread repeats the training from the journal until it reaches the open request. Only then
does the cloud welcome stations again. `checks` refuses answers that do not fit the request or cannot be true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from grpc import aio

from rhfedmtl.deploy.cloud.commands import Commands
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.enrolment import EnrolmentService
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
    """Builds the parts of the cloud, starts and stops them, and welcomes stations.

    See `StationSessions` for messages of stations, `Commands` for operators, and `Trainer` for trainings.
    """

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
            reason = f"removed {self.journal.cut} bytes of an entry that was incomplete when the cloud ended"
            log("journal cut", "warning", reason=reason)
        self.trainer = Trainer(
            config, self.journal, self.stations.rosters.memberships, self._wait_until_ready, log, meters
        )
        self.stations.requests.counts_bytes = lambda: "bytes" in self.trainer.measured
        self.stations.excluded = lambda: self.trainer.network.excluded
        self.enrolment = EnrolmentService(config, self.registry, log)
        parts = config, self.registry, self.stations, self.trainer
        self.commands = Commands(*parts, self.enrolment, log, log.trail)
        self.operator_api = OperatorApi(*parts, self.commands, log, log.trail)
        self._server: Any = None
        self._closed = asyncio.Event()
        self._behind = ""  # the reason why no training can continue: the journal is older than the stations

    @property
    def healthy(self) -> bool:
        """True unless the training is broken, which only a restart of the cloud can repair."""
        return self.trainer.state is not Training.BROKEN

    async def run(self) -> None:
        """Serve until `close`."""
        # gRPC ends the stream of a too large message without a reason. With twice the limit, slightly too large
        # messages arrive, and `StationSessions` refuses them with a reason.
        self._server = aio.server(options=server_options(self.config.limits.connections, 2 * self.stations.largest))
        self._server.add_generic_rpc_handlers((self.stations.handler(), self.operator_api.handler()))
        await listen(self._server, self.config.node.listen, self._credentials.server(), self._log)
        await self._server.start()
        await self.enrolment.open(self._credentials)
        self.trainer.start()
        await self._closed.wait()

    async def close(self) -> None:
        """Stop the training between two requests, force the journal to disk, and end all streams."""
        self.stations.close()
        self.journal.close()
        if await asyncio.to_thread(self.trainer.join, 10.0):
            self.journal.finish()
        await self.enrolment.close()
        if self._server is not None:
            await self._server.stop(0.5)
        self._closed.set()

    def renew(self) -> None:
        """End the sessions whose certificates have expired; the gRPC server reloads the cloud's own credentials."""
        self.stations.acceptor.end_expired()

    async def ask_all(self, requests: Mapping[int, wire.Request], seconds: float) -> Answers:
        """Send each station its request, and return all answers in the order of the requests.

        A station that does not answer in time gets an answer with ``trouble``. If every station is away, or has no
        terminal for a round, ask again until at least one station works: empty rounds would only cost. A stop of the
        operator ends this wait.

        Parameters
        ----------
        requests : Mapping[int, wire.Request]
            Request of each station, by its number.
        seconds : float
            Time for an answer.
        """
        while True:
            if self._behind:
                raise CorruptError(self._behind)
            questions = (
                self.stations.requests.ask(b, request, seconds, training=True) for b, request in requests.items()
            )
            answers = await asyncio.gather(*questions)
            if self.journal.stopping or not all(answer.away for answer in answers):
                return dict(zip(requests, answers, strict=True))
            await asyncio.sleep(RETRY_S)

    def _welcome(self, station: int, hello: wire.Hello) -> wire.Welcome:
        """Return the greeting of a station: job, members, revocations, and the agreements and anchor of the training.

        Round numbers only grow. A station with a lower number than it reported before was restored from an old copy: it
        receives its epoch back and starts again with empty memory. A station with a higher number than the journal
        shows that the cloud was restored from an old copy. Then the amounts spent are unknown, and no training runs.
        """
        if self.journal.replaying:
            raise NotReadyError("the cloud is still going through its journal: try again")
        network = self.trainer.network
        if hello.round > network.announced:
            reason = (
                f"station {station} has done round {hello.round}, the journal ends with round {network.announced}: the "
                "cloud was put back from an old copy, which lacks the amounts spent since. Put back a later copy of "
                "its state, or start over with `rhfedmtl network reset`"
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
        """Wait in the training thread until all stations and terminals are present; return the missing at the end."""
        until = time.monotonic() + seconds
        missing = self.stations.awaited = partial(self.stations.missing, members=members)
        while time.monotonic() < until and not self.journal.stopping and missing():
            time.sleep(0.02)
        self.stations.awaited = None
        return missing()
