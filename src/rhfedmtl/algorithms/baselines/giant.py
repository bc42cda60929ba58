"""GIANT (Wang et al. 2018), a globally improved approximate Newton method, on the joint problem of all tasks.

Rounds take turns. In one, terminals make a pass and send the gradient at the end of the last step; in the other each
solves (H_t + q_b I) p = −g by as many steps of conjugate gradients as it was asked for, every one a pass, where H_t is
the Hessian of its own rows and q_b its task's entry of Q, and stations and cloud take the mean of p. How far to go
along it is found by backtracking on sums of losses, which are scalars; a step that is too long costs a gradient round.

Terminals remember nothing: an order has two vectors, the models and, below them, the step or the gradient; below the
gradient of an answer stand its sums of losses. Two rounds an iteration, four vectors down and four up.
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
"""Where along a step losses are added up, as many as there are features."""
_GRADIENT, _DIRECTION = np.array([0.0]), np.array([1.0])


@dataclass(frozen=True)
class NewtonServer(Server):
    """Memory is whether directions are asked for, and the slope of the objective along the step."""

    relationship: Relationship
    newton_steps: int

    def begin(self, initial: FloatArray) -> Memory:
        """The gradient at the start."""
        return _GRADIENT, np.zeros(1)

    def weights(self, n_tasks: int, memory: Memory) -> FloatArray:
        """q_b, for the directions."""
        return np.diag(self.relationship.precision(n_tasks))

    def work(self, memory: Memory) -> Work:
        """Gradients and directions in turn."""
        return ASCENT if memory[0] else GRADIENT

    def passes(self, memory: Memory) -> int:
        """One for a gradient."""
        return self.newton_steps if memory[0] else 1

    def step(self, sent: FloatArray, told: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """A gradient leads to directions, these to a step; where a station heard of nobody, the same again."""
        if ((told == sent).all(axis=(1, 2)) & (n > 0)).any():
            return sent, memory
        (W, below), (found, sums) = np.split(sent, 2, axis=1), np.split(told - sent, 2, axis=1)
        if memory[0]:
            return np.concatenate([W, found], axis=1), (_GRADIENT, np.sum(below * found, keepdims=True).ravel())
        share = self._share(W, below, sums[:, 0].sum(axis=0), float(memory[1][0]))
        if share < 1.0:
            return np.concatenate([W, share * below], axis=1), (_GRADIENT, share * memory[1])
        end = W + below
        return np.concatenate([end, self.relationship.apply(end) - found], axis=1), (_DIRECTION, memory[1])

    def _share(self, W: FloatArray, step: FloatArray, losses: FloatArray, slope: float) -> float:
        """The longest part of the step that brings enough (Armijo)."""
        shares, least = ALONG[: len(losses)], ENOUGH_DECREASE * slope
        values = [loss + self.relationship.energy(W + t * step) / 2.0 for t, loss in zip(shares, losses, strict=False)]
        enough = (t for t, value in zip(shares, values, strict=True) if t and value <= values[0] + least * t)
        return next(enough, ALONG[-1]) if step.any() else 1.0


@dataclass(frozen=True)
class Giant(SgdMethod):
    """``newton_steps`` are those of conjugate gradients in a round."""

    below: ClassVar[int] = 1  # a step, or a gradient

    newton_steps: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse directions of no steps."""
        super().__post_init__()
        check_count("newton_steps", self.newton_steps)

    def check(self, federation: Federation) -> None:
        """Sums of losses lie in one row of the matrix."""
        super().check(federation)
        if federation.n_features + self.intercept < 2:
            raise ConfigError("giant needs two features, or one and an intercept: take lbfgs")

    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """λ_b of the anchor."""
        return lam

    @property
    def task_coupling(self) -> Relationship:
        """The relationship of the joint problem."""
        return self.relationship

    def server(self) -> Server:
        """Line search and turns."""
        return NewtonServer(self.relationship, self.newton_steps)

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """n_t times the gradient's negative and the losses along the step, or n_t times a direction."""
        station = np.repeat(layout.station, np.diff(layout.blocks))
        ends = np.arange(len(layout.order) + 1)
        alone = Layout(layout.order, ends, ends[:-1], ends)
        look = self._looks if orders.gradient.all() else self._directions
        found = look(kernel, rows, alone, orders, station)
        found[orders.steps[layout.order] == 0] = 0.0
        blocks = np.zeros((len(layout.station), *found.shape[1:]))
        np.add.at(blocks, np.repeat(np.arange(len(blocks)), np.diff(layout.blocks)), found)
        delta = np.zeros((len(layout.starts) - 1, *found.shape[1:]))
        np.add.at(delta, layout.row, blocks)
        return Answers(delta, np.zeros((len(delta), CURVE)), np.empty((len(delta), 0)))

    def _looks(self, kernel: Kernel, rows: Rows, alone: Layout, orders: Orders, station: IntArray) -> FloatArray:
        W, step = np.split(orders.models.astype(np.float64)[station], 2, axis=1)
        along = ALONG[: W.shape[2]]
        points = np.array([(1.0, t) for t in along])
        losses, _ = kernel.sums(self.loss, rows, alone, make_duals(rows), np.stack([W, step]), points)
        sums = np.zeros_like(W)
        sums[:, 0, : len(along)] = losses
        return np.concatenate([gradients(kernel, self.loss, rows, alone, W + step), sums], axis=1)

    def _directions(self, kernel: Kernel, rows: Rows, alone: Layout, orders: Orders, station: IntArray) -> FloatArray:
        W, gradient = np.split(orders.models.astype(np.float64)[station], 2, axis=1)
        bend, found = self._curvatures(kernel, rows, alone, W), np.zeros_like(W)
        n = rows.sizes[alone.order][:, None]
        steps = orders.steps[alone.order] // np.maximum(n[:, 0], 1)
        for c in range(W.shape[1]):
            column = rows._replace(y=fixed(np.zeros((len(rows.y), 1))), weight=fixed(bend[:, c].copy()))

            def product(p: FloatArray, column: Rows = column) -> FloatArray:
                curved = gradients(kernel, Squared(), column, alone, p[:, None])[:, 0]
                return np.asarray(orders.scale[station][:, None] * p - curved / n)

            found[:, c] = n * conjugate_gradients(product, -gradient[:, c], steps)
        return np.concatenate([found, np.zeros_like(found)], axis=1)

    def _curvatures(self, kernel: Kernel, rows: Rows, alone: Layout, W: FloatArray) -> FloatArray:
        """s L″(z) of every row and column, from α = −L′(z): L″ is one over the curvature of the conjugate there."""
        duals, steps = make_duals(rows), np.zeros(len(rows.sizes), dtype=np.int64)
        steps[alone.order] = rows.sizes[alone.order]
        sent, every = W.astype(rows.X.dtype), np.ones(len(alone.order))
        orders = Orders(sent, every, steps, np.uint64(0), np.uint64(0), False, every > 0.0)
        kernel.ascend(self.loss, rows, alone, duals, orders)
        s = rows.weight[:, None]
        return np.asarray(s * _bends(self.loss, duals.pending / np.where(s > 0.0, s, 1.0), rows.y), dtype=np.float64)


