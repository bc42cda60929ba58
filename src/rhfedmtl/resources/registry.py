"""Resource types that have default prices and a description.

`read_resources` looks up default prices here. A type needs no entry: any name works if the user sets its prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rhfedmtl.registry import Registry

Adds = Literal["sum", "elapsed"]


@dataclass(frozen=True)
class ResourceType:
    """Describe a resource type: how it adds up, and its default ``prices`` in the syntax of ``--cost``."""

    title: str
    prices: str = ""
    adds: Adds = "sum"


RESOURCES: Registry[ResourceType] = Registry(
    "resource type",
    "resources",
    ResourceType,
    {
        "energy": ResourceType("work of terminals and stations; prices of the paper", prices="0.1,10"),
        "time": ResourceType("seconds on the slowest path: nodes work in parallel", adds="elapsed"),
        "bytes": ResourceType("bytes of all messages on their links, each counted as 1", prices="byte:1"),
        "privacy": ResourceType("privacy loss of a terminal, μ²; limited by --privacy", adds="elapsed"),
    },
)
