"""A network of real processes gives the numbers of one process, and can be operated while it learns."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.deploy import nets
from tests.deploy.relay import counted, passed
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.node.config import Waits, read_station
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.policies.base import REMEMBERED
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.ledger_file import load_ledger
from rhfedmtl.training.config import RunConfig

BUDGET = "energy=700"


def in_process(federation: Any, budget: str = BUDGET, **more: Any) -> Any:
    """The same run in one process."""
    return RunConfig(cost=("energy=0.1,10",), budget=(budget,), **more).run(federation)


def assert_same(folder: Path, result: Any, tolerance: float = 0.0) -> None:
    """What the network exported is what the run has, to the bit unless told: models and every charge."""
    models = TaskModels.load(folder / "model.npz")
    np.testing.assert_allclose(models.models, result.models, rtol=tolerance, atol=tolerance)
    assert models.certificate is not None
    assert models.certificate.gap == pytest.approx(result.certificate.gap, rel=0.0, abs=tolerance)
    assert load_ledger(folder / "ledger.json") == result.ledger


def test_a_network_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    """One cloud, three stations and twelve terminals: models, certificate and ledger equal to the bit; then more."""
    federation = nets.small()
    folder = nets.build(tmp_path / "net", federation, observed=True)
    with nets.running(folder) as (_, operator):
        status = nets.trained(operator, budget=[BUDGET])
        operator.export(tmp_path / "first")
        result = in_process(federation)
        assert_same(tmp_path / "first", result)
        assert status["rounds"] == result.rounds
        assert status["accuracy"] == pytest.approx(result.metrics["accuracy"].mean(), abs=0)
        check_windows(folder)
        assert threads_before_forks() == 1
        # A larger budget goes on where the first ended, as a run in one process does.
        status = nets.trained(operator, budget=["energy=900"])
        spent = status["spent"]["energy"]
        assert 700 < spent <= 900
        with pytest.raises(ConfigError, match="money=1 has no price"):
            operator.command("train", budget=["money=1"])
        operator.command("train", budget=["energy=50"])
        assert "spent already" in nets.wait(operator, nets.at_rest)["training"]["error"]
        status = operator.command("status")
        assert all(station["connected"] and len(station["terminals"]) == 4 for station in status["stations"])
        nodes = [node for station in status["stations"] for node in (station, *station["terminals"])]
        assert all(node["spent"]["energy"] > 0.0 for node in nodes)
        assert sum(node["spent"]["energy"] for node in nodes) == pytest.approx(spent)
    assert nets.assert_invariant(folder, 3) == 12


def threads_before_forks() -> int:
    """Threads of the process from which nodes are forked, each with gRPC: those of others would be lost."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return len(list(Path(f"/proc/{server}/task").iterdir()))


