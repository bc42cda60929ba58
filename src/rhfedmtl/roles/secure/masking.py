"""Sums that a station learns without seeing what is added up: messages, groups, and a terminal's side, without I/O.

After Bonawitz et al. (2017), on a sparse graph for large stations (Bell et al. 2020). What is sent, in slot s:

1. Terminals have keys, signed by whom their neighbours trust. A station tells each its neighbours (`Circle`).
2. Every terminal deals (`Deal`) shares of two secrets of the slot to its neighbours: b hides its words from all, and p
   opens a backup of the seeds of its pairs. Shares go with the words of the slot before, so that nobody waits for them.
3. An order goes down with who else has one, and the shares (`Partners`). Words come up (`Masked`) under the mask of b,
   and of each pair: plus for one, minus for the other.
4. The station says whose words it has (`Unmask`). Every terminal answers once (`Opened`), for each neighbour: with its
   share of b where the words are there, with that of p where they are not. So the sum comes out, and nothing else does.

Terminals count in groups of ``least`` or more, all of one or none, and each is in the same group for ever (`Masker`):
whatever a station asks, of whatever sets, all that sums tell together are sums over groups (So et al. 2023). Masks and
shares rest on the groups that were told, and masks on what each of a pair was asked: where that differs, masks do not
cancel, and shares give nothing back.
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
from rhfedmtl.roles.states import Table, follow, frozen

LEAST = 3
"""Terminals that a sum has, unless told."""
Members = frozenset[int]


@dataclass(frozen=True, eq=False)
class Key(Message):
    """Terminal to station to its neighbours: the public key for masks, and the proof that it is this terminal's."""

    terminal: int
    public: bytes
    proof: bytes


@dataclass(frozen=True, eq=False)
class Circle(Message):
    """Station to terminal: your neighbours' keys, and who counts with whom (`to_groups`); deal for this slot."""

    slot: int
    keys: tuple[Key, ...]
    groups: bytes

    @property
    def n_bytes(self) -> int:
        """Size on the wire."""
        return 24 + len(self.groups) + sum(key.n_bytes for key in self.keys)


@dataclass(frozen=True, eq=False)
class Deal(Message):
    """Terminal to station: for each neighbour, by id, shares of b and p under a pad; and seeds of pairs, under p."""

    terminal: int
    slot: int
    shares: bytes
    backup: bytes


@dataclass(frozen=True, eq=False)
class Partners(Message):
    """Station to terminal, beside what is asked: who else is, and of each such neighbour its seat and its shares."""

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
    """Station to terminal: whose words are here."""

    slot: int
    arrived: bytes


@dataclass(frozen=True, eq=False)
class Opened(Message):
    """Terminal to station: a share for itself and each neighbour that was asked, by id: of b, or of p."""

    terminal: int
    slot: int
    shares: bytes


def seat(incarnation: int, rows: int, local_steps: int) -> bytes:
    """What a terminal is asked that others are not, and its rows: part of the masks of its pairs."""
    return struct.pack("<HII", incarnation & 0xFFFF, rows, local_steps)


def worked_alike(seats: Iterable[bytes]) -> bool:
    """Whether all take as many steps, or as many whole passes over their rows."""
    work = [struct.unpack("<HII", each)[1:] for each in seats]
    passes = {divmod(steps, rows) if rows else (0, 1) for rows, steps in work}
    return len({steps for _, steps in work}) == 1 or (len(passes) == 1 and min(passes)[1] == 0)


def to_bits(members: Iterable[int]) -> bytes:
    """A set of ids, from the lowest on a bit for each."""
    return _to_bits(frozenset(members))


@lru_cache(maxsize=256)  # the same sets are told and written down in every round
def _to_bits(members: Members) -> bytes:
    known = sorted(members)
    bits = np.zeros(known[-1] - known[0] + 1, dtype=np.uint8)
    bits[np.array(known) - known[0]] = 1
    return struct.pack("<I", known[0]) + np.packbits(bits, bitorder="little").tobytes()


@lru_cache(maxsize=256)
def from_bits(bits: bytes) -> Members:
    """The set that `to_bits` wrote."""
    if len(bits) < 5:
        raise PeerError("a set of terminals with nobody in it")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8, offset=4), bitorder="little"))
    return frozenset((found + struct.unpack("<I", bits[:4])[0]).tolist())


