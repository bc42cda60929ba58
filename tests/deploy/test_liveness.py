"""Nobody waits for an answer that cannot come any more, and no round is paid for that nobody can work in."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.inside import (
    NEVER_S,
    NUMBERS,
    SHARE,
    Peer,
    attach,
    connect,
    hear,
    job,
    make_cloud,
    make_station,
    make_terminal,
    requests,
    run,
    say,
    settle,
    tell,
    welcome,
)
from tests.deploy.test_distrust import roster

from rhfedmtl.data.scaling import Moments
from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.cloud.journal import TrainingJournal
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.rosters import ROSTERS_AT_ONCE
from rhfedmtl.deploy.cloud.service import CloudService
from rhfedmtl.deploy.cloud.trainer import Training
from rhfedmtl.deploy.node import serve as serving
from rhfedmtl.deploy.node.acceptor import NotReadyError
from rhfedmtl.deploy.node.config import Limits, read_station
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD
from rhfedmtl.deploy.node.job import load_rows
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import Journal, UnwrittenError
from rhfedmtl.deploy.station.memory import NOWHERE
from rhfedmtl.deploy.station.questions import MOST_SENT
from rhfedmtl.deploy.station.service import StationService
from rhfedmtl.deploy.terminal.program import main
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import Anchor, Join, Scaling, Update, Verdict, WorkOrder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of which nothing runs."""
    return nets.build(tmp_path_factory.mktemp("liveness") / "net", nets.small(2, 2, 40))


def probes() -> dict[int, wire.TerminalDown]:
    """A question to both terminals."""
    return {t: wire.TerminalDown(probe=wire.Probe(terminal=t, number=1)) for t in (0, 1)}


def sums(t: int) -> wire.Sums:
    """The answer to it."""
    return wire.Sums(
        terminal=t, number=1, losses=codec.tensor(np.ones(1)), dual=codec.tensor([1.0]), gradient=codec.tensor([])
    )


# A station and its terminals.


def test_a_terminal_on_its_way_out_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    """One that leaves, or comes anew, while it is asked something will not answer that: the others are enough."""
    goodbyes: list[dict[str, Any]] = [
        {"leave": wire.Leave(terminal=1, incarnation=1, share=codec.tensor(SHARE))},
        {"join": wire.Join(terminal=1, incarnation=2, n_samples=15, share=codec.tensor(SHARE))},
    ]

    async def body(goodbye: dict[str, Any]) -> list[int]:
        service = make_station(folder, tmp_path / "asked" / next(iter(goodbye)))
        one, other = [await connect(service, folder, t) for t in (0, 1)]
        asking = asyncio.create_task(service.members.questions.ask("sums", probes(), NEVER_S))
        await settle()
        await hear(service, one, sums=sums(0))
        assert not asking.done()
        await hear(service, other, **goodbye)
        assert asking.done()
        assert set(service.members.attendance.present()) <= {0, 1}
        return sorted(asking.result().arrived)

    async def before(goodbye: dict[str, Any]) -> list[int]:
        """It says so just before, while the station has its turn for what it is about to ask."""
        service = make_station(folder, tmp_path / "before" / next(iter(goodbye)))
        one, other = [await connect(service, folder, t) for t in (0, 1)]
        async with service.memory.turn:
            await hear(service, other, **goodbye)
            asking = asyncio.create_task(service.members.questions.ask("sums", probes(), NEVER_S))
            await settle()
            assert not any(message.HasField("probe") for message in other.sent())
            await hear(service, one, sums=sums(0))
            assert asking.done()
        return sorted(asking.result().arrived)

    for goodbye in goodbyes:
        for way in (body, before):
            assert run(lambda goodbye=goodbye, way=way: way(goodbye)) == [0]  # type: ignore[misc]


