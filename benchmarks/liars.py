"""Peers that lie in a real network: the accuracy of every task, and the names of culprits.

``python benchmarks/liars.py [--seeds 3] [--only WORD]`` lets a network of 3 stations and 12 terminals learn for every
lie, each node in a process of its own on this machine. Terminal 5, or station 1, lies from the start. The first line is
the control: the same network without a liar.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.local.provision import Blueprint, make_network
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.config import Limits, Waits
from rhfedmtl.deploy.node.serve import serve
from rhfedmtl.deploy.nodes import ROLES
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import PeerError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal

TASK, TERMINALS = 1, (4, 5, 6, 7)
Change = Callable[[Any], Any]


class Lie(NamedTuple):
    """The nodes that lie, the changed method of their role, and the change."""

    nodes: tuple[str, ...] = ()
    method: str = ""
    change: Change = lambda message: message
    merge: str = "add"


def direction(v: Any, norm: float) -> Any:
    """A made-up direction of this norm."""
    made = np.random.default_rng(0).normal(size=v.shape)
    return norm * made / np.linalg.norm(made)


def flipped(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The rows of a terminal with all labels turned round."""
    identity, X, y, *rest = arguments
    return (identity, X, -y, *rest)


def made_up(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rows in a made-up direction and of the same class, as many as the terminal has."""
    identity, X, y, *rest = arguments
    return (identity, np.tile(direction(X[0], 3.0), (len(X), 1)), np.ones_like(y), *rest)


ONE, ALL, STATION = ("terminal-5",), tuple(f"terminal-{t}" for t in TERMINALS), ("station-1",)
LIES = {
    "nobody": Lie(),
    "station: report of norm 5": Lie(STATION, "report", lambda m: replace(m, v=direction(m.v, 5.0))),
    "station: two thirds of the losses": Lie(
        STATION, "add_sums", lambda m: replace(m, losses=np.append(m.losses[:-1] / 1.5, m.losses[-1:]))
    ),
    "station: dual sums of 1e6": Lie(STATION, "add_sums", lambda m: replace(m, dual=np.full_like(m.dual, 1e6))),
    "station: made-up report of norm 0.9": Lie(STATION, "report", lambda m: replace(m, v=direction(m.v, 0.9))),
    "nobody, line search": Lie(merge="line-search"),
    "terminal: line search of 1e308": Lie(
        ONE, "work", lambda m: replace(m, profile=np.full_like(m.profile, 1e308)), "line-search"
    ),
    "terminal: line search × 3": Lie(
        ONE, "work", lambda m: replace(m, profile=m.profile * [3.0, 3.0, 1.0]), "line-search"
    ),
    "terminal: gains × 3": Lie(ONE, "work", lambda m: replace(m, gains=3.0 * m.gains), "line-search"),
    "terminal: update × −2": Lie(ONE, "work", lambda m: replace(m, delta=-2.0 * m.delta)),
    "terminal: update × 999": Lie(ONE, "work", lambda m: replace(m, delta=999.0 * m.delta)),
    "terminal: dual sums of 1e6": Lie(ONE, "probe", lambda m: replace(m, dual=np.full_like(m.dual, 1e6))),
    "poison: labels of a terminal flipped": Lie(ONE, "__init__", flipped),
    "poison: made-up rows of a terminal": Lie(ONE, "__init__", made_up),
    "poison: labels of all terminals of a task flipped": Lie(ALL, "__init__", flipped),
    "poison: made-up rows of all terminals of a task": Lie(ALL, "__init__", made_up),
}


def lie_always(role: Any, lie: Lie) -> None:
    """Let this process lie: change what a method returns, or the arguments with which a terminal is made."""
    honest = getattr(role, lie.method)

    def say(self: Any, *arguments: Any, **more: Any) -> Any:
        if lie.method == "__init__":
            return honest(self, *lie.change(arguments), **more)
        message = honest(self, *arguments, **more)
        return None if message is None else lie.change(message)

    setattr(role, lie.method, say)


def learned(folder: Path, made: Federation, name: str) -> tuple[Any, str]:
    """Accuracy of every task, and the nodes that the network names."""
    lie = LIES[name]
    options = {"policy": "fixed", "local_steps": 30, "lambda1": 0.1, "lambda2": 0.1, "merge": lie.merge}
    learning = {"algorithm": "hfedmtl", "options": options, "least_steps": 1}
    waits = Waits(patience=20.0, start=60.0, answer=10.0, again=2.0)
    more = {
        "fsync": False,
        "light": False,
        "observed": False,
        "owners_least_steps": 1,
        "limits": Limits(quarantine=0.5),
    }
    costs = Resources(cost=("energy=0.1,10",))
    make_network(folder, Blueprint("liars", made, learning=learning, waits=waits, resources=costs, **more))
    liars = []
    try:
        with Supervisor(folder) as supervisor:
            supervisor.start(node for node in supervisor.names if node not in lie.nodes)
            operator = Operator(folder)
            operator.wait_for_cloud(60.0)
            for node in lie.nodes:
                command = [sys.executable, __file__, "--node", str(folder / node), "--lie", name]
                liars.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            operator.command("train", budget=["energy=3000"])
            training = operator.follow(lambda status: None)
            status = operator.command("status")
            if training["state"] != "ended":
                return np.full(made.n_tasks, np.nan), str(training.get("error"))
            operator.export(folder / "out")
    finally:
        for process in liars:
            process.kill()
            process.wait()
    models = TaskModels.load(folder / "out" / "model.npz")
    predicted = models.predict(made.test_X, np.repeat(models.tasks, np.diff(made.test_offsets)))
    right = np.add.reduceat(predicted == models.classes[made.test_y], made.test_offsets[:-1])
    return right / np.diff(made.test_offsets), ", ".join(named(status)) or "-"


def named(status: dict[str, Any]) -> list[str]:
    """Stations that are excluded, and terminals in quarantine."""
    stations = [f"station {station['station']}" for station in status["stations"] if station.get("excluded")]
    seats = [seat for station in status["stations"] for seat in station["terminals"]]
    return stations + [f"terminal {seat['terminal']}" for seat in seats if seat["quarantined"]]


def main() -> None:
    """Measure, or be a liar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="lies with this word alone")
    parser.add_argument("--node", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lie", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node is not None:
        role = options.node.name.partition("-")[0]
        lie_always(BaseStation if role == "station" else Terminal, LIES[options.lie])
        serve(ROLES[role](), [options.node / f"{role}.toml"])
        return
    if options.seeds < 1:
        raise SystemExit(f"--seeds {options.seeds}: give a number from 1")
    request = Request("synthetic", tasks=3, terminals=4, samples_per_task=240)
    print(f"{'lie':<52}{'liars task':>12}{'other tasks':>14}   named")
    for name in LIES:
        if options.only not in name:
            continue
        rows, words = [], set()
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as place:
                try:
                    accuracy, who = learned(Path(place) / "net", request.federation(seed), name)
                except PeerError as error:
                    accuracy, who = np.full(3, np.nan), str(error)
            rows.append([accuracy[TASK], (accuracy.sum() - accuracy[TASK]) / 2.0])
            words.add(who)
        (own, rest), spread = np.mean(rows, axis=0), np.ptp(rows, axis=0) / 2.0
        figures = f"{own:.3f} ± {spread[0]:.3f}{rest:>8.3f} ± {spread[1]:.3f}"
        print(f"{name:<50}{figures}   {'; '.join(sorted(words))}", flush=True)


if __name__ == "__main__":
    main()
