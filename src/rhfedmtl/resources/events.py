"""Events of a run that cost something: rounds, server iterations and releases, on a placement of terminals.

An event fully determines its charges, which `billing` computes. The events of a run are the record from which a ledger
is recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.runs import Runs, bincount
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.prices import FloatArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Amount = float | FloatArray

_BY_STATION = ("request_bytes", "result_bytes")


@dataclass(frozen=True, eq=False)
class Placement:
    """The station of every terminal; -1 for a terminal id that is not (or no longer) a member.

    Terminal ids are global and survive a move: a move makes a new layout with the same ids.
    """

    terminal_task: IntArray
    n_tasks: int
    n_terminals: int = field(init=False)
    priced_by: Cost | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the stations and freeze the array."""
        stations: Any = self.terminal_task
        task = stations if isinstance(stations, Runs) else np.array(stations, dtype=np.int64)
        if len(task.shape) != 1 or (len(task) and not (task.min() >= -1 and task.max() < self.n_tasks)):
            raise ConfigError(f"terminal_task must hold stations 0 to {self.n_tasks - 1} or -1, got {task[:8]}")
        if isinstance(task, np.ndarray):
            task.flags.writeable = False
        object.__setattr__(self, "terminal_task", task)
        object.__setattr__(self, "n_terminals", len(task))

    @cached_property
    def complete(self) -> bool:
        """True if every terminal id is a member."""
        return bool(self.terminal_task.min(initial=0) >= 0)

    @cached_property
    def members(self) -> IntArray:
        """Number of terminals of each station."""
        task = self.terminal_task if self.complete else self.terminal_task[self.terminal_task >= 0]
        return bincount(task, self.n_tasks)

    def check(self, cost: Cost) -> None:
        """Check the sizes of price arrays, and remember the cost: callers need not check it again."""
        cost.check(self.n_terminals, self.n_tasks)
        object.__setattr__(self, "priced_by", cost)

    def equals(self, layout: Placement) -> bool:
        """Return True if both place the same terminals under the same stations."""
        return self is layout or (self.n_tasks == layout.n_tasks and self.matches(layout.terminal_task))

    def matches(self, terminal_task: IntArray) -> bool:
        """Return True if the terminals belong to these stations."""
        return self.terminal_task is terminal_task or np.array_equal(self.terminal_task, terminal_task)


@dataclass(frozen=True, eq=False)
class RoundEvent:
    """A BS iteration that took place or is planned.

    Parameters
    ----------
    round
        Number of the BS iteration, counted through the run.
    layout
        Stations of the terminals.
    local_steps
        Rows visited, for all or per terminal. Work counts even if its update was lost.
    stations, terminals
        Masks of the stations and terminals that take part; all do by default. Terminals of an absent station take no
        part.
    bytes_down, bytes_up
        Bytes from station to terminal and back, for all or per terminal.
    request_bytes, result_bytes
        Bytes of the request from cloud to station and of the result back, for all or per station.
    merges
        True if the station's iteration is charged; False for an event that only sends messages, as in round zero.
    deadline
        Per ``elapsed`` type: the longest time that stations wait for a terminal, for all or per terminal.
    slowdown
        Factor by which a terminal's work took longer than its price says (``elapsed`` types), for all or per terminal.
    ahead
        Per ``elapsed`` type: the time that each station has waited for the slowest since the server iteration started.
        Only time beyond this is charged.
    """

    round: int
    layout: Placement
    local_steps: int | IntArray
    stations: BoolArray | None = None
    terminals: BoolArray | None = None
    bytes_down: Amount = 0.0
    bytes_up: Amount = 0.0
    request_bytes: Amount = 0.0
    result_bytes: Amount = 0.0
    merges: bool = True
    deadline: Mapping[str, Amount] | None = None
    slowdown: Amount = 1.0
    ahead: Mapping[str, FloatArray] | None = None

    def __post_init__(self) -> None:
        """Check sizes and signs."""
        layout = self.layout
        for name, waiting_time in (self.ahead or {}).items():
            check_amount(f"ahead of {name}", waiting_time, layout.n_tasks)
        for name, deadline in (self.deadline or {}).items():
            check_amount(f"deadline of {name}", deadline, layout.n_terminals)
        for name in ("local_steps", "bytes_down", "bytes_up", "slowdown", "request_bytes", "result_bytes"):
            value: Any = getattr(self, name)
            if isinstance(value, np.ndarray) or not 0 <= value < math.inf:
                check_amount(name, value, layout.n_tasks if name in _BY_STATION else layout.n_terminals)
        if self.stations is not None:
            _check_mask("stations", self.stations, layout.n_tasks)
        if self.terminals is not None:
            _check_mask("terminals", self.terminals, layout.n_terminals)

    @cached_property
    def terminal_ids(self) -> IntArray | None:
        """Terminals that take part, if some do not."""
        masks = [] if self.layout.complete else [self.layout.terminal_task >= 0]
        if self.terminals is not None:
            masks.append(self.terminals)
        if self.stations is not None:
            masks.append(self.stations[self.layout.terminal_task])
        return _ids(masks)

    @cached_property
    def station_ids(self) -> IntArray | None:
        """Stations that take part, if some do not."""
        return _ids([] if self.stations is None else [self.stations])

    @property
    def steps(self) -> IntArray:
        """H of every terminal, 0 if it takes no part; a view that takes no memory if all are equal."""
        steps = np.asarray(np.broadcast_to(self.local_steps, self.layout.n_terminals))
        if self.terminal_ids is None:
            return steps
        active = np.zeros_like(steps)
        active[self.terminal_ids] = steps[self.terminal_ids]
        return active


