"""A certificate for any models: the bound holds, whoever made them, and every face says the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from rhfedmtl import RunConfig, certify
from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.roles.words import in_words

KINDS = {"binary": 2, "classes": 3, "regression": 0}


def request(kind: str = "binary") -> Request:
    """Three small tasks."""
    return Request("synthetic", tasks=3, terminals=2, settings={"classes": KINDS[kind], "features": 5})


def solved(kind: str = "binary", **options: Any) -> tuple[Any, Any]:
    """A federation, and what a run with a small gap gives for it."""
    config = RunConfig("rhfedmtl", request(kind), Options.of(**options), target_gap=1e-7)
    federation = config.federation()
    return federation, config.run(federation)


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_models_have_the_objective_of_their_run_and_a_bound_below_the_optimum(kind: str) -> None:
    """With the scaling of the models, and labels without their levels."""
    federation, result = solved(kind)
    models = TaskModels.from_result(federation, result, Options().chosen_loss(federation.kind))
    found = certify(models, federation)
    assert found.primal == pytest.approx(result.certificate.primal, rel=1e-9)
    assert found.zero == pytest.approx(result.certificate.zero, rel=1e-9)
    assert 0.99 * found.primal <= found.dual <= result.certificate.primal


def test_features_are_found_by_their_names() -> None:
    """Columns in another order are the same data; a column that the models do not know is refused."""
    federation, result = solved()
    models = TaskModels.from_result(federation, result, Options().chosen_loss(federation.kind))
    order = [3, 0, 4, 1, 2]
    names = tuple(federation.feature_names[j] for j in order)
    found = certify(models, replace(federation, X=federation.X[:, order], feature_names=names))
    assert found.primal == pytest.approx(certify(models, federation).primal, rel=1e-9)
    assert found.primal == pytest.approx(result.certificate.primal, rel=1e-9)
    with pytest.raises(DataError, match="'height' that the models do not know, and lacks 'x0'"):
        certify(models, replace(federation, feature_names=("height", *federation.feature_names[1:])))


def test_the_bound_of_any_weights_holds() -> None:
    """Random ones, one model for all, and none."""
    federation, result = solved("binary", loss="logistic")
    best = certify(
        TaskModels.from_result(federation, result, Options(loss="logistic").chosen_loss("binary")), federation
    )
    rng = np.random.default_rng(0)
    for weights in (rng.normal(size=(3, 5)), rng.normal(size=5), np.zeros((3, 1, 5))):
        found = certify(weights, federation, intercept=np.zeros(3), loss="logistic", lambda2=0.1)
        assert 0.0 <= found.dual <= found.primal
        assert found.zero == pytest.approx(np.log(2.0))
    assert best.gap <= 1e-4


def test_models_of_scikit_learn_are_certified() -> None:
    """A fit of every task on its own is nearly the best possible one where tasks are not coupled."""
    federation, _ = solved()
    coef, intercept = [], []
    for b in range(federation.n_tasks):
        own = federation.row_task == b
        rows = federation.X[own]
        fit = LogisticRegression(C=1.0 / (0.01 * len(rows)), tol=1e-10).fit(rows, federation.y[own])
        coef.append(fit.coef_[0])
        intercept.append(fit.intercept_[0])
    found = certify(coef, federation, intercept=intercept, loss="logistic", relationship="none", lambda1=0.01)
    assert found.relative_gap < 0.05
    assert "of the best possible" in repr(found)


def test_weights_that_do_not_fit_are_refused() -> None:
    """By shape, by features and by classes."""
    federation, result = solved()
    with pytest.raises(DataError, match=r"weights of shape \(2, 5\) do not fit \(3, 1, 5\)"):
        certify(np.zeros((2, 5)), federation)
    with pytest.raises(DataError, match="intercepts of shape"):
        certify(np.zeros((3, 5)), federation, intercept=np.zeros(2))
    models = TaskModels.from_result(federation, result)
    with pytest.raises(DataError, match="certify with the data that they are for"):
        certify(models, request("classes").federation(0))


def test_the_command_says_it_in_words_and_as_json(tmp_path: Path) -> None:
    """A model of FedAvg, for its own problem and for another one."""
    words = ["--tasks", "3", "--set", "features=5"]
    trained = CliRunner().invoke(
        app, ["train", *words, "--algorithm", "fedavg", "--cloud-rounds", "5", "--json", "--out", str(tmp_path)]
    )
    facts = json.loads(trained.output)
    assert 0.0 < facts["relative_gap"] <= 1.0
    assert facts["primal_at_zero"] == 0.5
    told = json.loads(CliRunner().invoke(app, ["certify", facts["saved"], *words, "--json"]).output)
    assert told["primal"] == pytest.approx(facts["primal"])
    assert told["problem"] == {"relationship": "mean", "lambda1": 1e-3, "lambda2": 1e-2}
    other = CliRunner().invoke(app, ["certify", facts["saved"], *words, "--lambda1", "0.5"])
    assert other.exit_code == 0
    assert "lambda1 0.5" in other.output
    weighted = CliRunner().invoke(app, ["certify", facts["saved"], "--class-weight", "balanced", "--json"])
    assert not (weighted := json.loads(weighted.output))["trained_on"]  # its rows, in other weights
    assert weighted["primal"] == pytest.approx(facts["primal"], rel=0.1)


def test_the_words_of_a_certificate() -> None:
    """A share of the objective, the bounds if the share is large, or the lower bound alone."""
    assert in_words(0.043, 1.0) == "within 4.3 % of the best possible"
    assert in_words(1e-12, 1.0) == "the best possible, up to rounding"
    assert in_words(1e-8, 1.0) == "within 0.001 % of the best possible"
    assert in_words(0.95, 0.05) == "loose: the best possible objective lies between 0.05 and 1"
    assert in_words(1.0, 0.0) == "uninformative yet: the lower bound is 0"
    assert in_words(None, None) == "not certified"


def test_single_settings_of_a_table_are_changed_as_its_data_set_reads_them(tmp_path: Path) -> None:
    """Rows of a run on a table are read as then, but for the option that is given, whatever the default data set is."""
    rows = [f"{site},{n % 7},{n % 2}" for site in ("north", "south") for n in range(40)]
    (table := tmp_path / "sites.csv").write_text("\n".join(["site,heat,y", *rows, "east,3,1"]))
    words = ["--path", str(table), "--task", "site", "--budget", "energy=300", "--json", "--out", str(tmp_path)]
    saved = json.loads(CliRunner().invoke(app, ["train", *words]).output)["saved"]
    for given, same in ((["--set", "most_values=50"], True), (["--small-tasks", "drop"], False)):
        told = CliRunner().invoke(app, ["certify", saved, *given, "--json"])
        assert json.loads(told.output)["trained_on"] == same


def test_a_single_task_of_a_run_has_not_the_bound_of_its_training(tmp_path: Path) -> None:
    """The other tasks get the mean model, which the run's certificate says nothing of."""
    words = ["train", "--tasks", "3", "--set", "features=5", "--target-gap", "1e-5", "--json", "--out", str(tmp_path)]
    saved, one = json.loads(CliRunner().invoke(app, words).output)["saved"], str(tmp_path / "one.npz")
    assert CliRunner().invoke(app, ["export", saved, "--task", "task-1", "--out", one]).exit_code == 0
    whole, part = (json.loads(CliRunner().invoke(app, ["certify", of, "--json"]).output) for of in (saved, one))
    assert whole["unknown_tasks"] == []
    assert (part["gap_in_training"], part["unknown_tasks"]) == (None, ["task-0", "task-2"])
    assert part["primal"] > whole["primal"]
    told = CliRunner().invoke(app, ["certify", one]).output
    assert "holds too" not in told
    assert "for 2 of 3 tasks" in told
    assert "best possible" not in repr(TaskModels.load(one))


