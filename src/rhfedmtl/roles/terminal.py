"""A terminal: owns its rows and their dual variables, takes coordinate steps when asked, and never shares either."""

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
from rhfedmtl.data.scaling import Moments
from rhfedmtl.errors import DataError, PeerError, ProtocolError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.maths.kernels import rounds
from rhfedmtl.maths.kernels.kernel import Kernel, find_kernel, gradients
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.quasi_newton import GRADIENT, WORKS
from rhfedmtl.roles.channel import kept_back, settled, with_noise
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
from rhfedmtl.roles.round_zero import Spreads
from rhfedmtl.roles.states import Event, Table, follow, frozen

_NONE = np.empty(0)


class Phase(Enum):
    """Where a terminal stands: under no station, under one, the same with an update pending, or on its way out."""

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
    """The station applied an update that this terminal has forgotten: its state was put back from an old copy."""


@dataclass(frozen=True, eq=False)
class TerminalState:
    """All that a terminal must remember over a restart, besides its (scaled) rows.

    Save it before an update goes out: one that goes on from before an update that was applied has to join again.
    ``residual`` is what its channel has kept back, ``sent_residual`` what it will have if the pending update is applied
    wholly; None where the channel keeps nothing back.
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
    """State machine of one terminal, by the table ``TERMINAL``.

    An update stays pending until the station's next message says what became of it: applied with a factor, or
    dropped. A repeated order is answered with the same update, a stale one with nothing. A terminal that lost its
    state starts anew with a higher ``incarnation`` than its station knows. ``kernel`` does its work: the best one that
    is installed, unless given. ``seed`` addresses the order of rows: a number that others may know, as in simulations,
    or a secret of at least 16 bytes.
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
        method.check_terminal(identity, X, y, weight)
        self.identity = identity
        self.method = method
        self.seed = seed
        self._kernel = find_kernel() if kernel is None else kernel
        self._X, self._y, self._weight = X, y, weight
        self._constant, self._radius = 1.0, math.inf
        self._load_rows()
        self._duals = rounds.make_duals(self._rows)
        self._scaled = self._centred = False
        self.last_round = 0  # of the last order that was worked on
        self.pending: Update | None = None  # the update whose fate is not known yet
        self.history = b""
        """Digest of which updates were applied, with which factors, since it joined."""
        self.phase = Phase.DETACHED
        self.incarnation = incarnation
        self._residual: Vector | None
        self._sent_residual: Vector | None
        self._clear_residual()

    @property
    def n_samples(self) -> int:
        """Number of rows here."""
        return len(self._X)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows × features of what an order carries and an update answers."""
        return self.method.rows(self._y.shape[1]), self._X.shape[1] + self.method.intercept

    @property
    def is_member(self) -> bool:
        """Whether a station has this terminal in its sum, as far as it knows, and may ask it for work."""
        return self.phase in (Phase.ATTACHED, Phase.PENDING)

    @property
    def state(self) -> TerminalState:
        """What to save."""
        return TerminalState(
            self._duals.alpha.copy(),
            self._duals.pending.copy(),
            self.pending,
            self.last_round,
            self.phase,
            self.incarnation,
            self._residual,
            self._sent_residual,
        )

    def restore(self, state: TerminalState) -> None:
        """Go on from saved state."""
        if state.alpha.shape != self._duals.alpha.shape:
            raise DataError(f"saved duals have shape {state.alpha.shape}, terminal {self.identity} has {self._y.shape}")
        self._duals = rounds.make_duals(self._rows)._replace(alpha=state.alpha.copy(), pending=state.pending.copy())
        self.pending, self.last_round, self.incarnation = state.update, state.last_round, state.incarnation
        self.phase = state.phase if state.update is None else Phase.PENDING
        self._clear_residual()
        if state.residual is not None:
            self._residual, self._sent_residual = state.residual, state.sent_residual

    def moments(self) -> MomentsReport:
        """Round zero: sums over training rows from which a common scaling is made."""
        return MomentsReport.of(self.identity, Moments.of(self._X), self.method.channel.moments_dtype)

    def scale(self, scaling: Scaling) -> None:
        """Round zero: scale the rows; only before any step was taken. Told again, it changes nothing."""
        if self.last_round or self._duals.alpha.any():
            raise ProtocolError(f"terminal {self.identity} has begun to learn: scaling comes before the first round")
        self.phase = self._after(Scaling)
        if self._scaled:
            return
        self._scaled, scaler = True, scaling.scaler
        self._constant = scaler.constant(self._X.shape[1])
        self._radius = scaler.radius(self.shape[1], intercept=self.method.intercept)
        self._X = scaler.transform(self._X)
        self._load_rows()

    def labels(self) -> LabelsReport:
        """Round zero of a regression: sums over labels from which the level of the task is made."""
        return LabelsReport(self.identity, label_sums(self._y[:, 0], self._weight, [0, self.n_samples], [0, 1])[0])

    def row_sums(self, asked: RowProbe) -> Vector:
        """Round zero where sums are masked: its part of a sum over rows, or over labels."""
        own = Spreads.of_labels(self.labels().sums) if asked.labels else Spreads.of_moments([self.moments()])
        if asked.about.shape not in ((0,), own.mean[0].shape):
            raise PeerError(
                f"sums about a mean of shape {asked.about.shape}: terminal {self.identity} has {own.mean[0].shape}"
            )
        return np.asarray(own.told(asked.about)[0])

    def kept_share(self, verdict: Verdict) -> Vector | None:
        """What the station has of this terminal, where others go and it stays; None if stale."""
        after = self._after(Probe)
        if not self._speaks_to_me(verdict):
            return None
        self._settle(verdict)
        self.phase = after
        return np.ravel(self._held_share())

    def centre(self, centring: Centring) -> None:
        """Round zero of a regression: subtract the level of the task. Told again, it changes nothing."""
        if self.last_round or self._duals.alpha.any():
            raise ProtocolError(f"terminal {self.identity} has begun to learn: centring comes before the first round")
        if not self._centred:
            self._centred = True
            self._y = self._y - centring.level
            self._load_rows()

    def work(self, order: WorkOrder) -> Update | None:
        """H steps from the station's model; None where the order is stale."""
        after = self._after(WorkOrder)
        self._check_order(order)
        if self._is_repeated(order):
            return self.pending
        if not self._speaks_to_me(order.verdict) or order.round <= self.last_round:
            return None
        self._settle(order.verdict)
        self.pending = self._make_update(order)
        self.last_round, self.phase = order.round, after
        return self.pending

    def probe(self, probe: Probe) -> Sums | None:
        """Loss sums under the given models, and the dual sum, with nothing left pending; None if stale."""
        after, needed = self._after(Probe), (self._y.shape[1], self.shape[1])
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
        self.phase, models = after, probe.models[:, None]
        work = self.method.loss, self._rows, self._layout
        duals = self._duals if self.method.has_duals else rounds.make_duals(self._rows)
        losses, dual = self._kernel.sums(*work, duals, models, probe.points)
        if probe.noise is not None:
            term = losses[0] - dual_sums(dual) + float((probe.models[0] * self._share()).sum())
            return Sums(self.identity, probe.number, self.method.channel.counted(term), _NONE, _NONE)
        slope = gradients(self._kernel, *work, models[0]) if probe.gradient else np.empty((1, 0))
        losses, dual, slope = (self.method.channel.counted(part) for part in (losses, dual, slope))
        return Sums(self.identity, probe.number, losses[0], dual[0], slope[0], self._kept_back(models))

    def certificate_price(self, probe: Probe) -> float:
        """What the answer to a noised probe tells of this terminal, as μ²: (n_t τ/s)², for rows of unit norm."""
        if math.isinf(self._radius) or probe.noise is None or not probe.noise > 0.0:
            return math.inf
        ratio = self.n_samples * largest_terms(self.method.loss, probe.models[0], self._radius) / probe.noise
        return ratio * ratio

    def hide(self, noising: Noising) -> None:
        """Clip updates from now on; whoever is asked adds the noise. Told again, it changes nothing."""
        if self._weight is not None:
            raise PeerError(f"terminal {self.identity} has row weights, and privacy counts rows as one each")
        if self.last_round and not self.method.channel.noised:
            raise ProtocolError(f"terminal {self.identity} has told updates without noise: noise comes before them")
        self.method = self.method.hidden(with_noise(self.method.channel, noising.clip, noising.noise))

    def _kept_back(self, models: Vector) -> Vector | None:
        """What a certificate has to count of the residual; None where it has nothing to."""
        if self._residual is None or not self.method.tells_residual:
            return None
        return np.asarray(self.method.channel.counted(kept_back(self._residual[None], models))[0])

    def join(self) -> Join:
        """Present this terminal to a station; the same again until the first order comes."""
        after = self._after(Join)
        if self.phase is Phase.DETACHED:
            self.incarnation += 1
            # Rounds are numbered by the station: another one may be behind the last. The share it gets is exact.
            self.last_round = 0
            self._clear_residual()
            self.history = b""
        self.phase = after
        weight = 1.0 if self._weight is None else max(float(self._weight.mean()), 1e-300)  # 0 would say: no weights
        return Join(self.identity, self.incarnation, self.n_samples, self._share(), weight)

    def leave(self, release: Release) -> Leave | None:
        """Settle, and ask to go with all of one's duals; None if the release is stale."""
        after = self._after(Release)
        if self._speaks_to_me(release.verdict):
            self._settle(release.verdict)
            self.phase = after
        if self.phase is not Phase.LEAVING:
            return None
        return Leave(self.identity, self.incarnation, self._held_share())

    def goodbye(self, goodbye: Goodbye) -> None:
        """Be free to join another station, or to take in rows."""
        if goodbye.incarnation == self.incarnation:
            self.phase = self._after(Goodbye)

    def abandon(self, verdict: Verdict | None = None) -> None:
        """Be free at once, with nothing pending: the station lost its memory, so that no sum holds this terminal.

        Or it has taken this terminal out, and its ``verdict`` still says what became of the update.
        """
        known = verdict is not None and verdict.incarnation == self.incarnation
        self._settle(verdict if verdict is not None and known else Verdict())
        self.phase = self._after("abandon")

    def fall_back(self, incarnation: int = 0) -> None:
        """Be free to join as a newcomer with the duals that are left: an old copy is as good a point as any.

        ``incarnation`` is the highest that the station knows. The share that comes with the next join replaces the one
        that the station holds.
        """
        self.abandon()
        self.incarnation = max(self.incarnation, incarnation)

    def add_rows(self, X: npt.NDArray[np.floating[Any]], y: Vector, weight: Vector | None = None) -> None:
        """Take in new rows, scaled as the old ones, with duals at zero: u_t stays, the count grows."""
        after = self._after("new rows")
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
        self._duals = rounds.make_duals(self._rows)
        self._duals.alpha[: len(old)] = old
        self.phase = after

    def _after(self, event: Event) -> Phase:
        return follow(f"terminal {self.identity}", TERMINAL, self.phase, event)

    def _load_rows(self) -> None:
        self._rows = rounds.make_rows(
            self._X,
            self._y,
            np.array([0, len(self._X)]),
            ids=np.array([self.identity]),
            weight=self._weight,
            constant=self._constant * self.method.intercept,
        )
        self._layout = rounds.make_layout(np.zeros(1, dtype=np.int64), 1, self._rows.ids)

    def _check_order(self, order: WorkOrder) -> None:
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

    def _is_current(self, verdict: Verdict) -> bool:
        """Whether a message belongs to this membership."""
        return self.is_member and verdict.incarnation == self.incarnation

    def _is_repeated(self, order: WorkOrder) -> bool:
        """Whether this is the order that the pending update answers."""
        return self._is_current(order.verdict) and self.pending is not None and order.round == self.pending.round

    def _speaks_to_me(self, verdict: Verdict) -> bool:
        """Whether a message belongs to this membership and knows of the pending update."""
        if not self._is_current(verdict):
            return False
        if verdict.round > self.last_round:
            raise OldStateError(
                f"the station applied an update of round {verdict.round}, but terminal {self.identity} remembers "
                f"nothing after round {self.last_round}: its state was put back from an old copy, let it join again"
            )
        return self.pending is None or verdict.until >= self.pending.round

    def _settle(self, verdict: Verdict) -> None:
        """Apply what became of the pending update; nothing is pending afterwards."""
        if self.pending is not None:
            told = verdict.factor if verdict.round == self.pending.round else 0.0
            if self.method.channel.noised and not 0.0 <= told <= 1.0:
                raise PeerError(
                    f"an update of terminal {self.identity} applied with factor {told}: where sums are noised it is "
                    "from 0 to 1, as more would make answers longer than the bound that the noise hides"
                )
            factor = self.method.settled(told)
            if told:
                known = self.history + struct.pack("<Qd", self.pending.round, told)
                self.history = hashlib.sha256(known).digest()
            self._duals.settle[0] = factor
            self._kernel.settle(self._rows, self._layout, self._duals)
            if self._residual is not None and self._sent_residual is not None:
                self._residual = settled(self._residual, self._sent_residual, factor)
            self.pending = self._sent_residual = None

    def _make_update(self, order: WorkOrder) -> Update:
        """Work, and let the channel have its say: what it does to the update it does to the pending duals."""
        with np.errstate(over="ignore"):  # the station refuses what comes of a model too large for single precision
            model = order.model[None].astype(self._X.dtype)
        orders = rounds.Orders(
            model,
            np.array([order.scale]),
            np.array([order.local_steps]),
            self._round_seed(order.round),
            np.uint64(order.round),
            self.method.uniform,
            np.array([order.work == GRADIENT]),
        )
        method, held = self.method, (self._rows, self._layout, self._duals)
        answers = method.work(self._kernel, *held, orders)
        channel = method.channel.for_gradients if order.work == GRADIENT else method.channel
        delta, factor, residual = channel.send(answers.delta, None if self._residual is None else self._residual[None])
        profile = answers.profile
        if factor[0] < 1.0:
            self._duals.pending[:] *= factor[0]
            profile = method.profiles(self._kernel, *held)
        self._sent_residual = None if residual is None else residual[0]
        gains = method.channel.counted(answers.gains)[0] * method.channel.tells_gains
        profile = method.sent_profile(profile)
        return Update(order.round, self.identity, delta[0], gains, profile[0], channel.dtype)

    def _round_seed(self, number: int) -> np.uint64:
        """Seed of a round's draws; a secret gives every round of every membership one that tells nothing of others."""
        if isinstance(self.seed, int):
            return np.uint64(self.seed)
        address = struct.pack("<QQ", self.incarnation, number)
        return np.uint64(int.from_bytes(hashlib.blake2b(address, key=self.seed, digest_size=8).digest(), "little"))

    def _clear_residual(self) -> None:
        """Nothing is kept back, by a channel that ever does."""
        self._residual = np.zeros(self.shape) if self.method.channel.keeps_residual else None
        self._sent_residual = None

    def _share(self) -> Vector:
        shares = self.method.shares(self._kernel, self._rows, self._layout, self._duals, self.shape[1])
        return np.asarray(shares[0])

    def _held_share(self) -> Vector:
        """What the station has of the share: all but what the channel kept back."""
        kept = None if self._residual is None else self.method.kept(self._residual, 1.0)
        return self._share() if kept is None else self._share() - kept
