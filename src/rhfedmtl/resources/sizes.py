"""Sizes of messages, as policies plan with them and engines charge them."""

from __future__ import annotations

from typing import NamedTuple

FRAME = 1 << 14
"""HTTP/2 and TLS cut what they carry into pieces of so many bytes."""
PREFIX, PIECE = 5, 31
"""gRPC puts its prefix before a message; a piece has the header of HTTP/2 and the header, type and tag of TLS 1.3."""

ACKNOWLEDGED = 28
"""HTTP/2 tells the sender of most messages that there is room for more, or asks how long the way is; measured."""


def framed(n_bytes: int) -> int:
    """Bytes that a message of so many takes on its link, both ways, with what gRPC, HTTP/2 and TLS add to it."""
    whole = n_bytes + PREFIX
    return whole + PIECE * -(-whole // FRAME) + ACKNOWLEDGED


class CertificateSizes(NamedTuple):
    """Bytes of what a certificate takes: to a terminal and back, to a station and back."""

    probe: int = 0
    sums: int = 0
    request: int = 0
    result: int = 0


class MessageSizes(NamedTuple):
    """Bytes of the messages of a round on the two links; `roles.messages.message_sizes` knows them.

    A station is asked for a round, and tells what came of it, by ``request`` and ``result``, with more for ``each`` of
    its terminals. ``named`` is an order for a model that the terminal knows, ``gradient`` the update of a search,
    ``begin`` an anchor at a model that the station knows.
    """

    order: int = 0
    update: int = 0
    anchor: int = 0
    report: int = 0
    request: int = 0
    result: int = 0
    each_request: int = 0
    each_result: int = 0
    named: int = 0
    gradient: int = 0
    begin: int = 0
