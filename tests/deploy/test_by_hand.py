"""The commands of docs/nodes_by_hand.md, as an operator types them, and the lines that they print."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.deploy import inside, nets
from tests.waiting import wait_for

from rhfedmtl.cli.network.text import closing_lines, tree
from rhfedmtl.dashboard import network
from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import PeerError

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 80


def commands() -> list[list[str]]:
    """The commands of the page, in their order."""
    page = (ROOT / "docs" / "nodes_by_hand.md").read_text()
    lines = [line.rstrip(" &") for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    return [line.split()[1:] for line in lines]


def run(place: Path, *words: str) -> str:
    """Return the output of a command on a terminal of 80 columns; it has to succeed."""
    environment = os.environ | {"COLUMNS": str(WIDTH)}
    command = [sys.executable, "-m", "rhfedmtl", *words]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def served(place: Path, *words: str) -> Iterator[None]:
    """A node in the background, until the end of the test."""
    command = [sys.executable, "-m", "rhfedmtl", *words]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.slow
def test_nine_commands_start_each_node_by_hand(tmp_path: Path) -> None:
    """The page works without a wait between the commands, and ends with a model."""
    init, *nodes, train, status, export = commands()
    assert len(nodes) == 5
    printed = run(tmp_path, *init)
    assert all(len(line) <= WIDTH for line in printed.splitlines())
    for words in (nodes[0], nodes[1], nodes[3]):
        assert f"  rhfedmtl {' '.join(words)}" in printed.splitlines()
    with ExitStack() as stack:
        for words in nodes:
            stack.enter_context(served(tmp_path, *words))
        run(tmp_path, *status)  # right after `serve`
        assert "accuracy" in run(tmp_path, *train)
        output = run(tmp_path, *status).splitlines()
        run(tmp_path, *export)
    assert (tmp_path / export[-1] / "model.npz").exists()
    assert output[0].split()[1] == "ended"
    assert all(len(line) <= WIDTH for line in output)
    folder = tmp_path / status[-1]
    finished = Operator(folder).last_result
    wait_for(lambda: finished(folder) is not None)
    lines = run(tmp_path, *status).splitlines()
    assert lines[0].endswith("finished; its nodes are stopped")
    assert lines[-1].endswith("--offline")
    assert "as of round" not in " ".join(lines)
    run(tmp_path, *lines[-1].removeprefix("next: rhfedmtl ").split())


def test_the_dashboard_shows_a_finished_network(tmp_path: Path) -> None:
    """It shows the result and the export instead of an outage."""
    training = {"state": "ended", "round": 31, "local_steps": 5, "spent": {"energy": 90.0}, "left": {"energy": 10.0}}
    facts: dict[str, Any] = {"network": "net", "running": False, "training": {**training, "accuracy": 0.9}}

    def ask(_: str) -> dict[str, Any]:
        raise PeerError("no answer from 127.0.0.1:1")

    watched = network.NetworkWatcher(tmp_path / "net", ask, lambda _: facts)
    watched.poll()
    page = network.view(watched)
    assert "no answer" not in page
    assert "running" not in page
    assert "finished" in page
    assert "round 31" in page
    assert "--offline" in page


def test_the_result_of_a_running_cloud_is_not_taken_from_its_folder(tmp_path: Path) -> None:
    """A network has finished if its cloud has ended and left a result."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))
    assert Operator.last_result(folder) is None
    config = read_cloud(folder / "cloud" / "cloud.toml")
    config.result.mkdir(parents=True)
    (config.result / "result.json").write_text('{"state": "ended"}')
    assert Operator.last_result(folder) == {"network": "test-net", "running": False, "training": {"state": "ended"}}


def status_of(**changes: Any) -> dict[str, Any]:
    """A network with a long line of facts."""
    training = {
        **{"state": "running", "round": 31, "local_steps": 250, "accuracy": 0.997, "gap": 1e-3, "certified_round": 31},
        **{"relative_gap": 5e-3, "dual": 0.21, "left": {"energy": 1234.5, "bytes": 1e9}, "waits_for": []},
    }
    station = {"station": 0, "task": "task-0", "round": 31, "connected": True, "terminals": [], "last_error": ""}
    return {"network": "a-network", "training": {**training, **changes}, "stations": [station], "last_error": ""}


def test_a_status_fits_80_columns() -> None:
    """Each fact fits its line; the round of a certificate stands there if it is earlier."""
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    output = tree(status_of())
    console.print(output)
    lines = console.export_text().splitlines()
    assert lines[0].strip() == "a-network  running  round 31  H 250  accuracy 0.997"
    assert len(lines) == 1 + len(output.children)
    assert "(round" not in " ".join(lines)
    assert "(round 29)" in str(tree(status_of(certified_round=29)).children[0].label)


def test_a_result_names_its_round_only_if_that_is_earlier() -> None:
    """The last round needs no caveat."""
    facts = {
        "state": "ended",
        "round": 11,
        "rounds": 11,
        "cloud_rounds": 11,
        "spent": {},
        "budget": {},
        "stopped": "end",
    }
    facts |= {"seconds": 1.0, "gap": 1e-3, "relative_gap": 5e-3, "dual": 0.2, "primal": 0.201}
    assert "as of round" not in " ".join(closing_lines({**facts, "certified_round": 11}))
    assert "as of round 9" in " ".join(closing_lines({**facts, "certified_round": 9}))


def test_the_reason_why_a_station_is_refused_stands_under_it(tmp_path: Path) -> None:
    """A refusal at the greeting stands there too, before any training."""
    folder = nets.build(tmp_path / "net", nets.small(2, 2, 40))

    async def body() -> dict[str, Any]:
        cloud = inside.make_cloud(folder, tmp_path / "state")
        acceptor = cloud.stations.acceptor
        peer = inside.Peer(inside.STATION_TO_CLOUD, folder, "station-1").peer
        try:
            with acceptor._stream_of(peer):
                raise PeerError("protocols 1 to 2 do not include 3")
        except PeerError:
            pass
        status: dict[str, Any] = await cloud.commands.run("status")
        return status

    status = inside.run(body)
    assert status["stations"][1]["last_error"] == "refused: protocols 1 to 2 do not include 3"
    output = [str(line.label) for line in tree(status).children[-1].children]
    assert "refused: protocols 1 to 2 do not include 3" in output
