"""Read tables from files: CSV in the usual dialects, Parquet and NPZ.

`read` chooses the reader by the file's ending and returns a `RawTable`, which `loaders.table` turns into a source.
Limits on line length and unpacked size keep a damaged or hostile file from filling the memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from rhfedmtl import unpacking
from rhfedmtl.data import cache
from rhfedmtl.data.loaders.cells import GAPS, Array, Notation, Place
from rhfedmtl.errors import DataError, MissingExtraError

BLOCK_ROWS = 16384
GZIP = ".gz"
LONGEST_LINE = 1 << 24
"""Maximum number of characters of a line. A longer header has millions of columns and would fill the memory."""
BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
WITH_THOUSANDS = re.compile(r"[+-]?([1-9]\d{0,2}( \d{3})+|\d{1,3})")
"""A whole number with thousands marks, or with at most three digits."""
FALLBACK_ENCODING = "cp1252"
"""Encoding of a file that is not UTF-8. It extends Latin-1, except for control characters."""


class RawTable(NamedTuple):
    """Named columns, words for the position of a row, notation of the cells, and the reader's assumptions.

    ``classes`` are columns whose type declares their values as names, even if they look like numbers.
    """

    columns: dict[str, Array]
    place: Place = lambda row: f"row {row}"
    notation: Notation = Notation()
    notes: tuple[str, ...] = ()
    classes: frozenset[str] = frozenset()


def read(path: Path, text: Collection[str] = (), gaps: frozenset[str] = GAPS) -> RawTable:
    """Read the columns of a file, in the format of its ending; in a text file, keep columns in ``text`` unparsed."""
    if Path(path.name.lower().removesuffix(GZIP)).suffix in (".csv", ".tsv", ".txt"):
        try:
            return read_csv(cache.existing(path), text, gaps)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} cannot be unpacked ({error}): copy it again") from error
    readers = {".parquet": read_parquet, ".npz": read_npz}
    if path.suffix.lower() not in readers:
        formats = ".csv, .tsv, .txt (or these with .gz), .parquet, .npz"
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}: a table is one of {formats}; export it as CSV")
    return RawTable(readers[path.suffix.lower()](cache.existing(path)), notation=Notation(gaps))


def read_csv(path: Path, text: Collection[str] = (), gaps: frozenset[str] = GAPS) -> RawTable:
    """Read a CSV file with a header; the header shows the separator: comma, semicolon, tab or bar.

    Columns in ``text`` stay unparsed; each other column becomes numbers if all of its cells are numbers. Decimal commas
    are allowed unless commas are the separator. The encoding is that of the byte order mark, or UTF-8, or Windows-1252.
    """
    with _open(path, "rb") as stream:
        start = stream.read(4)
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if start.startswith(mark)), "utf-8")
    try:
        return _Reader(path, encoding, gaps).read(set(text))
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise DataError(f"{path} cannot be read as {encoding} ({error}): save it as UTF-8") from error
    table = _Reader(path, FALLBACK_ENCODING, gaps).read(set(text))
    return table._replace(notes=(f"{path.name} is not UTF-8, so it was read as Windows-1252 (Latin-1)", *table.notes))


def _open(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open the file; unpack it if its name ends in ``.gz``."""
    if path.suffix.lower() == GZIP:
        return unpacking.open_gzip(path, mode, **options)
    return path.open(mode, **options)


