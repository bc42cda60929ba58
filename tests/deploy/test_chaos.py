"""A network that is killed, stopped, cut off, delayed and told everything twice still learns, and still adds up.

``make test-chaos`` runs the long form; the short one is part of ``make test``.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.proxy import Mischief, Proxies, Proxy

from rhfedmtl.deploy.cloud.config import Resources, read_cloud
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.config import Waits, read_station
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.ledger import Ledger

STATIONS, TERMINALS = 3, 12
BUDGET = 1e6
LEARNING = {
    "algorithm": "hfedmtl",
    "target_relative_gap": 0.0,
    "options": {"policy": "fixed", "local_steps": 30, "lambda1": 0.1, "lambda2": 0.1},
}


class Chaos:
    """Faults of processes, drawn from a seed: kill -9, and SIGSTOP for a while."""

    def __init__(self, supervisor: Supervisor, seed: int) -> None:
        self._supervisor = supervisor
        self._random = random.Random(seed)
        self.frozen: dict[str, float] = {}
        self.done: Counter[str] = Counter()

    def strike(self) -> None:
        """One more fault, on any tier."""
        name = self._random.choice(self._random.choice([["cloud"], *self._by_role()]))
        if name in self.frozen or not self._supervisor.processes[name].is_alive():
            return
        kind = self._random.choice(("kill", "freeze"))
        if kind == "kill":
            self._supervisor.kill(name)
        else:
            self._supervisor.kill(name, signal.SIGSTOP)
            self.frozen[name] = time.monotonic() + self._random.uniform(0.1, 1.0)
        self.done[f"{kind} {name.partition('-')[0]}"] += 1

    def tend(self, everything: bool = False) -> None:
        """Let frozen processes go on when their time has come, and start killed ones again."""
        for name, until in list(self.frozen.items()):
            if everything or time.monotonic() >= until:
                self._supervisor.kill(name, signal.SIGCONT)
                del self.frozen[name]
        self._supervisor.keep_up()

    def _by_role(self) -> list[list[str]]:
        names = self._supervisor.names
        return [[name for name in names if name.startswith(role)] for role in ("station", "terminal")]


def proxied(folder: Path, mischief: Mischief) -> Proxies:
    """Put a proxy in front of the cloud and of every station: nodes below are told the proxies' addresses."""
    cloud = read_cloud(folder / "cloud" / "cloud.toml")
    port = int(cloud.node.listen.rpartition(":")[2]) + 100
    made = [Proxy(folder, "cloud", f"127.0.0.1:{port}", cloud.node.listen, mischief)]
    _readdress(folder.glob("station-*/station.toml"), cloud.node.listen, f"127.0.0.1:{port}")
    for b in range(STATIONS):
        port += 1
        address = read_station(folder / f"station-{b}" / "station.toml").node.listen
        made.append(Proxy(folder, f"station-{b}", f"127.0.0.1:{port}", address, mischief))
        _readdress(folder.glob("terminal-*/terminal.toml"), address, f"127.0.0.1:{port}")
    return Proxies(made)


def _readdress(paths: Any, old: str, new: str) -> None:
    for path in paths:
        path.write_text(path.read_text().replace(old, new))


def run_chaos(folder: Path, faults: int, seed: int) -> Counter[str]:
    """Learn through ``faults`` faults, then in peace until the gap is small; returns what was done."""
    waits = Waits(patience=20.0, start=60.0, answer=5.0, again=1.0)
    resources = Resources(cost=("energy=0.1,10",), deadline=2.0)
    nets.build(folder, nets.small(), learning=LEARNING, waits=waits, resources=resources)
    for path in folder.glob("*/*.toml"):
        path.write_text(path.read_text().replace("[node]", '[node]\nlog = "debug"'))
    mischief = Mischief(seed)
    with proxied(folder, mischief), nets.running(folder) as (supervisor, operator):
        chaos = Chaos(supervisor, seed)
        operator.command("train", budget=[f"energy={BUDGET}"])
        storm(chaos, mischief, operator, faults)
        nets.wait(operator, everybody_is_there, chaos.tend)
        nets.wait(operator, lambda s: (s["training"].get("gap") or 1.0) < 1e-6, chaos.tend)
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest, chaos.tend)
        assert status["training"]["state"] == "ended", status["training"]
        assert status["training"]["gap"] < 1e-6
        assert status["training"]["spent"]["energy"] <= BUDGET
        operator.export(folder / "out")
    return chaos.done + mischief.done


