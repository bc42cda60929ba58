"""Whoever may not speak is refused, and what nobody would say changes nothing: results stay the same to the bit."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.inside import NUMBERS, Peer, attach, job, make_cloud, make_terminal, requests, run, settle
from tests.deploy.intruder import Intruder, credentials_for, hello, station
from tests.deploy.proxy import Mischief, Proxies, Proxy

from rhfedmtl.algorithms.options import Options
from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.cloud.service import CloudService
from rhfedmtl.deploy.node.config import read_station
from rhfedmtl.deploy.node.credentials import Authority, Credentials, Identity, PeerCertificate, new_key
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.enrolment import enrol
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.station.service import StationService
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.ledger_file import load_ledger
from rhfedmtl.roles.messages import Join
from rhfedmtl.training.config import RunConfig

BUDGET = "energy=100000"
ONE, NONE = codec.tensor([1.0]), codec.tensor([])
OPTIONS = {"policy": "fixed", "local_steps": 10, "lambda1": 1e-6, "lambda2": 1e-6}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Operator]]:
    """A network that learns while it is attacked; every message of one terminal is repeated on the way."""
    federation = nets.small(2, 2, 40)
    learning = {"algorithm": "hfedmtl", "options": OPTIONS, "max_rounds": 4000}
    folder = nets.build(tmp_path_factory.mktemp("intruders") / "net", federation, learning=learning)
    address = read_station(folder / "station-0" / "station.toml").node.listen
    echo = f"127.0.0.1:{int(address.rpartition(':')[2]) + 100}"
    mischief = Mischief(0)
    mischief.next = lambda: ("repeat", 0.0)  # type: ignore[method-assign]
    path = folder / "terminal-0" / "terminal.toml"
    path.write_text(path.read_text().replace(address, echo))
    proxies = Proxies([Proxy(folder, "station-0", echo, address, mischief)])
    with proxies, nets.running(folder, nets.PAUSE_S) as (_, operator):
        operator.command("train", budget=[BUDGET])
        nets.wait(operator, lambda s: bool(s["training"].get("round")))
        yield folder, operator
        operator.command("stop")
        status = nets.wait(operator, nets.at_rest)
        assert status["training"]["state"] == "ended", status["training"]
        operator.export(folder / "out")
    options = Options.of(**OPTIONS, cloud_rounds=status["training"]["round"])
    run = RunConfig("hfedmtl", options=options, cost=("energy=0.1,10",), budget=(BUDGET,)).run(federation)
    np.testing.assert_array_equal(TaskModels.load(folder / "out" / "model.npz").models, run.models)
    assert load_ledger(folder / "out" / "ledger.json") == run.ledger


def test_credentials_that_do_not_count(net: Any) -> None:
    """No certificate, one of a foreign authority, and an expired one do not get past TLS."""
    folder, _ = net
    authority = Authority.load(folder / "ca")
    foreign, _ = Authority.make("test-net")
    me = Identity("test-net", "terminal", 0)
    key, secret = new_key()
    for presented in (
        grpc.ssl_channel_credentials(authority.certificate),
        grpc.ssl_channel_credentials(authority.certificate, secret, foreign.issue(me, key.public_key())),
        credentials_for(authority, me, lasts=timedelta(days=-1)),
    ):
        assert Intruder(*station(folder), presented).say("Station", [hello(0)]).startswith("UNAVAILABLE")


def test_a_station_that_is_none(net: Any) -> None:
    """A terminal insists on the certificate of its own station: another node's does not do."""
    folder, _ = net
    address, _ = station(folder)
    credentials = credentials_for(Authority.load(folder / "ca"), Identity("test-net", "terminal", 0))
    other = Identity("test-net", "station", 1)
    assert Intruder(address, other, credentials).say("Station", [hello(0)]).startswith("UNAVAILABLE")


