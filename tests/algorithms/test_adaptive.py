"""Wang et al.'s control of the number of steps: its formula, its estimates, and how it answers to prices."""

from __future__ import annotations

import numpy as np
import pytest
from tests.algorithms.runs import run_built
from tests.engines.shards import LOCAL
from tests.reference.problems import federation

from rhfedmtl.algorithms.baselines.adaptive_fl import AdaptiveFL
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.maths.kernels.rounds import BETA, MEAN_SQUARE, RHO, SAMPLES, SQUARE
from rhfedmtl.policies.adaptive_fl import AdaptiveControl, Estimates, estimates
from rhfedmtl.policies.base import Observation, Plan, Situation
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

SIZES = np.array([4, 6, 5, 5])
TASK = np.array([0, 0, 1, 1])
CONTROL = AdaptiveControl(step=0.1, probes=2)


def situation(
    cost: str = "energy=0.1,10", budget: str | None = "energy=400", observed: list[Observation] | None = None
) -> Situation:
    """Two stations with two terminals each, in the middle of a run."""
    observed = observed or []
    ledger = Ledger(cost, budget)
    return Situation(
        SIZES, Placement(TASK, 2), ledger, lam=1e-3, gamma=1.0, rounds=len(observed), cloud_rounds=len(observed),
        observed=observed,
    )  # fmt: skip


def seen(tau: int, *, rho: float, beta: float, square: float, mean_square: float) -> Observation:
    """A round in which all terminals answered with the same estimates."""
    gains = np.zeros((2, 17))
    for place, value in ((RHO, rho), (BETA, beta), (SQUARE, square), (MEAN_SQUARE, mean_square), (SAMPLES, 1.0)):
        gains[:, place] = 10.0 * value
    return Observation(1, np.full(4, tau + 4), np.array([2, 2]), np.ones(2), gains)


def rounds(tau: int = 5, *, rho: float = 1.0, beta: float = 1.0, delta: float = 0.3) -> list[Observation]:
    """Two rounds from which these estimates follow."""
    return [seen(tau, rho=rho, beta=beta, square=1.0 + delta**2, mean_square=1.0) for _ in range(2)]


def best(cost: str = "energy=0.1,10", budget: str = "energy=400", **found: float) -> int:
    """τ of the plan after two rounds of many steps."""
    plan = CONTROL.plan(situation(cost, budget, rounds(50, **found)))
    assert plan is not None
    return int(plan.why["tau"])


def formula(tau: int, R: float, c: float, b: float, eta: float, phi: float, found: Estimates) -> float:
    """G(τ) as the paper writes it, for one type."""
    rho, beta, delta = found
    R = R - b - c
    h = delta / beta * ((eta * beta + 1) ** tau - 1) - eta * delta * tau
    first = (c * tau + b) / (2 * eta * phi * R * tau)
    return float(first + np.sqrt(first**2 + rho * h / (eta * phi * tau)) + rho * h)


def test_the_bound_is_the_papers() -> None:
    """G(τ) for τ = 1 … 30; visits for estimates and the cloud's share are part of what an aggregation costs."""
    found, taus = Estimates(0.8, 1.7, 0.4), np.arange(1, 31)
    c, b = 4 * 0.1, 2 * 10 + 3 + 4 * 0.1 * 2 * CONTROL.probes
    expected = [formula(int(tau), 400.0 + 4 * 0.4, c, b, 0.1, 0.025, found) for tau in taus]
    bound = CONTROL.bound(situation("energy=0.1,10,3", "energy=400"), taus, found)
    np.testing.assert_allclose(bound, expected, rtol=1e-9)


def test_without_distance_of_terminals_there_is_no_reason_to_aggregate() -> None:
    """δ = 0, or a flat loss (ρ = 0 or β = 0): the largest τ."""
    for nothing in ({"delta": 0.0}, {"rho": 0.0}, {"beta": 0.0}):
        assert best(**nothing) == CONTROL.largest_tau


def test_a_dearer_aggregation_calls_for_more_steps() -> None:
    """τ never falls as the price of a round rises, and rises in the end."""
    taus = [best(f"energy=0.1,{price}") for price in (0.1, 1, 10, 50)]
    assert taus == sorted(taus)
    assert taus[0] < taus[-1]


def test_steps_that_are_dearer_than_aggregations_call_for_fewer_of_them() -> None:
    """With a budget that pays as many steps, τ never rises with the price of a step, and falls in the end."""
    taus = [best(f"energy={price},10", f"energy={4000 * price}") for price in (0.1, 0.5, 2.0, 50.0)]
    assert taus == sorted(taus, reverse=True)
    assert taus[0] > taus[-1]


def test_a_larger_budget_calls_for_fewer_steps() -> None:
    """Who can pay for many aggregations aggregates often: τ falls to 1, the paper's first proposition."""
    taus = [best(budget=f"energy={budget}") for budget in (200, 2000, 2e4, 2e7)]
    assert taus == sorted(taus, reverse=True)
    assert taus[-1] == 1


