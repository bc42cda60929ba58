"""A link that misbehaves: stands between nodes, speaks TLS to both, and delays, repeats, reorders and cuts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from rhfedmtl.deploy.node.credentials import Credentials, Identity, caller
from rhfedmtl.deploy.node.link import channel_options
from rhfedmtl.deploy.node.server import server_options

LARGEST = 1 << 26


class Mischief:
    """What is done to messages, drawn from a seed; counted by kind."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.rate = 0.0

    def next(self) -> tuple[str, float]:
        """What happens to the next message, and for how long."""
        if self._random.random() >= self.rate:
            return "", 0.0
        kind = self._random.choice(("repeat", "repeat", "delay", "delay", "overtake", "cut"))
        self.done[kind] += 1
        return kind, self._random.uniform(0.01, 0.4)


class Proxy:
    """Stands in front of one node (cloud or station), and calls it, with the credentials of both sides."""

    def __init__(self, network: Path, name: str, listen: str, address: str, mischief: Mischief) -> None:
        self._network, self._listen, self._address, self._mischief = network, listen, address, mischief
        self._credentials = Credentials.of(network / name)
        self._above: Identity = self._credentials.peer.identity
        self._method = "/rhfedmtl.v1.Cloud/Attach" if name == "cloud" else "/rhfedmtl.v1.Station/Attach"
        self._server: Any = None

    async def start(self) -> None:
        """Begin to listen."""
        self._server = aio.server(options=server_options(1000, LARGEST))
        service = self._method.split("/")[1]
        handler = grpc.stream_stream_rpc_method_handler(self._attach)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Attach": handler}),))
        self._server.add_secure_port(self._listen, self._credentials.server())
        await self._server.start()

    async def stop(self) -> None:
        """End all streams."""
        await self._server.stop(0.1)

    async def _attach(self, _: Any, context: Any) -> None:
        who = caller(context.auth_context()).identity
        credentials = Credentials.of(self._network / f"{who.role}-{who.number}")
        async with aio.secure_channel(
            self._address, credentials.client(), options=channel_options(self._above, LARGEST)
        ) as channel:
            call = channel.stream_stream(self._method)()
            ways = [
                asyncio.create_task(self._pump(context.read, call.write)),
                asyncio.create_task(self._pump(call.read, context.write)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await asyncio.gather(*ways, return_exceptions=True)
                call.cancel()

    async def _pump(self, read: Any, write: Any) -> None:
        """Carry messages one way; the first, a greeting, is left alone."""
        late: set[asyncio.Task[Any]] = set()
        first, one_by_one = True, asyncio.Lock()

        async def put(data: bytes, seconds: float = 0.0) -> None:
            if seconds:
                await asyncio.sleep(seconds)
            async with one_by_one:
                await write(data)

        def over(task: asyncio.Task[Any]) -> None:
            late.discard(task)
            if not task.cancelled():
                task.exception()  # the stream may have ended before a message that was overtaken

        while (data := await read()) is not aio.EOF:
            kind, seconds = ("", 0.0) if first else self._mischief.next()
            first = False
            if kind == "cut":
                return
            if kind == "delay":
                await asyncio.sleep(seconds)
            if kind == "overtake":
                task = asyncio.create_task(put(data, seconds))
                late.add(task)
                task.add_done_callback(over)
                continue
            await put(data)
            if kind == "repeat":
                await put(data)


class Proxies:
    """All proxies of a network, in a thread with an event loop of its own."""

    def __init__(self, proxies: list[Proxy]) -> None:
        self._proxies = proxies
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxies:
        self._thread.start()
        for proxy in self._proxies:
            asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result(20)
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            asyncio.run_coroutine_threadsafe(proxy.stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
