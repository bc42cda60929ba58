"""Turn raw signals into a table: cut recordings of people or devices into windows, and describe each window.

`read_folder` reads the files, `window_table` cuts and describes them, and `write` saves the table, which
`loaders.table` reads for training. `rhfedmtl data windows` calls them in this order. `window_statistics` has the
statistics.

A stretch is a part of a recording without gaps. Windows never leave their stretch, and overlap only within their group.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import ROUND_CEILING, Context
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.loaders import cells, table_files
from rhfedmtl.data.loaders.cells import Array, Float64Array
from rhfedmtl.data.loaders.table import Columns, is_index, listing
from rhfedmtl.data.loaders.window_statistics import (
    LEAST_SAMPLES,
    STATISTICS,
    feature_names,
    sensors,
    window_features,
)
from rhfedmtl.errors import ConfigError, DataError, MissingExtraError, nearest
from rhfedmtl.files import replacing

IntArray = npt.NDArray[np.int64]
ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
TIME, TASK, GROUP, LABEL = "time", "task", "group", "label"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ON_GAPS = ("error", "split")
MISSED = 1.5
"""Steps without a sample that count as a gap: from here on the nearest whole number of steps is two or more."""
WHOLE_STEP = 1e-6
"""Times may be this part of a step too short, because they are written with few digits."""
RATE_DIGITS = 3
"""Digits of a sampling rate from time stamps: folders of the same device then have the same rate."""


@dataclass(frozen=True)
class Cut:
    """Windows of raw signals, and the roles of the columns.

    Parameters
    ----------
    length, step
        Seconds of a window, and from the start of a window to the next; by default half of the length.
    rate
        Samples per second. With time stamps, series are resampled to it by linear interpolation (by default their own
        usual rate). Without time stamps, it is the rate of the rows.
    time, unit
        Column of time stamps (numbers, dates or texts as in ISO 8601), and the unit of numbers. By default the column
        ``time``, if it exists.
    gaps
        Treatment of a longer time without samples: ``error``, or ``split`` into stretches on both sides.
    max_gap
        Longest time in seconds across which series are interpolated; by default, less than two samples may be missing.
    label
        Column of labels. A window gets its most frequent label, or the mean of numbers.
    task, terminal, group
        Columns of tasks, terminals and groups. By default, a file or a folder of files is a task, and each stretch of
        a file is a group.
    group_length
        Cut stretches into parts of this many seconds, each of them a group.
    cut_labels
        Cut stretches where the label changes; each part is a group.
    drop
        Columns to leave out.
    statistics
        Names of ``STATISTICS``.
    """

    length: float = 2.56
    step: float | None = None
    rate: float | None = None
    time: str | None = None
    unit: str = "s"
    gaps: str = "error"
    max_gap: float | None = None
    label: str | None = None
    task: str | None = None
    terminal: str | None = None
    group: str | None = None
    group_length: float | None = None
    cut_labels: bool = False
    drop: tuple[str, ...] = ()
    statistics: tuple[str, ...] = tuple(STATISTICS)

    def __post_init__(self) -> None:
        """Refuse lengths that are not positive, unknown words, and columns with two roles."""
        for name in ("length", "step", "rate", "max_gap", "group_length"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')} must be a finite number above 0, got {value:g}")
        for name, choices in (("unit", UNITS), ("gaps", ON_GAPS)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"--{name} must be a word of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in self.statistics:
            if name not in STATISTICS:
                raise ConfigError(
                    f"unknown statistic {name!r}: choose from {', '.join(STATISTICS)}{nearest(name, STATISTICS)}"
                )
        if not self.statistics:
            raise ConfigError(f"--statistics needs a name of {', '.join(STATISTICS)}")
        if self.cut_labels and self.label is None:
            raise ConfigError("--cut-labels needs --label: name the column of labels")
        if self.group is not None and (self.group_length is not None or self.cut_labels):
            raise ConfigError("--group names the groups, --group-length and --cut-labels make them: choose")
        named = [name for name in (self.time, *self.roles().values()) if name is not None]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ConfigError(f"column {twice!r} has two roles: name it once")

    def roles(self) -> dict[str, str]:
        """Return the named columns of labels, tasks, terminals and groups by their role."""
        roles = {name: getattr(self, name) for name in (LABEL, TASK, "terminal", GROUP)}
        return {role: name for role, name in roles.items() if name is not None}

    def training_options(self) -> str:
        """Return the options of `rhfedmtl train` for the table."""
        terminal = f" --terminal {self.terminal}" if self.terminal else ""
        return f"--label {self.label} --task {self.task or TASK} --group {self.group or GROUP}{terminal}"


@dataclass(frozen=True, eq=False)
class Recording:
    """Rows of a file that belong to the same task, terminal and group, in their order.

    ``lines`` are the positions in the file, for messages; ``label`` are codes or numbers of the rows, −1 or NaN for a
    gap. Rows with an empty cell in a channel are missing here; ``empty`` marks the empty cells of all rows.
    """

    where: str
    name: str
    task: str
    terminal: str | None
    group: str | None
    time: Float64Array
    channels: Float64Array
    label: Array | None
    lines: tuple[str, ...] | list[str]
    empty: npt.NDArray[np.bool_]

    @property
    def step(self) -> float:
        """Usual time from a sample to the next."""
        return float(np.median(np.diff(self.time))) if len(self.time) > 1 else float("nan")

    def gaps(self, cut: Cut) -> IntArray:
        """Return the positions of the samples before gaps."""
        longest = cut.max_gap if cut.max_gap is not None else MISSED * self.step
        return np.flatnonzero(np.diff(self.time) > longest)


class Stretch(NamedTuple):
    """A part of a recording without gaps, at equal distances, with the name of its group."""

    recording: Recording
    group: str
    series: Float64Array
    label: Array | None


@dataclass(frozen=True, eq=False)
class Recordings:
    """Recordings of a folder, the names of their channels, and the names of label classes (empty for numbers)."""

    recordings: tuple[Recording, ...]
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    files: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class WindowTable:
    """Columns of the table of windows, and facts about it: the first columns are task, group, terminal and label."""

    columns: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_folder(folder: Path, cut: Cut) -> Recordings:
    """Read all files of a folder; a file in it is a task, and so are all files of a folder in it."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: name the folder with a CSV or Parquet file for each person or device")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name.lower().endswith(ENDINGS)]
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not files:
        raise DataError(f"{folder} holds no recordings: put files in it that end in {', '.join(ENDINGS)}")
    readings = [_Reading(path, path.relative_to(folder), cut) for path in files]
    first = readings[0]
    for name in cut.drop:
        if not any(name in reading.table.columns for reading in readings):
            columns = first.table.columns
            raise DataError(
                f"no file has a column {name!r} to drop: {first.path} has {listing(list(columns))}"
                f"{nearest(name, columns)}"
            )
    for reading in readings:
        if set(reading.channels) != set(first.channels):
            different = sorted(set(reading.channels) ^ set(first.channels))
            raise DataError(
                f"{reading.path} and {first.path} have other channels, such as {listing(different)}: write them "
                "alike, or leave columns out with --drop"
            )
    classes, codes = _labels(readings, cut)
    recordings = [part for reading, label in zip(readings, codes, strict=True) for part in reading.parts(label, first)]
    return Recordings(tuple(recordings), tuple(first.channels), classes, len(files))


