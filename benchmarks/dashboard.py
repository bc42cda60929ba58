"""The live page in numbers: how soon it stands before 10,000 runs, and what its file of progress costs a training.

    python benchmarks/dashboard.py [--runs 10000]

The first is a time on this machine, the second a ratio within one run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from rhfedmtl.dashboard.index import FIRST, Index
from rhfedmtl.dashboard.pages import RunQuery, frame, runs
from rhfedmtl.engines.registry import Execution
from rhfedmtl.runs import progress, session
from rhfedmtl.training.config import RunConfig


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        first_paint(Path(folder), count)
    with tempfile.TemporaryDirectory() as folder:
        slowdown(Path(folder))


def first_paint(folder: Path, count: int) -> None:
    """Time until the first page of the table is there, and until all runs are read."""
    run = session.begin(RunConfig(budget=("energy=1400",)), Execution(threads=1), folder)
    run.finish(run.run())
    for i in range(1, count):
        (folder / f"run-{i}").mkdir()
        shutil.copy(run.folder / "run.json", folder / f"run-{i}")
    began = time.perf_counter()
    index = Index(folder)
    index.refresh(FIRST)
    page = frame("runs", runs(index, RunQuery()), {}, "/")
    painted = time.perf_counter() - began
    index.refresh()
    read = time.perf_counter() - began
    again = time.perf_counter()
    index.refresh()
    print(f"{count:,} runs: first page after {painted:.2f} s ({len(page) / 1e3:.0f} kB), all read after {read:.2f} s,")
    print(f"looked through again in {time.perf_counter() - again:.2f} s")


def slowdown(folder: Path, repeats: int = 15) -> None:
    """Time of a training that writes its progress down against one that does not, in turns."""
    config = RunConfig(budget=("energy=20000",))
    federation = config.federation()
    ratios, rounds = [], 0.0
    for _ in range(repeats):
        known = session.begin(config, Execution(threads=1), folder)
        plain = time.perf_counter()
        result = config.run(federation, execution=Execution(threads=1))
        middle = time.perf_counter()
        with progress.written(folder, known.record(None), None) as watch:
            config.run(federation, watch=watch, execution=Execution(threads=1))
        end = time.perf_counter()
        ratios.append((end - middle) / (middle - plain))
        rounds = result.rounds / (middle - plain)
        shutil.rmtree(known.folder)
    share = statistics.median(ratios)
    print(f"a training of {rounds:,.0f} rounds a second takes {share:.3f} of its time with progress written")


if __name__ == "__main__":
    main()
