"""The policies by name: how much work the next server iteration does, H for every terminal, K for every station.

The ledger, not the policy, is what makes a budget hard; a good policy never runs into it. A new policy is one file with
a frozen dataclass that has ``plan``, and its line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhfedmtl.registry import Entry, Option, Registry

if TYPE_CHECKING:
    from rhfedmtl.policies.base import Policy

BOUND_TARGET = Option("bound_target", float, None, "Gap that the bound on rounds aims at", "0.01; authors 1e-4")

POLICIES: Registry[Entry[Policy]] = Registry(
    "policy",
    "policies",
    Entry,
    {
        "fixed": Entry("H, K and M as given", "rhfedmtl.policies.fixed:Fixed"),
        "paper": Entry(
            "planned beforehand by the bound of the paper",
            "rhfedmtl.policies.theoretical:Theoretical",
            options=(BOUND_TARGET,),
        ),
        "authors": Entry(
            "the curve behind the paper's cost figure", "rhfedmtl.policies.theoretical:authors", options=(BOUND_TARGET,)
        ),
        "sound": Entry(
            "planned beforehand by a bound that is guaranteed",
            "rhfedmtl.policies.theoretical:sound",
            options=(BOUND_TARGET,),
        ),
        "measured": Entry(
            "planned from the progress that rounds so far have shown, and anew as they show more",
            "rhfedmtl.policies.measured.policy:Measured",
        ),
    },
)
"""Called with its options, an entry makes a `Policy`; ``fixed`` with H, K and M."""
