"""Masked sums: a station learns a sum over terminals, and no terminal's part of it.

This module holds the messages, the groups, and a terminal's side (`Masker`), which `deploy/terminal/masked.py` calls;
`roles.secure.masked_sums` is the station's side. There is no I/O here. Words are the integers of an update; sums wrap
around.

**Theory of operation.** The protocol comes from Bonawitz et al. (2017), on a sparse graph of neighbours for large
stations (Bell et al. 2020). Each sum uses a slot s:

1. Each terminal has a key, signed by an authority that its neighbours trust. The station sends each terminal the keys
   of its neighbours (`Circle`).
2. Every terminal makes two secrets for the slot, and deals shares of them to its neighbours (`Deal`): b hides its words
   from all others, and p opens a backup of the seeds of its pairs. Shares for the next slot go with the words of this
   slot, so no message waits for them.
3. An order goes down with the list of terminals that have an order, and with the shares (`Partners`). Words come up
   (`Masked`) under the mask of b and the mask of each pair: the first terminal of the pair adds it, and the second
   subtracts it.
4. The station names the terminals whose words it has (`Unmask`). Every terminal answers once (`Opened`). For each
   neighbour it sends the share of b if the neighbour's words arrived, and the share of p otherwise. This reveals the
   sum, and nothing else.

Terminals count in groups of ``smallest`` or more: all members of a group, or no member. A terminal stays in the same
group for ever. So for any sets that a station requests, all sums together reveal only sums over groups
(So et al. 2023).
Masks and shares depend on the groups that the terminals were sent. Masks also depend on the requests to both terminals
of a pair. If two terminals received different versions, their masks do not cancel, and shares restore nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rhfedmtl.errors import PeerError
from rhfedmtl.roles.channel import group_starts
from rhfedmtl.roles.message_sizes import mask_reach
from rhfedmtl.roles.messages import SEAT, Message
from rhfedmtl.roles.secure import masks
from rhfedmtl.roles.secure.masks import SEED, Words
from rhfedmtl.roles.states import StateMachine, Table, frozen

SMALLEST_GROUP = 3
"""Smallest number of terminals in a group, unless the caller gives another (`MaskedSums.least_summed`)."""
Members = frozenset[int]


@dataclass(frozen=True, eq=False)
class Key(Message):
    """Terminal to station to its neighbours: the public key for masks, and the proof that it is the terminal's key."""

    terminal: int
    public: bytes
    proof: bytes


@dataclass(frozen=True, eq=False)
class Circle(Message):
    """Station to terminal: deal for this slot; here are your neighbours' keys, and all groups (`to_groups`)."""

    slot: int
    keys: tuple[Key, ...]
    groups: bytes

    @property
    def n_bytes(self) -> int:
        """Size on the wire."""
        return 24 + len(self.groups) + sum(key.n_bytes for key in self.keys)


@dataclass(frozen=True, eq=False)
class Deal(Message):
    """Terminal to station: for each neighbour, by id, shares of b and p under a pad; and the seeds of pairs under p."""

    terminal: int
    slot: int
    shares: bytes
    backup: bytes


@dataclass(frozen=True, eq=False)
class Partners(Message):
    """Station to terminal, with a request: all terminals with this request; seats and shares of the neighbours."""

    slot: int
    everyone: bytes
    seats: bytes
    shares: bytes


@dataclass(frozen=True, eq=False)
class Masked(Message):
    """Terminal to station: words under masks."""

    terminal: int
    slot: int
    words: Words


@dataclass(frozen=True, eq=False)
class Unmask(Message):
    """Station to terminal: the terminals whose words arrived."""

    slot: int
    arrived: bytes


@dataclass(frozen=True, eq=False)
class Opened(Message):
    """Terminal to station: a share of b or p of itself and of each neighbour with the request, by id."""

    terminal: int
    slot: int
    shares: bytes


def seat(incarnation: int, rows: int, local_steps: int) -> bytes:
    """Return the part of a request that differs between terminals, with the number of rows; pair masks depend on it."""
    return struct.pack("<HII", incarnation & 0xFFFF, rows, local_steps)


def equal_work(seats: Iterable[bytes]) -> bool:
    """Return True if all take the same number of steps, or the same number of complete passes over their rows."""
    work = [struct.unpack("<HII", packed)[1:] for packed in seats]
    passes = {divmod(steps, rows) if rows else (0, 1) for rows, steps in work}
    return len({steps for _, steps in work}) == 1 or (len(passes) == 1 and min(passes)[1] == 0)


def to_bits(members: Iterable[int]) -> bytes:
    """Return a set of ids as bytes: the lowest id, then a bit for each id from there on."""
    return _bits_of(frozenset(members))


