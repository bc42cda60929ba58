"""A terminal's part in masked sums: a key for each stream, proved with its certificate; what it declines, it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rhfedmtl.deploy.node.credentials import TERMINAL, Credentials, Identity
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError
from rhfedmtl.roles.channel import MaskedSums, NoisedSums
from rhfedmtl.roles.messages import Probe, Sums, Update, Vector, WorkOrder
from rhfedmtl.roles.secure.masking import (
    Circle,
    Key,
    Masker,
    Members,
    Partners,
    Unmask,
)
from rhfedmtl.roles.summed import SumRequest, content_of, noise_for, seat_of, words_of
from rhfedmtl.roles.terminal import Terminal

Body = dict[str, Any]


class MaskedAnswers:
    """What a terminal answers where sums are masked. ``save`` is called before its first words go out."""

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
        self.group: Members | None = None
        self._masker = self._new()

    def begin(self) -> Body:
        """A new key for a new stream: nothing of the stream before can be opened any more."""
        self._masker = self._new()
        return {"key": codec.to_wire(self._masker.key, group=sorted(self.group or ()))}

    def deal(self, content: wire.Circle) -> Body:
        """Shares for the neighbours, whose keys are checked."""
        return self._said(lambda: {"deal": codec.to_wire(self._masker.deal(codec.from_wire(Circle, content)))})

    def mask(
        self, asked: SumRequest, answer: Update | Sums | Vector, given: wire.Partners, role: Terminal, told: bytes
    ) -> Body:
        """An answer under masks, and shares for the next; with whom this terminal counts is written down before.

        ``told`` is what was agreed on before the first round; the role knows what was applied of its updates.
        """

        def masked() -> Body:
            partners = codec.from_wire(Partners, given)
            words = words_of(answer, self.channel, self._summed)
            if isinstance(self.channel, NoisedSums) and isinstance(asked, WorkOrder | Probe):
                words = words + noise_for(words, asked, self.channel, self._secret)
            own = seat_of(asked, role.n_samples)
            sent = self._masker.mask(partners, content_of(asked), own, words, told + role.history)
            if self.group != self._masker.group:
                self.group = self._masker.group
                self._save()
            return {"masked": codec.to_wire(sent, next=codec.to_wire(self._masker.deal_for(partners.slot + 1)))}

        return self._said(masked)

    def open(self, content: wire.Unmask) -> Body:
        """Shares for one set."""
        return self._said(lambda: {"opened": codec.to_wire(self._masker.open(codec.from_wire(Unmask, content)))})

    def note(self, record: wire.TerminalFile) -> None:
        """Write down with whom this terminal counts."""
        record.group.extend(sorted(self.group or ()))

    def restore(self, record: wire.TerminalFile) -> None:
        """Remember what was written down."""
        self.group = frozenset(record.group) or None

    def _said(self, answer: Callable[[], Body]) -> Body:
        try:
            return answer()
        except RHFedMTLError as error:
            return {"declined": wire.Declined(reason=str(error)[:400])}

    def _new(self) -> Masker:
        return Masker(
            self._identity.number,
            smallest=self.channel.least,
            sign=lambda public: self._credentials.sign(self._text(public)),
            check=self._check,
            group=self.group,
        )

    def _check(self, key: Key) -> None:
        peer = Identity(self._identity.network, TERMINAL, key.terminal)
        self._credentials.check_signed(peer, self._text(key.public), key.proof)

    def _text(self, public: bytes) -> bytes:
        return b"rhfedmtl key for masks, " + self._identity.network.encode() + b", " + public


def partners_of(
    content: wire.WorkOrder | wire.Probe | wire.RowProbe | wire.ShareProbe | wire.Trial,
) -> wire.Partners:
    """Who else is asked; where sums are masked nothing is answered alone."""
    if not content.HasField("partners"):
        raise PeerError(
            "sums of this network are masked: nothing is told to a station without others that are asked too"
        )
    return content.partners
