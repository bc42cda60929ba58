"""The progress model: predict the dual progress of a round from prior values, fitted to the observed rounds.

The policy ``measured`` and the planner use it. The model only predicts; it chooses nothing.

A BS iteration with H steps leaves the fraction 1 − ρ φ(H) of the dual suboptimality:

* φ(H) = 1 − e^{−bH} is the share of its local problem that a terminal solves in H steps, with b = c/S for S rows.
  Terminals return their gain curves, and `Evidence` fits c to them. The prior is c = 1.15.
* ρ is the share of the terminals' progress that survives the merge. The average of N_b updates for different rows
  keeps 1 − (1 − 1/N_b)², which is the prior. `Evidence` corrects ρ by the gains of successive rounds.
* BS iterations at a fixed anchor reduce the suboptimality only to a share of 0.35 τ⁴, where τ is the coupling of the
  tasks. The rest needs the cloud. Independent tasks (τ = 0) do not need it.

The model assumes that all rounds close the same share. Under the coupled start of weakly coupled tasks, rounds after
the first close about three times the forecast (`docs/theory_and_measurement.md`, "Few rounds and the coupled start").
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

# One pass over a terminal's rows solves about 1 − e^{−1.15} = 68 % of its problem (observed: 0.65 to 0.72).
# Measured: benchmarks/results/constants.md; ×0.5: −0.24 ± 0.33 points, +0.05 ± 0.09 decades;
# ×2: +0.11 ± 0.21 points, −0.02 ± 0.04 decades.
PASS_RATE = 1.15
# However many rounds it has, a server iteration leaves the share WAITING_SHARE τ^WAITING_POWER of the suboptimality.
# Geometric means of ten federations: 0.04, 0.18, 0.31 and 0.34 for τ = 0.5, 0.91, 0.99 and 0.999.
# Measured: benchmarks/results/constants.md; ×0.5: +0.04 ± 0.10 points, −0.00 ± 0.07 decades;
# ×2: +0.22 ± 0.40 points, +0.01 ± 0.13 decades.
WAITING_SHARE = 0.35
# Measured: benchmarks/results/constants.md; ×0.5: −0.11 ± 0.36 points, +0.03 ± 0.12 decades;
# ×2: +0.05 ± 0.12 points, −0.01 ± 0.04 decades.
WAITING_POWER = 4
# A positive share has a logarithm: hundreds of rounds would leave 0 of independent tasks.
_LEAST_WAITING = 1e-290
# More coupled tasks than this do not make a server iteration slower.
# Measured: benchmarks/results/constants.md; ×0.5: +0.05 ± 0.14 points, +0.01 ± 0.04 decades;
# ×2: −0.00 ± 0.02 points, −0.00 ± 0.01 decades.
MOST_PARTNERS = 3.0
# The fit tries these multiples of the prior rate.
# Measured: benchmarks/results/constants.md; ×0.5: −0.01 ± 0.02 points, −0.00 ± 0.00 decades;
# ×2: −0.00 ± 0.01 points, +0.00 ± 0.00 decades.
_RATE_FACTORS = [math.exp(x / 12.0) for x in range(-24, 25)]
# The penalty on each of them, per round that the prior counts for.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.01 points, +0.00 ± 0.00 decades;
# ×2: −0.00 ± 0.00 points, +0.00 ± 0.00 decades.
_RATE_PENALTY = [0.01 * math.log(factor) ** 2 for factor in _RATE_FACTORS]


class ProgressModel(NamedTuple):
    """The progress model.

    Attributes
    ----------
    rate
        c: progress of terminals per pass over their rows.
    keep
        ρ: share of progress that a merge keeps.
    cloud_share
        w: share of the suboptimality that only the cloud can reduce.
    """

    rate: float
    keep: float
    cloud_share: float

    def left(self, phi: Any, station_rounds: Any = 1) -> Any:
        """Return the share of the suboptimality that remains after a server iteration of K rounds.

        The first round leaves q = 1 − ρ φ. K rounds leave w + (q − w) q^{K−1}, with w at most q. The arguments are
        numbers or arrays.
        """
        q = 1.0 - self.keep * phi
        if isinstance(station_rounds, int) and station_rounds == 1:
            return q
        cloud_share = np.minimum(max(self.cloud_share, _LEAST_WAITING), q)
        return cloud_share + (q - cloud_share) * q ** (station_rounds - 1.0)

    def log_left(self, phi: npt.ArrayLike, station_rounds: npt.ArrayLike = 1) -> FloatArray:
        """Return the logarithm of `left` as an array."""
        rounds = 1 if np.ndim(station_rounds) == 0 and station_rounds == 1 else np.asarray(station_rounds, dtype=float)
        return np.asarray(np.log(self.left(np.asarray(phi, dtype=np.float64), rounds)))


class LocalProgress:
    """Local progress of terminals with ``sizes`` rows in H steps: 1 − e^{−c H/S}, averaged over rows.

    Terminals of the same size share an entry. With more than ``max_sizes`` sizes, neighbouring sizes share an entry,
    which bounds the cost of a million terminals.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], max_sizes: int = 64) -> None:
        counts = bincount(sizes, 1)
        counts[0] = 0
        rows = np.flatnonzero(counts)
        counts = counts[rows]
        weights = counts * rows
        if len(rows) > max_sizes:
            starts = np.unique(np.linspace(0, len(rows) - 1, max_sizes).astype(np.int64))
            counts, weights = np.add.reduceat(counts, starts), np.add.reduceat(weights, starts)
        ratios, shares = (counts / weights).tolist(), (weights / weights.sum()).tolist()
        self._terms: list[tuple[float, float]] = list(zip(ratios, shares, strict=True))
        self._cache: tuple[float, dict[float, float]] = 0.0, {}

    def progress(self, rate: float, steps: float) -> float:
        """Return φ of H steps; cached until the rate changes."""
        if self._cache[0] != rate:
            self._cache = rate, {}
        cache = self._cache[1]
        if steps not in cache:
            cache[steps] = math.fsum(share * (1.0 - math.exp(-rate * steps * ratio)) for ratio, share in self._terms)
        return cache[steps]


