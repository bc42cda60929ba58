"""Tables of states: the events that may happen in each state of a role, and the state that follows.

An event is a message that the role receives or sends, or an act without a message. Networks lose, repeat, delay and
reorder messages. A message that is late, repeated, or of another membership changes nothing, so a table gives the state
after a current message, and has an entry wherever a late message may arrive. An event without an entry cannot
happen: it is a mistake of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeVar

from rhfedmtl.errors import ProtocolError
from rhfedmtl.roles.messages import Message

S = TypeVar("S", bound=Enum)
Event = type[Message] | str
Table = Mapping[S, Mapping[Event, S]]


def frozen(table: Table[S]) -> Table[S]:
    """Return a read-only copy of the table."""
    return MappingProxyType({state: MappingProxyType(dict(row)) for state, row in table.items()})


def follow(role: str, table: Table[S], state: S, event: Event) -> S:
    """Return the state after an event; raise `ProtocolError` if the table has no entry for it."""
    if event not in table[state]:
        states = " or ".join(possible.value for possible, row in table.items() if event in row)
        raise ProtocolError(f"{role} is {state.value}: {name(event)} is possible only while it is {states}")
    return table[state][event]


def name(event: Event) -> str:
    """Return the name of the message, or the act, for texts."""
    return event if isinstance(event, str) else event.__name__


class StateMachine(Generic[S]):
    """Current state of a role, shared by the objects that make up the role.

    Parameters
    ----------
    role : str
        Name of the role in errors.
    table : Table
        Events of each state.
    state : Enum
        First state.
    """

    def __init__(self, role: str, table: Table[S], state: S) -> None:
        self.role, self.state = role, state
        self._table = table

    def after(self, event: Event) -> S:
        """Return the state after an event; raise `ProtocolError` if the event is not possible now."""
        return follow(self.role, self._table, self.state, event)

    def enter(self, event: Event) -> None:
        """Move to the state after an event; raise `ProtocolError` if the event is not possible now."""
        self.state = follow(self.role, self._table, self.state, event)
