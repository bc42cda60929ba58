"""A site keeps to its own rules whatever its station asks for: floor of H, steps a day, updates in all, algorithms."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import nets
from tests.deploy.inside import NEVER_S, connect, hear, job, make_station, make_terminal, run, settle
from tests.deploy.test_light import LEARNING, certified, settings

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.cli.network.text import tree
from rhfedmtl.deploy.node.config import read_terminal
from rhfedmtl.deploy.terminal.site import DAY_S, SitePolicy
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.roles.channel import FixedPoint
from rhfedmtl.roles.messages import Verdict, WorkOrder

ROUND = {"terminals": [0, 1], "local_steps": [5, 5], "deadline": NEVER_S}
NO = "5 steps after 20 of this day, where 20 are allowed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of which nothing runs."""
    return nets.build(tmp_path_factory.mktemp("sites") / "net", nets.small(2, 2, 40))


def site(folder: Path, now: Any = lambda: 0.0, **rules: Any) -> SitePolicy:
    """The rules of a site."""
    config = read_terminal(folder / "terminal-0" / "terminal.toml")
    for name, value in rules.items():
        object.__setattr__(config, name, value)
    return SitePolicy(config, now)


def test_what_a_site_refuses(folder: Path) -> None:
    """Each rule by itself, at its edge."""
    assert not site(folder).refuses(1, 15)
    assert "15 to 10,000,000 are allowed" in site(folder, least_steps=0).refuses(14, 15)
    assert "1 to 9 are allowed" in site(folder, most_steps=9).refuses(10, 15)
    assert "fedavg, where rhfedmtl is allowed" in site(folder, algorithms=("rhfedmtl",)).refuses_job(
        wire.Job(algorithm="fedavg", least_steps=1), 15, Channel()
    )
    assert "H from 1, where H from 15" in site(folder, least_steps=0).refuses_job(
        wire.Job(least_steps=1), 15, Channel()
    )
    assert not site(folder, least_steps=0).refuses_job(wire.Job(), 15, Channel())
    masked = FixedPoint()
    assert "only the owner may allow less" in site(folder, least_steps=0).refuses_job(
        wire.Job(least_steps=1), 15, masked
    )
    assert "drawn with replacement" in site(folder, least_steps=0).refuses_job(wire.Job(), 15, masked, uniform=True)
    assert not site(folder, least_steps=1).refuses_job(wire.Job(least_steps=1), 15, masked, uniform=True)
    some = site(folder, most_updates=2)
    for _ in range(2):
        assert not some.refuses(5, 15)
        some.note(5)
    assert "an update after 2, where 2 are allowed" in some.refuses(5, 15)


def test_a_day_has_so_many_steps(folder: Path) -> None:
    """What is left of a day may be used up wholly; the next day begins anew."""
    now = [0.0]
    rules = site(folder, lambda: now[0], steps_per_day=20)
    for _ in range(4):
        assert not rules.refuses(5, 15)
        rules.note(5)
    assert rules.refuses(5, 15) == NO
    now[0] = DAY_S - 1.0
    assert rules.refuses(1, 15)
    now[0] = DAY_S + 0.0
    assert not rules.refuses(20, 15)
    assert rules.used["releases"] == 4


def order(t: Any, number: int, steps: int) -> wire.WorkOrder:
    """An order for the first terminal, at zero."""
    verdict = Verdict(0, 0.0, number - 1, t.memory.terminal.incarnation)
    return codec.to_wire(WorkOrder(number, 0, 0.0 * t.memory.terminal.rows.share(), 10.0, steps, verdict))


