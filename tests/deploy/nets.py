"""Small networks of real processes for tests, and what they must add up to."""

from __future__ import annotations

import atexit
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhfedmtl import failpoints
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.deploy.cloud.config import Resources
from rhfedmtl.deploy.local import supervisor as supervision
from rhfedmtl.deploy.local.provision import Blueprint, is_free, make_network
from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node.config import Limits, Waits
from rhfedmtl.deploy.node.job import load_rows
from rhfedmtl.deploy.node.state import StateFile
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError
from rhfedmtl.roles.channel import settled
from rhfedmtl.roles.messages import Scaling

SETTINGS: dict[str, Any] = {"light": False}
"""Of networks that are built, unless told."""
PATIENCE_S = 90.0
"""No wait of a test is longer than this."""
PAUSE_S = 0.1
"""Before each round of a training that has no end: nobody waits for many rounds of it."""
_PORTS_EACH = 256
_GUARDS: dict[int, socket.socket] = {}


def port() -> int:
    """First of some ports that are free, apart from those of other test processes."""
    for i in range(60):
        first = 11_000 + _PORTS_EACH * ((os.getpid() + i) % 60)
        if _is_mine(first) and all(is_free(each) for each in range(first, first + 120)):
            return first
    raise AssertionError("no free ports")


def _is_mine(first: int) -> bool:
    """Whether these ports are for this process: they are for whoever holds the last of them, until it ends."""
    if first not in _GUARDS:
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", first + _PORTS_EACH - 1))
        except OSError:
            guard.close()
            return False
        _GUARDS[first] = guard
        atexit.register(guard.close)
    return True


def small(tasks: int = 3, terminals: int = 4, samples: int = 60, **settings: Any) -> Federation:
    """Made data for a network."""
    request = Request("synthetic", tasks=tasks, terminals=terminals, samples_per_task=samples, settings=settings)
    return request.federation(seed=0)


def levelled(tasks: int = 2, terminals: int = 2, samples: int = 40) -> Federation:
    """A regression whose tasks have labels on levels far apart."""
    made = small(tasks, terminals, samples, classes=0)
    rows, tests = (np.repeat(100.0 * np.arange(tasks), np.diff(offsets)) for offsets in _rows(made))
    return replace(made, y=made.y + rows, test_y=made.test_y + tests)


def _rows(made: Federation) -> tuple[Any, Any]:
    return made.terminal_offsets[made.task_offsets], made.test_offsets


