"""Where a session, a round or a training stands: a table of state × event → state, and nothing else may happen.

The tables are drawn in ``docs/state_machines_deploy.md``. Those of the roles are in `rhfedmtl.roles`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from rhfedmtl.errors import ProtocolError

S = TypeVar("S", bound=StrEnum)
Table = Mapping[S, Mapping[str, S]]


class Machine(Generic[S]):
    """Stands in one state of a table; an event that the table does not have there is a bug, and changes nothing."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table[S], state: S) -> None:
        self._table = table
        self.state = state

    def takes(self, event: str) -> bool:
        """Whether an event may happen now."""
        return event in self._table[self.state]

    def after(self, event: str) -> S:
        """Where an event would lead."""
        if not self.takes(event):
            expected = ", ".join(self._table[self.state]) or "nothing"
            raise ProtocolError(f"{event} while {self.state}: there, only {expected} may come")
        return self._table[self.state][event]

    def on(self, event: str) -> None:
        """Let it happen."""
        self.state = self.after(event)
