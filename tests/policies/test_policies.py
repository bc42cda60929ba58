"""Policies: what they plan from a situation, before anything runs."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.maths.quasi_newton import ASCENT, NEWTON
from rhfedmtl.policies.base import Observation, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.allocation import by_deadline
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.policies.measured.progress import PASS_RATE, ProgressModel, share_of_cloud
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.policies.theoretical import BOUNDS, Theoretical
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.prices import Prices
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.resources.waiting import waiting_times


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
        np.full(len(task), rows), Placement(task, n_tasks), Ledger(cost, budget), **{"lam": 1e-4, "gamma": 1.0} | more
    )


def test_the_authors_curve_is_the_one_behind_the_papers_figure() -> None:
    """K = 14, 13, 13, 12, 12, 11, 11, 10, 10, 9 for H = 1 … 10, and budget 1400 ends at H = 8."""
    # 260 samples a station, 26 on the largest terminal: ten of them.
    s = situation(rows=26, n_terminals=10)
    forecast = POLICIES["paper"]().forecast(s, 27)  # type: ignore[attr-defined]
    assert forecast.K[:10].tolist() == [14, 13, 13, 12, 12, 11, 11, 10, 10, 9]


def test_the_papers_procedure_shows_its_three_cases() -> None:
    """Along rising budgets the authors' curve is starved, then just enough, then surplus."""
    policy = Theoretical("drawn")
    cases = [
        policy.plan(situation(budget={"energy": budget}, rows=26, n_terminals=5)).why["case"]  # type: ignore[union-attr]
        for budget in (500.0, 1300.0, 5000.0)
    ]
    assert cases == ["starved", "enough", "surplus"]


@pytest.mark.parametrize("budget", [100.0, 1e6])
def test_the_papers_own_bound_ends_at_one_step_for_starved_and_surplus_budgets(budget: float) -> None:
    """β is about 1e-6 at the paper's settings, so f rises with h and the procedure ends at H = 1."""
    plan = Theoretical("text").plan(situation(budget={"energy": budget}, rows=14))
    assert plan is not None
    assert plan.local_steps.max() == 1


def test_the_sound_bound_asks_for_far_more_rounds_than_the_papers() -> None:
    """The guarantee costs orders of magnitude: K of the sound bound against K of the paper's."""
    s = situation(rows=14)
    paper, sound = (Theoretical(bound).forecast(s, 15).K for bound in BOUNDS[1:])
    assert np.all(sound > 1e4 * paper)


def test_theoretical_policies_need_a_budget() -> None:
    """Their H comes from the budget: without one they say so."""
    with pytest.raises(BudgetError, match="energy=1400"):
        POLICIES["paper"]().plan(situation(budget=None))


@pytest.mark.parametrize("settings", [{"bound_target": 0.0}, {"bound_target": float("nan")}, {"bound": "printed"}])
def test_targets_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    """ε must be positive and finite, and the bound known."""
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


@pytest.mark.parametrize("terminals", [1, 5])
@pytest.mark.parametrize("price", [0.01, 0.1, 1.0])
def test_strongly_coupled_tasks_are_not_solved_at_an_anchor_that_knows_nothing(terminals: int, price: float) -> None:
    """Where two server iterations can be paid there are two, in the first plan; once anchors know, one may do."""
    first, later = (_planned(price, terminals, lam=1.0, **known) for known in ({}, {"cloud_rounds": 1, "rounds": 1}))
    assert first >= 2
    assert later <= first


def _planned(price: float, terminals: int, **more: Any) -> int:
    """Server iterations of strongly coupled tasks of ten rows a terminal, where a little over two can be paid."""
    budget = {"energy": 2.2 * (50.0 + price * 5 * terminals * 10)}
    best = Measured().schedule(situation(f"energy={price},10", budget, n_terminals=terminals, coupling=0.99, **more))
    assert best is not None
    return best.cloud_rounds


@pytest.mark.parametrize(
    ("rounds", "passes", "falls_to", "astray", "solver"),
    [
        (1, 20.1, 0.9, True, ASCENT),
        (3, 3.1, 0.9, True, ASCENT),
        (3, 20.1, 0.2, False, ASCENT),
        (3, 20.1, 0.9, True, NEWTON),
        (3, 20.1, 0.9, False, NEWTON),
    ],
)
def test_the_solvers_are_compared_from_the_third_round_on(
    rounds: int, passes: float, falls_to: float, astray: bool, solver: str
) -> None:
    """Ascent goes on while the gap falls fast, or while a search has too few passes to begin."""
    one = np.ones((5, 5))
    seen = [
        Observation(k, np.full(25, 10), np.full(5, 5), np.ones(5), one, gap=falls_to**k, astray=astray)
        for k in range(1, rounds + 1)
    ]
    known = {"cloud_rounds": rounds, "rounds": rounds, "observed": seen, "solvers": (ASCENT, NEWTON)}
    plan = Measured().plan(situation(budget={"energy": passes * 75.0}, coupling=0.5, **known))
    assert plan is not None
    assert plan.solver == solver


