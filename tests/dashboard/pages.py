"""A live page under test: the real server, in a thread, on a free port of this machine."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from rhfedmtl.dashboard import server
from rhfedmtl.dashboard.access import Access


class Page:
    """Asks the server as a browser would."""

    def __init__(self, host: str, access: Access) -> None:
        self.host, self.access = host, access

    def address(self, path: str = "/") -> str:
        """An address with the token."""
        return f"http://{self.host}{path}{'&' if '?' in path else '?'}token={self.access.token}"

    def get(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers; with the token, unless the headers bring a cookie of their own."""
        bare = "cookie" in headers
        url = f"http://{self.host}{path}" if bare else self.address(path)
        request = urllib.request.Request(url, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), dict(error.headers)


@contextmanager
def served(place: Path) -> Iterator[Page]:
    """The page of a folder while it is served."""
    config = uvicorn.Config("", host=server.HOST, port=0, log_level="error", timeout_graceful_shutdown=1)
    socket = server.listening_socket(config, 0)
    host = f"{server.HOST}:{socket.getsockname()[1]}"
    access = Access(frozenset({host}))
    shown = server.Dashboard(place)
    config.app = shown.app(access)
    ready = threading.Event()
    running = server.PageServer(config, ready.set, shown.announcer.close)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield Page(host, access)
    finally:
        running.should_exit = True
        thread.join(10)
