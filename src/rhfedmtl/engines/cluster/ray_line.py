"""A direct line to an actor on this machine, past Ray: a message costs a tenth of a millisecond, not two.

The actor is asked, by Ray, to serve a socket in a folder that is there for the moment of the call. One that runs on
another machine finds no such folder, and is spoken to by Ray. When it ends, the line breaks, and Ray knows why.
"""

from __future__ import annotations

import hmac
import os
import pickle
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rhfedmtl.engines.cluster.session import temporary_folder

TOKEN_BYTES = 32
LOOK_SECONDS = 0.2
"""How often to look whether an actor has answered that it cannot be reached."""


class Line:
    """The near end; ``task`` is the call of `serve`, which ends with the line."""

    def __init__(self, plain: socket.socket, task: Any) -> None:
        self.task = task
        self._connection = _connection(plain)

    def send(self, message: Any) -> None:
        """Send a message; one that cannot arrive any more is missed when the answer is."""
        try:
            self._connection.send_bytes(pickle.dumps(message, protocol=5))
        except OSError:
            self.close()

    def answer(self) -> Any:
        """Wait for the answer; EOFError if there will be none."""
        try:
            return pickle.loads(self._connection.recv_bytes())
        except OSError:
            raise EOFError from None

    def answered(self) -> bool:
        """Whether there is an answer, or none to be expected."""
        return bool(self._connection.closed or self._connection.poll())

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def call_up(ray: Any, serve: Any) -> Line | None:
    """A line to the actor whose method `serve` is; None where it is on another machine, or no socket can be made.

    The folder of the socket is open to this user alone, so an actor of another user has no line either.
    """
    if not hasattr(socket, "AF_UNIX") or os.name != "posix":
        return None
    with suppress(OSError), temporary_folder() as folder, socket.socket(socket.AF_UNIX) as acceptor:
        address, token = str(Path(folder) / "line"), secrets.token_bytes(TOKEN_BYTES)
        acceptor.bind(address)
        acceptor.listen()
        acceptor.settimeout(LOOK_SECONDS)
        task = serve.remote(address, token)
        while not ray.wait([task], timeout=0)[0]:
            if (plain := _accepted(acceptor, token)) is not None:
                return Line(plain, task)
    return None


def serve(address: str, token: bytes, answer: Callable[[Any], Any]) -> bool:
    """The far end: answer messages until the line is closed; False where there is no such address here."""
    plain = socket.socket(socket.AF_UNIX)
    try:
        plain.connect(address)
        plain.sendall(token)
    except OSError:
        plain.close()
        return False
    with _connection(plain) as connection:
        while (message := _received(connection)) is not None:
            reply = pickle.dumps(answer(pickle.loads(message)), protocol=5)
            with suppress(OSError):  # whoever asked has hung up: the next message does not come
                connection.send_bytes(reply)
    return True


def _received(connection: Any) -> bytes | None:
    try:
        message: bytes = connection.recv_bytes()
    except (EOFError, OSError):
        return None
    return message


def _accepted(acceptor: socket.socket, token: bytes) -> socket.socket | None:
    """Whoever knocks and knows the token."""
    try:
        plain, _ = acceptor.accept()
    except TimeoutError:
        return None
    plain.settimeout(LOOK_SECONDS)
    with plain:
        try:
            told = plain.recv(TOKEN_BYTES, socket.MSG_WAITALL)
        except OSError:
            return None
        if not hmac.compare_digest(told, token):
            return None
        plain.settimeout(None)
        return plain.dup()


def _connection(plain: socket.socket) -> Any:
    """A socket that sends whole messages."""
    from multiprocessing.connection import Connection

    plain.setblocking(True)
    return Connection(plain.detach())
