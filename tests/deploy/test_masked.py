"""Networks whose stations see sums alone: the numbers of one process, whoever is killed; and what nobody is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import inside, nets
from tests.deploy.liar import liar
from tests.deploy.test_network import TOLERANCE, assert_same, double, in_process
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.deploy.cloud.config import Learning
from rhfedmtl.deploy.node.credentials import Authority, Credentials, Identity, new_key
from rhfedmtl.deploy.node.enrolment import enrol
from rhfedmtl.deploy.node.state import StateFile
from rhfedmtl.deploy.terminal.account import read as read_account
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.roles.messages import Scaling, Verdict, WorkOrder
from rhfedmtl.roles.secure.masking import Masker

MASKED: dict[str, Any] = {"options": {"channel": "masked"}, "scale": "unit"}
KINDS = [
    ("standard-unit", 2),
    pytest.param("unit", 2, marks=pytest.mark.slow),
    pytest.param("standard-rms", 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("scale", "classes"), KINDS)
def test_a_masked_network_gives_the_numbers_of_one_process(
    tmp_path: Path, scale: str, classes: int, terminals: str
) -> None:
    """Models, certificate and ledger are those of a simulation, to the bit; nothing of one terminal was sent.

    The same for rows that are scaled by moments of all, and for a regression whose labels are centred.
    """
    federation = double(nets.small(2, 4, 40) if classes else nets.levelled(2, 4, 40))
    folder = nets.build(tmp_path / "net", federation, learning={**MASKED, "scale": scale})
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=300"])
        operator.export(tmp_path / "out")
        with pytest.raises(ConfigError, match="no terminal 99 was ever here"):
            operator.command("forget", terminal=99)
        with pytest.raises(ConfigError, match=r"counts together with all others of station 0.*: invite 3 new"):
            operator.command("forget", terminal=1)
    result = in_process(federation, "energy=300", options=Options(channel="masked"), scale=scale)
    assert_same(tmp_path / "out", result, TOLERANCE[terminals])
    assert nets.assert_invariant(folder, 2) == 8
    left = {line.kind for line in read_account(folder / "terminal-0" / "state" / "account.csv") if line.way == "up"}
    known = {"connection", "hello", "key", "join", "scaled", "deal", "masked", "opened"}
    assert left == (known if classes else known | {"centred"})
    for b in range(2):  # rule 6: a station has no share of one terminal, in its memory or on its disk
        assert not any(codec.array(member.share, "a share").any() for member in nets.station_file(folder, b).members)
    assert set(nets.terminal_file(folder, 0).group) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto"])
def test_methods_without_duals_are_masked_too(tmp_path: Path, name: str, terminals: str) -> None:
    """With the numbers of one process, to the bit; nobody leaves, as no sum would tell what stays."""
    federation, more = double(nets.small(2, 4, 40)), {"algorithm": name, "options": {"channel": "masked"}}
    folder = nets.build(tmp_path / "net", federation, learning={**more, "scale": "unit"})
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=200"])
        operator.export(tmp_path / "out")
        with pytest.raises(ConfigError, match="under masks no terminal leaves"):
            operator.command("leave", terminal=0)
    result = in_process(federation, "energy=200", algorithm=name, options=Options(channel="masked"), scale="unit")
    assert_same(tmp_path / "out", result, TOLERANCE[terminals])
    assert {"masked", "opened"} <= {line.kind for line in read_account(folder / "terminal-0" / "state" / "account.csv")}


@pytest.mark.slow
def test_test_rows_of_terminals_are_counted_in_one_sum(tmp_path: Path) -> None:
    """Confusion counts are added up under masks, over all: the metrics of the same rows at the station."""
    found = []
    for where in ("terminal", "station"):
        learning = {**MASKED, "test_rows": where}
        folder = nets.build(tmp_path / where, nets.small(1, 4, 40), learning=learning)
        with nets.running(folder) as (_, operator):
            found.append(nets.trained(operator, budget=["energy=100"]))
        left = {line.kind for line in read_account(folder / "terminal-0" / "state" / "account.csv") if line.way == "up"}
        assert "tally" not in left
    for name in ("accuracy", "balanced_accuracy"):
        assert found[0][name] == pytest.approx(found[1][name])


def rounds(status: dict[str, Any]) -> int:
    """Rounds so far."""
    return status["training"].get("round") or 0


PLACES = [
    ("terminal.send-masked-before",),
    ("terminal.send-masked-after", "terminal.send-deal-after"),  # whoever comes again makes all deal again
    ("terminal.send-opened-before",),
    ("terminal.send-opened-after",),
    ("station.send-question opened-before",),
    ("station.save-station.state-before",),
]


@pytest.mark.slow
@pytest.mark.usefixtures("terminals")
def test_whoever_is_killed_in_a_masked_round_leaves_the_sums_right(tmp_path: Path, places: Path) -> None:
    """At every step, of a terminal or of the station: rounds go on by the shares, or are void; U_b is exact."""
    slow = {"options": {"channel": "masked", "policy": "fixed", "local_steps": 1}, "algorithm": "hfedmtl"}
    folder = nets.build(tmp_path / "net", nets.small(1, 5, 2000), learning={**MASKED, **slow})
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=100000"])
        for armed in PLACES:
            for place in armed:
                (places / place).touch()
            nets.wait(operator, lambda _: not [*places.glob("*-before"), *places.glob("*-after")], supervisor.keep_up)
            before = rounds(operator.command("status"))
            nets.wait(operator, lambda s, k=before: rounds(s) > k + 2, supervisor.keep_up)  # type: ignore[misc]
        operator.command("stop")
        nets.wait(operator, nets.at_rest)
    assert nets.assert_invariant(folder, 1) == 5


@pytest.mark.slow
@pytest.mark.usefixtures("terminals")
def test_a_liar_in_a_masked_round_voids_it(tmp_path: Path) -> None:
    """Its station knows that somebody lied, and names the group; rounds count again once it has gone."""
    folder = nets.build(tmp_path / "net", nets.small(1, 5, 200), learning=MASKED)
    with nets.running(folder) as (supervisor, operator):
        with liar(folder, supervisor, "terminal-2", "update × 999"):
            operator.command("train", budget=["energy=2000"])
            nets.wait(operator, lambda _: bool(nets.logged(folder, "station-0", "round void")))
            reason = nets.logged(folder, "station-0", "round void")[0]["reason"]
            assert "terminals 0, 1, 2, 3, 4 together told an update of norm" in reason
            assert not nets.station_file(folder, 0).quarantined
        nets.wait(operator, nets.at_rest, supervisor.keep_up)
    assert np.any(codec.array(nets.station_file(folder, 0).U, "U"))
    assert nets.assert_invariant(folder, 1) == 5


@pytest.mark.slow
@pytest.mark.usefixtures("terminals")
def test_a_terminal_that_lost_its_part_of_a_sum_lets_the_station_begin_anew(tmp_path: Path) -> None:
    """Nobody knows what to take out: all come with nothing, and the sum is right again."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=MASKED)
    with nets.running(folder) as (supervisor, operator):
        nets.trained(operator, budget=["energy=150"])
        epoch = nets.station_file(folder, 0).epoch
        supervisor.kill("terminal-1")
        supervisor.processes["terminal-1"].join()
        StateFile(folder / "terminal-1" / "state" / "terminal.state", fsync=False).path.unlink()
        nets.wait(operator, lambda _: nets.station_file(folder, 0).epoch != epoch, supervisor.keep_up)
        nets.wait(operator, nets.all_connected)
        nets.trained(operator, budget=["energy=300"])
    assert nets.logged(folder, "station-0", "begins anew")
    assert nets.assert_invariant(folder, 1) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("terminals")