def test_a_terminal_that_was_asked_often_enough_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    """A question goes out so often at most; one whose link breaks each time cannot answer it, though it is there."""

    async def body() -> tuple[int, list[int]]:
        service = make_station(folder, tmp_path)
        one, other = [await connect(service, folder, t) for t in (0, 1)]
        asking = asyncio.create_task(service.members.questions.ask("sums", probes(), NEVER_S))
        await settle()
        await hear(service, one, sums=sums(0))
        asked = sum(message.HasField("probe") for message in other.sent())
        for _ in range(MOST_SENT):
            assert not asking.done()
            other = await connect(service, folder, 1)
            asked += sum(message.HasField("probe") for message in other.sent())
        assert asking.done()
        return asked, service.members.attendance.present()

    assert run(body) == (MOST_SENT, [0, 1])


def test_a_terminal_that_is_not_let_in_is_not_waited_for(tmp_path: Path) -> None:
    """One that misbehaves is kept out for a while: neither the present question nor the next round waits for it."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40), limits=Limits(quarantine=NEVER_S))

    async def body() -> list[int]:
        service = make_station(folder, tmp_path / "state")
        one, other = [await connect(service, folder, t) for t in (0, 1)]
        members = service.members
        asking = asyncio.create_task(members.questions.ask("sums", probes(), NEVER_S))
        await settle()
        await hear(service, one, sums=sums(0))
        with pytest.raises(PeerError):
            await hear(service, other, sums=sums(0))
        members.attendance.acceptor.bar(1)
        del members.attendance.acceptor.sessions[1]
        members.on_gone(other)
        await settle()
        assert asking.done()
        gathering = asyncio.create_task(members.attendance.gather([0, 1]))
        await settle()
        return gathering.result()

    assert run(body) == [0]


def test_a_forgotten_terminal_comes_back_with_what_it_knows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out while it was silent, a terminal with an update pending is told so, and joins again with its duals."""

    async def body() -> None:
        service = make_station(folder, tmp_path / "station")
        terminal, said = make_terminal(folder, tmp_path / "terminal"), []
        monkeypatch.setattr(terminal.link, "send", lambda **body: said.append(body))
        role, memory = service.memory.station, service.memory
        role.roster.forget(0)

        async def greet() -> None:
            greeting = wire.TerminalUp.FromString(terminal.link.uplink.hello()).hello
            peer = await connect(service, folder, 0, incarnation=greeting.incarnation)
            for message in peer.sent():
                await terminal.link.uplink.receive(message.SerializeToString())
            for body in said:
                await hear(service, peer, **body)
            said.clear()

        await greet()
        first = role.members[0].incarnation
        orders = role.open_round(1, {0: 5})
        await terminal.link.uplink.receive(wire.TerminalDown(order=codec.to_wire(orders[0])).SerializeToString())
        assert role.receive(codec.from_wire(Update, said.pop()["update"]))
        role.close_round()
        share = role.members[0].share
        await service.members.questions.ask("sums", {0: probes()[0]}, 0.0)  # it owes an answer
        service.members.membership.forget(0)
        assert service.members.attendance.acceptor.sessions[0].reason  # it is cut off, so that it notices
        assert terminal.memory.terminal.pending is not None
        await greet()
        assert role.members[0].incarnation == first + 1
        np.testing.assert_allclose(role.members[0].share, share, rtol=1e-12)
        assert np.abs(share).max() > 0.0
        assert 0 in service.members.attendance.present()
        assert memory.leaving == {}

    run(body)


def test_a_terminal_that_an_operator_has_forgotten_is_told_so(folder: Path, tmp_path: Path) -> None:
    """Taken out while it runs, it hears that it is no member any more: it has not misbehaved, and is not barred."""

    async def body() -> None:
        service = make_station(folder, tmp_path)
        first = await connect(service, folder, 0)
        await service.heed_access(wire.Access(allowed=[1]))
        nowhere = wire.Place(station=NOWHERE)
        for wish in (wire.Transfer(terminal=0, forget=True), wire.Transfer(terminal=0, destination=nowhere)):
            assert not (await service.requests.answer(wire.Request(transfer=wish))).trouble
        assert "forgotten" in first.reason
        with pytest.raises(PeerError, match="is no member of station 0, or none any more: it was forgotten"):
            await connect(service, folder, 0)
        service.memory.allowed.add(0)
        del service.members.attendance.acceptor.sessions[0]
        late = await connect(service, folder, 0)
        service.memory.allowed.remove(0)  # it has said that it wants to join before it could hear of that
        await hear(service, late, join=codec.to_wire(Join(0, 2, 15, SHARE)))
        assert "none any more" in late.reason
        assert not service.members.attendance.acceptor.bars(0)

    run(body)


