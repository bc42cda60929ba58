"""Quasi-Newton steps on the joint problem of all tasks, taken by the cloud.

From any W terminals can set α_i = −L′(z_i). Then V = [−∇loss_b(w_b)], and the gradient of N·P is W Q − V. A round
whose work is "gradient" does exactly this: it costs a pass, keeps U_b = Σ_t X_tᵀα_t, and every α on the way is a dual
point with a certificate. A run can switch between coordinate ascent and this search at no cost.

The Hessian of N·P is Q + diag(H_b), where Q needs no estimate and the losses of a task depend on its model alone. So a
gradient shows the curvature of every task along its own part of the step: N pairs, where L-BFGS on the joint problem
remembers a single pair. B_b is the BFGS matrix of the pairs of task b, from h I, and a step is −(Q + diag(B_b))⁻¹ g by
conjugate gradients at the cloud (a partially separable quasi-Newton method: Griewank and Toint 1982). Classes are
columns with separate losses, and have a B_b each.

A search requests a single gradient per step. If the full step raises the objective, the search goes on from the best
of the shorter steps that terminals evaluated, with a gradient interpolated between both ends. The objective never
rises: if no step is better, the search requests the gradient at the start of the step. `Backtracking` is the usual
L-BFGS.
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

# Pairs of step and change of gradient that the cloud remembers. They cost no message.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, +0.00 ± 0.01 decades;
# ×2: +0.00 ± 0.00 points, +0.00 ± 0.00 decades.
MOST_PAIRS = 40
# Fewer pairs of larger models: numbers of all steps together, at most, but at least LEAST_PAIRS pairs.
PAIR_NUMBERS = 2**21
LEAST_PAIRS = 8
# Pairs of L-BFGS on the joint problem. With 12 pairs it ends 170 times as far from the optimum on HAR at energy 3,000.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.00 points, +0.01 ± 0.02 decades;
# ×2: same digits.
LBFGS_PAIRS = 64
# Most steps of conjugate gradients per quasi-Newton step.
# Measured: benchmarks/results/constants.md; ×0.5: +0.00 ± 0.08 points, +0.04 ± 0.11 decades;
# ×2: −0.01 ± 0.04 points, +0.00 ± 0.00 decades.
CG_STEPS = 15
# Stop conjugate gradients once the residual is at most this share of the gradient.
# Measured: benchmarks/results/constants.md; ×0.5: −0.02 ± 0.03 points, +0.00 ± 0.01 decades;
# ×2: −0.02 ± 0.03 points, +0.00 ± 0.01 decades.
CG_TOLERANCE = 1e-2
# Rounding may cause a smaller curvature, relative to the lengths of step and change.
LEAST_CURVATURE = 1e-12
# A step must bring this share of the decrease that its slope promises (Armijo).
ENOUGH_DECREASE = 1e-4
# A relative rise of the objective up to this is rounding.
OBJECTIVE_ROUNDING = 1e-14
# Evaluate the objective at these multiples of a step, its end first. Scores are linear: this costs no vector.
# Measured: benchmarks/results/constants.md; ×0.5: −0.02 ± 0.05 points, +0.00 ± 0.01 decades;
# ×2: same digits.
STEP_LENGTHS = (1.0, 2.0, 0.5, 0.25, 0.125, 0.03125)


@dataclass
class QuasiNewton:
    """State of the search: the best point so far, its gradient and objective, and the step to try next.

    The search starts with models alone: the first trial is the starting point itself. ``looked`` is False while the
    gradient is interpolated.
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
        """Return the next point to evaluate."""
        if self.gradient is None:
            return self.W
        if self.direction is None:
            self.direction = -self._solve(relationship, self.gradient)
            if float(np.sum(self.direction * self.gradient)) >= 0.0:  # rounding has made the memory useless
                self.steps, self.changes = [], []
                self.direction = -self._solve(relationship, self.gradient)
        return self.W + self.direction if self.rounded is None else self.rounded

    def replace_trial(self, near: Models) -> None:
        """Replace the trial by a point close to it that the channel can send."""
        if self.gradient is not None:
            self.direction, self.rounded = near - self.W, near

    def observe(self, relationship: Relationship, V: Models, along: Vector, *, exact: bool) -> None:
        """Update the search from V at the trial and the objective at ``STEP_LENGTHS`` of the step to it.

        If a terminal did not answer, V is not the ``exact`` gradient and says nothing about curvature.
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
        """Continue from the end of the step, or from its best point if the end is worse than its start.

        If no point is better, the gradient was inexact and is evaluated again. If it was evaluated, the memory is
        cleared.
        """
        best, self.direction = int(np.argmin(along)), None
        if along[best] > self.value + OBJECTIVE_ROUNDING * abs(self.value):
            self.gradient = None
            if self.looked:
                self.steps, self.changes = [], []
            return
        place = 0 if along[0] <= self.value else best
        share = STEP_LENGTHS[place]
        self.W = between(1.0 - share, np.array([trial, self.W]))
        self.value = float(along[place])
        self.looked = share == 1.0
        self.gradient = after if self.looked else (1.0 - share) * before + share * after

    def _remember(self, relationship: Relationship, step: Models, change: Models) -> None:
        """Store the pair of each task whose losses are curved along the step."""
        change = change - relationship.apply(step)
        curvatures = _dots(step, change)
        if curvatures.sum() <= 0.0:
            return
        curved = (curvatures > LEAST_CURVATURE * np.sqrt(_dots(step, step) * _dots(change, change)))[..., None]
        self._keep(np.where(curved, step, 0.0), np.where(curved, change, 0.0), MOST_PAIRS)
        self.curvature = max(float(curvatures.sum()) / float(np.sum(step * step)), LEAST_CURVATURE)

    def _keep(self, step: Models, change: Models, limit: int) -> None:
        pairs = min(limit, max(LEAST_PAIRS, PAIR_NUMBERS // step.size))
        self.steps, self.changes = [*self.steps, step][-pairs:], [*self.changes, change][-pairs:]

    def _solve(self, relationship: Relationship, gradient: Models) -> Models:
        """Return (Q + diag(B_b))⁻¹ g by conjugate gradients in the metric Q + h I."""
        factors, solution, residual = self._factors(), np.zeros_like(gradient), gradient
        direction = preconditioned = relationship.precondition(residual, self.curvature)
        square = first = float(np.sum(residual * preconditioned))
        for _ in range(CG_STEPS):
            curved = relationship.apply(direction) + self._curved(factors, direction)
            curvature = float(np.sum(direction * curved))
            if curvature <= 0.0 or square <= CG_TOLERANCE**2 * first:
                break
            solution, residual = solution + square / curvature * direction, residual - square / curvature * curved
            preconditioned = relationship.precondition(residual, self.curvature)
            before, square = square, float(np.sum(residual * preconditioned))
            direction = preconditioned + square / before * direction
        return solution

    def _factors(self) -> Models:
        """Return a_1, c_1, a_2, c_2, … of all tasks with B = h I + Σ_k (a_k a_kᵀ − c_k c_kᵀ), the updates of BFGS."""
        factors = np.empty((2 * len(self.steps), *self.W.shape))
        for k, (step, change) in enumerate(zip(self.steps, self.changes, strict=True)):
            curved = self._curved(factors[: 2 * k], step)
            factors[2 * k], factors[2 * k + 1] = _by_root(change, step), _by_root(curved, step)
        return factors

    def _curved(self, factors: Models, direction: Models) -> Models:
        """Return B_b times each task's part of a direction."""
        along = np.einsum("kbcd,bcd->kbc", factors, direction)
        along[1::2] *= -1.0
        return np.asarray(self.curvature * direction + np.einsum("kbcd,kbc->bcd", factors, along))


