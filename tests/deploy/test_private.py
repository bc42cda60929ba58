"""Networks with a bound on what is learned of a terminal: planned, charged before anything leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import inside, nets
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.cli.network.text import closing_lines
from rhfedmtl.deploy.local.provision import forget_all
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.job import Agreement
from rhfedmtl.deploy.node.state import Journal
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.terminal.program import main as terminal_main
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.maths.gaussian_privacy import epsilon_of
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.channel import NoisedSums, with_noise
from rhfedmtl.roles.messages import Noising, Probe, Verdict, WorkOrder
from rhfedmtl.roles.summed import noise_for
from rhfedmtl.training.privacy import Privacy, private

BOUND = "epsilon=8,delta=1e-6"
KINDS = ("clear", "masked")


def learning(kind: str, bound: str = BOUND, **more: Any) -> dict[str, Any]:
    """What a private network learns."""
    return {"options": {"channel": "masked"} if kind == "masked" else {}, "scale": "unit", "privacy": bound, **more}


def noise(folder: Path, b: int) -> Any:
    """U_b − Σ_t X_tᵀα_t, and what rounding kept back, from the files alone."""
    record = nets.station_file(folder, b)
    members = [member for member in record.members if not member.departed]
    return codec.array(record.U, "U") - sum(nets.share_of(folder, member) for member in members)


def rounds_of(folder: Path) -> list[wire.Entry]:
    """Rounds that the cloud has written down."""
    entries = map(wire.Entry.FromString, Journal(folder / "cloud" / "state" / "journal", fsync=False).entries())
    return [entry for entry in entries if entry.kind == "round"]


def assert_declared(folder: Path, stations: int) -> None:
    """Noise in U_b is as wide as was declared, and what each terminal told was charged to it."""
    entries, told = rounds_of(folder), nets.terminal_file(folder, 0).noising
    parts = [[e.answers[b].round for e in entries if e.answers[b].HasField("round")] for b in range(stations)]
    for b in range(stations):
        record = nets.station_file(folder, b)
        channel = with_noise(inside.method_of(record.job).channel, told.clip, told.noise)
        heard = np.array([sum(effort.answered for effort in r.efforts) for r in parts[b]], dtype=float)
        applied = np.array([r.factor for r in parts[b]]) ** 2 * (heard > 0)
        variance, found = float(applied @ channel.noise_variance(heard)), noise(folder, b)
        x, d = math.log(1e6), found.size
        squares = float(np.square(found).sum()) / variance
        assert max(0.0, d - 2.0 * math.sqrt(d * x)) <= squares <= d + 2.0 * math.sqrt(d * x) + 2.0 * x
        if isinstance(channel, NoisedSums):
            steps = found / channel.grid_step
            np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
        for member in record.members:
            efforts = [e for r in parts[b] for e in r.efforts if e.terminal == member.terminal]
            applied_rounds = sum(effort.answered for effort in efforts)
            spent = nets.terminal_file(folder, member.terminal).privacy
            assert spent >= applied_rounds * channel.price * (1.0 - 1e-12)


@pytest.mark.usefixtures("terminals")
@pytest.mark.parametrize("kind", KINDS)
def test_a_private_network_keeps_to_its_bound(tmp_path: Path, kind: str, capsys: Any) -> None:
    """The plan of a simulation, one noised certificate, ε in the ledger and in terminals' accounts; then no more."""
    federation = nets.small(2, 5, 60)
    folder = nets.build(tmp_path / "net", federation, learning=learning(kind))
    with nets.running(folder) as (_, operator):
        training = nets.trained(operator, budget=["energy=4000"])
        operator.export(tmp_path / "out")
        with pytest.raises(ConfigError, match="are noised"):
            operator.command("move", terminal=0, station=1)
        operator.command("train", budget=["energy=9000"])
        assert "released its certificate" in nets.wait(operator, nets.at_rest)["training"]["error"]
    options = Options(channel="masked") if kind == "masked" else Options()
    _, plan = private("rhfedmtl", options, federation, Ledger(["energy=0.1,10"], ["energy=4000"]), Privacy.parse(BOUND))
    assert training["privacy"]["clip"] == pytest.approx(plan.clip)
    assert training["privacy"]["noise"] == pytest.approx(plan.noise)
    assert training["rounds"] == plan.rounds
    assert training["spent"]["epsilon"] <= 8.0
    assert training["spent"]["privacy"] <= plan.privacy.mu**2 * (1.0 + 1e-9)
    assert training["privacy"]["certificate"]["probability"] == 1.0 - 1e-6
    assert np.isfinite(training["gap"])
    said = "\n".join(closing_lines(training))
    assert "privacy loss of a terminal at most epsilon 8 at delta 1e-06" in said
    assert "terminals under a station are few for epsilon=8" in said
    assert "privacy" in json.loads((tmp_path / "out" / "ledger.json").read_text())["budget"]
    assert_declared(folder, 2)
    terminal_main(["account", str(folder / "terminal-0"), "--json"])
    account = json.loads(capsys.readouterr().out)
    assert 0.0 < account["epsilon"] <= 8.0
    assert account["epsilon"] == pytest.approx(epsilon_of(math.sqrt(nets.terminal_file(folder, 0).privacy), 1e-6))
    assert not {"moments", "labels", "tally", "leave"} & {line["kind"] for line in account["lines"]}
    forget_all(folder)
    terminal_main(["account", str(folder / "terminal-0"), "--json"])
    assert json.loads(capsys.readouterr().out) == account  # what left has left


