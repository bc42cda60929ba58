"""A run that knows only how many terminals have how many rows gives the numbers of one that knows them one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.shards import LOCAL
from tests.turns import in_turn

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.outline import Outline, Recipe, facts
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.testing.runs import BUDGET, COST, FAULTS, same
from rhfedmtl.training import checkpoint
from rhfedmtl.training.checkpoint import Keeper
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

UNEVEN = Recipe(Request(data="synthetic", tasks=3, terminals=12, settings={"unequal": 0.5, "test": 20}), 0)


def outline(fetched: list[int]) -> Outline:
    """The outline of the uneven federation, with a note for each time that rows of each terminal are asked for."""
    whole = UNEVEN.federation()

    def fetch() -> Any:
        fetched.append(1)
        return whole.sizes

    return Outline.from_facts(facts(whole), UNEVEN, fetch)


def learn(name: str, engine: str, data: Any, weather: str = "calm", **more: Any) -> Result:
    """A run with certificates, under prices of every kind."""
    built = build(name, Options(), "binary")
    settings = Settings(certify_every=5, max_rounds=30, execution=Execution(engine=engine))
    faults = FAULTS[weather]
    ledger = Ledger(COST, BUDGET)
    return train(built.regroup(data), built.method, built.policy, settings, ledger=ledger, faults=faults, **more)


@pytest.mark.parametrize(
    ("name", "weather"),
    in_turn(
        ["rhfedmtl", "hfedmtl", "cocoa", "mocha", "fedavg", "adaptive-fl"],
        ["calm", "stations away", "late rows", "everything"],
    ),
)
def test_an_outline_gives_the_same_numbers(name: str, weather: str) -> None:
    """Whatever the policy, the grouping and the faults."""
    assert "sharded" in LOCAL
    same(learn(name, "inprocess", UNEVEN.federation(), weather), learn(name, "sharded", outline([]), weather))


@pytest.mark.parametrize("name", ["rhfedmtl", "hfedmtl", "cocoa", "fedavg", "adaptive-fl"])
def test_terminals_are_not_asked_for_one_by_one_while_nothing_happens_to_them(name: str, tmp_path: Path) -> None:
    """Planning, billing, rounds, certificates and checkpoints do with the tally."""
    fetched: list[int] = []
    data = outline(fetched)
    keep = Keeper(tmp_path / "checkpoint", seconds=0.0)
    same(learn(name, "inprocess", UNEVEN.federation()), learn(name, "sharded", data, keep=keep))
    assert not fetched
    learn(name, "sharded", data, "late rows")
    assert fetched


@pytest.mark.parametrize(("name", "weather", "until"), [("rhfedmtl", "calm", 2), ("hfedmtl", "late rows", 5)])
def test_a_run_that_was_put_away_goes_on_with_or_without_an_outline(
    tmp_path: Path, name: str, weather: str, until: int
) -> None:
    """From one engine to the other, in both directions; terminals are asked for one by one where rows come late."""
    fetched: list[int] = []
    whole, data = UNEVEN.federation(), outline(fetched)
    runs = {"sharded": data, "inprocess": whole}
    undisturbed = learn(name, "inprocess", whole, weather)
    assert undisturbed.rounds > until
    for first, second in (("sharded", "inprocess"), ("inprocess", "sharded"), ("sharded", "sharded")):
        keep = Keeper(tmp_path / f"{first}-{second}")
        learn(name, first, runs[first], weather, watch=lambda progress: progress.round < until, keep=keep)
        same(undisturbed, learn(name, second, runs[second], weather, start=checkpoint.read(keep.path)))
    assert bool(fetched) == (weather != "calm")