class RoundSummary(NamedTuple):
    """Number, mean H and total dual gain of a round, and the number of usable points of its gain curve.

    The first ``points`` points of the curve (1, 2, 4, … steps) are usable, because every terminal reached them.
    """

    round: int
    steps: float
    gain: float
    points: int


class Evidence:
    """Fits the model to rounds; stores the values that depend only on members and their sizes."""

    def __init__(self, s: Situation) -> None:
        # Mean size of a row's terminal, over all rows.
        _, rows, counts = s.distinct_members
        self.rows = float((rows * rows * counts).sum() / (rows * counts).sum()) if len(rows) else 1.0
        self.rate, self.believed = PASS_RATE, prior_keep(s)
        self._share = 1.0 / np.maximum(s.samples, 1.0)

    def fit(self, observed: Sequence[Observation], prior: float) -> tuple[float, float]:
        """Return c and ρ, fitted to the observations; the prior values count like ``prior`` rounds."""
        if not observed:
            return self.rate, self.believed
        gains = np.stack([observation.gains for observation in observed])  # round, station, 1, 2, 4, … and all steps
        curves = self._share @ gains
        useful = [k for k, gain in enumerate(curves[:, -1].tolist()) if gain > 0.0]
        if not useful:
            return self.rate, self.believed
        if len(useful) < len(observed):
            observed, gains, curves = [observed[k] for k in useful], gains[useful], curves[useful]
        summaries, n_points = [], curves.shape[1] - 1
        for observation, gain in zip(observed, curves[:, -1].tolist(), strict=True):
            steps = observation.local_steps
            # With a stride of 0, all terminals have the same number; otherwise, some may not have taken part.
            steps = steps[:1] if steps.strides == (0,) else steps[steps > 0]
            points = min(int(steps.min()).bit_length(), n_points)
            summaries.append(RoundSummary(observation.round, float(steps.mean()), gain, points))
        rate = self._fit_rate(summaries, curves, prior)
        return rate, self._fit_keep(summaries, gains[:, :, -1], rate, prior)

    def _fit_rate(self, summaries: list[RoundSummary], curves: FloatArray, prior: float) -> float:
        """Return the c for which a(1 − e^{−ch/S}) fits the gain curves best, with a free a per curve.

        The search goes downhill from the prior value over the grid `_RATE_FACTORS`.
        """
        scaled_curves = [
            (summary.points, summary.steps, [gain / summary.gain for gain in curve])
            for summary, curve in zip(summaries, curves.tolist(), strict=True)
        ]

        def misfit(i: int) -> float:
            if not 0 <= i < len(_RATE_FACTORS):
                return math.inf
            b = self.rate * _RATE_FACTORS[i] / self.rows
            return prior * _RATE_PENALTY[i] - sum(_explained(b, *curve) for curve in scaled_curves)

        best = len(_RATE_FACTORS) // 2
        minimum = misfit(best)
        for width in (8, 4, 2, 1):
            for step in (-width, width):
                while (value := misfit(best + step)) < minimum:
                    best, minimum = best + step, value
        return self.rate * _RATE_FACTORS[best]

    def _fit_keep(self, summaries: list[RoundSummary], gains: FloatArray, rate: float, prior: float) -> float:
        """Return ρ from the fall of the gains between successive rounds.

        G′/G = 1 − ρ φ(H), where G is the gain that more steps would reach. The comparison covers the stations that took
        part in both rounds.
        """
        samples, complete = [], bool(gains.min() > 0.0)
        for k, (first, second) in enumerate(pairwise(summaries)):
            if second.round == first.round + 1:
                before, after = first.gain, second.gain
                if not complete:
                    both = np.where((gains[k] > 0.0) & (gains[k + 1] > 0.0), self._share, 0.0)
                    before, after = float(both @ gains[k]), float(both @ gains[k + 1])
                if before > 0.0:
                    phi, later = (-math.expm1(-rate / self.rows * summary.steps) for summary in (first, second))
                    samples.append(min(max((1.0 - after / later * phi / before) / phi, self.believed / 10.0), 0.95))
        return (prior * self.believed + sum(samples)) / (prior + len(samples))


