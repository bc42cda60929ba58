"""Small terminals train, are killed, move and certify without a compiler; their owners see and say what leaves."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.deploy.local.provision import forget_all, issued_by
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node.config import read_terminal
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.terminal import account as accounts
from rhfedmtl.deploy.terminal.account import DOWN, UP, Account
from rhfedmtl.deploy.terminal.owner import Owner
from rhfedmtl.deploy.terminal.program import main
from rhfedmtl.deploy.terminal.service import TerminalService
from rhfedmtl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numba", "llvmlite", "scipy", "sklearn", "typer", "rich", "pandas", "prometheus_client", "grpc_health")
LEARNING = {
    "algorithm": "hfedmtl",
    "target_relative_gap": 0.0,
    "options": {"policy": "fixed", "local_steps": 10, "lambda1": 0.1, "lambda2": 0.1},
}


def members(status: dict[str, Any], station: int) -> set[int]:
    """Members of a station that are connected."""
    return {t["terminal"] for t in status["stations"][station]["terminals"] if t["member"] and t["connected"]}


def certified(operator: Operator) -> None:
    """A certificate of a later round than now comes about: everybody answers."""
    start = operator.command("status")["training"]["round"]
    nets.wait(operator, lambda s: bool((s["training"]["certified_round"] or 0) > start))


def settings(folder: Path, t: int, **more: Any) -> None:
    """Put settings into the configuration of a terminal."""
    path = folder / f"terminal-{t}" / "terminal.toml"
    lines = [f"{name} = {value}" for name, value in more.items()]
    path.write_text("\n".join(lines) + "\n" + path.read_text())


def lines(folder: Path, t: int) -> list[accounts.AccountLine]:
    """The account of a terminal."""
    return list(accounts.read(folder / f"terminal-{t}" / "state" / "account.csv"))


@pytest.mark.slow
def test_what_was_decided_outlives_a_reset(tmp_path: Path) -> None:
    """Who is revoked, withdrawn or moved stays so, accounts go on, and the others learn from the beginning."""
    folder = nets.build(tmp_path / "net", nets.small(2, 3, 60), learning=LEARNING, light=True)
    with nets.running(folder, nets.PAUSE_S) as (supervisor, operator):
        operator.command("train", budget=["energy=1e9"])
        nets.wait(operator, lambda s: bool(s["training"].get("round")))
        operator.command("move", terminal=0, station=1)
        nets.wait(operator, lambda s: 0 in members(s, 1))
        operator.command("revoke", node="terminal/5", serials=issued_by(folder)["terminal/5"])
        main(["withdraw", str(folder / "terminal-3"), "--yes"])
        supervisor.processes["terminal-3"].join(nets.PATIENCE_S)
        operator.command("stop")
        nets.wait(operator, nets.at_rest)
    used = nets.terminal_file(folder, 1)
    told = {t: lines(folder, t) for t in (1, 3)}
    forget_all(folder)
    assert {t: lines(folder, t) for t in told} == told
    kept = nets.terminal_file(folder, 1)
    assert (kept.releases, kept.steps_of_day, kept.privacy) == (used.releases, used.steps_of_day, used.privacy)
    assert used.releases
    assert not kept.HasField("job")
    with nets.running(folder, nets.PAUSE_S) as (supervisor, operator):
        assert "terminal-3" not in supervisor.names
        operator.command("train", budget=["energy=1e9"])
        status = nets.wait(operator, lambda s: bool(s["training"].get("round")) and {0, 4} <= members(s, 1))
        assert {t["terminal"] for t in status["stations"][1]["terminals"] if t["connected"]} == {0, 4}
        operator.command("stop")
        nets.wait(operator, nets.at_rest)
    nets.assert_invariant(folder, 2)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Supervisor, Operator]]:
    """A network of light terminals that learns without an end, until it is stopped."""
    folder = nets.build(tmp_path_factory.mktemp("light") / "net", nets.small(2, 3, 60), learning=LEARNING, light=True)
    settings(folder, 5, byte_budget=40_000)
    with nets.running(folder, nets.PAUSE_S) as (supervisor, operator):
        operator.command("train", budget=["energy=1e9"])
        nets.wait(operator, lambda s: bool(s["training"].get("round")))
        yield folder, supervisor, operator
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest)
        assert status["training"]["state"] == "ended", status["training"]
    nets.assert_invariant(folder, 2)


def test_a_terminal_with_a_byte_budget_refuses_work_beyond_it(net: Any) -> None:
    """It says so, ends its connection, and has sent and received no more than it may; the others go on."""
    folder, _, operator = net
    nets.wait(operator, lambda s: bool(nets.logged(folder, "terminal-5", "resting")))
    assert "byte budget" in nets.logged(folder, "terminal-5", "resting")[0]["reason"]
    nets.wait(operator, lambda s: 5 not in members(s, 1))
    used = sum(line.bytes for line in lines(folder, 5))
    assert 30_000 < used <= 40_000
    operator.command("forget", terminal=5)
    certified(operator)
    assert sum(line.bytes for line in lines(folder, 5)) == used


def test_it_imports_nothing_heavy(net: Any) -> None:
    """A terminal at work has mapped no compiler, and nothing of SciPy or scikit-learn; it is small."""
    _, supervisor, _ = net
    process = Path(f"/proc/{supervisor.processes['terminal-0'].pid}")
    mapped = (process / "maps").read_text()
    assert "numpy" in mapped
    assert not any(f"/{name}/" in mapped for name in HEAVY)
    (peak,) = (line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 85_000


def test_a_light_terminal_is_killed_and_moves(net: Any) -> None:
    """Killed, it comes back; it goes over to another station with its share, and is certified there."""
    _, supervisor, operator = net
    nets.restart(supervisor, "terminal-1")
    nets.wait(operator, lambda s: {0, 1, 2} <= members(s, 0))
    certified(operator)
    operator.command("move", terminal=2, station=1)
    nets.wait(operator, lambda s: 2 in members(s, 1) and 2 not in members(s, 0))
    certified(operator)
    nets.restart(supervisor, "station-1")
    nets.wait(operator, lambda s: {2, 3, 4} <= members(s, 1))
    certified(operator)


def test_an_owner_pauses_and_resumes(net: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Paused, a running terminal goes away and sends nothing; it comes back when its owner wants."""
    folder, supervisor, operator = net
    main(["pause", str(folder / "terminal-0")])
    nets.wait(operator, lambda s: 0 not in members(s, 0))
    seen = lines(folder, 0)
    nets.restart(supervisor, "terminal-0")  # over restarts too
    start = operator.command("status")["training"]["round"]
    nets.wait(operator, lambda s: bool(s["training"]["round"] >= start + 3))
    assert lines(folder, 0) == seen
    main(["resume", str(folder / "terminal-0")])
    nets.wait(operator, lambda s: 0 in members(s, 0))
    certified(operator)
    capsys.readouterr()


