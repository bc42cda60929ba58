"""Plans before a run: on paper they end where a run ends; what is predicted, priced and refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Add, Auto, Average
from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.data.partition import Column, Dirichlet, PowerLaw
from rhfedmtl.data.request import Request
from rhfedmtl.errors import BudgetError, ConfigError, DataError
from rhfedmtl.maths.losses import Hinge
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.planning.data_shape import DataShape, cheapest_plan, situation_of
from rhfedmtl.planning.dry_run import dry_run
from rhfedmtl.planning.pilot import CLASS_EDGES, NUMBER_EDGES, UNCLEAR, Edges, Forecast, Pilot, fly, pilot_length
from rhfedmtl.planning.plan import PlanReport, plan
from rhfedmtl.planning.request import PlanRequest
from rhfedmtl.planning.target import Target, TargetPoint, mark_pareto, mean_interval, seek, seek_in_theory
from rhfedmtl.policies.base import Plan, Policy, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.policies.theoretical import Theoretical
from rhfedmtl.resources.costs import Budget, Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

PAPER = "energy=0.1,10"


@pytest.fixture(scope="module")
def federation() -> Federation:
    return make(Synthetic(tasks=3, terminals=4, samples=8, features=6, test=20), 1)


def of_numbers(policy: Policy, budget: str = "energy=1400", cost: str = PAPER, **shape: int) -> PlanReport:
    return plan(DataShape(**shape), policy=policy, ledger=Ledger(cost, budget))  # type: ignore[arg-type]


def test_a_long_plan_asks_its_policy_now_and_then_and_spends_as_a_step_by_step_one_would() -> None:
    shape = DataShape(tasks=5, terminals=5, samples_per_task=70)

    class Counting(Measured):
        asked = 0

        def plan(self, situation: Situation) -> Plan | None:
            Counting.asked += 1
            return super().plan(situation)

    found = plan(shape, policy=Counting(), ledger=Ledger(PAPER, "energy=1e6"))
    assert Counting.asked < 300  # in three dry runs of 10,000 server iterations each
    assert 0.999 < found.share["energy"] <= 1.0
    step_by_step = plan(shape, policy=Counting(), ledger=Ledger(PAPER, "energy=12500"))
    leaps = 1e6 / 12_500
    assert found.terminal_steps == pytest.approx(leaps * step_by_step.terminal_steps, rel=0.2)


@pytest.mark.parametrize("channel", ["identity", "int8"])
def test_a_plan_of_bytes_ends_where_its_run_ends(federation: Federation, channel: str) -> None:
    """Certificates take bytes: pilots have as many of them as the run, go by what they tell, and pay for them."""
    method = Options.of(channel=channel).method(federation.kind)
    for budget in (60_000, 120_000):
        ledgers = [Ledger("bytes=byte:1", {"bytes": float(budget)}) for _ in range(2)]
        planned = plan(federation, method, Measured(), Settings(), ledger=ledgers[0])
        result = train(federation, method, Measured(), Settings(), ledger=ledgers[1])
        assert (planned.rounds, planned.cloud_rounds) == (result.rounds, result.cloud_rounds)
        assert planned.cost["bytes"] == ledgers[1].spent["bytes"]
        assert planned.predicted_gap is not None
        assert planned.predicted_gap.low <= result.certificate.gap <= planned.predicted_gap.high


def test_rows_are_dealt_out_as_a_split_would() -> None:
    """70 samples leave 52 training rows, in sizes that differ by at most one."""
    shape = DataShape()
    assert shape.train_rows == 52
    assert shape.sizes().reshape(5, 5).sum(axis=1).tolist() == [52] * 5
    assert np.ptp(shape.sizes()) == 1


@pytest.mark.parametrize("partition", [PowerLaw(2.0), Dirichlet(0.3)])
def test_uneven_partitions_keep_every_row(partition: PowerLaw | Dirichlet) -> None:
    """Shapes may be dealt out unevenly; no row is lost and no terminal is empty."""
    sizes = DataShape(partition=partition).sizes()
    assert sizes.sum() == 5 * 52
    assert sizes.min() >= 1
    assert np.ptp(sizes) > 1


@pytest.mark.parametrize("name", POLICIES)
def test_a_plan_on_paper_fits_the_budget_and_leaves_less_than_a_round(name: str) -> None:
    """Every policy's plan is within the budget, and what is left would not pay its own round again."""
    report = of_numbers(POLICIES[name]())
    assert report.policy == name
    assert report.cost["energy"] <= 1400.0
    per_round = 50.0 + 2.5 * report.local_steps_range[1]
    assert report.cost["energy"] > 1400.0 - per_round
    assert report.binding == "energy"
    assert report.rounds >= report.cloud_rounds >= 1


