"""What `network init` writes can be started, and what cannot run says why at once."""

from __future__ import annotations

import configparser
import errno
import json
import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.deploy import nets
from typer.testing import CliRunner

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.cli.main import app
from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.local.provision import issued_by, rotate
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node import serve
from rhfedmtl.deploy.node.config import read_station, read_terminal
from rhfedmtl.deploy.node.credentials import (
    OPERATOR,
    TERMINAL,
    Authority,
    Credentials,
    Identity,
    new_key,
    requested_key,
)
from rhfedmtl.deploy.node.enrolment import enrol
from rhfedmtl.deploy.node.state import UnwrittenError
from rhfedmtl.deploy.terminal.site import SitePolicy
from rhfedmtl.deploy.warm_up import warm_up
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.kernels import rounds, sdca
from rhfedmtl.maths.losses import Logistic
from rhfedmtl.resources.billing import Charge
from rhfedmtl.resources.events import Placement, RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.ledger_file import ledger_from_dict, ledger_to_dict
from rhfedmtl.roles.messages import Probe, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that is not started."""
    return nets.build(tmp_path_factory.mktemp("provision") / "net", nets.small(2, 2, 40))


def test_containers_find_what_their_commands_name(net: Path) -> None:
    """Every node is a service with its own folder and no rights; building the image sends no key along."""
    compose = yaml.safe_load((net / "compose.yaml").read_text())
    assert len(compose["services"]) == 1 + 2 + 4
    for name, service in compose["services"].items():
        role = name.partition("-")[0]
        places = dict(volume.split(":")[:2] for volume in service["volumes"])
        assert places[f"./{name}"] == "/node"
        assert service["command"] == [role, "--config", f"/node/{role}.toml"]
        assert (net / name / f"{role}.toml").exists()
        assert ("./ca" in places) == (role == "cloud")
        assert set(places) <= {f"./{name}", "./ca"}  # nothing that another node can write
        assert f"chown -R {service['user']} {name}" in (net / "own.sh").read_text()
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert len({service["user"] for service in compose["services"].values()}) == len(compose["services"])
    assert "volumes" not in compose
    assert (net / ".dockerignore").read_text().split() == ["*", "!wheels"]
    assert "COPY wheels/" in (net / "Dockerfile").read_text()
    assert (net / "wheels").is_dir()


@pytest.mark.parametrize("role", ["cloud", "station@", "terminal@"])
def test_services_start_their_node_and_may_write_its_folder_only(net: Path, role: str) -> None:
    """A unit starts the command for its role where the node lies, and goes without rights."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(net / "systemd" / f"rhfedmtl-{role}.service")
    service, name = unit["Service"], role.rstrip("@")
    assert service["ExecStart"].endswith(f"rhfedmtl serve {name} --config {name}.toml")
    assert service["ReadWritePaths"] == service["WorkingDirectory"]
    assert service["WorkingDirectory"].endswith("-%i" if "@" in role else "/cloud")
    assert "MemoryDenyWriteExecute" not in service
    assert service["User"] == f"rhfedmtl-{Path(service['WorkingDirectory']).name}"
    users = [line.split()[1] for line in (net / "systemd" / "rhfedmtl.conf").read_text().splitlines()[1:]]
    assert service["User"].replace("%i", "0") in users
    assert "CacheDirectory" not in service  # compiled code lies in the node's own folder


