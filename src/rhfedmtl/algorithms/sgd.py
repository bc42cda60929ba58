"""Methods that learn by stochastic gradient steps on the same three tiers: stations and cloud average models.

U_b is the matrix of models itself. A method is a subclass that defines its slots, the objective of each slot, and the
slots that the cloud averages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.method import FloatArray, Method
from rhfedmtl.maths.coupling import check_weight
from rhfedmtl.maths.kernels.kernel import Kernel
from rhfedmtl.maths.kernels.rounds import Answers, Duals, Layout, Orders, Rows, Slots
from rhfedmtl.maths.quasi_newton import ASCENT, Work
from rhfedmtl.maths.registry import LAMBDA1
from rhfedmtl.maths.relationships import MeanRegularised, Relationship

Memory = tuple[FloatArray, ...]


@dataclass(frozen=True)
class Server:
    """Rule by which the cloud computes the models to send next from the stations' models: here the mean by samples.

    A server has no state: callers pass its memory from each server iteration to the next. ``personal`` means that the
    model of a task is the model of its station, not the model that the cloud sends next.
    """

    personal: ClassVar[bool] = False

    def initial_memory(self, initial: FloatArray) -> Memory:
        """Return the memory before the first server iteration, for models (station, row, feature)."""
        return ()

    def step(self, sent: FloatArray, reports: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """Return the models to send next, and the new memory.

        Parameters
        ----------
        sent
            Models sent last.
        reports
            Models that the stations report.
        n
            Samples of the stations.
        memory
            Memory of the previous server iteration.
        """
        return np.broadcast_to(mean_by_samples(reports, n), reports.shape), memory

    def weights(self, n_tasks: int, memory: Memory) -> FloatArray:
        """Return λ_b of the anchors, if terminals use it."""
        return np.ones(n_tasks)

    def work(self, memory: Memory) -> Work:
        """Return the work of the next anchors: steps of the method."""
        return ASCENT

    def passes(self, memory: Memory) -> int:
        """Return the number of passes that the current orders need, for policies that depend on it."""
        return 1


def mean_by_samples(models: FloatArray, n: FloatArray) -> FloatArray:
    """Return Σ_b n_b w_b/Σ_b n_b in the order of stations, or the plain mean if no station has samples."""
    weights = n if n.any() else np.ones(len(n))
    total = np.zeros(models.shape[1:])
    for model, weight in zip(models, weights.tolist(), strict=True):
        total += weight * model
    return np.asarray(total / weights.sum())


@dataclass(frozen=True)
class SgdMethod(Method):
    """A single model for all tasks, averaged by stations and cloud according to their samples.

    The step size of round k is ``step``/(1 + ``decay`` (k − 1)); ``lambda1`` is the weight of the model's norm. The
    models are certified for the problem of ``relationship``.
    """

    below: ClassVar[int] = 0
    """Number of matrices of model size below the slots; they travel to the cloud with the first slot."""

    lambda1: float = field(default=LAMBDA1, kw_only=True)
    relationship: Relationship = field(default_factory=MeanRegularised, kw_only=True)
    step: float = field(default=0.5, kw_only=True)
    decay: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """Raise ConfigError for step sizes that cannot work."""
        super().__post_init__()
        for name in ("lambda1", "step", "decay"):
            check_weight(name, getattr(self, name), positive=name == "step")

    def slots(self) -> Slots:
        """Return the objective of each slot."""
        return Slots(self.lambda1, np.zeros(1), np.zeros(1, dtype=np.int64), False, 0)

    def rows(self, columns: int) -> int:
        """Return the rows of all slots and of the matrices below them."""
        return (len(self.slots().mu) + self.below) * columns

    def shared_rows(self, columns: int) -> int:
        """Return the rows of the first slot and of the matrices below the slots."""
        return (1 + self.below) * columns

    def task_models(self, matrix: FloatArray, columns: int) -> FloatArray:
        """Return the models for predictions, of every station (station, column, feature)."""
        return matrix[:, :columns]

    def initial(self, columns: int, width: int) -> FloatArray:
        """Return the cloud's matrix before the first server iteration: its shared rows."""
        return np.zeros((self.shared_rows(columns), width))

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Take gradient steps; return n_t times the change of the matrix, summed by station."""
        return kernel.descend(self.loss, rows, layout, duals, orders, self.slots(), threads=threads)

    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """Return zeros: averaging leaves no separate share of a terminal."""
        return np.zeros((len(layout.order), self.rows(rows.y.shape[1]), width))

    def kept(self, delta: FloatArray, factor: float) -> FloatArray | None:
        """Return no change: terminals have no shares."""
        return None

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """Replace the shared rows by the cloud's models."""
        U = U.copy()
        U[: len(center)] = center
        return U

    def server(self) -> Server:
        """Return the rule by which the cloud combines the stations' models."""
        return Server()

    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """Return U itself."""
        return U

    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """Return U itself (the shared rows travel)."""
        return U

    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """Return the step size of the round."""
        return self.step / (1.0 + self.decay * (number - 1))

    def factor(self, arrived: Arrived) -> float:
        """Return the factor for the mean over the samples of the terminals that answered."""
        return 1.0 / arrived.samples
