"""Turn the rows of a table into features: fill gaps, and replace each text by a column for each of its values.

The terminals agree on the preparation in round zero, from their training rows: count and sum of the values of each
column of numbers, presence of gaps, and the values of each column of text. The preparation is saved with the models,
so new rows are encoded in the same way. This module has only the arithmetic; the roles send the messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError, DataError

Float64Array = npt.NDArray[np.float64]
Spelled = tuple[tuple[str, ...] | None, ...]
"""For each column of a table: the values that its codes stand for, or None if it is a column of numbers."""
GAP_CELL = ""
"""Stands for a gap in a column of text. If training rows had a gap, it counts as a value like any other."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """Agreed encoding of the columns of a table, in their order.

    The features are the numbers, then a 0/1 column for each number column that had gaps, then a 0/1 column for each
    value of each text column. A value that did not occur in training is 0 in all of its columns.

    Attributes
    ----------
    columns
        Names of the columns.
    fill
        Number that replaces a gap (columns of numbers).
    gaps
        True for columns that had gaps in training.
    values
        Values of each column of text; None for numbers.
    gap_words
        Words that stand for a gap in addition to `cells.GAPS`.
    """

    columns: tuple[str, ...]
    fill: Float64Array
    gaps: npt.NDArray[np.bool_]
    values: Spelled
    gap_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts of different lengths."""
        if not (len(self.columns) == len(self.fill) == len(self.gaps) == len(self.values)):
            raise DataError(f"{len(self.columns)} columns with {len(self.fill)} means and {len(self.values)} lists")

    @classmethod
    def learned(
        cls, columns: tuple[str, ...], coded: Float64Array, spelled: Spelled, gap_words: tuple[str, ...] = ()
    ) -> Preparation:
        """Learn the preparation from training rows: gaps are NaN, texts are codes into their ``spelled`` list."""
        fill, gaps = np.zeros(len(columns)), np.zeros(len(columns), dtype=np.bool_)
        values: list[tuple[str, ...] | None] = []
        for j, words in enumerate(spelled):
            present = coded[:, j][~np.isnan(coded[:, j])]
            gaps[j] = len(present) < len(coded)
            if words is None:
                fill[j] = present.sum() / len(present) if len(present) else 0.0
                values.append(None)
            else:
                seen_values = sorted(words[code] for code in np.unique(present).astype(np.int64).tolist())
                values.append((GAP_CELL, *seen_values) if gaps[j] else tuple(seen_values))
        return cls(columns, fill, gaps, tuple(values), gap_words)

    def refuse_disclosure(self, option: str, *, means: bool) -> None:
        """Refuse a table for which terminals would disclose words, which no sum hides, or (if ``means``) filling means.

        The terminals would send these to agree on the preparation. ``option`` is the protection that the error names.
        """
        if self.texts:
            raise ConfigError(
                f"column {self.columns[self.texts[0]]!r} holds texts, which terminals agree on word by word, and no "
                f"sum hides a word: write them as numbers, or leave {option} out"
            )
        if means and self.gaps.any():
            raise ConfigError(
                f"column {self.columns[int(self.gaps.argmax())]!r} has gaps, which means over all rows would fill, "
                f"and no noise hides these: fill them with a number that needs no rows, or leave {option} out"
            )

    @cached_property
    def numbers(self) -> list[int]:
        """Indices of the columns of numbers."""
        return [j for j, words in enumerate(self.values) if words is None]

    @cached_property
    def indicated(self) -> list[int]:
        """Indices of the columns of numbers that get a second feature for gaps."""
        return [j for j in self.numbers if self.gaps[j]]

    @cached_property
    def texts(self) -> list[int]:
        """Indices of the columns of text."""
        return [j for j, words in enumerate(self.values) if words is not None]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in the order in which `encode` writes them."""
        return (
            *(self.columns[j] for j in self.numbers),
            *(f"{self.columns[j]} missing" for j in self.indicated),
            *(f"{self.columns[j]}={word}" if word else f"{self.columns[j]} missing" for j, word in self._words()),
        )

    @property
    def sources(self) -> npt.NDArray[np.int64]:
        """Index of the column behind each feature, in the order of `feature_names`."""
        words = [[j] * len(self.values[j] or ()) for j in self.texts]
        return np.array([*self.numbers, *self.indicated, *(j for part in words for j in part)], dtype=np.int64)

    @property
    def vocabulary(self) -> bytes:
        """Values of all text columns, as sent on the wire."""
        return json.dumps([self.values[j] for j in self.texts], ensure_ascii=False).encode()

    def encode(self, coded: Float64Array, spelled: Spelled) -> Float64Array:
        """Return the features of rows that are coded as in `learned`; ``spelled`` gives the meaning of their codes."""
        X = np.zeros((len(coded), len(self.feature_names)))
        for k, j in enumerate(self.numbers):
            X[:, k] = np.where(np.isnan(coded[:, j]), self.fill[j], coded[:, j])
        start = len(self.numbers)
        for k, j in enumerate(self.indicated):
            X[:, start + k] = np.isnan(coded[:, j])
        start += len(self.indicated)
        for j in self.texts:
            values, words = self.values[j] or (), spelled[j] or ()
            at = {word: start + k for k, word in enumerate(values)}
            # Gaps are coded NaN and use the last entry of the table.
            place = np.array([at.get(word, -1) for word in (*words, GAP_CELL)], dtype=np.int64)
            column = place[np.where(np.isnan(coded[:, j]), len(words), coded[:, j]).astype(np.int64)]
            rows = np.flatnonzero(column >= 0)
            X[rows, column[rows]] = 1.0
            start += len(values)
        return X

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {
            "columns": list(self.columns),
            "fill": self.fill.tolist(),
            "gaps": self.gaps.tolist(),
            "values": [None if words is None else list(words) for words in self.values],
            "gap_words": list(self.gap_words),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Preparation:
        """Build a preparation from the result of `to_dict`."""
        return cls(
            tuple(fields["columns"]),
            np.array(fields["fill"], dtype=np.float64),
            np.array(fields["gaps"], dtype=np.bool_),
            tuple(None if words is None else tuple(words) for words in fields["values"]),
            tuple(fields["gap_words"]),
        )

    def _words(self) -> list[tuple[int, str]]:
        return [(j, word) for j in self.texts for word in self.values[j] or ()]
