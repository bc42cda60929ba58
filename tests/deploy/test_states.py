"""Tables of states: complete, drawn in the documentation as they are, and nothing happens that they do not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import nets
from tests.deploy.inside import make_station, make_terminal

from rhfedmtl.deploy.cloud.trainer import TRAINING, Training
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD, TERMINAL_TO_STATION, Dialogue, StreamState
from rhfedmtl.deploy.node.states import Machine
from rhfedmtl.deploy.station.memory import ROUNDS, Rounds
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ProtocolError

PAGE = Path(__file__).parents[2] / "docs" / "state_machines_deploy.md"
TABLES: dict[str, Any] = {
    "A terminal's stream to its station": TERMINAL_TO_STATION.below,
    "A station's stream from a terminal": TERMINAL_TO_STATION.above,
    "A station's stream to the cloud": STATION_TO_CLOUD.below,
    "The cloud's stream from a station": STATION_TO_CLOUD.above,
    "The rounds of a station": ROUNDS,
    "The training of a network": TRAINING,
}


def drawn(table: Any) -> str:
    """A table as Markdown: a row for each state and where it leads."""
    rows = ["| in | on | goes to |", "| --- | --- | --- |"]
    for state, events in table.items():
        for target in dict.fromkeys(events.values()):
            names = ", ".join(name for name, to in events.items() if to is target)
            rows.append(f"| {state} | {names} | {target} |")
        rows += [] if events else [f"| {state} | nothing | |"]
    return "\n".join(rows)


@pytest.mark.parametrize("title", TABLES)
def test_the_page_shows_the_tables_as_they_are(title: str) -> None:
    """Who reads the page knows what the code does."""
    _, _, after = PAGE.read_text().partition(f"\n## {title}\n")
    section = after.partition("\n## ")[0]
    assert drawn(TABLES[title]) in section, f"write this under {title!r} in {PAGE.name}:\n\n{drawn(TABLES[title])}"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_state_has_its_row(table: Any) -> None:
    """No event leads to a state that the table does not have, and none is left out."""
    states = type(next(iter(table)))
    assert set(table) == set(states)
    assert {to for events in table.values() for to in events.values()} <= set(table)


def names(message: Any) -> set[str]:
    """What a message can carry."""
    return {field.name for field in message.DESCRIPTOR.oneofs_by_name["body"].fields}


@pytest.mark.parametrize("dialogue", [TERMINAL_TO_STATION, STATION_TO_CLOUD], ids=lambda d: d.service)
def test_every_message_of_the_wire_has_its_place(dialogue: Dialogue) -> None:
    """Whatever can be said between two nodes may come at some time, and nothing else is expected."""
    above = {name for events in dialogue.above.values() for name in events}
    below = {name for events in dialogue.below.values() for name in events} - {"hello"}
    assert (above, below) == (names(dialogue.up), names(dialogue.down))


def test_every_message_is_handled(tmp_path: Path) -> None:
    """The tables of handlers have all that the tables of states let through."""
    folder = nets.build(tmp_path / "net", nets.small(1, 2, 20))
    terminal, station = make_terminal(folder, tmp_path / "0"), make_station(folder, tmp_path / "1")
    of_the_link = {"refusal", "drain"}
    assert set(terminal.handlers) == names(wire.TerminalDown) - of_the_link
    assert set(station.handlers) == names(wire.StationDown) - of_the_link
    assert set(station.requests.handlers) == names(wire.Request) <= set(ROUNDS[Rounds.IDLE])


def test_what_a_table_does_not_have_changes_nothing() -> None:
    """An event in the wrong state is an error that names both, and what may come instead."""
    machine = Machine(TRAINING, Training.RUNNING)
    with pytest.raises(ProtocolError, match="order while running: there, only end, fail, stop, break may come"):
        machine.on("order")
    assert machine.state is Training.RUNNING
    machine.on("end")
    assert machine.state is Training.ENDED
    assert not Machine(TERMINAL_TO_STATION.below, StreamState.GREETING).takes("order")


def test_a_terminal_loads_nothing_that_only_others_need() -> None:
    """Wire, node and terminal could be installed without engines, models, runs, policies and the command line."""
    code = (
        "import sys, pkgutil, importlib; from rhfedmtl.deploy import node, terminal, wire\n"
        "for package in (wire, node, terminal):\n"
        "    for each in pkgutil.iter_modules(package.__path__):\n"
        "        importlib.import_module(f'{package.__name__}.{each.name}')\n"
        "print(*sorted(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("sklearn", "typer", "rich", "pandas")
    others = (
        "training",
        "runs",
        "engines",
        "models",
        "policies",
        "resources.ledger",
        "cli",
        "deploy.cloud",
        "deploy.station",
    )
    ours = tuple(f"rhfedmtl.{name}" for name in (*others, "algorithms.registry", "algorithms.options"))
    assert [name for name in loaded if name.startswith((*heavy, *ours))] == []
