"""The report in a real browser: no errors, no requests, nothing cut off; values, switches and colours work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SIZES = {"desktop": (1280, 900), "phone": (390, 844), "small phone": (360, 640)}
Open = Callable[..., Any]
BEYOND = """() => [...document.querySelectorAll("h1, h2, h3, h4, p, li, summary, pre, .plot text, .frame, .scroll")]
    .filter((node) => node.getClientRects().length)
    .map((node) => [node, node.getBoundingClientRect()])
    .filter(([, box]) => box.left < -0.5 || box.right > innerWidth + 0.5)
    .map(([node]) => `${node.tagName}: ${node.textContent.slice(0, 40)}`)"""
"""What is shown and sticks out of the window."""


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Open]:
    """Opens the report; after the test nothing may have been complained of, or asked for."""
    contexts, noise, asked = [], [], []

    def open_it(size: str = "desktop", theme: str = "light", **more: Any) -> Any:
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        context = browser.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce", **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert noise == []
    assert set(asked) <= {page_file.as_uri()}


def _unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def _at(page: Any, plot: Any, share: float) -> tuple[float, float]:
    """A place in the window over a plot."""
    plot.scroll_into_view_if_needed()
    box = plot.locator(".frame").bounding_box()
    return box["x"] + share * box["width"], box["y"] + 0.5 * box["height"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_nothing_is_cut_off(opened: Open, size: str, theme: str) -> None:
    """At every width the page scrolls down only, and no chart has text beyond the edges of the window."""
    page = opened(size, theme)
    _unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    beyond = page.evaluate(BEYOND)
    assert beyond == []


def test_tables_fit_on_a_phone(opened: Open) -> None:
    """Tables of results do not scroll sideways; the values of a chart may."""
    page = opened("phone")
    _unfold(page)
    tables = page.locator(".part > .scroll")
    assert tables.count() > 5
    assert tables.evaluate_all("boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth).length") == 0


def test_plots_have_the_data(opened: Open) -> None:
    """Every point of the main chart has its marker, lines have their points, bars and matrices their pieces."""
    page = opened()
    panels = page.locator("#grid-values-chart .plot")
    assert panels.count() == 2
    for i in range(2):
        assert panels.nth(i).locator(".series.line .mark").count() == 2 * 2  # two competitors at two budgets
        assert panels.nth(i).locator(".series.hollow .mark").count() == 2
        assert panels.nth(i).locator("path.line").count() == 3  # with the yardstick
        assert panels.nth(i).locator("path.band").count() == 2
    assert page.locator("#faulty-bill-energy-chart .piece").count() == 6 * 2
    assert page.locator("#faulty-ties-learned-chart .cell").count() == 4 * 3
    _unfold(page)
    for kind in ("path.line", "rect.piece", "rect.cell"):
        widths = page.locator(f"#main {kind}").evaluate_all(
            "nodes => nodes.map((n) => n.getBoundingClientRect().width)"
        )
        assert min(widths) > 0.0, kind


def test_pointing_at_a_plot_shows_values(opened: Open) -> None:
    """A box names the place and all series there, with intervals and what the paper prints; it leaves again."""
    page = opened()
    plot = page.locator("#grid-values-chart .plot").first
    page.mouse.move(*_at(page, plot, 0.99))
    tip = page.locator(".tip")
    tip.wait_for(state="visible")
    text = tip.inner_text()
    assert "budget (energy units): 400" in text
    assert text.count(" to ") >= 1
    assert "printed in the paper: 0.62" in text
    assert "onerror" in text  # the hostile label, as text
    assert plot.locator(".pointer circle").count() == 4
    box = tip.bounding_box()
    assert box["x"] >= 0.0
    assert box["x"] + box["width"] <= 1280.0
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")
    assert plot.locator(".pointer line").count() == 0


def test_values_by_keyboard_and_by_finger(opened: Open) -> None:
    """Arrow keys walk through the values of a plot, Escape ends it; on a phone a touch does the same."""
    page = opened()
    plot = page.locator("#grid-values-chart .plot").first
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert ": 100" in page.locator(".tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert ": 400" in page.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()
    phone = opened("phone", has_touch=True)
    plot = phone.locator("#grid-values-chart .plot").nth(1)
    phone.touchscreen.tap(*_at(phone, plot, 0.02))
    tip = phone.locator(".tip")
    tip.wait_for(state="visible")
    assert ": 100" in tip.inner_text()
    box = tip.bounding_box()
    assert box["x"] >= 0.0
    assert box["x"] + box["width"] <= 390.0


def test_pointing_at_bars_and_matrices_shows_values(opened: Open) -> None:
    """A piece of a bar and a cell of a matrix say what they are."""
    page = opened()
    _unfold(page)
    for place in ("#faulty-bill-energy-chart .piece", "#faulty-ties-learned-chart .cell"):
        piece = page.locator(place).first
        piece.hover()
        assert page.locator(".tip").inner_text() == piece.get_attribute("data-tip")


def test_series_can_be_switched_off_and_on(opened: Open) -> None:
    """A click in the legend takes a series out of all panels, of the labels and of the box; another brings it back."""
    page = opened()
    figure = page.locator("#grid-values-chart")
    key = page.locator("#grid > .legend .key", has_text="HFedMTL")
    mine = figure.locator('.series[data-series="HFedMTL"] .line')
    assert [line.is_visible() for line in mine.all()] == [True, True]
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert [line.is_visible() for line in mine.all()] == [False, False]
    page.mouse.move(*_at(page, figure.locator(".plot").first, 0.99))
    assert "HFedMTL" not in page.locator(".tip").inner_text()
    elsewhere = page.locator('#grid .series[data-series="HFedMTL"].off')
    assert elsewhere.count() > 2, "the legend serves all charts of the study"
    key.click()
    assert elsewhere.count() == 0
    assert [line.is_visible() for line in mine.all()] == [True, True]


def test_light_and_dark(opened: Open) -> None:
    """The page follows the system until somebody chooses, and then keeps to that."""
    page = opened(theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('.c0.series .line')).stroke"
    dark, dark_line = page.evaluate(ground), page.evaluate(line)
    page.locator(".theme").click()
    assert _brightness(dark) < 60.0
    assert _brightness(page.evaluate(ground)) > 200.0
    assert page.evaluate(line) != dark_line
    page.reload()
    assert _brightness(page.evaluate(ground)) > 200


def _brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def test_on_paper_everything_is_unfolded_and_light(opened: Open) -> None:
    """Print shows every chart on white, also of folded sections, and no controls."""
    page = opened(theme="dark")
    folded = page.locator("details.part .chart")
    assert folded.count() > 3
    assert not folded.first.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert all(chart.is_visible() for chart in page.locator(".chart").all())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".theme").is_visible()


def test_without_a_script_charts_are_there(opened: Open) -> None:
    """With scripts forbidden the charts, labels and tables still show."""
    page = opened(java_script_enabled=False)
    assert page.locator("#grid-values-chart .frame .mark").first.is_visible()
    assert page.locator("#grid-table table").is_visible()
    assert not page.locator(".theme").is_visible()