def to_groups(groups: Iterable[Members]) -> bytes:
    """Groups of terminals, one after the other: how many, and who."""
    return b"".join(struct.pack(f"<I{len(group)}I", len(group), *sorted(group)) for group in groups)


@lru_cache(maxsize=256)
def from_groups(given: bytes) -> tuple[Members, ...]:
    """The groups that `to_groups` wrote."""
    groups, rest = [], given
    while rest:
        length = 4 + 4 * int.from_bytes(rest[:4], "little")
        if len(rest) < length:
            raise PeerError(f"{len(given)} bytes of groups end within one")
        groups.append(frozenset(struct.unpack(f"<{length // 4 - 1}I", rest[4:length])))
        rest = rest[length:]
    return tuple(groups)


def in_groups(terminals: Iterable[int], least: int) -> list[Members]:
    """As many groups of ``least`` or more as there can be, in the order of ids; none where they are too few."""
    known = sorted(terminals)
    ends = [*group_starts(len(known), least).tolist(), len(known)]
    return [frozenset(known[i:j]) for i, j in pairwise(ends)]


def threshold(neighbours: int) -> int:
    """Shares that give a secret back, of those that a terminal and its neighbours hold: more than two thirds."""
    return 2 * (neighbours + 1) // 3 + 1


class MaskPhase(Enum):
    """Where a terminal stands with a sum: it has no neighbours yet, has dealt, has sent its words, has opened."""

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
class Dealt:
    """The secret b of one slot, this terminal's own shares of b and p, and the seeds of its pairs."""

    slot: int
    hide: int
    own: tuple[int, int]
    seeds: Mapping[int, bytes]


@dataclass(frozen=True, eq=False)
class SentWords:
    """A sum that this terminal has sent words for."""

    slot: int
    everyone: Members
    shares: Mapping[int, tuple[int, int]]
    asked_for: bytes
    answer: Masked
    opened: Members | None = None


