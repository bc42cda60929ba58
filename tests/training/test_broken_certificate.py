"""A bound above the objective is no bound: a run with one ends, and never as a success; a target of 0 is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Certificate
from rhfedmtl.training.result import BROKEN
from rhfedmtl.training.run import Run, Settings, train

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
    assert run.round == 1
    assert run.result("target gap reached").stopped == BROKEN


def test_a_target_of_zero_is_none() -> None:
    """A solved problem goes on to the end of its plan, though its gap rounds to less than zero now and then."""
    settings = Settings(target_gap=0.0, target_relative_gap=0.0)
    result = train(federation(), METHOD, Fixed(50, 1, 300), settings)
    assert result.stopped == "plan completed"
    assert result.rounds == 300
    assert abs(result.certificate.gap) < 1e-13
