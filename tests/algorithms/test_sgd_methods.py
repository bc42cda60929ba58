"""Methods by gradient steps against plain loops, against each other where they must agree, and at their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.runs import run, run_named
from tests.engines.shards import LOCAL
from tests.reference.problems import federation
from tests.reference.sdca import visits
from tests.reference.sgd import descend, plain_sgd, with_constant

from rhfedmtl.algorithms.baselines.ditto import Ditto
from rhfedmtl.algorithms.baselines.fedem import FedEM
from rhfedmtl.algorithms.baselines.fedprox import FedProx
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import ENGINES, Execution
from rhfedmtl.errors import ConfigError, DivergenceError
from rhfedmtl.maths.losses import SmoothedHinge, Squared
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

LOSS = SmoothedHinge()
STEP, LAM, SEED = 0.4, 0.03, 5


class LocalSgd(SgdMethod):
    """FedAvg within each station; nothing travels to the cloud."""

    def shared_rows(self, columns: int) -> int:
        """None."""
        return 0


def same_models(left: Any, right: Any) -> None:
    """Equal to the bit."""
    np.testing.assert_array_equal(left.models, right.models)


def hierarchical(data: Federation, *, steps: int, station_rounds: int, cloud_rounds: int) -> Any:
    """Terminals step, stations average them by samples, then the cloud averages stations: in plain loops."""
    X, y = with_constant(data.X), data.targets()
    w, number = np.zeros((y.shape[1], X.shape[1])), 0
    n_b = np.bincount(data.row_task)
    for _ in range(cloud_rounds):
        stations = [w] * data.n_tasks
        for _ in range(station_rounds):
            number += 1
            for b in range(data.n_tasks):
                answers, weights = [], []
                for t in range(data.task_offsets[b], data.task_offsets[b + 1]):
                    own = slice(data.terminal_offsets[t], data.terminal_offsets[t + 1])
                    order = visits(SEED, number, t, own.stop - own.start, steps)
                    answers.append(descend(LOSS, X[own], y[own], stations[b][None], order, step=STEP, lam=LAM)[0][0])
                    weights.append(own.stop - own.start)
                stations[b] = np.average(answers, axis=0, weights=weights)
        w = np.average(stations, axis=0, weights=n_b)
    return w


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_fedavg_with_one_terminal_is_plain_sgd(kind: str, decay: float) -> None:
    """The same rows in the same order give the same model, with a step size that stays or decays."""
    data = federation(kind, sizes=((11,),))
    method = SgdMethod(LOSS, intercept=True, lambda1=LAM, step=STEP, decay=decay)
    result = run(data, method, Fixed(7, 1, 4), seed=SEED)
    expected = plain_sgd(
        LOSS, with_constant(data.X), data.targets(), step=STEP, lam=LAM, rounds=4, steps=7, seed=SEED, decay=decay
    )
    np.testing.assert_allclose(result.models[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("station_rounds", [1, 3])
def test_averaging_on_three_tiers_is_what_plain_loops_give(station_rounds: int) -> None:
    """FedAvg (κ2 = 1) and HierFAVG (κ2 = 3) with unequal terminals and stations; all tasks get the one model."""
    data = federation("classes")
    method = SgdMethod(LOSS, intercept=True, lambda1=LAM, step=STEP)
    result = run(data, method, Fixed(4, station_rounds, 3), seed=SEED)
    expected = hierarchical(data, steps=4, station_rounds=station_rounds, cloud_rounds=3)
    for model in result.models:
        np.testing.assert_allclose(model, expected, rtol=1e-12, atol=1e-14)


def test_hierfavg_that_averages_once_is_fedavg() -> None:
    """κ2 = 1."""
    data = federation()
    same_models(run_named(data, "hierfavg", station_rounds=1), run_named(data, "fedavg"))


def test_fedprox_without_pull_is_fedavg() -> None:
    """μ = 0."""
    data = federation()
    same_models(run_named(data, "fedprox", mu=0.0), run_named(data, "fedavg"))


def test_fedem_with_one_component_is_fedavg() -> None:
    """One component answers for every row."""
    data = federation()
    same_models(run_named(data, "fedem", components=1), run_named(data, "fedavg"))


def test_ditto_without_pull_is_local_sgd() -> None:
    """λ = 0: the tasks' own models are FedAvg within each station."""
    data = federation()
    local = run(data, LocalSgd(LOSS, intercept=True), seed=5)
    same_models(run_named(data, "ditto", mu=0.0), local)


def test_ditto_held_firmly_is_fedavg() -> None:
    """Own models approach the shared one as λ grows."""
    data = federation()
    shared = run(data, SgdMethod(LOSS, step=0.05)).models
    away = [np.linalg.norm(run(data, Ditto(LOSS, step=0.05, pull=pull)).models - shared) for pull in (0.0, 2.0, 15.0)]
    assert away[0] > away[1] > away[2]


