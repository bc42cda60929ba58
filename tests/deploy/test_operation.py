"""Terminals come, go and move, credentials change and state files break, while a network learns."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from tests.deploy import nets
from tests.deploy.liar import liar, wait_for

from rhfedmtl.cli.network.text import closing_lines
from rhfedmtl.deploy.local.provision import issued_by, rotate
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.config import read_station
from rhfedmtl.deploy.node.enrolment import enrol
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.ledger_file import load_ledger

TIERS = ("terminal", "station")
LEARNING = {
    "algorithm": "hfedmtl",
    "target_relative_gap": 0.0,
    "options": {"policy": "fixed", "local_steps": 10, "lambda1": 0.1, "lambda2": 0.1},
}


@pytest.fixture(scope="module", params=["heavy", pytest.param("light", marks=pytest.mark.slow)])
def net(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Path, Supervisor, Operator]]:
    """A network that learns without an end, until it is stopped; `test_light` has the light one's quick checks."""
    folder, light = tmp_path_factory.mktemp("operation") / "net", request.param == "light"
    nets.build(folder, nets.small(2, 3, 60), learning=LEARNING, light=light)
    with nets.running(folder, nets.PAUSE_S) as (supervisor, operator):
        operator.command("train", budget=["energy=1e9"])
        nets.wait(operator, lambda s: bool(s["training"].get("round")))
        yield folder, supervisor, operator
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest)
        assert status["training"]["state"] == "ended", status["training"]
        operator.export(folder / "out")
    nets.assert_invariant(folder, 2)
    ledger = load_ledger(folder / "out" / "ledger.json")
    rounds = {tier: {r for r, at in ledger.totals("round", "tier")["energy"] if at == tier} for tier in TIERS}
    assert rounds["station"] == rounds["terminal"]  # no round was paid for in which nobody worked


def members(status: dict[str, Any], station: int) -> set[int]:
    """Members of a station that are connected."""
    return {t["terminal"] for t in status["stations"][station]["terminals"] if t["member"] and t["connected"]}


def later(operator: Operator, rounds: int = 3) -> dict[str, Any]:
    """Status some rounds later: the network goes on learning."""
    start = operator.command("status")["training"]["round"]
    return nets.wait(operator, lambda s: bool(s["training"]["round"] >= start + rounds))


def certified(operator: Operator) -> None:
    """A certificate of a later round than now comes about: everybody answers."""
    start = operator.command("status")["training"]["round"]
    nets.wait(operator, lambda s: bool((s["training"]["certified_round"] or 0) > start))


@pytest.mark.parametrize(("lie", "reason"), [("NaN in one place", "not finite"), ("update × 999", "of norm")])
def test_a_terminal_that_lies_is_taken_out_until_an_operator_lets_it_in(net: Any, lie: str, reason: str) -> None:
    """A real node with good credentials: its station bars it and says why, all others go on and are certified."""
    folder, supervisor, operator = net
    with liar(folder, supervisor, "terminal-5", lie):
        wait_for(operator, 5, reason)
        certified(operator)
        assert members(operator.command("status"), 1) == {3, 4}
    operator.command("readmit", terminal=5)
    blamed = [each for each in operator.audit() if each["event"] == "quarantined"]
    assert (blamed[-1]["who"], reason in blamed[-1]["reason"]) == ("terminal 5", True)
    nets.wait(operator, lambda s: members(s, 1) == {3, 4, 5})
    certified(operator)


def test_a_terminal_moves_while_training_goes_on(net: Any) -> None:
    """A terminal goes over to another station with its share, and is certified there."""
    _, _, operator = net
    operator.command("move", terminal=2, station=1)
    nets.wait(operator, lambda s: 2 in members(s, 1) and 2 not in members(s, 0))
    certified(operator)
    with pytest.raises(ConfigError, match="there already"):
        operator.command("move", terminal=2, station=1)
    operator.command("move", terminal=2, station=0)
    with pytest.raises(ConfigError, match="once it is there"):
        operator.command("move", terminal=2, station=1)
    nets.wait(operator, lambda s: 2 in members(s, 0))


def test_a_new_terminal_joins_with_a_token(net: Any, tmp_path: Path) -> None:
    """A token gives one certificate, once; its terminal joins a training that is under way, and can leave it."""
    folder, supervisor, operator = net
    invited = operator.command("invite", station=0)
    rows = np.load(folder / "terminal-0" / "data.npz")
    np.savez(tmp_path / "rows.npz", X=rows["X"][:5], y=rows["y"][:5])
    name = f"terminal-{invited['number']}"
    made = enrol(invited["token"], folder / name, tmp_path / "rows.npz")
    assert made["number"] == invited["number"] == 6
    with pytest.raises(ConfigError, match="used already"):
        enrol(invited["token"], tmp_path / "again", tmp_path / "rows.npz")
    nets.owner_allows(folder / name)
    supervisor.add(folder / name)
    nets.wait(operator, lambda s: 6 in members(s, 0))
    certified(operator)
    operator.command("leave", terminal=6)
    nets.wait(operator, lambda s: 6 not in members(s, 0))
    end = time.monotonic() + nets.PATIENCE_S
    while supervisor.processes[name].is_alive():
        assert time.monotonic() < end, "a terminal that left goes on running"
        time.sleep(0.05)
    assert supervisor.processes[name].exitcode == 0
    certified(operator)


