"""Round zero where sums are masked: means and spreads of rows, or of labels, from sums over terminals alone.

Two sums give them, and nothing cancels: Σ w and Σ w m over terminals with weight w and means m, from which the common
mean comes; then Σ (spread + w (m − mean)²). Nobody knows yet how large the numbers are. So each goes as three words, in
steps of 2^20, 2^−24 and 2^−68, which add up exactly in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.centring import NUMBERS
from rhfedmtl.data.scaling import Moments
from rhfedmtl.errors import DataError
from rhfedmtl.roles.messages import MomentsReport

FloatArray = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

STEPS = 2.0**20, 2.0**-24, 2.0**-68
LARGEST = 2.0**64
"""Below it, first words of 2^18 terminals add up to less than 2^62."""


class Spreads(NamedTuple):
    """Weight (rows or their weights), means and summed squared deviations: of a terminal in each row, or of all."""

    weight: FloatArray
    mean: FloatArray
    spread: FloatArray

    @classmethod
    def of_moments(cls, parts: Sequence[Moments | MomentsReport]) -> Spreads:
        """Of rows."""
        weight, mean, spread = zip(*((m.count, m.mean, m.spread) for m in parts), strict=True)
        return cls(np.array(weight, dtype=np.float64), np.array(mean), np.array(spread))

    @classmethod
    def of_labels(cls, parts: FloatArray) -> Spreads:
        """Of labels, as `label_sums` has them."""
        weight, mean, spread = parts.reshape(-1, NUMBERS).T
        return cls(weight, mean[:, None], spread[:, None])

    @property
    def moments(self) -> Moments:
        """Of all rows together."""
        return Moments(round(float(self.weight)), self.mean, self.spread)

    @property
    def labels(self) -> FloatArray:
        """Of all labels together, as `label_sums` has them."""
        return np.concatenate([self.weight, self.mean, self.spread], axis=None)

    def told(self, about: FloatArray) -> FloatArray:
        """What each terminal adds to the first sum, or, about the mean that came of it, to the second."""
        w = self.weight[:, None]
        if not about.size:
            return np.hstack([w, w * self.mean])
        return np.asarray(self.spread + w * np.square(self.mean - about))


def common(told: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weight and means of all, from the first sum."""
    return told[0], told[1:] / max(float(told[0]), np.finfo(np.float64).tiny)


def together(parts: Spreads) -> Spreads:
    """Of all, as sums under masks give it, to the bit."""
    weight, mean = common(_added(parts.told(np.empty(0))))
    return Spreads(weight, mean, _added(parts.told(mean)))


def to_words(values: FloatArray) -> Words:
    """Three words for each number of the last axis; what is too large to be added up is refused."""
    if not (np.abs(values) < LARGEST).all():
        raise DataError(f"numbers up to {np.abs(values).max():.3g} cannot be added up under masks: scale them")
    words, rest = [], values
    for step in STEPS:
        whole = np.rint(rest / step) if step == STEPS[-1] else np.trunc(rest / step)
        rest = rest - whole * step
        words.append(whole.astype(np.int64))
    return np.concatenate(words, axis=-1).view(np.uint64)


def to_numbers(words: Words) -> FloatArray:
    """The numbers that a sum of such words stands for."""
    high, middle, low = (part.tolist() for part in np.split(words.view(np.int64), len(STEPS)))
    return np.array([float((h << 88) + (m << 44) + n) * STEPS[-1] for h, m, n in zip(high, middle, low, strict=True)])


def _added(values: FloatArray) -> FloatArray:
    return to_numbers(to_words(values).sum(axis=0, dtype=np.uint64))
