"""Models for others' eyes: noise that hides every single training row, made sound by the certified gap (PRIVACY §3).

Neighbouring data sets differ in one row that is replaced; counts of rows are public. With rows of norm ≤ R, a loss of
slope ≤ ℓ = 1, and Q fixed beforehand, the best models move by ‖ΔW*‖_Q ≤ 2ℓR √K max_b √G_bb/n_b for K columns. Models
within ``gap`` of the best objective lie within √(2N gap) of W*, on either data set. So

    sensitivity = 2ℓR √K max_b √G_bb/n_b + 2 √(2N gap),    release W + Z,  Z with covariance s²G across tasks,

is (sensitivity/s)-private, however many rounds were made. The gap is the target of the run, fixed beforehand: the one
that was reached tells of the rows, as do rounds and bill, and none of these is released.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.centring import with_intercepts, without_intercepts
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.coupling import Relationship, mix
from rhfedmtl.maths.gaussian_privacy import epsilon_of
from rhfedmtl.roles.certificates import NoisedCertificate
from rhfedmtl.roles.channel import standard_normal
from rhfedmtl.training.config import GOOD_ENOUGH
from rhfedmtl.training.privacy import BOUNDED, SIMULATION, STATEMENT, Privacy

Float64Array = npt.NDArray[np.float64]
Learned = Any
"""`TaskModels`, which stands above this module."""
FIXED = ("mean", "none")
"""Relationships whose Q no row has a say in."""


def noised(
    models: Learned, privacy: Privacy, address: tuple[int, ...] | None = None
) -> tuple[Float64Array, dict[str, Any]]:
    """The models in noise, and a statement of what that hides; refused where nothing would be hidden.

    ``address`` is for experiments: it repeats the noise, and the statement says that this gives no protection.
    """
    relationship, gap = _problem(models), _target(models)
    sensitivity = sensitivity_of(models, relationship, gap)
    noise = sensitivity / privacy.mu
    statement = {
        "words": SIMULATION
        if address
        else f"(epsilon, delta) = ({privacy.epsilon:g}, {privacy.delta:g}) for any one training row replaced",
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "mu": privacy.mu,
        "neighbours": "one row replaced; tasks, counts of rows, weights and target gap are public",
        "sensitivity": sensitivity,
        "noise": noise,
        "target_gap": gap,
    }
    return in_noise(models, relationship, noise, address), statement


class Releases:
    """What was released of models so far, μ of each: kept with the models, and beside their file where they have one.

    Each is the same models in Gaussian noise of its own: μ² adds up.
    """

    def __init__(self, model: Path | None = None) -> None:
        self._account = None if model is None else account_of(model)
        self._told: list[dict[str, float]] = []

    def charge(self, statement: dict[str, Any]) -> dict[str, Any]:
        """Count a release, wherever it goes; then the statement, with what all so far tell together."""
        self._told.append({name: statement[name] for name in ("mu", "epsilon", "delta")})
        if self._account is not None:
            self._told = _put_down(self._account, self._told[-1:])
        mu, delta = math.hypot(*(each["mu"] for each in self._told)), statement["delta"]
        told = {"releases": len(self._told), "epsilon": epsilon_of(mu, delta), "delta": delta, "mu": mu}
        return {**statement, "in_all": told}

    def follow(self, model: Path) -> None:
        """Go on beside a file that the models are saved in; an account that is there already stays as it is."""
        if self._account is None:
            self._account = account_of(model)
            if self._told and not self._account.exists():
                _put_down(self._account, self._told)


def account_of(model: Path) -> Path:
    """Where releases of the models in a file are counted."""
    return model.with_suffix(".releases.jsonl")


def _put_down(account: Path, releases: list[dict[str, float]]) -> list[dict[str, float]]:
    """Add releases to an account; then all that are in it."""
    with account.open("a+", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in releases)
        file.seek(0)
        try:
            return [{"mu": float(json.loads(line)["mu"])} for line in file]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{account} counts releases of models, and cannot be read: {error!r}") from None


def in_noise(
    models: Learned, relationship: Relationship, noise: float, address: tuple[int, ...] | None = None
) -> Float64Array:
    """W + Z, Z with covariance s²G across tasks."""
    learned = without_intercepts(models.models, models.constant)
    dense = relationship.dense(len(learned))
    root = (dense.U / np.sqrt(dense.kappa)) @ dense.U.T
    return with_intercepts(learned + noise * mix(root, standard_normal(learned.shape, address)), models.constant)


def sensitivity_of(models: Learned, relationship: Relationship, gap: float) -> float:
    """How far one row can move models that are within a gap of the best, in Q-norm."""
    tasks, columns = models.models.shape[:2]
    n = np.array(models.provenance["data"]["rows"], dtype=np.float64)
    radius: float = models.scalers[0].radius(models.models.shape[2], intercept=models.intercept)
    moved = float(np.max(np.sqrt(np.diag(relationship.dense(tasks).G)) / n))
    return 2.0 * radius * math.sqrt(columns) * moved + 2.0 * math.sqrt(2.0 * tasks * gap)


def _problem(models: Learned) -> Relationship:
    """The coupling that the models were learned with; refused where rows had a say in the problem."""
    known, certificate = models.provenance, models.certificate
    options = {**known.get("configuration", {}).get("options", {}), **known.get("estimator", {})}
    # Models of a private run need no release, or are not private.
    statement, private = models.provenance.get(STATEMENT), {}
    if statement is None:
        text = (
            "their file does not name the source of the noise of its private run, and earlier versions used the seed: "
            "these models are not private, train again"
        )
        private = {text: isinstance(certificate, NoisedCertificate)}
    elif not statement["private"]:
        private = {f"{SIMULATION}; train again without --seed (in Python with random_state=None)": True}
    else:
        text = "a private run has told what it may, and its models may be given away as they are"
        private = {f"{text}: {statement['words']}": True}
    chosen = "auto" in (options.get("lambda1"), options.get("lambda2")) or "chosen" in known
    obstacles = {
        "they are released already": "privacy" in known,
        "their file does not say how they were learned: train them again with this version": "rows"
        not in known.get("data", {})
        or "relationship" not in options,
        **private,
        "their loss has slopes without a bound: train with --loss smoothed-hinge, hinge or logistic": not isinstance(
            models.loss, BOUNDED
        ),
        "their scaling looked at rows: train with --scale unit": any(
            scaler.mean is not None or not scaler.unit for scaler in models.scalers
        ),
        "gaps and texts were filled in from rows: train on numbers alone": models.preparation is not None,
        "row weights are not public: train without them": bool(known.get("data", {}).get("weighted")),
        "their weights were chosen on rows: give --lambda1 and --lambda2 as numbers, without --tune": chosen,
        f"relationship {options.get('relationship')} was learned from rows: train with --relationship mean or none": (
            options.get("relationship") not in FIXED
        ),
        "there is no certificate for every task: train with rhfedmtl, hfedmtl or local": certificate is None
        or len(certificate.station_primal) != len(models.models),
    }
    for way, wrong in obstacles.items():
        if wrong:
            raise ConfigError(f"these models cannot be released: {way}")
    names = ("relationship", "lambda1", "lambda2")
    return Options.of(**{name: options[name] for name in names}).chosen_relationship()


def _target(models: Learned) -> float:
    """The gap that was fixed beforehand, and was reached; relative ones count beside the objective at zero."""
    certificate, configuration = models.certificate, models.provenance.get("configuration")
    assert certificate is not None
    if configuration is None:
        target = models.provenance["estimator"]["tol"] * certificate.zero
    elif configuration["target_gap"]:
        target = configuration["target_gap"]
    else:
        target = 0.0 if configuration["budget"] else GOOD_ENOUGH * certificate.zero
    if not 0.0 < target < math.inf:
        raise ConfigError("these models cannot be released: no gap was aimed at; train with --target-gap 1e-6")
    if not certificate.gap <= target:
        raise ConfigError(
            f"these models cannot be released: their gap is not yet the target of {target:.3g}; train with a larger "
            "budget, or aim at a larger --target-gap (a gap that is chosen afterwards tells of the rows)"
        )
    return float(target)