def test_a_terminal_that_moved_and_comes_back_is_told_where_to(folder: Path, tmp_path: Path) -> None:
    """It was killed before it wrote its new station down: the old one lets it in to tell it."""

    async def body() -> None:
        service = make_station(folder, tmp_path)
        await service.heed_access(wire.Access(allowed=[1]))
        await service.requests.answer(wire.Request(transfer=wire.Transfer(terminal=0, forget=True)))
        with pytest.raises(PeerError, match="is no member of station 0"):
            await connect(service, folder, 0)
        wish = wire.Transfer(terminal=0, destination=wire.Place(station=1, address="127.0.0.1:1"))
        assert not (await service.requests.answer(wire.Request(transfer=wish))).trouble
        assert (await connect(service, folder, 0)).number == 0

    run(body)


def test_a_terminal_is_forgotten_by_when_it_was_heard(folder: Path, tmp_path: Path) -> None:
    """One that is connected and owes an answer is silent since it last spoke, and not since the station began."""

    async def body() -> None:
        service = make_station(folder, tmp_path)
        peer = await connect(service, folder, 0)
        await service.members.questions.ask("sums", {0: probes()[0]}, 0.0)
        assert service.members.attendance.long_silent(1000.0) == [1]
        peer.last_heard -= 2000.0
        assert service.members.attendance.long_silent(1000.0) == [0, 1]

    run(body)


def test_who_is_about_to_join_hears_of_the_scaling(folder: Path, tmp_path: Path) -> None:
    """A terminal that was greeted before there was a scaling, and joins after, would else learn from raw rows."""

    async def body() -> list[str]:
        service = make_station(folder, tmp_path)
        service.memory.station.roster.forget(1)
        here, joining = [await connect(service, folder, t) for t in (0, 1)]
        joining.sent()
        scaling = codec.to_wire(Scaling(np.zeros(NUMBERS - 1), np.ones(NUMBERS - 1), True))
        scaling_up = asyncio.create_task(service.requests.answer(wire.Request(scale=scaling)))
        await settle()
        await hear(service, here, scaled=wire.Nothing())
        assert scaling_up.result().HasField("done")
        return [str(message.WhichOneof("body")) for message in joining.sent()]

    assert run(body) == ["scaling"]


def test_a_terminal_that_learned_from_raw_rows_starts_anew(folder: Path, tmp_path: Path) -> None:
    """A scaling that comes too late ends neither the terminal nor its link: it begins at zero, with scaled rows."""

    async def body() -> None:
        terminal = make_terminal(folder, tmp_path)
        memory = terminal.memory
        memory.begin(job(folder))
        memory.terminal.join()
        assert memory.terminal.work(WorkOrder(1, 0, np.zeros((1, NUMBERS)), 0.1, 5, Verdict(0, 0.0, 0, 1))) is not None
        scaling = Scaling(np.zeros(NUMBERS - 1), np.full(NUMBERS - 1, 2.0), True)
        greeting = wire.Welcome(job=job(folder), scaling=codec.to_wire(scaling))
        terminal.link.uplink.hello()
        await terminal.link.uplink.receive(wire.TerminalDown(welcome=greeting).SerializeToString())
        role = memory.terminal
        assert (role.incarnation, role.pending, role.last_round) == (2, None, 0)
        rows = load_rows(folder / "terminal-0" / "data.npz", NUMBERS - 1, tuple(job(folder).classes)).X
        np.testing.assert_array_equal(role.moments().mean, Moments.of(scaling.scaler.transform(rows)).mean)

    run(body)


