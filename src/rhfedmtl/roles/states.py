"""Tables of states: what may happen in each state of a role, and the state that follows.

What happens is a message, received or sent, or an act that has none. A message from a peer may be late, repeated, or
meant for another membership: it then changes nothing, so a table says what follows one that is current, and has an
entry wherever one may come late. What has no entry cannot happen there: whoever drives the role made a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

from rhfedmtl.errors import ProtocolError
from rhfedmtl.roles.messages import Message

S = TypeVar("S", bound=Enum)
Event = type[Message] | str
Table = Mapping[S, Mapping[Event, S]]


def frozen(table: Table[S]) -> Table[S]:
    """The same table, which nobody can change."""
    return MappingProxyType({state: MappingProxyType(dict(row)) for state, row in table.items()})


def follow(who: str, table: Table[S], state: S, event: Event) -> S:
    """State after an event; refused where the table has no entry for it."""
    if event not in table[state]:
        where = " or ".join(other.value for other, row in table.items() if event in row)
        raise ProtocolError(f"{who} is {state.value}: {name(event)} is possible only while it is {where}")
    return table[state][event]


def name(event: Event) -> str:
    """The message, or the act, in words."""
    return event if isinstance(event, str) else event.__name__
