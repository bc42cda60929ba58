"""Round zero at a station: what its members tell of their rows, and what all agree on before the first round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rhfedmtl.data.scaling import Moments
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.job import Agreement
from rhfedmtl.deploy.station.masked import hold
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import WIDE, MomentsReport, RowProbe, Vector
from rhfedmtl.roles.round_zero import Spreads, common
from rhfedmtl.roles.summed import SummingStation, SumRequest


class RoundZero:
    """Round zero of one station."""

    def __init__(self, config: StationConfig, memory: Memory, members: TerminalSessions) -> None:
        self._memory, self._members, self._answer_s = memory, members, config.waits.answer

    async def moments(self) -> Moments:
        """Moments of the rows of all members that are there."""
        if self._memory.masked is not None:
            return (await self._masked(self._memory.masked, labels=False)).moments
        features = self._memory.job.features if self._memory.job else 0

        def fits(report: MomentsReport) -> bool:
            if report.mean.shape != (features,):
                raise PeerError(f"moments of {report.mean.shape} features, the job has {features}")
            return True

        parts = await self._told("moments", wire.TerminalDown(ask_moments=wire.Nothing()), fits)
        async with self._memory.turn:
            sums = self._memory.station.add_moments(parts)
            self._members.heed_quarantine()
        return sums

    async def labels(self) -> Vector:
        """Sums over the labels of all members that are there."""
        if self._memory.masked is not None:
            return (await self._masked(self._memory.masked, labels=True)).labels
        parts = await self._told("labels", wire.TerminalDown(ask_labels=wire.Nothing()))
        async with self._memory.turn:
            sums = self._memory.station.add_labels(parts)
            self._members.heed_quarantine()
        return sums

    async def agree(self, done: str, **body: Any) -> None:
        """Let every terminal know what was agreed on, and wait until the members have heeded it."""
        memory, members = self._memory, self._members
        async with memory.turn:
            memory.agree(Agreement.read(wire.Welcome(**body)))
            members.heed_quarantine()
            memory.save()
        told, here = wire.TerminalDown(**body), members.present()
        for t in members.acceptor.sessions.keys() - set(here):
            members.tell(t, **body)  # it was greeted before anything was agreed on, and is about to join
        await members.ask(done, dict.fromkeys(here, told), self._answer_s)

    async def _told(
        self, kind: str, question: wire.TerminalDown, fits: Callable[[Any], bool] = lambda _: True
    ) -> dict[int, Any]:
        """What the members that are there tell of their rows."""
        here = await self._members.gather(self._memory.station.members)
        asked = await self._members.ask(kind, dict.fromkeys(here, question), self._answer_s, fits)
        if not asked.arrived:
            raise PeerError(f"no terminal of station {self._memory.task} told its {kind}")
        return {t: arrival.content for t, arrival in asked.arrived.items()}

    async def _masked(self, role: SummingStation, *, labels: bool) -> Spreads:
        """Means and spreads of rows, or of labels, of all members, from two sums."""
        weight, mean = common(await self._masked_sum(role, RowProbe(labels, np.empty(0))))
        return Spreads(weight, mean, await self._masked_sum(role, RowProbe(labels, mean)))

    async def _masked_sum(self, role: SummingStation, asked: RowProbe) -> Vector:
        """One of the two: over all members, as later sums are."""
        await self._members.gather(role.members)
        width = 1 if asked.labels or self._memory.job is None else self._memory.job.features
        length = WIDE * (width if asked.about.size else 1 + width)
        async with self._memory.turn:
            orders: dict[int, SumRequest] = dict.fromkeys(sorted(role.members), asked)
            held = await hold(self._members, orders, length, self._answer_s, whole=True)
            if held.words is None:
                missing = ", ".join(str(t) for t in sorted(role.members.keys() - held.arrived)[:20])
                raise PeerError(f"no masked sum of the rows of station {self._memory.task}: terminals {missing}")
            return role.told_rows(asked, held.words)
