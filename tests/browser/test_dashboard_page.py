"""The live page in a real browser: it updates while runs and networks go on, and nothing sticks out or is fetched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import violations
from tests.browser.test_report_page import BEYOND
from tests.dashboard.pages import Page, served
from tests.waiting import wait_for

from rhfedmtl.engines.registry import Execution
from rhfedmtl.runs import session
from rhfedmtl.training.config import RunConfig

WIDTHS = (390, 768, 1280, 1920)
COMMAND = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()"]
UNNAMED = """() => [...document.querySelectorAll("a, button, input:not([type=hidden]), meter, select")]
    .filter((node) => !(node.textContent.trim() || node.getAttribute("aria-label") || node.labels?.length))
    .map((node) => node.outerHTML.slice(0, 80))"""
"""What a reader of the screen would have no name for."""
Open = Callable[..., Any]


def _train(out: Path, seed: int) -> None:
    run = session.begin(RunConfig(budget=("energy=600",), seed=seed), Execution(threads=1), out)
    run.finish(run.run())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs."""
    out = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        _train(out, seed)
    return out


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Page]:
    """The page of these runs."""
    with served(folder) as found:
        yield found


@pytest.fixture
def opened(browser: Any, server: Page) -> Iterator[Open]:
    """Opens a view; after the test nothing may have been complained of, or fetched from elsewhere."""
    contexts, noise, asked = [], [], []

    def open_it(path: str = "/", width: int = 1280, theme: str = "light", at: Page = server) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(at.address(path))
        page.wait_for_selector('.pulse[data-state="live"]')
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert noise == []
    assert all(url.startswith("http://127.0.0.1:") for url in asked)


VIEWS = ("runs", "run", "overlay", "whatif")


def path_of(view: str, folder: Path) -> str:
    """The address of a view of these runs."""
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    chosen = "&".join(f"run={name}" for name in names)
    return {"runs": "/", "run": f"/run/{names[0]}", "overlay": f"/overlay?{chosen}", "whatif": "/whatif"}[view]


def check_layout(page: Any) -> None:
    """The page scrolls down only, and everything has a name."""
    assert page.evaluate(BEYOND) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out(opened: Open, folder: Path, view: str, width: int) -> None:
    """At every width, in light and dark."""
    check_layout(opened(path_of(view, folder), width, "dark" if width == 768 else "light"))


def test_keys_alone_sort_choose_and_overlay(opened: Open) -> None:
    """Without a pointer: Tab goes from the top to the table, Enter sorts, Space chooses, Enter lays runs over."""
    page = opened("/?single=1")

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches('{selector}')"):
                return
        raise AssertionError(f"Tab does not lead to {selector}")

    tab_to(".skip")
    tab_to("#q")
    tab_to("#by-seed")
    page.keyboard.press("Enter")
    page.wait_for_selector('th[aria-sort="descending"] #by-seed')
    for _ in range(2):
        tab_to("tbody input")
        page.keyboard.press("Space")
    tab_to(".go")
    page.keyboard.press("Enter")
    page.wait_for_selector("figure")
    assert "2 runs" in page.inner_text("#live")


def test_the_token_leaves_the_address(opened: Open) -> None:
    """It is exchanged for a cookie that scripts cannot read; links work from then on."""
    page = opened()
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""
    page.locator("tbody th a").first.click()
    page.wait_for_selector("figure")


def test_filter_sort_and_overlay(opened: Open) -> None:
    """Typing narrows the table and stays in its field; a heading sorts; chosen runs share charts; keys walk along."""
    page = opened()
    assert page.locator("tbody tr").count() == 1, "the seeds of a configuration share a line"
    page.check("#single")
    wait_for(lambda: page.locator("tbody tr").count() == 3)
    page.fill("#q", "seed=1")
    wait_for(lambda: page.locator("tbody tr").count() == 1)
    assert page.evaluate("document.activeElement.id") == "q"
    page.fill("#q", "")
    wait_for(lambda: page.locator("tbody tr").count() == 3)
    page.click("#by-seed")
    page.wait_for_selector('th[aria-sort="descending"] #by-seed')
    for i in range(2):
        page.locator("tbody input").nth(i).check()
    page.click(".go")
    page.wait_for_url("**/overlay?**")
    page.wait_for_selector('.pulse[data-state="live"]')
    plot = page.locator(".plot[role=group]").first
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".tip:not([hidden])")


SIDEWAYS = """() => [...document.querySelectorAll(".scroll")]
    .filter((box) => !box.closest("details.data") && box.scrollWidth > box.clientWidth).length"""


