"""Tables as people have them: keys, gaps, texts, truth values, encodings, small tasks; what is done and said."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation, Source
from rhfedmtl.data.loaders import saved
from rhfedmtl.data.loaders.table import Columns, from_frame, load
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.roles.messages import EMPTY, ColumnsAgreed, ColumnsReport
from rhfedmtl.training.config import RunConfig


def write(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    return path


def rows(n: int, row: str, header: str = "task,a,y") -> str:
    """A table whose rows are ``row`` with i, i % 2 (b), i % 3 (c) and a random number (r) filled in."""
    random.seed(0)
    lines = [row.format(i=i, b=i % 2, c=i % 3, r=round(random.random(), 3)) for i in range(n)]
    return "\n".join([header, *lines]) + "\n"


def said(source: Source | Federation) -> str:
    return " | ".join(source.notes)


def test_keys_are_kept_as_written(tmp_path: Path) -> None:
    """01, 1 and 002 are three tasks, in the order of their numbers, and so are terminals."""
    keys = ["01", "1", "002"]
    text = "task,terminal,a,y\n" + "".join(f"{keys[i % 3]},{keys[i % 2]},{i},{i % 2}\n" for i in range(24))
    source = load(write(tmp_path, text))
    assert source.task_names == ("01", "1", "002")
    assert source.terminal_names == ("01", "1")


def test_whole_numbers_with_a_fraction_of_nothing_are_classes(tmp_path: Path) -> None:
    """0.0 and 1.0, as pandas writes labels with a gap, are the classes 0 and 1; rows without a label are left out."""
    source = load(write(tmp_path, rows(10, "t,{r},{b}.0") + "t,1,\nt,2,NA\n"))
    assert source.class_names == ("0", "1")
    assert len(source.X) == 10
    assert "2 of 12 rows have no 'y': left out, the first is line 12" in said(source)


def test_truth_values_are_numbers_among_features_and_classes_among_labels(tmp_path: Path) -> None:
    """True and False in CSV, as in Parquet."""
    source = load(write(tmp_path, "task,a,y\nt,True,False\nt,FALSE,True\nt,true,False\n"))
    assert source.X[:, 0].tolist() == [1.0, 0.0, 1.0]
    assert source.class_names == ("False", "True")
    assert "2 different truth values, taken as classes" in said(source)


@pytest.mark.parametrize("gap", ["", "?", "NA", "nan", "NULL", "#N/A", "."])
def test_a_gap_is_a_gap_however_it_is_written(tmp_path: Path, gap: str) -> None:
    """It is filled by the mean of the training rows, and a column says where it was."""
    source = load(write(tmp_path, rows(7, "t,{i},{b}") + f"t,{gap},1\n"))
    federation = federate(source, Split(test_fraction=0.0, terminals=1))
    assert federation.feature_names == ("a", "a missing")
    assert federation.X[-1].tolist() == [3.0, 1.0]
    assert not federation.X[:-1, 1].any()
    assert "1 gap in 'a': filled by the mean" in said(federation)


def test_own_words_can_stand_for_gaps(tmp_path: Path) -> None:
    """--na adds words; without it a word among many numbers is refused with this way out."""
    path = write(tmp_path, rows(30, "t,{i},{b}") + "t,unknown,1\n")
    with pytest.raises(DataError, match=r"column 'a', line 32 holds 'unknown' among numbers: .*--na 'unknown'"):
        load(path)
    assert np.isnan(load(path, Columns(na="unknown")).X).sum() == 1


def test_other_rules_for_gaps(tmp_path: Path) -> None:
    """Rows or columns with gaps are left out, or the first gap is named."""
    path = write(tmp_path, "task,a,b,y\nt,1,,0\nt,2,5,1\nt,3,6,0\n")
    dropped = load(path, Columns(missing="drop-rows"))
    assert dropped.X.tolist() == [[2, 5], [3, 6]]
    assert "1 of 3 rows have gaps in 'b' (--missing drop-rows): left out, the first is line 2" in said(dropped)
    narrow = load(path, Columns(missing="drop-columns"))
    assert narrow.feature_names == ("a",)
    assert "'b' has gaps" in said(narrow)
    with pytest.raises(DataError, match=r"column 'b', line 2 is empty: .*--missing mean"):
        load(path, Columns(missing="error"))
    with pytest.raises(DataError, match="nothing is left"):
        load(write(tmp_path, "task,a,b,y\nt,1,,0\nt,,5,1\n"), Columns(missing="drop-rows"))
    for wrong in ({"missing": "median"}, {"small_tasks": "merge"}):
        with pytest.raises(ConfigError, match=r"must be one of .*, got 'me"):
            Columns(**wrong)  # type: ignore[arg-type]


def test_the_number_of_a_row_is_no_feature(tmp_path: Path) -> None:
    """An index that pandas or R wrote is left out, and said; the same numbers under a name of their own stay."""
    for name, first in (("", 0), ("Unnamed: 0", 1), ("index", 0)):
        text = f"{name},task,a,y\n" + "".join(f"{i + first},t,{i * i},{i % 2}\n" for i in range(8))
        source = load(write(tmp_path, text))
        assert source.feature_names == ("a",)
        assert "counts the rows" in said(source)
    assert load(write(tmp_path, rows(8, "{i},t,{r},{b}", "day,task,a,y"))).feature_names == ("day", "a")


def test_the_number_of_a_row_is_no_feature_in_whatever_order(tmp_path: Path) -> None:
    """A frame that was sorted, shuffled or cut keeps its index, which may tell the labels; measurements stay."""
    for name in ("", "Unnamed: 0", "index"):
        text = f"{name},task,a,y\n" + "".join(f"{i * 37 % 101 + 5},t,{i * i},{i % 2}\n" for i in range(8))
        source = load(write(tmp_path, text))
        assert source.feature_names == ("a",)
        assert "counts the rows" in said(source)
    for cell in ("{b}", "{i}.5"):  # numbers that come again, or are not whole
        assert load(write(tmp_path, rows(8, f"{cell},t,{{r}},{{b}}", ",task,a,y"))).feature_names[0] == "Unnamed: 0"


def test_decimal_commas_where_commas_do_not_separate(tmp_path: Path) -> None:
    """Features and labels, with semicolons."""
    source = load(write(tmp_path, "task;a;y\nt;1,5;0,25\nt;2;1\nt;-3,25;1,75\n"))
    assert source.X[:, 0].tolist() == [1.5, 2.0, -3.25]
    assert source.y.tolist() == [0.25, 1.0, 1.75]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    """By the byte order mark, else UTF-8, else the old one of Windows with a note."""
    source = load(write(tmp_path, "straße,a,y\nKöln,1,0\nKöln,2,1\n", encoding), Columns(task="straße"))
    assert source.task_names == ("Köln",)
    assert ("Windows-1252" in said(source)) == (encoding == "latin-1")


def test_texts_become_a_column_for_each_value(tmp_path: Path) -> None:
    """Values of the training rows alone; another value is nothing of all that, and a gap is a value of its own."""
    source = load(write(tmp_path, "task,a,y\nt,red,0\nt,blue,1\nt,?,0\nt,green,1\n"))
    known = Preparation.learned(source.feature_names, source.X[:3], source.spelled)
    assert known.feature_names == ("a missing", "a=blue", "a=red")
    assert known.encode(source.X, source.spelled).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert "text in 'a'" in said(source)


def test_a_text_in_a_later_block_leaves_all_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """007 stays 007, although the first blocks looked like numbers."""
    monkeypatch.setattr("rhfedmtl.data.loaders.table_files.BLOCK_ROWS", 4)
    source = load(write(tmp_path, rows(12, "t,007,{b}") + "t,x,1\n"))
    assert source.spelled == (("007", "x"),)


def test_numbers_can_be_taken_as_text(tmp_path: Path) -> None:
    """--categories, for codes that are no quantities."""
    source = load(write(tmp_path, rows(9, "t,{c},{b}")), Columns(categories="a"))
    assert source.spelled == (("0", "1", "2"),)


def test_names_and_dates_are_left_out(tmp_path: Path) -> None:
    """Texts with more values than the limit, dates and empty columns are no features; the limit can be raised."""
    text = rows(120, "t,p{i},2024-01-{c}1,,{r},{b}", "task,id,day,nothing,a,y")
    source = load(write(tmp_path, text))
    assert source.feature_names == ("a",)
    for why in ("'id' holds 120 different texts, more than 100", "'day' holds dates", "'nothing' is empty"):
        assert why in said(source)
    assert dict(source.treatment)["id"].startswith("left out: holds 120 different texts")
    assert load(write(tmp_path, text), Columns(most_values=120)).feature_names == ("id", "a")


def test_small_tasks_are_kept_dropped_or_refused(tmp_path: Path) -> None:
    """A task of one row trains and is not tested, one of a single class stays; a note names both."""
    text = rows(40, "many,{r},{b}") + "lonely,1,0\n" + "same,1,0\n" * 8
    source = load(write(tmp_path, text))
    federation = federate(source)
    assert federation.task_names == ("lonely", "many", "same")
    assert np.diff(federation.test_offsets).tolist() == [0, 10, 2]
    assert np.diff(federation.task_offsets).tolist() == [1, 5, 5]
    assert "'lonely' has one training row; 'same' has one class in 6 training rows" in said(federation)
    result = RunConfig(budget=("energy=200",)).run(federation)
    assert np.isfinite(result.models).all()
    dropped = federate(replace(source, small_tasks="drop"))
    assert dropped.task_names == ("many",)
    assert "small tasks left out: 'lonely'" in said(dropped)
    with pytest.raises(DataError, match=r"task 'lonely' have the class '0'.*--small-tasks keep"):
        federate(replace(source, small_tasks="error"))
    with pytest.raises(DataError, match="every task has one row or one class"):
        federate(load(write(tmp_path, "task,a,y\nx,1,0\nz,1,1\n"), Columns(small_tasks="drop")))


def test_a_task_of_one_row_is_never_its_own_test(tmp_path: Path) -> None:
    """Even where half of the rows are for the test; and a balanced draw leaves a task of one class as it is."""
    text = rows(40, "many,{r},{b}") + "lonely,1,0\n" + "same,1,0\n" * 8
    federation = federate(load(write(tmp_path, text)), Split(test_fraction=0.6, positive="1"))
    assert np.diff(federation.test_offsets)[0] == 0
    assert np.diff(federation.terminal_offsets[federation.task_offsets])[0] == 1


def test_what_is_agreed_is_made_from_training_rows_and_charged(tmp_path: Path) -> None:
    """Fill values ignore test rows; round zero pays for counts, sums and vocabulary of every node."""
    text = rows(40, "t{b},{r},{c}x,{b}", "task,a,k,y") + "t0,,0x,1\n"
    federation = federate(load(write(tmp_path, text), Columns()), Split(terminals=2))
    known = federation.preparation
    assert known is not None
    present = federation.X[federation.X[:, federation.feature_names.index("a")] != known.fill[0], 0]
    assert known.fill[0] == pytest.approx(present.mean())
    plain = replace(federation, preparation=None)
    with_it, without = (RunConfig(budget=("energy=100",)).run(f).events[0] for f in (federation, plain))
    assert isinstance(with_it, RoundEvent)
    assert isinstance(without, RoundEvent)
    words = len(known.vocabulary)
    assert words > len("0x1x2x")
    # Two numbers for each of the two columns, beside the words, in a message each way, and an empty one for each.
    two = np.zeros(2)
    up, down = ColumnsReport(0, two, two, known.vocabulary).n_bytes, ColumnsAgreed(two, two, known.vocabulary).n_bytes
    assert with_it.bytes_up - without.bytes_up == pytest.approx(up + EMPTY, abs=2)
    assert with_it.bytes_down - without.bytes_down == pytest.approx(down + EMPTY, abs=2)
    assert min(up, down) > 2 * 2 * 8 + words


def test_under_masks_gaps_are_filled_from_sums_and_texts_are_refused(tmp_path: Path) -> None:
    """Counts and sums of columns go under masks, six words for each column; words could not."""
    gaps = rows(40, "t{b},{r},{b}", "task,a,y") + "t0,,1\n"
    config = RunConfig(budget=("energy=100",), options=Options(channel="masked"))
    federation = federate(load(write(tmp_path, gaps), Columns()), Split(terminals=4))
    told = [config.run(f).events[0] for f in (federation, replace(federation, preparation=None))]
    assert isinstance(told[0], RoundEvent)
    assert isinstance(told[1], RoundEvent)
    assert told[0].bytes_up - told[1].bytes_up > 8 * 3 * 2
    texts = rows(40, "t{b},{r},{c}x,{b}", "task,a,k,y")
    with pytest.raises(ConfigError, match="column 'k' holds texts"):
        config.run(federate(load(write(tmp_path, texts), Columns()), Split(terminals=4)))


def test_a_prepared_federation_can_be_saved(tmp_path: Path) -> None:
    """With how its features were made, and its notes."""
    federation = federate(load(write(tmp_path, rows(20, "t,{c}x,{b}"))), Split(terminals=2))
    saved.save(federation, tmp_path / "f")
    again = saved.load(tmp_path / "f")
    assert again.preparation is not None
    assert federation.preparation is not None
    assert again.preparation.to_dict() == federation.preparation.to_dict()
    assert again.notes == federation.notes
    assert again.fingerprint() == federation.fingerprint()


def test_quotes_and_line_breaks_in_cells(tmp_path: Path) -> None:
    """A cell in quotes may hold separators, quotes and line breaks; lines are counted through."""
    text = 'task,"a ""b""",c,y\n' + "".join(f't,{i},"one,\ntwo",{i % 2}\n' for i in range(6))
    source = load(write(tmp_path, text))
    assert source.feature_names == ('a "b"', "c")
    assert source.spelled == (None, ("one,\ntwo",))
    with pytest.raises(DataError, match="line 15 has 2 fields"):
        load(write(tmp_path, text + "\nt,1\n"))