class _Reader:
    """Reader of a CSV file in a certain encoding."""

    def __init__(self, path: Path, encoding: str, gaps: frozenset[str]) -> None:
        self.path, self.encoding, self.notation = path, encoding, Notation(gaps)
        self.memo: dict[str, str] = {}
        self.thousands: dict[str, str] = {}
        self.decimal_commas = False

    def read(self, text: set[str]) -> RawTable:
        """Read all columns. If a column turns out to be text in a later block, start again and keep it unparsed."""
        try:
            lines, columns = self._columns(text)
        except csv.Error as error:
            raise DataError(f"{self.path} cannot be read as CSV ({error}): is a quote not closed?") from error
        mixed = {name for name, parts in columns.items() if len({part.dtype.kind for part in parts}) > 1}
        if mixed:
            return self.read(text | mixed)
        joined = {name: np.concatenate(columns.pop(name)) for name in list(columns)}
        notes = []
        for name, column in joined.items():
            example = self.thousands.get(name)
            if example and self.decimal_commas and column.dtype.kind == "f" and name not in text:
                plain = example.replace(".", "")
                notes.append(
                    f"{name!r} holds values like {example}, read as fractions: if these are thousands, write {plain}"
                )
        return RawTable(joined, lambda row: f"line {lines[row]}", self.notation, tuple(notes))

    def _columns(self, text: set[str]) -> tuple[Array, dict[str, list[Array]]]:
        errors = "replace" if self.encoding == FALLBACK_ENCODING else "strict"
        with _open(self.path, "rt", encoding=self.encoding, errors=errors, newline="") as stream:
            header = stream.readline(LONGEST_LINE)
            if "\0" in header:
                raise DataError(f"{self.path} is no text, or UTF-16 without a byte order mark: save it as UTF-8")
            delimiter = max(",;\t|", key=header.count)
            self.notation = self.notation._replace(comma=delimiter != ",")
            stream.seek(0)
            reader = csv.reader(_lines(stream, self.path), delimiter=delimiter, strict=True)
            fields = next(reader, [])
            # A column without a name gets the name that pandas gives it.
            names = [name.strip() or f"Unnamed: {i}" for i, name in enumerate(fields)]
            if len(names) < 2:
                first = repr(names[0][:40]) if names and fields[0].strip() else "empty"
                raise DataError(
                    f"{self.path} has no header with two or more columns: its first line must name them, and is {first}"
                )
            twice = next((name for name, count in Counter(names).items() if count > 1), None)
            if twice is not None:
                raise DataError(f"{self.path}: the header names the column {twice!r} twice: rename one of them")
            columns: dict[str, list[Array]] = {name: [] for name in names}
            self.thousands = dict.fromkeys(names, "")
            lines = []
            rows = _rows(reader, names, self.path)
            while block := list(islice(rows, BLOCK_ROWS)):  # only this block is in memory as text
                lines.append(np.array([line for line, _ in block]))
                for name, cells in zip(names, zip(*(fields for _, fields in block), strict=True), strict=True):
                    values = None if name in text else self.notation.numbers(cells)
                    if values is None:  # equal texts share a single object
                        values = np.array([self.memo.setdefault(cell, cell) for cell in cells], dtype=object)
                    columns[name].append(values)
                    self._look_for_thousands(name, cells)
        if not lines:
            raise DataError(f"{self.path} has a header and no rows")
        return np.concatenate(lines), columns

    def _look_for_thousands(self, name: str, cells: tuple[str, ...]) -> None:
        """Store an example of a number column that may use dots for thousands while the table has decimal commas."""
        joined = "".join(cells) if self.notation.comma else ""
        self.decimal_commas |= "," in joined
        if name not in self.thousands or "." not in joined:
            return
        values = [cell for cell in cells if cell not in self.notation.gaps]
        if all(WITH_THOUSANDS.fullmatch(cell.replace(".", " ")) for cell in values):
            self.thousands[name] = self.thousands[name] or next((cell for cell in values if "." in cell), "")
        else:
            del self.thousands[name]


def _lines(stream: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file; refuse an overlong line before it is complete."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise DataError(
                f"{path} has a line of {LONGEST_LINE:,} characters or more: is it a table? Write wide tables as .npz"
            )
        yield line


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


def read_parquet(path: Path) -> dict[str, Array]:
    """Read the columns of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'rhfedmtl[parquet]'") from error
    try:
        metadata = parquet.read_metadata(path)
        cells = metadata.num_rows * metadata.num_columns
        unpacking.check_growth(path, cells * np.dtype(np.float64).itemsize, "write it as CSV, if you trust it")
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error})") from error
    return {name: table.column(name).to_numpy() for name in table.column_names}


def read_npz(path: Path) -> dict[str, Array]:
    """Read an NPZ file: a one-dimensional array is a column, a two-dimensional array several (``X0``, ``X1``, …)."""
    try:
        arrays = unpacking.read_npz(path)
    except DataError:
        raise
    except unpacking.READING as error:
        raise DataError(f"{path} cannot be read as .npz ({unpacking.why(error)})") from error
    columns: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            columns.update({f"{name}{j}": array[:, j] for j in range(array.shape[1])})
        elif array.ndim == 1:
            columns[name] = array
    lengths = {name: len(column) for name, column in columns.items()}
    if not columns or len(set(lengths.values())) > 1:
        raise DataError(f"{path}: arrays must be as long as each other, got {dict(islice(lengths.items(), 6))}")
    return columns