@pytest.mark.parametrize(
    "policy", [Fixed(2), Fixed(5, 3), Theoretical(), Theoretical("text"), Theoretical("sound"), Measured()]
)
@pytest.mark.parametrize("cost", ["energy=0.1,10", "energy=0.5,10,20", "energy=0.1,1,byte:0.001"])
def test_a_plan_does_what_a_run_does(federation: Federation, policy: Policy, cost: str) -> None:
    """Where the policy does not learn on the way, plan and run agree: rounds, server iterations, H and spending."""
    budget = 20.0 * cheapest_plan(situation_of(federation, DualMethod(), Settings(), Cost.of(cost)))["energy"]
    fixed_mind = isinstance(policy, Measured)
    limits = {"energy": budget if not fixed_mind else budget / 6}
    last = Settings(certify_every=10**9)  # certificates on the way are planned by what they cost on average
    pilot = 64 if fixed_mind else 0
    report = plan(federation, policy=policy, settings=last, ledger=Ledger(cost, limits), pilot_rounds=pilot)
    result = train(federation, DualMethod(), policy, last, ledger=Ledger(cost, limits))
    assert (report.rounds, report.cloud_rounds) == (result.rounds, result.cloud_rounds)
    assert report.terminal_steps == result.terminal_steps
    assert report.cost["energy"] == pytest.approx(result.ledger.spent["energy"])
    assert report.stopped == result.stopped
    assert report.local_steps == result.local_steps[0]


@settings(max_examples=40)
@given(
    prices=st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6),
    limits=st.lists(st.floats(1.0, 60.0), min_size=2, max_size=2),
    name=st.sampled_from(sorted(POLICIES)),
)
def test_no_plan_overspends_any_type(prices: list[float], limits: list[float], name: str) -> None:
    """Over random prices of two types: spent is at most the budget, or the budget cannot pay one round."""
    cost = Cost({"a": Cost.of({"a": prices[:3]})["a"], "time": Cost.of({"time": prices[3:]})["time"]})
    budget = {"a": limits[0], "time": limits[1]}
    shape = DataShape(2, 2, 12)
    price = cheapest_plan(situation_of(shape, DualMethod(), Settings(), cost), 2 if name == "fixed" else 1)
    try:
        report = plan(shape, policy=POLICIES[name](), ledger=Ledger(cost, budget))
    except BudgetError as refused:
        message = str(refused)
    else:
        message = ""
    if message:
        assert "cheapest feasible plan" in message
        assert "asks for H=" in message or any(price[j] > limit for j, limit in budget.items())
        return
    assert all(report.cost[j] <= limit for j, limit in budget.items())
    json.dumps(report.to_dict(), allow_nan=False)


def test_authors_curve_is_the_paper_s() -> None:
    """With the sizes of the paper's figure the curve over H is 14, 13, 13, 12, 12, 11, 11, 10, 10, 9."""
    shape = DataShape(tasks=5, terminals=10, samples_per_task=260, test_fraction=0.0)
    report = plan(shape, policy=Theoretical(), ledger=Ledger(PAPER, "energy=1400"))
    assert [point.bound_rounds for point in report.curve[:10]] == [14, 13, 13, 12, 12, 11, 11, 10, 10, 9]


def test_paper_shows_its_three_cases() -> None:
    """Little budget is starved, some is enough, much is surplus; K(H) rounds are affordable accordingly."""
    cases = {amount: of_numbers(Theoretical("text"), f"energy={amount}") for amount in (200, 600, 1400)}
    assert [report.case for report in cases.values()] == ["starved", "enough", "surplus"]
    assert cases[200].feasible_steps["energy"] == []
    first, last = cases[600].feasible_steps["energy"][0]
    inside, outside = (next(p for p in cases[600].curve if p.local_steps == h) for h in (last, last + 1))
    assert first == 1
    assert inside.cost is not None
    assert outside.cost is not None
    assert inside.cost["energy"] <= 600 < outside.cost["energy"]


