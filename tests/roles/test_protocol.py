"""The invariant U_b + Σ_t residuals = Σ_t X_tᵀα_t under random sequences of faults and membership changes."""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.roles.channels import SAMPLES
from tests.roles.world import World

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.roles.terminal import Phase

STATION = st.integers(0, 1)
TERMINAL = st.integers(0, 3)
# Which of the messages of an exchange arrive: all, or by chance.
ARRIVES = st.one_of(st.just(0xFFF), st.integers(0, 0xFFF))


class Faults(RuleBasedStateMachine):
    """Base stations and terminals, driven by chance."""

    channels: ClassVar[tuple[str, ...]] = ("identity",)

    def __init__(self) -> None:
        super().__init__()
        self.world: Any = None

    @initialize(merge=st.sampled_from(sorted(MERGES)), intercept=st.booleans(), number=st.integers(0, 99))
    def begin(self, merge: str, intercept: bool, number: int) -> None:
        """Choose the method, and let all terminals join."""
        channel = SAMPLES[self.channels[number % len(self.channels)]]
        chosen = MERGES[merge]()
        if channel.sums_only and chosen.line_search:  # which would need more than sums, and is refused
            chosen = MERGES["add"]()
        method = DualMethod(loss=SmoothedHinge(), merge=chosen, intercept=intercept, channel=channel)
        self.world = World(method)
        for t in range(4):
            self.world.join(t, self.world.home[t])
        self.world.exchange(0, 0xFFF)

    @rule(b=STATION, steps=st.integers(1, 12), arrives=ARRIVES, close=st.booleans())
    def round(self, b: int, steps: int, arrives: int, close: bool) -> None:
        """A round of all members in which some messages are lost; it may stay open for a while."""
        if b in self.world.open:
            self.world.close_round(b)
        start = len(self.world.log)
        self.world.open_round(b, sorted(self.world.stations[b].members), steps % 3, steps)
        self.world.exchange(start, arrives)
        if close:
            self.world.close_round(b)

    @rule(b=STATION)
    def close_round(self, b: int) -> None:
        """A station merges what it has."""
        if b in self.world.open:
            self.world.close_round(b)

    @precondition(lambda self: self.world and self.world.log)
    @rule(ages=st.lists(st.integers(1, 25), min_size=1, max_size=4))
    def arrive_late(self, ages: list[int]) -> None:
        """Messages of the past arrive now: late, again, and in another order."""
        start = len(self.world.log)
        for age in ages:
            if age <= start:
                self.world.deliver(start - age)

    @rule(b=STATION, arrives=ARRIVES)
    def probe(self, b: int, arrives: int) -> None:
        """A station asks for sums."""
        if b not in self.world.open:
            start = len(self.world.log)
            self.world.probe(b)
            self.world.exchange(start, arrives)

    @rule(t=TERMINAL, b=STATION, arrives=ARRIVES)
    def move(self, t: int, b: int, arrives: int) -> None:
        """A terminal asks to leave, and joins where it likes once it is free; some messages are lost."""
        start = len(self.world.log)
        if self.world.may_ask_to_leave(t):
            self.world.release(t)
            self.world.exchange(start, arrives)
        if self.world.may_join(t):
            self.join(t, b, arrives)

    @rule(t=TERMINAL, b=STATION, arrives=ARRIVES)
    def join(self, t: int, b: int, arrives: int) -> None:
        """A free terminal joins where it likes; a bound one says again where it is."""
        if self.world.may_join(t):
            start, home = len(self.world.log), self.world.home[t]
            self.world.join(t, b if home is None else home)
            self.world.exchange(start, arrives)

    @rule(t=TERMINAL, n=st.integers(1, 3), arrives=ARRIVES)
    def add_rows(self, t: int, n: int, arrives: int) -> None:
        """A terminal leaves, takes in rows, and comes back."""
        b = self.world.home[t]
        if b is not None and self.world.may_ask_to_leave(t):
            start = len(self.world.log)
            self.world.release(t)
            self.world.exchange(start, arrives)
            if self.world.terminals[t].phase is Phase.DETACHED and self.world.home[t] is None:
                self.world.add_rows(t, n)
                self.join(t, b, arrives)

    @rule(b=STATION, t=TERMINAL, what=st.integers(0, 5), arrives=ARRIVES)
    def accident(self, b: int, t: int, what: int, arrives: int) -> None:
        """A new anchor, a restart from saved state, state lost, or a terminal given up."""
        if what == 0 and b not in self.world.open:
            self.world.anchor(b)
        elif what == 1:
            self.world.restart_station(b)
        elif what == 2:
            self.world.lose_terminal(t)
            self.join(t, b, arrives)
        elif what == 3 and b not in self.world.open:
            self.world.stations[b].roster.forget(t)
        else:
            self.world.restart_terminal(t)

    @invariant()
    def sums_are_right(self) -> None:
        """What must hold after every step."""
        if self.world:
            self.world.check()


class FaultsThroughChannels(Faults):
    """The same with updates that are clipped or rounded on their way."""

    channels = tuple(name for name in SAMPLES if name != "identity")


class ManyFaults(Faults):
    """More of the same."""


class ManyFaultsThroughChannels(FaultsThroughChannels):
    """More of the same."""


def machine(rules: type[Faults], examples: int) -> type[Any]:
    """The test of a machine, with so many sequences of 40 steps."""
    case: type[Any] = rules.TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return case


TestFaults = machine(Faults, 80)
TestFaultsThroughChannels = machine(FaultsThroughChannels, 80)
TestManyFaults = pytest.mark.slow(machine(ManyFaults, 1000))
TestManyFaultsThroughChannels = pytest.mark.slow(machine(ManyFaultsThroughChannels, 1000))
