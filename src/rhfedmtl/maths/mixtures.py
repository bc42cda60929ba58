"""Combine models with the same bits on both ends of a link, so a message can send weights instead of a model.

The wire format and the certificates call these functions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Models = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]

# A model on the line through two others is sent as a multiple of this share.
SHARE_STEP = 2.0**-16
# A larger share is not sent: the model is sent instead.
LARGEST_SHARE = 2.0**10


def combined(weights: Vector, models: Models) -> Models:
    """Return Σ_m weight_m model_m."""
    total = np.zeros(models.shape[1:])
    for weight, model in zip(weights.tolist(), models, strict=True):
        total += weight * model
    return total


def between(share: float, models: Models) -> Models:
    """Return (1 − s) times the first of two models plus s times the second."""
    return combined(np.array([1.0 - share, share]), models)


def rounded_share(share: float) -> float:
    """Return the nearest multiple of `SHARE_STEP`: a share that `share_between` recovers."""
    return round(share / SHARE_STEP) * SHARE_STEP


def share_between(model: Models, models: Models) -> float | None:
    """Return the share, a multiple of `SHARE_STEP`, that mixes ``model`` from two others to the bit, if it exists."""
    if len(models) != 2 or model.shape != models.shape[1:]:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow means that no share fits
        difference = models[1] - models[0]
        square, along = float(np.sum(difference * difference)), float(np.sum((model - models[0]) * difference))
    if not abs(along) < LARGEST_SHARE * square < np.inf:
        return None
    share = rounded_share(along / square)
    return share if np.array_equal(between(share, models), model) else None
