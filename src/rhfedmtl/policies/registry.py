"""The policies by name: how much work the next server iteration does, H for every terminal, K for every station.

The ledger, not the policy, is what makes a budget hard; a good policy never runs into it.

Add a policy: write a frozen dataclass with ``plan``, add it to ``POLICIES``.
"""

from __future__ import annotations

from collections.abc import Callable

from rhfedmtl.policies.base import Policy
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.policies.theoretical import Theoretical

POLICIES: dict[str, Callable[..., Policy]] = {
    "fixed": Fixed,
    "paper": Theoretical,
    "authors": lambda **settings: Theoretical("authors", **{"epsilon": 1e-4, "planned_cloud_rounds": 2} | settings),
    "sound": lambda **settings: Theoretical("sound", **settings),
    "measured": Measured,
}
