"""The lower end of a stream between nodes: `Uplink` keeps a stream to the node above, and reconnects after a break.

Terminals use it to reach their station, and stations to reach the cloud. It moves messages and knows nothing of their
meaning: the service passes in a function that takes them.

Theory of operation:

1. `Uplink.run` asks its caller where the node above is, opens a TLS channel, and starts the call ``Attach``.
2. It sends a hello and then reads message after message. Each is checked against the table of its dialogue and
   passed to the service, which finishes before the next message is read. A slow service thus slows down the sender.
3. `Uplink.send` never waits. It puts the message into an `Outbox`, and a separate task writes to the stream. If 64
   messages wait, the peer does not read, and the stream is cut.
4. After a break, `run` waits (0.05 seconds at first, doubled after each failure up to 2 seconds, with jitter) and
   starts again at step 1. Messages in the outbox are lost. This does no harm: on the new stream, the node above repeats
   its questions.
5. `Uplink.rest` ends the stream in an orderly way and stops reconnecting until the reason to rest has passed.

A full disk (`UnwrittenError`) ends the node; errors of the connection or the peer (`STREAM_ERRORS`) end only the
stream. Every wait has a time limit.
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
from rhfedmtl.deploy.node.dialogues import Dialogue, StreamState, parse_message
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
MAX_TRIES_UNLOGGED = 2048
"""The log has a line at least after this many failed tries to connect: about an hour."""
MAX_QUEUED = 64
"""Cut the connection if more messages wait for a peer that does not read."""

FAREWELL_S = 30.0
"""Time limit for the last messages before a rest."""

Account = Callable[[str, str, int], bool]
"""Called for each message with direction ("up" or "down"), kind and bytes; returns False if it must not leave."""


def channel_options(above: Identity, message_bytes: int, link: float = LINK_S) -> list[tuple[str, Any]]:
    """Return the options of a channel to the node above. Its certificate must carry the host name of ``above``."""
    return [
        *keep_alive(link),
        ("grpc.ssl_target_name_override", above.host),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        # Several nodes may share a process, but not a connection, because each node has its own certificate.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]


STREAM_ERRORS = (PeerError, ConfigError, OSError, aio.InternalError, aio.UsageError, asyncio.InvalidStateError)
"""Errors that end a stream but not the node, which then reconnects."""


class Outbox:
    """Queue of messages for a stream, written in order. A task exists only while messages wait."""

    __slots__ = ("_opened", "_pump", "_waiting", "_write")

    def __init__(self, write: Callable[[bytes], Awaitable[Any]]) -> None:
        self._write = write
        self._waiting: list[tuple[str, bytes]] = []
        self._pump: asyncio.Task[None] | None = None
        self._opened = False

    def put(self, name: str, data: bytes) -> bool:
        """Queue a message; return False if the queue is full because the peer reads too slowly."""
        if len(self._waiting) >= MAX_QUEUED:
            return False
        self._waiting.append((name, data))
        self._start()
        return True

    def open(self) -> None:
        """Start to write."""
        self._opened = True
        self._start()

    async def close(self, seconds: float) -> None:
        """Write the waiting messages for at most ``seconds``, then end. A write in progress gets the same time."""
        self._opened, pump = False, self._pump
        if pump is None:
            return
        done, _ = await asyncio.wait([pump], timeout=seconds)
        if not done:
            pump.cancel()
            await asyncio.wait([pump], timeout=1.0)
        elif not pump.cancelled():
            pump.exception()  # mark it as seen: the task that reads the stream reports the break

    def _start(self) -> None:
        if self._opened and self._waiting and self._pump is None:
            self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Write the waiting messages. If a write fails, the dead task stays in `_pump`, and nothing more is written."""
        while self._waiting:
            name, data = self._waiting.pop(0)
            failpoint("send", name, "before")
            await self._write(data)
            failpoint("send", name, "after")
        self._pump = None


