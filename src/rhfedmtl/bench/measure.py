"""Medians over interleaved repeats, memory of this process, and federations to measure with."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
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
"""Random numbers that are drawn; larger federations repeat them, which costs no less to read."""


def federation(n_tasks: int, n_terminals: int, rows: int, d: int) -> Federation:
    """Unit rows of float32 with random labels; ``n_terminals`` under every task, ``rows`` on every terminal."""
    rng = np.random.default_rng(0)
    n = n_tasks * n_terminals * rows
    some = rng.standard_normal((min(n, max(1, DISTINCT // d)), d), dtype=np.float32)
    some /= np.sqrt(np.einsum("ij,ij->i", some, some))[:, None]
    X = some
    if len(some) < n:
        X = np.empty((n, d), np.float32)
        for start in range(0, n, len(some)):
            X[start : start + len(some)] = some[: n - start]
    return Federation.untested(
        X,
        rng.integers(0, 2, n, dtype=np.int16),
        np.arange(0, n + 1, rows),
        np.arange(0, n_tasks * n_terminals + 1, n_terminals),
        task_names=tuple(str(b) for b in range(n_tasks)),
        class_names=("no", "yes"),
    )


def started(data: Federation, threads: int) -> InProcess:
    """A network that is ready for its first round."""
    network = InProcess(data, METHOD, threads=threads)
    network.assign(Cloud(METHOD.relationship, data.n_tasks, network.shape).assign())
    return network


def iterations(network: InProcess, steps: int) -> Callable[[], Any]:
    """One BS iteration after the other."""
    numbers = count(1)
    work = np.full(len(network.station), steps)
    return lambda: network.round(next(numbers), work)


def in_a_row(times: int, job: Callable[[], Any]) -> Callable[[], None]:
    """A job, so many times."""

    def stretch() -> None:
        for _ in range(times):
            job()

    return stretch


def turns(repeats: int, *jobs: Callable[[], Any], warm: int = 1) -> list[list[float]]:
    """Seconds of each job in every turn; each is as often first as last, and the first turns do not count."""
    found = []
    for turn in range(repeats + warm):
        seconds = [0.0] * len(jobs)
        for k in range(len(jobs)) if turn % 2 else reversed(range(len(jobs))):
            start = time.perf_counter()
            jobs[k]()
            seconds[k] = time.perf_counter() - start
        found.append(seconds)
    return found[warm:]


def medians(repeats: int, *jobs: Callable[[], Any], warm: int = 2) -> list[float]:
    """Median seconds of each job, taken in turn."""
    return [statistics.median(spent) for spent in zip(*turns(repeats, *jobs, warm=warm), strict=True)]


class Ratio(NamedTuple):
    """Seconds of a job over those of another: median over turns, with half the range between its quartiles.

    ``seconds`` and ``other_seconds`` are the medians of each.
    """

    median: float
    spread: float
    seconds: float
    other_seconds: float


def ratio(repeats: int, job: Callable[[], Any], other: Callable[[], Any]) -> Ratio:
    """Seconds(job)/seconds(other). A turn takes both at once after each other: what else goes on slows both alike."""
    spent = turns(repeats, job, other)
    found = [one / two for one, two in spent]
    low, _, high = statistics.quantiles(found, n=4)
    return Ratio(statistics.median(found), (high - low) / 2.0, *map(statistics.median, zip(*spent, strict=True)))


def resident(name: str = "VmRSS") -> int:
    """Resident memory of this process in bytes, now (VmRSS) or at its peak (VmHWM); 0 where Linux does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def forget_peak() -> None:
    """Let the peak of the resident memory start anew."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    system = {"system": f"{sys.platform} {platform.machine()}", "processor": _processor(), "cores": cores()}
    return {**versions(), **system, "load": load}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
