"""Methods that learn by dual coordinate ascent: a loss, a relationship between tasks, and a way to merge.

HFedMTL, RHFedMTL, CoCoA, MOCHA and local models are all settings of this one method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rhfedmtl.algorithms.merges import Average, Merge
from rhfedmtl.errors import DataError
from rhfedmtl.maths.losses import Loss, SmoothedHinge, check_loss
from rhfedmtl.maths.relationships import MeanRegularised, Relationship
from rhfedmtl.maths.sdca import FACTORS

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation


@dataclass(frozen=True)
class DualMethod:
    """What is learned and how updates are merged; how much work to do is the policy's business.

    ``uniform`` draws rows with replacement, as in the paper, instead of in passes over a shuffled deck.
    """

    loss: Loss = field(default_factory=SmoothedHinge)
    relationship: Relationship = field(default_factory=MeanRegularised)
    merge: Merge = field(default_factory=Average)
    intercept: bool = False
    uniform: bool = False

    def __post_init__(self) -> None:
        """Refuse a loss whose parameters make no sense."""
        check_loss(self.loss)

    @property
    def course_length(self) -> int:
        """How many numbers describe the course of a terminal's dual sum along its update."""
        if not self.merge.line_search:
            return 0
        return 3 if self.loss.quadratic else len(FACTORS)

    def check(self, federation: Federation) -> None:
        """Refuse data that this loss cannot learn from."""
        if self.loss.classifier and federation.kind == "regression":
            raise DataError(
                f"{type(self.loss).__name__} needs classes, but the labels of {federation.origin.name!r} are "
                "numbers: use loss 'squared' for regression, or name the classes"
            )
