"""Limits of a gRPC server for connections, streams and bytes, which hold before a caller has shown who it is.

Cloud and stations take the options of their servers from here. With these options, gRPC closes connections above the
limit at once, cuts callers that do not finish the handshake or have no open stream, and refuses a message by its
announced length. The server reads messages only after it has checked the sender's certificate; until then, flow control
holds them back. `listen` opens a port, and waits a while if the port is still in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc

from rhfedmtl.deploy.node.log import Log, split_address
from rhfedmtl.errors import BusyError, ConfigError

RESERVE = 256
"""Descriptors reserved for the node: state, logs, the link to the node above, metrics and health checks."""
MAX_DESCRIPTORS = 1 << 16
MMAP_THRESHOLD, SEPARATE_PAGES = -3, 12 << 10
"""An option of glibc's mallopt: allocations of at least so many bytes get separate pages."""
PORT_S = 5.0
"""Wait so long for a port that another process still uses."""

CUT_S = 1.0
"""Close a connection so long after its stream ended, so its last message can arrive."""
LINK_S = 5.0
"""Time limit for a handshake, and for the answer to a ping."""


def keep_alive(link: float = LINK_S) -> list[tuple[str, int]]:
    """Return the options of both ends: a peer that does not answer a ping within ``link`` seconds is cut off."""
    return [
        ("grpc.keepalive_time_ms", round(2000.0 * link)),
        ("grpc.keepalive_timeout_ms", round(1000.0 * link)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_channelz", 0),  # unused statistics of each connection
    ]


def raise_descriptors() -> int:
    """Raise the limit of open files of this process as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(soft, limit)


def spare_pages() -> None:
    """Allocate large buffers on separate pages: gRPC keeps 3 per connection, and small messages use little of each."""
    with contextlib.suppress(AttributeError):  # only glibc has this option
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, SEPARATE_PAGES)


def connections(limit: int) -> int:
    """Return the connections that a server accepts: ``limit``, or fewer to leave `RESERVE` descriptors for the node."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    available = limit if soft == resource.RLIM_INFINITY else soft - RESERVE
    if available < 1:
        raise ConfigError(f"this process may open {soft} files: a node needs more than {RESERVE} (ulimit -n)")
    return min(limit, available)


def guarded(max_connections: int, message_bytes: int, link: float = LINK_S) -> list[tuple[str, int]]:
    """Return the options of every server: silent callers, and callers that open many streams, soon lose their place."""
    return [
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", round(1000.0 * link)),
        ("grpc.max_connection_idle_ms", round(1000.0 * link)),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.max_receive_message_length", message_bytes),
        # Accept only these bytes of a message that is not read yet; the window grows once the service reads it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1 << 16),
        ("grpc.so_reuseport", 0),
    ]


def server_options(max_connections: int, message_bytes: int, link: float = LINK_S) -> list[tuple[str, int]]:
    """Return the options of a server for nodes below."""
    return [
        *keep_alive(link),
        *guarded(connections(max_connections), message_bytes, link),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


class Cutter:
    """Closes connections whose stream has ended; gRPC would keep them for callers that open stream after stream."""

    def __init__(self) -> None:
        self._due: set[str] = set()

    def add(self, peer: str) -> None:
        """Close the connection from ``peer``, an address as gRPC writes it, after `CUT_S` seconds."""
        address = unquote(peer.partition(":")[2]).replace("::ffff:", "")
        if not address:  # "unknown": the connection has already ended
            return
        if not self._due:
            asyncio.get_running_loop().call_later(CUT_S, self._cut)
        self._due.add(address)

    def _cut(self) -> None:
        """Close all due connections together, because each search goes through all descriptors."""
        due, self._due = self._due, set()
        for connection in sockets():
            with contextlib.suppress(OSError):
                address = connection.getpeername()
                if isinstance(address, str | bytes):  # a socket inside this process, such as a socket of the event loop
                    continue
                host = address[0].replace("::ffff:", "")
                name = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"  # as gRPC writes it
                if name in due:
                    connection.shutdown(socket.SHUT_RDWR)


def sockets() -> Iterator[socket.socket]:
    """Iterate over the open sockets of this process."""
    for file in Path("/dev/fd").iterdir():
        if file.is_socket():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as connection:
                yield connection


async def listen(server: Any, address: str, credentials: grpc.ServerCredentials, log: Log) -> None:
    """Open a port for a server; wait up to `PORT_S` seconds while another process uses it."""
    await free(address, log)
    try:
        server.add_secure_port(address, credentials)
    except RuntimeError:
        raise BusyError(f"cannot listen on {address}: something else does") from None


async def free(address: str, log: Log) -> None:
    """Wait until an address is free, at most `PORT_S` seconds; refuse an address of another machine at once."""
    until, wait = time.monotonic() + PORT_S, 0.1
    while (trouble := _taken(address)) is not None:
        reason = f"cannot listen on {address}: {trouble.strerror}"
        if trouble.errno != errno.EADDRINUSE:
            raise ConfigError(f"{reason}: is it an address of this machine?")
        if time.monotonic() > until:
            raise BusyError(reason)
        log("port taken", "warning", reason=f"{reason}; trying again")
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(2.0 * wait, 2.0)


def _taken(address: str) -> OSError | None:
    """Return the error of an attempt to listen there; None if the address is free."""
    host, port = split_address(address)
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        return error
    return None
