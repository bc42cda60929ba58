"""A user's own table: CSV, Parquet, NPZ, or a pandas or Polars frame, with columns for label, task and terminal.

Labels of text, truth values or whole numbers are classes, other numbers make a regression; ``kind`` overrides this.
All columns that are not named for something else are features and must be numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data import cache
from rhfedmtl.data.federation import Origin, Source
from rhfedmtl.data.registry import parse_names
from rhfedmtl.errors import ConfigError, DataError, MissingExtraError

MOST_WHOLE_CLASSES = 50
BLOCK_ROWS = 16384
Array = npt.NDArray[Any]
Place = Callable[[int], str]
"""Words for where a row stands in its file."""


@dataclass(frozen=True)
class Columns:
    """Which column is what; ``drop`` lists columns to leave out, separated by commas."""

    label: str = "y"
    task: str = "task"
    terminal: str | None = None
    group: str | None = None
    drop: str = ""
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in (None, "classes", "regression"):
            raise ConfigError(f"kind must be classes or regression, got {self.kind!r}")
        named = self.named()
        if len(set(named)) < len(named):
            raise ConfigError(f"a column can be named for one thing only, got {', '.join(named)}")

    def named(self) -> list[str]:
        """Columns that are named for something."""
        return [name for name in (self.label, self.task, self.terminal, self.group) if name is not None]

    def dropped(self) -> list[str]:
        """Columns to leave out."""
        return list(parse_names(self.drop))


def load(path: Path | None = None, columns: Columns | None = None) -> Source:
    """Source from a file, told apart by its ending."""
    if path is None:
        raise DataError("a table needs --path FILE (.csv, .tsv, .parquet or .npz)")
    columns = columns or Columns()
    table, place = read(path, columns.named())
    return from_columns(table, columns, str(path), place)


def read(path: Path, text: Collection[str] = ()) -> tuple[dict[str, Array], Place]:
    """Columns of a file, told apart by its ending; those in ``text`` as they are written, where it is text."""
    readers = {".csv": read_csv, ".tsv": read_csv, ".txt": read_csv, ".parquet": read_parquet, ".npz": read_npz}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}: a table is one of {', '.join(readers)}")
    return readers[path.suffix.lower()](cache.existing(path), text)


def from_frame(frame: Any, columns: Columns | None = None) -> Source:
    """Source from a pandas or Polars frame."""
    table = {str(name): _from_series(frame[name]) for name in frame.columns}
    return from_columns(table, columns or Columns(), f"a {type(frame).__module__.split('.')[0]} frame")


def _from_series(series: Any) -> Array:
    """Values of a column; masked and categorical types become plain objects."""
    values = np.asarray(series.to_numpy())
    return values if values.dtype.kind in "fiubOUM" else values.astype(object)


def from_columns(
    table: Mapping[str, Array], columns: Columns, where: str, place: Place = lambda row: f"row {row}"
) -> Source:
    """Source from named columns of equal length."""
    columns = _with_terminal(columns, table)
    for name in [*columns.named(), *columns.dropped()]:
        if name not in table:
            part = next((part for part in ("label", "task") if getattr(columns, part) == name), None)
            way = f"; name the column of {part}s with --{part}" if part else ""
            raise DataError(f"{where} has no column {name!r}: it has {listing(list(table))}{way}")
    features = [name for name in table if name not in columns.named() and name not in columns.dropped()]
    if not features:
        raise DataError(f"{where} has no feature columns beside {', '.join(columns.named())}")
    y, class_names = labels(table[columns.label], columns.kind, f"{where}, column {columns.label!r}", place)
    task, task_names = codes(table[columns.task], f"{where}, column {columns.task!r}", place)
    terminal: tuple[Any, tuple[str, ...]] = (None, ())
    if columns.terminal is not None:
        terminal = codes(table[columns.terminal], f"{where}, column {columns.terminal!r}", place)
    group = None if columns.group is None else codes(table[columns.group], f"{where}, {columns.group!r}", place)[0]
    return Source(
        X=np.column_stack([numbers(table[name], f"{where}, column {name!r}", place) for name in features]),
        y=y,
        task=task,
        task_names=task_names,
        class_names=class_names,
        feature_names=tuple(features),
        terminal=terminal[0],
        terminal_names=terminal[1],
        group=group,
        origin=Origin("table", where, "the user's own"),
    )


def _with_terminal(columns: Columns, table: Mapping[str, Array]) -> Columns:
    """Take a column called ``terminal`` for what it says, where no other is named."""
    if columns.terminal is not None or "terminal" not in table or "terminal" in columns.named() + columns.dropped():
        return columns
    return Columns(columns.label, columns.task, "terminal", columns.group, columns.drop, columns.kind)


def labels(column: Array, kind: str | None, where: str, place: Place) -> tuple[Array, tuple[str, ...]]:
    """Class codes with their names, or numbers without."""
    typed = _typed(column)
    if kind is None:
        kind = "regression" if typed.dtype.kind == "f" else "classes"
        distinct = len(np.unique(typed)) if typed.dtype.kind in "iu" else 0
        if distinct > MOST_WHOLE_CLASSES:
            raise DataError(
                f"{where} holds {distinct} different whole numbers: say kind=classes or kind=regression (--kind)"
            )
    if kind == "regression":
        return numbers(column, where, place), ()
    y, class_names = codes(column, where, place)
    return y.astype(np.int16) if len(class_names) < 2**15 else y, class_names


def codes(column: Array, where: str, place: Place) -> tuple[Array, tuple[str, ...]]:
    """Codes of the different values, in their natural order, and their names; whole numbers sort as numbers."""
    typed = _typed(column)
    missing = _missing(typed)
    if missing.any():
        raise DataError(f"{where}, {place(int(np.argmax(missing)))} is empty: fill it or drop the row")
    if typed.dtype == object:
        typed = typed.astype(str)
    values, code = np.unique(typed, return_inverse=True)
    return code.astype(np.int64), tuple(str(value) for value in values.tolist())


def numbers(column: Array, where: str, place: Place) -> npt.NDArray[np.float64]:
    """Column of finite numbers; the error names the first value that is none."""
    try:
        if column.dtype.kind == "M":
            raise TypeError
        values = column.astype(np.float64)
    except (ValueError, TypeError):
        row = next(i for i, value in enumerate(column.tolist()) if not _is_number(value))
        value = column[row]
        if _missing(np.array([value], dtype=object))[0]:
            raise DataError(f"{where}, {place(row)} is empty: fill it or drop the row") from None
        raise DataError(
            f"{where}, {place(row)} holds {str(value)!r}, which is not a number: "
            "encode the column, name it as task, terminal or group, or drop it (--drop)"
        ) from None
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"{where}, {place(row)} holds {values[row]}: fill it or drop the row")
    return values


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _is_nan(value: Any) -> bool:
    """NaN and NaT are not equal to themselves, and pandas' NA will not say."""
    same = value == value  # noqa: PLR0124
    return not (isinstance(same, bool | np.bool_) and bool(same))