def test_fedprox_holds_terminals_near_their_start() -> None:
    """The larger μ, the shorter the way of one round."""
    data = federation()
    ways = [np.linalg.norm(run(data, FedProx(LOSS, mu=mu), Fixed(20, 1, 1)).models) for mu in (0.0, 0.5, 1.5)]
    assert ways[0] > ways[1] > ways[2]


def test_the_model_that_is_returned_is_the_clouds() -> None:
    """Not what a station made of it last: one model for all tasks, in every record of the run."""
    data = federation()
    seen = Run(data, SgdMethod(LOSS), Settings(scale="none"), Ledger({}))
    seen.learn(Fixed(2, 2, 3))
    models = seen.certify().models
    assert np.ptp(models, axis=0).max() == 0.0
    assert np.ptp(seen.network.models, axis=0).max() > 0.0
    np.testing.assert_array_equal(models[0], seen.cloud.assign()[0].center)


def test_a_station_without_samples_has_no_say() -> None:
    """A task that lost its terminals keeps its place and does not hold the others back."""
    data = federation(sizes=((4, 5), (6,)))
    seen = Run(data, SgdMethod(LOSS), Settings(scale="none"), Ledger({}))
    seen.learn(Fixed(2, 1, 1))
    seen.network.move(2, 0)
    seen.learn(Fixed(2, 1, 3))
    np.testing.assert_array_equal(seen.certify().models[0], seen.network.models[0])


@pytest.mark.parametrize(
    ("method", "rows", "shared"),
    [
        (SgdMethod(LOSS, intercept=False), 3, 3),
        (FedProx(LOSS, intercept=False), 3, 3),
        (LocalSgd(LOSS, intercept=False), 3, 0),
        (Ditto(LOSS, intercept=False), 6, 3),
        (FedEM(LOSS, components=2, intercept=False), 7, 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SgdMethod) else None,
)
def test_messages_to_the_cloud_hold_the_shared_rows_only(method: SgdMethod, rows: int, shared: int) -> None:
    """What is a task's own (Ditto's own models, FedEM's shares) stays at its station: it is in no anchor or report."""
    data = federation("classes")
    for engine in map(ENGINES.__getitem__, LOCAL):
        network = engine(data, method, seed=0, present=np.diff(data.terminal_offsets), execution=Execution())
        sizes, empty, row = network.message_sizes, message_sizes((0, data.n_features), 0, 0), 8 * data.n_features
        assert network.reports(1)[0].v.shape == (shared, data.n_features)
        assert network.reports(1)[0].n_bytes == sizes.report
        carried = ("anchor", shared), ("report", shared), ("order", rows), ("update", rows)
        for name, count in carried:  # lengths are longer where more is carried
            assert abs(getattr(sizes, name) - getattr(empty, name) - count * row) <= 8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("engine", LOCAL)
def test_a_method_that_diverges_says_so(engine: str, dtype: Any) -> None:
    """Too large a step ends in an error that names the way out, never in models that are no numbers."""
    data = federation("regression", dtype=dtype)
    with pytest.raises(DivergenceError, match="smaller step"):
        run(data, SgdMethod(Squared(), step=1e6), Fixed(10, 1, 500), engine=engine)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (SgdMethod, {"step": 0.0}),
        (SgdMethod, {"step": float("nan")}),
        (SgdMethod, {"decay": -1.0}),
        (SgdMethod, {"lambda1": -1.0}),
        (FedProx, {"mu": -0.1}),
        (Ditto, {"pull": float("inf")}),
        (FedEM, {"components": 0}),
    ],
)
def test_settings_that_cannot_work_are_refused(method: Any, settings: dict[str, float]) -> None:
    """The error names the value."""
    with pytest.raises(ConfigError, match="must be"):
        method(LOSS, **settings)


@pytest.mark.parametrize("engine", LOCAL)
def test_more_components_than_features_are_refused(engine: str) -> None:
    """Shares have one row of the matrix: what does not fit must not be written beside it."""
    data = federation(d=2)
    with pytest.raises(ConfigError, match="3 components need"):
        run(data, FedEM(LOSS, components=3, intercept=False), engine=engine)
    run(data, FedEM(LOSS, components=2, intercept=False), engine=engine)


def test_lost_updates_leave_the_mean_of_those_that_came() -> None:
    """A station divides by the samples of the terminals that answered, not of all."""
    data = federation(sizes=((5, 7),))
    method = SgdMethod(LOSS, step=STEP, lambda1=LAM, intercept=False)
    network = InProcess(data, method, seed=SEED)
    seen = Run(data, method, Settings(scale="none", seed=SEED), Ledger({}))
    network.assign(seen.cloud.assign())
    network.round(1, np.array([4, 4]), np.array([False, True]))
    order = visits(SEED, 1, 1, 7, 4)
    alone, _ = descend(LOSS, data.X[5:], data.targets()[5:], np.zeros((1, 1, 4)), order, step=STEP, lam=LAM)
    np.testing.assert_allclose(network.models[0], alone[0], rtol=1e-12)
