"""The lower end of a stream between nodes: it connects again whenever the link breaks.

Streams carry bytes; services give them a meaning. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from rhfedmtl import __version__
from rhfedmtl.deploy.node.credentials import Credentials, Identity
from rhfedmtl.deploy.node.dialogues import Dialogue, StreamState, heard
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.server import LINK_S, keep_alive
from rhfedmtl.deploy.node.state import writing
from rhfedmtl.deploy.node.states import Machine
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.deploy.wire.models import ModelMemory
from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.failpoints import failpoint

SERVICE = "rhfedmtl.v1"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0
MOST_UNSAID = 2048
"""Tries for a link between two lines in the log, at most: about an hour."""
QUEUED = 64
"""Messages that wait for a peer that does not read; more cut the connection."""

FAREWELL_S = 30.0
"""How long the last messages may take before a rest."""

Account = Callable[[str, str, int], bool]
"""Is told of each message, by way, kind and bytes; says whether one that goes up may leave."""


def channel_options(above: Identity, message_bytes: int, link: float = LINK_S) -> list[tuple[str, Any]]:
    """Options of a channel to the node above, which must have the name that its certificate should carry."""
    return [
        *keep_alive(link),
        ("grpc.ssl_target_name_override", above.host),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        # Several nodes of one process must not share a connection: each has its own certificate.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]


BROKEN = (PeerError, ConfigError, OSError, aio.InternalError, aio.UsageError, asyncio.InvalidStateError)
"""What ends a stream, and not the node: it tries again."""


class Outbox:
    """Messages that wait to be written to one stream, in their order; a task lives only while there are some."""

    __slots__ = ("_opened", "_pump", "_waiting", "_write")

    def __init__(self, write: Callable[[bytes], Awaitable[Any]]) -> None:
        self._write = write
        self._waiting: list[tuple[str, bytes]] = []
        self._pump: asyncio.Task[None] | None = None
        self._opened = False

    def put(self, name: str, data: bytes) -> bool:
        """Queue a message; False where the peer reads too slowly."""
        if len(self._waiting) >= QUEUED:
            return False
        self._waiting.append((name, data))
        self._begin()
        return True

    def open(self) -> None:
        """Begin to write."""
        self._opened = True
        self._begin()

    async def close(self, seconds: float) -> None:
        """Write what waits, for so long, and end; a write that is under way is not broken off sooner."""
        self._opened, pump = False, self._pump
        if pump is None:
            return
        done, _ = await asyncio.wait([pump], timeout=seconds)
        if not done:
            pump.cancel()
            await asyncio.wait([pump], timeout=1.0)
        elif not pump.cancelled():
            pump.exception()  # the stream broke: whoever reads it says so

    def _begin(self) -> None:
        if self._opened and self._waiting and self._pump is None:
            self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Write what waits; where a write fails the task stays, so that nothing more is written."""
        while self._waiting:
            name, data = self._waiting.pop(0)
            failpoint("send", name, "before")
            await self._write(data)
            failpoint("send", name, "after")
        self._pump = None


