"""Certificates: bounds on the distance of models from the best possible objective.

The cloud makes a `Certificate` from sums of its stations; a private run makes a `NoisedCertificate`. Nothing is
computed from rows here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rhfedmtl.display import facts_html
from rhfedmtl.maths import objective
from rhfedmtl.maths.coupling import squared_norms
from rhfedmtl.maths.objective import Dual, Points
from rhfedmtl.maths.relationships import Models, Relationship
from rhfedmtl.roles.messages import Vector
from rhfedmtl.roles.words import bounded, in_words

GAP_ROUNDING = 1e-9
"""P may lie below D by this much, relative to the objective, through rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Bound P(W) − D(α) ≥ 0 on the distance of the returned models from the optimum, as of a round.

    It holds for the current relationship and for honest terminals.

    Attributes
    ----------
    round : int
        Last BS iteration that the certificate covers.
    primal, dual : float
        P(W) of the best models so far for the current problem, and the best lower bound so far.
    models : Models
        The best models so far, for every task.
    station_primal, station_dual : Vector
        Objective and bound of each station's own problem at its next anchor, NaN for a task outside the problem.
    zero, held : float
        Objective of the zero model, and of the models from which the stations continue.
    found : int
        Round in which the best models were evaluated.
    combination : Vector, optional
        If the models are new, their combination of the models that terminals evaluated.
    single_gap : float
        Gap to the best dual of a single round, before duals are mixed. It shows the speed of the rounds.
    suspects : tuple[int, ...]
        Stations to blame if the certificate is ``broken``.
    absent : tuple[int, ...]
        Terminals that answered no probe. Their rows count with the most they can add.
    """

    round: int
    primal: float
    dual: float
    models: Models
    station_primal: Vector
    station_dual: Vector
    zero: float = np.inf
    held: float = np.inf
    found: int = 0
    combination: Vector | None = None
    single_gap: float = np.nan
    suspects: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()

    @property
    def gap(self) -> float:
        """P − D; 0 if P lies below D only through rounding."""
        gap = self.primal - self.dual
        return 0.0 if -GAP_ROUNDING * max(1.0, abs(self.primal)) <= gap < 0.0 else gap

    @property
    def relative_gap(self) -> float:
        """(P − D)/max(|P|, |D|); infinite without a dual."""
        if not np.isfinite(self.dual):
            return float("inf")
        return self.gap / max(abs(self.primal), abs(self.dual), np.finfo(float).tiny)

    @property
    def broken(self) -> bool:
        """True if P lies below D by more than rounding explains: a sum was wrong, and the bound does not hold."""
        return bool(self.gap < 0.0)

    @property
    def station_gaps(self) -> Vector:
        """P_b − D_b of every station at its next anchor."""
        return self.station_primal - self.station_dual

    @property
    def words(self) -> str:
        """Short statement of the bound."""
        return in_words(self.relative_gap, self.dual)

    def __repr__(self) -> str:
        return f"<Certificate: {self.words}; primal {self.primal:.6g}, dual {self.dual:.6g}, round {self.round}>"

    def _repr_html_(self) -> str:
        values = {name: getattr(self, name) for name in ("primal", "dual", "gap", "round")}
        return facts_html("Certificate", {"in words": self.words, **values})


@dataclass(frozen=True, eq=False, repr=False)
class NoisedCertificate(Certificate):
    """Certificate of a private run: with this ``probability`` the models are within ``bound`` of the best objective.

    Objective and dual are not released. ``zero``, the objective of the zero model, is public and gives the scale.
    """

    bound: float = np.inf
    probability: float = 1.0

    @classmethod
    def made(cls, number: int, models: Models, bound: float, probability: float, zero: float) -> NoisedCertificate:
        """Return the certificate of these models as of round ``number``."""
        missing = np.full(len(models), np.nan)
        certificate = cls(number, np.nan, np.nan, models, missing, missing, zero, zero, number)
        return replace(certificate, bound=bound, probability=probability)

    @property
    def gap(self) -> float:
        """The bound."""
        return self.bound

    @property
    def relative_gap(self) -> float:
        """The bound, relative to the objective of the zero model."""
        return self.bound / self.zero

    @property
    def words(self) -> str:
        """Short statement of the bound."""
        return bounded(self.bound, self.zero, self.probability)

    def __repr__(self) -> str:
        return f"<Certificate: {self.words}; round {self.round}>"


@dataclass(frozen=True, eq=False)
class BestPoint:
    """Best models for the current problem, with the round of their evaluation and each task's mean loss.

    ``known_primal`` is the objective without the rows of absent terminals.
    """

    primal: float
    models: Models
    round: int
    combination: Vector
    losses: Vector
    known_primal: float
    absent: tuple[int, ...] = ()


def best_point(
    last: BestPoint | None,
    place: int,
    points: Points,
    losses: Vector,
    worst: Vector,
    n: Vector,
    relationship: Relationship,
    number: int,
    absent: tuple[int, ...],
) -> BestPoint:
    """Return the point at ``place``, or the last best point if that is better.

    The objective is computed again from the models: a combination with large weights leaves few exact digits. The
    ``worst`` losses of absent terminals count in it. They grow with any model, so between two points with absent
    terminals only the known rows choose.
    """
    models = points.at(place)
    total = (losses + worst)[:, place]
    known_primal = objective.joint_primal(losses[:, place], n, models, relationship)
    primal = objective.joint_primal(total, n, models, relationship)
    both_lack = last is not None and bool(absent and last.absent)
    if last is not None and not (known_primal < last.known_primal if both_lack else primal < last.primal):
        return last
    return BestPoint(primal, models, number, points.combinations[place], total / n, known_primal, absent)


def contradictions(
    W: Models, losses: Vector, duals: Sequence[Dual], relationship: Relationship
) -> npt.NDArray[np.bool_]:
    """Return True for each station whose mean loss under ``W`` lies below the bound that its duals prove.

    For every honest station and any w, by Fenchel and Young, Σ L(w)/n + ⟨w, v⟩ ≥ Σ −L*(−α)/n. If this holds for all
    stations, P ≥ D follows. So a broken certificate contradicts at least one station.
    """
    contradicted = np.zeros(len(W), dtype=bool)
    for dual in duals:
        proved = dual.f - np.einsum("bcd,bcd->b", W, dual.V)
        if dual.norms is not None:
            proved = proved - dual.norms * np.sqrt(squared_norms(W - relationship.solve(dual.V)))
        contradicted |= losses < proved - GAP_ROUNDING * np.maximum(1.0, np.abs(proved))
    return contradicted