@lru_cache(maxsize=256)  # every round sends and stores the same sets
def _bits_of(members: Members) -> bytes:
    ids = sorted(members)
    bits = np.zeros(ids[-1] - ids[0] + 1, dtype=np.uint8)
    bits[np.array(ids) - ids[0]] = 1
    return struct.pack("<I", ids[0]) + np.packbits(bits, bitorder="little").tobytes()


@lru_cache(maxsize=256)
def from_bits(bits: bytes) -> Members:
    """Return the set of ids from the bytes of `to_bits`."""
    if len(bits) < 5:
        raise PeerError("an empty set of terminals")
    places = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8, offset=4), bitorder="little"))
    return frozenset((places + struct.unpack("<I", bits[:4])[0]).tolist())


def to_groups(groups: Iterable[Members]) -> bytes:
    """Return groups of terminals as bytes: for each the number of members, and their ids."""
    return b"".join(struct.pack(f"<I{len(group)}I", len(group), *sorted(group)) for group in groups)


@lru_cache(maxsize=256)
def from_groups(packed: bytes) -> tuple[Members, ...]:
    """Return the groups from the bytes of `to_groups`."""
    groups, rest = [], packed
    while rest:
        length = 4 + 4 * int.from_bytes(rest[:4], "little")
        if len(rest) < length:
            raise PeerError(f"{len(packed)} bytes of groups end within a group")
        groups.append(frozenset(struct.unpack(f"<{length // 4 - 1}I", rest[4:length])))
        rest = rest[length:]
    return tuple(groups)


def in_groups(terminals: Iterable[int], smallest: int) -> list[Members]:
    """Return as many groups of ``smallest`` or more terminals as possible, in the order of ids; may be empty."""
    ids = sorted(terminals)
    ends = [*group_starts(len(ids), smallest).tolist(), len(ids)]
    return [frozenset(ids[i:j]) for i, j in pairwise(ends)]


class MaskPhase(Enum):
    """State of a terminal in a sum: it has no neighbours yet, has dealt, has sent its words, or has opened."""

    ALONE = "without neighbours"
    READY = "ready"
    MASKED = "masked"
    OPENED = "opened"


MASKER: Table[MaskPhase] = frozen(
    {
        MaskPhase.ALONE: {Key: MaskPhase.ALONE, Circle: MaskPhase.READY},
        MaskPhase.READY: {Circle: MaskPhase.READY, Partners: MaskPhase.MASKED},
        MaskPhase.MASKED: {Circle: MaskPhase.READY, Partners: MaskPhase.MASKED, Unmask: MaskPhase.OPENED},
        MaskPhase.OPENED: {Circle: MaskPhase.READY, Partners: MaskPhase.MASKED, Unmask: MaskPhase.OPENED},
    }
)


@dataclass(frozen=True, eq=False)
class SlotSecrets:
    """Secrets of a slot: b, the terminal's shares of its own b and p, and the seeds of its pairs."""

    slot: int
    b: int
    shares: tuple[int, int]
    seeds: Mapping[int, bytes]


@dataclass(frozen=True, eq=False)
class SentWords:
    """Record of a sum for which this terminal has sent words, with the digest of the request."""

    slot: int
    everyone: Members
    shares: Mapping[int, tuple[int, int]]
    request: bytes
    answer: Masked
    opened: Members | None = None


