"""Services in this process without a network: a station or a cloud, and peers that say what a test wants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.cloud.service import CloudService
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node.acceptor import PeerSession
from rhfedmtl.deploy.node.config import read_station, read_terminal
from rhfedmtl.deploy.node.credentials import Credentials, PeerCertificate
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD, TERMINAL_TO_STATION, Dialogue
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.service import StationService
from rhfedmtl.deploy.terminal.service import TerminalService
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.roles.messages import Anchor, Join

NEVER_S = 1e6
"""A deadline that no test reaches."""
NUMBERS = 21
"""Features of the networks here, and an intercept."""
SHARE = np.ones((1, NUMBERS))


class Peer(PeerSession):
    """A node below that has said hello; what it is sent is kept."""

    def __init__(self, dialogue: Dialogue, folder: Path, name: str, **hello: Any) -> None:
        self.written: list[bytes] = []
        self._kind = dialogue.down
        super().__init__(dialogue, PeerCertificate.read(Credentials.of(folder / name).pair()[1]), self)
        self.outbox.open()
        greeting = wire.Hello(node=self.number, **hello)
        _, self.hello, _ = self.read(dialogue.up(hello=greeting).SerializeToString())

    async def write(self, data: bytes) -> None:
        """Keep it."""
        self.written.append(data)

    def sent(self) -> list[Any]:
        """What it was sent since this was last asked."""
        taken, self.written = self.written, []
        return [self._kind.FromString(data) for data in taken]


def job(folder: Path) -> wire.Job:
    """What the network learns."""
    return read_cloud(folder / "cloud" / "cloud.toml").learning.job()


def make_station(folder: Path, tmp_path: Path, **waits: float) -> StationService:
    """A station with an anchor and two terminals, none of which is connected."""
    config = read_station(folder / "station-0" / "station.toml")
    object.__setattr__(config.node, "state", str(tmp_path))
    object.__setattr__(config, "waits", replace(config.waits, **waits))
    service = StationService(config, Log("test", "error"), Meters())
    memory = service.memory
    memory.begin(job(folder))
    memory.allowed = {0, 1}
    memory.station.receive_anchor(Anchor(1, 0, np.zeros((1, NUMBERS)), 0.1))
    for t in (0, 1):
        memory.station.roster.admit(Join(t, 1, 15, SHARE))
    service.members.attendance.started = time.monotonic() - NEVER_S  # nobody is waited for as one that has just gone
    return service


async def connect(service: StationService, folder: Path, t: int, *, incarnation: int = 1) -> Peer:
    """A terminal that has just been let in."""
    peer = Peer(TERMINAL_TO_STATION, folder, f"terminal-{t}", incarnation=incarnation, epoch=service.memory.epoch)
    peer.send(welcome=service.members.greet(peer, peer.hello))
    service.members.attendance.acceptor.sessions[t] = peer
    await settle()
    return peer


async def hear(service: StationService, peer: Peer, **body: Any) -> None:
    """Let a terminal say something to its station."""
    await service.members.receive(peer, wire.TerminalUp(**body).SerializeToString())
    await settle()


async def tell(service: StationService, **body: Any) -> None:
    """Let the cloud say something to a station."""
    await service.link.receive(wire.StationDown(**body).SerializeToString())


async def welcome(service: StationService, folder: Path, **more: Any) -> None:
    """Let the cloud greet a station."""
    service.link.hello()
    await tell(service, welcome=wire.Welcome(**{"job": job(folder), "allowed": [0, 1], **more}))


def make_terminal(folder: Path, tmp_path: Path) -> TerminalService:
    """A terminal of which nothing is written into the network's folder."""
    config = read_terminal(folder / "terminal-0" / "terminal.toml")
    object.__setattr__(config.node, "state", str(tmp_path))
    return TerminalService(config, Log("test", "error"), Meters(), method_of)


async def settle() -> None:
    """Let all tasks do what they can without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


def run(body: Callable[[], Awaitable[Any]]) -> Any:
    """Run a test's coroutine."""

    async def ended() -> Any:
        found = await body()
        others = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return found

    return asyncio.run(ended())


def make_cloud(folder: Path, tmp_path: Path) -> CloudService:
    """A cloud of which nothing is written into the network's folder."""
    config = read_cloud(folder / "cloud" / "cloud.toml")
    object.__setattr__(config.node, "state", str(tmp_path))
    return CloudService(config, Log("test", "error"), Meters())


def attach(cloud: CloudService, folder: Path, b: int) -> Peer:
    """A station that has just been let in."""
    peer = Peer(STATION_TO_CLOUD, folder, f"station-{b}")
    cloud.stations.acceptor.sessions[b] = peer
    return peer


def requests(peer: Peer) -> list[wire.Request]:
    """What a station was asked since this was last asked."""
    return [message.request for message in peer.sent() if message.HasField("request")]


async def say(cloud: CloudService, peer: Peer, **body: Any) -> None:
    """Let a station say something."""
    await cloud.stations.receive(peer, wire.StationUp(**body).SerializeToString())
    await settle()