class Uplink:
    """The stream to the node above.

    Parameters
    ----------
    dialogue : Dialogue
        The messages of both directions and their order.
    credentials : Credentials
        Key and certificate of this node; `renew` reconnects after they changed on disk.
    greet : callable
        Returns the fields that the service adds to the hello of a new stream.
    receive : coroutine function
        Takes name and content of each message except refusals and drains.
    message_bytes : int
        Limit for a received message.
    account : callable
        Called for each message; may keep a message from leaving (see `Account`).
    link : float
        Seconds that the peer may take for a handshake or a ping.

    Attributes
    ----------
    resting : str
        The reason for having no stream; empty if a stream is wanted.
    closing : bool
        True if `run` should end after the current stream.
    trouble : str
        Why the last stream ended, for the log.
    """

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
        self._identity = credentials.peer.identity
        self._process = secrets.token_hex(8)
        self._was_connected = False
        self._tries = 0
        self._awake = asyncio.Event()
        self._awake.set()
        self._farewell: asyncio.Task[None] | None = None
        self.resting = ""
        self.closing = False
        self.trouble = "not connected yet"

    @property
    def connected(self) -> bool:
        """True if there is a stream now."""
        return self._outbox is not None

    def send(self, **body: Any) -> bool:
        """Queue a message; return False if there is no stream or the account does not allow it.

        If the queue is full, reconnect: on the new stream, the node above repeats its questions.
        """
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
        self.reconnect()
        return False

    def hello(self) -> bytes:
        """Return the hello, the first message of a stream."""
        self._session_state.on("hello")
        self._models = ModelMemory()
        me = self._identity
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
        """Take a message from above. A message out of turn, or a refusal, raises `PeerError` and ends the stream."""
        name, content, message = parse_message(self._dialogue.down, data, self._session_state)
        self._models.restore(message)
        self._meters.messages.labels("down", name).inc()
        with writing():
            self._account("down", name, len(data))
            if name == "refusal":
                raise PeerError(content.reason)
            if name != "drain":  # the node above shuts down: the link will break, and `run` reconnects
                await self._receive(name, content)

    async def run(self, target: Callable[[], tuple[Identity, str]]) -> None:
        """Keep a stream to the node and address that ``target()`` returns, until `close`."""
        wait = FIRST_WAIT_S
        while not self.closing:
            await self._awake.wait()
            began = time.monotonic()
            above, address = target()
            try:
                await self._session(above, address)
                self.trouble = "the node above ended the stream"
            except aio.AioRpcError as error:
                self.trouble = f"{error.code().name}: {error.details()}"
            except STREAM_ERRORS as error:
                self.trouble = str(error) or type(error).__name__
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self.trouble = "connecting again"  # `reconnect` cancelled the call, not this task
            if not (self.closing or self.resting):
                self._log_no_link(above, address)
                wait = FIRST_WAIT_S if time.monotonic() - began > 5.0 else min(2.0 * wait, LONGEST_WAIT_S)
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    def _log_no_link(self, above: Identity, address: str) -> None:
        """Log failed try number 1, 2, 4, 8, …, so the log of a node that is cut off for days stays short."""
        self._tries += 1
        if self._tries & (self._tries - 1) == 0 or self._tries % MAX_TRIES_UNLOGGED == 0:
            level = "warning" if self._was_connected else "info"  # at first, the node above may still be starting
            facts = {"above": str(above), "address": address, "tries": self._tries}
            self._log("no link", level, **facts, reason=self.trouble)

    def _note_link(self, above: Identity) -> None:
        """Note that the node above has answered, and clear the warning about the link."""
        self._was_connected = True
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

    def reconnect(self) -> None:
        """End the stream, so `run` opens a new stream: to another address, or with new credentials."""
        if self._call is not None:
            self._call.cancel()

    def rest(self, reason: str) -> None:
        """End the stream after the waiting messages, and stay disconnected while ``reason`` is not empty.

        An empty reason ends the rest.
        """
        if bool(reason) != bool(self.resting):
            self._log("resting" if reason else "going on", reason=reason or self.resting)
        self.resting = reason
        if not reason:
            self._awake.set()
        elif self._awake.is_set():
            self._awake.clear()
            self._farewell = asyncio.get_running_loop().create_task(self._take_leave())

    async def _take_leave(self) -> None:
        """Ask the node above to end the stream, so no message is lost. If it does not, end the stream from here."""
        self.send(rest=wire.Nothing())
        outbox, call, self._outbox = self._outbox, self._call, None
        if outbox is None or call is None:
            return self.reconnect()
        await outbox.close(FAREWELL_S)
        with contextlib.suppress(*STREAM_ERRORS, aio.AioRpcError, asyncio.CancelledError):
            await call.done_writing()
            await asyncio.wait_for(call.code(), FAREWELL_S)
        call.cancel()
        return None

    def renew(self) -> bool:
        """Reconnect if the credentials have changed on disk; return True if so."""
        stamp = self._credentials.stamp()
        if not self._stamp or stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._credentials.check(self._identity)
        except RHFedMTLError as error:  # the files may be half copied; the stream goes on with the old credentials
            self._log("new credentials cannot be used", "warning", reason=str(error))
            return False
        self._log("new credentials", reason="certificate or authorities changed: connecting again")
        self.reconnect()
        return True

    async def close(self) -> None:
        """Send the waiting messages for at most a second, then end."""
        self.closing = True
        self._awake.set()
        if self._outbox is not None:
            await self._outbox.close(1.0)
        self.reconnect()
