"""Make the pictures of the live page and of the report, each in light and dark, in a real browser.

    python docs/screenshots.py [VIEW ...]

It needs Playwright and Chromium, as ``make test-browser`` installs them. Look at what it made before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.browser.conftest import chromium
from tests.dashboard.pages import served
from tests.waiting import wait_for

from rhfedmtl.engines.registry import Execution
from rhfedmtl.runs import progress, session
from rhfedmtl.training.config import RunConfig

FIGURES = Path(__file__).resolve().parent / "figures"
COMMAND = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()"]


def command(*words: str) -> None:
    """Run a command to its end."""
    subprocess.run([*COMMAND, *words, "--json"], check=True, stdout=subprocess.DEVNULL)


def runs(out: Path) -> None:
    """A sweep, single runs of which one was interrupted, a sweep under way, and a pilot."""
    data = ["--data", "watch", "--terminals", "5", "--samples-per-task", "40", "--test-rest"]
    methods = ["--algorithms", "rhfedmtl,hfedmtl,fedavg,mocha,local", "--budgets", "300,600,1200,2400", "--seeds", "5"]
    command("compare", *data, *methods, "--out", str(out / "methods"))
    for seed in range(2):
        command("train", *data, "--budget", "energy=2400", "--seed", str(seed), "--out", str(out))
    run = session.begin(RunConfig(budget=("energy=1400",)), Execution(threads=1), out)
    run.run()
    going = {"done": 12, "total": 40, "pid": os.getpid()}
    (out / "drop-outs" / "runs").mkdir(parents=True)
    (out / "drop-outs" / "runs" / progress.SWEEP).write_text(json.dumps(going))
    command("plan", *data, "--budget", "energy=1400", "--pilot", str(out / "watch.pilot"))


@contextmanager
def network(place: Path) -> Iterator[None]:
    """A network that trains meanwhile: with averages, as it would be done too soon otherwise."""
    command("network", "init", str(place), "--stations", "3", "--terminals", "4", "--merge", "average")
    up = [
        *COMMAND,
        "network",
        "up",
        str(place),
        "--local",
        "--budget",
        "energy=40000",
        "--target-gap",
        "1e-30",
        "--json",
    ]
    with subprocess.Popen(up, stdout=subprocess.DEVNULL) as running:
        try:
            yield
        finally:
            running.send_signal(signal.SIGINT)


def shoot(page: Any, name: str, theme: str, height: int) -> None:
    """One picture, in few colours."""
    path = FIGURES / f"{name}_{theme}.png"
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height})
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def overlaid(page: Any) -> None:
    """Choose the methods of a sweep at a budget, and draw the means of their seeds in the same charts."""
    page.fill("#q", "sweep=methods energy=2400")
    wait_for(lambda: page.locator("tbody tr").count() == 5)
    for box in page.locator("tbody input").all():
        box.check()
    page.click(".go")
    page.wait_for_selector("figure")


def opened(page: Any) -> None:
    """The newest run that ended."""
    page.fill("#q", "watch-1")
    wait_for(lambda: page.locator("tbody tr").count() == 1)
    page.locator("tbody th a").first.click()
    page.wait_for_selector("figure")


WHATIF = "/whatif?pilot=watch&energy=5000&dropout=0.1"
VIEWS = {
    "runs": ("/", 900, lambda page: page.wait_for_selector(".sweeps")),
    "run": ("/", 1400, opened),
    "overlay": ("/", 1400, overlaid),
    "whatif": (WHATIF, 1360, lambda page: page.wait_for_selector("figure")),
    "phone": ("/", 844, lambda page: page.wait_for_selector(".sweeps")),
}
WIDTHS = {"phone": 390}


def main(asked: list[str]) -> None:
    """Make them all, or those that are named."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        out = Path(folder) / "runs"
        runs(out)
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])

        def page_of(address: str, theme: str, width: int = 1280) -> Any:
            page = browser.new_page(viewport={"width": width, "height": 1800}, color_scheme=theme)
            page.goto(address)
            return page

        with served(out) as live:
            for name, (path, height, act) in VIEWS.items():
                for theme in ("light", "dark") if not asked or name in asked else ():
                    page = page_of(live.address(path), theme, WIDTHS.get(name, 1280))
                    act(page)
                    shoot(page, f"dashboard_{name}", theme, height)
        if not asked or "report" in asked:
            command("report", str(out / "methods"), "--no-figures")
            for theme in ("light", "dark"):
                shoot(page_of((out / "methods" / "report.html").as_uri(), theme), "report", theme, 1200)
        if not asked or "network" in asked:
            net = Path(folder) / "factory"
            with network(net), served(net) as live:
                for theme in ("light", "dark"):
                    page = page_of(live.address(), theme)
                    wait_for(lambda page=page: re.search(r"round \d{3}", page.inner_text("#live")))
                    shoot(page, "dashboard_network", theme, 1780)


if __name__ == "__main__":
    main(sys.argv[1:])
