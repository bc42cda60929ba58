"""Speed and memory of the kernels, as ratios within one run: ``make bench``.

Times are medians over interleaved repeats, so that a busy machine slows both sides of a ratio alike. Nothing here is
asserted; the targets stand beside the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.maths import rounds
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.roles.cloud import Cloud

METHOD = DualMethod(relationship=MeanRegularised(1e-2, 1e-3))


def federation(n_tasks: int, n_terminals: int, rows: int, d: int, dtype: Any = np.float32) -> Federation:
    """Unit rows with random labels; ``n_terminals`` under every task, ``rows`` on every terminal."""
    rng = np.random.default_rng(0)
    n = n_tasks * n_terminals * rows
    X = rng.standard_normal((n, d), dtype=dtype)
    X /= np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
    return Federation(
        X=X,
        y=rng.integers(0, 2, n),
        terminal_offsets=np.arange(0, n + 1, rows),
        task_offsets=np.arange(0, n_tasks * n_terminals + 1, n_terminals),
        test_X=X[:0],
        test_y=np.empty(0, dtype=np.int64),
        test_offsets=np.zeros(n_tasks + 1, dtype=np.int64),
        task_names=tuple(str(b) for b in range(n_tasks)),
        class_names=("no", "yes"),
    )


def started(data: Federation, threads: int) -> InProcess:
    """A network that is ready for its first round."""
    network = InProcess(data, METHOD, threads=threads)
    network.assign(Cloud(METHOD.relationship, data.n_tasks, network.shape).assign())
    return network


def medians(repeats: int, *jobs: Callable[[], Any]) -> list[float]:
    """Median seconds of each job, taken in turn, each as often first as last; the first turns do not count."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for turn in range(repeats + 2):
        pairs = list(zip(jobs, seconds, strict=True))
        for job, spent in pairs if turn % 2 else reversed(pairs):
            start = time.perf_counter()
            job()
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent[2:]) for spent in seconds]


def iterations(network: InProcess, steps: int) -> Callable[[], Any]:
    """One BS iteration after the other."""
    numbers = iter(range(1, 1_000_000))
    work = np.full(len(network.station), steps)
    return lambda: network.round(next(numbers), work)


@numba.njit(nogil=True)
def visited(seed: Any, number: Any, sizes: Any, steps: int) -> Any:
    """Rows of every terminal in the order in which a round visits them."""
    order = np.empty((len(sizes), steps), np.int64)
    start = 0
    for t in range(len(sizes)):
        deck = np.arange(sizes[t])
        key = rounds.stream(seed, number, t)
        for h in range(steps):
            order[t, h] = start + rounds.pick_row(key, h, sizes[t], False, deck)
        start += sizes[t]
    return order


@numba.njit(nogil=True, fastmath=True)
def touch(X: Any, order: Any, model: Any) -> Any:
    """Read each visited row twice and write w once per step: the least that a step can do."""
    w = np.empty_like(model)
    total = np.float32(0.0)
    for t in range(order.shape[0]):
        w[:] = model
        for h in range(order.shape[1]):
            x = X[order[t, h]]
            z = np.float32(0.0)
            for j in range(len(w)):
                z += x[j] * w[j]
            c = np.float32(1e-3) * z
            for j in range(len(w)):
                w[j] += c * x[j]
        total += w[0]
    return total


def against_touching(steps: int) -> dict[str, float]:
    """A batched round at d = 561 against the loop that only touches the same rows in the same order."""
    data = federation(5, 100, 20, 561)
    network = started(data, threads=1)
    sizes = np.diff(data.terminal_offsets)
    orders = iter([visited(np.uint64(0), np.uint64(number), sizes, steps) for number in range(1, 60)])
    model = np.full(561, 1e-2, dtype=np.float32)
    spent, least = medians(50, iterations(network, steps), lambda: touch(data.X, next(orders), model))
    return {"round_ms": 1e3 * spent, "touch_ms": 1e3 * least, "ratio": spent / least}


def small_round() -> dict[str, float]:
    """A round of 25 terminals with d = 9, H = 2."""
    network = started(federation(5, 5, 10, 9), threads=os.cpu_count() or 1)
    (spent,) = medians(2000, iterations(network, 2))
    return {"round_us": 1e6 * spent}


def two_threads() -> dict[str, float]:
    """One thread against two at 2,500 terminals, d = 561, H = 10; and what two threads bring that only touch rows."""
    data = federation(5, 500, 10, 561)
    one, two = (started(data, threads=threads) for threads in (1, 2))
    order = visited(np.uint64(0), np.uint64(1), np.diff(data.terminal_offsets), 10)
    model = np.full(561, 1e-2, dtype=np.float32)
    with ThreadPoolExecutor(2) as pool:
        single, double, touch_one, touch_two = medians(
            40,
            iterations(one, 10),
            iterations(two, 10),
            lambda: touch(data.X, order, model),
            lambda: list(pool.map(lambda half: touch(data.X, half, model), np.split(order, 2))),
        )
    machine = touch_one / touch_two
    return {"one_ms": 1e3 * single, "two_ms": 1e3 * double, "speedup": single / double, "machine_speedup": machine}


def memory() -> dict[str, float]:
    """Growth of the peak resident memory beyond the data array, in a process of its own."""
    result = subprocess.run([sys.executable, __file__, "--memory"], capture_output=True, text=True, check=True)
    return dict(json.loads(result.stdout))


def _memory_here() -> dict[str, float]:
    def learn(data: Federation) -> None:
        network = started(data, threads=1)
        do = iterations(network, 20)
        for _ in range(5):
            do()
        network.sums(np.zeros((2, data.n_tasks, *network.shape)))

    learn(federation(2, 3, 4, 561))  # compiles
    data = federation(5, 400, 20, 561)
    fields = {name: getattr(data, name) for name in data.__dataclass_fields__}
    del data
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    learn(Federation(**fields))
    size = fields["X"].nbytes
    growth = _resident("VmHWM") - before
    return {"data_mib": size / 2**20, "growth_mib": growth / 2**20, "fraction": growth / size}


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    """Measure, print a table, and write it down where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(_memory_here()))
        return
    figures: dict[str, dict[str, float]] = {}
    table = [
        ("float32 round, d=561, H=20, against touching the rows", lambda: against_touching(20), "ratio", "<= 3"),
        ("float32 round, d=561, H=2, against touching the rows", lambda: against_touching(2), "ratio", "<= 3"),
        ("round of 25 terminals, d=9, H=2, in microseconds", small_round, "round_us", "< 100"),
        ("two threads against one, 2,500 terminals", two_threads, "speedup", ">= 1.7"),
        ("memory beyond the data, d=561, as a fraction", memory, "fraction", "<= 0.10"),
    ]
    print(f"{'':58}{'measured':>10}  {'target':>8}")
    for name, measure, key, target in table:
        figures[name] = measure()
        print(f"{name:58}{figures[name][key]:10.3f}  {target:>8}", flush=True)
    machine = figures["two threads against one, 2,500 terminals"]["machine_speedup"]
    print(f"{'  what the machine gives to a loop that only touches rows':58}{machine:10.3f}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        versions = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
        options.out.write_text(
            json.dumps({"versions": versions, "cores": os.cpu_count(), "figures": figures}, indent=2)
        )
        print(f"written to {options.out}")


if __name__ == "__main__":
    main()
