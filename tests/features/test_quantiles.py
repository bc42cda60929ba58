"""Quantiles from counts of terminals against quantiles of all rows in one place.

The error is in ranks: how much further from its level the estimate is than the nearest value of the column. A level
that falls into many equal values has no better estimate than that value.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.features.examples import SHAPES, FloatArray, columns

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import RowMap
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.features.base import FARTHEST, LEVELS, at_edges, between_edges, normal_quantiles
from rhfedmtl.features.maps import Features
from rhfedmtl.training.round_zero import row_maps
from rhfedmtl.training.settings import Settings

ACCURACY = {"normal": 0.01, "skewed": 0.02, "heavy": 0.04, "discrete": 0.0, "binary": 0.0, "constant": 0.0}
"""Largest error in ranks; the heavy column has outliers of 1e6 standard deviations."""


def estimated(X: FloatArray, *, parts: int = 6, per_station: bool = False, scale: str = "standard") -> list[RowMap]:
    """Return the maps of two tasks whose terminals have the rows in turn."""
    offsets = np.linspace(0, len(X), parts + 1).astype(int)
    data = Federation(
        X=X,
        y=np.arange(len(X)) % 2,
        terminal_offsets=offsets,
        task_offsets=np.array([0, parts // 2, parts]),
        test_X=X[:0],
        test_y=np.empty(0, dtype=int),
        test_offsets=np.zeros(3, dtype=int),
        task_names=("a", "b"),
        class_names=("no", "yes"),
    )
    method = Options.of(features="splines").method("binary")
    settings = Settings(scale=scale, scale_per_station=per_station)
    return row_maps(InProcess(data, method), (2, X.shape[1]), Features("splines"), settings, np.dtype(np.float64), ())


def errors(rows: FloatArray, quantiles: FloatArray) -> FloatArray:
    """Return the error in ranks of each column, for each level."""
    result = np.empty_like(quantiles)
    for j, estimates in enumerate(quantiles):
        values = np.sort(rows[:, j])
        attainable = np.append(0.0, np.searchsorted(values, values, side="right") / len(values))
        ranks = np.searchsorted(values, estimates, side="right") / len(values)
        result[j] = np.abs(ranks - LEVELS) - np.abs(attainable[:, None] - LEVELS).min(axis=0)
    return result


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [400, 6000])
def test_quantiles_have_the_stated_accuracy(n: int, seed: int) -> None:
    """Columns of few values have no error."""
    X = columns(n, seed)
    (row_map, _) = estimated(X)
    error = errors(row_map.first.transform(X), row_map.statistics.quantiles).max(axis=1)
    assert dict(zip(SHAPES, error <= list(ACCURACY.values()), strict=True)) == dict.fromkeys(SHAPES, True), error


def test_values_of_normal_columns_are_close() -> None:
    """Between 5 % and 95 %, estimates are within 0.02 standard deviations of the quantiles of NumPy."""
    X = np.random.default_rng(2).normal(5.0, 3.0, size=(20_000, 4))
    row_map, _ = estimated(X)
    exact = np.quantile(row_map.first.transform(X), LEVELS, axis=0).T
    np.testing.assert_allclose(row_map.statistics.quantiles[:, 2:-2], exact[:, 2:-2], rtol=0, atol=0.02)


def test_stations_may_have_their_own_quantiles() -> None:
    """Each station's estimates are for its own rows."""
    rng = np.random.default_rng(2)
    X = np.concatenate([rng.normal(size=(3000, 1)), rng.exponential(size=(3000, 1)) * 40.0])
    maps = estimated(X, per_station=True)
    for row_map, rows in zip(maps, (X[:3000], X[3000:]), strict=True):
        assert errors(row_map.first.transform(rows), row_map.statistics.quantiles).max() <= 0.01
    common = estimated(X)
    np.testing.assert_array_equal(common[0].statistics.quantiles, common[1].statistics.quantiles)


@pytest.mark.parametrize("parts", [2, 5, 40])
def test_the_placement_of_rows_does_not_matter(parts: int) -> None:
    """Counts of any terminals add up to the same quantiles, up to the last digits of the first scaling."""
    X = columns(1200)
    expected, _ = estimated(X)
    row_map, _ = estimated(X[np.random.default_rng(0).permutation(1200)], parts=parts)
    np.testing.assert_allclose(row_map.statistics.quantiles, expected.statistics.quantiles, rtol=1e-9, atol=1e-9)


def test_unit_rows_need_no_counts() -> None:
    """Quantiles of rows of norm 1 are public, as of normal columns."""
    X = columns(60)
    row_map, _ = estimated(X, scale="unit")
    np.testing.assert_array_equal(row_map.statistics.quantiles, normal_quantiles(6, 1.0 / np.sqrt(6.0)))
    assert row_map.first.mean is None


@given(
    shares=arrays(np.float64, 15, elements=st.floats(0.0, 1.0)).map(np.sort),
    edges=arrays(np.float64, 15, elements=st.floats(-12.0, 12.0)).map(np.sort),
)
@settings(max_examples=200, deadline=None)
def test_edges_and_quantiles_are_in_order_and_in_bounds(shares: FloatArray, edges: FloatArray) -> None:
    """Shares that rise give edges in order for the next pass, and quantiles in order."""
    following = between_edges(edges[None], shares[None])
    assert (np.diff(following[0]) >= 0.0).all()
    assert np.abs(following).max() <= max(FARTHEST, np.abs(edges).max())
    chosen = at_edges(edges[None], shares[None])
    assert np.isin(chosen, edges).all()
    assert (np.diff(chosen[0]) >= 0.0).all()
