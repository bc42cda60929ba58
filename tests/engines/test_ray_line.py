"""A direct line to an actor: messages and answers, and what happens when one end is gone. Threads stand for actors."""

from __future__ import annotations

import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from rhfedmtl.engines.cluster import ray_line

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="lines are sockets of Unix")


class Actor:
    """Serves a line in a thread; ``moved`` makes it look for the socket elsewhere, as on another machine."""

    def __init__(self, answer: Any = None, moved: bool = False) -> None:
        self.answer, self.moved = answer or (lambda message: message), moved
        self.ended: list[Any] = []
        self.seen: Path | None = None

    def remote(self, address: str, token: bytes) -> threading.Thread:
        """Begin to serve."""
        self.seen = Path(address)

        def task() -> None:
            try:
                self.ended.append(ray_line.serve(address + "x" * self.moved, token, self.answer))
            except ArithmeticError as error:
                self.ended.append(error)

        thread = threading.Thread(target=task)
        thread.start()
        return thread


class Ray:
    """The part of Ray that knows whether a call has ended."""

    def wait(self, tasks: list[threading.Thread], timeout: float) -> tuple[list[Any], list[Any]]:
        """Those that have ended, and the others."""
        done = [task for task in tasks if not task.is_alive()]
        return done, [task for task in tasks if task not in done]


def test_messages_are_answered_until_the_line_is_closed() -> None:
    """Small and large ones, in their order; nothing is left in the file system."""
    actor = Actor(lambda message: [message, len(message)])
    line = ray_line.call_up(Ray(), actor)
    assert line is not None
    for message in (b"", b"a", b"b" * 5_000_000):
        line.send(message)
        assert line.answer() == [message, len(message)]
    assert not line.answered()
    line.close()
    line.task.join(10)
    assert actor.ended == [True]
    assert actor.seen is not None
    assert not actor.seen.parent.exists()


def test_there_is_no_line_to_another_machine() -> None:
    """The socket is not there."""
    actor = Actor(moved=True)
    assert ray_line.call_up(Ray(), actor) is None
    assert actor.ended == [False]


@pytest.mark.parametrize("name", ["folder" * 30, "nothing/here"])
def test_there_is_no_line_where_no_socket_can_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The path is too long for one, or the folder cannot be made: nobody is asked to serve it."""
    folder = tmp_path / name
    if "/" not in name:
        folder.mkdir()
    monkeypatch.setattr(ray_line, "temporary_folder", lambda: tempfile.TemporaryDirectory(dir=folder))
    actor = Actor()
    assert ray_line.call_up(Ray(), actor) is None
    assert actor.seen is None


def test_the_socket_is_for_this_user_alone() -> None:
    """Its folder lets nobody else in while the actor is waited for."""
    modes: list[int] = []

    class Looking(Actor):
        def remote(self, address: str, token: bytes) -> threading.Thread:
            modes.append(stat.S_IMODE(Path(address).parent.stat().st_mode))
            return super().remote(address, token)

    actor = Looking()
    line = ray_line.call_up(Ray(), actor)
    assert line is not None
    line.close()
    line.task.join(10)
    assert modes == [0o700]


def test_an_actor_that_fails_breaks_the_line() -> None:
    """Whoever waits hears of it at once, and so does whoever still speaks."""

    def fail(message: Any) -> Any:
        raise ArithmeticError(message)

    actor = Actor(fail)
    line = ray_line.call_up(Ray(), actor)
    assert line is not None
    line.send("no")
    with pytest.raises(EOFError):
        line.answer()
    assert isinstance(actor.ended[0], ArithmeticError)
    line.send("still no")
    line.send("nor now")
    assert line.answered()
    with pytest.raises(EOFError):
        line.answer()
    line.close()


def test_who_does_not_know_the_token_is_not_let_in(tmp_path: Path) -> None:
    """Others on the machine who find the socket, and say something else or nothing."""
    address = str(tmp_path / "line")
    with socket.socket(socket.AF_UNIX) as acceptor:
        acceptor.bind(address)
        acceptor.listen()
        acceptor.settimeout(0.1)
        assert ray_line._accepted(acceptor, b"t" * 32) is None
        for told in (b"f" * 32, b"t" * 31, b""):
            with socket.socket(socket.AF_UNIX) as guest:
                guest.connect(address)
                guest.sendall(told)
                guest.shutdown(socket.SHUT_WR)
                assert ray_line._accepted(acceptor, b"t" * 32) is None
        with socket.socket(socket.AF_UNIX) as guest:
            guest.connect(address)
            guest.sendall(b"t" * 32)
            let_in = ray_line._accepted(acceptor, b"t" * 32)
            assert let_in is not None
            let_in.close()