def test_the_heart_table_is_used_as_it_is(real_file) -> None:  # type: ignore[no-untyped-def]
    """920 patients of four hospitals with 1,753 gaps: all rows, 13 columns and 10 that say where gaps were."""
    federation = federate(load(real_file("heart.csv"), Columns(label="num", task="center")))
    assert len(federation.X) + len(federation.test_X) == 920
    assert federation.n_features == 23
    assert federation.class_names == ("0", "1", "2", "3", "4")
    assert "1,753 gaps" in said(federation)


@pytest.mark.parametrize("cell", ["{i},{i:03}.50", "{i:03}'{i:03}", "${i}.5", "{i}.5%", "1 {i:03}", "{i},5"])
def test_numbers_that_are_dressed_up_are_named_as_such(tmp_path: Path, cell: str) -> None:
    """A column is not lost as so many texts without a word of why; plain codes that are taken as text are no such."""
    text = rows(120, f't,"{cell}",{{r}},{{b}}', "task,money,a,y")
    assert "'money' holds numbers like" in said(load(write(tmp_path, text)))
    few = said(load(write(tmp_path, rows(30, f't,"{cell}",{{r}},{{b}}', "task,money,a,y"))))
    assert "read as text: write 1234.5" in few
    with pytest.raises(DataError, match=r"is a number, write 1234\.5"):
        load(write(tmp_path, text), Columns(label="money", drop="y"))


