"""The process of a terminal: owns its rows and dual variables, connects outwards to its station, answers its orders.

The role decides; this service carries messages, and writes the role's state down before an update goes out.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import encode
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.node.credentials import STATION, Identity
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.deploy.terminal.account import DOWN, UP, Account, read
from rhfedmtl.deploy.terminal.masked import Body, MaskedAnswers, partners_of
from rhfedmtl.deploy.terminal.owner import ACCOUNT, Owner
from rhfedmtl.deploy.terminal.site import STATE, SitePolicy
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError, ProtocolError
from rhfedmtl.maths import metrics
from rhfedmtl.maths.kernels.kernel import COMPILED, best_kernel, find_kernel
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.channel import MaskedSums
from rhfedmtl.roles.messages import (
    Centring,
    Goodbye,
    Noising,
    Probe,
    Release,
    RowProbe,
    Scaling,
    ShareProbe,
    Sums,
    Trial,
    Update,
    Vector,
    Verdict,
    WorkOrder,
)
from rhfedmtl.roles.summed import SumRequest
from rhfedmtl.roles.terminal import OldStateError, Phase, Terminal, TerminalState

MESSAGE_BYTES = 1 << 26
"""A terminal trusts its station with large messages: its shapes are known only after the greeting."""
REST = 2 * framed(0)
"""What it takes to say that nothing follows."""
HANDSHAKE_BYTES = {UP: 2600, DOWN: 3600}
"""What a connection with mutual TLS takes; measured."""
ENVELOPE_BYTES = 512
"""What an order or an update has besides its vector."""
WarmUp = Callable[[Method, npt.NDArray[Any], npt.NDArray[np.float64], Any], None]


class TerminalService:
    """One terminal. ``method_of`` finds what a job asks it to compute; ``warm_up`` is called before it joins."""

    def __init__(
        self,
        config: TerminalConfig,
        log: Log,
        meters: Meters,
        method_of: jobs.MethodOf,
        warm_up: WarmUp = lambda *_: None,
    ) -> None:
        self.config, self._log, self._meters = config, log, meters
        self._method_of, self._compile = method_of, warm_up
        self.identity = config.identity
        self._file = StateFile(config.state / STATE, fsync=config.node.fsync or config.epsilon > 0.0)
        self._place = wire.Place(station=config.station, address=config.address)
        self._job: wire.Job | None = None
        self._rows_digest = b""
        self.agreed = jobs.Agreement()
        self._certified = b""
        self._epoch = ""
        self._secret = secrets.token_bytes(32)
        self._masked: MaskedAnswers | None = None
        self._tests: jobs.NodeRows | None = None
        self._role: Terminal | None = None
        self._warm_up: Callable[[], None] = lambda: None
        self._busy = asyncio.Lock()
        self._kernel = find_kernel(config.kernel)
        self._asleep_until = -math.inf
        self._told = False
        self.site = SitePolicy(config)
        self._declined: wire.Declined | None = None
        self._owner = Owner(config.state)
        self._owner.check()
        self.account = Account(config.state / ACCOUNT, config.byte_budget, config.budget_days)
        self.link = Uplink(
            TERMINAL_TO_STATION,
            config.credentials(),
            self._hello,
            self._handle,
            log,
            meters,
            MESSAGE_BYTES,
            self._spend,
            config.link,
        )
        self._restore()

    @property
    def role(self) -> Terminal:
        """The role; there is none before the station has said what is learned."""
        if self._role is None:
            raise PeerError(f"terminal {self.identity.number} does not know yet what is learned")
        return self._role

    @property
    def healthy(self) -> bool:
        """Whether there is a stream to the station."""
        return self.link.connected

    async def run(self) -> None:
        """Serve until told to stop, or until the terminal has left the network."""
        self._look_around()
        await self.link.run(
            lambda: (Identity(self.identity.network, STATION, self._place.station), self._place.address)
        )

    async def close(self) -> None:
        """End after the present message; the state is on disk already."""
        async with self._busy:
            self._save(fsync=True)
        await self.link.close()

    def renew(self) -> None:
        """Connect anew if the credentials have changed; heed what the owner wants."""
        self.link.renew()
        self._look_around()

    # The owner, and the link.

    def _look_around(self) -> None:
        """Rest while there is a reason to, and tell the station once that the owner wants to go, or a new day came."""
        self.link.rest(self._reason_to_rest())
        if self._declined is not None and self._role is not None and not self._refusal(self._declined.local_steps):
            self._declined = None
            self.link.send(declined=wire.Declined())
        if self._owner.withdraws and self.link.connected and not self._told and self._role is not None:
            self._told = self.link.send(withdraw=wire.Nothing())

    def _reason_to_rest(self) -> str:
        if self._owner.withdraws:  # to go, it has to speak once more
            return ""
        if self._owner.paused:
            return "paused by its owner"
        if not self.account.allows(self._next_bytes):
            return f"byte budget: {self.account.in_words}, the next answer needs {self._next_bytes:,}"
        return "asleep" if time.monotonic() < self._asleep_until else ""

    @property
    def _next_bytes(self) -> int:
        """Bytes of a connection, an order and its answer, with all that goes around them."""
        vectors = 2 * (8 * math.prod(self._role.shape) + ENVELOPE_BYTES) if self._role else 0
        return sum(HANDSHAKE_BYTES.values()) + vectors

    def _spend(self, way: str, kind: str, n_bytes: int) -> bool:
        """Write down what goes over the link; whether it may."""
        if kind == "hello":
            self._told = False
            for each, taken in HANDSHAKE_BYTES.items():
                self.account.note(each, "connection", self._place.station, taken)
        elif way == UP and kind != "rest" and not self.account.allows(framed(n_bytes) + REST):  # which follows it
            self._log("not sent", "warning", reason=f"byte budget: {self.account.in_words}, {kind} has {n_bytes:,}")
            self.link.rest(f"byte budget: {self.account.in_words}")
            return False
        self.account.note(way, kind, self._place.station, framed(n_bytes))
        return True

    # Greeting.

    def _hello(self) -> wire.Hello:
        role = self._role
        return wire.Hello(
            incarnation=role.incarnation if role else 0,
            pending_round=role.pending.round if role and role.pending else 0,
            round=role.last_round if role else 0,
            epoch=self._epoch,
            prepared=self._is_prepared,
        )

    @property
    def _is_prepared(self) -> bool:
        """Whether round zero is known wholly: nobody need tell it again."""
        labels_too = self.agreed.centring is not None or (self._job is not None and len(self._job.classes) > 0)
        return self.agreed.scaling is not None and labels_too

    async def _on_welcome(self, welcome: wire.Welcome) -> None:
        if self._role is None:
            self.begin(welcome.job, int(welcome.incarnation))
            if refusal := self._refuses_job(welcome.job):
                self._role = None
                return self._decline(wire.Declined(reason=refusal))
        elif self._job != welcome.job:
            raise PeerError("the network learns something else now: this terminal's state belongs to another job")
        await asyncio.to_thread(self._warm_up)
        if self._masked is not None:
            self.link.send(**self._masked.begin())
        self._agree(jobs.Agreement.read(welcome))
        if welcome.epoch != self._epoch:
            if self._epoch and self.role.phase is not Phase.DETACHED:
                self._log("station lost its memory", "warning", reason="joining again with all that was learned")
                self.role.abandon()
            self._epoch = welcome.epoch
        if welcome.HasField("place"):
            self.role.abandon()
            return self._move(welcome.place if welcome.place.address else None)
        if welcome.incarnation > self.role.incarnation:
            self._fall_back(f"the station knows incarnation {welcome.incarnation}", int(welcome.incarnation))
        elif welcome.HasField("verdict") and self.role.is_member:
            self._log("no member any more", "warning", reason="joining again with all that was learned")
            self.role.abandon(codec.from_wire(Verdict, welcome.verdict))
        return self._present()

    def _present(self) -> None:
        """Say where this terminal stands: joining, or on its way out. With an update pending it is a member already."""
        if self.role.phase is Phase.LEAVING:
            self._leave(Release(self.identity.number, Verdict()))
        elif self.role.pending is None:
            sealed = self.role.method.channel.sealed
            if sealed and self.role.phase is Phase.DETACHED and self.role.state.alpha.any():
                assert self._job is not None
                self._log("state given up", "warning", reason="sums are sealed: a terminal joins one with nothing")
                self.begin(self._job, self.role.incarnation)
                self._prepare()
            join = self.role.join()
            if sealed:  # a member that comes back tells nothing of what it holds
                join = replace(join, share=np.zeros(self.role.shape))
            self._save()
            self.link.send(join=codec.to_wire(join))

    def begin(self, job: wire.Job, incarnation: int = 0) -> None:
        """Take the job from the station, and make the role for it from the rows here."""
        method = self._method_of(job)
        jobs.shape_of(job, method)
        classes = tuple(job.classes)
        rows = jobs.load_rows(self.config.folder / self.config.data, job.features, classes, self.config.columns)
        self._rows_digest = rows.digest
        if self.config.test:
            path = self.config.folder / self.config.test
            self._tests = jobs.load_rows(path, job.features, classes, self.config.columns)
        self._job = wire.Job()
        self._job.CopyFrom(job)
        if self._masked is None and isinstance(method.channel, MaskedSums):
            self._masked = MaskedAnswers(
                self.identity,
                self.config.credentials(),
                method.channel,
                self._secret,
                self._save,
                method.masked_profile,
            )
        y = encode(rows.y, classes)
        if best_kernel(self.config.kernel) == COMPILED:
            self._warm_up = partial(self._compile, method, rows.X[:2], y[:2], rows.weight)
        self._role = Terminal(
            self.identity.number,
            rows.X,
            y,
            method,
            seed=self._secret if self.config.row_seed < 0 else self.config.row_seed,
            weight=rows.weight,
            incarnation=incarnation,
            kernel=self._kernel,
        )

    def _fall_back(self, reason: str, known: int = 0) -> None:
        """Join as a newcomer with the dual variables of an old copy: the station has others, and takes these.

        Its account is as old, so that what its owner allows may be spent: all of it is taken to be.
        """
        self.site.spend_all()
        self._log("state is old", "warning", reason=f"{reason}; joining again with what is left")
        self.role.fall_back(known)

    def _start_anew(self, reason: str) -> None:
        """Give up dual variables that do not fit the rows: α = 0, and a new incarnation."""
        assert self._job is not None
        self._log("state lost", "warning", reason=reason)
        self.begin(self._job, self.role.incarnation)
        self._prepare()
        self._present()

    # Messages from the station.

    async def _handle(self, name: str, content: Any) -> None:
        if self._role is None and name != "welcome":  # it has declined the job
            return
        async with self._busy:  # the state is not written down while a message is being worked on
            try:
                await self.HANDLERS[name](self, content)
            except OldStateError as error:
                self._fall_back(str(error))
                self._present()
            except ProtocolError as error:
                self._start_anew(str(error))

    async def _on_order(self, content: wire.WorkOrder) -> None:
        order = codec.from_wire(WorkOrder, content)
        self._mine(order.terminal)
        partners = partners_of(content) if self._masked is not None else None
        pending, began = self.role.pending, time.perf_counter()
        known = pending is not None and pending.round == order.round
        if not known and (refusal := self._refusal(order.local_steps)):
            self._decline(wire.Declined(round=order.round, reason=refusal, local_steps=order.local_steps))
            return
        update = await asyncio.to_thread(self.role.work, order)
        seconds = time.perf_counter() - began
        if update is None:
            return
        self._log("worked", "debug", round=order.round, steps=order.local_steps, again=update is pending)
        self._meters.work.observe(seconds)
        self._meters.round.set(order.round)
        if update is not pending:
            self.site.note(order.local_steps, self.role.method.channel.price)
        self._save()
        body = {"update": codec.to_wire(update)} if partners is None else self._mask(order, update, partners)
        self.link.send(**body, seconds=seconds)
        if self.config.sleep > 0.0:
            self._asleep_until = time.monotonic() + self.config.sleep
        self._look_around()

    async def _on_probe(self, content: wire.Probe) -> None:
        probe = codec.from_wire(Probe, content)
        self._mine(probe.terminal)
        partners = partners_of(content) if self._masked is not None else None
        self._refuse_exact(probe)
        sums = await asyncio.to_thread(self.role.probe, probe)
        if sums is None or (probe.noise is not None and not self._may_tell(probe, sums)):
            return
        self.link.send(**({"sums": codec.to_wire(sums)} if partners is None else self._mask(probe, sums, partners)))

    def _refuse_exact(self, probe: Probe) -> None:
        """Where updates are noised, so is what a certificate is made from, and it is one number."""
        alone = probe.points.tolist() == [[1.0]] and not probe.gradient
        if self._noised != (probe.noise is not None) or (self._noised and not alone):
            raise PeerError(f"a probe with noise {probe.noise}, where updates are noised: {self._noised}")

    def _may_tell(self, probe: Probe, sums: Sums) -> bool:
        """Charge what a private certificate tells before it leaves; the same told again tells nothing new."""
        parts = probe.models, np.float64(probe.noise), sums.losses
        told = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        if told != self._certified:
            price = self.role.certificate_price(probe)
            if refusal := self.site.refuses_telling(price):
                self._decline(wire.Declined(reason=refusal))
                return False
            self.site.note_told(price)
            self._certified = told
        self._save()
        return True

    async def _on_circle(self, content: wire.Circle) -> None:
        self.link.send(**self._in_sums.deal(content))

    async def _on_unmask(self, content: wire.Unmask) -> None:
        self.link.send(**self._in_sums.open(content))

    @property
    def _in_sums(self) -> MaskedAnswers:
        if self._masked is None:
            raise PeerError("sums of this network are not masked")
        return self._masked

    def _mask(self, asked: SumRequest, answer: Update | Sums | Vector, partners: wire.Partners) -> Body:
        """An answer under masks, which rest on all that was agreed on with the station."""
        forms = [None if each is None else codec.to_wire(each) for each in vars(self.agreed).values()]
        told = (b"" if each is None else each.SerializeToString(deterministic=True) for each in (self._job, *forms))
        agreed = b"".join(hashlib.sha256(each).digest() for each in told)
        return self._in_sums.mask(asked, answer, partners, self.role, agreed)

    @property
    def _noised(self) -> bool:
        """Whether sums are noised, or have to be if anything is to be told."""
        return self.role.method.channel.noised or self.config.epsilon > 0.0

    def _refuse_alone(self, what: str) -> None:
        """Nothing of this terminal alone is told where sums are masked or noised."""
        if self._masked is not None or self._noised:
            raise PeerError(f"sums of this network are masked or noised: {what} of a single terminal are not told")

    def _refuse_noised(self, what: str) -> None:
        """Nor are sums without noise where there has to be some."""
        if self._noised:
            raise PeerError(f"sums of this network are noised: {what} are not told")

    async def _on_release(self, content: wire.Release) -> None:
        self._mine(content.terminal)
        self._refuse_alone("shares")
        self._leave(codec.from_wire(Release, content))

    async def _on_ask_share(self, content: wire.ShareProbe) -> None:
        asked, partners = codec.from_wire(ShareProbe, content), partners_of(content)
        self._mine(asked.terminal)
        self._refuse_noised("shares")
        share = await asyncio.to_thread(self.role.kept_share, asked.verdict)
        if share is not None:
            self.link.send(**self._mask(asked, share, partners))

    async def _on_noising(self, content: wire.Noising) -> None:
        self._agree(jobs.Agreement(noising=codec.from_wire(Noising, content)))
        self.link.send(noised=wire.Nothing())

    async def _on_goodbye(self, content: wire.Goodbye) -> None:
        self._mine(content.terminal)
        goodbye = codec.from_wire(Goodbye, content)
        if self.role.method.channel.sealed and goodbye.incarnation == self.role.incarnation:
            self.role.abandon()  # the others told what stays in the sum: nothing of this one does
        self.role.goodbye(goodbye)
        if self.role.phase is not Phase.DETACHED:
            return
        self._move(content.destination if content.HasField("destination") else None)

    def _move(self, place: wire.Place | None) -> None:
        """Go to another station, or out of the network."""
        if place is not None:
            self._log("moving", station=place.station, address=place.address)
            self._place.CopyFrom(place)
        else:
            self._log("left the network")
            self._owner.note_gone()
            self.link.closing = True
        self._epoch = ""
        self._save()
        self.link.again()

    async def _on_ask_moments(self, _: wire.Nothing) -> None:
        self._refuse_alone("moments")
        self.link.send(moments=codec.to_wire(self.role.moments()))

    async def _on_scaling(self, content: wire.Scaling) -> None:
        self._agree(jobs.Agreement(scaling=codec.from_wire(Scaling, content)))
        self.link.send(scaled=wire.Nothing())

    async def _on_ask_labels(self, _: wire.Nothing) -> None:
        self._refuse_alone("labels")
        self.link.send(labels=codec.to_wire(self.role.labels()))

    async def _on_ask_rows(self, content: wire.RowProbe) -> None:
        self._refuse_noised("those of rows and labels")
        asked, partners = codec.from_wire(RowProbe, content), partners_of(content)
        sums = await asyncio.to_thread(self.role.row_sums, asked)
        self.link.send(**self._mask(asked, sums, partners))

    async def _on_centring(self, content: wire.Centring) -> None:
        self._agree(jobs.Agreement(centring=codec.from_wire(Centring, content)))
        self.link.send(centred=wire.Nothing())

    async def _on_trial(self, content: wire.Trial) -> None:
        if self._masked is None or self._noised:
            self._refuse_alone("test rows")
        partners = partners_of(content) if self._masked is not None else None
        asked = codec.from_wire(Trial, content)
        tally = self._tally(asked.number, asked.model)
        if partners is None:
            self.link.send(tally=tally)
            return
        told = np.concatenate([[tally.rows, tally.squares], codec.array(tally.counts, "counts")], axis=None)
        self.link.send(**self._mask(asked, told, partners))

    HANDLERS: Mapping[str, Callable[[TerminalService, Any], Awaitable[None]]] = {
        "welcome": _on_welcome,
        "order": _on_order,
        "probe": _on_probe,
        "release": _on_release,
        "goodbye": _on_goodbye,
        "ask_moments": _on_ask_moments,
        "scaling": _on_scaling,
        "ask_labels": _on_ask_labels,
        "ask_rows": _on_ask_rows,
        "ask_share": _on_ask_share,
        "centring": _on_centring,
        "trial": _on_trial,
        "circle": _on_circle,
        "unmask": _on_unmask,
        "noising": _on_noising,
    }

    # Doing it.

    def _leave(self, release: Release) -> None:
        leave = self.role.leave(release)
        if leave is not None:
            self._save()
            self.link.send(leave=codec.to_wire(leave))

    def _agree(self, told: jobs.Agreement) -> None:
        """Heed what is agreed on, and write it down."""
        known = self.agreed
        if told.scaling is not None and known.scaling is None:
            known.scaling = told.scaling  # one that has learned from raw rows starts anew with it
            self.role.scale(told.scaling)
            self._save()
        if told.centring is not None and known.centring is None:
            known.centring = told.centring  # one that moves keeps the level that its duals were learned with
            self.role.centre(told.centring)
            self._save()
        if told.noising is not None and known.noising is None:
            self._hide(told.noising)
            known.noising = told.noising
            self._save()
        elif told.noising is not None and told.noising != known.noising:
            raise PeerError(f"{told.noising}, where {known.noising} was agreed on")

    def _hide(self, noising: Noising) -> None:
        self.role.hide(noising)
        if self._masked is not None and isinstance(self.role.method.channel, MaskedSums):
            self._masked.channel = self.role.method.channel

    def _prepare(self) -> None:
        """Round zero as it was agreed on, for rows that were just loaded."""
        if self.agreed.scaling is not None:
            self.role.scale(self.agreed.scaling)
        if self.agreed.centring is not None:
            self.role.centre(self.agreed.centring)
        if self.agreed.noising is not None:
            self._hide(self.agreed.noising)

    def _tally(self, number: int, model: Any) -> wire.Tally:
        """How a model does on the test rows here."""
        assert self._job is not None
        n_classes = len(self._job.classes)
        if self._tests is None or not len(self._tests.y):
            return wire.Tally(number=number, counts=codec.tensor(np.zeros((n_classes, n_classes))))
        scaling = self.agreed.scaling
        X = self._tests.X if scaling is None else scaling.scaler.transform(self._tests.X)
        predicted = metrics.predict(metrics.scores(X, model), n_classes)
        counts = np.zeros((n_classes, n_classes))
        squares = 0.0
        if n_classes:
            np.add.at(counts, (self._tests.y, predicted), 1.0)
        else:
            squares = float(np.square(self._tests.y - predicted).sum())
        return wire.Tally(number=number, counts=codec.tensor(counts), squares=squares, rows=len(self._tests.y))

    def _refusal(self, steps: int) -> str:
        """Why the site does not allow an order of so many steps; empty if it does."""
        assert self._job is not None
        price = self.role.method.channel.price
        return self._refuses_job(self._job) or self.site.refuses(steps, self.role.n_samples, price)

    def _refuses_job(self, job: wire.Job) -> str:
        method = self.role.method
        return self.site.refuses_job(job, self.role.n_samples, method.channel, uniform=method.uniform)

    def _decline(self, declined: wire.Declined) -> None:
        self._log("declined", "warning", round=declined.round or None, reason=declined.reason)
        self._declined = declined
        self.link.send(declined=declined)

    def _mine(self, terminal: int) -> None:
        if terminal != self.identity.number:
            raise PeerError(f"a message for terminal {terminal} came to terminal {self.identity.number}")

    # What is written down.

    def _save(self, *, fsync: bool | None = None) -> None:
        if self._role is None:
            return
        with self._meters.saves.time():
            self._file.write(self.record().SerializeToString(), fsync=fsync)

    def record(self) -> wire.TerminalFile:
        """All that is written down."""
        state, network = self.role.state, self.identity.network
        record: wire.TerminalFile = codec.to_wire(
            state,
            network=network,
            epoch=self._epoch,
            job=self._job,
            place=self._place,
            rows=len(state.alpha),
            rows_digest=self._rows_digest,
            secret=self._secret,
            certified=self._certified,
        )
        for name, number in self.site.used.items():
            setattr(record, name, number)
        self.agreed.write(record)
        if self._masked is not None:
            self._masked.note(record)
            record.history = self.role.history
        return record

    def _refuse_without_account(self, reason: str) -> None:
        """Where an owner bounds what is told, nothing is while nobody knows what was."""
        if self.config.epsilon:
            raise ConfigError(
                f"{reason}: what this terminal told is not known, where epsilon={self.config.epsilon:g} is allowed; "
                f"put the file back, or move it and {ACCOUNT} away to begin an account that counts nothing of before"
            )

    def _restore(self) -> None:
        try:
            payload = self._file.read()
        except CorruptError as error:
            self._refuse_without_account(str(error))
            aside = self._file.set_aside()
            self._log("state damaged", "error", reason=f"{error}; kept as {aside.name}, starting anew at alpha = 0")
            return
        if payload is None:
            if any(line.way == UP and line.kind in ("update", "masked") for line in read(self.config.state / ACCOUNT)):
                self._refuse_without_account(f"{self._file.path} is gone")
            return
        record = wire.TerminalFile.FromString(payload)
        if record.network != self.identity.network:
            raise ConfigError(f"{self._file.path} belongs to network {record.network!r}: give another state folder")
        self._secret = record.secret or self._secret
        self.site.used = {name: getattr(record, name) for name in self.site.used}
        if record.place.station != self.config.station:  # it has moved since it was configured
            self._place.CopyFrom(record.place)
        if not record.HasField("job"):  # all else was forgotten
            return
        self.begin(record.job)
        if self.role.n_samples != record.rows or record.rows_digest not in (b"", self._rows_digest):
            raise ConfigError(
                f"{self.config.data} has other rows than the {record.rows} that {self._file.path} was made with: "
                "put those back, or move that file away, and this terminal begins anew with the rows of now"
            )
        self._epoch = record.epoch
        self.agreed = jobs.Agreement.read(record)
        self._certified = record.certified
        self._prepare()
        self.role.restore(codec.from_wire(TerminalState, record))
        if self._masked is not None:
            self._masked.restore(record)
            self.role.history = record.history
