"""Words that every face uses: for a certificate, and for how many there are of something."""

from __future__ import annotations

from collections.abc import Mapping

NOTHING = 0.9
"""Relative gap from which on a certificate says nothing: the bound may be far below what is possible, or 0."""
LEAST = 1e-5
"""Relative gap below which its digits are of no use to anybody."""
SOLVED = 1e-9
"""Relative gap that is no more than what rounding leaves of sums over many rows."""


def how_many(count: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


SOLVERS = {"dual-ascent": "dual ascent", "quasi-newton": "quasi-Newton", "l-bfgs": "L-BFGS", "gradient-steps": "SGD"}
"""Solvers of a round, as texts name them."""


def by_solver(rounds: Mapping[str, int]) -> str:
    """Return how many rounds each solver took: 4 dual ascent, 14 quasi-Newton."""
    return ", ".join(f"{count:,} {SOLVERS[name]}" for name, count in rounds.items())


def in_words(relative_gap: float | None, dual: float | None) -> str:
    """How good the models are for certain; None, as records have it, where nothing is known."""
    if relative_gap is None or dual is None:
        return "not certified"
    if not relative_gap < NOTHING:
        return f"says nothing yet: the bound is {dual:.3g}"
    if relative_gap <= SOLVED:
        return "the best possible, up to rounding"
    share = f"{100.0 * relative_gap:.2g} %" if relative_gap >= LEAST else f"{100.0 * LEAST:g} %"
    return f"within {share} of the best possible"


def bounded(gap: float | None, zero: float | None, probability: float) -> str:
    """What a certificate says that survived noise; ``zero`` is the objective of models that are zero."""
    if gap is None or zero is None or not gap < float("inf"):
        return "not certified"
    if gap >= zero:
        return f"says nothing: models that are zero are as surely within {zero:.3g}"
    return f"within {gap:.3g} of the best objective (zero models: {zero:.3g}), with probability {probability:.7g}"
