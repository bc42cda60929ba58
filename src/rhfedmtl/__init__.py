"""Resource-aware hierarchical federated multi-task learning: hard budgets, and a certificate for the result.

This module exports the public names of the library. Each name is imported on first use, to keep ``import rhfedmtl``
cheap. To add a public name, extend the imports for type checkers, ``_HOME`` and ``__all__``.
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
    from rhfedmtl.display import BudgetDisplay, LearningCurveDisplay
    from rhfedmtl.engines.registry import Execution
    from rhfedmtl.estimators.classifier import RHFedMTLClassifier
    from rhfedmtl.estimators.regressor import RHFedMTLRegressor
    from rhfedmtl.maths.relationships import MeanRegularised, Unrelated
    from rhfedmtl.models.certify import certify
    from rhfedmtl.models.task_models import TaskModels
    from rhfedmtl.policies.fixed import Fixed
    from rhfedmtl.policies.measured.policy import Measured
    from rhfedmtl.resources.costs import Cost
    from rhfedmtl.resources.ledger import Ledger
    from rhfedmtl.training.config import RunConfig
    from rhfedmtl.training.faults import Faults
    from rhfedmtl.training.result import Result
    from rhfedmtl.training.run import train
    from rhfedmtl.training.settings import Settings

__version__ = version("rhfedmtl")

_HOME = {
    "BudgetDisplay": "display",
    "Cost": "resources.costs",
    "DualMethod": "algorithms.dual",
    "Execution": "engines.registry",
    "Faults": "training.faults",
    "Federation": "data.federation",
    "Fixed": "policies.fixed",
    "Ledger": "resources.ledger",
    "LearningCurveDisplay": "display",
    "MeanRegularised": "maths.relationships",
    "Measured": "policies.measured.policy",
    "Options": "algorithms.options",
    "RHFedMTLClassifier": "estimators.classifier",
    "RHFedMTLRegressor": "estimators.regressor",
    "Request": "data.request",
    "Result": "training.result",
    "RunConfig": "training.config",
    "Settings": "training.settings",
    "Source": "data.federation",
    "Split": "data.split",
    "TaskModels": "models.task_models",
    "Unrelated": "maths.relationships",
    "certify": "models.certify",
    "federate": "data.split",
    "train": "training.run",
}

__all__ = [
    "BudgetDisplay",
    "Cost",
    "DualMethod",
    "Execution",
    "Faults",
    "Federation",
    "Fixed",
    "LearningCurveDisplay",
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
    "certify",
    "federate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"rhfedmtl.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names for Tab completion, including names that are not imported yet."""
    return sorted({*globals(), *__all__})
