"""Sums that a station learns without seeing what is added up: state machines of both sides, without I/O.

After Bonawitz et al. (2017), on a sparse graph for large stations (Bell et al. 2020). What is sent, in slot s:

1. Terminals have keys, signed by whom their neighbours trust. A station tells each its neighbours (`Circle`).
2. Every terminal deals (`Deal`) shares of two secrets of the slot to its neighbours: b hides its words from all, and p
   opens a backup of the seeds of its pairs. Shares go with the words of the slot before, so that nobody waits for them.
3. An order goes down with who else has one, and the shares (`Partners`). Words come up (`Masked`) under the mask of b,
   and of each pair: plus for one, minus for the other.
4. The station says whose words it has (`Unmask`). Every terminal answers once (`Opened`), for each neighbour: with its
   share of b where the words are there, with that of p where they are not. So the sum comes out, and nothing else does.

A mask of a pair rests on what each of the two was asked, and on what it was told of sums before: where that differs,
masks do not cancel. A terminal opens one set of a slot, of at least ``least`` terminals, and no sums that could be
subtracted from each other (`Masker`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rhfedmtl.errors import PeerError
from rhfedmtl.roles import masks
from rhfedmtl.roles.masks import SEED, Words
from rhfedmtl.roles.messages import DENSE, SEAT, Message
from rhfedmtl.roles.states import Table, follow, frozen

UNMERGED = 2
"""Sets for which updates are opened at most before one of them is applied."""
SPANS = 32
"""Sets, or ranges of sets, of updates that a terminal remembers; beyond, two that are near become one."""
LEAST = 3
"""Terminals that a sum has, unless told."""
Members = frozenset[int]
Span = tuple[Members, Members]
"""All sets that hold the first and lie in the second."""


@dataclass(frozen=True, eq=False)
class Key(Message):
    """Terminal to station to its neighbours: the public key for masks, and the proof that it is this terminal's."""

    terminal: int
    public: bytes
    proof: bytes


@dataclass(frozen=True, eq=False)
class Circle(Message):
    """Station to terminal: your neighbours' keys; deal for this slot."""

    slot: int
    keys: tuple[Key, ...]

    @property
    def n_bytes(self) -> int:
        """Size on the wire."""
        return 24 + sum(key.n_bytes for key in self.keys)


@dataclass(frozen=True, eq=False)
class Deal(Message):
    """Terminal to station: for each neighbour, by id, shares of b and p under a pad; and seeds of pairs, under p."""

    terminal: int
    slot: int
    shares: bytes
    backup: bytes


@dataclass(frozen=True, eq=False)
class Partners(Message):
    """Station to terminal, beside what is asked: who else is, and of each such neighbour its seat and its shares.

    ``before`` has all for whom a sum of numbers that stay as they are was opened before, among those who are asked now;
    ``merged`` the rounds whose updates were applied, with their factors (`to_merges`), since all were last told.
    """

    slot: int
    everyone: bytes
    seats: bytes
    shares: bytes
    before: bytes = b""
    merged: bytes = b""


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


def seat(incarnation: int, applied_round: int, local_steps: int) -> bytes:
    """What a terminal is asked that others are not: part of the masks of its pairs."""
    return struct.pack("<HII", incarnation & 0xFFFF, applied_round, local_steps)


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


def any_to_bits(members: Iterable[int]) -> bytes:
    """A set of terminals that may be empty."""
    known = frozenset(members)
    return _to_bits(known) if known else b""


def any_from_bits(bits: bytes) -> Members:
    """The set that `any_to_bits` wrote."""
    return from_bits(bits) if bits else frozenset()


def to_merges(merges: Mapping[int, float]) -> bytes:
    """Rounds, and the factors with which their updates were applied."""
    return b"".join(struct.pack("<Qd", *each) for each in sorted(merges.items()))