PLACES = {
    "clear": ["terminal.send-update-before", "terminal.send-update-after", "station.save-station.state-before"],
    "masked": ["terminal.send-masked-before", "terminal.send-opened-before", "station.send-question opened-before"],
}


@pytest.mark.slow
@pytest.mark.usefixtures("terminals")
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_killed_privacy_is_never_under_counted(tmp_path: Path, kind: str, places: Path) -> None:
    """Whatever leaves was charged before, at the terminal and in the ledger; U_b is exact up to the declared noise."""
    slow = learning(
        kind, f"{BOUND},rounds=100000", options={**learning(kind)["options"], "policy": "fixed", "local_steps": 1}
    )
    folder = nets.build(tmp_path / "net", nets.small(1, 5, 2000), learning=slow)
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1e7"])
        for place in [*PLACES[kind], "cloud.journal-intent-after", "cloud.journal-round-before"]:
            (places / place).touch()
            nets.wait(operator, lambda _: not [*places.glob("*-before"), *places.glob("*-after")], supervisor.keep_up)
            before = rounds(operator, supervisor)
            nets.wait(operator, lambda s, k=before: (s["training"].get("round") or 0) > k + 2, supervisor.keep_up)  # type: ignore[misc]
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest)["training"]
    assert status["spent"]["privacy"] == pytest.approx(status["round"] * status["privacy"]["update_price"])
    assert_declared(folder, 1)


def rounds(operator: Operator, supervisor: Supervisor) -> int:
    """Rounds so far; a cloud that was just killed is started, and asked again."""
    return operator.wait_for_cloud(nets.PATIENCE_S, supervisor.keep_up)["training"].get("round") or 0