def _dots(first: Models, second: Models) -> Models:
    """Return the inner products by task and column."""
    return np.asarray(np.einsum("bcd,bcd->bc", first, second))


def _by_root(change: Models, step: Models) -> Models:
    """Return y/√(sᵀy) by task and column, and 0 for a pair without curvature."""
    curvatures = _dots(step, change)[..., None]
    return np.asarray(change / np.sqrt(np.where(curvatures > 0.0, curvatures, np.inf)))


@dataclass
class Backtracking(QuasiNewton):
    """The search of Liu and Nocedal (1989): a step without enough decrease is tried again, shorter."""

    def _remember(self, relationship: Relationship, step: Models, change: Models) -> None:
        """Store the pair of the joint problem if it has curvature."""
        curvature = float(np.sum(step * change))
        if curvature > LEAST_CURVATURE * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self._keep(step, change, LBFGS_PAIRS)
            self.curvature = max((curvature - relationship.energy(step)) / float(np.sum(step * step)), LEAST_CURVATURE)

    def _solve(self, relationship: Relationship, gradient: Models) -> Models:
        """Return H g by the two loops of L-BFGS, in the metric Q + h I."""
        pairs = [(s, y, 1.0 / float(np.sum(s * y))) for s, y in zip(self.steps, self.changes, strict=True)]
        residual, weights = gradient.copy(), []
        for s, y, r in reversed(pairs):
            weights.append(r * float(np.sum(s * residual)))
            residual -= weights[-1] * y
        solution = relationship.precondition(residual, self.curvature)
        if pairs:
            _, y, r = pairs[-1]
            solution /= r * float(np.sum(y * relationship.precondition(y, self.curvature)))
        for (s, y, r), weight in zip(pairs, reversed(weights), strict=True):
            solution += (weight - r * float(np.sum(y * solution))) * s
        return solution

    def _go_on(self, trial: Models, before: Models, after: Models, along: Vector) -> None:
        """Continue from the end of the step if Armijo's rule accepts it, otherwise shorten the step."""
        step = trial - self.W
        required = ENOUGH_DECREASE * float(np.sum(before * step)) / len(step)
        if along[0] <= self.value + required:
            self.W, self.gradient, self.value, self.direction = trial, after, float(along[0]), None
        else:
            best = int(np.argmin(along))
            self.direction = (STEP_LENGTHS[best] if along[best] < self.value else STEP_LENGTHS[-1]) * step


SEARCHES: dict[Solver, type[QuasiNewton]] = {NEWTON: QuasiNewton, LBFGS: Backtracking}