def from_merges(given: bytes) -> dict[int, float]:
    """What `to_merges` wrote."""
    if len(given) % 16:
        raise PeerError(f"{len(given)} bytes of rounds and factors: 16 for each")
    return dict(struct.iter_unpack("<Qd", given))


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
    """The secret b of one slot, this terminal's own share of it, and the seeds of its pairs."""

    slot: int
    hide: int
    own: int
    seeds: Mapping[int, bytes]


class SumKind(Enum):
    """What is added up: an update, numbers that rest on rows and duals alone, on rows alone (round zero), or shares."""

    UPDATE = "update"
    FIXED = "fixed"
    ROWS = "rows"
    SHARE = "share"


@dataclass(frozen=True, eq=False)
class SentWords:
    """A sum that this terminal has sent words for."""

    slot: int
    everyone: Members
    shares: Mapping[int, tuple[int, int]]
    kind: SumKind
    asked_for: bytes
    answer: Masked
    newcomers: Members
    checked: Mapping[int, float]
    stay: Members
    opened: Members | None = None


@dataclass(frozen=True)
class Told:
    """What a terminal remembers, over restarts, of sums that were opened.

    Of each kind of numbers that stay as they are, the set of the last sum; the sets for which updates were opened since
    one of this terminal's was applied; those who came into sums that stay together with it (``cells``), and the sets of
    all its updates since it joined (``spans``).
    """

    fixed: Members | None = None
    rows: Members | None = None
    unmerged: tuple[Members, ...] = ()
    cells: tuple[Members, ...] = ()
    spans: tuple[Span, ...] = ()

    def with_update(self, arrived: Members) -> Told:
        """After an update was opened for these."""
        unmerged = tuple(dict.fromkeys((*self.unmerged, arrived)))
        if any(core <= arrived <= hull for core, hull in self.spans):
            return replace(self, unmerged=unmerged)
        spans = (*self.spans, (arrived, arrived))
        if len(spans) > SPANS:
            nearest = min(
                range(SPANS), key=lambda k: len(spans[k][1] | spans[k + 1][1]) - len(spans[k][0] & spans[k + 1][0])
            )
            (one, wide), (other, wider) = spans[nearest : nearest + 2]
            spans = (*spans[:nearest], (one & other, wide | wider), *spans[nearest + 2 :])
        return replace(self, unmerged=unmerged, spans=spans)

    def part(self, stay: Members, *, stays: bool) -> Told:
        """After others went, or stayed: the sums over both parts of every set are known now."""

        def own(members: Members) -> Members:
            return members & stay if stays else members - stay

        fixed, rows = (None if each is None else own(each) for each in (self.fixed, self.rows))
        unmerged, cells = (tuple(filter(None, map(own, sets))) for sets in (self.unmerged, self.cells))
        spans = ((own(core), own(hull)) for core, hull in self.spans)
        return Told(fixed, rows, unmerged, cells, tuple(dict.fromkeys(span for span in spans if span[1])))

    def splits(self, stay: Members, least: int) -> Members | None:
        """A set of which fewer than ``least`` would stay, or would go, and not all; None where there is none."""
        spans = (*self.spans, *((cell, cell) for cell in self.cells))
        for core, hull in spans:
            for less, most in ((core & stay, hull & stay), (core - stay, hull - stay)):
                if most and len(less) < least:
                    return hull
        return None


