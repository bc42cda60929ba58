"""A base station: keeps U_b = Σ_t X_tᵀα_t of its terminals, gives out work, and merges what comes back in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.merges import Arrived
from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.centring import added
from rhfedmtl.data.scaling import Moments, total
from rhfedmtl.errors import DivergenceError, PeerError, ProtocolError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.maths.kernels.rounds import CURVE, THETAS, add_in_blocks, dual_length
from rhfedmtl.maths.quasi_newton import GRADIENT
from rhfedmtl.roles.channel import kept_back, with_noise
from rhfedmtl.roles.messages import (
    Anchor,
    Goodbye,
    Join,
    LabelsReport,
    Leave,
    MomentsReport,
    Noising,
    Probe,
    Release,
    Report,
    Scaling,
    StationSums,
    Sums,
    Update,
    Vector,
    Verdict,
    WorkOrder,
    check_anchors,
)
from rhfedmtl.roles.plausibility import EXACT, Bounds, ImplausibleError, odd_labels, odd_moments
from rhfedmtl.roles.states import Event, Table, follow, frozen

M = TypeVar("M")
LARGEST = 1e100
# What single precision can hold; a model must, to be looked at.
LARGEST_MODEL = 1e38


class StationPhase(Enum):
    """Where a station stands: the cloud has not spoken yet, nothing is asked of terminals, or orders are out."""

    UNANCHORED = "without an anchor"
    IDLE = "idle"
    OPEN = "in an open round"


_MEMBERSHIP: tuple[Event, ...] = (Join, Release, Leave, "forget", "quarantine", "readmit", Probe)
_ALWAYS: tuple[Event, ...] = (Update, Sums, Report)
STATION: Table[StationPhase] = frozen(
    {
        StationPhase.UNANCHORED: {
            Anchor: StationPhase.IDLE,
            **dict.fromkeys(_MEMBERSHIP + _ALWAYS, StationPhase.UNANCHORED),
        },
        StationPhase.IDLE: {
            Anchor: StationPhase.IDLE,
            WorkOrder: StationPhase.OPEN,
            **dict.fromkeys(_MEMBERSHIP + _ALWAYS, StationPhase.IDLE),
        },
        StationPhase.OPEN: {
            "close round": StationPhase.IDLE,
            **dict.fromkeys(_ALWAYS, StationPhase.OPEN),
        },
    }
)


@dataclass(frozen=True, eq=False)
class Member:
    """What a station knows of a terminal: samples, u_t, and the last update of it that was applied."""

    n_samples: int
    share: Vector
    incarnation: int
    applied_round: int = 0
    applied_factor: float = 0.0
    mean_weight: float = 1.0

    @property
    def weight(self) -> float:
        """Of all samples together; a terminal that says nothing of weights has none."""
        return self.n_samples * (self.mean_weight or 1.0)

    def verdict(self, until: int) -> Verdict:
        """Say what became of the updates of rounds up to ``until``."""
        return Verdict(self.applied_round, self.applied_factor, until, self.incarnation)


@dataclass(frozen=True, eq=False)
class Merged:
    """Outcome of a round: who answered, the factor applied, the summed gain curve; nobody where it is void."""

    round: int
    answered: tuple[int, ...] = ()
    factor: float = 0.0
    gains: Vector = field(default_factory=lambda: np.zeros(CURVE))


@dataclass(frozen=True, eq=False)
class StationState:
    """All that a base station must remember over a restart. Terminals still out are then late, so dropped.

    Save it before a message goes out that rests on it: what was not told to anybody may be forgotten.
    """

    U: Vector
    members: dict[int, Member]
    departed: dict[int, Member]
    round: int
    anchor: Anchor | None
    membership: int
    probe: int
    quarantined: dict[int, str] = field(default_factory=dict)
    told: Vector | None = None


class BaseStation:
    """State machine of one base station, by the table ``STATION``.

    Late means dropped: an update counts only in the round that asked for it. Membership changes only while
    no round is open. A terminal that tells what cannot be (`plausibility`) is ``quarantined``, with what it contributed
    taken out, until it is readmitted.
    """

    weight = np.inf
    """The largest mean weight of a terminal's samples."""

    def __init__(
        self,
        task: int,
        shape: tuple[int, int],
        method: Method,
        shared_rows: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        """``seed`` addresses what a simulation draws; without one a station draws what nobody can draw again."""
        self.task = task
        self._seed = seed
        self._shared = (shape[0] if shared_rows is None else shared_rows, shape[1])
        self.shape = shape
        self.method = method
        self.members: dict[int, Member] = {}
        self.U = np.zeros(shape)
        self._told = np.zeros(shape)  # the model of the last orders
        self.round = 0
        self.anchor: Anchor | None = None
        self.phase = StationPhase.UNANCHORED
        self.membership = 0
        self._probe = 0
        self._probed: tuple[tuple[int, ...], ...] = ()
        self._probe_noise: float | None = None
        self._departed: dict[int, Member] = {}
        self.quarantined: dict[int, str] = {}
        self._suspects: dict[int, str] = {}
        self.row_norm = self.norm = np.inf  # of the longest row, and of the longest share for each sample
        self._orders: dict[int, WorkOrder] = {}
        self._probed_at: tuple[Vector, Vector] = np.empty((0, 0, 0)), np.empty((0, 0))
        self._asked: frozenset[int] = frozenset()
        self._updates: dict[int, Update] = {}

    @property
    def n_samples(self) -> int:
        """n_b."""
        return sum(member.n_samples for member in self.members.values())

    @property
    def v(self) -> Vector:
        """What the cloud is told: v_b = U_b/n_b, or the models that it averages."""
        return self.method.channel.reported(self._exact_v)

    @property
    def _exact_v(self) -> Vector:
        return self.method.report(self.U, self.n_samples)[: self._shared[0]]

    @property
    def model(self) -> Vector:
        """Model of the orders: w_b = c_b + v_b/λ_b, c_b in a gradient round, or the models themselves."""
        anchor = self._anchored()
        lam = np.inf if anchor.work == GRADIENT else anchor.lam  # in the limit w_b = c_b
        return self.method.model(self.U, self.n_samples, anchor.center, lam, _origin(anchor))

    @property
    def state(self) -> StationState:
        """What to save. A round that is open now will, after a restart, have merged nothing."""
        members, departed, barred = dict(self.members), dict(self._departed), dict(self.quarantined)
        counts = self.membership, self._probe
        told = self._told if self.method.channel.keeps_residual else None
        return StationState(self.U.copy(), members, departed, self.round, self.anchor, *counts, barred, told)

    def restore(self, state: StationState) -> None:
        """Go on from saved state."""
        self.U, self.round, self.anchor = state.U.copy(), state.round, state.anchor
        self.members, self._departed = dict(state.members), dict(state.departed)
        self.membership, self._probe = state.membership, state.probe
        self.quarantined = dict(state.quarantined)
        self._told = np.zeros(self.shape) if state.told is None else state.told
        self.phase = StationPhase.UNANCHORED if state.anchor is None else StationPhase.IDLE
        self._updates = {}

    def receive_anchor(self, anchor: Anchor) -> None:
        """Take the cloud's anchor; an older one than the present is ignored."""
        after = self._after(Anchor)
        shapes = {part.shape for part in (anchor.center, anchor.origin) if part is not None}
        check_anchors(anchor)
        if anchor.task != self.task or shapes != {self._shared}:
            raise PeerError(
                f"anchor for task {anchor.task} with shape {anchor.center.shape} does not fit station {self.task} with "
                f"shape {self._shared}"
            )
        if self.anchor is None or anchor.cloud_round > self.anchor.cloud_round:
            self.anchor, self.phase = anchor, after
            self.U = self.method.start(self.U, self.n_samples, anchor.center)

    def open_round(self, number: int, local_steps: Mapping[int, int]) -> list[WorkOrder]:
        """Start a round with the members named, and return their orders in the order of ids."""
        after = self._after(WorkOrder)
        if number <= self.round:
            raise ProtocolError(f"station {self.task} has done round {self.round}: round {number} cannot follow it")
        strangers = sorted(set(local_steps) - set(self.members))
        if strangers or any(steps < 1 for steps in local_steps.values()):
            raise ProtocolError(f"round {number} needs members and at least 1 step each; not members: {strangers}")
        anchor = self._anchored()
        scale = self.method.scale(anchor.lam, self.n_samples, len(self.members), number)
        self._told = self._sent_model()
        dtype, work = self.method.channel.model_dtype, anchor.work
        orders = [
            WorkOrder(number, t, self._told, scale, local_steps[t], self.members[t].verdict(number - 1), dtype, work)
            for t in sorted(local_steps)
        ]
        self.round, self.phase = number, after
        self._asked, self._updates = frozenset(local_steps), {}
        self._orders = {order.terminal: order for order in orders}
        return orders

    def _sent_model(self) -> Vector:
        anchor = self._anchored()
        exact = anchor.work == GRADIENT or np.all(self.v == _origin(anchor))
        return np.asarray(sent_models(self.method, self.model[None], self._told[None], np.array([exact]))[0])

    def receive(self, update: Update) -> bool:
        """Take an update if it is wanted now; False for a late, repeated or unasked one, which changes nothing."""
        self.phase = self._after(Update)
        wanted = self.phase is StationPhase.OPEN and update.round == self.round and update.terminal in self._asked
        if not wanted:
            return False
        self._check_update(update)
        if update.terminal in self._updates:
            return False
        self._updates[update.terminal] = update
        return True

    def close_round(self) -> Merged:
        """Merge what arrived, in the order of ids, and note what each terminal is to be told.

        Whoever told what cannot be, or would have with the factor that is to be applied, is not merged and goes.
        """
        self.phase = self._after("close round")
        found = self._merge()
        while self._suspects and (late := self._suspects.keys() & self._updates.keys()):
            self._updates = {t: update for t, update in self._updates.items() if t not in late}
            found = self._merge()
        self._updates, self._orders = {}, {}
        self._probe += 1
        self._take_out_suspects()
        return found

    def _merge(self) -> Merged:
        updates = [self._updates.get(t) for t in sorted(self.members)]
        arrived = [update for update in updates if update is not None]
        if len(arrived) < self.method.channel.least:
            return Merged(self.round)
        delta = self._received(add_in_blocks([u.delta if u else None for u in updates], self.shape), len(arrived))
        gains = add_in_blocks([u.gains if u else None for u in updates], (CURVE,))
        profile = add_in_blocks([u.profile if u else None for u in updates], (self.method.profile_length,))
        if len(profile) and self.method.loss.quadratic:
            profile[2] = min(u.profile[2] for u in arrived)
        answered = tuple(u.terminal for u in arrived)
        factor = self._factor(answered, delta, profile)
        if factor is None:
            return Merged(self.round)
        self._check_shares(arrived, factor)
        if self._suspects.keys() & self._updates.keys():
            return Merged(self.round)
        self.U = self.method.merged(self.U, delta, factor, self._anchored().center)
        for update in arrived:
            self._apply(update, factor)
        return Merged(self.round, answered, factor, gains)

    def _received(self, total: Vector, answers: int) -> Vector:
        address = None if self._seed is None else (self._seed, self.round, self.task)
        return self.method.channel.received(total, address, answers)

    def report(self, cloud_round: int) -> Report:
        """Tell the cloud what it needs for the next server iteration."""
        self.phase = self._after(Report)
        kind = self.method.channel.report_dtype
        return Report(cloud_round, self.task, self.round, self.v, self.n_samples, self.membership, kind)

    def probes(
        self, models: Vector, points: Vector, *, gradient: bool = False, noise: float | None = None
    ) -> list[Probe]:
        """Ask every member for its sums at combinations, rows of ``points``, of these models (m, columns, features).

        With ``noise``, for the sum that a private certificate is made from.
        """
        self.phase = self._after(Probe)
        self._probe += 1
        verdicts = {t: self.members[t].verdict(self.round) for t in sorted(self.members)}
        kind = self.method.channel.model_dtype
        asked = [
            Probe(t, self._probe, models, points, gradient, verdict, noise, kind) for t, verdict in verdicts.items()
        ]
        self._probed_at = models, points
        shape = models.shape[1:] if gradient else (0,)
        kept = (1 + len(models),) if self.method.tells_residual else (0,)
        self._probed = ((len(points),), (dual_length(self.method.loss),), shape, kept)
        if noise is not None:
            self._probed = ((1,), (0,), (0,), (0,))
        self._probe_noise = noise
        return asked

    def add_sums(self, sums: list[Sums], absent: Collection[int] = ()) -> StationSums | None:
        """Add up the members' sums in the order of ids; None while one is missing: no certificate without it.

        Answers to an earlier probe do not count, nor any after a merge or a change of members. A private certificate
        counts rows of missing terminals at their worst. Other certificates do so for ``absent`` terminals.
        """
        self.phase = self._after(Sums)
        for each in sums:
            with self._noting():
                self.check_sums(each)
        if self._take_out_suspects():
            return None
        by_id = {s.terminal: s for s in sums if s.number == self._probe}
        missing = sorted(self.members.keys() - by_id.keys())
        if missing and self._probe_noise is None:
            if not set(missing) <= set(absent) or not self.bounds_losses(missing):
                return None
        elif missing and not by_id:
            return None
        parts = [_told(by_id[t]) for t in sorted(by_id)]
        for told in parts:
            if tuple(p.shape for p in told) != self._probed or not all(np.isfinite(p).all() for p in told):
                raise PeerError(
                    f"a terminal of station {self.task} told sums not finite, or not of shapes {self._probed}"
                )
        losses, dual, slope, kept = (
            add_in_blocks([told[k] for told in parts], shape) for k, shape in enumerate(self._probed)
        )
        if missing and self._probe_noise is None:
            return self._without(missing, self._told_sums(losses, dual, slope, kept))
        return self._told_sums(losses + self._worst(by_id), dual, slope, kept)

    def bounds_losses(self, terminals: Iterable[int]) -> bool:
        """Return True if the losses of these terminals at the models of the last probe have a bound."""
        exact = self.method.has_duals and not self.method.tells_residual and self._probed[2] == (0,)
        bounds = (self._bounds_here(t) for t in terminals)
        return exact and all(np.isfinite(bound.most_losses(*self._probed_at)).all() for bound in bounds)

    def _without(self, terminals: Sequence[int], sums: StationSums) -> StationSums:
        """Count rows of these terminals with their largest losses and their least dual sum in the box."""
        bounds = [self._bounds_here(t) for t in terminals]
        worst = np.sum([bound.most_losses(*self._probed_at) for bound in bounds], axis=0)
        smallest = sum(bound.least_dual for bound in bounds)
        # A concave f with f(0) = 0 lies above its chord: f(θ) ≥ θ f(1).
        dual = sums.dual + (np.array([smallest, 0.0]) if self.method.loss.quadratic else smallest * THETAS)
        return replace(sums, dual=dual, worst=worst, absent=tuple(terminals))

    def _bounds_here(self, terminal: int) -> Bounds:
        """Bounds of a member for the models of the last probe; a method may keep more columns."""
        return replace(self._bounds(terminal, self.members[terminal]), columns=self._probed_at[0].shape[1])

    def _worst(self, told: Iterable[int]) -> float:
        """The most that rows of all others can add to a private certificate; nothing is missing in another."""
        rows = sum(self.members[t].n_samples for t in self.members.keys() - set(told))
        return rows * largest_terms(self.method.loss, self._probed_at[0][0], self.row_norm) if rows else 0.0

    def _told_sums(self, losses: Vector, dual: Vector, slope: Vector, kept: Vector) -> StationSums:
        residual = kept + self._kept_back() if len(kept) else None
        return StationSums(self.task, self.round, losses, dual, slope, self.n_samples, self.membership, residual)

    def _kept_back(self) -> Vector:
        """What the last report lacks, told as terminals tell their residuals."""
        lacks = self.n_samples * (self._exact_v - self.v)
        return np.asarray(kept_back(lacks[None], self._probed_at[0][:, None])[0])

    def admit(self, join: Join) -> None:
        """Take in a terminal, or what is new of one (more rows, or a restart at α = 0)."""
        self.phase = self._after(Join)
        if join.terminal in self.quarantined:
            raise PeerError(f"terminal {join.terminal} is in quarantine: it told {self.quarantined[join.terminal]}")
        if join.share.shape != self.shape or not np.isfinite(join.share).all() or join.n_samples < 1:
            raise PeerError(
                f"terminal {join.terminal} joins with {join.n_samples} samples and a share of {join.share.shape}; "
                f"station {self.task} needs at least 1 sample and finite numbers of shape {self.shape}"
            )
        known = self.members.get(join.terminal) or self._departed.get(join.terminal)
        if known is not None and join.incarnation <= known.incarnation:
            return
        member = Member(join.n_samples, join.share, join.incarnation, mean_weight=join.mean_weight)
        bounds = self._bounds(join.terminal, member)
        try:
            if not 0.0 <= join.mean_weight <= EXACT * self.weight:
                raise bounds.refuse(f"a mean weight of {join.mean_weight:.6g}, where {self.weight:g} is possible")
            if self.method.has_duals:  # what other methods keep has no box
                bounds.check_share(join.share)
        except ImplausibleError as error:
            self.quarantine(join.terminal, error.reason)
            raise
        if join.terminal in self.members:
            self.U = self.U - self.members[join.terminal].share
        self._departed.pop(join.terminal, None)
        self.members[join.terminal] = member
        self.U = self.U + join.share
        self._changed()

    def release(self, terminal: int) -> Release:
        """Tell a terminal that wants to go what became of its last update. May be asked again at any time."""
        self.phase = self._after(Release)
        known = self.members.get(terminal) or self._departed.get(terminal)
        if known is None:
            raise PeerError(f"terminal {terminal} is not under station {self.task}")
        return Release(terminal, known.verdict(self.round))

    def remove(self, leave: Leave) -> Goodbye:
        """Let a terminal go with its share; a second request changes nothing and is answered the same."""
        self.phase = self._after(Leave)
        member = self.members.get(leave.terminal)
        if member is not None and member.incarnation == leave.incarnation:
            if leave.share.shape != self.shape or not _same_share(leave.share, member.share):
                raise PeerError(
                    f"terminal {leave.terminal} leaves station {self.task} with a share that is not its own"
                )
            self._drop(leave.terminal, leave.share)
        return Goodbye(leave.terminal, leave.incarnation)

    def forget(self, terminal: int) -> None:
        """Drop a terminal that will not come back, by the share that is stored here."""
        self.phase = self._after("forget")
        if terminal in self.members:
            self._drop(terminal, self.members[terminal].share)

    def quarantine(self, terminal: int, reason: str) -> None:
        """Take out a terminal that told what cannot be, by the share that is stored here, and let it in no more."""
        self.phase = self._after("quarantine")
        self.quarantined[terminal] = reason
        if terminal in self.members:
            self._drop(terminal, self.members[terminal].share)

    def readmit(self, terminal: int) -> None:
        """Let a terminal join again."""
        self.phase = self._after("readmit")
        self.quarantined.pop(terminal, None)

    def suspect(self, terminal: int, reason: str) -> None:
        """Note that a member told what cannot be; it goes as soon as no round is open."""
        if terminal in self.members:
            self._suspects[terminal] = reason
            if self.phase is not StationPhase.OPEN:
                self._take_out_suspects()

    def check_sums(self, sums: Sums) -> None:
        """Refuse sums, in answer to the last probe, that the terminal's rows and duals cannot have."""
        member = self.members.get(sums.terminal)
        if member is None or sums.number != self._probe:
            return
        if tuple(part.shape for part in _told(sums)) == self._probed:
            models, points = self._probed_at
            # Losses are those of models: a method may keep more beside them in what it sends.
            bounds = replace(self._bounds(sums.terminal, member), columns=models.shape[1])
            if self._probe_noise is not None:
                bounds.check_term(sums, models[0])
            else:
                bounds.check_sums(sums, models, points, member.share)

    def add_moments(self, told: Mapping[int, MomentsReport]) -> Moments:
        """Round zero: add up moments in the order of ids; terminals whose moments cannot be are quarantined.

        They are rounded as the cloud is told them.
        """
        sound = self._sound({t: report.moments for t, report in told.items()}, odd_moments)
        return total(sound).rounded(self.method.channel.moments_dtype)

    def add_labels(self, told: Mapping[int, LabelsReport]) -> Vector:
        """Round zero of a regression: the same for sums over labels."""
        weights = {t: member.weight for t, member in self.members.items()}
        return added([each.sums for each in self._sound(told, partial(odd_labels, weights=weights))])

    def _sound(self, told: Mapping[int, M], odd: Callable[[dict[int, M], dict[int, int]], dict[int, str]]) -> list[M]:
        """What members told, in the order of ids, of those who are not ``odd``: these are quarantined."""
        rows = {t: member.n_samples for t, member in self.members.items()}
        known = {t: told[t] for t in sorted(told) if t in rows}
        found = odd(known, rows)
        for t, reason in found.items():
            self.quarantine(t, reason)
        return [each for t, each in known.items() if t not in found]

    def scaled(self, scaling: Scaling) -> None:
        """Round zero: note what the scaling says about rows; shares that were told before are looked at again."""
        self.row_norm = scaling.scaler.radius(self.shape[1], intercept=self.method.intercept)
        for t, member in self.members.items() if self.method.has_duals else ():
            with self._noting():
                self._bounds(t, member).check_share(member.share)
        self._take_out_suspects()

    def hide(self, noising: Noising) -> None:
        """Hide every sum in noise from now on. Told again, it changes nothing."""
        if self.U.any() and not self.method.channel.noised:
            raise ProtocolError(f"station {self.task} holds a sum without noise: noise comes before it")
        self.method = self.method.hidden(with_noise(self.method.channel, noising.clip, noising.noise))

    def _bounds(self, terminal: int, member: Member) -> Bounds:
        largest = self.norm * member.n_samples
        weight, rows = member.weight, member.n_samples
        return Bounds(terminal, self.method, self.shape[0], weight, self.row_norm, largest, rows=rows)

    def _take_out_suspects(self) -> bool:
        blamed, self._suspects = self._suspects, {}
        for t, reason in blamed.items():
            self.quarantine(t, reason)
        return bool(blamed)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except ImplausibleError as error:
            self._suspects[error.terminal] = error.reason

    def _check_shares(self, arrived: list[Update], factor: float) -> None:
        """Refuse shares that the factor would make too long."""
        for update in arrived if self.method.has_duals and factor > 1.0 else ():
            member = self.members[update.terminal]
            with self._noting():
                self._bounds(update.terminal, member).check_share(member.share + factor * update.delta)

    def _drop(self, terminal: int, share: Vector) -> None:
        self.U = self.U - share
        self._departed[terminal] = self.members.pop(terminal)
        self._changed()

    def _changed(self) -> None:
        """Note that this is another problem now; answers to probes of the old one count no more."""
        self.membership += 1
        self._probe += 1

    def _apply(self, update: Update, factor: float) -> None:
        member = self.members[update.terminal]
        kept = self.method.kept(update.delta, factor)
        share = member.share if kept is None else member.share + kept
        self.members[update.terminal] = replace(member, share=share, applied_round=update.round, applied_factor=factor)

    def _factor(self, answered: Sequence[int], delta: Vector, profile: Vector) -> float | None:
        """Factor on the sum; None where it is none: nobody can be blamed, so that nothing of the round counts."""
        samples = sum(self.members[t].n_samples for t in answered)
        anchor = self._anchored()
        scale, gradient = anchor.lam * max(self.n_samples, 1), anchor.work == GRADIENT
        factor = self.method.factor(Arrived(len(answered), delta, self.model, scale, profile, samples, gradient))
        return factor if np.isfinite(factor) and factor >= 0.0 else None

    def _check_update(self, update: Update) -> None:
        shapes = (update.delta.shape, update.gains.shape, update.profile.shape)
        needed = (self.shape, (CURVE,), (self.method.profile_length,))
        if shapes != needed:
            raise PeerError(f"update of terminal {update.terminal} has shapes {shapes}, not {needed}")
        if not self.method.has_duals:
            refuse_divergence(update.delta, update.round)
        bounds = self._bounds(update.terminal, self.members[update.terminal])
        try:
            share, order = self.members[update.terminal].share, self._orders[update.terminal]
            bounds.check_update(update, share, order)
        except ImplausibleError as error:
            self._suspects[error.terminal] = error.reason
            raise

    def _anchored(self) -> Anchor:
        if self.anchor is None:
            raise ProtocolError(f"station {self.task} has no anchor yet: the cloud speaks first")
        return self.anchor

    def _after(self, event: Event) -> StationPhase:
        return follow(f"station {self.task}", STATION, self.phase, event)


def _told(sums: Sums) -> tuple[Vector, ...]:
    """All numbers that a terminal's sums hold."""
    return sums.losses, sums.dual, sums.gradient, np.empty(0) if sums.residual is None else sums.residual


def _origin(anchor: Anchor) -> Vector | float:
    return 0.0 if anchor.origin is None else anchor.origin


def sent_models(method: Method, wanted: Vector, told: Vector, exact: npt.NDArray[np.bool_]) -> Vector:
    """Models of orders, of a station in each row, as the channel sends them.

    ``exact`` models are not rounded: in a gradient round, and to begin at, where terminals know the model.
    """
    return np.where(exact[:, None, None], wanted, method.channel.models(wanted, told))


def refuse_divergence(delta: Vector, number: int, *, largest: float = LARGEST) -> None:
    """Refuse updates that are not finite, or so large that their squares soon will not be."""
    if not np.abs(delta).max(initial=0.0) < largest:
        raise DivergenceError(f"updates of round {number} are not finite: the method diverged, take a smaller step")


def _same_share(told: Vector, stored: Vector) -> bool:
    """Whether two ways to sum the same rows differ by no more than rounding; features may cancel to near zero."""
    return bool(np.abs(told - stored).max(initial=0.0) <= 1e-6 * max(1.0, float(np.abs(stored).max(initial=0.0))))
