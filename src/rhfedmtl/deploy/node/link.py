"""Streams between nodes: the lower end connects again whenever the link breaks, the upper end checks who calls.

Streams carry bytes; what they mean is up to the services. Everything that can wait has a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import numpy as np
from grpc import aio

from rhfedmtl import __version__
from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.deploy.node.credentials import Credentials, Identity, PeerCertificate, caller
from rhfedmtl.deploy.node.dialogues import Dialogue, StreamState, heard
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.server import LINK_S, Cutter, keep_alive
from rhfedmtl.deploy.node.state import writing
from rhfedmtl.deploy.node.states import Machine
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.deploy.wire.models import ModelMemory
from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.failpoints import failpoint
from rhfedmtl.roles.messages import FLOAT64

SERVICE = "rhfedmtl.v1"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0
MOST_UNSAID = 2048
"""Tries for a link between two lines in the log, at most: about an hour."""
GREETING_S = 10.0
GREETING_BYTES = 1 << 12
STREAMS = 2
"""Streams of one certificate that are heard at once: one that stands, and one that is to take its place."""
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


class NotReadyError(PeerError):
    """A caller did nothing wrong, but comes too early."""


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


async def first_message(context: Any) -> bytes:
    """Return the single message of a call; a caller that sends nothing is refused."""
    try:
        data = await asyncio.wait_for(context.read(), GREETING_S)
    except TimeoutError:
        raise PeerError("a call that says nothing") from None
    return b"" if data is aio.EOF else bytes(data)


class PeerSession:
    """The stream of one node below; a station may have thousands."""

    __slots__ = (
        *("_cut", "_dialogue", "_models", "_state", "heard", "incarnation", "number", "outbox", "peer"),
        *("process", "reason", "rests", "since", "withdraws"),
    )

    def __init__(
        self, dialogue: Dialogue, peer: PeerCertificate, context: Any, cut: Callable[[], object] = lambda: None
    ) -> None:
        self.peer = peer
        self._dialogue, self._cut = dialogue, cut
        self._state = Machine(dialogue.above, StreamState.GREETING)
        self.number = peer.identity.number
        self.outbox = Outbox(context.write)
        self._models = ModelMemory()
        self.since = time.time()
        self.heard = time.monotonic()
        self.reason = ""
        self.incarnation = 0
        self.rests = False
        self.withdraws = False
        self.process = ""

    def read(self, data: bytes) -> tuple[str, Any, Any]:
        """Name and content of what the peer said, and the message; what may not come now is refused."""
        found = heard(self._dialogue.up, data, self._state)
        self._models.heard(found[2])
        return found

    def send(self, **body: Any) -> bool:
        """Queue a message; a peer that does not read is cut off."""
        message = self._dialogue.down(**body)
        return bool(self.send_message(message.WhichOneof("body"), message))

    def send_message(self, name: str, message: Any, dtype: np.dtype[Any] = FLOAT64) -> int:
        """The same for a message with models of this type; how many bytes went out."""
        data = self._models.shortened(message, dtype).SerializeToString()
        if self.outbox.put(name, data):
            return len(data)
        self.end("it does not read what it is sent")
        return 0

    def end(self, reason: str) -> None:
        """Cut the connection."""
        if not self.reason:
            self.reason = reason
            self._cut()


class Rate:
    """So many messages a second, and as many at once."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left, self._at = per_second, time.monotonic()

    def allows(self) -> bool:
        """Count a message."""
        now = time.monotonic()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second) - 1.0
        self._at = now
        return self._left >= 0.0


Greeter = Callable[[PeerSession, wire.Hello], wire.Welcome]
Receiver = Callable[[PeerSession, bytes], Awaitable[None]]


