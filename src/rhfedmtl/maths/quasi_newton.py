"""Quasi-Newton steps on the joint problem: L-BFGS in the metric Q + h I, for the cloud.

From any W terminals can set α_i = −L′(z_i), so that V = [−∇loss_b(w_b)] and the gradient of N·P is W Q − V. A step
at a station with λ_b = ∞ does just that: such a round costs one pass, keeps U_b = Σ_t X_tᵀα_t, and every α on the
way is a dual point with a certificate. Coordinate ascent goes on from there, and back, at no cost.

The metric knows the coupling exactly (Q) and the losses by one number, h, their curvature along the last step.

A search looks at the gradient once for each step. By the slopes at both ends of a step it goes on from the least point
of the way, which terminals make of the two ends, and for the gradient there takes what lies between the two that it
knows: exact where losses are quadratic, and then steps are nearly those of conjugate gradients. The objective never
rises: where a way leads up, the gradient is looked at where it began. `Backtracking` is L-BFGS as it is usual.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rhfedmtl.maths.coupling import Models, Relationship, Vector
from rhfedmtl.maths.mixtures import between, in_grains

Solver = Literal["coordinate-ascent", "quasi-newton", "l-bfgs"]
ASCENT: Solver = "coordinate-ascent"
NEWTON: Solver = "quasi-newton"
LBFGS: Solver = "l-bfgs"

LEAST_MEMORY, MEMORY, ROOM = 12, 64, 2**25
"""Pairs of steps and changes of the gradient that are remembered: all of so many, fewer of them where numbers are many.

They are the cloud's alone and cost no message; with 12 of them HAR at energy 3,000 is left 170 times as far away."""
FARTHEST = 2.0
"""How much farther than its end a step may lead."""
NEAR = (0.8, 1.25)
"""A step whose least point is so near to its end ends there, where the gradient is known."""
ENOUGH_DECREASE = 1e-4
"""Share of the decrease that the slope promises which a step must bring (Armijo)."""
ROUNDING = 1e-14
"""By how much of itself an objective may rise without being worse."""
STRETCHES = (1.0, 2.0, 0.5, 0.25, 0.125, 0.03125)
"""Where along a step the objective is looked at, its end first: scores are linear, so this costs no vector."""


@dataclass
class QuasiNewton:
    """Where the search stands: the best point so far, its gradient and objective, and the step that is tried next.

    It begins at a point of which only the models are known: the first trial is that point itself.
    """

    W: Models
    gradient: Models | None = None
    value: float = np.inf
    curvature: float = 1.0
    direction: Models | None = None
    rounded: Models | None = None
    steps: list[Models] = field(default_factory=list)
    changes: list[Models] = field(default_factory=list)

    def trial(self, relationship: Relationship) -> Models:
        """The next point to look at."""
        if self.gradient is None:
            return self.W
        if self.direction is None:
            self.direction = self._descent(relationship)
        return self.W + self.direction if self.rounded is None else self.rounded

    def try_instead(self, near: Models) -> None:
        """Look at this point, close to the trial: what can be sent of it."""
        if self.gradient is not None:
            self.direction, self.rounded = near - self.W, near

    def observe(self, relationship: Relationship, V: Models, along: Vector, *, exact: bool) -> None:
        """Learn from V at the trial and the objective at ``STRETCHES`` of the step to it.

        Where not everybody answered, V is not the ``exact`` gradient, and tells nothing of curvature.
        """
        trial = self.trial(relationship)
        gradient = relationship.apply(trial) - V
        self.rounded = None
        if self.direction is None or self.gradient is None:
            self.gradient, self.value = gradient, float(along[0])
            return
        if exact:
            self._remember(relationship, self.direction, gradient - self.gradient)
        self._go_on(trial, self.gradient, gradient, along)

    def _go_on(self, trial: Models, before: Models, after: Models, along: Vector) -> None:
        """From the point of the step where its slope would be 0 if it rose evenly, where that is no worse for sure.

        Between two points that were looked at, a convex objective lies below its chord. A way along which nothing is
        better comes from a gradient that was not looked at, or from a memory of such: both are made anew.
        """
        best, step, self.direction = int(np.argmin(along)), trial - self.W, None
        if along[best] > self.value + ROUNDING * abs(self.value):
            self.gradient, self.steps, self.changes = None, [], []
            return
        share = self._least(float(np.sum(before * step)), float(np.sum(after * step)))
        order = np.argsort(STRETCHES)
        known = np.array([0.0, *np.take(STRETCHES, order)]), np.array([self.value, *along[order]])
        if float(np.interp(share, *known)) > self.value:
            share = STRETCHES[best]
        self.W = between(1.0 - share, np.array([trial, self.W]))
        self.value = float(np.interp(share, *known))
        self.gradient = after if share == 1.0 else (1.0 - share) * before + share * after

    @staticmethod
    def _least(falls: float, rises: float) -> float:
        """Share of a step at which its slope would be 0, by those at its start and at its end."""
        share = min(max(falls / (falls - rises), STRETCHES[-1]), FARTHEST) if falls < rises else FARTHEST
        return 1.0 if NEAR[0] < share < NEAR[1] else in_grains(share)

    def _remember(self, relationship: Relationship, step: Models, change: Models) -> None:
        bend = float(np.sum(step * change))
        if bend <= 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            return
        kept = min(MEMORY, max(LEAST_MEMORY, ROOM // step.size))
        self.steps, self.changes = [*self.steps, step][-kept:], [*self.changes, change][-kept:]
        self.curvature = max((bend - relationship.energy(step)) / float(np.sum(step * step)), 1e-12)

    def _descent(self, relationship: Relationship) -> Models:
        """−H g by the two loops of L-BFGS; without memory where rounding has made it useless."""
        assert self.gradient is not None
        direction = self._two_loops(relationship, self.gradient)
        if float(np.sum(direction * self.gradient)) >= 0.0:
            self.steps, self.changes = [], []
            direction = self._two_loops(relationship, self.gradient)
        return direction

    def _two_loops(self, relationship: Relationship, gradient: Models) -> Models:
        pairs = [(s, y, 1.0 / float(np.sum(s * y))) for s, y in zip(self.steps, self.changes, strict=True)]
        left, weights = gradient.copy(), []
        for s, y, r in reversed(pairs):
            weights.append(r * float(np.sum(s * left)))
            left -= weights[-1] * y
        found = relationship.precondition(left, self.curvature)
        if pairs:
            _, y, r = pairs[-1]
            found /= r * float(np.sum(y * relationship.precondition(y, self.curvature)))
        for (s, y, r), weight in zip(pairs, reversed(weights), strict=True):
            found += (weight - r * float(np.sum(y * found))) * s
        return -found


@dataclass
class Backtracking(QuasiNewton):
    """The search of Liu and Nocedal (1989): a step that does not bring enough is tried again, shorter."""

    def _go_on(self, trial: Models, before: Models, after: Models, along: Vector) -> None:
        """From the end of the step, by Armijo's rule, or from the same point as before."""
        step = trial - self.W
        promised = ENOUGH_DECREASE * float(np.sum(before * step)) / len(step)
        if along[0] <= self.value + promised:
            self.W, self.gradient, self.value, self.direction = trial, after, float(along[0]), None
        else:
            best = int(np.argmin(along))
            self.direction = (STRETCHES[best] if along[best] < self.value else STRETCHES[-1]) * step


SEARCHES: dict[Solver, type[QuasiNewton]] = {NEWTON: QuasiNewton, LBFGS: Backtracking}
