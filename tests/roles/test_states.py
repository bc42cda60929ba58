"""Tables of states: as the documentation draws them, closed, and obeyed."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.roles.world import World

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.errors import ProtocolError
from rhfedmtl.roles.cloud_states import CLOUD
from rhfedmtl.roles.messages import Join
from rhfedmtl.roles.roster import STATION, StationPhase
from rhfedmtl.roles.secure.masking import MASKER
from rhfedmtl.roles.states import Table, follow, name
from rhfedmtl.roles.terminal import TERMINAL, Phase

PAGE = Path(__file__).parents[2] / "docs/state_machines.md"
TABLES: dict[str, Table[Any]] = {"Terminal": TERMINAL, "Base station": STATION, "Cloud": CLOUD, "Masked sum": MASKER}


def drawn(title: str) -> dict[tuple[str, str], str]:
    """The table of a section: (state, event) to state."""
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *body = ([cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines)
    cells = {(state, row[0]): cell for row in body for state, cell in zip(head[1:], row[1:], strict=True)}
    return {place: cell for place, cell in cells.items() if cell != "—"}


@pytest.mark.parametrize("title", TABLES)
def test_the_page_shows_the_table(title: str) -> None:
    """Every entry is there, and no other."""
    table = TABLES[title]
    entries = {(state.value, name(event)): after.value for state, row in table.items() for event, after in row.items()}
    assert drawn(title) == entries


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_is_closed_and_cannot_be_changed(table: Table[Any]) -> None:
    """Every state that follows has a row, every state can be reached, and nobody writes into it."""
    states = {after for row in table.values() for after in row.values()}
    assert states == set(table) == set(type(next(iter(table))))
    with pytest.raises(TypeError):
        table[next(iter(table))] = {}  # type: ignore[index]


def test_an_event_without_an_entry_names_state_event_and_way_out() -> None:
    """The error says where the event would be possible."""
    needed = "terminal 3 is leaving: Join is possible only while it is detached or attached"
    with pytest.raises(ProtocolError, match=needed):
        follow("terminal 3", TERMINAL, Phase.LEAVING, Join)


def test_roles_go_from_state_to_state_as_the_tables_say() -> None:
    """A terminal joins, works, is probed, works, and leaves; its station opens and closes rounds."""
    world = World(DualMethod())
    terminal, station = world.terminals[0], world.stations[0]
    seen: list[Enum] = [terminal.phase]

    def do(act: Any, *given: Any) -> None:
        start = len(world.log)
        act(*given)
        world.exchange(start, 0xFFF)
        seen.append(terminal.phase)

    do(world.join, 0, 0)
    do(world.open_round, 0, [0], 0, 3)
    assert station.phase is StationPhase.OPEN
    world.close_round(0)
    assert station.phase is StationPhase.IDLE
    do(world.probe, 0)
    do(world.open_round, 0, [0], 0, 3)
    world.close_round(0)
    do(world.open_round, 0, [0], 0, 3)
    world.close_round(0)
    assert station.roster.release(0, station.round).verdict.factor == 1.0
    leave = terminal.leave(station.roster.release(0, station.round))
    assert leave is not None
    seen.append(terminal.phase)
    terminal.goodbye(station.roster.remove(leave))
    seen.append(terminal.phase)
    D, A, P, L = Phase.DETACHED, Phase.ATTACHED, Phase.PENDING, Phase.LEAVING
    assert seen == [D, A, P, A, P, P, L, D]
    np.testing.assert_allclose(station.U, 0.0, atol=1e-12)
