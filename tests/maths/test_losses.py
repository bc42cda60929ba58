"""Every property that a loss must have, each one test over all losses."""

from __future__ import annotations

import math
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numba import njit
from scipy.optimize import minimize_scalar

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths import losses
from rhfedmtl.maths.losses import Hinge, Logistic, SmoothedHinge, Squared, SquaredHinge, check_loss, has_corners
from rhfedmtl.maths.registry import LOSSES

ALL = [LOSSES[name]() for name in LOSSES] + [SmoothedHinge(1e-3), SmoothedHinge(50.0)]
IDS = [repr(loss) for loss in ALL]
over_losses = pytest.mark.parametrize("loss", ALL, ids=IDS)

SCORE = st.floats(-20.0, 20.0)
UNIT = st.floats(0.0, 1.0)
CURVATURE = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


def label(loss: Any, number: float) -> float:
    """A label in the domain of the loss."""
    return (1.0 if number >= 0 else -1.0) if loss.classifier else number


def inside(loss: Any, unit: float, y: float) -> float:
    """A dual variable in the box of the loss."""
    if isinstance(loss, Squared):
        return 8.0 * unit - 4.0
    return y * unit * (5.0 if isinstance(loss, SquaredHinge) else 1.0)


def slope(loss: Any, z: float, y: float) -> float:
    """−L′(z), by central differences."""
    h = 1e-6
    return -(loss.value(z + h, y) - loss.value(z - h, y)) / (2 * h)


def gain(loss: Any, a: float, y: float, z: float, q: float, d: float) -> float:
    """What a step d brings: the function that `dual_step` maximises, less its value at 0."""
    return float(loss.conjugate(a, y) - loss.conjugate(a + d, y) - d * z - q * d * d / 2)


@pytest.mark.parametrize(
    ("loss", "z", "y", "value"),
    [
        (SmoothedHinge(1.0), 2.0, 1.0, 0.0),
        (SmoothedHinge(1.0), 0.5, 1.0, 0.125),
        (SmoothedHinge(1.0), -1.0, 1.0, 1.5),
        (SmoothedHinge(0.5), 0.0, -1.0, 0.75),
        (Hinge(), 0.25, 1.0, 0.75),
        (Hinge(), 0.25, -1.0, 1.25),
        (Hinge(), 3.0, 1.0, 0.0),
        (SquaredHinge(), -1.0, 1.0, 2.0),
        (SquaredHinge(), 1.5, 1.0, 0.0),
        (Logistic(), 0.0, 1.0, math.log(2.0)),
        (Logistic(), 1000.0, -1.0, 1000.0),
        (Logistic(), 1000.0, 1.0, 0.0),
        (Squared(), 3.0, 1.0, 2.0),
    ],
)
def test_values_by_hand(loss: Any, z: float, y: float, value: float) -> None:
    """Losses have the values that one computes on paper."""
    assert loss.value(z, y) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize(
    ("loss", "a", "y", "conjugate"),
    [
        (SmoothedHinge(1.0), 0.5, 1.0, -0.375),
        (SmoothedHinge(0.5), -1.0, -1.0, -0.75),
        (Hinge(), -0.25, -1.0, -0.25),
        (SquaredHinge(), 2.0, 1.0, 0.0),
        (Logistic(), 0.5, 1.0, -math.log(2.0)),
        (Logistic(), 0.0, 1.0, 0.0),
        (Logistic(), -1.0, -1.0, 0.0),
        (Squared(), 2.0, 1.0, 0.0),
    ],
)
def test_conjugates_by_hand(loss: Any, a: float, y: float, conjugate: float) -> None:
    """Conjugates L*(−a) have the values that one computes on paper."""
    assert loss.conjugate(a, y) == pytest.approx(conjugate, abs=1e-15)


@over_losses
@given(z=SCORE, number=SCORE, unit=UNIT)
def test_fenchel_young(loss: Any, z: float, number: float, unit: float) -> None:
    """L(z) + L*(−a) ≥ −a z for every score and every dual variable."""
    y = label(loss, number)
    a = inside(loss, unit, y)
    assert loss.value(z, y) + loss.conjugate(a, y) >= -a * z - 1e-9 * (1 + abs(a * z) + z * z)


