"""A node cannot keep the others waiting, and a stop ends a training while a node stalls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import nets
from tests.deploy.inside import NEVER_S, attach, make_cloud, requests, run, say, settle
from tests.deploy.staller import staller
from tests.deploy.test_distrust import MODEL

from rhfedmtl.cli.network.text import closing_lines
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.cloud.station_sessions import StationSessions
from rhfedmtl.deploy.node.config import Limits, Waits
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.models.task_models import TaskModels

LONG = {
    "waits": Waits(patience=NEVER_S, start=60.0, answer=NEVER_S, again=2.0),
    "limits": Limits(quarantine=NEVER_S),
    "resources": Resources(cost=("energy=0.1,10",), deadline=1e5),
}
"""Waits that no test reaches."""


def ask(stations: StationSessions, seconds: float, *, training: bool = True) -> asyncio.Task[wire.Answer]:
    """A question to station 0."""
    return asyncio.create_task(
        stations.requests.ask(0, wire.Request(models=wire.Nothing()), seconds, training=training)
    )


def a_network(tmp_path: Path, quarantine: float = NEVER_S) -> Path:
    """A network of which nothing runs, whose cloud has more patience than a test."""
    waits = Waits(patience=NEVER_S, again=NEVER_S)
    return nets.build(tmp_path / "net", nets.small(2, 2, 40), waits=waits, limits=Limits(quarantine=quarantine))


def test_a_station_that_is_kept_out_is_not_waited_for(tmp_path: Path) -> None:
    """The request with the refused answer ends at once, and so does the next request."""
    folder = a_network(tmp_path)

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path / "state")
        stations, peer = cloud.stations, attach(cloud, folder, 0)
        question = ask(stations, NEVER_S)
        await settle()
        wrong = wire.Answer(id=requests(peer)[0].id, metrics=wire.Metrics())
        with pytest.raises(PeerError, match="metrics as an answer to models"):
            await say(cloud, peer, answer=wrong)
        await settle()
        assert question.done()
        assert "refused: metrics as an answer to models" in question.result().trouble
        again = ask(stations, NEVER_S)
        await settle()
        assert again.done()
        assert again.result().away
        assert not requests(peer)

    run(body)


def test_a_station_that_connects_again_and_again_is_waited_for_once(tmp_path: Path) -> None:
    """The cloud waits a single time between two answers; a late answer renews its patience."""
    folder = a_network(tmp_path, quarantine=0.0)
    seconds = 0.2

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path / "state")
        stations, peer = cloud.stations, attach(cloud, folder, 0)
        first = await ask(stations, seconds)
        assert (first.away, first.trouble) == (False, "station 0 does not answer")
        for _ in range(3):  # each time it gets a single request without a wait
            stations.greet(peer, peer.hello)
            requests(peer)
            question = ask(stations, seconds)
            await settle()
            assert question.done()
            owed = requests(peer)
            assert len(owed) == 1
            other = asyncio.create_task(stations.requests.ask(0, wire.Request(roster=wire.Nothing()), NEVER_S))
            await settle()
            answer = wire.Answer(id=requests(peer)[0].id, roster=wire.Roster())
            await say(cloud, peer, answer=answer)
            assert other.done()  # an answer to another request renews nothing
            question = ask(stations, seconds)
            await settle()
            assert question.result().away
            assert not requests(peer)
        await say(cloud, peer, answer=wire.Answer(id=owed[0].id, models=MODEL))
        question = ask(stations, NEVER_S)
        await settle()
        assert not question.done()
        await say(cloud, peer, answer=wire.Answer(id=requests(peer)[0].id, models=MODEL))
        assert question.done()

    run(body)


def test_a_greeting_renews_no_patience(tmp_path: Path) -> None:
    """A heartbeat or an answer shows that a station works; a greeting does not."""
    folder = a_network(tmp_path)

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path / "state")
        peer = attach(cloud, folder, 0)
        cloud.stations.requests.heard[0] -= 1000.0
        cloud.stations.greet(peer, peer.hello)
        assert cloud.stations.requests.quiet(0) >= 1000.0

    run(body)


def test_a_stop_cuts_short_what_a_training_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves requests of operators alone; the next training has its time again."""
    folder = a_network(tmp_path)
    monkeypatch.setattr("rhfedmtl.deploy.cloud.station_requests.STOP_S", 0.0)

    async def body() -> None:
        cloud = make_cloud(folder, tmp_path / "state")
        attach(cloud, folder, 0)
        question, command = ask(cloud.stations, NEVER_S), ask(cloud.stations, NEVER_S, training=False)
        await settle()
        assert not question.done()
        await cloud.commands.run("stop")
        await settle()
        assert (question.done(), command.done()) == (True, False)
        cloud.stations.requests.go_on()
        question = ask(cloud.stations, NEVER_S)
        await settle()
        assert not question.done()

    run(body)


def round_of(status: dict[str, Any]) -> int:
    """The round that a training has come to."""
    return status["training"].get("round") or 0