class Masker:
    """A terminal's side of masked sums, by the table ``MASKER``.

    With its first words a terminal enters a ``group``. It stays in this group, also after restarts, and enters no
    other. It sends words, and opens, only for complete groups. Masks within a group depend on all messages that its
    terminals have received before, such as the verdicts on updates: if a member received other messages, there is no
    sum.

    Parameters
    ----------
    terminal : int
        Id of the terminal.
    smallest : int
        Smallest number of terminals in a group.
    sign, check : callable
        Return the proof for a public key; raise an error for a neighbour's key without a valid proof.
    group : frozenset[int], optional
        Group from before a restart.
    """

    def __init__(
        self,
        terminal: int,
        *,
        smallest: int = SMALLEST_GROUP,
        sign: Callable[[bytes], bytes] = lambda _: b"",
        check: Callable[[Key], None] = lambda _: None,
        group: Members | None = None,
    ) -> None:
        self.terminal, self.smallest, self.group = terminal, smallest, group
        self._check = check
        self._private = X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes_raw()
        self.key = Key(terminal, public, sign(public))
        self._states = StateMachine(f"terminal {terminal}, masking,", MASKER, MaskPhase.ALONE)
        self._pairs: dict[int, bytes] = {}
        self._circle: tuple[bytes, ...] = ()  # keys and groups of the last circle
        self._groups_digest = b""
        self._groups: tuple[Members, ...] = ()
        self._own_group: Members = frozenset()
        self._deal: Deal | None = None
        self._secrets: SlotSecrets | None = None
        self._sent: SentWords | None = None

    @property
    def phase(self) -> MaskPhase:
        """Current state."""
        return self._states.state

    def deal(self, circle: Circle) -> Deal:
        """Take the neighbours' keys, and deal for the slot of the circle.

        Raise `PeerError` if the slot was used, or if the groups imply other neighbours.
        """
        after = self._states.after(Circle)
        content = (*(key.public for key in circle.keys), circle.groups)
        if self._deal is not None and circle.slot == self._deal.slot and content == self._circle:
            return self._deal
        self._refuse_used(circle.slot)
        for key in circle.keys:
            self._check(key)
        pairs = {key.terminal: masks.agree(self._private, key.public) for key in circle.keys}
        groups = from_groups(circle.groups)
        self._own_group = self._group_in(groups)
        if sorted(pairs) != sorted(neighbours(circle.groups, self.terminal)) or len(pairs) < len(circle.keys):
            raise PeerError(f"{len(circle.keys)} neighbours of terminal {self.terminal}: others follow from the groups")
        self._pairs, self._circle, self._states.state = dict(sorted(pairs.items())), content, after
        self._groups, self._groups_digest = groups, hashlib.sha256(circle.groups).digest()
        return self.deal_for(circle.slot)

    def deal_for(self, slot: int) -> Deal:
        """Deal for a slot that was not used."""
        self._refuse_used(slot)
        b, p = masks.new_secret(), masks.new_secret()
        holders, needed = [self.terminal, *self._pairs], masks.threshold(len(self._pairs))
        b_shares, p_shares = masks.split(b, holders, needed), masks.split(p, holders, needed)
        seeds = {t: masks.derive(secret, "pair", slot) for t, secret in self._pairs.items()}
        self._secrets = SlotSecrets(slot, b, (b_shares[self.terminal], p_shares[self.terminal]), seeds)
        shares = [
            masks.under(
                self._pad(secret, slot, self.terminal),
                masks.to_bytes(b_shares[t]) + masks.to_bytes(p_shares[t]),
            )
            for t, secret in self._pairs.items()
        ]
        backup = masks.hidden(masks.to_bytes(p), b"".join(seeds.values()))
        self._deal = Deal(self.terminal, slot, b"".join(shares), backup)
        return self._deal

    def _pad(self, secret: bytes, slot: int, dealer: int) -> bytes:
        """Return the pad for two shares, equal for both terminals of a pair only if they were sent the same groups."""
        return masks.derive(secret, "share", slot, dealer, self._groups_digest, length=2 * SEED)

    def mask(self, partners: Partners, content: bytes, own_seat: bytes, words: Words, history: bytes = b"") -> Masked:
        """Return words under masks: once per slot, and the same words again for the same request.

        Raise `PeerError` for a request over part of a group, or for unequal work within the group.

        Parameters
        ----------
        partners : Partners
            Terminals with this request, and the shares that neighbours have dealt.
        content : bytes
            Digest of the request, equal for all terminals.
        own_seat : bytes
            Part of the request that differs between terminals.
        words : Words
            Words to hide.
        history : bytes
            Digest of all messages before this request, equal in the terminal's group.
        """
        after, secrets, sent = self._states.after(Partners), self._secrets, self._sent
        content = masks.bound_to(content, self._groups_digest)
        within = masks.bound_to(content, history)
        request = hashlib.sha256(b"".join([within, own_seat, partners.everyone, partners.seats, words.tobytes()]))
        if sent is not None and partners.slot == sent.slot and request.digest() == sent.request:
            return sent.answer
        # 1. refuse a request that could reveal a part of a group
        everyone = from_bits(partners.everyone)
        near = [t for t in self._pairs if t in everyone]
        if secrets is None or partners.slot != secrets.slot or self.terminal not in everyone:
            raise PeerError(
                f"terminal {self.terminal} has dealt for another slot than {partners.slot}, or is not in it"
            )
        self._refuse_parts(everyone)
        if len(partners.seats) != SEAT * len(near) or len(partners.shares) != 2 * SEED * len(near):
            raise PeerError(f"an order for terminal {self.terminal} without the seats or shares of its neighbours")
        seats, shares = masks.pieces(partners.seats, SEAT), masks.pieces(partners.shares, 2 * SEED)
        group_seats = [its_seat for t, its_seat in zip(near, seats, strict=True) if t in self._own_group]
        if not equal_work([own_seat, *group_seats]):
            raise PeerError(
                f"terminal {self.terminal} is to work more, or less, than others of its group: the answer of a "
                "member could be subtracted; request as many steps, or as many passes, of all members"
            )
        # 2. hide the words under the mask of b and the masks of all pairs
        total = words + masks.mask(masks.to_bytes(secrets.b), len(words))
        holdings = {}
        for t, its_seat, share in zip(near, seats, shares, strict=True):
            pair_content = within if t in self._own_group else content
            seed = masks.pair_seed(secrets.seeds[t], pair_content, partners.everyone, own_seat, its_seat)
            total = masks.add(total, masks.mask(seed, len(words)), self.terminal < t)
            b_share, p_share = masks.from_bytes(masks.under(self._pad(self._pairs[t], secrets.slot, t), share))
            holdings[t] = b_share, p_share
        answer = Masked(self.terminal, secrets.slot, total)
        holdings[self.terminal] = secrets.shares
        self._sent = SentWords(secrets.slot, everyone, holdings, request.digest(), answer)
        self._secrets, self._states.state, self.group = None, after, self._own_group
        return answer

    def open(self, unmask: Unmask) -> Opened:
        """Return the shares for a set of terminals, for a single set per slot; the same request gets the same answer.

        A terminal whose words arrived may be outside the set, because its group is not complete. It sends its shares
        all the same.
        """
        after, sent, arrived = self._states.after(Unmask), self._sent, from_bits(unmask.arrived)
        if sent is None or unmask.slot != sent.slot:
            raise PeerError(f"slot {unmask.slot} is none that terminal {self.terminal} has sent words for")
        self._refuse_parts(arrived)
        if not arrived <= sent.everyone:
            raise PeerError(f"a sum over {len(arrived)} terminals, where {len(sent.everyone)} others were asked")
        if sent.opened not in (None, arrived):
            raise PeerError(f"terminal {self.terminal} has opened slot {sent.slot} for another set")
        self._states.state, self._sent = after, replace(sent, opened=arrived)
        shares = {t: pair[0 if t in arrived else 1] for t, pair in sent.shares.items()}
        return Opened(self.terminal, sent.slot, b"".join(masks.to_bytes(shares[t]) for t in sorted(shares)))

    def _refuse_used(self, slot: int) -> None:
        """Refuse a slot that was used: a pad is used once."""
        if self._deal is not None and slot <= self._deal.slot:
            raise PeerError(f"slot {slot} is over: terminal {self.terminal} has dealt for {self._deal.slot}")

    def _group_in(self, groups: tuple[Members, ...]) -> Members:
        """Return this terminal's group; refuse overlapping or small groups, and any other group than before."""
        everyone = [t for group in groups for t in group]
        own = next((group for group in groups if self.terminal in group), frozenset[int]())
        if not own or min(map(len, groups)) < self.smallest or len(set(everyone)) < len(everyone):
            sizes = ", ".join(str(len(group)) for group in groups[:20])
            raise PeerError(
                f"groups of {sizes} terminals: terminal {self.terminal} needs disjoint groups of {self.smallest} or "
                "more, and must be in one"
            )
        if self.group not in (None, own):
            names = ", ".join(map(str, sorted(self.group or ())))
            raise PeerError(
                f"terminal {self.terminal} counts together with terminals {names}, and received another group: the "
                "answer of a member could be subtracted"
            )
        return own

    def _refuse_parts(self, members: Members) -> None:
        """Refuse a sum over a part of a group, or over terminals without a group."""
        within = [group & members for group in self._groups]
        if any(part and part != group for part, group in zip(within, self._groups, strict=True)):
            raise PeerError(
                f"a sum over {len(members)} terminals has a part of a group: the answers of its other members "
                "could be subtracted; request the sum of all members of a group, or of no member"
            )
        if sum(map(len, within)) < max(len(members), self.smallest):
            raise PeerError(
                f"a sum over {len(members)} terminals: terminal {self.terminal} needs groups of {self.smallest}"
            )


@lru_cache(maxsize=8)
def _ring(packed: bytes) -> tuple[tuple[int, ...], int]:
    """Return the terminals on a ring, and the reach of neighbours.

    The groups determine the order. Members of a group are next to each other.
    """
    groups, salt = from_groups(packed), hashlib.sha256(packed).digest()
    order = sorted(groups, key=lambda group: hashlib.sha256(salt + to_groups([group])).digest())
    ring = tuple(t for group in order for t in sorted(group))
    return ring, mask_reach(max(map(len, groups), default=0))


def neighbours(packed: bytes, terminal: int) -> tuple[int, ...]:
    """Return the terminals with which a terminal shares masks and secrets.

    They are all other terminals, or the nearest on both sides of a ring, and depend only on the groups.
    """
    ring, reach = _ring(packed)
    n, place = len(ring), ring.index(terminal)
    if n <= 2 * reach + 1:
        return tuple(sorted(t for t in ring if t != terminal))
    return tuple(sorted(ring[(place + s * k) % n] for k in range(1, reach + 1) for s in (-1, 1)))
