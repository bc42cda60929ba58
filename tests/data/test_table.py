"""Tables of the user: the same source from every format, and errors that name file, line and column."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from rhfedmtl.data.federation import Source
from rhfedmtl.data.loaders.table import Columns, from_frame, load
from rhfedmtl.data.split import federate
from rhfedmtl.errors import ConfigError, DataError

COLUMNS = Columns(label="y", task="site", terminal="device")
TEXT = """site,device,heat,noise,y
north,d1,1.5,2,yes
north,d2,0.25,3,no
south,d1,-1e3,4,yes
south,d3,7,5,no
"""


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "site": ["north", "north", "south", "south"],
            "device": ["d1", "d2", "d1", "d3"],
            "heat": [1.5, 0.25, -1e3, 7.0],
            "noise": [2, 3, 4, 5],
            "y": ["yes", "no", "yes", "no"],
        }
    )


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def check(source: Source) -> None:
    assert source.X.tolist() == [[1.5, 2], [0.25, 3], [-1000, 4], [7, 5]]
    assert source.class_names == ("no", "yes")
    assert source.y.tolist() == [1, 0, 1, 0]
    assert source.task_names == ("north", "south")
    assert source.task.tolist() == [0, 0, 1, 1]
    assert source.terminal_names == ("d1", "d2", "d3")
    assert source.terminal is not None
    assert source.terminal.tolist() == [0, 1, 0, 2]
    assert source.feature_names == ("heat", "noise")


def test_every_format_gives_the_same_source(tmp_path: Path) -> None:
    """CSV with any separator, Parquet, NPZ, pandas and Polars hold the same rows."""
    check(load(csv(tmp_path, TEXT), COLUMNS))
    check(load(csv(tmp_path, "\ufeff" + TEXT.replace(",", ";").replace("\n", "\r\n")), COLUMNS))
    (tmp_path / "t.tsv").write_text(TEXT.replace(",", "\t"))
    check(load(tmp_path / "t.tsv", COLUMNS))
    frame().to_parquet(tmp_path / "t.parquet")
    check(load(tmp_path / "t.parquet", COLUMNS))
    np.savez(tmp_path / "t.npz", **{name: frame()[name].to_numpy().astype(str) for name in ("site", "device", "y")},
             heat=frame()["heat"], noise=frame()["noise"])  # fmt: skip
    source = load(tmp_path / "t.npz", COLUMNS)
    assert source.class_names == ("no", "yes")
    assert source.X[:, source.feature_names.index("heat")].tolist() == [1.5, 0.25, -1000, 7]
    check(from_frame(frame(), COLUMNS))
    check(from_frame(pl.DataFrame(frame().to_dict("list")), COLUMNS))
    check(from_frame(frame().astype({"y": "category", "site": "category"}), COLUMNS))


def test_a_table_becomes_a_federation(tmp_path: Path) -> None:
    """The terminal column is followed and its names kept."""
    text = TEXT + TEXT.split("\n", 1)[1] * 3
    federation = federate(load(csv(tmp_path, text), COLUMNS))
    assert federation.terminal_names == ("d1", "d2", "d1", "d3")


def test_two_dimensional_arrays_of_npz_become_columns(tmp_path: Path) -> None:
    """An array X of an npz gives the features X0, X1 and so on."""
    np.savez(tmp_path / "t.npz", X=np.arange(6.0).reshape(3, 2), y=np.array([0, 1, 1]), task=np.array([1, 1, 2]))
    source = load(tmp_path / "t.npz")
    assert source.feature_names == ("X0", "X1")
    assert source.task_names == ("1", "2")


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["1", "0", "1", "10"], None, ("0", "1", "10")),
        (["1.5", "0.25", "2", "3"], None, ()),
        (["1", "0", "1", "0"], "regression", ()),
        (["1.5", "2.5", "1.5", "2.5"], "classes", ("1.5", "2.5")),
        (["a", "b", "c", "1"], None, ("1", "a", "b", "c")),
        (["True", "False", "True", "False"], None, ("False", "True")),
    ],
)
def test_the_kind_follows_the_labels_unless_it_is_said(
    tmp_path: Path, labels: list[str], kind: str | None, expected: tuple[str, ...]
) -> None:
    """Text and whole numbers are classes in their natural order, other numbers a regression."""
    lines = [f"{i % 2},{i},{label}" for i, label in enumerate(labels)]
    source = load(csv(tmp_path, "task,a,y\n" + "\n".join(lines)), Columns(kind=kind))
    assert source.class_names == expected


def test_many_whole_numbers_are_a_quantity(tmp_path: Path) -> None:
    """More than 20 different whole numbers make a regression, up to 20 classes, and a note says how to change it."""
    for different, kind, other in ((21, "regression", "classes"), (20, "classes", "regression")):
        path = csv(tmp_path, "task,a,y\n" + "\n".join(f"1,{i},{i % different}.0" for i in range(60)))
        source = load(path)
        assert source.kind == kind
        assert f"--kind {other}" in source.notes[0]
        assert load(path, Columns(kind=other)).kind == other


def test_columns_can_be_dropped_grouped_and_found_by_name(tmp_path: Path) -> None:
    """Dropped columns are no features, groups come from a column, and `terminal` is known by its name."""
    path = csv(tmp_path, "task,terminal,when,walk,a,y\n1,x,monday,3,0.5,0\n1,z,friday,4,0.5,1\n")
    source = load(path, Columns(drop="when", group="walk"))
    assert source.feature_names == ("a",)
    assert source.terminal_names == ("x", "z")
    assert source.group is not None
    assert source.group.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task;a;b;y\n1;4.677;0,886;0\n1;950;0,5;1\n", "'a' holds values like 4.677, read as fractions: .* write 4677"),
        ('task,a,b,y\n1,"7,912",1,0\n1,"8,111",2,1\n', "'a' holds numbers like '7,912', read as text: write 1234.5"),
        ("task;a;b;y\n1;4.677;0.886;0\n1;9.5;0.5;1\n", ""),
        ("task;a;b;y\n1;0.677;0,886;0\n1;4.677;0,5;1\n", ""),
    ],
)
def test_what_may_be_thousands_is_said(tmp_path: Path, text: str, says: str) -> None:
    """Marks that may part thousands are not guessed at: a note names the column; fractions get none."""
    notes = [note for note in load(csv(tmp_path, text)).notes if "thousands" in note]
    assert [bool(re.search(says, note)) for note in notes] == [True] * bool(says)


def test_large_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks join without a seam, and a bad value in a later block is found at its line."""
    monkeypatch.setattr("rhfedmtl.data.loaders.table_files.BLOCK_ROWS", 7)
    rows = [f"{i % 3},{i / 4},{i % 2}" for i in range(40)]
    source = load(csv(tmp_path, "task,a,y\n" + "\n".join(rows)))
    assert source.X[:, 0].tolist() == [i / 4 for i in range(40)]
    rows[30] = "0,oops,1"
    with pytest.raises(DataError, match=r"column 'a', line 32 holds 'oops'"):
        load(csv(tmp_path, "task,a,y\n" + "\n".join(rows)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task,a,y\n1,2,0\n1,3\n", r"line 3 has 2 fields, the header names 3"),
        ("task,a,y\n1,inf,0\n1,2,1\n", r"column 'a', line 2 holds inf: .*--na"),
        ("task,a,y\n1,1e-170,0\n1,-2e-170,1\n1,,1\n", r"column 'a' holds nothing beyond 2e-170: .*--drop"),
        ("task,a,y\n,2,0\n,2,1\n", r"column 'task', line 2 is empty, as is all of it"),
        ("task,a,y\n1,,0\n1,?,1\n", r"no feature columns beside y, task; 'a' is empty"),
        ("task,a,y\n" + "".join(f"1,{i},n{i}\n" for i in range(101)), r"column 'y' holds 101 different texts"),
        ("task,a,y\n" + "".join(f"1,{i},{i}.5\n" for i in range(30)) + "1,2,x\n", r"line 32 holds 'x' among numbers"),
        ("t\0a\0s\0k\0", r"UTF-16 without a byte order mark: save it as UTF-8"),
        ("task,a,a\n1,2,0\n", r"the column 'a' twice"),
        ("task,a,label\n1,2,0\n", r"has no column 'y': it has 'task', 'a', 'label'"),
        ("task,y\n1,0\n1,1\n", r"no feature columns"),
        ("task,a,y\n", r"a header and no rows"),
        ("", r"no header"),
        ("task,a,y\n1,2,0\n1,3,0\n", r"all rows have the class '0'"),
        ('task,a,y\n1,"2,0\n', r"cannot be read as CSV"),
    ],
)
def test_broken_tables_are_refused_with_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    """Every error names the file, the line or column, and what to do."""
    with pytest.raises(DataError, match=words) as caught:
        load(csv(tmp_path, text))
    assert "t.csv" in str(caught.value) or "class" in str(caught.value)


