"""The process of a terminal: owns its rows and dual variables, connects outwards to its station, answers its orders.

The role decides; this service carries messages, and writes the role's state down before an update goes out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl import __version__
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import TerminalConfig, credentials_of, identity_of
from rhfedmtl.deploy.node.credentials import STATION, Identity
from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.deploy.node.warm_up import warm_up
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.deploy.wire.rounding import Feedback
from rhfedmtl.errors import ConfigError, PeerError, ProtocolError
from rhfedmtl.maths import metrics
from rhfedmtl.roles.messages import Goodbye, Release, Scaling, Update, Verdict
from rhfedmtl.roles.terminal import Phase, Terminal, TerminalState
from rhfedmtl.training.run import scores

MESSAGE_BYTES = 1 << 26
"""A terminal trusts its station with large messages: its shapes are known only after the greeting."""


class TerminalService:
    """One terminal."""

    def __init__(self, config: TerminalConfig, log: Log, meters: Meters) -> None:
        self.config, self._log, self._meters = config, log, meters
        self.identity = identity_of(config.node)
        state = Path(config.folder, config.node.state, "terminal.state")
        self._file = StateFile(state, fsync=config.node.fsync)
        self._place = wire.Place(station=config.station, address=config.address)
        self._job: wire.Job | None = None
        self._scaling: Scaling | None = None
        self._epoch = ""
        self._feedback: Feedback | None = None
        self._tests: jobs.NodeRows | None = None
        self.role: Terminal | None = None
        self._warm_up: Callable[[], None] = lambda: None
        self._busy = asyncio.Lock()
        credentials = credentials_of(config.node, config.folder)
        self._link = Uplink("Station", credentials, self._hello, self._receive, log, meters, MESSAGE_BYTES)
        self._restore()

    @property
    def healthy(self) -> bool:
        """Whether there is a stream to the station."""
        return self._link.connected

    async def run(self) -> None:
        """Serve until told to stop, or until the terminal has left the network."""
        await self._link.run(
            lambda: (Identity(self.identity.network, STATION, self._place.station), self._place.address)
        )

    async def close(self) -> None:
        """End after the present message; the state is on disk already."""
        async with self._busy:
            self._save(fsync=True)
        await self._link.close()

    def renew(self) -> None:
        """Connect anew if the credentials have changed."""
        self._link.renew()

    # Greeting.

    def _hello(self) -> bytes:
        role = self.role
        hello = wire.Hello(
            oldest=codec.PROTOCOL,
            newest=codec.PROTOCOL,
            network=self.identity.network,
            software=__version__,
            node=self.identity.number,
            incarnation=role.incarnation if role else 0,
            pending_round=role.pending.round if role and role.pending else 0,
            round=role.last_round if role else 0,
            epoch=self._epoch,
        )
        return wire.TerminalUp(hello=hello).SerializeToString()

    async def _on_welcome(self, welcome: wire.Welcome) -> None:
        if self.role is None:
            self._begin(welcome.job, int(welcome.incarnation))
        elif self._job != welcome.job:
            raise PeerError("the network learns something else now: this terminal's state belongs to another job")
        assert self.role is not None
        await asyncio.to_thread(self._warm_up)
        if welcome.HasField("scaling"):
            self._scale(codec.scaling_in(welcome.scaling))
        if welcome.epoch != self._epoch:
            if self._epoch and self.role.phase is not Phase.DETACHED:
                self._log("station lost its memory", "warning", reason="joining again with all that was learned")
                self.role.abandon()
            self._epoch = welcome.epoch
        elif welcome.incarnation > self.role.incarnation:
            return self._start_anew(f"the station knows incarnation {welcome.incarnation}", int(welcome.incarnation))
        elif welcome.HasField("verdict") and self.role.is_member:
            self._log("no member any more", "warning", reason="joining again with all that was learned")
            self.role.abandon(codec.verdict_in(welcome.verdict))
        return self._present()

    def _present(self) -> None:
        """Say where this terminal stands: joining, or on its way out. With an update pending it is a member already."""
        assert self.role is not None
        if self.role.phase is Phase.LEAVING:
            self._leave(Release(self.identity.number, Verdict()))
        elif self.role.pending is None:
            join = self.role.join()
            if self._feedback is not None and self.role.last_round == 0:
                self._feedback.joined(join)
            self._save()
            self._send(wire.TerminalUp(join=codec.join_out(join)))

    def _begin(self, job: wire.Job, incarnation: int) -> None:
        method = jobs.method_of(job)
        jobs.shape_of(job, method)
        if job.least_steps < self.config.least_steps:
            raise PeerError(f"the network asks for H >= {job.least_steps}, this terminal for {self.config.least_steps}")
        classes = tuple(job.classes)
        rows = jobs.load_rows(self.config.folder / self.config.data, job.features, classes)
        if self.config.test:
            self._tests = jobs.load_rows(self.config.folder / self.config.test, job.features, classes)
        self._job = wire.Job()
        self._job.CopyFrom(job)
        self._feedback = Feedback() if job.precision == wire.FLOAT32 else None
        y = jobs.targets(rows, classes)
        self._warm_up = partial(warm_up, method, rows.X[:2], y[:2], rows.weight)
        self.role = Terminal(
            self.identity.number, rows.X, y, method, seed=int(job.seed), weight=rows.weight, incarnation=incarnation
        )

    def _start_anew(self, reason: str, known: int = 0) -> None:
        """Give up dual variables that do not fit what the station knows: α = 0, and a new incarnation."""
        assert self.role is not None
        assert self._job is not None
        self._log("state lost", "warning", reason=reason)
        incarnation, scaling = max(known, self.role.incarnation), self._scaling
        self._begin(self._job, incarnation)
        self._scaling = None
        if scaling is not None:
            self._scale(scaling)
        self._present()

    # Messages from the station.

    async def _receive(self, data: bytes) -> None:
        name, content = codec.body(codec.parse(wire.TerminalDown, data))
        self._meters.messages.labels("down", name).inc()
        if name == "refusal":
            raise PeerError(content.reason)
        async with self._busy:  # the state is not written down while a message is being worked on
            await self._handle(name, content)

    async def _handle(self, name: str, content: Any) -> None:
        if self.role is None and name != "welcome":
            raise PeerError(f"{name} before a welcome")
        if name == "drain":
            return
        try:
            await getattr(self, f"_on_{name}")(content)
        except ProtocolError as error:
            self._start_anew(str(error))

    async def _on_order(self, content: wire.WorkOrder) -> None:
        order = codec.order_in(content)
        self._mine(order.terminal)
        assert self.role is not None
        least, most = self.config.least_steps, self.config.most_steps
        if not least <= order.local_steps <= most:
            raise PeerError(f"an order for {order.local_steps} steps: this terminal takes {least} to {most}")
        pending, began = self.role.pending, time.perf_counter()
        update = await asyncio.to_thread(self.role.work, order)
        seconds = time.perf_counter() - began
        if update is None:
            return
        self._log("worked", "debug", round=order.round, steps=order.local_steps, again=update is pending)
        self._meters.work.observe(seconds)
        self._meters.round.set(order.round)
        self._settled(pending, order.verdict, update)
        sent = update if self._feedback is None else self._feedback.rounded(update)
        self._save()
        single = self._feedback is not None
        self._send(wire.TerminalUp(update=codec.update_out(sent, single=single), seconds=seconds))

    async def _on_probe(self, content: wire.Probe) -> None:
        probe = codec.probe_in(content)
        self._mine(probe.terminal)
        assert self.role is not None
        pending = self.role.pending
        sums = await asyncio.to_thread(self.role.probe, probe)
        if sums is not None:
            self._settled(pending, probe.verdict, None)
            self._send(wire.TerminalUp(sums=codec.sums_out(sums)))

    async def _on_release(self, content: wire.Release) -> None:
        self._mine(content.terminal)
        self._leave(Release(content.terminal, codec.verdict_in(content.verdict)))

    async def _on_goodbye(self, content: wire.Goodbye) -> None:
        self._mine(content.terminal)
        assert self.role is not None
        self.role.goodbye(Goodbye(content.terminal, content.incarnation))
        if self.role.phase is not Phase.DETACHED:
            return
        if content.HasField("destination"):
            self._log("moving", station=content.destination.station, address=content.destination.address)
            self._place.CopyFrom(content.destination)
            self._epoch = ""
            self._save()
            self._link.again()
        else:
            self._log("left the network")
            self._epoch = ""
            self._save()
            self._link.closing = True
            self._link.again()

    async def _on_ask_moments(self, _: wire.Nothing) -> None:
        assert self.role is not None
        self._send(wire.TerminalUp(moments=codec.moments_out(self.role.moments())))

    async def _on_scaling(self, content: wire.Scaling) -> None:
        self._scale(codec.scaling_in(content))
        self._send(wire.TerminalUp(scaled=wire.Nothing()))

    async def _on_trial(self, content: wire.Trial) -> None:
        model = codec.array(content.model, "a model")
        self._send(wire.TerminalUp(tally=self._tally(int(content.number), model)))

    # Doing it.

    def _leave(self, release: Release) -> None:
        assert self.role is not None
        pending = self.role.pending
        leave = self.role.leave(release)
        if leave is None:
            return
        self._settled(pending, release.verdict, None)
        self._save()
        sent = leave if self._feedback is None else self._feedback.leaving(leave)
        self._send(wire.TerminalUp(leave=codec.leave_out(sent)))

    def _settled(self, pending: Update | None, verdict: Verdict, now: Update | None) -> None:
        """Tell the residual what became of an update that was pending and is so no more."""
        if self._feedback is not None and pending is not None and (now is None or now.round != pending.round):
            self._feedback.settle(pending, verdict)

    def _scale(self, scaling: Scaling) -> None:
        assert self.role is not None
        if self._scaling is None:
            self._scaling = scaling  # one that has learned from raw rows starts anew with it
            self.role.scale(scaling)
            self._save()

    def _tally(self, number: int, model: Any) -> wire.Tally:
        """How a model does on the test rows here."""
        assert self._job is not None
        n_classes = len(self._job.classes)
        if self._tests is None or not len(self._tests.y):
            return wire.Tally(number=number, counts=codec.tensor(np.zeros((n_classes, n_classes))))
        X = self._tests.X if self._scaling is None else self._scaling.scaler.transform(self._tests.X)
        predicted = metrics.predict(scores(X, model), n_classes)
        counts = np.zeros((n_classes, n_classes))
        squares = 0.0
        if n_classes:
            np.add.at(counts, (self._tests.y, predicted), 1.0)
        else:
            squares = float(np.square(self._tests.y - predicted).sum())
        return wire.Tally(number=number, counts=codec.tensor(counts), squares=squares, rows=len(self._tests.y))

    def _mine(self, terminal: int) -> None:
        if terminal != self.identity.number:
            raise PeerError(f"a message for terminal {terminal} came to terminal {self.identity.number}")

    def _send(self, message: wire.TerminalUp) -> None:
        self._meters.messages.labels("up", message.WhichOneof("body") or "").inc()
        self._link.send(message.SerializeToString())

    # What is written down.

    def _save(self, *, fsync: bool | None = None) -> None:
        if self.role is None or self._job is None:
            return
        with self._meters.saves.time():
            self._file.write(self._record(self.role.state).SerializeToString(), fsync=fsync)

    def _record(self, state: TerminalState) -> wire.TerminalFile:
        record = wire.TerminalFile(
            network=self.identity.network,
            epoch=self._epoch,
            job=self._job,
            alpha=codec.tensor(state.alpha),
            pending=codec.tensor(state.pending),
            last_round=state.last_round,
            phase=state.phase.value,
            incarnation=state.incarnation,
            place=self._place,
            rows=len(state.alpha),
        )
        if state.update is not None:
            record.update.CopyFrom(codec.update_out(state.update))
        if self._scaling is not None:
            record.scaling.CopyFrom(codec.scaling_out(self._scaling))
        if self._feedback is not None and self._feedback.residual is not None:
            record.residual.CopyFrom(codec.tensor(self._feedback.residual))
            record.usual_factor = self._feedback.usual_factor
        return record

    def _restore(self) -> None:
        try:
            payload = self._file.read()
        except CorruptError as error:
            aside = self._file.set_aside()
            self._log("state damaged", "error", reason=f"{error}; kept as {aside.name}, starting anew at alpha = 0")
            return
        if payload is None:
            return
        record = wire.TerminalFile.FromString(payload)
        if record.network != self.identity.network:
            raise ConfigError(f"{self._file.path} belongs to network {record.network!r}: give another state folder")
        self._begin(record.job, 0)
        assert self.role is not None
        if self.role.n_samples != record.rows:
            raise ConfigError(
                f"{self.config.data} has {self.role.n_samples} rows, the state was made with {record.rows}"
            )
        self._epoch = record.epoch
        if record.place.station != self.config.station:  # it has moved since it was configured
            self._place.CopyFrom(record.place)
        if record.HasField("scaling"):
            self._scaling = codec.scaling_in(record.scaling)
            self.role.scale(self._scaling)
        update = codec.update_in(record.update) if record.HasField("update") else None
        alpha, pending = codec.array(record.alpha, "alpha"), codec.array(record.pending, "pending")
        state = TerminalState(alpha, pending, update, record.last_round, Phase(record.phase), record.incarnation)
        self.role.restore(state)
        if self._feedback is not None and record.HasField("residual"):
            self._feedback = Feedback(codec.array(record.residual, "residual"), record.usual_factor)
