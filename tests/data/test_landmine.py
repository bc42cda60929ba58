"""Landmine: as published, and as the paper's code cuts it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from rhfedmtl.data.describe import summary
from rhfedmtl.data.loaders.landmine import Recut, load, load_authors
from rhfedmtl.errors import ConfigError, DataError


def cells(parts: list[np.ndarray]) -> np.ndarray:
    array = np.empty((1, len(parts)), dtype=object)
    for i, part in enumerate(parts):
        array[0, i] = part
    return array


def write_mat(path: Path, sizes: list[int], names: tuple[str, str] = ("feature", "label"), signs: bool = False) -> Path:
    """MATLAB file of cells whose first feature numbers the rows."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = [np.column_stack([np.arange(a, b)] + [np.ones(b - a)] * 8) for a, b in pairwise(starts)]
    labels = [(np.arange(n) % 5 == 0).astype(float)[:, None] for n in sizes]
    savemat(path, {names[0]: cells(rows), names[1]: cells([2 * y - 1 if signs else y for y in labels])})
    return path


def test_the_published_facts_hold(real_file: Callable[[str], Path]) -> None:
    """29 fields, 14,820 rows, 9 features, 904 mines."""
    facts = summary(load(real_file("landmine.npz")))
    assert (facts["tasks"], facts["rows"], facts["features"]) == (29, 14820, 9)
    assert facts["labels"] == {"clutter": 13916, "mine": 904}


def test_the_authors_cut_is_1300_and_150_rows(real_file: Callable[[str], Path]) -> None:
    """Five tasks of 5 terminals with 52 rows each, the last 30 rows of every task for the test."""
    federation = load_authors(real_file("small.mat"))
    assert np.diff(federation.terminal_offsets).tolist() == [52] * 25
    assert np.diff(federation.test_offsets).tolist() == [30] * 5
    assert np.bincount(federation.y).tolist() == [1221, 79]


@pytest.mark.parametrize(("names", "signs"), [(("feature", "label"), False), (("X", "Y"), True)])
def test_mat_and_npz_are_the_same(tmp_path: Path, names: tuple[str, str], signs: bool) -> None:
    """Cells of MATLAB, under either name and with either labels, give the rows of the npz."""
    mat = load(write_mat(tmp_path / "a.mat", [7, 5, 6], names, signs))
    np.savez(tmp_path / "b.npz", X=mat.X, y=mat.y, task=mat.task)
    npz = load(tmp_path / "b.npz")
    assert (mat.X == npz.X).all()
    assert (mat.y == npz.y).all()
    assert (mat.task == npz.task).all()
    assert mat.task_names == ("field-1", "field-2", "field-3")


@pytest.mark.parametrize("recut", [Recut(), Recut(3, 10), Recut(15, 5, 0.2)], ids=repr)
def test_the_authors_cut_takes_rows_as_they_stand(tmp_path: Path, recut: Recut) -> None:
    """Joined rows are cut in order: terminals of equal size first, then the test rows, task by task."""
    federation = load_authors(write_mat(tmp_path / "small.mat", [700, 64, 700]), recut)
    size = 1464 // (recut.tasks * recut.terminals)
    rows = np.concatenate(
        [
            np.concatenate([federation.X[federation.row_task == b, 0], federation.test_rows(b)[0][:, 0]])
            for b in range(recut.tasks)
        ]
    )
    assert rows.tolist() == list(range(size * recut.tasks * recut.terminals))
    assert len(set(np.diff(federation.terminal_offsets))) == 1


def test_wrong_files_are_refused(tmp_path: Path, no_data: Path) -> None:
    """Each error names the file or the way to the data."""
    with pytest.raises(DataError, match=r"give --path LandmineData\.mat"):
        load()
    with pytest.raises(DataError, match=r"--path small\.mat"):
        load_authors()
    with pytest.raises(DataError, match="has 18 rows, the authors' cut has 1464"):
        load_authors(write_mat(tmp_path / "a.mat", [7, 5, 6]))
    (tmp_path / "b.mat").write_bytes(b"no MATLAB at all, but long enough to be looked at" * 9)
    with pytest.raises(DataError, match=r"b.mat cannot be read"):
        load(tmp_path / "b.mat")
    savemat(tmp_path / "c.mat", {"Z": np.ones(3)})
    with pytest.raises(DataError, match="must hold cells"):
        load(tmp_path / "c.mat")
    np.savez(tmp_path / "d.npz", X=np.ones((2, 9)), y=np.array([0, 2]), task=np.zeros(2))
    with pytest.raises(DataError, match="labels must be 0 and 1"):
        load(tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", X=np.ones((2, 9)))
    with pytest.raises(DataError, match="arrays X, y and task"):
        load(tmp_path / "e.npz")
    with pytest.raises(ConfigError, match="too few"):
        load_authors(write_mat(tmp_path / "f.mat", [1464]), Recut(100, 20))
