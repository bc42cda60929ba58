"""Intervals of means over a few seeds."""

from __future__ import annotations


def student(level: float, free: float) -> float:
    """Half of a two-sided interval of Student's t with so many degrees of freedom, in standard errors of the mean."""
    from scipy.special import stdtrit  # scipy.stats, which has it too, takes half a second to import

    return float(stdtrit(free, (1.0 + level) / 2.0))
