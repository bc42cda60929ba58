"""Updates in single precision that lose nothing in the long run: what rounding keeps back goes with the next update.

A station that applied q_k with factors η_k holds Σ η_k q_k of a terminal whose true share is u = Σ η_k δ_k. The
residual r = u − Σ η_k q_k stays on the terminal, and q = round(δ + r/η) with the usual factor η makes up for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rhfedmtl.roles.messages import Join, Leave, Update, Vector, Verdict


class Feedback:
    """The residual of one terminal under one station."""

    def __init__(self, residual: Vector | None = None, usual_factor: float = 1.0) -> None:
        self.residual = residual
        self.usual_factor = usual_factor

    def rounded(self, update: Update) -> Update:
        """The update as it is sent: the same again for the same update, as long as it is pending."""
        if self.residual is None:
            self.residual = np.zeros_like(update.delta)
        wanted = update.delta + self.residual / self.usual_factor
        return replace(update, delta=wanted.astype(np.float32).astype(np.float64))

    def settle(self, update: Update, verdict: Verdict) -> None:
        """Note what became of an update that was sent rounded."""
        factor = verdict.factor if verdict.round == update.round else 0.0
        if factor == 0.0:
            return
        sent = self.rounded(update).delta
        assert self.residual is not None
        self.residual = self.residual + factor * (update.delta - sent)
        self.usual_factor = factor

    def joined(self, join: Join) -> Join:
        """A join brings the exact share: nothing is owed."""
        self.residual = None
        return join

    def leaving(self, leave: Leave) -> Leave:
        """Take out what the station holds, which is the share less what rounding kept back."""
        return leave if self.residual is None else replace(leave, share=leave.share - self.residual)
