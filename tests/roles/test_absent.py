"""Certificates that count the rows of absent terminals at their worst."""

from __future__ import annotations

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.maths.kernels.rounds import THETAS
from rhfedmtl.maths.losses import Hinge, Logistic, Loss, SmoothedHinge, Squared, SquaredHinge
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.roles.messages import StationSums
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal

SHAPE = (1, 4)
POINTS = np.array([[1.0, 0.0], [0.0, 1.0], [0.4, 0.4], [0.0, 0.0]])


class Trial:
    """A task of three terminals with unit rows, some of them with weights, after a few rounds."""

    def __init__(self, loss: Loss, seed: int, *, rounds: int = 4, weights: bool = False) -> None:
        rng = np.random.default_rng(seed)
        method = DualMethod(loss=loss, intercept=False)
        self.cloud = Cloud(method.relationship, 1, SHAPE, method.channel)
        self.station = BaseStation(0, SHAPE, method)
        self.station.roster.row_norm = 1.0
        self.terminals = []
        for t in range(3):
            X = rng.normal(size=(5, SHAPE[1]))
            weight = rng.uniform(0.2, 3.0, size=5) if weights else None
            rows = X / np.linalg.norm(X, axis=1, keepdims=True), rng.choice([-1.0, 1.0], size=(5, 1))
            self.terminals.append(Terminal(t, *rows, method, seed=seed, weight=weight))
            self.station.roster.admit(self.terminals[t].join())
        self.station.receive_anchor(self.cloud.assign()[0])
        for number in range(1, rounds + 1):
            for order in self.station.open_round(number, dict.fromkeys(range(3), 5)):
                update = self.terminals[order.terminal].work(order)
                assert update is not None
                self.station.receive(update)
            self.station.close_round()
        self.cloud.receive(self.station.report(self.cloud.cloud_round))

    def sums(self, answering: tuple[int, ...], *, gradient: bool = False) -> StationSums | None:
        """Sums for the candidates of the cloud; all others are absent."""
        points = self.cloud.candidates()
        probes = self.station.probes(points.models[:, 0], points.combinations, gradient=gradient)
        answers = [self.terminals[p.terminal].probe(p) for p in probes if p.terminal in answering]
        return self.station.add_sums([answer for answer in answers if answer is not None], {0, 1, 2})


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("loss", [SmoothedHinge(), SmoothedHinge(3.0), Hinge(), Logistic()])
@pytest.mark.parametrize("seed", range(5))
def test_rows_at_their_worst_bound_the_true_certificate(loss: Loss, seed: int, weights: bool) -> None:
    """The losses are no smaller, the dual sum is no larger for any share of it, and so the bound holds."""
    trial = Trial(loss, seed, weights=weights)
    partial, complete = trial.sums((0, 2)), trial.sums((0, 1, 2))
    assert partial is not None
    assert complete is not None
    assert partial.worst is not None
    assert (partial.absent, complete.absent, complete.worst) == ((1,), (), None)
    assert (partial.losses + partial.worst >= complete.losses - 1e-12).all()
    for theta in THETAS:
        curves = [_curve(sums, float(theta)) for sums in (partial, complete)]
        assert curves[0] <= curves[1] + 1e-12
    first = trial.cloud.certify([partial])
    assert first is not None
    assert first.absent == (1,)
    best = trial.cloud.certify([complete])
    assert best is not None
    assert first.primal >= best.dual - 1e-12
    assert first.dual <= best.primal + 1e-12
    assert first.gap >= best.gap - 1e-12


def _curve(sums: StationSums, theta: float) -> float:
    """f(θ) as a station told it."""
    if len(sums.dual) == 2:
        return float(theta * sums.dual[0] - theta * theta * sums.dual[1] / 2.0)
    return float(np.interp(theta, THETAS, sums.dual))


def test_absent_terminals_do_not_choose_the_models() -> None:
    """Their worst case grows with any model: it would make the zero model the best."""
    trial = Trial(SmoothedHinge(), 0)
    partial = trial.sums((0,))
    assert partial is not None
    certificate = trial.cloud.certify([partial])
    assert certificate is not None
    assert np.abs(certificate.models).max() > 0.0
    assert certificate.primal > 0.0


def test_a_complete_certificate_is_not_given_up_for_a_partial_one() -> None:
    """Models with a proof for all rows stay, as long as the problem does."""
    trial = Trial(SmoothedHinge(), 1)
    sums, partial = trial.sums((0, 1, 2)), trial.sums((0, 2))
    complete = trial.cloud.certify([sums])
    assert complete is not None
    later = trial.cloud.certify([partial])
    assert later is not None
    assert later.primal <= complete.primal
    assert later.dual >= complete.dual


@pytest.mark.parametrize(
    ("loss", "row_norm", "gradient"),
    [(SquaredHinge(), 1.0, False), (Squared(), 1.0, False), (Hinge(), np.inf, False), (Hinge(), 1.0, True)],
)
def test_nothing_is_counted_without_a_bound(loss: Loss, row_norm: float, gradient: bool) -> None:
    """Labels, rows or duals without a bound, and gradients: no certificate without all members."""
    trial = Trial(loss, 0)
    trial.station.roster.row_norm = row_norm
    assert trial.sums((0, 2), gradient=gradient) is None
    assert trial.sums((0, 1, 2), gradient=gradient) is not None
