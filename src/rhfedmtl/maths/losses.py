"""Loss functions L(z, y) of a score z, with the parts that dual coordinate ascent needs.

A loss is a small NamedTuple. Its methods are plain Python, and the kernels compile the same source. ``a`` is the dual
variable of a sample, and everywhere ``conjugate(a, y)`` means L*(−a).

To add a loss, write the class with defaults for all of its parameters, and add its line to `registry`. Nothing else
changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from rhfedmtl.errors import ConfigError

# Averaging moves a dual variable along a segment inside its box; rounding may leave it this far outside.
BOX_TOLERANCE = 1e-9
MOST_NEWTON_STEPS = 100


class Loss(Protocol):
    """Interface of a loss. ``smoothness`` is the γ for which L is (1/γ)-smooth, 0 if L has corners."""

    @property
    def classifier(self) -> bool:
        """True if labels are ±1, False if they are numbers."""

    @property
    def quadratic(self) -> bool:
        """True if the conjugate is quadratic inside its box, so `line` describes it completely."""

    @property
    def smoothness(self) -> float:
        """The γ of (1/γ)-smooth."""

    def value(self, z: float, y: float) -> float:
        """Return L(z, y)."""

    def slope(self, z: float, y: float) -> float:
        """Return dL/dz for gradient methods; at a corner the slope to its left."""

    def conjugate(self, a: float, y: float) -> float:
        """Return L*(−a), infinite outside the box of ``a``."""

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Return argmax over δ of −L*(−(a+δ)) − δ z − q δ²/2."""

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Return (linear, quadratic, η_max) of the conjugate along d, if it is quadratic.

        −L*(−(a + ηd)) = −L*(−a) + linear·η − quadratic·η²/2 for 0 ≤ η ≤ η_max.
        """


def largest_step(b: float, d: float) -> float:
    """Return the largest η for which b + ηd stays in [0, 1]."""
    if d > 0.0:
        return max(0.0, (1.0 - b) / d)
    if d < 0.0:
        return max(0.0, -b / d)
    return math.inf


class SmoothedHinge(NamedTuple):
    """max(0, 1 − yz) with its corner rounded over a width ``gamma`` > 0, for y in {−1, +1}."""

    gamma: float = 1.0

    def check(self) -> None:
        """Raise ConfigError for a width that leaves no corner to round."""
        if not (math.isfinite(self.gamma) and self.gamma > 0.0):
            raise ConfigError(
                f"smoothed hinge needs a finite gamma > 0, got {self.gamma}; use loss 'hinge' for gamma = 0"
            )

    @property
    def classifier(self) -> bool:
        """True: labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """True: `line` describes the conjugate completely."""
        return True

    @property
    def smoothness(self) -> float:
        """The width of the rounded corner."""
        return self.gamma

    def value(self, z: float, y: float) -> float:
        """Return 0 beyond the margin, a line far before it, and a parabola of width γ between."""
        m = 1.0 - y * z
        if m <= 0.0:
            return 0.0
        if m >= self.gamma:
            return m - self.gamma / 2.0
        return m * m / (2.0 * self.gamma)

    def slope(self, z: float, y: float) -> float:
        """Return −y clip((1 − yz)/γ, 0, 1)."""
        return -y * min(1.0, max(0.0, (1.0 - y * z) / self.gamma))

    def conjugate(self, a: float, y: float) -> float:
        """Return −b + γb²/2 with b = ya in [0, 1]."""
        b = y * a
        if b < -BOX_TOLERANCE or b > 1.0 + BOX_TOLERANCE:
            return math.inf
        return -b + self.gamma * b * b / 2.0

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Return the Newton step of a parabola, clipped to the box."""
        b = y * a
        return y * min(1.0, max(0.0, b + (1.0 - y * z - self.gamma * b) / (q + self.gamma))) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Return the linear and the quadratic term along d, and the end of the box."""
        b = y * a
        s = y * d
        return s * (1.0 - self.gamma * b), self.gamma * s * s, largest_step(b, s)


class Hinge(NamedTuple):
    """max(0, 1 − yz), for y in {−1, +1}. Not smooth, so the theory of rates does not cover it."""

    @property
    def classifier(self) -> bool:
        """True: labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """True: `line` describes the conjugate completely."""
        return True

    @property
    def smoothness(self) -> float:
        """0: the loss has a corner."""
        return 0.0

    def value(self, z: float, y: float) -> float:
        """Return the distance short of the margin."""
        return max(0.0, 1.0 - y * z)

    def slope(self, z: float, y: float) -> float:
        """Return −y before the margin, 0 beyond it."""
        return -y if y * z < 1.0 else 0.0

    def conjugate(self, a: float, y: float) -> float:
        """Return −b with b = ya in [0, 1]."""
        b = y * a
        if b < -BOX_TOLERANCE or b > 1.0 + BOX_TOLERANCE:
            return math.inf
        return -b

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Return the clipped Newton step; for a zero row (q = 0) the slope alone decides."""
        b = y * a
        slope = 1.0 - y * z
        if q > 0.0:
            return y * min(1.0, max(0.0, b + slope / q)) - a
        return y * (1.0 if slope > 0.0 else 0.0) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Return a linear term along d, up to the end of the box."""
        return y * d, 0.0, largest_step(y * a, y * d)


class SquaredHinge(NamedTuple):
    """½ max(0, 1 − yz)², for y in {−1, +1}."""

    @property
    def classifier(self) -> bool:
        """True: labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """True: `line` describes the conjugate completely."""
        return True

    @property
    def smoothness(self) -> float:
        """1-smooth."""
        return 1.0

    def value(self, z: float, y: float) -> float:
        """Return half the squared distance short of the margin."""
        m = max(0.0, 1.0 - y * z)
        return m * m / 2.0

    def slope(self, z: float, y: float) -> float:
        """Return −y max(0, 1 − yz)."""
        return -y * max(0.0, 1.0 - y * z)

    def conjugate(self, a: float, y: float) -> float:
        """Return −b + b²/2 with b = ya ≥ 0."""
        b = y * a
        if b < -BOX_TOLERANCE:
            return math.inf
        return -b + b * b / 2.0

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Return the Newton step of a parabola, clipped at 0."""
        b = y * a
        return y * max(0.0, b + (1.0 - y * z - b) / (q + 1.0)) - a

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Return the linear and the quadratic term along d, and the η at which b would become negative."""
        b = y * a
        s = y * d
        limit = max(0.0, -b / s) if s < 0.0 else math.inf
        return s * (1.0 - b), s * s, limit


