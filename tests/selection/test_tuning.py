"""Tuning is fair: every method gets as many trials at the same budget, and nobody sees a test row."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import federation

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.data.federation import Federation, Source
from rhfedmtl.data.request import Request
from rhfedmtl.data.split import Split, federate
from rhfedmtl.errors import ConfigError
from rhfedmtl.selection.folds import hold_out, make_folds
from rhfedmtl.selection.tuning import TRIALS, Candidate, Validation, best_of, candidates, tune, worth_of
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.result import mean

SMALL = {"step": (0.1, 0.5), "local_steps": (2, 10)}
UNTUNED = {"constant"}


@cache
def data(classes: int = 2) -> Federation:
    """Three small tasks."""
    settings = {"test": 30, "features": 6, "classes": classes}
    return Request(data="synthetic", tasks=3, terminals=3, settings=settings).federation(0)


def config(name: str = "fedavg", budget: str = "energy=250", **more: Any) -> RunConfig:
    """A short run at the paper's prices."""
    return RunConfig(name, cost=("energy=0.1,10",), budget=(budget,), **more)


def test_every_algorithm_has_a_grid_with_as_many_candidates() -> None:
    """A method is not favoured by more trials; what has nothing to tune has no grid to speak of."""
    for name, entry in ALGORITHMS.items():
        count = math.prod(len(values) for values in entry.grid.values())
        assert count == (1 if name in UNTUNED else TRIALS), name
        assert len({str(each) for each in candidates(config(name), data(), None, TRIALS, 0)}) == count


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_candidate_can_be_built(name: str) -> None:
    """Grids hold settings that their algorithm knows and takes."""
    for settings in candidates(config(name), data(), None, TRIALS, 0):
        build(name, Options.of(**settings), "binary")


def test_a_validation_part_is_cut_from_the_training_rows_of_every_task() -> None:
    """Parts are disjoint, together all training rows, spread over terminals and classes; test rows are not in them."""
    whole = federation(sizes=((9, 8, 7), (12, 4)), weighted=True)
    parts = [hold_out(whole, 4, part, seed=1) for part in range(4)]
    held = np.concatenate([part.test_X for part in parts])
    np.testing.assert_array_equal(np.sort(held[:, 0]), np.sort(whole.X[:, 0]))
    assert not set(held[:, 0]) & set(whole.test_X[:, 0])
    for part in parts:
        assert len(part.X) + len(part.test_X) == len(whole.X)
        assert part.n_terminals == whole.n_terminals
        assert part.sample_weight is not None
        assert len(part.sample_weight) == len(part.X)
        np.testing.assert_array_equal(np.diff(part.test_offsets), np.diff(parts[0].test_offsets))
        for b in range(whole.n_tasks):
            rows, _ = part.test_rows(b)
            assert set(rows[:, 0]) <= set(whole.X[whole.row_task == b][:, 0])
    again = hold_out(whole, 4, 0, seed=1)
    np.testing.assert_array_equal(again.test_X, parts[0].test_X)
    assert not np.array_equal(hold_out(whole, 4, 0, seed=2).test_X, parts[0].test_X)


def test_a_terminal_keeps_its_last_rows() -> None:
    """Otherwise it would vanish, and with it what it costs."""
    whole = federation(sizes=((1, 1, 1), (5, 1)))
    for part in range(3):
        assert np.diff(hold_out(whole, 3, part, seed=0).terminal_offsets).min() == 1


def test_classes_are_held_out_in_proportion() -> None:
    """A part of a balanced task is balanced, up to one row for each terminal."""
    rng = np.random.default_rng(0)
    whole = federation(sizes=((16, 16), (16, 16)))
    whole = replace(whole, y=rng.permuted(np.tile([0, 1], (4, 8)), axis=1).ravel())
    part = hold_out(whole, 4, 0, seed=3)
    for b in range(2):
        assert part.test_rows(b)[1].mean() == 0.5


def test_the_best_on_validation_rows_wins_and_the_record_says_what_was_tried() -> None:
    """All candidates with their metrics, what was chosen, and that it was not charged."""
    tuned = tune(config(), data(), grid=SMALL)
    tried, record = tuned.record.tried, tuned.record
    assert [trial.settings for trial in tried] == candidates(config(), data(), SMALL, TRIALS, 0)
    assert record.trials == len(tried) == 4
    assert record.parts == record.folds == 4
    (chosen,) = (trial for trial in tried if trial.settings == record.chosen)
    assert record.value == chosen.metrics["balanced_accuracy"]
    assert record.charged is False
    assert {name: tuned.config.options[name] for name in SMALL} == record.chosen
    assert replace(tuned.config, options=Options()) == config()


