"""Terminals leave a station that sees sums alone: together, with what they put in, whoever is killed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.deploy import nets

from rhfedmtl.deploy.terminal.program import main as terminal_main
from rhfedmtl.errors import ConfigError

MASKED: dict[str, Any] = {"options": {"channel": "masked"}, "scale": "unit"}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("terminals")]


def members(folder: Path, b: int = 0) -> list[int]:
    """Members that a station has written down."""
    return sorted(member.terminal for member in nets.station_file(folder, b).members if not member.departed)


def test_three_leave_a_masked_sum_together(tmp_path: Path) -> None:
    """Two of a group wait, and are told for whom; with the third, which is dead, all are out, and U_b is right."""
    folder = nets.build(tmp_path / "net", nets.small(1, 7, 70), learning=MASKED)
    with nets.running(folder) as (supervisor, operator):
        first = nets.trained(operator, budget=["energy=300"])
        assert "terminals 5, 6 count together with it" in operator.command("leave", terminal=4)["waits"]
        assert "terminals 6 count together with it" in operator.command("leave", terminal=5)["waits"]
        status = nets.wait(operator, lambda s: bool(s["stations"][0]["terminals"][5].get("waits")))
        assert "must go to the same place" in status["stations"][0]["terminals"][5]["waits"]
        assert members(folder) == list(range(7))
        supervisor.kill("terminal-6")
        operator.command("forget", terminal=6)
        nets.wait(operator, lambda _: members(folder) == [0, 1, 2, 3])
        assert nets.assert_invariant(folder, 1) == 4
        last = nets.trained(operator, budget=["energy=600"])
        with pytest.raises(ConfigError, match="counts together with all others"):
            operator.command("leave", terminal=3)
    assert last["certified_round"] > first["certified_round"]
    assert nets.assert_invariant(folder, 1) == 4


def test_owners_withdraw_from_a_masked_sum_together(tmp_path: Path) -> None:
    """Each waits for the others of its group, and ends once all are out."""
    folder = nets.build(tmp_path / "net", nets.small(1, 7, 70), learning=MASKED)
    with nets.running(folder) as (supervisor, operator):
        nets.trained(operator, budget=["energy=300"])
        for t in (4, 5, 6):
            assert members(folder) == list(range(7))
            terminal_main(["withdraw", str(folder / f"terminal-{t}"), "--yes"])
        nets.wait(operator, lambda _: members(folder) == [0, 1, 2, 3])
        for t in (4, 5, 6):
            supervisor.processes[f"terminal-{t}"].join(nets.PATIENCE_S)
            assert supervisor.processes[f"terminal-{t}"].exitcode == 0
    assert nets.assert_invariant(folder, 1) == 4


def test_those_who_move_count_at_the_new_station(tmp_path: Path) -> None:
    """They begin there with nothing, and as all of them are there, certificates go on at both."""
    folder = nets.build(tmp_path / "net", nets.small(2, 6, 60), learning=MASKED)
    with nets.running(folder) as (_, operator):
        first = nets.trained(operator, budget=["energy=400"])
        for t in (0, 1, 2):
            operator.command("move", terminal=t, station=1)
        nets.wait(operator, lambda _: members(folder, 1) == [0, 1, 2, *range(6, 12)])
        nets.wait(operator, nets.all_connected)
        last = nets.trained(operator, budget=["energy=800"])
    assert last["certified_round"] > first["certified_round"]
    assert members(folder) == [3, 4, 5]
    assert nets.assert_invariant(folder, 2) == 12


PLACES = [
    "station.send-question opened-before",
    "station.send-question opened-after",
    "station.save-station.state-before",
    "station.send-goodbye-before",
    "terminal.send-masked-after",
    "terminal.send-opened-before",
    "terminal.send-opened-after",
]


@pytest.mark.parametrize("place", PLACES)
def test_whoever_is_killed_while_some_leave_the_sum_stays_right(tmp_path: Path, places: Path, place: str) -> None:
    """It is tried again; nothing is taken out twice."""
    folder = nets.build(tmp_path / "net", nets.small(1, 7, 70), learning=MASKED)
    with nets.running(folder) as (supervisor, operator):
        nets.trained(operator, budget=["energy=300"])
        for t in (4, 5):
            operator.command("leave", terminal=t)
        nets.wait(operator, lambda s: "terminals 6" in (s["stations"][0]["terminals"][4].get("waits") or ""))
        (places / place).touch()
        operator.command("leave", terminal=6)
        nets.wait(operator, lambda _: members(folder) == [0, 1, 2, 3], supervisor.keep_up)
        nets.wait(operator, lambda _: not (places / place).exists(), supervisor.keep_up)
        nets.wait(operator, nets.all_connected, supervisor.keep_up)
        assert nets.assert_invariant(folder, 1) == 4
        nets.trained(operator, supervisor.keep_up, budget=["energy=600"])
    assert nets.assert_invariant(folder, 1) == 4
