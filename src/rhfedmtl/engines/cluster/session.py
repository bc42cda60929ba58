"""Connect to a Ray cluster, or start a local Ray and stop it afterwards.

`engines.cluster.ray` and sweeps use it. Nothing here knows stations or rows.
"""

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

OLDEST_VERSION = (2, 60)
MIB = 1 << 20
STORE = 256 * MIB
"""Shared memory of a local Ray for duals and messages, in addition to the data."""
STARTS = 3
KNOCK_SECONDS = 10.0
PORT_WAIT = "RAY_gcs_server_port_wait_time_s"
QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}
SHARE_OF_MEMORY = 0.3
"""Largest share of this machine's memory for shared memory."""

_SHORT = "if the reason is a file, set TMPDIR to a writable folder with a short path"


class ClusterNode(NamedTuple):
    """A machine of the cluster, with its cores and the memory that processes may use."""

    id: str
    address: str
    cores: float
    memory: float


def ray_module(*, local: bool = False) -> Any:
    """Import and return Ray, without telemetry."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if local and "ray" not in sys.modules:
        keep_to_this_machine()
    try:
        import ray
    except ImportError:
        raise MissingExtraError("engine 'ray' needs Ray: pip install 'rhfedmtl[ray]'") from None
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < OLDEST_VERSION:
        needed = ".".join(map(str, OLDEST_VERSION))
        raise ClusterError(f"Ray {ray.__version__} is too old: pip install -U 'ray>={needed}', here and on the cluster")
    return ray


@contextmanager
def session(address: str | None = None, *, store: int = 0) -> Iterator[Any]:
    """Yield Ray, connected to the cluster at ``address``, or to a local Ray that ends with this context.

    ``store`` is the shared memory in bytes that a local Ray needs for data. An existing connection of this process is
    used and not closed.
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
    """Return the machines of the cluster that can work, in a fixed order."""
    alive = [
        ClusterNode(
            n["NodeID"], n["NodeManagerAddress"], n["Resources"].get("CPU", 0.0), n["Resources"].get("memory", 0.0)
        )
        for n in ray.nodes()
        if n["Alive"]
    ]
    return sorted(node for node in alive if node.cores > 0) or sorted(alive)


def keep_to_this_machine() -> None:
    """Set the environment of a Ray for this machine alone; call it before Ray is imported."""
    # Otherwise Ray replaces 127.0.0.1 by the machine's public address, and listens there.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Without a token Ray writes a readable token into the home folder, and later clusters require that token.
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if not any(name in os.environ for name in names) and not Path("~/.ray/auth_token").expanduser().exists():
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C: interrupted at its start, Ray leaves processes behind for a minute."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def _start(ray: Any, store: int, stack: ExitStack) -> None:
    available = memory()
    if store + STORE > SHARE_OF_MEMORY * available:
        raise ClusterError(
            f"the rows take {store / MIB:,.0f} MiB of shared memory, more than {SHARE_OF_MEMORY:.0%} of the "
            f"{available / MIB:,.0f} MiB here: write them with `rhfedmtl data split … --out FOLDER` and train with "
            "--data saved --path FOLDER, or use a cluster with --address"
        )
    # By default Ray's processes run at a low priority (niceness 15), but here they do the work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    place = {"num_cpus": cores(), "object_store_memory": store + STORE}
    # Names of sockets must be short.
    short = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None
    for remaining in reversed(range(STARTS)):
        try:
            with ExitStack() as started:
                folder = started.enter_context(
                    tempfile.TemporaryDirectory(prefix="rhfedmtl-", dir=short, ignore_cleanup_errors=True)
                )
                started.callback(ray.shutdown)
                ray.init("local", include_dashboard=False, _temp_dir=folder, **place, **QUIET)
                stack.push(started.pop_all())
            return
        except OSError as error:
            raise ClusterError(f"cannot bring up Ray on this machine: {error}; {_SHORT}") from error
        except (RuntimeError, ValueError) as error:
            raise ClusterError(f"cannot bring up Ray on this machine: {_first_line(error)}") from error
        except Exception as error:
            # If Ray does not start within half a minute, it raises a plain Exception. On a busy machine the next start
            # is faster, because its files are in the cache.
            if not remaining:
                raise ClusterError(
                    f"cannot bring up Ray on this machine, tried {STARTS} times: {_first_line(error)}; is it very busy?"
                ) from error


def _connect(ray: Any, address: str) -> None:
    from ray.exceptions import AuthenticationError

    if address != "auto":
        _refuse_silent(address)
    try:
        with _without_retries():
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
def _without_retries() -> Iterator[None]:
    """Let Ray try once: if another program listens there, or nothing answers, Ray would retry for 15 minutes."""
    before = os.environ.get(PORT_WAIT)
    os.environ[PORT_WAIT] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PORT_WAIT]


def _refuse_silent(address: str) -> None:
    """Refuse an address without a listener: Ray itself would try for minutes."""
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
    """Return the memory of this machine in bytes."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
