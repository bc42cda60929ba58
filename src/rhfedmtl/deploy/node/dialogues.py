"""The two dialogues of a network, terminal ↔ station and station ↔ cloud, and the order of their messages.

A stream starts with a hello from the lower node. The upper node answers with a welcome, or with a refusal and its
reason. After the welcome, either side may send any other message at any time. `Uplink` and `Acceptor` check every
message against the table of their end of the stream.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from rhfedmtl.deploy.node.states import Machine, Table
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError


class StreamState(StrEnum):
    """State of a stream between two nodes; each end keeps its own."""

    GREETING = "greeting"
    ATTACHED = "attached"


class Dialogue(NamedTuple):
    """The gRPC service of the upper node, the message types in both directions, and the tables of both ends."""

    service: str
    up: type[Any]
    down: type[Any]
    above: Table[StreamState]
    below: Table[StreamState]


def _dialogue(service: str, up: type[Any], down: type[Any]) -> Dialogue:
    """Build both tables from the fields that the two message types can carry."""
    greeting, attached = StreamState.GREETING, StreamState.ATTACHED
    restart = {"hello": greeting, "refusal": greeting}  # after a break, the next stream starts with hello
    above = {greeting: {"hello": attached}, attached: _carried(up, "hello")}
    below = {
        greeting: {**restart, "welcome": attached},
        attached: {**restart, **_carried(down, "welcome", "refusal")},
    }
    return Dialogue(service, up, down, above, below)


def _carried(message: type[Any], *excluded: str) -> dict[str, StreamState]:
    """Return the messages that may arrive on an attached stream, each with the state that follows."""
    names = [field.name for field in message.DESCRIPTOR.oneofs_by_name["body"].fields]
    return {name: StreamState.ATTACHED for name in names if name not in excluded}


TERMINAL_TO_STATION = _dialogue("Station", wire.TerminalUp, wire.TerminalDown)
STATION_TO_CLOUD = _dialogue("Cloud", wire.StationUp, wire.StationDown)


def parse_message(kind: type[Any], data: bytes, session: Machine[StreamState]) -> tuple[str, Any, Any]:
    """Return name and content of a message, and the message itself; raise `PeerError` if it may not come now."""
    message = codec.parse(kind, data)
    name, content = codec.body(message)
    if not session.takes(name):
        raise PeerError(f"{name} while {session.state}")
    session.on(name)
    return name, content, message
