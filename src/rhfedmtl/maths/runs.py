"""Facts of a million terminals in little memory: integers stored as runs of equal values, or as counts of values.

`Runs` and `Tally` take the place of a read-only array of integers. They answer simple requests from the values in
store; every other request builds the array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

IntArray = npt.NDArray[np.int64]
Cells = tuple[IntArray, IntArray, IntArray]
LEAST_GAIN = 4
"""Stretches are kept where they are at least so many times fewer than the numbers."""


class _Standing(NDArrayOperatorsMixin, ABC):
    """Stand-in for an array: numpy accepts it as an array."""

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the array itself."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(part) if isinstance(part, _Standing) else part for part in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    @abstractmethod
    def __len__(self) -> int:
        """Return the length of the array."""

    @property
    def shape(self) -> tuple[int]:
        """Shape of the array."""
        return (len(self),)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the array itself."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


@dataclass(frozen=True, eq=False)
class Runs(_Standing):
    """Array with ``values[k]`` at all places from ``ends[k − 1]`` up to ``ends[k]``."""

    values: IntArray
    ends: IntArray

    @classmethod
    def repeat(cls, values: npt.ArrayLike, counts: npt.ArrayLike) -> Runs:
        """Return each value repeated ``counts`` times."""
        counts = np.asarray(counts, dtype=np.int64)
        present = counts > 0
        return cls(np.asarray(values)[present], np.cumsum(counts[present]))

    @classmethod
    def of(cls, values: Any) -> Runs:
        """Return the runs of an array."""
        if isinstance(values, Runs):
            return values
        ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values))[: len(values)]
        return cls(values[ends - 1], ends)

    @property
    def counts(self) -> IntArray:
        """Length of every run."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.repeat(self.values, self.counts).astype(dtype or self.values.dtype, copy=False)

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, slice) and places == slice(None):
            return self
        if isinstance(places, slice) or np.asarray(places).dtype.kind == "b":
            return np.asarray(self)[places]
        places = np.asarray(places)
        if places.size and not (places.min() >= 0 and places.max() < len(self)):
            raise IndexError(f"no place {places} among {len(self)}")
        return self.values[np.searchsorted(self.ends, places, side="right")]

    def astype(self, dtype: Any) -> Any:
        """Return numbers of another type, or the same object if the type is equal."""
        return self if dtype == self.values.dtype else np.asarray(self, dtype=dtype)

    def min(self, **options: Any) -> Any:
        """Return the smallest value."""
        return self.values.min(**options)

    def max(self, **options: Any) -> Any:
        """Return the largest value."""
        return self.values.max(**options)


class Tally(_Standing):
    """Counts of every number in every block of places; the numbers themselves are fetched only on request.

    Block ``k`` has the places ``bounds[k]`` … ``bounds[k + 1] − 1``. Block ``block[i]`` contains ``values[i]``
    ``counts[i]`` times. A fetched array stays in memory.
    """

    def __init__(self, bounds: IntArray, cells: Cells, fetch: Callable[[], IntArray]) -> None:
        self.bounds = bounds
        self.block, self.values, self.counts = cells
        self._fetch: Callable[[], IntArray] = fetch
        self._fetched: IntArray | None = None

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if self._fetched is None:
            self._fetched = np.asarray(self._fetch(), dtype=np.int64)
            self._fetched.flags.writeable = False
        return self._fetched.astype(dtype or np.int64, copy=bool(copy))

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, slice) and places == slice(None):
            return self
        return np.asarray(self)[places]

    @property
    def sums(self) -> IntArray:
        """Sum of every block."""
        return np.bincount(self.block, self.values * self.counts, len(self.bounds) - 1).astype(np.int64)

    def min(self, **options: Any) -> Any:
        """Return the smallest value."""
        return self.values.min(**options)

    def max(self, **options: Any) -> Any:
        """Return the largest value."""
        return self.values.max(**options)

    def sum(self) -> int:
        """Return the sum of all values."""
        return int(self.sums.sum())


class Starts(_Standing):
    """Starts of the items whose sizes a `Tally` counts, followed by the end of the last item."""

    def __init__(self, sizes: Tally) -> None:
        self.sizes = sizes
        self._at_bounds = np.concatenate([[0], np.cumsum(sizes.sums)])
        self._made: IntArray | None = None

    def __len__(self) -> int:
        return len(self.sizes) + 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if self._made is None:
            self._made = np.concatenate([[0], np.cumsum(self.sizes)])
        return self._made.astype(dtype or np.int64, copy=bool(copy))

    def __getitem__(self, places: Any) -> Any:
        """Return starts from the sums of blocks if only bounds of blocks are requested."""
        if isinstance(places, slice):
            return np.asarray(self)[places]
        requested = np.where(np.asarray(places) < 0, np.asarray(places) + len(self), places)
        block = np.minimum(np.searchsorted(self.sizes.bounds, requested), len(self.sizes.bounds) - 1)
        if (self.sizes.bounds[block] == requested).all():
            return self._at_bounds[block]
        return np.asarray(self)[places]


def tally_cells(values: IntArray, bounds: IntArray) -> Cells:
    """Return the cells of a `Tally`: the count of every number in every block."""
    block = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    pairs, counts = np.unique(np.stack([block, values]), axis=1, return_counts=True)
    return pairs[0], pairs[1], counts


def compact(values: Any) -> Any:
    """Return integers as runs if there are far fewer runs than integers; otherwise the array unchanged."""
    runs = Runs.of(values)
    return runs if runs is values or len(runs.ends) * LEAST_GAIN <= len(values) else values


def bincount(values: Any, minlength: int = 0) -> IntArray:
    """Return the count of every number."""
    if isinstance(values, Runs | Tally):
        return np.bincount(values.values, values.counts, minlength).astype(np.int64)
    return np.bincount(values, minlength=minlength)


def pairs(labels: Any, values: Any) -> tuple[IntArray, IntArray, IntArray | int]:
    """Return labels and numbers at the same places, and the count of each pair.

    The count is 1 if the answer lists each place separately.
    """
    if isinstance(labels, Runs) and isinstance(values, Tally) and np.isin(labels.ends, values.bounds).all():
        return labels[values.bounds[values.block]], values.values, values.counts
    return np.asarray(labels), np.asarray(values), 1
