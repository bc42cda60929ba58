"""Load a user's own table: CSV, Parquet, NPZ, or a pandas or Polars frame with columns for label, task and terminal.

All other columns become features: numbers unchanged, with gaps filled by the mean of the training rows; texts as a
column for each value. The notes of the source list every assumption and every omitted column. `cells` interprets the
cells, `table_files` reads the files.
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
"""A column of this name holds the terminals, unless the user names another column."""
INDEX_COLUMN = re.compile(r"index|__index_level_\d+__|Unnamed: \d+(\.\d+)?")
"""Names that programs give to the column of row numbers."""


@dataclass(frozen=True)
class Columns:
    """Roles of the columns, and the treatment of an untidy table; lists are separated by commas.

    Parameters
    ----------
    label, task, terminal, group
        Columns of labels, tasks, terminals and groups; keys stay in their written form.
    drop
        Columns to leave out.
    kind
        ``classes`` or ``regression``. By default, texts, truth values and up to 20 different whole numbers are
        classes, other numbers a regression.
    missing
        Treatment of gaps. ``mean`` fills a number by the mean of the training rows and adds a column that marks the
        gaps; an empty text becomes a value like any other. ``drop-rows`` and ``drop-columns`` leave rows or columns
        with gaps out, ``error`` refuses them.
    na
        Words for gaps in addition to the usual words (`cells.GAPS`).
    categories
        Columns to treat as text although they hold numbers.
    most_values
        Omit texts with more different values than this.
    small_tasks
        Treatment of a task with a single row, a single class, or fewer rows than terminals: ``keep`` lets it learn
        from the other tasks, ``drop`` leaves it out, ``error`` refuses it.
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
        """Refuse unknown choices and columns with two roles."""
        choices = {"kind": (None, "classes", "regression"), "missing": MISSING, "small_tasks": SMALL_TASKS}
        for name, choices_of_field in choices.items():
            if getattr(self, name) not in choices_of_field:
                words = ", ".join(word for word in choices_of_field if word)
                raise ConfigError(f"{name.replace('_', '-')} must be one of {words}, got {getattr(self, name)!r}")
        if self.most_values < 0:
            raise ConfigError(f"most_values must be at least 0 (no texts as features), got {self.most_values}")
        named = self.named()
        if len(set(named)) < len(named):
            raise ConfigError(f"a column can be named for one thing only, got {', '.join(named)}")

    def named(self) -> list[str]:
        """Return the columns that have a role."""
        return [name for name in (self.label, self.task, self.terminal, self.group) if name is not None]

    def dropped(self) -> list[str]:
        """Return the columns to leave out."""
        return list(parse_names(self.drop))

    def texts(self) -> list[str]:
        """Return the columns to treat as text."""
        return list(parse_names(self.categories))

    def gaps(self) -> frozenset[str]:
        """Return the words that stand for a gap."""
        return GAPS | set(parse_names(self.na)) if self.na else GAPS


def load(path: Path | None = None, columns: Columns | None = None) -> Source:
    """Load the source from a file, in the format of its ending."""
    if path is None:
        raise DataError("a table needs --path FILE (.csv, .tsv, .parquet or .npz)")
    columns = columns or Columns()
    as_written = [*columns.named(), *columns.texts(), TERMINAL]
    return from_table(read(path, as_written, columns.gaps()), columns, str(path))


def from_frame(frame: Any, columns: Columns | None = None) -> Source:
    """Load the source from a pandas or Polars frame."""
    table = frame_table(frame)
    return from_table(table, columns or Columns(), f"a {type(frame).__module__.split('.')[0]} frame")


def frame_table(frame: Any) -> RawTable:
    """Return the columns of a pandas or Polars frame."""
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
    """Build the source; without a named terminal column, a column called ``terminal`` gets this role."""
    features = table.columns.keys() - {*columns.named(), *columns.dropped()}
    if columns.terminal is None and TERMINAL in features:
        columns = replace(columns, terminal=TERMINAL)
    return _Maker(table, columns, where).source()


def coded_features(table: RawTable, where: str) -> tuple[tuple[str, ...], Float64Array, Spelled, dict[str, str]]:
    """Return names, cells and code meanings of the possible feature columns, and the reasons to omit others."""
    max_values, classes = Columns.most_values, table.classes
    notation, place = table.notation, table.place
    results = {
        name: cells.features(column, notation, name in classes, max_values, f"{where}, column {name!r}", place)
        for name, column in table.columns.items()
    }
    usable = {name: cell for name, cell in results.items() if isinstance(cell, Cells)}
    left_out = {name: reason for name, reason in results.items() if isinstance(reason, str)}
    if not usable:
        raise DataError(f"{where} has no column that can be a feature: {left_out or 'it has none at all'}")
    values = np.column_stack([cell.values for cell in usable.values()])
    return tuple(usable), values, tuple(cell.words for cell in usable.values()), left_out


