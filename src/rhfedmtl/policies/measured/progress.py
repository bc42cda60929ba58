"""The model of progress: what a round buys, believed beforehand and fitted to the rounds seen.

A BS iteration with H steps leaves the fraction 1 − ρ φ(H) of the dual suboptimality:

* φ(H) = 1 − e^{−bH} is how much of its own problem a terminal solves in H steps, b = c/S for S rows. Terminals return
  their gain curves, and c is fitted to them. Before the first round c = 1.15.
* ρ is how much of all terminals' progress survives the merge. N_b updates for different rows, averaged, keep
  1 − (1 − 1/N_b)²; what the gains of successive rounds show pulls ρ away from that.
* BS iterations at a fixed anchor cannot do all: however many there are, a share of 0.35 τ⁴ waits for the cloud, where τ
  is the coupling of the tasks. There is nothing to wait for where they are independent (τ = 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.runs import bincount
from rhfedmtl.policies.base import FloatArray, Observation, Situation

# One pass over a terminal's rows solves about 1 − e^{−1.15} = 68 % of its problem (measured: 0.65 to 0.72).
PASS_RATE = 1.15
# What a server iteration leaves of the suboptimality, however many its rounds: WAITS τ^WAITS_POWER. Measured on ten
# federations, geometric means: 0.04, 0.18, 0.31 and 0.34 for τ = 0.5, 0.91, 0.99 and 0.999.
WAITS, WAITS_POWER = 0.35, 4
# Something waits for the cloud even where tasks are independent: hundreds of rounds would leave 0, without a logarithm.
_NEVER_NOTHING = 1e-290
# Coupled tasks beyond which more of them make a server iteration no slower.
MOST_PARTNERS = 3.0
# Factors of the believed rate that are tried, and how much each is doubted.
_FACTORS = [math.exp(x / 12.0) for x in range(-24, 25)]
_DOUBT = [0.01 * math.log(factor) ** 2 for factor in _FACTORS]


class ProgressModel(NamedTuple):
    """The model of progress: c of a pass, share ρ that a merge keeps, share w that waits for the cloud."""

    rate: float
    keep: float
    waits: float

    def left(self, phi: Any, station_rounds: Any = 1) -> Any:
        """What a server iteration of K rounds leaves of the suboptimality, with φ done by terminals; numbers or arrays.

        The first round leaves q = 1 − ρ φ; of what is above w, K of them leave q^{K−1} of that.
        """
        q = 1.0 - self.keep * phi
        if isinstance(station_rounds, int) and station_rounds == 1:
            return q
        waits = np.minimum(max(self.waits, _NEVER_NOTHING), q)
        return waits + (q - waits) * q ** (station_rounds - 1.0)

    def log_left(self, phi: npt.ArrayLike, station_rounds: npt.ArrayLike = 1) -> FloatArray:
        """Logarithm of what is left."""
        rounds = 1 if np.ndim(station_rounds) == 0 and station_rounds == 1 else np.asarray(station_rounds, dtype=float)
        return np.asarray(np.log(self.left(np.asarray(phi, dtype=np.float64), rounds)))


class LocalProgress:
    """How far H steps bring terminals of so many rows: 1 − e^{−c H/S}, averaged over rows.

    Terminals of the same size count as one. If there are more than ``most`` sizes, neighbours are gathered: a million
    terminals cost no more than these.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], most: int = 64) -> None:
        counts = bincount(sizes, 1)
        counts[0] = 0
        rows = np.flatnonzero(counts)
        counts = counts[rows]
        weights = counts * rows
        if len(rows) > most:
            starts = np.unique(np.linspace(0, len(rows) - 1, most).astype(np.int64))
            counts, weights = np.add.reduceat(counts, starts), np.add.reduceat(weights, starts)
        ratios, shares = (counts / weights).tolist(), (weights / weights.sum()).tolist()
        self._terms: list[tuple[float, float]] = list(zip(ratios, shares, strict=True))
        self._known: tuple[float, dict[float, float]] = 0.0, {}

    def progress(self, rate: float, steps: float) -> float:
        """φ of H steps; remembered while the rate stays."""
        if self._known[0] != rate:
            self._known = rate, {}
        known = self._known[1]
        if steps not in known:
            known[steps] = math.fsum(share * (1.0 - math.exp(-rate * steps * ratio)) for ratio, share in self._terms)
        return known[steps]


class Seen(NamedTuple):
    """A round as the model sees it: its number, H on average, and the dual gain of all stations.

    Its gain curve is good for ``points`` powers of two: those that every terminal reached.
    """

    round: int
    steps: float
    gain: float
    points: int


