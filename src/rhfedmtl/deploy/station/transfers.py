"""Transfers: a station lets a terminal move or leave, forgets it, or readmits it after quarantine.

`Requests` calls `Transfers.answer` for a command of an operator, or for an owner who withdraws a terminal.
"""

from __future__ import annotations

import time

from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.heartbeat import Heartbeat
from rhfedmtl.deploy.station.masked import sum_under_masks
from rhfedmtl.deploy.station.memory import NOWHERE, Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.summed import SummingStation, SumRequest


class Transfers:
    """Carries out decisions of operators and owners about single terminals.

    In the clear, a terminal leaves alone. From a masked sum, it leaves together with its whole group, after the members
    that stay have sent their shares under masks, of which the station sees only the sum. It never asks a terminal that
    leaves a masked sum for its share.
    """

    def __init__(
        self, config: StationConfig, memory: Memory, members: TerminalSessions, heartbeat: Heartbeat, log: Log
    ) -> None:
        self._answer_s, self._memory, self._members = config.waits.answer, memory, members
        self._heartbeat, self._log = heartbeat, log
        self._last_try: tuple[frozenset[int], float] = frozenset(), 0.0

    async def answer(self, content: wire.Transfer, answer: wire.Answer) -> None:
        """Start a transfer. The terminal completes it when it is connected."""
        t, memory, membership = content.terminal, self._memory, self._members.membership
        method = memory.station.method
        leaves = method.channel.noised and not content.forget and content.destination.station == NOWHERE
        moves = not content.forget and content.destination.station != NOWHERE
        fixed = method.channel.noised or (memory.masked and not method.has_duals)
        if fixed and not content.readmit and not leaves:
            raise PeerError(
                f"sums of station {memory.task} are noised, or masked without duals: without terminal {t} they would "
                "reveal its contribution"
            )
        async with memory.turn:
            if content.readmit:
                memory.station.roster.readmit(t)
                if not memory.station.quarantined:
                    self._log.over("quarantined")
                memory.save()
            elif leaves:
                membership.let_stay_behind(t)
            elif content.forget and memory.masked is None:
                membership.forget(t)
            elif t in memory.station.members or moves:  # a terminal that has moved may still ask here for its new place
                memory.leaving[t] = wire.Place(station=NOWHERE) if content.forget else content.destination
                memory.save()
                if memory.masked is None:
                    membership.release_when_idle(t)
                else:
                    await self._let_go(memory.masked)
        self._heartbeat.send()  # first, so the cloud does not go on with the old members
        answer.done.SetInParent()

    async def _let_go(self, role: SummingStation) -> None:
        """Let terminals leave a masked sum together with their groups; the caller holds the turn.

        The members that stay send their shares under masks, so the terminals that leave need not be connected.
        """
        memory, attendance = self._memory, self._members.attendance
        leaving = memory.ready_to_leave(attendance.room)
        stay = role.members.keys() - leaving
        counted = {t for t in stay if attendance.room.group(t)}
        if not leaving or not counted or not counted <= set(attendance.present()):
            return
        if self._last_try[0] == leaving and time.monotonic() < self._last_try[1]:
            return
        self._last_try = leaving, time.monotonic() + self._answer_s
        probes: dict[int, SumRequest] = {probe.terminal: probe for probe in role.share_probes(counted)}
        summed = await sum_under_masks(self._members, probes, role.share_words, self._answer_s, require_all=True)
        if summed.words is None:
            missing = probes.keys() - (summed.question.arrived if summed.question is not None else {})
            names = ", ".join(map(str, sorted(missing)[:20])) or "some, at the end"
            self._log("leave waits", "warning", reason=f"no sum of what stays without terminals {names}")
            return
        try:
            goodbyes = role.keep(stay, summed.words)
        except PeerError as error:  # no single terminal can be blamed
            return self._log("leave waits", "error", reason=str(error))
        memory.save()
        for goodbye in goodbyes:
            self._members.membership.part_from(goodbye, attendance.acceptor.sessions.get(goodbye.terminal))
