"""Resource-aware hierarchical federated multi-task learning: hard budgets, and a certificate for the result.

This module exports the public names of the library. Each name is imported on first use, to keep ``import rhfedmtl``
cheap. To add a public name, extend the imports for type checkers, ``_NAMES`` and ``__all__``.
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

_NAMES = {
    "display": "BudgetDisplay LearningCurveDisplay",
    "resources.costs": "Cost",
    "algorithms.dual": "DualMethod",
    "engines.registry": "Execution",
    "training.faults": "Faults",
    "data.federation": "Federation Source",
    "policies.fixed": "Fixed",
    "resources.ledger": "Ledger",
    "maths.relationships": "MeanRegularised Unrelated",
    "policies.measured.policy": "Measured",
    "algorithms.options": "Options",
    "estimators.classifier": "RHFedMTLClassifier",
    "estimators.regressor": "RHFedMTLRegressor",
    "data.request": "Request",
    "training.result": "Result",
    "training.config": "RunConfig",
    "training.settings": "Settings",
    "data.split": "Split federate",
    "models.task_models": "TaskModels",
    "models.certify": "certify",
    "training.run": "train",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

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
