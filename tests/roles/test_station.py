"""What a base station does with messages that come twice, late, unasked, or make no sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Add, LineSearch
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.roles.channel import Int8
from rhfedmtl.roles.messages import Anchor, Join, Leave, Scaling, Sums, Update
from rhfedmtl.roles.station import BaseStation

SHAPE = (1, 3)
SHARE = np.array([[1.0, 2.0, -0.5]])
ONE, TWO = np.eye(1), np.eye(2)


def station(method: DualMethod | None = None, members: int = 2) -> BaseStation:
    made = BaseStation(0, SHAPE, method or DualMethod())
    made.receive_anchor(Anchor(1, 0, np.zeros(SHAPE), 0.1))
    for t in range(members):
        made.roster.admit(Join(t, 1, 4, SHARE))
    return made


def update(number: int, terminal: int = 0, **changes: Any) -> Update:
    profile = changes.pop("profile", np.empty(0))
    return replace(Update(number, terminal, np.ones(SHAPE), np.zeros(CURVE), profile), **changes)


def test_late_repeated_and_unasked_updates_change_nothing() -> None:
    """An update counts once, and only in the round that asked this terminal for it."""
    base = station()
    assert not base.receive(update(1))
    base.open_round(1, {0: 3})
    assert not base.receive(update(1, terminal=1))
    assert not base.receive(update(2))
    assert base.receive(update(1))
    assert not base.receive(update(1))
    assert base.close_round().answered == (0,)
    assert not base.receive(update(1))
    np.testing.assert_array_equal(base.U, 2 * SHARE + 1.0)


def test_a_round_without_answers_merges_nothing() -> None:
    """Nobody answered: the model stays, and the round is done."""
    base = station()
    base.open_round(1, {0: 3, 1: 3})
    merged = base.close_round()
    assert merged.answered == ()
    assert merged.factor == 0.0
    np.testing.assert_array_equal(base.U, 2 * SHARE)


@pytest.mark.parametrize("method", [DualMethod(), DualMethod(merge=Add()), DualMethod(merge=LineSearch())])
def test_a_station_without_terminals_has_empty_rounds(method: DualMethod) -> None:
    """All terminals may be away for a while."""
    base = station(method, members=0)
    assert base.open_round(1, {}) == []
    assert base.close_round().answered == ()
    assert base.probes(np.zeros((2, *SHAPE)), TWO) == []
    sums = base.add_sums([])
    assert sums is not None
    np.testing.assert_array_equal(sums.losses, [0.0, 0.0])


def test_an_anchor_with_an_origin_lets_a_station_begin_at_its_centre() -> None:
    """To the bit, also after a restart and where models are rounded; from there on w = c + (v − origin)/λ."""
    for method in (DualMethod(), DualMethod(channel=Int8())):
        base, w = station(method), np.array([[0.1, 1.0 / 3.0, -7e-3]])
        base.receive_anchor(Anchor(2, 0, w, 0.1, origin=base.v))
        again = BaseStation(0, SHAPE, method)
        again.restore(base.state)
        before = base.v
        for each in (base, again):
            np.testing.assert_array_equal(each.open_round(1, {0: 3})[0].model, w)
        base.receive(update(1))
        base.close_round()
        np.testing.assert_array_equal(base.model, w + (base.v - before) / 0.1)
    with pytest.raises(PeerError, match="does not fit"):
        base.receive_anchor(Anchor(3, 0, w, 0.1, origin=np.zeros((1, 2))))


def test_rounds_are_driven_in_order() -> None:
    """The engine's own mistakes are named as such, and change nothing."""
    base = station()
    with pytest.raises(ProtocolError, match="is idle: close round is possible only while it is in an open round"):
        base.close_round()
    with pytest.raises(ProtocolError, match="not members: \\[9\\]"):
        base.open_round(1, {9: 2})
    with pytest.raises(ProtocolError, match="at least 1 step"):
        base.open_round(1, {0: 0})
    with pytest.raises(ProtocolError, match="is without an anchor: WorkOrder is possible only while it is idle"):
        BaseStation(0, SHAPE, DualMethod()).open_round(1, {})
    assert base.round == 0
    base.open_round(2, {0: 1})
    for forbidden in (
        lambda: base.open_round(3, {0: 1}),
        lambda: base.roster.admit(Join(5, 1, 1, SHARE)),
        lambda: base.roster.remove(Leave(0, 1, SHARE)),
        lambda: base.roster.release(0, base.round),
        lambda: base.roster.forget(0),
        lambda: base.probes(np.zeros((1, *SHAPE)), ONE),
        lambda: base.receive_anchor(Anchor(2, 0, np.zeros(SHAPE), 0.1)),
    ):
        with pytest.raises(ProtocolError, match=r"is in an open round: .* is possible only while it is .*idle"):
            forbidden()
    base.close_round()
    with pytest.raises(ProtocolError, match="cannot follow"):
        base.open_round(2, {0: 1})


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (DualMethod(), {"delta": np.ones((1, 2))}),
        (DualMethod(), {"delta": np.full(SHAPE, np.nan)}),
        (DualMethod(), {"gains": np.full(CURVE, np.inf)}),
        (DualMethod(), {"gains": np.zeros(3)}),
        (DualMethod(), {"profile": np.zeros(3)}),
        (DualMethod(merge=LineSearch()), {"profile": np.array([0.0, np.nan, 1.0])}),
    ],
)
def test_an_update_that_cannot_be_right_is_refused(method: DualMethod, changes: dict[str, Any]) -> None:
    """Wrong shapes and values that are not numbers never reach the sum."""
    base = station(method)
    base.open_round(1, {0: 1})
    with pytest.raises(PeerError):
        base.receive(update(1, **changes))


