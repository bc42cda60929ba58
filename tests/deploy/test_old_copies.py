"""Nodes whose state is put back from an old copy: what peers know tells, sums stay exact, and no certificate lies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.inside import (
    NUMBERS,
    Peer,
    attach,
    connect,
    make_cloud,
    make_station,
    make_terminal,
    run,
    settle,
    tell,
)
from tests.roles.world import World

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options
from rhfedmtl.deploy.cloud.remote_network import Standing
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.node.acceptor import NotReadyError
from rhfedmtl.deploy.node.config import Waits, read_station
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.station.service import StationService
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.roles.messages import Anchor, Verdict, WorkOrder
from rhfedmtl.roles.terminal import OldStateError
from rhfedmtl.training.config import RunConfig

OPTIONS = {"policy": "fixed", "local_steps": 10, "lambda1": 0.01, "lambda2": 0.01}
LEARNING = {"algorithm": "hfedmtl", "target_relative_gap": 0.0, "options": OPTIONS}


def reached(operator: Operator, number: int) -> None:
    """Wait until a round is over and certified."""
    nets.wait(operator, lambda s: (s["training"].get("certified_round") or 0) >= number)


def number_of(operator: Operator) -> int:
    """The present round."""
    return int(nets.wait(operator, lambda s: bool(s["training"].get("round")))["training"]["round"])


def put_back(supervisor: Supervisor, folder: Path, name: str, copy: Path) -> None:
    """Kill a node, and start it from a copy of its state."""

    def swap() -> None:
        shutil.rmtree(folder / name / "state")
        shutil.copytree(copy, folder / name / "state")

    nets.restart(supervisor, name, swap)


@pytest.mark.parametrize(
    ("rounds", "light"),
    [(6, False), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((25, False), (6, True)))],
)
def test_a_certificate_holds_whatever_is_put_back(tmp_path: Path, rounds: int, light: bool) -> None:
    """A station, then a terminal, goes so many rounds back: sums stay exact and the gap covers the true distance."""
    federation = nets.small(2, 2, 40)
    folder = nets.build(tmp_path / "net", federation, learning=LEARNING, light=light)
    best = RunConfig(options=Options.of(lambda1=0.01, lambda2=0.01), target_gap=1e-11).run(federation)
    assert best.certificate.gap <= 1e-11
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1e6"])
        for name in ("station-0", "terminal-1"):
            reached(operator, number_of(operator) + 2)
            shutil.copytree(folder / name / "state", tmp_path / name)
            reached(operator, number_of(operator) + rounds)
            put_back(supervisor, folder, name, tmp_path / name)
            reached(operator, number_of(operator) + 3)
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest)["training"]
        assert status["state"] == "ended", status
        operator.export(tmp_path / "out")
    assert nets.assert_invariant(folder, 2) == 4
    assert nets.logged(folder, "station-0", "begins anew")
    assert nets.logged(folder, "terminal-1", "state is old")
    certificate = TaskModels.load(tmp_path / "out" / "model.npz").certificate
    assert certificate is not None
    assert certificate.dual <= best.certificate.primal + 1e-12
    assert certificate.primal >= best.certificate.dual - 1e-12
    assert certificate.gap >= certificate.primal - best.certificate.primal - 1e-12


def test_a_cloud_that_is_put_back_trains_no_more(tmp_path: Path) -> None:
    """What was spent since the copy is nowhere: the training breaks, in one line that says what to do."""
    waits = Waits(patience=2.0, start=60.0, answer=10.0, again=1.0)
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40), learning=LEARNING, waits=waits)
    with nets.running(folder) as (supervisor, operator):
        operator.command("train", budget=["energy=1e6"])
        reached(operator, 2)
        shutil.copytree(folder / "cloud" / "state", tmp_path / "copy")
        reached(operator, number_of(operator) + 6)
        put_back(supervisor, folder, "cloud", tmp_path / "copy")
        error = nets.wait(operator, lambda s: s["training"]["state"] == "broken")["training"]["error"]
    assert "put back from an old copy" in error
    assert "rhfedmtl network reset" in error


# The same, step by step, in one process.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that nobody starts."""
    return nets.build(tmp_path_factory.mktemp("old") / "net", nets.small(2, 2, 40))


