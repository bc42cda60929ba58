"""Certificates of a run: what they are made from, what terminals know of it, when they are due, how they are paid."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.engines.network import Network, ShareSums, TellsNoised
from rhfedmtl.errors import IncompleteError
from rhfedmtl.maths.kernels.rounds import dual_length
from rhfedmtl.maths.mixtures import share_between
from rhfedmtl.maths.objective import Points, any_models
from rhfedmtl.maths.quasi_newton import ASCENT
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import AUTO, CERTIFYING, Plan, Situation
from rhfedmtl.resources.billing import Placement, RoundEvent, event_totals
from rhfedmtl.resources.sizes import CertificateSizes
from rhfedmtl.roles.averaging import AveragingCloud
from rhfedmtl.roles.cloud import Certificate, Cloud, NoisedCertificate, most_candidates
from rhfedmtl.roles.messages import StationSums, certificate_sizes
from rhfedmtl.roles.station import LARGEST_MODEL, refuse_divergence
from rhfedmtl.training import privacy
from rhfedmtl.training.accounting import Accounting
from rhfedmtl.training.privacy import PrivatePlan, Released


class Certifier:
    """Asks the stations for sums and makes certificates of them; ``layout`` says who is where.

    ``ordered`` are the models of the last orders and ``asked`` those of the last probes: all terminals know them, and
    need not be told them again. ``probed`` is what the last probe took. With ``free`` messages count for nothing.
    """

    def __init__(
        self,
        network: Network,
        cloud: Cloud | AveragingCloud,
        method: Method,
        layout: Callable[[], Placement],
        *,
        free: bool,
    ) -> None:
        self._network, self._cloud, self._method, self._layout, self._free = network, cloud, method, layout, free
        self.ordered: Models | None = None
        self.asked: Points | None = None
        self.probed = CertificateSizes()

    def knows(self, models: Models) -> bool:
        """Whether every terminal was told these models, by the last order or the last certificate, or what they are."""
        asked = [] if self.asked is None else [*self.asked.models]
        known = asked if self.ordered is None else [self.ordered, *asked]
        if any(np.array_equal(models, each) for each in known):
            return True
        return len(asked) == 2 and share_between(models, np.array(asked)) is not None

    @property
    def most_bytes(self) -> CertificateSizes:
        """Sizes of the messages of a certificate, at most."""
        if isinstance(self._cloud, Cloud):
            return self._sizes(*most_candidates())
        return self._sizes(1, 2, gradient=True)

    def _sizes(self, models: int, points: int, known: int = 0, *, gradient: bool = False) -> CertificateSizes:
        """Sizes of the messages of a certificate with so many models, of which some are known."""
        if self._free:
            return CertificateSizes()
        method = self._method
        return certificate_sizes(
            self._network.shape,
            models,
            points,
            dual_length(method.loss),
            method.channel,
            gradient=gradient,
            residual=method.tells_residual,
            known=known,
            masked_among=method.channel.masked_among(self._layout().members),
        )

    def make(self, number: int, *, ahead: bool) -> Certificate:
        """The cloud's certificate, ``ahead`` of a server iteration or not; of models without a dual, theirs alone."""
        if isinstance(self._cloud, Cloud):
            found = self._cloud.certify(self._sums(self._cloud.candidates(ahead=ahead)))
            if found is None:
                raise IncompleteError("no certificate: a terminal or station did not report its sums, or has changed")
            return found
        assert isinstance(self._method, SgdMethod)
        models = self._merged()
        refuse_divergence(models, number, largest=LARGEST_MODEL)
        models = self._cloud.told(models)
        found = self._cloud.certify(models, self._sums(any_models(models)), self._method.relationship)
        if found is None:
            raise IncompleteError("no certificate: a station did not report its sums")
        return found

    @property
    def can_close(self) -> bool:
        """Whether there is a dual, and stations did not tell of the gradient that `close` asks for."""
        return isinstance(self._cloud, Cloud) and not (self.asked is not None and self.asked.gradient)

    def close(self, certificate: Certificate) -> Certificate | None:
        """The last certificate, with one more dual for its bound: that of the gradient at the models to return.

        None where these are of an earlier problem, or not all stations told.
        """
        assert isinstance(self._cloud, Cloud)
        points = self._cloud.closing()
        try:
            return None if points is None else self._cloud.close(certificate, self._sums(points))
        except IncompleteError:
            return None

    @property
    def tells_noised(self) -> bool:
        """Whether a private certificate can be made here."""
        return isinstance(self._cloud, Cloud) and isinstance(self._network, ShareSums | TellsNoised)

    def make_private(self, plan: PrivatePlan, noise: npt.NDArray[np.float64], seed: int) -> Certificate:
        """The one certificate of a private run, where sums have ``noise`` of these variances."""
        assert isinstance(self._cloud, Cloud)
        relationship, V = self._cloud.relationship, self._cloud.V
        return privacy.certificate(plan, Released(self._method, relationship, V, noise, seed), self._network)

    def make_void(self, number: int) -> Certificate:
        """The models, of which nothing is said."""
        solved = self._cloud.relationship.solve(self._cloud.V) if isinstance(self._cloud, Cloud) else self._merged()
        return NoisedCertificate.made(number, solved, np.inf, 0.0, np.nan)

    def _merged(self) -> Models:
        assert isinstance(self._method, SgdMethod)
        assert isinstance(self._cloud, AveragingCloud)
        return self._method.task_models(self._cloud.merged(self._network.models), self._network.shape[0])

    def _sums(self, points: Points) -> list[StationSums | None]:
        """Sums of every station at these points; terminals know the models from now on, unless that was free."""
        sums = self._network.sums(points)
        known = sum(self.knows(models) for models in points.models)
        count, models = points.combinations.shape
        self.probed = self._sizes(models, count, known, gradient=points.gradient)
        self.asked = None if self._free else points
        return sums