@over_losses
@given(z=SCORE, number=SCORE)
def test_fenchel_young_is_tight_at_the_gradient(loss: Any, z: float, number: float) -> None:
    """L(z) + L*(−a) = −a z where a = −L′(z)."""
    y = label(loss, number)
    a = slope(loss, z, y)
    if not isinstance(loss, Squared):
        a = y * min(max(y * a, 0.0), math.inf if isinstance(loss, SquaredHinge) else 1.0)
    if loss.smoothness < 0.1 and abs(1 - y * z) < 2e-2:
        return  # differences smear a corner
    assert loss.value(z, y) + loss.conjugate(a, y) == pytest.approx(-a * z, abs=1e-6 * (1 + z * z + y * y))


@over_losses
@given(z=SCORE, other=SCORE, number=SCORE)
def test_losses_are_convex_and_as_smooth_as_they_say(loss: Any, z: float, other: float, number: float) -> None:
    """L lies below its chords, and above them by no more than (1/γ)-smoothness allows."""
    y = label(loss, number)
    middle, chord = loss.value((z + other) / 2, y), (loss.value(z, y) + loss.value(other, y)) / 2
    tolerance = 1e-9 * (1 + chord)
    assert middle <= chord + tolerance
    if loss.smoothness > 0:
        assert middle >= chord - (z - other) ** 2 / (8 * loss.smoothness) - tolerance


@over_losses
@given(unit=UNIT, number=SCORE, z=SCORE, q=CURVATURE, other=st.floats(-6.0, 6.0))
def test_no_other_step_raises_the_dual_more(
    loss: Any, unit: float, number: float, z: float, q: float, other: float
) -> None:
    """The dual step stays in the box, never loses, and beats any other step."""
    y = label(loss, number)
    a = inside(loss, unit, y)
    best = gain(loss, a, y, z, q, loss.dual_step(a, y, z, q))
    scale = 1 + abs(z) + abs(y) + abs(a)
    assert best >= -1e-9 * scale
    for d in (other, inside(loss, abs(other) / 6, y) - a, 1e-3 * other):
        assert best >= gain(loss, a, y, z, q, d) - 1e-9 * scale**2


@over_losses
@pytest.mark.parametrize("q", [0.0, 1e-8, 0.3, 7.0, 1e4])
def test_the_dual_step_is_what_a_solver_finds(loss: Any, q: float) -> None:
    """The closed forms and Newton's method agree with a bounded scalar search."""
    for y, a, z in ((1.0, 0.3, 0.2), (-1.0, -0.7, 1.4), (1.0, 0.0, -2.0), (-1.0, -1.0, -0.5)):
        low, high = (-60.0, 60.0) if isinstance(loss, Squared) else sorted((0.0, y * 60.0))
        if not isinstance(loss, Squared | SquaredHinge):
            low, high = sorted((0.0, y))
        found = minimize_scalar(
            lambda new, a=a, y=y, z=z: -gain(loss, a, y, z, q, new - a), bounds=(low, high), options={"xatol": 1e-12}
        )
        step = loss.dual_step(a, y, z, q)
        assert gain(loss, a, y, z, q, step) >= -found.fun - 1e-9
        assert low - 1e-12 <= a + step <= high + 1e-12


@over_losses
def test_a_zero_row_goes_to_where_its_own_dual_is_best(loss: Any) -> None:
    """With x = 0 the score is 0 and the curvature 0: the step is defined, and ends at −L′(0)."""
    y = 1.0
    assert loss.dual_step(0.0, y, 0.0, 0.0) == pytest.approx(slope(loss, 0.0, y), abs=1e-6)


@over_losses
@pytest.mark.parametrize("q", [1e12, 1e200])
@pytest.mark.parametrize("z", [-1e6, 0.0, 1e6])
def test_huge_rows_give_small_finite_steps(loss: Any, q: float, z: float) -> None:
    """The step shrinks as the row grows, and stays a number."""
    for a in (0.0, 0.5, 1.0):
        step = loss.dual_step(a, 1.0, z, q)
        assert math.isfinite(step)
        assert abs(step) <= (abs(z) + 100.0) / q * 2 + 1e-6 * (a + 1e-9)


