"""Requests of the cloud to a station: `Requests` carries them out in order, each exactly once.

`StationService` puts requests in and runs `Requests.work`. To add a request, add it to ``Request`` in ``wire.proto``,
to `Requests.handlers`, and to the table `rhfedmtl.deploy.station.memory.ROUNDS`, which says when it may come.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.station.certificate_sums import CertificateSums
from rhfedmtl.deploy.station.heartbeat import Heartbeat
from rhfedmtl.deploy.station.memory import Memory, Rounds
from rhfedmtl.deploy.station.round_zero import RoundZero
from rhfedmtl.deploy.station.rounds import IdleError, StationRounds
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.station.transfers import Transfers
from rhfedmtl.deploy.station.trials import Trials
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError
from rhfedmtl.roles.messages import Anchor

ANSWERS = 16
"""Answers to keep for repeated requests."""
WAITING = 64
"""Requests that may wait at the same time."""


class Requests:
    """Queue of requests to a station, and table of the functions that carry them out.

    A repeated request gets its first answer. A request that fails is answered with the reason, and the station goes on.
    """

    def __init__(
        self,
        config: StationConfig,
        memory: Memory,
        members: TerminalSessions,
        heartbeat: Heartbeat,
        link: Uplink,
        log: Log,
        meters: Meters,
    ) -> None:
        self._memory, self._members, self._heartbeat, self._link, self._log = memory, members, heartbeat, link, log
        self._queue: asyncio.Queue[wire.Request] = asyncio.Queue(WAITING)
        self._open: set[int] = set()  # requests that wait, or are being worked on
        self._answered: OrderedDict[int, bytes] = OrderedDict()
        self._failed: dict[str, str] = {}  # reason of the latest failure, by kind of request
        self.trials = Trials(config, memory, members)
        round_zero = RoundZero(config, memory, members)
        self.handlers: Mapping[str, Callable[[Any, wire.Answer], Awaitable[None]]] = {
            "assign": self.assign,
            "round": StationRounds(memory, members, log, meters).hold,
            "report": self._report,
            "sums": CertificateSums(config, memory, members).answer,
            "moments": round_zero.moments,
            "scale": partial(round_zero.agree, "scaling", "scaled"),
            "labels": round_zero.labels,
            "centre": partial(round_zero.agree, "centring", "centred"),
            "hide": partial(round_zero.agree, "noising", "noised"),
            "models": self._models,
            "trial": self.trials.answer,
            "roster": self._roster,
            "transfer": Transfers(config, memory, members, heartbeat, log).answer,
        }

    async def put(self, request: wire.Request) -> None:
        """Queue a request. If it is a repeat, send its answer again, or let the first copy finish."""
        if (answer := self._answered.get(request.id)) is not None:
            self.send(wire.Answer.FromString(answer))
        elif request.id not in self._open:
            if self._queue.full():
                raise PeerError(f"more than {WAITING} requests at once")
            self._open.add(request.id)
            self._queue.put_nowait(request)

    async def work(self) -> None:
        """Carry out requests in the order in which they came.

        An error of the disk ends the station, because no node may hear of a change that is not on disk.
        """
        while True:
            request = await self._queue.get()
            answer = await self.answer(request)
            self._open.discard(request.id)
            self._answered[request.id] = answer.SerializeToString()
            while len(self._answered) > ANSWERS:
                self._answered.popitem(last=False)
            self.send(answer)

    def send(self, answer: wire.Answer) -> None:
        """Send an answer to the cloud, after the present members: the cloud checks numbers of samples against them."""
        self._heartbeat.send_members_if_new()
        self._link.send(answer=answer)

    async def answer(self, request: wire.Request) -> wire.Answer:
        """Carry a request out, and return the result or the reason of a failure."""
        memory, questions = self._memory, self._members.questions
        answer, rounds, before = wire.Answer(id=request.id), memory.rounds, questions.n_bytes
        kind = request.WhichOneof("body") or ""
        try:
            name, content = codec.body(request)
            await self._members.membership.assemble()
            if rounds.after(name) is Rounds.IDLE and rounds.state is Rounds.INTERRUPTED:
                async with memory.turn:
                    memory.give_up_round()
            await self.handlers[name](content, answer)
            if self._failed.pop(kind, "") and not self._failed:
                self._log.over("request failed")
        except IdleError as error:  # not logged here: the cloud logs it
            answer.trouble, answer.away = str(error), True
        except (RHFedMTLError, ValueError, TypeError, ArithmeticError) as error:
            answer.trouble = str(error) or type(error).__name__
            # The same error comes in every round while a member is silent: the log has it once.
            level = "debug" if answer.trouble == self._failed.get(kind) else "error"
            self._log("request failed", level, reason=answer.trouble)
            self._failed[kind] = answer.trouble
        if not answer.HasField("round"):
            answer.bytes_below = questions.n_bytes - before
        return answer

    # Requests that need no terminal.

    async def assign(self, content: wire.Anchor, answer: wire.Answer) -> None:
        """Take the anchor of the next rounds."""
        async with self._memory.turn:
            self._memory.station.receive_anchor(codec.from_wire(Anchor, content))
            self._memory.save()
        answer.done.SetInParent()

    async def _report(self, content: int, answer: wire.Answer) -> None:
        answer.report.CopyFrom(codec.to_wire(self._memory.station.report(content)))

    async def _models(self, _: wire.Nothing, answer: wire.Answer) -> None:
        answer.models.CopyFrom(codec.tensor(self._memory.station.model))

    async def _roster(self, _: wire.Nothing, answer: wire.Answer) -> None:
        answer.roster.CopyFrom(self._heartbeat.roster())
