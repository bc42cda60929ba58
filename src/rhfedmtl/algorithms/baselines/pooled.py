"""Reference points: a single model from all data in a single place, solved to the optimum; and a constant answer."""

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
    """Policy with the same number of passes over all rows in every round, for as many rounds as it takes."""

    passes: int = 5

    def plan(self, situation: Situation) -> Plan | None:
        """Return ``passes`` passes for every terminal."""
        return Plan.uniform(situation, self.passes * situation.sizes, 1)


def in_one_place(federation: Federation) -> Federation:
    """Return the federation with all rows on a single terminal of a single station."""
    return one_terminal_per_task(one_task(federation))


def pooled(options: Options, kind: str) -> Algorithm:
    """Return the algorithm with a single model from all rows in a single place; nothing is charged."""
    options = replace(options, relationship="none")
    return Algorithm(options.method(kind), Passes(), in_one_place)


@dataclass(frozen=True)
class ConstantAnswer(SgdMethod):
    """The most frequent class of each task, or the mean of its labels: a single number in the intercept."""

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Return n_t times the mean label in the last feature: for ±1 it has the sign of the more frequent class."""
        delta = np.zeros((len(layout.station), *orders.models.shape[1:]))
        for block, t in zip(np.repeat(np.arange(len(delta)), np.diff(layout.blocks)), layout.order, strict=True):
            place = slice(rows.starts[t], rows.ends[t])
            if orders.steps[t] > 0 and rows.weight[place].any():
                mean = np.average(rows.y[place], axis=0, weights=rows.weight[place])
                delta[block, :, -1] += (place.stop - place.start) * mean
        n = len(layout.starts) - 1
        total = np.zeros((n, *delta.shape[1:]))
        np.add.at(total, layout.row, delta)
        return Answers(total, np.zeros((n, CURVE)), np.zeros((n, 0)))

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Return zeros at every start."""
        return np.zeros_like(U)

    def shared_rows(self, columns: int) -> int:
        """Return 0: tasks share nothing."""
        return 0


@dataclass(frozen=True)
class SingleRound:
    """Policy with a single round in which every row counts once; it repeats the round if an update was lost."""

    def plan(self, situation: Situation) -> Plan | None:
        """Return a plan until all members have answered in the same round."""
        if situation.observed and np.array_equal(situation.observed[-1].answers, situation.members):
            return None
        return Plan.uniform(situation, situation.sizes, 1)


def constant(options: Options, kind: str) -> Algorithm:
    """Return the algorithm that predicts the most frequent class, or the mean; nothing is charged."""
    settings = {**options.sgd(kind), "intercept": True}
    return Algorithm(ConstantAnswer(**settings), SingleRound(), one_terminal_per_task)
