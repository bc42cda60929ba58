"""Arrays that are kept as stretches, or as a count of each number, answer as the arrays do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhfedmtl.maths.runs import Runs, Starts, Tally, bincount, compact, pairs, tally_cells

BLOCKS = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=6)


def tally(blocks: list[list[int]], fetch: Any = None) -> tuple[Tally, Any]:
    """A tally of these blocks, and the array that it stands for."""
    whole = np.array([value for block in blocks for value in block], dtype=np.int64)
    bounds = np.cumsum([0, *map(len, blocks)])
    return Tally(bounds, tally_cells(whole, bounds), fetch or (lambda: whole)), whole


def never() -> Any:
    """What a tally must not ask for."""
    pytest.fail("the numbers themselves were asked for")


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_stretches_stand_for_their_array(counts: list[int]) -> None:
    """Whole, by places and by masks; compared, added, used as an index."""
    runs, whole = Runs.repeat(np.arange(len(counts)), counts), np.repeat(np.arange(len(counts)), counts)
    assert len(runs) == len(whole)
    assert runs.shape == whole.shape
    for found, wanted in ((runs, whole), (runs[1:4], whole[1:4]), (runs + 1, whole + 1), (runs >= 2, whole >= 2)):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(runs[whole > 1], whole[whole > 1])
    np.testing.assert_array_equal(runs[np.arange(len(whole))], whole)
    np.testing.assert_array_equal(np.arange(10.0)[runs], np.arange(10.0)[whole])
    np.testing.assert_array_equal(bincount(runs, 9), np.bincount(whole, minlength=9))
    assert runs.tolist() == whole.tolist()
    assert runs.copy().flags.writeable
    assert runs[:] is runs
    assert runs.astype(np.int64) is runs
    if len(whole):
        assert (runs.min(), runs.max(), runs[0]) == (whole.min(), whole.max(), whole[0])
    with pytest.raises(IndexError, match="no place"):
        runs[len(whole)]


@given(BLOCKS)
def test_a_tally_answers_without_the_numbers_what_it_can(blocks: list[list[int]]) -> None:
    """Sums, extremes, counts, and where blocks start."""
    known, whole = tally(blocks, never)
    starts = Starts(known)
    assert (len(known), len(starts)) == (len(whole), len(whole) + 1)
    assert known[:] is known
    assert (known.sum(), starts[-1]) == (whole.sum(), whole.sum())
    np.testing.assert_array_equal(starts[known.bounds], np.concatenate([[0], np.cumsum(whole)])[known.bounds])
    np.testing.assert_array_equal(bincount(known, 12), np.bincount(whole, minlength=12))
    if len(whole):
        assert (known.min(), known.max()) == (whole.min(), whole.max())


@given(BLOCKS)
def test_a_tally_fetches_the_numbers_for_all_else(blocks: list[list[int]]) -> None:
    """Once, read-only, and as they are."""
    asked: list[int] = []
    _, whole = tally(blocks)
    known, _ = tally(blocks, lambda: asked.append(1) or whole.copy())
    np.testing.assert_array_equal(np.maximum(2, known), np.maximum(2, whole))
    np.testing.assert_array_equal(known[::2], whole[::2])
    np.testing.assert_array_equal(np.asarray(Starts(known)), np.concatenate([[0], np.cumsum(whole)]))
    np.testing.assert_array_equal(Starts(known)[0:2], np.concatenate([[0], np.cumsum(whole)])[0:2])
    assert len(asked) == 1
    assert not np.asarray(known).flags.writeable


@given(BLOCKS)
def test_labels_and_numbers_are_paired_without_the_numbers(blocks: list[list[int]]) -> None:
    """Where labels change between blocks alone, also fewer than blocks; otherwise one by one."""
    known, whole = tally(blocks, never)
    label = np.repeat(np.arange(len(blocks)) // 2, np.diff(known.bounds))
    runs = Runs.repeat(np.arange(len(blocks)) // 2, np.diff(known.bounds))
    labels, values, counts = pairs(runs, known)
    np.testing.assert_array_equal(
        np.bincount(labels, values * counts, len(blocks)), np.bincount(label, whole, len(blocks))
    )
    fetched, _ = tally(blocks)
    assert pairs(label, fetched)[2] == 1
    np.testing.assert_array_equal(pairs(label, fetched)[1], whole)


def test_an_array_becomes_stretches_only_if_that_is_less() -> None:
    """What is uneven stays as it is."""
    even, uneven = np.repeat([3, 5], 20), np.arange(40)
    found = compact(even)
    assert isinstance(found, Runs)
    np.testing.assert_array_equal(found, even)
    assert compact(uneven) is uneven
    assert compact(found) is found
