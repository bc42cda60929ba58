"""pFedMe (Dinh et al. 2020): task models near a common model, which minimises the mean of their Moreau envelopes.

Slot 0 is the common model w, slot 1 the personal model θ, with λ/2 ‖θ − w‖². After every few steps of θ the terminal's
w moves a share ηλ of the way to θ; stations and cloud average w. The personal model stays at its station.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhfedmtl.algorithms.baselines.ditto import Ditto
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.kernels.rounds import Slots
from rhfedmtl.policies.base import check_count


@dataclass(frozen=True)
class PFedMe(Ditto):
    """Ditto whose common model follows: ``pull`` is λ, ``follow`` is ηλ, ``inner_steps`` of θ precede each of w."""

    inner_steps: int = field(default=5, kw_only=True)
    follow: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for settings without progress."""
        super().__post_init__()
        check_count("inner_steps", self.inner_steps)
        check_weight("follow", self.follow, positive=True)

    def slots(self) -> Slots:
        """Return the common model, which follows the personal model."""
        return super().slots()._replace(anchor=np.array([0, 0]), inner=self.inner_steps, outer=self.follow)


def pfedme(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with H steps (default 2) of the personal models."""
    settings = {"inner_steps": options["inner_steps"], "follow": options["follow"]}
    method = PFedMe(**options.sgd(kind), **options.arguments(pull="mu"), **settings)
    return Algorithm(method, options.fixed_policy(station_rounds=1))
