"""A user's own table: CSV, Parquet, NPZ, or a pandas or Polars frame, with columns for label, task and terminal.

All columns that are not named for something else are features: numbers as they are, with gaps filled by the mean of
the training rows; texts as one column for each value. What was assumed and what was left out is said in notes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.data.federation import Origin, Source
from rhfedmtl.data.loaders import cells
from rhfedmtl.data.loaders.cells import GAPS, Array, Cells, Float64Array
from rhfedmtl.data.loaders.table_files import RawTable, read
from rhfedmtl.data.preparation import Preparation, Spelled
from rhfedmtl.data.registry import parse_names
from rhfedmtl.errors import ConfigError, DataError, nearest

MISSING = ("mean", "drop-rows", "drop-columns", "error")
SMALL_TASKS = ("keep", "drop", "error")
TERMINAL = "terminal"
"""A column of this name is that of terminals, unless told otherwise."""
INDEX = re.compile(r"index|__index_level_\d+__|Unnamed: \d+(\.\d+)?")
"""Names under which the number of a row ends up among the columns."""


@dataclass(frozen=True)
class Columns:
    """Which column is what, and what to do where a table is not tidy; lists are separated by commas.

    Parameters
    ----------
    label, task, terminal, group
        Columns of labels, tasks, terminals and groups; keys are kept as they are written.
    drop
        Columns to leave out.
    kind
        ``classes`` or ``regression``. Without it, texts, truth values and up to 20 different whole numbers are
        classes, other numbers a regression.
    missing
        What becomes of gaps: ``mean`` fills a number by the mean of the training rows and adds a column that says
        where, and takes an empty text for a value of its own; ``drop-rows``, ``drop-columns`` and ``error`` say it.
    na
        More words that stand for a gap, beside the usual ones (`cells.GAPS`).
    categories
        Columns to take as text although they hold numbers.
    most_values
        Texts with more different values than this are left out.
    small_tasks
        What becomes of a task with one row, one class, or fewer rows than terminals: ``keep`` lets it learn from the
        others with what it has, ``drop`` leaves it out, ``error`` names it.
    """

    label: str = "y"
    task: str = "task"
    terminal: str | None = None
    group: str | None = None
    drop: str = ""
    kind: str | None = None
    missing: str = "mean"
    na: str = ""
    categories: str = ""
    most_values: int = 100
    small_tasks: str = "keep"

    def __post_init__(self) -> None:
        """Refuse words that mean nothing, and columns that are named for two things."""
        choices = {"kind": (None, "classes", "regression"), "missing": MISSING, "small_tasks": SMALL_TASKS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                words = ", ".join(word for word in known if word)
                raise ConfigError(f"{name.replace('_', '-')} must be one of {words}, got {getattr(self, name)!r}")
        if self.most_values < 0:
            raise ConfigError(f"most_values must be at least 0 (no texts as features), got {self.most_values}")
        named = self.named()
        if len(set(named)) < len(named):
            raise ConfigError(f"a column can be named for one thing only, got {', '.join(named)}")

    def named(self) -> list[str]:
        """Columns that are named for something."""
        return [name for name in (self.label, self.task, self.terminal, self.group) if name is not None]

    def dropped(self) -> list[str]:
        """Columns to leave out."""
        return list(parse_names(self.drop))

    def texts(self) -> list[str]:
        """Columns to take as text."""
        return list(parse_names(self.categories))

    def gaps(self) -> frozenset[str]:
        """Words that stand for a gap."""
        return GAPS | set(parse_names(self.na)) if self.na else GAPS


def load(path: Path | None = None, columns: Columns | None = None) -> Source:
    """Source from a file, told apart by its ending."""
    if path is None:
        raise DataError("a table needs --path FILE (.csv, .tsv, .parquet or .npz)")
    columns = columns or Columns()
    as_written = [*columns.named(), *columns.texts(), TERMINAL]
    return from_table(read(path, as_written, columns.gaps()), columns, str(path))


def from_frame(frame: Any, columns: Columns | None = None) -> Source:
    """Source from a pandas or Polars frame."""
    table = frame_table(frame)
    return from_table(table, columns or Columns(), f"a {type(frame).__module__.split('.')[0]} frame")


def frame_table(frame: Any) -> RawTable:
    """Columns of a pandas or Polars frame."""
    names = Counter(map(str, frame.columns))
    if len(names) < len(frame.columns):
        raise DataError(f"the frame has two columns {names.most_common(1)[0][0]!r}: rename one of them")
    classes = frozenset(
        str(name)
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if str(dtype).lower().startswith(("categor", "enum", "dictionary"))
    )
    columns = {str(name): np.asarray(frame[name].to_numpy()) for name in frame.columns}
    for name, values in columns.items():
        if values.dtype.kind not in "fiubOUMm":  # masked and categorical types become plain objects
            columns[name] = values.astype(object)
    return RawTable(columns, classes=classes)


def from_table(table: RawTable, columns: Columns, where: str) -> Source:
    """Source from named columns of equal length; one called ``terminal`` is taken for that unless another is named."""
    free = table.columns.keys() - {*columns.named(), *columns.dropped()}
    if columns.terminal is None and TERMINAL in free:
        columns = replace(columns, terminal=TERMINAL)
    return _Maker(table, columns, where).source()


def coded_features(table: RawTable, where: str) -> tuple[tuple[str, ...], Float64Array, Spelled, dict[str, str]]:
    """Columns of training rows that can be features: names, cells, what codes stand for; and why others cannot."""
    most, classes = Columns.most_values, table.classes
    found = {
        name: cells.features(column, table.notation, name in classes, most, f"{where}, column {name!r}", table.place)
        for name, column in table.columns.items()
    }
    kept = {name: each for name, each in found.items() if isinstance(each, Cells)}
    left_out = {name: each for name, each in found.items() if isinstance(each, str)}
    if not kept:
        raise DataError(f"{where} has no column that can be a feature: {left_out or 'it has none at all'}")
    values = np.column_stack([each.values for each in kept.values()])
    return tuple(kept), values, tuple(each.words for each in kept.values()), left_out


def coded_rows(table: RawTable, preparation: Preparation, where: str) -> tuple[Float64Array, Spelled]:
    """New rows, coded for `Preparation.encode`: columns are found by name, and are what they were in training."""
    missing = [name for name in preparation.columns if name not in table.columns]
    if missing:
        raise DataError(
            f"{where} lacks {len(missing)} of the {len(preparation.columns)} columns that the models were learned "
            f"from: {listing(missing)}"
        )
    found, notation = list[Cells](), table.notation._replace(gaps=GAPS | set(preparation.gap_words))
    for name, known in zip(preparation.columns, preparation.values, strict=True):
        column, cell = table.columns[name], f"{where}, column {name!r}"
        if known is None:
            found.append(Cells(cells.numbers_or_gaps(column, notation, cell, table.place)))
        else:
            codes, words = cells.factorised(notation.words(column))
            found.append(Cells(np.where(codes < 0, np.nan, codes), words))
    return np.column_stack([each.values for each in found]), tuple(each.words for each in found)


class _Maker:
    """A source in the making: the table, what each column is, and what there is to say about it."""

    def __init__(self, table: RawTable, columns: Columns, where: str) -> None:
        self.table, self.place, self.columns, self.where = table.columns, table.place, columns, where
        self.classes = table.classes
        self.notation = table.notation._replace(gaps=columns.gaps())
        self.notes, free = list(table.notes), set(self.table) - {*columns.named(), *columns.dropped()}
        index = [name for name in self.table if name in free and is_index(name, self.table[name])]
        self.left_out = dict.fromkeys(index, "counts the rows (a name of its own makes it a feature)")
        for name in [*columns.named(), *columns.dropped(), *columns.texts()]:
            if name not in self.table:
                part = next((part for part in ("label", "task") if getattr(columns, part) == name), None)
                way = f"; name the column of {part}s with --{part}" if part else ""
                hint = nearest(name, self.table)
                raise DataError(f"{where} has no column {name!r}: it has {listing(list(self.table))}{way}{hint}")

    def source(self) -> Source:
        """All of it."""
        # Leave out rows without a label or a key: nothing can be learned from them.
        for name in self.columns.named():
            column = self.table[name]
            words = self.notation.words(column) if name == self.columns.label else cells.spelled(column)
            empty = np.array([word is None for word in words], dtype=np.bool_)
            if not empty.any():
                continue
            first = f"{self._at(name)}, {self.place(int(np.argmax(empty)))} is empty"
            if self.columns.missing == "error" or empty.all():
                raise DataError(f"{first}: fill it or drop the row" if not empty.all() else f"{first}, as is all of it")
            self._keep(~empty, f"have no {name!r}")
        found = self._features()
        found = self._without_gaps(found)
        columns = self.columns
        rules = self.notation, columns.kind, columns.most_values
        label = cells.labels(self.table[columns.label], *rules, self._at(columns.label), self.place)
        self.notes.insert(0, f"label {columns.label!r}: {label.assumed}")
        task, task_names = self._codes(columns.task)
        terminal, terminal_names = (None, ()) if columns.terminal is None else self._codes(columns.terminal)
        texts = {name: each.words for name, each in found.items() if each.words is not None}
        gaps = {name: int(each.gaps.sum()) for name, each in found.items() if each.gaps.any()}
        self._say(found, texts, gaps)
        for part, names in (("labels", label.class_names), ("tasks", task_names)):
            if alike := cells.alike(names):
                self.notes.append(
                    f"{part} {alike[0]!r} and {alike[1]!r} differ only in case or in how a number is written: "
                    "write them alike if they are"
                )
        # What becomes of each column, in words.
        named = {getattr(columns, part): part for part in ("label", "task", "terminal", "group")}
        told = {name: _done(each) for name, each in found.items()}
        told |= {name: f"left out: {why}" for name, why in self.left_out.items()}
        told |= dict.fromkeys(columns.dropped(), "left out, as told")
        told |= {name: part for name, part in named.items() if name is not None}
        return Source(
            X=np.column_stack([each.values for each in found.values()]),
            y=label.y,
            task=task,
            task_names=task_names,
            class_names=label.class_names,
            feature_names=tuple(found),
            terminal=terminal,
            terminal_names=terminal_names,
            group=None if columns.group is None else self._codes(columns.group)[0],
            origin=Origin("table", self.where, "the user's own"),
            spelled=tuple(each.words for each in found.values()) if texts or gaps else (),
            gap_words=parse_names(columns.na),
            small_tasks=columns.small_tasks,
            notes=tuple(self.notes),
            treatment=tuple((name, told[name]) for name in self.table),
        )

    def _at(self, name: str) -> str:
        return f"{self.where}, column {name!r}"

    def _codes(self, name: str) -> tuple[Any, tuple[str, ...]]:
        return cells.factorised(cells.spelled(self.table[name]))

    def _keep(self, rows: Any, why: str) -> None:
        """Go on with these rows alone, and say so."""
        kept, place = np.flatnonzero(rows), self.place
        gone = f"{len(rows) - len(kept):,} of {len(rows):,} rows {why}"
        if not len(kept):
            raise DataError(f"{self.where}: {gone}: nothing is left")
        self.notes.append(f"{gone}: left out, the first is {place(int(np.argmin(rows)))}")
        self.table = {name: column[kept] for name, column in self.table.items()}
        self.place = lambda row: place(int(kept[row]))

    def _features(self) -> dict[str, Cells]:
        """All columns that can be features; the others are left out, and why."""
        columns, found = self.columns, dict[str, Cells]()
        for name, column in self.table.items():
            if name in columns.named() or name in columns.dropped():
                continue
            if name in self.left_out:
                continue
            given = self.notation, name in columns.texts() or name in self.classes, columns.most_values
            cell = cells.features(column, *given, self._at(name), self.place)
            if isinstance(cell, str):
                self.left_out[name] = cell
            else:
                found[name] = cell
        if not found:
            why = "".join(f"; {name!r} {reason}" for name, reason in self.left_out.items())
            raise DataError(f"{self.where} has no feature columns beside {', '.join(columns.named())}{why}")
        return found

    def _without_gaps(self, found: dict[str, Cells]) -> dict[str, Cells]:
        """What the rule for gaps leaves of rows and columns."""
        gappy = [name for name, each in found.items() if each.gaps.any()]
        if not gappy or self.columns.missing == "mean":
            return found
        if self.columns.missing == "error":
            row = int(np.argmax(found[gappy[0]].gaps))
            raise DataError(
                f"{self._at(gappy[0])}, {self.place(row)} is empty: fill it, or say --missing mean, drop-rows or "
                "drop-columns"
            )
        if self.columns.missing == "drop-columns":
            self.left_out |= dict.fromkeys(gappy, "has gaps (--missing drop-columns)")
            left = {name: each for name, each in found.items() if name not in gappy}
            if not left:
                raise DataError(f"{self.where}: every feature column has gaps: use --missing mean or drop-rows")
            return left
        whole = ~np.any([found[name].gaps for name in gappy], axis=0)
        self._keep(whole, f"have gaps in {listing(gappy)} (--missing drop-rows)")
        return {name: Cells(each.values[whole], each.words) for name, each in found.items()}

    def _say(self, features: dict[str, Cells], texts: dict[str, tuple[str, ...]], gaps: dict[str, int]) -> None:
        if self.left_out:
            self.notes.append("left out: " + "; ".join(f"{name!r} {why}" for name, why in self.left_out.items()))
        if texts:
            more = ", and one for gaps" if texts.keys() & gaps.keys() else ""
            self.notes.append(f"text in {listing(list(texts))}: a column of 0 and 1 for each value{more}")
        ids = []
        for name, column in features.items():
            # Whole numbers that differ in all rows, of which there are more than classes can have.
            values = column.values
            integers = bool((values == np.round(values)).all())  # False if there are gaps
            many = len(values) > cells.MOST_CLASSES
            if column.words is None and integers and many and len(np.unique(values)) == len(values):
                ids.append(name)
        if ids:
            columns, has = ("column", "has") if len(ids) == 1 else ("columns", "have")
            self.notes.append(
                f"{columns} {listing(ids)} {has} another whole number in every row and became a feature: leave an "
                "ID out (--drop)"
            )
        told = set(self.columns.texts())
        for name in (name for name, words in texts.items() if name not in told and cells.dressed(words)):
            self.notes.append(f"{name!r} holds numbers like {texts[name][0]!r}, read as text: {cells.PLAIN}")
        if numbers := {name: count for name, count in gaps.items() if name not in texts}:
            self.notes.append(
                f"{_gaps(sum(numbers.values()))} in {listing(list(numbers))}: filled by the mean of the training rows, "
                f"with a column that says where (--missing {', '.join(MISSING[1:])})"
            )


def _gaps(count: int) -> str:
    return f"{count:,} gap{'s' * (count != 1)}"


def _done(found: Cells) -> str:
    gaps = int(found.gaps.sum())
    if found.words is not None:
        shown = ", ".join(found.words[:5]) + (", …" if len(found.words) > 5 else "")
        return f"text: {len(found.words)} values ({shown})" + (f", {_gaps(gaps)} as one more" if gaps else "")
    known = found.values[~found.gaps]
    spread = f"{known.min():g} to {known.max():g}" if known.min() < known.max() else f"always {known[0]:g}: of no use"
    return f"number: {spread}" + (f", {_gaps(gaps)} filled by the mean and marked" if gaps else "")


def is_index(name: str, column: Array) -> bool:
    """Whether it has no name of its own, and whole numbers that all differ: those of rows, in whatever order."""
    if not INDEX.fullmatch(name) or column.dtype.kind not in "fiu":
        return False
    return bool((column == np.round(column)).all()) and len(np.unique(column)) == len(column)


def listing(names: list[str]) -> str:
    """Names for an error message, the first twelve of them."""
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f" … ({len(names)} in all)" if len(names) > 12 else "")
