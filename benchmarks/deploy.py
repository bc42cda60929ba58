"""Networks of real processes on this machine, over loopback with mutual TLS: latency of a round, and steady load.

python benchmarks/deploy.py latency              # one station with 4 and with 25 terminal processes
python benchmarks/deploy.py load --minutes 10    # 1,000 terminals under 10 stations
python benchmarks/deploy.py memory               # of a station and the cloud for each terminal: 500 against 20
python benchmarks/deploy.py masked --terminals 25 --grouped 5   # masked rounds beside clear ones, 561 features
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.data.request import Request
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.local.provision import Blueprint, make_network
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.config import Waits
from rhfedmtl.deploy.node.state import Journal
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.wire import wire_pb2 as wire

TURNS = 4
OPTIONS = {"policy": "fixed", "local_steps": 10}


def build(
    folder: Path,
    tasks: int,
    terminals: int,
    *,
    fsync: bool | None = None,
    features: int = 20,
    channel: str = "identity",
) -> None:
    """A network on made data: 20 features unless told, 15 rows a terminal."""
    settings = {"features": features}
    request = Request("synthetic", tasks=tasks, terminals=terminals, samples_per_task=20 * terminals, settings=settings)
    learning = {"algorithm": "hfedmtl", "certify_every": 10, "target_relative_gap": 0.0, "scale": "unit"}
    make_network(
        folder,
        Blueprint(
            "bench",
            request.federation(seed=0),
            {**learning, "options": {**OPTIONS, "channel": channel}, "least_steps": 1},
            Resources(cost=("energy=0.1,10",)),
            Waits(start=300.0),
            observed=False,
            fsync=fsync,
            owners_least_steps=1,
        ),
    )


def learn(folder: Path, seconds: float, grouped: int, each: Any) -> None:
    """Train for so long, calling ``each`` every second."""
    with Supervisor(folder, grouped) as supervisor:
        supervisor.start()
        operator = Operator(folder)
        operator.wait_for_cloud(120.0)
        operator.command("train", budget=["energy=1e12"])
        while not operator.command("status")["training"].get("round"):
            time.sleep(0.2)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(1.0)
            each(supervisor, operator)
        operator.command("stop")
        while (status := operator.command("status"))["training"]["state"] == "running":
            time.sleep(0.2)
        assert status["training"]["state"] == "ended", status["training"]


def results(folder: Path) -> list[wire.RoundResult]:
    """Every round of every station, as it went."""
    journal = Journal(folder / "cloud" / "state" / "journal", fsync=False)
    entries = [wire.Entry.FromString(data) for data in journal.entries()]
    return [answer.round for entry in entries if entry.kind == "round" for answer in entry.answers.values()]


def rounds(folder: Path) -> list[tuple[float, float]]:
    """Seconds of every round at every station, and of the slowest terminal's work in it."""
    return [(r.seconds, max((e.work_seconds for e in r.efforts), default=0.0)) for r in results(folder)]


def latency(seconds: float, *, fsync: bool | None) -> None:
    """Milliseconds of a BS iteration beyond the compute itself."""
    print(f"state forced to disk: {'by all nodes' if fsync else 'by the cloud (the default)'}")
    print(f"{'terminals':>9} {'rounds':>7} {'median ms':>10} {'90 %':>7} {'99 %':>7} {'compute ms':>11}")
    for terminals in (4, 25):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "bench"
            build(folder, 1, terminals, fsync=fsync)
            learn(folder, seconds, 1, lambda *_: None)
            table = np.array(rounds(folder)[20:])
        beyond = 1e3 * (table[:, 0] - table[:, 1])
        median, high, highest = np.percentile(beyond, [50, 90, 99])
        compute = 1e3 * np.median(table[:, 1])
        print(f"{terminals:>9} {len(beyond):>7} {median:>10.1f} {high:>7.1f} {highest:>7.1f} {compute:>11.2f}")