class Masker:
    """A terminal's side. ``sign`` proves a key to others, ``check`` refuses the key of another that is not proved.

    From its first words on a terminal knows its ``group``, over restarts, and is in no other. It sends words,
    and opens, for whole groups alone. Masks within a group rest on all that its terminals were told before, such as
    which updates were applied: one that alone was told otherwise gives no sum.
    """

    def __init__(
        self,
        terminal: int,
        *,
        least: int = LEAST,
        sign: Callable[[bytes], bytes] = lambda _: b"",
        check: Callable[[Key], None] = lambda _: None,
        group: Members | None = None,
    ) -> None:
        self.terminal, self.least, self.group = terminal, least, group
        self._check = check
        self._private = X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes_raw()
        self.key = Key(terminal, public, sign(public))
        self.phase = MaskPhase.ALONE
        self._pairs: dict[int, bytes] = {}
        self._known: tuple[bytes, ...] = ()
        self._told = b""
        self._groups: tuple[Members, ...] = ()
        self._own: Members = frozenset()
        self._deal: Deal | None = None
        self._dealt: Dealt | None = None
        self._sent: SentWords | None = None

    def deal(self, circle: Circle) -> Deal:
        """Get to know the neighbours, and deal for the slot that is named; fewer than needed are refused."""
        after = self._after(Circle)
        if self._deal is not None and circle.slot == self._deal.slot and _told_by(circle) == self._known:
            return self._deal
        self._refuse_used(circle.slot)
        for key in circle.keys:
            self._check(key)
        pairs = {key.terminal: masks.agree(self._private, key.public) for key in circle.keys}
        groups = from_groups(circle.groups)
        self._own = self._checked(groups)
        if sorted(pairs) != sorted(neighbours(circle.groups, self.terminal)) or len(pairs) < len(circle.keys):
            raise PeerError(f"{len(circle.keys)} neighbours of terminal {self.terminal}: others follow from the groups")
        self._pairs, self._known, self.phase = dict(sorted(pairs.items())), _told_by(circle), after
        self._groups, self._told = groups, hashlib.sha256(circle.groups).digest()
        return self.deal_for(circle.slot)

    def deal_for(self, slot: int) -> Deal:
        """Deal for a slot for which nothing was dealt."""
        self._refuse_used(slot)
        hide, back = masks.new_secret(), masks.new_secret()
        holders, needed = [self.terminal, *self._pairs], threshold(len(self._pairs))
        of_hide, of_back = masks.split(hide, holders, needed), masks.split(back, holders, needed)
        seeds = {t: masks.derive(secret, "pair", slot) for t, secret in self._pairs.items()}
        self._dealt = Dealt(slot, hide, (of_hide[self.terminal], of_back[self.terminal]), seeds)
        both = (
            masks.under(
                self._pad(secret, slot, self.terminal),
                masks.to_bytes(of_hide[t]) + masks.to_bytes(of_back[t]),
            )
            for t, secret in self._pairs.items()
        )
        backup = masks.hidden(masks.to_bytes(back), b"".join(seeds.values()))
        self._deal = Deal(self.terminal, slot, b"".join(both), backup)
        return self._deal

    def _pad(self, secret: bytes, slot: int, dealer: int) -> bytes:
        """What hides two shares between a pair who were told the same groups."""
        return masks.derive(secret, "share", slot, dealer, self._told, length=2 * SEED)

    def mask(self, partners: Partners, content: bytes, own_seat: bytes, words: Words, history: bytes = b"") -> Masked:
        """Answer with words under masks: once in each slot, and the same again where it is asked again.

        ``history`` is all that this terminal was told before; those of its group were told the same.
        """
        after, dealt, sent = self._after(Partners), self._dealt, self._sent
        content = bound_to(content, self._told)
        within = bound_to(content, history)
        asked_for = hashlib.sha256(b"".join([within, own_seat, partners.everyone, partners.seats, words.tobytes()]))
        if sent is not None and partners.slot == sent.slot and asked_for.digest() == sent.asked_for:
            return sent.answer
        everyone = from_bits(partners.everyone)
        asked = [t for t in self._pairs if t in everyone]
        if dealt is None or partners.slot != dealt.slot or self.terminal not in everyone:
            raise PeerError(
                f"terminal {self.terminal} has dealt for another slot than {partners.slot}, or is not in it"
            )
        self._refuse_parts(everyone)
        if len(partners.seats) != SEAT * len(asked) or len(partners.shares) != 2 * SEED * len(asked):
            raise PeerError(f"an order for terminal {self.terminal} without the seats or shares of its neighbours")
        seats, shares = masks.pieces(partners.seats, SEAT), masks.pieces(partners.shares, 2 * SEED)
        of_group = [its_seat for t, its_seat in zip(asked, seats, strict=True) if t in self._own]
        if not worked_alike([own_seat, *of_group]):
            raise PeerError(
                f"terminal {self.terminal} is to work more, or less, than others of its group: what one of them told "
                "could be subtracted; as many steps, or as many passes, must be asked of all"
            )
        total = words + masks.mask(masks.to_bytes(dealt.hide), len(words))
        held = {}
        for t, its_seat, share in zip(asked, seats, shares, strict=True):
            rests_on = within if t in self._own else content
            seed = pair_seed(dealt.seeds[t], rests_on, partners.everyone, own_seat, its_seat)
            total = add(total, masks.mask(seed, len(words)), self.terminal < t)
            of_hide, of_back = masks.from_bytes(masks.under(self._pad(self._pairs[t], dealt.slot, t), share))
            held[t] = of_hide, of_back
        answer = Masked(self.terminal, dealt.slot, total)
        held[self.terminal] = dealt.own
        self._sent = SentWords(dealt.slot, everyone, held, asked_for.digest(), answer)
        self._dealt, self.phase, self.group = None, after, self._own
        return answer

    def open(self, unmask: Unmask) -> Opened:
        """Give the shares for one set of the slot: asked for the same again, the same; for another, nothing.

        Whose words came, and those of its group did not all, is not in the set, and helps the others nevertheless.
        """
        after, sent, arrived = self._after(Unmask), self._sent, from_bits(unmask.arrived)
        if sent is None or unmask.slot != sent.slot:
            raise PeerError(f"slot {unmask.slot} is none that terminal {self.terminal} has sent words for")
        self._refuse_parts(arrived)
        if not arrived <= sent.everyone:
            raise PeerError(f"a sum over {len(arrived)} terminals, where {len(sent.everyone)} others were asked")
        if sent.opened not in (None, arrived):
            raise PeerError(f"terminal {self.terminal} has opened slot {sent.slot} for another set")
        self.phase, self._sent = after, replace(sent, opened=arrived)
        shares = {t: pair[0 if t in arrived else 1] for t, pair in sent.shares.items()}
        return Opened(self.terminal, sent.slot, b"".join(masks.to_bytes(shares[t]) for t in sorted(shares)))

    def _refuse_used(self, slot: int) -> None:
        """Pads are used once."""
        if self._deal is not None and slot <= self._deal.slot:
            raise PeerError(f"slot {slot} is over: terminal {self.terminal} has dealt for {self._deal.slot}")

    def _checked(self, groups: tuple[Members, ...]) -> Members:
        """The group that this terminal counts in, of all; any other than before is refused."""
        everyone = [t for group in groups for t in group]
        own = next((group for group in groups if self.terminal in group), frozenset[int]())
        if not own or min(map(len, groups)) < self.least or len(set(everyone)) < len(everyone):
            sizes = ", ".join(str(len(group)) for group in groups[:20])
            raise PeerError(f"groups of {sizes} terminals: terminal {self.terminal} is in one, and {self.least} are")
        if self.group not in (None, own):
            names = ", ".join(map(str, sorted(self.group or ())))
            raise PeerError(
                f"terminal {self.terminal} counts together with terminals {names}, and was told of others: what these "
                "told could be subtracted"
            )
        return own

    def _refuse_parts(self, members: Members) -> None:
        """Refuse a sum over a part of a group, or over those who are in none."""
        within = [group & members for group in self._groups]
        if any(part and part != group for part, group in zip(within, self._groups, strict=True)):
            raise PeerError(
                f"a sum over {len(members)} terminals has a part of a group: what the others of it told could be "
                "subtracted; all of a group must be asked, or none"
            )
        if sum(map(len, within)) < max(len(members), self.least):
            raise PeerError(
                f"a sum over {len(members)} terminals: terminal {self.terminal} needs groups of {self.least}"
            )

    def _after(self, event: type[Message]) -> MaskPhase:
        return follow(f"terminal {self.terminal}, masking,", MASKER, self.phase, event)


