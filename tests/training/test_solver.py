"""The option ``solver``, and how many rounds each solver took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rhfedmtl import RHFedMTLClassifier
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError
from rhfedmtl.training.checkpoint import Keeper, read
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import Result

REQUEST = Request("synthetic", tasks=3, terminals=2)


def learn(solver: str, algorithm: str = "rhfedmtl", budget: float = 2000.0) -> Result:
    """Run on synthetic tasks."""
    config = RunConfig(algorithm, REQUEST, Options.of(solver=solver, lambda2=0.01), budget=(f"energy={budget}",))
    return config.run(REQUEST.federation(0))


def test_every_round_has_the_solver_that_was_asked_for() -> None:
    """Both solvers reach the optimum, and `auto` uses both."""
    results = {solver: learn(solver) for solver in ("dual-ascent", "quasi-newton", "auto")}
    for solver in ("dual-ascent", "quasi-newton"):
        assert results[solver].rounds_by_solver == {solver: results[solver].rounds}
    assert set(results["auto"].rounds_by_solver) == {"dual-ascent", "quasi-newton"}
    assert sum(results["auto"].rounds_by_solver.values()) == results["auto"].rounds
    assert results["quasi-newton"].certificate.relative_gap < 1e-3
    least = min(result.certificate.primal for result in results.values())
    assert results["dual-ascent"].certificate.primal < 1.05 * least


@pytest.mark.parametrize(
    ("options", "algorithm", "words"),
    [
        ({"solver": "newton"}, "rhfedmtl", "did you mean quasi-newton"),
        ({"solver": "quasi-newton"}, "hfedmtl", "needs policy measured"),
        ({"solver": "quasi-newton", "policy": "paper"}, "rhfedmtl", "needs policy measured, not paper"),
        ({"solver": "quasi-newton", "uniform": True}, "rhfedmtl", "leave uniform out"),
    ],
)
def test_a_solver_that_cannot_work_is_refused(options: dict[str, object], algorithm: str, words: str) -> None:
    """The error names the way out."""
    with pytest.raises(ConfigError, match=words):
        RunConfig(algorithm, REQUEST, Options.of(**options), budget=("energy=100",)).run(REQUEST.federation(0))


def test_a_pass_that_the_budget_cannot_pay_ends_a_run_of_quasi_newton_rounds() -> None:
    """A budget for steps alone pays no round."""
    one_pass = 3 * 10.0 + 0.1 * len(REQUEST.federation(0).y)
    assert learn("quasi-newton", budget=3.5 * one_pass).rounds == 3


def test_results_say_how_many_rounds_each_solver_took(tmp_path: Path) -> None:
    """In JSON and in text; SGD has its own word. Estimators take the option by name."""
    words = ["train", "--tasks", "2", "--terminals", "2", "--lambda2", "0.01", "--out", str(tmp_path)]
    words += ["--budget", "energy=2000"]
    facts = json.loads(CliRunner().invoke(app, [*words, "--solver", "dual-ascent", "--json"]).stdout)
    assert facts["rounds_by_solver"] == {"dual-ascent": facts["rounds"]}
    text = " ".join(CliRunner().invoke(app, [*words, "--solver", "quasi-newton"]).stdout.split())
    assert "server iterations: " in text
    assert "quasi-Newton" in text
    assert " SGD" in CliRunner().invoke(app, [*words, "--algorithm", "fedavg"]).stdout
    data = REQUEST.federation(0)
    model = RHFedMTLClassifier("energy=2000", lambda2=0.01, options={"solver": "dual-ascent"}, random_state=0)
    assert model.fit(data.X, data.y, task=data.row_task).certificate_.relative_gap < 0.1


def test_the_solver_is_an_option_of_the_merge_that_adapts() -> None:
    """Another merge has no solver to choose."""
    assert "solver='dual-ascent'" in repr(build("rhfedmtl", Options.of(solver="dual-ascent"), "binary"))
    refused = CliRunner().invoke(app, ["train", "--solver", "dual-ascent", "--merge", "add", "--budget", "energy=100"])
    assert "solver has no effect on merge add" in str(refused.exception)


def test_a_resumed_run_counts_rounds_of_a_solver_that_it_had_not_used(tmp_path: Path) -> None:
    """The counts are those of a run without a stop."""
    config = RunConfig("rhfedmtl", REQUEST, Options.of(lambda2=0.01), budget=("energy=2000",))
    federation = REQUEST.federation(0)
    whole = config.run(federation)
    keep = Keeper(tmp_path / "run", {}, seconds=1e9)
    config.run(federation, keep=keep, watch=lambda now: now.round < 2)
    again = config.run(federation, start=read(tmp_path / "run"))
    assert again.rounds_by_solver == whole.rounds_by_solver
    assert len(whole.rounds_by_solver) == 2