def test_a_station_that_awaits_its_terminals_hears_that_one_will_not_come(folder: Path, tmp_path: Path) -> None:
    """A station that lost its memory goes on as soon as the cloud says that the missing one belongs to it no more."""

    async def body() -> None:
        service = make_station(folder, tmp_path, answer=NEVER_S)
        await welcome(service, folder)
        members, memory = service.members, service.memory
        memory.station.roster.forget(1)
        members.membership.begin()
        waiting = asyncio.create_task(members.membership.assemble())
        await settle()
        assert not waiting.done()
        await tell(service, access=wire.Access(allowed=[0]))
        await settle()
        assert waiting.done()

    run(body)


# A station and the cloud.


def test_a_round_without_terminals_is_not_held(folder: Path, tmp_path: Path) -> None:
    """A station whose terminals are all away, or that has no anchor, says that it takes no part; nothing is opened."""

    async def body() -> None:
        service = make_station(folder, tmp_path)
        asked = wire.RoundRequest(round=1, terminals=[0, 1], local_steps=[5, 5], deadline=NEVER_S)
        answer = await service.requests.answer(wire.Request(id=1, round=asked))
        assert answer.away
        assert "none of the terminals" in answer.trouble
        await connect(service, folder, 0)
        service.memory.station.anchor = None
        answer = await service.requests.answer(wire.Request(id=2, round=asked))
        assert answer.away
        assert "no anchor" in answer.trouble
        assert service.memory.station.round == 0
        assert not (tmp_path / "round.state").exists()
        # A round for others than those who are here is another matter: it is over at once, and the cloud goes on.
        await welcome(service, folder, anchor=anchor())
        others = wire.RoundRequest(round=1, terminals=[1], local_steps=[5], deadline=NEVER_S)
        answer = await service.requests.answer(wire.Request(id=3, round=others))
        assert answer.round.round == 1 == service.memory.station.round

    run(body)


def test_a_station_that_cannot_write_ends(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told of what is not written down: no order goes out, and no answer; the station begins anew."""

    def full(*_: Any) -> None:
        raise OSError(28, "no space left")

    async def body() -> list[str]:
        service = make_station(folder, tmp_path)
        peer, told = await connect(service, folder, 0), []
        peer.sent()
        monkeypatch.setattr(service.memory, "note_open", full)
        monkeypatch.setattr(service.link, "send", lambda **body: told.append(body))
        await welcome(service, folder)
        await tell(service, request=wire.Request(round=wire.RoundRequest(round=1, terminals=[0], local_steps=[5])))
        work = asyncio.create_task(service.requests.work())
        await settle()
        assert isinstance(work.exception(), OSError)
        assert told == []
        return [str(message.WhichOneof("body")) for message in peer.sent()]

    assert run(body) == []


def test_a_full_disk_is_no_trouble_of_the_link(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that cannot write down what it hears ends with a reason that says so, and with 75: it is started again."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left")

    async def body() -> None:
        service = make_station(folder, tmp_path)
        await welcome(service, folder)
        monkeypatch.setattr(service.memory, "save", full)
        with pytest.raises(UnwrittenError, match="no space left; make room"):
            await tell(service, access=wire.Access(allowed=[0]))

    run(body)
    monkeypatch.setattr(serving, "_serve", full)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(folder / "terminal-0")])
    assert ended.value.code == UnwrittenError.status == 75
    assert "make room" in capsys.readouterr().err


def anchor() -> wire.Anchor:
    """Of the second server iteration."""
    return codec.to_wire(Anchor(2, 0, np.ones((1, NUMBERS)), 0.1))


def test_a_station_that_lost_its_memory_gets_the_anchor_again(folder: Path, tmp_path: Path) -> None:
    """The cloud's greeting brings the present anchor: rounds until the next server iteration are not lost."""

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path / "cloud")
        cloud.trainer.network.anchors = {0: codec.from_wire(Anchor, anchor())}
        greeting = cloud.stations.greet(Peer(STATION_TO_CLOUD, folder, "station-0"), wire.Hello())
        config = read_station(folder / "station-0" / "station.toml")
        object.__setattr__(config.node, "state", str(tmp_path / "station"))
        service = StationService(config, Log("test", "error"), Meters())
        service.link.hello()
        await tell(service, welcome=greeting)
        assert service.memory.station.anchor is not None
        assert service.memory.station.anchor.cloud_round == 2

    run(body)


