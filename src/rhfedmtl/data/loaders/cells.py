"""What the cells of a table mean: numbers, gaps, texts, dates, keys and labels, however they are written."""

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
"""Words for where a row stands in its file."""
GAPS = frozenset(
    ["", "?", ".", "-", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-nan", "NaT", "NULL", "null", "None"]
)
"""How people write that a value is missing; in keys only the empty cell is."""
GAP_WORD = "nan"
TRUTH = {"True": "1", "true": "1", "TRUE": "1", "False": "0", "false": "0", "FALSE": "0"}
MOST_CLASSES = 20
"""More different whole numbers than this are a quantity, not a name."""
SMALLEST = 1e-150
"""A column whose numbers are all below this has no variance that double precision holds."""
NESTS = (list, tuple, dict, set, np.ndarray)
EMPTY = "is empty"
DATES = "holds dates: make numbers of them"
NESTED = "holds lists or records: make columns of numbers or texts of them"
GROUPED = r"\d{1,3}(?P<mark>[ ,.'’\u00a0\u202f])\d{3}((?P=mark)\d{3})*([.,]\d+)?"
UNIT = r"([%$€£¥]|(?P<unit>[A-Za-zµΩ°][A-Za-zµΩ°/²³%]{0,7}))"
DRESSED = re.compile(rf"[+-]?[$€£¥]? ?[+-]?({GROUPED}|\d+([.,]\d+)?) ?{UNIT}?")
"""A number that people read as a number: thousands parted, a decimal comma, or a unit as in ``12.3 mm``."""
PLAIN = "write 1234.5, without marks for thousands or units"
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?")


class Cells(NamedTuple):
    """A column of features: numbers with NaN for gaps, or codes into ``words`` where it is text."""

    values: Float64Array
    words: tuple[str, ...] | None = None

    @property
    def gaps(self) -> npt.NDArray[np.bool_]:
        """Where it has none."""
        return np.isnan(self.values)


class Notation(NamedTuple):
    """How a table writes gaps, and whether its numbers may have a decimal comma."""

    gaps: frozenset[str] = GAPS
    comma: bool = False

    def numbers(self, words: Sequence[str]) -> Float64Array | None:
        """Numbers that words stand for: gaps are NaN, truth is 1 or 0; None if one of them stands for none."""
        if self.gaps is GAPS:
            try:
                return np.array(words, dtype=np.float64)
            except ValueError:
                pass
        known = {**TRUTH, **dict.fromkeys(self.gaps, GAP_WORD)}
        plain = [known.get(word, word) for word in words]
        for texts in (plain, [word.replace(",", ".") for word in plain]) if self.comma else (plain,):
            try:
                return np.array(texts, dtype=np.float64)
            except ValueError:
                continue
        return None

    def is_number(self, word: str) -> bool:
        """Whether one word stands for a number, or for a gap."""
        return self.numbers([word]) is not None

    def words(self, column: Array) -> list[str | None]:
        """Cells as they are written; None for gaps."""
        return [None if word is None or word in self.gaps else word for word in spelled(column)]


def features(column: Array, notation: Notation, text: bool, most: int, where: str, place: Place) -> Cells | str:
    """The column as features, or why it is left out; one that is mostly numbers must be numbers throughout."""
    if column.dtype.kind in "Mm":
        return DATES
    if text:
        return _coded(notation.words(column), most)
    numbers = column.astype(np.float64) if column.dtype.kind in "fiub" else None
    if numbers is None:
        if column.dtype.kind == "O" and any(isinstance(value, NESTS) for value in column):
            return NESTED
        words = notation.words(column)
        numbers = notation.numbers([GAP_WORD if word is None else word for word in words])
    if numbers is None:
        _refuse_mixture(words, notation, where, place)
        return _coded(words, most)
    if np.isnan(numbers).all():
        return EMPTY
    check_size(numbers, where, place)
    if 0.0 < (largest := float(np.nanmax(np.abs(numbers)))) < SMALLEST:
        raise DataError(
            f"{where} holds nothing beyond {largest:g}: give it in another unit (below {SMALLEST:g} squares "
            "vanish, and it would count as constant), or leave it out (--drop)"
        )
    return Cells(numbers)


def check_size(numbers: Float64Array, where: str, place: Place) -> None:
    """Refuse infinity, and what overflows when squared."""
    bad = np.abs(numbers) > LARGEST
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{where}, {place(row)} holds {numbers[row]:g}: repair it (numbers go to {LARGEST:g}), or take it for a "
            "gap (--na with the word as it is written; NaN in a frame)"
        )


def _refuse_mixture(words: list[str | None], notation: Notation, where: str, place: Place) -> None:
    """A few names among many different numbers are a slip, not a text."""
    different = [word for word in dict.fromkeys(words) if word is not None]
    strange = [word for word in different if not notation.is_number(word)]
    numbers = len(different) - len(strange)
    if strange and numbers > max(MOST_CLASSES, len(strange)):
        raise DataError(
            f"{where}, {place(words.index(strange[0]))} holds {strange[0]!r} among numbers: repair it, take it for a "
            f"gap (--na {strange[0]!r}; NaN in a frame), or leave the column out (--drop)"
        )


