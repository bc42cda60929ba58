"""The live page in numbers: how soon it shows 10,000 runs, how soon sliders answer, what progress costs a training.

    python benchmarks/dashboard.py [--runs 10000]

The last is a ratio within one run, the others are times on this machine: on a busy one, look at those of processor.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.browser.conftest import chromium
from tests.dashboard.pages import served

from rhfedmtl.dashboard import whatif
from rhfedmtl.dashboard.index import FIRST, Index
from rhfedmtl.dashboard.pages import RunQuery, frame, runs
from rhfedmtl.engines.registry import Execution
from rhfedmtl.runs import progress, session
from rhfedmtl.training.config import RunConfig

MANY = {"tasks": "200", "terminals": "2000", "samples": "100000", "energy": "1e8"}


def main() -> None:
    """Measure them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        first_paint(Path(folder), count)
    sliders()
    with tempfile.TemporaryDirectory() as folder:
        slowdown(Path(folder))


def first_paint(folder: Path, count: int) -> None:
    """Time until the first page of the table is there, and until all runs are read."""
    run = session.begin(RunConfig(budget=("energy=1400",)), Execution(threads=1), folder)
    run.finish(run.run())
    for i in range(1, count):
        (folder / f"run-{i}").mkdir()
        shutil.copy(run.folder / "run.json", folder / f"run-{i}")
    began, worked = time.perf_counter(), time.process_time()
    index = Index(folder)
    index.refresh(FIRST)
    page = frame("runs", runs(index, RunQuery()), {}, "/")
    painted, worked = time.perf_counter() - began, time.process_time() - worked
    index.refresh()
    read = time.perf_counter() - began
    again = time.perf_counter()
    index.refresh()
    print(f"{count:,} runs: first page after {painted:.2f} s ({worked:.2f} s of processor, {len(page) / 1e3:.0f} kB),")
    print(f"all read after {read:.2f} s,")
    print(f"looked through again in {time.perf_counter() - again:.2f} s")
    in_browser(folder)


def in_browser(folder: Path) -> None:
    """Time from the start of the server to what a reader sees first, in Chromium, where Playwright and it are there."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        print("no browser: see make test-browser")
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        with served(folder) as live:
            up = time.perf_counter() - began
            page.goto(live.address())
            painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3
            print(f"in Chromium: the server answers after {up:.2f} s, the table is painted {painted:.2f} s later")
        browser.close()


def sliders() -> None:
    """Time of a new answer, at the start, with rounds by the hundred, and with very many terminals."""
    for query in ({}, {"energy": "1e6"}, {"time": "1e5", "bytes": "1e9"}, MANY):
        times = []
        for repeat in range(8):
            asked = {**query, "dropout": f"{0.01 * repeat}"}
            began = time.process_time()
            whatif.view(asked, Path())
            times.append(1e3 * (time.process_time() - began))
        told = ", ".join(f"{name} {value}" for name, value in query.items()) or "at the start"
        print(f"what if, {told}: {statistics.median(times[1:]):.0f} ms of processor, at most {max(times[1:]):.0f}")


def slowdown(folder: Path, repeats: int = 15) -> None:
    """Time of a training that writes its progress down against one that does not, in turns."""
    config = RunConfig(budget=("energy=20000",))
    federation = config.federation()
    ratios: dict[str, list[float]] = {"time": [], "processor time": []}
    rounds = 0.0
    for _ in range(repeats):
        known = session.begin(config, Execution(threads=1), folder)
        plain = np.array([time.perf_counter(), time.process_time()])
        result = config.run(federation, execution=Execution(threads=1))
        middle = np.array([time.perf_counter(), time.process_time()])
        with progress.written(folder, known.record(None), None) as watch:
            config.run(federation, watch=watch, execution=Execution(threads=1))
        end = np.array([time.perf_counter(), time.process_time()])
        for name, ratio in zip(ratios, (end - middle) / (middle - plain), strict=True):
            ratios[name].append(float(ratio))
        rounds = result.rounds / (middle - plain)[0]
        shutil.rmtree(known.folder)
    shares = ", ".join(f"{statistics.median(each):.3f} of its {name}" for name, each in ratios.items())
    print(f"a training of {rounds:,.0f} rounds a second takes {shares} with progress written")


if __name__ == "__main__":
    main()