def test_a_search_goes_on_when_members_or_weights_have_changed() -> None:
    """Its duals are those of a gradient: ascent from them would begin far away. Later both are compared as ever."""
    ascent = [
        Observation(k, np.full(25, 10), np.full(5, 5), np.ones(5), np.ones((5, 5)), gap=0.9**k) for k in (1, 2, 3)
    ]
    begun = ascent[-1]._replace(round=4, solver=NEWTON)
    known = {"cloud_rounds": 4, "rounds": 4, "observed": [*ascent, begun], "solvers": (ASCENT, NEWTON)}
    known["bytes"] = MessageSizes(order=8 * 562)
    anew = situation(budget={"energy": 5 * 75.0}, **known)  # with a memo that is empty
    plan = Measured().plan(anew)
    assert plan is not None
    assert plan.solver == NEWTON
    looked = situation(budget={"energy": 5 * 75.0}, memo={"solver": NEWTON, "solver until": 0}, **known)
    plan = Measured().plan(looked)
    assert plan is not None
    assert plan.solver == ASCENT


def test_the_plan_leaves_least_of_all_that_can_be_paid() -> None:
    """By plain loops over M and H, nothing that the budget pays is predicted to leave less."""
    s = situation(coupling=0.2)
    best, outlook = Measured().schedule(s), Measured().progress_model(s)
    assert best is not None

    def left(M: int, H: int) -> float:
        return M * math.log(1.0 - outlook.keep * (1.0 - math.exp(-outlook.rate * H / 10)))

    payable = [(M, H) for M in range(1, 30) for H in range(1, 500) if M * (50.0 + 2.5 * H) <= 1400.0]
    assert best.log_left == pytest.approx(min(left(M, H) for M, H in payable))
    assert left(best.cloud_rounds, int(best.local_steps[0])) == pytest.approx(best.log_left)


def test_a_plan_is_not_held_for_another_budget() -> None:
    """What was planned for one ledger says nothing of another, though the members are the same."""
    s = situation(rounds=3)
    Measured().plan(s)
    other = Measured().plan(replace(s, rounds=4, ledger=Ledger("energy=0.1,10", "energy=300")))
    assert other is not None
    assert other.why["cloud_rounds"] < 5


def unequal_speed(budget: Any = "time=20", *, slow: float = 5.0, energy: float = 0.0, **more: Any) -> Situation:
    """One station of five is slower than the others; with a price for energy if asked."""
    pace = np.array([slow, 1.0, 1.0, 1.0, 1.0])
    cost: dict[str, Any] = {"time": {"terminal_step": 0.01 * np.repeat(pace, 5), "station_round": 0.2 * pace}}
    if energy:
        cost["energy"] = {"terminal_step": 0.01 * energy, "station_round": energy}
    return situation(cost, budget, **more)


@given(st.lists(st.floats(0.2, 10.0), min_size=5, max_size=5), st.floats(2.0, 200.0), st.floats(0.0, 0.95))
@settings(deadline=None)
def test_a_schedule_with_different_rounds_fits_the_budget(pace: list[float], budget: float, coupling: float) -> None:
    """M server iterations of K_b rounds and H steps, as scheduled, cost no more than there is, of any type."""
    cost = {
        "time": {"terminal_step": 0.01 * np.repeat(pace, 5), "station_round": 0.2 * np.array(pace)},
        "energy": {"terminal_step": 0.1, "station_round": 5.0 * np.array(pace[::-1]), "cloud_round": 1.0},
    }
    s = situation(cost, {"time": budget, "energy": 50.0 * budget}, coupling=coupling, cloud_rounds=3, rounds=3)
    best = Measured().schedule(s)
    if best is None:
        return
    spent = {name: best.cloud_rounds * amount for name, amount in event_totals(s.prices, s.cloud_event()).items()}
    ahead = None
    for k in range(int(best.station_rounds.max())):
        event = replace(s.round_event(best.local_steps, best.station_rounds > k), ahead=ahead)
        for name, amount in event_totals(s.prices, event).items():
            spent[name] += best.cloud_rounds * amount
        ahead = waiting_times(s.prices, event)
    if best.cloud_rounds * best.station_rounds.max() > 1:  # the last round may be cut to what is left
        for name, limit in s.ledger.budget.items():
            assert spent[name] <= limit * (1 + 1e-9)


def test_what_is_measured_moves_the_model() -> None:
    """Curves that saturate early raise the rate of a step, curves that keep rising lower it."""
    s = situation()
    prior = Measured().progress_model(s).rate

    def seen(rate: float) -> list[Observation]:
        h = np.append(np.minimum(2.0 ** np.arange(16), 20), 20)
        gains = np.tile(1 - np.exp(-rate * h), (5, 1))
        return [Observation(k, np.full(25, 20), np.full(5, 5), np.full(5, 0.2), gains * 0.7**k) for k in (1, 2, 3, 4)]

    assert Measured().progress_model(replace(s, observed=seen(0.5))).rate > 1.5 * prior
    assert Measured().progress_model(replace(s, observed=seen(0.03))).rate < 0.7 * prior


