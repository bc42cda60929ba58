"""A slow radio link between a terminal and its station: few bits a second, a latency, and segments that get lost."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

SEGMENT = 512


class SlowLink:
    """Carries TCP from one port to another. A segment that is lost comes a timeout later, and all after it too."""

    def __init__(self, listen: int, to: int, *, bits: float, latency: float, loss: float, seed: int = 0) -> None:
        self._listen, self._to, self._latency, self._loss = listen, to, latency, loss
        self._seconds_a_byte, self._random = 8.0 / bits, random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Any = None
        self.carried = self.lost = 0

    def __enter__(self) -> SlowLink:
        self._thread.start()
        start = asyncio.start_server(self._connect, "127.0.0.1", self._listen)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(10)
        self._loop.close()

    def _stop(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_later(0.2, self._loop.stop)

    async def _connect(self, reader: Any, writer: Any) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer), return_exceptions=True)

    async def _carry(self, reader: Any, writer: Any) -> None:
        """One way: a queue of segments, each with the time at which it arrives."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(8)
        deliver = asyncio.ensure_future(self._deliver(queue, writer))
        free = 0.0
        try:
            while data := await reader.read(SEGMENT):
                free = max(free, time.monotonic()) + len(data) * self._seconds_a_byte
                if self._random.random() < self._loss:
                    self.lost += 1
                    free += 2.0 * self._latency
                self.carried += len(data)
                await queue.put((free + self._latency, data))
        finally:
            await queue.put((0.0, b""))
            await deliver

    @staticmethod
    async def _deliver(queue: asyncio.Queue[tuple[float, bytes]], writer: Any) -> None:
        try:
            while (item := await queue.get())[1]:
                await asyncio.sleep(max(0.0, item[0] - time.monotonic()))
                writer.write(item[1])
                await writer.drain()
        finally:
            writer.close()
