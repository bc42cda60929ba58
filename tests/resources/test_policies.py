"""Policies: what they plan from a situation, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.resources.billing import Layout, event_totals
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.measured import Measured
from rhfedmtl.resources.planning import Observation, Situation
from rhfedmtl.resources.policies import POLICIES, Fixed, Theoretical


def situation(
    cost: Any = "energy=0.1,10",
    budget: Any = "energy=1400",
    n_tasks: int = 5,
    n_terminals: int = 5,
    rows: int = 10,
    **more: Any,
) -> Situation:
    """A fresh run of equal stations."""
    task = np.repeat(np.arange(n_tasks), n_terminals)
    return Situation(
        np.full(len(task), rows), Layout(task, n_tasks), Ledger(cost, budget), **{"lam": 1e-4, "gamma": 1.0} | more
    )


def test_the_authors_curve_is_the_one_behind_the_papers_figure() -> None:
    """K = 14, 13, 13, 12, 12, 11, 11, 10, 10, 9 for H = 1 … 10, and budget 1400 ends at H = 8."""
    # 260 samples a station, 26 on the largest terminal: ten of them.
    s = situation(rows=26, n_terminals=10)
    forecast = POLICIES["authors"]().forecast(s, 27)  # type: ignore[attr-defined]
    assert forecast.K[:10].tolist() == [14, 13, 13, 12, 12, 11, 11, 10, 10, 9]


def test_the_papers_procedure_shows_its_three_cases() -> None:
    """Along rising budgets the authors' curve is starved, then just enough, then surplus."""
    policy = Theoretical("authors", epsilon=1e-4, planned_cloud_rounds=2)
    cases = [
        policy.plan(situation(budget={"energy": budget}, rows=26, n_terminals=5)).why["case"]  # type: ignore[union-attr]
        for budget in (500.0, 1300.0, 5000.0)
    ]
    assert cases == ["starved", "enough", "surplus"]


@pytest.mark.parametrize("budget", [100.0, 1e6])
def test_the_papers_own_bound_ends_at_one_step_for_starved_and_surplus_budgets(budget: float) -> None:
    """β is about 1e-6 at the paper's settings, so f rises with h and the procedure ends at H = 1."""
    plan = POLICIES["paper"]().plan(situation(budget={"energy": budget}, rows=14))
    assert plan is not None
    assert plan.local_steps.max() == 1


def test_the_sound_bound_asks_for_far_more_rounds_than_the_papers() -> None:
    """The guarantee costs orders of magnitude: K of the sound bound against K of the paper's."""
    s = situation(rows=14)
    paper, sound = (POLICIES[name]().forecast(s, 15).K for name in ("paper", "sound"))  # type: ignore[attr-defined]
    assert np.all(sound > 1e4 * paper)


def test_theoretical_policies_need_a_budget() -> None:
    """Their H comes from the budget: without one they say so."""
    with pytest.raises(BudgetError, match="energy=1400"):
        POLICIES["paper"]().plan(situation(budget=None))


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"epsilon": float("nan")}, {"planned_cloud_rounds": 0}])
def test_targets_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    """ε must be positive and finite, M at least 1."""
    with pytest.raises(ConfigError):
        Theoretical(**settings)


