"""Choosing λ1 and λ2 on training rows: nothing leaks, warm starts change nothing but the cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError, ProtocolError
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.maths.relationships import Learned, MeanRegularised, Safe, Unrelated
from rhfedmtl.roles.channel import MaskedSums
from rhfedmtl.selection import regularisation
from rhfedmtl.selection.folds import Effort, Precision, make_folds, sample, solve, task_metric, without
from rhfedmtl.selection.regularisation import PATH2, STANDARD_ERRORS, Choice, Trial, choose, weighted
from rhfedmtl.training.settings import Settings

QUICK = Precision(3e-2, 2.0, 40)
GRID = {"folds": 3, "lambda1": (1e-1, 1e-2, 1e-3), "lambda2": (1e-1, 1e-3, 0.0)}


def federation(seed: int = 0, **settings: float) -> Federation:
    """Four related tasks with two terminals each."""
    return Request(data="synthetic", tasks=4, terminals=2, settings={"samples": 12, **settings}).federation(seed)


def test_every_training_row_is_held_out_once() -> None:
    """Folds share out the rows of every task, class by class, and hold no test rows."""
    data = federation()
    folds = make_folds(data, 3, seed=1)
    np.testing.assert_array_equal(np.sort(np.concatenate([fold.held_out for fold in folds])), np.arange(len(data.X)))
    for fold in folds:
        assert len(fold.federation.test_X) == 0
        assert len(fold.federation.X) + len(fold.held_out) == len(data.X)
        np.testing.assert_array_equal(
            fold.federation.row_task, np.delete(data.row_task, fold.held_out), err_msg="rows stay with their task"
        )
        assert not set(map(bytes, fold.federation.X)) & set(map(bytes, data.X[fold.held_out]))


def test_terminals_that_lose_all_rows_are_left_out() -> None:
    """A terminal of one row has none while that row is held out, and the rest still learns."""
    data = Request(data="synthetic", tasks=2, terminals=4, settings={"rows": 6, "unequal": 2.0}).federation(0)
    for fold in make_folds(data, 3):
        assert np.all(np.diff(fold.federation.terminal_offsets) > 0)
        solve(fold.federation, DualMethod(), QUICK)


def test_choosing_weights_takes_no_longer_where_terminals_are_many_or_tasks_unequal() -> None:
    """Who holds the rows, and a channel, change no number of a trial; a small task makes passes over its own rows."""
    many = Request(data="synthetic", tasks=3, terminals=30, settings={"rows": 60, "unequal": 1.5}).federation(0)
    one = replace(many, terminal_offsets=many.terminal_offsets[many.task_offsets], task_offsets=np.arange(4))
    found = [
        solve(data, method, QUICK) for data, method in ((many, DualMethod(channel=MaskedSums())), (one, DualMethod()))
    ]
    np.testing.assert_array_equal(found[0].alpha, found[1].alpha)
    assert found[0].effort.rounds == found[1].effort.rounds < QUICK.max_rounds
    assert found[0].effort.terminal_steps == found[0].effort.rounds * QUICK.passes * len(many.X)


def test_rows_held_out_weigh_as_in_training() -> None:
    """A rare class that weighs much in the loss that is learned weighs as much in the loss that chooses weights."""
    data = federation()
    scores = np.random.default_rng(0).normal(size=(len(data.y), 1))
    weight = np.random.default_rng(1).integers(0, 4, len(data.y)).astype(float)
    found = task_metric(replace(data, sample_weight=weight), scores, "loss", SmoothedHinge())
    for b in range(data.n_tasks):
        own = data.row_task == b
        losses = [SmoothedHinge().value(z, y) for z, y in zip(scores[own, 0], data.targets()[own, 0], strict=True)]
        assert found[b] == pytest.approx(weight[own] @ losses / own.sum())


def test_too_few_rows_or_folds_are_refused() -> None:
    """Validation needs two folds, a row for each, and rows that stay when a group is held out."""
    with pytest.raises(ConfigError, match="at least 2 folds"):
        make_folds(federation(), 1)
    with pytest.raises(ConfigError, match="too few for 30 folds"):
        make_folds(federation(), 30)
    whole = federation()
    with pytest.raises(ConfigError, match="every task has a single group of training rows"):
        make_folds(replace(whole, group=whole.row_task), 3)


def test_a_task_with_nothing_to_hold_out_leaves_the_choice_to_the_others() -> None:
    """A task of one row or one group is trained on in every fold and judged in none; the other tasks choose as ever."""
    whole = federation()
    together = replace(whole, group=np.where(whole.row_task == 1, 0, np.arange(len(whole.y))))
    first = np.flatnonzero(whole.row_task == 1)[0]
    alone = without(whole, (whole.row_task == 1) & (np.arange(len(whole.y)) != first))
    for data in (together, alone):
        own = np.flatnonzero(data.row_task == 1)
        folds = make_folds(data, 3)
        assert all(np.sum(fold.federation.row_task == 1) == len(own) for fold in folds)
        held = np.sort(np.concatenate([fold.held_out for fold in folds]))
        np.testing.assert_array_equal(held, np.setdiff1d(np.arange(len(data.y)), own))
        trial = choose(data, DualMethod(), **GRID, precision=QUICK).best
        assert np.isnan(trial.tasks).tolist() == [False, True, False, False]
        assert np.isfinite(trial.score)


@pytest.mark.parametrize("name", RELATIONSHIPS)
def test_every_relationship_gets_weights_and_the_bill(name: str) -> None:
    """The choice is among what was tried, says what each trial showed and cost, and reads as text."""
    choice = choose(federation(), DualMethod(relationship=RELATIONSHIPS[name](1e-3, 1e-3)), precision=QUICK, **GRID)  # type: ignore[arg-type]
    assert choice.best in choice.trials
    first = min(choice.trials, key=lambda trial: trial.score)
    behind = choice.best.tasks - first.tasks
    assert behind.mean() <= STANDARD_ERRORS * behind.std(ddof=1) / np.sqrt(len(behind))
    assert (choice.lambda1, max(choice.lambda2, first.lambda2)) == (first.lambda1, choice.lambda2)
    assert choice.effort.solves == 3 * len(choice.trials)
    assert choice.effort.terminal_steps > choice.effort.rounds > 0
    assert len({(trial.lambda1, trial.lambda2) for trial in choice.trials}) == len(choice.trials)


def test_a_choice_is_shown_in_a_line() -> None:
    """An estimator's ``regularisation_`` tells the weights, and not what every task got in every trial."""
    found = choose(federation(), DualMethod(), precision=QUICK, **GRID)  # type: ignore[arg-type]
    assert repr(found) == (
        f"<Choice lambda1={found.lambda1:g}, lambda2={found.lambda2:g}: the best loss of {len(found.trials)} trials>"
    )


