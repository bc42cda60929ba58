"""One of each channel, strong enough that small updates feel it."""

from __future__ import annotations

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.algorithms.registry import CHANNELS
from rhfedmtl.roles.channel import Clip, FixedPoint, Float32, Int8, Int16, MaskedSums

SAMPLES: dict[str, Channel] = {
    "identity": Channel(),
    "clip": Clip(0.3),
    "float32": Float32(),
    "int16": Int16(),
    "int8": Int8(),
    "fixed-point": FixedPoint(2.0**-6),
    "masked": MaskedSums(2.0**-6, 2),
}
assert set(SAMPLES) == set(CHANNELS.own), "every channel is tried"
