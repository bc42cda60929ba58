"""Settings of a run that do not change the problem: scaling, certificates, targets, limits, engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from rhfedmtl.data.scaling import SCALES
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.policies.base import AUTO, MOST_COUNT, check_certify_every

NEVER = MOST_COUNT
"""``certify_every`` of a run whose rounds are not certified."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Parameters
    ----------
    scale : str
        How rows are scaled in round zero.
    scale_per_station : bool
        Scale the rows of each station by its own moments.
    certify_every : int or "auto"
        BS iterations between two certificates. "auto" certifies every iteration if that costs nothing that is limited,
        and otherwise as seldom as decisions need it. The last iteration is always certified: its price is set aside
        before the first round. A certificate on the way that the budget cannot pay is left out. Certificates are
        charged by the bytes of their messages; their passes over the data are free.
    free_evaluation : bool
        Charge nothing for certificates.
    seed : int
        Seed of every draw.
    noise_from_seed : bool
        Draw the noise of a private run from ``seed``: a simulation. By default the operating system's generator is
        used.
    target_gap, target_relative_gap : float
        End the run when the duality gap, or the gap divided by the objective, is at most this. 0 means no target.
    max_rounds : int
        End the run after so many BS iterations.
    execution : Execution
        Engine and threads.
    """

    scale: str = "standard-unit"
    scale_per_station: bool = False
    certify_every: int | str = AUTO
    free_evaluation: bool = False
    seed: int = 0
    noise_from_seed: bool = False
    target_gap: float = 0.0
    target_relative_gap: float = 0.0
    max_rounds: int = 100_000
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        if self.scale not in SCALES:
            raise ConfigError(f"unknown scaling {self.scale!r}: choose one of {', '.join(SCALES)}")
        for name in ("target_gap", "target_relative_gap"):
            check_weight(name, getattr(self, name))
        check_certify_every(self.certify_every)
        for name, minimum in (("max_rounds", 1), ("seed", 0)):
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
