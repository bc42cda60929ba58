"""Peers that lie, flood and forge, without a network: what they say is refused, and takes up no room."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.inside import (
    NUMBERS,
    SHARE,
    Peer,
    attach,
    job,
    make_cloud,
    make_station,
    requests,
    run,
    say,
    settle,
)
from tests.deploy.liar import quarantined

from rhfedmtl.deploy.cloud.checks import AnswerChecks
from rhfedmtl.deploy.cloud.config import Learning, read_cloud
from rhfedmtl.deploy.cloud.measured_run import check_round, refuse_broken
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.remote_network import census
from rhfedmtl.deploy.node.config import Limits, read_station
from rhfedmtl.deploy.node.credentials import Authority, Credentials, Identity, new_key, requested_key
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.enrolment import Token, enrol
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.operator import take_chunk
from rhfedmtl.deploy.station.service import StationService
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import BudgetError, ConfigError, PeerError
from rhfedmtl.policies.base import Situation
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Budget, Cost
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.roles.messages import Join
from rhfedmtl.training.state import RunState

HOMES = {0: 0, 1: 0, 2: 1}
MODEL = codec.tensor(np.ones((1, NUMBERS)))
GAINS = codec.tensor(np.zeros(17))
ROUND = wire.Request(round=wire.RoundRequest(round=4, terminals=[0, 1], local_steps=[5, 6], deadline=1.0))
SUMS = wire.Request(sums=wire.SumsRequest(models=[MODEL] * 2, points=codec.tensor(np.eye(2)), gradient=True))
LABELS = wire.Request(labels=wire.Nothing())


MEMBERS = 7
"""The membership of two terminals with five samples each."""


def checker(**learning: Any) -> AnswerChecks:
    """For twenty features and an intercept, and two terminals under station 0."""
    learning = {"features": NUMBERS - 1, "tasks": ("a", "b"), "classes": ("n", "p"), **learning}
    made = AnswerChecks(Learning(**learning).job(), Limits(), 60.0)
    made.roster(0, roster((0, 5), (1, 5))["roster"], HOMES)
    return made


def effort(**more: Any) -> wire.Effort:
    """An effort as it should be, unless told."""
    return wire.Effort(**{"terminal": 0, "local_steps": 5, "work_seconds": 0.1, "wait_seconds": 0.2, **more})


def result(*efforts: wire.Effort, **more: Any) -> dict[str, Any]:
    """The answer to `ROUND`."""
    return {"round": wire.RoundResult(**{"round": 4, "factor": 0.5, "gains": GAINS, "efforts": efforts, **more})}


def roster(*seats: tuple[int, int]) -> dict[str, Any]:
    """An answer with these terminals and samples."""
    return {"roster": wire.Roster(membership=MEMBERS, seats=[wire.Seat(terminal=t, n_samples=n) for t, n in seats])}


def sums(**more: Any) -> dict[str, Any]:
    """The answer to `SUMS`, as it should be unless told; the conjugate of its loss is quadratic."""
    right = {"losses": np.ones(2), "dual": np.ones(2), "gradient": np.ones((1, NUMBERS))}
    said = {name: codec.tensor(each) for name, each in right.items()} | {"membership": MEMBERS, "n_samples": 10}
    return {"sums": wire.StationSums(**said | more), "bytes_below": 1000}


def report(**more: Any) -> dict[str, Any]:
    """The answer to `REPORT`, as it should be unless told."""
    return {"report": wire.Report(**{"v": MODEL, "n_samples": 10, "membership": MEMBERS} | more)}


ASK = wire.Request(roster=wire.Nothing())
MOMENTS, REPORT = wire.Request(moments=wire.MomentsRequest()), wire.Request(report=3)
TRIAL = wire.Request(trial=wire.TrialRequest(model=MODEL))
LIES: dict[str, tuple[wire.Request, dict[str, Any]]] = {
    "nothing": (ASK, {}),
    "something else": (ROUND, roster((0, 5))),
    "a terminal that would fill the memory": (ASK, roster((2**32 - 1, 5))),
    "a terminal twice": (ASK, roster((0, 5), (0, 5))),
    "no samples": (ASK, roster((0, 0))),
    "too many samples": (ASK, roster((0, 10**12))),
    "another round": (ROUND, result(effort(), round=3)),
    "work that was not ordered": (ROUND, result(effort(local_steps=500))),
    "a terminal that was not ordered": (ROUND, result(effort(terminal=2))),
    "a terminal that worked twice": (ROUND, result(effort(), effort())),
    "more work than time": (ROUND, result(effort(work_seconds=5.0))),
    "time that is none": (ROUND, result(effort(wait_seconds=float("nan")))),
    "negative time": (ROUND, result(effort(work_seconds=-1.0))),
    "bytes that nobody sent": (ROUND, result(effort(bytes_up=2**60))),
    "a factor that is none": (ROUND, result(factor=float("nan"))),
    "gains of another length": (ROUND, result(gains=codec.tensor(np.zeros(3)))),
    "a report of another task": (REPORT, report(task=1)),
    "a report of another shape": (REPORT, report(v=codec.tensor(np.ones((2, 3))))),
    "a huge report": (REPORT, report(v=codec.tensor(np.full((1, NUMBERS), 1e200)))),
    "a report over samples that nobody has": (REPORT, report(n_samples=2**63)),
    "sums over samples that nobody has": (SUMS, sums(n_samples=2**63)),
    "sums over no samples": (SUMS, sums(n_samples=0)),
    "sums that weighed nothing": (SUMS, sums() | {"bytes_below": 0}),
    "sums of one for those of two": (SUMS, sums() | {"bytes_below": 336}),
    "labels that weighed nothing": (LABELS, {"labels": wire.LabelsReport(sums=codec.tensor(np.ones(3)))}),
    "an update that weighed nothing": (ROUND, result(effort(answered=True))),
    "an update that weighed less than its numbers": (
        ROUND,
        result(effort(answered=True, bytes_down=200, bytes_up=8 * NUMBERS)),
    ),
    "an update without an order": (ROUND, result(effort(answered=True, bytes_up=500))),
    "a roster that terminals were asked for": (ASK, roster((0, 5)) | {"bytes_below": 1}),
    "a round paid for twice": (ROUND, result(effort()) | {"bytes_below": 400}),
    "trouble instead of a roster": (ASK, {"trouble": "boo"}),
    "an accuracy that is not a number": (TRIAL, {"metrics": wire.Metrics(values={"accuracy": float("nan")})}),
    "an error that is not a number": (TRIAL, {"metrics": wire.Metrics(values={"rmse": float("nan")})}),
    "an error without an end": (TRIAL, {"metrics": wire.Metrics(values={"rmse": float("inf")})}),
    "sums of other models": (SUMS, sums(losses=codec.tensor(np.ones(3)))),
    "negative losses": (SUMS, sums(losses=codec.tensor([-1.0, 1.0]))),
    "dual sums of another loss": (SUMS, sums(dual=codec.tensor(np.ones(99)))),
    "no gradient": (SUMS, sums(gradient=codec.tensor([]))),
    "labels of another task": (LABELS, {"labels": wire.LabelsReport(sender=1, sums=codec.tensor(np.ones(3)))}),
    "labels that are none": (LABELS, {"labels": wire.LabelsReport(sums=codec.tensor(np.zeros(3)))}),
    "moments of other features": (MOMENTS, {"moments": wire.MomentsReport(count=3, mean=GAINS, spread=GAINS)}),
    "a metric that is none": (TRIAL, {"metrics": wire.Metrics(values={"accuracy": 1.5})}),
    "a metric of its own": (TRIAL, {"metrics": wire.Metrics(values={"beauty": 1.0})}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_station_that_lies_is_refused(lie: str) -> None:
    """No answer reaches a training that does not fit its request, the shapes, or what a round can cost."""
    request, body = LIES[lie]
    with pytest.raises(PeerError):
        checker().answer(0, request, wire.Answer(**body), HOMES)


def test_a_station_that_does_not_lie_is_heard() -> None:
    """What honest stations answer passes; time counts for no more than the cloud would have waited."""
    late = wire.Answer(**result(effort(wait_seconds=1e9), effort(terminal=1, local_steps=6)))
    checker().answer(0, ROUND, late, HOMES)
    assert late.round.efforts[0].wait_seconds == 61.0
    unknown = {"accuracy": 0.5, "balanced_accuracy": float("nan"), "auc": float("nan")}
    for request, body in (
        (ASK, roster((0, 5), (2, 5))),
        (REPORT, report()),
        (SUMS, sums()),
        (LABELS, {"labels": wire.LabelsReport(sums=codec.tensor(np.ones(3))), "bytes_below": 400}),
        (TRIAL, {"metrics": wire.Metrics(values=unknown)}),
        (ROUND, {"trouble": "something went wrong"}),
    ):
        checker().answer(0, request, wire.Answer(**body), HOMES)


@pytest.mark.parametrize(
    ("precision", "each"), [("identity", 8), ("float32", 4), ("int16", 2), ("int8", 1), ("masked", 8)]
)
def test_an_update_weighs_what_its_precision_makes_of_it(precision: str, each: int) -> None:
    """As many bytes as it has numbers are enough, each as short as it can be; one less is a lie."""
    least = framed(each * NUMBERS)
    for less in (0, 1):
        said = wire.Answer(**result(effort(answered=True, bytes_down=200, bytes_up=least - less)))
        with pytest.raises(PeerError, match="its update alone takes") if less else nullcontext():
            checker(options={"channel": precision}).answer(0, ROUND, said, HOMES)
            assert said.round.efforts[0].bytes_up == least


@pytest.mark.parametrize(
    ("precision", "each"), [("identity", 8), ("float32", 4), ("int16", 4), ("int8", 4), ("masked", 8)]
)
def test_moments_weigh_what_the_precision_makes_of_them(precision: str, each: int) -> None:
    """Mean and spread of one terminal at least, and that it was asked; one byte less is a lie."""
    told, least = codec.tensor(np.ones(NUMBERS - 1)), framed(0) + framed(each * 2 * (NUMBERS - 1))
    for less in (0, 1):
        moments = wire.MomentsReport(count=3, mean=told, spread=told)
        said = wire.Answer(moments=moments, bytes_below=least - less)
        with pytest.raises(PeerError, match="where moments take") if less else nullcontext():
            checker(options={"channel": precision}).answer(0, MOMENTS, said, HOMES)


def test_bytes_count_for_no_more_than_what_was_asked_can_weigh() -> None:
    """A station that says more, or a terminal that sends more than it was asked for, does not use a budget up."""
    check = checker()
    dear = wire.Answer(**sums() | {"bytes_below": 100_000})
    check.answer(0, SUMS, dear, HOMES)
    assert 2 * (framed(1000) + framed(500)) < dear.bytes_below < 10_000
    told = wire.Answer(**result(effort(answered=True, bytes_down=20_000, bytes_up=20_000)))
    check.answer(0, ROUND, told, HOMES)
    (one,) = told.round.efforts
    assert framed(8 * NUMBERS + 300) < one.bytes_up < one.bytes_down < 3_000


def test_what_is_said_of_members_that_no_roster_has_does_not_count() -> None:
    """Nobody is refused for it, as a roster may have got lost; it is no report and no sum."""
    for request, body in ((REPORT, report(membership=9)), (SUMS, sums(membership=9, n_samples=2**63))):
        answer = wire.Answer(**body)
        checker().answer(0, request, answer, HOMES)
        assert answer.WhichOneof("body") is None
        assert "no roster" in answer.trouble


def test_a_station_that_is_no_use_is_named(tmp_path: Path) -> None:
    """With its own words, or what was wrong with them: in the status, in what is waited for, and in the answer."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40), limits=Limits(quarantine=0.0))

    async def named() -> None:
        cloud = make_cloud(folder, tmp_path / "state")
        stations, peer = cloud.stations, attach(cloud, folder, 0)

        async def shown() -> tuple[str, str]:
            status = await cloud.commands.run("status")
            return status["last_error"], status["stations"][0]["last_error"]

        asked = asyncio.create_task(stations.requests.ask(0, wire.Request(roster=wire.Nothing()), 1.0))
        await settle()
        with pytest.raises(PeerError, match="are the most"):
            await stations.receive(peer, b"\0" * (stations.largest + 1))
        with pytest.raises(PeerError, match="no roster, but trouble: boo"):
            await say(cloud, peer, answer=wire.Answer(id=requests(peer)[0].id, trouble="boo"))
        del stations.acceptor.sessions[0]
        fault = "refused: no roster, but trouble: boo"
        assert stations.waited_for() == [f"station 0 (not connected; {fault})"]
        assert await shown() == (f"fault: station 0: {fault}", fault)
        answer = await asked
        assert answer.trouble == f"station 0 does not answer: {fault}"
        cloud.trainer.network._take_rosters({0: answer})
        with pytest.raises(ConfigError, match=f"'task-0' is there: station 0 does not answer: {fault}"):
            census(cloud.config, cloud.trainer.network)
        peer = attach(cloud, folder, 0)
        asked = asyncio.create_task(stations.requests.ask(0, wire.Request(models=wire.Nothing()), 9.0))
        await settle()
        for _ in range(3):  # gRPC ends such streams itself
            stations.on_gone(peer)
        assert "station 0 (its stream broke 3 times before it answered" in stations.waited_for()[0]
        await say(cloud, peer, answer=wire.Answer(id=requests(peer)[0].id, models=MODEL))
        await asked
        assert await shown() == ("station gone: connection lost", "")  # its faults are over

    run(named)