class Acceptor:
    """The service that nodes below attach to: lets in who may, and drops who misbehaves; the others go on."""

    def __init__(
        self,
        dialogue: Dialogue,
        network: str,
        role: str,
        limits: Limits,
        log: Log,
        meters: Meters,
        *,
        greeting_s: float = GREETING_S,
    ) -> None:
        self._dialogue, self._network, self._role = dialogue, network, role
        self._limits, self._log, self._meters = limits, log, meters
        self.sessions: dict[int, PeerSession] = {}
        self.revoked: set[str] = set()
        self._serials: dict[int, str] = {}
        self._barred: dict[int, float] = {}
        self._rates: dict[int, Rate] = {}
        self._streams: Counter[str] = Counter()
        self._refused_last = ""
        self.refusals: dict[int, str] = {}
        """Why a node was refused last, until it is let in."""
        self.cutter = Cutter()
        self._greeting_s = greeting_s

    def handler(self, greet: Greeter, receive: Receiver, gone: Callable[[PeerSession], None]) -> grpc.GenericRpcHandler:
        """Handler of the service: ``greet`` answers a hello, ``receive`` takes what follows."""

        async def attach(_: Any, context: Any) -> None:
            session: PeerSession | None = None
            try:
                peer = caller(context.auth_context())
                with self._one_of_few(peer), self._noting_refusals(peer):
                    session = await self._let_in(peer, context, greet)
                    await self._converse(session, context, receive)
            except NotReadyError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            except PeerError as error:
                await self._refuse(context, session, str(error))
            except TimeoutError:
                await self._refuse(context, session, "no greeting in time")
            except (ValueError, TypeError, ArithmeticError) as error:
                # Nothing that a peer says may end more than its own stream.
                self._log.seldom("unexpected", "error", reason=f"{type(error).__name__}: {error}")
                await self._refuse(context, session, "a message that cannot be used")
            except asyncio.CancelledError:
                if session is None or not session.reason:
                    raise
                await self._refuse(context, session, session.reason)
            finally:
                self.cutter.add(context.peer())
                if session is not None and self.sessions.get(session.number) is session:
                    del self.sessions[session.number]
                    self._meters.connected.labels(self._role).set(len(self.sessions))
                    gone(session)

        method = grpc.stream_stream_rpc_method_handler(attach)
        return grpc.method_handlers_generic_handler(f"{SERVICE}.{self._dialogue.service}", {"Attach": method})

    @contextlib.contextmanager
    def _one_of_few(self, peer: PeerCertificate) -> Iterator[None]:
        """Hear few streams of one certificate at once: the others end before a word of them is read."""
        if self._streams[peer.serial] >= STREAMS:
            raise PeerError(f"{peer.identity} has {STREAMS} streams open already")
        self._streams[peer.serial] += 1
        try:
            yield
        finally:
            self._streams[peer.serial] -= 1
            if not self._streams[peer.serial]:
                del self._streams[peer.serial]

    @contextlib.contextmanager
    def _noting_refusals(self, peer: PeerCertificate) -> Iterator[None]:
        """Keep who was refused last: that is over when it is let in."""
        try:
            yield
        except PeerError as error:
            identity = peer.identity
            self._refused_last = str(identity)
            # A peer that has to wait was refused for an earlier reason.
            waits = isinstance(error, NotReadyError) or self.bars(identity.number)
            if (identity.network, identity.role) == (self._network, self._role) and not waits:
                self.refusals[identity.number] = f"refused: {error}"
            raise

    async def _let_in(self, peer: PeerCertificate, context: Any, greet: Greeter) -> PeerSession:
        who = peer.identity
        if who.network != self._network or who.role != self._role:
            raise PeerError(f"{who.uri} may not speak here: this is for {self._role}s of {self._network}")
        if peer.serial in self.revoked:
            raise PeerError(f"the certificate of {who} was revoked")
        if self.bars(who.number):
            raise PeerError(f"{who} misbehaved and is not let in for {self._limits.quarantine:g} s")
        data = await asyncio.wait_for(context.read(), self._greeting_s)
        if data is aio.EOF:
            raise NotReadyError("gone before a greeting")
        if len(data) > GREETING_BYTES:
            raise PeerError(f"a greeting of {len(data)} bytes: it may have {GREETING_BYTES}")
        task = asyncio.current_task()
        session = PeerSession(self._dialogue, peer, context, task.cancel if task else lambda: None)
        _, hello, _ = session.read(data)
        trouble = codec.check_version(hello)
        if trouble:
            raise PeerError(trouble)
        if hello.node != who.number or hello.network != who.network:
            raise PeerError(f"{who} says that it is {self._role} {hello.node} of {hello.network[:42]!r}")
        session.process = hello.process
        self._refuse_double(session)
        session.send(welcome=greet(session, hello))
        old = self.sessions.pop(who.number, None)
        if old is not None:
            old.end("another connection took its place")
        self.sessions[who.number] = session
        self.refusals.pop(who.number, None)
        self._meters.connected.labels(self._role).set(len(self.sessions))
        self._meters.connects.inc()
        if str(who) == self._refused_last:
            self._log.over("refused")
        self._log.seldom("connected", peer=str(who), serial=peer.serial, software=hello.software[:40])
        if (before := self._serials.get(who.number)) not in (None, peer.serial):
            self._log.seldom("new key", peer=str(who), serial=peer.serial, before=before)
        self._serials[who.number] = peer.serial
        return session

    def _refuse_double(self, session: PeerSession) -> None:
        """A node that runs twice is heard once: two that take each other's place would start anew again and again."""
        there = self.sessions.get(session.number)
        if there is not None and there.process != session.process:
            raise PeerError(
                f"{session.peer.identity} is connected already, by another process: does it run twice? If that one is "
                "gone, its connection ends within seconds"
            )

    async def _converse(self, session: PeerSession, context: Any, receive: Receiver) -> None:
        session.outbox.open()
        # One for each peer and not for each connection: who connects anew goes on with what it has left.
        rate = self._rates.setdefault(session.number, Rate(self._limits.messages))
        try:
            while (data := await context.read()) is not aio.EOF:
                session.heard = time.monotonic()
                self._meters.bytes.labels("up").inc(len(data))
                if not rate.allows():
                    raise PeerError(f"more than {self._limits.messages:g} messages a second")
                await receive(session, data)
        finally:
            await session.outbox.close(0.5)
            self._log.seldom("disconnected", peer=str(session.peer.identity), reason=session.reason)

    async def _refuse(self, context: Any, session: PeerSession | None, reason: str) -> None:
        """Tell the peer why, and end the call. Who misbehaves after it was let in has to wait."""
        if session is not None and not session.reason:
            self.bar(session.number)
            self._log.seldom(
                "quarantined", peer=str(session.peer.identity), reason=reason, seconds=self._limits.quarantine
            )
        self._meters.refused.labels("session" if session else "greeting").inc()
        peer = str(session.peer.identity) if session else context.peer()
        self._log.seldom("refused", "warning", peer=peer, reason=reason)
        refusal = self._dialogue.down(refusal=wire.Refusal(code="refused", reason=reason))
        with contextlib.suppress(Exception):
            await asyncio.wait_for(context.write(refusal.SerializeToString()), 1.0)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason[:400])

    def bar(self, number: int) -> None:
        """Do not let a node in for a while."""
        self._barred[number] = time.monotonic() + self._limits.quarantine

    def bars(self, number: int) -> bool:
        """Whether a node misbehaved, and is not let in for now."""
        return self._barred.get(number, 0.0) > time.monotonic()

    def end_expired(self) -> None:
        """Cut off whose certificate has come to its end: TLS looks at it only when a connection is made."""
        for session in list(self.sessions.values()):
            if session.peer.expired:
                session.end("its certificate has expired")

    def revoke(self, serials: set[str]) -> None:
        """Certificates that count no more; whoever is connected with one is cut off."""
        self.revoked = serials
        for session in list(self.sessions.values()):
            if session.peer.serial in serials:
                session.end("its certificate was revoked")
