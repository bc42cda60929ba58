"""GIANT (Wang et al. 2018), a globally improved approximate Newton method, on the joint problem of all tasks.

Two kinds of rounds alternate. In a gradient round, terminals make a pass and send the gradient at the end of the last
step. In a direction round each terminal solves (H_t + q_b I) p = −g by the ordered number of conjugate-gradient steps,
each a pass, where H_t is the Hessian of its rows and q_b its task's entry of Q. Stations and cloud take the mean of p.
Backtracking on sums of losses, which are scalars, finds the step length; a step that is too long costs a gradient
round.

Terminals need no memory. An order has two vectors, the models and, below them, the step or the gradient; an answer has
its sums of losses below the gradient. An iteration takes two rounds, four vectors down and four up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rhfedmtl.algorithms.baselines.lbfgs import GradientRounds
from rhfedmtl.algorithms.method import FloatArray
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import Memory, Server, SgdMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.kernels.kernel import Kernel, gradients
from rhfedmtl.maths.kernels.rounds import CURVE, Answers, Duals, IntArray, Layout, Orders, Rows, fixed, make_duals
from rhfedmtl.maths.losses import Loss, Squared
from rhfedmtl.maths.quasi_newton import ASCENT, ENOUGH_DECREASE, GRADIENT, Work
from rhfedmtl.maths.relationships import Relationship
from rhfedmtl.policies.base import Plan, Situation, check_count

ALONG = (0.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Shares of a step at which losses are added up; at most as many as there are features."""
_GRADIENT, _DIRECTION = np.array([0.0]), np.array([1.0])


