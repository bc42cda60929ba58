"""A run on paper costs what the run costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.request import Request
from rhfedmtl.planning.dry_run import Frozen, dry_run
from rhfedmtl.policies.base import Plan
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings


def test_different_numbers_of_rounds_cost_on_paper_what_they_cost() -> None:
    """Stations that do not wait for each other take on paper the time that they take in a run."""
    federation = Request("synthetic", tasks=3, terminals=2).federation(seed=0)
    cost = {
        "time": {"terminal_step": [0.1, 0.2, 0.1, 0.1, 0.3, 0.1], "station_round": [5.0, 1.0, 0.5]},
        "energy": {"terminal_step": 0.1, "station_round": 1.0},
    }
    run = Run(federation, DualMethod(), Settings(certify_every=10**9), Ledger(cost, {"time": 40.0, "energy": 90.0}))
    policy = Frozen(Plan(np.array([3, 4, 5, 6, 7, 8]), np.array([1, 3, 5])))
    start = run.situation()
    done = dry_run(policy, replace(start, memo={}))
    run.learn(policy)
    assert (done.rounds, done.cloud_rounds) == (run.state.round, run.cloud.cloud_round)
    assert done.terminal_steps == run.state.terminal_steps
    assert done.spent == pytest.approx(run.ledger.spent)
