"""A terminal's part in masked sums: a key for each stream, proved with its certificate; what it declines, it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rhfedmtl.algorithms.method import Method
from rhfedmtl.deploy.node.credentials import TERMINAL, Credentials, Identity
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError
from rhfedmtl.roles.channel import MaskedSums, NoisedSums
from rhfedmtl.roles.masking import (
    Circle,
    Key,
    Masker,
    Partners,
    SumKind,
    Told,
    Unmask,
    any_from_bits,
    any_to_bits,
    from_bits,
    to_bits,
)
from rhfedmtl.roles.messages import Probe, RowProbe, ShareProbe, Sums, Trial, Update, Vector, WorkOrder
from rhfedmtl.roles.summed import SumRequest, content_of, noise_for, seat_of, words_of
from rhfedmtl.roles.terminal import Terminal

Body = dict[str, Any]
KINDS = {
    WorkOrder: SumKind.UPDATE,
    Probe: SumKind.FIXED,
    RowProbe: SumKind.ROWS,
    ShareProbe: SumKind.SHARE,
    Trial: SumKind.FIXED,
}
APPLIED = 0.5
"""Share of an update, times the terminals of its sum, from which on it counts as applied: less hides none of them."""


class MaskedAnswers:
    """What a terminal answers where sums are masked. ``save`` is called before anything is opened."""

    def __init__(
        self,
        identity: Identity,
        credentials: Credentials,
        channel: MaskedSums,
        secret: bytes,
        save: Callable[[], None],
        summed: Any = slice(0),
    ) -> None:
        self._identity, self._credentials, self.channel, self._save = identity, credentials, channel, save
        self._summed = summed
        self._secret = secret
        self._applied = self._applied_when_opened = 0.0
        self.told = self._written = Told()
        self._masker = self._new()

    def begin(self) -> Body:
        """A new key for a new stream: nothing of the stream before can be opened any more."""
        self._masker = self._new()
        return {"key": codec.to_wire(self._masker.key, summed=self.told.fixed is not None)}

    def join(self) -> None:
        """Begin with nothing under a station: what was told of updates before is not told again."""
        self.told = self._masker.told = replace(self.told, spans=())

    def deal(self, content: wire.Circle) -> Body:
        """Shares for the neighbours, whose keys are checked."""
        return self._said(lambda: {"deal": codec.to_wire(self._masker.deal(codec.from_wire(Circle, content)))})

    def mask(self, asked: SumRequest, answer: Update | Sums | Vector, given: wire.Partners, role: Terminal) -> Body:
        """An answer under masks, and shares for the next. The role knows what was applied of its updates."""

        def masked() -> Body:
            partners = codec.from_wire(Partners, given)
            words = words_of(answer, self.channel, self._summed)
            if isinstance(self.channel, NoisedSums) and isinstance(asked, WorkOrder | Probe):
                words = words + noise_for(words, asked, self.channel, self._secret)
            if isinstance(asked, WorkOrder):
                self._applied = role.applied
                self._applied_when_opened = min(self._applied_when_opened, role.applied)  # a lost state counts anew
            stay = from_bits(asked.stay) if isinstance(asked, ShareProbe) else frozenset()
            sent = self._masker.mask(
                partners,
                content_of(asked),
                seat_of(asked),
                words,
                kind=kind_of(asked, role.method),
                applied=self._was_applied,
                settled=role.settled,
                stay=stay,
            )
            return {"masked": codec.to_wire(sent, next=codec.to_wire(self._masker.deal_for(partners.slot + 1)))}

        return self._said(masked)

    def open(self, content: wire.Unmask, role: Terminal) -> Body:
        """Shares for one set; for whom is written down before they go out."""

        def opened() -> Body:
            found = self._masker.open(codec.from_wire(Unmask, content))
            self.told, self._applied_when_opened = self._masker.told, self._applied
            agreed = [role.settled.pop(number, None) for number in self._masker.checked]
            if agreed or self.told != self._written:
                self._save()
            return {"opened": codec.to_wire(found)}

        return self._said(opened)

    @property
    def _was_applied(self) -> bool:
        """Whether enough of an update was since the last that was opened."""
        largest = max(map(len, self.told.unmerged), default=1)
        return (self._applied - self._applied_when_opened) * largest >= APPLIED

    def note(self, record: wire.TerminalFile) -> None:
        """Write down for whom sums were opened."""
        told = self._written = self.told
        record.told_fixed, record.told_rows = (any_to_bits(each or ()) for each in (told.fixed, told.rows))
        record.told_unmerged.extend(map(to_bits, told.unmerged))
        record.told_cells.extend(map(to_bits, told.cells))
        record.told_spans.extend(any_to_bits(each) for span in told.spans for each in span)

    def restore(self, record: wire.TerminalFile) -> None:
        """Remember what was written down."""
        fixed, rows = (any_from_bits(bits) or None for bits in (record.told_fixed, record.told_rows))
        unmerged, cells = (tuple(map(from_bits, sets)) for sets in (record.told_unmerged, record.told_cells))
        ends = [any_from_bits(bits) for bits in record.told_spans]
        self.told = Told(fixed, rows, unmerged, cells, tuple(zip(ends[::2], ends[1::2], strict=True)))

    def _said(self, answer: Callable[[], Body]) -> Body:
        try:
            return answer()
        except RHFedMTLError as error:
            return {"declined": wire.Declined(reason=str(error)[:400])}

    def _new(self) -> Masker:
        return Masker(
            self._identity.number,
            least=self.channel.least,
            sign=lambda public: self._credentials.sign(self._text(public)),
            check=self._check,
            told=self.told,
        )

    def _check(self, key: Key) -> None:
        peer = Identity(self._identity.network, TERMINAL, key.terminal)
        self._credentials.check_signed(peer, self._text(key.public), key.proof)

    def _text(self, public: bytes) -> bytes:
        return b"rhfedmtl key for masks, " + self._identity.network.encode() + b", " + public


def kind_of(asked: SumRequest, method: Method) -> SumKind:
    """What is added up; an update that rests on rows and model alone comes again with the model, applied or not."""
    return SumKind.FIXED if isinstance(asked, WorkOrder) and not method.has_duals else KINDS[type(asked)]


def partners_of(
    content: wire.WorkOrder | wire.Probe | wire.RowProbe | wire.ShareProbe | wire.Trial,
) -> wire.Partners:
    """Who else is asked; where sums are masked nothing is answered alone."""
    if not content.HasField("partners"):
        raise PeerError(
            "sums of this network are masked: nothing is told to a station without others that are asked too"
        )
    return content.partners