def test_feasible_range_is_the_intersection_over_types() -> None:
    """With several types the joint range of H is that of the tightest."""
    report = of_numbers(Measured(), "energy=1400,time=3", "energy=0.1,10,time=0.1,1")
    tops = {name: ranges[0][1] for name, ranges in report.feasible_steps.items()}
    assert tops["together"] == min(tops["energy"], tops["time"]) == 20


def test_only_the_binding_type_has_a_shadow_price() -> None:
    """What does not bind is worth nothing more; what binds is, also for plans of theory."""
    report = of_numbers(Measured(), "energy=100000,time=2", "energy=0.1,10,time=0.01,0.05")
    assert report.binding == "time"
    assert report.shadow_price["energy"] == 0.0
    assert report.shadow_price["time"] > 0.0
    assert of_numbers(Theoretical("text"), "energy=1400").shadow_price["energy"] > 0.0
    ends_first = plan(DataShape(), policy=Fixed(cloud_rounds=3), ledger=Ledger(PAPER, "energy=1400"))
    assert ends_first.shadow_price == {"energy": 0.0}


def test_more_budget_is_predicted_to_leave_less() -> None:
    """The model's share of the suboptimality falls with the budget."""
    left = [of_numbers(Measured(), f"energy={amount}").remaining_suboptimality for amount in (200, 600, 1400)]
    assert left[0] > left[1] > left[2] > 0.0


def test_a_fixed_plan_needs_no_budget_if_it_has_an_end() -> None:
    """Fixed H, K and M are priced without any limit."""
    report = plan(DataShape(), policy=Fixed(2, 3, 4), ledger=Ledger(PAPER))
    assert (report.rounds, report.cost["energy"], report.binding) == (12, 12 * 55.0, None)


def test_sizes_of_messages_count_where_bytes_have_a_price() -> None:
    """A budget of bytes is planned with round zero in it, and needs the number of features."""
    cost = "bytes=byte:1"
    report = plan(DataShape(features=10), policy=Fixed(), ledger=Ledger(cost, "bytes=1e5"))
    bare = plan(
        DataShape(features=10), policy=Fixed(), settings=Settings(scale="unit"), ledger=Ledger(cost, "bytes=1e5")
    )
    assert 0 < report.rounds <= bare.rounds
    with pytest.raises(ConfigError, match="number of features"):
        plan(DataShape(), policy=Fixed(), ledger=Ledger(cost, "bytes=1e5"))


def test_a_budget_that_cannot_pay_says_what_the_cheapest_plan_costs(federation: Federation) -> None:
    """An infeasible budget is refused with the price of the cheapest feasible plan, with and without data."""
    with pytest.raises(BudgetError, match=r"cheapest feasible plan .* costs energy=52\.5"):
        of_numbers(Measured(), "energy=40")
    with pytest.raises(BudgetError, match=r"H=2.*costs energy=32\.4"):
        plan(federation, policy=Fixed(2), ledger=Ledger(PAPER, "energy=30"))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"tasks": 0}, "tasks must be a whole number"),
        ({"terminals": 53}, "leave 52 training rows for 53 terminals"),
        ({"samples_per_task": 2.5}, "samples_per_task"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"test_fraction": math.nan}, "test_fraction"),
        ({"features": 0}, "features"),
        ({"columns": 0}, "columns"),
        ({"partition": Column()}, "from data"),
    ],
)
def test_absurd_shapes_are_refused(shape: dict[str, float], message: str) -> None:
    """Sizes that no split could make are errors that name them."""
    with pytest.raises(ConfigError, match=message):
        DataShape(**shape)  # type: ignore[arg-type]


def test_theory_needs_a_smooth_loss_and_plans_need_an_end() -> None:
    """The hinge has no bound, and a policy without budget or number of iterations has no end."""
    with pytest.raises(ConfigError, match="smooth loss"):
        plan(DataShape(), DualMethod(Hinge()), Theoretical(), ledger=Ledger(PAPER, "energy=1400"))
    with pytest.raises(BudgetError, match="plans for a budget"):
        plan(DataShape(), policy=Measured(), ledger=Ledger(PAPER))
    measured = plan(DataShape(), DualMethod(Hinge()), Measured(), ledger=Ledger(PAPER, "energy=1400"))
    assert measured.case is None


