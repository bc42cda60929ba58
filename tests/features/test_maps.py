"""Each map is a pure function with the number of columns that it declares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.features.examples import MAPS, SHAPES, SUMS, FloatArray, columns, encoder, mapped, statistics

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.features.base import LEVELS, FeatureMap, Statistics, normal_quantiles
from rhfedmtl.features.maps import Features
from rhfedmtl.features.registry import FEATURES

RANDOM = ("pairs=4", "fourier=7", "fourier=9:laplace", "sparse-fourier=6")
"""Maps that draw random numbers for six columns."""
ROWS = arrays(
    np.float64,
    st.tuples(st.integers(1, 150), st.integers(1, 7)),
    elements=st.floats(-1e9, 1e9, width=64) | st.floats(-3.0, 3.0) | st.sampled_from([0.0, 1.0]),
)


def equal_parts(function: Any, X: FloatArray) -> None:
    """Require the bits of the batch from each row, from unequal parts, and from rows in another memory order."""
    batch = function(X)
    np.testing.assert_array_equal(np.concatenate([function(X[i : i + 1]) for i in range(len(X))]), batch)
    cut = len(X) // 3
    np.testing.assert_array_equal(np.concatenate([function(X[:cut]), function(X[cut:])]), batch)
    np.testing.assert_array_equal(function(np.asfortranarray(X)), batch)


@pytest.mark.parametrize("text", SUMS)
@given(X=ROWS, seed=st.integers(0, 2**64 - 1))
@settings(max_examples=25, deadline=None)
def test_a_map_is_pure_and_has_the_columns_that_it_declares(text: str, X: FloatArray, seed: int) -> None:
    """The rows stay the first columns, of any size; a row gives the same bits alone and in a batch."""
    features, known = Features(text), statistics(X, seed)
    function = features.function(known)
    result = function(X)
    assert result.shape == (len(X), features.columns(X.shape[1]))
    assert np.isfinite(result).all()
    np.testing.assert_array_equal(result[:, : X.shape[1]], X)
    equal_parts(function, X)
    np.testing.assert_array_equal(features.function(known)(X), result)


@pytest.mark.parametrize("text", MAPS)
def test_added_columns_are_bounded(text: str) -> None:
    """An outlier of 1e6 standard deviations cannot dominate a row."""
    X = columns(500)
    added = mapped(text, X)[:, len(SHAPES) :]
    assert np.abs(added).max() <= np.sqrt(2.0) + 1e-12
    assert np.ptp(added, axis=0).max() > 0.5


@pytest.mark.parametrize("text", SUMS)
def test_no_column_comes_from_a_constant_column_alone(text: str) -> None:
    """A constant column has constant features."""
    X = np.full((20, 1), 7.5)
    assert np.ptp(mapped(text, X), axis=0).max() == 0.0


@pytest.mark.parametrize("text", RANDOM)
def test_the_seed_decides_random_maps(text: str) -> None:
    """The same seed gives the same columns, another seed others."""
    X = columns(50)
    np.testing.assert_array_equal(mapped(text, X, seed=1), mapped(text, X, seed=1))
    assert not np.array_equal(mapped(text, X, seed=1), mapped(text, X, seed=2))


@pytest.mark.parametrize("text", ["splines=5", "pairs"])
def test_maps_without_random_numbers_ignore_the_seed(text: str) -> None:
    """All pairs of six columns need no draw."""
    X = columns(50)
    np.testing.assert_array_equal(mapped(text, X, seed=1), mapped(text, X, seed=2))


def test_parts_of_a_sum_are_the_maps_alone() -> None:
    """A sum repeats nothing but the rows; random parts draw as they do alone."""
    X = columns(30)
    parts = [mapped(text, X)[:, len(SHAPES) :] for text in MAPS]
    np.testing.assert_array_equal(mapped("+".join(MAPS), X), np.concatenate([X, *parts], axis=1))


@given(x=arrays(np.float64, 40, elements=st.floats(-1e6, 1e6)), knots=st.integers(2, 30))
@settings(max_examples=60, deadline=None)
def test_splines_rise_one_after_the_other(x: FloatArray, knots: int) -> None:
    """Pieces are in [0, 1], a piece starts to rise where the piece before has ended, and order is kept."""
    X = np.sort(x)[:, None]
    pieces = mapped(f"splines={knots}", X)[:, 1:]
    assert ((pieces >= 0.0) & (pieces <= 1.0)).all()
    assert (np.diff(pieces, axis=0) >= 0.0).all()
    live = pieces[:, np.ptp(pieces, axis=0) > 0.0]
    assert ((live[:, 1:] == 0.0) | (live[:, :-1] == 1.0)).all()


@given(x=arrays(np.float64, 40, elements=st.floats(-1e6, 1e6)))
@settings(max_examples=60, deadline=None)
def test_ranks_keep_order_between_minus_one_and_one(x: FloatArray) -> None:
    """Outliers are at the last quantile."""
    X = np.sort(x)[:, None]
    ranks = statistics(X).ranks(X)[:, 0]
    assert (np.diff(ranks) >= 0.0).all()
    assert np.abs(ranks).max() <= 2.0 * LEVELS[-1] - 1.0


def test_pairs_are_products_of_ranks() -> None:
    """Pairs are in order; drawn pairs are different."""
    X = columns(40)
    ranks = statistics(X).ranks(X)
    first, second = np.triu_indices(6, 1)
    np.testing.assert_array_equal(mapped("pairs", X)[:, 6:], ranks[:, first] * ranks[:, second])
    drawn = mapped("pairs=14", X[:, :5] + np.arange(5))[:, 5:]
    assert drawn.shape == (40, 10)
    normal = np.random.default_rng(0).normal(size=(60, 6))
    assert len(np.unique(mapped("pairs=14", normal)[:, 6:].round(12), axis=1).T) == 14


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("fourier=4000", lambda D: np.exp(-np.square(D).sum(-1) / 3.0)),
        ("fourier=4000:laplace", lambda D: np.exp(-np.abs(D).sum(-1) / 3.0)),
    ],
)
def test_cosines_approximate_their_kernel(text: str, kernel: Any) -> None:
    """Means of products are the kernel, within 4/√n."""
    X = np.random.default_rng(1).normal(size=(12, 3))
    cosines = Features(text).function(Statistics(normal_quantiles(3), 5))(X)[:, 3:]
    np.testing.assert_allclose(cosines @ cosines.T / 4000, kernel(X[:, None] - X), atol=4.0 / np.sqrt(4000))


def test_a_sparse_cosine_reads_three_columns() -> None:
    """Changing another column changes nothing."""
    X = np.random.default_rng(1).normal(size=(30, 9))
    known = Statistics(normal_quantiles(9), 5)
    function = Features("sparse-fourier=40").function(known)
    reads = np.zeros((9, 40), dtype=bool)
    for j in range(9):
        changed = X.copy()
        changed[:, j] += 0.5
        reads[j] = (function(changed)[:, 9:] != function(X)[:, 9:]).any(axis=0)
    np.testing.assert_array_equal(reads.sum(axis=0), 3)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_an_encoder_is_pure_and_gives_the_numbers_of_its_file(kind: str, tmp_path: Path) -> None:
    """ONNX Runtime gives tanh(x A + b) for each row alone; its number of columns is in the text."""
    X, features = columns(90)[:, :3], Features(f"onnx={encoder(tmp_path / 'e.onnx', 3, 4, kind=kind)}")
    function = features.function(Statistics(normal_quantiles(3)))
    assert features.text.endswith(":4")
    assert features.columns(3) == 7
    equal_parts(function, X)
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(3, 4)) / np.sqrt(3), rng.normal(size=4)
    tolerance = 1e-6 if kind == "float" else 1e-14
    np.testing.assert_allclose(function(X)[:, 3:], np.tanh(X @ A + b), rtol=0, atol=tolerance * 10)


@pytest.mark.parametrize("rows", [1, "rows"])
def test_an_encoder_of_single_rows_or_of_batches(rows: Any, tmp_path: Path) -> None:
    """The first axis may be 1 or open, and the width may be open."""
    features = Features(f"onnx={encoder(tmp_path / 'e.onnx', 'width', 4, rows=rows)}")
    assert features.function(statistics(columns(9)))(columns(9)).shape == (9, 10)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({"width": 5}, "reads rows of 5 columns, the data has 6"),
        ({"rows": 8}, "takes 8 rows at a time: save it with a dynamic first axis"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(shape: dict[str, Any], says: str, tmp_path: Path) -> None:
    """The message names the file and what to change."""
    path = encoder(tmp_path / "e.onnx", **shape)
    with pytest.raises(ConfigError, match=f"onnx=e.onnx .*{says}"):
        Features(f"onnx={path}").function(statistics(columns(9)))


def test_a_file_that_is_no_encoder_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime says why."""
    (tmp_path / "e.onnx").write_text("no model")
    with pytest.raises(ConfigError, match=r"onnx=e\.onnx is no model that ONNX Runtime can run"):
        Features(f"onnx={tmp_path / 'e.onnx'}")


