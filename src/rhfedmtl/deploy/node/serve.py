"""Life of a node's process: start, signals, lock of the state folder, metrics, renewal of credentials, orderly end.

`serve` runs any node: the command line passes a `Role`, which says how to read the configuration and make the service.
A SIGTERM or SIGINT ends the process: services close and save within `DRAIN_S` seconds. An error in a service ends the
process too, and the error decides about the exit status. A supervisor may then start it again.
"""

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
"""Interval of the checks of credentials and health."""
ONCE_A_DAY = round(86400.0 / WATCH_S)
LAST_S = 2.0
"""Time limit for tasks that remain after the services have closed."""
DRAIN_S = 15.0
"""Time limit for closing the services. The state is on disk by then, so an open connection need not delay the end."""
SOON_S = 14 * 86400.0
"""Warn if a certificate expires within this time."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, which may have space later."""


class Service(Protocol):
    """A running node, as `serve` sees it."""

    @property
    def healthy(self) -> bool:
        """True if the node can do its work."""

    async def run(self) -> None:
        """Serve until `close`, or until the node has left the network."""

    async def close(self) -> None:
        """Finish the current work, save the state, and end."""

    def renew(self) -> None:
        """Reconnect if the credentials have changed."""


class Role(NamedTuple):
    """Name of a role, and the functions that read its configuration and make its service."""

    name: str
    read: Callable[[Path], Any]
    service: Callable[[Any, Log, Meters], Service]


def own_kernels(config: Path) -> None:
    """Make numba keep its compiled code in a folder that only this user can write to.

    Anyone who can write there can run code as this user. Call this before importing a module that compiles. The
    environment variable NUMBA_CACHE_DIR may name another folder, which is checked in the same way.
    """
    if find_spec("numba") is None:
        return
    setting = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(setting) if setting else _kernel_folder(config)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} belongs to user {status.st_uid}, with mode {stat.S_IMODE(status.st_mode):o}: it holds compiled "
            f"code, so it must belong to user {os.getuid()} with mode 700; NUMBA_CACHE_DIR can name another folder"
        )
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


def _kernel_folder(config: Path) -> Path:
    """Return a folder that all nodes of this user share, or a folder of the node if the home cannot be written."""
    with contextlib.suppress(OSError, RuntimeError):
        shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rhfedmtl", "kernels")
        shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shared.lstat().st_uid == os.getuid() and os.access(shared, os.W_OK):
            return shared
    return config.resolve().parent / "kernels"


def serve(role: Role, paths: Sequence[Path], abandoned: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Run a node until SIGTERM or SIGINT; several terminals may share a process.

    Parameters
    ----------
    role : Role
        How to read the configuration and make the service.
    paths : sequence of Path
        Configuration files; several only for terminals.
    abandoned : callable
        Returns True if the parent process has ended; the node then ends as after SIGTERM.

    Returns
    -------
    dict
        Role, number of nodes, reason for the end, and seconds.
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
    locks = [_lock_state(config) for config in configs]
    meters = Meters(exported=bool(configs[0].node.metrics))
    window = Window(meters, configs[0].node.metrics, configs[0].node.health)
    logs = [Log(str(config.identity), config.node.log) for config in configs]
    with _usable(configs[0].state):
        services = [role.service(config, log, meters) for config, log in zip(configs, logs, strict=True)]
    credentials = _watch_credentials(configs, logs[0], meters)
    asyncio.get_running_loop().set_exception_handler(partial(_log_unexpected, logs[0]))
    for address in filter(None, (configs[0].node.metrics, configs[0].node.health)):
        await free(address, logs[0])
    await window.open()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    logs[0]("started", pid=os.getpid(), role=role.name, nodes=len(services))
    running: asyncio.Future[Any] = asyncio.gather(*(service.run() for service in services))
    watch = asyncio.create_task(_watch(services, window, stop, abandoned, credentials))
    try:
        # The process ends after a signal, when all nodes have left the network, or when a node fails.
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopped, running, watch], return_when=asyncio.FIRST_COMPLETED)
        error = next((task.exception() for task in (running, watch) if task.done()), None)
        if error is not None:
            logs[0]("breaks off", "error", reason=str(error) or type(error).__name__)
        logs[0]("draining")
        await window.healthy(False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(service.close() for service in services)), DRAIN_S)
            await asyncio.wait_for(running, LAST_S)
        if error is not None:
            raise error
        return "stopped" if stop.is_set() else "left the network"
    finally:
        watch.cancel()
        running.cancel()
        await asyncio.gather(running, watch, return_exceptions=True)
        await window.close()
        for lock in locks:
            lock.release()
        logs[0]("ended")


def _lock_state(config: Config) -> Lock:
    """Lock the state folder of a node for this process, after checking that the files of the configuration exist."""
    config.check_files()
    with _usable(config.state):
        lock = Lock(config.state)
        if not os.access(config.state, os.W_OK | os.X_OK):
            lock.release()
            raise PermissionError(errno.EACCES, "it cannot be written", str(config.state))
    return lock


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Turn an `OSError` of the state into a permanent `ConfigError`, except for a full disk: that may pass."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        raise ConfigError(f"cannot use {error.filename or folder}: {error.strerror or error}") from None


def _log_unexpected(log: Log, _: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
    """Log the error of a background task as an event, instead of printing text between the lines of the log."""
    error = facts.get("exception")
    log("unexpected", "error", reason=facts["message"] if error is None else f"{type(error).__name__}: {error}")


def _watch_credentials(configs: list[Config], log: Log, meters: Meters) -> Callable[[], None]:
    """Export the time until a certificate expires; return a function that warns if this is soon."""
    credentials = [config.credentials() for config in configs]

    def seconds_left() -> float:
        try:
            return (min(files.peer.until for files in credentials) - datetime.now(UTC)).total_seconds()
        except RHFedMTLError:
            return math.nan

    def warn() -> None:
        if (seconds := seconds_left()) < SOON_S:
            reason = f"in {seconds / 86400.0:.1f} days: `rhfedmtl network rotate` renews"
            log("credentials expire", "warning", reason=reason)

    meters.credentials.set_function(seconds_left)
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
