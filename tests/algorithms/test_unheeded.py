"""Settings that an algorithm pays no heed to are found by building it, so that nobody is left believing in them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rhfedmtl.algorithms.options import Options, build, idle
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.studies.planned import side_by_side, taking_part
from rhfedmtl.training.config import RunConfig

SMALL = Request(tasks=2, terminals=2)


@pytest.mark.parametrize(
    ("algorithm", "options", "unheeded"),
    [
        ("rhfedmtl", {"lambda1": 0.5, "lambda2": 0.5, "merge": "add", "uniform": True}, []),
        ("rhfedmtl", {"lambda1": 1e20, "lambda2": 1e20}, []),
        ("rhfedmtl", {"mu": 0.5, "phi": 0.1, "components": 2, "step": 0.1, "decay": 0.1}, ["step", "decay", "mu"]),
        ("rhfedmtl", {"relationship": "learned", "mu": 0.5}, ["mu"]),
        ("rhfedmtl", {"relationship": "none", "lambda2": 0.5}, ["lambda2"]),
        ("rhfedmtl", {"loss": "hinge", "gamma": 0.5}, ["gamma"]),
        ("local", {"relationship": "learned"}, ["relationship"]),
        ("fedavg", {"lambda2": 0.5, "step": 0.1, "local_steps": 5, "merge": "add"}, ["merge"]),
        ("fedprox", {"mu": 0.1}, []),
        ("ditto", {"mu": 0.1, "merge": "add"}, ["merge"]),
        ("adaptive-fl", {"local_steps": 5, "phi": 0.025}, ["local_steps"]),
        ("fedem", {"components": 3}, []),
    ],
)
def test_settings_without_effect_are_found(algorithm: str, options: dict[str, object], unheeded: list[str]) -> None:
    """Also those that are set to what the algorithm would take anyway count as heeded."""
    found = idle(algorithm, Options.of(**options))  # type: ignore[arg-type]
    assert set(unheeded) <= set(found)
    assert len(found) == len(unheeded) or algorithm == "rhfedmtl"
    assert not {"lambda1", "lambda2"} & set(found) - set(unheeded)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_without_effect_changes_no_number(algorithm: str) -> None:
    """What is said to have no effect has none: the run without it is the same, to the bit."""
    options = Options.of(lambda2=0.3, mu=0.7, components=2, phi=0.1)
    bare = options.without(idle(algorithm, options))
    ends = {"budget": ("energy=150",)} if algorithm not in ("pooled", "constant") else {}
    configs = [RunConfig(algorithm, SMALL, each, **ends) for each in (options, bare)]  # type: ignore[arg-type]
    one, two = (config.run(config.federation(), execution=Execution(threads=1)) for config in configs)
    np.testing.assert_array_equal(one.models, two.models)


def test_one_run_refuses_what_would_change_nothing() -> None:
    """With the name of the setting; a gap is an end for every method."""
    with pytest.raises(ConfigError, match="mu has no effect on hfedmtl: leave it out"):
        RunConfig("hfedmtl", options=Options.of(mu=1.0)).check_heeded()
    with pytest.raises(ConfigError, match="merge has no effect on fedavg: leave it out"):
        RunConfig("fedavg", options=Options(lambda2=1.0, merge="add")).check_heeded()
    with pytest.raises(ConfigError, match="fedavg has no weights to choose"):
        RunConfig("fedavg", options=Options(lambda2="auto")).check_heeded()
    RunConfig("fedavg", target_gap=1e-3).check_heeded()
    RunConfig("hfedmtl", options=Options(lambda2=1.0, local_steps=3), target_gap=1e-3).check_heeded()


def test_a_yardstick_says_what_had_no_effect() -> None:
    """Budget, prices and faults play no part in it."""
    (note,) = RunConfig("pooled", budget=("energy=10",), faults="dropout=0.3").notes()
    assert "budget, faults had no effect" in note
    assert RunConfig("pooled").notes() == RunConfig("rhfedmtl", budget=("energy=10",)).notes() == []


def test_a_comparison_gives_each_method_what_it_heeds() -> None:
    """Records hold no setting that changed nothing, so that their commands can be repeated."""
    base = RunConfig(
        request=SMALL, options=Options(lambda2=0.3, policy="paper", local_steps=5), cost=("energy=0.1,10",)
    )
    _, configs = side_by_side(base, ["rhfedmtl", "hfedmtl", "fedavg"], [400.0], range(1), "accuracy")
    options = {config.algorithm: config.options for config in configs.values()}
    assert options["rhfedmtl"] == Options(lambda2=0.3, policy="paper")
    assert options["hfedmtl"] == Options(lambda2=0.3, local_steps=5)
    assert options["fedavg"] == Options(lambda2=0.3, local_steps=5)  # its certificate is for the same problem
    for config in configs.values():
        config.check_heeded()
    with pytest.raises(ConfigError, match="mu has no effect on rhfedmtl or hfedmtl"):
        side_by_side(
            dataclasses.replace(base, options=Options.of(mu=1.0)),
            ["rhfedmtl", "hfedmtl"],
            [400.0],
            range(1),
            "accuracy",
        )


def test_a_budget_of_a_comparison_is_kept_to_the_last_digit() -> None:
    """It is a limit: rounded up it would be overspent."""
    base = RunConfig(request=SMALL, cost=("energy=0.1,10",))
    _, configs = side_by_side(base, ["rhfedmtl"], [1234567.25], range(1), "accuracy")
    assert [config.budget for config in configs.values()] == [("energy=1234567.25",)]


def test_a_policy_that_is_fixed_keeps_its_steps() -> None:
    """Those who decide their work are not told how much to do, unless they are told not to decide."""
    options = Options(policy="fixed", local_steps=7)
    assert taking_part(RunConfig("rhfedmtl", options=options)).options == options


@pytest.mark.parametrize("algorithm", ["rhfedmtl", "fedavg", "ditto"])
def test_methods_have_the_defaults_of_the_options(algorithm: str) -> None:
    """A method made by hand is the one that the command line makes, the intercept included."""
    made = build(algorithm, Options(), "binary").method
    assert made == type(made)()
