"""The Huber loss, for regression with outliers."""

from __future__ import annotations

import math
from typing import NamedTuple

from rhfedmtl.errors import ConfigError


class Huber(NamedTuple):
    """½ (z − y)² up to an error of ``width``, then linear: L*(−a) = a²/2 − ay for |a| ≤ width."""

    width: float = 1.0

    def check(self) -> None:
        """Refuse a width that is none."""
        if not (math.isfinite(self.width) and self.width > 0.0):
            raise ConfigError(f"huber needs a finite width > 0, got {self.width}")

    @property
    def classifier(self) -> bool:
        """Labels are numbers."""
        return False

    @property
    def quadratic(self) -> bool:
        """`line` describes the conjugate wholly."""
        return True

    @property
    def smoothness(self) -> float:
        """1-smooth."""
        return 1.0

    def value(self, z: float, y: float) -> float:
        """A parabola, continued by its tangents."""
        error = abs(z - y)
        if error <= self.width:
            return error * error / 2.0
        return self.width * (error - self.width / 2.0)

    def slope(self, z: float, y: float) -> float:
        """The error, clipped."""
        return min(self.width, max(-self.width, z - y))

    def conjugate(self, a: float, y: float) -> float:
        """a²/2 − ay in the box."""
        if abs(a) > self.width * (1.0 + 1e-9):
            return math.inf
        return a * a / 2.0 - a * y

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Newton step of a parabola, clipped to the box."""
        return min(self.width, max(-self.width, a + (y - z - a) / (1.0 + q))) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Linear and quadratic term along d, and where the box ends."""
        room = math.inf
        if d > 0.0:
            room = max(0.0, (self.width - a) / d)
        elif d < 0.0:
            room = max(0.0, (-self.width - a) / d)
        return d * (y - a), d * d, room
