"""Names of the policies, which choose H of every terminal and K of every station for the next server iteration.

The ledger enforces the budget, not the policy; a good policy never exceeds it. To add a policy, write a frozen
dataclass with a method ``plan`` in a file of this package, and add a line here.
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
            "planned in advance by the bound of the paper",
            "rhfedmtl.policies.theoretical:Theoretical",
            options=(BOUND_TARGET,),
        ),
        "authors": Entry(
            "the curve behind the paper's cost figure", "rhfedmtl.policies.theoretical:authors", options=(BOUND_TARGET,)
        ),
        "sound": Entry(
            "planned in advance by a guaranteed bound",
            "rhfedmtl.policies.theoretical:sound",
            options=(BOUND_TARGET,),
        ),
        "measured": Entry(
            "planned from the measured progress of the rounds so far, before every server iteration",
            "rhfedmtl.policies.measured.policy:Measured",
        ),
    },
)
"""Called with its options, an entry makes a `Policy`; ``fixed`` with H, K and M."""