def test_names_that_are_not_theirs(net: Any) -> None:
    """Another node's number, another station's terminal, the wrong role, another network, an unknown version."""
    folder, operator = net
    authority, (address, above) = Authority.load(folder / "ca"), station(folder)

    def refused(identity: Identity, message: bytes, reason: str) -> None:
        answer = Intruder(address, above, credentials_for(authority, identity)).say("Station", [message])
        assert answer.startswith("PERMISSION_DENIED"), answer
        assert reason in answer
        nets.wait(operator, lambda _: reason in json.dumps(nets.logged(folder, "station-0", "refused")))

    refused(Identity("test-net", "terminal", 9), hello(0), "says that it is")
    refused(Identity("test-net", "terminal", 3), hello(3), "is no member of station")
    refused(Identity("test-net", "operator", 0), hello(0), "may not speak here")
    refused(Identity("test-net", "station", 1), hello(1), "may not speak here")
    refused(Identity("other-net", "terminal", 0), hello(0, "other-net"), "may not speak here")
    refused(Identity("test-net", "terminal", 0), hello(0, newest=99), "install the same version")


def test_a_terminal_at_the_cloud(net: Any) -> None:
    """A terminal may neither attach to the cloud nor command it."""
    folder, _ = net
    cloud = read_cloud(folder / "cloud" / "cloud.toml").node.listen
    above, me = Identity("test-net", "cloud"), Identity("test-net", "terminal", 0)
    credentials = credentials_for(Authority.load(folder / "ca"), me)
    up = wire.StationUp(
        hello=wire.Hello(oldest=codec.PROTOCOL, newest=codec.PROTOCOL, network="test-net")
    ).SerializeToString()
    assert "may not speak here" in Intruder(cloud, above, credentials).say("Cloud", [up])
    with grpc.secure_channel(cloud, credentials, options=channel_options(above, 1 << 20)) as channel:
        call = channel.unary_unary(f"/{SERVICE}.Control/Command")
        reply = wire.Reply.FromString(call(wire.Command(name="stop").SerializeToString(), timeout=10))
    assert "no operator" in reply.trouble


def test_a_member_that_misbehaves(net: Any, tmp_path: Path) -> None:
    """One with good credentials that sends what nobody should is dropped and told why; the others go on."""
    folder, operator = net
    invited = operator.command("invite", station=0)
    np.savez(tmp_path / "rows.npz", X=np.zeros((1, NUMBERS - 1)), y=np.zeros(1, dtype=int))
    enrol(invited["token"], tmp_path / "evil", tmp_path / "rows.npz")
    number, credentials = invited["number"], Credentials.of(tmp_path / "evil").client()
    nets.wait(operator, lambda s: number in [t["terminal"] for t in s["stations"][0]["terminals"]])

    def dropped(message: bytes, reason: str) -> None:
        last: list[str] = []

        def tried(_: Any) -> bool:
            last[:] = [Intruder(*station(folder), credentials).say("Station", [hello(number), message])]
            return "not let in" not in last[0]

        nets.wait(operator, tried)
        assert reason in last[0], last[0]

    for name, (message, reason) in _bad_messages(number, folder).items():
        dropped(message, reason)
        assert operator.command("status")["stations"][0]["connected"], name
    revoked = PeerCertificate.read(Credentials.of(tmp_path / "evil").pair()[1]).serial
    assert operator.command("revoke", node=f"terminal/{number}")["revoked"] == [revoked]
    nets.wait(
        operator,
        lambda _: "was revoked" in Intruder(*station(folder), credentials).say("Station", [hello(number)]),
    )


