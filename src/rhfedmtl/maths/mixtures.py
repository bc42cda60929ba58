"""Models that are made of others, the same to the bit whoever makes them: both ends of a link can."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Models = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]

GRAIN = 2.0**-16
"""Step of the share by which a model on the line through two others is told."""
FARTHEST = 2.0**10
"""How far from them it may lie."""


def combined(weights: Vector, models: Models) -> Models:
    """Σ_m weight_m model_m."""
    total = np.zeros(models.shape[1:])
    for weight, model in zip(weights.tolist(), models, strict=True):
        total += weight * model
    return total


def between(share: float, models: Models) -> Models:
    """(1 − s) of the first of two models and s of the second."""
    return combined(np.array([1.0 - share, share]), models)


def in_grains(share: float) -> float:
    """The nearest share that `share_between` finds again."""
    return round(share / GRAIN) * GRAIN


def share_between(model: Models, models: Models) -> float | None:
    """The share, in grains, that makes this model of two others; None where there is none that does, to the bit."""
    if len(models) != 2 or model.shape != models.shape[1:]:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large has none
        apart = models[1] - models[0]
        square, along = float(np.sum(apart * apart)), float(np.sum((model - models[0]) * apart))
    if not abs(along) < FARTHEST * square < np.inf:
        return None
    share = in_grains(along / square)
    return share if np.array_equal(between(share, models), model) else None