def test_a_request_that_waits_is_not_done_twice(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests came since, one that is sent again while it waits is known."""

    async def body() -> list[int]:
        service, told = make_station(folder, tmp_path), []
        monkeypatch.setattr(
            service.link, "send", lambda **body: told.extend(a.id for k, a in body.items() if k == "answer")
        )
        await welcome(service, folder)
        for i in [*range(60), 0]:
            await tell(service, request=wire.Request(id=i, roster=wire.Nothing()))
        work = asyncio.create_task(service.requests.work())
        await settle()
        work.cancel()
        return told

    assert run(body) == list(range(60))


def test_a_station_tells_its_members_before_it_says_that_one_is_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a training that follows at once takes the old members, and a certificate for them, for the present ones."""

    async def body() -> list[str]:
        service, told = make_station(folder, tmp_path), []
        monkeypatch.setattr(service.link, "send", lambda **body: told.extend(body) is None)
        await welcome(service, folder)
        told.clear()
        await tell(service, request=wire.Request(id=1, transfer=wire.Transfer(terminal=0, forget=True)))
        work = asyncio.create_task(service.requests.work())
        await settle()
        work.cancel()
        return told

    assert run(body) == ["outlook", "answer"]


def test_moving_many_terminals_does_not_cut_their_station_off(folder: Path, tmp_path: Path) -> None:
    """A station is asked to let go of some at once and of the others when it has answered, of none again at once."""
    n = 200

    async def body() -> list[int]:
        cloud = make_cloud(folder, tmp_path)
        cloud.registry.station |= dict.fromkeys(range(n), 1)
        session, asked = attach(cloud, folder, 0), []
        outlook = wire.Outlook(**roster(*((t, 5) for t in range(n))))
        while len(asked) < n:
            await say(cloud, session, outlook=outlook)
            now = requests(session)
            assert 0 < len(now) <= ROSTERS_AT_ONCE
            assert session.reason == ""
            asked += [request.transfer.terminal for request in now]
            for request in now:
                await say(cloud, session, answer=wire.Answer(id=request.id, done=wire.Nothing()))
        await say(cloud, session, outlook=outlook)
        assert requests(session) == []
        return asked

    assert run(body) == list(range(n))


def test_a_terminal_can_be_moved_back_at_once(folder: Path, tmp_path: Path) -> None:
    """A station that has let a terminal go is asked anew when it has it again, or when it is to go elsewhere."""

    async def body() -> list[tuple[int, int]]:
        cloud = make_cloud(folder, tmp_path)
        sessions, asked = [attach(cloud, folder, b) for b in (0, 1)], []

        async def seen(b: int, *members: int) -> None:
            await say(cloud, sessions[b], outlook=wire.Outlook(**roster(*((t, 5) for t in members))))
            for request in requests(sessions[b]):
                if request.HasField("transfer"):
                    asked.append((b, request.transfer.destination.station))
                    await say(cloud, sessions[b], answer=wire.Answer(id=request.id, done=wire.Nothing()))

        for b, other in ((0, 1), (1, 0), (0, 1)):
            await seen(b, 0, 1) if b == 0 else await seen(b, 0, 2, 3)
            await cloud.commands.run("move", terminal=0, station=other)
            await seen(b, 0, 1) if b == 0 else await seen(b, 0, 2, 3)
            await seen(b, 1) if b == 0 else await seen(b, 2, 3)
        return asked

    assert run(body) == [(0, 1), (1, 0), (0, 1)]


@pytest.mark.parametrize("where", ["trail", "registry"])
def test_a_full_disk_refuses_a_move_in_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The operator reads which file could not be written, and the remedy; the terminal stays at its station."""

    class Context:
        async def read(self) -> bytes:
            arguments = json.dumps({"terminal": 0, "station": 1})
            return wire.Command(name="move", arguments=arguments).SerializeToString()

        def peer(self) -> str:
            return "ipv4:127.0.0.1:5"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/net/state/file")

    async def body() -> str:
        cloud = make_cloud(folder, tmp_path)
        session = attach(cloud, folder, 0)
        await say(cloud, session, outlook=wire.Outlook(**roster((0, 5), (1, 5))))
        api = cloud.operator_api
        monkeypatch.setattr(api, "check_operator", lambda _: "operator")
        if where == "trail":
            monkeypatch.setattr(type(api.trail), "add", full)
        else:
            monkeypatch.setattr(cloud.registry.file, "write", full)
        before = dict(cloud.registry.station)
        reply = wire.Reply.FromString(await api.command(None, Context()))
        assert cloud.registry.station == before
        return reply.trouble

    trouble = run(body)
    assert "the cloud cannot use /net/state/file: No space left on device" in trouble
    assert "give the command again" in trouble
    assert "Errno" not in trouble


def test_who_is_being_moved_can_still_come_back(tmp_path: Path) -> None:
    """A station that loses its memory takes in again whom it was to let go, so that it can; until it has arrived."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))
    config = read_cloud(folder / "cloud" / "cloud.toml")
    registry = NodeRegistry.open(config)
    registry.place(1, 1)
    again = NodeRegistry.open(config)
    assert [again.allowed(b) for b in (0, 1)] == [[0, 1], [1, 2, 3]]
    assert [again.homes(b) for b in (0, 1)] == [[0], [1, 2, 3]]
    assert not again.arrived(0, [0, 1])
    assert again.arrived(1, [1, 2, 3])
    assert [NodeRegistry.open(config).allowed(b) for b in (0, 1)] == [[0], [1, 2, 3]]


def test_an_invitation_that_nobody_took_up_holds_up_no_training(tmp_path: Path) -> None:
    """A training waits for terminals that have credentials, and not for one that may never come for them."""
    config = read_cloud(nets.build(tmp_path / "net", nets.small(2, 2, 40)) / "cloud" / "cloud.toml")
    secret, number = NodeRegistry.open(config).invite("terminal", None, 1)
    registry = NodeRegistry.open(config)
    assert registry.allowed(1) == [2, 3, number]
    assert registry.expected(1) == {2, 3}
    registry.redeem(secret, "abc1")
    assert NodeRegistry.open(config).expected(1) == {2, 3, number}


def test_a_stop_that_follows_its_order_at_once_counts(tmp_path: Path) -> None:
    """An operator who ends a training before the cloud has begun with it has ended it."""

    async def body() -> None:
        journal = TrainingJournal(tmp_path / "journal", None, asyncio.get_running_loop(), fsync=False)  # type: ignore[arg-type]
        journal.order(json.dumps({"budget": None}))
        journal.stop()
        journal.next_order()
        assert journal.stopping
        assert journal.stopped()
        journal.order("{}")
        journal.next_order()
        assert not journal.stopped()

    run(body)


async def waiting(cloud: CloudService) -> None:
    """Let a cloud begin a training, or take up one, and come to where it waits for stations: none is there."""
    if not cloud.journal.replaying:
        await cloud.commands.run("train", budget=["energy=600"])
    cloud.trainer.start()
    while cloud.stations.awaited is None and not cloud.stations.requests.pending[0]:
        await asyncio.sleep(0.01)


async def ended(cloud: CloudService) -> list[str]:
    """End a cloud; what kinds of entries its journal has."""
    cloud.journal.close()
    assert await asyncio.to_thread(cloud.trainer.join, nets.PATIENCE_S)
    cloud.journal.finish()
    kept = Journal(cloud.config.state / "journal", fsync=False)
    kinds = [wire.Entry.FromString(data).kind for data in kept.entries()]
    kept.close()
    return kinds


def test_a_stop_ends_a_training_that_waits_before_its_first_round(folder: Path, tmp_path: Path) -> None:
    """It is over as stopped, for a cloud that comes back too, and another can follow."""

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path)
        await waiting(cloud)
        await cloud.commands.run("stop")
        while cloud.trainer.state is Training.RUNNING and not cloud.stations.requests.pending[0]:
            await asyncio.sleep(0.01)
        assert cloud.trainer.state is Training.STOPPED
        assert "ended it before its first round" in cloud.trainer.status["error"]
        assert await ended(cloud) == ["train", "ready", "stop", "end"]
        cloud = make_cloud(folder, tmp_path)
        cloud.trainer.start()
        while cloud.trainer.state is Training.RECOVERING:
            await asyncio.sleep(0.01)
        assert cloud.trainer.state is Training.STOPPED
        await cloud.commands.run("train", budget=["energy=600"])
        assert cloud.trainer.state is Training.RUNNING
        await ended(cloud)

    run(body)


