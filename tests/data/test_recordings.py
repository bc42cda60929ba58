"""Raw signals of people and devices become a table of windows: honest groups, right statistics, and plain errors."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rhfedmtl.cli.main import app
from rhfedmtl.data.loaders import watch
from rhfedmtl.data.loaders.recordings import Cut, read_folder, window_table
from rhfedmtl.data.loaders.table import Columns, load
from rhfedmtl.data.loaders.window_statistics import STATISTICS, feature_names, sensors, window_features
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import ConfigError, DataError

RATE = 20.0


def signal(seconds: float, seed: int = 0, rate: float = RATE) -> pd.DataFrame:
    """Time stamps and three axes; the first half walks at 2 Hz, the second half sits."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    walks = time < seconds / 2
    axes = {f"acc_{axis}": np.where(walks, np.sin(4 * np.pi * time + k), 0.0) for k, axis in enumerate("xyz")}
    noise = {name: values + 0.1 * rng.normal(size=len(time)) for name, values in axes.items()}
    return pd.DataFrame({"time": time, **noise, "activity": np.where(walks, "walk", "sit")})


def folder_of(folder: Path, **frames: pd.DataFrame) -> Path:
    """A folder with a CSV file for each frame."""
    folder.mkdir(exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def table(folder: Path, **settings: Any) -> dict[str, Any]:
    """The columns of the windows of a folder."""
    cut = Cut(**{"length": 2.0, **settings})
    return window_table(read_folder(folder, cut), cut).columns


def said(*words: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output if done.exception is None or done.exit_code == 0 else str(done.exception)


def test_raw_files_become_a_certified_model_in_two_commands(tmp_path: Path) -> None:
    """``data windows`` and ``train``; overlapping windows are of one group, which the split keeps together."""
    people = {f"person-{k}": signal(80, seed=k) for k in range(3)}
    folder_of(tmp_path / "raw", **people)
    out = tmp_path / "windows.csv"
    words = ["data", "windows", tmp_path / "raw", "--length", "2", "--label", "activity", "--group-length", "10"]
    status, text = said(*words, "--out", out, "--json")
    assert status == 0, text
    facts = json.loads(text)
    assert (facts["rate"], facts["samples"], facts["step"], facts["tasks"]) == (20.0, 40, 20, 3)
    assert facts["windows"] == 3 * 8 * 9
    assert facts["groups"] == 3 * 8
    source = load(out, Columns(label="activity", group="group"))
    assert source.task_names == ("person-0", "person-1", "person-2")
    assert source.group is not None
    split = federate(source, Split(grouped=True))
    assert split.group is not None
    status, text = said(
        *("train", "--path", out, "--label", "activity", "--task", "task", "--group", "group"),
        *("--out", tmp_path / "runs", "--budget", "energy=400", "--json"),
    )
    assert status == 0, text
    trained = json.loads(text)
    assert trained["gap"] < trained["primal_at_zero"]
    assert trained["accuracy"] > 0.9


def test_no_window_of_a_group_shares_a_sample_with_another_group(tmp_path: Path) -> None:
    """A channel that counts samples shows the span of a window: groups never overlap, for any way to cut."""
    frame = signal(60).assign(count=lambda rows: np.arange(len(rows), dtype=float))
    frame.loc[[500, 501, 502], "acc_x"] = np.nan
    folder = folder_of(tmp_path / "raw", solo=frame)
    variants: list[dict[str, Any]] = [{}, {"group_length": 7.0}, {"cut_labels": True}]
    for variant in variants:
        columns = table(folder, gaps="split", step=0.25, label="activity", statistics=("least", "greatest"), **variant)
        spans: dict[str, tuple[float, float]] = {}
        for group, low, high in zip(
            columns["group"], columns["least of count"], columns["greatest of count"], strict=True
        ):
            assert high - low == pytest.approx(39.0), "a window has 40 samples and spans no gap"
            before = spans.get(group, (low, high))
            spans[group] = min(low, before[0]), max(high, before[1])
        ends = sorted(spans.values())
        assert all(first[1] < second[0] for first, second in pairwise(ends))
        assert len(ends) > 1


def test_statistics_are_what_their_names_say() -> None:
    """Each column is checked against a formula of its own."""
    rng = np.random.default_rng(0)
    series = rng.normal(size=(50, 4))
    series[:, 3] = -2.0 * series[:, 0]
    channels = ["ax", "ay", "az", "heat"]
    parts = sensors(channels)
    assert parts == [[0, 1, 2], [3]]
    names = feature_names(channels, 20.0, parts)
    rows = dict(zip(names, window_features(series, 40, 10, 20.0, parts).T, strict=True))
    window, length = series[10:50], np.linalg.norm(series[10:50, :3], axis=1)
    for name, values in {"ax": window[:, 0], "heat": window[:, 3], "|axayaz|": length}.items():
        quartiles = np.percentile(values, [25, 50, 75])
        expected = {
            "mean": values.mean(),
            "spread": values.std(),
            "least": values.min(),
            "greatest": values.max(),
            "lower quartile": quartiles[0],
            "median": quartiles[1],
            "upper quartile": quartiles[2],
            "quartile range": quartiles[2] - quartiles[0],
            "energy": np.mean(values**2),
            "roughness": np.mean(np.abs(np.diff(values))),
        }
        for kind, value in expected.items():
            assert rows[f"{kind} of {name}"][1] == pytest.approx(value), (kind, name)
    assert rows["correlation of ax and ay"][1] == pytest.approx(np.corrcoef(window[:, 0], window[:, 1])[0, 1])
    assert "correlation of ax and heat" not in rows
    assert len(names) == len(set(names))
    assert {kind for kind in STATISTICS if any(name.startswith(kind) for name in names)} == set(STATISTICS)


@pytest.mark.parametrize("names", [("acc_x", "acc_y", "acc_z"), ("x acc", "y acc", "z acc"), ("X", "Y", "Z")])
def test_three_axes_are_found_by_their_names(names: tuple[str, str, str]) -> None:
    """Other channels, and axes without all three, are of no sensor."""
    assert sensors([names[1], "heat", names[0], names[2], "wx"]) == [[2, 0, 3], [1, 4]]


def test_uneven_time_stamps_are_resampled(tmp_path: Path) -> None:
    """A ramp stays a ramp at any distances of its samples; the rate is native or requested."""
    rng = np.random.default_rng(0)
    time = np.sort(np.arange(400) / 20.0 + rng.uniform(-0.01, 0.01, 400))
    folder = folder_of(tmp_path / "raw", a=pd.DataFrame({"time": time, "ramp": 3.0 * time, "flat": 1.0}))
    for rate, samples in ((None, 40), (50.0, 100)):
        columns = table(folder, rate=rate, statistics=("least", "greatest", "roughness"))
        reach = columns["greatest of ramp"] - columns["least of ramp"]
        np.testing.assert_allclose(reach, 3.0 * (samples - 1) / (rate or 20.0), rtol=1e-6)
        np.testing.assert_allclose(columns["roughness of ramp"], 3.0 / (rate or 20.0), rtol=1e-6)


def test_formats_of_time_give_the_same_windows(tmp_path: Path) -> None:
    """Seconds, milliseconds, texts, Parquet dates and rows without time but with a rate."""
    frame = signal(20).drop(columns="activity")
    stamps = pd.Timestamp("2024-05-01T12:00:00") + pd.to_timedelta(frame["time"], unit="s")
    variants: dict[str, tuple[Any, dict[str, Any]]] = {
        "ms": (frame.assign(time=(frame["time"] * 1000).round().astype(int)), {"unit": "ms"}),
        "text": (frame.assign(time=[stamp.isoformat() for stamp in stamps]), {}),
        "parquet": (frame.assign(time=stamps), {}),
        "clock": (frame.rename(columns={"time": "clock"}), {"time": "clock"}),
        "none": (frame.drop(columns="time"), {"rate": RATE}),
    }
    expected = table(folder_of(tmp_path / "s", a=frame))
    for name, (variant, settings) in variants.items():
        folder = tmp_path / name
        folder.mkdir()
        if name == "parquet":
            variant.to_parquet(folder / "a.parquet")
        else:
            variant.to_csv(folder / "a.csv", index=False)
        columns = table(folder, **settings)
        assert columns.keys() == expected.keys(), name
        for column in list(expected)[2:]:
            np.testing.assert_allclose(columns[column], expected[column], rtol=1e-6, atol=1e-9, err_msg=name)


def test_windows_get_the_most_frequent_label_or_the_mean(tmp_path: Path) -> None:
    """Windows over a change of label, windows without a label, and labels that are numbers."""
    frame = signal(10)  # walks for 100 samples
    frame["pulse"] = np.linspace(60.0, 80.0, len(frame))
    folder = folder_of(tmp_path / "raw", solo=frame)
    labels = table(folder, label="activity", drop=("pulse",), step=1.5)["activity"]
    assert labels == ["walk"] * 3 + ["sit"] * 3  # the third window, 3.0 to 5.0 s, walks; the fourth, 4.5 to 6.5 s, sits
    pulse = table(folder, label="pulse", drop=("activity",))["pulse"]
    np.testing.assert_allclose(pulse, [frame["pulse"][20 * k : 20 * k + 40].mean() for k in range(9)])
    frame.loc[frame["activity"] == "sit", "activity"] = None
    folder_of(folder, solo=frame)
    columns = window_table(read_folder(folder, cut := Cut(length=2.0, label="activity", drop=("pulse",))), cut)
    assert columns.columns["activity"] == ["walk"] * 4
    assert any("no label" in note for note in columns.notes)


def test_tasks_come_from_files_folders_or_a_column(tmp_path: Path) -> None:
    """A file is a task, a folder of files too; a column overrides both, and may hold several tasks in a file."""
    folder = folder_of(tmp_path / "raw", ann=signal(10))
    folder_of(folder / "bob", monday=signal(10, 1), tuesday=signal(10, 2))
    columns = table(folder, drop=("activity",))
    assert sorted(set(columns["task"])) == ["ann", "bob"]
    assert sorted(set(columns["group"])) == ["ann/1", "bob/monday/1", "bob/tuesday/1"]
    both = pd.concat([signal(10).assign(who="eve", bag=1), signal(10, 1).assign(who="joe", bag=1)])
    columns = table(folder_of(tmp_path / "all", both=both), task="who", group="bag", drop=("activity",))
    assert sorted(set(columns["who"])) == ["eve", "joe"]
    assert sorted(set(columns["bag"])) == ["eve/1", "joe/1"]


def test_notes_tell_what_was_left_out(tmp_path: Path) -> None:
    """A recording shorter than a window, recordings of another rate, and a task with a single group."""
    folder = folder_of(tmp_path / "raw", long=signal(20), short=signal(1), fast=signal(20, rate=40.0))
    cut = Cut(length=2.0, label="activity")
    notes = " ".join(window_table(read_folder(folder, cut), cut).notes)
    assert "shorter than a window" in notes
    assert "rates from 20 to 40 Hz" in notes
    assert "--group-length" in notes


GOOD = signal(10)


@pytest.mark.parametrize(
    ("frame", "settings", "words"),
    [
        (GOOD.drop(index=range(50, 110)), {}, ("line 51", "line 52", "no samples for 3.05 s", "--gaps split")),
        (GOOD.assign(acc_x=GOOD["acc_x"].mask(GOOD.index == 7)), {}, ("line 8", "line 10", "--max-gap 0.1")),
        (GOOD.iloc[::-1], {}, ("line 3", "earlier than the row before", "sort the file")),
        (GOOD.assign(time=GOOD["time"].where(GOOD.index != 5, GOOD["time"][4])), {}, ("line 7", "same time")),
        (GOOD.assign(time=["x", *GOOD["time"][1:]]), {}, ("line 2", "'x'", "no time stamp")),
        (GOOD.drop(columns="time"), {}, ("--time", "--rate")),
        (GOOD, {"time": "clock"}, ("no column 'clock'",)),
        (GOOD, {"label": "activty"}, ("no column 'activty'", "did you mean activity?")),
        (GOOD, {"drop": ("nothing",)}, ("no file has a column 'nothing'",)),
        (GOOD, {"drop": ()}, ("'activity'", "--drop")),
        (GOOD[["time", "activity"]], {}, ("no channels",)),
        (signal(1), {}, ("shorter than 2 s", "--length")),
    ],
)
def test_files_that_cannot_be_cut_are_refused_in_plain_words(
    tmp_path: Path, frame: pd.DataFrame, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    """The message names the file, the line or column, and the way out."""
    folder = folder_of(tmp_path / "raw", solo=frame)
    defaults: dict[str, Any] = {} if "label" in settings else {"drop": ("activity",)}
    with pytest.raises(DataError) as error:
        table(folder, **{**defaults, **settings})
    for word in words:
        assert word in str(error.value)


def test_the_ways_out_of_gaps_work(tmp_path: Path) -> None:
    """Follow both proposals in the message of a gap: split at it, or interpolate across it."""
    folder = folder_of(tmp_path / "raw", solo=GOOD.drop(index=range(50, 110)))
    split = table(folder, gaps="split", drop=("activity",))
    assert len(set(split["group"])) == 2
    filled = table(folder, max_gap=3.06, drop=("activity",))
    assert len(set(filled["group"])) == 1
    assert len(filled["task"]) > len(split["task"])


def test_the_advised_longest_gap_is_enough(tmp_path: Path) -> None:
    """With the advice of the first message, no gap of any recording is refused."""
    rng = np.random.default_rng(0)
    jittered = GOOD.assign(time=GOOD["time"] + rng.uniform(-0.02, 0.02, len(GOOD)))
    folder = folder_of(tmp_path / "raw", a=jittered, b=jittered.drop(index=[60, 61]), c=signal(40, rate=5.0))
    steps = [np.diff(frame["time"]) for frame in (jittered, jittered.drop(index=[60, 61]))]
    count = sum(int(np.sum(many > 1.5 * np.median(many))) for many in steps)
    with pytest.raises(DataError, match=rf"gaps in all: {count}\)") as error:
        table(folder, label="activity")
    max_gap = float(str(error.value).rpartition(" ")[2])
    assert max_gap == pytest.approx(0.2, rel=0.01), "the longest step of all, of the slow recording"
    assert set(table(folder, label="activity", max_gap=max_gap)["task"]) == {"a", "b", "c"}


def test_a_gap_of_empty_cells_names_their_columns(tmp_path: Path) -> None:
    """The message names the columns with empty cells between the two lines, and no others."""
    holes = GOOD.assign(acc_x=GOOD["acc_x"].mask(GOOD.index == 7), acc_y=GOOD["acc_y"].mask(GOOD.index == 8))
    holes["acc_z"] = GOOD["acc_z"].mask(GOOD.index == 90)
    folder = folder_of(tmp_path / "raw", solo=holes)
    with pytest.raises(DataError, match=r"line 8 and line 11 \(empty cells in 'acc_x', 'acc_y'; usually"):
        table(folder, label="activity")
    folder_of(folder, solo=holes.drop(index=[3, 4]))
    with pytest.raises(DataError, match=r"line 4 and line 5 \(usually"):
        table(folder, label="activity")


@pytest.mark.parametrize("rate", [None, RATE])
def test_columns_that_are_empty_in_all_rows_are_named(tmp_path: Path, rate: float | None) -> None:
    """With the advised ``--drop``, which keeps the columns already dropped, the folder can be cut."""
    empty = GOOD.assign(void=np.nan, text="x", hollow=np.nan)
    folder = folder_of(tmp_path / "raw", a=empty, b=empty)
    with pytest.raises(DataError, match="no row has a value in 'void', 'hollow'") as error:
        table(folder, label="activity", drop=("text",), rate=rate)
    names = str(error.value).rpartition("--drop ")[2]
    assert names == "text,void,hollow"
    assert len(table(folder, label="activity", drop=tuple(names.split(",")), rate=rate)["task"]) == 18


def test_stamps_in_milliseconds_that_are_read_as_seconds_are_named(tmp_path: Path) -> None:
    """A rate below 1 Hz from the time stamps leads to ``--unit ms``, and this option is enough."""
    folder = folder_of(tmp_path / "raw", solo=GOOD.assign(time=GOOD["time"] * 1000.0))
    with pytest.raises(ConfigError, match="--unit ms if the time stamps are milliseconds"):
        table(folder, label="activity")
    assert len(table(folder, label="activity", unit="ms")["task"]) == 9
    with pytest.raises(ConfigError) as error:
        table(folder, label="activity", rate=0.5)
    assert "--unit" not in str(error.value), "the rate is not that of the time stamps"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 0.5, "drop": ("activity",)}, "needs at least 16"),
        ({"length": -1.0}, "--length must be a finite number above 0"),
        ({"unit": "h"}, "--unit must be a word of"),
        ({"gaps": "fill"}, "--gaps must be a word of"),
        ({"statistics": ("means",)}, "did you mean mean?"),
        ({"group": "activity", "group_length": 5.0}, "choose"),
        ({"cut_labels": True}, "--cut-labels needs --label"),
        ({"label": "activity", "group": "activity"}, "has two roles"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    """The message names the option, its value and the rule."""
    folder = folder_of(tmp_path / "raw", solo=GOOD)
    with pytest.raises(ConfigError, match=words):
        table(folder, **settings)


def test_folders_without_recordings_and_unlike_files_are_refused(tmp_path: Path) -> None:
    """Try a missing folder, an empty folder, and files with different channels."""
    with pytest.raises(DataError, match="is no folder"):
        table(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.docx").write_text("")
    with pytest.raises(DataError, match="holds no recordings"):
        table(tmp_path / "empty")
    folder = folder_of(tmp_path / "raw", a=GOOD, b=GOOD.rename(columns={"acc_z": "acc_q"}))
    with pytest.raises(DataError, match=r"other channels, such as 'acc_q', 'acc_z'"):
        table(folder, label="activity")


def test_the_table_is_not_written_into_the_folder_of_recordings(tmp_path: Path) -> None:
    """The next call would read it as a recording."""
    folder = folder_of(tmp_path / "raw", solo=GOOD)
    status, text = said("data", "windows", folder, "--label", "activity", "--out", folder / "windows.csv")
    assert status != 0
    assert "write elsewhere" in text
    assert not (folder / "windows.csv").exists()


def test_the_raw_series_of_the_watch_give_the_features_of_its_loader(tmp_path: Path) -> None:
    """Files as a watch writes them, a file for each person: the same windows, groups, labels and statistics."""
    try:
        path = watch.fetch()
    except DataError as error:
        pytest.skip(f"the watch data is not to be had: {error}")
    series, source = watch.read(path), watch.load(path)
    people = sorted(set(np.asarray(series["subject"]).tolist()))[:2]
    (tmp_path / "raw").mkdir()
    for person in people:
        with (tmp_path / "raw" / f"person-{person}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["time", "recording", "arm", "exercise", *series["X_labels"]])
            for i in np.flatnonzero(np.asarray(series["subject"]) == person).tolist():
                own = [i, ("left", "right")[int(series["side"][i])], series["y_labels"][series["y"][i]]]
                rows.writerows([k / 50, *own, *row] for k, row in enumerate(series["X"][i].tolist()))
    columns = table(
        tmp_path / "raw",
        length=2.56,
        label="exercise",
        terminal="arm",
        group="recording",
        statistics=watch.STATISTICS,
    )
    names = list(columns)[4:]
    assert tuple(names) == source.feature_names
    ours = np.column_stack([columns[name] for name in names])
    keep = np.isin(np.array(source.task_names)[source.task], [f"person-{person}" for person in people])
    assert len(ours) == keep.sum()
    theirs = source.X[keep].astype(np.float64)
    order, loader_order = (np.lexsort(np.round(X[:, :6].T, 3)) for X in (ours, theirs))
    np.testing.assert_allclose(ours[order], theirs[loader_order], rtol=1e-3, atol=1e-3)
    labels = np.array(source.class_names)[source.y[keep]]
    assert np.array_equal(np.array(columns["exercise"])[order], labels[loader_order])
    assert len(set(columns["recording"])) == 28
