"""What is known of resource types by name. A type needs no entry: with prices of its own, any name will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rhfedmtl.registry import Registry

Adds = Literal["sum", "elapsed"]


@dataclass(frozen=True)
class ResourceType:
    """How a type adds up, and its usual ``prices``, as in ``--cost``, for a budget that comes without any."""

    title: str
    prices: str = ""
    adds: Adds = "sum"


RESOURCES: Registry[ResourceType] = Registry(
    "resource type",
    "resources",
    ResourceType,
    {
        "energy": ResourceType("work of terminals and stations; prices of the paper", prices="0.1,10"),
        "time": ResourceType("seconds, of which nodes side by side take the slowest path", adds="elapsed"),
        "bytes": ResourceType("all that messages take on their links; one for each byte", prices="byte:1"),
        "privacy": ResourceType("what releases tell of a terminal, μ²; limited by --privacy", adds="elapsed"),
    },
)
