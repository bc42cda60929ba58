"""Moments: the same to the bit whoever computes them; scaling as in scikit-learn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler, normalize

from rhfedmtl.data import threads
from rhfedmtl.data.mapped import buffer_like, map_of
from rhfedmtl.data.scaling import SCALES, Moments, Scaler, scalers, total
from rhfedmtl.data.sums import station_moments
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.roles.round_zero import Spreads, together

SINGLE = np.dtype(np.float32)


def equal(a: Moments, b: Moments) -> bool:
    return a.count == b.count and (a.mean == b.mean).all() and (a.spread == b.spread).all()


@given(
    sizes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    dtype=st.sampled_from([np.float32, np.float64]),
    shift=st.sampled_from([0.0, 1e6]),
    seed=st.integers(0, 1000),
    wire=st.sampled_from([np.dtype(np.float64), SINGLE]),
)
@settings(max_examples=100, deadline=None)
def test_a_terminal_alone_gets_the_numbers_of_the_batch(
    sizes: list[list[int]], dtype: type, shift: float, seed: int, wire: np.dtype[Any]
) -> None:
    """Moments of base stations at once, and of their terminals one by one, are equal to the bit."""
    counts = [n for station in sizes for n in station]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    tasks = np.concatenate([[0], np.cumsum([len(station) for station in sizes])])
    X = (np.random.default_rng(seed).normal(size=(offsets[-1], 3)) + shift).astype(dtype)
    alone = [Moments.of(X[a:b]).rounded(wire) for a, b in pairwise(offsets)]
    stations = station_moments(X, offsets, tasks, wire)
    by_hand = [total(alone[a:b]).rounded(wire) for a, b in pairwise(tasks)]
    assert all(map(equal, by_hand, stations))
    if len(X) and wire != SINGLE:
        whole = total(stations)
        exact = X.astype(np.float64)
        np.testing.assert_allclose(whole.mean, exact.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(whole.spread, exact.var(axis=0) * len(X), rtol=1e-6, atol=1e-9)


def test_the_number_of_cores_does_not_change_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread and many give the same moments to the bit."""
    X = np.random.default_rng(0).normal(size=(1000, 4))
    offsets, tasks = np.arange(0, 1001, 5), np.arange(0, 201, 20)
    results = []
    for n in (1, 3):
        monkeypatch.setattr(threads, "cores", lambda n=n: n)
        results.append(station_moments(X, offsets, tasks))
    assert all(map(equal, *results))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standard_scaling_is_that_of_scikit_learn(dtype: type) -> None:
    """Standardisation and unit rows give scikit-learn's numbers, constant features included."""
    X = np.random.default_rng(1).normal(3.0, 2.0, size=(200, 5)).astype(dtype)
    X[:, 2] = 0.1
    reference = StandardScaler().fit_transform(X.astype(np.float64))
    moments = Moments.of(X)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype is np.float32 else {"rtol": 1e-10, "atol": 1e-12}
    expectations = {
        "standard": reference,
        "standard-rms": reference / np.sqrt(4),  # four features that vary
        "standard-unit": normalize(reference),
        "unit": normalize(X),
    }
    for how, expected in expectations.items():
        scaled = Scaler.from_moments(moments, how).transform(X)
        assert scaled.dtype == dtype
        np.testing.assert_allclose(scaled, expected, **tolerance)
    assert Scaler.from_moments(moments, "none").transform(X) is X


@pytest.mark.parametrize(("features", "same"), [(1, "standard-rms"), (16, "standard-rms"), (17, "standard-unit")])
def test_rows_of_few_features_keep_their_length(features: int, same: str) -> None:
    """Of one feature, rows of norm 1 keep the sign alone."""
    X = np.random.default_rng(1).normal(3.0, 2.0, size=(50, features))
    usual, named = (Scaler.from_moments(Moments.of(X), how).transform(X) for how in ("standard-auto", same))
    np.testing.assert_array_equal(usual, named)


def test_scaling_can_be_global_or_per_station() -> None:
    """Per station every base station is centred by itself, globally only all of them together."""
    rng = np.random.default_rng(2)
    X = np.concatenate([rng.normal(0, 1, (50, 2)), rng.normal(9, 1, (50, 2))])
    stations = station_moments(X, np.array([0, 50, 100]), np.array([0, 1, 2]))
    own = scalers(stations, "standard", per_station=True)
    shared = scalers(stations, "standard")
    assert abs(own[1].transform(X[50:]).mean()) < 1e-12
    assert abs(shared[1].transform(X[50:]).mean()) > 0.5
    assert abs(shared[0].transform(X).mean()) < 1e-12


