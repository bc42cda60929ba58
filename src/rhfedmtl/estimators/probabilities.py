"""Calibrate the probabilities of a classifier in `fit`: decide whether to, and on which rows."""

from __future__ import annotations

from typing import Any

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import build
from rhfedmtl.errors import ConfigError, RHFedMTLError
from rhfedmtl.estimators.parameters import options_of

Estimator = Any
"""A `TaskEstimator`; that module imports this one, so the type cannot be imported here."""
CALIBRATIONS = (None, "folds", "off")


def check_calibration(estimator: Estimator) -> None:
    """Raise an error for a calibration that does not exist or does not fit the other parameters."""
    value = estimator.calibration
    if value not in CALIBRATIONS:
        raise ConfigError(f"calibration must be 'folds' or 'off', got {value!r}; leave it out for the default")
    if value == "folds" and estimator.privacy:
        raise ConfigError(
            f"calibration='folds' trains models of folds, which privacy={estimator.privacy!r} does not cover: leave "
            "calibration out, and take loss='logistic' for probabilities"
        )


def reason_against(estimator: Estimator) -> str:
    """Return why a fit with these parameters does not calibrate, or an empty text."""
    if estimator.calibration == "off":
        return "calibration='off'"
    if estimator.privacy:
        return "a bound on privacy does not cover the models of folds"
    if estimator.budget is not None and estimator.calibration is None:
        return "a budget does not pay for the models of folds"
    try:
        method = build(estimator.algorithm, options_of(estimator), "binary").method
    except RHFedMTLError:  # `fit` explains what is wrong
        return ""
    return "" if isinstance(method, DualMethod) else f"algorithm {estimator.algorithm!r} has no models of folds"