def _bends(loss: Loss, a: FloatArray, y: FloatArray) -> Any:
    """L″ from the curvature of the conjugate, or a second difference of it; 0 at the ends of the box."""
    small = 1e-4

    def bend(a: float, y: float) -> float:
        if loss.quadratic:
            (_, bends, up), (_, _, down) = loss.line(a, y, 1.0), loss.line(a, y, -1.0)
            return 1.0 / bends if bends > 0.0 and min(up, down) > 0.0 else 0.0
        bends = loss.conjugate(a + small, y) - 2.0 * loss.conjugate(a, y) + loss.conjugate(a - small, y)
        return small**2 / bends if 0.0 < bends < np.inf else 0.0

    return np.frompyfunc(bend, 2, 1)(a, y)


def conjugate_gradients(product: Any, right: FloatArray, steps: IntArray) -> FloatArray:
    """So many steps towards the solution of A p = right, of each row its own; ``product`` multiplies by A."""
    p, left, way = np.zeros_like(right), right.copy(), right.copy()
    square = np.sum(left * left, axis=1)
    for k in range(int(steps.max(initial=0))):
        ahead = product(way)
        bend = np.sum(way * ahead, axis=1)
        length = np.where((bend > 0.0) & (k < steps), square / np.where(bend > 0.0, bend, 1.0), 0.0)
        p, left = p + length[:, None] * way, left - length[:, None] * ahead
        before, square = square, np.sum(left * left, axis=1)
        way = left + (square / np.where(before > 0.0, before, 1.0))[:, None] * way
    return p


@dataclass(frozen=True)
class NewtonRounds(GradientRounds):
    """As many passes in a round as the cloud asks for."""

    def plan(self, situation: Situation) -> Plan | None:
        """A gradient, or directions."""
        plan = super().plan(situation)
        return plan and replace(plan, local_steps=situation.passes * plan.local_steps, solver=ASCENT)


def giant(options: Options, kind: str) -> Algorithm:
    """A gradient, then directions by conjugate gradients (2 steps unless said)."""
    own = {"newton_steps": options["newton_steps"]}
    return Algorithm(Giant(**options.sgd(kind), **own), NewtonRounds(options.cloud_rounds))