def test_the_account_tells_what_left(net: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of message with its bytes, in words and as JSON; nothing in it is unknown."""
    folder, _, operator = net
    certified(operator)
    main(["account", str(folder / "terminal-3"), "--json"])
    facts = json.loads(capsys.readouterr().out)
    up = {line["kind"]: line for line in facts["lines"] if line["way"] == UP}
    assert {"connection", "hello", "moments", "scaled", "join", "update", "sums"} == set(up) <= set(accounts.CONTENTS)
    assert facts["standing"] == "takes part"
    assert facts["used"] >= up["update"]["bytes"] > 8 * 21 * up["update"]["messages"]
    main(["account", str(folder / "terminal-3")])
    told = capsys.readouterr().out
    assert "XᵀΔα" in told
    assert "never left" in told


def test_an_owner_withdraws(net: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The share is taken out, the terminal ends and is let in no more; the others are certified without it."""
    folder, supervisor, operator = net
    with pytest.raises(SystemExit):
        main(["withdraw", str(folder / "terminal-4")])
    main(["withdraw", str(folder / "terminal-4"), "--yes"])
    supervisor.processes["terminal-4"].join(nets.PATIENCE_S)
    assert supervisor.processes["terminal-4"].exitcode == 0
    nets.wait(operator, lambda s: 4 not in {t["terminal"] for t in s["stations"][1]["terminals"]})
    certified(operator)
    main(["account", str(folder / "terminal-4")])
    assert "withdrawn on 2" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        main(["serve", str(folder / "terminal-4")])
    assert refused.value.code == 2
    assert "takes it back" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["network", "join"], []])
def test_who_was_withdrawn_takes_part_again_by_joining(net: Any, tmp_path: Path, command: list[str]) -> None:
    """Credentials from a new token take a withdrawal back, with either command that gets them."""
    folder, _, operator = net
    node = tmp_path / "node"
    shutil.copytree(folder / "terminal-3", node)
    Owner(node / "state").withdraw()
    Owner(node / "state").note_withdrawn()
    (tmp_path / "token").write_text(operator.command("invite", number=3)["token"])
    if command:
        told = CliRunner().invoke(app, [*command, str(tmp_path / "token"), "--folder", str(node)])
        assert f"next: rhfedmtl serve terminal --config {node}/terminal.toml" in told.stdout
    else:
        main(["join", str(tmp_path / "token"), "--folder", str(node)])
    Owner(node / "state").check()