def test_the_pilot_is_not_charged(federation: Federation) -> None:
    """Planning with data leaves the ledger as it was, and predicts an interval around its own expectation."""
    ledger, ascent = Ledger(PAPER, "energy=2000"), DualMethod(merge=Average())
    report = plan(federation, ascent, ledger=ledger)
    gap = report.predicted_gap
    assert ledger.spent == {"energy": 0.0}
    assert gap is not None
    assert 0.0 < gap.low < gap.expected < gap.high
    assert 5 <= gap.pilot_rounds < report.rounds
    assert any("not charged" in note for note in report.notes)
    assert plan(federation, ascent, ledger=ledger).to_dict() == report.to_dict()


def test_a_run_that_changes_its_solver_is_simulated_as_a_whole(federation: Federation) -> None:
    """Its beginning does not tell how it ends: extrapolated, the gap was thousands of times too large."""
    ledger = Ledger(PAPER, "energy=1000")
    report = plan(federation, ledger=ledger)
    result = train(federation, DualMethod(), Measured(), Settings(seed=77), ledger=Ledger(PAPER, "energy=1000"))
    gap = report.predicted_gap
    assert gap is not None
    assert gap.pilot_rounds == report.rounds
    assert ledger.spent == {"energy": 0.0}
    assert gap.high <= 100.0 * max(result.certificate.gap, 1e-12)


def test_the_predicted_interval_holds_most_final_gaps() -> None:
    """Over seeds, budgets and policies, runs with other random numbers end inside the interval nearly always."""
    inside = []
    for seed in range(4):
        data = make(Synthetic(tasks=3, terminals=4, samples=10, features=8, test=0), seed)
        for amount, policy in ((400, Measured()), (1500, Measured()), (1500, Fixed(2)), (1500, Fixed(10))):
            method = DualMethod(relationship=MeanRegularised(1e-3, 1e-3))
            gap = plan(
                data, method, policy, Settings(seed=seed), ledger=Ledger(PAPER, {"energy": amount})
            ).predicted_gap
            other = Settings(seed=seed + 50)  # with the certificates that were planned: ascent begins by them
            final = train(data, method, policy, other, ledger=Ledger(PAPER, {"energy": amount})).certificate.gap
            assert gap is not None
            inside.append(gap.low <= final <= gap.high)
    assert np.mean(inside) >= 0.8


@pytest.mark.slow
def test_the_predicted_interval_holds_for_regressions() -> None:
    """The squared loss goes on more slowly than its pilots; intervals are wide enough for that, and not for all."""
    inside, widths = [], []
    for seed in range(10):
        data = make(Synthetic(tasks=3, terminals=4, samples=12, features=15, classes=0, noise=0.5, test=0), seed)
        method = DualMethod(LOSSES["squared"](), MeanRegularised(10.0 ** -(1 + seed % 4), 1e-3), Average())
        for policy in (Measured(), Fixed(10)):
            ledger = Ledger(PAPER, {"energy": 2500})
            settings = Settings(scale="standard", seed=seed, certify_every=1000)
            gap = plan(data, method, policy, settings, ledger=ledger).predicted_gap
            final = train(data, method, policy, replace(settings, seed=seed + 50), ledger=ledger).certificate.gap
            assert gap is not None
            inside.append(gap.low <= final <= gap.high)
            widths.append(gap.high / gap.low)
    assert np.mean(inside) >= 0.8
    assert np.median(widths) < 100.0


def test_a_pilot_that_cannot_tell_says_little(federation: Federation) -> None:
    """With one server iteration the fall is unknown and the interval wide; strong ties alone leave it known."""
    budget, strongly_tied = "energy=1500", DualMethod(relationship=MeanRegularised(1e-6, 1.0))
    spreads = []
    for method, policy in ((DualMethod(), Fixed(1)), (DualMethod(), Fixed(1, 10)), (strongly_tied, Fixed(1))):
        flown = fly(federation, method, policy, Settings(), Ledger(PAPER, budget), 10)
        gap = flown.forecast(flown.complete_run(policy, budget, 10_000))
        spreads.append((flown.fall is None, gap.high / gap.low < 10.0, gap.high / gap.low > 100.0))
    assert spreads == [(False, True, False), (True, False, True), (False, True, False)]


