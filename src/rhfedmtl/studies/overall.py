"""Compare methods over all budgets: area under a method's curve, mean rank, geometric mean of its certified gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.intervals import interval
from rhfedmtl.studies.study import At, StudyResult

Float64Array = npt.NDArray[np.float64]
SMALLEST_GAP = 1e-12
"""Smaller relative gaps count as this value, because their logarithms are averaged."""


@dataclass(frozen=True)
class Overall:
    """Summary of a variant along an axis.

    ``area`` is the mean of the metric over the logarithm of the axis, ``half`` half of its 95 % interval over seeds,
    ``against`` the difference to the reference, paired over seeds, with half of its interval. ``rank`` is the mean over
    places and seeds (1 is best), ``relative_gap`` the geometric mean of certificates. ``optimum`` is the range
    that is certified to hold the best possible objective at the last place: lower bound and objective, means over
    seeds. It is None if a run has no such bounds. A single seed has no interval.
    """

    variant: str
    area: float
    half: float | None
    against: tuple[float, float | None] | None
    rank: float
    relative_gap: float | None
    optimum: tuple[float, float] | None


def overall(result: StudyResult, at: At) -> list[Overall]:
    """Return the paying variants, the best rank first, with the axes other than ``x`` at ``at``.

    Omit variants without a result at some place, because their curves cannot be compared.
    """
    if len(result.study.along) < 2 or not (result.study.x or "").startswith("budget."):
        return []
    line = result.study.line(at)
    metrics: dict[str, Float64Array] = {}  # metric at every place of the line, for every seed
    for name in result.running:
        values = [v for at in line if (v := result.values(name, at)) is not None]
        if len(values) == len(line) and len({len(v) for v in values}) == 1:
            metrics[name] = np.stack(values)
    if len({v.shape for v in metrics.values()}) != 1:
        return []
    weights = _weights(np.array(result.study.along, dtype=np.float64))
    areas = {name: weights @ v for name, v in metrics.items()}
    lines = result.study.sign * np.stack(list(metrics.values()))
    above = (lines[None] > lines[:, None]).sum(axis=1)
    level = (lines[None] == lines[:, None]).sum(axis=1) - 1
    ranks = (1.0 + above + level / 2.0).mean(axis=(1, 2))
    rows = []
    for name, rank in zip(metrics, ranks, strict=True):
        runs = [record.result for at in line for record in result.records(name, at) if record.result is not None]
        gaps = [run.relative_gap for run in runs if run.relative_gap is not None]
        gap = float(np.exp(np.mean(np.log(np.maximum(gaps, SMALLEST_GAP))))) if gaps else None
        against, optimum = _against(result, areas, name), _optimum(result, name, line[-1])
        rows.append(Overall(name, *interval(areas[name]), against, float(rank), gap, optimum))
    return sorted(rows, key=lambda row: row.rank)


def _weights(x: Float64Array) -> Float64Array:
    """Return the weights of a mean along the logarithm of x, by trapezoids."""
    steps = np.diff(np.log(x))
    return np.asarray((np.append(steps, 0.0) + np.append(0.0, steps)) / (2.0 * steps.sum()))


def _optimum(result: StudyResult, name: str, at: At) -> tuple[float, float] | None:
    runs = [record.result for record in result.records(name, at) if record.result is not None]
    bounds = [(run.dual, run.primal) for run in runs if run.dual is not None and run.primal is not None]
    if not bounds or len(bounds) < len(runs):
        return None
    low, high = np.mean(bounds, axis=0)
    return float(low), float(high)


def _against(result: StudyResult, areas: dict[str, Float64Array], name: str) -> tuple[float, float | None] | None:
    reference = areas.get(result.study.reference)
    if reference is None or name == result.study.reference:
        return None
    return interval(result.study.sign * (areas[name] - reference))