def test_a_station_tells_of_its_members_before_it_speaks_for_them(tmp_path: Path) -> None:
    """The cloud holds numbers of samples against its roster: on every stream, and when members have changed."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def told() -> list[str]:
        service, sent = make_station(folder, tmp_path / "state"), []

        def send(**body: Any) -> bool:
            sent.extend(body)
            return True

        service.link.send = send  # type: ignore[method-assign]
        for i in range(4):
            if i == 2:
                service.memory.station.roster.admit(Join(1, 2, 15, SHARE))
            if i == 3:
                service.hello()
            service.requests.send(await service.requests.answer(wire.Request(id=i + 1, report=1)))
        return sent

    assert run(told) == ["outlook", "answer", "answer", "outlook", "answer", "outlook", "answer"]


def test_a_price_is_made_anew_without_who_is_kept_out() -> None:
    """Who brought a million rows, and was found out in round zero, is in no price of a round."""
    pricing = SimpleNamespace(
        shortage="budget energy=100",
        one_round=lambda situation, steps: event_totals(situation.prices, situation.round_event(steps)),
        way_out=lambda price: f"raise the budget to {price}",
    )

    class Known:
        met, sizes = False, np.array([1_000_000, 20])
        ledger = Ledger(Cost.of(["energy=0.1,10"]), Budget.of(["energy=100"]))

        def meet(self) -> None:
            self.met, self.station = True, np.array([-1, 0])

        station = np.array([0, 0])

        def situation(self) -> Situation:
            return Situation(self.sizes, Placement(self.station, 1), self.ledger, lam=0.1, gamma=1.0)

    run_: Any = Known()
    run_.state, run_.pricing = RunState(), pricing
    check_round(run_, 0)
    assert run_.met
    run_.sizes = np.array([20, 1_000_000])
    with pytest.raises(BudgetError, match="cannot pay one round"):
        check_round(run_, 0)


def test_a_station_cannot_claim_terminals_of_another(tmp_path: Path) -> None:
    """A terminal that is with the station where it belongs is struck from the roster of any other."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def claim() -> list[list[int]]:
        cloud = make_cloud(folder, tmp_path / "state")
        for b, claimed in ((0, (0, 1)), (1, (0, 2, 3))):
            await say(cloud, attach(cloud, folder, b), outlook=wire.Outlook(**roster(*((t, 5) for t in claimed))))
        return [[seat.terminal for seat in cloud.stations.rosters.outlooks[b].roster.seats] for b in range(2)]

    assert run(claim) == [[0, 1], [2, 3]]


