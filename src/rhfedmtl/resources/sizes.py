"""Sizes of messages in bytes: policies plan with them, and engines charge them.

`roles.messages` computes the sizes for a method. This module holds the records and the overhead of the transport.
"""

from __future__ import annotations

from typing import NamedTuple

FRAME = 1 << 14
"""HTTP/2 and TLS split a message into frames of at most this many bytes."""
PREFIX_BYTES, FRAME_OVERHEAD = 5, 31
"""Bytes of gRPC's prefix of a message, and of each frame: HTTP/2 header, and header, type and tag of TLS 1.3."""

ACKNOWLEDGEMENT = 28
"""Bytes of the window update or ping that HTTP/2 sends back for most messages; measured."""


def framed(n_bytes: int) -> int:
    """Return the bytes on the link, in both directions, for a message of ``n_bytes``.

    The result includes the overhead of gRPC, HTTP/2 and TLS.
    """
    size = n_bytes + PREFIX_BYTES
    return size + FRAME_OVERHEAD * -(-size // FRAME) + ACKNOWLEDGEMENT


class CertificateSizes(NamedTuple):
    """Bytes of the messages of a certificate.

    The cloud sends ``request`` to each station, and the station sends ``probe`` to each terminal. The terminal returns
    ``sums``, and the station returns ``result``.
    """

    probe: int = 0
    sums: int = 0
    request: int = 0
    result: int = 0


class MessageSizes(NamedTuple):
    """Bytes of the messages of a round on the two links; `roles.message_sizes.message_sizes` computes them.

    The cloud sends ``request`` to a station to ask for a round, and the station returns ``result``. Both grow with its
    terminals, by ``each_request`` and ``each_result`` per terminal. ``named`` is an order that refers to a model which
    the terminal already holds. ``gradient`` is the update of a quasi-Newton round. ``begin`` is an anchor that refers
    to a model which the station already holds.
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