def logarithm(path: Path, shape: list[Any], kind: str = "float") -> Path:
    """Write an encoder that takes the logarithm of each number."""
    from onnx import TensorProto, helper

    element = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[kind]
    values = [helper.make_tensor_value_info(name, element, shape) for name in ("x", "z")]
    graph = helper.make_graph([helper.make_node("Log", ["x"], ["z"])], "log", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("shape", "kind", "says"),
    [
        (["rows", "columns"], "float", "the first output z: .* it needs rows × a fixed number of float or double"),
        (["rows", 2, 3], "float", "needs a single input, rows × columns of float or double numbers; it has x: tensor"),
        (["rows", 6], "float16", "needs a single input, rows × columns of float or double numbers; it has x: tensor"),
    ],
)
def test_inputs_and_outputs_must_be_tables(shape: list[Any], kind: str, says: str, tmp_path: Path) -> None:
    """The number of columns must be in the file."""
    with pytest.raises(ConfigError, match=f"onnx=e.onnx .*{says}"):
        Features(f"onnx={logarithm(tmp_path / 'e.onnx', shape, kind)}")


def test_an_encoder_must_give_finite_numbers(tmp_path: Path) -> None:
    """A logarithm of a negative number is refused with the name of the file."""
    path = logarithm(tmp_path / "e.onnx", ["rows", 6])
    function = Features(f"onnx={path}").function(statistics(columns(9)))
    with pytest.raises(DataError, match=r"encoder onnx=e\.onnx gives a value that is no finite number"):
        function(-np.ones((1, 6)))


def test_onnxruntime_is_named_if_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it."""
    from rhfedmtl.errors import MissingExtraError

    path = encoder(tmp_path / "other.onnx", seed=77)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rhfedmtl\[onnx\]'"):
        Features(f"onnx={path}")


class Squares(FeatureMap):
    """A map of another package, without an ONNX form."""

    def columns(self, n_columns: int) -> int:
        """Return a column for each."""
        return n_columns

    def function(self, statistics: Statistics) -> Any:
        """Return the squares."""
        return np.square


def test_a_map_of_another_package_says_that_it_has_no_onnx_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works in sums, and its export is refused by name."""
    from rhfedmtl.registry import Entry

    entry: Entry[FeatureMap] = Entry("squares: squares", f"{__name__}:Squares")
    monkeypatch.setitem(FEATURES._all_entries, "squares", entry)
    X = columns(9)
    np.testing.assert_array_equal(mapped("squares+pairs=2", X)[:, 6:12], X**2)
    maps = Features("squares").maps
    with pytest.raises(ConfigError, match="feature map Squares cannot be exported to ONNX: it has no method add_nodes"):
        maps[0].add_nodes(None, "X", statistics(columns(9)))  # type: ignore[arg-type]
