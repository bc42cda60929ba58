"""Data for the tests of `data/`: real files where they are at hand, and small ones made on the spot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rhfedmtl.data.federation import Source


def numbered(
    n_tasks: int = 3, rows: int = 40, classes: int = 3, group_size: int = 4, terminals: int | None = None, seed: int = 0
) -> Source:
    """Source whose first feature is the number of the row, so that every row can be traced."""
    rng = np.random.default_rng(seed)
    n = n_tasks * rows
    return Source(
        X=np.column_stack([np.arange(n), rng.normal(size=(n, 2))]),
        y=rng.permutation(np.arange(n) % classes) if classes else rng.normal(size=n),
        task=np.arange(n) // rows,
        task_names=tuple(f"t{b}" for b in range(n_tasks)),
        class_names=tuple(f"c{c}" for c in range(classes)),
        terminal=None if terminals is None else np.arange(n) % terminals,
        terminal_names=() if terminals is None else tuple(f"d{t}" for t in range(terminals)),
        group=np.arange(n) // group_size,
    )


@pytest.fixture
def make_source() -> Callable[..., Source]:
    """Return the maker of small sources whose rows can be traced."""
    return numbered
