"""How rows of a table become features: gaps filled, texts as one column for each value.

All that it takes is agreed on in round zero from training rows: count and sum of the values of each column of numbers,
whether it has gaps, and the values of each column of text. It is kept with the models, so that new rows go the same
way. Only arithmetic lives here.
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
"""For each column of a table: None where it holds numbers, otherwise the values that its codes stand for."""
GAP = ""
"""Stands for a gap among the values of a column of text: where training rows had any, it is a value like others."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """Columns of a table in their order; what fills gaps (numbers), which had any, and the known values (text).

    Features are the numbers, then a column of 0 and 1 for each that had gaps, then a column of 0 and 1 for each value
    of each text; a value that was not there in training is 0 in all of them. ``gap_words`` stand for a gap beside the
    usual ones.
    """

    columns: tuple[str, ...]
    fill: Float64Array
    gaps: npt.NDArray[np.bool_]
    values: Spelled
    gap_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if not (len(self.columns) == len(self.fill) == len(self.gaps) == len(self.values)):
            raise DataError(f"{len(self.columns)} columns with {len(self.fill)} means and {len(self.values)} lists")

    @classmethod
    def learned(
        cls, columns: tuple[str, ...], coded: Float64Array, spelled: Spelled, gap_words: tuple[str, ...] = ()
    ) -> Preparation:
        """From training rows: gaps are NaN, texts are codes into what ``spelled`` lists for their column."""
        fill, gaps = np.zeros(len(columns)), np.zeros(len(columns), dtype=np.bool_)
        values: list[tuple[str, ...] | None] = []
        for j, words in enumerate(spelled):
            present = coded[:, j][~np.isnan(coded[:, j])]
            gaps[j] = len(present) < len(coded)
            if words is None:
                fill[j] = present.sum() / len(present) if len(present) else 0.0
                values.append(None)
            else:
                known = sorted(words[code] for code in np.unique(present).astype(np.int64).tolist())
                values.append((GAP, *known) if gaps[j] else tuple(known))
        return cls(columns, fill, gaps, tuple(values), gap_words)

    def refuse_told(self, option: str, *, means: bool) -> None:
        """Refuse what terminals would tell of their rows to agree on it: words, which no sum hides, and ``means``."""
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
        """Which columns are numbers."""
        return [j for j, known in enumerate(self.values) if known is None]

    @cached_property
    def indicated(self) -> list[int]:
        """Which columns of numbers have a feature that says where gaps were."""
        return [j for j in self.numbers if self.gaps[j]]

    @cached_property
    def texts(self) -> list[int]:
        """Which columns are text."""
        return [j for j, known in enumerate(self.values) if known is not None]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return (
            *(self.columns[j] for j in self.numbers),
            *(f"{self.columns[j]} missing" for j in self.indicated),
            *(f"{self.columns[j]}={word}" if word else f"{self.columns[j]} missing" for j, word in self._words()),
        )

    @property
    def vocabulary(self) -> bytes:
        """The known values as they travel."""
        return json.dumps([self.values[j] for j in self.texts], ensure_ascii=False).encode()

    def encode(self, coded: Float64Array, spelled: Spelled) -> Float64Array:
        """Features of rows that are coded as in `learned`, with other codes if need be."""
        X = np.zeros((len(coded), len(self.feature_names)))
        for k, j in enumerate(self.numbers):
            X[:, k] = np.where(np.isnan(coded[:, j]), self.fill[j], coded[:, j])
        start = len(self.numbers)
        for k, j in enumerate(self.indicated):
            X[:, start + k] = np.isnan(coded[:, j])
        start += len(self.indicated)
        for j in self.texts:
            known, words = self.values[j] or (), spelled[j] or ()
            at = {word: start + k for k, word in enumerate(known)}
            # The last place of the table is that of gaps, which are coded NaN.
            place = np.array([at.get(word, -1) for word in (*words, GAP)], dtype=np.int64)
            column = place[np.where(np.isnan(coded[:, j]), len(words), coded[:, j]).astype(np.int64)]
            rows = np.flatnonzero(column >= 0)
            X[rows, column[rows]] = 1.0
            start += len(known)
        return X

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values."""
        return {
            "columns": list(self.columns),
            "fill": self.fill.tolist(),
            "gaps": self.gaps.tolist(),
            "values": [None if known is None else list(known) for known in self.values],
            "gap_words": list(self.gap_words),
        }

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Preparation:
        """Undo `to_dict`."""
        return cls(
            tuple(known["columns"]),
            np.array(known["fill"], dtype=np.float64),
            np.array(known["gaps"], dtype=np.bool_),
            tuple(None if words is None else tuple(words) for words in known["values"]),
            tuple(known["gap_words"]),
        )

    def _words(self) -> list[tuple[int, str]]:
        return [(j, word) for j in self.texts for word in self.values[j] or ()]
