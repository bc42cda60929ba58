"""A station's part of a certificate (duality gap): sums over all its members, at points that the cloud chooses.

`Requests` calls `CertificateSums.answer`, between rounds. The members compute losses and dual terms of their rows; the
station adds them, and the cloud combines the sums of all stations into the gap.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.station.masked import sum_under_masks
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.channel import standard_normal
from rhfedmtl.roles.messages import StationSums, Sums
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.roles.summed import SumRequest


class CertificateSums:
    """Adds up the sums of the members of a station for a certificate.

    A private certificate (with noise) is saved before the cloud gets it. If the cloud asks for the same certificate
    again, it gets the saved sums again: fresh noise would reveal more. A missing member either makes the request fail
    or is counted with its worst case. Models never change.
    """

    def __init__(self, config: StationConfig, memory: Memory, members: TerminalSessions) -> None:
        self._waits, self._memory, self._members = config.waits, memory, members

    async def answer(self, content: wire.SumsRequest, answer: wire.Answer) -> None:
        """Answer a request for sums, or say which terminals are missing."""
        memory, questions = self._memory, self._members.questions
        models, points = codec.stack(content.models, "models"), codec.array(content.points, "points")
        present = await self._members.attendance.gather(memory.station.members, self._waits.asleep)
        async with memory.turn:
            digest = hashlib.sha256(
                content.SerializeToString(deterministic=True)
                + struct.pack("<QQ", memory.station.round, memory.station.membership)
            ).digest()
            if content.HasField("noise") and memory.certified is not None and memory.certified[0] == digest:
                answer.sums.CopyFrom(memory.certified[1])  # other noise, or other members, would reveal more
                return
            sums, missing = await self._add(models, points, present, content)
            while sums is None and self._members.membership.heed_quarantine():  # again without the new suspects
                sums, missing = await self._add(models, points, present, content)
        if sums is None:
            absent = questions.absent()
            if not absent:
                raise PeerError(f"no sums from terminals {', '.join(map(str, missing)) or 'that changed'}")
            raise PeerError(
                f"no sums from terminals {', '.join(map(str, absent))}, which answer no probe, and nothing bounds "
                "their losses (that takes classes, unit rows, a loss with bounded duals, and exact updates): bring "
                "them back, or take them out with `rhfedmtl network forget`"
            )
        answer.sums.CopyFrom(codec.to_wire(sums))
        if content.HasField("noise"):
            memory.certified = digest, answer.sums
            memory.save()

    async def _add(
        self, models: Any, points: Any, present: list[int], content: wire.SumsRequest
    ) -> tuple[StationSums | None, list[int]]:
        """Return the sums of all members; or None, and the members that did not answer."""
        memory, questions, attendance = self._memory, self._members.questions, self._members.attendance
        role, noise = memory.station, content.noise if content.HasField("noise") else None
        silent = sorted(set(role.members) - set(present))
        exact = noise is None and memory.masked is None
        if exact:
            questions.note_probe((), [t for t in silent if attendance.is_connected(t)])
        absent = questions.absent() if exact else []
        if (silent and not exact and (noise is None or not present)) or (exact and set(silent) - set(absent)):
            raise PeerError(f"no sums, as these terminals are silent: {', '.join(map(str, silent[:20]))}")
        if role.method.channel.noised != (noise is not None):
            raise PeerError(f"a certificate with noise {noise}, where sums are noised: {role.method.channel.noised}")
        probes = role.probes(models, points, gradient=content.gradient, noise=noise)
        if memory.masked is not None:  # only the sum is unmasked, and without noise only over all members
            requests: dict[int, SumRequest] = {probe.terminal: probe for probe in probes}
            length, require_all = memory.masked.sums_words, not role.method.channel.noised
            summed = await sum_under_masks(self._members, requests, length, self._waits.answer, require_all=require_all)
            if summed.words is None:
                return None, sorted(requests.keys() - summed.arrived)
            return memory.masked.masked_sums(summed.words, summed.arrived), []

        def fits(sums: Sums) -> bool:
            if not probes or sums.number != probes[0].number:
                return False
            if sums.losses.shape != (len(points),):  # with noise, a single loss
                raise PeerError(f"loss sums of shape {sums.losses.shape}")
            try:
                role.check_sums(sums)
            except ImplausibleError as error:
                role.roster.suspect(error.terminal, error.reason)
                raise
            return True

        for probe in probes:  # sent without waiting: an answer shows that the terminal works again
            if probe.terminal in absent:
                attendance.tell(probe.terminal, probe=codec.to_wire(probe))
        messages = {p.terminal: p for p in probes if p.terminal in present and p.terminal not in absent}
        question = await questions.ask("sums", messages, self._waits.answer, fits)
        if exact:
            questions.note_probe(question.arrived, [t for t in question.missing if question.sent[t]])
        sums = role.add_sums([arrival.content for arrival in question.arrived.values()], questions.absent())
        if sums is not None and noise is not None:
            sums = replace(sums, losses=sums.losses + noise * standard_normal(sums.losses.shape, None))
        return sums, question.missing