def test_a_terminal_declines_and_remembers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a day count once, over restarts; what was done is told again; on the next day it says that it can."""

    async def body() -> None:
        now = [0.0]

        def started() -> tuple[Any, list[Any]]:
            made, sent = make_terminal(folder, tmp_path), list[Any]()
            made.memory.site._config, made.memory.site._now = site(folder, steps_per_day=20)._config, lambda: now[0]
            monkeypatch.setattr(made.link, "send", lambda **body: sent.append(body) or True)
            return made, sent

        made, sent = started()
        await made.welcome(wire.Welcome(job=job(folder), epoch="e"))
        for number in (1, 1, 2):
            await made.handle("order", order(made, number, 10))
        assert [next(iter(each)) for each in sent] == ["join", "update", "update", "update"]
        made, sent = started()
        await made.handle("order", order(made, 2, 10))
        await made.handle("order", order(made, 3, 5))
        assert [next(iter(each)) for each in sent] == ["update", "declined"]
        assert sent[1]["declined"] == wire.Declined(round=3, reason=NO, local_steps=5)
        assert made.memory.terminal.last_round == 2
        made.link.heed_owner()
        assert len(sent) == 2
        now[0] = DAY_S + 0.0
        made.link.heed_owner()
        made.link.heed_owner()
        assert sent[2:] == [{"declined": wire.Declined()}]
        await made.handle("order", order(made, 4, 20))
        assert made.memory.record().steps_of_day == 20
        assert made.memory.record().releases == 3

    run(body)


def test_a_terminal_takes_no_part_in_what_its_site_does_not_allow(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why, joins nothing, tells nothing of its rows, and stays to say so again."""

    async def body() -> None:
        made, sent = make_terminal(folder, tmp_path), list[Any]()
        object.__setattr__(made.config, "algorithms", ("fedavg",))
        monkeypatch.setattr(made.link, "send", lambda **body: sent.append(body) or True)
        for _ in range(2):
            await made.welcome(wire.Welcome(job=job(folder), epoch="e"))
            await made.handle("ask_moments", wire.MomentsRequest())
            await made.handle("scaling", wire.Scaling())
        assert [each["declined"].reason for each in sent] == ["rhfedmtl, where fedavg is allowed"] * 2

    run(body)


def test_a_round_goes_on_without_who_declines(folder: Path, tmp_path: Path) -> None:
    """The round is over at once; the same H is asked for no more until the site allows it, and costs nothing."""

    async def body() -> None:
        service = make_station(folder, tmp_path)
        peers = [await connect(service, folder, t) for t in (0, 1)]
        held = asyncio.create_task(
            service.requests.answer(wire.Request(id=1, round=wire.RoundRequest(round=1, **ROUND)))
        )
        await settle()
        for peer in peers:
            await hear(service, peer, declined=wire.Declined(round=1, reason=NO + "!" * 999, local_steps=5))
        answer = await held
        assert [(e.terminal, e.answered, e.bytes_up > 0) for e in answer.round.efforts] == [
            (0, False, True),
            (1, False, True),
        ]
        roster = service.heartbeat.roster()
        assert roster.declined[0].startswith(NO)
        assert len(roster.declined[0]) == 200
        assert all(seat.connected for seat in roster.seats)  # they still answer what is no work
        answer = await service.requests.answer(wire.Request(id=2, round=wire.RoundRequest(round=2, **ROUND)))
        assert answer.away
        assert "decline" in answer.trouble
        await hear(service, peers[0], declined=wire.Declined())
        assert set(service.heartbeat.roster().declined) == {1}
        for peer in peers:
            peer.sent()
        held = asyncio.create_task(
            service.requests.answer(wire.Request(id=3, round=wire.RoundRequest(round=2, **ROUND)))
        )
        await settle()
        await hear(service, peers[0], declined=wire.Declined(round=2, reason=NO, local_steps=5))
        assert [effort.terminal for effort in (await held).round.efforts] == [0]
        assert [message.order.local_steps for message in peers[0].sent()] == [5]
        assert not peers[1].sent()
        service.members.on_gone(peers[1])
        assert set(service.heartbeat.roster().declined) == {0}

    run(body)


def test_a_network_whose_sites_have_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sites decline, one the algorithm and one beyond its day; the other trains, and the status says why."""
    folder = nets.build(tmp_path / "net", nets.small(1, 3, 60), learning=LEARNING, light=True)
    settings(folder, 1, algorithms='["fedavg"]')
    settings(folder, 2, steps_per_day=35)
    with nets.running(folder, nets.PAUSE_S) as (supervisor, operator):
        operator.command("train", budget=["energy=1e9"])
        status = nets.wait(operator, lambda s: bool(s["stations"][0]["terminals"][2]["declined"]))
        certified(operator)
        told = {t["terminal"]: t["declined"] for b in status["stations"] for t in b["terminals"]}
        assert told == {
            0: None,
            1: "hfedmtl, where fedavg is allowed",
            2: "10 steps after 30 of this day, where 35 are allowed",
        }
        assert [t["member"] for t in status["stations"][0]["terminals"]] == [True, False, True]
        shown = [str(each.label) for each in tree(status).children[-1].children]
        assert f"  its site declines {told[2]}" in shown
        nets.restart(supervisor, "terminal-2")
        nets.wait(operator, lambda s: s["stations"][0]["terminals"][2]["declined"] == told[2])
        operator.command("stop")
        nets.wait(operator, nets.at_rest)
    assert nets.terminal_file(folder, 2).steps_of_day == 30
    nets.assert_invariant(folder, 1)