def test_names_that_differ_in_case_alone_are_pointed_out(tmp_path: Path) -> None:
    """They stay two, as they may be meant; names that differ in more are not mentioned."""
    text = "task,a,y\n" + "".join(
        f"{task},{i},{y}\n" for i, (task, y) in enumerate([("s", "Yes"), ("S", "no"), ("s", "yes")])
    )
    source = load(write(tmp_path, text))
    assert source.class_names == ("Yes", "no", "yes")
    assert "labels 'Yes' and 'yes' differ only in case or in how a number is written" in said(source)
    assert "tasks 'S' and 's' differ only in case or in how a number is written" in said(source)
    assert "in case" not in said(load(write(tmp_path, rows(9, "t{b},{r},{c}"))))


def test_codes_and_versions_are_no_dressed_numbers(tmp_path: Path) -> None:
    """Nothing is said of whole numbers that are taken as text, of addresses and of versions."""
    text = rows(120, "t,1{i:04},10.0.0.{i},{r},{b}", "task,zip,address,a,y")
    assert "numbers like" not in said(load(write(tmp_path, text), Columns(categories="zip")))


def test_packed_files_are_unpacked_and_damaged_ones_named(tmp_path: Path) -> None:
    """``.csv.gz`` is read as the CSV in it."""
    text = rows(9, "t,{r},{b}")
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(text.encode("cp1252")))
    np.testing.assert_array_equal(load(packed).X, load(write(tmp_path, text)).X)
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be unpacked"):
        load(packed)


