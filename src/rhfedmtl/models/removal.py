"""Bound the influence of a removed terminal on models that were trained further without it (PRIVACY §3).

`deploy.removal` calls `removal` when the terminal's dual variables have left the sums, and training has continued
without it to a gap that was fixed beforehand.

From any start, models whose objective is within ``gap`` of the best lie within √(2N gap) of the best models, in Q-norm.
The same holds for a network that never had this terminal and was trained to the same gap, so the two sets of models are
at most 2 √(2N gap) apart. In Gaussian noise of scale 2 √(2N gap)/μ, with covariance G across tasks, the two cannot be
distinguished except within (ε, δ).
"""

from __future__ import annotations

import math
from typing import Any

from rhfedmtl.algorithms.options import Options
from rhfedmtl.errors import ConfigError
from rhfedmtl.models.release import FIXED, Float64Array, Learned, add_noise
from rhfedmtl.training.privacy import Privacy


def obstacle(*, scaled_by_rows: bool, relationship: str) -> str:
    """Return why the influence of a removed terminal cannot be bounded; an empty text if it can."""
    if scaled_by_rows:
        return "all rows are scaled by moments to which its rows contributed: make the network with --scale unit"
    if relationship not in FIXED:
        return f"relationship {relationship} was learned from its rows too: take --relationship mean or none"
    return ""


def removal(
    models: Learned, terminal: int, gap: float, privacy: Privacy | None = None
) -> tuple[dict[str, Any], Float64Array | None]:
    """Return the statement on models that were trained without a terminal to ``gap``, and these models with noise."""
    options = Options.of(**models.provenance["options"])
    reason = obstacle(
        scaled_by_rows=any(scaler.from_rows for scaler in models.scalers), relationship=options.relationship
    )
    if reason:
        raise ConfigError(f"the influence of terminal {terminal} cannot be bounded: {reason}")
    reached = math.inf if models.certificate is None else models.certificate.gap
    if not reached <= gap:
        raise ConfigError(
            f"the gap is {reached:.3g} and has not reached the target of {gap:.3g}: give a larger --budget or a larger "
            f"--target-gap; terminal {terminal} is already removed"
        )
    distance = math.sqrt(2.0 * len(models.models) * gap)
    statement: dict[str, Any] = {
        "terminal": terminal,
        "network": models.provenance["network"],
        "target_gap": gap,
        "distance": distance,
        "norm": "Q-norm: the square root of the sum over tasks of w_bᵀ Σ_c Q_bc w_c",
        "tasks": len(models.models),
        **{name: options[name] for name in ("relationship", "lambda1", "lambda2")},
        "words": f"These models lie within {distance:.3g} of the best models of a network that never had terminal "
        f"{terminal}: the square root of 2 × {len(models.models)} tasks × a gap of {gap:.3g}, which was fixed "
        "beforehand and reached.",
        "trusted": "the certificate relies on the sums that the remaining terminals and stations reported; the rows "
        "and dual variables of the removed terminal remain wherever its owner keeps them",
    }
    if privacy is None:
        return statement, None
    noise = 2.0 * distance / privacy.mu
    statement |= {"epsilon": privacy.epsilon, "delta": privacy.delta, "noise": noise}
    statement["words"] += (
        f" With noise of {noise:.3g}, as in released.npz, they cannot be distinguished from models of a network that "
        "never had it, trained to the same gap, except within (epsilon, delta) = "
        f"({privacy.epsilon:g}, {privacy.delta:g})."
    )
    return statement, add_noise(models, options.chosen_relationship(), noise)
