"""Weights chosen inside the budget: charged to the same ledger, and kept unless others are clearly better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rhfedmtl import RunConfig, TaskModels, certify
from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation, Source
from rhfedmtl.data.request import Request
from rhfedmtl.data.split import Split, federate
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.registry import LAMBDA2
from rhfedmtl.planning.request import PlanRequest
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.runs.sweep import execute
from rhfedmtl.selection.first_rounds import CHECK_SHARE, MOST_CHECKS, HeldOutRows
from rhfedmtl.selection.regularisation import PATH2
from rhfedmtl.selection.weights import choose_settings
from rhfedmtl.training.checkpoint import Keeper, read
from rhfedmtl.training.result import Progress

REQUEST = Request("synthetic", tasks=20, terminals=5)


def config(budget: float | None, algorithm: str = "rhfedmtl", **options: object) -> RunConfig:
    """A run whose weights are to be chosen."""
    limits = () if budget is None else (f"energy={budget}",)
    return RunConfig(algorithm, REQUEST, Options.of(**{"lambda2": "auto", **options}), budget=limits)


@pytest.mark.parametrize("names", [{}, {"lambda1": "auto"}])
def test_the_first_rounds_are_charged_and_all_stays_within_the_budget(names: dict[str, str]) -> None:
    """The ledger has all rounds, replays from the events, and the run goes on where its first rounds ended."""
    asked = config(20000, **names)
    federation = asked.federation()
    chosen = choose_settings(asked, federation)
    assert chosen.selection is not None
    assert 0.0 < chosen.selection.spent["energy"] <= (MOST_CHECKS + 1) * CHECK_SHARE * 20000
    result = chosen.config.run(federation, before=chosen.before)
    assert chosen.selection.spent["energy"] < result.ledger.spent["energy"] <= 20000
    assert Ledger.replay(*asked.resources(), result.events) == result.ledger
    assert set(chosen.selection.chosen) == set(asked.options.auto)
    assert [moment.round for moment in result.history] == list(range(1, result.rounds + 1))
    assert chosen.selection.tried[-1].rounds < result.rounds


def test_what_comes_out_is_certified_for_the_weights_that_were_chosen() -> None:
    """Rows that came late, and weights that changed on the way, leave no trace in the certificate."""
    asked = config(20000)
    federation = asked.federation()
    chosen = choose_settings(asked, federation)
    result = chosen.config.run(federation, before=chosen.before)
    weights = {name: chosen.config.options.weight(name) for name in ("lambda1", "lambda2")}
    independent = certify(TaskModels.from_result(federation, result, SmoothedHinge()), federation, **weights)
    assert result.certificate.primal == pytest.approx(independent.primal, rel=1e-9)
    assert result.certificate.gap >= -1e-9
    assert result.certificate.dual <= independent.primal


@pytest.mark.parametrize(("apart", "stronger"), [(0.0, True), (8.0, False)])
def test_tasks_that_are_one_are_coupled_and_tasks_that_differ_are_not(apart: float, stronger: bool) -> None:
    """Equal tasks get a larger λ2, different tasks a smaller λ2, with and without "auto"."""
    federation = related(apart)
    asked = choose_settings(config(30000), federation).selection
    left_open = choose_settings(RunConfig("rhfedmtl", REQUEST, budget=("energy=30000",)), federation).selection
    assert asked is not None
    assert left_open is not None
    assert (asked.chosen["lambda2"] > LAMBDA2) is stronger
    assert "(chosen on 20 % held-out rows; " in asked.text()
    assert left_open.chosen == asked.chosen


def test_a_run_of_a_sweep_is_repeated_by_its_command() -> None:
    """The command chooses λ2 again where the run chose it, and has the number where the run did not."""
    asked = RunConfig("rhfedmtl", REQUEST, budget=("energy=20000",))
    record = execute(asked)
    assert record.selection is not None
    assert record.weights["lambda2"] == record.selection.chosen["lambda2"]
    assert "--lambda2" not in record.command
    assert "--lambda2" not in execute(replace(asked, algorithm="fedavg", budget=("energy=500",))).command
    assert "--lambda2 0.01" in execute(replace(asked, algorithm="fedu", budget=("energy=500",))).command
    assert "--lambda2 auto" in execute(replace(asked, options=Options.of(lambda2="auto"))).command


@pytest.mark.parametrize("algorithm", ["rhfedmtl", "hfedmtl", "mocha", "lbfgs", "fedu", "giant", "fedavg", "local"])
def test_compare_trains_what_train_trains(algorithm: str, tmp_path: Path) -> None:
    """The same options give the same λ2, and every metric to the last digit."""
    same = ["--tasks", "40", "--terminals", "5", "--set", "relatedness=1", "--json", "--out", str(tmp_path)]
    words = ["compare", "--algorithms", algorithm, "--budgets", "20000", "--seeds", "1", "--workers", "1"]
    printed = CliRunner().invoke(app, [*words, "--metric", "accuracy", *same])
    (cell,) = json.loads(printed.output)["cells"]
    trained = CliRunner().invoke(app, ["train", "--algorithm", algorithm, "--budget", "energy=20000", *same])
    facts = json.loads(trained.output)
    assert cell["mean"] == facts["accuracy"]
    assert cell["rounds"] == facts["rounds"]
    weights = facts["weights"]
    assert cell["lambda2"] == ([weights["lambda2"]] if "lambda2" in weights else [])
    if algorithm in ("rhfedmtl", "hfedmtl", "lbfgs"):
        assert weights["lambda2"] == facts["selection"]["chosen"]["lambda2"] != LAMBDA2
    assert ("lambda2" in weights) is (algorithm not in ("fedavg", "local"))


def test_compare_says_which_lambda2_each_method_used(tmp_path: Path) -> None:
    """A line has the λ2 of every method; a note names the methods that cannot choose."""
    words = ["compare", "--tasks", "40", "--terminals", "5", "--set", "relatedness=1", "--budgets", "20000"]
    words += ["--algorithms", "hfedmtl,fedu,fedavg", "--seeds", "1", "--workers", "1", "--out", str(tmp_path)]
    text = " ".join(CliRunner().invoke(app, words).output.split())
    assert "lambda2: hfedmtl 0.1; fedu 0.01" in text
    assert "fedu chooses no lambda2" in text
    numbers = " ".join(CliRunner().invoke(app, [*words, "--lambda2", "0.5"]).output.split())
    assert "lambda2: hfedmtl 0.5; fedu 0.5" in numbers
    assert "chooses no lambda2" not in numbers


def test_a_plan_is_of_the_run_that_chooses() -> None:
    """The interval holds the gap that the run ends with, and a note says which weight it chose."""
    for seed in range(3):
        asked = PlanRequest(
            replace(REQUEST, settings={"relatedness": 1.0}), Options(), True, budget=("energy=6000",), seed=seed
        )
        found = asked.plan()
        run = RunConfig("rhfedmtl", asked.request, budget=asked.budget, seed=seed)
        federation = run.federation()
        chosen = choose_settings(run, federation)
        assert chosen.selection is not None
        assert chosen.selection.tried
        assert chosen.selection.text() in found.notes[-1]
        assert found.weights["lambda2"] == chosen.selection.chosen["lambda2"]
        gap = chosen.config.run(federation, before=chosen.before).certificate.gap
        assert found.predicted_gap is not None
        assert found.predicted_gap.low <= gap <= found.predicted_gap.high


def test_rows_of_one_group_are_one_observation() -> None:
    """Copies of rows that are held out together make nothing clearer."""
    rng = np.random.default_rng(0)
    task, difference = np.repeat(np.arange(4), 25), rng.normal(0.1, 1.0, 100)
    once = HeldOutRows([], task, task[:, None], np.ones(100), task, np.arange(100))
    copies = HeldOutRows([], *(np.repeat(part, 3, axis=0) for part in once[1:]))
    assert copies.t_statistic(np.repeat(difference, 3)) == pytest.approx(once.t_statistic(difference))
    apart = copies._replace(group=np.arange(300))
    assert apart.t_statistic(np.repeat(difference, 3)) > 1.5 * once.t_statistic(difference)


def related(apart: float, terminals: int = 3) -> Federation:
    """Ten noisy tasks of 240 rows, whose models differ so much beside what they share."""
    rng = np.random.default_rng(3)
    shared, own = rng.normal(size=12), apart * rng.normal(size=(10, 12))
    task = np.repeat(np.arange(10), 300)
    X = rng.normal(size=(3000, 12))
    score = np.einsum("nd,nd->n", X, shared + own[task])
    y = (score + 0.5 * score.std() * rng.normal(size=3000) > 0.0).astype(np.int16)
    names = tuple(f"task-{b}" for b in range(10))
    return federate(Source(X, y, task, names, ("no", "yes")), Split(terminals=terminals, test_fraction=0.2), 0)


@pytest.mark.parametrize(
    ("budget", "given", "why"),
    [
        (1200, {}, "fewer than 5 passes"),
        (20000, {"faults": "churn=0.1"}, "come and go"),
        (20000, {"request": replace(REQUEST, tasks=8)}, "fewer than 100 rows"),
    ],
)
def test_a_run_that_is_too_short_or_small_keeps_its_weights(budget: float, given: dict[str, Any], why: str) -> None:
    """It is the one with the defaults, to the bit, and says why."""
    chosen = execute(replace(config(budget), **given))
    plain = execute(replace(RunConfig("rhfedmtl", REQUEST, budget=(f"energy={budget}",)), **given))
    assert chosen.selection is not None
    assert why in chosen.selection.text()
    assert chosen.selection.tried == []
    assert plain.selection == chosen.selection
    assert plain.weights["lambda2"] == LAMBDA2
    assert chosen.by_task == plain.by_task


def test_an_engine_that_keeps_no_state_takes_the_usual_weight() -> None:
    """Its first rounds cannot be carried on."""
    asked = RunConfig("rhfedmtl", REQUEST, budget=("energy=20000",))
    assert choose_settings(asked, REQUEST.federation(0), execution=Execution("message-passing")).config == asked


def test_a_run_whose_weights_were_chosen_can_be_interrupted(tmp_path: Path) -> None:
    """It goes on to the bit."""
    asked = config(20000)
    federation = asked.federation()
    chosen = choose_settings(asked, federation)
    whole = chosen.config.run(federation, before=chosen.before)
    keep = Keeper(tmp_path / "run", {}, seconds=1e9)
    chosen.config.run(federation, before=chosen.before, keep=keep, watch=lambda now: now.round < whole.rounds - 2)
    again = chosen.config.run(federation, start=read(tmp_path / "run"))
    assert np.array_equal(whole.models, again.models)
    assert whole.ledger.spent == again.ledger.spent


@pytest.mark.parametrize(("round_", "why"), [(1, "stopped before its first check"), (4, "held-out rows")])
def test_first_rounds_are_watched_and_can_be_stopped(round_: int, why: str) -> None:
    """Whoever watches sees every round once; what was chosen until a stop stands, and one more round ends the run."""
    asked, seen = config(20000), list[int]()

    def watch(now: Progress) -> bool:
        seen.append(now.round)
        return now.round < round_

    federation = asked.federation()
    chosen = choose_settings(asked, federation, watch=watch)
    assert chosen.selection is not None
    assert why in chosen.selection.why
    assert seen == list(range(1, round_ + 1))
    result = chosen.config.run(federation, before=chosen.before, watch=watch)
    assert result.stopped == "interrupted"
    assert result.rounds == (1 if chosen.before is None else round_ + 1)


def test_a_byte_budget_pays_for_looks() -> None:
    """Models cross the wire to be judged: each look is charged as the certificate beside it."""
    asked = replace(config(None), budget=("bytes=3e6",))
    federation = asked.federation()
    chosen = choose_settings(asked, federation)
    assert chosen.selection is not None
    assert chosen.selection.tried
    result = chosen.config.run(federation, before=chosen.before)
    assert result.ledger.spent["bytes"] <= 3e6
    looked = [event.round for event in result.events if isinstance(event, RoundEvent) and not event.merges]
    for trial in chosen.selection.tried:
        assert looked.count(trial.rounds) >= 2


def test_without_a_budget_folds_decide_and_nothing_is_charged() -> None:
    """As the estimators do."""
    found = choose_settings(config(None), REQUEST.federation(0))
    assert found.before is None
    assert found.selection is not None
    assert found.selection.spent == {}
    assert found.config.options.lambda2 == found.selection.chosen["lambda2"]


@pytest.mark.slow
def test_the_coupling_that_nobody_gives_is_chosen_where_nothing_limits_the_run() -> None:
    """As by "auto"; where rounds are limited, with one task or too few rows, or nothing coupled, it is as usual."""
    data = REQUEST.federation(0)
    found = choose_settings(RunConfig("rhfedmtl", REQUEST), data)
    assert found.selection is not None
    assert found.config.options.lambda2 == choose_settings(config(None), data).config.options.lambda2
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
        assert choose_settings(asked, request.federation(0)).config == asked
    assert Options().weight("lambda2") == LAMBDA2


def test_a_method_without_weights_keeps_its_defaults_and_an_open_choice_is_not_run() -> None:
    """In a comparison others may have weights to choose."""
    found = choose_settings(config(500, "fedavg"), REQUEST.federation(0))
    assert found.selection is None
    assert found.config.options == Options(lambda2=LAMBDA2)
    with pytest.raises(ConfigError, match="choose it first"):
        config(500).run(REQUEST.federation(0))
    with pytest.raises(ConfigError, match="tuning chooses the weights too"):
        RunConfig("rhfedmtl", REQUEST, Options(lambda2="auto"), tune="auto").check()


def test_the_command_says_what_was_chosen_and_what_it_took(tmp_path: Path) -> None:
    """In JSON and in text, and the model knows its weights."""
    words = ["train", "--tasks", "20", "--lambda2", "auto", "--budget", "energy=20000", "--out", str(tmp_path)]
    facts = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert facts["spent"]["energy"] <= 20000
    assert set(facts["selection"]) == {"chosen", "why", "spent", "tried", "features", "why_features", "maps"}
    assert facts["selection"]["features"] is None
    assert np.isfinite(facts["selection"]["chosen"]["lambda2"])
    free = json.loads(CliRunner().invoke(app, [*words[:3], "--out", str(tmp_path), "--json"]).output)
    assert free["selection"]["chosen"]["lambda2"] in PATH2, "without a budget, on folds, whether asked or not"
    assert free["selection"]["spent"] == {}
    text = CliRunner().invoke(app, words).output
    assert "weights" in text
    shown = CliRunner().invoke(app, ["runs", "show", Path(facts["saved"]).name, "--folder", str(tmp_path)])
    assert "20 % held-out rows" in " ".join(shown.output.split())