def test_another_file_has_the_columns_of_the_run(tmp_path: Path) -> None:
    """Only its name is given: label and task are found as in training."""
    rows = [f"{site},{n % 7},{n % 2}" for site in ("north", "south") for n in range(40)]
    for name, kept in (("old.csv", rows), ("new.csv", rows[::3])):
        (tmp_path / name).write_text("\n".join(["site,heat,fault", *kept]))
    words = ["--path", str(tmp_path / "old.csv"), "--task", "site", "--label", "fault", "--budget", "energy=300"]
    saved = json.loads(CliRunner().invoke(app, ["train", *words, "--json", "--out", str(tmp_path)]).output)["saved"]
    told = CliRunner().invoke(app, ["certify", saved, "--path", str(tmp_path / "new.csv"), "--json"])
    assert json.loads(told.output)["trained_on"] is False


def test_models_that_do_not_know_their_rows_ask_for_them(tmp_path: Path) -> None:
    """No data set is taken that nobody named."""
    federation, result = solved()
    TaskModels.from_result(federation, result).save(tmp_path / "model.npz")
    told = CliRunner().invoke(app, ["certify", str(tmp_path / "model.npz")])
    assert isinstance(told.exception, ConfigError)
    assert "name them with --path or --data" in str(told.exception)


def test_help_names_no_default_beside_the_run_itself() -> None:
    """What is not given is that of the run, so the help shows no default of `train`."""
    told = CliRunner().invoke(app, ["certify", "--help"], env={"COLUMNS": "200"}).output
    assert re.findall(r"\[default: [^]]*\]", told) == []
    assert "[0.01]" not in told
