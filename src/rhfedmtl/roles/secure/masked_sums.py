"""A station's side of masked sums: it learns a sum over terminals, and no terminal's part of it.

`MaskRoom` prepares sums and lasts as long as the station; `MaskedSum` is a single sum. The station's service carries
their messages; there is no I/O here. `roles.secure.masking` explains the protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from rhfedmtl.errors import PeerError
from rhfedmtl.roles.secure import masks
from rhfedmtl.roles.secure.masking import (
    SMALLEST_GROUP,
    Circle,
    Deal,
    Key,
    Masked,
    Members,
    Opened,
    Partners,
    Unmask,
    in_groups,
    neighbours,
    to_bits,
    to_groups,
)
from rhfedmtl.roles.secure.masks import SEED, Words


class MaskRoom:
    """Keys, groups, circles and deals of a station's terminals, between sums.

    Parameters
    ----------
    smallest : int
        Smallest number of terminals in a group.
    slot : int
        Last slot that was used.
    """

    def __init__(self, smallest: int = SMALLEST_GROUP, slot: int = 0) -> None:
        self.smallest, self.slot = smallest, slot
        self._keys: dict[int, Key] = {}
        self._groups: dict[int, Members] = {}
        self._circle_groups: tuple[Members, ...] = ()  # groups that the current circles were sent with
        self._circles: dict[int, tuple[int, ...]] = {}
        self._deals: dict[int, Deal] = {}

    def __contains__(self, terminal: object) -> bool:
        """Return True if the room has the terminal's key."""
        return terminal in self._keys

    def admit(self, key: Key, group: Members = frozenset()) -> None:
        """Take a terminal's key, and its group if it has one. A new key makes new circles necessary."""
        if key.terminal not in self._keys or self._keys[key.terminal].public != key.public:
            self._keys[key.terminal] = key
            self._circles, self._deals = {}, {}
        if len(group) >= self.smallest:
            self._groups = {**dict.fromkeys(group, group), **self._groups, key.terminal: group}

    def forget(self, terminal: int) -> None:
        """Drop the key of a terminal that has left."""
        if self._keys.pop(terminal, None) is not None:
            self._circles, self._deals = {}, {}

    def group(self, terminal: int) -> Members:
        """Return the members of the terminal's group; empty if it has no group yet."""
        return self._groups.get(terminal, frozenset())

    def complete_groups(self, members: Iterable[int]) -> list[Members]:
        """Return the groups that lie within these members: existing groups, and new groups of the others."""
        present = set(members)
        existing = {group for t in present if (group := self.group(t)) and all(self.group(n) == group for n in group)}
        groups = [group for group in existing if group <= present]
        return sorted([*groups, *in_groups((t for t in present if not self.group(t)), self.smallest)], key=min)

    def prepare(self, members: Iterable[int]) -> dict[int, Circle]:
        """Return the circles to send before a sum over these members: to each terminal that has not dealt for the slot.

        Circles stay valid while every terminal has at least five sixths of its neighbours, and while all terminals know
        the groups.
        """
        groups = self.complete_groups(self._keys.keys() & set(members))
        present = frozenset().union(*groups)
        if not present:
            return {}
        near = True
        for t in present:
            circle = self._circles.get(t, ())
            near = near and 6 * sum(n in present for n in circle) >= 5 * (len(circle) if t in self._circles else 1)
        if not near or not set(groups) <= set(self._circle_groups):
            self._circle_groups, packed = tuple(groups), to_groups(groups)
            self._circles, self._deals = {t: neighbours(packed, t) for t in present}, {}
            self.slot += 1  # no terminal deals twice for a slot
        missing, packed = present - self._deals.keys(), to_groups(self._circle_groups)
        return {
            t: Circle(self.slot + 1, tuple(self._keys[n] for n in self._circles[t]), packed) for t in sorted(missing)
        }

    def receive(self, deal: Deal) -> bool:
        """Take a deal for the next slot; return False, and change nothing, if it is for another slot or circle."""
        circle = self._circles.get(deal.terminal)
        if circle is None or deal.slot != self.slot + 1:
            return False
        if len(deal.shares) != 2 * SEED * len(circle) or len(deal.backup) != SEED * len(circle):
            raise PeerError(f"a deal of terminal {deal.terminal} that does not fit its {len(circle)} neighbours")
        self._deals[deal.terminal] = deal
        return True

    def start(self, content: bytes, seats: Mapping[int, bytes]) -> MaskedSum | None:
        """Start a sum over the groups in which all members have dealt.

        Without such a group, return None and use no slot.

        Parameters
        ----------
        content : bytes
            Digest of the request, equal for all terminals.
        seats : Mapping[int, bytes]
            Part of the request that differs between terminals.
        """
        dealt = self._deals.keys() & seats.keys()
        groups = [group for group in self._circle_groups if group <= dealt]
        seated = {t: seats[t] for t in sorted(frozenset().union(*groups))}
        if not seated:
            return None
        self.slot += 1
        deals, self._deals = self._deals, {}
        circle = {t: self._circles[t] for t in seated}
        for group in groups:  # from now on these terminals always count together
            self._groups |= dict.fromkeys(group, group)
        digest = hashlib.sha256(to_groups(self._circle_groups)).digest()
        return MaskedSum(self.slot, masks.bound_to(content, digest), seated, circle, deals, groups)