class CertificateBudget:
    """What certificates take of a budget: ``spent`` so far, ``aside`` for the last one, which is paid from the start.

    ``unpaid`` says that not even that one can be paid.
    """

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self.spent: dict[str, float] = {}
        self.aside: dict[str, float] = {}
        self.unpaid = False
        self._reservation: int | None = None

    def set_aside(self, situation: Situation) -> None:
        """Set the price of the last certificate aside, where it has one and can be paid."""
        price = self._accounting.worst(situation.certificate_event())
        self.unpaid = not self._accounting.ledger.can_afford(price)
        self.resume(self.spent, price if any(price.values()) and not self.unpaid else {}, self.unpaid)

    def keep_aside(self) -> None:
        """Set aside again what was given back, where a run goes on."""
        if self._reservation is None and self.aside and self._accounting.ledger.can_afford(self.aside):
            self._reservation = self._accounting.ledger.reserve(self.aside)

    def give_back(self) -> None:
        """The last certificate is due: what was set aside for it may be spent."""
        if self._reservation is not None:
            self._accounting.ledger.release(self._reservation)
            self._reservation = None

    def resume(self, spent: dict[str, float], aside: dict[str, float], unpaid: bool) -> None:
        """Go on as it stood, with a ledger in which nothing is reserved."""
        self.spent, self.aside, self.unpaid = spent, aside, unpaid
        self._reservation = self._accounting.ledger.reserve(aside) if aside else None

    def charged(self, prices: dict[str, float]) -> None:
        """Count what a certificate took."""
        self.spent = {name: self.spent.get(name, 0.0) + cost for name, cost in prices.items()}

    def is_due(self, situation: Situation, plan: Plan, number: int, event: RoundEvent) -> bool:
        """Whether to certify BS iteration ``number``: as asked for, always in a search, and only where it can be paid.

        ``event`` is what the certificate would be.
        """
        every, ledger = situation.certify_every, self._accounting.ledger
        if plan.solver == ASCENT and isinstance(every, int) and number % every:
            return False
        if not situation.certificates_cost:
            return True
        if plan.solver == ASCENT and every == AUTO:
            price, spent = event_totals(situation.prices, event), ledger.spent
            for name in ledger.budget:
                certifying = self.spent.get(name, 0.0)
                if certifying + price[name] > CERTIFYING * (spent[name] - certifying):
                    return False
        return ledger.can_afford(self._accounting.worst(event))