@pytest.mark.parametrize("name", ["local_steps", "station_rounds", "cloud_rounds"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_counts_below_one_are_refused(name: str, value: Any) -> None:
    """H = 0, K = 0 and M = 0 make no run."""
    with pytest.raises(ConfigError, match=name):
        Fixed(**{name: value})


def test_measured_spends_all_of_the_budget_in_equal_rounds() -> None:
    """Its rounds, as planned, take at least 90 % of the budget and never more than it."""
    s = situation()
    best = Measured().schedule(s)
    assert best is not None
    cost = best.cloud_rounds * event_totals(s.prices, s.round_event(best.local_steps))["energy"]
    assert 0.9 * 1400 <= cost <= 1400


def test_measured_takes_more_steps_where_steps_are_cheaper() -> None:
    """H falls as the price of a step rises."""
    steps = [
        Measured().plan(situation(f"energy={price},10")).local_steps[0]  # type: ignore[union-attr]
        for price in (0.01, 0.1, 1.0, 10.0)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_more_budget_is_never_predicted_to_leave_more() -> None:
    """The predicted rest falls with the budget, up to the whole steps that a budget pays."""
    left = [
        Measured().schedule(situation(budget={"energy": budget})).log_left  # type: ignore[union-attr]
        for budget in np.geomspace(60, 6000, 30)
    ]
    assert all(later <= earlier + 0.02 for earlier, later in pairwise(left))


def test_measured_ends_when_not_even_one_step_can_be_paid() -> None:
    """A round with H = 1 costs 52.5: 52.4 is too little, 52.5 is enough."""
    assert Measured().plan(situation(budget="energy=52.4")) is None
    plan = Measured().plan(situation(budget="energy=52.5"))
    assert plan is not None
    assert set(plan.local_steps.tolist()) == {1}


def test_measured_respects_a_least_number_of_steps() -> None:
    """With H = 1 an update is a scaled data row: a deployment may forbid it."""
    plan = Measured(least_steps=4).plan(situation("energy=5,10", "energy=400"))
    assert plan is None or plan.local_steps.min() >= 4
    assert Measured(least_steps=4).plan(situation(budget="energy=55")) is None


def test_several_types_are_kept_at_once_and_the_binding_one_decides() -> None:
    """Time that is scarce shortens the plan that energy alone would allow."""
    both = situation(["energy=0.1,10", "time=1,1"], ["energy=1400", "time=40"])
    alone = Measured().schedule(situation())
    best = Measured().schedule(both)
    assert alone is not None
    assert best is not None
    spent = event_totals(both.prices, both.round_event(best.local_steps))
    assert best.cloud_rounds * spent["time"] <= 40
    assert best.cloud_rounds * best.local_steps[0] < alone.cloud_rounds * alone.local_steps[0]


def test_a_price_on_server_iterations_makes_them_rarer() -> None:
    """K is 1 while the cloud is free, and grows once it is dear; independent tasks hardly need it."""
    free = Measured().plan(situation(coupling=0.3))
    dear = Measured().plan(situation("energy=0.1,10,200", "energy=3000", coupling=0.3))
    alone = Measured().plan(situation("energy=0.1,10,200", "energy=3000", coupling=0.0))
    assert free is not None
    assert dear is not None
    assert alone is not None
    assert free.station_rounds.max() == 1
    assert 1 < dear.station_rounds.max() <= alone.station_rounds.max()


def test_stations_with_cheaper_steps_are_given_more_of_them() -> None:
    """Where stations differ in price, H differs: what a step buys is made alike."""
    step = np.repeat([0.02, 0.02, 0.1, 0.5, 0.5], 5)
    plan = Measured().plan(situation({"energy": {"terminal_step": step, "station_round": 10.0}}))
    assert plan is not None
    by_station = plan.local_steps.reshape(5, 5)[:, 0]
    assert by_station[0] > by_station[-1]


def test_slow_terminals_take_fewer_steps_instead_of_holding_the_round() -> None:
    """With time scarce and one terminal 20 times slower, it gets fewer steps than the others."""
    step = np.full(25, 0.01)
    step[3] = 0.2
    cost = {"time": {"terminal_step": step, "station_round": 0.05}}
    s = situation(cost, {"time": 10.0})
    plan = Measured().plan(s)
    assert plan is not None
    assert plan.local_steps[3] < plan.local_steps[0]
    assert plan.local_steps.min() >= 1


def test_what_is_measured_moves_the_model() -> None:
    """Curves that saturate early raise the rate of a step, curves that keep rising lower it."""
    s = situation()
    prior = Measured().outlook(s).rate

    def seen(rate: float) -> list[Observation]:
        h = np.append(np.minimum(2.0 ** np.arange(16), 20), 20)
        gains = np.tile(1 - np.exp(-rate * h), (5, 1))
        return [Observation(k, np.full(25, 20), np.full(5, 5), np.full(5, 0.2), gains * 0.7**k) for k in (1, 2, 3, 4)]

    assert Measured().outlook(replace(s, observed=seen(0.5))).rate > 1.5 * prior
    assert Measured().outlook(replace(s, observed=seen(0.03))).rate < 0.7 * prior


def test_without_a_budget_measured_makes_one_pass_a_round() -> None:
    """Nothing is scarce: every terminal visits each of its rows once."""
    plan = Measured().plan(situation(budget=None, rows=7))
    assert plan is not None
    assert set(plan.local_steps.tolist()) == {7}
