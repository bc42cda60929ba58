"""The interface of policies: `Policy.plan` receives a `Situation` and returns a `Plan`, or None to end the run.

The training loop builds the situation before every server iteration. A policy reads it and changes nothing in it except
`Situation.memo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.quasi_newton import ASCENT, Solver
from rhfedmtl.maths.runs import pairs
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import CloudEvent, Placement, RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.sizes import CertificateSizes, MessageSizes

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
MOST_COUNT = 10**9
AUTO = "auto"
"""Certificates in every round where they cost nothing that is limited, else as seldom as decisions need them."""
# Certificates before the last may cost this share of the cost of rounds.
# Measured: benchmarks/results/constants.md; ×0.5: +0.26 ± 0.29 points, −0.05 ± 0.48 decades;
# ×2: −0.01 ± 0.05 points, −0.10 ± 0.20 decades.
MOST_CERTIFYING = 0.1


class Observation(NamedTuple):
    """Measurements of a BS iteration: H, answers, the factor applied, and the dual gain after 1, 2, 4, … steps.

    ``gap`` is the certified gap after the iteration, before duals are mixed; NaN without a certificate. ``astray`` is
    True if the run has diverged: the models of the stations are worse than zero models.
    """

    round: int
    local_steps: IntArray
    answers: IntArray
    factor: FloatArray
    gains: FloatArray
    solver: Solver = ASCENT
    gap: float = float("nan")
    astray: bool = False


# Policies see this many of the last rounds: training over a network may have no end.
REMEMBERED = 128


@dataclass(frozen=True, eq=False)
class Situation:
    """The information that a policy may use for a plan.

    Attributes
    ----------
    sizes, layout
        Rows and station of every terminal.
    ledger
        Prices, limits and spending of the run.
    lam, gamma, radius
        λ_b of the anchors, smoothness of the loss, and a bound on ‖x‖; policies from theory use them.
    coupling
        Share of a station's regularisation that ties it to other tasks, in [0, 1).
    bytes, certificate_bytes
        Sizes of messages.
    cloud_rounds, rounds
        Server iterations and BS iterations so far.
    observed
        Observations of the last rounds, at most ``REMEMBERED``, in order.
    solvers
        Solvers that a plan may choose.
    planning_prices
        Prices to plan by (None: the ledger's prices). They are higher if a round may take longer than priced.
    certify_every, seed
        The settings of the run.
    passes
        Passes over the rows that the cloud asks for next; some policies follow it.
    memo
        Values that a policy need not compute again. The memo lasts from plan to plan while members, sizes and prices
        do not change.
    """

    sizes: IntArray
    layout: Placement
    ledger: Ledger
    lam: float
    gamma: float
    coupling: float = 0.0
    radius: float = 1.0
    bytes: MessageSizes = field(default_factory=MessageSizes)
    certificate_bytes: CertificateSizes = field(default_factory=CertificateSizes)
    cloud_rounds: int = 0
    rounds: int = 0
    observed: list[Observation] = field(default_factory=list)
    solvers: tuple[Solver, ...] = (ASCENT,)
    planning_prices: Cost | None = None
    certify_every: int | str = "auto"
    passes: int = 1
    seed: int = 0
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def prices(self) -> Cost:
        """Prices to plan and reserve by."""
        return self.ledger.cost if self.planning_prices is None else self.planning_prices

    @cached_property
    def member_index(self) -> slice | npt.NDArray[np.bool_]:
        """Index that selects the members from an array over all terminals."""
        return slice(None) if self.layout.complete else self.layout.terminal_task >= 0

    @cached_property
    def member_station(self) -> IntArray:
        """Station of every member."""
        return self.layout.terminal_task[self.member_index]

    @cached_property
    def rows(self) -> FloatArray:
        """Samples of every member."""
        return self.sizes[self.member_index].astype(np.float64)

    @cached_property
    def samples(self) -> FloatArray:
        """n_b of every station."""
        station, rows, counts = self.distinct_members
        return np.asarray(np.bincount(station, rows * counts, self.layout.n_tasks), dtype=np.float64)

    @cached_property
    def members(self) -> IntArray:
        """N_b of every station."""
        return self.layout.members

    @cached_property
    def largest(self) -> FloatArray:
        """Samples of the largest terminal of every station."""
        largest = np.ones(self.layout.n_tasks)
        station, rows, _ = self.distinct_members
        np.maximum.at(largest, station, rows)
        return largest

    @cached_property
    def distinct_members(self) -> tuple[IntArray, FloatArray, IntArray | int]:
        """Station and samples of members, and the number of equal members; equal members may form a single entry."""
        station, sizes, counts = pairs(self.member_station, self.sizes[self.member_index])
        return station, sizes.astype(np.float64), counts

    @cached_property
    def one_pass(self) -> IntArray:
        """H of a pass over each terminal's rows; a view that takes no memory if all terminals have equally many."""
        if len(self.sizes) and self.sizes.min() == self.sizes.max():
            return np.broadcast_to(np.int64(self.sizes.max()), len(self.sizes))
        return np.asarray(self.sizes)

    def round_event(
        self,
        local_steps: int | IntArray,
        stations: npt.NDArray[np.bool_] | None = None,
        *,
        number: int | None = None,
        down: int | None = None,
        up: int | None = None,
        waiting: Mapping[str, FloatArray] | None = None,
    ) -> RoundEvent:
        """Return the event of the next BS iteration, or of iteration ``number``, if all terminals work.

        ``down`` and ``up`` are the bytes of an order and an update. The default is dual ascent with a model in every
        order. ``waiting`` is `RoundEvent.ahead`.
        """
        if isinstance(local_steps, np.ndarray) and local_steps.strides == (0,):
            local_steps = int(local_steps[0])
        sizes = self.bytes
        request: FloatArray | float = float(sizes.request)
        result: FloatArray | float = float(sizes.result)
        if sizes.each_request:
            request = np.asarray(sizes.request + sizes.each_request * self.layout.members, dtype=np.float64)
        if sizes.each_result:
            result = np.asarray(sizes.result + sizes.each_result * self.layout.members, dtype=np.float64)
        return RoundEvent(
            self.rounds + 1 if number is None else number,
            self.layout,
            local_steps,
            stations,
            ahead=waiting,
            bytes_down=float(sizes.order if down is None else down),
            bytes_up=float(sizes.update if up is None else up),
            request_bytes=request,
            result_bytes=result,
        )

    def certificate_event(
        self, sizes: CertificateSizes | None = None, number: int | None = None, report: int = 0
    ) -> RoundEvent:
        """Return the event of a certificate after round ``number`` (default: the last round).

        The default sizes are the largest: for models that the receivers do not hold. ``report`` is the size of the
        reports that stations send for the certificate.
        """
        sizes = self.certificate_bytes if sizes is None else sizes
        return RoundEvent(
            self.rounds if number is None else number,
            self.layout,
            0,
            bytes_down=float(sizes.probe),
            bytes_up=float(sizes.sums),
            request_bytes=float(sizes.request),
            result_bytes=float(sizes.result + report),
            merges=False,
        )

    @cached_property
    def certificate(self) -> dict[str, float]:
        """Cost of a certificate, per type."""
        return event_totals(self.prices, self.certificate_event())

    @property
    def certificates_cost(self) -> bool:
        """True if certificates use a limited type."""
        return any(self.certificate[name] for name in self.ledger.budget)

    def server_iteration(self) -> dict[str, float]:
        """Return the cost per type of a server iteration without its rounds.

        It includes the iteration's share of a certificate, if the smallest iteration still fits the budget with it.
        """
        cloud = event_totals(self.prices, self.cloud_event())
        if not self.certificates_cost:
            return cloud
        smallest, remaining = event_totals(self.prices, self.cloud_event(), self.round_event(1)), self.ledger.remaining
        every = self.certify_every
        parts = {
            name: price / every if isinstance(every, int) else min(price, MOST_CERTIFYING * smallest[name])
            for name, price in self.certificate.items()
        }
        if any(smallest[name] + parts[name] > limit for name, limit in remaining.items()):
            return cloud
        return {name: cost + parts[name] for name, cost in cloud.items()}

    def cloud_event(self, down: int | None = None) -> CloudEvent:
        """Return the event of the next server iteration.

        ``down`` is the size of an anchor. The default is an anchor that contains a model.
        """
        sizes = self.bytes
        down = sizes.anchor if down is None else down
        return CloudEvent(self.rounds, self.layout, bytes_down=float(down), bytes_up=float(sizes.report))


@dataclass(frozen=True, eq=False)
class Plan:
    """Work of a server iteration: H of every terminal, K of every station, and the reasons (``why``)."""

    local_steps: IntArray
    station_rounds: IntArray
    solver: Solver = ASCENT
    why: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def uniform(cls, situation: Situation, local_steps: int | IntArray, station_rounds: int, **why: Any) -> Plan:
        """Return a plan with the same K for all stations and ``local_steps`` for all or per terminal."""
        H = np.broadcast_to(np.asarray(local_steps, dtype=np.int64), len(situation.sizes))
        return cls(H, np.full(situation.layout.n_tasks, station_rounds), why=why)

    def compact(self) -> Plan:
        """Return the same plan, with an H that all terminals share stored once.

        A run stores a plan per round, and a plan may cover a million terminals.
        """
        H = self.local_steps
        if len(H) and H.strides != (0,) and (H[0] == H).all():
            return replace(self, local_steps=np.broadcast_to(H[0], H.shape))
        return self


ONE_PASS = 0
"""As a smallest H: one pass over each terminal's own rows."""


def smallest_steps(s: Situation, least_steps: int) -> int | IntArray:
    """Return the smallest H that a policy may plan.

    It is a number, or an array per terminal if ``least_steps`` is `ONE_PASS` and terminals have different numbers of
    rows.
    """
    if least_steps != ONE_PASS:
        return least_steps
    uniform = not s.members.all() or s.rows.min() == s.rows.max()
    return int(s.largest.max()) if uniform else s.sizes


class Policy(Protocol):
    """Interface of a policy: turn a situation into a plan, or return None to end the run."""

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration."""


def check_certify_every(every: Any) -> None:
    """Refuse a value that is neither a number of rounds nor `AUTO`."""
    if every != AUTO:
        check_count("certify_every", every)


def check_count(name: str, count: Any, *, optional: bool = False) -> None:
    """Refuse a value that is not a whole number from 1 to `MOST_COUNT`."""
    if optional and count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_COUNT:
        raise ConfigError(f"{name} must be a whole number from 1 to {MOST_COUNT}, got {count!r}")
