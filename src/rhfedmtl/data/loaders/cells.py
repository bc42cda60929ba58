"""Interpret the cells of a table: numbers, gaps, texts, dates, keys and labels in all usual notations.

`loaders.table` calls `features`, `labels` and `factorised` for each column; `Notation` describes the gaps and decimal
marks of the file. A few texts among many numbers, and a number that is too large, are errors that name the cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import LARGEST
from rhfedmtl.errors import DataError

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]
Place = Callable[[int], str]
"""Return the position of a row in its file, in words, for error messages."""
GAPS = frozenset(
    ["", "?", ".", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-nan", "NaT", "NULL", "null", "None"]
)
"""Usual ways to mark a missing value. In a key column only the empty cell counts as missing."""
GAP_WORD = "nan"
TRUTH = {"True": "1", "true": "1", "TRUE": "1", "False": "0", "false": "0", "FALSE": "0"}
MOST_CLASSES = 20
"""Whole numbers with more different values than this are a quantity; otherwise they are class names."""
SMALLEST_NUMBER = 1e-150
"""If all numbers of a column are smaller, double precision cannot hold its variance."""
NESTS = (list, tuple, dict, set, np.ndarray)
EMPTY_CELL = "is empty"
DATES = "holds dates: make numbers of them"
NESTED = "holds lists or records: make columns of numbers or texts of them"
GROUPED = r"\d{1,3}(?P<mark>[ ,.'’\u00a0\u202f])\d{3}((?P=mark)\d{3})*([.,]\d+)?"
UNIT = r"([%$€£¥]|(?P<unit>[A-Za-zµΩ°][A-Za-zµΩ°/²³%]{0,7}))"
FORMATTED = re.compile(rf"[+-]?[$€£¥]? ?[+-]?({GROUPED}|\d+([.,]\d+)?) ?{UNIT}?")
"""A number for a reader but not for a program: thousands marks, a decimal comma, or a unit as in ``12.3 mm``."""
PLAIN_NUMBER_HINT = "write 1234.5, without marks for thousands or units"
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?")


class Cells(NamedTuple):
    """A feature column: numbers with NaN for gaps, or codes into ``words`` if it is text."""

    values: Float64Array
    words: tuple[str, ...] | None = None

    @property
    def gaps(self) -> npt.NDArray[np.bool_]:
        """Mask of the missing cells."""
        return np.isnan(self.values)


class Notation(NamedTuple):
    """Notation of a table: its words for gaps, and permission for decimal commas."""

    gaps: frozenset[str] = GAPS
    comma: bool = False

    def numbers(self, words: Sequence[str]) -> Float64Array | None:
        """Return words as numbers (gaps NaN, truth values 1 or 0), or None if some word is not a number."""
        if self.gaps is GAPS:
            try:
                return np.array(words, dtype=np.float64)
            except ValueError:
                pass
        replacements = {**TRUTH, **dict.fromkeys(self.gaps, GAP_WORD)}
        plain = [replacements.get(word, word) for word in words]
        for texts in (plain, [word.replace(",", ".") for word in plain]) if self.comma else (plain,):
            try:
                return np.array(texts, dtype=np.float64)
            except ValueError:
                continue
        return None

    def is_number(self, word: str) -> bool:
        """Return True if a word is a number or a gap."""
        return self.numbers([word]) is not None

    def words(self, column: Array) -> list[str | None]:
        """Return the cells as text, and None for gaps."""
        return [None if word is None or word in self.gaps else word for word in spelled(column)]


def features(column: Array, notation: Notation, text: bool, max_values: int, where: str, place: Place) -> Cells | str:
    """Return the column as features, or the reason to leave it out. A few texts among many numbers are an error."""
    if column.dtype.kind in "Mm":
        return DATES
    if text:
        return _coded(notation.words(column), max_values)
    numbers = column.astype(np.float64) if column.dtype.kind in "fiub" else None
    if numbers is None:
        if column.dtype.kind == "O" and any(isinstance(value, NESTS) for value in column):
            return NESTED
        words = notation.words(column)
        numbers = notation.numbers([GAP_WORD if word is None else word for word in words])
    if numbers is None:
        _refuse_mixture(words, notation, where, place)
        return _coded(words, max_values)
    if np.isnan(numbers).all():
        return EMPTY_CELL
    check_size(numbers, where, place)
    if 0.0 < (largest := float(np.nanmax(np.abs(numbers)))) < SMALLEST_NUMBER:
        raise DataError(
            f"{where} holds nothing beyond {largest:g}: give it in another unit (below {SMALLEST_NUMBER:g} squares "
            "vanish, and it would count as constant), or leave it out (--drop)"
        )
    return Cells(numbers)


def check_size(numbers: Float64Array, where: str, place: Place) -> None:
    """Refuse infinity and numbers whose square overflows."""
    bad = np.abs(numbers) > LARGEST
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{where}, {place(row)} holds {numbers[row]:g}: repair it (numbers go to {LARGEST:g}), or take it for a "
            "gap (--na with the word as it is written; NaN in a frame)"
        )


def _refuse_mixture(words: list[str | None], notation: Notation, where: str, place: Place) -> None:
    """Refuse a few texts among many different numbers: that is a mistake, not a text column."""
    different = [word for word in dict.fromkeys(words) if word is not None]
    strange = [word for word in different if not notation.is_number(word)]
    numbers = len(different) - len(strange)
    if strange and numbers > max(MOST_CLASSES, len(strange)):
        raise DataError(
            f"{where}, {place(words.index(strange[0]))} holds {strange[0]!r} among numbers: repair it, take it for a "
            f"gap (--na {strange[0]!r}; NaN in a frame), or leave the column out (--drop)"
        )


def _coded(words: list[str | None], max_values: int) -> Cells | str:
    codes, values = factorised(words)
    if not values:
        return EMPTY_CELL
    if all(DATE.fullmatch(word) for word in values):
        return DATES
    if len(values) > max_values:
        if are_formatted_numbers(values):
            return f"holds numbers like {values[0]!r}: {PLAIN_NUMBER_HINT}"
        way_out = f"--set most_values={len(values)} takes it"
        return f"holds {len(values):,} different texts, more than {max_values} ({way_out})"
    return Cells(np.where(codes < 0, np.nan, codes), values)


def are_formatted_numbers(values: Sequence[str]) -> bool:
    """Return True if all values look like numbers to a reader, with at most a single unit, but not to a program."""
    matches = [FORMATTED.fullmatch(word) for word in values]
    units = {match["unit"] for match in matches if match is not None}
    return all(matches) and len(units) == 1 and Notation().numbers(values) is None


def spelled(column: Array) -> list[str | None]:
    """Return the cells as text, None for gaps: ``01`` and ``1`` differ; whole numbers are written without fraction."""
    if column.dtype.kind in "iub":
        return [str(value) for value in column.tolist()]
    memo: dict[Any, str | None] = {}
    return [memo[v] if v in memo else memo.setdefault(v, _word(v)) for v in column.tolist()]


def _word(value: Any) -> str | None:
    # NaN and NaT are not equal to themselves; comparing pandas' NA gives neither True nor False.
    same = value == value  # noqa: PLR0124
    if value is None or not (isinstance(same, bool | np.bool_) and bool(same)) or value == "":
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain_number(word: str) -> str:
    """Return a number in the form of a label, ``1`` for ``1.0`` and ``01``; return other words unchanged."""
    numbers = Notation().numbers([word])
    return word if numbers is None or np.isnan(numbers[0]) else str(_word(float(numbers[0])))


def factorised(words: Iterable[str | None]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Return the code of every word (−1 for gaps) and the different words in natural order: numbers by size."""
    words = list(words)
    different = [word for word in dict.fromkeys(words) if word is not None]
    numbers = Notation(frozenset()).numbers(different) if different else None
    if numbers is not None and not np.isnan(numbers).any():
        names = [word for _, word in sorted(zip(numbers.tolist(), different, strict=True))]
    else:
        names = sorted(different)
    at: dict[str | None, int] = {word: code for code, word in enumerate(names)} | {None: -1}
    return np.array([at[word] for word in words], dtype=np.int64), tuple(names)


