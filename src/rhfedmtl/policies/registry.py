"""Names of the policies, which choose H of every terminal and K of every station for the next server iteration.

The ledger enforces the budget, not the policy; a good policy never exceeds it. To add a policy, write a frozen
dataclass with a method ``plan`` in a file of this package, and add a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhfedmtl.registry import Entry, Option, Registry

if TYPE_CHECKING:
    from rhfedmtl.policies.base import Policy

BOUND = Option("bound", str, "drawn", "Bound on the rounds: drawn, text or sound")
BOUND_TARGET = Option("bound_target", float, None, "Gap that the bound on rounds aims at", "0.01; drawn 1e-4")

POLICIES: Registry[Entry[Policy]] = Registry(
    "policy",
    "policies",
    Entry,
    {
        "fixed": Entry("H, K and M as given", "rhfedmtl.policies.fixed:Fixed"),
        "paper": Entry(
            "planned in advance by the paper's Procedure 1, from a bound on the rounds",
            "rhfedmtl.policies.theoretical:Theoretical",
            options=(BOUND, BOUND_TARGET),
        ),
        "measured": Entry(
            "planned from the measured progress of the rounds so far, before every server iteration",
            "rhfedmtl.policies.measured.policy:Measured",
        ),
    },
)
"""Called with its options, an entry makes a `Policy`; ``fixed`` with H, K and M."""
