"""A station's side of sums that it learns without seeing what is added up (`roles.secure.masking`): no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from rhfedmtl.errors import PeerError
from rhfedmtl.roles.secure import masks
from rhfedmtl.roles.secure.masking import (
    LEAST,
    Circle,
    Deal,
    Key,
    Masked,
    Members,
    Opened,
    Partners,
    Unmask,
    add,
    bound_to,
    in_groups,
    neighbours,
    pair_seed,
    threshold,
    to_bits,
    to_groups,
)
from rhfedmtl.roles.secure.masks import SEED, Words


class MaskRoom:
    """A station's side between sums: keys, circles and deals of its terminals. ``slot`` is the last that was used."""

    def __init__(self, least: int = LEAST, slot: int = 0) -> None:
        self.least, self.slot = least, slot
        self._keys: dict[int, Key] = {}
        self._groups: dict[int, Members] = {}
        self._told: tuple[Members, ...] = ()
        self._circles: dict[int, tuple[int, ...]] = {}
        self._deals: dict[int, Deal] = {}

    def __contains__(self, terminal: object) -> bool:
        """Whether a terminal's key is here."""
        return terminal in self._keys

    def admit(self, key: Key, group: Members = frozenset()) -> None:
        """Take a terminal's key, and the group that it counts in, if it does; a new key makes new circles."""
        if key.terminal not in self._keys or self._keys[key.terminal].public != key.public:
            self._keys[key.terminal] = key
            self._circles, self._deals = {}, {}
        if len(group) >= self.least:
            self._groups = {**dict.fromkeys(group, group), **self._groups, key.terminal: group}

    def forget(self, terminal: int) -> None:
        """Drop the key of a terminal that is gone."""
        if self._keys.pop(terminal, None) is not None:
            self._circles, self._deals = {}, {}

    def group(self, terminal: int) -> Members:
        """All who count together with a terminal; nobody where it does not count yet."""
        return self._groups.get(terminal, frozenset())

    def whole(self, members: Iterable[int]) -> list[Members]:
        """Groups of which all are among these: known ones, and new ones of those who do not count yet."""
        here = set(members)
        known = {group for t in here if (group := self.group(t)) and all(self.group(n) == group for n in group)}
        groups = [group for group in known if group <= here]
        return sorted([*groups, *in_groups((t for t in here if not self.group(t)), self.least)], key=min)

    def prepare(self, members: Iterable[int]) -> dict[int, Circle]:
        """What to send before a sum over these: a circle to each that has not dealt for the slot.

        Circles stay while each has all of its neighbours but a sixth, and the groups are known to all.
        """
        groups = self.whole(self._keys.keys() & set(members))
        here = frozenset().union(*groups)
        if not here:
            return {}
        near = all(6 * sum(n in here for n in self._circles.get(t, ())) >= 5 * self._size(t) for t in here)
        if not near or not set(groups) <= set(self._told):
            self._told, told = tuple(groups), to_groups(groups)
            self._circles, self._deals = {t: neighbours(told, t) for t in here}, {}
            self.slot += 1  # nobody deals twice for a slot
        wanted, told = here - self._deals.keys(), to_groups(self._told)
        return {t: Circle(self.slot + 1, tuple(self._keys[n] for n in self._circles[t]), told) for t in sorted(wanted)}

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

    def begin(self, content: bytes, seats: Mapping[int, bytes]) -> MaskedSum | None:
        """A sum over the groups of which all have dealt; None, and no slot used, where there is none."""
        dealt = self._deals.keys() & seats.keys()
        groups = [group for group in self._told if group <= dealt]
        here = {t: seats[t] for t in sorted(frozenset().union(*groups))}
        if not here:
            return None
        self.slot += 1
        deals, self._deals = self._deals, {}
        circle = {t: self._circles[t] for t in here}
        for group in groups:  # from now on these count together
            self._groups |= dict.fromkeys(group, group)
        told = hashlib.sha256(to_groups(self._told)).digest()
        return MaskedSum(self.slot, bound_to(content, told), here, circle, deals, groups)


class MaskedSum:
    """A station's side of one sum over whole groups; ``content`` is what masks rest on."""

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
        """What goes with each terminal's order."""
        return {t: self._partners(t) for t in self._seats}

    def _partners(self, t: int) -> Partners:
        near = [n for n in self._circle[t] if n in self._seats]
        shares = b"".join(self._from(n, t) for n in near)
        seats = b"".join(self._seats[n] for n in near)
        return Partners(self.slot, self._everyone, seats, shares)

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
        """What to ask of all whose words are here; None where these make no whole group: the sum is void."""
        self.groups = [group for group in self.groups if group <= self._words.keys()]
        if not self.groups:
            return None
        self.arrived = frozenset().union(*self.groups)
        return Unmask(self.slot, to_bits(self.arrived))

    @property
    def heard(self) -> list[int]:
        """Those whose words are here."""
        return sorted(self._words)

    def open(self, opened: Opened) -> bool:
        """Take shares; False for late, repeated or unasked ones."""
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
        """Whether there are shares enough for everything."""
        return self.arrived is not None and all(len(self._shares[t]) >= self._needed(t) for t in self._owners())

    def total(self) -> Words | None:
        """The sum over whole groups whose words are here; None where shares are missing: it is void."""
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
        seeds = masks.hidden(masks.to_bytes(self._secret(t)), self._deals[t].backup)
        assert self.arrived is not None
        for other, pair in zip(self._circle[t], masks.pieces(seeds, SEED), strict=True):
            if other in self.arrived:
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
