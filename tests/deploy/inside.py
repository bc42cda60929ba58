"""Services in this process without a network: a station or a cloud, and peers that say what a test wants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.deploy.test_intruders import NUMBERS, Still

from rhfedmtl.deploy.cloud.service import CloudService
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import read_cloud, read_station
from rhfedmtl.deploy.node.credentials import Credentials, PeerCertificate
from rhfedmtl.deploy.node.link import PeerSession
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.service import StationService
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.roles.messages import Anchor, Join

NEVER_S = 1e6
"""A deadline that no test reaches."""
SHARE = np.ones((1, NUMBERS))


def job(folder: Path) -> wire.Job:
    """What the network learns."""
    return jobs.job_of(read_cloud(folder / "cloud" / "cloud.toml").learning)


def make_station(folder: Path, tmp_path: Path) -> StationService:
    """A station with an anchor and two terminals, none of which is connected."""
    config = read_station(folder / "station-0" / "station.toml")
    object.__setattr__(config.node, "state", str(tmp_path))
    service = StationService(config, Log("test", "error"), Meters())
    memory = service.memory
    memory.begin(job(folder))
    memory.allowed = {0, 1}
    memory.station.receive_anchor(Anchor(1, 0, np.zeros((1, NUMBERS)), 0.1))
    for t in (0, 1):
        memory.station.admit(Join(t, 1, 15, SHARE))
    service.members._started = time.monotonic() - NEVER_S  # nobody is waited for as one that has just gone
    return service


async def connect(service: StationService, folder: Path, t: int, *, incarnation: int = 1) -> PeerSession:
    """A terminal that has just been let in; what it is sent waits in its outbox."""
    session = PeerSession(PeerCertificate.read(Credentials.of(folder / f"terminal-{t}").pair()[1]), Still())
    session._task = None  # it has no connection that could be cut
    hello = wire.Hello(node=t, incarnation=incarnation, epoch=service.memory.epoch)
    session.send(await service.members._greet(session, hello))
    service.members.acceptor.sessions[t] = session
    await settle()
    return session


async def settle() -> None:
    """Let all tasks do what they can without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


def sent(session: PeerSession) -> list[wire.TerminalDown]:
    """What a terminal was sent since this was last asked."""
    waiting = session.outbox._waiting
    return [wire.TerminalDown.FromString(waiting.get_nowait() or b"") for _ in range(waiting.qsize())]


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


async def attach(cloud: CloudService, folder: Path, b: int) -> PeerSession:
    """A station that has just been let in."""
    session = PeerSession(PeerCertificate.read(Credentials.of(folder / f"station-{b}").pair()[1]), Still())
    session._task = None
    cloud.acceptor.sessions[b] = session
    return session


def requests(session: PeerSession) -> list[wire.Request]:
    """What a station was asked since this was last asked."""
    waiting = session.outbox._waiting
    return [wire.StationDown.FromString(waiting.get_nowait() or b"").request for _ in range(waiting.qsize())]


async def say(cloud: CloudService, session: PeerSession, **body: Any) -> None:
    """Let a station say something."""
    await cloud._receive(session, wire.StationUp(**body).SerializeToString())
    await settle()
