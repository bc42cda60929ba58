"""Finite state machines of the deployment: sessions, rounds and trainings.

A machine is a table of state × event → state. An event that the table does not list raises `ProtocolError`. The tables
lie next to the code that uses them, and ``docs/state_machines_deploy.md`` draws them. The state machines of the roles
are in `rhfedmtl.roles`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from rhfedmtl.errors import ProtocolError

S = TypeVar("S", bound=StrEnum)
Table = Mapping[S, Mapping[str, S]]


class Machine(Generic[S]):
    """A table and its current state. An event that the table does not allow raises an error and changes nothing."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table[S], state: S) -> None:
        self._table = table
        self.state = state

    def takes(self, event: str) -> bool:
        """Return True if the event is allowed in the current state."""
        return event in self._table[self.state]

    def after(self, event: str) -> S:
        """Return the state that the event leads to; raise `ProtocolError` if it is not allowed now."""
        if not self.takes(event):
            expected = ", ".join(self._table[self.state]) or "nothing"
            raise ProtocolError(f"{event} while {self.state}: there, only {expected} may come")
        return self._table[self.state][event]

    def on(self, event: str) -> None:
        """Apply the event: change to the state that it leads to."""
        self.state = self.after(event)
