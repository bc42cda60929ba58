"""Release models to other people: Gaussian noise hides every single training row (PRIVACY §3).

`TaskModels.release` calls `noised`, and `removal` calls `add_noise`. Models are refused if rows influenced anything
that the noise does not cover, such as the scaling or the weights λ1 and λ2 (see `_problem`).

Neighbouring data sets differ in a single row that is replaced; the numbers of rows are public. If rows have norm ≤ R,
the loss has slope ≤ ℓ = 1 and Q is fixed beforehand, then the best models change by
‖ΔW*‖_Q ≤ 2ℓR √K max_b √G_bb/n_b for K columns. Models whose objective is within ``gap`` of the best lie within
√(2N gap) of W*, on either data set. Therefore

    sensitivity = 2ℓR √K max_b √G_bb/n_b + 2 √(2N gap),    release W + Z,  Z with covariance s²G across tasks,

is μ-Gaussian differentially private with μ = sensitivity/s, for any number of training rounds. ``gap`` is the target of
the run, which is fixed beforehand. The gap that a run reaches depends on the rows, and so do its rounds and its costs:
they are not released.
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
"""`TaskModels`. Its module imports this module, so the type cannot be named here."""
FIXED = ("mean", "none")
"""Relationships whose Q does not depend on any row."""


def noised(
    models: Learned, privacy: Privacy, address: tuple[int, ...] | None = None
) -> tuple[Float64Array, dict[str, Any]]:
    """Return the models with noise and a statement of the protection; refuse models that noise would not protect.

    ``address`` is for experiments: it makes the noise reproducible, and the statement says that there is no protection.
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
    return add_noise(models, relationship, noise, address), statement


class Releases:
    """Account of the releases of the same models, with the μ of each release.

    It lives with the models in memory and, if the models have a file, in a file next to it. Every release adds
    independent Gaussian noise to the same models, so the values of μ² add up.
    """

    def __init__(self, model: Path | None = None) -> None:
        self._account = None if model is None else account_of(model)
        self._releases: list[dict[str, float]] = []

    def charge(self, statement: dict[str, Any]) -> dict[str, Any]:
        """Count a release, saved or not, and return its statement with the privacy loss of all releases together."""
        self._releases.append({name: statement[name] for name in ("mu", "epsilon", "delta")})
        if self._account is not None:
            self._releases = _append(self._account, self._releases[-1:])
        mu, delta = math.hypot(*(release["mu"] for release in self._releases)), statement["delta"]
        total = {"releases": len(self._releases), "epsilon": epsilon_of(mu, delta), "delta": delta, "mu": mu}
        return {**statement, "in_all": total}

    def follow(self, model: Path) -> None:
        """Continue the account next to the file that the models were saved in; an existing account is not changed."""
        if self._account is None:
            self._account = account_of(model)
            if self._releases and not self._account.exists():
                _append(self._account, self._releases)


def account_of(model: Path) -> Path:
    """Return the path of the account of releases that belongs to a model file."""
    return model.with_suffix(".releases.jsonl")


def _append(account: Path, releases: list[dict[str, float]]) -> list[dict[str, float]]:
    """Append releases to an account, and return all releases in it."""
    with account.open("a+", encoding="utf-8") as file:
        file.writelines(json.dumps(release) + "\n" for release in releases)
        file.seek(0)
        try:
            return [{"mu": float(json.loads(line)["mu"])} for line in file]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{account} counts releases of models, and cannot be read: {error!r}") from None


def add_noise(
    models: Learned, relationship: Relationship, noise: float, address: tuple[int, ...] | None = None
) -> Float64Array:
    """Return W + Z, where the Gaussian noise Z has covariance s²G across tasks and s is ``noise``."""
    learned = without_intercepts(models.models, models.constant)
    dense = relationship.dense(len(learned))
    root = (dense.U / np.sqrt(dense.kappa)) @ dense.U.T
    return with_intercepts(learned + noise * mix(root, standard_normal(learned.shape, address)), models.constant)


