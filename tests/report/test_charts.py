"""Charts as data: axes, ticks, numbers in words, styles; and what both renderers make of them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.display import short
from rhfedmtl.report import along, svg
from rhfedmtl.report.charts import Axis, Bars, Heat, LineChart, Panels, Series, Style, Styles, thinned, ticks
from rhfedmtl.report.words import metric_axis

finite = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.95321, "0.9532"),
        (1400.0, "1,400"),
        (26, "26"),
        (0.0001, "10⁻⁴"),
        (4.73e-7, "4.7·10⁻⁷"),
        (-2e-5, "-2·10⁻⁵"),
        (None, "–"),
        ("mean", "mean"),
    ],
)
def test_numbers_read_as_people_write_them(value: object, text: str) -> None:
    """Four digits, thousands apart, powers of ten where a number is very small; text stays text."""
    assert short(value) == text


@given(low=finite, width=st.floats(1e-3, 1e6), most=st.integers(2, 9))
def test_ticks_are_round_and_inside(low: float, width: float, most: int) -> None:
    """Ticks lie between the limits, at equal distances of 1, 2 or 5 times a power of ten, and are never too many."""
    found = ticks(Axis("", low=low, high=low + width), most)
    assert len(found) <= most + 1
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in found)
    steps = np.diff(found)
    if len(steps):
        digits = f"{steps[0]:.3e}"[0]
        assert digits in "1259"  # 9 by rounding: 9.999 for 10
        assert np.allclose(steps, steps[0], rtol=1e-6)


@given(power=st.integers(-12, 3), decades=st.floats(0.1, 14.0))
def test_log_ticks_are_inside(power: int, decades: float) -> None:
    """A log axis has ticks at powers of ten, and at round values between where there are not three of them."""
    axis = Axis("", "log", 10.0**power, 10.0 ** (power + decades))
    found = ticks(axis)
    assert 3 <= len(found) <= 7
    assert all(-1e-9 <= axis.place(tick) <= 1.0 + 1e-9 for tick in found)


def test_counts_have_whole_ticks() -> None:
    """An axis that counts things shows no halves."""
    assert ticks(Axis("tasks", low=0.9, high=5.1, integer=True), 9) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_accuracy_axis_ends_at_one() -> None:
    """An interval that reaches beyond 1 does not stretch the axis of an accuracy, and its band ends there."""
    series = Series("a", [0.0, 1.0], [0.9, 0.95], [0.7, 0.8], [1.3, 1.2])
    chart = LineChart("k", "t", Axis("x"), Axis("accuracy", floor=0.0, ceiling=1.0), (series,)).fitted()
    assert chart.y.high == 1.0
    band = re.search(r'class="band" d="([^"]+)"', svg.draw(chart))
    assert band is not None
    heights = [float(y) for y in re.findall(r"[\d.]+ (-?[\d.]+)", band[1])]
    assert min(heights) == 0.0


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.951, 0.954], (0.9, 1.0)),
        ([0.601, 0.604], (0.5525, 0.6525)),
        ([0.99, 1.0], (0.9, 1.0)),
        ([0.7, 0.9], (0.7, 0.9)),
    ],
)
def test_an_accuracy_axis_does_not_zoom_into_noise(values: list[float], limits: tuple[float, float]) -> None:
    """It spans at least 10 points, between 0 and 1; values farther apart keep their limits."""
    axis = metric_axis("balanced_accuracy").fitted(values)
    assert (axis.low, axis.high) == pytest.approx(limits)
    errors = metric_axis("rmse").fitted(values)
    assert (errors.low, errors.high) == pytest.approx((values[0], values[1]))


@given(st.lists(finite, min_size=1, max_size=6))
def test_fitted_axes_hold_every_point(values: list[float]) -> None:
    """No point lies outside of an axis that was fitted to it, be there one value or many."""
    axis = Axis("x").fitted(values, 0.05)
    assert all(0.0 <= axis.place(value) <= 1.0 for value in values)


def test_no_two_variants_look_alike() -> None:
    """All methods, tuned ones and yardsticks differ in colour, marker or dash, and keep their look."""
    styles = Styles()
    names = [*ALGORITHMS, "learned", "clusters"]
    found = [styles.of(name) for name in names] + [styles.of(f"{name}-tuned", name) for name in names[:3]]
    found += [styles.of(f"yard-{i}", yardstick=True) for i in range(2)]
    assert len(set(found)) == len(found)
    assert styles.of(names[0]) == found[0]
    assert styles.of(f"{names[0]}-tuned", names[0]).colour == found[0].colour


def test_a_chart_has_a_colour_for_each_family_while_there_are_enough() -> None:
    """Names that got one colour in different studies get different ones where they meet; tuned ones keep theirs."""
    styles = Styles()
    many = [f"method-{i}" for i in range(10)]
    before = [styles.of(name) for name in many]
    assert before[0].colour == before[7].colour
    members = [("method-0", "method-0", False), ("method-7", "method-7", False), ("method-0-tuned", "method-0", False)]
    found = styles.together(members)
    assert found["method-0"] == before[0]
    assert found["method-7"].colour not in (before[0].colour, before[7].colour)
    assert found["method-0-tuned"].colour == before[0].colour
    assert len(set(found.values())) == 3


@given(st.integers(0, 5000), st.integers(2, 60))
def test_thinning_keeps_both_ends(count: int, most: int) -> None:
    """Long curves lose points, never the first and the last."""
    places = thinned(count, most)
    assert len(places) <= most or count <= most
    assert places == sorted(set(places))
    assert not count or (places[0], places[-1]) == (0, count - 1)


@given(st.lists(st.floats(0.0, 320.0), min_size=1, max_size=8))
def test_labels_at_line_ends_do_not_overlap(wanted: list[float]) -> None:
    """Labels are moved apart by a line of text, keep their order and stay on the chart."""
    places = svg.spread(sorted(wanted), 16.0, 320.0)
    assert len(places) == len(wanted)
    assert all(-1e-9 <= place <= 320.0 + 1e-9 for place in places)
    assert (np.diff(places) >= 16.0 - 1e-6).all()


def test_the_data_in_a_drawing_is_the_data_of_the_chart() -> None:
    """What the script reads are the points of the series, gaps included."""
    series = Series("a", [1.0, 2.0, 3.0], [0.5, None, 0.25], style=Style(2, 1))
    chart = LineChart("k", "t", Axis("x"), Axis("y"), (series,))
    found = re.search(r'<script type="application/json">(.*?)</script>', svg.draw(chart))
    assert found is not None
    data = json.loads(found[1])
    assert data["series"][0] | {"class": "", "mark": ""} == {
        "name": "a",
        "class": "",
        "mark": "",
        "x": [1.0, 2.0, 3.0],
        "y": [0.5, None, 0.25],
    }
    assert svg.draw(chart).count("<use") == 2


def test_steps_go_along_before_they_go_up() -> None:
    """A line of steps holds each value until the next one."""
    series = Series("H", [1.0, 2.0, 3.0], [10.0, 20.0, 10.0], kind="steps")
    chart = LineChart("k", "t", Axis("round", low=1.0, high=3.0), Axis("H", low=0.0, high=20.0), (series,))
    path = re.search(r'class="line" d="M([^"]+)"', svg.draw(chart))
    assert path is not None
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    assert [x for x, _ in points] == [0.0, 500.0, 500.0, 1000.0, 1000.0]
    assert points[0][1] == points[1][1] > points[2][1] == 0.0


def test_every_chart_has_its_values_as_a_table() -> None:
    """Lines, bars and matrices give a header and rows of the same length, with what they show."""
    lines = LineChart("k", "t", Axis("x"), Axis("y"), (Series("a", [1.0, 2.0], [0.5, 0.6], [0.4, 0.5], [0.6, 0.7]),))
    bars = Bars("k", "t", Axis("energy"), ("a", "b"), ("terminal", "station"), ((1.0, 2.0), (3.0, 4.0)))
    heat = Heat("k", "t", ("a", "b"), ("a", "b"), ((None, 0.5), (0.5, None)), "tie")
    for head, rows in (lines.table(), bars.table(), heat.table()):
        assert rows
        assert {len(row) for row in rows} == {len(head)}
    assert lines.table()[1][0] == ("1", "0.5 (0.4 to 0.6)")
    assert bars.table()[1][1] == ("b", "3", "4", "7")


def test_panels_share_their_axes() -> None:
    """Small multiples are drawn on one scale, so that they can be compared."""
    low, high = Series("a", [0.0, 1.0], [0.1, 0.2]), Series("a", [5.0, 9.0], [0.8, 0.9])
    parts = tuple(LineChart("k", "t", Axis("x"), Axis("y"), (series,)) for series in (low, high))
    first, second = Panels("k", "t", parts).fitted().parts
    assert (first.x, first.y) == (second.x, second.y)
    assert first.y.place(0.1) > 0.0
    assert first.y.place(0.9) < 1.0


def test_a_curve_holds_the_last_value_of_each_seed() -> None:
    """Seeds that were measured at different places meet on a grid; none is looked at before it was measured."""
    one = along.Trace(np.array([1.0, 3.0]), np.array([0.2, 0.4]))
    two = along.Trace(np.array([2.0, 4.0]), np.array([0.6, 0.8]))
    curve = along.averaged([one, two], along.grid([one, two]))
    assert curve.x == [2.0, 3.0, 4.0]
    assert curve.y == pytest.approx([0.4, 0.5, 0.6])
    assert curve.low[0] < 0.4 < curve.high[0]


def test_long_runs_make_short_curves() -> None:
    """However many rounds a run had, its curve has few points and ends where the run did."""
    x = np.arange(1.0, 20_001.0)
    trace = along.Trace(x, 1.0 - 1.0 / x)
    curve = along.averaged([trace], along.grid([trace]))
    assert len(curve.x) <= along.GRID + 2
    assert (curve.x[-1], curve.y[-1]) == (20_000.0, pytest.approx(1.0 - 1.0 / 20_000))