def test_credentials_change_without_a_pause(net: Any) -> None:
    """All nodes get new keys and certificates; everybody is connected with them soon, and no round is lost."""
    folder, _, operator = net
    serials = rotate(folder)
    operator = Operator(folder)
    nets.wait(
        operator,
        lambda s: (
            all(serials[f"station-{b}"] in _serials(folder, "cloud") for b in range(2))
            and all(serials[f"terminal-{t}"] in _serials(folder, "station-0") for t in (0, 1))
        ),
    )
    certified(operator)
    assert _shown_by(folder, "station-0") == serials["station-0"]


def _shown_by(folder: Path, name: str) -> str:
    """Serial number of the certificate that a server shows to whoever connects now."""
    context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.crt"))
    context.load_cert_chain(folder / "terminal-0" / "node.pem")
    context.set_alpn_protocols(["h2"])
    config = read_station(folder / name / "station.toml")
    host, port = config.node.listen.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=config.identity.host) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return f"{x509.load_der_x509_certificate(shown).serial_number:x}"


def _serials(folder: Path, name: str) -> set[str]:
    return {entry["serial"] for entry in nets.logged(folder, name, "connected")}


def test_a_revoked_terminal_is_cut_off_and_the_others_go_on(net: Any) -> None:
    """A revoked certificate ends its connection and lets nobody in; the terminal is forgotten, and is let in anew."""
    folder, _, operator = net
    operator.command("revoke", node="terminal/4", serials=issued_by(folder)["terminal/4"])
    nets.wait(operator, lambda s: 4 not in members(s, 1))
    assert "revoked" in json.dumps(nets.logged(folder, "station-1", "refused"))
    later(operator)
    rotate(folder, ["terminal-4"])
    nets.wait(operator, lambda s: 4 in members(s, 1) and "revoked" not in s["stations"][1]["last_error"])
    certified(operator)


def test_a_damaged_terminal_starts_anew(net: Any) -> None:
    """A terminal whose file is damaged is subtracted and joins again at zero; nothing of the file is used."""
    folder, supervisor, operator = net
    _damage(folder / "terminal-1" / "state" / "terminal.state", supervisor, "terminal-1")
    nets.wait(operator, lambda s: bool(nets.logged(folder, "terminal-1", "state damaged")))
    nets.wait(operator, lambda s: 1 in members(s, 0))
    certified(operator)
    assert list((folder / "terminal-1" / "state").glob("terminal.state.damaged-*"))


def test_a_damaged_station_is_made_anew_from_its_terminals(net: Any) -> None:
    """A station whose file is damaged begins without members; all join again with what they learned, before a round."""
    folder, supervisor, operator = net
    certified(operator)  # of the members that there are now
    gap = operator.command("status")["training"]["gap"]
    _damage(folder / "station-0" / "state" / "station.state", supervisor, "station-0")
    nets.wait(operator, lambda s: bool(nets.logged(folder, "station-0", "state damaged")))
    nets.wait(operator, lambda s: {0, 1, 2} <= members(s, 0))
    certified(operator)
    assert operator.command("status")["training"]["gap"] < 10 * max(gap, 1e-6)


def _damage(path: Path, supervisor: Supervisor, name: str) -> None:
    """Kill a node, flip a bit of its file, start it again."""

    def flip() -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))

    nets.restart(supervisor, name, flip)


def test_a_training_waits_while_all_terminals_are_away(net: Any) -> None:
    """Without anybody who could work nothing is spent; when they come back, the training goes on by itself."""
    folder, supervisor, operator = net
    terminals = [name for name in supervisor.processes if name.startswith("terminal")]
    gone = {name: supervisor.processes.pop(name) for name in terminals}
    for process in gone.values():
        process.kill()
        process.join()
    said = [f"none of the terminals of station {b} is there" for b in range(2)]
    nets.wait(operator, lambda _: {e["reason"] for e in nets.logged(folder, "cloud", "no answer")} >= set(said))
    spent = operator.command("status")["training"]["spent"]
    time.sleep(0.5)
    assert operator.command("status")["training"]["spent"] == spent
    supervisor.start(name for name, process in gone.items() if process.exitcode != 0)
    certified(operator)


def test_a_silent_terminal_is_forgotten_on_command(net: Any) -> None:
    """While a member is silent the certificate stays as of an earlier round; forgotten, it comes back."""
    folder, supervisor, operator = net
    before = supervisor.processes.pop("terminal-3")
    assert before.pid is not None
    before.kill()
    before.join()
    status = later(operator)
    assert status["training"]["certified_round"] < status["training"]["round"]
    operator.command("forget", terminal=3)
    certified(operator)
    assert not nets.logged(folder, "cloud", "training broke")


@pytest.mark.slow
def test_a_last_certificate_waits_for_a_member_that_starts_and_names_one_that_stays_away(tmp_path: Path) -> None:
    """Killed in its last rounds and started while the cloud waits: certified to the end; killed for good: not."""
    folder = nets.build(tmp_path / "net", nets.small(2, 3, 60), learning=LEARNING)
    with nets.running(folder) as (supervisor, operator):
        for rounds, comes_back in ((30, True), (60, False)):
            operator.command("train", budget=[f"energy={rounds * 26.0}"])
            nets.wait(operator, lambda s: s["training"]["state"] == "running" and s["training"].get("round"))
            gone = supervisor.processes.pop("terminal-3")
            gone.kill()
            gone.join()
            nets.wait(operator, lambda s: "terminal 3" in s["training"].get("waits_for", []))
            if comes_back:
                supervisor.start(["terminal-3"])
            training = nets.wait(operator, nets.at_rest)["training"]
            assert (training["certified_round"] == training["round"]) is comes_back
            assert training["silent"] == ([] if comes_back else ["terminal 3"])
            assert ("terminal 3 did not answer" in " ".join(closing_lines(training))) is not comes_back