def check_windows(folder: Path) -> None:
    """Prometheus and health checks answer for a station."""
    config = read_station(folder / "station-1" / "station.toml")
    with urllib.request.urlopen(f"http://{config.node.metrics}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert 'rhfedmtl_connected{role="terminal"} 4.0' in text
    assert 'rhfedmtl_connected{role="cloud"} 1.0' in text
    assert "rhfedmtl_round_seconds_count" in text
    with grpc.insecure_channel(config.node.health) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert check.status == health_pb2.HealthCheckResponse.SERVING


KINDS = ["heavy", pytest.param("light", marks=pytest.mark.slow)]
TOLERANCE = {"heavy": 0.0, "light": 1e-10}
"""Rounds after rounds: sums of light terminals are taken in another order, and differ in the last digits."""


def double(federation: Any) -> Any:
    """The same rows in double precision."""
    return replace(federation, X=federation.X.astype(np.float64), test_X=federation.test_X.astype(np.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cloud_that_is_killed_comes_out_the_same(tmp_path: Path, kind: str) -> None:
    """Killed in the middle, the cloud goes on from its checkpoint and journal, and ends with the same to the bit."""
    federation = double(nets.small(2, 2, 40))
    learning = {"algorithm": "hfedmtl", "options": {"policy": "fixed", "local_steps": 10}}
    folder = nets.build(tmp_path / "net", federation, learning=learning, light=kind == "light")
    nets.shorten_journals(folder, 15_000)
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1100"])
        for number in (5, 35):
            nets.wait(operator, lambda s, k=number: (s["training"].get("round") or 0) >= k)  # type: ignore[misc]
            nets.restart(supervisor, "cloud")
            assert number == 5 or list((folder / "cloud" / "state").glob("checkpoint-*"))
        status = nets.wait(operator, nets.at_rest)
        assert status["training"]["state"] == "ended", status["training"]
        operator.export(tmp_path / "out")
    assert (folder / "cloud" / "state" / "journal").stat().st_size < 50_000
    assert len(list((folder / "cloud" / "state").glob("checkpoint-*"))) == 1
    options = Options(policy="fixed", local_steps=10)
    result = in_process(federation, "energy=1100", algorithm="hfedmtl", options=options)
    assert_same(tmp_path / "out", result, TOLERANCE[kind])


@pytest.mark.slow  # make test-slow
def test_quasi_newton_rounds_are_those_of_one_process_whoever_is_killed(tmp_path: Path) -> None:
    """Ascent, then a search that lasts longer than policies look back, and every role is killed on the way."""
    federation, learning = nets.small(2, 2, 40), {"lambda1": 1e-4, "lambda2": 1e-5}
    folder = nets.build(tmp_path / "net", federation, learning={"options": learning})
    nets.shorten_journals(folder, 30_000)
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=6000"])
        for number, name in ((15, "cloud"), (30, "station-1"), (45, "terminal-0"), (60, "cloud"), (90, "terminal-3")):
            nets.wait(operator, lambda s, k=number: (s["training"].get("round") or 0) >= k)  # type: ignore[misc]
            nets.restart(supervisor, name)
        status = nets.wait(operator, nets.at_rest)
        assert status["training"]["state"] == "ended", status["training"]
        operator.export(tmp_path / "out")
    result = in_process(federation, "energy=6000", options=Options.of(**learning))
    solvers = [seen.solver for seen in result.observed]
    assert solvers[0] == ASCENT
    assert solvers.count(NEWTON) > REMEMBERED
    assert len(solvers) > REMEMBERED
    assert_same(tmp_path / "out", result)
    nets.assert_invariant(folder, 2)


def test_labels_of_a_network_are_centred_as_in_one_process(tmp_path: Path) -> None:
    """A regression on levels far apart: the same models, with levels in their intercepts, over kills of every role."""
    federation = nets.levelled()
    folder = nets.build(tmp_path / "net", federation, learning={"algorithm": "hfedmtl"})
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1000"])
        for number, name in ((3, "terminal-1"), (10, "station-0"), (20, "cloud")):
            nets.wait(operator, lambda s, k=number: (s["training"].get("round") or 0) >= k)  # type: ignore[misc]
            nets.restart(supervisor, name)
        status = nets.wait(operator, nets.at_rest)["training"]
        assert status["state"] == "ended", status
        operator.export(tmp_path / "out")
    result = in_process(federation, "energy=1000", algorithm="hfedmtl")
    assert_same(tmp_path / "out", result)
    assert result.models[1, 0, -1] - result.models[0, 0, -1] > 50.0
    assert status["rmse"] == pytest.approx(result.metrics["rmse"].mean(), rel=1e-12)
    levels = [nets.station_file(folder, b).centring.level for b in (0, 1)]
    assert [nets.terminal_file(folder, t).centring.level for t in range(4)] == [levels[0]] * 2 + [levels[1]] * 2
    assert abs(levels[1] - levels[0] - 100.0) < 20.0


@pytest.mark.parametrize("algorithm", ["fedavg"])
@pytest.mark.parametrize("kind", KINDS)
def test_methods_by_gradient_steps_run_too(tmp_path: Path, algorithm: str, kind: str) -> None:
    """A method without a dual gives the same models over the network as in one process."""
    federation = double(nets.small(2, 2, 40))
    folder = nets.build(tmp_path / "net", federation, learning={"algorithm": algorithm}, light=kind == "light")
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=200"])
        operator.export(tmp_path / "out")
    result = in_process(federation, "energy=200", algorithm=algorithm)
    models = TaskModels.load(tmp_path / "out" / "model.npz").models
    np.testing.assert_allclose(models, result.models, rtol=TOLERANCE[kind], atol=TOLERANCE[kind])


def test_single_precision_keeps_the_sums_right(tmp_path: Path) -> None:
    """With float32 on the wire, the gap still closes, sums stay right, and rows are scaled as in one process."""
    federation = nets.small(2, 2, 40)
    learning = {"precision": "float32", "options": {"lambda1": 0.1, "lambda2": 0.1}, "target_gap": 1e-6}
    folder = nets.build(tmp_path / "net", federation, learning=learning)
    with nets.running(folder) as (_, operator):
        status = nets.trained(operator)
        assert status["gap"] <= 1e-6
        operator.export(tmp_path / "out")
    nets.assert_invariant(folder, 2, tolerance=1e-6)
    scaled = TaskModels.load(tmp_path / "out" / "model.npz").scalers
    alone = in_process(federation, "energy=100", options=Options.of(channel="float32"))
    for a, b in zip(scaled, alone.scalers, strict=True):
        np.testing.assert_array_equal([a.mean, a.scale], [b.mean, b.scale])
        np.testing.assert_array_equal(np.asarray(a.mean).astype(np.float32), a.mean)


@pytest.mark.parametrize(
    ("features", "precision", "merge", "budget", "within", "maps"),
    [
        (100, "float64", "add", 400_000, 0.02, "none"),
        (20, "float64", "add", 1_000_000, 0.02, "splines=4+fourier=60"),
        pytest.param(20, "int8", "add", 500_000, 0.02, "splines=4+fourier=60", marks=pytest.mark.slow),
        pytest.param(100, "float32", "add", 400_000, 0.02, "none", marks=pytest.mark.slow),
        pytest.param(100, "int8", "add", 400_000, 0.02, "none", marks=pytest.mark.slow),
        pytest.param(10, "float64", "add", 200_000, 0.05, "none", marks=pytest.mark.slow),
        pytest.param(1000, "float64", "add", 4_000_000, 0.02, "none", marks=pytest.mark.slow),
        pytest.param(100, "float64", "auto", 400_000, 0.02, "none", marks=pytest.mark.slow),
        pytest.param(1000, "float64", "auto", 2_000_000, 0.02, "none", marks=pytest.mark.slow),
        pytest.param(1000, "int8", "auto", 1_000_000, 0.02, "none", marks=pytest.mark.slow),
        pytest.param(1000, "int16", "auto", 1_000_000, 0.02, "none", marks=pytest.mark.slow),
    ],
)
def test_a_byte_budget_counts_what_sockets_see(
    tmp_path: Path, features: int, precision: str, merge: str, budget: int, within: float, maps: str
) -> None:
    """Orders, updates, certificates and trials; it is used, and nothing beyond it. One process charges the same."""
    resources = Resources(measured=("bytes",), deadline=5.0)
    # One solver and one K: the same messages in one process, whatever rows are drawn first and prices are planned by.
    alike = ({"policy": "fixed", "local_steps": 20} if merge == "add" else {}) | {"features": maps}
    learning = {"precision": precision, "certify_every": 1, "options": {"merge": merge, **alike}}
    federation = nets.small(2, 2, 40, features=features)
    folder = nets.build(tmp_path / "net", federation, resources=resources, learning=learning)
    relays = counted(folder, 2)
    with nets.running(folder) as (_, operator):
        nets.wait(operator, nets.all_connected)
        before, connections = passed(relays)
        status = nets.trained(operator, budget=[f"bytes={budget}"])
        spent = status["spent"]["bytes"]
        seen, by_now = passed(relays)
        operator.export(tmp_path / "out")
    for relay in relays:
        relay.close()
    assert 0.8 * budget < spent <= budget
    again = before / connections * (by_now - connections)  # handshakes of links that a busy machine broke
    assert spent == pytest.approx(seen - before - again, rel=within)
    if precision != "float32" and merge == "add":
        options = Options.of(merge=merge, channel="int8" if precision == "int8" else "identity", **alike)
        config = RunConfig(options=options, budget=(f"bytes={budget}",), certify_every=1)
        for engine in ("inprocess", "message-passing"):
            alone = config.run(federation, execution=Execution(engine))
            measured = load_ledger(tmp_path / "out" / "ledger.json")
            assert _first_rounds(measured, 5) == pytest.approx(_first_rounds(alone.ledger, 6), rel=within)


def test_bytes_are_counted_where_the_first_budget_limits_them(tmp_path: Path) -> None:
    """Without price or `--measure`; another training counts on, also after a restart; time must be asked for."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))
    nets.shorten_journals(folder, 5_000)
    with nets.running(folder) as (supervisor, operator):
        with pytest.raises(ConfigError, match=r"not counted time so far.*init --measure time"):
            operator.command("train", budget=["time=5"])
        spent = nets.trained(operator, budget=["bytes=60000"])["spent"]
        assert 30_000 < spent["bytes"] <= 60_000
        more = spent["energy"] + 200.0
        after = nets.trained(operator, budget=[f"energy={more}"])["spent"]
        assert after["bytes"] > spent["bytes"]
        assert spent["energy"] < after["energy"] <= more
        nets.restart(supervisor, "cloud")
        nets.wait(operator, lambda s: s["training"].get("spent") == after)


def test_the_byte_budget_that_a_refusal_names_pays_a_round(tmp_path: Path) -> None:
    """It names the smallest H that terminals allow, too; and a small budget is not left over for want of a plan."""
    learning = {"precision": "int8", "least_steps": 0}
    federation = nets.small(2, 3, 72)
    folder, one_pass = nets.build(tmp_path / "net", federation, learning=learning), federation.sizes.max()
    with nets.running(folder) as (_, operator):
        nets.wait(operator, nets.all_connected)
        for budget in (600, 7_000):  # round zero may take more, if its questions are sent again: nobody is asked
            operator.command("train", budget=[f"bytes={budget}"])
            refused = nets.wait(operator, nets.at_rest)["training"]
            assert re.match(rf"budget bytes={budget} cannot pay round zero.* costs bytes=8\d+: raise", refused["error"])
            assert not refused.get("spent", {}).get("bytes")
        # Not enough for a round, for a certificate, and for both.
        for budget, least in ((9_000, "one pass"), (12_000, f"(H={one_pass}, K"), (20_000, f"(H={one_pass}, K")):
            operator.command("train", budget=[f"bytes={budget}"])
            refused = nets.wait(operator, nets.at_rest)["training"]
            assert refused["state"] == "failed"
            assert least in refused["error"]
            assert re.match(rf"budget bytes={budget}, of which bytes=\d+ is spent before it", refused["error"])
            named = re.search(r"raise the budget to (bytes=\d+)", refused["error"])
            assert named
        first = nets.trained(operator, budget=[named[1]])
        assert first["round"] >= 1
        assert first["spent"]["bytes"] <= float(named[1].partition("=")[2])
        limit = first["spent"]["bytes"] + 40_000
        more = nets.trained(operator, budget=[f"bytes={limit}"])
        assert limit - 14_000 < more["spent"]["bytes"] <= limit


def _first_rounds(ledger: Ledger, server_iterations: int) -> float:
    """Bytes of round zero and five rounds, all of which are certified, but for the anchors and report of a sixth.

    One process books these beside the round before, a network beside its own.
    """
    told = [charge for charge in ledger.log.charges if charge.round <= 5]
    return sum(charge.total for charge in told) - (told[-1].total if server_iterations > 5 else 0.0)


@pytest.mark.slow
def test_what_is_measured_is_charged(tmp_path: Path) -> None:
    """Time, bytes and energy are measured: all are spent, and none beyond its limit by more than a message."""
    federation = nets.small(2, 2, 40)
    resources = Resources(measured=("time", "bytes", "energy"), terminal_watts=2.0, station_watts=5.0, deadline=5.0)
    folder = nets.build(
        tmp_path / "net",
        federation,
        resources=resources,
        learning={"test_rows": "terminal"},
        waits=Waits(patience=2.0, answer=1.0, again=0.5),
    )
    nets.shorten_journals(folder, 5_000)
    with nets.running(folder) as (supervisor, operator):
        status = nets.trained(operator, budget=["bytes=60000"])
        operator.export(tmp_path / "out")
        spent = status["spent"]
        assert all(spent[name] > 0 for name in ("time", "bytes", "energy"))
        assert spent["bytes"] <= 60_000 + 2_000
        assert status["accuracy"] is not None
        nets.restart(supervisor, "cloud")
        nets.wait(operator, lambda s: s["training"].get("spent") == spent and nets.all_connected(s))
        # A terminal and then a station that hang do not make time run over: the ledger counts what was waited.
        limit = spent["time"] + 3.0
        frozen = iter(["terminal-0", "station-1"])

        def freeze() -> None:
            if operator.command("status")["training"].get("state") == "running":
                for name in frozen:
                    supervisor.kill(name, signal.SIGSTOP)
                    break

        try:
            status = nets.trained(operator, freeze, budget=[f"time={limit}"])
        finally:
            for name in ("terminal-0", "station-1"):
                supervisor.kill(name, signal.SIGCONT)
        assert status["spent"]["time"] <= limit + 0.5
    tiers = load_ledger(tmp_path / "out" / "ledger.json").totals("tier")["bytes"]
    assert set(tiers) == {"terminal-link", "station-link"}


def test_a_terminal_that_is_silent_from_the_start_does_not_end_a_training(tmp_path: Path) -> None:
    """A certificate is missing or counts the silent terminal at its worst, until the terminal answers."""
    resources, waits = Resources(cost=("energy=0.1,10",), deadline=0.3), Waits(start=60.0, answer=0.5, again=0.5)
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40), resources=resources, waits=waits)
    with nets.running(folder) as (supervisor, operator):
        nets.wait(operator, nets.all_connected)
        supervisor.kill("terminal-0", signal.SIGSTOP)
        operator.command("train", budget=["energy=1e6"])
        status = nets.wait(operator, lambda s: (s["training"].get("round") or 0) >= 2)
        assert status["training"]["gap"] is None or "terminal 0" in status["training"]["absent"][0]
        supervisor.kill("terminal-0", signal.SIGCONT)
        nets.wait(operator, lambda s: s["training"].get("gap") is not None and not s["training"]["absent"])
        operator.command("stop")
        assert nets.wait(operator, nets.at_rest)["training"]["state"] == "ended"


def test_the_commands_make_start_and_end_a_network(tmp_path: Path) -> None:
    """init, up, and up again with a larger budget, as a person types them."""
    folder = tmp_path / "demo-net"
    command = CliRunner().invoke
    words = ["network", "init", str(folder), "--stations", "2", "--terminals", "2", "--port", str(nets.port())]
    made = command(app, [*words, "--data", "synthetic", "--samples-per-task", "40", "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["terminals"] == 4
    facts = []
    for budget in ("energy=200", "energy=300"):
        shown = command(app, ["network", "up", str(folder), "--local", "--budget", budget, "--json"])
        assert shown.exit_code == 0, shown.output
        facts.append(json.loads(shown.output))
        assert {"accuracy", "gap", "spent", "rounds", "seconds"} <= set(facts[-1])
    assert facts[0]["spent"]["energy"] <= 200 < facts[1]["spent"]["energy"] <= 300
    assert facts[0]["rounds"] < facts[1]["rounds"]
    trail = json.loads(command(app, ["network", "audit", str(folder), "--offline", "--json"]).output)["shown"]
    assert [entry["command"] for entry in trail if "command" in entry] == ["train", "train"]  # and no stop
    assert [entry["again"] for entry in trail if entry["event"] == "training ended"] == [False, False]
    again = command(app, ["network", "up", str(folder), "--local", "--budget", "energy=300"])
    assert again.exit_code == 0, again.output
    assert "as of round" not in again.output, "the certificate is of the last round"
    out = command(app, ["network", "export", str(folder), "--out", str(tmp_path / "out"), "--offline", "--json"])
    assert json.loads(out.output)["files"] == ["model.npz", "ledger.json", "result.json"]
    kept = TaskModels.load(tmp_path / "out" / "model.npz")
    assert kept.certificate is not None
    assert kept.certificate.gap == facts[1]["gap"]
    assert json.loads((tmp_path / "out" / "result.json").read_text())["certified_round"] == facts[1]["rounds"]
    text = command(app, ["network", "up", str(folder), "--local", "--budget", "energy=200", "--fresh"])
    assert text.exit_code == 0, text.output
    assert f"{facts[1]['gap']:.2e}" not in text.output
    poor = command(app, ["network", "up", str(folder), "--local", "--budget", "energy=23", "--fresh"])
    assert poor.exit_code != 0
    assert all(words in str(poor.exception) for words in ("one pass over its own rows", "--least-steps"))
    for words in (["status"], ["network", "status"]):
        with pytest.raises(ConfigError, match=r"no answer .* serve cloud --config"):
            command(app, [*words, str(folder)], catch_exceptions=False)


def test_exported_models_know_their_features_by_name(tmp_path: Path) -> None:
    """Rows whose columns come in another order get the predictions that they should."""
    made = nets.small(2, 2, 40)
    names = tuple(f"f{i}" for i in range(made.n_features))
    federation = replace(made, feature_names=names)
    folder = nets.build(tmp_path / "net", federation)
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=200"])
        operator.export(tmp_path / "out")
        with pytest.raises(ConfigError, match="is running: ask it, without --offline"):
            Operator.export_offline(folder, tmp_path / "offline")
    assert TaskModels.load(tmp_path / "out" / "model.npz").feature_names == names
    X, _ = federation.test_rows(0)
    shown = []
    for order in (np.arange(len(names)), np.arange(len(names))[::-1]):
        lines = [",".join(names[i] for i in order), *(",".join(str(row[i]) for i in order) for row in X)]
        (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
        words = ["predict", str(tmp_path / "out" / "model.npz"), "--path", str(tmp_path / "rows.csv")]
        found = CliRunner().invoke(app, [*words, "--task", federation.task_names[0], "--json"])
        assert found.exit_code == 0, found.output
        shown.append(json.loads(found.stdout))
    assert shown[0] == shown[1]
