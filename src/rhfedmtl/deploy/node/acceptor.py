"""The upper end of streams between nodes: `Acceptor` checks who connects, and limits each connected node.

Stations use it for their terminals, and the cloud for its stations. It reads the greeting of a stream; all later
messages go to the service unread.

Theory of operation. A stream passes these checks in order, and ends with the reason at the first that fails:

1. Certificate: TLS has checked the signature. The acceptor checks network, role, revocation and quarantine, and allows
   two streams per certificate: the current stream, and the stream that replaces it.
2. Greeting: at most 4 kB within ``greeting_s`` seconds. The protocol version must fit, and node number and network must
   match the certificate. A second process with the same certificate is refused while the first is connected.
3. Service: ``greet`` answers the hello with a welcome, or refuses it.
4. Messages: each goes to ``receive``, which finishes before the next is read. A node has a single rate limit for all
   its connections, so reconnecting does not help.

A node that breaks a rule after its greeting goes into quarantine for ``quarantine`` seconds. A node that comes too
early (`NotReadyError`) may try again at once. No error of a peer ends more than its own stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import numpy as np
from grpc import aio

from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.deploy.node.credentials import PeerCertificate, caller
from rhfedmtl.deploy.node.dialogues import Dialogue, StreamState, parse_message
from rhfedmtl.deploy.node.link import SERVICE, Outbox
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.server import Cutter
from rhfedmtl.deploy.node.states import Machine
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.deploy.wire.models import ModelMemory
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.encoding import FLOAT64

GREETING_S = 10.0
GREETING_BYTES = 1 << 12
STREAMS = 2
"""Streams of a certificate that are open at once: the present stream, and the stream that replaces it."""


class NotReadyError(PeerError):
    """The caller did nothing wrong but comes too early; it may try again."""


async def first_message(context: Any) -> bytes:
    """Return the single message of a call; a caller that sends nothing is refused."""
    try:
        data = await asyncio.wait_for(context.read(), GREETING_S)
    except TimeoutError:
        raise PeerError("a call that says nothing") from None
    return b"" if data is aio.EOF else bytes(data)


class PeerSession:
    """The stream of a node below; a station may have thousands.

    `Acceptor` creates it, and services send through it. It never reads from the network.
    """

    __slots__ = (
        *("_cut", "_dialogue", "_models", "_state", "incarnation", "last_heard", "number", "outbox", "peer"),
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
        self.last_heard = time.monotonic()
        self.reason = ""
        self.incarnation = 0
        self.rests = False
        self.withdraws = False
        self.process = ""

    def read(self, data: bytes) -> tuple[str, Any, Any]:
        """Return name and content of a message of the peer, and the message; refuse a message out of turn."""
        name, content, message = parse_message(self._dialogue.up, data, self._state)
        self._models.heard(message)
        return name, content, message

    def send(self, **body: Any) -> bool:
        """Queue a message; cut off a peer that does not read its messages."""
        message = self._dialogue.down(**body)
        return bool(self.send_message(message.WhichOneof("body"), message))

    def send_message(self, name: str, message: Any, dtype: np.dtype[Any] = FLOAT64) -> int:
        """Queue a message with models of this type, and return its bytes."""
        data = self._models.shortened(message, dtype).SerializeToString()
        if self.outbox.put(name, data):
            return len(data)
        self.end("it does not read its messages")
        return 0

    def end(self, reason: str) -> None:
        """Cut the connection."""
        if not self.reason:
            self.reason = reason
            self._cut()


class Rate:
    """Rate limit: so many messages per second, and in a burst."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left, self._at = per_second, time.monotonic()

    def allows(self) -> bool:
        """Count a message; return False if it exceeds the limit."""
        now = time.monotonic()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second) - 1.0
        self._at = now
        return self._left >= 0.0


Greeter = Callable[[PeerSession, wire.Hello], wire.Welcome]
Receiver = Callable[[PeerSession, bytes], Awaitable[None]]


