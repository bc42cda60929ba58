"""Weights chosen inside the budget: charged to the same ledger, and kept unless others are clearly better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rhfedmtl import RunConfig
from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.registry import LAMBDA2
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs.sweep import execute
from rhfedmtl.selection.regularisation import PATH2
from rhfedmtl.selection.weights import FEWEST, SEARCH, SHARE, settled

REQUEST = Request("synthetic", tasks=8, terminals=5)


def config(budget: float | None, algorithm: str = "rhfedmtl", **options: object) -> RunConfig:
    """A run whose weights are to be chosen."""
    limits = () if budget is None else (f"energy={budget}",)
    return RunConfig(algorithm, REQUEST, Options.of(**{"lambda2": "auto", **options}), budget=limits)


@pytest.mark.parametrize("names", [{}, {"lambda1": "auto"}])
def test_trials_are_charged_and_all_stays_within_the_budget(names: dict[str, str]) -> None:
    """The ledger has trials and run, replays from the events, and its bill adds up."""
    asked = config(20000, **names)
    federation = asked.federation()
    chosen = settled(asked, federation)
    assert chosen.selection is not None
    assert 0.0 < chosen.selection.spent["energy"] <= SHARE * 20000
    result = chosen.config.run(federation, before=chosen.before)
    assert chosen.selection.spent["energy"] < result.ledger.spent["energy"] <= 20000
    assert Ledger.replay(*asked.resources(), result.events) == result.ledger
    assert set(chosen.selection.chosen) == set(asked.options.auto)
    assert len(result.history) == result.rounds


def test_trials_with_many_terminals_are_few_and_as_long_as_a_search_needs() -> None:
    """Short ones end before a search gets going, and tell nothing: weights ten times too large were kept."""
    request = Request("synthetic", tasks=2, terminals=100, settings={"rows": 400})
    one = 2 * 10.0 + 0.1 * 800
    asked = replace(config(4 * SEARCH * one / SHARE, lambda1="auto"), request=request)
    record = settled(asked, request.federation(0)).selection
    assert record is not None
    assert FEWEST <= len(record.tried) <= 5
    assert all(trial.rounds >= SEARCH - 2 for trial in record.tried)


def test_a_budget_that_pays_few_rounds_pays_for_no_trial() -> None:
    """The run is the one with the defaults, to the bit."""
    chosen = execute(config(600))
    plain = execute(RunConfig("rhfedmtl", REQUEST, budget=("energy=600",)))
    assert chosen.selection is not None
    assert chosen.selection.tried == []
    assert chosen.by_task == plain.by_task


def test_without_a_budget_folds_decide_and_nothing_is_charged() -> None:
    """As the estimators do."""
    found = settled(config(None), REQUEST.federation(0))
    assert found.before is None
    assert found.selection is not None
    assert found.selection.share == 0.0
    assert found.config.options.lambda2 == found.selection.chosen["lambda2"]


@pytest.mark.slow
def test_the_coupling_that_nobody_gives_is_chosen_where_nothing_limits_the_run() -> None:
    """As by "auto"; under a limit, with one task or too few rows, or where nothing is coupled, it is as usual."""
    data = REQUEST.federation(0)
    found = settled(RunConfig("rhfedmtl", REQUEST), data)
    assert found.selection is not None
    assert found.config.options.lambda2 == settled(config(None), data).config.options.lambda2
    limited: list[tuple[RunConfig, Request]] = [
        (RunConfig("rhfedmtl", REQUEST, budget=("energy=600",)), REQUEST),
        (RunConfig("hfedmtl", REQUEST, Options(cloud_rounds=3)), REQUEST),
        (RunConfig("rhfedmtl", REQUEST, Options(relationship="none")), REQUEST),
        (RunConfig("fedavg", REQUEST), REQUEST),
        (RunConfig("pooled", REQUEST), REQUEST),
        (RunConfig("rhfedmtl", REQUEST), replace(REQUEST, tasks=1)),
        (RunConfig("rhfedmtl", REQUEST), replace(REQUEST, terminals=1, settings={"samples": 1})),
    ]
    for asked, request in limited:
        assert settled(asked, request.federation(0)).config == asked
    assert Options().weight("lambda2") == LAMBDA2


def test_a_method_without_weights_keeps_its_defaults_and_an_open_choice_is_not_run() -> None:
    """In a comparison others may have weights to choose."""
    found = settled(config(500, "fedavg"), REQUEST.federation(0))
    assert found.selection is None
    assert found.config.options == Options(lambda2=LAMBDA2)
    with pytest.raises(ConfigError, match="choose it first"):
        config(500).run(REQUEST.federation(0))
    with pytest.raises(ConfigError, match="tuning chooses the weights too"):
        RunConfig("rhfedmtl", REQUEST, Options(lambda2="auto"), tune="auto").check()


def test_the_command_says_what_was_chosen_and_what_it_took(tmp_path: Path) -> None:
    """In JSON and in text, and the model knows its weights."""
    words = ["train", "--tasks", "8", "--lambda2", "auto", "--budget", "energy=20000", "--out", str(tmp_path)]
    facts = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert facts["spent"]["energy"] <= 20000
    assert set(facts["selection"]) == {"chosen", "why", "share", "spent", "tried"}
    assert np.isfinite(facts["selection"]["chosen"]["lambda2"])
    free = json.loads(CliRunner().invoke(app, [*words[:3], "--out", str(tmp_path), "--json"]).output)
    assert free["selection"]["chosen"]["lambda2"] in PATH2, "without a budget, on folds, whether asked or not"
    assert free["selection"]["spent"] == {}
    text = CliRunner().invoke(app, words).output
    assert "weights" in text
    shown = CliRunner().invoke(app, ["runs", "show", Path(facts["saved"]).name, "--folder", str(tmp_path)])
    assert "trials, which took energy" in " ".join(shown.output.split())