def test_only_its_owner_can_read_a_node(net: Path) -> None:
    """Rows, keys and the authority lie in folders that nobody else can enter."""
    for path in net.glob("*/"):
        if path.name not in ("systemd", "wheels"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def ended(supervisor: Supervisor) -> None:
    """Keep a network up until something in it cannot run."""
    end = time.monotonic() + nets.PATIENCE_S
    while time.monotonic() < end:
        supervisor.keep_up()
        time.sleep(0.05)
    raise AssertionError("it runs")


def test_what_cannot_run_says_why(net: Path, tmp_path: Path) -> None:
    """A wrong word, a port that is taken, a key that others can read and missing rows end a trial with the reason."""
    config = net / "station-0" / "station.toml"
    good = config.read_text()
    with Supervisor(net) as supervisor:
        with pytest.raises(ConfigError, match="running already"):
            Supervisor(net)
        config.write_text(good.replace("cloud =", "clod ="))
        supervisor.start(["station-0"])
        with pytest.raises(ConfigError, match=r"station-0 cannot run: .*did you mean cloud"):
            ended(supervisor)
        config.write_text(good)
        host, port = read_station(config).node.listen.split(":")
        with socket.socket() as taken:
            taken.bind((host, int(port)))
            taken.listen()
            supervisor.start(["station-0"])
            with pytest.raises(ConfigError, match="cannot listen"):
                ended(supervisor)
        (net / "station-0" / "node.pem").chmod(0o644)
        supervisor.start(["station-0"])
        with pytest.raises(ConfigError, match="chmod 600"):
            ended(supervisor)
        (net / "station-0" / "node.pem").chmod(0o600)
        supervisor.processes.clear()
        rows = (net / "terminal-0" / "data.npz").rename(tmp_path / "data.npz")
        supervisor.start(["cloud", "station-0", "terminal-0"])
        with pytest.raises(ConfigError, match=r"terminal-0 cannot run: .*data\.npz"):
            ended(supervisor)
        rows.rename(net / "terminal-0" / "data.npz")


@pytest.mark.parametrize("light", [False, True])
def test_a_state_folder_that_cannot_be_used_ends_a_network_with_the_reason(tmp_path: Path, light: bool) -> None:
    """It would be so again: nothing is started once more, and the log has one line and no traceback."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 30), light=light)
    (folder / "terminal-1" / "state").touch()
    with Supervisor(folder) as supervisor:
        supervisor.start(["terminal-1"])
        with pytest.raises(ConfigError, match=r"terminal-1 cannot run: cannot use .*state: File exists"):
            ended(supervisor)
    assert len((folder / "logs" / "terminal-1.log").read_text().splitlines()) == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_state_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A full disk is no such folder: the node is started again, until there is room."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 30))
    first, second = (folder / f"terminal-{t}" / "terminal.toml" for t in range(2))

    def refused(*_: Any) -> Any:
        raise OSError(number, "as it is", "somewhere")

    made = serve.Role(TERMINAL, read_terminal, refused)
    with pytest.raises(UnwrittenError if number == errno.ENOSPC else ConfigError, match="somewhere"):
        serve.serve(made, [first])
    monkeypatch.setattr(serve.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="state: it cannot be written"):
        serve.serve(made, [second])


def signatures() -> int:
    """Kernels that are compiled in this process."""
    return sum(len(getattr(kernel, "signatures", ())) for module in (rounds, sdca) for kernel in vars(module).values())


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nothing_is_compiled_within_a_round(kind: Any) -> None:
    """After the rehearsal a terminal with rows of the same kind runs only what is compiled already."""
    method = DualMethod(Logistic(), intercept=True)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(9, 4)).astype(kind), rng.choice([-1.0, 1.0], size=(9, 3))
    warm_up(method, X, y)
    before = signatures()
    terminal = Terminal(3, X, y, method)
    terminal.join()
    terminal.moments()
    assert terminal.work(WorkOrder(1, 3, np.zeros(terminal.shape), 0.1, 7, Verdict(0, 0.0, 0, 1))) is not None
    probe = Probe(3, 1, np.zeros((2, *terminal.shape)), np.eye(2), False, Verdict(1, 0.5, 1, 1))
    assert terminal.probe(probe) is not None
    assert terminal.probe(replace(probe, gradient=True)) is not None
    assert before
    assert signatures() == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--algorithm", "hfedmtl", "--mu", "0.5"], "no effect on hfedmtl"),
        (["--terminal-watts", "2"], "--terminal-watts: power has an effect only"),
        (["--measure", "time", "--station-watts", "2"], "--station-watts: power has an effect only"),
        (["--stations", "1", "--terminals", "2", "--port", "65534"], "needs 11 ports .* give 65525 at most"),
        (["--stations", "2", "--station-hosts", "a,b,c"], "--station-hosts a,b,c: 3 hosts for 2 stations"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path: Path, words: list[str], reason: str) -> None:
    """A network is not made with settings that would change nothing or cannot work, and nothing is written."""
    with pytest.raises(ConfigError, match=reason):
        CliRunner().invoke(app, ["network", "init", str(tmp_path / "net"), *words], catch_exceptions=False)
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--masked", "--least-summed", "2"], "least_summed = 2"),
        (["--loss", "smoothed-hinge", "--gamma", "0.5"], "gamma = 0.5"),
        (["--algorithm", "fedprox", "--mu", "0.3"], "mu = 0.3"),
    ],
)
def test_settings_of_entries_reach_the_cloud(tmp_path: Path, words: list[str], option: str) -> None:
    """Also those that a channel, a loss or a method declares for itself."""
    made = ["network", "init", str(tmp_path / "net"), "--tasks", "2", "--terminals", "2"]
    CliRunner().invoke(app, [*made, *words], catch_exceptions=False)
    assert option in (tmp_path / "net" / "cloud" / "cloud.toml").read_text()
    assert read_cloud(tmp_path / "net" / "cloud" / "cloud.toml")


@pytest.mark.parametrize("more", [(), ("--masked",), ("--light",), ("--masked", "--light")])
def test_a_pass_is_the_least_work_in_every_network(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Masks do not lower the smallest H."""
    words = ["network", "init", str(tmp_path / "net"), "--tasks", "1", "--terminals", "3", *more]
    assert "least-steps" not in CliRunner().invoke(app, words, catch_exceptions=False).output
    assert read_cloud(tmp_path / "net" / "cloud" / "cloud.toml").learning.least_steps == 0
    assert read_terminal(tmp_path / "net" / "terminal-0" / "terminal.toml").least_steps == 0


@pytest.mark.parametrize("more", [(), ("--masked",)])
def test_less_than_a_pass_takes_two_and_says_what_it_allows(tmp_path: Path, more: tuple[str, ...]) -> None:
    """The operator's option writes no owner's line: every terminal declines until it is there."""
    words = ["network", "init", str(tmp_path / "net"), "--tasks", "1", "--terminals", "3", "--least-steps", "2", *more]
    output = " ".join(CliRunner().invoke(app, words, catch_exceptions=False).output.split())
    assert "can reconstruct rows exactly" in output
    assert "3 of 3 terminals decline" in output
    config = read_cloud(tmp_path / "net" / "cloud" / "cloud.toml")
    terminal = read_terminal(tmp_path / "net" / "terminal-0" / "terminal.toml")
    assert (config.learning.least_steps, terminal.least_steps) == (2, 0)
    job, channel = config.learning.job(), config.learning.channel
    assert "only the owner may allow less" in SitePolicy(terminal).refuses_job(job, 50, channel)
    assert not SitePolicy(replace(terminal, least_steps=2)).refuses_job(job, 50, channel)


def test_steps_that_are_more_than_a_pass_take_no_second_line(tmp_path: Path) -> None:
    """Nothing is allowed by them that was not before."""
    words = ["network", "init", str(tmp_path / "net"), "--tasks", "1", "--terminals", "3", "--least-steps", "9999"]
    facts = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).output)
    assert "allowed" not in facts


