"""Statistics of the windows of a series: level, spread, shape, spectrum, and correlation of channels.

`recordings` describes the windows of raw files with them, and `watch` the series of its people. To add a statistic,
write a function of `Signals` and add its line to ``STATISTICS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import DataError

Matrix = npt.NDArray[np.float64]
BANDS_HZ = (0.0, 0.75, 1.5, 3.0, 6.0)
"""Lower ends of the frequency bands. Bands that begin above half the sampling rate are left out."""
LEAST_SAMPLES = 16
"""Least length of a window: with fewer samples, the spectrum has too few frequencies for bands."""
AXIS = re.compile(r"(?P<stem>.*?)[ _.-]?(?P<axis>[xyz])|(?P<first>[xyz])[ _.-](?P<rest>.+)", re.IGNORECASE)
"""A channel of a sensor with three axes: ``acc_x``, ``ax`` or ``x_acc``."""


@dataclass(frozen=True)
class Signals:
    """Windows of signals (window × signal × sample) at ``rate`` samples per second.

    The signals are the ``channels`` and the length of every sensor; ``parts`` are the channels of each of the
    `sensors`.
    """

    channels: Matrix
    rate: float
    parts: Sequence[Sequence[int]]

    @cached_property
    def values(self) -> Matrix:
        """Channels and lengths."""
        cut = self.channels
        lengths = [np.linalg.norm(cut[:, list(axes)], axis=1, keepdims=True) for axes in self.parts[:-1]]
        return np.concatenate([cut, *lengths], axis=1)

    @cached_property
    def mean(self) -> Matrix:
        """Mean of every window and signal."""
        return np.asarray(self.values.mean(axis=2))

    @cached_property
    def quartiles(self) -> Matrix:
        """Lower quartile, median and upper quartile."""
        return np.asarray(np.quantile(self.values, [0.25, 0.5, 0.75], axis=2))

    @cached_property
    def power(self) -> Matrix:
        """Power of every frequency above zero, after a Hann window on the centred signal."""
        windowed = (self.values - self.values.mean(axis=2, keepdims=True)) * np.hanning(self.values.shape[2])
        return np.asarray(np.square(np.abs(np.fft.rfft(windowed, axis=2)))[:, :, 1:] + 1e-12)

    @cached_property
    def share(self) -> Matrix:
        """Share of every frequency in the power."""
        return np.asarray(self.power / self.power.sum(axis=2, keepdims=True))

    @cached_property
    def frequency(self) -> Matrix:
        """Frequencies above zero, in Hz."""
        return np.asarray(np.fft.rfftfreq(self.values.shape[2], 1 / self.rate)[1:])


def _crossings(signals: Signals) -> Matrix:
    """Return the share of steps that cross the mean."""
    above = signals.values > signals.mean[:, :, None]
    return np.asarray((above[:, :, 1:] != above[:, :, :-1]).mean(axis=2))


def _bands(signals: Signals) -> Matrix:
    """Return the log power in each band, band by band."""
    edges = bands(signals.rate)
    band = np.searchsorted(edges[1:-1], signals.frequency, side="right")
    powers = [signals.power[:, :, band == b].sum(axis=2) for b in range(len(edges) - 1)]
    return np.log(np.concatenate(powers, axis=1) + 1e-12)


def _entropy(signals: Signals) -> Matrix:
    """Return the evenness of the spectrum: 0 for a tone, 1 for noise."""
    share = signals.share
    return np.asarray(-(share * np.log(share)).sum(axis=2) / np.log(len(signals.frequency)))


def _correlations(signals: Signals) -> Matrix:
    """Return the correlation of every two channels of a sensor; 0 if a channel does not move."""
    centred = signals.channels - signals.channels.mean(axis=2, keepdims=True)
    norm = np.linalg.norm(centred, axis=2)
    unit = centred / np.where(norm > 0, norm, 1.0)[:, :, None]
    products = [np.sum(unit[:, i] * unit[:, j], axis=1) for i, j in _pairs(signals.parts)]
    return np.column_stack(products) if products else np.empty((len(unit), 0))


class Statistic(NamedTuple):
    """A statistic of every window, and its description."""

    title: str
    of: Callable[[Signals], Matrix]


POWER = "power"
CORRELATION = "correlation"
STATISTICS: dict[str, Statistic] = {
    "mean": Statistic("mean", lambda s: s.mean),
    "spread": Statistic("standard deviation", lambda s: s.values.std(axis=2)),
    "least": Statistic("least value", lambda s: s.values.min(axis=2)),
    "greatest": Statistic("greatest value", lambda s: s.values.max(axis=2)),
    "lower quartile": Statistic("lower quartile", lambda s: s.quartiles[0]),
    "median": Statistic("median", lambda s: s.quartiles[1]),
    "upper quartile": Statistic("upper quartile", lambda s: s.quartiles[2]),
    "quartile range": Statistic("upper minus lower quartile", lambda s: s.quartiles[2] - s.quartiles[0]),
    "energy": Statistic("mean of the squares", lambda s: np.square(s.values).mean(axis=2)),
    "roughness": Statistic("mean size of a step |Δx|", lambda s: np.abs(np.diff(s.values, axis=2)).mean(axis=2)),
    "crossings": Statistic("share of steps that cross the mean", _crossings),
    POWER: Statistic("log power in each frequency band", _bands),
    "peak frequency": Statistic("frequency with the most power", lambda s: s.frequency[s.power.argmax(axis=2)]),
    "centre frequency": Statistic("mean frequency, weighted by power", lambda s: s.share @ s.frequency),
    "spectral entropy": Statistic("evenness of the spectrum: 0 one tone, 1 noise", _entropy),
    CORRELATION: Statistic("correlation of every two channels of a sensor", _correlations),
}
"""Statistics by name, in the order of their columns. All but the correlations are also taken of |xyz| of a sensor."""


def bands(rate: float) -> tuple[float, ...]:
    """Return the edges of the frequency bands below half of the sampling rate."""
    return (*(low for low in BANDS_HZ if low < rate / 2), rate / 2)


def sensors(channels: Sequence[str]) -> list[list[int]]:
    """Return the channels of each sensor: three whose names differ in x, y, z, and all others as the last.

    ``acc_x, acc_y, acc_z``, ``ax, ay, az`` and ``x_acc, y_acc, z_acc`` are three axes of a sensor.
    """
    stems: dict[tuple[str, str], dict[str, int]] = {}
    for j, name in enumerate(channels):
        match = AXIS.fullmatch(name)
        if match is not None:
            axis = (match["axis"] or match["first"]).lower()
            stems.setdefault((match["stem"] or "", match["rest"] or ""), {})[axis] = j
    complete = [[axes[axis] for axis in "xyz"] for axes in stems.values() if len(axes) == 3]
    rest = sorted(set(range(len(channels))) - {j for axes in complete for j in axes})
    return [*complete, rest]


def window_features(
    series: Matrix,
    length: int,
    step: int,
    rate: float,
    parts: Sequence[Sequence[int]],
    statistics: Sequence[str] = tuple(STATISTICS),
) -> Matrix:
    """Return a row of features for every window of a series (time × channel).

    Parameters
    ----------
    series
        Samples at equal distances.
    length, step
        Samples of a window, and from the start of a window to the next.
    rate
        Samples per second.
    parts
        Channels of each `sensors`; the last has no length.
    statistics
        Names of ``STATISTICS``, in the order of the columns.
    """
    if len(series) < length:
        raise DataError(f"a series of {len(series)} samples is shorter than a window of {length}")
    cut = np.lib.stride_tricks.sliding_window_view(series, length, axis=0)[::step]
    signals = Signals(cut, rate, parts)
    return np.concatenate([STATISTICS[name].of(signals) for name in statistics], axis=1)


def feature_names(
    channels: Sequence[str],
    rate: float,
    parts: Sequence[Sequence[int]],
    statistics: Sequence[str] = tuple(STATISTICS),
) -> tuple[str, ...]:
    """Return the names of the columns of `window_features`."""
    lengths = ["|" + "".join(channels[j] for j in axes) + "|" for axes in parts[:-1]]
    names: list[str] = []
    for name in statistics:
        kinds = [f"power {low:g}-{high:g} Hz" for low, high in pairwise(bands(rate))] if name == POWER else [name]
        if name == CORRELATION:
            names += [f"correlation of {channels[i]} and {channels[j]}" for i, j in _pairs(parts)]
        else:
            names += [f"{kind} of {signal}" for kind in kinds for signal in [*channels, *lengths]]
    return tuple(names)


def _pairs(parts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return every two channels of the same sensor."""
    return sorted((min(i, j), max(i, j)) for axes in parts for i, j in combinations(axes, 2))
