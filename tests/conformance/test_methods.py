"""Every algorithm, through every engine, under every kind of fault: the same numbers, the same bill, within budget."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.engines.groups import LOCAL

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS, is_yardstick
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.run import Result, Settings, train

COST = ["energy=0.1,10,1", "time=0.01,0.1", "bytes=0,0"]
BUDGET = {"energy": 250.0, "time": 30.0}
FAULTS = {
    "calm": Faults(),
    "drop-outs": Faults(dropout=0.3, dropout_length=2.0),
    "stations away": Faults(station_away=0.3),
    "comings and goings": Faults(moves=0.5, churn=0.1, absence=3.0),
    "late rows": Faults(late_rows=0.5, late_until=4),
    "everything": Faults(
        dropout=0.2, slowdown=0.5, patience=1.5, station_away=0.1, moves=0.3, churn=0.1, late_rows=0.3, late_until=6
    ),
}


@cache
def federation(classes: int = 2) -> Federation:
    """Three small tasks with unequal terminals."""
    settings = {"unequal": 0.5, "test": 20, "features": 6, "classes": classes}
    return Request(data="synthetic", tasks=3, terminals=3, settings=settings).federation(0)


def learn(
    name: str,
    weather: str = "calm",
    engine: str = "inprocess",
    seed: int = 0,
    classes: int = 2,
    actors: int | None = None,
) -> Result:
    """A run of an algorithm by name, with its defaults, at a small budget."""
    if name == "mocha" and "learned" not in RELATIONSHIPS:
        pytest.skip("mocha needs the relationship 'learned'")
    data = federation(classes)
    built = build(name, Options(), data.kind)
    ledger = Ledger({}) if is_yardstick(name) else Ledger(COST, BUDGET)
    gap = 1e-3 if is_yardstick(name) else 0.0
    settings = Settings(
        seed=seed,
        certify_every=5,
        target_relative_gap=gap,
        max_rounds=60,
        execution=Execution(engine=engine, actors=actors),
    )
    faults = Faults() if is_yardstick(name) and FAULTS[weather].slowdown else FAULTS[weather]
    return train(built.regroup(data), built.method, built.policy, settings, ledger=ledger, faults=faults, judged=data)


def same(left: Result, right: Result) -> None:
    """Equal to the bit, models and bill."""
    np.testing.assert_array_equal(left.models, right.models)
    assert left.ledger == right.ledger
    assert (left.rounds, left.terminal_steps, left.stopped) == (right.rounds, right.terminal_steps, right.stopped)
    for name, values in left.metrics.items():
        np.testing.assert_array_equal(values, right.metrics[name])


@pytest.mark.parametrize("weather", FAULTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_engines_give_the_same_numbers_and_the_same_bill(name: str, weather: str) -> None:
    """Batched, message by message and in groups; what comes out is finite, for every task, and within every budget."""
    results = [learn(name, weather, engine) for engine in LOCAL]
    for other in results[1:]:
        same(results[0], other)
    result = results[0]
    assert result.models.shape[0] == federation().n_tasks
    assert np.isfinite(result.models).all()
    for limited, limit in result.ledger.budget.items():
        assert result.ledger.spent[limited] <= limit
    if result.ledger.budget:
        assert Ledger.replay(COST, BUDGET, result.events) == result.ledger


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    """The same seed gives the same run; another gives another, where there is anything to draw."""
    first, second, other = learn(name, "drop-outs"), learn(name, "drop-outs"), learn(name, "drop-outs", seed=1)
    same(first, second)
    if name != "constant":
        assert np.abs(first.models - other.models).max() > 0.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_classes_pass_through_every_engine(name: str) -> None:
    """Three columns of labels in one matrix, with drop-outs."""
    first, *others = (learn(name, "drop-outs", engine, classes=3) for engine in LOCAL)
    for other in others:
        same(first, other)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "constant"])
def test_every_method_learns_in_spite_of_lost_updates(name: str) -> None:
    """With a third of all updates lost, tests of all tasks together are still better than chance."""
    assert learn(name, "drop-outs").metrics["accuracy"].mean() > 0.55


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """All of them, and the nearest."""
    with pytest.raises(ConfigError, match=r"choose from rhfedmtl, .*constant; did you mean fedprox\?"):
        build("fedprx", Options(), "binary")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_record_of_every_method_is_plain_json(name: str) -> None:
    """No NaN and no infinity in what is written, also where there is no certificate."""
    import json

    from rhfedmtl.runs.records import summary

    facts: dict[str, Any] = summary(learn(name))
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
