"""Maps, columns of every shape, and a small encoder, for the tests of feature maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.reference.problems import federation

from rhfedmtl.data.federation import Federation
from rhfedmtl.features.base import Statistics, normal_quantiles
from rhfedmtl.features.maps import Features

FloatArray = npt.NDArray[np.float64]
MAPS = ("splines=5", "pairs=4", "fourier=7", "fourier=9:laplace", "sparse-fourier=6")
"""Each built-in map without a file, with few columns."""
SUMS = (*MAPS, "splines=3+pairs=2+fourier=5+sparse-fourier=4")
SHAPES = ("normal", "skewed", "heavy", "discrete", "binary", "constant")


def columns(n: int, seed: int = 0) -> FloatArray:
    """Rows with a column of each of `SHAPES`; the heavy column has outliers of 1e6 standard deviations."""
    rng = np.random.default_rng([seed, 5])
    heavy = rng.normal(size=n)
    heavy[rng.choice(n, max(1, n // 200), replace=False)] *= 1e6
    return np.column_stack(
        [
            3.0 + 2.0 * rng.normal(size=n),
            rng.exponential(size=n) ** 2,
            heavy,
            rng.integers(0, 5, size=n).astype(float),
            (rng.random(n) < 0.2).astype(float),
            np.full(n, 7.5),
        ]
    )


def statistics(X: FloatArray, seed: int = 0) -> Statistics:
    """Return statistics with the quantiles of the rows themselves."""
    normal = normal_quantiles(X.shape[1])
    found = np.quantile(X, [0.005, 0.02, 0.05, *np.arange(0.1, 0.95, 0.1), 0.95, 0.98, 0.995], axis=0).T
    return Statistics(np.where(np.ptp(X, axis=0)[:, None] > 0.0, found, normal), seed)


def mapped(text: str, X: FloatArray, seed: int = 0) -> FloatArray:
    """Return the mapped rows."""
    return Features(text).function(statistics(X, seed))(X)


def difficult(kind: str = "binary", *, seed: int = 0) -> Federation:
    """Return three tasks whose rows have the columns of `columns`, on different scales in each task."""
    data = federation(kind, seed=seed, sizes=((30, 12), (16, 9), (18, 9, 14)), d=6)
    train, test = columns(len(data.X), seed), columns(len(data.test_X), seed + 1)
    scale = 1.0 + data.row_task[:, None]
    test_scale = 1.0 + np.repeat(np.arange(data.n_tasks), np.diff(data.test_offsets))[:, None]
    from dataclasses import replace

    return replace(data, X=data.X + train * scale, test_X=data.test_X + test * test_scale)


def encoder(
    path: Path,
    width: int | str = 6,
    size: int | str = 4,
    *,
    rows: int | str = "rows",
    kind: str = "float",
    opset: int = 18,
    seed: int = 0,
) -> Path:
    """Write a frozen encoder tanh(x A + b), and return its path."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    element = TensorProto.FLOAT if kind == "float" else TensorProto.DOUBLE
    dtype = np.float32 if kind == "float" else np.float64
    shape = (width if isinstance(width, int) else 6, size if isinstance(size, int) else 4)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "A"], ["xA"]),
            helper.make_node("Add", ["xA", "b"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["code"]),
        ],
        "encoder",
        [helper.make_tensor_value_info("x", element, [rows, width])],
        [helper.make_tensor_value_info("code", element, [rows, size])],
        [
            numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(shape[0])).astype(dtype), "A"),
            numpy_helper.from_array(rng.normal(size=shape[1]).astype(dtype), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path
