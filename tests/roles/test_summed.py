"""A station that sees sums alone: what it merges, and what it refuses without knowing whose fault it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import LineSearch
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.maths.losses import Logistic, SmoothedHinge
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.roles.channel import MaskedSums
from rhfedmtl.roles.messages import Anchor, Scaling, Sums, Update, Verdict, WorkOrder
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.summed import SummingStation, content_of, words_of
from rhfedmtl.roles.terminal import Terminal

METHOD = DualMethod(channel=MaskedSums())
LOSSES = SmoothedHinge(), Logistic()
IDS = (3, 5, 8)
UNIT = Scaling(np.empty(0), np.empty(0), unit=True)
MODELS, POINTS = np.random.default_rng(1).normal(size=(2, 1, 5)), np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])


def world(kind: type[BaseStation], method: DualMethod = METHOD) -> tuple[Any, list[Terminal]]:
    """A station that has an anchor, and its terminals."""
    rng = np.random.default_rng(0)
    station = kind(0, (1, 5), method)
    station.roster.scaled(UNIT)
    station.receive_anchor(Anchor(1, 0, np.zeros((1, 5)), 0.1))
    terminals = [Terminal(t, rng.normal(size=(7, 4)), rng.choice([-1.0, 1.0], size=(7, 1)), method) for t in IDS]
    for terminal in terminals:
        terminal.scale(UNIT)
        station.roster.admit(terminal.join())
    return station, terminals


def summed(answers: list[Update] | list[Sums], method: DualMethod = METHOD) -> Any:
    """The words that come out of the masks."""
    words = [words_of(answer, METHOD.channel, method.masked_profile) for answer in answers]
    return np.sum(words, axis=0, dtype=np.uint64)


def updates(station: BaseStation, terminals: list[Terminal], number: int) -> list[Update]:
    """Of one round."""
    orders = station.open_round(number, dict.fromkeys(IDS, 9))
    found = [terminal.work(order) for terminal, order in zip(terminals, orders, strict=True)]
    return [update for update in found if update is not None]


def test_masks_of_orders_for_other_work_do_not_cancel() -> None:
    """A station that asks a terminal for a gradient, and the others for steps, learns no sum."""
    order = WorkOrder(1, 3, np.zeros((1, 5)), 2.0, 9, Verdict())
    assert content_of(order) != content_of(replace(order, work=GRADIENT))
    assert content_of(order) == content_of(replace(order, terminal=5))


@pytest.mark.parametrize("method", [METHOD, *(replace(METHOD, loss=loss, merge=LineSearch()) for loss in LOSSES)])
def test_a_sum_is_merged_as_its_parts_are(method: DualMethod) -> None:
    """Model, verdicts, gains and the sums of a certificate are those of a station that sees each update, to the bit."""
    blind, below = world(SummingStation, method)
    seeing, others = world(BaseStation, method)
    for number in (1, 2, 3):
        merged = blind.close_sum(IDS, summed(updates(blind, below, number), method))
        for update in updates(seeing, others, number):
            seeing.receive(update)
        known = seeing.close_round()
        assert (merged.answered, merged.factor) == (known.answered, known.factor)
        np.testing.assert_array_equal(merged.gains, known.gains)
        np.testing.assert_array_equal(blind.U, seeing.U)
    told, known = (
        [t.probe(p) for t, p in zip(these, station.probes(MODELS, POINTS, gradient=True), strict=True)]
        for station, these in ((blind, below), (seeing, others))
    )
    found, sums = blind.masked_sums(summed(told), blind.members), seeing.add_sums(known)
    for name in ("losses", "dual", "gradient", "residual"):
        np.testing.assert_array_equal(getattr(found, name), getattr(sums, name))


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda u: replace(u, delta=999.0 * u.delta + 1e3), "an update of norm"),
        (lambda u: replace(u, gains=-1e3 - u.gains), "a gain of"),
    ],
)
def test_a_sum_that_cannot_be_voids_its_round_and_names_its_terminals(lie: Any, reason: str) -> None:
    """Nothing of it is merged, nobody is blamed alone, and the next round is held."""
    station, terminals = world(SummingStation)
    given, before = updates(station, terminals, 1), station.U
    with pytest.raises(PeerError, match=f"terminals 3, 5, 8 together told {reason}"):
        station.close_sum(IDS, summed([lie(given[0]), *given[1:]]))
    assert station.close_void().answered == ()
    np.testing.assert_array_equal(station.U, before)
    assert station.close_sum(IDS, summed(updates(station, terminals, 2))).answered == IDS
    assert not station.quarantined


def test_sums_that_cannot_be_are_no_certificate() -> None:
    """The same for what certificates are made from."""
    station, terminals = world(SummingStation)
    told = [t.probe(p) for t, p in zip(terminals, station.probes(MODELS, POINTS), strict=True)]
    assert told[0] is not None
    told[0] = replace(told[0], losses=told[0].losses + 1e4)
    with pytest.raises(PeerError, match="terminals 3, 5, 8 together told a loss of"):
        station.masked_sums(summed(told), station.members)


def test_too_few_are_void() -> None:
    """A sum over two is not merged where three are to be hidden."""
    station, terminals = world(SummingStation)
    given = updates(station, terminals, 1)
    assert station.close_sum(IDS[:2], summed(given[:2])).answered == ()


@pytest.mark.parametrize("kind", [BaseStation, SummingStation])
def test_a_private_certificate_counts_the_missing_at_their_worst(kind: type[BaseStation]) -> None:
    """Never below what it is with them, and by no more than their rows can add; any other is none without them."""
    station, terminals = world(kind)
    model, point = MODELS[:1], np.ones((1, 1))
    told = [t.probe(p) for t, p in zip(terminals, station.probes(model, point, noise=1e-9), strict=True)]

    def found(parts: list[Any]) -> float:
        if kind is BaseStation:
            return float(station.add_sums(parts).losses[0])
        return float(station.masked_sums(summed(parts), [part.terminal for part in parts]).losses[0])

    whole, without = found(told), found(told[:2])
    most = 7 * largest_terms(METHOD.loss, model[0], station.roster.row_norm)
    assert without == pytest.approx(whole - float(told[2].losses[0]) + most)
    assert whole <= without <= whole + most
    plain = [t.probe(p) for t, p in zip(terminals, station.probes(model, point), strict=True)]
    if kind is BaseStation:
        assert station.add_sums(plain[:2]) is None
