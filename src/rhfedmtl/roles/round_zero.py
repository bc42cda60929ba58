"""Round zero: checks of feature maps by terminals; with masked sums, means and spreads only from sums over terminals.

Two sums are enough, and neither loses digits by cancellation:

1. Σ w and Σ w m over terminals with weight w and means m, which give the common mean;
2. Σ (spread + w (m − mean)²).

The size of the numbers is unknown in round zero. So each number is sent as three words, in steps of 2^20, 2^−24 and
2^−68, which add up exactly in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.centring import LABEL_NUMBERS
from rhfedmtl.data.scaling import Moments, RowMap
from rhfedmtl.errors import DataError, PeerError
from rhfedmtl.features.maps import Features
from rhfedmtl.roles.messages import MomentsReport, Scaling

FloatArray = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

WORD_STEPS = 2.0**20, 2.0**-24, 2.0**-68
LARGEST_WORD = 2.0**64
"""Numbers must be below this, so that the first words of 2^18 terminals add up to less than 2^62."""


class Spreads(NamedTuple):
    """Weights (rows or their weights), means and summed squared deviations, one terminal per row or a total."""

    weight: FloatArray
    mean: FloatArray
    spread: FloatArray

    @classmethod
    def of_moments(cls, parts: Sequence[Moments | MomentsReport]) -> Spreads:
        """Return the spreads of rows."""
        weight, mean, spread = zip(*((m.count, m.mean, m.spread) for m in parts), strict=True)
        return cls(np.array(weight, dtype=np.float64), np.array(mean), np.array(spread))

    @classmethod
    def of_labels(cls, parts: FloatArray) -> Spreads:
        """Return the spreads of labels, from `label_sums`."""
        weight, mean, spread = parts.reshape(-1, LABEL_NUMBERS).T
        return cls(weight, mean[:, None], spread[:, None])

    @property
    def moments(self) -> Moments:
        """Moments of all rows, from a total."""
        return Moments(round(float(self.weight)), self.mean, self.spread)

    @property
    def labels(self) -> FloatArray:
        """Sums of all labels as `label_sums` returns them, from a total."""
        return np.concatenate([self.weight, self.mean, self.spread], axis=None)

    def terms(self, about: FloatArray) -> FloatArray:
        """Return each terminal's term of the first sum, or, with the mean ``about``, of the second sum."""
        w = self.weight[:, None]
        if not about.size:
            return np.hstack([w, w * self.mean])
        return np.asarray(self.spread + w * np.square(self.mean - about))


def common(first_sum: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the total weight and the common means, from the first sum."""
    return first_sum[0], first_sum[1:] / max(float(first_sum[0]), np.finfo(np.float64).tiny)


def together(parts: Spreads) -> Spreads:
    """Return the total of all terminals, to the bit as masked sums give it."""
    weight, mean = common(_added(parts.terms(np.empty(0))))
    return Spreads(weight, mean, _added(parts.terms(mean)))


def check_mapping(
    terminal: int, features: Features, n_columns: int, mapping: RowMap, *, mapped: bool, survey: bool = True
) -> None:
    """Refuse a map of rows that the job does not need, or after the rows are ``mapped``.

    A ``survey`` asks for moments of mapped rows, or for counts if the map of the job needs quantiles.
    """
    text, columns = mapping.features.text, mapping.statistics.n_columns
    if mapped:
        raise PeerError(
            f"terminal {terminal} has mapped its rows already, and sends no further moments of them: start over with "
            "`rhfedmtl network reset`"
        )
    if not features or text not in (features.surveys if survey else (features.text,)):
        raise PeerError(f"a feature map {text!r}, where terminal {terminal} learns behind {features.text!r}")
    if columns != n_columns:
        raise PeerError(f"a feature map of {columns} columns, where the rows of terminal {terminal} have {n_columns}")


def check_scaling(terminal: int, features: Features, n_columns: int, scaling: Scaling) -> None:
    """Refuse a scaling without the feature map of the job, or with another map."""
    mapping = scaling.scaler.mapping
    if mapping is not None:
        check_mapping(terminal, features, n_columns, mapping, mapped=False, survey=False)
    elif features:
        raise PeerError(f"scaling without a feature map, where terminal {terminal} learns behind {features.text!r}")


def to_words(values: FloatArray) -> Words:
    """Return three words for each number of the last axis; raise `DataError` for numbers too large to add up."""
    if not (np.abs(values) < LARGEST_WORD).all():
        raise DataError(f"numbers up to {np.abs(values).max():.3g} cannot be added up under masks: scale them")
    words, rest = [], values
    for step in WORD_STEPS:
        multiple = np.rint(rest / step) if step == WORD_STEPS[-1] else np.trunc(rest / step)
        rest = rest - multiple * step
        words.append(multiple.astype(np.int64))
    return np.concatenate(words, axis=-1).view(np.uint64)


def to_numbers(words: Words) -> FloatArray:
    """Return the numbers that a sum of such words stands for."""
    high, middle, low = (part.tolist() for part in np.split(words.view(np.int64), len(WORD_STEPS)))
    return np.array(
        [float((h << 88) + (m << 44) + n) * WORD_STEPS[-1] for h, m, n in zip(high, middle, low, strict=True)]
    )


def _added(values: FloatArray) -> FloatArray:
    return to_numbers(to_words(values).sum(axis=0, dtype=np.uint64))
