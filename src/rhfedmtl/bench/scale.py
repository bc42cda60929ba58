"""Rounds of many terminals: seconds and peak memory, each size in a process of its own."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rhfedmtl.bench.measure import federation, forget_peak, in_a_row, iterations, medians, resident, started, turns


def rounds_of(
    terminals: int, tasks: int, samples: int = 16, d: int = 32, steps: int = 16, threads: int = 2
) -> dict[str, Any]:
    """Seconds of a round, and the peak of the resident memory with and without the data, in a fresh process."""
    return _elsewhere(_rounds, terminals, tasks, samples, d, steps, threads)


def growth(threads: int = 2) -> dict[str, Any]:
    """Nanoseconds a step at 10⁴, 10⁵ and 10⁶ terminals, in turns of equal work within one fresh process."""
    return _elsewhere(_growth, threads)


def _elsewhere(measure: Callable[..., dict[str, Any]], *numbers: int) -> dict[str, Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(measure, *numbers).result()


def _growth(threads: int, steps: int = 16, repeats: int = 9) -> dict[str, Any]:
    sizes = [10**power for power in (4, 5, 6)]
    networks = [started(federation(n // 1_000, 1_000, 16, 32), threads) for n in sizes]
    jobs = [in_a_row(sizes[-1] // n, iterations(net, steps)) for n, net in zip(sizes, networks, strict=True)]
    found = [[1e9 * seconds / (sizes[-1] * steps) for seconds in turn] for turn in turns(repeats, *jobs)]
    relative = [[ns / turn[0] for ns in turn] for turn in found]
    return {
        "threads": threads,
        "terminals": sizes,
        "ns_per_step": [statistics.median(each) for each in zip(*found, strict=True)],
        "relative": [statistics.median(each) for each in zip(*relative, strict=True)],
    }


def _rounds(terminals: int, tasks: int, samples: int, d: int, steps: int, threads: int) -> dict[str, Any]:
    iterations(started(federation(1, 2, samples, d), threads), steps)()  # compiles
    data = federation(tasks, terminals // tasks, samples, d)
    forget_peak()
    before = resident()
    network = started(data, threads)
    repeats = max(3, min(50, 3_000_000 // (terminals * steps)))
    (seconds,) = medians(repeats, iterations(network, steps), warm=1)
    peak = resident("VmHWM")
    return {
        "terminals": terminals,
        "tasks": tasks,
        "samples": samples,
        "d": d,
        "steps": steps,
        "threads": threads,
        "seconds": seconds,
        "ns_per_step": 1e9 * seconds / (terminals * steps),
        "data_mb": data.X.nbytes / 1e6,
        "beyond_data_mb": (peak - before) / 1e6,
        "peak_mb": peak / 1e6,
    }
