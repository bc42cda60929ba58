"""Words for certificates, counts and solvers, used by every command, page and report."""

from __future__ import annotations

from collections.abc import Mapping

LOOSE = 0.9
"""From this relative gap on, texts name both bounds, because a percentage would say little."""
LEAST_GAP_SHOWN = 1e-5
"""Smaller relative gaps are shown as this; more digits do not help."""
SOLVED = 1e-9
"""Up to this relative gap the rest is rounding of sums over many rows."""


def how_many(count: int, noun: str) -> str:
    """Return a count with its noun: 1 round, 2 rounds."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


SOLVERS = {"dual-ascent": "dual ascent", "quasi-newton": "quasi-Newton", "l-bfgs": "L-BFGS", "gradient-steps": "SGD"}
"""Names of solvers in texts."""


def by_solver(rounds: Mapping[str, int]) -> str:
    """Return the number of rounds of each solver: 4 dual ascent, 14 quasi-Newton."""
    return ", ".join(f"{count:,} {SOLVERS[name]}" for name, count in rounds.items())


def solver_shares(rounds: Mapping[str, int]) -> str:
    """Return the share of the rounds of each solver, the largest first: quasi-Newton 78 %, dual ascent 22 %."""
    names = sorted(rounds, key=lambda name: -rounds[name])
    if len(names) == 1:
        return SOLVERS[names[0]]
    return ", ".join(f"{SOLVERS[name]} {100.0 * rounds[name] / sum(rounds.values()):.0f} %" for name in names)


def in_words(relative_gap: float | None, dual: float | None) -> str:
    """Return the statement of a certificate; records may have no certificate."""
    if relative_gap is None or dual is None:
        return "not certified"
    if not relative_gap < LOOSE:
        if not (dual > 0.0 and relative_gap < 1.0):
            return f"uninformative yet: the lower bound is {dual:.3g}"
        primal = dual / (1.0 - relative_gap)
        return f"loose: the best possible objective lies between {dual:.3g} and {primal:.3g}"
    if relative_gap <= SOLVED:
        return "the best possible, up to rounding"
    share = f"{100.0 * relative_gap:.2g} %" if relative_gap >= LEAST_GAP_SHOWN else f"{100.0 * LEAST_GAP_SHOWN:g} %"
    return f"within {share} of the best possible"


def bounded(gap: float | None, zero: float | None, probability: float) -> str:
    """Return the statement of a noised certificate; ``zero`` is the objective of the zero model."""
    if gap is None or zero is None or not gap < float("inf"):
        return "not certified"
    if gap >= zero:
        return f"uninformative: no tighter than the bound for the zero model, {zero:.3g}"
    return f"within {gap:.3g} of the best objective (zero models: {zero:.3g}), with probability {probability:.7g}"
