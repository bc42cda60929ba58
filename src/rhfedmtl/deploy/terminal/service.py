"""The process of a terminal: `TerminalService` holds the rows and duals, and answers its station.

`serve` runs it. It connects outwards to its station and opens no port. The role (`rhfedmtl.roles.terminal`) computes;
the service moves messages, and saves the state of the role before an update leaves.

Theory of operation:

1. `MeteredLink` connects and sends the hello: incarnation, last round, pending update, epoch of the station.
2. The welcome brings the job. The owner's rules may exclude it: then the terminal declines and stays idle. Otherwise it
   compiles its kernel, takes over the agreements and joins with its share Xᵀα. (If sums are masked or noised, it joins
   with a zero share.) A terminal with a pending update need not join: it is a member already.
3. Orders, probes and questions of round zero go to `RowAnswers`. The service handles a message at a time.
4. Old state. If the station lost its memory (another epoch), the terminal joins again with its duals, or at α = 0 if
   sums are masked or noised. If the station knows a later incarnation, this state is an old copy: the terminal joins as
   a newcomer. If the duals do not fit the rows, it starts again at α = 0.
5. A release makes the terminal send its share and leave. The goodbye names the next station. If it names no
   station, the process ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.terminal.answers import RowAnswers
from rhfedmtl.deploy.terminal.disclosure import Disclosure
from rhfedmtl.deploy.terminal.memory import TerminalMemory, WarmUp
from rhfedmtl.deploy.terminal.metered_link import MeteredLink
from rhfedmtl.deploy.terminal.owner import Owner
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.roles.messages import Goodbye, Release, Verdict
from rhfedmtl.roles.terminal import OldStateError, Phase


class TerminalService:
    """Service of a terminal: it greets a station, joins it, agrees on round zero, moves, and leaves.

    Parameters
    ----------
    config : TerminalConfig
        Configuration of the terminal.
    log, meters : Log, Meters
        Log and metrics of the process.
    method_of : callable
        Returns the method of a job.
    warm_up : callable
        Compiles the kernel before the terminal joins.
    """

    def __init__(
        self,
        config: TerminalConfig,
        log: Log,
        meters: Meters,
        method_of: jobs.MethodOf,
        warm_up: WarmUp = lambda *_: None,
    ) -> None:
        self.config, self._log = config, log
        self._owner = Owner(config.state)
        self._owner.check()
        self.memory = TerminalMemory(config, log, meters, method_of, warm_up)
        self.disclosure = Disclosure(config, self.memory)
        self.link = MeteredLink(
            config, self._owner, self.memory, self.disclosure, self._hello, self.handle, log, meters
        )
        self.answers = RowAnswers(self.memory, self.disclosure, self.link, log, meters)
        self._busy = asyncio.Lock()
        self.handlers: Mapping[str, Callable[[Any], Awaitable[None]]] = {
            "welcome": self.welcome,
            "order": self.answers.work,
            "probe": self.answers.certify,
            "release": self._release,
            "goodbye": self._goodbye,
            "ask_moments": self.answers.tell_moments,
            "scaling": partial(self._agree, "scaling", "scaled"),
            "ask_labels": self.answers.tell_labels,
            "ask_rows": self.answers.tell_rows,
            "ask_share": self.answers.tell_share,
            "centring": partial(self._agree, "centring", "centred"),
            "trial": self.answers.try_model,
            "circle": self.answers.deal,
            "unmask": self.answers.open,
            "noising": partial(self._agree, "noising", "noised"),
        }

    @property
    def healthy(self) -> bool:
        """Return True if there is a stream to the station."""
        return self.link.uplink.connected

    async def run(self) -> None:
        """Serve until `close`, or until the terminal has left the network."""
        await self.link.run()

    async def close(self) -> None:
        """Finish the present message, save the state, and disconnect."""
        async with self._busy:
            self.memory.save(fsync=True)
        await self.link.uplink.close()

    def renew(self) -> None:
        """Reconnect if the credentials have changed, and check the owner's wishes."""
        self.link.uplink.renew()
        self.link.heed_owner()

    async def handle(self, name: str, content: Any) -> None:
        """Carry out a message of the station. If the state can no longer be used, give it up and join again."""
        memory = self.memory
        if memory.role is None and name != "welcome":  # it has declined the job
            return
        async with self._busy:  # `close` must not save the state in the middle of a message
            try:
                await self.handlers[name](content)
            except OldStateError as error:
                memory.fall_back(str(error))
                self._present()
            except ProtocolError as error:  # the dual variables do not fit the rows
                self._log("state lost", "warning", reason=str(error))
                memory.give_up()
                self._present()

    # Greeting.

    def _hello(self) -> wire.Hello:
        memory, role = self.memory, self.memory.role
        centred = memory.agreed.centring is not None or (memory.job is not None and len(memory.job.classes) > 0)
        return wire.Hello(
            incarnation=role.incarnation if role else 0,
            pending_round=role.pending.round if role and role.pending else 0,
            round=role.last_round if role else 0,
            epoch=memory.epoch,
            prepared=memory.agreed.scaling is not None and centred,  # the station need not repeat round zero
        )

    async def welcome(self, welcome: wire.Welcome) -> None:
        """Take over job and agreements from the welcome of a stream, and join."""
        memory = self.memory
        if memory.role is None:
            memory.begin(welcome.job, int(welcome.incarnation))
            if refusal := self.disclosure.refuses_job(welcome.job) or self.disclosure.lacks_map():
                memory.role = None
                return self.link.decline(wire.Declined(reason=refusal))
        elif memory.job != welcome.job:
            raise PeerError("the network learns something else now: this terminal's state belongs to another job")
        await asyncio.to_thread(memory.warm_up)
        if memory.masks is not None:
            self.link.send(**memory.masks.begin())
        memory.agree(jobs.Agreement.read(welcome))
        role = memory.terminal
        if welcome.epoch != memory.epoch:
            if memory.epoch and role.phase is not Phase.DETACHED:
                self._log("station lost its memory", "warning", reason="joining again with all that was learned")
                role.abandon()
            memory.epoch = welcome.epoch
        if welcome.HasField("place"):
            role.abandon()
            return self._move(welcome.place if welcome.place.address else None)
        if welcome.incarnation > role.incarnation:
            reason = f"the station knows incarnation {welcome.incarnation}"
            memory.fall_back(reason, int(welcome.incarnation))
        elif welcome.HasField("verdict") and role.is_member:
            self._log("no member any more", "warning", reason="joining again with all that was learned")
            role.abandon(codec.from_wire(Verdict, welcome.verdict))
        return self._present()

    def _present(self) -> None:
        """Join, or leave if a release has come. A terminal with a pending update is a member already."""
        memory, role = self.memory, self.memory.terminal
        if role.phase is Phase.LEAVING:
            self._leave(Release(memory.identity.number, Verdict()))
        elif role.pending is None:
            sealed = role.method.channel.sealed
            if sealed and role.phase is Phase.DETACHED and role.state.alpha.any():
                self._log("state given up", "warning", reason="sums are sealed: a terminal joins with a zero share")
                memory.give_up()
                role = memory.terminal
            join = role.join()
            if sealed:  # a member that comes back does not send its share
                join = replace(join, share=np.zeros(role.shape))
            memory.save()
            self.link.send(join=codec.to_wire(join))

    # Leaving.

    async def _release(self, content: wire.Release) -> None:
        self.answers.check_addressee(content.terminal)
        self.disclosure.refuse_alone("shares")
        self._leave(codec.from_wire(Release, content))

    def _leave(self, release: Release) -> None:
        leave = self.memory.terminal.leave(release)
        if leave is not None:
            self.memory.save()
            self.link.send(leave=codec.to_wire(leave))

    async def _goodbye(self, content: wire.Goodbye) -> None:
        self.answers.check_addressee(content.terminal)
        goodbye, role = codec.from_wire(Goodbye, content), self.memory.terminal
        if role.method.channel.sealed and goodbye.incarnation == role.incarnation:
            role.abandon()  # the other terminals sent the sum of what stays: nothing of this terminal stays in it
        role.goodbye(goodbye)
        if role.phase is Phase.DETACHED:
            self._move(content.destination if content.HasField("destination") else None)

    def _move(self, place: wire.Place | None) -> None:
        """Go to another station, or out of the network."""
        if place is not None:
            self._log("moving", station=place.station, address=place.address)
            self.memory.place.CopyFrom(place)
        else:
            self._log("left the network")
            self._owner.note_withdrawn()
            self.link.uplink.closing = True
        self.memory.epoch = ""
        self.memory.save()
        self.link.uplink.reconnect()

    # Round zero.

    async def _agree(self, name: str, done: str, content: Any) -> None:
        """Take over an agreement, and confirm it with an empty message named ``done``."""
        self.memory.agree(jobs.Agreement(**{name: codec.from_wire(jobs.AGREED[name], content)}))
        self.link.send(**{done: wire.Nothing()})
