"""The audit trail: every command, admission, refusal and key, by whom and when, and no change of it unseen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deploy import nets
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.deploy.local.provision import forget_all, rotate
from rhfedmtl.deploy.node.audit import AUDIT, AuditTrail, check_seen, verified
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import ConfigError, DataError


@pytest.fixture
def trail(tmp_path: Path) -> AuditTrail:
    """Ten entries."""
    made = AuditTrail(tmp_path / "state" / AUDIT)
    for i in range(10):
        made.add("command", f"operator {i}", command="move", arguments={"terminal": i, "station": 0.5 * i})
    return made


def lines_of(trail: AuditTrail) -> list[str]:
    """The trail as it lies on the disk."""
    return trail.path.read_text().splitlines()


def test_a_chain_that_nobody_touched_is_whole(trail: AuditTrail) -> None:
    """Numbers count up, and everything is there as it was written."""
    entries = verified(lines_of(trail))
    assert [entry["number"] for entry in entries] == list(range(1, 11))
    assert entries[3]["arguments"] == {"terminal": 3, "station": 1.5}
    assert trail.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("at", [0, 4, 9])
def test_no_line_is_changed_removed_or_repeated_unseen(trail: AuditTrail, at: int, tmp_path: Path) -> None:
    """The first line that does not fit is named; what was cut off at the end shows against what was seen before."""
    lines, seen = lines_of(trail), tmp_path / "seen"
    check_seen(verified(lines), seen)
    changed = json.dumps(json.loads(lines[at]) | {"who": "nobody"})
    for wrong in ([*lines[:at], changed, *lines[at + 1 :]], [*lines[: at + 1], *lines[at:]], ["[1]", *lines]):
        with pytest.raises(DataError, match="broken at line"):
            verified(wrong)
    if at < 9:
        with pytest.raises(DataError, match=f"broken at line {at + 1}"):
            verified([*lines[:at], *lines[at + 1 :]])
    with pytest.raises(DataError, match="cut or replaced"):
        check_seen(verified(lines[:at]), seen)
    anew = AuditTrail(tmp_path / "anew")
    for _ in lines:
        anew.add("nothing", "nobody")
    with pytest.raises(DataError, match="cut or replaced"):
        check_seen(verified(lines_of(anew)), seen)


def test_half_a_line_of_a_killed_process_is_taken_off(trail: AuditTrail) -> None:
    """Nobody was told of what was being written: the next entry follows the last whole one."""
    with trail.path.open("ab") as file:
        file.write(b'{"number": 11, "time": "20')
    assert len(verified(trail.part(0, 1 << 20).splitlines())) == 10
    trail.add("command", "operator")
    assert len(verified(lines_of(trail))) == 11


def test_a_long_trail_is_handed_over_in_parts(trail: AuditTrail) -> None:
    """Parts are whole lines, and together they are the file."""
    start, parts = 0, []
    while part := trail.part(start, 300):
        assert part.endswith(b"\n")
        parts.append(part)
        start += len(part)
    assert len(parts) > 3
    assert b"".join(parts) == trail.path.read_bytes()


def test_a_network_tells_who_did_what(tmp_path: Path) -> None:
    """Commands, admissions, refusals and keys of a real network are in the trail, once; a reset leaves it in place."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 30))
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1"])
        assert "energy=1 cannot pay" in nets.wait(operator, nets.at_rest)["last_error"]
        nets.trained(operator, budget=["energy=300"])
        assert "cannot pay" not in operator.command("status")["last_error"]  # it is over
        nets.restart(supervisor, "cloud")
        operator.wait_for_cloud(nets.PATIENCE_S)
        assert "cannot pay" not in nets.wait(operator, nets.at_rest)["last_error"]
        nets.wait(operator, nets.all_connected)
        with pytest.raises(ConfigError, match="no station 7"):
            operator.command("invite", station=7)
        token = operator.command("invite", station=0)["token"]
        operator.export(tmp_path / "out")
        rotate(folder, ["station-1"])
        nets.wait(operator, lambda _: bool(nets.logged(folder, "cloud", "new key")))
        shown = CliRunner().invoke(app, ["network", "audit", str(folder), "--json"])
        facts = json.loads(shown.stdout)
    assert facts["whole"]
    entries = facts["shown"]
    commands = [entry["command"] for entry in entries if entry["event"] == "command"]
    assert commands == ["train", "train", "invite", "invite", "export"]
    told = [entry["event"] for entry in entries if entry["event"].startswith("training")]
    assert told == [*("training begins", "training failed", "training ended"), *("training begins", "training ended")]
    assert all("operator" in entry["who"] for entry in entries if entry["event"] in ("command", "command refused"))
    events = {entry["event"] for entry in entries}
    assert {"connected", "members", "command refused", "keys rotated", "new key", "training ended"} <= events
    assert sorted({t for e in entries if e["event"] == "members" for t in e["joined"]})[:4] == [0, 1, 2, 3]
    assert token not in shown.stdout
    shown = CliRunner().invoke(app, ["network", "audit", str(folder), "--node", "station-1", "--offline"])
    assert "terminal 2" in shown.stdout or "terminal/2" in shown.stdout, shown.stdout
    assert "is intact" in shown.stdout
    online = CliRunner().invoke(app, ["network", "audit", str(folder), "--node", "station-1"])
    assert "--offline" in str(online.exception)
    online = CliRunner().invoke(app, ["network", "export", str(folder), "--out", str(folder / "out")])
    reason = "(Connection refused): is the cloud running? On the machine with its folder, --offline"
    assert reason in str(online.exception)
    forget_all(folder)
    entries = Operator(folder).audit_offline(folder)
    assert entries[-1]["event"] == "reset"
    path = folder / "cloud" / "state" / AUDIT
    path.write_text(path.read_text().replace('"command": "export"', '"command": "status"'))
    broken = CliRunner().invoke(app, ["network", "audit", str(folder), "--offline"])
    assert isinstance(broken.exception, DataError)
