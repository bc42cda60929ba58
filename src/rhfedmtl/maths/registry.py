"""Losses and relationships between tasks, by name. To add an entry, write its file and add its line to this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhfedmtl.registry import Entry, Option, Registry

if TYPE_CHECKING:
    from rhfedmtl.maths.coupling import Relationship
    from rhfedmtl.maths.losses import Loss

METRICS = ("accuracy", "balanced_accuracy", "auc", "rmse")

# Default weight of the models' norms: near the best on HAR, watch, landmine and synthetic data.
# Measured: benchmarks/results/constants.md; ×0.5: −0.02 ± 0.07 points;
# ×2: −0.10 ± 0.22 points.
LAMBDA1 = 1e-3
# Default weight of the coupling, and start of its choice in a run.
# Measured: benchmarks/results/constants.md; ×0.5: −0.06 ± 0.20 points;
# ×2: +0.01 ± 0.25 points.
LAMBDA2 = 1e-2

GAMMA = Option("gamma", float, 1.0, "Width of the smoothed corner")

LOSSES: Registry[Entry[Loss]] = Registry(
    "loss",
    "losses",
    Entry,
    {
        "smoothed-hinge": Entry(
            "hinge with its corner rounded", "rhfedmtl.maths.losses:SmoothedHinge", options=(GAMMA,)
        ),
        "hinge": Entry("max(0, 1 − yz)", "rhfedmtl.maths.losses:Hinge"),
        "squared-hinge": Entry("½ max(0, 1 − yz)²", "rhfedmtl.maths.losses:SquaredHinge"),
        "logistic": Entry("log(1 + exp(−yz))", "rhfedmtl.maths.losses:Logistic"),
        "squared": Entry("½ (z − y)², for regression", "rhfedmtl.maths.losses:Squared"),
    },
)
"""Called with its options, an entry makes a `Loss`."""

RELATIONSHIPS: Registry[Entry[Relationship]] = Registry(
    "relationship",
    "relationships",
    Entry,
    {
        "mean": Entry("models stay near their mean", "rhfedmtl.maths.relationships:MeanRegularised"),
        "learned": Entry("a covariance of tasks (Ω), learned from the models", "rhfedmtl.maths.learned:Learned"),
        "graph": Entry("a sparse graph, learned from the models", "rhfedmtl.maths.learned:Graph"),
        "clusters": Entry("groups of tasks, learned from the models", "rhfedmtl.maths.learned:Clusters"),
        "none": Entry("independent tasks", "rhfedmtl.maths.relationships:unrelated"),
    },
)
"""Called with λ1, λ2 and its options, an entry makes a `Relationship`."""
