"""Sums of floats that are rounded only once."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """Return the sum, rounded only at the end: the errors of vectorised additions are collected and added."""
    errors = [0.0]
    while len(values) > 512:
        half = len(values) // 2
        a, b = values[:half], values[half : 2 * half]
        s = a + b
        t = s - a
        errors.append(float(np.sum((a - (s - t)) + (b - t))))
        errors.extend(values[2 * half :].tolist())
        values = s
    return math.fsum(values.tolist() + errors)


class ExactSum:
    """An exact running sum as a list of non-overlapping floats (Shewchuk 1997); only `value` rounds."""

    def __init__(self) -> None:
        self.parts: list[float] = []

    @property
    def value(self) -> float:
        """The sum, rounded."""
        return math.fsum(self.parts)

    def add(self, x: float) -> None:
        """Add a number."""
        parts = []
        for y in self.parts:
            if abs(x) < abs(y):
                x, y = y, x  # noqa: PLW2901
            high = x + y
            low = y - (high - x)
            if low:
                parts.append(low)
            x = high
        self.parts = [*parts, x]
