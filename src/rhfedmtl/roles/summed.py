"""What of an order, of an answer and of a sum goes through masks (`masking`): the same words at both ends."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from rhfedmtl.roles import masks
from rhfedmtl.roles.channel import FINE, FixedPoint
from rhfedmtl.roles.masking import seat
from rhfedmtl.roles.masks import Words
from rhfedmtl.roles.messages import Probe, Sums, Update, Vector, WorkOrder


def content_of(asked: WorkOrder | Probe) -> bytes:
    """What all are asked alike: masks rest on it, so that unequal orders do not cancel."""
    if isinstance(asked, WorkOrder):
        head, arrays = struct.pack("<cQd", b"o", asked.round, asked.scale), [asked.model]
    else:
        head, arrays = struct.pack("<cQ?", b"p", asked.number, asked.gradient), [asked.models, asked.points]
    shapes = repr([each.shape for each in arrays]).encode()
    return hashlib.sha256(b"".join([head, shapes, *(each.tobytes() for each in arrays)])).digest()


def seat_of(asked: WorkOrder | Probe) -> bytes:
    """What one terminal is asked that others are not."""
    steps = asked.local_steps if isinstance(asked, WorkOrder) else 0
    return seat(asked.verdict.incarnation, asked.verdict.round, steps)


def words_of(answer: Update | Sums, channel: FixedPoint) -> Words:
    """An answer as words: updates in the steps of the channel, all else in finer ones."""
    if isinstance(answer, Update):
        parts = [(answer.delta, channel.grid_step), (answer.gains, FINE)]
    else:
        parts = [(answer.losses, FINE), (answer.dual, FINE), (answer.gradient, FINE)]
    return np.concatenate([masks.to_words(values, step) for values, step in parts])


def numbers_of(words: Words, shapes: Sequence[tuple[int, ...]], steps: Sequence[float]) -> list[Vector]:
    """The parts of a sum of words, by their shapes and steps."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    pieces = np.split(words, ends[:-1])
    return [masks.to_numbers(w, step).reshape(shape) for w, shape, step in zip(pieces, shapes, steps, strict=True)]
