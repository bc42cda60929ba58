"""Certificates of a run: how to make them, when they are due, and who pays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.engines.network import Network, ShareSums, TellsNoised
from rhfedmtl.errors import IncompleteError
from rhfedmtl.maths.kernels.rounds import dual_length
from rhfedmtl.maths.mixtures import share_between
from rhfedmtl.maths.objective import Points, any_models
from rhfedmtl.maths.quasi_newton import ASCENT, Solver
from rhfedmtl.maths.relationships import Models
from rhfedmtl.policies.base import AUTO, MOST_CERTIFYING, Situation
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.events import Event, Placement, ReleaseEvent, RoundEvent
from rhfedmtl.resources.sizes import CertificateSizes
from rhfedmtl.roles.averaging import AveragingCloud
from rhfedmtl.roles.certificates import Certificate, NoisedCertificate
from rhfedmtl.roles.cloud import Cloud, most_candidates
from rhfedmtl.roles.message_sizes import certificate_sizes
from rhfedmtl.roles.messages import StationSums
from rhfedmtl.roles.plausibility import LARGEST_MODEL, refuse_divergence
from rhfedmtl.training import privacy
from rhfedmtl.training.accounting import Accounting
from rhfedmtl.training.privacy import RESOURCE, PrivatePlan, Released
from rhfedmtl.training.result import Metrics, Moment
from rhfedmtl.training.settings import Settings
from rhfedmtl.training.state import RunState

CLOSE = 1e-6
"""The last certificate is not tightened below this relative gap."""

LAST_DIGITS = 4e-15
"""A gap below this share of the objective of the zero model is only rounding error, however small the objective is."""


def target_reached(certificate: Certificate, settings: Settings) -> str | None:
    """Return the target that a certificate of the last round has reached, in words, if any."""
    if certificate.broken:
        return None
    if 0.0 < settings.target_gap >= certificate.gap:
        return "target gap reached"
    relative = settings.target_relative_gap
    if not relative > 0.0:
        return None
    if relative >= certificate.relative_gap:
        return f"relative gap of {relative:g} reached"
    return "solved up to rounding" if certificate.gap <= LAST_DIGITS * abs(certificate.zero) else None


class Certifier:
    """Asks the stations for sums and makes certificates of them.

    ``state`` has the models that all terminals know, from the last orders and the last certificate: they need not be
    sent again. ``layout`` says who is where. ``sent`` has the sizes of the last certificate's messages; with ``free``
    messages count for nothing.
    """

    def __init__(
        self,
        network: Network,
        cloud: Cloud | AveragingCloud,
        method: Method,
        state: RunState,
        layout: Callable[[], Placement],
        *,
        free: bool,
    ) -> None:
        self._network, self._cloud, self._method, self._free = network, cloud, method, free
        self.layout = layout
        self.state = state
        self.sent = CertificateSizes()

    def knows(self, models: Models) -> bool:
        """Return True if every terminal already holds these models, or two models that they lie between."""
        last_sent, probed = self.state.last_sent, self.state.probed
        if last_sent is not None and np.array_equal(models, last_sent):
            return True
        if probed is None:
            return False
        for shared in probed.models:
            if np.array_equal(models, shared):
                return True
        return len(probed.models) == 2 and share_between(models, probed.models) is not None

    @property
    def most_bytes(self) -> CertificateSizes:
        """Sizes of the messages of a certificate, at most."""
        if isinstance(self._cloud, Cloud):
            return self._sizes(*most_candidates())
        return self._sizes(1, 2, gradient=True)

    def _sizes(self, models: int, points: int, known: int = 0, *, gradient: bool = False) -> CertificateSizes:
        """Sizes of the messages of a certificate with so many models, of which terminals know some."""
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
            masked_among=method.channel.masked_among(self.layout().members),
        )

    def make(self, *, next_anchors: bool) -> Certificate:
        """Return the cloud's certificate, for the anchors of the next server iteration if ``next_anchors``.

        A method without a dual certifies its models alone. Raises IncompleteError if a station's sums are missing.
        """
        if isinstance(self._cloud, Cloud):
            certificate = self._cloud.certify(self._sums(self._cloud.candidates(next_anchors=next_anchors)))
            if certificate is None:
                raise IncompleteError("no certificate: a terminal or station did not report its sums, or has changed")
            return certificate
        assert isinstance(self._method, SgdMethod)
        models = self._merged()
        refuse_divergence(models, self.state.round, largest=LARGEST_MODEL)
        models = self._cloud.as_sent(models)
        certificate = self._cloud.certify(models, self._sums(any_models(models)), self._method.relationship)
        if certificate is None:
            raise IncompleteError("no certificate: a station did not report its sums")
        return certificate

    def tighten(self, certificate: Certificate) -> Certificate | None:
        """Return the last certificate with a tighter bound, from the dual of the gradient at its models.

        Return None if the method has no dual, a station did not answer or has sent that gradient already, or the models
        are of an earlier problem.
        """
        probed = self.state.probed
        if not isinstance(self._cloud, Cloud) or (probed is not None and probed.gradient):
            return None
        points = self._cloud.closing()
        try:
            return None if points is None else self._cloud.close(certificate, self._sums(points))
        except IncompleteError:
            return None

    @property
    def sends_noised(self) -> bool:
        """True if a private certificate can be made here."""
        return isinstance(self._cloud, Cloud) and isinstance(self._network, ShareSums | TellsNoised)

    def make_private(self, plan: PrivatePlan, seed: int) -> Certificate:
        """Return the only certificate of a private run, whose sums have noise."""
        assert isinstance(self._cloud, Cloud)
        noise = np.asarray(self.state.noise)
        released = Released(self._method, self._cloud.relationship, self._cloud.V, noise, seed)
        return privacy.certificate(plan, released, self._network)

    def make_void(self) -> Certificate:
        """Return the models without any bound."""
        solved = self._cloud.relationship.solve(self._cloud.V) if isinstance(self._cloud, Cloud) else self._merged()
        return NoisedCertificate.made(self.state.round, solved, np.inf, 0.0, np.nan)

    def _merged(self) -> Models:
        assert isinstance(self._method, SgdMethod)
        assert isinstance(self._cloud, AveragingCloud)
        return self._method.task_models(self._cloud.merged(self._network.models), self._network.shape[0])

    def _sums(self, points: Points) -> list[StationSums | None]:
        """Sums of every station at these points; terminals know the models from now on, unless that was free."""
        sums = self._network.sums(points)
        known = sum(map(self.knows, points.models))
        count, models = points.combinations.shape
        self.sent = self._sizes(models, count, known, gradient=points.gradient)
        self.state.probed = None if self._free else points
        return sums


class CertificateBudget:
    """Spending of certificates: ``spent`` so far, and ``aside`` for the last certificate.

    The price of the last certificate is set aside before the first round. ``unpaid`` is True if the budget cannot pay
    it.
    """

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self.spent: dict[str, float] = {}
        self.aside: dict[str, float] = {}
        self.unpaid = False
        self._reservation: int | None = None

    def set_aside(self, situation: Situation) -> None:
        """Set the price of the last certificate aside, if the budget can pay it."""
        price = self._accounting.worst(situation.certificate_event())
        self.unpaid = not self._accounting.ledger.can_afford(price)
        self.resume(self.spent, price if any(price.values()) and not self.unpaid else {}, self.unpaid)

    @contextlib.contextmanager
    def kept_aside(self) -> Iterator[None]:
        """Keep the price of the last certificate aside while rounds run; after them the certificate may spend it."""
        if self._reservation is None and self.aside and self._accounting.ledger.can_afford(self.aside):
            self._reservation = self._accounting.ledger.reserve(self.aside)
        try:
            yield
        finally:
            if self._reservation is not None:
                self._accounting.ledger.release(self._reservation)
                self._reservation = None

    def resume(self, spent: dict[str, float], aside: dict[str, float], unpaid: bool) -> None:
        """Go on from these amounts, with a ledger in which nothing is reserved."""
        self.spent, self.aside, self.unpaid = spent, aside, unpaid
        self._reservation = self._accounting.ledger.reserve(aside) if aside else None

    def charged(self, prices: dict[str, float]) -> None:
        """Count what a certificate took."""
        self.spent = {name: self.spent.get(name, 0.0) + cost for name, cost in prices.items()}


class Certification:
    """Certifies a run, charges what that costs, and keeps the latest certificate and metrics in the run's state.

    The loop asks `is_due` after each BS iteration and calls `certify`; the run calls `certify` and `tighten` at its
    end.
    """

    def __init__(
        self,
        certifier: Certifier,
        cloud: Cloud | AveragingCloud,
        accounting: Accounting,
        settings: Settings,
        private: PrivatePlan | None,
        task_station: npt.NDArray[np.int64],
        charge: Callable[[Event], None],
        evaluate: Callable[[Certificate], Metrics],
    ) -> None:
        self.certifier, self.budget = certifier, CertificateBudget(accounting)
        self.settings = settings
        self._cloud, self._accounting, self._private = cloud, accounting, private
        self._task_station, self._charge, self._evaluate = task_station, charge, evaluate

    def is_due(self, situation: Situation, solver: Solver) -> bool:
        """Return True if the last BS iteration needs a certificate.

        An interval that the user asked for holds for dual ascent; a quasi-Newton search needs every certificate. A
        certificate must fit into the budget, and, if the run chooses, into the share for certificates.
        """
        state, every, ledger = self.certifier.state, situation.certify_every, self._accounting.ledger
        if solver == ASCENT and isinstance(every, int) and state.round % every:
            return False
        if not situation.certificates_cost:
            return True
        event = self._event(situation, situation.certificate_bytes)
        if solver == ASCENT and every == AUTO:
            price, spent = event_totals(situation.prices, event), ledger.spent
            for name in ledger.budget:
                certifying = self.budget.spent.get(name, 0.0)
                if certifying + price[name] > MOST_CERTIFYING * (spent[name] - certifying):
                    return False
        return ledger.can_afford(self._accounting.worst(event))

    def certify(self, situation: Situation, *, interrupted: bool = False) -> Certificate:
        """Return the certificate of the present models, and put it and test metrics into the state; once for a round.

        If a station did not report, return the last complete certificate. Raise IncompleteError if there was no other.
        """
        state = self.certifier.state
        if state.certificate is not None and state.is_certified:
            return state.certificate
        try:
            state.certificate = certificate = self._make(interrupted=interrupted)
        except IncompleteError:
            if state.certificate is None:
                raise
            return state.certificate
        self.charge(situation)
        if state.observed:
            astray = certificate.held > certificate.zero
            state.observed[-1] = state.observed[-1]._replace(gap=certificate.single_gap, astray=astray)
        if self._lacks_metrics(certificate):
            state.metrics = self._evaluate(certificate)
        state.history[-1:] = [self.moment(certificate)]
        return certificate

    def tighten(self, certificate: Certificate, situation: Situation) -> Certificate:
        """Return the last certificate, tightened if it is still loose and that costs nothing that is limited."""
        state = self.certifier.state
        good = certificate.relative_gap <= CLOSE or (
            state.is_certified and target_reached(certificate, self.settings) is not None
        )
        if good or self._private is not None or not state.is_certified or situation.certificates_cost:
            return certificate
        tightened = self.certifier.tighten(certificate)
        if tightened is None:
            return certificate
        state.certificate = tightened
        self.charge(situation)
        state.history[-1:] = [self.moment(tightened)]
        return tightened

    def charge(self, situation: Situation) -> None:
        """Charge the messages of the last certificate, if bytes have a price."""
        event = self._event(situation, self.certifier.sent)
        price = event_totals(situation.prices, event)
        if any(price.values()):
            self.budget.charged(price)
            self._charge(event)

    def moment(self, certificate: Certificate | None = None) -> Moment:
        """Return the spending after this round, with the quality if it was certified."""
        state, spent = self.certifier.state, self._accounting.ledger.spent
        if certificate is None:
            return Moment(state.round, self._cloud.cloud_round, spent)
        quality = certificate.primal, certificate.dual, certificate.station_gaps, state.metrics
        return Moment(state.round, self._cloud.cloud_round, spent, *quality)

    def _make(self, *, interrupted: bool) -> Certificate:
        """Make a certificate. A private run pays before, and if it is interrupted there is no certificate."""
        state, certifier = self.certifier.state, self.certifier
        if self._private is None:
            return certifier.make(next_anchors=state.iteration_is_over)
        if interrupted or not certifier.sends_noised:
            return certifier.make_void()
        if state.released != state.round:  # a second request gets the same answers
            price = {RESOURCE: self._private.certificate_price}
            self._charge(ReleaseEvent(state.round, certifier.layout(), price))
            state.released = state.round
        return certifier.make_private(self._private, self.settings.seed)

    def _event(self, situation: Situation, sizes: CertificateSizes) -> RoundEvent:
        """Return the event of a certificate; in the middle of a server iteration stations send reports for it."""
        state = self.certifier.state
        more = 0 if state.iteration_is_over else situation.bytes.report
        return situation.certificate_event(sizes, state.round, more)

    def _lacks_metrics(self, certificate: Certificate) -> bool:
        """Return True if the test metrics belong to other models, or a station did not send its metrics."""
        metrics = self.certifier.state.metrics
        if not metrics or certificate.found == certificate.round:
            return True
        tasks = np.isin(self._task_station, self._cloud.tasks) if isinstance(self._cloud, Cloud) else slice(None)
        return bool(np.isnan(np.array(list(metrics.values()))[:, tasks]).any())
