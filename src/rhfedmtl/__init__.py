"""Resource-aware hierarchical federated multi-task learning: hard budgets, and a certificate for the result.

The names below are imported when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rhfedmtl.algorithms.dual import DualMethod
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.data.federation import Federation, Source
    from rhfedmtl.data.request import Request
    from rhfedmtl.data.split import Split, federate
    from rhfedmtl.engines.faults import Faults
    from rhfedmtl.engines.training import Result, Settings, train
    from rhfedmtl.estimator import RHFedMTLClassifier, RHFedMTLRegressor
    from rhfedmtl.experiments.configs import RunConfig
    from rhfedmtl.maths.relationships import MeanRegularised, Unrelated
    from rhfedmtl.models import TaskModels
    from rhfedmtl.resources.costs import Cost
    from rhfedmtl.resources.ledger import Ledger
    from rhfedmtl.resources.measured import Measured
    from rhfedmtl.resources.policies import Fixed

__version__ = version("rhfedmtl")

_HOME = {
    "Cost": "resources.costs",
    "DualMethod": "algorithms.dual",
    "Faults": "engines.faults",
    "Federation": "data.federation",
    "Fixed": "resources.policies",
    "Ledger": "resources.ledger",
    "MeanRegularised": "maths.relationships",
    "Measured": "resources.measured",
    "Options": "algorithms.options",
    "RHFedMTLClassifier": "estimator",
    "RHFedMTLRegressor": "estimator",
    "Request": "data.request",
    "Result": "engines.training",
    "RunConfig": "experiments.configs",
    "Settings": "engines.training",
    "Source": "data.federation",
    "Split": "data.split",
    "TaskModels": "models",
    "Unrelated": "maths.relationships",
    "federate": "data.split",
    "train": "engines.training",
}

__all__ = [
    "Cost",
    "DualMethod",
    "Faults",
    "Federation",
    "Fixed",
    "Ledger",
    "MeanRegularised",
    "Measured",
    "Options",
    "RHFedMTLClassifier",
    "RHFedMTLRegressor",
    "Request",
    "Result",
    "RunConfig",
    "Settings",
    "Source",
    "Split",
    "TaskModels",
    "Unrelated",
    "federate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"rhfedmtl.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
