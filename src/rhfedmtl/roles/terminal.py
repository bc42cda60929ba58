"""A terminal: owns its rows and their dual variables, takes coordinate steps when asked, and never shares either."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.scaling import Moments
from rhfedmtl.errors import DataError, PeerError, ProtocolError
from rhfedmtl.maths import rounds, sdca
from rhfedmtl.roles.messages import (
    Goodbye,
    Join,
    Leave,
    MomentsReport,
    Probe,
    Release,
    Scaling,
    Sums,
    Update,
    Vector,
    Verdict,
    WorkOrder,
)


class Phase(Enum):
    """Where a terminal stands: under no station, under one, or on its way out."""

    DETACHED = "detached"
    ATTACHED = "attached"
    LEAVING = "leaving"


@dataclass(frozen=True, eq=False)
class TerminalState:
    """All that a terminal must remember over a restart, besides its (scaled) rows.

    Save it before an update goes out: a terminal that goes on from before an update that was applied refuses to.
    """

    alpha: Vector
    pending: Vector
    update: Update | None
    last_round: int
    phase: Phase
    incarnation: int


class Terminal:
    """State machine of one terminal.

    An update stays pending until the station's next message says what became of it: applied with a factor, or
    dropped. A repeated order is answered with the same update, a stale one with nothing. A terminal that lost its
    state starts anew with a higher ``incarnation`` than its station knows.
    """

    def __init__(
        self,
        identity: int,
        X: npt.NDArray[np.floating[Any]],
        y: Vector,
        method: Method,
        *,
        seed: int = 0,
        weight: Vector | None = None,
        incarnation: int = 0,
    ) -> None:
        method.check_terminal(identity, X, y, weight)
        self.identity = identity
        self.method = method
        self.seed = seed
        self._X, self._y, self._weight = X, y, weight
        self._load_rows()
        self._duals = sdca.make_duals(self._rows)
        self._scaled = False
        self._last_round = 0
        self._update: Update | None = None
        self.phase = Phase.DETACHED
        self.incarnation = incarnation

    @property
    def n_samples(self) -> int:
        """Number of rows here."""
        return len(self._X)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows × features of what an order carries and an update answers."""
        return self.method.rows(self._y.shape[1]), self._X.shape[1] + self.method.intercept

    @property
    def last_round(self) -> int:
        """Round of the last order that was worked on."""
        return self._last_round

    @property
    def pending(self) -> Update | None:
        """The update whose fate is not known yet."""
        return self._update

    @property
    def state(self) -> TerminalState:
        """What to save."""
        duals = self._duals
        return TerminalState(
            duals.alpha.copy(), duals.pending.copy(), self._update, self._last_round, self.phase, self.incarnation
        )

    def restore(self, state: TerminalState) -> None:
        """Go on from saved state."""
        if state.alpha.shape != self._duals.alpha.shape:
            raise DataError(f"saved duals have shape {state.alpha.shape}, terminal {self.identity} has {self._y.shape}")
        self._duals = sdca.make_duals(self._rows)._replace(alpha=state.alpha.copy(), pending=state.pending.copy())
        self._update, self._last_round = state.update, state.last_round
        self.phase, self.incarnation = state.phase, state.incarnation

    def moments(self) -> MomentsReport:
        """Round zero: sums over training rows from which a common scaling is made."""
        moments = Moments.of(self._X)
        return MomentsReport(self.identity, moments.count, moments.mean, moments.spread)

    def scale(self, scaling: Scaling) -> None:
        """Round zero: scale the rows; only before any step was taken. Told again, it changes nothing."""
        if self._last_round or self._duals.alpha.any():
            raise ProtocolError(f"terminal {self.identity} has begun to learn: scaling comes before the first round")
        if self._scaled:
            return
        self._scaled = True
        self._X = scaling.scaler.transform(self._X)
        self._load_rows()

    def work(self, order: WorkOrder) -> Update | None:
        """H steps from the station's model; None where the order is stale."""
        self._check_order(order)
        if self._is_repeated(order):
            return self._update
        if not self._speaks_to_me(order.verdict) or order.round <= self._last_round:
            return None
        self._settle(order.verdict)
        self._update = self._ascend(order)
        self._last_round = order.round
        return self._update

    def probe(self, probe: Probe) -> Sums | None:
        """Loss sums under the given models, and the dual sum, with nothing left pending; None if stale."""
        needed = (self._y.shape[1], self.shape[1])
        if probe.models.ndim != 3 or probe.models.shape[1:] != needed or not np.isfinite(probe.models).all():
            raise PeerError(
                f"probe has models of shape {probe.models.shape}, terminal {self.identity} needs (any, *{needed}), "
                "all finite"
            )
        if probe.points.ndim != 2 or probe.points.shape[1] != len(probe.models) or not np.isfinite(probe.points).all():
            raise PeerError(
                f"probe has points of shape {probe.points.shape} for {len(probe.models)} models, or not finite"
            )
        if not self._speaks_to_me(probe.verdict):
            return None
        self._settle(probe.verdict)
        loss, models = self.method.loss, probe.models[:, None]
        losses, dual = sdca.run_sums(loss, self._rows, self._layout, self._duals, models, probe.points)
        gradient = sdca.run_gradients(loss, self._rows, self._layout, models[0]) if probe.gradient else np.empty((1, 0))
        return Sums(self.identity, probe.number, losses[0], dual[0], gradient[0])

    def join(self) -> Join:
        """Present this terminal to a station; the same again until the first order comes."""
        if self.phase is Phase.LEAVING or self._update is not None:
            raise ProtocolError(f"terminal {self.identity} is still bound to a station: it must leave it first")
        if self.phase is Phase.DETACHED:
            self.incarnation += 1
            self.phase = Phase.ATTACHED
            # Rounds are numbered by the station: another one may be behind the last.
            self._last_round = 0
        return Join(self.identity, self.incarnation, self.n_samples, self._share())

    def leave(self, release: Release) -> Leave | None:
        """Settle, and ask to go with all of one's duals; None if the release is stale."""
        if self.phase is Phase.ATTACHED and self._speaks_to_me(release.verdict):
            self._settle(release.verdict)
            self.phase = Phase.LEAVING
        if self.phase is not Phase.LEAVING:
            return None
        return Leave(self.identity, self.incarnation, self._share())

    def goodbye(self, goodbye: Goodbye) -> None:
        """Be free to join another station, or to take in rows."""
        if self.phase is Phase.LEAVING and goodbye.incarnation == self.incarnation:
            self.phase = Phase.DETACHED

    def abandon(self, verdict: Verdict | None = None) -> None:
        """Be free at once, with nothing pending: the station lost its memory, so that no sum holds this terminal.

        Or it has taken this terminal out, and its ``verdict`` still says what became of the update.
        """
        known = verdict is not None and verdict.incarnation == self.incarnation
        self._settle(verdict if verdict is not None and known else Verdict())
        self.phase = Phase.DETACHED

    def add_rows(self, X: npt.NDArray[np.floating[Any]], y: Vector, weight: Vector | None = None) -> None:
        """Take in new rows, scaled as the old ones, with duals at zero: u_t stays, the count grows."""
        if self.phase is not Phase.DETACHED:
            raise ProtocolError(
                f"terminal {self.identity} is {self.phase.value}: it takes in rows between two stations"
            )
        self.method.check_terminal(self.identity, X, y, weight)
        if X.shape[1] != self._X.shape[1] or y.shape[1] != self._y.shape[1]:
            raise DataError(
                f"new rows of terminal {self.identity} have {X.shape[1]} features and {y.shape[1]} columns of labels, "
                f"its old ones {self._X.shape[1]} and {self._y.shape[1]}"
            )
        old_weight = np.ones(self.n_samples) if self._weight is None else self._weight
        self._weight = np.concatenate([old_weight, np.ones(len(X)) if weight is None else weight])
        self._X, self._y = np.concatenate([self._X, X.astype(self._X.dtype)]), np.concatenate([self._y, y])
        old = self._duals.alpha
        self._load_rows()
        self._duals = sdca.make_duals(self._rows)
        self._duals.alpha[: len(old)] = old

    def _load_rows(self) -> None:
        self._rows = rounds.make_rows(
            self._X,
            self._y,
            np.array([0, len(self._X)]),
            ids=np.array([self.identity]),
            weight=self._weight,
            intercept=self.method.intercept,
        )
        self._layout = rounds.make_layout(np.zeros(1, dtype=np.int64), 1, self._rows.ids)

    def _check_order(self, order: WorkOrder) -> None:
        if order.model.shape != self.shape:
            raise PeerError(
                f"order has a model of shape {order.model.shape}, terminal {self.identity} needs {self.shape}"
            )
        if order.local_steps < 1 or not order.scale > 0.0 or not np.isfinite(order.model).all():
            raise PeerError(
                f"order of round {order.round} asks terminal {self.identity} for {order.local_steps} steps at scale "
                f"{order.scale}: steps must be at least 1, the scale positive, the model finite"
            )

    def _is_current(self, verdict: Verdict) -> bool:
        """Whether a message belongs to this membership."""
        return self.phase is Phase.ATTACHED and verdict.incarnation == self.incarnation

    def _is_repeated(self, order: WorkOrder) -> bool:
        """Whether this is the order that the pending update answers."""
        return self._is_current(order.verdict) and self._update is not None and order.round == self._update.round

    def _speaks_to_me(self, verdict: Verdict) -> bool:
        """Whether a message belongs to this membership and knows of the pending update."""
        if not self._is_current(verdict):
            return False
        if verdict.round > self._last_round:
            raise ProtocolError(
                f"the station applied an update of round {verdict.round}, but terminal {self.identity} remembers "
                f"nothing after round {self._last_round}: its state was lost, start it anew with incarnation "
                f"{self.incarnation}"
            )
        return self._update is None or verdict.until >= self._update.round

    def _settle(self, verdict: Verdict) -> None:
        """Apply what became of the pending update; nothing is pending afterwards."""
        if self._update is not None:
            self._duals.settle[0] = verdict.factor if verdict.round == self._update.round else 0.0
            sdca.settle(self._rows, self._layout, self._duals)
            self._update = None

    def _ascend(self, order: WorkOrder) -> Update:
        with np.errstate(over="ignore"):  # the station refuses what comes of a model too large for single precision
            model = order.model[None].astype(self._X.dtype)
        orders = rounds.Orders(
            model,
            np.array([order.scale]),
            np.array([order.local_steps]),
            np.uint64(self.seed),
            np.uint64(order.round),
            self.method.uniform,
        )
        answers = self.method.work(self._rows, self._layout, self._duals, orders)
        return Update(order.round, self.identity, answers.delta[0], answers.gains[0], answers.lines[0])

    def _share(self) -> Vector:
        shares = self.method.shares(self._rows, self._layout, self._duals, self.shape[1])
        return np.asarray(shares[0])
