"""The process of a base station: serves its terminals, and does what the cloud asks, one request after the other.

The role decides; this service carries messages, and writes the role's state down before anybody is told of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from grpc import aio

from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.audit import NAME as AUDIT
from rhfedmtl.deploy.node.audit import AuditTrail
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.credentials import CLOUD, Identity
from rhfedmtl.deploy.node.dialogues import STATION_TO_CLOUD
from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.server import listen, server_options
from rhfedmtl.deploy.station.masked import SummedRound, hold
from rhfedmtl.deploy.station.memory import NOWHERE, Memory, Rounds
from rhfedmtl.deploy.station.round_zero import RoundZero
from rhfedmtl.deploy.station.terminal_sessions import Question, TerminalSessions
from rhfedmtl.deploy.station.trials import Trials
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.roles.channel import standard_normal
from rhfedmtl.roles.messages import (
    Anchor,
    LabelsReport,
    MomentsReport,
    Probe,
    StationSums,
    Sums,
    WorkOrder,
)
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.roles.station import Merged
from rhfedmtl.roles.summed import SummingStation, SumRequest

OUTLOOK_S = 1.0
ANSWERS = 16
"""Answers that are kept for requests that come again."""
WAITING = 64
"""Requests that may wait."""
MESSAGE_BYTES = 1 << 26


class IdleError(PeerError):
    """A round could not be held, and no order of it went out: it costs nothing."""


class StationService:
    """One base station."""

    def __init__(self, config: StationConfig, log: Log, meters: Meters) -> None:
        self.config, self._log, self._meters = config, log, meters
        log.trail = AuditTrail(config.state / AUDIT, config.node.fsync)
        self._credentials = config.credentials()
        self.memory = Memory(config, log, meters)
        self.members = TerminalSessions(config, self.memory, self._tell_outlook, log, meters)
        self.members.heed_access()
        self._round_zero = RoundZero(config, self.memory, self.members)
        self._trials = Trials(config, self.memory, self.members)
        self.link = Uplink(STATION_TO_CLOUD, self._credentials, self._hello, self._handle, log, meters, MESSAGE_BYTES)
        self._requests: asyncio.Queue[wire.Request] = asyncio.Queue(WAITING)
        self._open: set[int] = set()  # requests that wait, or are being worked on
        self._answered: OrderedDict[int, bytes] = OrderedDict()
        self._news = asyncio.Event()
        self._failed: dict[str, str] = {}  # why requests of a kind failed the last time
        self._told = -1  # the last membership that this stream has told the cloud of
        self._tried: tuple[frozenset[int], float] = frozenset(), 0.0
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def healthy(self) -> bool:
        """Whether there is a stream to the cloud."""
        return self.link.connected

    async def run(self) -> None:
        """Serve until `close`."""
        limit = self.config.limits.message_bytes or self._message_limit()
        self._server = aio.server(options=server_options(self.config.limits.connections, limit, self.config.waits.link))
        self._server.add_generic_rpc_handlers((self.members.handler(),))
        await listen(self._server, self.config.node.listen, self._credentials.server(), self._log)
        await self._server.start()
        above = Identity(self.config.node.network, CLOUD)
        link = self.link.run(lambda: (above, self.config.cloud))
        work = [self.work(), self._watch(), *([self._forget_silent()] if self.config.waits.forget > 0.0 else [])]
        self._tasks = [asyncio.create_task(each) for each in (link, *work)]
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        errors = [error for task in done if not task.cancelled() and (error := task.exception()) is not None]
        if errors:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            raise errors[0]

    async def close(self) -> None:
        """Drain: finish the present request, tell the terminals, write everything to disk."""
        async with self.memory.turn:
            for task in self._tasks[1:]:
                task.cancel()
            for t in list(self.members.acceptor.sessions):
                self.members.tell(t, drain=wire.Nothing())
            self.memory.save(fsync=True)
        await self.link.close()
        if self._server is not None:
            await self._server.stop(0.5)

    def renew(self) -> None:
        """Connect anew if the credentials have changed; the server takes new ones by itself."""
        self.link.renew()
        self.members.acceptor.end_expired()

    # The link to the cloud.

    def _hello(self) -> wire.Hello:
        role, self._told = self.memory.role, -1
        return wire.Hello(
            round=role.round if role else 0, membership=role.membership if role else 0, epoch=self.memory.epoch
        )

    async def _handle(self, name: str, content: Any) -> None:
        await self.HANDLERS[name](self, content)

    async def _on_welcome(self, welcome: wire.Welcome) -> None:
        memory = self.memory
        begins = memory.begin(welcome.job)
        self._trials.load()
        told, known = jobs.Agreement.read(welcome), vars(memory.agreed)
        memory.agree(replace(told, **{name: None for name, part in known.items() if part is not None}))
        await self._on_access(wire.Access(allowed=welcome.allowed, revoked=welcome.revoked))
        if welcome.epoch == memory.epoch:
            await self.members.begin_anew("the cloud knows a later round: this state was put back from an old copy")
        elif begins:
            self.members.begin()
        if welcome.HasField("anchor"):  # one who lost its memory need not wait for the next server iteration
            await self._assign(welcome.anchor, wire.Answer())

    async def _on_access(self, access: wire.Access) -> None:
        memory = self.memory
        memory.allowed, memory.revoked = set(access.allowed), set(access.revoked)
        self.members.heed_access()
        async with memory.turn:
            memory.save()
        self._tell_outlook()

    async def _on_request(self, request: wire.Request) -> None:
        """Do it once: a request that comes again is answered again, or is being worked on."""
        if (answer := self._answered.get(request.id)) is not None:
            self._send_answer(wire.Answer.FromString(answer))
        elif request.id not in self._open:
            if self._requests.full():
                raise PeerError(f"more than {WAITING} requests at once")
            self._open.add(request.id)
            self._requests.put_nowait(request)

    HANDLERS: Mapping[str, Callable[[StationService, Any], Awaitable[None]]] = {
        "welcome": _on_welcome,
        "access": _on_access,
        "request": _on_request,
    }

    async def work(self) -> None:
        """Carry out requests in the order in which they came.

        A disk that cannot be written to ends the station: nobody may be told of what is not written down.
        """
        while True:
            request = await self._requests.get()
            answer = await self.answer(request)
            self._open.discard(request.id)
            self._answered[request.id] = answer.SerializeToString()
            while len(self._answered) > ANSWERS:
                self._answered.popitem(last=False)
            self._send_answer(answer)

    def _send_answer(self, answer: wire.Answer) -> None:
        """Answer the cloud, once it knows the members: it holds numbers of samples against them."""
        if self.memory.role is not None and self.memory.role.membership != self._told:
            self._send_outlook()
        self.link.send(answer=answer)

    async def answer(self, request: wire.Request) -> wire.Answer:
        """Do what a request asks for, and say what came of it."""
        answer, rounds, before = wire.Answer(id=request.id), self.memory.rounds, self.members.n_bytes
        kind = request.WhichOneof("body") or ""
        try:
            name, content = codec.body(request)
            await self.members.assemble()
            if rounds.after(name) is Rounds.IDLE and rounds.state is Rounds.INTERRUPTED:
                async with self.memory.turn:
                    self.memory.give_up_round()
            await self.REQUESTS[name](self, content, answer)
            if self._failed.pop(kind, "") and not self._failed:
                self._log.over("request failed")
        except IdleError as error:  # the cloud says so, once
            answer.trouble, answer.away = str(error), True
        except (RHFedMTLError, ValueError, TypeError, ArithmeticError) as error:
            answer.trouble = str(error) or type(error).__name__
            # The same comes in every round while a member is silent: it is said once.
            level = "debug" if answer.trouble == self._failed.get(kind) else "error"
            self._log("request failed", level, reason=answer.trouble)
            self._failed[kind] = answer.trouble
        if not answer.HasField("round"):
            answer.bytes_below = self.members.n_bytes - before
        return answer

    # What the cloud asks for.

    async def _assign(self, content: wire.Anchor, answer: wire.Answer) -> None:
        async with self.memory.turn:
            self.memory.station.receive_anchor(codec.from_wire(Anchor, content))
            self.memory.save()
        answer.done.SetInParent()

    async def _round(self, content: wire.RoundRequest, answer: wire.Answer) -> None:
        began, memory = time.perf_counter(), self.memory
        if memory.last is not None and memory.last.round == content.round == memory.station.round:
            answer.round.CopyFrom(memory.last)
            return
        asked = dict(zip(content.terminals, content.local_steps, strict=True))
        here = await self.members.gather(t for t in asked if t in memory.station.members)
        async with memory.turn:
            result = await self._hold(content, asked, here)
            self.members.heed_quarantine()
            result.seconds = time.perf_counter() - began
            result.epoch, result.membership = memory.epoch, memory.station.membership
            memory.last = result
            memory.save()
        self._meters.rounds.observe(result.seconds)
        self._meters.round.set(content.round)
        answer.round.CopyFrom(result)

    async def _hold(self, content: wire.RoundRequest, asked: dict[int, int], here: list[int]) -> wire.RoundResult:
        """The round with who is there, and with the orders that went out for it before the station was killed."""
        memory, role = self.memory, self.memory.station
        earlier = memory.earlier_orders(content.round)
        if not memory.may_reopen(content.round, asked):
            memory.give_up_round()
            result = wire.RoundResult(round=content.round, gains=codec.tensor(np.zeros(CURVE)))
        elif content.round <= role.round:
            raise PeerError(f"round {content.round} is over here: {role.round} was the last")
        else:
            able = [t for t in here if t in role.members and not self.members.changes(t)]
            steps = {t: asked[t] for t in able if not self.members.declines(t, asked[t])}
            if not earlier:
                self._need_work(asked, steps)
            memory.note_open(content.round, asked, earlier | steps)
            self._log("ordered", "debug", round=content.round, steps=steps)
            try:
                result = await self._round_of(content, steps)
            finally:
                memory.rounds.on("merge")
        known = {effort.terminal for effort in result.efforts}
        result.efforts.extend(
            wire.Effort(terminal=t, local_steps=H) for t, H in sorted(earlier.items()) if t not in known
        )
        return result

    def _need_work(self, asked: dict[int, int], steps: dict[int, int]) -> None:
        """Refuse a round that would cost and teach nothing.

        Where others are here than those that are asked, it is held: the cloud hears of them at its end.
        """
        if self.memory.station.anchor is None:
            raise IdleError(f"station {self.memory.task} has no anchor yet")
        if self.memory.masked is not None and not self.members.room.whole(self.members.present()):
            away = self.memory.station.members.keys() - set(self.members.present())
            names = ", ".join(map(str, sorted(away)[:20])) or "that are yet to come"
            raise IdleError(f"all terminals of a group are needed for a masked sum; not there: terminals {names}")
        if not steps and not self.members.present():
            raise IdleError(f"none of the terminals of station {self.memory.task} is there")
        if not steps and all(self.members.declines(t, asked.get(t, -1)) for t in self.members.present()):
            raise IdleError(f"the sites of all terminals of station {self.memory.task} that are there decline")

    async def _round_of(self, content: wire.RoundRequest, steps: dict[int, int]) -> wire.RoundResult:
        """Orders down, updates up, merge."""
        role = self.memory.station
        orders = role.open_round(content.round, steps)
        if self.memory.masked is not None:
            return await self._masked_round(self.memory.masked, orders, content.deadline)
        try:
            question = await self.members.ask("update", {o.terminal: o for o in orders}, content.deadline, role.receive)
        finally:
            merged = role.close_round()
        return _result(merged, steps, [question])

    async def _masked_round(self, role: SummingStation, orders: list[WorkOrder], seconds: float) -> wire.RoundResult:
        """The same with nothing but the sum of the updates."""
        merged = None
        try:
            held = await hold(self.members, {o.terminal: o for o in orders}, role.update_words, seconds)
            merged = self._merged_sum(role, held)
        finally:
            merged = merged or role.close_void()
        if held.told is None:  # no order went out
            return _result(merged, {}, [])
        return _result(merged, {o.terminal: o.local_steps for o in orders}, [held.told, *held.others])

    def _merged_sum(self, role: SummingStation, held: SummedRound) -> Merged | None:
        try:
            return None if held.words is None else role.close_sum(held.arrived, held.words)
        except PeerError as error:  # nobody can be blamed alone
            self._log("round void", "error", round=role.round, reason=str(error))
            return None

    async def _report(self, content: int, answer: wire.Answer) -> None:
        answer.report.CopyFrom(codec.to_wire(self.memory.station.report(content)))

    async def _sums(self, content: wire.SumsRequest, answer: wire.Answer) -> None:
        memory, models, points = (
            self.memory,
            codec.stack(content.models, "models"),
            codec.array(content.points, "points"),
        )
        here = await self.members.gather(memory.station.members, self.config.waits.asleep)
        async with memory.turn:
            asked = hashlib.sha256(
                content.SerializeToString(deterministic=True)
                + struct.pack("<QQ", memory.station.round, memory.station.membership)
            ).digest()
            if content.HasField("noise") and memory.certified is not None and memory.certified[0] == asked:
                answer.sums.CopyFrom(memory.certified[1])  # in other noise, or over others, it would tell more
                return
            found, missing = await self._add_sums(models, points, here, content)
            while found is None and self.members.heed_quarantine():  # without whoever told what cannot be
                found, missing = await self._add_sums(models, points, here, content)
        if found is None:
            raise PeerError(self._no_sums(missing))
        answer.sums.CopyFrom(codec.to_wire(found))
        if content.HasField("noise"):
            memory.certified = asked, answer.sums
            memory.save()

    async def _add_sums(
        self, models: Any, points: Any, here: list[int], content: wire.SumsRequest
    ) -> tuple[StationSums | None, list[int]]:
        """Sums of all members, or who of them did not tell."""
        role, noise = self.memory.station, content.noise if content.HasField("noise") else None
        silent = sorted(set(role.members) - set(here))
        exact = noise is None and self.memory.masked is None
        if exact:
            self.members.note_probe((), [t for t in silent if self.members.is_connected(t)])
        absent = self.members.absent() if exact else []
        if (silent and not exact and (noise is None or not here)) or (exact and set(silent) - set(absent)):
            raise PeerError(f"no sums, as these terminals are silent: {', '.join(map(str, silent[:20]))}")
        if role.method.channel.noised != (noise is not None):
            raise PeerError(f"a certificate with noise {noise}, where sums are noised: {role.method.channel.noised}")
        probes = role.probes(models, points, gradient=content.gradient, noise=noise)
        if self.memory.masked is not None:
            return await self._masked_sums(self.memory.masked, probes)

        def fits(sums: Sums) -> bool:
            if not probes or sums.number != probes[0].number:
                return False
            if sums.losses.shape != (len(points),):  # one, where it is hidden in noise
                raise PeerError(f"loss sums of shape {sums.losses.shape}")
            try:
                role.check_sums(sums)
            except ImplausibleError as error:
                role.suspect(error.terminal, error.reason)
                raise
            return True

        for probe in probes:  # without a wait: the answer of a terminal that is back shows that it works
            if probe.terminal in absent:
                self.members.tell(probe.terminal, probe=codec.to_wire(probe))
        asked = {p.terminal: p for p in probes if p.terminal in here and p.terminal not in absent}
        question = await self.members.ask("sums", asked, self.config.waits.answer, fits)
        if exact:
            self.members.note_probe(question.arrived, [t for t in question.missing if question.sent[t]])
        found = role.add_sums([arrival.content for arrival in question.arrived.values()], self.members.absent())
        if found is not None and noise is not None:
            found = replace(found, losses=found.losses + noise * standard_normal(found.losses.shape, None))
        return found, question.missing

    def _no_sums(self, missing: list[int]) -> str:
        """Return why there are no sums, and what an operator can do about it."""
        names = ", ".join(map(str, missing)) or "that changed"
        absent = self.members.absent()
        if not absent:
            return f"no sums from terminals {names}"
        return (
            f"no sums from terminals {', '.join(map(str, absent))}, which answer no probe, and nothing bounds their "
            "losses (that takes classes, unit rows, a loss with bounded duals, and exact updates): bring them "
            "back, or take them out with `rhfedmtl network forget`"
        )

    async def _masked_sums(self, role: SummingStation, probes: list[Probe]) -> tuple[StationSums | None, list[int]]:
        """The same with nothing but their sum: unmasked only where all are there, unless it is in noise."""
        asked: dict[int, SumRequest] = {probe.terminal: probe for probe in probes}
        whole = not role.method.channel.noised
        held = await hold(self.members, asked, role.sums_words, self.config.waits.answer, whole=whole)
        if held.words is None:
            return None, sorted(asked.keys() - held.arrived)
        return role.told_sums(held.words, held.arrived), []

    async def _let_go(self, role: SummingStation) -> None:
        """Let those go, in a turn, who wait to leave a masked sum, with all who count together with them.

        Those who stay tell the sum of what they keep: nobody need be there who goes.
        """
        memory, room = self.memory, self.members.room
        going = memory.waiting(room)
        stay = role.members.keys() - going
        counted = {t for t in stay if room.group(t)}
        if not going or not counted or not counted <= set(self.members.present()):
            return
        if self._tried[0] == going and time.monotonic() < self._tried[1]:
            return
        self._tried = going, time.monotonic() + self.config.waits.answer
        probes: dict[int, SumRequest] = {probe.terminal: probe for probe in role.share_probes(counted)}
        held = await hold(self.members, probes, role.share_words, self.config.waits.answer, whole=True)
        if held.words is None:
            missing = probes.keys() - (held.told.arrived if held.told is not None else {})
            names = ", ".join(map(str, sorted(missing)[:20])) or "some, at the end"
            self._log("leave waits", "warning", reason=f"no sum of what stays without terminals {names}")
            return
        try:
            goodbyes = role.keep(stay, held.words)
        except PeerError as error:  # nobody can be blamed alone
            return self._log("leave waits", "error", reason=str(error))
        memory.save()
        for goodbye in goodbyes:
            self.members.part_from(goodbye, self.members.acceptor.sessions.get(goodbye.terminal))

    async def _moments(self, _: wire.Nothing, answer: wire.Answer) -> None:
        sums, kind = await self._round_zero.moments(), self.memory.station.method.channel.moments_dtype
        answer.moments.CopyFrom(codec.to_wire(MomentsReport.of(self.memory.task, sums, kind)))

    async def _scale(self, content: wire.Scaling, answer: wire.Answer) -> None:
        await self._agree("scaled", answer, scaling=content)

    async def _labels(self, _: wire.Nothing, answer: wire.Answer) -> None:
        answer.labels.CopyFrom(codec.to_wire(LabelsReport(self.memory.task, await self._round_zero.labels())))

    async def _centre(self, content: wire.Centring, answer: wire.Answer) -> None:
        await self._agree("centred", answer, centring=content)

    async def _hide(self, content: wire.Noising, answer: wire.Answer) -> None:
        await self._agree("noised", answer, noising=content)

    async def _agree(self, done: str, answer: wire.Answer, **body: Any) -> None:
        await self._round_zero.agree(done, **body)
        answer.done.SetInParent()

    async def _models(self, _: wire.Nothing, answer: wire.Answer) -> None:
        answer.models.CopyFrom(codec.tensor(self.memory.station.model))

    async def _trial(self, content: wire.TrialRequest, answer: wire.Answer) -> None:
        answer.metrics.SetInParent()
        answer.metrics.values.update(await self._trials.measure(content.model))

    async def _tell_roster(self, _: wire.Nothing, answer: wire.Answer) -> None:
        answer.roster.CopyFrom(self._roster())

    async def _transfer(self, content: wire.Transfer, answer: wire.Answer) -> None:
        t, memory = content.terminal, self.memory
        method = memory.station.method
        leaves = method.channel.noised and not content.forget and content.destination.station == NOWHERE
        moves = not content.forget and content.destination.station != NOWHERE
        taken_out = method.channel.noised or (memory.masked and not method.has_duals)
        if taken_out and not content.readmit and not leaves:
            raise PeerError(
                f"sums of station {memory.task} are noised, or masked without duals: without terminal {t} they would "
                "tell what it put into them"
            )
        async with memory.turn:
            if content.readmit:
                memory.station.readmit(t)
                if not memory.station.quarantined:
                    self._log.over("quarantined")
                memory.save()
                self._tell_outlook()
            elif leaves:
                self.members.let_stay_behind(t)
            elif content.forget and memory.masked is None:
                self.members.forget(t)
            elif t in memory.station.members or moves:  # one that moved may come back, and is told where to
                memory.leaving[t] = wire.Place(station=NOWHERE) if content.forget else content.destination
                memory.save()
                if memory.masked is None:
                    self.members.release_when_idle(t)
                else:
                    await self._let_go(memory.masked)
        self._send_outlook()  # before the answer: whoever goes on by it must not take the old members for the present
        answer.done.SetInParent()

    REQUESTS: Mapping[str, Callable[[StationService, Any, wire.Answer], Awaitable[None]]] = {
        "assign": _assign,
        "round": _round,
        "report": _report,
        "sums": _sums,
        "moments": _moments,
        "scale": _scale,
        "labels": _labels,
        "centre": _centre,
        "hide": _hide,
        "models": _models,
        "trial": _trial,
        "roster": _tell_roster,
        "transfer": _transfer,
    }

    # How the station stands.

    def _roster(self) -> wire.Roster:
        role = self.memory.role
        if role is None:
            return wire.Roster()
        here = set(self.members.present())
        seats = [
            wire.Seat(
                terminal=t,
                n_samples=m.n_samples,
                incarnation=m.incarnation,
                connected=t in here,
                withdraws=self.members.withdraws(t),
                group=sorted(self.members.room.group(t)) if self.memory.masked else (),
            )
            for t, m in sorted(role.members.items())
        ]
        declined = {t: said.reason for t, said in self.members.declined.items()}
        return wire.Roster(membership=role.membership, seats=seats, quarantined=role.quarantined, declined=declined)

    def _tell_outlook(self) -> None:
        """Tell the cloud soon how things are; of many changes at once it hears together."""
        self._news.set()

    def _send_outlook(self) -> None:
        roster, role = self._roster(), self.memory.role
        outlook = wire.Outlook(
            membership=roster.membership,
            round=role.round if role else 0,
            roster=roster,
            last_error=self._log.last_error[:400],
        )
        if self.link.send(outlook=outlook):
            self._told = roster.membership

    async def _watch(self) -> None:
        """Tell the cloud how things are, now and then and when they change."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), OUTLOOK_S)
            self._news.clear()
            if self.memory.role is not None:
                self._send_outlook()

    async def _forget_silent(self) -> None:
        """Forget terminals that have been silent for too long."""
        seconds = self.config.waits.forget
        while True:
            await asyncio.sleep(OUTLOOK_S)
            async with self.memory.turn:
                known = self.memory.role is not None and not self.memory.sealed  # a part of such a sum stays in it
                for t in self.members.silent(seconds) if known else ():
                    self._log("forgotten", "warning", peer=f"terminal {t}", reason=f"silent for {seconds:g} s")
                    self.members.forget(t)

    def _message_limit(self) -> int:
        job = self.memory.job
        return MESSAGE_BYTES if job is None else jobs.message_limit(job, method_of(job), self.config.limits)


def _result(merged: Merged, steps: Mapping[int, int], questions: list[Question]) -> wire.RoundResult:
    """What came of a round, and what each terminal did that the first question, for its work, was sent to."""
    efforts = [
        _effort(questions, t, H, t in merged.answered) for t, H in sorted(steps.items()) if t in questions[0].messages
    ]
    return wire.RoundResult(round=merged.round, efforts=efforts, factor=merged.factor, gains=codec.tensor(merged.gains))


def _effort(questions: list[Question], terminal: int, local_steps: int, answered: bool) -> wire.Effort:
    """What a terminal did, as far as the station can see, with the bytes of all that it was asked."""
    work, bytes_ = questions[0], [question.n_bytes(terminal) for question in questions]
    arrival = work.arrived.get(terminal)
    waited = work.at.get(terminal, time.monotonic()) - work.began
    return wire.Effort(
        terminal=terminal,
        local_steps=local_steps,
        answered=answered,
        work_seconds=min(arrival.seconds, waited) if arrival else 0.0,
        wait_seconds=waited,
        bytes_down=sum(down for down, _ in bytes_),
        bytes_up=sum(up for _, up in bytes_),
    )
