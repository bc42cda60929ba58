"""What policies see and say: a `Situation` goes in, a `Plan` comes out, or None when no more is to be done."""

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
from rhfedmtl.resources.billing import CloudEvent, Placement, RoundEvent, event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.sizes import CertificateSizes, MessageSizes

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
MOST_COUNT = 10**9
AUTO = "auto"
"""Certificates in every round where they cost nothing that is limited, else as seldom as decisions need them."""
CERTIFYING = 0.1
"""What certificates on the way may cost beside the rounds, where they cost: solvers are compared by few of them."""


class Observation(NamedTuple):
    """What a BS iteration showed: H, who answered, the factor applied, and the dual gain after 1, 2, 4, … steps.

    ``gap`` is the certified one after it, before duals are mixed, NaN where none was computed; a round is ``astray``
    where what the stations hold is worse than models that are zero.
    """

    round: int
    local_steps: IntArray
    answers: IntArray
    factor: FloatArray
    gains: FloatArray
    solver: Solver = ASCENT
    gap: float = float("nan")
    astray: bool = False


REMEMBERED = 128
"""Rounds that policies may look back to, everywhere: a network's training may have no end, and plans as others do."""


@dataclass(frozen=True, eq=False)
class Situation:
    """What a policy may know when it plans.

    ``lam`` is λ_b of the anchors, ``gamma`` the smoothness of the loss, ``radius`` a bound on ‖x‖: for theory.
    ``coupling`` in [0, 1) says how much of a station's regularisation ties it to the other tasks. ``observed``
    holds what the last rounds, ``REMEMBERED`` at most, showed, the latest last. ``planning_prices`` may be higher than
    those of the ledger, where a round may take longer than it should. ``in_step`` says whether stations wait for each
    other after every BS iteration, and not only for the cloud. ``certify_every`` is that of the run.
    ``passes`` over the rows are what the cloud asks for next, where a policy goes by that; ``seed`` is that of the run,
    for one that draws.
    ``memo`` is kept from one plan to the next while members, sizes and prices stay as they are: for what a policy need
    not work out again.
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
    in_step: bool = False
    certify_every: int | str = "auto"
    passes: int = 1
    seed: int = 0
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def prices(self) -> Cost:
        """Prices to plan and reserve by."""
        return self.ledger.cost if self.planning_prices is None else self.planning_prices

    @cached_property
    def here(self) -> slice | npt.NDArray[np.bool_]:
        """Picks the members out of all terminals."""
        return slice(None) if self.layout.complete else self.layout.terminal_task >= 0

    @cached_property
    def home(self) -> IntArray:
        """Station of every member."""
        return self.layout.terminal_task[self.here]

    @cached_property
    def rows(self) -> FloatArray:
        """Samples of every member."""
        return self.sizes[self.here].astype(np.float64)

    @cached_property
    def samples(self) -> FloatArray:
        """n_b of every station."""
        home, rows, counts = self.alike
        return np.asarray(np.bincount(home, rows * counts, self.layout.n_tasks), dtype=np.float64)

    @cached_property
    def members(self) -> IntArray:
        """N_b of every station."""
        return self.layout.members

    @cached_property
    def alone(self) -> bool:
        """Whether there is one terminal under each station, so that nothing is merged."""
        return bool(len(self.home) <= np.count_nonzero(self.members))

    @cached_property
    def largest(self) -> FloatArray:
        """Samples of the largest terminal of every station."""
        largest = np.ones(self.layout.n_tasks)
        home, rows, _ = self.alike
        np.maximum.at(largest, home, rows)
        return largest

    @cached_property
    def alike(self) -> tuple[IntArray, FloatArray, IntArray | int]:
        """Station and samples of members, and how many are like that: members that are alike may count as one."""
        home, sizes, counts = pairs(self.home, self.sizes[self.here])
        return home, sizes.astype(np.float64), counts

    @cached_property
    def one_pass(self) -> IntArray:
        """H of a pass over each terminal's own rows; a view that takes no memory where all have as many."""
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
        """Return the next BS iteration, or iteration ``number``, if all terminals work.

        ``down`` and ``up`` are the bytes of an order and an update, by default for dual ascent with a model in every
        order; ``waiting`` is `RoundEvent.ahead`.
        """
        if isinstance(local_steps, np.ndarray) and local_steps.strides == (0,):
            local_steps = int(local_steps[0])
        sizes = self.bytes
        return RoundEvent(
            self.rounds + 1 if number is None else number,
            self.layout,
            local_steps,
            stations,
            ahead=waiting,
            bytes_down=float(sizes.order if down is None else down),
            bytes_up=float(sizes.update if up is None else up),
            request_bytes=self._per_station(sizes.request, sizes.each_request),
            result_bytes=self._per_station(sizes.result, sizes.each_result),
        )

    def _per_station(self, fixed: int, each: int) -> FloatArray | float:
        return float(fixed) if not each else np.asarray(fixed + each * self.layout.members, dtype=np.float64)

    def certificate_event(
        self, sizes: CertificateSizes | None = None, number: int | None = None, report: int = 0
    ) -> RoundEvent:
        """A certificate after round ``number`` (default: the last), by default at its largest, with unknown models.

        ``report`` has the bytes of reports that stations send for it.
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
        """Whether certificates cost any type that is limited."""
        return any(self.certificate[name] for name in self.ledger.budget)

    def server_iteration(self) -> dict[str, float]:
        """Cost, per type, of a server iteration without its rounds, with its part of a certificate if that fits."""
        cloud = event_totals(self.prices, self.cloud_event())
        if not self.certificates_cost:
            return cloud
        least, room = event_totals(self.prices, self.cloud_event(), self.round_event(1)), self.ledger.remaining
        every = self.certify_every
        parts = {
            name: price / every if isinstance(every, int) else min(price, CERTIFYING * least[name])
            for name, price in self.certificate.items()
        }
        if any(least[name] + parts[name] > limit for name, limit in room.items()):
            return cloud
        return {name: cost + parts[name] for name, cost in cloud.items()}

    def cloud_event(self, down: int | None = None) -> CloudEvent:
        """The next server iteration; ``down`` are the bytes of an anchor, by default with a model in it."""
        sizes = self.bytes
        down = sizes.anchor if down is None else down
        return CloudEvent(self.rounds, self.layout, bytes_down=float(down), bytes_up=float(sizes.report))


@dataclass(frozen=True, eq=False)
class Plan:
    """Work of one server iteration: H of every terminal, K of every station, and why."""

    local_steps: IntArray
    station_rounds: IntArray
    solver: Solver = ASCENT
    why: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def uniform(cls, situation: Situation, local_steps: int | IntArray, station_rounds: int, **why: Any) -> Plan:
        """The same H and K for all."""
        H = np.broadcast_to(np.asarray(local_steps, dtype=np.int64), len(situation.sizes))
        return cls(H, np.full(situation.layout.n_tasks, station_rounds), why=why)

    def compact(self) -> Plan:
        """Return the same plan; H that all terminals share takes no memory: rounds are many, and so are terminals."""
        H = self.local_steps
        if len(H) and H.strides != (0,) and (H[0] == H).all():
            return replace(self, local_steps=np.broadcast_to(H[0], H.shape))
        return self


ONE_PASS = 0
"""As a smallest H: one pass over each terminal's own rows."""


def least_of(s: Situation, least_steps: int) -> int | IntArray:
    """Smallest H, of every terminal where it is one pass over rows of which some have more."""
    if least_steps != ONE_PASS:
        return least_steps
    alike = not s.members.all() or s.rows.min() == s.rows.max()
    return int(s.largest.max()) if alike else s.sizes


class Policy(Protocol):
    """Turns what is known into a plan; None ends the run."""

    def plan(self, situation: Situation) -> Plan | None:
        """Plan the next server iteration."""


def check_certify_every(every: Any) -> None:
    """Refuse what is neither a number of rounds nor left to the run."""
    if every != AUTO:
        check_count("certify_every", every)


def check_count(name: str, count: Any, *, optional: bool = False) -> None:
    """Refuse what is not a whole number of at least 1."""
    if optional and count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_COUNT:
        raise ConfigError(f"{name} must be a whole number from 1 to {MOST_COUNT}, got {count!r}")