def _coded(words: list[str | None], most: int) -> Cells | str:
    codes, known = factorised(words)
    if not known:
        return EMPTY
    if all(DATE.fullmatch(word) for word in known):
        return DATES
    if len(known) > most:
        if dressed(known):
            return f"holds numbers like {known[0]!r}: {PLAIN}"
        return f"holds {len(known):,} different texts, more than {most} (--set most_values={len(known)} takes it)"
    return Cells(np.where(codes < 0, np.nan, codes), known)


def dressed(known: Sequence[str]) -> bool:
    """Return True if a reader takes all values of a text for numbers, with one unit at most, and a program does not."""
    matches = [DRESSED.fullmatch(word) for word in known]
    units = {match["unit"] for match in matches if match is not None}
    return all(matches) and len(units) == 1 and Notation().numbers(known) is None


def spelled(column: Array) -> list[str | None]:
    """Cells as they are written: ``01`` and ``1`` differ; whole numbers have no fraction; None where nothing is."""
    if column.dtype.kind in "iub":
        return [str(value) for value in column.tolist()]
    memo: dict[Any, str | None] = {}
    return [memo[v] if v in memo else memo.setdefault(v, _word(v)) for v in column.tolist()]


def _word(value: Any) -> str | None:
    # NaN and NaT are not equal to themselves, and pandas' NA will not say.
    same = value == value  # noqa: PLR0124
    if value is None or not (isinstance(same, bool | np.bool_) and bool(same)) or value == "":
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain_number(word: str) -> str:
    """A number as a label is called: ``1`` for ``1.0`` and ``01``; other words as they are."""
    numbers = Notation().numbers([word])
    return word if numbers is None or np.isnan(numbers[0]) else str(_word(float(numbers[0])))


def factorised(words: Iterable[str | None]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Code of every word (−1 for gaps) and the different words in their natural order: numbers by size."""
    words = list(words)
    different = [word for word in dict.fromkeys(words) if word is not None]
    numbers = Notation(frozenset()).numbers(different) if different else None
    if numbers is not None and not np.isnan(numbers).any():
        names = [word for _, word in sorted(zip(numbers.tolist(), different, strict=True))]
    else:
        names = sorted(different)
    at: dict[str | None, int] = {word: code for code, word in enumerate(names)} | {None: -1}
    return np.array([at[word] for word in words], dtype=np.int64), tuple(names)


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that differ only in case, or in how one number is written."""
    seen: dict[str | float, str] = {}
    for name in names:
        try:
            number = float(name)
        except ValueError:
            number = math.nan
        other = seen.setdefault(name.casefold() if math.isnan(number) else number, name)
        if other != name:
            return other, name
    return None


class Labels(NamedTuple):
    """Class codes with their names, or numbers without; and what kind was assumed, in words."""

    y: Array
    class_names: tuple[str, ...]
    assumed: str


def labels(column: Array, notation: Notation, kind: str | None, most: int, where: str, place: Place) -> Labels:
    """Text, truth values and up to ``MOST_CLASSES`` different whole numbers are classes, other numbers a regression."""
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
    if kind is None and len(names) > max(most, MOST_CLASSES):
        way = f"if {names[0]!r} is a number, {PLAIN}; else name" if dressed(names) else "name"
        raise DataError(
            f"{where} holds {len(names):,} different texts: {way} the column of labels, or say --kind classes"
        )
    what = "whole numbers" if numbers is not None and _are_names(numbers) else "numbers"
    if numbers is None:
        what = "truth values" if set(names) <= TRUTH.keys() else "texts"
    way = "" if numbers is None else "regression"
    return Labels(_small(codes, len(names)), names, _assumed(kind, f"{len(names)} different {what}", "classes", way))


def _are_names(numbers: Float64Array) -> bool:
    different = np.unique(numbers)
    return len(different) <= MOST_CLASSES and bool((different == np.round(different)).all())


def _assumed(kind: str | None, found: str, taken: str, other: str) -> str:
    way = f"; --kind {other} takes them otherwise" if other else ""
    return f"{found}, taken as {taken}" + (way if kind is None else " as told")


def _small(codes: npt.NDArray[np.int64], n_names: int) -> Array:
    return codes.astype(np.int16) if n_names < 2**15 else codes


def needed_numbers(column: Array, notation: Notation, where: str, place: Place) -> Float64Array:
    """Column of finite numbers; the error names the first cell that is none."""
    numbers = numbers_or_gaps(column, notation, where, place)
    gaps = np.isnan(numbers)
    if gaps.any():
        raise DataError(f"{where}, {place(int(np.argmax(gaps)))} is empty: fill it or drop the row")
    return numbers


def numbers_or_gaps(column: Array, notation: Notation, where: str, place: Place) -> Float64Array:
    """Column of finite numbers, and NaN where it has gaps."""
    words = None if column.dtype.kind in "fiub" else [word or GAP_WORD for word in notation.words(column)]
    numbers = column.astype(np.float64) if words is None else notation.numbers(words)
    if numbers is None:
        row, word = next((row, word) for row, word in enumerate(words or ()) if not notation.is_number(word))
        raise DataError(
            f"{where}, {place(row)} holds {word!r}, which is not a number: repair it, or name another column"
        )
    check_size(numbers, where, place)
    return numbers
