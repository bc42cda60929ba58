"""Masked sums: the sum comes out to the bit, whoever vanishes; nothing else does, whatever a station tries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.kernels.kernel import find_kernel
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles import round_zero
from rhfedmtl.roles.channel import FINE, FixedPoint, MaskedSums
from rhfedmtl.roles.message_sizes import DENSE, masking_bytes, message_sizes
from rhfedmtl.roles.messages import ENVELOPE, Anchor, Update, Verdict, WorkOrder
from rhfedmtl.roles.secure import masks
from rhfedmtl.roles.secure.masked_sums import MaskedSum, MaskRoom
from rhfedmtl.roles.secure.masking import (
    Circle,
    Key,
    Masked,
    Masker,
    Opened,
    Partners,
    Unmask,
    in_groups,
    neighbours,
    seat,
    to_bits,
    to_groups,
)
from rhfedmtl.roles.secure.masks import add, bound_to, pair_seed, threshold
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.summed import words_of
from rhfedmtl.roles.terminal import Terminal
from rhfedmtl.training.faults import complete_groups

LENGTH = 40
Words = masks.Words


class World:
    """A station and its terminals, and what each of these holds: a row of words."""

    def __init__(self, n: int, least: int = 3) -> None:
        self.room = MaskRoom(least)
        self.terminals = {t: Masker(t, smallest=least) for t in range(10, 10 + n)}
        random = np.random.default_rng(n)
        self.words = {t: random.integers(0, 2**64, LENGTH, dtype=np.uint64) for t in self.terminals}
        for masker in self.terminals.values():
            self.room.admit(masker.key)

    def deal(self, members: Iterable[int]) -> None:
        """Bring circles down and deals up."""
        for t, circle in self.room.prepare(members).items():
            assert self.room.receive(self.terminals[t].deal(circle))

    def begin(self, members: Iterable[int] | None = None, content: bytes = b"order") -> MaskedSum | None:
        """A sum over members, for which all have dealt."""
        members = set(self.terminals if members is None else members)
        self.deal(members)
        return self.room.start(content, {t: seat(1, 0, 5) for t in members})

    def mask(self, t: int, partners: Partners, history: bytes = b"", content: bytes = b"order") -> Masked:
        """Words of a terminal."""
        return self.terminals[t].mask(partners, content, seat(1, 0, 5), self.words[t], history)

    def sum(
        self,
        members: Iterable[int] | None = None,
        *,
        late: Iterable[int] = (),
        silent: Iterable[int] = (),
        content: bytes = b"order",
    ) -> Words | None:
        """One sum over members, of whom some vanish before their words, some before they open."""
        room = self.begin(members, content)
        if room is None:
            return None
        self.seen = []
        for t, partners in room.partners().items():
            masked = self.mask(t, partners, content=content)
            if t not in set(late):
                self.seen.append(masked.words)
                assert room.receive(masked)
        return self.opened(room, silent)

    def opened(self, room: MaskedSum, silent: Iterable[int] = ()) -> Words | None:
        """What comes out once all whose words are there were asked."""
        unmask = room.close()
        if unmask is None:
            return None
        for t in sorted(set(room.answered) - set(silent)):
            assert room.open(self.terminals[t].open(unmask))
        self.summed = room.arrived or frozenset()
        return room.total()

    def clear(self, members: Iterable[int]) -> Words:
        """The sum as it is without masks."""
        return np.sum([self.words[t] for t in members], axis=0, dtype=np.uint64)


@pytest.mark.parametrize("n", [3, 4, 5, 25, DENSE + 1, DENSE + 2, 80])
def test_the_sum_comes_out_to_the_bit(n: int) -> None:
    """For every size, dense or on a sparse graph, sum after sum."""
    world = World(n)
    for _ in range(2):
        np.testing.assert_array_equal(world.sum(), world.clear(world.terminals))


@pytest.mark.parametrize(("n", "late", "silent"), [(5, 0, 1), (9, 1, 1), (25, 4, 3), (70, 8, 7)])
def test_drop_outs_at_every_step_leave_the_sum_of_whole_groups(n: int, late: int, silent: int) -> None:
    """Before the words, and between words and shares; the next sum goes on with everybody."""
    world = World(n)
    ids = list(world.terminals)
    found = world.sum(late=ids[:late], silent=ids[late : late + silent])
    left = [t for group in in_groups(ids, 3) if group.isdisjoint(ids[:late]) for t in group]
    np.testing.assert_array_equal(found, world.clear(left))
    for missing in (0, 1, n // 2):
        whole = [t for group in in_groups(ids, 3) if group <= set(ids[missing:]) for t in group]
        found = world.sum(ids[missing:])
        assert (found is None) == (not whole)
        if found is not None:
            np.testing.assert_array_equal(found, world.clear(whole))


def test_a_group_waits_for_all_of_it_and_others_go_on() -> None:
    """One that dies once groups are known takes its group along, until it is back."""
    world = World(7)
    first, second = in_groups(world.terminals, 3)
    np.testing.assert_array_equal(world.sum(), world.clear(world.terminals))
    np.testing.assert_array_equal(world.sum(world.terminals.keys() - {min(first)}), world.clear(second))
    assert world.sum(first - {min(first)}) is None
    np.testing.assert_array_equal(world.sum(), world.clear(world.terminals))


def test_too_few_shares_make_a_sum_void() -> None:
    """More than two thirds of a neighbourhood must open; a void sum tells nothing, and the next one works."""
    world = World(9)
    ids = list(world.terminals)
    assert threshold(8) == 7
    assert world.sum(silent=ids[:3]) is None
    np.testing.assert_array_equal(world.sum(), world.clear(ids))


def test_a_terminal_that_restarts_takes_part_with_a_new_key() -> None:
    """Its neighbours are told, and deal anew."""
    world = World(6)
    world.sum()
    world.terminals[12] = Masker(12, group=world.terminals[12].group)
    world.room.admit(world.terminals[12].key)
    np.testing.assert_array_equal(world.sum(), world.clear(world.terminals))


def test_a_station_that_restarts_goes_on_with_a_slot_of_its_own() -> None:
    """It remembers the slot, and collects keys and deals anew."""
    world = World(6)
    world.sum()
    world.room = MaskRoom(3, slot=world.room.slot + 1)
    for masker in world.terminals.values():
        world.room.admit(masker.key)
    np.testing.assert_array_equal(world.sum(), world.clear(world.terminals))


def test_repeated_and_stale_messages_change_nothing() -> None:
    """The same order gets the same words, the same set the same shares; what is late is not taken."""
    world = World(4)
    world.deal(world.terminals)
    room = world.room.start(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        first, again = (world.mask(t, partners) for _ in range(2))
        assert first is again
        assert room.receive(first)
        assert not room.receive(again)
    unmask = room.close()
    assert unmask is not None
    assert not room.receive(first)
    for masker in world.terminals.values():
        assert masker.open(unmask).shares == masker.open(unmask).shares
        assert room.open(masker.open(unmask))
    assert not room.open(Opened(10, 77, b""))
    np.testing.assert_array_equal(room.total(), world.clear(world.terminals))


def test_what_a_station_sees_looks_random() -> None:
    """Words of one terminal are as good as uniform, and nothing like what it holds: bits are set half of the time."""
    world = World(5)
    world.words = {t: np.zeros(20_000, dtype=np.uint64) for t in world.terminals}
    assert not world.sum().any()  # type: ignore[union-attr]
    for words in world.seen:
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
        assert len(np.unique(words)) == len(words)


# The attacks. A dishonest station tries to learn what less than T terminals hold.


SUBTRACTED = "could be subtracted"


def test_rules_1_to_3_whatever_sets_are_asked_for_sums_tell_sums_over_groups() -> None:
    """All sets that terminals answer for, in any order: what they span is constant on every group."""
    rng, world, answered = np.random.default_rng(1), World(11), []
    ids = list(world.terminals)
    for _ in range(60):
        members = [t for t in ids if rng.random() < 0.8]
        if world.sum(members, late=[t for t in members if rng.random() < 0.1]) is not None:
            answered.append(world.summed)
    columns = np.array([[t in each for t in ids] for each in answered], dtype=float)
    assert np.linalg.matrix_rank(columns) > 1
    groups = {masker.group for masker in world.terminals.values()} - {None}
    assert sum(map(len, groups)) >= 9
    for group in groups:
        own = columns[:, [ids.index(t) for t in group]]
        assert len(group) >= 3
        assert (own == own[:, :1]).all()


@pytest.mark.parametrize("asked", ["everyone", "arrived"])
def test_rules_1_to_3_a_sum_without_one_of_a_group_is_refused(asked: str) -> None:
    """Over A and then over A without one: whatever it is a sum of, whatever the model."""
    world = World(8)
    first, second = in_groups(world.terminals, 3)
    assert world.sum() is not None
    room = world.begin()
    assert room is not None
    few = to_bits((first | second) - {min(first)})
    for t, partners in room.partners().items():
        if asked == "everyone":
            near = [n for n in neighbours(to_groups((first, second)), t) if n != min(first)]
            given = replace(partners, everyone=few, seats=seat(1, 0, 5) * len(near), shares=bytes(32 * len(near)))
            if t != min(first):
                with pytest.raises(PeerError, match=SUBTRACTED):
                    world.mask(t, given)
        else:
            room.receive(world.mask(t, partners))
    for masker in world.terminals.values() if asked == "arrived" else ():
        with pytest.raises(PeerError, match=SUBTRACTED):
            masker.open(Unmask(room.slot, few))


def test_rules_1_to_3_a_terminal_is_in_the_same_group_for_ever() -> None:
    """In another, over a restart, after a move, or where its words were never opened: it deals for none."""
    world = World(9)
    ids = list(world.terminals)
    one, two, three = in_groups(ids, 3)
    assert world.sum(one | two, late=[min(one)]) is not None
    for t in ids:
        world.terminals[t] = Masker(t, group=world.terminals[t].group)
    for t in one | two:
        assert world.terminals[t].group == (one if t in one else two)
    assert all(world.terminals[t].group is None for t in three)
    elsewhere = MaskRoom(3)
    for t in three | {min(one)}:
        elsewhere.admit(world.terminals[t].key)
    for t, circle in elsewhere.prepare(three | {min(one)}).items():
        if t == min(one):
            with pytest.raises(PeerError, match="counts together with terminals 10, 11, 12"):
                world.terminals[t].deal(circle)


class Liar(MaskedSum):
    """A station that takes out masks within groups too, as one does that cuts them."""

    cut: tuple[frozenset[int], ...] = ()

    def _without(self, t: int, total: Words) -> Words:
        honest = self._content
        seeds = masks.hidden(masks.to_bytes(self._secret(t)), self._deals[t].backup)
        for place, other in enumerate(self._circle[t]):
            if other in (self.arrived or ()):
                within = any({t, other} <= group for group in self.cut)
                content = bound_to(honest, b"") if within else honest
                pair = seeds[masks.SEED * place : masks.SEED * (place + 1)]
                seed = pair_seed(pair, content, self._everyone, self._seats[t], self._seats[other])
                total = add(total, masks.mask(seed, len(total)), t < other)
        return total


@pytest.mark.parametrize("bound", [True, False])
def test_rule_1_unequal_words_of_who_counts_with_whom_give_nothing(bound: bool, monkeypatch: Any) -> None:
    """Most are told false groups, and open a set that cuts two others: what they hold of these gives nothing back.

    The attack works where shares do not rest on the groups that were told.
    """
    if not bound:
        monkeypatch.setattr(Masker, "_pad", lambda _, secret, slot, t: masks.derive(secret, slot, t, length=32))
    world = World(24)
    one, two, *others = in_groups(world.terminals, 3)
    assert world.sum() is not None
    (t, a, b), w = sorted(one), min(two)
    truth = to_groups((one, two, *others))
    false = to_groups((frozenset({t, a, w}), frozenset({b, *(two - {w})}), *others))
    slot = world.room.slot + 2
    for each in sorted(world.terminals):
        told = truth if each in one | two else false
        keys = tuple(world.terminals[n].key for n in neighbours(told, each))
        world.room._deals[each] = world.terminals[each].deal(Circle(slot, keys, told))
    world.room.slot = slot - 1
    room = world.room.start(b"order", {each: seat(1, 0, 5) for each in world.terminals})
    assert room is not None
    for each, partners in room.partners().items():
        room.receive(world.mask(each, partners))
    room.arrived = frozenset({t, a, w})
    unmask = Unmask(room.slot, to_bits(room.arrived))
    for each in one | two:
        with pytest.raises(PeerError, match=SUBTRACTED):
            world.terminals[each].open(unmask)
    for each in world.terminals.keys() - one - two:  # enough of them, and they believe it
        assert room.open(world.terminals[each].open(unmask))
    room.__class__, room.cut = Liar, (one, two)
    assert np.array_equal(room.total(), world.clear(room.arrived)) != bound


def test_rule_1_groups_change_for_the_next_sum_alone() -> None:
    """Words are sent under true groups, and false ones come before they are to be opened."""
    world = World(9)
    one, two, three = in_groups(world.terminals, 3)
    room = world.begin()
    assert room is not None
    for t, partners in room.partners().items():
        room.receive(world.mask(t, partners))
    t, a, b = sorted(one)
    false = to_groups((frozenset({t, a, min(two)}), frozenset({b, *(two - {min(two)})}), three))
    for each in three:
        keys = tuple(world.terminals[n].key for n in neighbours(false, each))
        world.terminals[each].deal(Circle(room.slot + 2, keys, false))
        with pytest.raises(ProtocolError):
            world.terminals[each].open(Unmask(room.slot, to_bits({t, a, min(two)})))


def test_rule_2_a_lone_join_gives_no_sum() -> None:
    """Newcomers count with as many others as a group has."""
    world = World(6)
    ids = list(world.terminals)
    assert world.sum(ids[:3]) is not None
    np.testing.assert_array_equal(world.sum(ids[:5]), world.clear(ids[:3]))
    np.testing.assert_array_equal(world.sum(), world.clear(ids))


@pytest.mark.parametrize("grouped", [True, False])
def test_rule_2_a_lone_leave_does_not_tell_the_share(grouped: bool) -> None:
    """U_b before and after it differ by what the one put in, exactly: the attack works where sets are free."""
    rng, method = np.random.default_rng(0), DualMethod(channel=MaskedSums())
    rows = {t: (rng.normal(size=(6, 7)), rng.choice([-1.0, 1.0], size=(6, 1))) for t in range(10, 16)}
    roles = {t: Terminal(t, *rows[t], method, seed=bytes([t] * 16), kernel=find_kernel("numpy")) for t in rows}
    world, shares = World(6), {}
    for t, role in roles.items():
        role.join()
        world.words[t] = words_of(_worked(role, 1), MaskedSums())
    assert world.sum() is not None
    for t, role in roles.items():
        found = role.kept_share(Verdict(1, 0.5, 1, 1))
        assert found is not None
        shares[t], world.words[t] = found, words_of(found, MaskedSums())
    others = [t for t in rows if t != 12]
    if not grouped:
        world = _free(world)
    kept = world.sum(others)
    assert kept is not None
    left = sum(shares.values()) - round_zero.to_numbers(kept)
    told = shares[12] if not grouped else sum(shares[t] for t in (10, 11, 12))
    np.testing.assert_allclose(left, told, atol=1e-15)


def _free(world: World) -> World:
    """The same terminals, who remember nobody they count with."""
    other = World(len(world.terminals))
    other.words = world.words
    return other


@pytest.mark.parametrize("history", ["of one", "of all"])
def test_rule_4_those_of_a_group_are_told_the_same_before(history: str) -> None:
    """One who alone is told that its update counts has duals that alone changed: the sum would tell its own."""
    world = World(6)
    room = world.begin()
    assert room is not None
    one, _ = in_groups(world.terminals, 3)
    for t, partners in room.partners().items():
        room.receive(world.mask(t, partners, b"applied" if t == 10 or (history == "of all" and t in one) else b""))
    assert np.array_equal(world.opened(room), world.clear(world.terminals)) == (history == "of all")


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("how", ["dropped", "back and forth", "fedavg"])
def test_rule_3_no_model_gives_the_update_of_one(how: str, grouped: bool) -> None:
    """A round dropped, models that come back, updates that rest on the model alone: then the same without one.

    What duals are after many steps rests on the model. The attack works where sets are free; in groups it gives what
    three told together, and that is no update of one.
    """
    rng, dual = np.random.default_rng(0), how != "fedavg"
    method = DualMethod(channel=MaskedSums()) if dual else build("fedavg", Options(channel="masked"), "binary").method
    rows = {t: (rng.normal(size=(6, 7)), rng.choice([-1.0, 1.0], size=(6, 1))) for t in range(10, 16)}
    kernel = find_kernel("numpy")
    roles = {t: Terminal(t, *rows[t], method, seed=bytes([t] * 16), kernel=kernel) for t in rows}
    for role in roles.values():
        role.join()
    world, there, others = World(6), rng.normal(size=(1, 8)), [t for t in rows if t != 12]
    away = {"dropped": (), "back and forth": (0.0 * there,), "fedavg": ()}[how]
    models = [(there, list(rows)), *((w, list(rows)) for w in away), (there, others)]
    sums, held = [], {}
    for number, (model, members) in enumerate(models, 1):
        factor = 0.0 if how == "dropped" else 1.0
        for t in members:
            verdict = Verdict(number - 1, factor if number > 1 else 0.0, number - 1, 1)
            work = GRADIENT if dual else ASCENT
            update = roles[t].work(WorkOrder(number, t, model, 1e-3, 120, verdict, work=work))
            assert update is not None
            held[t] = update.delta[0]
            world.words[t] = masks.to_words(update.delta[0], MaskedSums().grid_step)
        sums.append((world if grouped else _free(world)).sum(members))
    whole, less = (masks.to_numbers(words, MaskedSums().grid_step) for words in sums[-2:] if words is not None)
    found, known = whole + less if how == "back and forth" else whole - less, held[12]
    cosine = found @ known / np.linalg.norm(found) / np.linalg.norm(known)
    assert (cosine > 0.9) != grouped


def _worked(role: Terminal, number: int) -> Update:
    """An update of many passes from a model that is nearly zero; those before were dropped."""
    verdict = Verdict(0, 0.0, number - 1, role.incarnation)
    update = role.work(WorkOrder(number, role.identity, np.full((1, 8), 1e-9 * number), 5.0, 120, verdict))
    assert update is not None
    return update


def test_rule_3_sums_of_one_update_tell_no_more_than_is_charged() -> None:
    """Each part brings noise s²/T, the same in all sums: however many there are, what they tell of one is (C/s)²."""
    least, ids = 3, range(11)
    groups = in_groups(ids, least)
    sets = [
        frozenset().union(*(g for k, g in enumerate(groups) if bits >> k & 1)) for bits in range(1, 2 ** len(groups))
    ]
    A = np.array([[t in each for t in ids] for each in sets], dtype=float)
    covariance = A @ A.T / least
    tells = [float(a @ np.linalg.pinv(covariance) @ a) for a in A.T]  # of each terminal, in units of (C/s)²
    assert max(tells) <= 1.0 + 1e-9
    free = np.array([[1.0] * 11, [0.0] + [1.0] * 10])
    assert free[:, 0] @ np.linalg.pinv(free @ free.T / least) @ free[:, 0] > 2.9


@pytest.mark.parametrize(
    ("asked", "alike"),
    [
        ([(7, 5), (9, 5), (3, 5)], True),
        ([(7, 14), (9, 18), (3, 6)], True),
        ([(7, 5), (9, 5), (3, 1)], False),
        ([(7, 5), (9, 5), (3, 0)], False),
        ([(7, 8), (9, 10), (3, 4)], False),
    ],
)
def test_rule_4_those_of_a_group_work_alike(asked: list[tuple[int, int]], alike: bool) -> None:
    """A round held again with next to no steps for one would tell its update as one without it does."""
    world = World(3)
    world.deal(world.terminals)
    seats = {t: seat(1, *each) for t, each in zip(world.terminals, asked, strict=True)}
    room = world.room.start(b"order", seats)
    assert room is not None
    for t, partners in room.partners().items():
        if not alike:
            with pytest.raises(PeerError, match=SUBTRACTED):
                world.terminals[t].mask(partners, b"order", seats[t], world.words[t])
        else:
            room.receive(world.terminals[t].mask(partners, b"order", seats[t], world.words[t]))
    if alike:
        np.testing.assert_array_equal(world.opened(room), world.clear(world.terminals))


def test_rule_4_orders_that_differ_do_not_cancel() -> None:
    """One model to a terminal and another to the rest: the sum is noise; nobody works otherwise than is told of it."""
    world = World(5)
    room = world.begin()
    assert room is not None
    for t, partners in room.partners().items():
        with pytest.raises(PeerError, match=SUBTRACTED):
            world.terminals[t].mask(partners, b"order", seat(1, 0, 6), world.words[t])
        room.receive(world.mask(t, partners, content=b"another" if t == 10 else b"order"))
    found = world.opened(room)
    assert found is not None
    assert (found != world.clear(world.terminals)).mean() > 0.99


def test_rule_5_nobody_opens_two_sets_or_a_small_one() -> None:
    """The set of the sum counts, not only the neighbours; and a second unmasking of one slot is refused."""
    world = World(6)
    world.deal(world.terminals)
    room = world.room.start(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        room.receive(world.mask(t, partners))
    with pytest.raises(PeerError, match=SUBTRACTED):
        world.terminals[10].open(Unmask(room.slot, to_bits([10, 11])))
    with pytest.raises(PeerError, match="needs groups of 3"):
        world.terminals[10].open(Unmask(room.slot, to_bits([*world.terminals, 99])))
    world.terminals[10].open(Unmask(room.slot, to_bits(world.terminals)))
    with pytest.raises(PeerError, match="for another set"):
        world.terminals[10].open(Unmask(room.slot, to_bits([10, 11, 12])))


def test_rule_5_a_station_cannot_play_terminals() -> None:
    """Keys that nobody proved are refused, and so is a circle that is too small."""

    def check(key: Key) -> None:
        if key.proof != b"proved":
            raise PeerError("a key that is not proved")

    honest = Masker(0, sign=lambda _: b"proved", check=check)
    known, forged = (Masker(t, sign=lambda _: b"proved").key for t in (1, 2)), Masker(3).key
    first, second = known
    three = to_groups([frozenset({0, 1, 2})])
    with pytest.raises(PeerError, match="not proved"):
        honest.deal(Circle(1, (first, second, forged), to_groups([frozenset(range(4))])))
    for keys in ((first,), (first, first), (first, second, second)):
        with pytest.raises(PeerError, match="others follow from the groups"):
            honest.deal(Circle(1, keys, three))
    for groups in ([{0, 1}, {2, 3}], [{1, 2, 3}], [{0, 1, 2}, {2, 3, 4}], []):
        with pytest.raises(PeerError, match="terminal 0 needs disjoint groups of 3 or more"):
            honest.deal(Circle(1, (first, second), to_groups(map(frozenset, groups))))
    assert len(honest.deal(Circle(1, (first, second), three)).shares) == 64


def test_nobody_deals_twice_for_a_slot() -> None:
    """Two deals under one pad would tell the difference of their shares."""
    keys, masker = tuple(Masker(t).key for t in (1, 2, 3)), Masker(0)
    four, three = (to_groups([frozenset(range(n))]) for n in (4, 3))
    assert masker.deal(Circle(4, keys, four)) is masker.deal(Circle(4, keys, four))
    for slot in (3, 4):
        with pytest.raises(PeerError, match="is over"):
            masker.deal(Circle(slot, keys[:2], three))


def test_words_under_a_slot_that_was_not_dealt_for_are_refused() -> None:
    """No mask is used twice."""
    world = World(4)
    world.sum()
    partners = Partners(world.room.slot, to_bits(world.terminals), b"", b"")
    with pytest.raises(PeerError, match="has dealt for another slot"):
        world.mask(10, partners, content=b"new")


def test_rule_7_everybody_sends_as_much() -> None:
    """Dense words of one length, whatever is in them; another length is refused."""
    world = World(4)
    world.words[10] = np.zeros(LENGTH, dtype=np.uint64)
    world.sum()
    assert {len(words) for words in world.seen} == {LENGTH}
    world.words[11] = np.zeros(LENGTH - 1, dtype=np.uint64)
    with pytest.raises(PeerError, match="39 words of terminal 11"):
        world.sum()


def test_rule_8_what_nobody_else_has_is_not_hidden() -> None:
    """Where all others hold zeros the sum is what one holds: only noise helps. Documented, and no more."""
    world = World(5)
    world.words = {t: words * np.uint64(t == 12) for t, words in world.words.items()}
    np.testing.assert_array_equal(world.sum(), world.words[12])


@pytest.mark.parametrize("secret", [0, 1, masks.PRIME - 1, 2**100 + 7])
def test_shares_give_the_secret_back(secret: int) -> None:
    """Any of them, as many as it takes; one fewer gives something else."""
    shares = masks.split(secret, range(12), 9)
    for first in (0, 3):
        assert masks.joined({t: shares[t] for t in range(first, first + 9)}) == secret
    assert masks.joined({t: shares[t] for t in range(8)}) != secret


def test_numbers_survive_as_words() -> None:
    """Multiples of the step, negative ones too, and their sum; what is too large is refused."""
    values = np.array([-3.5, 0.0, 2.0**-20, 1e6])
    words = masks.to_words(values, 2.0**-20)
    np.testing.assert_array_equal(masks.to_numbers(words + words, 2.0**-20), 2.0 * values)
    with pytest.raises(Exception, match="scale them"):
        masks.to_words(np.array([1e30]), 2.0**-20)


@pytest.mark.parametrize("least", [3, 20, 40])
def test_the_graph_is_regular_and_mutual(least: int) -> None:
    """Above the limit everybody has as many neighbours, who have it; two of a group have most in common."""
    groups = in_groups(range(200), least)
    told = to_groups(groups)
    near = {t: {*neighbours(told, t)} for t in range(200)}
    (size,) = {len(each) for each in near.values()}
    assert size >= DENSE
    assert all(t in near[n] for t in near for n in near[t])
    for group in groups:
        for t, n in itertools.combinations(group, 2):  # nobody gives shares of one for a set, and not of the other
            assert len({t, n} | near[t] | near[n]) < 2 * threshold(size)


@pytest.mark.parametrize(("n", "least"), [(3, 3), (25, 3), (80, 3), (80, 20)])
def test_masks_are_charged_by_their_bytes(n: int, least: int) -> None:
    """Engines that do not make the messages count what these have."""
    world = World(n, least)
    deals = [world.terminals[t].deal(circle) for t, circle in world.room.prepare(world.terminals).items()]
    assert all(world.room.receive(deal) for deal in deals)
    room = world.room.start(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    partners = room.partners()
    for t, each in partners.items():
        room.receive(world.mask(t, each))
    unmask = room.close()
    assert unmask is not None
    opened = world.terminals[10].open(unmask)
    alone = framed(ENVELOPE)  # of what travels with another message
    down, up = partners[10].n_bytes - alone + unmask.n_bytes, deals[0].n_bytes - alone + opened.n_bytes
    assert masking_bytes(n, least) == (down, up)


def test_a_masked_round_has_at_most_a_third_more_bytes() -> None:
    """With 561 features, as HAR has, and 25 terminals: 1.3 at most."""
    clear, masked = (message_sizes((1, 562), 1, 0, FixedPoint(), among) for among in (0, 25))
    clear = message_sizes((1, 562), 1, 0)
    assert (masked.order + masked.update) / (clear.order + clear.update) < 1.3


@pytest.mark.parametrize("late", [0, 2])
def test_a_round_under_masks_is_the_round_that_engines_simulate(late: int) -> None:
    """What terminals send, added up as words by those who see no part of it, is what the station merges, to the bit."""
    random, channel = np.random.default_rng(3), MaskedSums()
    method = DualMethod(merge=MERGES["add"](), channel=channel)
    terminals = {}
    for t in range(10, 19):
        y = np.where(random.random(7) < 0.5, -1.0, 1.0)[:, None]
        terminals[t] = Terminal(t, random.normal(size=(7, 6)), y, method)
    station = BaseStation(0, (1, 7), method)
    for terminal in terminals.values():
        station.roster.admit(terminal.join())
    station.receive_anchor(Anchor(1, 0, np.zeros((1, 7)), 0.1))
    world, ids = World(9), list(terminals)
    for number in (1, 2, 3):
        before = station.U
        updates = {o.terminal: terminals[o.terminal].work(o) for o in station.open_round(number, dict.fromkeys(ids, 5))}
        world.words = {t: words_of(update, channel) for t, update in updates.items() if update is not None}
        found = world.sum(late=ids[:late], content=b"order of round %d" % number)
        arrive = complete_groups(np.arange(9) >= late, np.zeros(9, dtype=np.int64), 3)
        for update in [updates[t] for t, arrives in zip(ids, arrive, strict=True) if arrives]:
            assert update is not None
            station.receive(update)
        merged = station.close_round()
        assert found is not None
        np.testing.assert_array_equal(masks.to_numbers(found[:7], channel.grid_step), (station.U - before)[0])
        np.testing.assert_array_equal(masks.to_numbers(found[7:], FINE), merged.gains)