def _missing(column: Array) -> npt.NDArray[np.bool_]:
    if column.dtype.kind in "iub":
        return np.zeros(len(column), dtype=np.bool_)
    if column.dtype.kind in "fM":
        return np.asarray(np.isnan(column) if column.dtype.kind == "f" else np.isnat(column))
    return np.array([value is None or value == "" or _is_nan(value) for value in column.tolist()], dtype=np.bool_)


def _typed(column: Array) -> Array:
    """Text as whole numbers or numbers where all of it is; everything else as it is."""
    if column.dtype.kind not in "UO" or not all(isinstance(value, str) for value in column.tolist()):
        return column
    for dtype in (np.int64, np.float64):
        try:
            return column.astype(dtype)
        except (ValueError, OverflowError):
            continue
    return column


def listing(names: list[str]) -> str:
    """Names for an error message, the first twelve of them."""
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f" … ({len(names)} in all)" if len(names) > 12 else "")


def read_csv(path: Path, text: Collection[str] = ()) -> tuple[dict[str, Array], Place]:
    """Columns of a CSV file with a header, separated by commas, semicolons, tabs or bars, as the header shows.

    Columns in ``text`` are kept as they are written; the others become numbers where all of them are.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            header = stream.readline()
            delimiter = max(",;\t|", key=header.count)
            stream.seek(0)
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            names = [name.strip() for name in next(reader, [])]
            _check_header(names, path)
            blocks = list(_blocks(reader, names, text, path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV in UTF-8 ({error})") from error
    if not blocks:
        raise DataError(f"{path} has a header and no rows")
    lines = np.concatenate([line for line, _ in blocks])
    columns = {name: np.concatenate([block[i] for _, block in blocks]) for i, name in enumerate(names)}
    return columns, lambda row: f"line {lines[row]}"


def _check_header(names: list[str], path: Path) -> None:
    if len(names) < 2:
        raise DataError(f"{path} has no header with two or more columns, its first line must name them")
    twice = next((name for name in names if names.count(name) > 1 or not name), None)
    if twice is not None:
        raise DataError(f"{path}: the header names the column {twice!r} twice or not at all: rename it")


def _blocks(reader: Any, names: list[str], text: Collection[str], path: Path) -> Iterator[tuple[Array, list[Array]]]:
    """Line numbers and columns, block by block: only one block is held as text."""
    rows = _rows(reader, names, path)
    while block := list(islice(rows, BLOCK_ROWS)):
        columns = zip(names, zip(*(fields for _, fields in block), strict=True), strict=True)
        yield np.array([line for line, _ in block]), [_parsed(column, name in text) for name, column in columns]


def _parsed(column: tuple[str, ...], as_text: bool) -> Array:
    if not as_text:
        try:
            return np.array(column, dtype=np.float64)
        except ValueError:
            pass
    return np.array(column, dtype=object)


def _rows(reader: Any, names: list[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    for fields in reader:
        if not fields:
            continue
        if len(fields) != len(names):
            raise DataError(
                f"{path}, line {reader.line_num} has {len(fields)} fields, the header names {len(names)}: "
                "repair the line (a missing or unquoted separator?)"
            )
        yield reader.line_num, [field.strip() for field in fields]


def read_parquet(path: Path, text: Collection[str] = ()) -> tuple[dict[str, Array], Place]:
    """Columns of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'rhfedmtl[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error})") from error
    return {name: table.column(name).to_numpy() for name in table.column_names}, lambda row: f"row {row}"


def read_npz(path: Path, text: Collection[str] = ()) -> tuple[dict[str, Array], Place]:
    """Columns of an NPZ file: arrays of one dimension are columns, of two dimensions several (``X0``, ``X1``, …)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as .npz ({error})") from error
    columns: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            columns.update({f"{name}{j}": array[:, j] for j in range(array.shape[1])})
        elif array.ndim == 1:
            columns[name] = array
    lengths = {name: len(column) for name, column in columns.items()}
    if not columns or len(set(lengths.values())) > 1:
        raise DataError(f"{path}: arrays must be as long as each other, got {dict(islice(lengths.items(), 6))}")
    return columns, lambda row: f"row {row}"
