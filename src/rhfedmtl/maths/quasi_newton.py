"""Quasi-Newton steps on the joint problem of all tasks, for the cloud.

From any W terminals can set α_i = −L′(z_i), so that V = [−∇loss_b(w_b)] and the gradient of N·P is W Q − V. A round
whose work is "gradient" does just that: it costs one pass, keeps U_b = Σ_t X_tᵀα_t, and every α on the way is a dual
point with a certificate. Coordinate ascent goes on from there, and back, at no cost.

The Hessian of N·P is Q + diag(H_b): the coupling is known, and the losses of a task depend on its own model alone. So a
gradient tells the curvature of every task along its own part of the step: N pairs, where L-BFGS on the joint problem
remembers one. B_b is that of BFGS by the pairs of task b, from h I, and a step is −(Q + diag(B_b))⁻¹ g by conjugate
gradients at the cloud (a partially separable quasi-Newton method: Griewank and Toint 1982). Classes are columns with
losses of their own, and have each a B_b too.

A search asks for a single gradient per step. If the full step raises the objective, the search goes on from the best
of the shorter steps that terminals evaluated, with a gradient interpolated between both ends. The objective never
rises: if no step is better, the search asks for the gradient at the start of the step. `Backtracking` is usual L-BFGS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np

from rhfedmtl.maths.coupling import Models, Relationship, Vector
from rhfedmtl.maths.mixtures import between

Solver = Literal["dual-ascent", "quasi-newton", "l-bfgs"]
Work = Literal["dual-ascent", "gradient"]
"""Work of the terminals in a server iteration: steps of the method, or the gradient under the anchor."""
WORKS: tuple[Work, ...] = get_args(Work)
ASCENT: Final = "dual-ascent"
GRADIENT: Final = "gradient"
NEWTON: Solver = "quasi-newton"
LBFGS: Solver = "l-bfgs"

LEAST_MEMORY, MEMORY, ROOM = 8, 40, 2**21
"""Pairs of steps and changes of gradients that are remembered: all of so many, fewer of them where numbers are many.

They are the cloud's alone and cost no message."""
JOINT_MEMORY = 64
"""As many of the joint problem: with 12 of them L-BFGS leaves HAR at energy 3,000 170 times as far away."""
CG_STEPS, CG_LEFT = 15, 1e-2
"""Steps of conjugate gradients towards the next step, and what of the gradient they may leave."""
LEAST_BEND = 1e-12
"""Curvature along a step, beside the lengths of step and change, below which rounding may have made it."""
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
    looked: bool = True
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
            self.gradient, self.value, self.looked = gradient, float(along[0]), True
            return
        if exact:
            self._remember(relationship, self.direction, gradient - self.gradient)
        self._go_on(trial, self.gradient, gradient, along)

    def _go_on(self, trial: Models, before: Models, after: Models, along: Vector) -> None:
        """Go on from the end of the step, or from its best point if the end is worse than its start.

        If no point is better, the gradient or the memory was inexact: both start again.
        """
        best, self.direction = int(np.argmin(along)), None
        if along[best] > self.value + ROUNDING * abs(self.value):
            self.gradient = None
            if self.looked:
                self.steps, self.changes = [], []
            return
        place = 0 if along[0] <= self.value else best
        share = STRETCHES[place]
        self.W = between(1.0 - share, np.array([trial, self.W]))
        self.value = float(along[place])
        self.looked = share == 1.0
        self.gradient = after if self.looked else (1.0 - share) * before + share * after

    def _remember(self, relationship: Relationship, step: Models, change: Models) -> None:
        """The pair of each task's losses, where these bend along the step."""
        change = change - relationship.apply(step)
        bends = _dots(step, change)
        if bends.sum() <= 0.0:
            return
        bent = (bends > LEAST_BEND * np.sqrt(_dots(step, step) * _dots(change, change)))[..., None]
        self._keep(np.where(bent, step, 0.0), np.where(bent, change, 0.0), MEMORY)
        self.curvature = max(float(bends.sum()) / float(np.sum(step * step)), LEAST_BEND)

    def _keep(self, step: Models, change: Models, most: int) -> None:
        kept = min(most, max(LEAST_MEMORY, ROOM // step.size))
        self.steps, self.changes = [*self.steps, step][-kept:], [*self.changes, change][-kept:]

    def _descent(self, relationship: Relationship) -> Models:
        """−H g; without memory where rounding has made it useless."""
        assert self.gradient is not None
        direction = -self._solve(relationship, self.gradient)
        if float(np.sum(direction * self.gradient)) >= 0.0:
            self.steps, self.changes = [], []
            direction = -self._solve(relationship, self.gradient)
        return direction

    def _solve(self, relationship: Relationship, gradient: Models) -> Models:
        """(Q + diag(B_b))⁻¹ g by conjugate gradients in the metric Q + h I."""
        factors, found, left = self._factors(), np.zeros_like(gradient), gradient
        way = ahead = relationship.precondition(left, self.curvature)
        square = first = float(np.sum(left * ahead))
        for _ in range(CG_STEPS):
            curved = relationship.apply(way) + self._curved(factors, way)
            bend = float(np.sum(way * curved))
            if bend <= 0.0 or square <= CG_LEFT**2 * first:
                break
            found, left = found + square / bend * way, left - square / bend * curved
            ahead = relationship.precondition(left, self.curvature)
            before, square = square, float(np.sum(left * ahead))
            way = ahead + square / before * way
        return found

    def _factors(self) -> Models:
        """Of all tasks a_1, c_1, a_2, c_2, … with B = h I + Σ_k (a_k a_kᵀ − c_k c_kᵀ), the updates of BFGS."""
        factors = np.empty((2 * len(self.steps), *self.W.shape))
        for k, (step, change) in enumerate(zip(self.steps, self.changes, strict=True)):
            curved = self._curved(factors[: 2 * k], step)
            factors[2 * k], factors[2 * k + 1] = _by_root(change, step), _by_root(curved, step)
        return factors

    def _curved(self, factors: Models, way: Models) -> Models:
        """B_b times each task's part of a way."""
        along = np.einsum("kbcd,bcd->kbc", factors, way)
        along[1::2] *= -1.0
        return np.asarray(self.curvature * way + np.einsum("kbcd,kbc->bcd", factors, along))


def _dots(first: Models, second: Models) -> Models:
    """Inner products by task and column."""
    return np.asarray(np.einsum("bcd,bcd->bc", first, second))


def _by_root(change: Models, step: Models) -> Models:
    """y/√(sᵀy) by task and column; 0 for a pair that is none."""
    bends = _dots(step, change)[..., None]
    return np.asarray(change / np.sqrt(np.where(bends > 0.0, bends, np.inf)))


@dataclass
class Backtracking(QuasiNewton):
    """The search of Liu and Nocedal (1989): a step that does not bring enough is tried again, shorter."""

    def _remember(self, relationship: Relationship, step: Models, change: Models) -> None:
        """The pair of the joint problem."""
        bend = float(np.sum(step * change))
        if bend > LEAST_BEND * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self._keep(step, change, JOINT_MEMORY)
            self.curvature = max((bend - relationship.energy(step)) / float(np.sum(step * step)), LEAST_BEND)

    def _solve(self, relationship: Relationship, gradient: Models) -> Models:
        """H g by the two loops of L-BFGS, in the metric Q + h I."""
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
        return found

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