def test_a_run_that_may_end_at_rounding_has_no_lower_edge(federation: Federation) -> None:
    """Where the gap may fall below what doubles can tell, the interval begins at 0."""
    easy = DualMethod(relationship=MeanRegularised(1.0, 1.0))
    gap = plan(federation, easy, Fixed(20), ledger=Ledger(PAPER, "energy=40000")).predicted_gap
    assert gap is not None
    assert gap.low == 0.0
    assert 0.0 < gap.expected <= gap.high


@pytest.mark.parametrize("cost", [PAPER, "energy=0.02,40", "energy=0.1,1,byte:0.001"])
def test_a_pilot_that_was_kept_answers_for_other_prices(federation: Federation, cost: str, tmp_path: Path) -> None:
    """Written and read again it says what it said, for any prices; more budget, and fewer drop-outs, promise more."""
    path = tmp_path / "a.pilot"
    fresh = plan(federation, DualMethod(merge=Average()), ledger=Ledger(PAPER, "energy=1400"), keep=path)
    known = Pilot.load(path)

    def gap(budget: float, dropout: float = 0.0) -> Forecast:
        found = plan(known, ledger=Ledger(cost, {"energy": budget}), faults=Faults(dropout=dropout)).predicted_gap
        assert found is not None
        return found

    assert fresh.predicted_gap is not None
    assert gap(9000).expected < gap(1400).expected < gap(300).expected
    assert gap(1400).low < gap(1400).expected < gap(1400).high
    assert gap(1400).expected <= gap(1400, 0.5).expected
    if cost == PAPER:
        assert fresh.predicted_gap.low <= gap(1400).expected <= fresh.predicted_gap.high
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="is not a pilot, or was damaged"):
        Pilot.load(path)


def test_faults_of_which_paper_knows_nothing_need_rounds(federation: Federation) -> None:
    """Drop-outs slow a plan from sizes down, slow terminals take time; the rest is met with by a pilot alone."""
    calm, lossy = (plan(DataShape(), ledger=Ledger(PAPER, "energy=1400"), faults=Faults(dropout=p)) for p in (0.0, 0.6))
    assert lossy.remaining_suboptimality > calm.remaining_suboptimality
    late, time = Faults(slowdown=0.5), Ledger("time=0.01,1", "time=60")
    waiting = plan(DataShape(), policy=Fixed(20), ledger=time, faults=late)
    assert waiting.rounds < plan(DataShape(), policy=Fixed(20), ledger=time).rounds
    with pytest.raises(ConfigError, match="the effect of churn is unknown"):
        plan(DataShape(), ledger=Ledger(PAPER, "energy=1400"), faults=Faults(churn=0.1))
    assert plan(federation, ledger=Ledger(PAPER, "energy=1400"), faults=Faults(churn=0.1)).predicted_gap is not None


@pytest.mark.parametrize("edges", [CLASS_EDGES, NUMBER_EDGES, UNCLEAR])
@pytest.mark.parametrize("stretch", [1.0, 1.5, 4.0, 100.0])
def test_edges_of_the_forecast_never_cross(stretch: float, edges: Edges) -> None:
    """The lower edge falls at least as far as the centre, and the centre as far as the upper edge."""
    falls = edges.falls(0.7, stretch)
    assert list(falls) == sorted(falls, reverse=True)
    assert falls[-1] >= 0.0


def test_a_pilot_that_is_the_whole_run_says_so(federation: Federation) -> None:
    """A budget of a few rounds is simulated to its end."""
    report = plan(federation, ledger=Ledger(PAPER, "energy=80"))
    assert any("covers the complete run" in note for note in report.notes)
    assert report.predicted_gap is not None
    assert report.rounds == report.predicted_gap.pilot_rounds