def coded_rows(table: RawTable, preparation: Preparation, where: str) -> tuple[Float64Array, Spelled]:
    """Return new rows, coded for `Preparation.encode`: columns are matched by name and keep their type of training."""
    missing = [name for name in preparation.columns if name not in table.columns]
    if missing:
        raise DataError(
            f"{where} lacks {len(missing)} of the {len(preparation.columns)} columns that the models were learned "
            f"from: {listing(missing)}; it has {listing(list(table.columns))}"
        )
    coded, notation = list[Cells](), table.notation._replace(gaps=GAPS | set(preparation.gap_words))
    for name, values in zip(preparation.columns, preparation.values, strict=True):
        column, cell = table.columns[name], f"{where}, column {name!r}"
        if values is None:
            coded.append(Cells(cells.numbers_or_gaps(column, notation, cell, table.place)))
        else:
            codes, words = cells.factorised(notation.words(column))
            coded.append(Cells(np.where(codes < 0, np.nan, codes), words))
    return np.column_stack([cell.values for cell in coded]), tuple(cell.words for cell in coded)


class _Maker:
    """Builds a source: the table, the role of each column, and the notes for the user."""

    def __init__(self, table: RawTable, columns: Columns, where: str) -> None:
        self.table, self.place, self.columns, self.where = table.columns, table.place, columns, where
        self.classes = table.classes
        self.notation = table.notation._replace(gaps=columns.gaps())
        self.notes, features = list(table.notes), set(self.table) - {*columns.named(), *columns.dropped()}
        row_numbers = [name for name in self.table if name in features and is_index(name, self.table[name])]
        self.left_out = dict.fromkeys(row_numbers, "counts the rows (a name of its own makes it a feature)")
        for name in [*columns.named(), *columns.dropped(), *columns.texts()]:
            if name not in self.table:
                role = next((role for role in ("label", "task") if getattr(columns, role) == name), None)
                remedy = f"; name the column of {role}s with --{role}" if role else ""
                hint = nearest(name, self.table)
                raise DataError(f"{where} has no column {name!r}: it has {listing(list(self.table))}{remedy}{hint}")

    def source(self) -> Source:
        """Build the source."""
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
        features = self._without_gaps(self._features())
        columns = self.columns
        rules = self.notation, columns.kind, columns.most_values
        label = cells.labels(self.table[columns.label], *rules, self._at(columns.label), self.place)
        self.notes.insert(0, f"label {columns.label!r}: {label.assumed}")
        task, task_names = self._codes(columns.task)
        terminal, terminal_names = (None, ()) if columns.terminal is None else self._codes(columns.terminal)
        texts = {name: cell.words for name, cell in features.items() if cell.words is not None}
        gaps = {name: int(cell.gaps.sum()) for name, cell in features.items() if cell.gaps.any()}
        self._add_notes(features, texts, gaps)
        for part, names in (("labels", label.class_names), ("tasks", task_names)):
            if pair := cells.near_duplicates(names):
                self.notes.append(
                    f"{part} {pair[0]!r} and {pair[1]!r} differ only in case or in how a number is written: "
                    "write them alike if they are"
                )
        # The use of each column, in words.
        named = {getattr(columns, part): part for part in ("label", "task", "terminal", "group")}
        treatment = {name: _describe_column(cell) for name, cell in features.items()}
        treatment |= {name: f"left out: {why}" for name, why in self.left_out.items()}
        treatment |= dict.fromkeys(columns.dropped(), "left out, as requested")
        treatment |= {name: part for name, part in named.items() if name is not None}
        return Source(
            X=np.column_stack([cell.values for cell in features.values()]),
            y=label.y,
            task=task,
            task_names=task_names,
            class_names=label.class_names,
            feature_names=tuple(features),
            terminal=terminal,
            terminal_names=terminal_names,
            group=None if columns.group is None else self._codes(columns.group)[0],
            origin=Origin("table", self.where, "the user's own"),
            spelled=tuple(cell.words for cell in features.values()) if texts or gaps else (),
            gap_words=parse_names(columns.na),
            small_tasks=columns.small_tasks,
            notes=tuple(self.notes),
            treatment=tuple((name, treatment[name]) for name in self.table),
        )

    def _at(self, name: str) -> str:
        return f"{self.where}, column {name!r}"

    def _codes(self, name: str) -> tuple[Any, tuple[str, ...]]:
        return cells.factorised(cells.spelled(self.table[name]))

    def _keep(self, rows: Any, why: str) -> None:
        """Keep only these rows, and add a note about the others."""
        kept_rows, place = np.flatnonzero(rows), self.place
        dropped = f"{len(rows) - len(kept_rows):,} of {len(rows):,} rows {why}"
        if not len(kept_rows):
            raise DataError(f"{self.where}: {dropped}: nothing is left")
        self.notes.append(f"{dropped}: left out, the first is {place(int(np.argmin(rows)))}")
        self.table = {name: column[kept_rows] for name, column in self.table.items()}
        self.place = lambda row: place(int(kept_rows[row]))

    def _features(self) -> dict[str, Cells]:
        """Return all columns that can be features; record the reason for each column that is left out."""
        columns, features = self.columns, dict[str, Cells]()
        for name, column in self.table.items():
            if name in columns.named() or name in columns.dropped():
                continue
            if name in self.left_out:
                continue
            rules = self.notation, name in columns.texts() or name in self.classes, columns.most_values
            cell = cells.features(column, *rules, self._at(name), self.place)
            if isinstance(cell, str):
                self.left_out[name] = cell
            else:
                features[name] = cell
        if not features:
            why = "".join(f"; {name!r} {reason}" for name, reason in self.left_out.items())
            raise DataError(f"{self.where} has no feature columns beside {', '.join(columns.named())}{why}")
        return features

    def _without_gaps(self, features: dict[str, Cells]) -> dict[str, Cells]:
        """Apply the rule for gaps: return the remaining rows and columns."""
        gappy = [name for name, cell in features.items() if cell.gaps.any()]
        if not gappy or self.columns.missing == "mean":
            return features
        if self.columns.missing == "error":
            row = int(np.argmax(features[gappy[0]].gaps))
            raise DataError(
                f"{self._at(gappy[0])}, {self.place(row)} is empty: fill it, or say --missing mean, drop-rows or "
                "drop-columns"
            )
        if self.columns.missing == "drop-columns":
            self.left_out |= dict.fromkeys(gappy, "has gaps (--missing drop-columns)")
            complete = {name: cell for name, cell in features.items() if name not in gappy}
            if not complete:
                raise DataError(f"{self.where}: every feature column has gaps: use --missing mean or drop-rows")
            return complete
        without_gaps = ~np.any([features[name].gaps for name in gappy], axis=0)
        self._keep(without_gaps, f"have gaps in {listing(gappy)} (--missing drop-rows)")
        return {name: Cells(cell.values[without_gaps], cell.words) for name, cell in features.items()}

    def _add_notes(self, features: dict[str, Cells], texts: dict[str, tuple[str, ...]], gaps: dict[str, int]) -> None:
        if self.left_out:
            self.notes.append("left out: " + "; ".join(f"{name!r} {why}" for name, why in self.left_out.items()))
        if texts:
            more = ", and one for gaps" if texts.keys() & gaps.keys() else ""
            self.notes.append(f"text in {listing(list(texts))}: a column of 0 and 1 for each value{more}")
        ids = []
        for name, column in features.items():
            # Every row has a different whole number, and there are more rows than a label can have classes.
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
        requested = set(self.columns.texts())
        for name in (n for n, words in texts.items() if n not in requested and cells.are_formatted_numbers(words)):
            self.notes.append(
                f"{name!r} holds numbers like {texts[name][0]!r}, read as text: {cells.PLAIN_NUMBER_HINT}"
            )
        if numbers := {name: count for name, count in gaps.items() if name not in texts}:
            self.notes.append(
                f"{_gaps(sum(numbers.values()))} in {listing(list(numbers))}: filled by the mean of the training rows, "
                f"with a column that says where (--missing {', '.join(MISSING[1:])})"
            )


def _gaps(count: int) -> str:
    return f"{count:,} gap{'s' * (count != 1)}"


def _describe_column(column: Cells) -> str:
    gaps = int(column.gaps.sum())
    if column.words is not None:
        examples = ", ".join(column.words[:5]) + (", …" if len(column.words) > 5 else "")
        return f"text: {len(column.words)} values ({examples})" + (f", {_gaps(gaps)} as one more" if gaps else "")
    values = column.values[~column.gaps]
    low, high = values.min(), values.max()
    spread = f"{low:g} to {high:g}" if low < high else f"always {low:g}: of no use"
    return f"number: {spread}" + (f", {_gaps(gaps)} filled by the mean and marked" if gaps else "")


def is_index(name: str, column: Array) -> bool:
    """Return True if a column with a default name counts the rows: whole numbers that all differ, in any order."""
    if not INDEX_COLUMN.fullmatch(name) or column.dtype.kind not in "fiu":
        return False
    return bool((column == np.round(column)).all()) and len(np.unique(column)) == len(column)


def listing(names: list[str]) -> str:
    """Return the first twelve names for an error message."""
    quoted = ", ".join(repr(name) for name in names[:12])
    return quoted + (f" … ({len(names)} in all)" if len(names) > 12 else "")
