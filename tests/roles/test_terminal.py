"""What a terminal does with messages that come twice, late, for somebody else, or make no sense."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.errors import DataError, PeerError, ProtocolError
from rhfedmtl.maths.losses import SmoothedHinge, Squared
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.roles.messages import Goodbye, Probe, Release, Scaling, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Phase, Terminal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3))
Y = np.where(np.arange(6) % 2, 1.0, -1.0)[:, None]
ROWS: dict[str, Any] = {"X": X, "y": Y}


def terminal(**changes: Any) -> Terminal:
    return Terminal(7, method=DualMethod(intercept=False), **(ROWS | changes))


def attached() -> Terminal:
    member = terminal()
    member.join()
    return member


def order(number: int, verdict: Verdict | None = None, **changes: Any) -> WorkOrder:
    told = verdict or Verdict(0, 0.0, number - 1, 1)
    return replace(WorkOrder(number, 7, np.zeros((1, 3)), 2.0, 5, told), **changes)


def probe(verdict: Verdict, models: Any = None, *, gradient: bool = False) -> Probe:
    models = np.zeros((1, 1, 3)) if models is None else models
    return Probe(7, 1, models, np.eye(len(models)), gradient, verdict)


def test_a_repeated_order_is_answered_with_the_same_update() -> None:
    """A lost answer can be asked for again, and the terminal does not work twice."""
    member = attached()
    first = member.work(order(1))
    assert first is not None
    assert member.work(order(1)) is first


def test_an_order_from_the_past_is_not_answered() -> None:
    """A stale order changes nothing."""
    member = attached()
    member.work(order(3))
    before = member.state
    assert member.work(order(2)) is None
    assert member.state.update is before.update


def test_an_update_is_pending_until_the_station_says_what_became_of_it() -> None:
    """The duals change by the factor that the station applied, and only then."""
    member = attached()
    member.work(order(1))
    pending = member.state.pending
    assert pending.any()
    assert not member.state.alpha.any()
    member.work(order(2, Verdict(1, 0.25, 1, 1)))
    np.testing.assert_array_equal(member.state.alpha, 0.25 * pending)


def test_a_dropped_update_leaves_no_trace() -> None:
    """A verdict that names another round drops what is pending."""
    member = attached()
    member.work(order(2))
    assert member.probe(probe(Verdict(0, 0.0, 2, 1))) is not None
    assert not member.state.alpha.any()
    assert not member.state.pending.any()


def test_a_delayed_probe_does_not_settle_a_later_update() -> None:
    """A probe from before a round knows nothing of that round's update."""
    member = attached()
    member.work(order(5))
    assert member.probe(probe(Verdict(0, 0.0, 4, 1))) is None
    assert member.state.update is not None


def test_a_message_of_an_earlier_membership_is_ignored() -> None:
    """Orders, probes and releases of another incarnation are not for this one."""
    member = attached()
    other = Verdict(0, 0.0, 9, 0)
    assert member.work(order(1, other)) is None
    assert member.probe(probe(other)) is None
    assert member.leave(Release(7, other)) is None


def test_leaving_settles_and_takes_the_share_along() -> None:
    """A mover leaves with nothing pending, repeats itself until it hears goodbye, and joins with the same share."""
    member = attached()
    member.work(order(1))
    leave = member.leave(Release(7, Verdict(1, 0.5, 1, 1)))
    again = member.leave(Release(7, Verdict(1, 0.5, 1, 1)))
    assert leave is not None
    assert again is not None
    np.testing.assert_allclose(leave.share, member.state.alpha.T @ X, rtol=1e-12)
    np.testing.assert_array_equal(leave.share, again.share)
    with pytest.raises(ProtocolError, match="is leaving: Join is possible only while it is detached or attached"):
        member.join()
    member.goodbye(Goodbye(7, 0))
    assert member.phase is Phase.LEAVING
    member.goodbye(Goodbye(7, 1))
    join = member.join()
    assert join.incarnation == 2
    np.testing.assert_array_equal(join.share, leave.share)


def test_a_station_may_number_its_rounds_lower_than_the_last_one() -> None:
    """A mover answers its new station from its first order on, whatever round the old one had reached."""
    member = attached()
    member.work(order(50))
    member.leave(Release(7, Verdict(0, 0.0, 50, 1)))
    member.goodbye(Goodbye(7, 1))
    member.join()
    assert member.work(order(3, Verdict(0, 0.0, 2, 2))) is not None


def test_saved_state_survives_a_restart() -> None:
    """A restarted terminal gives the same answers, to the bit, as one that was never away."""
    stayed = attached()
    stayed.work(order(1))
    restarted = terminal()
    restarted.restore(pickle.loads(pickle.dumps(stayed.state)))
    verdict = Verdict(1, 0.5, 1, 1)
    one, other = stayed.work(order(2, verdict)), restarted.work(order(2, verdict))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.delta, other.delta)
    np.testing.assert_array_equal(stayed.state.alpha, restarted.state.alpha)


def test_a_terminal_that_went_back_in_time_refuses_to_go_on() -> None:
    """State from before an update that the station applied would break the station's sum without a word."""
    member = attached()
    before = member.state
    member.work(order(1))
    member.restore(before)
    with pytest.raises(ProtocolError, match="applied an update of round 1"):
        member.work(order(2, Verdict(1, 0.5, 1, 1)))