class _Reading:
    """A file with the roles of its columns."""

    def __init__(self, path: Path, inside: Path, cut: Cut) -> None:
        self.path, self.inside, self.cut = path, inside, cut
        roles = cut.roles()
        self.table = table_files.read(path, [*roles.values()])
        columns = self.table.columns
        time = cut.time or (TIME if TIME in columns else None)
        for name in [*([cut.time] if cut.time else []), *roles.values()]:
            if name not in columns:
                hint = nearest(name, columns)
                raise DataError(f"{path} has no column {name!r}: it has {listing(list(columns))}{hint}")
        self.time = time
        without_signal = {time, *roles.values(), *cut.drop}
        self.channels = [name for name in columns if name not in without_signal and not is_index(name, columns[name])]
        if not self.channels:
            raise DataError(
                f"{path} has no channels besides {listing([name for name in columns if name in without_signal])}"
            )
        if time is None and cut.rate is None:
            raise DataError(
                f"{path} has no column {TIME!r}: name the column of time stamps with --time, or give the samples per "
                "second with --rate"
            )

    def parts(self, label: Array | None, like: _Reading) -> Iterator[Recording]:
        """Yield the recordings of the file, with the channels in the order of ``like``."""
        table, cut = self.table, self.cut
        series = np.column_stack([self._channel(name) for name in like.channels])
        keys = {role: self._key(name) for role, name in cut.roles().items() if role != LABEL}
        change = np.zeros(len(series), dtype=np.bool_)
        for words in keys.values():
            change[1:] |= words[1:] != words[:-1]
        starts = np.flatnonzero(np.concatenate([[True], change[1:]]))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(series)], strict=True):
            rows = np.arange(start, end)
            time = rows / cut.rate if self.time is None else self._seconds(rows)
            empty = np.isnan(series[start:end])
            rows = rows[~empty.any(axis=1)]
            stem = self.inside.name.removesuffix(table_files.GZIP)
            name = self.inside.with_name(Path(stem).stem)
            task = str(keys[TASK][start]) if TASK in keys else name.parts[0]
            yield Recording(
                str(self.path),
                name.as_posix(),
                task,
                str(keys["terminal"][start]) if "terminal" in keys else None,
                f"{task}/{keys[GROUP][start]}" if GROUP in keys else None,
                time[rows - start],
                series[rows],
                None if label is None else label[rows],
                [table.place(row) for row in rows.tolist()],
                empty,
            )

    def _channel(self, name: str) -> Float64Array:
        """Return a column of numbers, with NaN for empty cells."""
        table = self.table
        try:
            column, where = table.columns[name], f"{self.path}, column {name!r}"
            return cells.numbers_or_gaps(column, table.notation, where, table.place)
        except DataError as error:
            raise DataError(f"{error}; leave out a column that is no signal with --drop") from None

    def _key(self, name: str) -> Array:
        """Return the names in a column of tasks, terminals or groups."""
        words = cells.spelled(self.table.columns[name])
        if None in words:
            place = self.table.place(words.index(None))
            raise DataError(f"{self.path}, column {name!r}, {place} is empty: fill it or drop the row")
        return np.array(words, dtype=object)

    def _seconds(self, rows: IntArray) -> Float64Array:
        """Return the time stamps of rows in seconds; refuse times that do not rise."""
        assert self.time is not None
        column, where = self.table.columns[self.time][rows], f"{self.path}, column {self.time!r}"

        def place(row: int) -> str:
            return self.table.place(int(rows[row]))

        if column.dtype.kind == "M":
            time = (column - column[0]) / np.timedelta64(1, "s")
        elif self.table.notation.numbers([str(column[0])]) is None:
            time = _dates(column, where, place)
        else:
            time = cells.needed_numbers(column, self.table.notation, where, place) * UNITS[self.cut.unit]
        if np.isnan(time).any():
            raise DataError(f"{where}, {place(int(np.isnan(time).argmax()))} is empty: fill it or drop the row")
        falls = np.flatnonzero(np.diff(time) <= 0.0)
        if len(falls):
            row = int(falls[0]) + 1
            again = (
                "has the same time as the row before"
                if time[row] == time[row - 1]
                else "is earlier than the row before"
            )
            raise DataError(
                f"{where}, {place(row)} {again} ({column[row]}, {column[row - 1]}): sort the file by time and leave "
                "repeated rows out; if the file holds several recordings, name the column that tells them apart with "
                "--group"
            )
        return np.asarray(time, dtype=np.float64)