def test_lists_in_cells_are_left_out() -> None:
    """As Parquet files and frames may hold them."""
    frame = pd.DataFrame({"task": "t", "y": [0, 1], "a": [1.0, 2.0], "tags": [["x"], None], "box": [{"x": 1}, {}]})
    source = from_frame(frame)
    assert source.feature_names == ("a",)
    assert "'tags' holds lists or records" in said(source)


def test_a_frame_with_a_name_twice_is_refused() -> None:
    """As a file is."""
    frame = pd.DataFrame([["t", 0, 1.0, 2.0]], columns=["task", "y", "a", "a"])
    with pytest.raises(DataError, match="two columns 'a'"):
        from_frame(frame)


def test_a_misspelt_column_has_a_suggestion(tmp_path: Path) -> None:
    """The error names the column that is spelled nearly so, in training and in prediction."""
    rows = "\n".join(f"{i % 2},{i % 3},{0.5 * i}" for i in range(60))
    (tmp_path / "rain.csv").write_text(f"RainTomorrow,site,x\n{rows}\n")
    words = ["--path", str(tmp_path / "rain.csv"), "--out", str(tmp_path / "runs")]
    train = ["train", *words, "--task", "site", "--budget", "energy=200", "--label"]
    assert "did you mean RainTomorrow?" in str(CliRunner().invoke(app, [*train, "RainTomorow"]).exception)
    assert CliRunner().invoke(app, [*train, "RainTomorrow"]).exit_code == 0
    predict = ["predict", str(tmp_path / "runs"), *words[:2], "--label", "RainTomorow"]
    assert "did you mean RainTomorrow?" in str(CliRunner().invoke(app, predict).exception)