@dataclass(frozen=True, eq=False)
class CloudEvent:
    """A server iteration after BS iteration ``round``: the stations that take part, and bytes per station."""

    round: int
    layout: Placement
    stations: BoolArray | None = None
    bytes_down: Amount = 0.0
    bytes_up: Amount = 0.0
    merges: bool = True

    def __post_init__(self) -> None:
        """Check sizes and signs."""
        for name in ("bytes_down", "bytes_up"):
            value: Any = getattr(self, name)
            if isinstance(value, np.ndarray) or not 0 <= value < math.inf:
                check_amount(name, value, self.layout.n_tasks)
        if self.stations is not None:
            _check_mask("stations", self.stations, self.layout.n_tasks)

    @cached_property
    def station_ids(self) -> IntArray | None:
        """Stations that take part, if some do not."""
        return _ids([] if self.stations is None else [self.stations])


@dataclass(frozen=True, eq=False)
class ReleaseEvent:
    """A release outside of the rounds, after BS iteration ``round``, and the amount of each type that it used."""

    round: int
    layout: Placement
    amounts: Mapping[str, float]


Event = RoundEvent | CloudEvent | ReleaseEvent


def round_zero_events(layout: Placement, terminal: tuple[int, int], station: tuple[int, int]) -> list[Event]:
    """Return the events of round zero from the bytes (up, down) of a terminal and a station.

    The list is empty if terminals send nothing.
    """
    (up, down), (station_up, station_down) = ((float(a), float(b)) for a, b in (terminal, station))
    if not up:
        return []
    return [
        RoundEvent(0, layout, 0, bytes_up=up, bytes_down=down, merges=False),
        CloudEvent(0, layout, bytes_up=station_up, bytes_down=station_down, merges=False),
    ]


def pick(values: Any, ids: IntArray | None) -> Any:
    """Return the values of these nodes; a number stands for all nodes."""
    return values[ids] if ids is not None and isinstance(values, np.ndarray) else values


def count_nodes(ids: IntArray | None, n_nodes: int) -> int:
    """Return the number of these nodes, or of all nodes without ids."""
    return n_nodes if ids is None else len(ids)


def _ids(masks: list[BoolArray]) -> IntArray | None:
    """Return the nodes inside all masks, if they are not all nodes."""
    if not masks:
        return None
    mask = masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)
    return None if mask.all() else np.flatnonzero(mask)


def check_amount(name: str, value: Any, count: int) -> None:
    """Refuse a value that is negative or not finite, or an array without a value per node."""
    if isinstance(value, np.ndarray):
        if value.shape != (count,):
            raise ConfigError(f"{name} has shape {value.shape}, expected a value for each of {count} nodes")
        if value.size and not (value.min() >= 0 and value.max() < math.inf):
            raise ConfigError(f"{name} holds {value.min():g} to {value.max():g}: it must be finite and >= 0")
    elif not 0 <= value < math.inf:
        raise ConfigError(f"{name}={value}: it must be finite and >= 0")


def _check_mask(name: str, mask: BoolArray, count: int) -> None:
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise ConfigError(f"{name} must be a mask of {count} booleans, got {mask.dtype} of shape {mask.shape}")
