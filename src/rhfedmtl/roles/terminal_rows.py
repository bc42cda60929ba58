"""Rows, dual variables and residual of a terminal, and the kernel that works on them.

`roles.terminal` decides when to work; this module computes. It knows no verdicts and no membership, and nothing here
leaves the terminal unless `Terminal` puts it into a message.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.errors import DataError, PeerError
from rhfedmtl.maths.kernels import rounds
from rhfedmtl.maths.kernels.kernel import Kernel, gradients
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.roles.channel import settled
from rhfedmtl.roles.messages import Update, Vector, WorkOrder


class TerminalRows:
    """Rows X_t, labels, weights and dual variables α_t of a terminal; with the residual of a rounding channel.

    Parameters
    ----------
    identity : int
        Id of the terminal, part of the address of all random draws.
    X, y, weight : arrays
        Rows, label columns, and weights if the rows have any.
    method : Method
        Method of the training.
    kernel : Kernel
        Implementation of the local steps.
    """

    def __init__(
        self,
        identity: int,
        X: npt.NDArray[np.floating[Any]],
        y: Vector,
        weight: Vector | None,
        method: Method,
        kernel: Kernel,
    ) -> None:
        method.check_terminal(identity, X, y, weight)
        self.identity, self.method, self.kernel = identity, method, kernel
        self.X, self.y, self.weight = X, y, weight
        self.width = method.width(X.shape[1])
        self.constant, self.radius = 1.0, math.inf  # the intercept's feature; the norm of the longest row, if known
        self._load()
        self.duals = rounds.make_duals(self._rows)
        self.residual: Vector | None
        self.sent_residual: Vector | None
        self.clear_residual()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows × features of the model in an order, and of an update."""
        return self.method.rows(self.y.shape[1]), self.width

    def _load(self) -> None:
        self._rows = rounds.make_rows(
            self.X,
            self.y,
            np.array([0, len(self.X)]),
            ids=np.array([self.identity]),
            weight=self.weight,
            constant=self.constant * self.method.intercept,
        )
        self._layout = rounds.make_layout(np.zeros(1, dtype=np.int64), 1, self._rows.ids)

    def restore(self, alpha: Vector, pending: Vector) -> None:
        """Take these dual variables, and their pending change."""
        self.duals = rounds.make_duals(self._rows)._replace(alpha=alpha.copy(), pending=pending.copy())

    def scale(self, scaler: Scaler) -> None:
        """Scale all rows."""
        self.X = scaler.transform(self.X)
        self.constant = scaler.constant(self.X.shape[1])
        self.radius = scaler.radius(self.shape[1], intercept=self.method.intercept)
        self._load()

    def check_mapped(self) -> None:
        """Refuse to compute with a model of mapped rows before the map has come."""
        if self.X.shape[1] + self.method.intercept != self.width:
            raise PeerError(
                f"terminal {self.identity} learns behind {self.method.features.text!r}: the feature map comes first"
            )

    def centre(self, level: float) -> None:
        """Subtract the level of the task from all labels."""
        self.y = self.y - level
        self._load()

    def append(self, X: npt.NDArray[np.floating[Any]], y: Vector, weight: Vector | None) -> None:
        """Add rows with dual variables at zero: u_t does not change, the number of samples grows."""
        self.method.check_terminal(self.identity, X, y, weight)
        if X.shape[1] != self.X.shape[1] or y.shape[1] != self.y.shape[1]:
            raise DataError(
                f"new rows of terminal {self.identity} have {X.shape[1]} features and {y.shape[1]} columns of labels, "
                f"its old ones {self.X.shape[1]} and {self.y.shape[1]}"
            )
        old_weight = np.ones(len(self.X)) if self.weight is None else self.weight
        self.weight = np.concatenate([old_weight, np.ones(len(X)) if weight is None else weight])
        self.X, self.y = np.concatenate([self.X, X.astype(self.X.dtype)]), np.concatenate([self.y, y])
        old = self.duals.alpha
        self._load()
        self.duals = rounds.make_duals(self._rows)
        self.duals.alpha[: len(old)] = old

    def clear_residual(self) -> None:
        """Set the residual to zero, if the channel has one."""
        self.residual = np.zeros(self.shape) if self.method.channel.keeps_residual else None
        self.sent_residual = None

    def share(self) -> Vector:
        """Return u_t = X_tᵀα_t."""
        shares = self.method.shares(self.kernel, self._rows, self._layout, self.duals, self.shape[1])
        return np.asarray(shares[0])

    def sent_share(self) -> Vector:
        """Return the part of u_t that the station has: u_t without the residual."""
        residual = None if self.residual is None else self.method.kept(self.residual, 1.0)
        return self.share() if residual is None else self.share() - residual

    def settle(self, factor: float) -> None:
        """Apply the pending change with this factor, to the dual variables and to the residual."""
        self.duals.settle[0] = factor
        self.kernel.settle(self._rows, self._layout, self.duals)
        if self.residual is not None and self.sent_residual is not None:
            self.residual = settled(self.residual, self.sent_residual, factor)
        self.sent_residual = None

    def work(self, order: WorkOrder, seed: np.uint64) -> Update:
        """Take the steps of an order, and return the update as the channel sends it.

        A factor of the channel also applies to the pending change of the dual variables.
        """
        with np.errstate(over="ignore"):  # the station refuses the result of a model too large for single precision
            model = order.model[None].astype(self.X.dtype)
        orders = rounds.Orders(
            model,
            np.array([order.scale]),
            np.array([order.local_steps]),
            seed,
            np.uint64(order.round),
            self.method.uniform,
            np.array([order.work == GRADIENT]),
        )
        method, local = self.method, (self._rows, self._layout, self.duals)
        answers = method.work(self.kernel, *local, orders)
        channel = method.channel.for_gradients if order.work == GRADIENT else method.channel
        delta, factor, residual = channel.send(answers.delta, None if self.residual is None else self.residual[None])
        profile = answers.profile
        if factor[0] < 1.0:
            self.duals.pending[:] *= factor[0]
            profile = method.profiles(self.kernel, *local)
        self.sent_residual = None if residual is None else residual[0]
        gains = method.channel.counted(answers.gains)[0] * method.channel.tells_gains
        profile = method.sent_profile(profile)
        return Update(order.round, self.identity, delta[0], gains, profile[0], channel.dtype)

    def sums(self, models: Vector, points: Vector) -> tuple[Vector, Vector]:
        """Return the losses at combinations of models (m, columns, features), and the dual terms."""
        duals = self.duals if self.method.has_duals else rounds.make_duals(self._rows)
        losses, dual = self.kernel.sums(self.method.loss, self._rows, self._layout, duals, models[:, None], points)
        return losses[0], dual[0]

    def gradient(self, model: Vector) -> Vector:
        """Return −Σ s L′(z) x under a model."""
        slope = gradients(self.kernel, self.method.loss, self._rows, self._layout, model[None])
        return np.asarray(slope[0])
