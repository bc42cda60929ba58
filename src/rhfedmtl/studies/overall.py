"""All budgets at once: the area under a method's curve, its mean rank, and how small its certified gaps are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rhfedmtl.maths.intervals import interval
from rhfedmtl.studies.study import At, StudyResult

Float64Array = npt.NDArray[np.float64]
SMALLEST = 1e-12
"""Relative gaps below count as this much: their logarithms are averaged."""


@dataclass(frozen=True)
class Overall:
    """A variant along the whole of an axis.

    ``area`` is the mean of the metric over the logarithm of the axis, ``half`` half of its 95 % interval over seeds,
    ``against`` the difference to the reference, paired over seeds, with half of its interval. ``rank`` is the mean over
    places and seeds (1 is the best), ``relative_gap`` the geometric mean of certificates. One seed has no interval.
    """

    variant: str
    area: float
    half: float | None
    against: tuple[float, float | None] | None
    rank: float
    relative_gap: float | None


def overall(result: StudyResult, at: At) -> list[Overall]:
    """Variants that pay, the best rank first, where the axes that are not drawn along are at ``at``.

    Those that have no result at one of the places are left out: their curves cannot be laid beside the others.
    """
    if len(result.study.along) < 2 or not (result.study.x or "").startswith("budget."):
        return []
    line = result.study.line(at)
    known: dict[str, Float64Array] = {}  # metric at every place of the line, for every seed
    for name in result.running:
        values = [v for at in line if (v := result.values(name, at)) is not None]
        if len(values) == len(line) and len({len(v) for v in values}) == 1:
            known[name] = np.stack(values)
    if len({v.shape for v in known.values()}) != 1:
        return []
    weights = _weights(np.array(result.study.along, dtype=np.float64))
    areas = {name: weights @ v for name, v in known.items()}
    lines = result.study.sign * np.stack(list(known.values()))
    above = (lines[None] > lines[:, None]).sum(axis=1)
    level = (lines[None] == lines[:, None]).sum(axis=1) - 1
    ranks = (1.0 + above + level / 2.0).mean(axis=(1, 2))
    rows = []
    for name, rank in zip(known, ranks, strict=True):
        runs = [record.result for at in line for record in result.records(name, at) if record.result is not None]
        gaps = [run.relative_gap for run in runs if run.relative_gap is not None]
        gap = float(np.exp(np.mean(np.log(np.maximum(gaps, SMALLEST))))) if gaps else None
        rows.append(Overall(name, *interval(areas[name]), _against(result, areas, name), float(rank), gap))
    return sorted(rows, key=lambda row: row.rank)


def _weights(x: Float64Array) -> Float64Array:
    """Of a mean along the logarithm of x, by trapezoids."""
    steps = np.diff(np.log(x))
    return np.asarray((np.append(steps, 0.0) + np.append(0.0, steps)) / (2.0 * steps.sum()))


def _against(result: StudyResult, areas: dict[str, Float64Array], name: str) -> tuple[float, float | None] | None:
    reference = areas.get(result.study.reference)
    if reference is None or name == result.study.reference:
        return None
    return interval(result.study.sign * (areas[name] - reference))
