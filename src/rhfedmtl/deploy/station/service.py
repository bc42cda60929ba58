"""The process of a base station: `StationService` connects its terminals, its role and the cloud.

`serve` runs it. The role (`rhfedmtl.roles.station`) computes and decides; the service moves messages, and saves the
state of the role before another node hears of a change.

Theory of operation. Four activities run at the same time:

1. Terminals attach to the gRPC server. `TerminalSessions` greets them and checks every message. Wishes to join or leave
   go to `Membership`, and answers go to the present question of `Questions`.
2. `Uplink` keeps the stream to the cloud. The welcome brings the job; requests go into the queue of `Requests`.
3. `Requests.work` carries out a request at a time: a round, a certificate, a step of round zero, a transfer.
4. `Heartbeat` tells the cloud every second, and after each change, who the members are.

The lock ``memory.turn`` orders them. A round holds it from its orders to its merge, and every change of the members
takes it too, so the members never change within a round. After a restart, `Memory` restores role and open round. If its
file is damaged or old, the station starts a new epoch without members, and its terminals join again with their duals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from grpc import aio

from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.audit import AUDIT, AuditTrail
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.credentials import CLOUD, Identity
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD
from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.server import listen, server_options
from rhfedmtl.deploy.station.heartbeat import HEARTBEAT_S, Heartbeat
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.requests import Requests
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import wire_pb2 as wire

MESSAGE_BYTES = 1 << 26


class StationService:
    """The process of a base station: its server for terminals, its link to the cloud, and the tasks in between.

    Parameters
    ----------
    config : StationConfig
        Configuration of the station.
    log, meters : Log, Meters
        Log and metrics of the process.
    """

    def __init__(self, config: StationConfig, log: Log, meters: Meters) -> None:
        self.config, self._log = config, log
        log.trail = AuditTrail(config.state / AUDIT, config.node.fsync)
        self._credentials = config.credentials()
        self.memory = Memory(config, log, meters)
        self._news = asyncio.Event()
        self.members = TerminalSessions(config, self.memory, self._news.set, log, meters)
        self.members.heed_access()

        async def handle(name: str, content: Any) -> None:
            await self.handlers[name](content)

        self.link = Uplink(STATION_TO_CLOUD, self._credentials, self.hello, handle, log, meters, MESSAGE_BYTES)
        self.heartbeat = Heartbeat(self.memory, self.members, self.link, self._news, log)
        self.requests = Requests(config, self.memory, self.members, self.heartbeat, self.link, log, meters)
        self.handlers: Mapping[str, Callable[[Any], Awaitable[None]]] = {
            "welcome": self._on_welcome,
            "access": self.heed_access,
            "request": self.requests.put,
        }
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def healthy(self) -> bool:
        """Return True if there is a stream to the cloud."""
        return self.link.connected

    async def run(self) -> None:
        """Serve until `close`."""
        job, limits = self.memory.job, self.config.limits
        default = limits.message_bytes or MESSAGE_BYTES
        largest = default if job is None else jobs.message_limit(job, method_of(job), limits)
        self._server = aio.server(options=server_options(limits.connections, largest, self.config.waits.link))
        self._server.add_generic_rpc_handlers((self.members.handler(),))
        await listen(self._server, self.config.node.listen, self._credentials.server(), self._log)
        await self._server.start()
        above = Identity(self.config.node.network, CLOUD)
        link = self.link.run(lambda: (above, self.config.cloud))
        work = [self.requests.work(), self.heartbeat.beat()]
        if self.config.waits.forget > 0.0:
            work.append(self._forget_silent(self.config.waits.forget))
        self._tasks = [asyncio.create_task(task) for task in (link, *work)]
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        errors = [error for task in done if not task.cancelled() and (error := task.exception()) is not None]
        if errors:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            raise errors[0]

    async def close(self) -> None:
        """Drain: finish the present request, send a drain to the terminals, save the state."""
        attendance = self.members.attendance
        async with self.memory.turn:
            for task in self._tasks[1:]:
                task.cancel()
            for t in list(attendance.acceptor.sessions):
                attendance.tell(t, drain=wire.Nothing())
            self.memory.save(fsync=True)
        await self.link.close()
        if self._server is not None:
            await self._server.stop(0.5)

    def renew(self) -> None:
        """Reconnect if the credentials have changed; the server loads new credentials without help."""
        self.link.renew()
        self.members.attendance.acceptor.end_expired()

    # The link to the cloud.

    def hello(self) -> wire.Hello:
        """Return the greeting of a new stream to the cloud."""
        role = self.memory.role
        self.heartbeat.begin_stream()
        return wire.Hello(
            round=role.round if role else 0, membership=role.membership if role else 0, epoch=self.memory.epoch
        )

    async def _on_welcome(self, welcome: wire.Welcome) -> None:
        memory, membership = self.memory, self.members.membership
        begins = memory.begin(welcome.job)
        self.requests.trials.load()
        agreed = {name: None for name, part in vars(memory.agreed).items() if part is not None}
        memory.agree(replace(jobs.Agreement.read(welcome), **agreed))
        await self.heed_access(wire.Access(allowed=welcome.allowed, revoked=welcome.revoked))
        if welcome.epoch == memory.epoch:
            await membership.begin_again("the cloud knows a later round: this state was put back from an old copy")
        elif begins:
            membership.begin()
        if welcome.HasField("anchor"):  # so a station that lost its memory need not wait for the next server iteration
            await self.requests.assign(welcome.anchor, wire.Answer())

    async def heed_access(self, access: wire.Access) -> None:
        """Save which terminals may join and which certificates are revoked, and apply it."""
        memory = self.memory
        memory.allowed, memory.revoked = set(access.allowed), set(access.revoked)
        self.members.heed_access()
        async with memory.turn:
            memory.save()
        self._news.set()

    async def _forget_silent(self, seconds: float) -> None:
        """Forget terminals that have been silent for too long."""
        memory = self.memory
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            async with memory.turn:
                may_forget = memory.role is not None and not memory.sealed  # the share stays in a sealed sum
                for t in self.members.attendance.long_silent(seconds) if may_forget else ():
                    self._log("forgotten", "warning", peer=f"terminal {t}", reason=f"silent for {seconds:g} s")
                    self.members.membership.forget(t)
