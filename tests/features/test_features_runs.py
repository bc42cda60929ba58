"""Runs behind feature maps: certificates, engines, channels, checkpoints, test rows, and scales of stations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from tests.engines.shards import LOCAL, sharded
from tests.features.examples import MAPS, SUMS, difficult, encoder
from tests.reference.solvers import by_cvxpy, by_lbfgs
from tests.turns import in_turn

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data import centring
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.engines.registry import Execution
from rhfedmtl.features.base import LEVELS
from rhfedmtl.features.maps import Features
from rhfedmtl.maths import metrics
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.channel import FixedPoint, MaskedSums
from rhfedmtl.testing import runs
from rhfedmtl.testing.runs import BUDGET, COST, FAULTS, Case, same
from rhfedmtl.training import checkpoint
from rhfedmtl.training.result import Result
from rhfedmtl.training.round_zero import row_maps
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

LAMBDA1, LAMBDA2 = 2e-2, 5e-2
ALL = "splines=3+pairs=2+fourier=5+sparse-fourier=4"


def learned(
    features: str,
    data: Federation,
    *,
    gap: float = 1e-9,
    scale: str = "standard-unit",
    per_station: bool = False,
    engine: str = "inprocess",
    **options: Any,
) -> Result:
    """Return a run without a budget."""
    weights = {"lambda1": LAMBDA1, "lambda2": LAMBDA2}
    built = build("rhfedmtl", Options.of(features=features, **{**weights, **options}), data.kind)
    settings = Settings(
        scale=scale,
        scale_per_station=per_station,
        target_gap=gap,
        target_relative_gap=1e-12,
        max_rounds=4000,
        execution=Execution(engine),
    )
    return train(data, built.method, built.policy, settings, ledger=Ledger({}))


def mapped_problem(data: Federation, scalers: list[Scaler]) -> Federation:
    """Return the mapped rows with the constant feature of the intercept as their last column."""
    parts = []
    for b, scaler in enumerate(scalers):
        rows = scaler.transform(data.X[data.row_task == b])
        constant = scaler.constant(rows.shape[1])
        parts.append(np.column_stack([rows, np.full(len(rows), constant)]))
    X = np.concatenate(parts)
    return replace(
        data, X=X, test_X=np.empty((0, X.shape[1])), test_y=data.test_y[:0], test_offsets=0 * data.test_offsets
    )


def assert_bounds(result: Result, optimum: float) -> None:
    """Require that the certificate encloses the optimum of another solver."""
    certificate = result.certificate
    assert certificate.gap <= 1e-8
    assert certificate.dual <= optimum + 1e-9
    assert optimum <= certificate.primal + 1e-9
    assert certificate.primal == pytest.approx(optimum, abs=certificate.gap + 1e-9)


@pytest.mark.parametrize("features", SUMS)
@pytest.mark.parametrize("per_station", [False, True])
def test_a_certificate_encloses_the_optimum_of_the_mapped_problem(features: str, per_station: bool) -> None:
    """L-BFGS of SciPy finds the optimum, from the mapped rows alone."""
    data = difficult()
    scale = "standard-rms" if per_station else "standard-unit"
    result = learned(features, data, scale=scale, per_station=per_station)
    method = build("rhfedmtl", Options.of(lambda1=LAMBDA1, lambda2=LAMBDA2), "binary").method
    problem = mapped_problem(data, result.scalers)
    assert problem.X.shape[1] == Features(features).columns(6) + 1
    optimum, _ = by_lbfgs(problem, method.loss, method.relationship.precision(3))
    assert_bounds(result, optimum)


@pytest.mark.parametrize(("kind", "loss"), [("binary", "logistic"), ("binary", "squared-hinge"), ("classes", "hinge")])
def test_a_certificate_holds_for_other_losses(kind: str, loss: str) -> None:
    """CVXPY finds the optimum."""
    data = difficult(kind)
    result = learned("splines=3", data, loss=loss, gap=1e-7)
    method = build("rhfedmtl", Options.of(loss=loss), kind).method
    optimum, _ = by_cvxpy(mapped_problem(data, result.scalers), method.loss, LAMBDA1, LAMBDA2, intercept=False)
    assert result.certificate.dual - 1e-8 <= optimum <= result.certificate.primal + 1e-8
    assert result.certificate.gap < 1e-4


def test_a_certificate_of_numbers_holds() -> None:
    """Labels lose the level of their task first; L-BFGS finds the optimum."""
    data = difficult("regression")
    result = learned("splines=3+pairs=3", data, scale="standard-rms")
    network = InProcess(data, build("rhfedmtl", Options.of(), "regression").method)
    levels = centring.levels(network.labels())
    problem = mapped_problem(data, result.scalers)
    shape = (3, problem.X.shape[1])
    Q = build("rhfedmtl", Options.of(lambda1=LAMBDA1, lambda2=LAMBDA2), "regression").method.relationship.precision(3)

    def primal(flat: Any) -> tuple[float, Any]:
        W = flat.reshape(shape)
        gradient = Q @ W
        value = np.sum(gradient * W) / 2
        for b in range(3):
            X, y = problem.X[problem.row_task == b], problem.y[problem.row_task == b] - levels[b]
            error = X @ W[b] - y
            value += np.mean(error**2) / 2
            gradient[b] += X.T @ error / len(X)
        return value / 3, gradient.ravel() / 3

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-18, "gtol": 1e-12, "maxcor": 50}
    optimum = minimize(primal, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B", options=options).fun
    assert_bounds(result, float(optimum))


@pytest.mark.parametrize(("features", "weather"), in_turn([*MAPS, ALL], FAULTS))
def test_engines_give_the_same_numbers_and_the_same_bill(features: str, weather: str) -> None:
    """Batched, message by message and in shards, under each kind of fault, within the budget."""
    assert {"inprocess", "message-passing", "sharded"} <= set(LOCAL) == set(runs.local_engines())
    runs.within_budget(runs.agreed(Case("rhfedmtl", Options.of(features=features)), weather))


@pytest.mark.parametrize("algorithm", ["hierfavg", "fedavg", "hfedmtl", "ditto"])
def test_engines_agree_on_other_algorithms(algorithm: str) -> None:
    """Gradient methods map the same rows."""
    runs.agreed(Case(algorithm, Options.of(features="splines=3+fourier=4")), "everything")


@pytest.mark.parametrize("kind", ["classes", "regression"])
@pytest.mark.parametrize("per_station", [False, True])
def test_engines_agree_on_difficult_columns(kind: str, per_station: bool) -> None:
    """Outliers, discrete and constant columns, several classes and numbers, and a scale of each station."""
    data = replace(difficult(kind), feature_names=("a", "b", "c", "d", "e", "f"))
    first, *repeated = (learned(ALL, data, gap=1e-3, per_station=per_station, engine=engine) for engine in LOCAL)
    for result in repeated:
        same(first, result)


def test_engines_agree_on_an_encoder(tmp_path: Path) -> None:
    """ONNX Runtime reads single rows in each engine."""
    features = f"onnx={encoder(tmp_path / 'e.onnx')}+splines=2"
    first, *repeated = (learned(features, difficult(), gap=1e-3, engine=engine) for engine in LOCAL)
    for result in repeated:
        same(first, result)


def test_single_precision_rows_agree() -> None:
    """Rows of float32 are mapped in double precision, and stored as float32."""
    data = difficult()
    data = replace(data, X=data.X.astype(np.float32), test_X=data.test_X.astype(np.float32))
    first, *repeated = (learned(ALL, data, gap=1e-3, engine=engine) for engine in LOCAL)
    for result in repeated:
        same(first, result)


@pytest.mark.parametrize("per_station", [False, True])
def test_masked_sums_give_the_maps_of_clear_sums(per_station: bool) -> None:
    """Counts are whole numbers, so quantiles behind masks are the same bits; every engine has the same maps."""
    data, features = difficult(), Features(ALL)
    settings = Settings(scale_per_station=per_station)
    options = Options.of(features=ALL, lambda1=LAMBDA1, lambda2=LAMBDA2)
    clear, masked = (replace(options.method("binary"), channel=c) for c in (FixedPoint(), MaskedSums(least_summed=2)))

    def maps(network: Any, method: Any) -> list[Any]:
        return row_maps(network, (data.n_tasks, data.n_features), features, settings, method.channel.moments_dtype, ())

    expected = maps(InProcess(data, clear), clear)
    for engine in (InProcess, MessagePassing, sharded):
        for row_map, reference in zip(maps(engine(data, masked), masked), expected, strict=True):
            np.testing.assert_array_equal(row_map.statistics.quantiles, reference.statistics.quantiles)
            np.testing.assert_allclose(row_map.first.mean, reference.first.mean, rtol=1e-12, atol=1e-12)


def test_masked_runs_agree_with_clear_rounding() -> None:
    """A masked run is the run whose updates are rounded to the same grid."""
    data = runs.federation()
    options = Options.of(features="splines=3+pairs=3")
    results = []
    hidden, clear = MaskedSums(2.0**-20, 2), FixedPoint(2.0**-20)
    for channel, engine in ((hidden, "inprocess"), (hidden, "message-passing"), (clear, "inprocess")):
        built = build("rhfedmtl", options, data.kind)
        settings = Settings(certify_every=5, max_rounds=40, execution=Execution(engine))
        method = replace(built.method, channel=channel)
        results.append(train(data, method, built.policy, settings, ledger=Ledger(COST, BUDGET)))
    masked, by_messages, rounded = results
    same(masked, by_messages)
    np.testing.assert_allclose(masked.models, rounded.models, rtol=0, atol=1e-9)


@pytest.mark.parametrize("features", [ALL, "fourier=6"])
@pytest.mark.parametrize("weather", ["calm", "everything"])
def test_a_killed_and_resumed_run_is_the_same_run(features: str, weather: str, tmp_path: Path) -> None:
    """A checkpoint in the middle of the run has all that follows."""
    data = runs.federation()
    built = build("rhfedmtl", Options.of(features=features), data.kind)
    settings = Settings(certify_every=5, max_rounds=40)

    def learn(**more: Any) -> Result:
        ledger = Ledger(COST, BUDGET)
        return train(data, built.method, built.policy, settings, ledger=ledger, faults=FAULTS[weather], **more)

    uncut, keep = learn(), checkpoint.Keeper(tmp_path / "checkpoint")
    half = uncut.rounds // 2
    assert half
    learn(watch=lambda progress: progress.round < half, keep=keep)
    resumed = learn(start=checkpoint.read(keep.path))
    same(uncut, resumed)
    for scaler, again in zip(uncut.scalers, resumed.scalers, strict=True):
        np.testing.assert_array_equal(scaler.transform(data.X), again.transform(data.X))


@pytest.mark.parametrize("features", [*MAPS, ALL])
def test_test_rows_are_mapped_as_well(features: str) -> None:
    """The accuracy of a run belongs to its models on mapped test rows."""
    data = runs.federation()
    result = learned(features, data, gap=1e-3)
    for b in range(data.n_tasks):
        X, y = data.test_rows(b)
        scores = metrics.scores(result.scalers[b].transform(X), result.models[b])
        assert np.mean(metrics.predict(scores, 2) == y) == result.metrics["accuracy"][b]


def test_a_station_may_have_a_scale_of_its_own() -> None:
    """Tasks with other units and quantiles get other maps, and models that are as good as in common units."""
    data = runs.federation()
    factor, shift = np.array([1.0, 50.0, 1e-3]), np.array([0.0, 7.0, -3.0])
    task = np.repeat(np.arange(3), np.diff(data.test_offsets))
    units = replace(
        data,
        X=data.X * factor[data.row_task, None] + shift[data.row_task, None],
        test_X=data.test_X * factor[task, None] + shift[task, None],
    )
    plain, scaled = (learned("splines=4+pairs=3", rows, gap=1e-6, per_station=True) for rows in (data, units))
    assert plain.scalers[0].mapping is not plain.scalers[1].mapping
    for b in range(3):
        first, second = plain.scalers[b], scaled.scalers[b]
        np.testing.assert_allclose(
            second.transform(units.test_rows(b)[0]), first.transform(data.test_rows(b)[0]), rtol=0, atol=1e-6
        )
    np.testing.assert_allclose(scaled.models, plain.models, rtol=0, atol=1e-3)
    common = learned("splines=4+pairs=3", units, gap=1e-6)
    assert common.scalers[0] is common.scalers[2]
    assert scaled.metrics["accuracy"].mean() >= common.metrics["accuracy"].mean()


def test_terminals_without_rows_or_test_rows_change_nothing() -> None:
    """Late terminals have no rows in round zero, and a task may have no test rows."""
    data = runs.federation()
    tests = data.test_offsets.copy()
    tests[2:] = tests[1]
    data = replace(data, test_X=data.test_X[: tests[-1]], test_y=data.test_y[: tests[-1]], test_offsets=tests)
    first, *repeated = (learned(ALL, data, gap=1e-3, engine=engine) for engine in LOCAL)
    for result in repeated:
        same(first, result)


def test_the_bytes_of_round_zero_are_charged() -> None:
    """A map with quantiles costs more than a map without, and both more than none."""
    spent = []
    for features in ("none", "fourier=30", "splines=5"):
        data = runs.federation()
        built = build("rhfedmtl", Options.of(features=features), data.kind)
        ledger = Ledger(["bytes=byte:1"], {})
        train(data, built.method, built.policy, Settings(max_rounds=1), ledger=ledger)
        spent.append(ledger.spent["bytes"])
    assert spent[0] < spent[1] < spent[2]
    assert spent[2] - spent[1] > 2 * 8 * 6 * len(LEVELS)
