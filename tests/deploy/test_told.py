"""What operators are told is so now: whom a training waits for, which round it is, and no trouble that has passed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.deploy import inside, nets
from tests.deploy.test_distrust import ROUND, effort, result
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.cli.network.text import tree
from rhfedmtl.cli.text import amount
from rhfedmtl.deploy.cloud.measured_run import RemoteEvaluation
from rhfedmtl.deploy.node.credentials import CLOUD, Identity
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.wire import wire_pb2 as wire


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two stations, of which nothing runs."""
    return nets.build(tmp_path_factory.mktemp("told") / "net", nets.small(2, 2, 30))


def text_of(facts: dict[str, Any]) -> str:
    """The tree as a person reads it."""
    console = Console(width=300)
    with console.capture() as taken:
        console.print(tree(facts))
    return taken.get()


def test_a_training_says_whom_it_waits_for(net: Path, tmp_path: Path) -> None:
    """A station that owes an answer and is not there is named; one that is there and works is not."""

    async def body() -> None:
        cloud = inside.make_cloud(net, tmp_path)
        assert cloud.stations.missing() == ["station 0 (not connected)", "station 1 (not connected)"]
        inside.attach(cloud, net, 0)
        assert cloud.stations.waited_for() == []
        for b in (0, 1):
            asked = asyncio.create_task(cloud.stations.requests.ask(b, wire.Request(roster=wire.Nothing()), 60.0))
            cloud.stations.rosters.tasks.add(asked)
        await inside.settle()
        assert cloud.stations.waited_for() == ["station 1 (not connected)"]
        facts = await cloud.commands.run("status")
        assert facts["training"]["waits_for"] == []  # no training runs
        facts["training"] = {"state": "running", "waits_for": cloud.stations.waited_for()}
        said = text_of(facts)
        assert "waiting for station 1 (not connected)" in said
        assert "running" not in said

    inside.run(body)


def test_what_nodes_write_does_not_steer_the_terminal_of_an_operator(net: Path, tmp_path: Path) -> None:
    """A terminal says freely why it declines, a station what went wrong: as text, and on one line."""

    async def body() -> None:
        cloud = inside.make_cloud(net, tmp_path)
        strange = "no\x1b[2J\x1b]52;c;YQ==\x07\r\n● station 1 fine"
        seats = [wire.Seat(terminal=0, n_samples=5, incarnation=1, connected=True)]
        roster = wire.Roster(seats=seats, declined={0: strange}, quarantined={1: strange})
        outlook = wire.Outlook(roster=roster, last_error=strange)
        await inside.say(cloud, inside.attach(cloud, net, 0), outlook=outlook)
        said = text_of(await cloud.commands.run("status"))
        assert "its site declines no" in said
        assert not {"\x1b", "\x07", "\r"} & set(said)
        assert all("fine" not in line or "no�" in line for line in said.splitlines())

    inside.run(body)


def test_before_it_begins_a_training_names_who_is_missing(net: Path, tmp_path: Path) -> None:
    """A terminal that is expected and did not come is named, with a station that has none."""

    async def body() -> None:
        cloud = inside.make_cloud(net, tmp_path)
        peers = [inside.attach(cloud, net, b) for b in (0, 1)]
        seats = [wire.Seat(terminal=0, n_samples=5, incarnation=1, connected=True)]
        await inside.say(cloud, peers[0], outlook=wire.Outlook(roster=wire.Roster(seats=seats)))
        cloud.stations.awaited = cloud.stations.missing
        here = ["terminal 1", "terminal 2", "terminal 3", "station 1 (none of its terminals)"]
        assert cloud.stations.waited_for() == here

    inside.run(body)


def test_at_its_end_a_training_waits_for_members_alone(net: Path, tmp_path: Path) -> None:
    """One that is expected and never came is part of no certificate; one that is silent is named when time is up."""

    async def body() -> None:
        cloud = inside.make_cloud(net, tmp_path)
        for b, terminals in ((0, [0]), (1, [2, 3])):
            seats = [wire.Seat(terminal=t, n_samples=5, incarnation=1, connected=t != 2) for t in terminals]
            outlook = wire.Outlook(roster=wire.Roster(seats=seats))
            await inside.say(cloud, inside.attach(cloud, net, b), outlook=outlook)
        assert await asyncio.to_thread(cloud._wait_until_ready, 0.05, members=True) == ["terminal 2"]
        assert "terminal 1" in cloud.stations.missing()
        assert cloud.stations.waited_for() == []

    inside.run(body)


