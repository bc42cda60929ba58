"""What neighbours in the tree of nodes say to each other, and when what may come: one table for each end of a stream.

A stream begins with a hello of the lower node; it is answered by a welcome, or by a refusal with the reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from rhfedmtl.deploy.node.states import Machine, Table
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError


class StreamState(StrEnum):
    """A stream between two nodes, as either end sees it."""

    GREETING = "greeting"
    ATTACHED = "attached"


class Dialogue(NamedTuple):
    """The service of the upper node, the messages that go up and down, and the tables of both ends."""

    service: str
    up: type[Any]
    down: type[Any]
    above: Table[StreamState]
    below: Table[StreamState]


def _dialogue(service: str, up: type[Any], down: type[Any]) -> Dialogue:
    """The tables that follow from what the two messages can carry."""
    greeting, attached = StreamState.GREETING, StreamState.ATTACHED
    again = {"hello": greeting, "refusal": greeting}  # a stream that breaks begins with hello again
    above = {greeting: {"hello": attached}, attached: _carried(up, "hello")}
    below = {
        greeting: {**again, "welcome": attached},
        attached: {**again, **_carried(down, "welcome", "refusal")},
    }
    return Dialogue(service, up, down, above, below)


def _carried(message: type[Any], *but: str) -> dict[str, StreamState]:
    """All that may come on a stream that stands."""
    names = [field.name for field in message.DESCRIPTOR.oneofs_by_name["body"].fields]
    return {name: StreamState.ATTACHED for name in names if name not in but}


TERMINAL_TO_STATION = _dialogue("Station", wire.TerminalUp, wire.TerminalDown)
STATION_TO_CLOUD = _dialogue("Cloud", wire.StationUp, wire.StationDown)


def heard(kind: type[Any], data: bytes, session: Machine[StreamState]) -> tuple[str, Any, Any]:
    """Name and content of a message, and the message itself, if it may come now."""
    message = codec.parse(kind, data)
    name, content = codec.body(message)
    if not session.takes(name):
        raise PeerError(f"{name} while {session.state}")
    session.on(name)
    return name, content, message