class Masker:
    """A terminal's side. ``sign`` proves a key to others, ``check`` refuses the key of another that is not proved.

    Rules against sums that can be subtracted. Numbers that rest on rows and duals alone, or on rows, hardly change with
    what is asked: their sum is opened for all who were asked, the same as the last time, or for those and at least
    ``least`` others whose numbers are in no sum yet; all must have been told the same of who is in one (``before``).
    So all sums together tell sums over ``least`` or more; so do sets that are put together of such sets, as where those
    who left one station are at another. An update that was opened and not applied comes again, nearly the same, from
    any model: until one is applied, it is opened for the same set, or for one other with ``least`` more, or fewer, or
    both, so that noise on either hides what they differ by. Where
    others go, shares of those who stay are added up if of every set for which this terminal has opened anything
    ``least`` or more stay, or none, and ``least`` or more go, or none. For sums that rest on duals all must have been
    told the same of which updates were applied. What is not opened tells nothing.
    """

    def __init__(
        self,
        terminal: int,
        *,
        least: int = LEAST,
        sign: Callable[[bytes], bytes] = lambda _: b"",
        check: Callable[[Key], None] = lambda _: None,
        told: Told | None = None,
    ) -> None:
        self.terminal, self.least = terminal, least
        self._check, self.told = check, told or Told()
        self._private = X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes_raw()
        self.key = Key(terminal, public, sign(public))
        self.phase = MaskPhase.ALONE
        self._pairs: dict[int, bytes] = {}
        self._known: tuple[bytes, ...] = ()
        self._deal: Deal | None = None
        self._dealt: Dealt | None = None
        self._sent: SentWords | None = None

    def deal(self, circle: Circle) -> Deal:
        """Get to know the neighbours, and deal for the slot that is named; fewer than needed are refused."""
        after = self._after(Circle)
        if self._deal is not None and circle.slot == self._deal.slot and _publics(circle) == self._known:
            return self._deal
        self._refuse_used(circle.slot)
        for key in circle.keys:
            self._check(key)
        pairs = {key.terminal: masks.agree(self._private, key.public) for key in circle.keys}
        if self.terminal in pairs or len(pairs) < max(self.least - 1, len(circle.keys)):
            raise PeerError(f"{len(pairs)} neighbours of terminal {self.terminal}: {self.least - 1} others at least")
        self._pairs, self._known, self.phase = dict(sorted(pairs.items())), _publics(circle), after
        return self.deal_for(circle.slot)

    def deal_for(self, slot: int) -> Deal:
        """Deal for a slot for which nothing was dealt."""
        self._refuse_used(slot)
        hide, back = masks.new_secret(), masks.new_secret()
        holders, needed = [self.terminal, *self._pairs], threshold(len(self._pairs))
        of_hide, of_back = masks.split(hide, holders, needed), masks.split(back, holders, needed)
        seeds = {t: masks.derive(secret, "pair", slot) for t, secret in self._pairs.items()}
        self._dealt = Dealt(slot, hide, of_hide[self.terminal], seeds)
        both = (
            masks.under(
                masks.derive(secret, "share", slot, self.terminal, length=2 * SEED),
                masks.to_bytes(of_hide[t]) + masks.to_bytes(of_back[t]),
            )
            for t, secret in self._pairs.items()
        )
        backup = masks.hidden(masks.to_bytes(back), b"".join(seeds.values()))
        self._deal = Deal(self.terminal, slot, b"".join(both), backup)
        return self._deal

    def mask(
        self,
        partners: Partners,
        content: bytes,
        own_seat: bytes,
        words: Words,
        *,
        kind: SumKind,
        applied: bool = False,
        settled: Mapping[int, float] | None = None,
        stay: Members = frozenset(),
    ) -> Masked:
        """Answer with words under masks: once in each slot, and the same again where it is asked again.

        ``applied`` says whether an update of this terminal was since the last that it opened, ``settled`` what it was
        told of its updates, by round; ``stay`` is for sums of shares.
        """
        after, dealt, sent = self._after(Partners), self._dealt, self._sent
        content = bound_to(content, partners.before, partners.merged)
        asked_for = hashlib.sha256(b"".join([content, own_seat, partners.everyone, partners.seats, words.tobytes()]))
        if sent is not None and partners.slot == sent.slot and asked_for.digest() == sent.asked_for:
            return sent.answer
        everyone = from_bits(partners.everyone)
        asked = [t for t in self._pairs if t in everyone]
        if dealt is None or partners.slot != dealt.slot or self.terminal not in everyone:
            raise PeerError(
                f"terminal {self.terminal} has dealt for another slot than {partners.slot}, or is not in it"
            )
        if len(everyone) < self.least or len(asked) < self.least - 1:
            raise PeerError(f"a sum over {len(everyone)} terminals: terminal {self.terminal} needs {self.least}")
        if len(partners.seats) != SEAT * len(asked) or len(partners.shares) != 2 * SEED * len(asked):
            raise PeerError(f"an order for terminal {self.terminal} without the seats or shares of its neighbours")
        newcomers: Members = frozenset()
        checked = dict(settled or {}) if kind in (SumKind.FIXED, SumKind.SHARE) else {}
        self._refuse_unlike(checked, partners.merged)
        if kind is SumKind.SHARE:
            self._refuse_split(everyone, stay)
        elif kind is not SumKind.UPDATE:
            newcomers = self._newcomers(getattr(self.told, kind.value), everyone, partners.before)
        elif applied:
            self.told = replace(self.told, unmerged=())
        total = words + masks.mask(masks.to_bytes(dealt.hide), len(words))
        held = {}
        for place, t in enumerate(asked):
            secret, its_seat = self._pairs[t], partners.seats[SEAT * place : SEAT * (place + 1)]
            seed = pair_seed(dealt.seeds[t], content, partners.everyone, own_seat, its_seat)
            total = add(total, masks.mask(seed, len(words)), self.terminal < t)
            share = partners.shares[2 * SEED * place : 2 * SEED * (place + 1)]
            plain = masks.under(masks.derive(secret, "share", dealt.slot, t, length=2 * SEED), share)
            held[t] = (int.from_bytes(plain[:SEED], "little"), int.from_bytes(plain[SEED:], "little"))
        answer = Masked(self.terminal, dealt.slot, total)
        held[self.terminal] = (dealt.own, 0)
        given = asked_for.digest(), answer, newcomers, checked, stay
        self._sent = SentWords(dealt.slot, everyone, held, kind, *given)
        self._dealt, self.phase = None, after
        return answer

    def open(self, unmask: Unmask) -> Opened:
        """Give the shares for one set of the slot: asked for the same again, the same; for another, nothing."""
        after, sent, arrived = self._after(Unmask), self._sent, from_bits(unmask.arrived)
        if sent is None or unmask.slot != sent.slot:
            raise PeerError(f"slot {unmask.slot} is none that terminal {self.terminal} has sent words for")
        self._refuse_small(sent, arrived)
        if sent.kind is SumKind.UPDATE:
            self._refuse_dropped(arrived)
        self.phase = after
        self._sent, self.told = replace(sent, opened=arrived), self._remembered(sent, arrived)
        shares = {t: pair[0 if t in arrived else 1] for t, pair in sent.shares.items()}
        return Opened(self.terminal, sent.slot, b"".join(masks.to_bytes(shares[t]) for t in sorted(shares)))

    @property
    def checked(self) -> Mapping[int, float]:
        """Of which updates everyone who was in a sum with them was told the same, by the sum that was opened last."""
        sent = self._sent
        if sent is None or sent.opened is None or any(not hull <= sent.everyone for _, hull in self.told.spans):
            return {}
        return sent.checked

    def _remembered(self, sent: SentWords, arrived: Members) -> Told:
        """What is remembered once this sum is opened."""
        told = self.told
        if sent.kind is SumKind.UPDATE:
            return told.with_update(arrived)
        if sent.kind is SumKind.SHARE:
            return told.part(sent.stay, stays=self.terminal in sent.stay)
        cells = (*told.cells, sent.newcomers) if self.terminal in sent.newcomers else told.cells
        known: dict[str, Any] = {sent.kind.value: arrived, "cells": tuple(dict.fromkeys(cells))}
        return replace(told, **known)

    def _refuse_used(self, slot: int) -> None:
        """Pads are used once."""
        if self._deal is not None and slot <= self._deal.slot:
            raise PeerError(f"slot {slot} is over: terminal {self.terminal} has dealt for {self._deal.slot}")

    def _refuse_small(self, sent: SentWords, arrived: Members) -> None:
        known = self.terminal in arrived <= sent.everyone
        if sent.kind is not SumKind.UPDATE and known and arrived != sent.everyone:
            raise PeerError(f"a sum over {len(arrived)} of {len(sent.everyone)}: such numbers are told over all alone")
        near = 1 + sum(t in arrived for t in self._pairs)
        if not known or min(len(arrived), near) < self.least:
            raise PeerError(f"a sum over {len(arrived)} terminals: terminal {self.terminal} needs {self.least}")
        if sent.opened not in (None, arrived):
            raise PeerError(f"terminal {self.terminal} has opened slot {sent.slot} for another set")

    def _newcomers(self, last: Members | None, everyone: Members, bits: bytes) -> Members:
        """Who is in no sum of numbers that stay as they are yet; other sets than the last are refused.

        Unless it grows: by enough newcomers, or by nobody but those whose sum is known, as that of this terminal is.
        """
        before = any_from_bits(bits)
        new, known = everyone - before, (last or frozenset()) <= before <= everyone
        if last == everyone or (known and (len(new) >= self.least or (not new and last is not None))):
            return new
        raise PeerError(
            f"a sum over {len(everyone)} terminals, {len(new)} of them new, after one over {len(last or ())}: what "
            f"these told could be subtracted; the same, or {self.least} more, must be asked"
        )

    def _refuse_split(self, everyone: Members, stay: Members) -> None:
        """Refuse a sum of shares from which that of a few could be found."""
        torn = self.told.splits(stay, self.least)
        if torn is not None or not stay <= everyone or len(stay) < self.least:
            parts = sorted(len(part) for part in ((torn or everyone) & stay, (torn or everyone) - stay))
            raise PeerError(
                f"of {sum(parts)} terminals that were in a sum together {parts[0]} would be parted from the others: "
                f"what these put in could be subtracted; {self.least} or more must go together, and as many stay"
            )

    def _refuse_unlike(self, settled: Mapping[int, float], merged: bytes) -> None:
        """Refuse to go on where others are told otherwise of which updates were applied."""
        told = from_merges(merged)
        wrong = [number for number, factor in settled.items() if told.get(number, 0.0) != factor]
        if wrong:
            raise PeerError(f"terminal {self.terminal} was told otherwise of its update of round {wrong[0]}")

    def _refuse_dropped(self, arrived: Members) -> None:
        """Refuse updates to sets that could be subtracted from those of an update that was opened and not applied."""
        known = self.told.unmerged
        ways = [len(part) for each in known for part in (each - arrived, arrived - each) if part]
        if arrived not in known and (min(ways, default=self.least) < self.least or len(known) >= UNMERGED):
            raise PeerError(
                f"a sum over a set that differs by {min(ways)} from one of which no update was applied: what these "
                f"told could be subtracted; the same must be asked, or once one with {self.least} more or fewer"
            )

    def _after(self, event: type[Message]) -> MaskPhase:
        return follow(f"terminal {self.terminal}, masking,", MASKER, self.phase, event)