@over_losses
def test_outside_of_the_box_the_conjugate_is_infinite(loss: Any) -> None:
    """Edges belong to the box, a hair of rounding is forgiven, and beyond it no dual value is finite."""
    if isinstance(loss, Squared):
        assert math.isfinite(loss.conjugate(-1e3, 1.0))
        return
    for y in (-1.0, 1.0):
        assert math.isfinite(loss.conjugate(0.0, y))
        assert math.isfinite(loss.conjugate(y, y))
        assert math.isfinite(loss.conjugate(-y * 1e-12, y))
        assert loss.conjugate(-y * 0.01, y) == math.inf
        assert (loss.conjugate(y * 1.01, y) == math.inf) != isinstance(loss, SquaredHinge)


@over_losses
@given(unit=UNIT, target=UNIT, number=SCORE, eta=UNIT)
def test_the_line_is_the_profile_of_the_conjugate(
    loss: Any, unit: float, target: float, number: float, eta: float
) -> None:
    """−L*(−(a + ηd)) follows the parabola that `line` gives, up to where `line` says the box ends."""
    y = label(loss, number)
    a = inside(loss, unit, y)
    d = inside(loss, target, y) - a
    linear, quadratic, room = loss.line(a, y, d)
    assert room >= 1 - 1e-9 or abs(d) < 1e-9
    if math.isfinite(room) and abs(d) > 1e-6:
        assert math.isfinite(loss.conjugate(a + room * d, y))
        assert loss.conjugate(a + (room + 1e-6 / abs(d)) * d, y) == math.inf
    if loss.quadratic:
        profile = -loss.conjugate(a, y) + linear * eta - quadratic * eta * eta / 2
        assert -loss.conjugate(a + eta * d, y) == pytest.approx(profile, abs=1e-9 * (1 + loss.smoothness))


@njit
def all_of(loss, a, y, z, q, d):  # type: ignore[no-untyped-def]
    """What kernels make of a loss."""
    return (
        losses.value(loss, z, y),
        losses.conjugate(loss, a, y),
        losses.dual_step(loss, a, y, z, q),
        losses.line(loss, a, y, d),
        losses.is_quadratic(loss),
    )


@pytest.mark.parametrize("name", LOSSES)
def test_the_kernel_is_its_python_source(name: str) -> None:
    """Compiled and interpreted, a loss gives the same numbers."""
    loss = LOSSES[name]()
    rng = np.random.default_rng(0)
    for z, q, unit, d in zip(
        rng.normal(size=20), rng.exponential(size=20), rng.random(20), rng.normal(size=20), strict=True
    ):
        for y in (-1.0, 1.0):
            a = inside(loss, unit, y)
            expected = (
                loss.value(z, y),
                loss.conjugate(a, y),
                loss.dual_step(a, y, z, q),
                *loss.line(a, y, d),
            )
            got = all_of(loss, a, y, z, q, d)
            np.testing.assert_allclose([*got[:3], *got[3]], expected, rtol=1e-13, atol=1e-15)
            assert got[4] == loss.quadratic


@over_losses
def test_losses_survive_pickling(loss: Any) -> None:
    """A loss goes to another process as it is."""
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_a_smoothing_that_makes_no_sense_is_refused(gamma: float) -> None:
    """γ must be a finite number above zero; the message says what to use for zero."""
    with pytest.raises(ConfigError, match="use loss 'hinge'"):
        check_loss(SmoothedHinge(gamma))


def test_rows_rest_only_where_line_tells_their_slope() -> None:
    """Of the library's losses the hinge alone; never where the conjugate has a corner that `line` does not describe."""

    class Cornered(Hinge):
        """A hinge whose `line` says nothing."""

        quadratic = False

    assert [name for name in LOSSES.own if has_corners(LOSSES[name]())] == ["hinge"]
    assert not has_corners(Cornered())
