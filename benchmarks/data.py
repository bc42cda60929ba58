"""Time and memory of the data layer, each case in a process of its own.

    python benchmarks/data.py [--quick] [--json FILE]

Cases: HAR read from ``har.npz`` in the folder RHFEDMTL_DATA and split (aim: 3 s, twice the size of the data); a million
synthetic terminals with 16 rows of 32 features made and described (aim: 60 s, 4 GB), and their moments; a CSV of the
user. Kernels are compiled before the clock starts, and the time that takes is shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

Facts = dict[str, float]


def peak_megabytes() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def har(quick: bool) -> Facts:
    """Read and split all of HAR; memory in units of the data's own size."""
    from rhfedmtl.data.loaders.har import load
    from rhfedmtl.data.split import federate

    path = Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz"
    if not path.is_file():
        return {}
    start = time.perf_counter()
    federate(load(path))
    seconds = time.perf_counter() - start
    with np.load(path) as file:
        size = sum(file[name].nbytes for name in file.files)
    tracemalloc.start()
    federate(load(path))
    _, peak = tracemalloc.get_traced_memory()
    return {"seconds": seconds, "megabytes": size / 1e6, "peak over size": peak / size, "rss MB": peak_megabytes()}


def million(quick: bool) -> Facts:
    """Make, describe and sum up a million terminals."""
    from rhfedmtl.data import describe
    from rhfedmtl.data.loaders.synthetic import Synthetic, make
    from rhfedmtl.data.sums import station_moments

    start = time.perf_counter()
    tiny = make(Synthetic())
    station_moments(tiny.X, tiny.terminal_offsets, tiny.task_offsets)
    compiled = time.perf_counter() - start
    tasks = 100 if quick else 1000
    start = time.perf_counter()
    federation = make(Synthetic(tasks=tasks, terminals=1000, samples=16, features=32))
    made = time.perf_counter() - start
    describe.text(federation)
    described = time.perf_counter() - start - made
    peak = peak_megabytes()
    start = time.perf_counter()
    station_moments(federation.X, federation.terminal_offsets, federation.task_offsets)
    return {
        "terminals": federation.n_terminals,
        "compile s": compiled,
        "make s": made,
        "describe s": described,
        "moments s": time.perf_counter() - start,
        "rss MB": peak,
    }


def csv(quick: bool) -> Facts:
    """Read a table of 20 numeric columns."""
    from rhfedmtl.data.loaders.table import load

    rows = 20_000 if quick else 200_000
    values = np.random.default_rng(0).normal(size=(rows, 20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        names = ",".join([f"x{j}" for j in range(20)] + ["task", "y"])
        table = np.column_stack([values, np.arange(rows) % 50, np.arange(rows) % 2])
        np.savetxt(path, table, delimiter=",", header=names, comments="", fmt="%.6g")
        start = time.perf_counter()
        load(path)
        seconds = time.perf_counter() - start
        size = path.stat().st_size
    return {"rows": rows, "seconds": seconds, "MB per s": size / 1e6 / seconds, "rss MB": peak_megabytes()}


CASES: dict[str, Callable[[bool], Facts]] = {"har": har, "million": million, "csv": csv}


def main() -> None:
    """Run every case in a fresh process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--case", choices=CASES, help="run one case in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(CASES[arguments.case](arguments.quick)))
        return
    figures = {}
    for name in CASES:
        command = [sys.executable, __file__, "--case", name, *(["--quick"] if arguments.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures[name] = json.loads(done.stdout)
        shown = ", ".join(f"{key} {value:,.4g}" for key, value in figures[name].items()) or "skipped: no file"
        print(f"{name:<10}{shown}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