def test_newcomers_count_from_the_third_on(tmp_path: Path) -> None:
    """What they tell is told together with two others, or not at all; certificates go on with the third."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=MASKED)
    rows = np.load(folder / "terminal-0" / "data.npz")
    with nets.running(folder) as (supervisor, operator):
        first = nets.trained(operator, budget=["energy=300"])
        for count in (5, 6, 7):
            invited = operator.command("invite", station=0)
            np.savez(tmp_path / "rows.npz", X=rows["X"][:5], y=rows["y"][:5])
            enrol(invited["token"], folder / f"terminal-{invited['number']}", tmp_path / "rows.npz")
            nets.owner_allows(folder / f"terminal-{invited['number']}")
            supervisor.add(folder / f"terminal-{invited['number']}")
            nets.wait(operator, lambda s, n=count: len(s["stations"][0]["terminals"]) == n and nets.all_connected(s))  # type: ignore[misc]
        second = nets.trained(operator, budget=["energy=900"])
    assert second["certified_round"] > first["certified_round"]
    assert set(nets.terminal_file(folder, 0).group) == {0, 1, 2, 3}
    assert set(nets.terminal_file(folder, 4).group) == {4, 5, 6}
    assert codec.array(nets.terminal_file(folder, 4).alpha, "duals").any()


def test_a_terminal_tells_nothing_alone(tmp_path: Path) -> None:
    """Whatever its station asks: an order without others, moments, labels, test rows, its share."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=MASKED)
    order = WorkOrder(1, 0, inside.SHARE, 1.0, 5, Verdict(0, 0.0, 0, 1))

    async def attempts() -> None:
        service = inside.make_terminal(folder, tmp_path / "state")
        service.link.uplink.hello()
        job = inside.job(folder)

        async def tell(**body: Any) -> None:
            await service.link.uplink.receive(wire.TerminalDown(**body).SerializeToString())

        await tell(welcome=wire.Welcome(job=job, epoch="e"))
        nothing = wire.Nothing()
        for body in (
            {"order": codec.to_wire(order)},
            {"probe": wire.Probe(models=[codec.tensor(inside.SHARE)], points=codec.tensor([[1.0]]))},
            {"ask_moments": wire.MomentsRequest()},
            {"ask_labels": nothing},
            {"ask_rows": wire.RowProbe(about=codec.tensor([]))},
            {"trial": wire.Trial(model=codec.tensor(inside.SHARE))},
            {"release": wire.Release()},
        ):
            with pytest.raises(PeerError, match="masked"):
                await tell(**body)

    inside.run(attempts)