def test_a_terminal_tells_a_station_that_it_is_old(folder: Path, tmp_path: Path) -> None:
    """One that worked in a later round makes the station begin anew; all sessions end, so that all join again."""

    async def old() -> Any:
        service = make_station(folder, tmp_path)
        service.memory.from_disk = True
        memory, epoch = service.memory, service.memory.epoch
        other = await connect(service, folder, 0)
        with pytest.raises(NotReadyError, match="old copy"):
            await connect_knowing(service, folder, round=7)
        await settle()
        assert other.reason == "its station begins again"
        assert memory.epoch != epoch
        assert memory.station.anchor is not None
        return memory.station.members, np.abs(memory.station.U).max()

    assert run(old) == ({}, 0.0)


def test_a_terminal_cannot_make_its_station_begin_again_and_again(folder: Path, tmp_path: Path) -> None:
    """Who tells of rounds that never were is believed once, after a restart; then it is in quarantine, and stays so."""

    async def made_up() -> Any:
        service = make_station(folder, tmp_path)
        memory, epoch = service.memory, service.memory.epoch
        with pytest.raises(PeerError, match="there was none"):
            await connect_knowing(service, folder, round=10**9)
        await settle()
        assert memory.epoch == epoch
        assert "of round 1000000000" in memory.station.quarantined[1]
        assert list(memory.station.members) == [0]
        await service.members.membership.begin_again("the cloud says so")
        return [*memory.station.quarantined]

    assert run(made_up) == [1]


async def connect_knowing(service: Any, folder: Path, **hello: Any) -> None:
    """Terminal 1 greets with what it knows of the present epoch."""
    peer = Peer(TERMINAL_TO_STATION, folder, "terminal-1", epoch=service.memory.epoch, **hello)
    service.members.greet(peer, peer.hello)


def test_an_open_round_is_no_old_copy(folder: Path, tmp_path: Path) -> None:
    """A station that was killed in a round knows of it; a pending update of its own membership is no news either."""

    async def interrupted() -> str:
        service = make_station(folder, tmp_path)
        service.memory.save()
        service.memory.note_open(4, {1: 5}, {1: 5})
        again = make_station_again(folder, tmp_path)
        epoch = again.memory.epoch
        await connect_knowing(again, folder, round=4, pending_round=4, incarnation=1)
        with pytest.raises(NotReadyError):
            await connect_knowing(again, folder, round=4, pending_round=4, incarnation=2)
        return "same" if epoch == service.memory.epoch else "other"

    assert run(interrupted) == "same"


@pytest.mark.parametrize("old", [False, True])
def test_a_station_remembers_which_work_its_anchor_asks_for(folder: Path, tmp_path: Path, *, old: bool) -> None:
    """A file of protocol 3 has λ = ∞ for a gradient. A restarted station repeats orders only for the same work."""

    async def restarted() -> tuple[str, float, list[bool]]:
        memory = make_station(folder, tmp_path).memory
        memory.station.receive_anchor(Anchor(2, 0, np.ones((1, NUMBERS)), 0.3, work=GRADIENT))
        memory.save()
        memory.note_open(4, {1: 5}, {1: 5})
        if old:
            record = memory.record()
            record.anchor.ClearField("work")
            record.anchor.lam = np.inf
            memory._file.write(record.SerializeToString())
        again = make_station_again(folder, tmp_path).memory
        anchor = again.station.anchor
        same = [again.may_reopen(4, {1: 5})]
        again.station.anchor = replace(anchor, work=ASCENT)
        return anchor.work, anchor.lam, [*same, again.may_reopen(4, {1: 5})]

    assert run(restarted) == (GRADIENT, *((1.0, [False, False]) if old else (0.3, [True, False])))