class Uplink:
    """The stream to the node above."""

    def __init__(
        self,
        dialogue: Dialogue,
        credentials: Credentials,
        greet: Callable[[], wire.Hello],
        receive: Callable[[str, Any], Awaitable[None]],
        log: Log,
        meters: Meters,
        message_bytes: int,
        account: Account = lambda *_: True,
        link: float = LINK_S,
    ) -> None:
        self._dialogue, self._session_state = dialogue, Machine(dialogue.below, StreamState.GREETING)
        self._credentials, self._greet, self._receive = credentials, greet, receive
        self._log, self._meters, self._message_bytes = log, meters, message_bytes
        self._account, self._link = account, link
        self._models = ModelMemory()
        self._outbox: Outbox | None = None
        self._call: Any = None
        self._stamp: tuple[int, ...] = ()
        self._me = credentials.peer.identity
        self._process = secrets.token_hex(8)
        self._stood = False
        self._tries = 0
        self._awake = asyncio.Event()
        self._awake.set()
        self._farewell: asyncio.Task[None] | None = None
        self.resting = ""
        self.closing = False
        self.trouble = "not connected yet"

    @property
    def connected(self) -> bool:
        """Whether there is a stream now."""
        return self._outbox is not None

    def send(self, **body: Any) -> bool:
        """Queue a message; False where there is no stream. One that is stuck is made anew: then all is asked again."""
        message = self._dialogue.up(**body)
        self._models.heard(message)
        name = message.WhichOneof("body")
        self._meters.messages.labels("up", name).inc()
        if self._outbox is None:
            return False
        data = message.SerializeToString()
        if not self._account("up", name, len(data)):
            return False
        self._meters.bytes.labels("up").inc(len(data))
        if self._outbox.put(name, data):
            return True
        self.again()
        return False

    def hello(self) -> bytes:
        """The greeting with which a stream begins."""
        self._session_state.on("hello")
        self._models = ModelMemory()
        me = self._me
        hello = wire.Hello(
            oldest=codec.PROTOCOL,
            newest=codec.PROTOCOL,
            network=me.network,
            software=__version__,
            node=me.number,
            process=self._process,
        )
        hello.MergeFrom(self._greet())
        return bytes(self._dialogue.up(hello=hello).SerializeToString())

    async def receive(self, data: bytes) -> None:
        """Take a message from above: what may not come now, and a refusal, end the stream."""
        name, content, message = heard(self._dialogue.down, data, self._session_state)
        self._models.restore(message)
        self._meters.messages.labels("down", name).inc()
        with writing():
            self._account("down", name, len(data))
            if name == "refusal":
                raise PeerError(content.reason)
            if name != "drain":  # the node above goes away for a while: the link will break, and be made again
                await self._receive(name, content)

    async def run(self, where: Callable[[], tuple[Identity, str]]) -> None:
        """Keep a stream to ``where()``, until `close`."""
        wait = FIRST_WAIT_S
        while not self.closing:
            await self._awake.wait()
            began = time.monotonic()
            above, address = where()
            try:
                await self._session(above, address)
                self.trouble = "the node above ended the stream"
            except aio.AioRpcError as error:
                self.trouble = f"{error.code().name}: {error.details()}"
            except BROKEN as error:
                self.trouble = str(error) or type(error).__name__
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self.trouble = "connecting anew"  # the call was cancelled by `again`, not this task
            if not (self.closing or self.resting):
                self._say_no_link(above, address)
                wait = FIRST_WAIT_S if time.monotonic() - began > 5.0 else min(2.0 * wait, LONGEST_WAIT_S)
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    def _say_no_link(self, above: Identity, address: str) -> None:
        """Log the first try that failed, the second, the fourth ...: a node that is alone for days fills no disk."""
        self._tries += 1
        if self._tries & (self._tries - 1) == 0 or self._tries % MOST_UNSAID == 0:
            level = "warning" if self._stood else "info"  # before the first time, others may just be starting
            facts = {"above": str(above), "address": address, "tries": self._tries}
            self._log("no link", level, **facts, reason=self.trouble)

    def _note_link(self, above: Identity) -> None:
        """The node above has answered: what was said of the link is over."""
        self._stood = True
        self._meters.connected.labels(above.role).inc()
        self._log.over("no link")
        if self._tries:
            self._log("linked", above=str(above), tries=self._tries)
            self._tries = 0

    async def _session(self, above: Identity, address: str) -> None:
        self._stamp = self._credentials.stamp()
        credentials, options = self._credentials.client(), channel_options(above, self._message_bytes, self._link)
        async with aio.secure_channel(address, credentials, options=options) as channel:
            call = self._call = channel.stream_stream(f"/{SERVICE}.{self._dialogue.service}/Attach")()
            outbox, linked = Outbox(call.write), False
            try:
                hello = self.hello()
                failpoint("send", "hello", "before")
                await asyncio.wait_for(call.write(hello), 2.0 * self._link)
                failpoint("send", "hello", "after")
                with writing():
                    self._account("up", "hello", len(hello))
                outbox.open()
                self._outbox = outbox
                self._meters.connects.inc()
                while (data := await call.read()) is not aio.EOF:
                    self._meters.bytes.labels("down").inc(len(data))
                    await self.receive(data)
                    if not linked:
                        linked = True
                        self._note_link(above)
                if await call.code() is not grpc.StatusCode.OK:
                    raise PeerError(f"{(await call.code()).name}: {await call.details()}")
            finally:
                if linked:
                    self._meters.connected.labels(above.role).dec()
                self._outbox = None
                await outbox.close(0.5)
                call.cancel()

    def again(self) -> None:
        """End the stream and make it anew: for another place, or with new credentials."""
        if self._call is not None:
            self._call.cancel()

    def rest(self, reason: str) -> None:
        """End the stream once what waits is written, and make none while there is a reason to rest."""
        if bool(reason) != bool(self.resting):
            self._log("resting" if reason else "going on", reason=reason or self.resting)
        self.resting = reason
        if not reason:
            self._awake.set()
        elif self._awake.is_set():
            self._awake.clear()
            self._farewell = asyncio.get_running_loop().create_task(self._take_leave())

    async def _take_leave(self) -> None:
        """Let the node above end the stream, so that nothing is lost; one that does not is left alone."""
        self.send(rest=wire.Nothing())
        outbox, call, self._outbox = self._outbox, self._call, None
        if outbox is None or call is None:
            return self.again()
        await outbox.close(FAREWELL_S)
        with contextlib.suppress(*BROKEN, aio.AioRpcError, asyncio.CancelledError):
            await call.done_writing()
            await asyncio.wait_for(call.code(), FAREWELL_S)
        call.cancel()
        return None

    def renew(self) -> bool:
        """Connect anew if the credentials have changed."""
        stamp = self._credentials.stamp()
        if not self._stamp or stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._credentials.check(self._me)
        except RHFedMTLError as error:  # being copied, perhaps; the connection stands with the old ones meanwhile
            self._log("new credentials cannot be used", "warning", reason=str(error))
            return False
        self._log("new credentials", reason="certificate or authorities changed: connecting again")
        self.again()
        return True

    async def close(self) -> None:
        """Send what waits, and end."""
        self.closing = True
        self._awake.set()
        if self._outbox is not None:
            await self._outbox.close(1.0)
        self.again()
