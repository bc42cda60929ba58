"""What operators see: structured logs, Prometheus metrics and gRPC health of one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import Any

from grpc import aio

from rhfedmtl.deploy.node.audit import AuditTrail
from rhfedmtl.errors import ConfigError, MissingExtraError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
WHILE_S, LINES = 10.0, 50
FADES_S = 600.0
"""How long the status tells of what a peer has caused."""
AUDITED = {
    *("connected", "refused", "quarantined", "excluded", "members", "forgotten", "withdrawn", "new key"),
    *("certificate asked for", "enrolled", "enrolment refused", "command refused"),
    *("training begins", "training ended", "training failed", "training broke"),
    *("journal behind", "journal cut", "state damaged", "begins anew"),
}
"""Events that are also written into the audit trail, where a node keeps one; not those that come ``again``."""
CALLERS, SHOW_S = 64, 5.0
"""At the windows for operators, at once; and how long one of them may take."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Log:
    """One JSON object on a line of standard error for each event; `last_error` is for the status, until it is over."""

    def __init__(self, node: str, level: str = "info") -> None:
        if level not in LEVELS:
            raise ConfigError(f"log level {level!r}: choose from {', '.join(LEVELS)}")
        self._least = LEVELS[level]
        self._node = node
        self._errors: dict[str, str] = {}
        self._fades: dict[str, float] = {}
        self.trail: AuditTrail | None = None
        self._seldom: dict[str, tuple[float, int]] = {}

    def __call__(self, event: str, level: str = "info", **facts: Any) -> None:
        """Write an event down."""
        if level in ("warning", "error"):
            self._errors.pop(event, None)  # the latest is the last one
            self._errors[event] = f"{event}: {facts.get('reason', '')}".rstrip(": ")
        if self.trail is not None and event in AUDITED and not facts.get("again"):
            self._note(self.trail, event, facts)
        if LEVELS[level] < self._least:
            return
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": stamp, "level": level, "node": self._node, "event": event, **facts}
        sys.stderr.write(json.dumps(line, default=str) + "\n")
        sys.stderr.flush()

    def _note(self, trail: AuditTrail, event: str, facts: dict[str, Any]) -> None:
        try:
            trail.add(event, str(facts.get("peer", self._node)), **{k: v for k, v in facts.items() if k != "peer"})
            self.over("no audit trail")
        except OSError as error:
            self("no audit trail", "error", reason=f"{trail.path}: {error.strerror}")

    @property
    def last_error(self) -> str:
        """The last warning or error that is not over; what peers cause is over after a while."""
        now = time.monotonic()
        return next((self._errors[e] for e in reversed(self._errors) if self._fades.get(e, now) >= now), "")

    def over(self, *events: str) -> None:
        """Say that what these told of has passed."""
        for event in events:
            self._errors.pop(event, None)

    def seldom(self, event: str, level: str = "info", **facts: Any) -> None:
        """The same for what peers can cause as often as they like: few lines, then how many were left out."""
        now, (began, count) = time.monotonic(), self._seldom.get(event, (-math.inf, 0))
        if now - began > WHILE_S:
            facts |= {"left_out": count - LINES} if count > LINES else {}
            began, count = now, 0
        self._seldom[event], self._fades[event] = (began, count + 1), now + FADES_S
        if count < LINES:
            self(event, level, **facts)


class _Unread:
    """A meter that is not shown: it forgets all values."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take name, words and labels of a meter."""

    def labels(self, *_: str) -> _Unread:
        """The same for every label."""
        return self

    def inc(self, _: float = 1.0) -> None:
        """Forget it."""

    set = observe = dec = inc

    def set_function(self, _: Callable[[], float]) -> None:
        """Forget it."""

    def time(self) -> contextlib.AbstractContextManager[None]:
        """Measure nothing."""
        return contextlib.nullcontext()