def _dates(column: Array, where: str, place: cells.Place) -> Float64Array:
    """Return texts as in ISO 8601 in seconds from the first."""
    seconds, first = np.empty(len(column)), None
    for row, text in enumerate(column.tolist()):
        try:
            moment = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
            first = first or moment
            seconds[row] = (moment - first).total_seconds()
        except (ValueError, TypeError):
            raise DataError(
                f"{where}, {place(row)} holds {text!r}, which is no time stamp like the others: write numbers, or "
                "dates as in 2024-05-01T12:00:00.25"
            ) from None
    return seconds


def _labels(readings: Sequence[_Reading], cut: Cut) -> tuple[tuple[str, ...], list[Array | None]]:
    """Return the names of the classes, and the labels of each file: codes with −1 for a gap, or numbers."""
    if cut.label is None:
        return (), [None] * len(readings)
    columns = [reading.table.columns[cut.label] for reading in readings]
    ends = np.cumsum([len(column) for column in columns])

    def place(row: int) -> str:
        k = int(np.searchsorted(ends, row, side="right"))
        return f"{readings[k].path}, {readings[k].table.place(row - int(ends[k] - len(columns[k])))}"

    joined = np.concatenate([column.astype(object) for column in columns])
    labels = cells.labels(joined, readings[0].table.notation, None, Columns.most_values, f"column {cut.label!r}", place)
    return labels.class_names, list(np.split(labels.y, ends[:-1]))


