"""Starting and ending the process of a node: signals, locks, the local window for operators, new credentials."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import math
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rhfedmtl.deploy.node.config import Config
from rhfedmtl.deploy.node.credentials import STATION, TERMINAL
from rhfedmtl.deploy.node.log import Log, Meters, Window
from rhfedmtl.deploy.node.server import free, raise_descriptors, spare_pages
from rhfedmtl.deploy.node.state import unwritten
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.failpoints import arm
from rhfedmtl.files import Lock

WATCH_S = 0.5
"""How often credentials and health are looked at."""
ONCE_A_DAY = round(86400.0 / WATCH_S)
LAST_S = 2.0
DRAIN_S = 15.0
"""How long a node takes leave: what counts is on disk, and whoever holds a connection open does not keep it."""
SOON_S = 14 * 86400.0
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk on which there may be room later."""


class Service(Protocol):
    """A node at work."""

    @property
    def healthy(self) -> bool:
        """Whether it does its work."""

    async def run(self) -> None:
        """Serve until `close`, or until there is nothing more to do."""

    async def close(self) -> None:
        """Finish what is under way, write everything down, and end."""

    def renew(self) -> None:
        """Take up new credentials, if there are any."""


class Role(NamedTuple):
    """How a node is made: its configuration from a file, and its service."""

    name: str
    read: Callable[[Path], Any]
    service: Callable[[Any, Log, Meters], Service]


def own_kernels(config: Path) -> None:
    """Let numba keep compiled code in a folder of this user alone: whoever can write there runs what he likes as it.

    Comes before anything is imported that compiles. Who sets NUMBA_CACHE_DIR names another folder, held to the same.
    """
    if find_spec("numba") is None:
        return
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else _kernel_folder(config)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is of user {found.st_uid}, with mode {stat.S_IMODE(found.st_mode):o}: compiled code lies there, "
            f"so it must be a folder of user {os.getuid()} alone (mode 700); name another by NUMBA_CACHE_DIR"
        )
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


def _kernel_folder(config: Path) -> Path:
    """One of the user, so that of several nodes the first compiles for all; without a home to write to, the node's."""
    with contextlib.suppress(OSError, RuntimeError):
        shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rhfedmtl", "kernels")
        shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shared.lstat().st_uid == os.getuid() and os.access(shared, os.W_OK):
            return shared
    return config.resolve().parent / "kernels"


def serve(role: Role, paths: Sequence[Path], abandoned: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Run a node until SIGTERM or SIGINT, and say how it ended; several terminals may share a process.

    ``abandoned`` says whether whoever started this process is gone; it then ends as if it were told to.
    """
    if role.name != TERMINAL and len(paths) != 1:
        raise ConfigError(f"one process serves one {role.name}, got {len(paths)} configurations")
    began = time.monotonic()
    try:
        ended = asyncio.run(_serve(role, paths, abandoned))
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise unwritten(error) from None
    return {"role": role.name, "nodes": len(paths), "ended": ended, "seconds": time.monotonic() - began}


async def _serve(role: Role, paths: Sequence[Path], abandoned: Callable[[], bool]) -> str:
    raise_descriptors()
    if role.name == STATION:
        spare_pages()
    arm(role.name)
    configs: list[Config] = [role.read(path) for path in paths]
    locks = [_held(config) for config in configs]
    meters = Meters(shown=bool(configs[0].node.metrics))
    window = Window(meters, configs[0].node.metrics, configs[0].node.health)
    logs = [Log(str(config.identity), config.node.log) for config in configs]
    with _usable(configs[0].state):
        services = [role.service(config, log, meters) for config, log in zip(configs, logs, strict=True)]
    credentials = _watch_credentials(configs, logs[0], meters)
    asyncio.get_running_loop().set_exception_handler(partial(_log_loose, logs[0]))
    for address in filter(None, (configs[0].node.metrics, configs[0].node.health)):
        await free(address, logs[0])
    await window.open()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    logs[0]("started", pid=os.getpid(), role=role.name, nodes=len(services))
    everything: asyncio.Future[Any] = asyncio.gather(*(service.run() for service in services))
    watch = asyncio.create_task(_watch(services, window, stop, abandoned, credentials))
    try:
        # Ends when told to, when all nodes have left the network, or when one breaks.
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopped, everything, watch], return_when=asyncio.FIRST_COMPLETED)
        error = next((task.exception() for task in (everything, watch) if task.done()), None)
        if error is not None:
            logs[0]("breaks off", "error", reason=str(error) or type(error).__name__)
        logs[0]("draining")
        await window.healthy(False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(service.close() for service in services)), DRAIN_S)
            await asyncio.wait_for(everything, LAST_S)
        if error is not None:
            raise error
        return "told to" if stop.is_set() else "left the network"
    finally:
        watch.cancel()
        everything.cancel()
        await asyncio.gather(everything, watch, return_exceptions=True)
        await window.close()
        for lock in locks:
            lock.release()
        logs[0]("ended")


def _held(config: Config) -> Lock:
    """The state folder of a node, for this process alone, once all that its configuration names is there."""
    config.check_files()
    with _usable(config.state):
        lock = Lock(config.state)
        if not os.access(config.state, os.W_OK | os.X_OK):
            lock.release()
            raise PermissionError(errno.EACCES, "it cannot be written", str(config.state))
    return lock


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """A node that cannot use its state would end so again; one whose disk is full may start once there is room."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        raise ConfigError(f"cannot use {error.filename or folder}: {error.strerror or error}") from None


def _log_loose(log: Log, _: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
    """An error in a task for which nobody waits is an event like others, and no text between the lines of the log."""
    error = facts.get("exception")
    log("unexpected", "error", reason=facts["message"] if error is None else f"{type(error).__name__}: {error}")


def _watch_credentials(configs: list[Config], log: Log, meters: Meters) -> Callable[[], None]:
    """Show how long the certificates last; what is returned warns where that is not long."""
    credentials = [config.credentials() for config in configs]

    def left() -> float:
        try:
            return (min(each.peer.until for each in credentials) - datetime.now(UTC)).total_seconds()
        except RHFedMTLError:
            return math.nan

    def warn() -> None:
        if (seconds := left()) < SOON_S:
            reason = f"in {seconds / 86400.0:.1f} days: `rhfedmtl network rotate` renews"
            log("credentials expire", "warning", reason=reason)

    meters.credentials.set_function(left)
    return warn


async def _watch(
    services: list[Service],
    window: Window,
    stop: asyncio.Event,
    abandoned: Callable[[], bool],
    credentials: Callable[[], None],
) -> None:
    for i in itertools.count():
        if i % ONCE_A_DAY == 0:
            credentials()
        await asyncio.sleep(WATCH_S)
        await window.healthy(all(service.healthy for service in services))
        for service in services:
            service.renew()
        if abandoned():
            stop.set()
