"""A terminal's part in masked sums: a new key for each stream, deals for its neighbours, masked answers, unmasking.

`TerminalMemory` creates `MaskedAnswers` if the sums of the network are masked, and `RowAnswers` calls it. The protocol
is in `rhfedmtl.roles.secure.masking`. A step that the terminal declines is answered with "declined" and the reason.
"""

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
    """Messages of a terminal in masked sums.

    Parameters
    ----------
    identity, credentials : Identity, Credentials
        The terminal, and its certificate, which signs its keys.
    channel : MaskedSums
        Quantisation, group size and noise of the sums.
    secret : bytes
        Secret of the terminal, for its noise.
    save : callable
        Saves the state; called before the first words of a group leave.
    summed : slice
        Part of the profile that goes into the sum.
    """

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
        self._masker = self._new_masker()

    def begin(self) -> Body:
        """Return a new key for a new stream. Nothing of earlier streams can be opened any more."""
        self._masker = self._new_masker()
        return {"key": codec.to_wire(self._masker.key, group=sorted(self.group or ()))}

    def deal(self, content: wire.Circle) -> Body:
        """Return shares for the neighbours, after checking their keys."""
        return self._answer_or_decline(
            lambda: {"deal": codec.to_wire(self._masker.deal(codec.from_wire(Circle, content)))}
        )

    def mask(
        self, request: SumRequest, answer: Update | Sums | Vector, members: wire.Partners, role: Terminal, agreed: bytes
    ) -> Body:
        """Return an answer under masks, and deals for the next sum; save the group of this terminal before that.

        ``agreed`` is a digest of job and agreements. Together with the history of the role (how much of each update was
        applied), it enters the masks: masks cancel only between terminals that received the same.
        """

        def masked() -> Body:
            partners = codec.from_wire(Partners, members)
            words = words_of(answer, self.channel, self._summed)
            if isinstance(self.channel, NoisedSums) and isinstance(request, WorkOrder | Probe):
                words = words + noise_for(words, request, self.channel, self._secret)
            seat = seat_of(request, role.n_samples)
            sent = self._masker.mask(partners, content_of(request), seat, words, agreed + role.history)
            if self.group != self._masker.group:
                self.group = self._masker.group
                self._save()
            return {"masked": codec.to_wire(sent, next=codec.to_wire(self._masker.deal_for(partners.slot + 1)))}

        return self._answer_or_decline(masked)

    def open(self, content: wire.Unmask) -> Body:
        """Return the shares that unmask the sum over the terminals of ``content``."""
        return self._answer_or_decline(
            lambda: {"opened": codec.to_wire(self._masker.open(codec.from_wire(Unmask, content)))}
        )

    def note(self, record: wire.TerminalFile) -> None:
        """Write the group of this terminal into the state file."""
        record.group.extend(sorted(self.group or ()))

    def restore(self, record: wire.TerminalFile) -> None:
        """Restore the group from the state file."""
        self.group = frozenset(record.group) or None

    def _answer_or_decline(self, answer: Callable[[], Body]) -> Body:
        try:
            return answer()
        except RHFedMTLError as error:
            return {"declined": wire.Declined(reason=str(error)[:400])}

    def _new_masker(self) -> Masker:
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
    """Return the other terminals of a masked sum; refuse a request to this terminal alone."""
    if not content.HasField("partners"):
        raise PeerError("sums of this network are masked: a terminal answers only together with other terminals")
    return content.partners
