"""The losses of `maths.losses` in Triton, for `engines.gpu.kernels`: the same formulas without branches.

A loss is a number here (`CODES`) that is known when a kernel is compiled. A test compares each function with the class
of the loss.

To add a loss, give it a code, and a branch in each function.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rhfedmtl.maths.losses import BOX_TOLERANCE, Hinge, Logistic, Loss, SmoothedHinge, Squared, SquaredHinge

SMOOTHED_HINGE = tl.constexpr(0)
HINGE = tl.constexpr(1)
SQUARED_HINGE = tl.constexpr(2)
LOGISTIC = tl.constexpr(3)
SQUARED = tl.constexpr(4)
CODES: dict[type, int] = {
    SmoothedHinge: SMOOTHED_HINGE.value,
    Hinge: HINGE.value,
    SquaredHinge: SQUARED_HINGE.value,
    Logistic: LOGISTIC.value,
    Squared: SQUARED.value,
}
_TOLERANCE = tl.constexpr(BOX_TOLERANCE)
_NEWTON_STEPS = tl.constexpr(100)
_INFINITY = tl.constexpr(float("inf"))


def code(loss: Loss) -> int | None:
    """Return the number of a loss, if the kernels have it."""
    return CODES.get(type(loss))


def gamma(loss: Loss) -> float:
    """Return the parameter of a loss; 1 if it has no parameter."""
    return float(getattr(loss, "gamma", 1.0))


@triton.jit
def _sigmoid(t):
    small = tl.exp(-tl.abs(t))
    return tl.where(t >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def _logistic_step(b, m, q):
    """Return the new b: the root of f(t) = t + m + q(σ(t) − b), by Newton's method in a bracket (`losses.Logistic`)."""
    low = -m - q * (1.0 - b)
    high = -m + q * b
    inside = (b > 0.0) & (b < 1.0)
    safe = tl.where(inside, b, 0.5)
    t = tl.minimum(high, tl.maximum(low, tl.log(safe / (1.0 - safe))))
    moved = t * 0.0 + 1.0
    n = 0
    while (n < _NEWTON_STEPS) & (moved > 1e-14):
        new = _sigmoid(t)
        f = t + m + q * (new - b)
        high = tl.where(f > 0.0, t, high)
        low = tl.where(f > 0.0, low, t)
        there = t - f / (1.0 + q * new * (1.0 - new))
        there = tl.where((there < low) | (there > high), (low + high) / 2.0, there)
        moved = tl.abs(there - t) / (1.0 + tl.abs(t))
        t = there
        n += 1
    return _sigmoid(t)


@triton.jit
def rate(q, gamma, LOSS: tl.constexpr):
    """Return the factor of a step's slope. It does not depend on the score, so the score waits for no division."""
    if LOSS == SMOOTHED_HINGE:
        result = 1.0 / (q + gamma)
    elif LOSS == HINGE:
        result = 1.0 / tl.where(q > 0.0, q, 1.0)
    else:
        result = 1.0 / (q + 1.0)
    return result


@triton.jit
def dual_step(a, y, z, q, rate, gamma, LOSS: tl.constexpr):
    """Return argmax over δ of −L*(−(a+δ)) − δ z − q δ²/2."""
    b = y * a
    if LOSS == SMOOTHED_HINGE:
        new = y * tl.minimum(1.0, tl.maximum(0.0, b + (1.0 - y * z - gamma * b) * rate))
    elif LOSS == HINGE:
        slope = 1.0 - y * z
        far = tl.where(slope > 0.0, 1.0, 0.0)
        new = y * tl.where(q > 0.0, tl.minimum(1.0, tl.maximum(0.0, b + slope * rate)), far)
    elif LOSS == SQUARED_HINGE:
        new = y * tl.maximum(0.0, b + (1.0 - y * z - b) * rate)
    elif LOSS == LOGISTIC:
        new = y * _logistic_step(b, y * z, q)
    else:
        new = a + (y - z - a) * rate
    return new - a


@triton.jit
def _entropy(b):
    return tl.where(b > 0.0, b * tl.log(tl.where(b > 0.0, b, 1.0)), 0.0)


@triton.jit
def conjugate_inside(a, y, gamma, LOSS: tl.constexpr):
    """Return L*(−a) for a dual variable inside its box."""
    b = y * a
    if LOSS == SMOOTHED_HINGE:
        result = -b + 0.5 * gamma * b * b
    elif LOSS == HINGE:
        result = -b
    elif LOSS == SQUARED_HINGE:
        result = -b + 0.5 * b * b
    elif LOSS == LOGISTIC:
        result = _entropy(b) + _entropy(1.0 - b)
    else:
        result = 0.5 * a * a - a * y
    return result


@triton.jit
def conjugate(a, y, gamma, LOSS: tl.constexpr):
    """Return L*(−a), infinite outside the box."""
    result = conjugate_inside(a, y, gamma, LOSS)
    if LOSS != SQUARED:
        outside = y * a < -_TOLERANCE
        if LOSS != SQUARED_HINGE:
            outside |= y * a - 1.0 > _TOLERANCE
        result = tl.where(outside, _INFINITY, result)
    return result


@triton.jit
def value(z, y, gamma, LOSS: tl.constexpr):
    """Return L(z, y)."""
    m = tl.maximum(0.0, 1.0 - y * z)
    if LOSS == SMOOTHED_HINGE:
        result = tl.where(m >= gamma, m - 0.5 * gamma, 0.5 * m * m / gamma)
    elif LOSS == HINGE:
        result = m
    elif LOSS == SQUARED_HINGE:
        result = 0.5 * m * m
    elif LOSS == LOGISTIC:
        result = tl.maximum(-y * z, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(y * z)))
    else:
        result = 0.5 * (z - y) * (z - y)
    return result


@triton.jit
def _room(b, d, BOUNDED: tl.constexpr):
    """Return the largest η with b + ηd in the box, but at least 1: α + Δα lies in the box, apart from rounding."""
    safe = tl.where(d != 0.0, d, 1.0)
    room = tl.where(d < 0.0, -b / safe, _INFINITY)
    if BOUNDED:
        room = tl.where(d > 0.0, (1.0 - b) / safe, room)
    return tl.maximum(room, 1.0)


@triton.jit
def line(a, y, d, gamma, LOSS: tl.constexpr):
    """Return linear, quadratic and room: −L*(−(a + ηd)) = −L*(−a) + linear·η − quadratic·η²/2 for 0 ≤ η ≤ room.

    Only for quadratic conjugates.
    """
    b = y * a
    s = y * d
    if LOSS == SMOOTHED_HINGE:
        linear, quadratic, room = s * (1.0 - gamma * b), gamma * s * s, _room(b, s, True)
    elif LOSS == HINGE:
        linear, quadratic, room = s, s * 0.0, _room(b, s, True)
    elif LOSS == SQUARED_HINGE:
        linear, quadratic, room = s * (1.0 - b), s * s, _room(b, s, False)
    else:
        linear, quadratic, room = d * (y - a), d * d, b * 0.0 + _INFINITY
    return linear, quadratic, room