@pytest.mark.parametrize(
    "join",
    [
        Join(5, 1, 0, SHARE),
        Join(5, 1, 3, np.zeros((1, 4))),
        Join(5, 1, 3, np.full(SHAPE, np.nan)),
    ],
)
def test_a_join_that_cannot_be_right_is_refused(join: Join) -> None:
    """No samples, another number of features, or a share that is not finite."""
    base = station()
    with pytest.raises(PeerError, match="terminal 5"):
        base.roster.admit(join)
    assert 5 not in base.members


@pytest.mark.parametrize(
    "anchor",
    [
        Anchor(2, 1, np.zeros(SHAPE), 0.1),
        Anchor(2, 0, np.zeros((1, 2)), 0.1),
        Anchor(2, 0, np.zeros(SHAPE), 0.0),
        Anchor(2, 0, np.zeros(SHAPE), np.inf),
        Anchor(2, 0, np.zeros(SHAPE), np.inf, work=GRADIENT),
        Anchor(2, 0, np.zeros(SHAPE), 0.1, work="guess"),  # type: ignore[arg-type]
    ],
)
def test_an_anchor_that_cannot_be_right_is_refused(anchor: Anchor) -> None:
    """Another station's, another shape, a λ that is no positive number, or unknown work."""
    with pytest.raises(PeerError, match=r"does not fit|choose from"):
        station().receive_anchor(anchor)


def test_an_older_anchor_is_ignored() -> None:
    """Anchors may overtake each other."""
    base = station()
    base.receive_anchor(Anchor(3, 0, np.ones(SHAPE), 0.2))
    base.receive_anchor(Anchor(2, 0, np.zeros(SHAPE), 0.3))
    assert base.anchor is not None
    assert base.anchor.cloud_round == 3


def test_repeated_joins_and_leaves_count_once() -> None:
    """A join or leave that comes again, or comes late, leaves the sum alone."""
    base = station(members=1)
    base.roster.admit(Join(0, 1, 9, 5 * SHARE))
    np.testing.assert_array_equal(base.U, SHARE)
    assert base.roster.remove(Leave(0, 1, SHARE)).incarnation == 1
    assert base.roster.remove(Leave(0, 1, SHARE)).incarnation == 1
    base.roster.admit(Join(0, 1, 4, SHARE))
    assert base.members == {}
    base.roster.admit(Join(0, 3, 4, 2 * SHARE))
    base.roster.remove(Leave(0, 1, SHARE))
    np.testing.assert_array_equal(base.U, 2 * SHARE)


def test_a_new_incarnation_replaces_the_share_of_the_old_one() -> None:
    """A terminal that lost its duals is subtracted by what was stored of it, and restarts at zero."""
    base = station()
    base.open_round(1, {0: 1})
    base.receive(update(1))
    base.close_round()
    base.roster.admit(Join(0, 2, 6, np.zeros(SHAPE)))
    np.testing.assert_allclose(base.U, SHARE, atol=1e-15)
    assert base.n_samples == 10