def everybody_is_there(status: dict[str, Any]) -> bool:
    """Whether every terminal is a member of a station, and connected."""
    seats = [t for station in status["stations"] for t in station["terminals"]]
    return sum(seat["member"] for seat in seats) == TERMINALS and all(seat["connected"] for seat in seats)


def storm(chaos: Chaos, mischief: Mischief, operator: Operator, faults: int) -> None:
    """Faults of links and processes, and terminals that move meanwhile, until there were enough of them."""
    moves = random.Random(faults)
    nets.wait(operator, lambda s: bool(s["training"].get("round")), chaos.tend)
    mischief.rate = 0.12
    end = time.monotonic() + 4 * nets.PATIENCE_S
    while sum((chaos.done + mischief.done).values()) < faults and time.monotonic() < end:
        chaos.strike()
        if "cloud" not in chaos.frozen:
            with contextlib.suppress(ConfigError):  # the cloud may be away, or the terminal there already
                operator.command("move", terminal=moves.randrange(TERMINALS), station=moves.randrange(STATIONS))
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            chaos.tend()
            time.sleep(0.05)
    mischief.rate = 0.0
    chaos.tend(everything=True)


def assert_charges(folder: Path, stations: int = STATIONS, terminals: int = TERMINALS) -> None:
    """Every order that went out was charged once, no terminal twice for a round, and all work was ordered."""
    ledger = Ledger.load(folder / "out" / "ledger.json").columns()
    at = ledger["tier"] == "terminal"
    charged = Counter(zip(ledger["round"][at].tolist(), ledger["terminal"][at].tolist(), strict=True))
    assert max(charged.values()) == 1
    for b in range(stations):
        for entry in nets.logged(folder, f"station-{b}", "ordered"):
            for t, steps in entry["steps"].items():
                assert charged[entry["round"], int(t)] == 1, f"round {entry['round']}, terminal {t} was not charged"
                assert steps == 30
    worked = {(entry["round"], t) for t in range(terminals) for entry in nets.logged(folder, f"terminal-{t}", "worked")}
    assert worked <= set(charged)
    of = ledger["tier"] == "station"
    rounds = Counter(zip(ledger["round"][of].tolist(), ledger["task"][of].tolist(), strict=True))
    assert max(rounds.values()) == 1
    np.testing.assert_array_equal(np.unique(ledger["amount"][of]), [10.0])


def check(folder: Path, faults: int, seed: int) -> Counter[str]:
    """What must hold after a storm."""
    done = run_chaos(folder, faults, seed)
    assert sum(done.values()) >= faults
    assert nets.assert_invariant(folder, STATIONS) == TERMINALS
    assert_charges(folder)
    return done


def test_a_short_storm(tmp_path: Path) -> None:
    """Some faults on all tiers: sums, budget and charges are right afterwards, and the gap is reached."""
    check(tmp_path / "net", faults=25, seed=1)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_long_storm(tmp_path: Path) -> None:
    """Two hundred faults in one run."""
    done = check(tmp_path / "net", faults=200, seed=2)
    print("\n", sum(done.values()), "faults:", dict(sorted(done.items())))  # noqa: T201
    assert {kind.partition(" ")[0] for kind in done} == {"kill", "freeze", "repeat", "delay", "overtake", "cut"}