def test_test_rows_change_nothing() -> None:
    """Weights and scores are the same whatever the test rows are."""
    data = federation()
    other = replace(data, test_X=data.test_X[::-1] * 3.0, test_y=1 - data.test_y)
    first, second = (
        choose(rows, DualMethod(relationship=MeanRegularised()), precision=QUICK, **GRID) for rows in (data, other)
    )  # type: ignore[arg-type]
    assert [trial.score for trial in first.trials] == [trial.score for trial in second.trials]


def test_a_warm_start_reaches_the_same_optimum_sooner() -> None:
    """From the duals of a neighbouring λ the same objective is reached, in fewer rounds."""
    data, exact = federation(), Precision(1e-6, 2.0, 3000)
    near = solve(data, DualMethod(relationship=MeanRegularised(1e-2, 1e-2)), exact)
    method = DualMethod(relationship=MeanRegularised(9e-3, 1e-2))
    cold, warm = solve(data, method, exact), solve(data, method, exact, near)
    assert warm.certificate.primal == pytest.approx(cold.certificate.primal, rel=2e-6)
    assert warm.effort.rounds < cold.effort.rounds


@pytest.mark.parametrize("scale", ["standard-unit", "standard-rms", "none"])
@pytest.mark.parametrize("stored", [10_000_000, 0])
def test_rows_that_stay_scaled_have_the_same_optimum(scale: str, stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm start takes rows that are mapped and scaled already, unless they are too large to keep."""
    monkeypatch.setattr("rhfedmtl.selection.folds.MOST_STORED", stored)
    data, exact, settings = federation(), Precision(1e-6, 2.0, 3000), Settings(scale=scale)
    method = DualMethod(relationship=MeanRegularised(1e-2, 1e-2), features=Features("splines=3"))
    near = solve(data, replace(method, relationship=MeanRegularised(3e-2, 1e-2)), exact, settings=settings)
    cold, warm = (solve(data, method, exact, start, settings) for start in (None, near))
    again = solve(data, method, exact, warm, settings)
    for solution in (warm, again):
        assert solution.certificate.primal == pytest.approx(cold.certificate.primal, rel=2e-6)
        np.testing.assert_allclose(solution.models, cold.models, atol=1e-2 * np.abs(cold.models).max())
        assert solution.scalers == near.scalers
    assert (warm.rows.federation.X.shape[1] > data.X.shape[1]) == bool(stored)


def test_restored_duals_keep_the_invariant() -> None:
    """U_b = Σ_t X_tᵀα_t holds after a restore, and duals of other rows or a late restore are refused."""
    data = federation()
    first = solve(data, DualMethod(intercept=False), QUICK)
    network = InProcess(data, DualMethod(intercept=False))
    network.restore(first.alpha)
    expected = [data.X[data.row_task == b].T.astype(float) @ first.alpha[data.row_task == b, 0] / 24 for b in range(4)]
    np.testing.assert_allclose(network.V[:, 0], expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(ProtocolError, match="duals of shape"):
        network.restore(first.alpha[:-1])


def test_what_is_learned_stays_when_weights_change() -> None:
    """Other weights keep Ω; a relationship without λ2 takes λ1 alone."""
    learned = Learned(1e-3, 1e-3, omega=np.diag([0.2, 0.8]))
    changed = weighted(learned, 1.0, 2.0)
    assert isinstance(changed, Learned)
    assert (changed.lambda1, changed.lambda2) == (1.0, 2.0)
    np.testing.assert_array_equal(changed.covariance(2), learned.covariance(2))
    assert weighted(Unrelated(1e-3), 1.0, 2.0) == Unrelated(1.0)
    assert weighted(Safe(MeanRegularised(1e-3, 1e-3)), 1.0, 2.0) == Safe(MeanRegularised(1.0, 2.0))


def test_a_start_at_the_optimum_is_not_taken_for_divergence() -> None:
    """From a gap of rounding error, the gap after a change of λ is no reason to leave the fast anchors."""
    data, exact = federation(), Precision(1e-12, 3.0, 3000)
    near = solve(data, DualMethod(relationship=MeanRegularised(1e-1, 1e-2)), exact)
    for lambda1 in (1e-1, 1e-2, 1e-4):
        again = solve(data, DualMethod(relationship=MeanRegularised(lambda1, 1e-2)), Precision(1e-9, 3.0), near)
        assert again.relationship == MeanRegularised(lambda1, 1e-2)


@pytest.mark.slow
def test_warm_trials_show_what_cold_ones_do() -> None:
    """Every trial of a path has the score that its weights have when solved alone."""
    data = federation()
    exact = Precision(1e-8, 3.0, 3000)
    method = DualMethod(relationship=Unrelated(1e-3))
    path = choose(data, method, precision=exact, lambda1=(1e-1, 1e-2, 1e-3))
    alone = [choose(data, method, precision=exact, lambda1=(value,)).trials[0] for value in (1e-1, 1e-2, 1e-3)]
    np.testing.assert_allclose([t.score for t in path.trials], [t.score for t in alone], rtol=1e-4)


def test_efforts_add_up() -> None:
    """The cost of a path is the sum of its parts."""
    assert Effort(1, 2, 3, 0.5) + Effort(1, 1, 1, 0.5) == Effort(2, 3, 4, 1.0)


def outlier_table(tasks: int = 40, rows: int = 24, features: int = 8) -> Federation:
    """Related regression tasks; the labels of the first are large and have nothing to do with its rows."""
    rng = np.random.default_rng(0)
    models = rng.normal(size=features) + 0.5 * rng.normal(size=(tasks, features))
    X = rng.normal(size=(tasks, rows, features))
    y = np.einsum("tij,tj->ti", X, models) + rng.normal(size=(tasks, rows))
    y[0] = 10.0 * rng.normal(size=rows) * np.square(y[0])
    ends, nothing = np.arange(tasks + 1) * rows, np.zeros(tasks + 1, dtype=np.int64)
    names = tuple(f"task-{b}" for b in range(tasks))
    X = X.reshape(-1, features)
    return Federation(X, y.ravel(), ends, np.arange(tasks + 1), X[:0], y.ravel()[:0], nothing, names)


def test_one_outlier_task_does_not_decide_for_all() -> None:
    """The search tries every λ2, and the choice is the same without the outlier."""
    data, method = outlier_table(), build("rhfedmtl", Options(), "regression").method
    assert isinstance(method, DualMethod)
    chosen = choose(data, method, lambda1=(1e-3,))
    assert {trial.lambda2 for trial in chosen.trials} == set(PATH2)
    assert np.nanmax(chosen.trials[-1].tasks) > 1.5, "the outlier is far worse than its zero model"
    without_outlier = replace(
        data,
        X=data.X[24:],
        y=data.y[24:],
        terminal_offsets=data.terminal_offsets[:-1],
        task_offsets=data.task_offsets[:-1],
        test_offsets=data.test_offsets[:-1],
        task_names=data.task_names[1:],
    )
    assert chosen.lambda2 == choose(without_outlier, method, lambda1=(1e-3,)).lambda2 < 0.3


@pytest.mark.parametrize(("grid", "text"), [((3.0, 1.0), "smallest"), ((1e-2, 1e-3), "largest"), ((3.0, 0.3, 0.0), "")])
def test_a_choice_at_the_edge_of_the_grid_says_so(grid: tuple[float, ...], text: str) -> None:
    """A better λ2 may lie outside."""
    best = 0.3
    losses = [np.array([abs(np.log((value + 1e-9) / best))]) for value in grid]
    trials = tuple(
        Trial(1e-3, value, loss, loss[:, None], 0.0, Effort()) for value, loss in zip(grid, losses, strict=True)
    )
    closest = min(grid, key=lambda value: abs(np.log((value + 1e-9) / best)))
    choice = Choice(1e-3, closest, "loss", trials, np.ones(1))
    assert (text in repr(choice)) if text else choice.edge == ""


@pytest.mark.parametrize("unequal", [0.0, 2.0])
def test_the_choice_draws_rows_of_large_tables(unequal: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tasks keep every row, and all other tasks get equally many; validation uses a single part."""
    data = Request("synthetic", tasks=4, terminals=2, settings={"rows": 800, "unequal": unequal}).federation(0)
    drawn = sample(data, 400, 0)
    counts, sizes = np.bincount(data.row_task[drawn]), np.bincount(data.row_task)
    assert 396 <= drawn.sum() <= 400
    assert ((counts == sizes) | (counts == counts.max())).all()
    monkeypatch.setattr(regularisation, "SEARCH_ROWS", 400)
    choice = choose(data, DualMethod(), lambda1=(1e-3,), precision=QUICK)
    assert choice.effort.solves == len(choice.trials)
    assert sample(data, 10_000, 0).all()


def test_a_choice_on_drawn_rows_is_the_choice_of_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the rows would want ten times the coupling, so the search divides weights by the share of rows."""
    rng, tasks, rows, features = np.random.default_rng(0), 60, 300, 10
    models = rng.normal(size=features) + 0.5 * rng.normal(size=(tasks, features))
    X = rng.normal(size=(tasks, rows, features))
    y = (np.einsum("tij,tj->ti", X, models) + 3.0 * rng.normal(size=(tasks, rows))).ravel()
    ends, nothing = np.arange(tasks + 1) * rows, np.zeros(tasks + 1, dtype=np.int64)
    X = X.reshape(-1, features)
    names = tuple(f"task-{b}" for b in range(tasks))
    data = Federation(X, y, ends, np.arange(tasks + 1), X[:0], y[:0], nothing, names)
    method = build("rhfedmtl", Options(), "regression").method
    assert isinstance(method, DualMethod)
    expected = choose(data, method, lambda1=(1e-3,)).lambda2
    monkeypatch.setattr(regularisation, "SEARCH_ROWS", tasks * rows // 10)
    assert expected / 4.0 < choose(data, method, lambda1=(1e-3,)).lambda2 < 4.0 * expected