def test_a_terminal_in_quarantine_is_seen_wherever_it_is(tmp_path: Path) -> None:
    """Also at a station that it was about to leave: an operator could not let it in again otherwise."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def seen() -> Any:
        cloud = make_cloud(folder, tmp_path / "state")
        told = wire.Roster(quarantined={2: "what cannot be"})
        await say(cloud, attach(cloud, folder, 0), outlook=wire.Outlook(roster=told))
        return quarantined(await cloud.commands.run("status"))

    assert run(seen) == {2: "what cannot be"}


def test_a_flood_of_joins_takes_up_no_room(tmp_path: Path) -> None:
    """While a round is open, one wish of a terminal waits, however many it sends; the latest counts."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def flood() -> tuple[int, int]:
        service = StationService(read_station(folder / "station-0" / "station.toml"), Log("test", "error"), Meters())
        service.memory.begin(job(folder))
        service.memory.allowed = {0}
        peer = Peer(TERMINAL_TO_STATION, folder, "terminal-0")
        before = asyncio.all_tasks()
        async with service.memory.turn:
            for i in range(1, 1001):
                join = wire.Join(terminal=0, incarnation=i, n_samples=3, share=MODEL)
                await service.members.receive(peer, wire.TerminalUp(join=join).SerializeToString())
            waiting = asyncio.all_tasks() - before
        await asyncio.gather(*waiting)
        return len(waiting), service.memory.station.members[0].incarnation

    assert run(flood) == (1, 1000)