def test_a_share_that_is_not_ones_own_is_refused() -> None:
    """A leave that would break the sum is a peer's error."""
    base = station()
    with pytest.raises(PeerError, match="not its own"):
        base.roster.remove(Leave(0, 1, SHARE + 0.1))
    with pytest.raises(PeerError, match="not under station"):
        base.roster.release(12, base.round)


def test_features_that_cancel_do_not_hold_a_terminal_back() -> None:
    """Rounding is judged against the size of the share, not against an entry in which large terms cancelled."""
    base = station(members=0)
    base.roster.admit(Join(0, 1, 4, np.array([[1e8, 1e-9, 0.0]])))
    base.roster.remove(Leave(0, 1, np.array([[1e8, 2e-9, 1e-8]])))
    assert base.members == {}


def test_a_forgotten_terminal_is_subtracted_and_may_come_back() -> None:
    """Its stored share leaves the sum; later it hears what became of its last update, and goodbye."""
    base = station()
    base.open_round(1, {0: 1})
    base.receive(update(1))
    base.close_round()
    base.roster.forget(0)
    np.testing.assert_allclose(base.U, SHARE, atol=1e-15)
    assert base.roster.release(0, base.round).verdict.factor == 1.0
    assert base.roster.remove(Leave(0, 1, SHARE + 1.0)).terminal == 0
    base.roster.admit(Join(0, 2, 4, SHARE + 1.0))
    np.testing.assert_allclose(base.U, 2 * SHARE + 1.0, atol=1e-15)


def sums(terminal: int, number: int, dual: float = 1.0) -> Sums:
    return Sums(terminal, number, np.zeros(1), np.array([dual, 0.0]), np.empty(0))


def test_sums_of_an_earlier_probe_do_not_count() -> None:
    """A delayed answer belongs to other duals or other models: no certificate is made from it."""
    base = station()
    first = base.probes(np.zeros((1, *SHAPE)), ONE)[0].number
    second = base.probes(np.ones((1, *SHAPE)), ONE)[0].number
    assert base.add_sums([sums(0, first), sums(1, second)]) is None
    assert base.add_sums([sums(0, second), sums(1, second)]) is not None


def test_sums_from_before_a_merge_or_a_change_of_members_do_not_count() -> None:
    """What was summed before the station changed is not about the station as it is."""
    base = station()
    number = base.probes(np.zeros((1, *SHAPE)), ONE)[0].number
    base.open_round(1, {0: 1})
    base.receive(update(1))
    base.close_round()
    assert base.add_sums([sums(0, number), sums(1, number)]) is None
    number = base.probes(np.zeros((1, *SHAPE)), ONE)[0].number
    base.roster.admit(Join(0, 2, 4, SHARE))
    assert base.add_sums([sums(0, number), sums(1, number)]) is None


def test_sums_that_cannot_be_right_are_refused() -> None:
    """Sums that are not finite make no certificate, and take the terminal out with its share."""
    base = station()
    number = base.probes(np.zeros((1, *SHAPE)), ONE)[0].number
    assert base.add_sums([sums(0, number), sums(1, number, dual=float("nan"))]) is None
    assert "not finite" in base.quarantined[1]
    assert 1 not in base.members


def test_shares_that_were_told_before_the_scaling_are_looked_at_again() -> None:
    """Before rows are known to be short a share may be of any length; once they are, one that is too long goes."""
    base = station()
    base.roster.admit(Join(2, 1, 4, 1e3 * SHARE))
    base.roster.scaled(Scaling.of(Scaler(unit=True)))
    assert [*base.members] == [0, 1]
    assert "a share of norm" in base.quarantined[2]
    np.testing.assert_allclose(base.U, 2 * SHARE)


def test_an_open_round_has_merged_nothing_after_a_restart() -> None:
    """A restarted station drops what it had asked for, and tells the terminals so."""
    base = station()
    base.open_round(4, {0: 1})
    saved = base.state
    base.receive(update(4))
    base.close_round()
    base.restore(saved)
    np.testing.assert_array_equal(base.U, 2 * SHARE)
    verdict = base.open_round(5, {0: 1})[0].verdict
    assert (verdict.round, verdict.until) == (0, 4)