def window_table(recordings: Recordings, cut: Cut) -> WindowTable:
    """Cut all recordings into windows, and describe each window by statistics."""
    rate, rates = _rate(recordings, cut)
    length, step = _samples(cut, rate)
    channels = recordings.channels
    parts = sensors(channels)
    task, group = cut.task or TASK, cut.group or GROUP
    keys = [name for name in (task, group, cut.terminal, cut.label) if name is not None]
    if twice := next((name for name in keys if keys.count(name) > 1), None):
        raise ConfigError(
            f"the table of windows would have two columns {twice!r}: rename the column, or name that of its tasks or "
            "groups with --task or --group"
        )
    names: dict[str, list[Any]] = {name: [] for name in keys}
    features, short, unlabelled = list[Float64Array](), 0, 0
    for stretch in _stretches(recordings, cut, rate):
        if len(stretch.series) < length:
            short += 1
            continue
        rows = window_features(stretch.series, length, step, rate, parts, cut.statistics)
        labels = _window_labels(stretch.label, recordings.classes, length, step)
        keep = np.array([label is not None for label in labels]) if cut.label else np.ones(len(rows), dtype=np.bool_)
        unlabelled += int(np.sum(~keep))
        count, recording = int(keep.sum()), stretch.recording
        features.append(rows[keep])
        names[task] += [recording.task] * count
        names[group] += [stretch.group] * count
        if cut.terminal is not None:
            names[cut.terminal] += [recording.terminal] * count
        if cut.label is not None:
            names[cut.label] += [label for label in labels if label is not None]
    X = np.concatenate(features) if features else np.empty((0, 0))
    if not len(X):
        why = f"all {unlabelled} windows have no label" if unlabelled else f"all are shorter than {cut.length:g} s"
        raise DataError(f"no window in {recordings.files} files: {why}; give a smaller --length or other --label")
    groups: dict[str, set[str]] = {}
    for name, member in zip(names[task], names[group], strict=True):
        groups.setdefault(name, set()).add(member)
    columns = names | dict(zip(feature_names(channels, rate, parts, cut.statistics), X.T, strict=True))
    notes = [*recordings.notes]
    if len({f"{value:.{RATE_DIGITS}g}" for value in rates}) > 1:
        notes.append(f"rates from {min(rates):.3g} to {max(rates):.3g} Hz: all series are resampled to {rate:g} Hz")
    if short:
        notes.append(f"{short} of the stretches without gaps are shorter than a window: left out")
    if unlabelled:
        notes.append(f"{unlabelled} windows have no label: left out")
    single = sorted(name for name, members in groups.items() if len(members) < 2)
    if single and cut.label is not None:
        notes.append(
            f"all windows of {listing(single)} are of a single group, which stays together in a split: "
            "--group-length or --cut-labels makes several"
        )
    facts = {
        "files": recordings.files,
        "recordings": len(recordings.recordings),
        "rate": rate,
        "samples": length,
        "step": step,
        "windows": len(X),
        "tasks": len(groups),
        "groups": sum(map(len, groups.values())),
        "classes": list(recordings.classes),
        "channels": list(channels),
        "features": X.shape[1],
    }
    return WindowTable(columns, facts, tuple(notes))


def _samples(cut: Cut, rate: float) -> tuple[int, int]:
    """Return the samples of a window, and from the start of a window to the next."""
    length = round(cut.length * rate)
    step = max(1, round((cut.step or cut.length / 2.0) * rate))
    if length < LEAST_SAMPLES:
        slow = rate < 1.0 and cut.rate is None and cut.unit == "s"
        hint = "give --unit ms if the time stamps are milliseconds, else " if slow else "give "
        raise ConfigError(
            f"a window of {cut.length:g} s has {length} samples at {rate:g} Hz, and needs at least {LEAST_SAMPLES}: "
            f"{hint}--length {LEAST_SAMPLES / rate:g} or more"
        )
    return length, step


def _rate(recordings: Recordings, cut: Cut) -> tuple[float, list[float]]:
    """Return the samples per second of the windows, and the rates of all recordings."""
    rates = []
    for recording in recordings.recordings:
        steps = np.diff(recording.time)
        gapless = steps[steps < MISSED * recording.step]
        if len(gapless):
            rates.append(float(1.0 / gapless.mean()))
    if not rates:
        empty = np.concatenate([recording.empty for recording in recordings.recordings])
        if names := np.array(recordings.channels)[empty.all(axis=0) & empty.any(axis=0)].tolist():
            way_out = f"leave columns out with --drop {','.join([*cut.drop, *names])}"
            raise DataError(f"no row has a value in {listing(names)}, so no row is complete: {way_out}")
        raise DataError("no recording has two samples: are these the raw series? Name a folder with longer files")
    if cut.rate is not None:
        return cut.rate, rates
    return float(f"{np.median(rates):.{RATE_DIGITS}g}"), rates