def test_a_cloud_that_comes_back_names_whom_it_waits_for(folder: Path, tmp_path: Path) -> None:
    """Where it was ended while it waited for all to be there, and where it was killed just after."""

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path)
        await waiting(cloud)
        assert await ended(cloud) == ["train"]
        for more in ((), ("ready",)):
            journal = Journal(tmp_path / "journal", fsync=False)
            for kind in more:
                journal.append(wire.Entry(index=1, kind=kind, text="[]").SerializeToString())
            journal.close()
            cloud = make_cloud(folder, tmp_path)
            await waiting(cloud)
            training = (await cloud.commands.run("status"))["training"]
            assert training["state"] == "running"
            assert training["waits_for"] == [f"station {b} (not connected)" for b in (0, 1)]
            await ended(cloud)

    run(body)


def test_a_cloud_waits_while_nobody_can_work(folder: Path, tmp_path: Path) -> None:
    """Rounds for which no station has a terminal are asked for again, until one has or an operator ends it."""

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path)
        sessions = [attach(cloud, folder, b) for b in (0, 1)]
        wanted = {b: wire.Request(round=wire.RoundRequest(round=1)) for b in (0, 1)}
        asking = asyncio.create_task(cloud.ask_all(wanted, NEVER_S))

        async def answer(*bodies: dict[str, Any]) -> None:
            for session, body in zip(sessions, bodies, strict=True):
                while not (found := requests(session)):
                    await asyncio.sleep(0.01)
                await say(cloud, session, answer=wire.Answer(id=found[0].id, **body))

        idle: dict[str, Any] = {"trouble": "station has no terminal", "away": True}
        await answer(idle, idle)
        assert not asking.done()
        await answer(idle, {"trouble": "something else", "away": False})
        assert [each.away for each in (await asking).values()] == [True, False]
        asking = asyncio.create_task(cloud.ask_all(wanted, NEVER_S))
        cloud.journal.stop()
        await answer(idle, idle)
        assert [each.away for each in (await asking).values()] == [True, True]

    run(body)


def test_stations_wait_until_the_cloud_has_read_its_journal(folder: Path, tmp_path: Path) -> None:
    """Before that it cannot tell scaling and anchor as they are: a station tries again, and does not do without."""

    async def body() -> None:
        journal = Journal(tmp_path / "journal", fsync=False)
        journal.append(wire.Entry(kind="train").SerializeToString())
        journal.close()
        cloud = make_cloud(folder, tmp_path)
        with pytest.raises(NotReadyError, match="journal"):
            cloud.stations.greet(Peer(STATION_TO_CLOUD, folder, "station-0"), wire.Hello())

    run(body)