def _publics(circle: Circle) -> tuple[bytes, ...]:
    return tuple(key.public for key in circle.keys)


def bound_to(content: bytes, before: bytes, merged: bytes) -> bytes:
    """What masks rest on: what all are asked alike, who is said to be in a sum already, and which updates are."""
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in (content, before, merged))).digest()


def pair_seed(pair: bytes, content: bytes, everyone: bytes, one: bytes, other: bytes) -> bytes:
    """Seed of the mask of a pair, from all that the two were asked."""
    digest = hashlib.sha256(content + everyone + min(one, other) + max(one, other)).digest()
    return masks.derive(pair, "mask", digest)


def add(total: Words, more: Words, plus: bool) -> Words:
    """Add or subtract words, round the clock of 2^64."""
    return total + more if plus else total - more


def circles(members: Iterable[int], keys: Mapping[int, Key]) -> dict[int, tuple[int, ...]]:
    """Neighbours of each: everybody, or the next ``DENSE``/2 to both sides on a ring in an order that keys decide."""
    known = sorted(members)
    if len(known) <= DENSE + 1:
        return {t: tuple(other for other in known if other != t) for t in known}
    salt = hashlib.sha256(b"".join(keys[t].public for t in known)).digest()
    ring = sorted(known, key=lambda t: hashlib.sha256(salt + keys[t].public).digest())
    n, reach = len(ring), range(1, DENSE // 2 + 1)
    return {t: tuple(sorted(ring[(i + s * k) % n] for k in reach for s in (-1, 1))) for i, t in enumerate(ring)}


class MaskRoom:
    """A station's side between sums: keys, circles and deals of its terminals. ``slot`` is the last that was used."""

    def __init__(self, least: int = LEAST, slot: int = 0) -> None:
        self.least, self.slot = least, slot
        self._keys: dict[int, Key] = {}
        self._circles: dict[int, tuple[int, ...]] = {}
        self._deals: dict[int, Deal] = {}

    def __contains__(self, terminal: object) -> bool:
        """Whether a terminal's key is here."""
        return terminal in self._keys

    def admit(self, key: Key) -> None:
        """Take a terminal's key; a new one makes new circles."""
        if key.terminal not in self._keys or self._keys[key.terminal].public != key.public:
            self._keys[key.terminal] = key
            self._circles, self._deals = {}, {}

    def forget(self, terminal: int) -> None:
        """Drop the key of a terminal that is gone."""
        if self._keys.pop(terminal, None) is not None:
            self._circles, self._deals = {}, {}

    def prepare(self, members: Iterable[int]) -> dict[int, Circle]:
        """What to send before a sum over these: a circle to each that has not dealt for the slot.

        Circles stay while each has all of its neighbours but a sixth, and everybody has one.
        """
        here = self._keys.keys() & set(members)
        if len(here) < self.least:
            return {}
        if not all(6 * sum(n in here for n in self._circles.get(t, ())) >= 5 * self._size(t) for t in here):
            self._circles, self._deals = circles(here, self._keys), {}
            self.slot += 1  # nobody deals twice for a slot
        wanted = here - self._deals.keys()
        return {t: Circle(self.slot + 1, tuple(self._keys[n] for n in self._circles[t])) for t in sorted(wanted)}

    def _size(self, terminal: int) -> int:
        return len(self._circles[terminal]) if terminal in self._circles else 1

    def receive(self, deal: Deal) -> bool:
        """Take a deal, if it is for the next slot and of the right size."""
        circle = self._circles.get(deal.terminal)
        if circle is None or deal.slot != self.slot + 1:
            return False
        if len(deal.shares) != 2 * SEED * len(circle) or len(deal.backup) != SEED * len(circle):
            raise PeerError(f"a deal of terminal {deal.terminal} that does not fit its {len(circle)} neighbours")
        self._deals[deal.terminal] = deal
        return True

    def begin(
        self, content: bytes, seats: Mapping[int, bytes], before: bytes = b"", merged: bytes = b""
    ) -> MaskedSum | None:
        """A sum over those of these that have dealt; None, and no slot used, where they are too few."""
        here = {t: seats[t] for t in sorted(seats) if t in self._deals}
        if len(here) < self.least:
            return None
        self.slot += 1
        deals, self._deals = self._deals, {}
        circle = {t: self._circles[t] for t in here}
        return MaskedSum(self.slot, content, here, circle, deals, self.least, before, merged)


class MaskedSum:
    """A station's side of one sum."""

    def __init__(
        self,
        slot: int,
        content: bytes,
        seats: Mapping[int, bytes],
        circle: Mapping[int, tuple[int, ...]],
        deals: Mapping[int, Deal],
        least: int,
        before: bytes = b"",
        merged: bytes = b"",
    ) -> None:
        self.slot, self._content, self._seats, self._least = slot, bound_to(content, before, merged), seats, least
        self._before, self._merged = before, merged
        self._circle, self._deals = circle, deals
        self._everyone = to_bits(seats)
        self._words: dict[int, Words] = {}
        self.arrived: Members | None = None
        self._shares: dict[int, dict[int, int]] = {t: {} for t in seats}

    def partners(self) -> dict[int, Partners]:
        """What goes with each terminal's order."""
        return {t: self._partners(t) for t in self._seats}

    def _partners(self, t: int) -> Partners:
        near = [n for n in self._circle[t] if n in self._seats]
        shares = b"".join(self._from(n, t) for n in near)
        seats = b"".join(self._seats[n] for n in near)
        return Partners(self.slot, self._everyone, seats, shares, self._before, self._merged)

    def _from(self, dealer: int, holder: int) -> bytes:
        place = self._circle[dealer].index(holder)
        return self._deals[dealer].shares[2 * SEED * place : 2 * SEED * (place + 1)]

    def receive(self, masked: Masked) -> bool:
        """Take words that are wanted now; False for late, repeated or unasked ones."""
        wanted = self.arrived is None and masked.slot == self.slot and masked.terminal in self._seats
        if not wanted or masked.terminal in self._words:
            return False
        if self._words and len(masked.words) != len(next(iter(self._words.values()))):
            raise PeerError(f"{len(masked.words)} words of terminal {masked.terminal}, others sent another number")
        self._words[masked.terminal] = masked.words
        return True

    def close(self) -> Unmask | None:
        """What to ask of all whose words are here; None where they are too few: the sum is void."""
        if len(self._words) < self._least:
            return None
        self.arrived = frozenset(self._words)
        return Unmask(self.slot, to_bits(self.arrived))

    def open(self, opened: Opened) -> bool:
        """Take shares; False for late, repeated or unasked ones."""
        if self.arrived is None or opened.slot != self.slot or opened.terminal not in self.arrived:
            return False
        owners = sorted({opened.terminal, *(n for n in self._circle[opened.terminal] if n in self._seats)})
        if len(opened.shares) != SEED * len(owners):
            raise PeerError(f"{len(opened.shares)} bytes of shares of terminal {opened.terminal} for {len(owners)}")
        for place, owner in enumerate(owners):
            share = opened.shares[SEED * place : SEED * (place + 1)]
            self._shares[owner][opened.terminal] = int.from_bytes(share, "little")
        return True

    @property
    def can_end(self) -> bool:
        """Whether there are shares enough for everything."""
        return self.arrived is not None and all(len(self._shares[t]) >= self._needed(t) for t in self._owners())

    def total(self) -> Words | None:
        """The sum over all whose words are here; None where shares are missing: it is void."""
        if not self.can_end or self.arrived is None:
            return None
        total = np.zeros_like(next(iter(self._words.values())))
        for t in sorted(self.arrived):
            own = masks.mask(masks.to_bytes(self._secret(t)), len(total))
            total = total + self._words[t] - own
        for t in sorted(set(self._owners()) - self.arrived):
            total = self._without(t, total)
        return total

    def _without(self, t: int, total: Words) -> Words:
        """Take out the masks that others have for a pair with one whose words did not arrive."""
        circle = self._circle[t]
        seeds = masks.hidden(masks.to_bytes(self._secret(t)), self._deals[t].backup)
        assert self.arrived is not None
        for place, other in enumerate(circle):
            if other in self.arrived:
                pair = seeds[SEED * place : SEED * (place + 1)]
                seed = pair_seed(pair, self._content, self._everyone, self._seats[t], self._seats[other])
                total = add(total, masks.mask(seed, len(total)), t < other)
        return total

    def _owners(self) -> list[int]:
        """Whose secrets are needed: of all that sent words, and of their neighbours that were asked and did not."""
        assert self.arrived is not None
        near = {n for t in self.arrived for n in self._circle[t] if n in self._seats}
        return sorted(self.arrived | near)

    def _needed(self, t: int) -> int:
        return threshold(len(self._circle[t]))

    def _secret(self, t: int) -> int:
        known = sorted(self._shares[t].items())[: self._needed(t)]
        return masks.joined(dict(known))