def test_dual_variables_are_not_used_with_other_rows(net: Any, tmp_path: Path) -> None:
    """A terminal whose rows were changed since it stopped says so, and how to go on, instead of telling wrong sums."""
    folder, *_ = net
    node = tmp_path / "node"
    shutil.copytree(folder / "terminal-3", node)
    with np.load(node / "data.npz") as file:
        rows = dict(file)
    config = read_terminal(node / "terminal.toml")

    def start() -> None:
        TerminalService(config, Log("terminal"), Meters(), method_of)

    np.savez(node / "data.npz", **rows)
    start()
    np.savez(node / "data.npz", **rows | {"X": rows["X"][::-1]})
    with pytest.raises(ConfigError, match=r"other rows than the \d+ that .*move that file away"):
        start()
    (node / "state" / "terminal.state").unlink()
    start()


def test_a_budget_of_some_days_comes_back(tmp_path: Path) -> None:
    """Bytes of days that are over count no more; what was noted is there after a restart, a torn line is not."""
    now = [datetime(2026, 1, 30, 23, tzinfo=UTC)]
    path = tmp_path / "account.csv"
    account = Account(path, 1000, 2, lambda: now[0])
    account.note(UP, "update", 0, 600)
    account.note(DOWN, "order", 0, 300)
    assert account.allows(100)
    assert not account.allows(101)
    with path.open("a") as file:
        file.write("2026-01-31T00:0")
    now[0] += timedelta(days=1)
    account = Account(path, 1000, 2, lambda: now[0])
    assert account.used == 900
    now[0] += timedelta(days=1)
    assert account.used == 0
    assert account.allows(1000)


def test_nothing_is_sent_that_a_full_disk_keeps_out_of_the_account(tmp_path: Path) -> None:
    """Half a line is no line: it is taken back, the message is not sent, and what comes later is read."""
    path = tmp_path / "account.csv"
    account = Account(path)
    account.note(UP, "update", 0, 1000)
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
        with pytest.raises(OSError, match="large"):
            account.note(UP, "update", 0, 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    account.note(UP, "sums", 0, 10)
    assert [(line.kind, line.bytes) for line in accounts.read(path)] == [("update", 1000), ("sums", 10)]
    assert account.used == 1010


def test_a_long_account_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays small, and its sums stay right."""
    monkeypatch.setattr(accounts, "LONGEST_ACCOUNT", 2000)
    account = Account(tmp_path / "account.csv")
    for i in range(200):
        account.note(UP if i % 2 else DOWN, "update" if i % 2 else "order", 0, i)
    assert (tmp_path / "account.csv").stat().st_size <= 2100
    assert sum(line.bytes for line in accounts.read(tmp_path / "account.csv")) == account.used == 199 * 100
    assert sum(line.messages for line in accounts.read(tmp_path / "account.csv")) == 200


BLOCKED = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import importlib, pathlib
root = pathlib.Path(sys.argv[1])
compiled = ("compiled", "compiled_kernel", "sdca", "sgd", "loops")
for path in sorted(root.glob("rhfedmtl/**/*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if not (name.startswith("rhfedmtl.maths.kernels.") and name.endswith(compiled)):
        assert importlib.import_module(name).__file__ == str(path), name
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS
for name in ALGORITHMS:
    build(name, Options(), "classification")
from rhfedmtl.deploy.terminal.commands import role
from rhfedmtl.deploy.terminal.program import main
role()
main(["--version"])
"""


def test_the_listed_parts_are_enough(tmp_path: Path) -> None:
    """Every module of the distribution can be imported from its own parts where nothing heavy is, in its version."""
    project = tomllib.loads((ROOT / "terminal" / "pyproject.toml").read_text())
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = project["project"]["version"]
    assert version == whole["project"]["version"]
    ours = {line.partition(">")[0]: line for line in whole["project"]["optional-dependencies"]["deploy"]}
    ours |= {line.partition(">")[0]: line for line in whole["project"]["dependencies"]}
    assert all(ours[line.partition(">")[0]] == line for line in project["project"]["dependencies"])
    for part in project["tool"]["hatch"]["build"]["hooks"]["custom"]["parts"]:
        source, target = ROOT / "src" / "rhfedmtl" / part, tmp_path / "rhfedmtl" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    (tmp_path / f"rhfedmtl-{version}.dist-info").mkdir()
    (tmp_path / f"rhfedmtl-{version}.dist-info" / "METADATA").write_text(f"Name: rhfedmtl\nVersion: {version}\n")
    command = [sys.executable, "-P", "-c", BLOCKED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.stdout == f"rhfedmtl-terminal {version} (numpy kernel)\n", done.stderr


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command says what it does; settings that have no option of their own are told."""
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for command in ("serve", "join", "account", "pause", "resume", "withdraw"):
        assert f"    {command} " in told
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "usage: rhfedmtl-terminal" in capsys.readouterr().out