@dataclass(frozen=True)
class NewtonServer(Server):
    """Server of GIANT. Its memory is the kind of the next round, and the slope of the objective along the step."""

    relationship: Relationship
    newton_steps: int

    def initial_memory(self, initial: FloatArray) -> Memory:
        """Return the memory that requests the gradient at the start."""
        return _GRADIENT, np.zeros(1)

    def weights(self, n_tasks: int, memory: Memory) -> FloatArray:
        """Return q_b, which directions need."""
        return np.diag(self.relationship.precision(n_tasks))

    def work(self, memory: Memory) -> Work:
        """Return the work of the next round: gradients and directions take turns."""
        return ASCENT if memory[0] else GRADIENT

    def passes(self, memory: Memory) -> int:
        """Return 1 for a gradient, and the conjugate-gradient steps for a direction."""
        return self.newton_steps if memory[0] else 1

    def step(self, sent: FloatArray, reports: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """Turn a gradient into directions, or directions into a step; repeat the round if a station has no answer."""
        if ((reports == sent).all(axis=(1, 2)) & (n > 0)).any():
            return sent, memory
        (W, below), (answers, sums) = np.split(sent, 2, axis=1), np.split(reports - sent, 2, axis=1)
        if memory[0]:
            return np.concatenate([W, answers], axis=1), (_GRADIENT, np.sum(below * answers, keepdims=True).ravel())
        share = self._share(W, below, sums[:, 0].sum(axis=0), float(memory[1][0]))
        if share < 1.0:
            return np.concatenate([W, share * below], axis=1), (_GRADIENT, share * memory[1])
        end = W + below
        return np.concatenate([end, self.relationship.apply(end) - answers], axis=1), (_DIRECTION, memory[1])

    def _share(self, W: FloatArray, step: FloatArray, losses: FloatArray, slope: float) -> float:
        """Return the largest share of the step with enough decrease (Armijo)."""
        shares, required = ALONG[: len(losses)], ENOUGH_DECREASE * slope
        values = [loss + self.relationship.energy(W + t * step) / 2.0 for t, loss in zip(shares, losses, strict=False)]
        accepted = (t for t, value in zip(shares, values, strict=True) if t and value <= values[0] + required * t)
        return next(accepted, ALONG[-1]) if step.any() else 1.0


@dataclass(frozen=True)
class Giant(SgdMethod):
    """Approximate Newton method with ``newton_steps`` conjugate-gradient steps in a round."""

    below: ClassVar[int] = 1  # a step, or a gradient

    newton_steps: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for directions without steps."""
        super().__post_init__()
        check_count("newton_steps", self.newton_steps)

    def check(self, federation: Federation) -> None:
        """Raise ConfigError if the sums of losses do not fit into a row of the matrix."""
        super().check(federation)
        if self.width(federation.n_features) < 2:
            raise ConfigError("giant needs two features, or a feature and an intercept: take lbfgs")

    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """Return λ_b of the anchor."""
        return lam

    @property
    def task_coupling(self) -> Relationship:
        """Relationship of the joint problem."""
        return self.relationship

    def server(self) -> Server:
        """Return the server that alternates rounds and searches along the step."""
        return NewtonServer(self.relationship, self.newton_steps)

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Return n_t times the negative gradient and the losses along the step, or n_t times a direction."""
        station = np.repeat(layout.station, np.diff(layout.blocks))
        ends = np.arange(len(layout.order) + 1)
        per_terminal = Layout(layout.order, ends, ends[:-1], ends)
        compute = self._gradients if orders.gradient.all() else self._directions
        results = compute(kernel, rows, per_terminal, orders, station)
        results[orders.steps[layout.order] == 0] = 0.0
        blocks = np.zeros((len(layout.station), *results.shape[1:]))
        np.add.at(blocks, np.repeat(np.arange(len(blocks)), np.diff(layout.blocks)), results)
        delta = np.zeros((len(layout.starts) - 1, *results.shape[1:]))
        np.add.at(delta, layout.row, blocks)
        return Answers(delta, np.zeros((len(delta), CURVE)), np.empty((len(delta), 0)))

    def _gradients(self, kernel: Kernel, rows: Rows, layout: Layout, orders: Orders, station: IntArray) -> FloatArray:
        W, step = np.split(orders.models.astype(np.float64)[station], 2, axis=1)
        along = ALONG[: W.shape[2]]
        points = np.array([(1.0, t) for t in along])
        losses, _ = kernel.sums(self.loss, rows, layout, make_duals(rows), np.stack([W, step]), points)
        sums = np.zeros_like(W)
        sums[:, 0, : len(along)] = losses
        return np.concatenate([gradients(kernel, self.loss, rows, layout, W + step), sums], axis=1)

    def _directions(self, kernel: Kernel, rows: Rows, layout: Layout, orders: Orders, station: IntArray) -> FloatArray:
        W, gradient = np.split(orders.models.astype(np.float64)[station], 2, axis=1)
        curvatures, directions = self._curvatures(kernel, rows, layout, W), np.zeros_like(W)
        n = rows.sizes[layout.order][:, None]
        steps = orders.steps[layout.order] // np.maximum(n[:, 0], 1)
        for c in range(W.shape[1]):
            column = rows._replace(y=fixed(np.zeros((len(rows.y), 1))), weight=fixed(curvatures[:, c].copy()))

            def product(p: FloatArray, column: Rows = column) -> FloatArray:
                curved = gradients(kernel, Squared(), column, layout, p[:, None])[:, 0]
                return np.asarray(orders.scale[station][:, None] * p - curved / n)

            directions[:, c] = n * conjugate_gradients(product, -gradient[:, c], steps)
        return np.concatenate([directions, np.zeros_like(directions)], axis=1)

    def _curvatures(self, kernel: Kernel, rows: Rows, layout: Layout, W: FloatArray) -> FloatArray:
        """Return s L″(z) of every row and column, from α = −L′(z): L″ is 1 over the curvature of the conjugate at α."""
        duals, steps = make_duals(rows), np.zeros(len(rows.sizes), dtype=np.int64)
        steps[layout.order] = rows.sizes[layout.order]
        sent, scale = W.astype(rows.X.dtype), np.ones(len(layout.order))
        orders = Orders(sent, scale, steps, np.uint64(0), np.uint64(0), False, scale > 0.0)
        kernel.ascend(self.loss, rows, layout, duals, orders)
        s = rows.weight[:, None]
        return np.asarray(s * _hessian(self.loss, duals.pending / np.where(s > 0.0, s, 1.0), rows.y), dtype=np.float64)


def _hessian(loss: Loss, a: FloatArray, y: FloatArray) -> Any:
    """Return L″ from the curvature of the conjugate, or from its second difference; 0 at the ends of the box."""
    small = 1e-4

    def bend(a: float, y: float) -> float:
        if loss.quadratic:
            (_, bends, up), (_, _, down) = loss.line(a, y, 1.0), loss.line(a, y, -1.0)
            return 1.0 / bends if bends > 0.0 and min(up, down) > 0.0 else 0.0
        bends = loss.conjugate(a + small, y) - 2.0 * loss.conjugate(a, y) + loss.conjugate(a - small, y)
        return small**2 / bends if 0.0 < bends < np.inf else 0.0

    return np.frompyfunc(bend, 2, 1)(a, y)


def conjugate_gradients(product: Any, right: FloatArray, steps: IntArray) -> FloatArray:
    """Take ``steps`` conjugate-gradient steps towards the solution of A p = right, for each row separately.

    ``product`` multiplies by A. Rows with fewer steps keep their solution.
    """
    p, residual, direction = np.zeros_like(right), right.copy(), right.copy()
    square = np.sum(residual * residual, axis=1)
    for k in range(int(steps.max(initial=0))):
        image = product(direction)
        bend = np.sum(direction * image, axis=1)
        length = np.where((bend > 0.0) & (k < steps), square / np.where(bend > 0.0, bend, 1.0), 0.0)
        p, residual = p + length[:, None] * direction, residual - length[:, None] * image
        before, square = square, np.sum(residual * residual, axis=1)
        direction = residual + (square / np.where(before > 0.0, before, 1.0))[:, None] * direction
    return p


@dataclass(frozen=True)
class NewtonRounds(GradientRounds):
    """Policy with as many passes in a round as the cloud requests."""

    def plan(self, situation: Situation) -> Plan | None:
        """Return the plan of a gradient or of directions."""
        plan = super().plan(situation)
        return plan and replace(plan, local_steps=situation.passes * plan.local_steps, solver=ASCENT)


def giant(options: Options, kind: str) -> Algorithm:
    """Return the algorithm: a gradient, then directions by conjugate gradients (default 2 steps)."""
    settings = {"newton_steps": options["newton_steps"]}
    return Algorithm(Giant(**options.sgd(kind), **settings), NewtonRounds(options.cloud_rounds))
