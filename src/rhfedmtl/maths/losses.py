"""Loss functions L(z, y) of a score z, with the pieces that dual coordinate ascent needs.

A loss is one small NamedTuple. Its methods are plain Python, and the same source is what the kernels compile.
``a`` is the dual variable of a sample, and everywhere ``conjugate(a, y)`` means L*(−a).

Add a loss: write the class, all of its parameters with defaults, and its line in `registry`. Nothing else changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from rhfedmtl.errors import ConfigError

# Averaging moves a dual variable along a segment inside its box; rounding may leave it this far outside.
BOX_TOLERANCE = 1e-9
NEWTON_STEPS = 100


class Loss(Protocol):
    """What a loss offers. ``smoothness`` is the γ for which L is (1/γ)-smooth, 0 where L has corners."""

    @property
    def classifier(self) -> bool:
        """Whether labels are ±1 rather than numbers."""

    @property
    def quadratic(self) -> bool:
        """Whether the conjugate is quadratic inside its box, so that `line` describes it wholly."""

    @property
    def smoothness(self) -> float:
        """γ of (1/γ)-smooth."""

    def value(self, z: float, y: float) -> float:
        """L(z, y)."""

    def slope(self, z: float, y: float) -> float:
        """dL/dz, for methods that go by gradients; at a corner the slope to its left."""

    def conjugate(self, a: float, y: float) -> float:
        """L*(−a), infinite outside the box of ``a``."""

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Argmax over δ of −L*(−(a+δ)) − δ z − q δ²/2."""

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """−L*(−(a + ηd)) = −L*(−a) + linear·η − quadratic·η²/2 for 0 ≤ η ≤ η_max (quadratic conjugates)."""


def room(b: float, d: float) -> float:
    """Largest η for which b + ηd stays in [0, 1]."""
    if d > 0.0:
        return max(0.0, (1.0 - b) / d)
    if d < 0.0:
        return max(0.0, -b / d)
    return math.inf


class SmoothedHinge(NamedTuple):
    """max(0, 1 − yz) with its corner rounded over a width ``gamma`` > 0, for y in {−1, +1}."""

    gamma: float = 1.0

    def check(self) -> None:
        """Refuse a width that leaves no corner to round."""
        if not (math.isfinite(self.gamma) and self.gamma > 0.0):
            raise ConfigError(
                f"smoothed hinge needs a finite gamma > 0, got {self.gamma}; use loss 'hinge' for gamma = 0"
            )

    @property
    def classifier(self) -> bool:
        """Labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """`line` describes the conjugate wholly."""
        return True

    @property
    def smoothness(self) -> float:
        """The width of the rounded corner."""
        return self.gamma

    def value(self, z: float, y: float) -> float:
        """0 beyond the margin, linear far before it, a parabola of width γ between."""
        m = 1.0 - y * z
        if m <= 0.0:
            return 0.0
        if m >= self.gamma:
            return m - self.gamma / 2.0
        return m * m / (2.0 * self.gamma)

    def slope(self, z: float, y: float) -> float:
        """−y clip((1 − yz)/γ, 0, 1)."""
        return -y * min(1.0, max(0.0, (1.0 - y * z) / self.gamma))

    def conjugate(self, a: float, y: float) -> float:
        """−b + γb²/2 with b = ya in [0, 1]."""
        b = y * a
        if b < -BOX_TOLERANCE or b > 1.0 + BOX_TOLERANCE:
            return math.inf
        return -b + self.gamma * b * b / 2.0

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Newton step of a parabola, clipped to the box."""
        b = y * a
        return y * min(1.0, max(0.0, b + (1.0 - y * z - self.gamma * b) / (q + self.gamma))) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Linear and quadratic term along d, and where the box ends."""
        b = y * a
        s = y * d
        return s * (1.0 - self.gamma * b), self.gamma * s * s, room(b, s)


class Hinge(NamedTuple):
    """max(0, 1 − yz), for y in {−1, +1}. Not smooth, so the theory of rates does not cover it."""

    @property
    def classifier(self) -> bool:
        """Labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """`line` describes the conjugate wholly."""
        return True

    @property
    def smoothness(self) -> float:
        """A corner: not smooth."""
        return 0.0

    def value(self, z: float, y: float) -> float:
        """Distance short of the margin."""
        return max(0.0, 1.0 - y * z)

    def slope(self, z: float, y: float) -> float:
        """−y before the margin, 0 beyond it."""
        return -y if y * z < 1.0 else 0.0

    def conjugate(self, a: float, y: float) -> float:
        """−b with b = ya in [0, 1]."""
        b = y * a
        if b < -BOX_TOLERANCE or b > 1.0 + BOX_TOLERANCE:
            return math.inf
        return -b

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Clipped Newton step; where the row is zero (q = 0) the slope alone decides."""
        b = y * a
        slope = 1.0 - y * z
        if q > 0.0:
            return y * min(1.0, max(0.0, b + slope / q)) - a
        return y * (1.0 if slope > 0.0 else 0.0) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Linear along d, up to the end of the box."""
        return y * d, 0.0, room(y * a, y * d)


