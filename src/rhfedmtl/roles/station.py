"""A base station sends work to its terminals, merges their updates, and reports v_b to the cloud.

It makes and reads messages, which engine ``message-passing`` and real networks carry. The default engine,
``inprocess``, computes the same with arrays: change both. A station never sees rows or dual variables.

**Theory of operation.** A station keeps U_b = Σ_t X_tᵀα_t, the sum of its terminals' shares u_t. The cloud sends an
anchor (c_b, λ_b), and w_b = c_b + v_b/λ_b with v_b = U_b/n_b is the model of the orders. A BS iteration is:

1. `BaseStation.open_round`: an order for each terminal that takes part, with the model, the number of local steps, and
   the verdict on the terminal's last update.
2. `BaseStation.receive`: take updates X_tᵀΔα_t. Only updates of the open round count; late updates are dropped.
3. `BaseStation.close_round`: check the updates, add them up in the order of ids, and choose a factor η. Then
   U_b ← U_b + η Σ_t X_tᵀΔα_t. Each terminal learns η with its next message, and applies it to its dual variables.

So U_b always belongs to dual variables that the terminals have or will have.

For a certificate, `BaseStation.probes` requests sums from all members, and `BaseStation.add_sums` adds the answers up.
`Roster` keeps the members (`roles.roster`). A station may restart at any time: save `BaseStation.state` before a
message that depends on it is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.method import Method
from rhfedmtl.errors import PeerError, ProtocolError
from rhfedmtl.maths.kernels.rounds import CURVE, THETAS, add_in_blocks, dual_length
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.roles.channel import kept_back, sent_models, with_noise
from rhfedmtl.roles.messages import (
    Anchor,
    Noising,
    Probe,
    Report,
    StationSums,
    Sums,
    Update,
    Vector,
    WorkOrder,
    check_anchors,
)
from rhfedmtl.roles.plausibility import ImplausibleError, refuse_divergence
from rhfedmtl.roles.roster import STATION, Member, Roster, StationPhase, StationState
from rhfedmtl.roles.states import StateMachine


@dataclass(frozen=True, eq=False)
class Merged:
    """Outcome of a round: the terminals that answered, the factor, and the summed gain curve; empty if it is void."""

    round: int
    answered: tuple[int, ...] = ()
    factor: float = 0.0
    gains: Vector = field(default_factory=lambda: np.zeros(CURVE))


@dataclass(frozen=True, eq=False)
class _ProbedAt:
    """Content of the latest probe, and the shapes of an answer: losses, dual sums, gradient, residual."""

    models: Vector
    points: Vector
    noise: float | None
    shapes: tuple[tuple[int, ...], ...]


class BaseStation:
    """State machine of a base station, by the table ``STATION``.

    Parameters
    ----------
    task : int
        Number of the station, which is also its task.
    shape : tuple[int, int]
        Outputs × features of a share.
    method : Method
        Method of the training.
    shared_rows : int, optional
        Outputs of the model that travel to the cloud; by default all.
    seed : int, optional
        Address of the noise in a simulation. Without a seed the noise cannot be repeated.
    """

    def __init__(
        self,
        task: int,
        shape: tuple[int, int],
        method: Method,
        shared_rows: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.task, self.shape, self.method = task, shape, method
        self._seed = seed
        self._shared = (shape[0] if shared_rows is None else shared_rows, shape[1])
        self._states = StateMachine(f"station {task}", STATION, StationPhase.UNANCHORED)
        self.roster = Roster(self._states, shape, method)
        self.round = 0
        self.anchor: Anchor | None = None
        self._sent_model = np.zeros(shape)  # model of the last orders
        self._orders: dict[int, WorkOrder] = {}
        self._updates: dict[int, Update] = {}
        self._probed = _ProbedAt(np.empty((0, 0, 0)), np.empty((0, 0)), None, ())

    @property
    def phase(self) -> StationPhase:
        """Current state."""
        return self._states.state

    @property
    def members(self) -> dict[int, Member]:
        """Records of the terminals under this station."""
        return self.roster.members

    @property
    def quarantined(self) -> dict[int, str]:
        """Terminals that may not join, with the reason."""
        return self.roster.quarantined

    @property
    def membership(self) -> int:
        """Number of changes of members."""
        return self.roster.membership

    @property
    def U(self) -> Vector:
        """U_b = Σ_t X_tᵀα_t."""
        return self.roster.U

    @property
    def n_samples(self) -> int:
        """n_b."""
        return self.roster.n_samples

    @property
    def v(self) -> Vector:
        """v_b = U_b/n_b with the rounding of reports, or the models that the cloud averages."""
        return self.method.channel.reported(self._exact_v)

    @property
    def _exact_v(self) -> Vector:
        return self.method.report(self.U, self.n_samples)[: self._shared[0]]

    @property
    def model(self) -> Vector:
        """Model of the orders: w_b = c_b + v_b/λ_b, c_b in a gradient round, or the method's own model."""
        anchor = self._anchored()
        lam = np.inf if anchor.work == GRADIENT else anchor.lam  # in the limit w_b = c_b
        return self.method.model(self.U, self.n_samples, anchor.center, lam, _anchor_v(anchor))

    @property
    def state(self) -> StationState:
        """State to save. After a restart, a round that is open now has merged nothing."""
        roster = self.roster
        sent = self._sent_model if self.method.channel.keeps_residual else None
        return StationState(
            roster.U.copy(),
            dict(roster.members),
            dict(roster.departed),
            self.round,
            self.anchor,
            roster.membership,
            roster.probe,
            dict(roster.quarantined),
            sent,
        )

    def restore(self, state: StationState) -> None:
        """Continue from saved state."""
        roster = self.roster
        roster.U, self.round, self.anchor = state.U.copy(), state.round, state.anchor
        roster.members, roster.departed = dict(state.members), dict(state.departed)
        roster.membership, roster.probe = state.membership, state.probe
        roster.quarantined = dict(state.quarantined)
        self._sent_model = np.zeros(self.shape) if state.told is None else state.told
        self._states.state = StationPhase.UNANCHORED if state.anchor is None else StationPhase.IDLE
        self._updates = {}

    def receive_anchor(self, anchor: Anchor) -> None:
        """Take the cloud's anchor; ignore an anchor older than the current anchor."""
        after = self._states.after(Anchor)
        shapes = {part.shape for part in (anchor.center, anchor.origin) if part is not None}
        check_anchors(anchor)
        if anchor.task != self.task or shapes != {self._shared}:
            raise PeerError(
                f"anchor for task {anchor.task} with shape {anchor.center.shape} does not fit station {self.task} with "
                f"shape {self._shared}"
            )
        if self.anchor is None or anchor.cloud_round > self.anchor.cloud_round:
            self.anchor, self._states.state = anchor, after
            self.roster.U = self.method.start(self.U, self.n_samples, anchor.center)

    def open_round(self, number: int, local_steps: Mapping[int, int]) -> list[WorkOrder]:
        """Start a round with these members, and return their orders in the order of ids.

        Parameters
        ----------
        number : int
            Number of the round, larger than every earlier number.
        local_steps : Mapping[int, int]
            Steps H of each terminal that takes part.
        """
        after, members = self._states.after(WorkOrder), self.members
        if number <= self.round:
            raise ProtocolError(f"station {self.task} has done round {self.round}: round {number} cannot follow it")
        strangers = sorted(set(local_steps) - set(members))
        if strangers or any(steps < 1 for steps in local_steps.values()):
            raise ProtocolError(f"round {number} needs members and at least 1 step each; not members: {strangers}")
        anchor = self._anchored()
        scale = self.method.scale(anchor.lam, self.n_samples, len(members), number)
        exact = anchor.work == GRADIENT or np.all(self.v == _anchor_v(anchor))
        sent = sent_models(self.method, self.model[None], self._sent_model[None], np.array([exact]))
        self._sent_model = np.asarray(sent[0])
        dtype, work = self.method.channel.model_dtype, anchor.work
        orders = [
            WorkOrder(number, t, self._sent_model, scale, local_steps[t], members[t].verdict(number - 1), dtype, work)
            for t in sorted(local_steps)
        ]
        self.round, self._states.state = number, after
        self._updates = {}
        self._orders = {order.terminal: order for order in orders}
        return orders

    def receive(self, update: Update) -> bool:
        """Take an update of the open round; return False, and change nothing, if it is late or repeated."""
        self._states.enter(Update)
        t = update.terminal
        if self.phase is not StationPhase.OPEN or update.round != self.round or t not in self._orders:
            return False
        shapes = (update.delta.shape, update.gains.shape, update.profile.shape)
        needed = (self.shape, (CURVE,), (self.method.profile_length,))
        if shapes != needed:
            raise PeerError(f"update of terminal {t} has shapes {shapes}, not {needed}")
        if not self.method.has_duals:
            refuse_divergence(update.delta, update.round)
        try:
            self.roster.bounds(t).check_update(update, self.members[t].share, self._orders[t])
        except ImplausibleError as error:
            self.roster.suspects[error.terminal] = error.reason
            raise
        if t in self._updates:
            return False
        self._updates[t] = update
        return True

    def close_round(self) -> Merged:
        """Merge the updates in the order of ids, and record the verdict for each terminal.

        A terminal with an impossible update, or with an impossible share after the merge, is quarantined, and the other
        updates are merged without it.
        """
        self._states.enter("close round")
        merged = self._merge()
        while self.roster.suspects and (blamed := self.roster.suspects.keys() & self._updates.keys()):
            self._updates = {t: update for t, update in self._updates.items() if t not in blamed}
            merged = self._merge()
        self._updates, self._orders = {}, {}
        self.roster.probe += 1
        self.roster.quarantine_suspects()
        return merged

    def _merge(self) -> Merged:
        """Merge the updates; change nothing if the factor would make the share of a terminal impossible."""
        method, members = self.method, self.members
        # 1. add the updates up
        by_member = [self._updates.get(t) for t in sorted(members)]
        updates = [update for update in by_member if update is not None]
        if len(updates) < method.channel.least:
            return Merged(self.round)
        delta = add_in_blocks([u.delta if u else None for u in by_member], self.shape)
        delta = method.channel.received(delta, noise_address(self._seed, self.round, self.task), len(updates))
        gains = add_in_blocks([u.gains if u else None for u in by_member], (CURVE,))
        profile = add_in_blocks([u.profile if u else None for u in by_member], (method.profile_length,))
        if len(profile) and method.loss.quadratic:
            profile[2] = min(u.profile[2] for u in updates)
        # 2. choose the factor
        answered = tuple(u.terminal for u in updates)
        factor = self._factor(answered, delta, profile)
        if factor is None:
            return Merged(self.round)
        # 3. check the shares that it makes
        for update in updates if method.has_duals and factor > 1.0 else ():
            with self.roster.suspecting():
                share = members[update.terminal].share + factor * update.delta
                self.roster.bounds(update.terminal).check_share(share)
        if self.roster.suspects.keys() & self._updates.keys():
            return Merged(self.round)
        # 4. apply
        self.roster.U = method.merged(self.U, delta, factor, self._anchored().center)
        for update in updates:
            member, change = members[update.terminal], method.kept(update.delta, factor)
            share = member.share if change is None else member.share + change
            members[update.terminal] = replace(member, share=share, applied_round=update.round, applied_factor=factor)
        return Merged(self.round, answered, factor, gains)

    def _factor(self, answered: Sequence[int], delta: Vector, profile: Vector) -> float | None:
        """Return the factor on the sum; if it is not a number, no terminal can be blamed, and the round is void."""
        samples = sum(self.members[t].n_samples for t in answered)
        anchor = self._anchored()
        scale, gradient = anchor.lam * max(self.n_samples, 1), anchor.work == GRADIENT
        factor = self.method.factor(Arrived(len(answered), delta, self.model, scale, profile, samples, gradient))
        return factor if np.isfinite(factor) and factor >= 0.0 else None

    def report(self, cloud_round: int) -> Report:
        """Return v_b and the counts that the cloud needs for the next server iteration."""
        self._states.enter(Report)
        kind = self.method.channel.report_dtype
        return Report(cloud_round, self.task, self.round, self.v, self.n_samples, self.membership, kind)

    def probes(
        self, models: Vector, points: Vector, *, gradient: bool = False, noise: float | None = None
    ) -> list[Probe]:
        """Return probes that request sums from every member.

        Parameters
        ----------
        models : Vector
            Models (m, columns, features).
        points : Vector
            Combinations of the models, a row each.
        gradient : bool
            Also request the gradient under the first model.
        noise : float, optional
            Request only the term of a private certificate, with this standard deviation on its sum.
        """
        self._states.enter(Probe)
        self.roster.probe += 1
        members, number = self.members, self.roster.probe
        kind = self.method.channel.model_dtype
        shapes: tuple[tuple[int, ...], ...] = ((1,), (0,), (0,), (0,))
        if noise is None:
            slope = models.shape[1:] if gradient else (0,)
            residual = (1 + len(models),) if self.method.tells_residual else (0,)
            shapes = ((len(points),), (dual_length(self.method.loss),), slope, residual)
        self._probed = _ProbedAt(models, points, noise, shapes)
        return [
            Probe(t, number, models, points, gradient, members[t].verdict(self.round), noise, kind)
            for t in sorted(members)
        ]

    def add_sums(self, sums: list[Sums], absent: Collection[int] = ()) -> StationSums | None:
        """Add up the members' answers to the last probe in the order of ids; return None while an answer is missing.

        Answers to an earlier probe do not count. An answer is also stale after a merge or a change of members. A
        private certificate counts rows of missing terminals with their largest term. Another certificate counts only
        ``absent`` terminals so.
        """
        self._states.enter(Sums)
        for answer in sums:
            with self.roster.suspecting():
                self.check_sums(answer)
        if self.roster.quarantine_suspects():
            return None
        probed = self._probed
        by_id = {s.terminal: s for s in sums if s.number == self.roster.probe}
        missing = sorted(self.members.keys() - by_id.keys())
        # 1. bounds on the rows of missing members
        bounds = []
        if missing and probed.noise is None:
            if not set(missing) <= set(absent):
                return None
            columns = probed.models.shape[1]  # a method may have more columns than its models
            bounds = [replace(self.roster.bounds(t), columns=columns) for t in missing]
            exact = self.method.has_duals and not self.method.tells_residual and probed.shapes[2] == (0,)
            worst = [bound.most_losses(probed.models, probed.points) for bound in bounds]
            if not exact or not np.isfinite(worst).all():
                return None
        elif missing and not by_id:
            return None
        # 2. the sum of the answers
        parts = [_parts(by_id[t]) for t in sorted(by_id)]
        for part in parts:
            if tuple(p.shape for p in part) != probed.shapes or not all(np.isfinite(p).all() for p in part):
                raise PeerError(
                    f"a terminal of station {self.task} told sums not finite, or not of shapes {probed.shapes}"
                )
        losses, dual, slope, residual = (
            add_in_blocks([part[k] for part in parts], shape) for k, shape in enumerate(probed.shapes)
        )
        if not bounds:
            if missing:
                losses = losses + self.roster.missing_terms(by_id, probed.models[0])
            return self._station_sums(losses, dual, slope, residual)
        # 3. missing rows count with their largest losses and their smallest dual sum in the box
        result = self._station_sums(losses, dual, slope, residual)
        smallest = sum(bound.least_dual for bound in bounds)
        # A concave f with f(0) = 0 lies above its chord: f(θ) ≥ θ f(1).
        dual = result.dual + (np.array([smallest, 0.0]) if self.method.loss.quadratic else smallest * THETAS)
        return replace(result, dual=dual, worst=np.sum(worst, axis=0), absent=tuple(missing))

    def _station_sums(self, losses: Vector, dual: Vector, slope: Vector, residual: Vector) -> StationSums:
        """Return the message with these sums; a residual also gets the part that rounding took from the last report."""
        total = None
        if len(residual):
            lacking = self.n_samples * (self._exact_v - self.v)
            total = residual + np.asarray(kept_back(lacking[None], self._probed.models[:, None])[0])
        return StationSums(self.task, self.round, losses, dual, slope, self.n_samples, self.membership, total)

    def check_sums(self, sums: Sums) -> None:
        """Raise `ImplausibleError` for an answer to the last probe that the terminal's rows and duals cannot give."""
        probed, member = self._probed, self.members.get(sums.terminal)
        if member is None or sums.number != self.roster.probe:
            return
        if tuple(part.shape for part in _parts(sums)) == probed.shapes:
            # Losses belong to models; a method may send more columns than its models have.
            bounds = replace(self.roster.bounds(sums.terminal), columns=probed.models.shape[1])
            if probed.noise is not None:
                bounds.check_term(sums, probed.models[0])
            else:
                bounds.check_sums(sums, probed.models, probed.points, member.share)

    def hide(self, noising: Noising) -> None:
        """Add noise to every sum from now on. A repeated call changes nothing."""
        if self.U.any() and not self.method.channel.noised:
            raise ProtocolError(f"station {self.task} holds a sum without noise: noise comes before it")
        self.method = self.method.hidden(with_noise(self.method.channel, noising.clip, noising.noise))
        self.roster.method = self.method

    def _anchored(self) -> Anchor:
        if self.anchor is None:
            raise ProtocolError(f"station {self.task} has no anchor yet: call receive_anchor first")
        return self.anchor


def _parts(sums: Sums) -> tuple[Vector, ...]:
    """Return all arrays of a terminal's sums."""
    return sums.losses, sums.dual, sums.gradient, np.empty(0) if sums.residual is None else sums.residual


def _anchor_v(anchor: Anchor) -> Vector | float:
    """Return the v_b that the anchor belongs to."""
    return 0.0 if anchor.origin is None else anchor.origin


def noise_address(seed: int | None, number: int, task: int) -> tuple[int, ...] | None:
    """Return the address of a round's noise, if there is a seed as in simulations."""
    return None if seed is None else (seed, number, task)
