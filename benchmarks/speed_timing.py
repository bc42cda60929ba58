"""Medians over interleaved repeats, rounds of many terminals, memory of a process, and federations to measure with."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.threads import cores
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.provenance import versions
from rhfedmtl.roles.cloud import Cloud

METHOD = DualMethod(relationship=MeanRegularised(1e-2, 1e-3), intercept=False)
DISTINCT = 2**26
"""Random numbers to draw; larger federations repeat them, which costs no less to read."""


def federation(n_tasks: int, n_terminals: int, rows: int, d: int) -> Federation:
    """Make unit rows of float32 with random labels: ``n_terminals`` in every task, ``rows`` on every terminal."""
    rng = np.random.default_rng(0)
    n = n_tasks * n_terminals * rows
    drawn = rng.standard_normal((min(n, max(1, DISTINCT // d)), d), dtype=np.float32)
    drawn /= np.sqrt(np.einsum("ij,ij->i", drawn, drawn))[:, None]
    X = drawn
    if len(drawn) < n:
        X = np.empty((n, d), np.float32)
        for start in range(0, n, len(drawn)):
            X[start : start + len(drawn)] = drawn[: n - start]
    return Federation.untested(
        X,
        rng.integers(0, 2, n, dtype=np.int16),
        np.arange(0, n + 1, rows),
        np.arange(0, n_tasks * n_terminals + 1, n_terminals),
        task_names=tuple(str(b) for b in range(n_tasks)),
        class_names=("no", "yes"),
    )


def started(data: Federation, threads: int) -> InProcess:
    """Return a network that is ready for its first round."""
    network = InProcess(data, METHOD, threads=threads)
    network.assign(Cloud(METHOD.relationship, data.n_tasks, network.shape).assign())
    return network


def iterations(network: InProcess, steps: int) -> Callable[[], Any]:
    """Return a job that runs the next BS iteration."""
    numbers = count(1)
    work = np.full(len(network.station), steps)
    return lambda: network.round(next(numbers), work)


def in_a_row(times: int, job: Callable[[], Any]) -> Callable[[], None]:
    """Return a job that runs another ``times`` times."""

    def stretch() -> None:
        for _ in range(times):
            job()

    return stretch


def turns(repeats: int, *jobs: Callable[[], Any], warm: int = 1) -> list[list[float]]:
    """Return the seconds of the jobs in every turn.

    The order alternates, and ``warm`` turns at the start do not count.
    """
    measured = []
    for turn in range(repeats + warm):
        seconds = [0.0] * len(jobs)
        for k in range(len(jobs)) if turn % 2 else reversed(range(len(jobs))):
            start = time.perf_counter()
            jobs[k]()
            seconds[k] = time.perf_counter() - start
        measured.append(seconds)
    return measured[warm:]


def medians(repeats: int, *jobs: Callable[[], Any], warm: int = 2) -> list[float]:
    """Return the median seconds of each job; the jobs take turns."""
    return [statistics.median(spent) for spent in zip(*turns(repeats, *jobs, warm=warm), strict=True)]


class Ratio(NamedTuple):
    """Ratio of the seconds of two jobs: median over turns, and half the range between its quartiles.

    ``seconds`` and ``other_seconds`` are the medians of the two jobs.
    """

    median: float
    spread: float
    seconds: float
    other_seconds: float


def ratio(repeats: int, job: Callable[[], Any], other: Callable[[], Any]) -> Ratio:
    """Return seconds(job)/seconds(other). Both run in each turn, so other work on the machine slows both."""
    spent = turns(repeats, job, other)
    ratios = [job_seconds / other_seconds for job_seconds, other_seconds in spent]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Ratio(statistics.median(ratios), (high - low) / 2.0, *map(statistics.median, zip(*spent, strict=True)))


def resident(name: str = "VmRSS") -> int:
    """Return the resident memory of this process in bytes, now (VmRSS) or at its peak (VmHWM); 0 outside Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def forget_peak() -> None:
    """Reset the peak of the resident memory."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def machine() -> dict[str, Any]:
    """Describe the machine and the versions of the libraries."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    system = {"system": f"{sys.platform} {platform.machine()}", "processor": _processor(), "cores": cores()}
    return {**versions(), **system, "load": load}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def rounds_of(
    terminals: int, tasks: int, samples: int = 16, d: int = 32, steps: int = 16, threads: int = 2
) -> dict[str, Any]:
    """Measure the seconds of a round and the peak of the memory, with and without the data, in a fresh process."""
    return _elsewhere(_rounds, terminals, tasks, samples, d, steps, threads)


def growth(threads: int = 2) -> dict[str, Any]:
    """Measure nanoseconds a step at 10⁴, 10⁵ and 10⁶ terminals, in turns of equal work within a fresh process."""
    return _elsewhere(_growth, threads)


def _elsewhere(measure: Callable[..., dict[str, Any]], *numbers: int) -> dict[str, Any]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(measure, *numbers).result()


def _growth(threads: int, steps: int = 16, repeats: int = 9) -> dict[str, Any]:
    sizes = [10**power for power in (4, 5, 6)]
    networks = [started(federation(n // 1_000, 1_000, 16, 32), threads) for n in sizes]
    jobs = [in_a_row(sizes[-1] // n, iterations(net, steps)) for n, net in zip(sizes, networks, strict=True)]
    costs = [[1e9 * seconds / (sizes[-1] * steps) for seconds in turn] for turn in turns(repeats, *jobs)]
    relative = [[ns / turn[0] for ns in turn] for turn in costs]
    return {
        "threads": threads,
        "terminals": sizes,
        "ns_per_step": [statistics.median(column) for column in zip(*costs, strict=True)],
        "relative": [statistics.median(column) for column in zip(*relative, strict=True)],
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