def _bad_messages(number: int, folder: Path) -> dict[str, tuple[bytes, str]]:
    """What a terminal must not say, and the reason that it is given."""
    limit = read_station(folder / "station-0" / "station.toml").limits.message_bytes
    zeros = np.zeros((1, NUMBERS))
    nothing = {"gains": codec.tensor(np.zeros(17)), "profile": codec.tensor(np.zeros(0))}

    def update(delta: Any, **more: Any) -> wire.TerminalUp:
        return wire.TerminalUp(update=wire.Update(**{"round": 1, "terminal": number, **nothing, **more}, delta=delta))

    def join(n: int, share: Any) -> wire.TerminalUp:
        return wire.TerminalUp(join=wire.Join(terminal=number, incarnation=1, n_samples=n, share=codec.tensor(share)))

    torn = wire.Tensor(shape=[1, NUMBERS], data=b"\0" * 8)
    cases: dict[str, tuple[Any, str]] = {
        "NaN": (update(codec.tensor(np.full((1, NUMBERS), np.nan))), "not finite"),
        "infinite": (update(codec.tensor(np.full((1, NUMBERS), np.inf))), "not finite"),
        "torn": (update(torn), "claims the shape"),
        "replayed": (update(codec.tensor(zeros), terminal=0), "speaks for terminal 0"),
        "huge": (join(5, np.full((1, NUMBERS), 1e9)), "norm"),
        "empty": (join(0, zeros), "0 samples"),
        "too many": (join(10**9, zeros), "samples"),
        "wrong shape": (join(5, np.zeros((2, NUMBERS))), "shape"),
        "greeting twice": (wire.TerminalUp(hello=wire.Hello()), "hello while attached"),
        "nothing": (wire.TerminalUp(), "says nothing"),
    }
    messages = {name: (message.SerializeToString(), reason) for name, (message, reason) in cases.items()}
    return {
        **messages,
        "no protobuf": (b"\xff" * 50, "are no TerminalUp"),
        "too large": (b"\0" * (limit + 1), "larger than max"),
    }


# Ten thousand inputs that nobody would send.


def corpus(node: int, rng: np.random.Generator) -> list[bytes]:
    """Messages as they should be, to be spoiled."""
    model = codec.tensor(rng.normal(size=(1, NUMBERS)))
    place = {"round": 3, "terminal": node}
    made = [
        wire.TerminalUp(update=wire.Update(**place, delta=model, gains=codec.tensor(np.ones(17)), profile=model)),
        wire.TerminalUp(
            sums=wire.Sums(terminal=node, number=2, losses=codec.tensor(np.ones(5)), dual=ONE, gradient=NONE)
        ),
        wire.TerminalUp(leave=wire.Leave(terminal=node, incarnation=9, share=model)),
        wire.TerminalUp(moments=wire.MomentsReport(sender=node, count=3, mean=model, spread=model)),
        wire.TerminalUp(tally=wire.Tally(number=1, counts=codec.tensor(np.eye(2)), rows=2)),
        wire.TerminalUp(scaled=wire.Nothing(), seconds=1.0),
        wire.TerminalUp(labels=wire.LabelsReport(sender=node, sums=codec.tensor(np.ones(3)))),
    ]
    return [message.SerializeToString() for message in made]