@pytest.mark.parametrize(("back", "tries"), [(False, 1), (True, 3)])
def test_a_last_certificate_is_tried_for_again_once_all_are_back(back: bool, tries: int) -> None:
    """Not where they stay away; and a few times at most."""
    network: Any = None
    assert len([*RemoteEvaluation(network, lambda: back).tries()]) == tries


def test_the_round_of_a_station_is_that_of_its_last_answer(net: Path, tmp_path: Path) -> None:
    """Rounds are faster than outlooks: a station is shown in the round that it has answered."""

    async def body() -> None:
        cloud = inside.make_cloud(net, tmp_path)
        peer = inside.attach(cloud, net, 0)
        await inside.say(cloud, peer, outlook=wire.Outlook(round=1))
        request = wire.Request()
        request.CopyFrom(ROUND)
        asked = asyncio.create_task(cloud.stations.requests.ask(0, request, 60.0))
        await inside.settle()
        (sent,) = inside.requests(peer)
        await inside.say(cloud, peer, answer=wire.Answer(id=sent.id, **result(effort())))
        await asked
        shown = (await cloud.commands.run("status"))["stations"][0]["round"]
        assert shown == ROUND.round.round > 1

    inside.run(body)


def test_a_node_that_is_alone_says_so_seldom(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A day of tries is a few dozen lines; with the link, the trouble is over and the status has none."""

    async def body() -> None:
        link, above = inside.make_station(net, tmp_path).link, Identity("test-net", CLOUD)
        link._log = log = Log("station 0")
        link._note_link(above)
        for _ in range(24 * 3600):
            link._log_no_link(above, "127.0.0.1:1")
        assert log.last_error.startswith("no link")
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [line["tries"] for line in lines[:4]] == [1, 2, 4, 8]
        assert len(lines) < 60
        log("disk full", "error")
        link._note_link(above)
        assert log.last_error == "disk full"
        assert json.loads(capsys.readouterr().err.splitlines()[-1])["event"] == "linked"

    inside.run(body)


def test_a_training_can_be_followed_and_a_network_watched(net: Path) -> None:
    """`train --follow` ends with what `up` prints, `status --watch` until Ctrl-C; a link that is back is well."""
    with nets.running(net) as (supervisor, operator):
        words = ["network", "train", str(net), "--budget", "energy=20000"]
        followed = CliRunner().invoke(app, [*words, "--target-gap", "0.3", "--follow"])
        assert followed.exit_code == 0, followed.output
        assert "spent             energy " in followed.output
        assert f"next: rhfedmtl network export {net} --out {net}-model" in followed.output
        seen: list[dict[str, Any]] = []

        def look(facts: dict[str, Any]) -> None:
            seen.append(facts)
            if len(seen) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            operator.watch(look)
        assert [facts["training"]["state"] for facts in seen] == ["ended", "ended"]
        nets.restart(supervisor, "cloud")
        nets.wait(operator, nets.all_connected)
        assert nets.logged(net, "station-0", "no link")
        status = nets.wait(operator, lambda s: all("no link" not in each["last_error"] for each in s["stations"]))
        assert "no link" not in text_of(status)
        ordered = CliRunner().invoke(app, ["network", "train", str(net), "--budget", "energy=20000"])
        assert "\nat         20" in ordered.output  # a year
        said = text_of(nets.wait(operator, lambda s: bool(s["training"].get("left"))))
        assert "energy left 1" in said
        assert "e+0" not in said + ordered.output


@pytest.mark.parametrize(
    ("number", "text"), [(15040, "15,040"), (15040.25, "15,040.2"), (1234567.8, "1,234,568"), (299.2, "299.2")]
)
def test_amounts_are_written_as_people_write_them(number: float, text: str) -> None:
    """No powers of ten in a bill."""
    assert amount(number) == text