def tried_at(values: dict[tuple[float, str], float], **metrics: float) -> list[Candidate]:
    """Candidates of a grid of a number and a name, with these metrics."""
    return [Candidate({"lambda2": x, "merge": m}, {"accuracy": v, **metrics}) for (x, m), v in values.items()]


def test_a_lucky_candidate_among_bad_ones_does_not_win() -> None:
    """Each is judged with its neighbours in the grid: those whose number is the next one, and nothing else differs."""
    lucky = {(0.1, "add"): 0.70, (1.0, "add"): 0.92, (10.0, "add"): 0.70, (100.0, "add"): 0.90, (1000.0, "add"): 0.91}
    assert best_of(tried_at(lucky), "accuracy").settings["lambda2"] == 1000.0
    assert worth_of(tried_at(lucky), "accuracy")[1] == pytest.approx((0.92 + 0.5 * 1.4) / 2.0)
    names = {(1.0, name): value for name, value in (("add", 0.70), ("average", 0.92), ("auto", 0.70))}
    assert best_of(tried_at(names), "accuracy").settings["merge"] == "average"


def test_a_candidate_that_failed_is_neither_chosen_nor_a_neighbour() -> None:
    """It has no metric, so it says nothing of those beside it."""
    tried = tried_at({(0.1, "add"): 0.8, (1.0, "add"): 0.9})
    tried.insert(1, Candidate({"lambda2": 0.3, "merge": "add"}, {}, "diverged"))
    worth = worth_of(tried, "accuracy")
    assert worth.tolist() == [0.8, -np.inf, 0.9]
    assert best_of(tried, "accuracy").settings["lambda2"] == 1.0


def test_certificates_count_where_the_budget_pays_for_them() -> None:
    """One that tells more wins over one that is hardly better, unless most settings tell little at this budget."""
    first, near, other = (
        Candidate({"merge": name}, {"accuracy": value}, tells=tells)
        for name, value, tells in (("a", 0.901, False), ("b", 0.900, True), ("c", 0.8, True))
    )
    assert best_of([first, near, other], "accuracy") is near
    assert best_of([first, near, replace(other, tells=False)], "accuracy") is first
    assert best_of([first, replace(near, metrics={"accuracy": 0.89}), other], "accuracy") is first


def test_how_rows_are_ordered_counts_beside_their_classes() -> None:
    """Where as many rows are on the right side, the larger AUC wins; errors count downwards, and alone."""
    one, other = (Candidate({"lambda2": x}, {"accuracy": 0.9, "auc": auc}) for x, auc in ((0.1, 0.92), (10.0, 0.97)))
    assert best_of([one, other], "accuracy") is other
    errors = [Candidate({"lambda2": x}, {"rmse": value}) for x, value in ((0.1, 2.0), (10.0, 1.0))]
    assert best_of(errors, "rmse") is errors[1]


def test_test_rows_play_no_part() -> None:
    """Other test rows, or none at all, lead to the same choice and the same record."""
    whole = data()
    poisoned = replace(whole, test_X=1e6 * whole.test_X[::-1], test_y=1 - whole.test_y)
    assert tune(config(), poisoned, grid=SMALL).record == tune(config(), whole, grid=SMALL).record


def test_a_tuned_run_repeats_and_another_seed_cuts_other_rows() -> None:
    """The validation part comes from the seed of the run unless another is given."""
    first, again = (tune(config(seed=3), data(), grid=SMALL).record for _ in range(2))
    assert first == again
    other = tune(config(seed=3), data(), grid=SMALL, validation=Validation(seed=4)).record
    assert (first.seed, other.seed) == (3, 4)
    assert [trial.metrics["auc"] for trial in first.tried] != [trial.metrics["auc"] for trial in other.tried]


def test_candidates_that_diverge_or_cost_too_much_lose() -> None:
    """They are on record with their reason, and the run goes on."""
    grid = {"step": (1e6, 0.01), "local_steps": (5, 2000)}
    regression = data(0)
    tuned = tune(config(scale="none", budget="energy=500"), regression, grid=grid)
    tried = tuned.record.tried
    assert tuned.record.chosen == {"step": 0.01, "local_steps": 5}
    assert "diverged" in (tried[0].failed or "")
    assert "cannot pay" in (tried[1].failed or "")
    with pytest.raises(ConfigError, match=r"all 1 settings of fedavg failed: .*diverged"):
        tune(config(scale="none", budget="energy=500"), regression, grid={"step": (1e6,), "local_steps": (5,)})