@pytest.mark.usefixtures("terminals")
@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_is_asked_for_again_tells_nothing_new(tmp_path: Path, kind: str, places: Path) -> None:
    """A cloud that is killed before it has written the sums down asks again: what is told is the same, charged once."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 60), learning=learning(kind))
    (places / "cloud.journal-sums-before").touch()
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=4000"])
        training = nets.wait(operator, nets.at_rest, supervisor.keep_up)["training"]
    assert not (places / "cloud.journal-sums-before").exists()
    assert np.isfinite(training["gap"])
    assert training["spent"]["privacy"] <= Privacy.parse(BOUND).mu ** 2 * (1.0 + 1e-9)
    limit = Privacy.parse(BOUND).mu ** 2 * (1.0 + 1e-9)
    assert all(nets.terminal_file(folder, t).privacy <= limit for t in range(4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_private_training_is_certified_without_one_that_is_gone(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    """Its rows count at their worst; under masks those of its group do."""
    places = nets.failpoint_folder(tmp_path, monkeypatch)
    folder = nets.build(tmp_path / "net", nets.small(1, 6, 60), learning=learning(kind))
    place = places / f"terminal.send-{'masked' if kind == 'masked' else 'update'}-before"
    place.touch()
    with nets.running(folder) as (_, operator):
        assert np.isfinite(nets.trained(operator, budget=["energy=4000"])["gap"])
        away = [t["connected"] for t in operator.command("status")["stations"][0]["terminals"]]
    assert away.count(False) == 1
    assert not place.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("terminals")
@pytest.mark.parametrize("kind", KINDS)
def test_who_leaves_a_noised_sum_stays_behind_in_it(tmp_path: Path, kind: str) -> None:
    """Nothing is taken out, the terminal ends, another is withdrawn by its owner; the others learn on."""
    folder = nets.build(tmp_path / "net", nets.small(1, 7, 70), learning=learning(kind, f"{BOUND},rounds=100000"))
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1e7"])
        nets.wait(operator, lambda s: (s["training"].get("round") or 0) > 3, supervisor.keep_up)
        for command in ("forget", "move"):
            with pytest.raises(ConfigError, match="network leave"):
                operator.command(command, terminal=6, **({"station": 1} if command == "move" else {}))
        assert "stays there" in operator.command("leave", terminal=6)["waits"]
        supervisor.processes["terminal-6"].join(nets.PATIENCE_S)
        terminal_main(["withdraw", str(folder / "terminal-5"), "--yes"])
        supervisor.processes["terminal-5"].join(nets.PATIENCE_S)
        assert [supervisor.processes[f"terminal-{t}"].exitcode for t in (5, 6)] == [0, 0]
        before = rounds(operator, supervisor)
        nets.wait(operator, lambda s: (s["training"].get("round") or 0) > before + 3)
        said = operator.command("status")["stations"][0]["terminals"][6]["waits"]
        assert "stays there" in said
        assert ("terminals 4" in said) == (kind == "masked")
        operator.command("stop")
        nets.wait(operator, nets.at_rest)
    assert_declared(folder, 1)


def test_noise_of_a_terminal_is_that_of_its_answer() -> None:
    """An order that comes again with another model gets the same update in the same noise; another update, another."""
    channel, words = NoisedSums(2.0**-20, 3, 1.0, 2.0), np.arange(21 + 32, dtype=np.uint64)
    orders = [WorkOrder(7, 0, model, 1.0, 5, Verdict(incarnation=2)) for model in (inside.SHARE, 2.0 * inside.SHARE)]
    one, same = (noise_for(words, order, channel, b"s" * 32) for order in orders)
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, noise_for(words + np.uint64(1), orders[0], channel, b"s" * 32))
    spread = one.view(np.int64) * channel.grid_step
    assert 0.0 < np.abs(spread).max() < 8.0 * channel.part
    probe = Probe(0, 1, inside.SHARE[None], np.ones((1, 1)), False, Verdict(), noise=3.0)
    assert not np.array_equal(noise_for(words[:1], probe, channel, b"s" * 32), one[:1])


def test_a_terminal_keeps_to_its_own_bound(tmp_path: Path) -> None:
    """Whatever its station says: nothing without noise, nothing beyond ε, no moments, no probe in the clear."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=learning("clear"))
    order = WorkOrder(1, 0, inside.SHARE, 1.0, 15, Verdict(0, 0.0, 0, 1))

    async def attempts() -> None:
        service = inside.make_terminal(folder, tmp_path / "state")
        service.link.uplink.hello()

        async def tell(**body: Any) -> None:
            await service.link.uplink.receive(wire.TerminalDown(**body).SerializeToString())

        await tell(welcome=wire.Welcome(job=inside.job(folder), epoch="e"))
        assert "a message without noise" in service.disclosure.refuses(order.local_steps)
        with pytest.raises(PeerError, match="single terminal are not sent"):
            await tell(ask_moments=wire.MomentsRequest())
        await tell(noising=codec.to_wire(Noising(1.0, 0.5, 1e-6)))
        assert "allows" in service.disclosure.refuses(order.local_steps)
        assert service.memory.site.used["privacy"] == 0.0
        with pytest.raises(PeerError, match="was agreed on"):
            await tell(noising=codec.to_wire(Noising(1.0, 5.0, 1e-6)))
        plain = Probe(0, 1, inside.SHARE[None], np.ones((1, 1)), False, Verdict(0, 0.0, 0, 1))
        with pytest.raises(PeerError, match="where updates are noised"):
            await tell(probe=codec.to_wire(plain))

    inside.run(attempts)


