"""Transfers that the cloud commands: a station lets terminals go elsewhere, forgets them, or takes them back."""

from __future__ import annotations

import time

from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.heartbeat import Heartbeat
from rhfedmtl.deploy.station.masked import hold
from rhfedmtl.deploy.station.memory import NOWHERE, Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.summed import SummingStation, SumRequest


class Transfers:
    """Carries out what operators decide about single terminals, and the owners who withdraw theirs.

    `Requests` calls it. In the clear a terminal leaves alone; from a masked sum it leaves with its whole group, after
    the members that stay have told their sum. It never asks a terminal that leaves for its share under masks.
    """

    def __init__(
        self, config: StationConfig, memory: Memory, members: TerminalSessions, heartbeat: Heartbeat, log: Log
    ) -> None:
        self._answer_s, self._memory, self._members = config.waits.answer, memory, members
        self._heartbeat, self._log = heartbeat, log
        self._last_try: tuple[frozenset[int], float] = frozenset(), 0.0

    async def answer(self, content: wire.Transfer, answer: wire.Answer) -> None:
        """Begin a transfer; it ends when the terminal has heard of it."""
        t, memory, membership = content.terminal, self._memory, self._members.membership
        method = memory.station.method
        leaves = method.channel.noised and not content.forget and content.destination.station == NOWHERE
        moves = not content.forget and content.destination.station != NOWHERE
        fixed = method.channel.noised or (memory.masked and not method.has_duals)
        if fixed and not content.readmit and not leaves:
            raise PeerError(
                f"sums of station {memory.task} are noised, or masked without duals: without terminal {t} they would "
                "tell what it put into them"
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
            elif t in memory.station.members or moves:  # a terminal that moved may come back, and is told where to
                memory.leaving[t] = wire.Place(station=NOWHERE) if content.forget else content.destination
                memory.save()
                if memory.masked is None:
                    membership.release_when_idle(t)
                else:
                    await self._let_go(memory.masked)
        self._heartbeat.send()  # before the answer: the cloud must not go on with the old members
        answer.done.SetInParent()

    async def _let_go(self, role: SummingStation) -> None:
        """Let terminals leave a masked sum, in a turn, with all that count together with them.

        The members that stay tell the sum of their shares: a terminal that leaves need not be there.
        """
        memory, attendance = self._memory, self._members.attendance
        going = memory.waiting(attendance.room)
        stay = role.members.keys() - going
        counted = {t for t in stay if attendance.room.group(t)}
        if not going or not counted or not counted <= set(attendance.present()):
            return
        if self._last_try[0] == going and time.monotonic() < self._last_try[1]:
            return
        self._last_try = going, time.monotonic() + self._answer_s
        probes: dict[int, SumRequest] = {probe.terminal: probe for probe in role.share_probes(counted)}
        summed = await hold(self._members, probes, role.share_words, self._answer_s, whole=True)
        if summed.words is None:
            missing = probes.keys() - (summed.told.arrived if summed.told is not None else {})
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