def test_state_of_other_rows_is_refused() -> None:
    """Saved duals belong to the rows they were made for."""
    with pytest.raises(DataError, match="saved duals"):
        terminal().restore(terminal(X=X[:2], y=Y[:2]).state)


def test_scaling_told_twice_scales_once() -> None:
    """A repeated scaling message changes nothing."""
    scaling = Scaling.of(Scaler.from_moments(Moments.of(X), "standard"))
    member = terminal()
    member.scale(scaling)
    once = member.moments()
    member.scale(scaling)
    np.testing.assert_array_equal(member.moments().mean, once.mean)
    np.testing.assert_array_equal(member.moments().spread, once.spread)


def test_scaling_comes_before_learning() -> None:
    """Rows under learned duals must not change."""
    member = attached()
    member.work(order(1))
    with pytest.raises(ProtocolError, match="before the first round"):
        member.scale(Scaling.of(Scaler(unit=True)))


def test_new_rows_come_between_two_stations() -> None:
    """New rows start at zero: the share stays, the count grows; while attached they are refused."""
    member = attached()
    member.work(order(1))
    with pytest.raises(ProtocolError, match="is pending: new rows is possible only while it is detached"):
        member.add_rows(X, Y)
    leave = member.leave(Release(7, Verdict(1, 1.0, 1, 1)))
    assert leave is not None
    member.goodbye(Goodbye(7, 1))
    member.add_rows(X[:2], Y[:2])
    join = member.join()
    assert join.n_samples == 8
    np.testing.assert_array_equal(join.share, leave.share)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"X": X[:, :2]}, "2 features"),
        ({"X": np.full((6, 3), np.nan)}, "nan"),
        ({"y": np.zeros((6, 1))}, "label 0"),
        ({"weight": -np.ones(6)}, "weight -1"),
    ],
)
def test_bad_new_rows_are_refused(new: dict[str, Any], message: str) -> None:
    """New rows must be as good as the first ones."""
    with pytest.raises(DataError, match=message):
        terminal().add_rows(**(ROWS | new))


def test_new_rows_keep_the_precision_of_the_old_ones() -> None:
    """Double precision rows do not turn a single precision terminal into another kernel."""
    member = terminal(X=X.astype(np.float32))
    member.add_rows(X, Y)
    member.join()
    whole = terminal(X=np.concatenate([X, X]).astype(np.float32), y=np.concatenate([Y, Y]))
    whole.join()
    grown, made = member.work(order(1)), whole.work(order(1))
    assert grown is not None
    assert made is not None
    np.testing.assert_array_equal(grown.delta, made.delta)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"X": X[:0], "y": Y[:0]}, "has no rows"),
        ({"X": np.where(X > 1.0, np.nan, X)}, "row .* of terminal 7, column .* holds nan"),
        ({"X": np.where(X > 1.0, np.inf, X)}, "holds inf"),
        ({"X": X.astype(np.int64)}, "int64"),
        ({"y": Y[:3]}, "labels of"),
        ({"y": Y[:, 0]}, "labels of"),
        ({"y": 0.5 * Y}, r"row 0 of terminal 7 has the label .*0\.5: SmoothedHinge needs -1 or \+1"),
        ({"y": np.where(Y > 0, np.nan, Y)}, "needs -1 or"),
        ({"weight": np.full(6, np.nan)}, "weight nan"),
        ({"weight": -np.ones(6)}, "weight -1"),
        ({"weight": np.ones(5)}, r"shape \(5,\) for 6 rows"),
    ],
)
def test_bad_rows_are_refused(rows: dict[str, Any], message: str) -> None:
    """A terminal names what is wrong with its rows before it learns from them."""
    with pytest.raises(DataError, match=message):
        terminal(**rows)


def test_numbers_as_labels_must_be_finite() -> None:
    """A regression refuses labels that are not finite."""
    with pytest.raises(DataError, match="needs a finite number"):
        Terminal(7, X, np.full((6, 1), np.inf), DualMethod(loss=Squared()))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": np.zeros((1, 4))},
        {"model": np.full((1, 3), np.nan)},
        {"local_steps": 0},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"scale": float("inf"), "work": GRADIENT},
    ],
)
def test_an_order_that_cannot_be_right_is_refused(changes: dict[str, Any]) -> None:
    """Shapes and values of an order are checked before anything is computed from them."""
    with pytest.raises(PeerError):
        attached().work(order(1, **changes))


def test_work_that_a_terminal_does_not_know_is_refused_by_name() -> None:
    """It takes no steps instead, and a gradient takes the place of the duals that were there, at any scale."""
    with pytest.raises(PeerError, match="for terminal 7 asks for work 'guess': choose from dual-ascent, gradient"):
        attached().work(order(1, work="guess"))
    slopes = np.array([SmoothedHinge().slope(0.0, label) for label in Y[:, 0]])
    for scale in (2.0, 1e-6):
        update = attached().work(order(1, work=GRADIENT, scale=scale, local_steps=6))
        assert update is not None
        np.testing.assert_allclose(update.delta[0], -slopes @ X, rtol=1e-12)


@pytest.mark.parametrize("models", [np.zeros((1, 1, 2)), np.zeros((1, 3)), np.full((1, 1, 3), np.inf)])
def test_a_probe_that_cannot_be_right_is_refused(models: Any) -> None:
    """A model shorter than the rows would be read beyond its end."""
    with pytest.raises(PeerError, match="terminal 7 needs"):
        attached().probe(probe(Verdict(0, 0.0, 0, 1), models))
