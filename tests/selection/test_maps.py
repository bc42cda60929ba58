"""The choice of a feature map within a budget."""

from __future__ import annotations

import numpy as np
import pytest

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.request import Request
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.selection import maps
from rhfedmtl.training.settings import Settings

COST = Cost.of(["energy=0.1,10"])
FEDERATION = Request("synthetic", tasks=3, terminals=3).federation(0)


def test_a_trial_that_fails_counts_what_it_spent() -> None:
    """Gradient steps that diverge in their third round have paid two rounds."""
    built = build("fedavg", Options.of(step=1e6, loss="squared"), "binary")
    choice = maps.in_budget(built, FEDERATION, Settings(scale="standard"), Ledger(COST, ["energy=8000"]))
    assert choice.features == "none"
    assert "the trial of none failed" in choice.why
    assert Ledger.replay(COST, {}, choice.events).spent["energy"] > 0.0


@pytest.mark.parametrize("limit", [8000.0, 20_000.0])
def test_trials_stay_within_their_share(limit: float) -> None:
    """Every candidate has a score, and all together spend no more than their shares."""
    built = build("rhfedmtl", Options(), "binary")
    choice = maps.in_budget(built, FEDERATION, Settings(), Ledger(COST, [f"energy={limit}"]))
    assert [trial.features for trial in choice.tried] == list(maps.CANDIDATES)
    spent = Ledger.replay(COST, {}, choice.events).spent["energy"]
    assert 0.0 < spent <= len(maps.CANDIDATES) * maps.TRIAL_SHARE * limit


def test_a_map_with_more_errors_than_no_map_is_not_taken() -> None:
    """The smallest loss does not win if its errors are above those of the first candidate; ties go to fewer columns."""

    def candidate(features: str, loss: float, errors: float) -> maps.Candidate:
        return maps.Candidate(features, loss + np.array([0.01, -0.01, 0.02, -0.02]), errors)

    none, shrunk = candidate("none", 0.5, 0.1), candidate("none", 0.4, 0.2)
    assert maps._preferred([none, shrunk, candidate("splines", 0.3, 0.11)]) is none
    better, equal = candidate("splines", 0.3, 0.1), candidate("splines+pairs", 0.3, 0.1)
    assert maps._preferred([none, shrunk, better, equal]) is better
