"""A process that ends at any place where something is written or sent leaves a history that adds up.

Every place that a role passes is struck once, in a network that learns, moves terminals, stops and begins again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import nets
from tests.deploy.test_chaos import LEARNING, assert_charges

from rhfedmtl import failpoints
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.config import Waits
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.ledger_file import load_ledger

STATIONS, TERMINALS = 2, 4
BUDGET = 1e6
LONGEST_S = 900.0
ROLES = ("cloud", "station", "terminal")
LEAST = 50


class Places:
    """The places where roles have been, and which of them are armed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.struck: set[str] = set()

    def passed(self) -> set[str]:
        """All places that were passed so far, as in ``station.send-answer-before``."""
        files = [(role, self._folder / f"{role}.passed") for role in ROLES]
        return {f"{role}.{line}" for role, path in files if path.exists() for line in path.read_text().splitlines()}

    def armed(self) -> set[str]:
        """Places that are armed and were not come to."""
        return {place for place in self.struck if (self._folder / place).exists()}

    def strike(self, places: set[str]) -> None:
        """Arm those that were never armed."""
        for place in sorted(places - self.struck):
            self.struck.add(place)
            (self._folder / place).touch()


def build(folder: Path) -> Path:
    """A small network that learns without an end, and tells all that it orders."""
    waits = Waits(patience=20.0, start=60.0, answer=5.0, again=1.0)
    resources = Resources(cost=("energy=0.1,10",), deadline=2.0)
    nets.build(folder, nets.small(STATIONS, 2, 40), learning=LEARNING, waits=waits, resources=resources)
    nets.shorten_journals(folder, 60_000)
    for path in folder.glob("*/*.toml"):
        path.write_text(path.read_text().replace("[node]", '[node]\nlog = "debug"'))
    return folder


def go_round(supervisor: Supervisor, operator: Operator) -> None:
    """Train for a while, move a terminal there and back, stop; what is refused meanwhile is left."""

    def rounds(more: int) -> None:
        start = (said("status").get("training") or {}).get("round") or 0
        watch(lambda s: nets.at_rest(s) or (s["training"].get("round") or 0) >= start + more)

    def said(name: str, **arguments: Any) -> dict[str, Any]:
        with contextlib.suppress(ConfigError):
            return operator.command(name, **arguments)
        return {}

    def watch(until: Any) -> None:
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            supervisor.keep_up()
            status = said("status")
            if status and until(status):
                return
            time.sleep(0.05)

    said("train", budget=[f"energy={BUDGET}"])
    rounds(8)
    said("move", terminal=1, station=1)
    rounds(4)
    said("move", terminal=1, station=0)
    rounds(4)
    said("stop")
    watch(nets.at_rest)
    for name in ("cloud", "station-0"):  # as a service is started anew
        supervisor.kill(name, signal.SIGTERM)
        supervisor.processes[name].join(10.0)
        if supervisor.processes[name].exitcode == 0:
            supervisor.start([name])


def check_history(folder: Path, status: dict[str, Any]) -> None:
    """Sums from the files alone, every order charged once, and no more spent than there was."""
    assert nets.assert_invariant(folder, STATIONS) == TERMINALS
    assert_charges(folder, STATIONS, TERMINALS)
    ledger = load_ledger(folder / "out" / "ledger.json")
    assert ledger.spent["energy"] == status["training"]["spent"]["energy"] <= BUDGET
    entries = Operator(folder).audit_offline(folder)
    assert Counter(entry["event"] for entry in entries)["command"] >= 3


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.usefixtures("terminals")
def test_every_role_ends_at_every_place(tmp_path: Path, places: Path) -> None:
    """At least fifty places: sums, charges and budget are right afterwards, and the network learns to the end."""
    known = Places(places)
    with nets.running(build(tmp_path / "calm")) as (supervisor, operator):
        go_round(supervisor, operator)
    known.strike(known.passed())
    folder = build(tmp_path / "net")
    end = time.monotonic() + LONGEST_S
    with Supervisor(folder) as supervisor:
        supervisor.start()
        operator = Operator(folder)
        while known.armed() and time.monotonic() < end:
            go_round(supervisor, operator)
            known.strike(known.passed())
        left = known.armed()
        for place in left:
            (places / place).unlink()
        there = nets.wait(operator, nets.all_connected, supervisor.keep_up)["training"].get("round") or 0
        with contextlib.suppress(ConfigError):
            operator.command("train", budget=[f"energy={BUDGET}"])
        nets.wait(operator, lambda s: nets.certified_since(s, there, 1e-6), supervisor.keep_up)
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest, supervisor.keep_up)
        assert status["training"]["state"] == "ended", status["training"]
        operator.export(folder / "out")
    count = Counter(place.partition(".")[0] for place in known.struck - left)
    print("\n", count.total(), "places:", dict(count), "not come to again:", sorted(left))  # noqa: T201
    check_history(folder, status)
    assert count.total() >= LEAST
    assert set(count) == set(ROLES)


def test_a_place_ends_the_process_once(tmp_path: Path) -> None:
    """Armed, a place is as kill -9 and is passed the next time; without the variable nothing is looked at."""
    code = "from rhfedmtl.failpoints import *; arm('cloud'); failpoint('save', 'x', 'after'); print('on')"
    (tmp_path / "cloud.save-x-after").touch()
    on = {**os.environ, failpoints.VARIABLE: str(tmp_path)}
    ended = [subprocess.run([sys.executable, "-c", code], env=env, check=False) for env in (dict(os.environ), on, on)]
    assert [each.returncode for each in ended] == [0, -signal.SIGKILL, 0]
    assert (tmp_path / "cloud.passed").read_text() == "save-x-after\n" * 2


def test_a_place_lets_everybody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a number of seconds in its file a place ends nobody, every time that somebody comes by."""
    waited: list[float] = []
    (tmp_path / "cloud.save-x-after").write_text("0.25")
    monkeypatch.setattr(failpoints, "_armed", {"cloud": tmp_path})
    monkeypatch.setattr(failpoints, "_passed", set())
    monkeypatch.setattr(failpoints.time, "sleep", waited.append)
    for _ in range(2):
        failpoints.failpoint("save", "x", "after")
        failpoints.failpoint("save", "x", "before")
    assert waited == [0.25, 0.25]
