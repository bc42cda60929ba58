"""Web server of the dashboard: complete HTML pages, and a stream of events that tells browsers to reload.

The command ``dashboard`` calls `serve`. The server listens only on this machine, and `access.Guard` checks every
request. Pages are made in threads, so a slow chart does not block other readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rhfedmtl.dashboard import network, pages, whatif
from rhfedmtl.dashboard.access import Access, Guard
from rhfedmtl.dashboard.index import Index, is_network
from rhfedmtl.dashboard.network import NetworkWatcher
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.report.page import script, stylesheet

HOST = "127.0.0.1"
KEEP_ALIVE_S = 15.0
MOST_EVENTS_A_SECOND = 10.0


class Announcer:
    """Notifies open pages of changes; a slow page gets several changes as a single event."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self.closing = False

    def open(self) -> None:
        """Bind the announcer to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End all streams."""
        self.closing = True
        self._wake()

    def changed(self) -> None:
        """Notify all pages; any thread may call this."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def stream(self) -> AsyncIterator[str]:
        """Yield the events for a page."""
        wake_up = asyncio.Event()
        self._waiting.add(wake_up)
        try:
            yield "retry: 1000\n\n"
            while not self.closing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake_up.wait(), KEEP_ALIVE_S)
                yield "event: changed\ndata: \n\n" if wake_up.is_set() and not self.closing else ": still here\n\n"
                wake_up.clear()
                await asyncio.sleep(1.0 / MOST_EVENTS_A_SECOND)
        finally:
            self._waiting.discard(wake_up)


class Dashboard:
    """Application for a folder of runs, or for a network."""

    def __init__(self, place: Path) -> None:
        self.place, self.announcer = place, Announcer()
        self.index = None if is_network(place) else Index(place)
        self.network: NetworkWatcher | None = None
        if self.index is None:
            from rhfedmtl.deploy.operator import Operator

            operator = Operator(place)
            self.network = NetworkWatcher(place, operator.command, operator.last_result)
        first = "Runs" if self.index is not None else "Network"
        self.views = {first: "/", "What if": "/whatif"}

    def app(self, access: Access) -> Starlette:
        """Return the application with access control."""
        routes = [
            Route("/", self._first),
            Route("/run/{name}", self._run),
            Route("/overlay", self._overlay),
            Route("/whatif", self._whatif),
            Route("/events", self._events),
            Route("/static/{name}", _static),
        ]
        return Starlette(routes=routes, middleware=[Middleware(Guard, access=access)], lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.announcer.open()
        source: Any = self.index or self.network
        await asyncio.to_thread(source.start, self.announcer.changed)
        yield
        source.close()

    async def _page(self, title: str, make: Callable[[], str], current: str) -> Response:
        """Return a page; a thread makes it, so other readers do not wait for its charts."""
        try:
            body, status = await asyncio.to_thread(make), 200
        except RHFedMTLError as error:
            body, status = pages.refusal(str(error)), 404
        return HTMLResponse(pages.frame(title, body, self.views, current), status)

    async def _first(self, request: Request) -> Response:
        if self.network is not None:
            watched = self.network
            return await self._page(f"{self.place.name}: network", lambda: network.view(watched), "/")
        query = pages.RunQuery.of(request.query_params)
        return await self._page(f"{self.place.name}: runs", lambda: pages.runs(self._runs, query), "/")

    @property
    def _runs(self) -> Index:
        if self.index is None:
            raise ConfigError("this page shows a network, not runs")
        return self.index

    async def _run(self, request: Request) -> Response:
        name = request.path_params["name"]

        def make() -> str:
            runs = self._runs
            return pages.one_run(name, runs.record(name), runs.row(name), runs.place(name))

        return await self._page(name, make, "")

    async def _overlay(self, request: Request) -> Response:
        query = request.query_params.multi_items()

        def make() -> str:
            groups = pages.selected(query, self._runs)
            return pages.overlay([{name: self._runs.record(name) for name in group} for group in groups], self.place)

        return await self._page("overlay", make, "")

    async def _whatif(self, request: Request) -> Response:
        query = dict(request.query_params)
        return await self._page("what if", lambda: whatif.view(query, self.place), "/whatif")

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self.announcer.stream(), media_type="text/event-stream")


async def _static(request: Request) -> Response:
    """Return a style sheet or script of the package."""
    package_files = files("rhfedmtl.dashboard")
    makers: dict[str, Callable[[], str]] = {
        "style.css": lambda: stylesheet() + package_files.joinpath("style.css").read_text(encoding="utf-8"),
        "report.js": script,
        "dashboard.js": lambda: package_files.joinpath("dashboard.js").read_text(encoding="utf-8"),
    }
    name = request.path_params["name"]
    if name not in makers:
        return PlainTextResponse("no such file", 404)
    return Response(makers[name](), media_type="text/css" if name.endswith("css") else "text/javascript")


def serve(place: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, and call ``ready`` with the address and token as soon as the server answers."""
    config = uvicorn.Config("", host=HOST, port=port, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    listening = listening_socket(config, port)
    port = listening.getsockname()[1]
    access = Access(frozenset({f"{HOST}:{port}", f"localhost:{port}"}))
    application = Dashboard(place)
    config.app = application.app(access)
    address = f"http://{HOST}:{port}/?token={access.token}"
    PageServer(config, lambda: ready(address), application.announcer.close).run(sockets=[listening])


def listening_socket(config: uvicorn.Config, port: int) -> socket.socket:
    """Return the socket to listen at; refuse a port that is in use."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from None
    return listener


class PageServer(uvicorn.Server):
    """Server that reports when it is ready, and ends the streams of open pages before it stops."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], closing: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._closing = ready, closing

    async def startup(self, sockets: Any = None) -> None:
        """Start listening."""
        await super().startup(sockets=sockets)
        self._ready()

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop."""
        self._closing()
        await super().shutdown(sockets=sockets)
