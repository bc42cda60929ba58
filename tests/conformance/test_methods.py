"""Every algorithm, through every engine, under every kind of fault: the same numbers, the same bill, within budget."""

from __future__ import annotations

import pytest
from tests.engines.shards import LOCAL
from tests.turns import in_turn

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.losses import Squared
from rhfedmtl.registry import load
from rhfedmtl.testing import __main__ as program
from rhfedmtl.testing import conformance, entries, runs
from rhfedmtl.testing.runs import FAULTS, Case
from rhfedmtl.training.result import Result

NOUNS = ("loss", "relationship", "merge", "policy", "feature map")
OTHERS = [
    (noun, name)
    for noun in NOUNS
    for name in load(conformance.ENTRY_KINDS[noun].registry)
    if name != "onnx"  # it needs a file: tests/features
]


def learn(
    name: str,
    weather: str = "calm",
    engine: str = "inprocess",
    seed: int = 0,
    classes: int = 2,
    actors: int | None = None,
) -> Result:
    """A run of an algorithm by name, with its defaults, at a small budget."""
    return runs.learn(Case(name, classes=classes), weather, Execution(engine, actors=actors), seed)


@pytest.mark.parametrize(("name", "weather"), in_turn(ALGORITHMS, FAULTS))
def test_engines_give_the_same_numbers_and_the_same_bill(name: str, weather: str) -> None:
    """Batched, message by message and in shards; what comes out is finite, for every task, and within every budget."""
    assert {"inprocess", "message-passing", "sharded"} <= set(LOCAL) == set(runs.local_engines())
    runs.within_budget(runs.agreed(Case(name), weather))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    """The same seed gives the same run; another gives another, where there is anything to draw."""
    runs.seed_decides(Case(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_classes_pass_through_every_engine(name: str) -> None:
    """Three columns of labels in one matrix, with drop-outs."""
    entries.several_classes(name)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "constant"])
def test_every_method_learns_in_spite_of_lost_updates(name: str) -> None:
    """With a third of all updates lost, tests of all tasks together are still better than chance."""
    assert learn(name, "drop-outs").metrics["accuracy"].mean() > 0.55


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """All of them, and the nearest."""
    with pytest.raises(ConfigError, match=r"choose from rhfedmtl, .*constant.*; did you mean fedprox\?"):
        build("fedprx", Options(), "binary")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_record_of_every_method_is_plain_json(name: str) -> None:
    """No NaN and no infinity in what is written, also where there is no certificate."""
    runs.record_is_plain(Case(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_keeps_what_it_declares(name: str) -> None:
    """Options that it declares matter, its grid is fair, and where there is a dual it stays below the objective."""
    entries.options_matter(name)
    entries.grid_is_fair(name)
    runs.certificate_holds(Case(name))


@pytest.mark.parametrize(("noun", "name"), OTHERS)
def test_every_other_entry_conforms(noun: str, name: str) -> None:
    """Losses, relationships, merges and policies: all that `python -m rhfedmtl.testing conformance NAME` looks at."""
    for kind, what, check in conformance.checks(name):
        if kind == noun:
            check()
            assert what


def test_what_does_not_conform_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss with a wrong step fails the check of its step, in a line, and the status says so."""
    monkeypatch.setattr(Squared, "dual_step", lambda self, a, y, z, q: -(y - z - a))
    monkeypatch.setattr(conformance, "OF_A_RUN", ())
    monkeypatch.setattr("sys.argv", ["testing", "conformance", "squared"])
    assert program.main() == 1
    told = capsys.readouterr().out
    assert "FAILED the dual step gains" in told
    assert "ok     loss squared: L(z) + L*(−a)" in told
    monkeypatch.setattr("sys.argv", ["testing", "conformance", "sqared"])
    assert program.main() == 1
    assert "no entry is called 'sqared'; did you mean squared?" in capsys.readouterr().err