def _told_by(circle: Circle) -> tuple[bytes, ...]:
    return (*(key.public for key in circle.keys), circle.groups)


def bound_to(content: bytes, told: bytes) -> bytes:
    """What masks rest on: what all are asked alike, and what they were told before."""
    return hashlib.sha256(hashlib.sha256(content).digest() + told).digest()


def pair_seed(pair: bytes, content: bytes, everyone: bytes, one: bytes, other: bytes) -> bytes:
    """Seed of the mask of a pair, from all that the two were asked."""
    digest = hashlib.sha256(content + everyone + min(one, other) + max(one, other)).digest()
    return masks.derive(pair, "mask", digest)


def add(total: Words, more: Words, plus: bool) -> Words:
    """Add or subtract words, round the clock of 2^64."""
    return total + more if plus else total - more


@lru_cache(maxsize=8)
def _ring(told: bytes) -> tuple[tuple[int, ...], int]:
    """Terminals in an order that groups decide, those of a group beside each other, and how far neighbours reach."""
    groups, salt = from_groups(told), hashlib.sha256(told).digest()
    order = sorted(groups, key=lambda group: hashlib.sha256(salt + to_groups([group])).digest())
    ring = tuple(t for group in order for t in sorted(group))
    return ring, mask_reach(max(map(len, groups), default=0))


def neighbours(told: bytes, terminal: int) -> tuple[int, ...]:
    """With whom a terminal has masks and shares: all others, or the next to both sides on a ring; from groups alone."""
    ring, reach = _ring(told)
    n, place = len(ring), ring.index(terminal)
    if n <= 2 * reach + 1:
        return tuple(sorted(t for t in ring if t != terminal))
    return tuple(sorted(ring[(place + s * k) % n] for k in range(1, reach + 1) for s in (-1, 1)))
