"""Sources and federations refuse what cannot be used, stay read-only, and describe themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rhfedmtl.data import describe
from rhfedmtl.data.federation import Federation, Source, class_weights, encode
from rhfedmtl.data.split import federate
from rhfedmtl.errors import DataError


def small(**changes: object) -> Federation:
    values = {
        "X": np.arange(12.0).reshape(6, 2),
        "y": np.array([0, 1, 0, 1, 0, 1]),
        "terminal_offsets": np.array([0, 2, 3, 6]),
        "task_offsets": np.array([0, 2, 3]),
        "test_X": np.ones((3, 2)),
        "test_y": np.array([0, 1, 1]),
        "test_offsets": np.array([0, 1, 3]),
        "task_names": ("a", "b"),
        "class_names": ("no", "yes"),
    }
    return Federation(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"terminal_offsets": np.array([0, 2, 3, 5])}, "terminals hold 5 rows, but there are 6"),
        ({"terminal_offsets": np.array([0, 3, 2, 6])}, "never fall"),
        ({"task_offsets": np.array([0, 2])}, "but there are 3 terminals"),
        ({"test_offsets": np.array([0, 1, 2])}, "but there are 3 test rows"),
        ({"test_X": np.ones((3, 5))}, "training rows have 2 features, test rows 5"),
        ({"y": np.zeros(4, dtype=int)}, "must pair up"),
        ({"feature_names": ("one",)}, "1 feature names for 2 features"),
        ({"sample_weight": np.ones(2)}, "sample weights for 6"),
        ({"terminal_names": ("x",)}, "1 terminal names for 3 terminals"),
        ({"y": np.array([0, 1, 0, 1, 0, 7])}, "row 5: class code 7 has no name"),
        ({"class_names": ("only",), "y": np.zeros(6, dtype=int)}, "nothing to tell apart"),
        ({"class_names": (), "y": np.array([0, 1, np.nan, 1, 0, 1.0])}, "row 2: label nan"),
    ],
)
def test_federation_refuses_parts_that_do_not_fit(changes: dict[str, object], words: str) -> None:
    """A federation whose arrays contradict each other is refused with the numbers that disagree."""
    with pytest.raises(DataError, match=words):
        small(**changes)


def test_federation_is_read_only() -> None:
    """Nobody can change the rows of a federation, not even through the array it was made from."""
    federation = small()
    for array in (federation.X, federation.y, federation.terminal_offsets, federation.test_X):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_memory_mapped_rows_stay_memory_mapped(tmp_path: Path) -> None:
    """Rows on disk are neither copied by a source nor by a federation."""
    np.save(tmp_path / "X.npy", np.arange(12.0, dtype=np.float32).reshape(6, 2))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    source = Source(mapped, np.arange(6) % 2, np.zeros(6, dtype=int), ("a",), ("no", "yes"))
    assert np.shares_memory(source.X, mapped)
    assert np.shares_memory(small(X=mapped).X, mapped)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_source_names_row_task_and_column_of_what_is_not_finite(value: float) -> None:
    """NaN and infinity are refused with row, task and column."""
    X = np.zeros((300_000, 2), dtype=np.float32)
    X[270_001, 1] = value
    task = np.repeat([0, 1], 150_000)
    with pytest.raises(DataError, match=r"row 270001 \(task 'B'\), column 'heat'"):
        Source(X, np.arange(300_000) % 2, task, ("A", "B"), ("no", "yes"), ("cold", "heat"))


@pytest.mark.parametrize(
    ("X", "y", "task", "words"),
    [
        (np.zeros((2, 1)), np.zeros(3, dtype=int), np.zeros(2, dtype=int), "values of y for 2 rows"),
        (np.zeros((2, 1)), np.zeros(2, dtype=int), np.array([0, 4]), "row 1: task code 4"),
        (np.zeros((2, 1)), np.zeros(2, dtype=int), np.array([0.0, 0.0]), "whole numbers"),
        (np.zeros(2), np.zeros(2, dtype=int), np.zeros(2, dtype=int), "two dimensions"),
        (np.array([["a"], ["b"]]), np.zeros(2, dtype=int), np.zeros(2, dtype=int), "features must be numbers"),
    ],
)
def test_source_refuses_columns_that_do_not_fit(X: object, y: object, task: object, words: str) -> None:
    """A source whose columns contradict each other is refused."""
    with pytest.raises(DataError, match=words):
        Source(X, y, task, ("A",), ("no", "yes"))  # type: ignore[arg-type]


def test_fingerprint_changes_with_everything_that_can_change_a_result() -> None:
    """Two federations with the same fingerprint give the same results."""
    base = small()
    others = [
        small(X=np.arange(12.0).reshape(6, 2) + 1),
        small(y=np.array([1, 0, 0, 1, 0, 1])),
        small(terminal_offsets=np.array([0, 1, 3, 6])),
        small(task_offsets=np.array([0, 1, 3])),
        small(test_X=np.zeros((3, 2))),
        small(test_y=np.array([1, 1, 1])),
        small(test_offsets=np.array([0, 2, 3])),
        small(class_names=("yes", "no")),
        small(sample_weight=np.ones(6)),
    ]
    prints = {federation.fingerprint() for federation in [base, *others]}
    assert len(prints) == 1 + len(others)
    assert base.fingerprint() == small().fingerprint()
    assert small(
        test_X=np.empty((0, 2)), test_y=np.empty(0, dtype=int), test_offsets=np.zeros(3, dtype=int)
    ).fingerprint()


def test_descriptions_fit_80_columns_and_json(make_source) -> None:  # type: ignore[no-untyped-def]
    """What is printed fits a terminal of 80 columns, and the summary is plain JSON with the true numbers."""
    source = replace(
        make_source(n_tasks=30), task_names=tuple(f"a site with a rather long name {b}" for b in range(30))
    )
    federation = federate(source)
    for described in (source, federation, federate(make_source(classes=0))):
        assert max(len(line) for line in describe.text(described).splitlines()) <= 80
        assert json.loads(json.dumps(describe.summary(described))) == describe.summary(described)
        assert len(repr(described)) < 120
    assert describe.summary(source)["rows"] == 1200
    assert sum(describe.summary(source)["labels"].values()) == 1200
    facts = describe.summary(federation)
    assert facts["train_rows"] + facts["test_rows"] == 1200


def test_terminals_are_counted_by_task(make_source) -> None:  # type: ignore[no-untyped-def]
    """A name that two tasks have is two terminals, before the split as after it."""
    source = make_source(n_tasks=2)
    named = replace(source, terminal=np.arange(len(source.X)) % 3, terminal_names=("a", "b", "c"))
    assert describe.summary(named)["terminals"] == 6 == federate(named).n_terminals


def test_two_classes_become_one_column_and_more_become_one_each() -> None:
    """Targets are ±1 in one column for two classes, and one column per class for more."""
    assert encode(np.array([0, 1]), ("no", "yes")).tolist() == [[-1.0], [1.0]]
    assert encode(np.array([0, 2]), ("a", "b", "c")).tolist() == [[1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]]
    assert encode(np.array([0.5, 2]), ()).tolist() == [[0.5], [2.0]]


def test_balanced_classes_of_a_task_weigh_the_same() -> None:
    """Each class that a task has gets an equal part of its rows' weight; a task of one class is left as it is."""
    y, task = np.array([0, 1, 1, 1, 2, 2, 0, 1]), np.array([0, 0, 0, 0, 1, 1, 2, 2])
    np.testing.assert_allclose(class_weights(y, task), [2, 2 / 3, 2 / 3, 2 / 3, 1, 1, 1, 1])