def restart(supervisor: Supervisor, name: str, meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Kill a node, and start it again: at once the first time, and then as soon as its supervisor does."""
    supervisor.kill(name)
    supervisor.processes[name].join()
    meanwhile()
    while name not in supervisor.keep_up():
        time.sleep(0.02)


def build(folder: Path, federation: Federation, **more: Any) -> Path:
    """A network in a folder, for this machine, without windows for operators unless asked for.

    Unless told, it can be compared with a simulation: rows are visited in the public order, and H may be small.
    """
    more["learning"] = {"least_steps": 1, **more.get("learning", {})}
    settings: dict[str, Any] = {
        **SETTINGS,
        "observed": False,
        "port": port(),
        "fsync": False,
        "cloud_signs": True,
        "row_seed": more["learning"].get("seed", 0),
        "owners_least_steps": more["learning"]["least_steps"],
        "resources": Resources(cost=("energy=0.1,10",)),
        "waits": Waits(patience=20.0, start=60.0, answer=10.0, again=2.0),
        "limits": Limits(quarantine=0.5),
    }
    make_network(folder, Blueprint("test-net", federation, **{**settings, **more}))
    return folder


def owner_allows(terminal: Path, least_steps: int = 1) -> None:
    """Write the line with which the owner of a terminal allows orders of less than a pass."""
    path = terminal / "terminal.toml"
    path.write_text(f"least_steps = {least_steps}\n" + path.read_text().replace("least_steps = 0\n", ""))


def shorten_journals(folder: Path, longest: int) -> None:
    """Let the cloud put a checkpoint in the place of every journal that is longer."""
    path = folder / "cloud" / "cloud.toml"
    path.write_text(f"journal_bytes = {longest}\n{path.read_text()}")


@contextmanager
def running(folder: Path, pause: float = 0.0) -> Iterator[tuple[Supervisor, Operator]]:
    """The network as processes, ended in any case; with a ``pause`` it waits for so many seconds before each round.

    A training without an end takes a core and more while a test waits for something else.
    """
    with paced(folder / "pace", pause), Supervisor(folder) as supervisor:
        supervisor.start()
        operator = Operator(folder)
        operator.wait_for_cloud(PATIENCE_S)
        yield supervisor, operator


@contextmanager
def paced(places: Path, pause: float) -> Iterator[None]:
    """Clouds that are started meanwhile wait before each round."""
    with pytest.MonkeyPatch.context() as patch:
        if pause:
            places.mkdir(exist_ok=True)
            (places / "cloud.journal-intent-before").write_text(str(pause))
            patch.setenv(failpoints.VARIABLE, str(places))
        yield


def failpoint_folder(tmp_path: Path, monkeypatch: Any) -> Path:
    """Where a file with the name of a place ends the next node that comes by it; nodes are soon started again."""
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setenv(failpoints.VARIABLE, str(places))
    monkeypatch.setattr(supervision, "LONGEST_RESTART_S", 0.2)
    return places


def wait(operator: Operator, until: Callable[[dict[str, Any]], bool], each: Callable[[], Any] = lambda: None) -> Any:
    """Status, once it is as wanted; ``each`` is called while waiting."""
    end = time.monotonic() + PATIENCE_S
    status: dict[str, Any] = {}
    while time.monotonic() < end:
        each()
        try:
            status = operator.command("status")
            if until(status):
                return status
        except ConfigError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"waited too long; last status {json.dumps(status)[:2000]}")


def at_rest(status: dict[str, Any]) -> bool:
    """Whether no training is under way."""
    return status["training"]["state"] not in ("running", "recovering")


def all_connected(status: dict[str, Any]) -> bool:
    """Whether every station and every terminal is there."""
    stations = status["stations"]
    return all(b["connected"] and all(t["connected"] for t in b["terminals"]) for b in stations)


def certified_since(status: dict[str, Any], round_: int, gap: float) -> bool:
    """Whether a gap below this was certified after a round: the one that is shown may be of an earlier problem."""
    training = status["training"]
    return (training.get("certified_round") or 0) > round_ and training["gap"] < gap


def trained(operator: Operator, each: Callable[[], Any] = lambda: None, **arguments: Any) -> dict[str, Any]:
    """What a training came to."""
    operator.command("train", **arguments)
    status = wait(operator, at_rest, each)
    status: dict[str, Any] = status["training"]
    assert status["state"] == "ended", status
    return status


def logged(folder: Path, name: str, event: str) -> list[dict[str, Any]]:
    """Events of a node's log."""
    path = folder / "logs" / f"{name}.log"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # a line that was cut off by a kill
        if entry.get("event") == event:
            found.append(entry)
    return found


def station_file(folder: Path, b: int) -> wire.StationFile:
    """What a station has written down."""
    payload = StateFile(folder / f"station-{b}" / "state" / "station.state", fsync=False).read()
    assert payload is not None
    return wire.StationFile.FromString(payload)


def terminal_file(folder: Path, t: int) -> wire.TerminalFile:
    """What a terminal has written down."""
    payload = StateFile(folder / f"terminal-{t}" / "state" / "terminal.state", fsync=False).read()
    assert payload is not None
    return wire.TerminalFile.FromString(payload)


def share_of(folder: Path, member: wire.MemberFile) -> Any:
    """X_tᵀα_t from a terminal's own files, with a pending update as its station has decided on it.

    Without what its channel keeps back, which no station has.
    """
    record = terminal_file(folder, member.terminal)
    assert record.incarnation == member.incarnation, f"terminal {member.terminal} and its station disagree"
    alpha = codec.array(record.alpha, "alpha")
    kept = codec.array(record.residual, "residual") if record.HasField("residual") else 0.0
    if record.HasField("update") and record.update.round == member.applied_round:
        alpha = alpha + member.applied_factor * codec.array(record.pending, "pending")
        if record.HasField("sent_residual"):
            kept = settled(kept, codec.array(record.sent_residual, "residual"), member.applied_factor)
    rows = load_rows(
        folder / f"terminal-{member.terminal}" / "data.npz", record.job.features, tuple(record.job.classes)
    )
    scaler = codec.from_wire(Scaling, record.scaling).scaler
    X = scaler.transform(rows.X)
    if method_of(record.job).intercept:
        X = np.column_stack([X, np.full(len(X), scaler.constant(X.shape[1]))])
    return alpha.T @ X - kept


def assert_invariant(folder: Path, n_stations: int, tolerance: float = 1e-10) -> int:
    """U_b = Σ_t X_tᵀα_t over the members, from the files alone; returns the number of members."""
    members = 0
    for b in range(n_stations):
        record = station_file(folder, b)
        here = [member for member in record.members if not member.departed]
        total = sum(share_of(folder, member) for member in here)
        U = codec.array(record.U, "U")
        error = float(np.abs(U - total).max() / max(1.0, float(np.abs(total).max())))
        assert error <= tolerance, f"station {b} is off by {error}"
        members += len(here)
    return members