class Watched:
    """A network that learns in turns: its rounds, and the processor time of all its processes meanwhile."""

    def __init__(self, folder: Path, grouped: int, stack: contextlib.ExitStack) -> None:
        self.folder, self.seconds = folder, 0.0
        self._rounds: dict[int, wire.RoundResult] = {}
        self.counted: dict[int, wire.RoundResult] = {}
        self._supervisor = stack.enter_context(Supervisor(folder, grouped))
        self._supervisor.start()
        self._operator = Operator(folder)
        self._operator.wait_for_cloud(300.0)

    def learn(self, seconds: float) -> None:
        """Train for at least so long, and for two rounds at least; the first turn is not counted."""
        before, known = self._processor(), len(self._rounds)
        self._operator.command("train", budget=["energy=1e12"])
        until = time.monotonic() + seconds
        while time.monotonic() < until or (self._training().get("round") or 0) < known + 3:
            time.sleep(0.2)
        self._operator.command("stop")
        while self._training()["state"] == "running":
            time.sleep(0.1)
        found = {r.round: r for r in results(self.folder) if r.efforts}
        if known:
            self.counted |= {n: r for n, r in found.items() if n not in self._rounds}
            self.seconds += self._processor() - before
        self._rounds |= found

    def medians(self) -> tuple[float, float, float]:
        """Bytes of a terminal, milliseconds, and milliseconds of processor time, of one round."""
        held = self.counted.values()
        n_bytes = [sum(e.bytes_down + e.bytes_up for e in r.efforts) / len(r.efforts) for r in held]
        wall = 1e3 * float(np.median([r.seconds for r in held]))
        return float(np.median(n_bytes)), wall, 1e3 * self.seconds / len(held)

    def _training(self) -> dict[str, Any]:
        return dict(self._operator.command("status")["training"])

    def _processor(self) -> float:
        ticks = 0
        for process in self._supervisor.processes.values():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def masked(seconds: float, terminals: int, grouped: int) -> None:
    """Rounds in the clear and under masks, of one station, in turns; medians, and their ratios."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        networks = []
        for channel in ("identity", "masked"):
            build(Path(name) / channel, 1, terminals, features=561, channel=channel)
            networks.append(Watched(Path(name) / channel, grouped, stack))
        for _ in range(1 + TURNS):
            for network in networks:
                network.learn(seconds / TURNS)
        found = np.array([network.medians() for network in networks])
        for network, (n_bytes, wall, processor) in zip(networks, found, strict=True):
            print(
                f"{network.folder.name:>8}: {len(network.counted):>5} rounds, {n_bytes:,.0f} bytes a terminal, "
                f"{wall:.1f} ms, {processor:.1f} ms of processor"
            )
    n_bytes, wall, processor = found[1] / found[0]
    print(f"   ratio: {n_bytes:.2f} of bytes, {wall:.2f} of time, {processor:.2f} of processor, n = {terminals}")


def memory(supervisor: Supervisor) -> dict[str, float]:
    """Resident megabytes of all processes, by role."""
    total: dict[str, float] = {}
    for name, process in supervisor.processes.items():
        with open(f"/proc/{process.pid}/statm") as file:  # noqa: PTH123
            pages = int(file.read().split()[1])
        role = name.partition("-")[0]
        total[role] = total.get(role, 0.0) + pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return total


def each_takes(seconds: float, grouped: int, few: int = 20, many: int = 500) -> None:
    """Resident kilobytes of a station and of the cloud for each connected terminal: many under one station, and few."""
    found = []
    for terminals in (few, many):
        seen: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as name:
            build(Path(name) / "bench", 1, terminals)
            learn(Path(name) / "bench", seconds, grouped, lambda nodes, _, seen=seen: seen.update(memory(nodes)))
        found.append(seen)
        used = ", ".join(f"{role} {amount:.1f} MB" for role, amount in seen.items())
        print(f"{terminals:>4} terminals: {used}", flush=True)
    for role in ("station", "cloud"):
        print(f"{role}: {1e3 * (found[1][role] - found[0][role]) / (many - few):.1f} KB a terminal")


def load(minutes: float, terminals: int, stations: int, grouped: int) -> None:
    """Rounds a minute and memory, minute by minute."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "bench"
        build(folder, stations, terminals // stations)
        seen: list[tuple[float, int, dict[str, float]]] = []

        def each(supervisor: Supervisor, operator: Operator) -> None:
            if not seen or time.monotonic() - seen[-1][0] >= 60.0:
                training = operator.command("status")["training"]
                seen.append((time.monotonic(), training["round"], memory(supervisor)))
                answered = sum(training["answered"])
                used = ", ".join(f"{role} {amount:.0f} MB" for role, amount in seen[-1][2].items())
                print(
                    f"minute {len(seen) - 1:>2}: round {training['round']:>5}, {answered} answered; {used}", flush=True
                )

        learn(folder, 60.0 * minutes + 2.0, grouped, each)
        times = np.array(rounds(folder))[:, 0].reshape(-1, stations).max(axis=1)
        for part in np.array_split(times, 5):
            print(f"a fifth of the rounds: median {np.median(part):.3f} s, 99 % {np.percentile(part, 99):.3f} s")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency", "load", "masked", "memory"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--terminals", type=int, default=1000)
    parser.add_argument("--stations", type=int, default=10)
    parser.add_argument("--grouped", type=int, default=100, help="terminals that share a process")
    given = parser.parse_args()
    if given.what == "latency":
        for fsync in (None, True):
            latency(given.seconds, fsync=fsync)
    elif given.what == "memory":
        each_takes(given.seconds, given.grouped)
    elif given.what == "masked":
        masked(given.seconds, given.terminals, given.grouped)
    else:
        load(given.minutes, given.terminals, given.stations, given.grouped)


if __name__ == "__main__":
    main()
