"""A real browser: Chromium as the system has it, driven headless. Tests skip, with a reason, where it is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report import small_results

from rhfedmtl import report
from rhfedmtl.studies import cost_figure

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Where Chromium is; ``RHFEDMTL_CHROMIUM`` names another one than that on the path."""
    return os.environ.get("RHFEDMTL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")  # its event loop would be in the way of other modules
def browser() -> Iterator[Any]:
    """Chromium, as it is found."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
    found = chromium()
    if found is None:
        pytest.skip("no Chromium is installed: make test-browser")
    with playwright.sync_playwright() as driver:
        # Containers and root have no sandbox to give; the page is our own.
        launched = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything that a report can show."""
    out = tmp_path_factory.mktemp("results")
    small_results.make(out)
    cost_figure.save(out)
    return report.write(out, draw=False).path


def violations(page: Any) -> list[str]:
    """What axe-core finds fault with."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make test-browser")
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")
    found = axe.Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:120]} {node['failureSummary']}" for each in found for node in each["nodes"]]
