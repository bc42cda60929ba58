"""A mapped row has the same bits alone and in a table: terminals map few rows, engines map all."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from rhfedmtl.data.scaling import RowMap, Scaler
from rhfedmtl.features.base import Statistics, normal_quantiles
from rhfedmtl.features.maps import Features

THREADS = """
import hashlib, numpy as np
from rhfedmtl.features.base import Statistics
from rhfedmtl.features.maps import Features
rows = np.random.default_rng(1).normal(size=(3, 300))
print(hashlib.sha256(Features("fourier=20").function(Statistics(np.empty((300, 0)), 3))(rows).tobytes()).hexdigest())
"""


@pytest.mark.parametrize("text", ["splines", "pairs=30", "fourier=40", "fourier=40:laplace", "sparse-fourier=40"])
def test_a_row_alone_has_the_bits_of_the_table(text: str) -> None:
    """For every map, whatever rows are beside it."""
    rows = np.random.default_rng(0).normal(size=(1300, 9))
    row_map = RowMap(Features(text), Scaler(np.zeros(9), np.ones(9)), Statistics(normal_quantiles(9), 5))
    table = row_map.transform(rows)
    assert table.shape == (1300, row_map.columns)
    for i in (0, 1, 700, 1299):
        assert row_map.transform(rows[i : i + 1]).tobytes() == table[i : i + 1].tobytes()


def test_frequencies_do_not_depend_on_threads() -> None:
    """All machines of a network compute the same columns."""
    digests = set()
    for threads in ("1", "2"):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", THREADS]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1


def test_frequencies_are_orthogonal() -> None:
    """The Gaussian kernel is approximated: products of features come near to it."""
    d, size = 12, 6000
    features = Features(f"fourier={size}").function(Statistics(np.empty((d, 0)), 0))
    rows = np.random.default_rng(0).normal(size=(20, d))
    mapped = features(rows)[:, d:]
    distance = np.square(rows[:, None] - rows).sum(axis=2)
    np.testing.assert_allclose(mapped @ mapped.T / size, np.exp(-distance / d), atol=0.06)
