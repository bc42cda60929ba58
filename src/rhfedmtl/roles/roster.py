"""The terminals of a station: their shares, the sum U_b of the shares, and the limits on their messages.

A station (`roles.station`) has a `Roster`, and the station's service calls it when terminals join or leave. It never
opens rounds and never speaks to the cloud.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TypeVar

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.centring import combined_label_sums
from rhfedmtl.data.scaling import Moments, RowMap, total
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.gaussian_privacy import largest_terms
from rhfedmtl.roles.messages import (
    Anchor,
    Goodbye,
    Join,
    LabelsReport,
    Leave,
    MomentsReport,
    Probe,
    Release,
    Report,
    Scaling,
    Sums,
    Update,
    Vector,
    Verdict,
    WorkOrder,
)
from rhfedmtl.roles.plausibility import EXACT, Bounds, ImplausibleError, odd_labels, odd_mapped_moments, odd_moments
from rhfedmtl.roles.states import Event, StateMachine, Table, frozen

M = TypeVar("M")


class StationPhase(Enum):
    """State of a station: without an anchor, idle, or with orders out."""

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
    """Record of a terminal: samples, u_t, and the last of its updates that was applied."""

    n_samples: int
    share: Vector
    incarnation: int
    applied_round: int = 0
    applied_factor: float = 0.0
    mean_weight: float = 1.0

    @property
    def weight(self) -> float:
        """Weight of all samples; a terminal that reports no weights has weight 1 per sample."""
        return self.n_samples * (self.mean_weight or 1.0)

    def verdict(self, until: int) -> Verdict:
        """Return the verdict on the terminal's updates of rounds up to ``until``."""
        return Verdict(self.applied_round, self.applied_factor, until, self.incarnation)