def test_draws_with_replacement_are_no_pass(tmp_path: Path) -> None:
    """Any number of them may leave rows out, so they need the owners' line too."""
    words = ["network", "init", str(tmp_path / "net"), "--tasks", "1", "--terminals", "3", "--uniform"]
    with pytest.raises(ConfigError, match="--uniform draws rows with replacement"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    facts = json.loads(CliRunner().invoke(app, [*words, "--least-steps", "999", "--json"]).output)
    assert "3 of 3 terminals" in facts["allowed"]


def test_a_wrong_name_changes_no_credentials(tmp_path: Path) -> None:
    """Papers are rotated for all that are named or for none: the list of certificates stays complete."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))
    before = (folder / "cloud" / "node.pem").read_bytes()
    with pytest.raises(ConfigError, match="no node 'station-9'"):
        rotate(folder, ["cloud", "station-9"])
    assert (folder / "cloud" / "node.pem").read_bytes() == before


def test_a_lost_key_is_replaced_by_the_command_that_its_absence_names(tmp_path: Path) -> None:
    """Who a node is stands in its configuration too; only for one without the others' folders nobody can name it."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))
    for name in ("terminal-1", "operator"):
        credentials = Credentials.of(folder / name)
        known = credentials.peer
        credentials.node_file.unlink()
        with pytest.raises(ConfigError, match=f"`rhfedmtl network rotate {folder} {name}` writes one"):
            credentials.pair()
        assert CliRunner().invoke(app, ["network", "rotate", str(folder), name]).exit_code == 0
        credentials.check(known.identity)
        assert issued_by(folder)[f"{known.identity.role}/{known.identity.number}"][-1] == credentials.peer.serial
    with pytest.raises(ConfigError, match="`rhfedmtl network rotate NETWORK NODE` writes one"):
        Credentials.of(tmp_path / "alone").pair()


def test_ends_and_resets_are_told_as_json(tmp_path: Path) -> None:
    """A node that was told to end, and a reset, say what became of them in one object."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))
    words = ["serve", "terminal", "--config", str(folder / "terminal-0" / "terminal.toml"), "--json"]
    command = [sys.executable, "-c", "from rhfedmtl.cli.main import main; main()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        while '"started"' not in node.stderr.readline():
            assert node.poll() is None
        node.terminate()
        told = json.loads(node.communicate(timeout=nets.PATIENCE_S)[0])
    assert (told["role"], told["nodes"], told["ended"]) == ("terminal", 1, "stopped")
    done = CliRunner().invoke(app, ["network", "reset", str(folder), "--yes", "--json"])
    assert json.loads(done.output) == {"folder": str(folder), "nodes": 7}


def test_charges_survive_a_checkpoint() -> None:
    """Charges of all nodes, of some, and with an amount for each come back in their order, to the bit."""
    layouts = [Placement(np.array([0, 0, 1]), 2), Placement(np.array([0, 1, 1]), 2)]
    charges = [
        Charge.make(1, "terminal", "energy", layouts[0], None, 0.1),
        Charge.make(1, "station", "energy", layouts[0], np.array([1]), 10.0),
        Charge.make(2, "terminal", "time", layouts[1], None, np.array([0.1, 0.2, 0.3])),
        Charge.make(2, "cloud", "time", layouts[1], None, 3.5),
    ]
    ledger = Ledger("energy=1,1,time=1,1")
    ledger.charge(charges)
    found = put_away(ledger)
    assert len(found.log) == 4
    assert found == ledger
    assert len(put_away(Ledger("energy=1,1")).log) == 0


def put_away(ledger: Ledger) -> Ledger:
    """A ledger that goes through a checkpoint."""
    found = Ledger(ledger.cost, ledger.budget)
    found.log.restore(ledger_from_dict(ledger_to_dict(ledger)).log.charges, ledger.log.exact_sums())
    return found


def test_a_condensed_ledger_goes_on_to_the_bit() -> None:
    """Of rounds that were added up, what was spent comes back as it was and not as their rounded sums have it."""
    layout = Placement(np.array([0, 0, 1]), 2)
    ledger = Ledger("energy=0.1,0.7", "energy=1e5")
    for number in range(1, 200):
        ledger.charge(RoundEvent(number, layout, np.array([1, 2, number])))
        ledger.log.condense(20)
    found = put_away(ledger)
    assert len(found.log) == len(ledger.log) < 20
    for number in range(200, 300):
        assert (found.spent, found.left) == (ledger.spent, ledger.left)
        assert found.remaining == ledger.remaining
        for each in (found, ledger):
            each.charge(RoundEvent(number, layout, np.array([1, 2, number % 9])))


def test_an_operator_signs_and_the_cloud_never_has_the_key(tmp_path: Path) -> None:
    """A newcomer waits until `network sign`; the certificate is for its key alone, and works."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 30), cloud_signs=False)
    rows = folder / "terminal-0" / "data.npz"
    away = (folder / "ca").rename(tmp_path / "safe")  # nothing that runs can read it
    with nets.running(folder) as (supervisor, operator):
        token = operator.command("invite", station=0)["token"]
        with pytest.raises(ConfigError, match="no operator has signed"):
            enrol(token, folder / "terminal-2", rows, patience=0.0)
        (asked,) = operator.command("requests")["requests"]
        other, _ = new_key()
        who = Identity("test-net", TERMINAL, 2)
        for wrong, key in ((who, other), (Identity("test-net", OPERATOR), requested_key(asked["request"].encode()))):
            certificate = Authority.load(away).issue(wrong, key.public_key() if key is other else key).decode()
            with pytest.raises(ConfigError, match="no certificate for"):
                operator.command("sign", token=asked["token"], certificate=certificate)

        def sign() -> None:
            told = CliRunner().invoke(app, ["network", "sign", str(folder), "--authority", str(away), "--json"])
            assert json.loads(told.stdout) == {"signed": ["terminal/2"]}

        enrol(token, folder / "terminal-2", rows, waits=sign)
        nets.owner_allows(folder / "terminal-2")
        supervisor.add(folder / "terminal-2")
        nets.wait(operator, lambda s: len(s["stations"][0]["terminals"]) == 3 and nets.all_connected(s))
        with pytest.raises(ConfigError, match="used already"):
            enrol(token, folder / "terminal-2")
        names = ",".join(f"x{j}" for j in range(20))
        (tmp_path / "few.csv").write_text("x0,label\n1.0,0\n")
        (tmp_path / "codes.csv").write_text(f"{names},label\n{'1.0,' * 20}0\n")
        token = operator.command("invite", station=0)["token"]
        with pytest.raises(DataError, match=r"few.csv has no column .* features\. The token still counts"):
            enrol(token, tmp_path / "few", tmp_path / "few.csv")
        with pytest.raises(DataError, match=r"label '0': the classes .* class-0, class-1.* still counts"):
            enrol(token, tmp_path / "few", tmp_path / "codes.csv")
        assert not operator.command("requests")["requests"]  # nothing was asked for
        assert not (tmp_path / "few").exists()
    assert "../ca" not in (folder / "cloud" / "cloud.toml").read_text()
    assert "/ca" not in (folder / "compose.yaml").read_text()
