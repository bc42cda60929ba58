"""Rounds of a station (BS iterations): orders go down to the terminals, updates come up and are merged.

`Requests` calls `StationRounds.hold` for each round that the cloud requests. The result goes to the cloud with the
effort of each terminal: steps, seconds and bytes, which the cloud charges to its budget.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.masked import sum_under_masks
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.questions import Question
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.roles.station import Merged
from rhfedmtl.roles.summed import SumRequest


class IdleError(PeerError):
    """The round cannot be held, and no order of it was sent, so it costs nothing."""


class StationRounds:
    """Holds the rounds of a station, including a round that was interrupted when the process was killed.

    Orders are on disk before they are sent, and the result is on disk before the cloud gets it. If the cloud repeats a
    round, the station repeats the result and does not hold the round twice. It never chooses H: the cloud does.
    """

    def __init__(self, memory: Memory, members: TerminalSessions, log: Log, meters: Meters) -> None:
        self._memory, self._members, self._log, self._meters = memory, members, log, meters

    async def hold(self, content: wire.RoundRequest, answer: wire.Answer) -> None:
        """Hold a round, or repeat the result if the cloud asks for the last round again."""
        began, memory = time.perf_counter(), self._memory
        if memory.last is not None and memory.last.round == content.round == memory.station.round:
            answer.round.CopyFrom(memory.last)
            return
        plan = dict(zip(content.terminals, content.local_steps, strict=True))
        present = await self._members.attendance.gather(t for t in plan if t in memory.station.members)
        async with memory.turn:
            result = await self._hold(content, plan, present)
            self._members.membership.heed_quarantine()
            result.seconds = time.perf_counter() - began
            result.epoch, result.membership = memory.epoch, memory.station.membership
            memory.last = result
            memory.save()
        self._meters.rounds.observe(result.seconds)
        self._meters.round.set(content.round)
        answer.round.CopyFrom(result)

    async def _hold(self, content: wire.RoundRequest, plan: dict[int, int], present: list[int]) -> wire.RoundResult:
        """Hold the round with the present terminals, and with orders that went out before a kill."""
        memory, role = self._memory, self._memory.station
        earlier = memory.earlier_orders(content.round)
        if not memory.may_reopen(content.round, plan):
            memory.give_up_round()
            result = wire.RoundResult(round=content.round, gains=codec.tensor(np.zeros(CURVE)))
        elif content.round <= role.round:
            raise PeerError(f"round {content.round} is over here: {role.round} was the last")
        else:
            changing, declines = self._members.attendance.changing, self._members.questions.declines
            able = [t for t in present if t in role.members and t not in changing]
            steps = {t: plan[t] for t in able if not declines(t, plan[t])}
            if not earlier:
                self._need_work(plan, steps)
            memory.note_open(content.round, plan, earlier | steps)
            self._log("ordered", "debug", round=content.round, steps=steps)
            try:
                result = await self._collect(content, steps)
            finally:
                memory.rounds.on("merge")
        counted = {effort.terminal for effort in result.efforts}
        result.efforts.extend(
            wire.Effort(terminal=t, local_steps=H) for t, H in sorted(earlier.items()) if t not in counted
        )
        return result

    def _need_work(self, plan: dict[int, int], steps: dict[int, int]) -> None:
        """Refuse a round that would cost and teach nothing.

        If only terminals are present that the cloud did not ask for, the round goes on, and tells the cloud of them.
        """
        memory, members = self._memory, self._members
        task, present = memory.task, members.attendance.present()
        if memory.station.anchor is None:
            raise IdleError(f"station {task} has no anchor yet")
        if memory.masked is not None and not members.attendance.room.complete_groups(present):
            absent = memory.station.members.keys() - set(present)
            names = ", ".join(map(str, sorted(absent)[:20])) or "that are yet to come"
            raise IdleError(f"all terminals of a group are needed for a masked sum; not there: terminals {names}")
        if not steps and not present:
            raise IdleError(f"none of the terminals of station {task} is there")
        if not steps and all(members.questions.declines(t, plan.get(t, -1)) for t in present):
            raise IdleError(f"the sites of all terminals of station {task} that are there decline")

    async def _collect(self, content: wire.RoundRequest, steps: dict[int, int]) -> wire.RoundResult:
        """Send the orders, wait for the updates, and merge them. Under masks, the station sees only the sum."""
        role, summing = self._memory.station, self._memory.masked
        orders, merged = role.open_round(content.round, steps), None
        if summing is None:
            try:
                messages = {order.terminal: order for order in orders}
                question = await self._members.questions.ask("update", messages, content.deadline, role.receive)
            finally:
                merged = role.close_round()
            return _result(merged, steps, [question])
        try:
            requests: dict[int, SumRequest] = {order.terminal: order for order in orders}
            summed = await sum_under_masks(self._members, requests, summing.update_words, content.deadline)
            try:
                merged = None if summed.words is None else summing.close_sum(summed.arrived, summed.words)
            except PeerError as error:  # no single terminal can be blamed
                self._log("round void", "error", round=role.round, reason=str(error))
        finally:
            merged = merged or summing.close_void()
        if summed.question is None:  # no order went out
            return _result(merged, {}, [])
        return _result(merged, {o.terminal: o.local_steps for o in orders}, [summed.question, *summed.extra_questions])


def _result(merged: Merged, steps: Mapping[int, int], questions: list[Question]) -> wire.RoundResult:
    """Return the result of a round, with the effort of each terminal that the first question, for work, was sent to.

    An effort has the bytes of all questions, and the seconds as far as the station can see them.
    """
    efforts = []
    for t, H in sorted(steps.items()):
        if t not in (work := questions[0]).messages:
            continue
        arrival = work.arrived.get(t)
        waited = work.at.get(t, time.monotonic()) - work.began
        n_bytes = [question.n_bytes(t) for question in questions]
        efforts.append(
            wire.Effort(
                terminal=t,
                local_steps=H,
                answered=t in merged.answered,
                work_seconds=min(arrival.seconds, waited) if arrival else 0.0,
                wait_seconds=waited,
                bytes_down=sum(down for down, _ in n_bytes),
                bytes_up=sum(up for _, up in n_bytes),
            )
        )
    return wire.RoundResult(round=merged.round, efforts=efforts, factor=merged.factor, gains=codec.tensor(merged.gains))
