"""HAR: the published facts, and the same rows whichever way the data set is packed."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data.har_layout import tiny, windows, write_folder, zip_bytes, zip_in_zip

from rhfedmtl.data.describe import summary
from rhfedmtl.data.federation import Source
from rhfedmtl.data.loaders import har
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import DataError


def same_rows(a: Source, b: Source) -> bool:
    arrays = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("X", "y", "task"))
    names = ("task_names", "class_names", "feature_names")
    return arrays and all(getattr(a, name) == getattr(b, name) for name in names)


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    return len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


def test_the_published_facts_hold(real_file: Callable[[str], Path]) -> None:
    """30 subjects, 10,299 rows, 561 features, and the known number of rows of each activity."""
    source = har.load(real_file("har.npz"))
    facts = summary(source)
    assert (facts["tasks"], facts["rows"], facts["features"]) == (30, 10299, 561)
    assert list(facts["labels"].values()) == [1722, 1544, 1406, 1777, 1906, 1944]
    assert source.class_names[3] == "SITTING"
    assert facts["groups"] == 857


def test_reading_and_splitting_needs_at_most_twice_the_data(real_file: Callable[[str], Path]) -> None:
    """The largest memory held at any time while reading and splitting all rows is twice that of the file's arrays."""
    path = real_file("har.npz")
    with np.load(path) as file:
        size = sum(file[name].nbytes for name in file.files)
    federate(har.load(path))  # imports and caches are not data
    tracemalloc.start()
    try:
        federate(har.load(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 2 * size


@pytest.mark.slow
def test_npz_and_official_text_are_the_same(real_file: Callable[[str], Path], tmp_path: Path) -> None:
    """All rows, labels, subjects and names are equal to the bit when read from the official text layout."""
    path = real_file("har.npz")
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    from_npz = har.load(path)
    from_text = har.load(write_folder(data, tmp_path, signals=True))
    assert same_rows(from_npz, from_text)
    assert from_npz.group is not None
    assert from_text.group is not None
    assert same_partition(from_npz.group, from_text.group)


def test_the_papers_question_can_be_asked_of_every_subject(real_file: Callable[[str], Path]) -> None:
    """Each of the 30 subjects has 70 rows for SITTING against the rest, balanced."""
    split = Split(positive="SITTING", samples_per_task=70, terminals=5)
    federation = federate(har.load(real_file("har.npz")), split)
    assert federation.n_terminals == 150
    assert np.bincount(federation.y).tolist() == [30 * 26, 30 * 26]


def test_every_packing_gives_the_same_rows(tmp_path: Path) -> None:
    """Folder, parent of the folder, zip, zip-in-zip and npz of the same data are equal."""
    data = tiny()
    root = write_folder(data, tmp_path)
    inner = zip_bytes(root)
    (tmp_path / "a.zip").write_bytes(inner)
    (tmp_path / "b.zip").write_bytes(zip_in_zip(inner))
    np.savez(tmp_path / "c.npz", **data)
    reference = har.load(root)
    for path in (tmp_path, tmp_path / "a.zip", tmp_path / "b.zip", tmp_path / "c.npz"):
        other = har.load(path)
        assert same_rows(reference, other)
        assert reference.group is not None
        assert other.group is not None
        assert same_partition(reference.group, other.group)
    assert reference.task_names == ("subject-1", "subject-2", "subject-3")
    assert reference.feature_names[0] == "feature-0()"


def test_chains_break_where_windows_do_not_overlap() -> None:
    """Raw windows tell chains apart that subject and activity alone would join."""
    chain = np.array([0, 0, 1, 1, 1, 2, 3, 3])
    subject, y = np.ones(8, dtype=int), np.array([1, 1, 1, 1, 1, 1, 2, 2])
    assert har.chains(subject, y, windows(chain)).tolist() == chain.tolist()
    assert har.chains(subject, y, None).tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_rows_come_by_subject_and_activity_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    """A shuffled file gives tasks in order, each row with its own label."""
    data = tiny()
    order = np.random.default_rng(3).permutation(36)
    shuffled = {name: value[order] if len(value) == 36 else value for name, value in data.items()}
    np.savez(tmp_path / "s.npz", **shuffled)
    np.savez(tmp_path / "o.npz", **data)
    a, b = har.load(tmp_path / "o.npz"), har.load(tmp_path / "s.npz")
    assert (a.task == b.task).all()
    assert (a.y == b.y).all()
    assert {tuple(row) for row in a.X[a.y == 2]} == {tuple(row) for row in b.X[b.y == 2]}


def damaged(tmp_path: Path, kind: str) -> Path:
    data = tiny()
    root = write_folder(data, tmp_path)
    path = tmp_path / "x.zip"
    if kind == "other archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("mnist/train.txt", "1 2 3")
    elif kind == "broken zip":
        path.write_bytes(zip_bytes(root)[:-200])
        return path
    elif kind == "broken npz":
        path = tmp_path / "x.npz"
        path.write_bytes(b"PK but not really")
    elif kind == "npz without subject":
        path = tmp_path / "x.npz"
        np.savez(path, **{name: value for name, value in data.items() if name != "subject"})
    elif kind == "missing file":
        (root / "test" / "y_test.txt").unlink()
        return root
    elif kind == "broken row":
        file = root / "train" / "X_train.txt"
        lines = file.read_text().splitlines()
        lines[4] = "0.1 abc 0.2 0.3"
        file.write_text("\n".join(lines))
        return root
    elif kind == "lost row":
        file = root / "train" / "subject_train.txt"
        file.write_text("\n".join(file.read_text().splitlines()[:-1]))
        return root
    elif kind == "not a number":
        data["X"][7, 2] = np.nan
        path = tmp_path / "x.npz"
        np.savez(path, **data)
    elif kind == "no file":
        return tmp_path / "nowhere.npz"
    elif kind == "something else":
        path = tmp_path / "x.docx"
        path.write_bytes(b"hello")
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("other archive", r"x.zip does not hold 'UCI HAR Dataset/train'"),
        ("broken zip", r"x.zip is neither|broken zip"),
        ("broken npz", r"x.npz cannot be read"),
        ("npz without subject", r"lacks the array subject"),
        ("missing file", r"lacks y_test.txt"),
        ("broken row", r"X_train.txt: could not convert string 'abc' to float32 at row 4, column 2"),
        ("lost row", r"24 rows, 24 labels and 23 subjects"),
        ("not a number", r"row 7 \(task 'subject-1'\), column 'feature-2\(\)' holds nan"),
        ("no file", r"no such file or folder: .*nowhere.npz"),
        ("something else", r"x.docx is neither the folder"),
    ],
)
def test_damaged_data_is_refused_with_the_place_of_the_damage(tmp_path: Path, kind: str, words: str) -> None:
    """Errors name the file and, where there is one, the row and the column."""
    with pytest.raises(DataError, match=words):
        har.load(damaged(tmp_path, kind))