# Credentials and tokens.


def test_credentials_that_are_being_copied_do_not_end_a_node(tmp_path: Path) -> None:
    """Half a file, another node's, a key without its certificate and an expired one are refused; good ones are not."""
    authority, _ = Authority.make("test-net")
    me = Identity("test-net", "terminal", 7)
    credentials = Credentials.of(tmp_path)

    def write(identity: Identity, *, mixed: bool = False, **more: Any) -> None:
        key, secret = new_key()
        certified = new_key()[0] if mixed else key
        credentials.write(secret, authority.issue(identity, certified.public_key(), **more), authority.certificate)

    write(me)
    credentials.check(me)
    fetch = credentials.fetcher()
    whole = credentials.node_file.read_bytes()
    for spoil, reason in (
        (lambda: credentials.node_file.write_bytes(whole[: len(whole) // 2]), "must hold"),
        (lambda: write(Identity("test-net", "terminal", 8)), "terminal/8"),
        (lambda: write(me, mixed=True), "do not belong together"),
        (lambda: write(me, lasts=timedelta(days=-1)), "network rotate"),
        (credentials.node_file.unlink, "no key"),
    ):
        spoil()
        assert fetch() is None
        with pytest.raises(ConfigError, match=reason):
            credentials.check(me)
    write(me)
    assert fetch() is not None
    assert fetch() is None


def test_tokens_are_for_terminals_and_stations_that_there_are(tmp_path: Path) -> None:
    """Nobody gets the credentials of a cloud or an operator for a token, nor those of a station that is not planned."""
    registry = NodeRegistry.open(
        read_cloud(nets.build(tmp_path / "net", nets.small(1, 2, 40)) / "cloud" / "cloud.toml")
    )
    for role, number in (("cloud", 0), ("operator", 0), ("station", 1), ("station", None)):
        with pytest.raises(ConfigError):
            registry.invite(role, number, None)
    assert registry.tokens == {}
    assert registry.invite("station", 0, None)[1] == 0


def test_a_node_is_revoked_with_all_its_certificates(tmp_path: Path) -> None:
    """Certificates from the folder and those given for tokens count no more, over a restart too."""
    config = read_cloud(nets.build(tmp_path / "net", nets.small(1, 2, 40)) / "cloud" / "cloud.toml")
    registry = NodeRegistry.open(config)
    for serial in ("abc1", "abc2"):
        registry.redeem(registry.invite("terminal", 1, None)[0], serial)
    assert NodeRegistry.open(config).revoke("terminal/1", ["abc3"]) == ["abc1", "abc2", "abc3"]
    assert NodeRegistry.open(config).revoked == {"abc1", "abc2", "abc3"}
    for name in ("terminal/0", "terminal-1", "1", "abc", ""):  # a number alone would revoke nobody, and sound as if
        with pytest.raises(ConfigError, match="as in terminal/3, or a whole serial number"):
            registry.revoke(name)
    assert registry.revoke("e" * 39) == ["e" * 39]


def test_a_training_does_not_wait_for_who_is_revoked(tmp_path: Path) -> None:
    """Over a restart too, until it gets new credentials for a token."""
    config = read_cloud(nets.build(tmp_path / "net", nets.small(1, 2, 40)) / "cloud" / "cloud.toml")
    NodeRegistry.open(config).revoke("terminal/1", ["abc3"])
    registry = NodeRegistry.open(config)
    assert registry.expected(0) == {0}
    registry.redeem(registry.invite("terminal", 1, None)[0], "abc4")
    assert NodeRegistry.open(config).expected(0) == {0, 1}


def test_a_token_is_not_used_up_in_vain(tmp_path: Path) -> None:
    """A terminal without rows, and a folder that is another node's, are refused before anybody is asked."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 40))
    token = Token("terminal", 5, "test-net", "127.0.0.1:1", "pem", "secret").text()
    with pytest.raises(ConfigError, match="needs its rows"):
        enrol(token, tmp_path / "new")
    with pytest.raises(ConfigError, match=r"no file .*rows\.npz"):
        enrol(token, tmp_path / "new", tmp_path / "rows.npz")
    with pytest.raises(ConfigError, match="is the folder of"):
        enrol(token, folder / "terminal-0", folder / "terminal-0" / "data.npz")
    with pytest.raises(PeerError, match="signing request"):
        requested_key(b"no request")


def test_a_cloud_cannot_make_an_operator_write_elsewhere(tmp_path: Path) -> None:
    """An export takes the files that it knows, whatever names the cloud sends."""
    for name in ("../evil", "/etc/evil", "", "other.npz"):
        with pytest.raises(PeerError):
            take_chunk(tmp_path, wire.Chunk(name=name, data=b"x"), [])
    assert list(tmp_path.iterdir()) == []


def test_a_training_whose_bound_is_broken_has_failed() -> None:
    """An objective below its bound is no success, whoever told what cannot be; the error names the way out."""

    def certificate(gap: float) -> Certificate:
        return Certificate(3, 0.1, 0.1 - gap, np.zeros((1, 1, 1)), np.zeros(1), np.zeros(1))

    refuse_broken(certificate(-1e-16))
    with pytest.raises(PeerError, match=r"broken: in round 3 the objective 0\.1 lies 4\.5e-05 below.*network reset"):
        refuse_broken(certificate(-4.5e-5))