def make_station_again(folder: Path, tmp_path: Path) -> Any:
    """The station of `make_station` after a restart."""
    config = read_station(folder / "station-0" / "station.toml")
    object.__setattr__(config.node, "state", str(tmp_path))
    return StationService(config, Log("test", "error"), Meters())


def test_the_cloud_tells_a_station_that_it_is_old(folder: Path, tmp_path: Path) -> None:
    """A lower round, or fewer changes of members, in the same epoch; another epoch begins anew by itself."""

    async def asked() -> list[str]:
        cloud = make_cloud(folder, tmp_path)
        cloud.trainer.network.announced = 9
        cloud.trainer.network._standing[0] = Standing("now", 8, 5)
        peer, found = attach(cloud, folder, 0), []
        for number, membership, epoch in ((8, 5, "now"), (9, 5, "now"), (2, 5, "now"), (8, 4, "now"), (2, 1, "new")):
            hello = wire.Hello(round=number, membership=membership, epoch=epoch)
            found.append(cloud.stations.greet(peer, hello).epoch)
        with pytest.raises(PeerError, match="has done round 10, the journal ends with round 9"):
            cloud.stations.greet(peer, wire.Hello(round=10, epoch="now"))
        with pytest.raises(CorruptError, match="network reset"):
            await cloud.ask_all({}, 1.0)
        return found

    assert run(asked) == ["", "", "now", "now", ""]


def test_a_station_that_hears_so_begins_anew(folder: Path, tmp_path: Path) -> None:
    """The cloud names the epoch that is over; the anchor that it sends counts."""

    async def told() -> tuple[bool, dict[int, Any]]:
        service = make_station(folder, tmp_path)
        epoch = service.memory.epoch
        service.link.hello()
        await tell(service, welcome=wire.Welcome(job=service.memory.job, allowed=[0, 1], epoch=epoch))
        return service.memory.epoch != epoch, service.memory.station.members

    assert run(told) == (True, {})


def test_a_terminal_that_left_hears_where_it_belongs(folder: Path, tmp_path: Path) -> None:
    """Put back from before a move it comes to its old station, which sends it on."""

    async def greeted() -> wire.Place:
        service = make_station(folder, tmp_path)
        service.memory.allowed = {1}
        service.memory.station.roster.forget(0)
        service.memory.leaving[0] = wire.Place(station=1, address="127.0.0.1:9")
        peer = await connect(service, folder, 0)
        welcome = peer.sent()[0].welcome
        terminal = make_terminal(folder, tmp_path / "terminal")
        terminal.link.uplink.hello()
        await terminal.link.uplink.receive(wire.TerminalDown(welcome=welcome).SerializeToString())
        return terminal.memory.place

    assert run(greeted) == wire.Place(station=1, address="127.0.0.1:9")


@pytest.fixture
def world() -> Iterator[World]:
    """Stations and terminals that have held a round."""
    made = World(DualMethod())
    for t in range(4):
        made.join(t, made.home[t] or 0)
    made.exchange(0, 0xFFF)
    yield made
    made.check()


def test_an_old_terminal_joins_again_with_its_old_duals(world: World) -> None:
    """It hears of an update that it has forgotten, and what it then brings replaces what the station holds."""
    terminal, station = world.terminals[0], world.stations[0]
    old = terminal.state
    for _ in range(3):
        start = len(world.log)
        world.open_round(0, [0, 1], 0, 4)
        world.exchange(start, 0xFFF)
        world.close_round(0)
        old = old if old.last_round else terminal.state
    terminal.restore(old)
    order = WorkOrder(9, 0, station.model, 1.0, 2, station.members[0].verdict(8))
    with pytest.raises(OldStateError, match="old copy"):
        terminal.work(order)
    terminal.fall_back(station.members[0].incarnation)
    station.roster.admit(terminal.join())
    assert np.abs(terminal.state.alpha).max() == np.abs(old.alpha).max()
    assert terminal.work(WorkOrder(10, 0, station.model, 1.0, 2, Verdict(0, 0.0, 9, terminal.incarnation))) is not None
