"""Masked sums: the sum comes out to the bit, whoever vanishes; nothing else does, whatever a station tries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.deploy.terminal.masked import kind_of
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.kernels.kernel import find_kernel
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles import masks, round_zero
from rhfedmtl.roles.channel import FINE, FixedPoint, MaskedSums
from rhfedmtl.roles.masking import (
    DENSE,
    SPANS,
    Circle,
    Key,
    Masker,
    MaskRoom,
    Opened,
    Partners,
    SumKind,
    Told,
    Unmask,
    circles,
    seat,
    threshold,
    to_bits,
    to_merges,
)
from rhfedmtl.roles.messages import ENVELOPE, Anchor, Update, Verdict, WorkOrder, masking_bytes, message_sizes
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.summed import words_of
from rhfedmtl.roles.terminal import Terminal

LENGTH = 40
Words = masks.Words


class World:
    """A station and its terminals, and what each of these holds: a row of words."""

    def __init__(self, n: int, least: int = 3) -> None:
        self.room = MaskRoom(least)
        self.terminals = {t: Masker(t, least=least) for t in range(10, 10 + n)}
        random = np.random.default_rng(n)
        self.words = {t: random.integers(0, 2**64, LENGTH, dtype=np.uint64) for t in self.terminals}
        for masker in self.terminals.values():
            self.room.admit(masker.key)

    def deal(self, members: Iterable[int]) -> None:
        """Bring circles down and deals up."""
        for t, circle in self.room.prepare(members).items():
            assert self.room.receive(self.terminals[t].deal(circle))

    def sum(
        self,
        members: Iterable[int] | None = None,
        *,
        late: Iterable[int] = (),
        silent: Iterable[int] = (),
        kind: SumKind = SumKind.UPDATE,
        content: bytes = b"order",
        applied: bool = False,
        before: Iterable[int] = (),
        stay: Iterable[int] = (),
        merged: bytes = b"",
        settled: dict[int, float] | None = None,
    ) -> Words | None:
        """One sum over members, of whom some vanish before their words, some before they open."""
        members = set(self.terminals if members is None else members)
        self.deal(members)
        known = to_bits(before) if before else b""
        room = self.room.begin(content, {t: seat(1, 0, 5) for t in members}, known, merged)
        if room is None:
            return None
        self.seen = []
        for t, partners in room.partners().items():
            words = self.words[t] if not stay or t in stay else np.zeros_like(self.words[t])
            told = {"applied": applied, "settled": settled, "stay": frozenset(stay)}
            masked = self.terminals[t].mask(partners, content, seat(1, 0, 5), words, kind=kind, **told)
            if t not in set(late):
                self.seen.append(masked.words)
                assert room.receive(masked)
        unmask = room.close()
        if unmask is None or room.arrived is None:
            return None
        for t in sorted(room.arrived - set(silent)):
            assert room.open(self.terminals[t].open(unmask))
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


@pytest.mark.parametrize(("n", "late", "silent"), [(5, 1, 0), (5, 0, 1), (9, 1, 1), (25, 4, 3), (70, 8, 7)])
def test_drop_outs_at_every_step_leave_the_sum_of_the_others(n: int, late: int, silent: int) -> None:
    """Before the words, and between words and shares; the next sum goes on with everybody."""
    world = World(n)
    ids = list(world.terminals)
    found = world.sum(late=ids[:late], silent=ids[late : late + silent])
    np.testing.assert_array_equal(found, world.clear(ids[late:]))
    for members in (ids[1:], ids, ids[n // 2 - 1 :]):
        np.testing.assert_array_equal(world.sum(members, applied=True), world.clear(members))


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
    world.terminals[12] = Masker(12, told=world.terminals[12].told)
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
    room = world.room.begin(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        first, again = (
            world.terminals[t].mask(partners, b"order", seat(1, 0, 5), world.words[t], kind=SumKind.UPDATE)
            for _ in range(2)
        )
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


STAYS = [SumKind.FIXED, SumKind.ROWS]
"""Numbers that hardly change with what is asked: of certificates, and of round zero."""


@pytest.mark.parametrize("kind", STAYS)
def test_rule_1_fixed_sums_over_sets_that_differ_by_a_few_are_refused(kind: SumKind) -> None:
    """A certificate, or moments, over A, then over A without one terminal, would give that one's by subtraction."""
    world = World(8)
    ids = list(world.terminals)
    assert world.sum(kind=kind) is not None
    with pytest.raises(PeerError, match="could be subtracted"):
        world.sum(ids[1:], kind=kind, content=b"models a little different")
    assert world.sum(kind=kind) is not None