def sensitivity_of(models: Learned, relationship: Relationship, gap: float) -> float:
    """Return how far replacing a row can change models within ``gap`` of the best objective, in Q-norm."""
    tasks, columns = models.models.shape[:2]
    n = np.array(models.provenance["data"]["rows"], dtype=np.float64)
    radius: float = models.scalers[0].radius(models.models.shape[2], intercept=models.intercept)
    change = float(np.max(np.sqrt(np.diag(relationship.dense(tasks).G)) / n))
    return 2.0 * radius * math.sqrt(columns) * change + 2.0 * math.sqrt(2.0 * tasks * gap)


def _problem(models: Learned) -> Relationship:
    """Return the relationship that the models were trained with; refuse models if rows influenced the problem."""
    provenance, certificate = models.provenance, models.certificate
    options = {**provenance.get("configuration", {}).get("options", {}), **provenance.get("estimator", {})}
    # The models of a private run need no noise, and a simulation of privacy gives no protection.
    statement, private = provenance.get(STATEMENT), {}
    if statement is None:
        text = (
            "their file does not name the source of the noise of its private run, and earlier versions used the seed: "
            "these models are not private, train again"
        )
        private = {text: isinstance(certificate, NoisedCertificate)}
    elif not statement["private"]:
        private = {f"{SIMULATION}; train again without --seed (in Python with random_state=None)": True}
    else:
        text = "their private run protects them already, and they may be shared unchanged"
        private = {f"{text}: {statement['words']}": True}
    chosen = "auto" in (options.get("lambda1"), options.get("lambda2")) or "chosen" in provenance
    obstacles = {
        "they are already released": "privacy" in provenance,
        "their file does not say how they were learned: train them again with this version": "rows"
        not in provenance.get("data", {})
        or "relationship" not in options,
        **private,
        "their loss has an unbounded slope: train with --loss smoothed-hinge, hinge or logistic": not isinstance(
            models.loss, BOUNDED
        ),
        "their scaling depends on rows: train with --scale unit": any(
            scaler.mean is not None or not scaler.unit for scaler in models.scalers
        ),
        "the encoding of gaps and texts depends on rows: train on numbers alone": models.preparation is not None,
        "row weights are not public: train without them": bool(provenance.get("data", {}).get("weighted")),
        "λ1 or λ2 was chosen from rows: give --lambda1 and --lambda2 as numbers, without --tune": chosen,
        f"relationship {options.get('relationship')} was learned from rows: train with --relationship mean or none": (
            options.get("relationship") not in FIXED
        ),
        "tasks were adapted after the training: release the models of the run": bool(models.adapted),
        "they have no certificate for every task: train with rhfedmtl, hfedmtl or local": certificate is None
        or len(certificate.station_primal) != len(models.models),
    }
    for reason, applies in obstacles.items():
        if applies:
            raise ConfigError(f"these models cannot be released: {reason}")
    names = ("relationship", "lambda1", "lambda2")
    return Options.of(**{name: options[name] for name in names}).chosen_relationship()


def _target(models: Learned) -> float:
    """Return the target gap, which was fixed beforehand, and refuse models that did not reach it.

    A relative target is a multiple of the objective at zero.
    """
    certificate, configuration = models.certificate, models.provenance.get("configuration")
    assert certificate is not None
    if configuration is None:
        target = models.provenance["estimator"]["tol"] * certificate.zero
    elif configuration["target_gap"]:
        target = configuration["target_gap"]
    else:
        target = 0.0 if configuration["budget"] else GOOD_ENOUGH * certificate.zero
    if not 0.0 < target < math.inf:
        raise ConfigError("these models cannot be released: the run had no target gap; train with --target-gap 1e-6")
    if not certificate.gap <= target:
        raise ConfigError(
            f"these models cannot be released: their gap has not reached the target of {target:.3g}; train with a "
            "larger budget, or a larger --target-gap (a gap that is chosen afterwards depends on the rows)"
        )
    return float(target)
