"""The report and the live page by the rules of axe-core, in light and dark: names, contrast, headings, roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import violations
from tests.browser.test_dashboard_page import VIEWS, folder, path_of, server
from tests.browser.test_dashboard_page import opened as opened_live
from tests.browser.test_report_page import _unfold, opened

__all__ = ["folder", "opened", "opened_live", "server"]
Open = Callable[..., Any]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_breaks_no_rule(opened: Open, theme: str) -> None:
    """With everything unfolded."""
    page = opened("desktop", theme)
    _unfold(page)
    assert violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_the_live_page_breaks_no_rule(opened_live: Open, folder: Path, view: str, theme: str) -> None:
    """The table of runs, one run, several of them, and what a budget would buy; a network is looked at as it trains."""
    assert violations(opened_live(path_of(view, folder), theme=theme)) == []
