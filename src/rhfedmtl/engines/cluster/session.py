"""Coming and going of Ray: a cluster that is there, or one that is brought up on this machine and taken down again."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rhfedmtl.data.threads import cores
from rhfedmtl.errors import ClusterError, MissingExtraError

LEAST_VERSION = (2, 60)
MIB = 1 << 20
STORE = 256 * MIB
"""Shared memory of a local Ray, besides what is asked for: duals and messages, not data."""
STARTS = 3
KNOCK_SECONDS = 10.0
TRIES = "RAY_gcs_server_port_wait_time_s"
QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}
SHARE_OF_MEMORY = 0.3
"""Of the memory of this machine, shared memory takes this much at the most."""

_SHORT = "should it be about files, set TMPDIR to a folder with a short path that can be written to"


class ClusterNode(NamedTuple):
    """A machine of the cluster: who it is, its cores, and bytes that processes may take there."""

    id: str
    address: str
    cores: float
    memory: float


def ray_module(*, local: bool = False) -> Any:
    """Ray itself, imported when it is needed and without telemetry."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if local and "ray" not in sys.modules:
        keep_to_this_machine()
    try:
        import ray
    except ImportError:
        raise MissingExtraError("engine 'ray' needs Ray: pip install 'rhfedmtl[ray]'") from None
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise ClusterError(f"Ray {ray.__version__} is too old: pip install -U 'ray>={least}', here and on the cluster")
    return ray


@contextmanager
def session(address: str | None = None, *, store: int = 0) -> Iterator[Any]:
    """Ray, connected: to the cluster at ``address``, or without one to a local Ray that ends with this context.

    ``store`` is how many bytes of shared memory a local Ray needs for data. Where this process is connected already,
    that connection is used and left as it is.
    """
    ray = ray_module(local=address is None)
    if ray.is_initialized():
        yield ray
        return
    with ExitStack() as stack:
        if address is None:
            with interrupts_wait():
                _start(ray, store, stack)
        else:
            _connect(ray, address)
            stack.callback(ray.shutdown)
        yield ray


def nodes(ray: Any) -> list[ClusterNode]:
    """Machines of the cluster that can work, in a fixed order."""
    alive = [
        ClusterNode(
            n["NodeID"], n["NodeManagerAddress"], n["Resources"].get("CPU", 0.0), n["Resources"].get("memory", 0.0)
        )
        for n in ray.nodes()
        if n["Alive"]
    ]
    return sorted(node for node in alive if node.cores > 0) or sorted(alive)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the sockets and logs of a local Ray go, as long as it lives: names of sockets must be short."""
    short = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None
    return tempfile.TemporaryDirectory(prefix="rhfedmtl-", dir=short, ignore_cleanup_errors=True)


def keep_to_this_machine() -> None:
    """What a Ray for this machine alone has to know before it is imported."""
    # Ray turns 127.0.0.1 into the machine's own address, and listens there, unless told that there are no others.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Without a token it writes one into the home folder, for all to read, and later clusters ask for that one.
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if not any(name in os.environ for name in names) and not Path("~/.ray/auth_token").expanduser().exists():
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back: a Ray that it meets while starting leaves processes behind for a minute."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _start(ray: Any, store: int, stack: ExitStack) -> None:
    available = memory()
    if store + STORE > SHARE_OF_MEMORY * available:
        raise ClusterError(
            f"the rows take {store / MIB:,.0f} MiB of shared memory, more than {SHARE_OF_MEMORY:.0%} of the "
            f"{available / MIB:,.0f} MiB here: write them with `rhfedmtl data split … --out FOLDER` and train with "
            "--data saved --path FOLDER, or use a cluster with --address"
        )
    # Ray's processes step back behind all others (niceness 15) unless told: here they are the work itself.
    os.environ.setdefault("RAY_worker_niceness", "0")
    place = {"num_cpus": cores(), "object_store_memory": store + STORE}
    for left in reversed(range(STARTS)):
        try:
            with ExitStack() as started:
                folder = started.enter_context(_temporary_folder())
                started.callback(ray.shutdown)
                ray.init("local", include_dashboard=False, _temp_dir=folder, **place, **QUIET)
                stack.push(started.pop_all())
            return
        except OSError as error:
            raise ClusterError(f"cannot bring up Ray on this machine: {error}; {_SHORT}") from error
        except (RuntimeError, ValueError) as error:
            raise ClusterError(f"cannot bring up Ray on this machine: {_first_line(error)}") from error
        except Exception as error:
            # A Ray that is not up within half a minute says so with a plain Exception: on a busy machine a second
            # start finds what the first one has read from the disk.
            if not left:
                raise ClusterError(
                    f"cannot bring up Ray on this machine, tried {STARTS} times: {_first_line(error)}; is it very busy?"
                ) from error


def _connect(ray: Any, address: str) -> None:
    from ray.exceptions import AuthenticationError

    if address != "auto":
        _knock(address)
    try:
        with _tries_once():
            ray.init(address, **QUIET)
    except AuthenticationError as error:
        raise ClusterError(_asks_for_token(address)) from error
    except (ConnectionError, ValueError) as error:
        if AuthenticationError.__name__ in str(error.__cause__ or error.__context__):
            raise ClusterError(_asks_for_token(address)) from error
        raise ClusterError(_not_there(address, _first_line(error))) from error
    except RuntimeError as error:
        if "ersion mismatch" in str(error):
            raise ClusterError(
                f"the cluster at {address} runs other versions than this process; install the same ones: "
                f"{' '.join(str(error).split())}"
            ) from error
        raise ClusterError(f"cannot use the cluster at {address}: {_first_line(error)}") from error


@contextmanager
def _tries_once() -> Iterator[None]:
    """Where somebody listens who is no Ray, or does not answer, Ray would try for a quarter of an hour."""
    before = os.environ.get(TRIES)
    os.environ[TRIES] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRIES]


def _knock(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ClusterError(f"--address is auto, or HOST:PORT of a Ray head (often port 6379), got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(_not_there(address, str(error))) from None


def _asks_for_token(address: str) -> str:
    return (
        f"the cluster at {address} asks for its token: copy ~/.ray/auth_token of its head to this machine (or set "
        "RAY_AUTH_TOKEN), and set RAY_AUTH_MODE=token"
    )


def _not_there(address: str, why: str) -> str:
    return (
        f"no Ray cluster at {address!r} ({why}): start one with `ray start --head`, give its HOST:PORT, or leave out "
        "--address for a local Ray"
    )


def memory() -> float:
    """Bytes of memory that this machine has."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
