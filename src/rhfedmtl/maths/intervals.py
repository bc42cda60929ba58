"""Confidence intervals of means over a few seeds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def student(level: float, free: float) -> float:
    """Half-width of a two-sided Student t interval with ``free`` degrees of freedom, in standard errors of the mean."""
    from scipy.special import stdtrit  # scipy.stats, which has it too, takes half a second to import

    return float(stdtrit(free, (1.0 + level) / 2.0))


def interval(values: npt.NDArray[np.float64], level: float = 0.95) -> tuple[float, float | None]:
    """Return the mean and the half-width of its Student t interval; a single value has no interval."""
    n = len(values)
    if n < 2:
        return float(values.mean()), None
    return float(values.mean()), float(student(level, n - 1) * values.std(ddof=1) / math.sqrt(n))