def observations(rounds: int, rate: float = 0.1, fall: float = 0.7, H: int = 20) -> list[Observation]:
    """Rounds of five stations whose gains follow the model, and fall by a constant factor."""
    h = np.append(np.minimum(2.0 ** np.arange(16), H), H)
    scale = np.array([1.0, 2.0, 0.5, 1.0, 3.0])[:, None]
    return [
        Observation(k, np.full(25, H), np.full(5, 5), np.full(5, 0.2), scale * (1 - np.exp(-rate * h)) * fall**k)
        for k in range(1, rounds + 1)
    ]


@pytest.mark.parametrize("steps", [[20, 20, 20, 20], [5, 20, 20, 7], [1, 3, 300, 300]])
def test_the_rate_is_that_of_the_least_squares_fit(steps: list[int]) -> None:
    """Of all rates on the grid, none fits a(1 − e^{−ch/S}) better to the curves of the last rounds, by plain loops."""
    s = situation()
    seen = [observations(k + 1, 0.05 * (k + 1), H=H)[k] for k, H in enumerate(steps)]
    found = Measured(prior=0.5).progress_model(replace(s, observed=seen)).rate

    def misfit(rate: float) -> float:
        total = 0.5 * 0.01 * np.log(rate / PASS_RATE) ** 2
        for each, H in zip(seen, steps, strict=True):
            curve = each.gains.sum(axis=0)
            points = min(int(H).bit_length(), 16)
            h = np.append(2.0 ** np.arange(points), H)
            g = np.append(curve[:points], curve[-1]) / curve[-1]
            F = 1 - np.exp(-rate / 10 * h)
            total += np.mean(((F @ g) / (F @ F) * F - g) ** 2)
        return float(total)

    grid = PASS_RATE * np.exp(np.linspace(-2.0, 2.0, 49))
    assert misfit(found) == pytest.approx(min(map(misfit, grid)), rel=1e-9)


def test_stations_that_sat_out_do_not_look_like_progress() -> None:
    """What a merge keeps is read off the stations that took part in both rounds."""
    s = situation()
    all_there = Measured().progress_model(replace(s, observed=observations(4)))
    some = observations(4)
    for seen in some[1::2]:
        seen.gains[[0, 3]] = 0.0
        seen.answers[[0, 3]] = 0
        seen.local_steps[[*range(5), *range(15, 20)]] = 0
    assert Measured().progress_model(replace(s, observed=some)).keep == pytest.approx(all_there.keep)


def test_a_round_that_brought_nothing_teaches_nothing() -> None:
    """All updates were lost: the model is what it was."""
    s, lost = situation(), observations(1)[0]
    lost.gains[:] = 0.0
    assert Measured().progress_model(replace(s, observed=[lost])) == Measured().progress_model(s)
    assert Measured().progress_model(replace(s, observed=[*observations(1), lost])) == Measured().progress_model(
        replace(s, observed=observations(1))
    )


def test_without_a_budget_measured_makes_one_pass_a_round() -> None:
    """Nothing is scarce: every terminal visits each of its rows once."""
    plan = Measured().plan(situation(budget=None, rows=7))
    assert plan is not None
    assert set(plan.local_steps.tolist()) == {7}


@pytest.mark.parametrize("waits", [0.0, 0.2])
def test_what_hundreds_of_rounds_leave_has_a_logarithm(waits: float) -> None:
    """A station of one terminal that solves its own problem in every round leaves little of it, and never nothing."""
    outlook = ProgressModel(PASS_RATE, 0.999, waits)
    left = [outlook.left(1.0, K) for K in (1, 2, 10, 100, 500)]
    assert left[-1] > 0.0
    assert left == sorted(left, reverse=True)
    assert np.isfinite(outlook.log_left(np.ones(3), np.array([10, 500, 10_000]))).all()
    assert outlook.left(0.7, 3) == pytest.approx(waits + (1 - 0.6993 - waits) * (1 - 0.6993) ** 2)


def test_rounds_at_one_anchor_take_nothing_of_what_waits_for_the_cloud() -> None:
    """The more tasks are coupled, the less is left to win before the cloud has worked again; in the end nothing."""
    shares = [share_of_cloud(coupling) for coupling in (0.0, 0.5, 0.9, 0.99, 0.999)]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    for waits in shares:
        outlook = ProgressModel(PASS_RATE, 0.9, waits)
        assert outlook.left(0.5, 1000) == pytest.approx(waits, abs=1e-6)
        assert outlook.left(1.0, 8) == pytest.approx(min(waits, 0.1), abs=1e-6)


def test_a_deadline_does_not_hold_back_terminals_whose_steps_take_no_time() -> None:
    """Steps that are free of charge fit any deadline: such terminals work as long as asked."""
    pace = np.array([0.0, 1.0, 1.0, 4.0])
    cost = Cost({"time": Prices(terminal_step=pace, station_round=1.0, adds="elapsed")})
    s = Situation(np.full(4, 8), Placement(np.zeros(4, dtype=int), 1), Ledger(cost, "time=500"), lam=1e-2, gamma=1.0)
    (shaped,) = by_deadline(s)
    assert shaped.steps(15.0).tolist() == [15, 15, 15, 3]