class Meters:
    """Metrics of one process; names begin with ``rhfedmtl_``. They are kept only where they are shown to somebody."""

    def __init__(self, *, shown: bool = False) -> None:
        counter: Any = _Unread
        gauge: Any = _Unread
        histogram: Any = _Unread
        if shown:
            _need("prometheus_client", "node.metrics")
            import prometheus_client

            self.registry = prometheus_client.CollectorRegistry()
            prometheus_client.ProcessCollector(registry=self.registry)
            counter, gauge = prometheus_client.Counter, prometheus_client.Gauge
            histogram = partial(prometheus_client.Histogram, buckets=SECONDS)
        of: dict[str, Any] = {"registry": self.registry, "namespace": "rhfedmtl"} if shown else {}
        self.messages = counter("messages", "Messages by direction and kind", ["way", "kind"], **of)
        self.bytes = counter("bytes", "Bytes of messages by direction", ["way"], **of)
        self.refused = counter("refused", "Peers and messages that were refused, by reason", ["reason"], **of)
        self.connects = counter("connects", "Connections made to the node above, or from nodes below", **of)
        self.connected = gauge("connected", "Nodes connected now, above and below, by role", ["role"], **of)
        self.round = gauge("round", "Last round", **of)
        self.rounds = histogram("round_seconds", "Seconds of a round at a station", **of)
        self.work = histogram("work_seconds", "Seconds of a terminal's work for one order", **of)
        self.saves = histogram("save_seconds", "Seconds to write state down", **of)
        self.credentials = gauge("certificate_left_seconds", "Seconds until the certificate of this node expires", **of)
        self.gap = gauge("gap", "Duality gap of the latest certificate", **of)
        self.accuracy = gauge("test_metric", "Mean over tasks of test metrics", ["metric"], **of)
        self.spent = gauge("spent", "What was spent, by type", ["type"], **of)
        self.left = gauge("left", "What is left of a budget, by type", ["type"], **of)


def _need(package: str, setting: str) -> None:
    if find_spec(package) is None:
        raise MissingExtraError(f"{setting} needs {package}: pip install 'rhfedmtl[deploy]', or leave it empty")


class Window:
    """The local addresses of a process for Prometheus and for health checks."""

    def __init__(self, meters: Meters, metrics: str, health_address: str) -> None:
        self._meters, self._metrics, self._health = meters, metrics, health_address
        self._http: asyncio.Server | None = None
        self._shown = 0
        self._server: Any = None
        self._servicer: Any = None

    async def open(self) -> None:
        """Begin to answer; the service counts as healthy from `healthy` on."""
        if self._metrics:
            try:
                self._http = await asyncio.start_server(self._show, *split_address(self._metrics))
            except OSError as error:
                raise ConfigError(f"cannot show metrics on {self._metrics}: {error.strerror or error}") from None
        if self._health:
            _need("grpc_health", "node.health")
            from grpc_health.v1 import health, health_pb2_grpc

            self._server = aio.server(options=[("grpc.max_allowed_incoming_connections", CALLERS)])
            self._servicer = health.aio.HealthServicer()
            health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
            split_address(self._health)
            try:
                self._server.add_insecure_port(self._health)
            except RuntimeError:
                raise ConfigError(f"cannot show health on {self._health}: something else listens there") from None
            await self._server.start()
            await self.healthy(False)

    async def _show(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer whoever asks for metrics, whatever it asks; few at once, and none for long."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self._shown += 1
        try:
            async with asyncio.timeout(SHOW_S if self._shown <= CALLERS else 0.0):
                await reader.readuntil(b"\r\n\r\n")
                told = generate_latest(self._meters.registry)
                head = f"HTTP/1.0 200 OK\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(told)}\r\n\r\n"
                writer.write(head.encode() + told)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._shown -= 1
            writer.close()

    async def healthy(self, is_so: bool) -> None:
        """Say whether the service does its work."""
        if self._servicer is None:
            return
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse.SERVING if is_so else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._servicer.set("", status)

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            await self._servicer.enter_graceful_shutdown()
            await self._server.stop(0.2)
        if self._http is not None:
            self._http.close()


def split_address(address: str, name: str = "") -> tuple[str, int]:
    """Host and port of ``host:port``; ``name`` is that of the setting."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        setting = f"{name} = " if name else ""
        raise ConfigError(f"{setting}{address!r} is no address: write it as 127.0.0.1:7000, with a port up to 65535")
    return host.strip("[]"), int(port)
