"""Resource-aware hierarchical federated multi-task learning: hard budgets, and a certificate for the result."""

from importlib.metadata import version

__version__ = version("rhfedmtl")