def test_a_column_that_numbers_the_rows_has_a_note(tmp_path: Path) -> None:
    """A whole number that differs in every row is a feature with a note; measurements and small tables have no note."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"y": np.arange(40) % 2, "task": np.arange(40) % 3, "x": rng.normal(size=40)})
    table["customer_id"] = rng.permutation(40) + 10_000
    source = from_frame(table)
    (note,) = (note for note in source.notes if "customer_id" in note)
    assert "another whole number in every row" in note
    assert "--drop" in note
    assert "customer_id" in source.feature_names
    table["customer_id"] //= 2
    assert not any("customer_id" in note for note in from_frame(table).notes)
    assert not any("every row" in note for note in from_frame(table[:20]).notes)


@pytest.mark.parametrize("written", ["{:.1f} mm", "{:.1f}mm", "{:.0f} km/h", "{:.1f} °C", "{:.1f} µg", "{:.0f} %"])
def test_numbers_with_a_unit_are_left_out_with_the_reason(written: str) -> None:
    """The note shows a cell and says how to write it."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"y": np.arange(300) % 2, "task": np.arange(300) % 3, "x": rng.normal(size=300)})
    table["rain"] = [written.format(value) for value in 1000 * rng.random(300)]
    (note,) = (note for note in from_frame(table).notes if note.startswith("left out"))
    assert f"'rain' holds numbers like {sorted(set(table['rain']))[0]!r}: write 1234.5, without marks" in note
    table["rain"] = [f"{i}{'ABC'[i % 3]}" for i in range(300)]
    (note,) = (note for note in from_frame(table).notes if note.startswith("left out"))
    assert "300 different texts" in note