def test_terminals_that_differ_more_call_for_fewer_steps() -> None:
    """τ never rises with δ."""
    taus = [best(delta=delta) for delta in (0.001, 0.03, 0.3, 3.0)]
    assert taus == sorted(taus, reverse=True)
    assert taus[0] > taus[-1]


def test_the_scarcest_type_decides() -> None:
    """Of two types, that with the larger share of its budget per step rules τ."""
    ledger = Ledger(["energy=0.1,10", "money=1,0.1"], "energy=1e9,money=400")
    two = Situation(
        SIZES, Placement(TASK, 2), ledger, lam=1e-3, gamma=1.0, rounds=2, observed=rounds(50), cloud_rounds=2
    )
    found, taus = Estimates(1.0, 1.0, 0.3), np.arange(1, 20)
    money = situation("money=1,0.1", "money=400", rounds(50))
    np.testing.assert_allclose(CONTROL.bound(two, taus, found), CONTROL.bound(money, taus, found))


def test_the_first_rounds_take_one_step_and_growth_is_limited() -> None:
    """Before there are estimates τ = 1; then it grows tenfold at most."""
    for observed in ([], rounds()[:1]):
        plan = CONTROL.plan(situation(observed=observed))
        assert plan is not None
        assert plan.why["tau"] == 1
        assert set(plan.local_steps) == {1 + 2 * CONTROL.probes}
    plan = CONTROL.plan(situation(observed=rounds(2, delta=0.0)))
    assert plan is not None
    assert plan.why["tau"] == 20


def test_estimates_weigh_stations_as_their_models_are_weighed() -> None:
    """Lost updates do not shrink an estimate: it is a mean over those who answered, stations by their samples."""
    last = seen(3, rho=2.0, beta=3.0, square=5.0, mean_square=1.0)
    half = last._replace(gains=last.gains * np.array([[0.4], [1.0]]))
    assert estimates(situation(observed=[half, half])) == pytest.approx(Estimates(2.0, 3.0, 2.0))
    silent = last._replace(gains=last.gains * np.array([[0.0], [1.0]]))
    assert estimates(situation(observed=[silent, silent])) == pytest.approx(Estimates(2.0, 3.0, 2.0))
    assert estimates(situation(observed=[last, last._replace(gains=np.zeros((2, 17)))])) is None


def test_delta_of_a_run_is_the_distance_of_gradients_from_their_mean() -> None:
    """From what the network reports: √(mean ‖∇F_t − ∇F‖²) at one and the same model."""
    data = _one_row_each()
    method = build("adaptive-fl", Options.of(step=0.05, intercept=False, lambda1=0.0), data.kind).method
    run = Run(data, method, Settings(scale="none"), Ledger("energy=0.1,10", "energy=300"))
    for number in (1, 2):
        run.learn(_Rounds(number))
    gradients = [-y * x for x, y in zip(data.X, data.y, strict=True)]
    away = np.square(gradients - np.mean(gradients, axis=0)).sum(axis=1)
    found = estimates(run.situation())
    assert found is not None
    assert found.delta == pytest.approx(np.sqrt(away.mean()), rel=1e-9)


class _Rounds:
    """So many rounds of one step with probes."""

    def __init__(self, most: int) -> None:
        self.most = most

    def plan(self, situation: Situation) -> Plan | None:
        """One step and two probes, seen twice."""
        return None if situation.rounds >= self.most else Plan.uniform(situation, 5, 1)


def _one_row_each() -> Federation:
    """Regression with one row per terminal, so that a probe is all there is; F_t(0) has the gradient −y x."""
    return federation("regression", sizes=((1, 1), (1, 1)))


@pytest.mark.parametrize("engine", LOCAL)
@pytest.mark.parametrize("budget", [23.0, 61.0, 150.0])
def test_a_run_never_exceeds_its_budget_and_leaves_no_step_unbought(budget: float, engine: str) -> None:
    """Spent ≤ budget of every type; at the end not even one step can be paid."""
    data = federation(sizes=((4, 6), (5, 1)))
    ledger = Ledger(["energy=0.1,10", "time=0.01,0.1"], f"energy={budget},time=40")
    result = run_built(data, build("adaptive-fl", Options.of(step=0.2), data.kind), ledger, engine=engine)
    assert result.stopped == "budget spent"
    assert ledger.spent["energy"] <= budget
    assert budget - ledger.spent["energy"] < 2 * 10 + 4 * 0.1
    assert sum(int(seen.local_steps.sum()) for seen in result.observed) == result.terminal_steps


def test_it_needs_a_budget_and_probes() -> None:
    """Both errors say what to do."""
    with pytest.raises(BudgetError, match="energy=1400"):
        CONTROL.plan(situation(budget=None))
    with pytest.raises(ConfigError, match="probes"):
        AdaptiveFL(probes=0)