def _stretches(recordings: Recordings, cut: Cut, rate: float) -> Iterator[Stretch]:
    """Yield the parts of all recordings without gaps, resampled to ``rate``, cut into the parts that are groups."""
    counts: dict[str, int] = {}
    for recording in recordings.recordings:
        if len(recording.time) < 2:
            continue
        gaps = recording.gaps(cut)
        if len(gaps) and cut.gaps == "error":
            # --max-gap holds for all recordings, so the advice must allow the longest step of any of them.
            longest = max(float(np.diff(other.time).max(initial=0.0)) for other in recordings.recordings)
            max_gap = Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(longest)
            row, samples = int(gaps[0]), np.flatnonzero(~recording.empty.any(axis=1))
            names = np.array(recordings.channels)[recording.empty[slice(*samples[row : row + 2])].any(axis=0)].tolist()
            raise DataError(
                f"{recording.where}: no samples for {np.diff(recording.time)[row]:.3g} s between {recording.lines[row]}"
                f" and {recording.lines[row + 1]} ({f'empty cells in {listing(names)}; ' if names else ''}usually "
                f"{recording.step:.3g} s; gaps in all: {sum(len(other.gaps(cut)) for other in recordings.recordings)}):"
                f" cut there with --gaps split, or interpolate with --max-gap {float(max_gap):g}"
            )
        for part in np.split(np.arange(len(recording.time)), gaps + 1):
            piece = replace(recording, time=recording.time[part], channels=recording.channels[part])
            series, label = _resampled(piece, None if recording.label is None else recording.label[part], rate)
            for rows in _blocks(label, len(series), cut, rate):
                name = recording.group
                if name is None:
                    counts[recording.name] = counts.get(recording.name, 0) + 1
                    name = f"{recording.name}/{counts[recording.name]}"
                yield Stretch(recording, name, series[rows], None if label is None else label[rows])


def _resampled(recording: Recording, label: Array | None, rate: float) -> tuple[Float64Array, Array | None]:
    """Return series and labels at equal distances: linear interpolation, and the last label before each sample."""
    time = recording.time - recording.time[0]
    grid = np.arange(int(np.floor(time[-1] * rate + WHOLE_STEP)) + 1) / rate
    series = np.column_stack([np.interp(grid, time, channel) for channel in recording.channels.T])
    last = np.searchsorted(time, grid + WHOLE_STEP / rate, side="right") - 1
    return series, None if label is None else label[last]


def _blocks(label: Array | None, count: int, cut: Cut, rate: float) -> list[slice]:
    """Return the parts of a stretch that are groups of their own."""
    edges = {0, count}
    if cut.cut_labels and label is not None:
        edges |= set((np.flatnonzero(label[1:] != label[:-1]) + 1).tolist())
    if cut.group_length is not None:
        size = max(1, round(cut.group_length * rate))
        for start, end in pairwise(sorted(edges)):
            edges |= set(range(start, end, size))
    return [slice(start, end) for start, end in pairwise(sorted(edges))]


def _window_labels(label: Array | None, classes: tuple[str, ...], length: int, step: int) -> list[Any]:
    """Return the most frequent class of each window (of equals the first in order), or the mean of numbers."""
    if label is None:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(label, length)[::step]
    if not classes:
        return windows.mean(axis=1).tolist()  # type: ignore[no-any-return]
    counts = np.stack([(windows == code).sum(axis=1) for code in range(-1, len(classes))], axis=1)
    return [None if code < 0 else classes[code] for code in (counts.argmax(axis=1) - 1).tolist()]


def write(windows: WindowTable, path: Path) -> None:
    """Write the table as CSV or Parquet, by the ending of its name."""
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise MissingExtraError("Parquet needs pyarrow: pip install 'rhfedmtl[parquet]'") from error
        with replacing(path) as file:
            parquet.write_table(pa.table(windows.columns), file)
        return
    with replacing(path) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(windows.columns)
        lists = [values if isinstance(values, list) else values.tolist() for values in windows.columns.values()]
        table.writerows(zip(*lists, strict=True))
        text.flush()
        text.detach()
