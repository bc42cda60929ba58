"""Sizes of messages, as policies plan with them and engines charge them."""

from __future__ import annotations

from typing import NamedTuple


class MessageSizes(NamedTuple):
    """Bytes of the messages of a round on the two links; `roles.messages.message_sizes` knows them."""

    order: int = 0
    update: int = 0
    anchor: int = 0
    report: int = 0