class MaskedSum:
    """A station's side of a sum over complete groups; masks depend on ``content``."""

    def __init__(
        self,
        slot: int,
        content: bytes,
        seats: Mapping[int, bytes],
        circle: Mapping[int, tuple[int, ...]],
        deals: Mapping[int, Deal],
        groups: Iterable[Members],
    ) -> None:
        self.slot, self._content, self._seats, self.groups = slot, content, seats, list(groups)
        self._circle, self._deals = circle, deals
        self._everyone = to_bits(seats)
        self._words: dict[int, Words] = {}
        self.arrived: Members | None = None
        self._shares: dict[int, dict[int, int]] = {t: {} for t in seats}

    def partners(self) -> dict[int, Partners]:
        """Return the partners that go with each terminal's order."""
        partners = {}
        for t in self._seats:
            near = [n for n in self._circle[t] if n in self._seats]
            shares = []
            for dealer in near:
                start = 2 * SEED * self._circle[dealer].index(t)
                shares.append(self._deals[dealer].shares[start : start + 2 * SEED])
            seats = b"".join(self._seats[n] for n in near)
            partners[t] = Partners(self.slot, self._everyone, seats, b"".join(shares))
        return partners

    def receive(self, masked: Masked) -> bool:
        """Take a terminal's words; return False, and change nothing, if they are late, repeated or not requested."""
        expected = self.arrived is None and masked.slot == self.slot and masked.terminal in self._seats
        if not expected or masked.terminal in self._words:
            return False
        if self._words and len(masked.words) != len(next(iter(self._words.values()))):
            raise PeerError(f"{len(masked.words)} words of terminal {masked.terminal}, others sent another number")
        self._words[masked.terminal] = masked.words
        return True

    def close(self) -> Unmask | None:
        """Return the request to all terminals whose words arrived; without a complete group the sum is void."""
        self.groups = [group for group in self.groups if group <= self._words.keys()]
        if not self.groups:
            return None
        self.arrived = frozenset().union(*self.groups)
        return Unmask(self.slot, to_bits(self.arrived))

    @property
    def answered(self) -> list[int]:
        """Terminals whose words arrived."""
        return sorted(self._words)

    def open(self, opened: Opened) -> bool:
        """Take a terminal's shares; return False, and change nothing, if they are late, repeated or not requested."""
        if self.arrived is None or opened.slot != self.slot or opened.terminal not in self._words:
            return False
        owners = sorted({opened.terminal, *(n for n in self._circle[opened.terminal] if n in self._seats)})
        if len(opened.shares) != SEED * len(owners):
            raise PeerError(f"{len(opened.shares)} bytes of shares of terminal {opened.terminal} for {len(owners)}")
        for owner, share in zip(owners, masks.from_bytes(opened.shares), strict=True):
            self._shares[owner][opened.terminal] = share
        return True

    @property
    def can_end(self) -> bool:
        """True if there are enough shares of every secret that the sum needs."""
        return self.arrived is not None and all(len(self._shares[t]) >= self._needed(t) for t in self._owners())

    def total(self) -> Words | None:
        """Return the sum over the complete groups; if shares are missing, the sum is void."""
        if not self.can_end or self.arrived is None:
            return None
        total = np.zeros_like(next(iter(self._words.values())))
        for t in sorted(self.arrived):
            private_mask = masks.mask(masks.to_bytes(self._secret(t)), len(total))
            total = total + self._words[t] - private_mask
        for t in sorted(set(self._owners()) - self.arrived):
            total = self._without(t, total)
        return total

    def _without(self, t: int, total: Words) -> Words:
        """Remove the masks of the pairs of terminal ``t``, which is not in the sum, with terminals in the sum."""
        seeds = masks.hidden(masks.to_bytes(self._secret(t)), self._deals[t].backup)
        assert self.arrived is not None
        for partner, pair in zip(self._circle[t], masks.pieces(seeds, SEED), strict=True):
            if partner in self.arrived:
                seed = masks.pair_seed(pair, self._content, self._everyone, self._seats[t], self._seats[partner])
                total = masks.add(total, masks.mask(seed, len(total)), t < partner)
        return total

    def _owners(self) -> list[int]:
        """Return the terminals whose secrets are needed.

        These are all terminals in the sum, and their neighbours that had an order but are not in the sum.
        """
        assert self.arrived is not None
        near = {n for t in self.arrived for n in self._circle[t] if n in self._seats}
        return sorted(self.arrived | near)

    def _needed(self, t: int) -> int:
        return masks.threshold(len(self._circle[t]))

    def _secret(self, t: int) -> int:
        shares = sorted(self._shares[t].items())[: self._needed(t)]
        return masks.joined(dict(shares))