@dataclass(frozen=True, eq=False)
class StationState:
    """State of a base station that must survive a restart. An open round does not: its updates are dropped.

    Save it before a message that depends on it is sent. ``told`` is the model of the last orders, if the channel rounds
    models.
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


class Roster:
    """Members of a station, and the sum U_b of their shares.

    A terminal that sends an impossible message (`roles.plausibility`) is quarantined: its share is removed, and it is
    not admitted until an operator readmits it. During an open round it is only a suspect.

    Parameters
    ----------
    states : StateMachine
        State of the station. Members change only while no round is open.
    shape : tuple[int, int]
        Rows × features of a share.
    method : Method
        Method of the training.
    """

    max_weight = np.inf
    """Largest mean weight of a terminal's samples."""

    def __init__(self, states: StateMachine[StationPhase], shape: tuple[int, int], method: Method) -> None:
        self._states, self._shape = states, shape
        self.method = method
        self.members: dict[int, Member] = {}
        self.departed: dict[int, Member] = {}
        self.quarantined: dict[int, str] = {}
        self.suspects: dict[int, str] = {}
        self.U = np.zeros(shape)
        self.membership = 0
        """Number of changes of members. A new number means a new problem."""
        self.probe = 0
        """Number of the latest probe. A merge or a change of members raises it, so answers to that probe are stale."""
        self.row_norm = self.max_share_norm = np.inf  # of the longest row; of the longest share, per sample

    @property
    def n_samples(self) -> int:
        """n_b."""
        return sum(member.n_samples for member in self.members.values())

    def admit(self, join: Join) -> None:
        """Take in a terminal, or its new record after more rows arrived or after a restart at α = 0."""
        self._states.enter(Join)
        if join.terminal in self.quarantined:
            raise PeerError(f"terminal {join.terminal} is in quarantine: it told {self.quarantined[join.terminal]}")
        if join.share.shape != self._shape or not np.isfinite(join.share).all() or join.n_samples < 1:
            raise PeerError(
                f"terminal {join.terminal} joins with {join.n_samples} samples and a share of {join.share.shape}; "
                f"{self._states.role} needs at least 1 sample and finite numbers of shape {self._shape}"
            )
        record = self.members.get(join.terminal) or self.departed.get(join.terminal)
        if record is not None and join.incarnation <= record.incarnation:
            return
        member = Member(join.n_samples, join.share, join.incarnation, mean_weight=join.mean_weight)
        bounds = self.bounds(join.terminal, member)
        try:
            if not 0.0 <= join.mean_weight <= EXACT * self.max_weight:
                raise bounds.refuse(f"a mean weight of {join.mean_weight:.6g}, where {self.max_weight:g} is possible")
            if self.method.has_duals:  # the shares of other methods have no box
                bounds.check_share(join.share)
        except ImplausibleError as error:
            self.quarantine(join.terminal, error.reason)
            raise
        if join.terminal in self.members:
            self.U = self.U - self.members[join.terminal].share
        self.departed.pop(join.terminal, None)
        self.members[join.terminal] = member
        self.U = self.U + join.share
        self._count_change()

    def release(self, terminal: int, last_round: int) -> Release:
        """Return the verdict on the last update of a terminal that wants to leave. It may ask at any time."""
        self._states.enter(Release)
        record = self.members.get(terminal) or self.departed.get(terminal)
        if record is None:
            raise PeerError(f"terminal {terminal} is not under {self._states.role}")
        return Release(terminal, record.verdict(last_round))

    def remove(self, leave: Leave) -> Goodbye:
        """Remove a terminal and its share; a repeated request changes nothing and gets the same answer."""
        self._states.enter(Leave)
        member = self.members.get(leave.terminal)
        if member is not None and member.incarnation == leave.incarnation:
            if leave.share.shape == self._shape:
                # Two sums over the same rows differ by rounding; features may cancel to near zero.
                difference = np.abs(leave.share - member.share).max(initial=0.0)
                size = max(1.0, float(np.abs(member.share).max(initial=0.0)))
            if leave.share.shape != self._shape or not difference <= 1e-6 * size:
                raise PeerError(
                    f"terminal {leave.terminal} leaves {self._states.role} with a share that is not its own"
                )
            self.drop(leave.terminal, leave.share)
        return Goodbye(leave.terminal, leave.incarnation)

    def forget(self, terminal: int) -> None:
        """Remove a terminal that will not come back, and its stored share."""
        self._states.enter("forget")
        if terminal in self.members:
            self.drop(terminal, self.members[terminal].share)

    def quarantine(self, terminal: int, reason: str) -> None:
        """Remove a terminal that sent an impossible message, with its stored share, and bar it."""
        self._states.enter("quarantine")
        self.quarantined[terminal] = reason
        if terminal in self.members:
            self.drop(terminal, self.members[terminal].share)

    def readmit(self, terminal: int) -> None:
        """Let a quarantined terminal join again."""
        self._states.enter("readmit")
        self.quarantined.pop(terminal, None)

    def suspect(self, terminal: int, reason: str) -> None:
        """Quarantine a member that sent an impossible message, now or when the open round is closed."""
        if terminal in self.members:
            self.suspects[terminal] = reason
            if self._states.state is not StationPhase.OPEN:
                self.quarantine_suspects()

    def quarantine_suspects(self) -> bool:
        """Quarantine all suspects; return True if there were any."""
        suspects, self.suspects = self.suspects, {}
        for t, reason in suspects.items():
            self.quarantine(t, reason)
        return bool(suspects)

    @contextmanager
    def suspecting(self) -> Iterator[None]:
        """Turn an `ImplausibleError` inside the context into a suspect."""
        try:
            yield
        except ImplausibleError as error:
            self.suspects[error.terminal] = error.reason

    def drop(self, terminal: int, share: Vector) -> None:
        """Remove a member, and this share from U_b."""
        self.U = self.U - share
        self.departed[terminal] = self.members.pop(terminal)
        self._count_change()

    def bounds(self, terminal: int, member: Member | None = None) -> Bounds:
        """Return the bounds on the messages of a terminal, by its record or another record."""
        record = self.members[terminal] if member is None else member
        largest, rows = self.max_share_norm * record.n_samples, record.n_samples
        return Bounds(terminal, self.method, self._shape[0], record.weight, self.row_norm, largest, rows=rows)

    def missing_terms(self, answered: Collection[int], model: Vector) -> float:
        """Return the most that rows of members that did not answer can add to a private certificate."""
        rows = sum(self.members[t].n_samples for t in self.members.keys() - set(answered))
        return rows * largest_terms(self.method.loss, model, self.row_norm) if rows else 0.0

    def add_moments(self, reports: Mapping[int, MomentsReport], mapping: RowMap | None = None) -> Moments:
        """Round zero: return the sum of the moments, in the order of ids, rounded like a message to the cloud.

        Terminals with impossible or very unusual moments are quarantined and do not count. With a mapping, they are
        moments of mapped rows.
        """
        odd = odd_moments if mapping is None else partial(odd_mapped_moments, mapping=mapping)
        plausible = self._plausible({t: report.moments for t, report in reports.items()}, odd)
        return total(plausible).rounded(self.method.channel.moments_dtype)

    def add_labels(self, reports: Mapping[int, LabelsReport]) -> Vector:
        """Round zero of a regression: return the sum of the label sums, under the same rule."""
        weights = {t: member.weight for t, member in self.members.items()}
        return combined_label_sums(
            [report.sums for report in self._plausible(reports, partial(odd_labels, weights=weights))]
        )

    def _plausible(
        self, reports: Mapping[int, M], odd: Callable[[dict[int, M], dict[int, int]], dict[int, str]]
    ) -> list[M]:
        """Return the members' reports in the order of ids, and quarantine the members that ``odd`` names."""
        rows = {t: member.n_samples for t, member in self.members.items()}
        from_members = {t: reports[t] for t in sorted(reports) if t in rows}
        reasons = odd(from_members, rows)
        for t, reason in reasons.items():
            self.quarantine(t, reason)
        return [report for t, report in from_members.items() if t not in reasons]

    def scaled(self, scaling: Scaling) -> None:
        """Round zero: take the norm of rows from the scaling, and check the shares that were sent before."""
        self.row_norm = scaling.scaler.radius(self._shape[1], intercept=self.method.intercept)
        for t, member in self.members.items() if self.method.has_duals else ():
            with self.suspecting():
                self.bounds(t).check_share(member.share)
        self.quarantine_suspects()

    def _count_change(self) -> None:
        """Count a change of members: the problem is new, and answers to earlier probes are stale."""
        self.membership += 1
        self.probe += 1