@pytest.mark.parametrize("kind", STAYS)
def test_rule_1_no_way_round_by_a_third_set(kind: SumKind) -> None:
    """Over A, over a B that differs by T, then over A without one, which differs from B by T too: B is refused."""
    world = World(9)
    ids = list(world.terminals)
    assert world.sum(kind=kind) is not None
    for before in ((), ids, ids[3:]):
        with pytest.raises(PeerError, match="could be subtracted"):
            world.sum(ids[3:], kind=kind, before=before)


@pytest.mark.parametrize("told", ["nothing", "one of them", "both", "each its own"])
def test_rule_1_no_way_round_by_parts(told: str) -> None:
    """Over B, over C, then over both and one more: nothing comes out, whatever is said of who was there before."""
    world = World(9)
    ids = list(world.terminals)
    B, C = ids[:4], ids[4:8]
    assert world.sum(B, kind=SumKind.FIXED) is not None
    assert world.sum(C, kind=SumKind.FIXED) is not None
    if told != "each its own":
        before = {"nothing": [], "one of them": B, "both": [*B, *C]}[told]
        with pytest.raises(PeerError, match="could be subtracted"):
            world.sum(kind=SumKind.FIXED, before=before)
        return
    world.deal(ids)
    room = world.room.begin(b"order", dict.fromkeys(ids, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        known = replace(partners, before=to_bits(B if t in B else C if t in C else B))
        room.receive(world.terminals[t].mask(known, b"order", seat(1, 0, 5), world.words[t], kind=SumKind.FIXED))
    unmask = room.close()
    assert unmask is not None
    for t in ids:
        room.open(world.terminals[t].open(unmask))
    assert not np.array_equal(room.total(), world.clear(ids)), "masks rest on it, and do not cancel"


def test_rule_2_newcomers_are_added_up_with_at_least_as_many_others() -> None:
    """Certificates go on with three newcomers, not with two, also for who was away when the others opened."""
    world = World(9)
    ids = list(world.terminals)
    old, all_but_one = ids[:6], ids[:8]
    assert world.sum(old, kind=SumKind.FIXED, silent=old[:1]) is not None
    with pytest.raises(PeerError, match="2 of them new"):
        world.sum(all_but_one, kind=SumKind.FIXED, before=old)
    np.testing.assert_array_equal(world.sum(kind=SumKind.FIXED, before=old), world.clear(ids))
    assert world.sum(kind=SumKind.FIXED, before=old) is not None


def test_rule_2_a_lone_join_or_leave_gives_no_sum() -> None:
    """A share that comes or goes is a sum over those that come or go: of T at least."""
    world = World(8)
    assert world.sum([10, 11]) is None
    world.deal(world.terminals)
    room = world.room.begin(b"leave", dict.fromkeys([10, 11, 12], seat(1, 0, 0)))
    assert room is not None
    partners = room.partners()[10]
    alone = Partners(partners.slot, to_bits([10, 11]), partners.seats[:10], partners.shares[:32])
    with pytest.raises(PeerError, match="a sum over 2 terminals: terminal 10 needs 3"):
        world.terminals[10].mask(alone, b"leave", seat(1, 0, 0), world.words[10], kind=SumKind.FIXED)


PARTED = "what these put in could be subtracted"


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("asked", ["all", "those who stay"])
def test_rule_2_a_lone_leave_does_not_tell_the_share(asked: str, looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """U_b before and after it differ by what the one put in, exactly: the attack works where nobody looks."""
    rng, method = np.random.default_rng(0), DualMethod(channel=MaskedSums())
    rows = {t: (rng.normal(size=(6, 7)), rng.choice([-1.0, 1.0], size=(6, 1))) for t in range(10, 16)}
    roles = {t: Terminal(t, *rows[t], method, seed=bytes([t] * 16)) for t in rows}
    world, shares = World(6), {}
    for t, role in roles.items():
        role.join()
        world.words[t] = words_of(_worked(role, 1), MaskedSums())
    assert world.sum() is not None
    for t, role in roles.items():
        found = role.kept_share(Verdict(1, 0.5, 1, 1), stays=True)
        assert found is not None
        shares[t], world.words[t] = found, words_of(found, MaskedSums())
    if not looks:
        monkeypatch.setattr(Told, "splits", lambda *_: None)
    others = [t for t in rows if t != 12]
    members = rows if asked == "all" else others
    if looks:
        with pytest.raises(PeerError, match=PARTED):
            world.sum(members, kind=SumKind.SHARE, stay=others)
        return
    kept = world.sum(members, kind=SumKind.SHARE, stay=others)
    assert kept is not None
    np.testing.assert_allclose(sum(shares.values()) - round_zero.to_numbers(kept), shares[12], atol=1e-15)


def test_rule_2_three_leave_together_and_shares_are_exact() -> None:
    """The sum of what stays comes out, to the bit, whether they are there or not; certificates go on without them."""
    world = World(9)
    ids = list(world.terminals)
    stay = ids[3:]
    assert world.sum() is not None
    assert world.sum(kind=SumKind.FIXED) is not None
    here = ids[1:]  # one of them is dead
    np.testing.assert_array_equal(world.sum(here, kind=SumKind.SHARE, stay=stay), world.clear(stay))
    np.testing.assert_array_equal(world.sum(here, kind=SumKind.SHARE, stay=stay), world.clear(stay))  # killed meanwhile
    np.testing.assert_array_equal(world.sum(stay, kind=SumKind.FIXED), world.clear(stay))
    for few in (ids[4:], ids[5:]):
        with pytest.raises(PeerError, match=PARTED):
            world.sum(stay, kind=SumKind.SHARE, stay=few)
    assert world.sum(stay, kind=SumKind.SHARE, stay=ids[6:]) is not None
    with pytest.raises(PeerError, match=PARTED):
        world.sum(ids[6:], kind=SumKind.SHARE, stay=ids[7:])


def test_rule_2_who_missed_a_round_is_not_one_of_the_three() -> None:
    """Of the sum of that round two alone would go: the four who were in it may."""
    world = World(9)
    ids = list(world.terminals)
    assert world.sum() is not None
    assert world.sum(ids[1:], applied=True) is not None
    with pytest.raises(PeerError, match="of 8 terminals that were in a sum together 2 would be parted"):
        world.sum(kind=SumKind.SHARE, stay=ids[3:])
    assert world.sum(kind=SumKind.SHARE, stay=ids[4:]) is not None


def test_rule_2_however_many_sets_there_were_few_are_remembered_and_none_forgotten() -> None:
    """Sets that become one range are held to its smallest and its largest."""
    told, everyone = Told(), frozenset(range(100))
    for k in range(80):
        told = told.with_update(everyone - {k})
    assert len(told.spans) == SPANS
    assert told.splits(everyone - {0, 1}, 3) is not None
    assert told.splits(everyone, 3) is None
    assert told.splits(frozenset(range(80)), 3) is None
    assert told.splits(frozenset(range(3, 100)), 3) is not None


def test_rule_2_those_who_moved_are_no_newcomers() -> None:
    """Their sum is known from where they were: with one newcomer it would tell his, without one of them hers."""
    world = World(12)
    ids = list(world.terminals)
    old, there, new = ids[:6], ids[6:9], ids[9:]
    for members, before in ((old, ()), (there, ())):
        assert world.sum(members, kind=SumKind.FIXED, before=before) is not None
    movers, stay = old[:3], old[3:]
    assert world.sum(old, kind=SumKind.SHARE, stay=stay) is not None
    for members, before in (
        ([*there, *movers, new[0]], there),
        ([*there, *movers, new[0]], [*there, *movers]),
        ([*there, *movers[1:]], [*there, *movers[1:]]),
        ([*there, *movers[1:], new[0]], there),
        ([*there, new[0]], [*there, new[0]]),
    ):
        with pytest.raises(PeerError, match="could be subtracted"):
            world.sum(members, kind=SumKind.FIXED, before=before)
    here = [*there, *movers]
    np.testing.assert_array_equal(world.sum(here, kind=SumKind.FIXED, before=here), world.clear(here))
    assert world.sum([*here, *new], kind=SumKind.FIXED, before=here) is not None
    with pytest.raises(PeerError, match=PARTED):
        world.sum([*here, *new], kind=SumKind.SHARE, stay=[*there, movers[0], *new])


@pytest.mark.parametrize("kind", [SumKind.FIXED, SumKind.SHARE])
def test_rule_4_all_are_told_the_same_of_what_was_applied(kind: SumKind) -> None:
    """One who alone is told that its update counts has duals that alone changed: the sums would differ by its own."""
    world = World(6)
    ids, told = list(world.terminals), {1: 0.5, 2: 0.0}
    assert world.sum() is not None
    for lie in ({}, {1: 0.25}, {1: 0.5, 2: 0.5}):
        with pytest.raises(PeerError, match="was told otherwise of its update of round"):
            world.sum(kind=kind, stay=ids, merged=to_merges(lie), settled=told)
    assert world.sum(kind=kind, stay=ids, merged=to_merges({1: 0.5, 7: 1.0}), settled=told) is not None
    assert all(masker.checked == told for masker in world.terminals.values())
    alone = World(6)
    alone.deal(ids)
    room = alone.room.begin(b"order", dict.fromkeys(ids, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        own = {1: float(t == 10)}
        lied = replace(partners, merged=to_merges(own))
        more = {"kind": kind, "settled": own, "stay": frozenset(ids)}
        room.receive(alone.terminals[t].mask(lied, b"order", seat(1, 0, 5), alone.words[t], **more))
    unmask = room.close()
    assert unmask is not None
    for t in ids:
        room.open(alone.terminals[t].open(unmask))
    assert not np.array_equal(room.total(), alone.clear(ids)), "masks rest on it, and do not cancel"


def test_rule_3_an_update_that_was_not_applied_is_opened_for_the_same_set() -> None:
    """A round dropped and held again without one terminal would give the update of that one; so would a third set."""
    world = World(9)
    ids = list(world.terminals)
    assert world.sum() is not None
    with pytest.raises(PeerError, match="could be subtracted"):
        world.sum(ids[1:])
    assert world.sum() is not None
    assert world.sum(ids[3:]) is not None
    for members in (ids[:1] + ids[2:], ids[:3] + ids[6:]):
        with pytest.raises(PeerError, match="could be subtracted"):
            world.sum(members)
    assert world.sum(ids[1:], applied=True) is not None, "a new update is another matter"


def test_rule_3_two_sets_of_one_update_tell_no_more_than_is_charged() -> None:
    """Each part brings noise s²/T, the same in both sums: what they tell together of one terminal is below (C/s)².

    Of sets that differ by T in all, and not in each direction, they would tell up to half as much again.
    """
    least, most = 3, 0.0
    for common, fewer, more in itertools.product(range(8), range(8), range(8)):
        one, other = (frozenset(range(s, s + n)) | frozenset(range(common)) for s, n in ((20, fewer), (40, more)))
        if not fewer or min(len(one), len(other)) < least:
            continue
        told = Masker(0, least=least, told=Told(unmerged=(one,)))
        covariance = np.array([[len(one), common], [common, len(other)]]) / least
        tells = float(np.linalg.inv(covariance)[0, 0])  # of one of the fewer, in units of (C/s)²
        try:
            told._refuse_dropped(other)
        except PeerError:
            most = max(most, tells if fewer + more >= least else 0.0)
        else:
            assert tells <= 1.0 + 1e-9
    assert most > 1.4


@pytest.mark.parametrize("looks", [True, False])
def test_rule_3_whatever_the_model_a_drop_gives_no_update(looks: bool) -> None:
    """Dropped, and asked for again without one, from a model a little different: the difference is that one's update.

    The order of rows is another, and so are the words; after some passes the updates are nearly the same. The attack
    works where nobody looks at what became of the last update.
    """
    rng, method = np.random.default_rng(0), DualMethod(channel=MaskedSums())
    rows = {t: (rng.normal(size=(6, 7)), rng.choice([-1.0, 1.0], size=(6, 1))) for t in range(10, 15)}
    roles = {t: Terminal(t, *rows[t], method, seed=bytes([t] * 16)) for t in rows}
    for role in roles.values():
        role.join()
    world, first = World(5), {t: _worked(role, 1) for t, role in roles.items()}
    world.words = {t: words_of(update, MaskedSums()) for t, update in first.items()}
    whole, others = world.sum(), [t for t in rows if t != 12]
    world.words |= {t: words_of(_worked(roles[t], 2), MaskedSums()) for t in others}
    assert all(role.applied == 0.0 for role in roles.values())
    if looks:
        with pytest.raises(PeerError, match="could be subtracted"):
            world.sum(others)
        return
    less = world.sum(others, applied=True)
    assert whole is not None
    assert less is not None
    found, known = masks.to_numbers(whole - less, MaskedSums().grid_step)[:8], first[12].delta[0]
    assert found @ known / np.linalg.norm(found) / np.linalg.norm(known) > 0.99


def _worked(role: Terminal, number: int) -> Update:
    """An update of many passes from a model that is nearly zero; those before were dropped."""
    verdict = Verdict(0, 0.0, number - 1, role.incarnation)
    update = role.work(WorkOrder(number, role.identity, np.full((1, 8), 1e-9 * number), 5.0, 120, verdict))
    assert update is not None
    return update


@pytest.mark.parametrize("kind", [SumKind.UPDATE, SumKind.FIXED])
def test_rule_3_updates_that_rest_on_the_model_alone_are_told_over_all(kind: SumKind) -> None:
    """FedAvg from the same model without one: the difference is that one's update, though all were applied.

    So its updates are sums that stay as they are; as updates of dual methods they would be opened.
    """
    rng, method = np.random.default_rng(0), build("fedavg", Options(channel="masked"), "binary").method
    rows = {t: (rng.normal(size=(6, 7)), rng.choice([-1.0, 1.0], size=(6, 1))) for t in range(10, 15)}
    plain = find_kernel("numpy")
    roles = {t: Terminal(t, *rows[t], method, seed=bytes([t] * 16), kernel=plain) for t in rows}
    world, others, told = World(5), [t for t in rows if t != 12], {}
    for role in roles.values():
        role.join()

    def words(number: int) -> dict[int, Words]:
        for t, role in roles.items():
            order = WorkOrder(number, t, np.zeros((1, 8)), 1e-3, 120, Verdict(number - 1, 1.0, number - 1, 1))
            update = role.work(order)
            assert update is not None
            told[t] = update.delta[0]
            assert kind_of(order, method) is SumKind.FIXED
        return {t: words_of(Update(1, t, told[t][None], np.empty(0), np.empty(0)), MaskedSums()) for t in roles}

    world.words = words(1)
    whole = world.sum(kind=kind)
    world.words = words(2)
    if kind is SumKind.FIXED:
        with pytest.raises(PeerError, match="could be subtracted"):
            world.sum(others, kind=kind)
        return
    less = world.sum(others, kind=kind, applied=True)
    assert whole is not None
    assert less is not None
    found = masks.to_numbers(whole - less, MaskedSums().grid_step)
    assert found @ told[12] / np.linalg.norm(found) / np.linalg.norm(told[12]) > 0.9


def test_rule_3_holds_over_a_restart() -> None:
    """A terminal that was killed remembers for whom it opened."""
    world = World(8)
    ids = list(world.terminals)
    world.sum(kind=SumKind.FIXED)
    for t in ids:
        world.terminals[t] = Masker(t, told=world.terminals[t].told)
        world.room.admit(world.terminals[t].key)
    with pytest.raises(PeerError, match="could be subtracted"):
        world.sum(ids[1:], kind=SumKind.FIXED)


@pytest.mark.parametrize("what", ["content", "steps"])
def test_rule_4_orders_that_differ_do_not_cancel(what: str) -> None:
    """One model to a terminal and another to the rest, or another H than the others were told: the sum is noise."""
    world = World(5)
    world.deal(world.terminals)
    room = world.room.begin(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        content = b"another" if what == "content" and t == 10 else b"order"
        own = seat(1, 0, 6 if what == "steps" and t == 10 else 5)
        room.receive(world.terminals[t].mask(partners, content, own, world.words[t], kind=SumKind.UPDATE))
    unmask = room.close()
    assert unmask is not None
    for masker in world.terminals.values():
        room.open(masker.open(unmask))
    found = room.total()
    assert found is not None
    assert (found != world.clear(world.terminals)).mean() > 0.99


def test_rule_5_nobody_opens_two_sets_or_a_small_one() -> None:
    """The set of the sum counts, not only the neighbours; and a second unmasking of one slot is refused."""
    world = World(6)
    world.deal(world.terminals)
    room = world.room.begin(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    for t, partners in room.partners().items():
        room.receive(world.terminals[t].mask(partners, b"order", seat(1, 0, 5), world.words[t], kind=SumKind.UPDATE))
    with pytest.raises(PeerError, match="a sum over 2 terminals"):
        world.terminals[10].open(Unmask(room.slot, to_bits([10, 11])))
    with pytest.raises(PeerError, match="needs 3"):
        world.terminals[10].open(Unmask(room.slot, to_bits([11, 12, 13])))
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
    with pytest.raises(PeerError, match="not proved"):
        honest.deal(Circle(1, (first, second, forged)))
    with pytest.raises(PeerError, match="2 others at least"):
        honest.deal(Circle(1, (first,)))
    with pytest.raises(PeerError, match="2 others at least"):
        honest.deal(Circle(1, (first, first)))
    assert len(honest.deal(Circle(1, (first, second))).shares) == 64


def test_nobody_deals_twice_for_a_slot() -> None:
    """Two deals under one pad would tell the difference of their shares."""
    keys = tuple(Masker(t).key for t in (1, 2, 3))
    masker = Masker(0)
    assert masker.deal(Circle(4, keys)) is masker.deal(Circle(4, keys))
    for slot in (3, 4):
        with pytest.raises(PeerError, match="is over"):
            masker.deal(Circle(slot, keys[:2]))


def test_words_under_a_slot_that_was_not_dealt_for_are_refused() -> None:
    """No mask is used twice."""
    world = World(4)
    world.sum()
    partners = Partners(world.room.slot, to_bits(world.terminals), b"", b"")
    with pytest.raises(PeerError, match="has dealt for another slot"):
        world.terminals[10].mask(partners, b"new", seat(1, 0, 5), world.words[10], kind=SumKind.UPDATE)


def test_models_back_and_forth_are_not_protected() -> None:
    """A dishonest station leads terminals to a model, away, and back without one: all was applied, and sums differ.

    What duals are after many steps rests on the model alone. Documented; noise is what helps.
    """
    rng, method = np.random.default_rng(0), DualMethod(channel=MaskedSums())
    rows = {t: (rng.normal(size=(6, 7)), rng.choice([-1.0, 1.0], size=(6, 1))) for t in range(10, 15)}
    roles = {t: Terminal(t, *rows[t], method, seed=bytes([t] * 16)) for t in rows}
    world, there, held = World(5), rng.normal(size=(1, 8)), {}
    for role in roles.values():
        role.join()
    sums = []
    for number, (model, members) in enumerate(((there, rows), (0.0 * there, rows), (there, rows.keys() - {12})), 1):
        for t in members:
            verdict = Verdict(number - 1, float(number > 1), number - 1, 1)
            update = roles[t].work(WorkOrder(number, t, model, np.inf, 60, verdict))
            assert update is not None
            held[t], world.words[t] = update, words_of(update, MaskedSums())
        sums.append(world.sum(members, applied=True))
    found = masks.to_numbers(sums[1] + sums[2], MaskedSums().grid_step)[:8]
    np.testing.assert_allclose(found, held[12].delta[0], atol=1e-4)


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


def test_the_graph_is_regular_and_mutual() -> None:
    """Above the limit everybody has as many neighbours, who have it."""
    keys = {t: Masker(t).key for t in range(120)}
    found = circles(keys, keys)
    assert {len(near) for near in found.values()} == {DENSE}
    assert all(t in found[n] for t, near in found.items() for n in near)


@pytest.mark.parametrize("n", [3, 25, 80])
def test_masks_are_charged_by_their_bytes(n: int) -> None:
    """Engines that do not make the messages count what these have."""
    world = World(n)
    deals = [world.terminals[t].deal(circle) for t, circle in world.room.prepare(world.terminals).items()]
    assert all(world.room.receive(deal) for deal in deals)
    room = world.room.begin(b"order", dict.fromkeys(world.terminals, seat(1, 0, 5)))
    assert room is not None
    partners = room.partners()
    for t, each in partners.items():
        room.receive(world.terminals[t].mask(each, b"order", seat(1, 0, 5), world.words[t], kind=SumKind.UPDATE))
    unmask = room.close()
    assert unmask is not None
    opened = world.terminals[10].open(unmask)
    alone = framed(ENVELOPE)  # of what travels with another message
    down, up = partners[10].n_bytes - alone + unmask.n_bytes, deals[0].n_bytes - alone + opened.n_bytes
    assert masking_bytes(n) == (down, up)


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
        station.admit(terminal.join())
    station.receive_anchor(Anchor(1, 0, np.zeros((1, 7)), 0.1))
    world, ids = World(9), list(terminals)
    for number in (1, 2, 3):
        before = station.U
        updates = {o.terminal: terminals[o.terminal].work(o) for o in station.open_round(number, dict.fromkeys(ids, 5))}
        world.words = {t: words_of(update, channel) for t, update in updates.items() if update is not None}
        found = world.sum(late=ids[:late], content=b"order of round %d" % number)
        for update in [updates[t] for t in ids[late:]]:
            assert update is not None
            station.receive(update)
        merged = station.close_round()
        assert found is not None
        np.testing.assert_array_equal(masks.to_numbers(found[:7], channel.grid_step), (station.U - before)[0])
        np.testing.assert_array_equal(masks.to_numbers(found[7:], FINE), merged.gains)