@pytest.mark.parametrize("view", VIEWS)
def test_results_fit_on_a_phone(opened: Open, folder: Path, view: str) -> None:
    """Tables of results do not scroll sideways, with seeds together or apart; their headings still sort."""
    page = opened(path_of(view, folder), 390)
    assert page.evaluate(SIDEWAYS) == 0
    if view == "runs":
        page.check("#single")
        wait_for(lambda: page.locator("tbody tr").count() == 3)
        assert page.evaluate(SIDEWAYS) == 0
        page.click("#by-seed")
        page.wait_for_selector('th[aria-sort="descending"] #by-seed')


@pytest.mark.parametrize("width", [390, 1280])
def test_the_answer_is_above_the_sliders(opened: Open, width: int) -> None:
    """The answer stays in sight on a phone while a slider moves."""
    page = opened("/whatif", width)
    bottom = page.locator("#answer").bounding_box()
    assert bottom["y"] + bottom["height"] <= page.locator("form.whatif").bounding_box()["y"]
    before = page.inner_text("#answer .finding")
    slider = page.locator("#energy_round-slider")
    slider.focus()
    page.keyboard.press("End")
    wait_for(lambda: page.inner_text("#answer .finding") != before)
    assert page.locator("#plan .facts").is_visible() or "odds" in page.inner_html("#answer")
    if width == 390:
        page.locator("#delta").scroll_into_view_if_needed()
        place = page.locator("#answer .finding").bounding_box()
        assert 0.0 <= place["y"] < 60.0


def test_sliders_answer(opened: Open) -> None:
    """Moving a slider moves its number, the plan and the command to copy."""
    page = opened("/whatif")
    before = page.inner_text("#plan .command pre")
    page.locator("#energy-slider").focus()
    page.keyboard.press("End")
    wait_for(lambda: page.inner_text("#plan .command pre") != before)
    assert "--budget energy=100000000" in page.inner_text("#plan .command pre")
    assert page.input_value("#energy") == "100000000"


def test_a_training_is_seen_as_it_goes(opened: Open, browser: Any, tmp_path: Path) -> None:
    """Rounds appear without a reload, in two browsers alike, until the run is done."""
    with served(tmp_path) as mine:
        pages = [opened("/", at=mine), opened("/", at=mine)]
        words = ["train", "--budget", "energy=4000", "--target-gap", "1e-30", "--threads", "1", "--out", str(tmp_path)]
        with subprocess.Popen([*COMMAND, *words, "--json"], stdout=subprocess.DEVNULL) as run:
            for page in pages:
                page.wait_for_selector("tbody tr", timeout=120_000)
            assert run.wait(300) == 0
        for page in pages:
            page.wait_for_selector(".state.done", timeout=120_000)
        wait_for(lambda: pages[0].inner_text("tbody") == pages[1].inner_text("tbody"))
        for page in pages:
            page.context.close()


def test_a_network_is_seen_as_it_trains(opened: Open, tmp_path: Path) -> None:
    """Nodes, what they took, rounds and the budget of a real network, without a reload; its end is told.

    It fits every width, and breaks no rule of axe-core.
    """
    net = tmp_path / "net"
    init = [*COMMAND, "network", "init", str(net), "--stations", "2", "--terminals", "2", "--json"]
    subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
    cloud = net / "cloud" / "cloud.toml"  # without an end, until all was seen
    cloud.write_text(cloud.read_text().replace("[learning]", "[learning]\ntarget_relative_gap = 0.0"))
    with served(net) as mine:
        page = opened("/", at=mine)
        assert "is the cloud running?" in page.inner_text("#live")
        up = [*COMMAND, "network", "up", str(net), "--local", "--budget", "energy=1e9", "--json"]
        with subprocess.Popen(up, stdout=subprocess.DEVNULL) as running:
            page.wait_for_selector("meter", timeout=120_000)
            page.wait_for_selector(".tree .state.connected", timeout=120_000)
            wait_for(lambda: "energy" in page.inner_text(".tree") or running.poll() is not None)
            subprocess.run([*COMMAND, "network", "stop", str(net)], check=True, stdout=subprocess.DEVNULL)
            assert running.wait(300) == 0
        wait_for(lambda: "rhfedmtl network up" in page.inner_text("#actions"))  # it did not answer at first either
        wait_for(lambda: "the network has finished" in page.inner_text("#events"))
        assert "finished" in page.inner_text(".state.ended")
        assert "--offline" in page.inner_text("#actions")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            check_layout(page)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert violations(page) == []
        page.context.close()
