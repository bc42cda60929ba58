"""Yardsticks: one model from all data in one place, solved to the optimum; and no model at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rhfedmtl.algorithms.baselines.cocoa import one_task
from rhfedmtl.algorithms.method import FloatArray
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.data.federation import Federation, one_terminal_per_task
from rhfedmtl.maths.kernels.kernel import Kernel
from rhfedmtl.maths.kernels.rounds import CURVE, Answers, Duals, Layout, Orders, Rows
from rhfedmtl.policies.base import Plan, Situation


@dataclass(frozen=True)
class Passes:
    """Passes over all rows, as many as it takes."""

    passes: int = 5

    def plan(self, situation: Situation) -> Plan | None:
        """So many passes in every round."""
        return Plan.uniform(situation, self.passes * situation.sizes, 1)


def in_one_place(federation: Federation) -> Federation:
    """All rows on one terminal of one station."""
    return one_terminal_per_task(one_task(federation))


def pooled(options: Options, kind: str) -> Algorithm:
    """One model from all rows in one place; nothing is charged."""
    options = replace(options, relationship="none")
    return Algorithm(options.method(kind), Passes(), in_one_place)


@dataclass(frozen=True)
class ConstantAnswer(SgdMethod):
    """The most frequent class of each task, or the mean of its labels: one number in the intercept."""

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """n_t times the mean label into the last feature: that of ±1 has the sign of the more frequent class."""
        delta = np.zeros((len(layout.station), *orders.models.shape[1:]))
        for block, t in zip(np.repeat(np.arange(len(delta)), np.diff(layout.blocks)), layout.order, strict=True):
            here = slice(rows.starts[t], rows.ends[t])
            if orders.steps[t] > 0 and rows.weight[here].any():
                mean = np.average(rows.y[here], axis=0, weights=rows.weight[here])
                delta[block, :, -1] += (here.stop - here.start) * mean
        n = len(layout.starts) - 1
        total = np.zeros((n, *delta.shape[1:]))
        np.add.at(total, layout.row, delta)
        return Answers(total, np.zeros((n, CURVE)), np.zeros((n, 0)))

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """From nothing, every time."""
        return np.zeros_like(U)

    def shared_rows(self, columns: int) -> int:
        """Every task answers for itself."""
        return 0


@dataclass(frozen=True)
class Once:
    """One round, in which every row is seen once; again, where an update got lost."""

    def plan(self, situation: Situation) -> Plan | None:
        """Until all have answered in one round."""
        if situation.observed and np.array_equal(situation.observed[-1].answers, situation.members):
            return None
        return Plan.uniform(situation, situation.sizes, 1)


def constant(options: Options, kind: str) -> Algorithm:
    """The most frequent class, or the mean; nothing is charged."""
    settings = {**options.sgd(kind), "intercept": True}
    return Algorithm(ConstantAnswer(**settings), Once(), one_terminal_per_task)