class Acceptor:
    """The gRPC service that nodes below attach to: it lets nodes in, and drops nodes that misbehave.

    A service gives it three functions: for greetings, messages, and ends of streams. A dropped node stays out for a
    while, and the other nodes go on. It never looks at a message after the greeting.
    """

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
        """The last reason to refuse a node, until it may come in."""
        self.cutter = Cutter()
        self._greeting_s = greeting_s

    def handler(
        self, greet: Greeter, receive: Receiver, on_end: Callable[[PeerSession], None]
    ) -> grpc.GenericRpcHandler:
        """Return the gRPC handler of the service.

        ``greet`` answers a hello, ``receive`` takes the messages that follow, ``on_end`` is called when a stream ends.
        """

        async def attach(_: Any, context: Any) -> None:
            session: PeerSession | None = None
            try:
                peer = caller(context.auth_context())
                with self._stream_of(peer):
                    session = await self._let_in(peer, context, greet)
                    await self._converse(session, context, receive)
            except NotReadyError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            except PeerError as error:
                await self._refuse(context, session, str(error))
            except TimeoutError:
                await self._refuse(context, session, "no greeting in time")
            except (ValueError, TypeError, ArithmeticError) as error:
                # A message of a peer must not end more than the stream of that peer.
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
                    on_end(session)

        method = grpc.stream_stream_rpc_method_handler(attach)
        return grpc.method_handlers_generic_handler(f"{SERVICE}.{self._dialogue.service}", {"Attach": method})

    @contextlib.contextmanager
    def _stream_of(self, peer: PeerCertificate) -> Iterator[None]:
        """Limit the streams of a certificate, and keep the reason if this stream is refused.

        Further streams end before any of their messages is read.
        """
        identity, serial = peer.identity, peer.serial
        if self._streams[serial] >= STREAMS:
            raise PeerError(f"{identity} has {STREAMS} streams open already")
        self._streams[serial] += 1
        try:
            yield
        except PeerError as error:
            self._refused_last = str(identity)
            # A peer that has to wait was refused for an earlier reason.
            waits = isinstance(error, NotReadyError) or self.bars(identity.number)
            if (identity.network, identity.role) == (self._network, self._role) and not waits:
                self.refusals[identity.number] = f"refused: {error}"
            raise
        finally:
            self._streams[serial] -= 1
            if not self._streams[serial]:
                del self._streams[serial]

    async def _let_in(self, peer: PeerCertificate, context: Any, greet: Greeter) -> PeerSession:
        identity = peer.identity
        if identity.network != self._network or identity.role != self._role:
            raise PeerError(f"{identity.uri} may not speak here: this is for {self._role}s of {self._network}")
        if peer.serial in self.revoked:
            raise PeerError(f"the certificate of {identity} was revoked")
        if self.bars(identity.number):
            raise PeerError(f"{identity} misbehaved and is not let in for {self._limits.quarantine:g} s")
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
        if hello.node != identity.number or hello.network != identity.network:
            raise PeerError(f"{identity} says that it is {self._role} {hello.node} of {hello.network[:42]!r}")
        session.process = hello.process
        old = self.sessions.get(identity.number)
        # Two processes that take each other's place would start again and again.
        if old is not None and old.process != session.process:
            raise PeerError(
                f"{identity} is connected already, by another process: does it run twice? If that process has ended, "
                "its connection ends within seconds"
            )
        session.send(welcome=greet(session, hello))
        old = self.sessions.pop(identity.number, None)
        if old is not None:
            old.end("another connection took its place")
        self.sessions[identity.number] = session
        self.refusals.pop(identity.number, None)
        self._meters.connected.labels(self._role).set(len(self.sessions))
        self._meters.connects.inc()
        if str(identity) == self._refused_last:
            self._log.over("refused")
        self._log.seldom("connected", peer=str(identity), serial=peer.serial, software=hello.software[:40])
        if (before := self._serials.get(identity.number)) not in (None, peer.serial):
            self._log.seldom("new key", peer=str(identity), serial=peer.serial, before=before)
        self._serials[identity.number] = peer.serial
        return session

    async def _converse(self, session: PeerSession, context: Any, receive: Receiver) -> None:
        session.outbox.open()
        # A peer has a single rate for all its connections: it cannot reconnect for a new one.
        rate = self._rates.setdefault(session.number, Rate(self._limits.messages))
        try:
            while (data := await context.read()) is not aio.EOF:
                session.last_heard = time.monotonic()
                self._meters.bytes.labels("up").inc(len(data))
                if not rate.allows():
                    raise PeerError(f"more than {self._limits.messages:g} messages a second")
                await receive(session, data)
        finally:
            await session.outbox.close(0.5)
            self._log.seldom("disconnected", peer=str(session.peer.identity), reason=session.reason)

    async def _refuse(self, context: Any, session: PeerSession | None, reason: str) -> None:
        """Tell the peer why, and end the call. A peer that misbehaves after its greeting has to wait."""
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
        """Put a node into quarantine: refuse it for ``limits.quarantine`` seconds."""
        self._barred[number] = time.monotonic() + self._limits.quarantine

    def bars(self, number: int) -> bool:
        """Return True if a node is in quarantine."""
        return self._barred.get(number, 0.0) > time.monotonic()

    def end_expired(self) -> None:
        """Cut off nodes with an expired certificate: TLS checks it only when a connection begins."""
        for session in list(self.sessions.values()):
            if session.peer.expired:
                session.end("its certificate has expired")

    def revoke(self, serials: set[str]) -> None:
        """Refuse these certificates from now on, and cut off nodes that are connected with them."""
        self.revoked = serials
        for session in list(self.sessions.values()):
            if session.peer.serial in serials:
                session.end("its certificate was revoked")