def test_rounded_moments_and_scaling_are_held_by_the_wire() -> None:
    """Once rounded they stay as they are; in double precision nothing is rounded at all."""
    moments = Moments.of(np.random.default_rng(0).normal(3.0, 2.0, size=(50, 4)))
    single, exact = moments.rounded(SINGLE), Scaler.from_moments(moments, "standard")
    scaler = exact.rounded(SINGLE)
    for values in (single.mean, np.sqrt(single.spread), scaler.mean, scaler.scale):
        np.testing.assert_array_equal(np.asarray(values).astype(np.float32), values)
    assert equal(single.rounded(SINGLE), single)
    assert not equal(single, moments)
    double, unit = np.dtype(np.float64), Scaler(unit=True)
    assert (moments.rounded(double), exact.rounded(double), unit.rounded(SINGLE)) == (moments, exact, unit)


@pytest.mark.parametrize("unit", [1e-25, 1e-12, 1.0, 1e12, 1e25])
def test_single_precision_scales_columns_of_any_unit(unit: float) -> None:
    """Squares of such numbers are beyond its range, their roots are not."""
    X = unit * np.random.default_rng(1).normal(2.0, 1.0, size=(60, 3))
    stations = station_moments(X, np.arange(0, 61, 10), np.array([0, 3, 6]), SINGLE)
    exact, single = (Scaler.from_moments(m, "standard") for m in (Moments.of(X), total(stations)))
    np.testing.assert_allclose(single.rounded(SINGLE).transform(X), exact.transform(X), rtol=0, atol=1e-5)


def test_constant_columns_stay_harmless_in_single_precision() -> None:
    """What is left of them is the same in all rows, and next to nothing."""
    X = np.random.default_rng(2).normal(size=(40, 4))
    X[:, 1:] = 0.0, 0.1, -1e4 / 3
    stations = station_moments(X, np.array([0, 7, 20, 40]), np.array([0, 2, 3]), SINGLE)
    for scaler in scalers(stations, "standard", per_station=True, dtype=SINGLE) + scalers(
        stations, "standard", dtype=SINGLE
    ):
        assert (np.asarray(scaler.scale)[1:] == 1.0).all()
        left = scaler.transform(X)[:, 1:]
        assert (left == left[0]).all()
        assert np.abs(left).max() < 1e-3