class Logistic(NamedTuple):
    """log(1 + exp(−yz)), for y in {−1, +1}."""

    @property
    def classifier(self) -> bool:
        """True: labels are ±1."""
        return True

    @property
    def quadratic(self) -> bool:
        """False: `line` returns only the end of the box."""
        return False

    @property
    def smoothness(self) -> float:
        """4: the second derivative is at most 1/4."""
        return 4.0

    def value(self, z: float, y: float) -> float:
        """Return log(1 + exp(−yz)) without overflow."""
        m = -y * z
        return max(m, 0.0) + math.log1p(math.exp(-abs(m)))

    def slope(self, z: float, y: float) -> float:
        """Return −y/(1 + exp(yz)) without overflow."""
        m = y * z
        return -y * (math.exp(-m) / (1.0 + math.exp(-m)) if m >= 0.0 else 1.0 / (1.0 + math.exp(m)))

    def conjugate(self, a: float, y: float) -> float:
        """Return the negative entropy b log b + (1−b) log(1−b) with b = ya in [0, 1]."""
        b = y * a
        if b < -BOX_TOLERANCE or b > 1.0 + BOX_TOLERANCE:
            return math.inf
        first = b * math.log(b) if b > 0.0 else 0.0
        second = (1.0 - b) * math.log1p(-b) if b < 1.0 else 0.0
        return first + second

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Return the step to the root of log((1−b)/b) − yz − q(b − b_old), by Newton in t = logit(b) inside a bracket.

        In t the equation reads f(t) = t + yz + q(σ(t) − b_old) = 0, with 1 ≤ f′ ≤ 1 + q/4. As σ lies in [0, 1], the
        root lies between −yz − q(1 − b_old) and −yz + q b_old.
        """
        old = y * a
        low = -y * z - q * (1.0 - old)
        high = -y * z + q * old
        t = min(high, max(low, math.log(old / (1.0 - old)) if 0.0 < old < 1.0 else 0.0))
        for _ in range(MOST_NEWTON_STEPS):
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
        """Return only the end of the box: the conjugate is not quadratic."""
        return 0.0, 0.0, largest_step(y * a, y * d)


class Squared(NamedTuple):
    """½ (z − y)², for regression."""

    @property
    def classifier(self) -> bool:
        """False: labels are numbers."""
        return False

    @property
    def quadratic(self) -> bool:
        """True: `line` describes the conjugate completely."""
        return True

    @property
    def smoothness(self) -> float:
        """1-smooth."""
        return 1.0

    def value(self, z: float, y: float) -> float:
        """Return half the squared residual."""
        return (z - y) * (z - y) / 2.0

    def slope(self, z: float, y: float) -> float:
        """Return z − y."""
        return z - y

    def conjugate(self, a: float, y: float) -> float:
        """Return a²/2 − ay."""
        return a * a / 2.0 - a * y

    def dual_step(self, a: float, y: float, z: float, q: float) -> float:
        """Return the Newton step of a parabola, which is exact."""
        return (y - z - a) / (1.0 + q)

    def line(self, a: float, y: float, d: float) -> tuple[float, float, float]:
        """Return the linear and the quadratic term along d; there is no box."""
        return d * (y - a), d * d, math.inf


# Kernels call the functions below; `compiled.py` replaces each by the method of the loss.


def value(loss: Loss, z: float, y: float) -> float:
    """Return L(z, y), in kernels."""
    return loss.value(z, y)


def slope(loss: Loss, z: float, y: float) -> float:
    """Return dL/dz, in kernels."""
    return loss.slope(z, y)


def conjugate(loss: Loss, a: float, y: float) -> float:
    """Return L*(−a), in kernels."""
    return loss.conjugate(a, y)


def dual_step(loss: Loss, a: float, y: float, z: float, q: float) -> float:
    """Return the best change of a dual variable, in kernels."""
    return loss.dual_step(a, y, z, q)


def line(loss: Loss, a: float, y: float, d: float) -> tuple[float, float, float]:
    """Return the profile of the conjugate along a change of the dual variable, in kernels."""
    return loss.line(a, y, d)


def is_quadratic(loss: Loss) -> bool:
    """Return True if `line` describes the conjugate completely, in kernels."""
    return loss.quadratic


def has_corners(loss: Loss) -> bool:
    """Return True if L has corners and `line` gives slopes: then most rows settle at an end of their box."""
    return loss.smoothness == 0.0 and loss.quadratic


def check_loss(loss: Loss) -> None:
    """Raise ConfigError for parameters that make a loss not convex or not what its name says (method ``check``)."""
    getattr(loss, "check", lambda: None)()