def test_missing_values_of_frames_are_named() -> None:
    """None, NaN and NA in features, labels and tasks are refused by row and column, where gaps are not allowed."""
    strict = replace(COLUMNS, missing="error")
    for column in ("heat", "y", "site", "noise"):
        broken = frame().astype({column: object})
        broken.loc[2, column] = None
        with pytest.raises(DataError, match=rf"column '{column}', row 2"):
            from_frame(broken, strict)
    masked = frame()
    masked["noise"] = pd.array([1, 2, pd.NA, 4], dtype="Int64")
    with pytest.raises(DataError, match=r"column 'noise', row 2"):
        from_frame(masked, strict)
    with pytest.raises(DataError, match=r"column 'noise', row 1"):
        from_frame(pl.DataFrame({**frame().to_dict("list"), "noise": [1, None, 2, 3]}), strict)
    dated = from_frame(frame().assign(noise=pd.to_datetime("2024-01-01")), COLUMNS)
    assert dated.feature_names == ("heat",)
    assert "left out: 'noise' holds dates" in " ".join(dated.notes)


def test_wrong_files_and_settings_are_refused(tmp_path: Path) -> None:
    """No file, an unknown ending, broken files and contradictory columns are errors."""
    with pytest.raises(DataError, match="needs --path"):
        load()
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "x.csv")
    with pytest.raises(DataError, match=r"ends in .xlsx"):
        load(tmp_path / "x.xlsx")
    for name in ("x.parquet", "x.npz"):
        (tmp_path / name).write_bytes(b"not this format")
        with pytest.raises(DataError, match="cannot be read as"):
            load(tmp_path / name)
    np.savez(tmp_path / "long.npz", a=np.ones(3), y=np.ones(2))
    with pytest.raises(DataError, match="as long as each other"):
        load(tmp_path / "long.npz")
    with pytest.raises(ConfigError, match="kind must be"):
        Columns(kind="ranking")
    with pytest.raises(ConfigError, match="one thing only"):
        Columns(label="y", task="y")
    with pytest.raises(ConfigError, match=r"most_values must be at least 0 .*, got -1"):
        Columns(most_values=-1)


def test_texts_can_be_left_out_and_labels_stay(tmp_path: Path) -> None:
    """How many values a text may have as a feature says nothing of labels that are texts."""
    text = "task,a,colour,y\n" + "".join(f"t,{i},c{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(8))
    source = load(csv(tmp_path, text), Columns(most_values=0))
    assert (source.feature_names, source.class_names) == (("a",), ("no", "yes"))


def test_a_column_of_a_category_type_is_coded_by_its_values() -> None:
    """Numbers may name them: the type of a frame says that they are no quantities."""
    frame = pd.DataFrame({"k": pd.Categorical([0, 1, 3, 0, 1, 3]), "y": [0, 1, 0, 0, 1, 0], "task": list("aabbab")})
    assert from_frame(frame).spelled == (("0", "1", "3"),)