def test_test_rows_of_a_terminal_with_a_bound_are_not_told_under_masks_either(tmp_path: Path) -> None:
    """Also before noise was agreed on."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=learning("masked"))

    async def attempt() -> None:
        service = inside.make_terminal(folder, tmp_path / "state")
        service.link.uplink.hello()
        for body in (
            {"welcome": wire.Welcome(job=inside.job(folder), epoch="e")},
            {"trial": wire.Trial(model=codec.tensor(inside.SHARE), partners=wire.Partners(slot=1))},
        ):
            await service.link.uplink.receive(wire.TerminalDown(**body).SerializeToString())

    with pytest.raises(PeerError, match="test rows of a single terminal are not sent"):
        inside.run(attempt)


@pytest.mark.parametrize("how", ["damaged", "gone", "old"])
def test_a_terminal_that_does_not_know_what_it_told_tells_nothing_more(tmp_path: Path, how: str) -> None:
    """Its state is damaged, or deleted, or its station shows that it is an old copy: the bound is taken to be spent."""
    folder, state = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=learning("clear")), tmp_path / "state"
    service = inside.make_terminal(folder, state)
    service.memory.begin(inside.job(folder))
    service.memory.agree(Agreement(noising=Noising(1.0, 5.0, 1e-6)))
    service.memory.terminal.join()
    service.memory.save()
    service.link.account.note("up", "update", 0, 100)
    assert not service.disclosure.refuses(15)
    assert service.memory.file.fsync
    file = state / "terminal.state"
    if how == "old":
        again = inside.make_terminal(folder, state)
        again.memory.fall_back("the station knows incarnation 7", 7)
        again.memory.save()
        for each in (again, inside.make_terminal(folder, state)):
            assert "allows" in each.disclosure.refuses(15)
        return
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="to start an account without the earlier messages"):
        inside.make_terminal(folder, state)
    (state / "account.csv").unlink()
    file.unlink(missing_ok=True)
    inside.make_terminal(folder, state)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--scale", "standard"], "--scale unit"),
        (["--test-rows", "terminal"], "test_rows"),
        (["--set", "classes=0"], "grows without bound|no bound"),
        (["--precision", "float32"], "leave it out"),
        (["--certify-every", "5"], "--certify-every"),
    ],
)
def test_what_private_networks_cannot_do_is_refused(tmp_path: Path, words: list[str], reason: str) -> None:
    """With the way out, before anything is written."""
    init = ["network", "init", str(tmp_path / "net"), "--data", "synthetic", "--stations", "1", "--terminals", "4"]
    found = CliRunner().invoke(app, [*init, "--privacy", BOUND, *words])
    assert isinstance(found.exception, RHFedMTLError)
    assert any(each in str(found.exception) for each in reason.split("|"))
    assert not (tmp_path / "net" / "cloud").exists()
