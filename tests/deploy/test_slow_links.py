"""Terminals that sleep most of the time, and links of 20 kbit/s: a network learns with them, and certifies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy import nets
from tests.deploy.slow_link import SlowLink
from tests.deploy.test_light import lines, settings

from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.node.config import Waits, read_station
from rhfedmtl.deploy.terminal.account import UP

LEARNING = {
    "algorithm": "hfedmtl",
    "certify_every": 10,
    "options": {"policy": "fixed", "local_steps": 30, "lambda1": 0.1, "lambda2": 0.1},
}


@pytest.mark.slow
def test_terminals_that_sleep_are_waited_for_by_certificates_alone(tmp_path: Path) -> None:
    """Each answers a small part of all rounds; no round waits for who sleeps, and the result is certified."""
    waits = Waits(patience=20.0, start=60.0, answer=20.0, again=2.0, asleep=20.0)
    folder = nets.build(tmp_path / "net", nets.small(2, 4, 60), learning=LEARNING, waits=waits, light=True)
    sleepers = (1, 2, 5, 6)
    for t in sleepers:
        settings(folder, t, sleep=0.5)
    with nets.running(folder) as (_, operator):
        status = nets.trained(operator, budget=["energy=4000"])
    assert status["certified_round"] == status["round"]
    assert status["relative_gap"] < 0.1
    updates = [sum(line.messages for line in lines(folder, t) if line.kind == "update") for t in range(8)]
    assert max(updates[t] for t in sleepers) <= min(updates[t] for t in (0, 3, 4, 7)) / 2
    assert all(any(line.kind == "rest" and line.way == UP for line in lines(folder, t)) for t in sleepers)
    assert nets.assert_invariant(folder, 2) == 8


@pytest.mark.slow
def test_a_link_of_20_kbit_with_2_s_latency_and_losses(tmp_path: Path) -> None:
    """A terminal behind it takes part in a round like the others, is certified, and is not cut off for being slow."""
    waits = Waits(patience=120.0, start=120.0, answer=90.0, again=30.0, link=30.0)
    resources = Resources(cost=("energy=0.1,10",), deadline=60.0)
    folder = nets.build(
        tmp_path / "net", nets.small(1, 2, 40), learning=LEARNING, waits=waits, resources=resources, light=True
    )
    port = int(read_station(folder / "station-0" / "station.toml").node.listen.rpartition(":")[2])
    path = folder / "terminal-0" / "terminal.toml"
    path.write_text(path.read_text().replace(f":{port}", f":{port + 100}"))
    settings(folder, 0, link=30.0)
    with SlowLink(port + 100, port, bits=20e3, latency=2.0, loss=0.05) as link, nets.running(folder) as (_, operator):
        status = nets.trained(operator, budget=["energy=60"])
    assert status["certified_round"] == status["round"] >= 2
    assert link.carried > 10_000
    assert sum(line.messages for line in lines(folder, 0) if line.kind == "update") >= status["round"]
    assert sum(line.messages for line in lines(folder, 0) if line.kind == "connection" and line.way == UP) <= 3
