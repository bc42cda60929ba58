"""What a server takes in: connections, streams and bytes, all with a limit before anybody is known.

gRPC closes at once what comes above its number of connections, cuts who does not finish the handshake or has no stream
open, and refuses a message by its announced length. Messages are read only after their sender's certificate was looked
at; until then flow control holds them back.
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
"""Descriptors that no caller gets: for state, logs, the node above, and the windows for operators."""
MOST_DESCRIPTORS = 1 << 16
MMAP_THRESHOLD, OWN_PAGES = -3, 12 << 10
"""An option of glibc's mallopt, and from how many bytes on an allocation has pages of its own."""
PORT_S = 5.0
"""How long to wait for a port that something else still has."""

CUT_S = 1.0
LINK_S = 5.0
"""How long a link may owe an answer: to a handshake, or to a ping."""


def keep_alive(link: float = LINK_S) -> list[tuple[str, int]]:
    """Options of both ends: who does not answer a ping in so many seconds is gone."""
    return [
        ("grpc.keepalive_time_ms", round(2000.0 * link)),
        ("grpc.keepalive_timeout_ms", round(1000.0 * link)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_channelz", 0),  # statistics of each connection, which nobody reads
    ]


def raise_descriptors() -> int:
    """Let this process open as many files as it may; how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def spare_pages() -> None:
    """Give large buffers pages of their own: gRPC keeps three for each connection, and small messages touch a part."""
    with contextlib.suppress(AttributeError):  # other C libraries decide for themselves
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, OWN_PAGES)


def connections(wanted: int) -> int:
    """How many connections a server takes: so many, but never those descriptors that the node itself needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = wanted if soft == resource.RLIM_INFINITY else soft - RESERVE
    if room < 1:
        raise ConfigError(f"this process may open {soft} files: a node needs more than {RESERVE} (ulimit -n)")
    return min(wanted, room)


def guarded(most_connections: int, message_bytes: int, link: float = LINK_S) -> list[tuple[str, int]]:
    """Options of every server: who says nothing, or opens stream after stream, takes up no place for long."""
    return [
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.server_handshake_timeout_ms", round(1000.0 * link)),
        ("grpc.max_connection_idle_ms", round(1000.0 * link)),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.max_receive_message_length", message_bytes),
        # Of a message that nobody reads yet, no more than this is taken in; the window grows once it is read.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1 << 16),
        ("grpc.so_reuseport", 0),
    ]


def server_options(most_connections: int, message_bytes: int, link: float = LINK_S) -> list[tuple[str, int]]:
    """Options of a server for nodes below."""
    return [
        *keep_alive(link),
        *guarded(connections(most_connections), message_bytes, link),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


class Cutter:
    """Closes connections whose streams have ended: gRPC would keep them for whoever opens stream after stream."""

    def __init__(self) -> None:
        self._due: set[str] = set()

    def add(self, peer: str) -> None:
        """Close the connection from an address, as gRPC writes it, once its last words can have arrived."""
        address = unquote(peer.partition(":")[2]).replace("::ffff:", "")
        if not address:  # "unknown": the connection is gone already
            return
        if not self._due:
            asyncio.get_running_loop().call_later(CUT_S, self._cut)
        self._due.add(address)

    def _cut(self) -> None:
        """All that are due together: each time every descriptor is looked at."""
        due, self._due = self._due, set()
        for each in sockets():
            with contextlib.suppress(OSError):
                address = each.getpeername()
                if isinstance(address, str | bytes):  # a socket within this process, as those that wake its event loop
                    continue
                host = address[0].replace("::ffff:", "")
                name = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"  # as gRPC writes it
                if name in due:
                    each.shutdown(socket.SHUT_RDWR)


def sockets() -> Iterator[socket.socket]:
    """All sockets that this process has open."""
    for file in Path("/dev/fd").iterdir():
        if file.is_socket():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as each:
                yield each


async def listen(server: Any, address: str, credentials: grpc.ServerCredentials, log: Log) -> None:
    """Let a server answer at an address; one that is taken is waited for a while."""
    await free(address, log)
    try:
        server.add_secure_port(address, credentials)
    except RuntimeError:
        raise BusyError(f"cannot listen on {address}: something else does") from None


async def free(address: str, log: Log) -> None:
    """Wait until nobody has an address any more, but not for ever; one that is not of here is refused at once."""
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
    """Why nobody could listen there now."""
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
