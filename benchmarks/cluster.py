"""What Ray costs: a round in one process and on actors with the same cores, recovery, checkpoints, the driver's memory.

Rounds of the engines are interleaved, so that a busy machine slows all alike; times are medians with the 10 % and 90 %
quantiles, ratios to one process are medians of several repeats with their least and largest. A round here is all that a
server iteration of one BS iteration does without a certificate: anchors down, steps, merge, reports up.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.data.threads import cores
from rhfedmtl.engines.cluster.ray import network, outline, session
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training import checkpoint
from rhfedmtl.training.clouds import make_cloud
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

REPEATS = 5
METHOD = DualMethod(relationship=MeanRegularised(1e-3, 1e-2), intercept=False)
FEATURES, STEPS, ROWS = 100, 50, 50


def data(tasks: int, terminals: int, rows: int = ROWS, features: int = FEATURES) -> Request:
    """Synthetic tasks with so many terminals each."""
    settings = {"samples": rows, "features": features, "test": 5}
    return Request(data="synthetic", tasks=tasks, terminals=terminals, settings=settings)


class Bench:
    """A network and its cloud, one server iteration after the other."""

    def __init__(self, made: Any, federation: Federation) -> None:
        self.network = made
        made.scale([Scaler()] * federation.n_tasks)
        self.cloud = make_cloud(METHOD, federation.n_tasks, made.shape)
        self.steps = np.broadcast_to(np.int64(STEPS), federation.n_terminals)
        self.number = 0

    def iteration(self) -> float:
        """Milliseconds of one server iteration with one BS iteration."""
        self.number += 1
        start = time.perf_counter()
        self.network.assign(self.cloud.assign())
        self.network.round(self.number, self.steps)
        for report in self.network.reports(self.cloud.cloud_round):
            self.cloud.receive(report)
        return (time.perf_counter() - start) * 1e3


def rounds(count: int) -> None:
    """Milliseconds of a round, in one process and on one actor and two, all with the same cores in all."""
    print(f"\nround, d = {FEATURES}, H = {STEPS}: milliseconds, median (10 %, 90 %); {cores()} cores; load {_load()}")
    print(
        f"{'terminals':>9}  {'in process':>22}  {'ray, 1 actor':>22}  {'ray, 2 actors':>22}   ratios (least, largest)"
    )
    for tasks, terminals in ((5, 5), (10, 25), (10, 250), (50, 500)):
        federation = data(tasks, terminals, 20 if terminals == 500 else ROWS).federation(0)
        sizes = np.diff(federation.terminal_offsets)
        made = [InProcess(federation, METHOD)]
        made += [
            network(federation, METHOD, seed=0, present=sizes, execution=_ray(n, max(1, cores() // n))) for n in (1, 2)
        ]
        benches = [Bench(each, federation) for each in made]
        each = max(5, count // (1 + tasks * terminals // 500))
        times = np.array([[bench.iteration() for bench in benches] for _ in range(REPEATS * each + 2)])[2:]
        low, middle, high = np.quantile(times, [0.1, 0.5, 0.9], axis=0)
        text = "  ".join(f"{m:8.2f} ({a:5.1f}, {b:5.1f})" for a, m, b in zip(low, middle, high, strict=True))
        # Median by median: a ratio of two neighbours would have the noise of both.
        medians = np.median(times.reshape(REPEATS, each, -1), axis=1)
        ratios = np.quantile(medians[:, 1:] / medians[:, :1], [0.5, 0.0, 1.0], axis=0).T
        print(f"{tasks * terminals:>9}  {text}   " + "  ".join(f"{m:.2f} ({a:.2f}, {b:.2f})" for m, a, b in ratios))
        for each in made[1:]:
            each.actors.close()


def _ray(actors: int, threads: int) -> Execution:
    return Execution("ray", threads=threads, actors=actors)


def recovery(ray: Any) -> None:
    """Seconds from kill -9 of an actor until the answer of the round that it was killed in."""
    federation = data(10, 250).federation(0)
    made = network(federation, METHOD, seed=0, present=np.diff(federation.terminal_offsets), execution=_ray(2, 1))
    bench = Bench(made, federation)
    usual = float(np.median([bench.iteration() for _ in range(20)]))
    waits = []
    for _ in range(3):
        raylet = ray._private.worker.global_worker.node.all_processes["raylet"][0].process.pid
        found = subprocess.run(["pgrep", "-P", str(raylet), "-f", "ray::Worker"], capture_output=True, check=True)
        os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
        waits.append(bench.iteration() / 1e3)
    print(
        f"\nkilled actor, 2,500 terminals: a round of {usual:.0f} ms then takes {min(waits):.1f} to {max(waits):.1f} s"
    )
    made.actors.close()


class Timed(checkpoint.Keeper):
    """A keeper that notes how long it took."""

    took = 0.0

    def keep(self, run: Any) -> None:
        """Write a checkpoint."""
        start = time.perf_counter()
        super().keep(run)
        self.took = time.perf_counter() - start


def checkpoints() -> None:
    """Size and time of a checkpoint."""
    print("\ncheckpoint after 199 rounds, in one process")
    for tasks, terminals in ((5, 5), (10, 250), (100, 1000)):
        federation = data(tasks, terminals, 20, 20).federation(0)
        with tempfile.TemporaryDirectory() as folder:
            keep = Timed(Path(folder) / "checkpoint")
            train(
                federation,
                METHOD,
                Fixed(2, 1, 200),
                Settings(certify_every=50),
                ledger=Ledger("energy=0.1,10"),
                watch=lambda progress: progress.round < 199,
                keep=keep,
            )
            size = keep.path.stat().st_size / 2**20
        print(f"{tasks * terminals:>9} terminals, {len(federation.X):>9} rows: {size:8.2f} MiB in {keep.took:.2f} s")


def driver_memory(terminals: int, name: str) -> None:
    """Largest memory of this process, a driver for so many terminals (called in a process of its own)."""
    built = build(name, Options(), "binary")
    ledger = Ledger("energy=0.1,10", {"energy": 20 * (0.3 * terminals + 1000)})
    with session():
        seen = outline(data(100, terminals // 100, 5, 20), 0)
        train(
            seen,
            built.method,
            built.policy,
            Settings(certify_every=20, max_rounds=20, execution=Execution(engine="ray")),
            ledger=ledger,
        )
        print(_peak())


def _load() -> str:
    return "/".join(f"{load:.1f}" for load in os.getloadavg())


def _peak() -> float:
    """MiB; what the system calls maxrss would count the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def memory() -> None:
    """Memory of the driver by the number of terminals."""
    print("\ndriver: largest resident memory in MiB, three repeats of 20 rounds; 5 rows of 20 features a terminal")
    for name in ("hfedmtl", "rhfedmtl"):
        for terminals in (2_500, 25_000, 250_000):
            words = [sys.executable, __file__, "--driver", str(terminals), "--name", name]
            found = [float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
            found = [round(each, 1) for each in found]
            rows = terminals * 5 * 20 * 8 / 2**20
            print(f"{name:>9} {terminals:>9} terminals: {found}   (training rows: {rows:7.1f} MiB)")


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of the smallest network in each repeat")
    parser.add_argument("--only", choices=["rounds", "recovery", "checkpoints", "memory"])
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        driver_memory(given.driver, given.name)
        return
    if given.only in (None, "rounds", "recovery"):
        with session(store=2**29) as ray:
            if given.only != "recovery":
                rounds(given.rounds)
            if given.only != "rounds":
                recovery(ray)
    if given.only in (None, "checkpoints"):
        checkpoints()
    if given.only in (None, "memory"):
        memory()


if __name__ == "__main__":
    main()
