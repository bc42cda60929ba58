"""Moments and label sums from masked sums: as exact as those of rows that are seen, and nothing of one terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.roles.test_summed import METHOD, world

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.centring import combined_label_sums, label_sums
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import Moments, total
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.errors import DataError, PeerError
from rhfedmtl.roles.messages import RowProbe
from rhfedmtl.roles.round_zero import Spreads, common, to_numbers, to_words, together
from rhfedmtl.roles.summed import SummingStation, words_of


@pytest.mark.parametrize(("size", "level"), [(1.0, 0.0), (1e-6, 1e3), (1e5, -1e8), (0.0, 0.1)])
def test_moments_from_sums_are_those_of_the_rows(size: float, level: float) -> None:
    """Whatever the scale of a feature and however far from zero it lies."""
    X = level + size * np.random.default_rng(3).normal(size=(60, 2))
    parts = [Moments.of(X[i : i + 12]) for i in range(0, 60, 12)]
    found, known = together(Spreads.of_moments(parts)).moments, total(parts)
    assert found.count == known.count
    np.testing.assert_allclose(found.mean, known.mean, rtol=1e-14)
    np.testing.assert_allclose(found.spread, known.spread, rtol=1e-7, atol=1e-20)


def test_label_sums_are_those_of_the_labels() -> None:
    """With weights."""
    rng = np.random.default_rng(4)
    y, weight = 1e4 + rng.normal(size=30), rng.random(30)
    parts = label_sums(y, weight, np.arange(0, 31, 5), np.arange(7))
    np.testing.assert_allclose(together(Spreads.of_labels(parts)).labels, combined_label_sums(parts), rtol=1e-12)


def test_words_add_up_exactly_in_any_order() -> None:
    """Of numbers from 1e-15 to 1e15, of both signs."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(7, 9)) * 10.0 ** rng.integers(-15, 16, size=(7, 9))
    words = to_words(values)
    np.testing.assert_allclose(to_numbers(words[0]), values[0], rtol=1e-5, atol=1e-20)
    one, other = (
        to_numbers(words[order].sum(axis=0, dtype=np.uint64)) for order in (slice(None), slice(None, None, -1))
    )
    np.testing.assert_array_equal(one, other)
    with pytest.raises(DataError, match="cannot be added up under masks"):
        to_words(np.array([1e20]))


def summed(terminals: list[Any], asked: RowProbe) -> Any:
    """The words that come out of the masks."""
    return np.sum([words_of(t.row_sums(asked), METHOD.channel) for t in terminals], axis=0, dtype=np.uint64)


def test_a_station_learns_moments_from_two_sums() -> None:
    """Those of all rows of its terminals, as if it had seen each terminal's."""
    station, terminals = world(SummingStation)
    weight, mean = common(station.row_sums(first := RowProbe(False, np.empty(0)), summed(terminals, first)))
    spread = station.row_sums(second := RowProbe(False, mean), summed(terminals, second))
    known = station.roster.add_moments({t.identity: t.moments() for t in terminals})
    assert weight == known.count
    np.testing.assert_allclose(mean, known.mean, rtol=1e-12)
    np.testing.assert_allclose(spread, known.spread, rtol=1e-12)
    with pytest.raises(PeerError, match="terminals 3, 5, 8 together told"):
        station.row_sums(first, summed(terminals[:2], first))
    with pytest.raises(PeerError, match=r"about a mean of shape \(7,\)"):
        terminals[0].row_sums(RowProbe(False, np.zeros(7)))


@pytest.mark.parametrize("classes", [2, 0])
def test_engines_simulate_the_same_sums(classes: int) -> None:
    """All at once, or terminal by terminal, to the bit."""
    request = Request("synthetic", tasks=2, terminals=4, samples_per_task=30, settings={"classes": classes})
    data = request.federation(0)
    method = build("rhfedmtl", Options(channel="masked"), data.kind).method
    one, other = InProcess(data, method), MessagePassing(data, method)
    for a, b in zip(one.moments(), other.moments(), strict=True):
        assert a.count == b.count
        np.testing.assert_array_equal(a.mean, b.mean)
        np.testing.assert_array_equal(a.spread, b.spread)
    if not classes:
        np.testing.assert_array_equal(one.labels(), other.labels())
