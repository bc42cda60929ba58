"""Structured logs, Prometheus metrics and gRPC health checks of a process, for its operators.

`Log` writes a JSON object per event to standard error, and copies the events of `AUDITED` to the audit trail. `Meters`
holds all metrics. `Window` answers Prometheus and health checks on local addresses. To add a metric, extend `Meters`.
"""

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
"""Rate limit of `Log.seldom`: so many lines of an event in so many seconds."""
FADES_S = 600.0
"""The status shows an error that a peer caused for so long."""
AUDITED = {
    *("connected", "refused", "quarantined", "excluded", "members", "forgotten", "withdrawn", "new key"),
    *("certificate asked for", "enrolled", "enrolment refused", "command refused"),
    *("training begins", "training ended", "training failed", "training broke"),
    *("journal behind", "journal cut", "state damaged", "begins anew"),
}
"""Events that also go to the audit trail, if the node has a trail and the event has no fact ``again``."""
CALLERS, SHOW_S = 64, 5.0
"""Limit of callers that `Window` answers at the same time, and of seconds for each."""
SECOND_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Log:
    """Writes a line with a JSON object to standard error for each event.

    Parameters
    ----------
    node : str
        Name of the node, which every line carries.
    level : str
        Lowest level to write: a key of `LEVELS`.

    Attributes
    ----------
    trail : AuditTrail or None
        Also receives the events of `AUDITED`.
    """

    def __init__(self, node: str, level: str = "info") -> None:
        if level not in LEVELS:
            raise ConfigError(f"log level {level!r}: choose from {', '.join(LEVELS)}")
        self._min_level = LEVELS[level]
        self._node = node
        self._errors: dict[str, str] = {}
        self._fades: dict[str, float] = {}
        self.trail: AuditTrail | None = None
        self._seldom: dict[str, tuple[float, int]] = {}

    def __call__(self, event: str, level: str = "info", **facts: Any) -> None:
        """Write an event and its facts; warnings and errors also become the last error."""
        if level in ("warning", "error"):
            self._errors.pop(event, None)  # moves the event to the end, as the latest
            self._errors[event] = f"{event}: {facts.get('reason', '')}".rstrip(": ")
        if self.trail is not None and event in AUDITED and not facts.get("again"):
            self._note(self.trail, event, facts)
        if LEVELS[level] < self._min_level:
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
        """Latest warning or error that still holds. An error that a peer caused fades after `FADES_S` seconds."""
        now = time.monotonic()
        return next((self._errors[e] for e in reversed(self._errors) if self._fades.get(e, now) >= now), "")

    def over(self, *events: str) -> None:
        """Clear the warnings and errors of these events: their cause has passed."""
        for event in events:
            self._errors.pop(event, None)

    def seldom(self, event: str, level: str = "info", **facts: Any) -> None:
        """Write an event that peers can cause at any rate: `LINES` lines in `WHILE_S` seconds, then only a count.

        The next line after that time carries the number of omitted lines as ``left_out``.
        """
        now, (began, count) = time.monotonic(), self._seldom.get(event, (-math.inf, 0))
        if now - began > WHILE_S:
            facts |= {"left_out": count - LINES} if count > LINES else {}
            began, count = now, 0
        self._seldom[event], self._fades[event] = (began, count + 1), now + FADES_S
        if count < LINES:
            self(event, level, **facts)


class _Unread:
    """A metric that is not exported: it ignores all values."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Accept the arguments of a Prometheus metric."""

    def labels(self, *_: str) -> _Unread:
        """Return the same object for every label."""
        return self

    def inc(self, _: float = 1.0) -> None:
        """Ignore the value."""

    set = observe = dec = inc

    def set_function(self, _: Callable[[], float]) -> None:
        """Ignore the value."""

    def time(self) -> contextlib.AbstractContextManager[None]:
        """Measure nothing."""
        return contextlib.nullcontext()


class Meters:
    """Metrics of a process, with names ``rhfedmtl_…``. If they are not exported, values are ignored."""

    def __init__(self, *, exported: bool = False) -> None:
        counter: Any = _Unread
        gauge: Any = _Unread
        histogram: Any = _Unread
        if exported:
            _need("prometheus_client", "node.metrics")
            import prometheus_client

            self.registry = prometheus_client.CollectorRegistry()
            prometheus_client.ProcessCollector(registry=self.registry)
            counter, gauge = prometheus_client.Counter, prometheus_client.Gauge
            histogram = partial(prometheus_client.Histogram, buckets=SECOND_BUCKETS)
        options: dict[str, Any] = {"registry": self.registry, "namespace": "rhfedmtl"} if exported else {}
        self.messages = counter("messages", "Messages by direction and kind", ["way", "kind"], **options)
        self.bytes = counter("bytes", "Bytes of messages by direction", ["way"], **options)
        self.refused = counter("refused", "Refused peers and messages, by reason", ["reason"], **options)
        self.connects = counter("connects", "Connections made to the node above, or from nodes below", **options)
        self.connected = gauge("connected", "Nodes connected now, above and below, by role", ["role"], **options)
        self.round = gauge("round", "Last round", **options)
        self.rounds = histogram("round_seconds", "Seconds of a round at a station", **options)
        self.work = histogram("work_seconds", "Seconds of a terminal's work for an order", **options)
        self.saves = histogram("save_seconds", "Seconds to write the state to disk", **options)
        expires = "Seconds until the certificate of this node expires"
        self.credentials = gauge("certificate_left_seconds", expires, **options)
        self.gap = gauge("gap", "Duality gap of the latest certificate", **options)
        self.accuracy = gauge("test_metric", "Mean over tasks of test metrics", ["metric"], **options)
        self.spent = gauge("spent", "Amount spent, by type", ["type"], **options)
        self.left = gauge("left", "Remaining budget, by type", ["type"], **options)


def _need(package: str, setting: str) -> None:
    if find_spec(package) is None:
        raise MissingExtraError(f"{setting} needs {package}: pip install 'rhfedmtl[deploy]', or leave it empty")


class Window:
    """Server of a process for Prometheus and for gRPC health checks, on local addresses without TLS."""

    def __init__(self, meters: Meters, metrics: str, health_address: str) -> None:
        self._meters, self._metrics, self._health = meters, metrics, health_address
        self._http: asyncio.Server | None = None
        self._n_callers = 0
        self._server: Any = None
        self._servicer: Any = None

    async def open(self) -> None:
        """Start to answer. The service counts as unhealthy until `healthy` is called."""
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
        """Answer any HTTP request with the metrics; limit the number of callers and the time of each."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self._n_callers += 1
        try:
            async with asyncio.timeout(SHOW_S if self._n_callers <= CALLERS else 0.0):
                await reader.readuntil(b"\r\n\r\n")
                body = generate_latest(self._meters.registry)
                head = f"HTTP/1.0 200 OK\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._n_callers -= 1
            writer.close()

    async def healthy(self, is_healthy: bool) -> None:
        """Set the result of health checks."""
        if self._servicer is None:
            return
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse.SERVING if is_healthy else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._servicer.set("", status)

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            await self._servicer.enter_graceful_shutdown()
            await self._server.stop(0.2)
        if self._http is not None:
            self._http.close()


def split_address(address: str, name: str = "") -> tuple[str, int]:
    """Return host and port of ``host:port``. ``name`` is the name of the setting, for the error message."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        setting = f"{name} = " if name else ""
        raise ConfigError(f"{setting}{address!r} is no address: write it as 127.0.0.1:7000, with a port up to 65535")
    return host.strip("[]"), int(port)
