"""Methods that learn by stochastic gradient steps on the same three tiers: stations and cloud average models.

U_b is the matrix of models itself. A method is a subclass that says which slots there are, what each minimises, and
which of them the cloud averages.
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
    """What the cloud makes of the stations' models, which it sends next: here their mean by samples, for all.

    What a server must remember from one server iteration to the next is handed in and out. ``personal`` says that a
    task is predicted with what its station holds, not with what the cloud sends next.
    """

    personal: ClassVar[bool] = False

    def begin(self, initial: FloatArray) -> Memory:
        """Memory before the first server iteration, for models (station, row, feature)."""
        return ()

    def step(self, sent: FloatArray, told: FloatArray, n: FloatArray, memory: Memory) -> tuple[FloatArray, Memory]:
        """Models to send next, from those sent last and what stations of n samples told; and the memory."""
        return np.broadcast_to(mean_by_samples(told, n), told.shape), memory

    def weights(self, n_tasks: int, memory: Memory) -> FloatArray:
        """λ_b of the anchors, where terminals are told anything by it."""
        return np.ones(n_tasks)

    def work(self, memory: Memory) -> Work:
        """Return the work of the next anchors: steps of the method."""
        return ASCENT

    def passes(self, memory: Memory) -> int:
        """Passes over the rows that what is sent now asks for, where a policy goes by that."""
        return 1


def mean_by_samples(models: FloatArray, n: FloatArray) -> FloatArray:
    """Σ_b n_b w_b/Σ_b n_b, in the order of stations; the plain mean where nobody has samples."""
    weights = n if n.any() else np.ones(len(n))
    total = np.zeros(models.shape[1:])
    for model, weight in zip(models, weights.tolist(), strict=True):
        total += weight * model
    return np.asarray(total / weights.sum())


@dataclass(frozen=True)
class SgdMethod(Method):
    """One model for all tasks, averaged by stations and cloud by their samples.

    The step size of round k is ``step``/(1 + ``decay`` (k − 1)); ``lambda1`` is the weight of the model's norm.
    ``relationship`` is that of the problem for which the models are certified.
    """

    below: ClassVar[int] = 0
    """Matrices of the size of a model that stand below the slots, and travel to the cloud with the first of them."""

    lambda1: float = field(default=LAMBDA1, kw_only=True)
    relationship: Relationship = field(default_factory=MeanRegularised, kw_only=True)
    step: float = field(default=0.5, kw_only=True)
    decay: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse step sizes that cannot work."""
        super().__post_init__()
        for name in ("lambda1", "step", "decay"):
            check_weight(name, getattr(self, name), positive=name == "step")

    def slots(self) -> Slots:
        """What each slot minimises."""
        return Slots(self.lambda1, np.zeros(1), np.zeros(1, dtype=np.int64), False, 0)

    def rows(self, columns: int) -> int:
        """All slots, one below the other."""
        return (len(self.slots().mu) + self.below) * columns

    def shared_rows(self, columns: int) -> int:
        """The first slot, and what stands below it."""
        return (1 + self.below) * columns

    def task_models(self, matrix: FloatArray, columns: int) -> FloatArray:
        """Models to predict with, of every station (station, column, feature)."""
        return matrix[:, :columns]

    def initial(self, columns: int, width: int) -> FloatArray:
        """Matrix of the cloud before the first server iteration: its shared rows."""
        return np.zeros((self.shared_rows(columns), width))

    def work(
        self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, orders: Orders, threads: int = 1
    ) -> Answers:
        """Gradient steps: n_t times the change of the matrix."""
        return kernel.descend(self.loss, rows, layout, duals, orders, self.slots(), threads=threads)

    def shares(self, kernel: Kernel, rows: Rows, layout: Layout, duals: Duals, width: int) -> FloatArray:
        """Nothing of a terminal stays in a model apart from the others: it takes nothing with it."""
        return np.zeros((len(layout.order), self.rows(rows.y.shape[1]), width))

    def kept(self, delta: FloatArray, factor: float) -> FloatArray | None:
        """Nothing."""
        return None

    def start(self, U: FloatArray, n: Any, center: FloatArray) -> FloatArray:
        """The cloud's models replace the shared rows."""
        U = U.copy()
        U[: len(center)] = center
        return U

    def server(self) -> Server:
        """What the cloud makes of the stations' models."""
        return Server()

    def model(self, U: FloatArray, n: Any, center: FloatArray, lam: Any, origin: Any = 0.0) -> FloatArray:
        """U itself."""
        return U

    def report(self, U: FloatArray, n: Any) -> FloatArray:
        """U itself (of which the shared rows travel)."""
        return U

    def scale(self, lam: float, n: float, members: int, number: int) -> float:
        """Step size of the round."""
        return self.step / (1.0 + self.decay * (number - 1))

    def factor(self, arrived: Arrived) -> float:
        """Mean over the samples of those who answered."""
        return 1.0 / arrived.samples