class SquaredHinge(NamedTuple):
    """½ max(0, 1 − yz)², for y in {−1, +1}."""

    @property
    def classifier(self) -> bool:
        """Labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """`line` describes the conjugate wholly."""
        return True

    @property
    def smoothness(self) -> float:
        """1-smooth."""
        return 1.0

    def value(self, z: float, y: float) -> float:
        """Half the squared distance short of the margin."""
        m = max(0.0, 1.0 - y * z)
        return m * m / 2.0

    def slope(self, z: float, y: float) -> float:
        """−y max(0, 1 − yz)."""
        return -y * max(0.0, 1.0 - y * z)

    def conjugate(self, a: float, y: float) -> float:
        """−b + b²/2 with b = ya ≥ 0."""
        b = y * a
        if b < -BOX_TOLERANCE:
            return math.inf
        return -b + b * b / 2.0

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Newton step of a parabola, clipped at 0."""
        b = y * a
        return y * max(0.0, b + (1.0 - y * z - b) / (q + 1.0)) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Linear and quadratic term along d, and where b would become negative."""
        b = y * a
        s = y * d
        room = max(0.0, -b / s) if s < 0.0 else math.inf
        return s * (1.0 - b), s * s, room


class Logistic(NamedTuple):
    """log(1 + exp(−yz)), for y in {−1, +1}."""

    @property
    def classifier(self) -> bool:
        """Labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """`line` knows only the room in the box."""
        return False

    @property
    def smoothness(self) -> float:
        """(1/4)-smooth derivative bound: γ = 4."""
        return 4.0

    def value(self, z: float, y: float) -> float:
        """log(1 + exp(−yz)) without overflow."""
        m = -y * z
        return max(m, 0.0) + math.log1p(math.exp(-abs(m)))

    def slope(self, z: float, y: float) -> float:
        """−y/(1 + exp(yz)) without overflow."""
        m = y * z
        return -y * (math.exp(-m) / (1.0 + math.exp(-m)) if m >= 0.0 else 1.0 / (1.0 + math.exp(m)))

    def conjugate(self, a: float, y: float) -> float:
        """Negative entropy b log b + (1−b) log(1−b) with b = ya in [0, 1]."""
        b = y * a
        if b < -BOX_TOLERANCE or b > 1.0 + BOX_TOLERANCE:
            return math.inf
        left = b * math.log(b) if b > 0.0 else 0.0
        right = (1.0 - b) * math.log1p(-b) if b < 1.0 else 0.0
        return left + right

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Root of log((1−b)/b) − yz − q(b − b_old), by Newton in t = logit(b), kept inside a bracket.

        In t the equation reads f(t) = t + yz + q(σ(t) − b_old) = 0, with 1 ≤ f′ ≤ 1 + q/4. As σ lies in [0, 1],
        so does the root between −yz − q(1 − b_old) and −yz + q b_old.
        """
        old = y * a
        low = -y * z - q * (1.0 - old)
        high = -y * z + q * old
        t = min(high, max(low, math.log(old / (1.0 - old)) if 0.0 < old < 1.0 else 0.0))
        for _ in range(NEWTON_STEPS):
            b = 1.0 / (1.0 + math.exp(-t)) if t >= 0.0 else math.exp(t) / (1.0 + math.exp(t))
            f = t + y * z + q * (b - old)
            if f > 0.0:
                high = t
            else:
                low = t
            new = t - f / (1.0 + q * b * (1.0 - b))
            if new < low or new > high:
                new = (low + high) / 2.0
            if abs(new - t) <= 1e-14 * (1.0 + abs(t)):
                t = new
                break
            t = new
        b = 1.0 / (1.0 + math.exp(-t)) if t >= 0.0 else math.exp(t) / (1.0 + math.exp(t))
        return y * b - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Only the room in the box: the conjugate is not quadratic."""
        return 0.0, 0.0, room(y * a, y * d)


class Squared(NamedTuple):
    """½ (z − y)², for regression."""

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
        """Half the squared residual."""
        return (z - y) * (z - y) / 2.0

    def slope(self, z: float, y: float) -> float:
        """z − y."""
        return z - y

    def conjugate(self, a: float, y: float) -> float:
        """a²/2 − ay."""
        return a * a / 2.0 - a * y

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Newton step of a parabola, which is exact."""
        return (y - z - a) / (1.0 + q)

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Linear and quadratic term along d; no box."""
        return d * (y - a), d * d, math.inf


# The functions below are what kernels call; `compiled.py` replaces each by the method of the loss it is given.


def value(loss: Loss, z: float, y: float) -> float:
    """L(z, y), in kernels."""
    return loss.value(z, y)


def slope(loss: Loss, z: float, y: float) -> float:
    """dL/dz, in kernels."""
    return loss.slope(z, y)


def conjugate(loss: Loss, a: float, y: float) -> float:
    """L*(−a), in kernels."""
    return loss.conjugate(a, y)


def dual_step(loss: Loss, a: float, y: float, z: float, q: float) -> float:
    """Best change of a dual variable, in kernels."""
    return loss.dual_step(a, y, z, q)


def line(loss: Loss, a: float, y: float, d: float) -> tuple[float, float, float]:
    """Profile of the conjugate along a change of the dual variable, in kernels."""
    return loss.line(a, y, d)


def is_quadratic(loss: Loss) -> bool:
    """Whether `line` describes the conjugate wholly, in kernels."""
    return loss.quadratic


def has_corners(loss: Loss) -> bool:
    """Whether most rows come to rest at an end of their box, as it is not smooth, and `line` tells their slope."""
    return loss.smoothness == 0.0 and loss.quadratic


def check_loss(loss: Loss) -> None:
    """Refuse parameters for which the loss is not convex or not what its name says; a loss with such has ``check``."""
    getattr(loss, "check", lambda: None)()
