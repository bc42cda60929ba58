"""The invariant U_b = Σ_t X_tᵀα_t under random sequences of faults and membership changes."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import MERGES
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.roles.terminal import Phase
from tests.protocol.world import World

STATION = st.integers(0, 1)
TERMINAL = st.integers(0, 2)


class Faults(RuleBasedStateMachine):
    """Base stations and terminals, driven by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Any = None

    @initialize(merge=st.sampled_from(sorted(MERGES)), intercept=st.booleans(), start=st.booleans())
    def begin(self, merge: str, intercept: bool, start: bool) -> None:
        """Choose the method; half of the sequences begin with all terminals admitted."""
        self.world = World(DualMethod(loss=SmoothedHinge(), merge=MERGES[merge], intercept=intercept))
        if start:
            for t in range(3):
                self.world.join(t, self.world.home[t])
            for _ in range(3):
                self.world.deliver(0, keep=False)

    @rule(b=STATION, chosen=st.integers(1, 7), skip=st.integers(0, 2), steps=st.integers(1, 12))
    def open_round(self, b: int, chosen: int, skip: int, steps: int) -> None:
        """A station opens a round with some of its members, or, if one is open, closes it."""
        if b in self.world.open:
            self.world.close_round(b)
        members = [t for t in self.world.stations[b].members if chosen >> t & 1]
        self.world.open_round(b, members, skip, steps)

    @rule(b=STATION)
    def close_round(self, b: int) -> None:
        """A station merges what it has."""
        if b in self.world.open:
            self.world.close_round(b)

    @precondition(lambda self: self.world and self.world.mail)
    @rule(where=st.integers(0, 1000), keep=st.booleans(), count=st.integers(1, 4))
    def deliver(self, where: int, keep: bool, count: int) -> None:
        """Messages arrive, not always in the order in which they were sent, perhaps not for the last time."""
        for _ in range(min(count, len(self.world.mail))):
            self.world.deliver(where % len(self.world.mail), keep)

    @precondition(lambda self: self.world and self.world.mail)
    @rule()
    def deliver_all(self) -> None:
        """Everything under way arrives in order, answers too."""
        for _ in range(20):
            if self.world.mail:
                self.world.deliver(0, keep=False)

    @precondition(lambda self: self.world and self.world.mail)
    @rule(where=st.integers(0, 1000))
    def lose(self, where: int) -> None:
        """A message is lost."""
        del self.world.mail[where % len(self.world.mail)]

    @rule(b=STATION)
    def probe(self, b: int) -> None:
        """A station asks for sums."""
        if b not in self.world.open:
            self.world.probe(b)

    @rule(b=STATION)
    def anchor(self, b: int) -> None:
        """The cloud sends an anchor."""
        if b not in self.world.open:
            self.world.anchor(b)

    @rule(t=TERMINAL)
    def ask_to_leave(self, t: int) -> None:
        """A terminal wants to go, and its station knows it."""
        b = self.world.home[t]
        if b is None or b in self.world.open:
            return
        station = self.world.stations[b]
        if t in station.members or t in station.state.departed:
            self.world.release(t)

    @rule(t=TERMINAL, b=STATION)
    def join(self, t: int, b: int) -> None:
        """A free terminal joins where it likes; a bound one says again where it is."""
        terminal = self.world.terminals[t]
        if terminal.phase is Phase.LEAVING or terminal.state.update is not None:
            return
        home = self.world.home[t]
        self.world.join(t, b if home is None else home)

    @rule(t=TERMINAL, n=st.integers(1, 3))
    def add_rows(self, t: int, n: int) -> None:
        """A terminal between two stations takes in rows."""
        if self.world.terminals[t].phase is Phase.DETACHED and self.world.home[t] is None:
            self.world.add_rows(t, n)

    @rule(t=TERMINAL)
    def restart_terminal(self, t: int) -> None:
        """A terminal goes on from saved state."""
        self.world.restart_terminal(t)

    @rule(t=TERMINAL)
    def lose_terminal(self, t: int) -> None:
        """A terminal loses its state and starts at α = 0."""
        self.world.lose_terminal(t)

    @rule(b=STATION)
    def restart_station(self, b: int) -> None:
        """A station goes on from saved state."""
        self.world.restart_station(b)

    @rule(b=STATION, t=TERMINAL)
    def forget(self, b: int, t: int) -> None:
        """A station drops a terminal that was silent for too long."""
        if b not in self.world.open:
            self.world.stations[b].forget(t)

    @invariant()
    def sums_are_right(self) -> None:
        """What must hold after every step."""
        if self.world:
            self.world.check()


TestFaults = Faults.TestCase
TestFaults.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
