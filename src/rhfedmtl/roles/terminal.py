"""A terminal owns rows and their dual variables, and works on the orders of its station.

It makes and reads messages; an engine or a service carries them. Rows and dual variables never leave it.

**Theory of operation.** An order carries the model w_b, the number H of local steps, and the verdict on the last
update.

1. `Terminal.work` first settles the pending update with the verdict: α_t ← α_t + η Δα_t, with η = 0 if the station
   dropped the update.
2. It takes H coordinate steps on its rows from w_b. The change Δα_t stays pending, and X_tᵀΔα_t goes to the station.
3. The next message from the station brings the verdict on this update.

So the terminal's α_t and the station's U_b agree, although messages may be late, repeated or lost: a repeated order
gets the same update again, and a stale message gets no answer. A probe (`Terminal.probe`) settles in the same way and
returns sums of losses for a certificate.

A terminal may restart at any time: save `Terminal.state` before an update is sent. After a loss of state it joins again
with a higher ``incarnation``. `roles.terminal_rows` does the computing.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.centring import label_sums
from rhfedmtl.data.scaling import Moments, RowMap
from rhfedmtl.errors import DataError, PeerError, ProtocolError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.maths.kernels.kernel import Kernel, find_kernel
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.quasi_newton import WORKS
from rhfedmtl.roles.channel import kept_back, with_noise
from rhfedmtl.roles.messages import (
    Centring,
    Goodbye,
    Join,
    LabelsReport,
    Leave,
    MomentsReport,
    Noising,
    Probe,
    Release,
    RowProbe,
    Scaling,
    Sums,
    Update,
    Vector,
    Verdict,
    WorkOrder,
    unknown_work,
)
from rhfedmtl.roles.round_zero import Spreads, check_mapping, check_scaling
from rhfedmtl.roles.states import StateMachine, Table, frozen
from rhfedmtl.roles.terminal_rows import TerminalRows

_NONE = np.empty(0)


class Phase(Enum):
    """State of a terminal: under no station, attached, attached with an update pending, or leaving."""

    DETACHED = "detached"
    ATTACHED = "attached"
    PENDING = "pending"
    LEAVING = "leaving"


TERMINAL: Table[Phase] = frozen(
    {
        Phase.DETACHED: {
            Scaling: Phase.DETACHED,
            "new rows": Phase.DETACHED,
            Join: Phase.ATTACHED,
            WorkOrder: Phase.DETACHED,
            Probe: Phase.DETACHED,
            Release: Phase.DETACHED,
            Goodbye: Phase.DETACHED,
            "abandon": Phase.DETACHED,
        },
        Phase.ATTACHED: {
            Scaling: Phase.ATTACHED,
            Join: Phase.ATTACHED,
            WorkOrder: Phase.PENDING,
            Probe: Phase.ATTACHED,
            Release: Phase.LEAVING,
            Goodbye: Phase.ATTACHED,
            "abandon": Phase.DETACHED,
        },
        Phase.PENDING: {
            WorkOrder: Phase.PENDING,
            Probe: Phase.ATTACHED,
            Release: Phase.LEAVING,
            Goodbye: Phase.PENDING,
            "abandon": Phase.DETACHED,
        },
        Phase.LEAVING: {
            Scaling: Phase.LEAVING,
            WorkOrder: Phase.LEAVING,
            Probe: Phase.LEAVING,
            Release: Phase.LEAVING,
            Goodbye: Phase.DETACHED,
            "abandon": Phase.DETACHED,
        },
    }
)


class OldStateError(ProtocolError):
    """The station applied an update that this terminal does not know: its state was restored from an old copy."""


@dataclass(frozen=True, eq=False)
class TerminalState:
    """State of a terminal that must survive a restart, besides its (scaled) rows.

    Save it before an update is sent: a terminal that restarts from a state before an applied update has to join again.
    ``residual`` belongs to a rounding channel. ``sent_residual`` is its next value if the pending update is applied
    with factor 1.
    """

    alpha: Vector
    pending: Vector
    update: Update | None
    last_round: int
    phase: Phase
    incarnation: int
    residual: Vector | None = None
    sent_residual: Vector | None = None


class Terminal:
    """State machine of a terminal, by the table ``TERMINAL``.

    Parameters
    ----------
    identity : int
        Id of the terminal.
    X, y, weight : arrays
        Rows, label columns, and weights if the rows have any.
    method : Method
        Method of the training.
    seed : int or bytes
        Address of the order of rows: a number that others may know, as in simulations, or a secret of at least 16
        bytes.
    incarnation : int
        Number of joins so far.
    kernel : Kernel, optional
        Implementation of the local steps; by default the fastest that is installed.
    """

    def __init__(
        self,
        identity: int,
        X: npt.NDArray[np.floating[Any]],
        y: Vector,
        method: Method,
        *,
        seed: int | bytes = 0,
        weight: Vector | None = None,
        incarnation: int = 0,
        kernel: Kernel | None = None,
    ) -> None:
        self.identity = identity
        self.method = method
        self.seed = seed
        self.rows = TerminalRows(identity, X, y, weight, method, find_kernel() if kernel is None else kernel)
        self._scaled = self._centred = False
        self.last_round = 0  # of the last order that was worked on
        self.pending: Update | None = None  # the update without a verdict
        self.history = b""
        """Digest of the applied updates and their factors, since the last join."""
        self._states = StateMachine(f"terminal {identity}", TERMINAL, Phase.DETACHED)
        self.incarnation = incarnation

    @property
    def phase(self) -> Phase:
        """Current state."""
        return self._states.state

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return len(self.rows.X)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows × features of the model in an order, and of an update."""
        return self.rows.shape

    @property
    def is_member(self) -> bool:
        """True if the terminal is under a station that may send it orders."""
        return self.phase in (Phase.ATTACHED, Phase.PENDING)

    @property
    def state(self) -> TerminalState:
        """State to save."""
        return TerminalState(
            self.rows.duals.alpha.copy(),
            self.rows.duals.pending.copy(),
            self.pending,
            self.last_round,
            self.phase,
            self.incarnation,
            self.rows.residual,
            self.rows.sent_residual,
        )

    def restore(self, state: TerminalState) -> None:
        """Continue from saved state."""
        rows = self.rows
        if state.alpha.shape != rows.duals.alpha.shape:
            raise DataError(f"saved duals have shape {state.alpha.shape}, terminal {self.identity} has {rows.y.shape}")
        rows.restore(state.alpha, state.pending)
        self.pending, self.last_round, self.incarnation = state.update, state.last_round, state.incarnation
        self._states.state = state.phase if state.update is None else Phase.PENDING
        rows.clear_residual()
        if state.residual is not None:
            rows.residual, rows.sent_residual = state.residual, state.sent_residual

    def moments(self, mapping: RowMap | None = None) -> MomentsReport:
        """Round zero: return count, mean and spread of the training rows, as the mapping makes them."""
        if mapping is not None:
            check_mapping(self.identity, self.method.features, self.rows.X.shape[1], mapping, mapped=self._scaled)
        moments = Moments.of(self.rows.X) if mapping is None else mapping.moments(self.rows.X)
        return MomentsReport.of(self.identity, moments, self.method.channel.moments_dtype)

    def scale(self, scaling: Scaling) -> None:
        """Round zero: scale the rows before the first step. A repeated call changes nothing."""
        if self.last_round or self.rows.duals.alpha.any():
            raise ProtocolError(f"terminal {self.identity} has begun to learn: scaling comes before the first round")
        if not self._scaled:
            check_scaling(self.identity, self.method.features, self.rows.X.shape[1], scaling)
        self._states.enter(Scaling)
        if not self._scaled:
            self._scaled = True
            self.rows.scale(scaling.scaler)

    def labels(self) -> LabelsReport:
        """Round zero of a regression: return the sums over labels that give the level of the task."""
        rows = self.rows
        return LabelsReport(self.identity, label_sums(rows.y[:, 0], rows.weight, [0, self.n_samples], [0, 1])[0])

    def row_sums(self, request: RowProbe) -> Vector:
        """Round zero, if sums are masked: return the terminal's part of a sum over rows, or over labels."""
        if request.labels:
            spreads = Spreads.of_labels(self.labels().sums)
        else:
            spreads = Spreads.of_moments([self.moments(request.row_map)])
        if request.about.shape not in ((0,), spreads.mean[0].shape):
            raise PeerError(
                f"sums about a mean of shape {request.about.shape}: terminal {self.identity} has "
                f"{spreads.mean[0].shape}"
            )
        return np.asarray(spreads.terms(request.about)[0])

    def centre(self, centring: Centring) -> None:
        """Round zero of a regression: subtract the level of the task. A repeated call changes nothing."""
        if self.last_round or self.rows.duals.alpha.any():
            raise ProtocolError(f"terminal {self.identity} has begun to learn: centring comes before the first round")
        if not self._centred:
            self._centred = True
            self.rows.centre(centring.level)

    def work(self, order: WorkOrder) -> Update | None:
        """Take H steps from the order's model, and return the update, unless the order is stale.

        A repeated order returns the pending update again.
        """
        self.rows.check_mapped()
        after = self._states.after(WorkOrder)
        if order.model.shape != self.shape:
            raise PeerError(
                f"order has a model of shape {order.model.shape}, terminal {self.identity} needs {self.shape}"
            )
        if order.work not in WORKS:
            raise unknown_work(f"order of round {order.round} for terminal {self.identity}", order.work)
        if order.local_steps < 1 or not 0.0 < order.scale < math.inf or not np.isfinite(order.model).all():
            raise PeerError(
                f"order of round {order.round} asks terminal {self.identity} for {order.local_steps} steps at scale "
                f"{order.scale}: steps must be at least 1, the scale finite and positive, the model finite"
            )
        current = self.is_member and order.verdict.incarnation == self.incarnation
        if current and self.pending is not None and order.round == self.pending.round:
            return self.pending
        if not self._is_current(order.verdict) or order.round <= self.last_round:
            return None
        self._settle(order.verdict)
        self.pending = self.rows.work(order, round_seed(self.seed, self.incarnation, order.round))
        self.last_round, self._states.state = order.round, after
        return self.pending

    def probe(self, probe: Probe) -> Sums | None:
        """Settle, and return loss sums under the probe's models and the dual sum, unless the probe is stale."""
        self.rows.check_mapped()
        after, needed = self._states.after(Probe), (self.rows.y.shape[1], self.shape[1])
        if probe.models.ndim != 3 or probe.models.shape[1:] != needed or not np.isfinite(probe.models).all():
            raise PeerError(
                f"probe has models of shape {probe.models.shape}, terminal {self.identity} needs (any, *{needed}), "
                "all finite"
            )
        if probe.points.ndim != 2 or probe.points.shape[1] != len(probe.models) or not np.isfinite(probe.points).all():
            raise PeerError(
                f"probe has points of shape {probe.points.shape} for {len(probe.models)} models, or not finite"
            )
        if not self._is_current(probe.verdict):
            return None
        self._settle(probe.verdict)
        self._states.state = after
        losses, dual = self.rows.sums(probe.models, probe.points)
        counted = self.method.channel.counted
        if probe.noise is not None:
            term = losses - dual_sums(dual[None]) + float((probe.models[0] * self.rows.share()).sum())
            return Sums(self.identity, probe.number, counted(term), _NONE, _NONE)
        slope = self.rows.gradient(probe.models[0]) if probe.gradient else _NONE
        residual = None
        if self.rows.residual is not None and self.method.tells_residual:
            residual = np.asarray(counted(kept_back(self.rows.residual[None], probe.models[:, None]))[0])
        return Sums(self.identity, probe.number, counted(losses), counted(dual), counted(slope), residual)

    def certificate_price(self, probe: Probe) -> float:
        """Return the privacy loss μ² of an answer to a noised probe: (n_t τ/s)², for rows of unit norm."""
        radius = self.rows.radius
        if math.isinf(radius) or probe.noise is None or not probe.noise > 0.0:
            return math.inf
        ratio = self.n_samples * largest_terms(self.method.loss, probe.models[0], radius) / probe.noise
        return ratio * ratio

    def hide(self, noising: Noising) -> None:
        """Clip updates from now on; the station, or the terminal's service before the mask, adds the noise.

        A repeated call changes nothing.
        """
        if self.rows.weight is not None:
            raise PeerError(f"terminal {self.identity} has row weights, and privacy counts each row once")
        if self.last_round and not self.method.channel.noised:
            raise ProtocolError(f"terminal {self.identity} has told updates without noise: noise comes before them")
        self.method = self.method.hidden(with_noise(self.method.channel, noising.clip, noising.noise))
        self.rows.method = self.method

    def join(self) -> Join:
        """Return the message that presents this terminal to a station; the same again until the first order."""
        after = self._states.after(Join)
        if self.phase is Phase.DETACHED:
            self.incarnation += 1
            # Each station numbers its own rounds, so another station may be behind the last round. The share that it
            # gets is exact.
            self.last_round = 0
            self.rows.clear_residual()
            self.history = b""
        self._states.state = after
        weight = self.rows.weight
        mean = 1.0 if weight is None else max(float(weight.mean()), 1e-300)  # 0 would mean: no weights
        return Join(self.identity, self.incarnation, self.n_samples, self.rows.share(), mean)

    def kept_share(self, verdict: Verdict) -> Vector | None:
        """Settle, and return the station's part of u_t, as this terminal stays while others leave."""
        after = self._states.after(Probe)
        if not self._is_current(verdict):
            return None
        self._settle(verdict)
        self._states.state = after
        return np.ravel(self.rows.sent_share())

    def leave(self, release: Release) -> Leave | None:
        """Settle, and ask to leave with all dual variables, unless the release is stale."""
        after = self._states.after(Release)
        if self._is_current(release.verdict):
            self._settle(release.verdict)
            self._states.state = after
        if self.phase is not Phase.LEAVING:
            return None
        return Leave(self.identity, self.incarnation, self.rows.sent_share())

    def goodbye(self, goodbye: Goodbye) -> None:
        """Become free to join another station, or to take in rows."""
        if goodbye.incarnation == self.incarnation:
            self._states.enter(Goodbye)

    def abandon(self, verdict: Verdict | None = None) -> None:
        """Become free at once, with nothing pending, because no sum holds this terminal's share.

        Either the station lost its state, or it has removed this terminal; its ``verdict`` then still settles the
        pending update.
        """
        valid = verdict is not None and verdict.incarnation == self.incarnation
        self._settle(verdict if verdict is not None and valid else Verdict())
        self._states.enter("abandon")

    def fall_back(self, incarnation: int = 0) -> None:
        """Become free to join as a newcomer with the current dual variables; even an old copy of them is a valid start.

        ``incarnation`` is the highest that the station knows. The share of the next join replaces the one that the
        station stores.
        """
        self.abandon()
        self.incarnation = max(self.incarnation, incarnation)

    def add_rows(self, X: npt.NDArray[np.floating[Any]], y: Vector, weight: Vector | None = None) -> None:
        """Take in new rows, scaled like the old rows, with dual variables at zero."""
        after = self._states.after("new rows")
        self.rows.append(X, y, weight)
        self._states.state = after

    def _is_current(self, verdict: Verdict) -> bool:
        """Return True if a message is of this membership and accounts for the pending update."""
        if not (self.is_member and verdict.incarnation == self.incarnation):
            return False
        if verdict.round > self.last_round:
            raise OldStateError(
                f"the station applied an update of round {verdict.round}, but terminal {self.identity} remembers "
                f"nothing after round {self.last_round}: its state was put back from an old copy, let it join again"
            )
        return self.pending is None or verdict.until >= self.pending.round

    def _settle(self, verdict: Verdict) -> None:
        """Apply the verdict to the pending update; nothing is pending afterwards."""
        if self.pending is not None:
            applied = verdict.factor if verdict.round == self.pending.round else 0.0
            if self.method.channel.noised and not 0.0 <= applied <= 1.0:
                raise PeerError(
                    f"an update of terminal {self.identity} applied with factor {applied}: where sums are noised it is "
                    "from 0 to 1, as more would make answers longer than the bound that the noise hides"
                )
            if applied:
                history = self.history + struct.pack("<Qd", self.pending.round, applied)
                self.history = hashlib.sha256(history).digest()
            self.rows.settle(self.method.settled(applied))
            self.pending = None


def round_seed(seed: int | bytes, incarnation: int, number: int) -> np.uint64:
    """Return the seed of a round's draws.

    A secret gives every round of every membership its own seed, and this seed reveals nothing about the others.
    """
    if isinstance(seed, int):
        return np.uint64(seed)
    address = struct.pack("<QQ", incarnation, number)
    return np.uint64(int.from_bytes(hashlib.blake2b(address, key=seed, digest_size=8).digest(), "little"))
