"""The figures of ``rhfedmtl bench``: a quick set of ratios, and all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.bench import kernels, scale, solver
from rhfedmtl.bench.measure import forget_peak, machine, resident
from rhfedmtl.data.threads import cores
from rhfedmtl.maths.losses import Hinge, SquaredHinge

Figures = dict[str, Any]
Watch = Callable[[str], None]
GRID = [(d, S, H) for d in (9, 64, 561, 4096) for S in (4, 16, 256) for H in (2, S, 4 * S)]
TERMINALS = ((25, 5), (1_000, 5), (10_000, 10), (100_000, 100), (1_000_000, 1_000))
TASKS = ((100_000, 5), (100_000, 100), (100_000, 1_000))


def quick(watch: Watch = lambda _: None) -> Figures:
    """Ratios within one run, in less than a minute: medians over turns, the quartiles' half range beside them."""
    watch("rows streamed")
    stream = _weighed(lambda: kernels.stream_fraction(561, 16, 16))
    watch("steps in NumPy")
    plain = {str(d): _weighed(partial(kernels.numpy_ratio, d)) for d in (9, 561)}
    watch("threads")
    threads = _weighed(lambda: kernels.thread_speedup(2))
    watch("liblinear")
    X, y, name = gap_problem()
    gap = _weighed(lambda: solver.against_liblinear(X, y, SquaredHinge(), repeats=5))
    watch("memory")
    memory = scale.rounds_of(2_000, 5, 20, 561, 20, threads=1)
    return {
        "cpu_stream_fraction": stream["fraction"],
        "numpy_step_ratio": {d: found["ratio"] for d, found in plain.items()},
        "thread_speedup": threads["speedup"],
        "machine_thread_speedup": threads["machine_speedup"],
        "seconds_to_gap_ratio": gap["ratio"],
        "small_round_us": 1e6 * kernels.small_round(repeats=200),
        "memory_beyond_data": memory["beyond_data_mb"] / memory["data_mb"],
        "gap_problem": name,
        "details": {"stream": stream, "numpy": plain, "threads": threads, "gap": gap, "memory": memory},
        "machine": machine(),
    }


def everything(watch: Watch = lambda _: None) -> Figures:
    """The quick figures, then kernels over (d, S, H), rounds over terminals, tasks and threads, and the hinge."""
    figures = quick(watch)
    figures["grid"] = []
    for d, S, H in GRID:
        watch(f"kernel d={d} S={S} H={H}")
        found = _weighed(partial(kernels.stream_fraction, d, S, H, megabytes=128.0, repeats=7))
        figures["grid"].append({"d": d, "S": S, "H": H, **found})
    figures["terminals"] = _scaled(TERMINALS, watch)
    watch("growth from 10,000 to 1,000,000 terminals")
    figures["growth"] = scale.growth(cores())
    figures["tasks"] = _scaled(TASKS, watch)
    figures["threads"] = [scale.rounds_of(100_000, 100, threads=threads) for threads in range(1, max(2, cores()) + 1)]
    watch("hinge against liblinear")
    X, y, _ = gap_problem()
    rows = np.asarray(X, dtype=np.float64)  # as liblinear reads them: in single precision corners may end above 1e-6
    figures["hinge"] = _weighed(lambda: solver.against_liblinear(rows, y, Hinge(), repeats=3, passes=5, every=1))
    return figures


def _weighed(part: Callable[[], Figures]) -> Figures:
    """Figures of a part, with the peak of the process's memory meanwhile: both sides of a ratio, and the library."""
    forget_peak()
    return {**part(), "peak_mb": resident("VmHWM") / 1e6}


def _scaled(sizes: tuple[tuple[int, int], ...], watch: Watch) -> list[Figures]:
    found = []
    for terminals, tasks in sizes:
        watch(f"{terminals:,} terminals, {tasks:,} tasks")
        found.append(scale.rounds_of(terminals, tasks, threads=cores()))
    return found


def gap_problem() -> tuple[Any, Any, str]:
    """SITTING against the rest, unit rows, where the folder RHFEDMTL_DATA has HAR; a made problem elsewhere."""
    path = Path(os.environ.get("RHFEDMTL_DATA", "")) / "har.npz"
    if not path.is_file():
        return *solver.problem(3_000), "synthetic, 3,000 rows: RHFEDMTL_DATA has no har.npz"
    from rhfedmtl.data.loaders.har import load
    from rhfedmtl.data.scaling import Scaler

    source = load(path)
    y = np.asarray(source.y) == source.class_names.index("SITTING")
    return Scaler(unit=True).transform(np.asarray(source.X)), y.astype(np.int64), "HAR, SITTING against the rest"
