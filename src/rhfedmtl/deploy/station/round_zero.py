"""Round zero at a station: sums over rows and labels of its members, and agreements before the first round.

`Requests` calls `RoundZero`. The members report moments of their features and sums over their labels, in the clear or
under masks. From the sums of all stations, the cloud derives scaling, centring and noise, and `agree` passes them on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.job import Agreement
from rhfedmtl.deploy.station.masked import sum_under_masks
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import (
    WIDE_FIELDS,
    FeatureMapping,
    LabelsReport,
    MomentsReport,
    MomentsRequest,
    RowProbe,
    Vector,
)
from rhfedmtl.roles.round_zero import Spreads, common
from rhfedmtl.roles.summed import SummingStation, SumRequest


class RoundZero:
    """Round zero of a station."""

    def __init__(self, config: StationConfig, memory: Memory, members: TerminalSessions) -> None:
        self._memory, self._members, self._answer_s = memory, members, config.waits.answer

    async def moments(self, content: wire.MomentsRequest, answer: wire.Answer) -> None:
        """Answer with the moments of the rows of all present members, as the mapping of the request makes them."""
        memory, request = self._memory, codec.from_wire(MomentsRequest, content)
        if memory.masked is not None:
            sums = (await self._masked(memory.masked, labels=False, mapping=request.mapping)).moments
        else:
            columns = self._columns(request.mapping)

            def fits(report: MomentsReport) -> bool:
                if report.mean.shape != (columns,):
                    raise PeerError(f"moments of {report.mean.shape} columns, where {columns} were asked for")
                return True

            parts = await self._reports("moments", wire.TerminalDown(ask_moments=content), fits)
            async with memory.turn:
                sums = memory.station.roster.add_moments(parts, request.row_map)
                self._members.membership.heed_quarantine()
        kind = memory.station.method.channel.moments_dtype
        answer.moments.CopyFrom(codec.to_wire(MomentsReport.of(memory.task, sums, kind)))

    def _columns(self, mapping: FeatureMapping | None) -> int:
        """Return the number of columns of the rows of a request."""
        if mapping is not None:
            return mapping.mapping.columns
        return self._memory.job.features if self._memory.job is not None else 0

    async def labels(self, _: wire.Nothing, answer: wire.Answer) -> None:
        """Answer with the sums over the labels of all present members."""
        memory = self._memory
        if memory.masked is not None:
            sums = (await self._masked(memory.masked, labels=True)).labels
        else:
            parts = await self._reports("labels", wire.TerminalDown(ask_labels=wire.Nothing()))
            async with memory.turn:
                sums = memory.station.roster.add_labels(parts)
                self._members.membership.heed_quarantine()
        answer.labels.CopyFrom(codec.to_wire(LabelsReport(memory.task, sums)))

    async def agree(self, name: str, done: str, content: Any, answer: wire.Answer) -> None:
        """Send an agreement, such as the scaling, to every terminal; wait until the members confirm with ``done``."""
        memory, attendance, body = self._memory, self._members.attendance, {name: content}
        async with memory.turn:
            memory.agree(Agreement.read(wire.Welcome(**body)))
            self._members.membership.heed_quarantine()
            memory.save()
        message, present = wire.TerminalDown(**body), attendance.present()
        for t in attendance.acceptor.sessions.keys() - set(present):
            attendance.tell(t, **body)  # greeted before the agreement, and about to join
        await self._members.questions.ask(done, dict.fromkeys(present, message), self._answer_s)
        answer.done.SetInParent()

    async def _reports(
        self, kind: str, message: wire.TerminalDown, fits: Callable[[Any], bool] = lambda _: True
    ) -> dict[int, Any]:
        """Ask the present members about their rows; return their reports by terminal."""
        present = await self._members.attendance.gather(self._memory.station.members)
        messages = dict.fromkeys(present, message)
        question = await self._members.questions.ask(kind, messages, self._answer_s, fits)
        if not question.arrived:
            raise PeerError(f"no terminal of station {self._memory.task} sent its {kind}")
        return {t: arrival.content for t, arrival in question.arrived.items()}

    async def _masked(self, role: SummingStation, *, labels: bool, mapping: FeatureMapping | None = None) -> Spreads:
        """Return means and spreads of rows, or of labels, over all members, from two masked sums."""
        weight, mean = common(await self._masked_sum(role, RowProbe(labels, np.empty(0), mapping)))
        return Spreads(weight, mean, await self._masked_sum(role, RowProbe(labels, mean, mapping)))

    async def _masked_sum(self, role: SummingStation, probe: RowProbe) -> Vector:
        """Return a masked sum over all members; raise `PeerError` if a member is missing."""
        await self._members.attendance.gather(role.members)
        width = 1 if probe.labels else self._columns(probe.mapping)
        length = WIDE_FIELDS * (width if probe.about.size else 1 + width)
        async with self._memory.turn:
            orders: dict[int, SumRequest] = dict.fromkeys(sorted(role.members), probe)
            summed = await sum_under_masks(self._members, orders, length, self._answer_s, require_all=True)
            if summed.words is None:
                missing = ", ".join(str(t) for t in sorted(role.members.keys() - summed.arrived)[:20])
                raise PeerError(f"no masked sum of the rows of station {self._memory.task}: terminals {missing}")
            return role.row_sums(probe, summed.words)
