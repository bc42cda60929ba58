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


def _lower_end(*messages: str) -> Table[StreamState]:
    """The table of the node that calls: what it says first, and what it may then be told."""
    greeting = {
        "hello": StreamState.GREETING,
        "refusal": StreamState.GREETING,
    }  # a stream that breaks begins with hello again
    return {
        StreamState.GREETING: {**greeting, "welcome": StreamState.ATTACHED},
        StreamState.ATTACHED: {**greeting, **dict.fromkeys(messages, StreamState.ATTACHED)},
    }


def _upper_end(*messages: str) -> Table[StreamState]:
    """The table of the node that is called, for each stream: what it may be told."""
    return {
        StreamState.GREETING: {"hello": StreamState.ATTACHED},
        StreamState.ATTACHED: dict.fromkeys(messages, StreamState.ATTACHED),
    }


class Dialogue(NamedTuple):
    """The service of the upper node, the messages that go up and down, and the tables of both ends."""

    service: str
    up: type[Any]
    down: type[Any]
    above: Table[StreamState]
    below: Table[StreamState]


TERMINAL_TO_STATION = Dialogue(
    "Station",
    wire.TerminalUp,
    wire.TerminalDown,
    _upper_end(
        "join",
        "leave",
        "update",
        "sums",
        "moments",
        "scaled",
        "labels",
        "centred",
        "tally",
        "withdraw",
        "rest",
        "declined",
        "key",
        "deal",
        "masked",
        "opened",
        "noised",
    ),
    _lower_end(
        "order",
        "probe",
        "release",
        "goodbye",
        "ask_moments",
        "scaling",
        "ask_labels",
        "ask_rows",
        "ask_share",
        "centring",
        "trial",
        "drain",
        "circle",
        "unmask",
        "noising",
    ),
)
STATION_TO_CLOUD = Dialogue(
    "Cloud",
    wire.StationUp,
    wire.StationDown,
    _upper_end("answer", "outlook"),
    _lower_end("request", "access", "drain"),
)


def heard(kind: type[Any], data: bytes, session: Machine[StreamState]) -> tuple[str, Any, Any]:
    """Name and content of a message, and the message itself, if it may come now."""
    message = codec.parse(kind, data)
    name, content = codec.body(message)
    if not session.takes(name):
        raise PeerError(f"{name} while {session.state}")
    session.on(name)
    return name, content, message
