"""Answers of a terminal about its rows: updates, sums for certificates, sums of round zero, counts on test rows.

Every number about rows leaves the terminal through this module. To add an answer, add a method here, check `Disclosure`
first, and enter the message in `TerminalService.handlers` and in `rhfedmtl.deploy.terminal.account.CONTENTS`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time

import numpy as np

from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.terminal.disclosure import Disclosure
from rhfedmtl.deploy.terminal.masked import Body, MaskedAnswers, partners_of
from rhfedmtl.deploy.terminal.memory import TerminalMemory
from rhfedmtl.deploy.terminal.metered_link import MeteredLink
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths import metrics
from rhfedmtl.roles.messages import (
    MomentsRequest,
    Probe,
    RowProbe,
    ShareProbe,
    Sums,
    Trial,
    Update,
    Vector,
    WorkOrder,
)
from rhfedmtl.roles.summed import SumRequest


class RowAnswers:
    """Answers questions of the station about the rows of a terminal, in the clear or under masks.

    `TerminalService` passes each question to its method. The method asks `Disclosure` first, and saves a changed state
    before the answer leaves. It never joins or leaves a station, and changes no agreement.
    """

    def __init__(
        self, memory: TerminalMemory, disclosure: Disclosure, link: MeteredLink, log: Log, meters: Meters
    ) -> None:
        self._memory, self._disclosure, self._link, self._log, self._meters = memory, disclosure, link, log, meters

    async def work(self, content: wire.WorkOrder) -> None:
        """Take the local steps of an order, and send the update."""
        memory, role = self._memory, self._memory.terminal
        order = codec.from_wire(WorkOrder, content)
        self.check_addressee(order.terminal)
        partners = partners_of(content) if memory.masks is not None else None
        pending, began = role.pending, time.perf_counter()
        again = pending is not None and pending.round == order.round
        if not again and (refusal := self._disclosure.refuses(order.local_steps)):
            self._link.decline(wire.Declined(round=order.round, reason=refusal, local_steps=order.local_steps))
            return
        update = await asyncio.to_thread(role.work, order)
        seconds = time.perf_counter() - began
        if update is None:
            return
        self._log("worked", "debug", round=order.round, steps=order.local_steps, again=update is pending)
        self._meters.work.observe(seconds)
        self._meters.round.set(order.round)
        if update is not pending:
            memory.site.note(order.local_steps, role.method.channel.price)
        memory.save()
        body = {"update": codec.to_wire(update)} if partners is None else self.mask(order, update, partners)
        self._link.send(**body, seconds=seconds)
        self._link.sleep()

    async def certify(self, content: wire.Probe) -> None:
        """Send the sums for a certificate; the owner's account is charged before they leave."""
        probe = codec.from_wire(Probe, content)
        self.check_addressee(probe.terminal)
        partners = partners_of(content) if self._memory.masks is not None else None
        self._disclosure.refuse_other_noise(probe)
        sums = await asyncio.to_thread(self._memory.terminal.probe, probe)
        if sums is None:
            return
        if probe.noise is not None and (refusal := self._disclosure.refuses_certificate(probe, sums)):
            self._link.decline(wire.Declined(reason=refusal))
            return
        self._link.send(**({"sums": codec.to_wire(sums)} if partners is None else self.mask(probe, sums, partners)))

    async def tell_share(self, content: wire.ShareProbe) -> None:
        """Send the share of this terminal, which stays in a masked sum, under masks."""
        probe, partners = codec.from_wire(ShareProbe, content), partners_of(content)
        self.check_addressee(probe.terminal)
        self._disclosure.refuse_noised("shares")
        share = await asyncio.to_thread(self._memory.terminal.kept_share, probe.verdict)
        if share is not None:
            self._link.send(**self.mask(probe, share, partners))

    async def tell_moments(self, content: wire.MomentsRequest) -> None:
        """Send the number of rows, and mean and spread of each feature, as the mapping of the request makes them."""
        self._disclosure.refuse_alone("moments")
        mapping = codec.from_wire(MomentsRequest, content).row_map
        moments = await asyncio.to_thread(self._memory.terminal.moments, mapping)
        if content.HasField("mapping"):
            self._disclosure.note_mapping(content.mapping)
        self._link.send(moments=codec.to_wire(moments))

    async def tell_labels(self, _: wire.Nothing) -> None:
        """Send the sums over the labels of a regression."""
        self._disclosure.refuse_alone("labels")
        self._link.send(labels=codec.to_wire(self._memory.terminal.labels()))

    async def tell_rows(self, content: wire.RowProbe) -> None:
        """Send sums over rows or labels under masks."""
        self._disclosure.refuse_noised("sums over rows and labels")
        probe, partners = codec.from_wire(RowProbe, content), partners_of(content)
        sums = await asyncio.to_thread(self._memory.terminal.row_sums, probe)
        if content.HasField("mapping"):
            self._disclosure.note_mapping(content.mapping)
        self._link.send(**self.mask(probe, sums, partners))

    async def try_model(self, content: wire.Trial) -> None:
        """Send counts of right and wrong predictions of a model on the test rows of this terminal."""
        memory = self._memory
        assert memory.job is not None
        if memory.masks is None or self._disclosure.noised:
            self._disclosure.refuse_alone("test rows")
        partners = partners_of(content) if memory.masks is not None else None
        trial, n_classes = codec.from_wire(Trial, content), len(memory.job.classes)
        counts, squares, rows = np.zeros((n_classes, n_classes)), 0.0, 0
        if memory.tests is not None and len(memory.tests.y):
            rows, scaling = len(memory.tests.y), memory.agreed.scaling
            X = memory.tests.X if scaling is None else scaling.scaler.transform(memory.tests.X)
            predicted = metrics.predict(metrics.scores(X, trial.model), n_classes)
            if n_classes:
                np.add.at(counts, (memory.tests.y, predicted), 1.0)
            else:
                squares = float(np.square(memory.tests.y - predicted).sum())
        if partners is None:
            tally = wire.Tally(number=trial.number, counts=codec.tensor(counts), squares=squares, rows=rows)
            self._link.send(tally=tally)
        else:
            self._link.send(**self.mask(trial, np.concatenate([[rows, squares], counts], axis=None), partners))

    # Masks.

    async def deal(self, content: wire.Circle) -> None:
        """Send shares of the secrets of a masked sum to the neighbours in it."""
        self._link.send(**self._masks.deal(content))

    async def open(self, content: wire.Unmask) -> None:
        """Send the shares that take the masks off a sum."""
        self._link.send(**self._masks.open(content))

    def mask(self, question: SumRequest, answer: Update | Sums | Vector, partners: wire.Partners) -> Body:
        """Return an answer under masks that depend on the job and on all agreements with the station."""
        memory = self._memory
        forms = [None if part is None else codec.to_wire(part) for part in vars(memory.agreed).values()]
        parts = (b"" if form is None else form.SerializeToString(deterministic=True) for form in (memory.job, *forms))
        agreed = b"".join(hashlib.sha256(part).digest() for part in parts)
        return self._masks.mask(question, answer, partners, memory.terminal, agreed)

    @property
    def _masks(self) -> MaskedAnswers:
        if self._memory.masks is None:
            raise PeerError("sums of this network are not masked")
        return self._memory.masks

    def check_addressee(self, terminal: int) -> None:
        """Refuse a message for another terminal."""
        number = self._memory.identity.number
        if terminal != number:
            raise PeerError(f"a message for terminal {terminal} came to terminal {number}")
