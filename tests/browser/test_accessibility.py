"""The report and the live page by the rules of axe-core, in light and dark: names, contrast, headings, roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.browser.test_dashboard_page import folder, server
from tests.browser.test_dashboard_page import opened as opened_live
from tests.browser.test_report_page import _unfold, opened

__all__ = ["folder", "opened", "opened_live", "server"]
Open = Callable[..., Any]


def _violations(page: Any) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make test-browser")
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")
    found = axe.Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:120]} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_breaks_no_rule(opened: Open, theme: str) -> None:
    """With everything unfolded."""
    page = opened("desktop", theme)
    _unfold(page)
    assert _violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/whatif"])
def test_the_live_page_breaks_no_rule(opened_live: Open, path: str, theme: str) -> None:
    """The table of runs, one run, and what a budget would buy."""
    page = opened_live(path, theme=theme)
    assert _violations(page) == []
    if path == "/":
        page.locator("tbody th a").first.click()
        page.wait_for_selector("figure")
        assert _violations(page) == []
