"""The choice of a feature map within a budget."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

from rhfedmtl import RHFedMTLClassifier
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError
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
    """The smallest loss does not win if the first candidate has fewer errors; ties go to fewer columns."""

    def candidate(features: str, loss: float, errors: float) -> maps.MapResult:
        return maps.MapResult(features, loss + np.array([0.01, -0.01, 0.02, -0.02]), errors)

    none, shrunk = candidate("none", 0.5, 0.1), candidate("none", 0.4, 0.2)
    assert maps._preferred([none, shrunk, candidate("splines", 0.3, 0.11)]) is none
    better, equal = candidate("splines", 0.3, 0.1), candidate("splines+pairs", 0.3, 0.1)
    assert maps._preferred([none, shrunk, better, equal]) is better


def test_a_budget_too_small_for_trials_names_a_budget_that_suffices() -> None:
    """The run has no map, the estimator warns, and the budget in the warning pays the trials."""
    X, task = np.random.default_rng(0).normal(size=(400, 4)), np.repeat(["a", "b"], 200)
    y = np.sin(2.0 * X[:, 0]) > 0.0
    with pytest.warns(UserWarning, match=r"a trial of a map may spend 5 % of the budget") as warned:
        model = RHFedMTLClassifier(features="auto", budget="energy=200", random_state=0).fit(X, y, task=task)
    assert model.features_ == "none"
    (sufficient,) = re.findall(r"give (energy=\S+),", str(warned[0].message))
    model = RHFedMTLClassifier(features="auto", budget=sufficient, random_state=0).fit(X, y, task=task)
    assert [trial.features for trial in model.regularisation_.maps][:1] == ["none"]


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "constant"])
def test_methods_without_duals_get_a_map_and_its_weight(algorithm: str) -> None:
    """The choice uses the dual problem with the same loss, and the method gets the map and λ1."""
    X, task = np.random.default_rng(0).normal(size=(300, 3)), np.repeat(["a", "b"], 150)
    model = RHFedMTLClassifier(features="auto", algorithm=algorithm, random_state=0, max_rounds=20, tol=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, np.sin(3.0 * X[:, 0]) > 0.0, task=task)
    assert model.features_ in ("splines", "splines+pairs", "sparse-fourier")
    assert model.lambda1_ == model.regularisation_.chosen["lambda1"]


def test_a_table_of_texts_has_nothing_to_map() -> None:
    """`auto` takes no map and says why; a named map is an error with the way out."""
    frame = pd.DataFrame({"colour": ["red", "blue", "green"] * 40, "site": ["a", "b"] * 60})
    y = (frame["colour"] == "red").to_numpy()
    model = RHFedMTLClassifier(features="auto", task="site", random_state=0)
    with pytest.warns(UserWarning, match="need columns of numbers, and the table has none"):
        model.fit(frame, y)
    assert model.features_ == "none"
    assert model.score(frame, y) == 1.0
    with pytest.raises(ConfigError, match="features 'splines' need columns of numbers"):
        RHFedMTLClassifier(features="splines", task="site", random_state=0).fit(frame, y)


def test_a_plan_needs_a_named_map_and_a_description_counts_only_columns_of_numbers(tmp_path: Path) -> None:
    """Both commands take the same map as a training."""
    file = tmp_path / "sites.csv"
    lines = [f"{i % 7},{i % 5},{'red' if i % 3 else 'blue'},{'ab'[i % 2]},{i % 4 // 2}" for i in range(60)]
    file.write_text("\n".join(["p,q,colour,site,y", *lines]) + "\n")
    table = ["--path", str(file), "--label", "y", "--task", "site", "--features"]
    described = CliRunner().invoke(app, ["data", "describe", *table, "splines", "--json"])
    assert json.loads(described.stdout)["mapped_features"] == 4 + 2 * 8  # p, q and two colours; only p and q are mapped
    planned = CliRunner().invoke(app, ["plan", *table, "auto", "--budget", "energy=500"])
    assert planned.exit_code != 0
    assert "name a map to plan with" in str(planned.exception)
