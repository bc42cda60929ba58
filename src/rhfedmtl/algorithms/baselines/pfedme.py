"""pFedMe (Dinh et al. 2020): models of the tasks near a common one, which minimises the mean of their Moreau envelopes.

Slot 0 is the common model w, slot 1 the task's own θ, with λ/2 ‖θ − w‖². After every few steps of θ the terminal's w
goes a share ηλ of the way to θ; stations and cloud average w. The task's own model stays at its station.
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
    """``pull`` is λ, ``follow`` is ηλ, and ``inner_steps`` steps of θ go before each of w."""

    inner_steps: int = field(default=5, kw_only=True)
    follow: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse to stand still."""
        super().__post_init__()
        check_count("inner_steps", self.inner_steps)
        check_weight("follow", self.follow, positive=True)

    def slots(self) -> Slots:
        """The common model, which follows the task's own."""
        return super().slots()._replace(anchor=np.array([0, 0]), inner=self.inner_steps, outer=self.follow)


def pfedme(options: Options, kind: str) -> Algorithm:
    """H steps (2 unless said) of the tasks' own models."""
    own = {"inner_steps": options["inner_steps"], "follow": options["follow"]}
    method = PFedMe(**options.sgd(kind), **options.told(pull="mu"), **own)
    return Algorithm(method, options.fixed_policy(station_rounds=1))
