"""Compute how many bytes a value takes as a field of a protobuf message.

`roles.messages` adds these up to the size of a message, and `roles.message_sizes` plans with them. Nothing is encoded
here: `deploy.wire` does that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FLOAT64: np.dtype[Any] = np.dtype(np.float64)
NUMBER, INTEGER = 9, 2
"""Bytes of a float field and of a small integer field, with the number of the field."""


def varint(value: int) -> int:
    """Return the bytes of a variable-length integer."""
    return max(1, -(-int(value).bit_length() // 7))


def delimited(n_bytes: int) -> int:
    """Return the bytes of a length-delimited field with this content."""
    return 1 + varint(n_bytes) + n_bytes


def tensor(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array: its shape, its encoding unless that is float64, and its numbers."""
    sizes = sum(varint(size) for size in shape)
    kind = 0 if dtype == FLOAT64 else INTEGER + (NUMBER if dtype.kind == "i" else 0)
    n_bytes = math.prod(shape) * dtype.itemsize
    return delimited(delimited(sizes) + kind + (delimited(n_bytes) if n_bytes else 0))


def model(shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> int:
    """Return the bytes of a model.

    Floats are sent in full, integers as the change of a model that the receiver knows. Without a type the message only
    names a model that the receiver knows.
    """
    if dtype is None:
        return tensor((*shape, 0), FLOAT64) - 1 + INTEGER
    return tensor(shape, dtype) + (INTEGER if dtype.kind == "i" else 0)


def models(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of several models, each with its own shape and encoding."""
    return shape[0] * model(shape[1:], dtype)