def stopped_with_a_staller(folder: Path, kind: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Train with a stalling station 1, stop at some status, and return the last status."""
    with nets.running(folder) as (supervisor, operator):
        nets.wait(operator, nets.all_connected)
        with staller(folder, supervisor, "station-1", kind):
            nets.wait(operator, nets.all_connected)
            operator.command("train")
            nets.wait(operator, until)
            operator.command("stop")
            return nets.wait(operator, nets.at_rest)


@pytest.mark.slow
def test_a_station_that_breaks_its_stream_stalls_the_others_once(tmp_path: Path) -> None:
    """It answers all but rounds, and connects anew each time: rounds after the first go on without a wait."""
    waits = Waits(patience=4.0, start=60.0, answer=5.0, again=2.0)
    resources = Resources(cost=("energy=0.1,10",), deadline=4.0)
    folder = nets.build(tmp_path / "net", nets.small(3, 2, 60), waits=waits, resources=resources)
    stopped_with_a_staller(folder, "breaks", lambda s: round_of(s) >= 40 or nets.at_rest(s))


def test_a_refused_station_stalls_neither_the_others_nor_a_stop(tmp_path: Path) -> None:
    """Its answers are refused from the start of a round on; the others learn, and a stop is obeyed."""
    folder = nets.build(tmp_path / "net", nets.small(3, 2, 60), **LONG)
    status = stopped_with_a_staller(folder, "refused", lambda s: round_of(s) >= 10)
    assert "and a factor of -1.0" in status["stations"][1]["last_error"]


@pytest.mark.parametrize("kind", ["SIGSTOP", pytest.param("no_work", marks=pytest.mark.slow), "mute"])
def test_a_stop_ends_a_training_in_the_middle_of_a_round(tmp_path: Path, kind: str) -> None:
    """While a terminal is silent or hangs, or a station does not answer, however long a round may take."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 60), learning={"certify_every": 1}, **LONG)
    node = "station-1" if kind == "mute" else "terminal-3"
    with nets.running(folder, nets.PAUSE_S) as (supervisor, operator):
        nets.wait(operator, nets.all_connected)
        operator.command("train")
        nets.wait(operator, lambda s: (s["training"].get("certified_round") or 0) >= 3)

        def stopped() -> dict[str, Any]:
            before = round_of(nets.wait(operator, lambda s: round_of(s) > 0))
            nets.wait(operator, lambda s: s["stations"][0]["round"] > before)  # a round that does not end
            operator.command("stop")
            return nets.wait(operator, nets.at_rest)["training"]

        if kind == "SIGSTOP":
            supervisor.kill(node, signal.SIGSTOP)
            training = stopped()
            supervisor.kill(node, signal.SIGCONT)
        else:
            with staller(folder, supervisor, node, kind):
                training = stopped()
    assert training["state"] == "ended", training
    assert 0 < training["certified_round"] <= training["round"]


def test_a_stop_ends_a_training_in_round_zero(tmp_path: Path) -> None:
    """A station that never tells of its rows keeps it from its first round, and not from its end."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 60), **LONG)

    def begun(status: dict[str, Any]) -> bool:
        return status["training"]["state"] == "running" and not status["training"]["waits_for"]

    training = stopped_with_a_staller(folder, "no_rows", begun)["training"]
    assert (training["state"], training["error"]) == ("stopped", "an operator ended it before its first round")


@pytest.mark.parametrize("loss", ["smoothed-hinge", pytest.param("squared-hinge", marks=pytest.mark.slow)])
def test_a_terminal_that_answers_no_probe_costs_no_result(tmp_path: Path, loss: str) -> None:
    """Its rows count at their worst if that is bounded; else the last complete certificate counts, and says so."""
    options = {"loss": loss}
    waits = Waits(patience=20.0, start=60.0, answer=3.0, again=2.0)
    learning = {"certify_every": 1, "options": options, "scale": "standard-unit"}
    folder = nets.build(tmp_path / "net", nets.small(2, 3, 60), learning=learning, waits=waits)
    with nets.running(folder) as (supervisor, operator):
        nets.wait(operator, nets.all_connected)
        before = nets.trained(operator, budget=["energy=200"])
        assert before["absent"] == []
        with staller(folder, supervisor, "terminal-3", "no_probe"):
            nets.wait(operator, nets.all_connected)
            training = nets.trained(operator, budget=["energy=1200"])
            operator.export(tmp_path / "out")
        text = " ".join(" ".join(closing_lines(training)).split())
        models = TaskModels.load(tmp_path / "out" / "model.npz")
        assert models.certificate is not None
        if loss == "smoothed-hinge":
            assert training["absent"] == ["terminal 3 (18 rows)"]
            assert training["certified_round"] == training["round"] > before["round"]
            assert 0.0 < training["gap"] <= training["primal"]
            assert "no answer to probes from terminal 3 (18 rows)" in text
            assert models.certificate.absent == (3,)
        else:
            assert training["absent"] == []
            assert training["certified_round"] < training["round"]
            assert "terminal" in text[text.index("as of round") :]
            assert models.certificate.absent == ()
