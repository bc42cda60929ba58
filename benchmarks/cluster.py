"""What Ray costs: a round in one process and on actors with the same cores, recovery, checkpoints, the driver's memory.

Rounds of the two engines are interleaved, so that a busy machine slows both alike; figures are medians with the 10 %
and 90 % quantiles. A round here is all that a server iteration of one BS iteration does without a certificate: anchors
down, steps, merge, reports up.
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
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.data.threads import cores
from rhfedmtl.engines import checkpoint
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.ray import network, outline, session
from rhfedmtl.engines.training import Settings, make_cloud, train
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.policies import Fixed

METHOD = DualMethod(relationship=MeanRegularised(1e-3, 1e-2))
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


def rounds(repeats: int) -> None:
    """Milliseconds of a round, in one process and on one actor and two, all with the same cores in all."""
    print(f"\nround, d = {FEATURES}, H = {STEPS}: milliseconds, median (10 %, 90 %); {cores()} cores")
    print(f"{'terminals':>9}  {'in process':>22}  {'ray, 1 actor':>22}  {'ray, 2 actors':>22}   ratios")
    for tasks, terminals in ((5, 5), (10, 25), (10, 250), (50, 500)):
        federation = data(tasks, terminals, 20 if terminals == 500 else ROWS).federation(0)
        sizes = np.diff(federation.terminal_offsets)
        made = [InProcess(federation, METHOD)]
        made += [network(federation, METHOD, Settings(actors=n, threads=max(1, cores() // n)), sizes) for n in (1, 2)]
        benches = [Bench(each, federation) for each in made]
        count = max(5, repeats // (1 + tasks * terminals // 500))
        times = np.array([[bench.iteration() for bench in benches] for _ in range(count + 2)])[2:]
        low, middle, high = np.quantile(times, [0.1, 0.5, 0.9], axis=0)
        text = "  ".join(f"{m:8.2f} ({a:5.1f}, {b:5.1f})" for a, m, b in zip(low, middle, high, strict=True))
        ratios = np.median(times[:, 1:] / times[:, :1], axis=0)
        print(f"{tasks * terminals:>9}  {text}   {ratios[0]:.2f}  {ratios[1]:.2f}")
        for each in made[1:]:
            each.crew.close()


def recovery(ray: Any) -> None:
    """Seconds from kill -9 of an actor until the answer of the round that it was killed in."""
    federation = data(10, 250).federation(0)
    made = network(federation, METHOD, Settings(actors=2, threads=1), np.diff(federation.terminal_offsets))
    bench = Bench(made, federation)
    usual = float(np.median([bench.iteration() for _ in range(20)]))
    waits = []
    for _ in range(3):
        process = ray.get(made.crew._actors[0].__ray_call__.remote(lambda _: os.getpid()))
        os.kill(process, signal.SIGKILL)
        waits.append(bench.iteration() / 1e3)
    print(
        f"\nkilled actor, 2,500 terminals: a round of {usual:.0f} ms then takes {min(waits):.1f} to {max(waits):.1f} s"
    )
    made.crew.close()


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


def driver_memory(terminals: int) -> None:
    """Largest memory of this process, a driver for so many terminals (called in a process of its own)."""
    with session():
        seen = outline(data(100, terminals // 100, 5, 20), 0)
        before = _peak()
        train(seen, METHOD, Fixed(2, 1, 20), Settings(engine="ray", certify_every=20), ledger=Ledger("energy=0.1,10"))
        print(f"{terminals} {before:.1f} {_peak():.1f}")


def _peak() -> float:
    """MiB; what the system calls maxrss would count the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def memory() -> None:
    """Memory of the driver by the number of terminals."""
    print("\ndriver: largest resident memory in MiB, before and after 20 rounds; 5 rows of 20 features a terminal")
    found = []
    for terminals in (10_000, 100_000, 500_000):
        words = [sys.executable, __file__, "--driver", str(terminals)]
        out = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        found.append((terminals, float(out[2])))
        rows = terminals * 5 * 20 * 8 / 2**20
        print(f"{terminals:>9} terminals: {float(out[1]):7.1f} {float(out[2]):7.1f}   (training rows: {rows:7.1f} MiB)")
    (n0, m0), (n1, m1) = found[0], found[-1]
    print(f"growth: {(m1 - m0) * 2**20 / (n1 - n0):.0f} bytes a terminal")


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        driver_memory(given.driver)
        return
    with session(store=2**29) as ray:
        rounds(given.repeats)
        recovery(ray)
    checkpoints()
    memory()


if __name__ == "__main__":
    main()