def spoil(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, double, insert and overwrite bytes."""
    spoiled = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(spoiled)) if spoiled else 0
        kind = rng.randrange(5)
        if kind == 0 and spoiled:
            spoiled[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del spoiled[at : at + rng.randint(1, 20)]
        elif kind == 2:
            spoiled[at:at] = spoiled[at : at + rng.randint(1, 20)]
        elif kind == 3:
            spoiled[at:at] = rng.randbytes(rng.randint(1, 10))
        else:
            spoiled[at : at + 8] = rng.randbytes(8)
    return bytes(spoiled)


async def feed(receive: Callable[[bytes], Any], messages: list[bytes], count: int) -> int:
    """Feed ``count`` spoiled messages; returns how many were refused. Any other error is a failure."""
    rng, refused = random.Random(7), 0
    for i in range(count):
        try:
            await receive(spoil(messages[i % len(messages)], rng))
        except PeerError:
            refused += 1
    return refused


def test_ten_thousand_spoiled_messages_change_nothing(tmp_path: Path) -> None:
    """A station refuses or ignores all that a terminal with good credentials can make of its messages."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def attack() -> tuple[int, bytes, bytes]:
        service = StationService(read_station(folder / "station-0" / "station.toml"), Log("fuzz", "error"), Meters())
        service.memory.begin(job(folder))
        service.memory.allowed = {0, 1}
        service.memory.station.roster.admit(Join(0, 1, 15, np.ones((1, NUMBERS))))
        peer = Peer(TERMINAL_TO_STATION, folder, "terminal-0")
        before = service.memory.record().SerializeToString(deterministic=True)
        messages = corpus(0, np.random.default_rng(0))
        refused = await feed(lambda data: service.members.receive(peer, data), messages, 10_000)
        await settle()
        return refused, before, service.memory.record().SerializeToString(deterministic=True)

    refused, before, after = run(attack)
    assert before == after
    assert refused > 5_000


@pytest.mark.slow  # make test-slow
def test_spoiled_messages_from_above_do_no_harm(tmp_path: Path) -> None:
    """A terminal refuses what a station could not have meant, and its dual variables stay as they are."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def attack() -> tuple[int, bytes, bytes]:
        service = make_terminal(folder, tmp_path / "state")

        async def greet() -> None:
            service.link.uplink.hello()
            await service.link.uplink.receive(
                wire.TerminalDown(welcome=wire.Welcome(job=job(folder))).SerializeToString()
            )

        async def receive(data: bytes) -> None:
            try:
                await service.link.uplink.receive(data)
            except PeerError:  # the stream ends, and another begins
                await greet()
                raise

        await greet()
        before = service.memory.record().SerializeToString(deterministic=True)
        verdict = wire.Verdict(incarnation=77)
        model = codec.tensor(np.ones((1, NUMBERS)))
        down = [
            wire.TerminalDown(order=wire.WorkOrder(model=model, scale=1.0, local_steps=3, verdict=verdict, round=1)),
            wire.TerminalDown(
                probe=wire.Probe(
                    models=[codec.tensor(np.ones((1, NUMBERS)))] * 2, points=codec.tensor(np.eye(2)), verdict=verdict
                )
            ),
            wire.TerminalDown(release=wire.Release(verdict=verdict)),
            wire.TerminalDown(trial=wire.Trial(model=model)),
        ]
        messages = [message.SerializeToString() for message in down]
        refused = await feed(receive, messages, 2_000)
        return refused, before, service.memory.record().SerializeToString(deterministic=True)

    refused, before, after = run(attack)
    assert before == after
    assert refused > 500


def test_spoiled_messages_of_stations_do_not_reach_a_training(tmp_path: Path) -> None:
    """The cloud refuses answers that it did not ask for, or that cannot be; nothing of them is kept."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def attack() -> tuple[int, CloudService]:
        cloud = make_cloud(folder, tmp_path / "state")
        peer = attach(cloud, folder, 0)
        waiting = asyncio.create_task(cloud.stations.requests.ask(0, wire.Request(roster=wire.Nothing()), 30.0))
        await settle()
        asked = requests(peer)[0].id
        effort = wire.Effort(terminal=0, local_steps=3, answered=True)
        bodies: list[dict[str, Any]] = [
            {"report": wire.Report(task=0, v=codec.tensor(np.ones((1, NUMBERS))), n_samples=3)},
            {"round": wire.RoundResult(round=1, efforts=[effort], gains=codec.tensor(np.ones(17)))},
            {"sums": wire.StationSums(task=0, losses=codec.tensor(np.ones(5)), dual=ONE, gradient=NONE)},
        ]
        messages = [
            wire.StationUp(answer=wire.Answer(id=asked + 1 + i, **body)).SerializeToString()
            for i, body in enumerate(bodies)
        ]
        refused = await feed(lambda data: cloud.stations.receive(peer, data), messages, 3_000)
        assert not waiting.done()
        waiting.cancel()
        return refused, cloud

    refused, service = run(attack)
    assert refused > 1_000
    assert service.trainer.status == {"state": "idle"}
    assert not service.journal.replaying