def test_pilots_are_a_quarter_of_the_run_within_reason() -> None:
    """They have 5 to 256 rounds, three certificates at least, and 64 rounds at most where a round is much work."""
    plain = Fixed(2), DualMethod()
    start = situation_of(DataShape(), DualMethod(), Settings(), Cost.of(PAPER))
    long = dry_run(Fixed(2), replace(start, ledger=Ledger(PAPER, "energy=40000")))
    assert pilot_length(long, *plain) == -(-long.rounds // 4) > 64
    assert pilot_length(replace(long, rounds=4000, terminal_steps=4000 * 50), *plain) == 256
    assert pilot_length(replace(long, rounds=4000, terminal_steps=4000 * 20_000), *plain) == 100
    assert pilot_length(replace(long, rounds=4000, terminal_steps=4000 * 10**6), *plain) == 64
    assert pilot_length(replace(long, rounds=8), *plain) == 5
    frequent = dry_run(Fixed(2, 4), replace(start, ledger=Ledger(PAPER, "energy=900")))
    assert pilot_length(frequent, *plain) == 12


def test_a_run_that_may_search_is_simulated_as_a_whole_where_that_is_not_much() -> None:
    """When it begins to search cannot be told from its first rounds; other runs can."""
    start = situation_of(DataShape(), DualMethod(), Settings(), Cost.of(PAPER))
    planned = dry_run(Measured(), replace(start, ledger=Ledger(PAPER, "energy=3000")))
    assert 5 < planned.rounds <= 64
    assert pilot_length(planned, Measured(), DualMethod(merge=Auto())) >= planned.rounds
    for policy, merge in ((Measured(), Add()), (Fixed(10), Auto())):
        assert pilot_length(planned, policy, DualMethod(merge=merge)) < planned.rounds


def test_long_walks_are_closed_at_once() -> None:
    """A budget for a million rounds is planned without going through them one by one."""
    start = situation_of(DataShape(), DualMethod(), Settings(), Cost.of(PAPER))
    rich = replace(start, ledger=Ledger(PAPER, "energy=1e9"))
    assert dry_run(Fixed(2), rich, most_rounds=10**9).rounds == int(1e9 / 55)
    assert dry_run(Measured(), rich, most_rounds=50_000).rounds == 50_000


def test_target_from_text() -> None:
    """A target is a name and a number that can be reached."""
    assert Target.of("balanced-accuracy=0.9") == Target("balanced_accuracy", 0.9)
    for text in ("gap", "gap=", "gap=x", "gap=0", "gap=nan", "gap=inf", "accuracy=1.5", "speed=3"):
        with pytest.raises(ConfigError, match="target"):
            Target.of(text)


def test_pareto_points_are_those_that_no_cheaper_one_equals() -> None:
    """Cost rises and the result improves along the marked points, and nowhere else."""
    curve = [TargetPoint(b, r, r, r, {}, 1.0, False) for b, r in ((1, 0.5), (2, 0.5), (3, 0.7), (4, 0.6), (3, 0.8))]
    marked = mark_pareto(curve, Target("accuracy", 0.9))
    assert [(p.budget, p.result) for p in marked if p.pareto] == [(1, 0.5), (3, 0.8)]
    falling = mark_pareto(curve, Target("gap", 0.1))
    assert [(p.budget, p.result) for p in falling if p.pareto] == [(1, 0.5)]


def test_interval_of_one_value_is_the_value() -> None:
    """With one seed there is no spread; gaps are averaged in their logarithms."""
    assert mean_interval(np.array([0.3]), logarithmic=False) == (0.3, 0.3, 0.3)
    mean, low, high = mean_interval(np.array([1e-2, 1e-4]), logarithmic=True)
    assert mean == pytest.approx(1e-3)
    assert low < mean < high


def test_the_smallest_budget_reaches_the_target_and_a_little_less_does_not() -> None:
    """The budget found reaches the target when it is run, and the largest that was seen to miss is close below."""
    data = [make(Synthetic(tasks=2, terminals=3, samples=10, features=6), seed) for seed in (0, 1)]
    method, cost = DualMethod(relationship=MeanRegularised(1e-2, 1e-2)), Cost.of(PAPER)
    report = seek(data, Target("gap", 1e-2), method, Fixed(5), cost=cost, points=8, refinements=8)
    assert report.reached
    assert report.budget is not None
    missed = max(p.budget for p in report.curve if not p.reached)
    assert missed < report.budget <= 1.06 * missed
    gaps = [
        train(f, method, Fixed(5), Settings(seed=i), ledger=Ledger(cost, {"energy": report.budget})).certificate.gap
        for i, f in enumerate(data)
    ]
    assert np.exp(np.mean(np.log(gaps))) <= 1e-2
    assert [p.budget for p in report.curve] == sorted(p.budget for p in report.curve)


def test_a_target_out_of_reach_is_said_to_be(federation: Federation) -> None:
    """Where the grid ends below the target, there is no budget, and the best result is given."""
    report = seek(
        [federation], Target("accuracy", 1.0), DualMethod(), Fixed(2), cost=Cost.of(PAPER),
        budget=Budget({"energy": 200.0}), points=3,
    )  # fmt: skip
    assert (report.reached, report.budget) == (False, None)
    assert report.best == max(p.result for p in report.curve) < 1.0
    assert report.curve[-1].budget == pytest.approx(200.0)


def test_other_budgets_stay_limits_in_a_search(federation: Federation) -> None:
    """Only one type is sought; the others are never overspent."""
    cost = Cost.of("energy=0.1,10,time=0.01,1")
    report = seek(
        [federation], Target("gap", 1e-9), DualMethod(), Fixed(2), cost=cost, budget=Budget({"time": 5.0}),
        points=4,
    )  # fmt: skip
    assert report.resource == "energy"
    assert all(point.spent["time"] <= 5.0 for point in report.curve)


def test_searches_refuse_what_they_cannot_answer(federation: Federation) -> None:
    """No such metric, no price, no budget to look for, and runs that do not end with the budget."""
    cost, gap = Cost.of(PAPER), Target("gap", 1e-3)
    with pytest.raises(ConfigError, match="no rmse"):
        seek([federation], Target("rmse", 1.0), DualMethod(), Fixed(), cost=cost)
    with pytest.raises(ConfigError, match="no prices for 'time'"):
        seek([federation], gap, DualMethod(), Fixed(), cost=cost, resource="time")
    with pytest.raises(ConfigError, match="cloud-rounds"):
        seek([federation], gap, DualMethod(), Fixed(cloud_rounds=3), cost=cost)
    with pytest.raises(BudgetError, match="cheapest feasible plan"):
        seek([federation], gap, DualMethod(), Fixed(), cost=cost, budget=Budget({"energy": 1.0}))
    with pytest.raises(BudgetError, match="costs nothing"):
        seek([federation], gap, DualMethod(), Fixed(), cost=Cost.of("energy=0,0"))
    with pytest.raises(ConfigError, match="without data only a gap"):
        seek_in_theory(DataShape(), Target("auc", 0.9), DualMethod(), cost=cost)


def test_theory_answers_without_data() -> None:
    """The paper's necessary budget is below the sound one, and smaller gaps cost more."""
    report = seek_in_theory(
        DataShape(), Target("gap", 1e-3), DualMethod(), cost=Cost.of(PAPER), budget=Budget.of("energy=1400")
    )
    bounds = report.bounds
    assert bounds["text"]["cost"]["energy"] < bounds["sound"]["cost"]["energy"] == report.budget
    assert bounds["text"]["rounds"] == math.ceil((1 - 1e-9) * math.log(52 / 1e-3))
    costs = [point.budget for point in sorted(report.curve, key=lambda p: -p.result)]
    assert costs == sorted(costs)
    assert sum("budget" in note for note in report.notes) == 2


def test_class_weights_hold_for_every_seed_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget is sought on federations whose rows are weighed as asked for, whatever their seed."""
    rows = "".join(f"{i % 2},{i % 3 == 0:d},{(i * 7) % 11}\n" for i in range(120))
    (tmp_path / "rows.csv").write_text("task,y,x\n" + rows)
    searched: list[Federation] = []
    monkeypatch.setattr("rhfedmtl.planning.request.seek", lambda federations, *_, **__: searched.extend(federations))
    request = Request("table", str(tmp_path / "rows.csv"), class_weight="balanced")
    asked = PlanRequest(request, Options(), with_data=True, cost=(PAPER,))
    asked.seek(Target("accuracy", 0.9), None, seeds=3, points=2, watch=lambda *_: None)
    assert len(searched) == 3
    assert all(each.sample_weight is not None for each in searched)
