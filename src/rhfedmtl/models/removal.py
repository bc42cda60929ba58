"""What is left of a terminal that was removed: nothing, within a distance that the certified gap bounds (PRIVACY §3).

Its dual variables are out of the sums, and training goes on without it to a gap that is fixed beforehand. Whatever the
start was, models within ``gap`` of the best objective lie within √(2N gap) of the best ones, in Q-norm, and so do those
of a network that never had this terminal, learned to the same gap. The two are 2 √(2N gap) apart at most: in noise
of 2 √(2N gap)/μ, with covariance G across tasks, nobody tells one from the other but within (ε, δ).
"""

from __future__ import annotations

import math
from typing import Any

from rhfedmtl.algorithms.options import Options
from rhfedmtl.errors import ConfigError
from rhfedmtl.models.release import FIXED, Float64Array, Learned, in_noise
from rhfedmtl.training.privacy import Privacy


def obstacle(*, scaled_by_rows: bool, relationship: str) -> str:
    """Why what is left of a terminal cannot be bounded; empty if it can."""
    if scaled_by_rows:
        return "rows of all are scaled by moments in which its own have a part: make the network with --scale unit"
    if relationship not in FIXED:
        return f"relationship {relationship} was learned from its rows too: take --relationship mean or none"
    return ""


def removal(
    models: Learned, terminal: int, gap: float, privacy: Privacy | None = None
) -> tuple[dict[str, Any], Float64Array | None]:
    """What can be said of models that were learned on without a terminal, to a gap; and the same models in noise."""
    options = Options.of(**models.provenance["options"])
    known = obstacle(
        scaled_by_rows=any(scaler.mean is not None for scaler in models.scalers), relationship=options.relationship
    )
    if known:
        raise ConfigError(f"what is left of terminal {terminal} cannot be bounded: {known}")
    found = math.inf if models.certificate is None else models.certificate.gap
    if not found <= gap:
        raise ConfigError(
            f"the gap is {found:.3g}, not yet the target of {gap:.3g}: give a larger --budget, or aim at a larger "
            f"--target-gap; terminal {terminal} is out already"
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
        "trusted": "the certificate rests on what the remaining terminals and stations told; the rows and dual "
        "variables of the terminal are where its owner has them",
    }
    if privacy is None:
        return statement, None
    noise = 2.0 * distance / privacy.mu
    statement |= {"epsilon": privacy.epsilon, "delta": privacy.delta, "noise": noise}
    statement["words"] += (
        f" In noise of {noise:.3g}, as in released.npz, nobody can tell them from models of a network that never had "
        f"it, learned to the same gap, but within (epsilon, delta) = ({privacy.epsilon:g}, {privacy.delta:g})."
    )
    return statement, in_noise(models, options.chosen_relationship(), noise)
