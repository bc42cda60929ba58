"""A bound above the objective is no bound: a run with one ends, and never as a success; a target of 0 is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.deploy.cloud.measured_run import refuse_broken
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.certificates import Certificate
from rhfedmtl.training.result import BROKEN
from rhfedmtl.training.run import Run, train
from rhfedmtl.training.settings import Settings

METHOD = DualMethod(SmoothedHinge(), MeanRegularised(0.1, 0.1))


def federation() -> Federation:
    """Two small tasks."""
    return Request(data="synthetic", tasks=2, terminals=2, samples_per_task=20).federation(0)


def certificate(primal: float, gap: float) -> Certificate:
    """A certificate with this gap."""
    empty = np.zeros((1, 1, 1))
    return Certificate(3, primal, primal - gap, empty, empty[0, 0], empty[0, 0])


@pytest.mark.parametrize(
    ("primal", "gap", "broken"),
    [(0.1, -2.8e-17, False), (0.1, 0.0, False), (0.1, -2e-9, True), (0.1, -4.5e-5, True), (1e6, -5e-4, False)],
)
def test_only_what_rounding_explains_may_lie_below_zero(primal: float, gap: float, broken: bool) -> None:
    """1e-9 of the objective, or of 1 where that is more."""
    assert certificate(primal, gap).broken is broken


def test_a_run_whose_bound_is_broken_ends_and_says_so() -> None:
    """A sum that is told far too large would pass for a solved problem; whatever the target, it is none."""
    run = Run(federation(), METHOD, Settings(target_gap=1e-2), Ledger({}))
    honest = run.network.sums

    def told(points: Any) -> Any:
        return [replace(sums, dual=sums.dual + 1e6) for sums in honest(points) if sums is not None]

    run.network.sums = told  # type: ignore[method-assign]
    assert run.learn(Fixed(10, 1, 500)) == BROKEN
    assert run.state.round == 1
    assert run.result("target gap reached").stopped == BROKEN


def test_a_broken_certificate_names_who_cannot_be_right() -> None:
    """The certificate blames the liar and not the other station: its losses are below the bound of its duals."""
    run = Run(federation(), METHOD, Settings(target_gap=1e-2), Ledger({}))
    honest = run.network.sums

    def lying_sums(points: Any) -> Any:
        return [replace(sums, losses=sums.losses - 20.0 * sums.task) for sums in honest(points) if sums is not None]

    run.network.sums = lying_sums  # type: ignore[method-assign]
    assert run.learn(Fixed(10, 1, 500)) == BROKEN
    assert run.state.certificate is not None
    assert run.state.certificate.suspects == (1,)
    with pytest.raises(PeerError, match=r"The numbers of station 1 cannot be true: its losses lie below"):
        refuse_broken(run.state.certificate)


def test_the_others_go_on_without_a_task_that_is_left_out() -> None:
    """They get a certificate of their own problem, and the task keeps its model."""
    made = Request(data="synthetic", tasks=3, terminals=2, samples_per_task=20).federation(0)
    run = Run(made, METHOD, Settings(max_rounds=40), Ledger({}))
    run.learn(Fixed(10, 1, 4))
    before = run.certify().models[1].copy()
    run.network.excluded = {1: "what cannot be"}  # type: ignore[attr-defined]
    result = run.result(run.learn(Fixed(10, 1, 36)))
    np.testing.assert_array_equal(result.certificate.models[1], before)
    assert np.isnan(result.certificate.station_gaps).tolist() == [False, True, False]
    losses = []
    for b in (0, 2):
        rows = slice(*made.terminal_offsets[made.task_offsets[b : b + 2]].tolist())
        X = np.column_stack(
            [run.units.scalers[b].transform(made.X[rows]), np.full(len(made.X[rows]), run.units.constant)]
        )
        scores = X @ result.certificate.models[b].T
        y = made.targets()[rows]
        losses.append(np.mean([METHOD.loss.value(z, t) for z, t in zip(scores[:, 0], y[:, 0], strict=True)]))
    energy = METHOD.relationship.energy(result.certificate.models[[0, 2]])
    primal = (sum(losses) + energy / 2.0) / 2.0
    assert result.certificate.primal == pytest.approx(primal, rel=1e-9)
    assert 0.0 <= result.certificate.gap < 1e-2


def test_a_target_of_zero_is_none() -> None:
    """A solved problem goes on to the end of its plan, though its gap rounds to less than zero now and then."""
    settings = Settings(target_gap=0.0, target_relative_gap=0.0)
    result = train(federation(), METHOD, Fixed(50, 1, 300), settings)
    assert result.stopped == "plan completed"
    assert result.rounds == 300
    assert abs(result.certificate.gap) < 1e-13