CONSTANTS = (0.19, 1e-9 / 3, -0.1, 1.0 + 2.0**-24, 1e4 / 3, 7777.7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [3, 600, 2_000, 60_000])
@pytest.mark.parametrize("terminals", [1, 3, 500])
def test_a_constant_column_is_seen_whatever_the_number_of_rows(dtype: type, rows: int, terminals: int) -> None:
    """It keeps scale 1 and becomes exact zeros; merged, masked and float32 sums tell that it is constant, too."""
    X = np.random.default_rng(rows).normal(3.0, 1e-3, size=(rows, 1 + len(CONSTANTS))).astype(dtype)
    X[:, 1:] = CONSTANTS
    offsets = np.sort(np.r_[0, np.random.default_rng(0).integers(0, rows + 1, terminals - 1), rows])
    tasks = np.array([0, terminals // 2, terminals])
    parts = [Moments.of(X[a:b]) for a, b in pairwise(offsets) if b > a]
    for moments in (Moments.of(X), total(parts), total(station_moments(X, offsets, tasks))):
        scaler = Scaler.from_moments(moments, "standard")
        assert scaler.scale is not None
        assert scaler.scale[0] == pytest.approx(X[:, 0].std(), rel=1e-3)
        assert (scaler.scale[1:] == 1.0).all()
        assert (scaler.transform(X)[:, 1:] == 0.0).all()
    masked = Scaler.from_moments(together(Spreads.of_moments(parts)).moments, "standard")
    single = scalers(station_moments(X, offsets, tasks, SINGLE), "standard", dtype=SINGLE)[0]
    for scaler in (masked, single):
        assert scaler.scale is not None
        assert scaler.scale[0] != 1.0
        assert (scaler.scale[1:] == 1.0).all()


@pytest.mark.parametrize("rows", [100, 2_000, 100_000])
def test_a_spread_below_the_rounding_of_the_sum_counts_as_constant(rows: int) -> None:
    """Adding up n numbers may lose n/2 eps of their mean; a spread of four times that is still a spread."""
    c = 0.19
    lost = c * 0.5 * rows * np.finfo(np.float64).eps
    sums = Moments(rows, np.array([c + lost, c]), rows * np.square([lost, 4.0 * lost]))
    scaler = Scaler.from_moments(sums, "standard")
    assert scaler.scale is not None
    assert scaler.scale[0] == 1.0
    assert scaler.scale[1] == pytest.approx(4.0 * lost)


@pytest.mark.parametrize(("spread", "scale"), [(20.0, "20"), (0.0, "1")])
@pytest.mark.parametrize("names", [(), ("age", "time")])
def test_a_mean_that_single_precision_cannot_tell_is_refused(spread: float, scale: str, names: tuple[str, ...]) -> None:
    """A time stamp, constant or not, is named with the way out; less its base it is scaled, and as it is in double."""
    X = np.random.default_rng(3).normal(size=(400, 2))
    X[:, 1] = 1.7e9 + spread * np.sign(X[:, 1])
    offsets, tasks = np.array([0, 100, 400]), np.array([0, 1, 2])
    column = r"column 'time'" if names else "column 1"
    with pytest.raises(
        DataError, match=rf"{column} has a mean of 1\.7e\+09 and a scale of {scale}.*--precision float64"
    ):
        scalers(station_moments(X, offsets, tasks), "standard", dtype=SINGLE, names=names)
    with pytest.raises(DataError, match=column):
        scalers(station_moments(X, offsets, tasks, SINGLE), "standard", dtype=SINGLE, names=names)
    scalers(station_moments(X, offsets, tasks), "standard", names=names)
    scalers(station_moments(X - [0.0, 1.7e9], offsets, tasks, SINGLE), "standard", dtype=SINGLE, names=names)


@pytest.mark.parametrize("unit", [1e-60, 1e-42, 1e37, 1e45])
def test_what_single_precision_cannot_hold_at_all_is_refused(unit: float) -> None:
    """Neither a scale of nothing nor one without end is told; that a column is not constant is seen all the same."""
    X = unit * np.random.default_rng(4).normal(2.0, 1.0, size=(60, 1))
    told = Moments.of(X).rounded(SINGLE)
    added = station_moments(X, np.array([0, 20, 60]), np.array([0, 2]), SINGLE)
    for moments in (told, *added):
        assert np.isfinite(moments.mean).all()
        assert 0.0 < moments.spread[0] < np.inf
        with pytest.raises(DataError, match="column 0 has numbers that float32 on the wire does not hold"):
            scalers([moments], "standard", dtype=SINGLE)


def test_zero_rows_stay_zero_and_output_may_be_in_place() -> None:
    """A zero row has no direction to be scaled to, and scaling can write over its input."""
    X = np.array([[0.0, 0.0], [3.0, 4.0]])
    scaled = Scaler(unit=True).transform(X, out=X)
    assert scaled is X
    assert X.tolist() == [[0.0, 0.0], [0.6, 0.8]]


@pytest.mark.parametrize(("features", "constant"), [(0, 1.0), (4, 1.0), (36, 0.5), (10_000, 0.25)])
def test_rows_of_norm_1_have_a_constant_of_a_few_features(features: int, constant: float) -> None:
    """It makes the longest row longer, with an intercept; other rows have a constant of 1, and no bound."""
    unit = Scaler(unit=True)
    assert unit.constant(features) == constant
    assert unit.radius(features + 1, intercept=True) == pytest.approx(np.sqrt(1.0 + constant**2))
    assert unit.radius(features, intercept=False) == 1.0
    assert (Scaler().constant(features), Scaler().radius(features, intercept=False)) == (1.0, np.inf)


def test_scaling_refuses_what_it_cannot_do() -> None:
    """An unknown name, no moments, and an empty sum are errors that say so."""
    with pytest.raises(ConfigError, match="choose one of " + ", ".join(SCALES)):
        Scaler.from_moments(None, "robust")
    with pytest.raises(ConfigError, match="at least one training row"):
        Scaler.from_moments(None, "standard")
    with pytest.raises(ConfigError, match="at least one part"):
        total([])


def test_rows_from_a_file_are_scaled_into_a_file(tmp_path: Path) -> None:
    """Rows that may be larger than the memory are scaled on disk, to the same numbers; nothing is left there."""
    X = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    scaler = Scaler.from_moments(Moments.of(X), "standard-unit")
    scaled = scaler.transform(mapped[10:])
    assert map_of(scaled) is not None
    assert map_of(scaler.transform(X)) is None
    np.testing.assert_array_equal(scaled, scaler.transform(X[10:]))
    assert [file.name for file in tmp_path.iterdir()] == ["X.npy"]


def test_room_is_found_where_the_folder_is_gone(tmp_path: Path) -> None:
    """Where no file can be made beside the rows, the folder for temporary files is used."""
    np.save(tmp_path / "X.npy", np.ones((4, 2)))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    (tmp_path / "X.npy").unlink()
    tmp_path.rmdir()
    assert map_of(buffer_like(mapped)) is not None