class Evidence:
    """Fits the model to rounds; holds what is the same for all rounds of these members and sizes."""

    def __init__(self, s: Situation) -> None:
        # Rows of the terminal on which an average row lies.
        _, rows, counts = s.alike
        self.rows = float((rows * rows * counts).sum() / (rows * counts).sum()) if len(rows) else 1.0
        self.rate, self.believed = PASS_RATE, keeping(s)
        self._share = 1.0 / np.maximum(s.samples, 1.0)

    def fit(self, observed: Sequence[Observation], prior: float) -> tuple[float, float]:
        """c and ρ, drawn towards what is believed with the weight of ``prior`` rounds."""
        if not observed:
            return self.rate, self.believed
        gains = np.stack([seen.gains for seen in observed])  # round, station, after 1, 2, 4, … and all steps
        curves = self._share @ gains
        useful = [k for k, gain in enumerate(curves[:, -1].tolist()) if gain > 0.0]
        if not useful:
            return self.rate, self.believed
        if len(useful) < len(observed):
            observed, gains, curves = [observed[k] for k in useful], gains[useful], curves[useful]
        seen = _seen(observed, curves)
        rate = self._fit_rate(seen, curves, prior)
        return rate, self._fit_keep(seen, gains[:, :, -1], rate, prior)

    def _fit_rate(self, seen: list[Seen], curves: FloatArray, prior: float) -> float:
        """c for which a(1 − e^{−ch/S}) fits the gain curves best, whatever a: downhill from what is believed."""
        known = [
            (each.points, each.steps, [gain / each.gain for gain in curve])
            for each, curve in zip(seen, curves.tolist(), strict=True)
        ]

        def misfit(i: int) -> float:
            if not 0 <= i < len(_FACTORS):
                return math.inf
            return prior * _DOUBT[i] - sum(_explained(self.rate * _FACTORS[i] / self.rows, *each) for each in known)

        here = len(_FACTORS) // 2
        least = misfit(here)
        for step in (8, 4, 2, 1):
            for way in (-step, step):
                while (found := misfit(here + way)) < least:
                    here, least = here + way, found
        return self.rate * _FACTORS[here]

    def _fit_keep(self, seen: list[Seen], gains: FloatArray, rate: float, prior: float) -> float:
        """ρ from how the gains fall from round to round: G′/G = 1 − ρ φ(H), G the gain that more steps would reach.

        Gains are compared over the stations that took part in both rounds.
        """
        shown, all_there = [], bool(gains.min() > 0.0)
        for k, (one, other) in enumerate(pairwise(seen)):
            if other.round == one.round + 1:
                before, after = one.gain, other.gain
                if not all_there:
                    both = np.where((gains[k] > 0.0) & (gains[k + 1] > 0.0), self._share, 0.0)
                    before, after = float(both @ gains[k]), float(both @ gains[k + 1])
                if before > 0.0:
                    phi, later = (-math.expm1(-rate / self.rows * each.steps) for each in (one, other))
                    shown.append(min(max((1.0 - after / later * phi / before) / phi, self.believed / 10.0), 0.95))
        return (prior * self.believed + sum(shown)) / (prior + len(shown))


def keeping(s: Situation, dropout: float = 0.0) -> float:
    """ρ as it is believed without any round: fewer updates solve less, but a merge keeps more of each."""
    members = max(1.0, (1.0 - dropout) * len(s.home) / np.count_nonzero(s.members)) if len(s.home) else 1.0
    kept = min(kept_by_merge(members), kept_by_merge(partners(s.coupling, s.layout.n_tasks)))
    return (1.0 - dropout) * kept


def waiting(coupling: float) -> float:
    """Share of the suboptimality that waits for the cloud, however many rounds stations make before."""
    return WAITS * coupling**WAITS_POWER


def kept_by_merge(members: float) -> float:
    """Share of progress that the average of so many updates, for different rows, keeps: 1 − (1 − 1/N_b)²; below 1."""
    return min(1.0 - (1.0 - 1.0 / members) ** 2, 0.999)


def partners(coupling: float, n_tasks: int) -> float:
    """Tasks whose models move with each other count as terminals whose updates are merged: up to ``MOST_PARTNERS``."""
    return min(1.0 + coupling * (n_tasks - 1), MOST_PARTNERS)


def _explained(b: float, points: int, steps: float, gains: list[float]) -> float:
    """Mean square of the gains after 1, 2, 4, … and all steps that a curve a(1 − e^{−bh}) can explain.

    With the best a, the mean of (a F − g)² over n points is (|g|² − (F·g)²/|F|²)/n.
    """
    left = math.exp(-b)
    product = square = 0.0
    for gain in gains[:points]:
        product += (1.0 - left) * gain
        square += (1.0 - left) ** 2
        left *= left
    last = 1.0 - math.exp(-b * steps)
    return (product + last * gains[-1]) ** 2 / ((square + last * last) * (points + 1))


def _seen(observed: Sequence[Observation], curves: FloatArray) -> list[Seen]:
    found, points = [], curves.shape[1] - 1
    for each, gain in zip(observed, curves[:, -1].tolist(), strict=True):
        least, mean = _steps(each.local_steps)
        found.append(Seen(each.round, mean, gain, min(least.bit_length(), points)))
    return found


def _steps(local_steps: npt.NDArray[np.int64]) -> tuple[int, float]:
    """Least and mean H of those who worked."""
    if local_steps.strides == (0,):  # one number for all
        return int(local_steps[0]), float(local_steps[0])
    working = local_steps[local_steps > 0]
    return int(working.min()), float(working.mean())