def prior_keep(s: Situation, dropout: float = 0.0) -> float:
    """Return the prior value of ρ.

    With dropout fewer updates arrive, which solve less, but a merge keeps more of each update.
    """
    n_members = len(s.member_station)
    members = max(1.0, (1.0 - dropout) * n_members / np.count_nonzero(s.members)) if n_members else 1.0
    keep = min(kept_by_merge(members), kept_by_merge(coupled_tasks(s.coupling, s.layout.n_tasks)))
    return (1.0 - dropout) * keep


def share_of_cloud(coupling: float) -> float:
    """Return the share of the suboptimality that no number of BS iterations reduces without the cloud."""
    return WAITING_SHARE * coupling**WAITING_POWER


def kept_by_merge(members: float) -> float:
    """Return the share of progress that the average of N_b updates for different rows keeps: 1 − (1 − 1/N_b)².

    The result is at most 0.999.
    """
    return min(1.0 - (1.0 - 1.0 / members) ** 2, 0.999)


def coupled_tasks(coupling: float, n_tasks: int) -> float:
    """Return the effective number of tasks whose models move together, at most `MOST_PARTNERS`.

    Such tasks count like terminals whose updates are merged.
    """
    return min(1.0 + coupling * (n_tasks - 1), MOST_PARTNERS)


def _explained(b: float, points: int, steps: float, gains: list[float]) -> float:
    """Return the mean square of the gains after 1, 2, 4, … and all steps that a curve a(1 − e^{−bh}) explains.

    With the best a, the mean of (a F − g)² over n points is (|g|² − (F·g)²/|F|²)/n.
    """
    decay = math.exp(-b)
    product = square = 0.0
    for gain in gains[:points]:
        product += (1.0 - decay) * gain
        square += (1.0 - decay) ** 2
        decay *= decay
    last = 1.0 - math.exp(-b * steps)
    return (product + last * gains[-1]) ** 2 / ((square + last * last) * (points + 1))