def near_duplicates(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ only in case or in the notation of a number, or None if there are no such names."""
    first_names: dict[str | float, str] = {}
    for name in names:
        try:
            number = float(name)
        except ValueError:
            number = math.nan
        first = first_names.setdefault(name.casefold() if math.isnan(number) else number, name)
        if first != name:
            return first, name
    return None


class Labels(NamedTuple):
    """Class codes with their names, or the numbers of a regression; and the assumption about their kind, in words."""

    y: Array
    class_names: tuple[str, ...]
    assumed: str


def labels(column: Array, notation: Notation, kind: str | None, max_values: int, where: str, place: Place) -> Labels:
    """Interpret labels: texts, truth values and up to ``MOST_CLASSES`` different integers are classes, else numbers."""
    words = notation.words(column)
    numbers = column.astype(np.float64) if column.dtype.kind in "fiu" else None
    if numbers is None and not TRUTH.keys() & set(words):
        numbers = notation.numbers([word or "" for word in words])
    if kind == "regression" or (kind is None and numbers is not None and not _are_names(numbers)):
        y = needed_numbers(column, notation, where, place)
        return Labels(y, (), _assumed(kind, f"{len(np.unique(y)):,} different numbers", "a regression", "classes"))
    if kind is None and numbers is None:
        _refuse_mixture(words, notation, where, place)
    if numbers is not None:
        words = [_word(number) for number in numbers.tolist()]
    codes, names = factorised(words)
    if kind is None and len(names) > max(max_values, MOST_CLASSES):
        remedy = (
            f"if {names[0]!r} is a number, {PLAIN_NUMBER_HINT}; else name" if are_formatted_numbers(names) else "name"
        )
        raise DataError(
            f"{where} holds {len(names):,} different texts: {remedy} the column of labels, or say --kind classes"
        )
    value_type = "whole numbers" if numbers is not None and _are_names(numbers) else "numbers"
    if numbers is None:
        value_type = "truth values" if set(names) <= TRUTH.keys() else "texts"
    alternative = "" if numbers is None else "regression"
    assumed = _assumed(kind, f"{len(names)} different {value_type}", "classes", alternative)
    return Labels(_small(codes, len(names)), names, assumed)


def _are_names(numbers: Float64Array) -> bool:
    different = np.unique(numbers)
    return len(different) <= MOST_CLASSES and bool((different == np.round(different)).all())


def _assumed(kind: str | None, description: str, decision: str, alternative: str) -> str:
    remedy = f"; --kind {alternative} takes them otherwise" if alternative else ""
    return f"{description}, taken as {decision}" + (remedy if kind is None else " as requested")


def _small(codes: npt.NDArray[np.int64], n_names: int) -> Array:
    return codes.astype(np.int16) if n_names < 2**15 else codes


def needed_numbers(column: Array, notation: Notation, where: str, place: Place) -> Float64Array:
    """Return a column of finite numbers; the error names the first cell that is empty or not a number."""
    numbers = numbers_or_gaps(column, notation, where, place)
    gaps = np.isnan(numbers)
    if gaps.any():
        raise DataError(f"{where}, {place(int(np.argmax(gaps)))} is empty: fill it or drop the row")
    return numbers


def numbers_or_gaps(column: Array, notation: Notation, where: str, place: Place) -> Float64Array:
    """Return a column of finite numbers, with NaN for gaps."""
    words = None if column.dtype.kind in "fiub" else [word or GAP_WORD for word in notation.words(column)]
    numbers = column.astype(np.float64) if words is None else notation.numbers(words)
    if numbers is None:
        row, word = next((row, word) for row, word in enumerate(words or ()) if not notation.is_number(word))
        raise DataError(
            f"{where}, {place(row)} holds {word!r}, which is not a number: repair it, or name another column"
        )
    check_size(numbers, where, place)
    return numbers
