"""Measure speed and memory, as ratios within a run: they mean the same on any machine.

    python benchmarks/speed.py [--quick] [--json]

``--quick`` measures the main ratios in less than a minute. Without it the script also measures kernels over many
shapes, up to a million terminals, and the hinge loss: some minutes and 5 GB. `docs/speed.md` explains the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import speed_kernels as kernels
from benchmarks import speed_liblinear as liblinear
from benchmarks import speed_timing as timing

from rhfedmtl.data.threads import cores
from rhfedmtl.maths.losses import Hinge, SquaredHinge

Figures = dict[str, Any]
Watch = Callable[[str], None]
MAIN = (
    ("cpu_stream_fraction", "of the speed at which rows can be read at all (d = 561, one thread)", ">= 0.6"),
    ("thread_speedup", "times faster with two threads than with one (d = 561)", ">= 1.8"),
    ("machine_thread_speedup", "times faster with two threads, for a loop that only reads the rows", ""),
    ("seconds_to_gap_ratio", "of liblinear's time to a relative gap of 1e-6", "<= 1"),
    ("small_round_us", "microseconds for a round of 25 terminals (14 rows, d = 561, H = 10)", ""),
    ("memory_beyond_data", "of the data's memory is needed besides the data (d = 561, 20 rows a terminal)", "<= 0.10"),
)
GRID = [(d, S, H) for d in (9, 64, 561, 4096) for S in (4, 16, 256) for H in (2, S, 4 * S)]
TERMINALS = ((25, 5), (1_000, 5), (10_000, 10), (100_000, 100), (1_000_000, 1_000))
PASSES = [(rows, d) for rows in (20, 100, 1_000) for d in (20, 500)]
TASKS = ((100_000, 5), (100_000, 100), (100_000, 1_000))


def quick(watch: Watch = lambda _: None) -> Figures:
    """Measure the main ratios: medians over turns, with half the range between their quartiles."""
    watch("rows streamed")
    stream = _with_peak(lambda: kernels.stream_fraction(561, 16, 16))
    watch("steps in NumPy")
    plain = {str(d): _with_peak(partial(kernels.numpy_ratio, d)) for d in (9, 561)}
    watch("threads")
    threads = _with_peak(lambda: kernels.thread_speedup(2))
    watch("liblinear")
    X, y, name = gap_problem()
    gap = _with_peak(lambda: liblinear.against_liblinear(X, y, SquaredHinge(), repeats=5))
    watch("memory")
    memory = timing.rounds_of(2_000, 5, 20, 561, 20, threads=1)
    return {
        "cpu_stream_fraction": stream["fraction"],
        "numpy_step_ratio": {d: figures["ratio"] for d, figures in plain.items()},
        "thread_speedup": threads["speedup"],
        "machine_thread_speedup": threads["machine_speedup"],
        "seconds_to_gap_ratio": gap["ratio"],
        "small_round_us": 1e6 * kernels.small_round(repeats=200),
        "memory_beyond_data": memory["beyond_data_mb"] / memory["data_mb"],
        "gap_problem": name,
        "details": {"stream": stream, "numpy": plain, "threads": threads, "gap": gap, "memory": memory},
        "machine": timing.machine(),
    }


def everything(watch: Watch = lambda _: None) -> Figures:
    """Measure the quick figures, kernels over (d, S, H), rounds over terminals, tasks and threads, etc."""
    figures = quick(watch)
    figures["grid"] = []
    for d, S, H in GRID:
        watch(f"kernel d={d} S={S} H={H}")
        shares = _with_peak(partial(kernels.stream_fraction, d, S, H, megabytes=128.0, repeats=7))
        figures["grid"].append({"d": d, "S": S, "H": H, **shares})
    figures["terminals"] = _scaled(TERMINALS, watch)
    watch("growth from 10,000 to 1,000,000 terminals")
    figures["growth"] = timing.growth(cores())
    figures["tasks"] = _scaled(TASKS, watch)
    figures["threads"] = [timing.rounds_of(100_000, 100, threads=threads) for threads in range(1, max(2, cores()) + 1)]
    watch("plain Python against the NumPy kernel")
    figures["interpreted"] = [kernels.interpreted_ratio(rows, d) for rows, d in PASSES]
    watch("hinge against liblinear")
    X, y, _ = gap_problem()
    rows = np.asarray(X, dtype=np.float64)  # liblinear reads double precision
    figures["hinge"] = _with_peak(lambda: liblinear.against_liblinear(rows, y, Hinge(), repeats=3, passes=5, every=1))
    return figures


def _with_peak(part: Callable[[], Figures]) -> Figures:
    """Return the figures of a part, with the peak of the memory of this process."""
    timing.forget_peak()
    return {**part(), "peak_mb": timing.resident("VmHWM") / 1e6}


def _scaled(sizes: tuple[tuple[int, int], ...], watch: Watch) -> list[Figures]:
    rounds = []
    for terminals, tasks in sizes:
        watch(f"{terminals:,} terminals, {tasks:,} tasks")
        rounds.append(timing.rounds_of(terminals, tasks, threads=cores()))
    return rounds


def gap_problem() -> tuple[Any, Any, str]:
    """Return SITTING against the rest of HAR, in unit rows; without HAR in RHFEDMTL_DATA a synthetic problem."""
    path = Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz"
    if not path.is_file():
        return *liblinear.problem(3_000), "synthetic, 3,000 rows: RHFEDMTL_DATA has no har.npz"
    from rhfedmtl.data.loaders.har import load
    from rhfedmtl.data.scaling import Scaler

    source = load(path)
    y = np.asarray(source.y) == source.class_names.index("SITTING")
    return Scaler(unit=True).transform(np.asarray(source.X)), y.astype(np.int64), "HAR, SITTING against the rest"


def text(figures: Figures) -> str:
    """Return the figures as lines, the main ratios with their aims."""
    lines = [f"{figures[name]:8.2f}  {words}" + (f"  (aim: {aim})" if aim else "") for name, words, aim in MAIN]
    for d, ratio in figures["numpy_step_ratio"].items():
        lines.append(f"{ratio:8.0f}  times faster than a step in NumPy (d = {d})")
    for row in figures.get("grid", []):
        shape = f"d={row['d']:<5} S={row['S']:<4} H={row['H']:<5}"
        lines.append(f"{shape} {row['ns_per_step']:9.1f} ns a step  {row['fraction']:.2f} of the speed of reading rows")
    for row in [*figures.get("terminals", []), *figures.get("tasks", []), *figures.get("threads", [])]:
        size = f"{row['terminals']:>9,} terminals, {row['tasks']:>5,} tasks, {row['threads']} threads"
        lines.append(f"{size}: {row['seconds'] * 1e3:10.2f} ms a round, peak {row['peak_mb']:,.0f} MB")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main ratios alone, in less than a minute")
    parser.add_argument("--json", action="store_true", help="print the figures as a JSON object on a line")
    options = parser.parse_args()
    measure = quick if options.quick else everything
    figures = measure(lambda part: print(f"measuring: {part}", file=sys.stderr) if sys.stderr.isatty() else None)
    print(json.dumps(figures, allow_nan=False) if options.json else text(figures))


if __name__ == "__main__":
    main()
