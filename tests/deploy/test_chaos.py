"""A network that is killed, stopped, cut off, delayed, told everything twice and lied to still learns, and adds up.

``make test-chaos`` runs the long form; the short one is part of ``make test``.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.liar import LIES, liar, quarantined
from tests.deploy.proxy import Mischief, Proxies, Proxy

from rhfedmtl.deploy.cloud.config import Resources, read_cloud
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.config import Waits, read_station
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import ConfigError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.ledger_file import load_ledger

STATIONS, TERMINALS = 3, 12
LIAR = 5
BUDGET = 1e6
LEARNING = {
    "algorithm": "hfedmtl",
    "target_relative_gap": 0.0,
    "options": {"policy": "fixed", "local_steps": 30, "lambda1": 0.1, "lambda2": 0.1},
}


class Chaos:
    """Faults of processes, drawn from a seed: kill -9, and SIGSTOP for a while."""

    def __init__(self, supervisor: Supervisor, seed: int) -> None:
        self.supervisor = supervisor
        self._random = random.Random(seed)
        self.frozen: dict[str, float] = {}
        self.done: Counter[str] = Counter()

    def strike(self) -> None:
        """One more fault, on any tier."""
        name = self._random.choice(self._random.choice([["cloud"], *self._by_role()]))
        process = self.supervisor.processes.get(name)
        if name in self.frozen or process is None or not process.is_alive():
            return
        kind = self._random.choice(("kill", "freeze"))
        if kind == "kill":
            self.supervisor.kill(name)
        else:
            self.supervisor.kill(name, signal.SIGSTOP)
            self.frozen[name] = time.monotonic() + self._random.uniform(0.1, 1.0)
        self.done[f"{kind} {name.partition('-')[0]}"] += 1

    def release(self, name: str) -> None:
        """Let a process go on, if it is frozen."""
        if self.frozen.pop(name, None) is not None:
            self.supervisor.kill(name, signal.SIGCONT)

    def tend(self, everything: bool = False) -> None:
        """Let frozen processes go on when their time has come, and start killed ones again."""
        for name, until in list(self.frozen.items()):
            if everything or time.monotonic() >= until:
                self.release(name)
        self.supervisor.keep_up()

    def _by_role(self) -> list[list[str]]:
        names = self.supervisor.names
        return [[name for name in names if name.startswith(role)] for role in ("station", "terminal")]


def liars(folder: Path, chaos: Chaos, operator: Operator, lies: Sequence[str], seed: int) -> Iterator[None]:
    """Terminals that lie, one after the other: each until it is in quarantine; then the honest one is let in again."""
    drawn = random.Random(seed)
    for lie in lies:
        t = drawn.randrange(TERMINALS)
        chaos.release(f"terminal-{t}")
        with liar(folder, chaos.supervisor, f"terminal-{t}", lie):
            while t not in barred(operator):
                yield
        chaos.done[f"lie {lie}"] += 1
        while not let_in(operator, t):
            yield


def let_in(operator: Operator, t: int) -> bool:
    """Whether a terminal was let in again: the cloud or its station may be away, and an answer may be lost."""
    with contextlib.suppress(ConfigError):
        operator.command("readmit", terminal=t)
        return True
    with contextlib.suppress(ConfigError):
        stations = operator.command("status")["stations"]
        return any(seat["terminal"] == t and seat["member"] for each in stations for seat in each["terminals"])
    return False


def barred(operator: Operator) -> dict[int, str]:
    """Who is in quarantine; nobody where the cloud is away."""
    with contextlib.suppress(ConfigError):
        return quarantined(operator.command("status"))
    return {}


def struck(done: Counter[str]) -> int:
    """Faults so far; lies are told on top of them."""
    return sum(count for kind, count in done.items() if not kind.startswith("lie "))


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


def run_chaos(folder: Path, faults: int, seed: int, lies: Sequence[str], *, light: bool) -> Counter[str]:
    """Learn through ``faults`` faults and all lies, then in peace until the gap is small; returns what was done."""
    waits = Waits(patience=20.0, start=60.0, answer=5.0, again=1.0)
    resources = Resources(cost=("energy=0.1,10",), deadline=2.0)
    nets.build(folder, nets.small(), learning=LEARNING, waits=waits, resources=resources, light=light)
    for path in folder.glob("*/*.toml"):
        path.write_text(path.read_text().replace("[node]", '[node]\nlog = "debug"'))
    mischief = Mischief(seed)
    with proxied(folder, mischief), nets.running(folder) as (supervisor, operator):
        chaos = Chaos(supervisor, seed)
        operator.command("train", budget=[f"energy={BUDGET}"])
        lying = liars(folder, chaos, operator, lies, seed)
        storm(chaos, mischief, operator, faults, lying)
        nets.wait(operator, lambda _: next(lying, lying) is lying, chaos.tend)
        there = nets.wait(operator, everybody_is_there, chaos.tend)["training"]["round"]
        nets.wait(operator, lambda s: nets.certified_since(s, there, 1e-6), chaos.tend)
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


def storm(chaos: Chaos, mischief: Mischief, operator: Operator, faults: int, lying: Iterator[None]) -> None:
    """Faults of links and processes, and terminals that move and lie meanwhile, until there were enough of them."""
    moves = random.Random(faults)
    nets.wait(operator, lambda s: bool(s["training"].get("round")), chaos.tend)
    mischief.rate = 0.12
    end = time.monotonic() + 4 * nets.PATIENCE_S
    while struck(chaos.done + mischief.done) < faults and time.monotonic() < end:
        chaos.strike()
        if "cloud" not in chaos.frozen:
            next(lying, None)
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
    ledger = load_ledger(folder / "out" / "ledger.json").log.columns()
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


def check(folder: Path, faults: int, seed: int, lies: Sequence[str] = (), *, light: bool = False) -> Counter[str]:
    """What must hold after a storm."""
    done = run_chaos(folder, faults, seed, lies, light=light)
    assert struck(done) >= faults
    assert nets.assert_invariant(folder, STATIONS) == TERMINALS
    assert_charges(folder)
    return done


def test_two_faults(tmp_path: Path) -> None:
    """Run a quick case of the storms in every suite."""
    check(tmp_path / "net", faults=2, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("light", [False, True])
def test_a_short_storm(tmp_path: Path, light: bool) -> None:
    """Some faults on all tiers: sums, budget and charges are right afterwards, and the gap is reached."""
    check(tmp_path / "net", faults=25, seed=1, light=light)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_long_storm(tmp_path: Path) -> None:
    """Two hundred faults in one run, and all lies that can be told in the middle of it."""
    elsewhere = "gains × 3", "rows at joining"  # lies that a line search shows, or round zero
    lies = [
        lie
        for lie, (method, _) in LIES.items()
        if method != "moments" and not lie.startswith("line search") and lie not in elsewhere
    ]
    done = check(tmp_path / "net", faults=200, seed=2, lies=lies)
    print("\n", struck(done), "faults, and lies:", dict(sorted(done.items())))  # noqa: T201
    assert {kind.partition(" ")[0] for kind in done} == {"kill", "freeze", "repeat", "delay", "overtake", "cut", "lie"}


# Liars from the first hour on: what they tell in round zero, and what a whole training comes to.


def learned(folder: Path, lie: str) -> Any:
    """Accuracy of every task after a training in which somebody lies in the place of a terminal, or nobody is there."""
    options = {"policy": "fixed", "local_steps": 30, "lambda1": 0.1, "lambda2": 0.1}
    options["merge"] = "line-search" if lie.startswith("line search") or lie == "gains × 3" else "add"
    made, waits = nets.small(3, 4, 240), Waits(patience=20.0, start=60.0 if lie else 2.0, answer=10.0, again=2.0)
    nets.build(folder, made, learning={"algorithm": "hfedmtl", "options": options}, waits=waits)
    with Supervisor(folder) as supervisor:
        supervisor.start(name for name in supervisor.names if name != f"terminal-{LIAR}")
        operator = Operator(folder)
        operator.wait_for_cloud(nets.PATIENCE_S)
        with liar(folder, supervisor, f"terminal-{LIAR}", lie) if lie else contextlib.nullcontext():
            nets.trained(operator, supervisor.keep_up, budget=["energy=3000"])
            assert [*quarantined(operator.command("status"))] == ([LIAR] if lie else [])
        operator.export(folder / "out")
    models = TaskModels.load(folder / "out" / "model.npz")
    found = models.predict(made.test_X, np.repeat(models.tasks, np.diff(made.test_offsets)))
    return np.add.reduceat(found == models.classes[made.test_y], made.test_offsets[:-1]) / np.diff(made.test_offsets)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is learned where the liar's terminal never was."""
    return learned(tmp_path_factory.mktemp("without") / "net", "")


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_from_the_start_is_taken_out(lie: str, without: Any, tmp_path: Path) -> None:
    """Accuracy within two points of a network without it, in every task."""
    found = learned(tmp_path / "net", lie)
    print(f"\n {lie}: {found.round(3)} without it {without.round(3)}")  # noqa: T201
    assert np.abs(found - without).max() <= 0.02