@pytest.mark.parametrize(
    ("options", "sums"), [({}, "in the clear"), ({"channel": "masked", "least_summed": 2}, "over 2 terminals")]
)
def test_a_terminal_works_only_under_the_masks_that_it_asks_for(tmp_path: Path, options: Any, sums: str) -> None:
    """A station cannot talk a terminal into a job in the clear, or over fewer: it declines."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=MASKED)
    job = Learning(**{"features": 20, "tasks": ("a",), "classes": ("n", "p"), **MASKED, "options": options}).job()
    service = inside.make_terminal(folder, tmp_path / "state")
    service.memory.begin(job)
    assert service.disclosure.refuses_job(job) == f"sums {sums}, where sums over 3 terminals, masked, are allowed"
    service.memory.begin(inside.job(folder))
    assert not service.disclosure.refuses_job(inside.job(folder))


def test_a_terminal_remembers_with_whom_it_counts(tmp_path: Path) -> None:
    """Also one that was killed, and in every stream."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=MASKED)
    service = inside.make_terminal(folder, tmp_path / "state")
    service.memory.begin(inside.job(folder))
    three = frozenset({0, 1, 2})
    assert service.memory.masks is not None
    service.memory.masks.group = three
    service.memory.save()
    again = inside.make_terminal(folder, tmp_path / "state")
    assert again.memory.masks is not None
    assert again.memory.masks.group == three
    assert set(again.memory.masks.begin()["key"].group) == three
    assert again.memory.masks._masker.group == three


def test_masks_rest_on_all_that_was_agreed_on(tmp_path: Path, monkeypatch: Any) -> None:
    """A station that has one terminal scale its rows otherwise than the rest of its group gets no sum."""
    folder = nets.build(tmp_path / "net", nets.small(1, 4, 40), learning=MASKED)
    service, told = inside.make_terminal(folder, tmp_path / "state"), []
    service.memory.begin(inside.job(folder))
    monkeypatch.setattr(service.memory.masks, "mask", lambda *given: told.append(given[-1]))
    order = WorkOrder(1, 0, inside.SHARE, 1.0, 5, Verdict(0, 0.0, 0, 1))
    for scale in (1.0, 1.0, 1e30):
        service.memory.agreed.scaling = Scaling(np.zeros(20), np.full(20, scale), True)
        service.answers.mask(order, np.zeros(3), wire.Partners())
    assert told[0] == told[1] != told[2]


def test_keys_are_proved_by_certificates_of_the_network(tmp_path: Path) -> None:
    """A key of another, of another network, of a station, or without a signature is refused."""
    folder = nets.build(tmp_path / "net", nets.small(1, 3, 30), learning=MASKED)
    one, other, station = (Credentials.of(folder / name) for name in ("terminal-1", "terminal-2", "station-0"))
    who, text = Identity("test-net", "terminal", 1), Masker(1).key.public
    proof = one.sign(text)
    other.check_signed(who, text, proof)
    authority, _ = Authority.make("test-net")
    key, secret = new_key()
    false = Credentials.of(tmp_path / "false")
    false.write(secret, authority.issue(who, key.public_key()), authority.certificate)
    for bad in (other.sign(text), station.sign(text), false.sign(text), proof[:-1], proof[:40], b"", one.sign(b"else")):
        with pytest.raises(PeerError, match="a proof of terminal 1"):
            other.check_signed(who, text, bad)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--precision", "float32"], "give one of them"),
        (["--terminals", "2"], "sums that hide them need 3 at least"),
    ],
)
def test_what_masked_networks_cannot_do_is_refused(tmp_path: Path, words: list[str], reason: str) -> None:
    """With the way out, before anything is written."""
    init = ["network", "init", str(tmp_path / "net"), "--data", "synthetic", "--stations", "1", "--terminals", "4"]
    found = CliRunner().invoke(app, [*init, "--masked", *words])
    assert isinstance(found.exception, RHFedMTLError)
    assert reason in str(found.exception)
    assert not (tmp_path / "net" / "cloud").exists()


def test_the_commands_make_a_masked_network(tmp_path: Path) -> None:
    """Rows are scaled as elsewhere, by sums alone, and terminals insist on masks."""
    init = ["network", "init", str(tmp_path / "net"), "--data", "synthetic", "--stations", "1", "--terminals", "4"]
    found = CliRunner().invoke(app, [*init, "--masked", "--json"])
    assert json.loads(found.output)["terminals"] == 4
    assert 'scale = "unit"' not in (tmp_path / "net" / "cloud" / "cloud.toml").read_text()
    assert "least_summed = 3" in (tmp_path / "net" / "terminal-0" / "terminal.toml").read_text()