def test_a_large_grid_is_drawn_from() -> None:
    """So many trials and no more, by the seed, in the order of the grid."""
    grid = {"step": tuple(0.01 * k for k in range(1, 101))}
    drawn = [[each["step"] for each in candidates(config(), data(), grid, 5, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] == sorted(drawn[0])
    assert len(set(drawn[0])) == 5
    assert drawn[0] != drawn[2]


def test_steps_fit_the_length_of_rows() -> None:
    """Grids speak of unit rows; standardised rows are longer by their number of features."""
    for scale, unit in ((None, 1.0), ("standard", 1 / 6), ("unit", 1.0)):
        steps = {each["step"] for each in candidates(config(scale=scale), data(), SMALL, TRIALS, 0)}
        assert steps == {0.1 * unit, 0.5 * unit}
    assert {each["step"] for each in candidates(config(), data(0), SMALL, TRIALS, 0)} == {0.1, 0.5}


def test_more_parts_are_averaged_and_other_metrics_may_decide() -> None:
    """Each part is held out in turn; AUC instead of balanced accuracy."""
    by_auc = Validation(folds=3, metric="auc")
    record = tune(config(), data(), grid=SMALL, validation=by_auc).record
    assert (record.folds, record.parts) == (3, 3)
    alone = tune(config(), data(), grid={name: (value,) for name, value in record.chosen.items()}, validation=by_auc)
    parts = [config(options=Options.of(**record.chosen)).run(hold_out(data(), 3, k, seed=0)) for k in range(3)]
    assert alone.record.value == pytest.approx(np.mean([mean(each.metrics["auc"]) for each in parts]))
    with pytest.raises(ConfigError, match="choose from accuracy"):
        tune(config(), data(), grid=SMALL, validation=Validation(metric="rmse"))


def test_yardsticks_know_no_budget_and_no_faults() -> None:
    """They are solved to the optimum, whatever goes wrong for others, and cost nothing."""
    result = config("pooled", faults="slowdown=0.5,dropout=0.9").run(data())
    assert result.stopped == "relative gap of 1e-06 reached"
    assert 0.0 <= result.certificate.relative_gap <= 1e-6
    assert result.ledger.spent == {}


def test_a_target_gap_is_no_end_for_a_method_without_a_gap() -> None:
    """Such a run ends after so many rounds as one that was given no end."""
    result = RunConfig("fedavg", target_gap=1e-3, certify_every=10**9).run(data())
    assert result.stopped == "limit on rounds reached"


@pytest.mark.parametrize(("folds", "parts"), [(1, 1), (3, -1), (3, 4)])
def test_parts_that_are_not_there_are_refused(folds: int, parts: int) -> None:
    """The error names both numbers."""
    with pytest.raises(ConfigError, match=f"{folds} parts"):
        Validation(folds=folds, parts=parts)


def test_an_unknown_algorithm_has_no_candidates() -> None:
    """The error names those that there are."""
    with pytest.raises(ConfigError, match="unknown algorithm 'new': choose from rhfedmtl"):
        candidates(config("new"), data(), None, TRIALS, 0)


def test_groups_stay_on_one_side_of_the_validation() -> None:
    """Where the split kept groups whole, no group has rows among both the training and the validation rows."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 5)
    source = Source(
        X=rng.normal(size=(200, 3)),
        y=(group % 2).astype(np.int16),
        task=(group // 20).astype(np.int64),
        task_names=("a", "b"),
        class_names=("no", "yes"),
        group=group,
    )
    whole = federate(source, Split(terminals=3, grouped=True), 0)
    assert whole.group is not None
    parts = [hold_out(whole, 4, part, 0) for part in range(4)]
    for part in parts:
        assert part.group is not None
        kept = {tuple(row) for row in part.X}
        held = {tuple(row) for row in part.test_X}
        of = {tuple(row): g for row, g in zip(whole.X, whole.group, strict=True)}
        assert {of[row] for row in kept}.isdisjoint({of[row] for row in held})
        assert len(part.test_y) > 0
    assert sum(len(part.test_y) for part in parts) == len(whole.y)
    for fold in make_folds(whole, 3):
        assert fold.federation.group is not None
        assert set(fold.federation.group).isdisjoint(whole.group[fold.held_out])
