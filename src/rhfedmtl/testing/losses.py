"""Requirements for a loss, checked at random points of its domain."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rhfedmtl.maths import losses
from rhfedmtl.maths.losses import Loss
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.testing.runs import require

PLACES = 300


class Place(NamedTuple):
    """A score, a label, a dual variable in its box, a curvature, and another dual variable in the box."""

    z: float
    y: float
    a: float
    q: float
    a2: float


def places(loss: Loss) -> Iterator[Place]:
    """Yield random points; minus a slope is always in the box of the dual variable."""
    rng = np.random.default_rng(0)
    for _ in range(PLACES):
        z, far, near, number = (float(x) for x in rng.normal(scale=3.0, size=4))
        y = float(np.sign(number) or 1.0) if loss.classifier else number
        yield Place(z, y, -loss.slope(far, y), float(rng.exponential()), -loss.slope(near, y))


def fenchel_young(name: str) -> None:
    """L(z) + L*(−a) ≥ −a z, and equal if a = −L′(z)."""
    loss = LOSSES[name]()
    for z, y, a, _, _ in places(loss):
        total, slack = loss.value(z, y) + loss.conjugate(a, y) + a * z, 1e-9 * (1.0 + z * z + abs(a * z))
        require(total >= -slack, f"L + L* + az = {total} at z={z}, y={y}, a={a}")
        tight = -loss.slope(z, y)
        total = loss.value(z, y) + loss.conjugate(tight, y) + tight * z
        require(abs(total) <= 1e-7 * (1.0 + z * z + y * y), f"L + L* + az = {total} at z={z}, y={y}, a=−L′={tight}")


def slope_is_the_gradient(name: str) -> None:
    """The slope is the derivative of the value, except at corners."""
    loss, h = LOSSES[name](), 1e-6
    for z, y, *_ in places(loss):
        right, left = loss.slope(z + h, y), loss.slope(z - h, y)
        numeric = (loss.value(z + h, y) - loss.value(z - h, y)) / (2.0 * h)
        inside = min(right, left) - 1e-5 <= numeric <= max(right, left) + 1e-5
        require(inside, f"slope {loss.slope(z, y)}, but values fall by {numeric} at z={z}, y={y}")


def as_smooth_as_it_says(name: str) -> None:
    """The loss is convex and (1/γ)-smooth."""
    loss = LOSSES[name]()
    for z, y, _, q, a2 in places(loss):
        far = z + q + abs(a2)
        middle, chord = loss.value((z + far) / 2.0, y), (loss.value(z, y) + loss.value(far, y)) / 2.0
        require(middle <= chord + 1e-9 * (1.0 + chord), f"not convex between {z} and {far}, y={y}")
        if loss.smoothness > 0.0:
            lower_bound = chord - (z - far) ** 2 / (8.0 * loss.smoothness)
            require(
                middle >= lower_bound - 1e-9 * (1.0 + chord),
                f"not {loss.smoothness}-smooth between {z} and {far}, y={y}",
            )


def dual_step_is_best(name: str) -> None:
    """The dual step raises the dual at least as much as any other step within the box."""
    loss = LOSSES[name]()
    for z, y, a, q, a2 in places(loss):
        best = _gain(loss, a, y, z, q, loss.dual_step(a, y, z, q))
        for share in (1e-3, 0.1, 0.5, 1.0):
            gain = _gain(loss, a, y, z, q, share * (a2 - a))
            require(
                best >= gain - 1e-9 * (1.0 + z * z),
                f"the dual step gains {best}, another step {gain}: a={a}, y={y}, z={z}, q={q}",
            )


def _gain(loss: Loss, a: float, y: float, z: float, q: float, d: float) -> float:
    return loss.conjugate(a, y) - loss.conjugate(a + d, y) - d * z - q * d * d / 2.0


def line_is_the_course(name: str) -> None:
    """`line` gives the values of a quadratic conjugate along a step."""
    loss = LOSSES[name]()
    for _, y, a, _, a2 in places(loss) if loss.quadratic else ():
        linear, quadratic, valid_share = loss.line(a, y, a2 - a)
        require(valid_share >= 1.0 - 1e-9 or a2 == a, f"`line` does not cover the step from {a} to {a2}")
        for eta in (0.3, 1.0):
            course = -loss.conjugate(a, y) + linear * eta - quadratic * eta * eta / 2.0
            off = abs(-loss.conjugate(a + eta * (a2 - a), y) - course)
            require(off <= 1e-9 * (1.0 + abs(course)), f"off by {off} at a={a}, y={y}, towards {a2}")


@njit
def _compiled(loss: Any, a: Any, y: Any, z: Any, q: Any, d: Any) -> Any:
    step, course = losses.dual_step(loss, a, y, z, q), losses.line(loss, a, y, d)
    return losses.value(loss, z, y), losses.slope(loss, z, y), losses.conjugate(loss, a, y), step, course


def kernel_is_its_source(name: str) -> None:
    """The compiled loss equals the interpreted loss, and pickling keeps it."""
    loss = LOSSES[name]()
    for z, y, a, q, a2 in list(places(loss))[:40]:
        *got, course = _compiled(loss, a, y, z, q, a2 - a)
        expected = (loss.value(z, y), loss.slope(z, y), loss.conjugate(a, y), loss.dual_step(a, y, z, q))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(course, loss.line(a, y, a2 - a), rtol=1e-12, atol=1e-14)
    require(pickle.loads(pickle.dumps(loss)) == loss, "pickling changes the loss")


OF_A_LOSS = (
    fenchel_young,
    slope_is_the_gradient,
    as_smooth_as_it_says,
    dual_step_is_best,
    line_is_the_course,
    kernel_is_its_source,
)
