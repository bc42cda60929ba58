"""Runs under budgets and faults: nothing is overspent, nothing is left on the table, everything is on record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.base import Plan, Situation
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.faults import Faults, FaultSchedule
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import Run, train
from rhfedmtl.training.settings import Settings

QUICK = Settings(certify_every=10**9, max_rounds=300)
METHOD = DualMethod(relationship=MeanRegularised(1e-2, 1e-2))
FAULTS = {
    "calm": Faults(),
    "drop-outs": Faults(dropout=0.3, dropout_length=2.0),
    "stations away": Faults(station_away=0.3),
    "comings and goings": Faults(moves=0.5, churn=0.1, absence=3.0),
    "late rows": Faults(late_rows=0.5, late_until=5),
    "stragglers": Faults(slowdown=0.7, patience=1.5, dropout=0.1),
}


@cache
def federation(seed: int = 0) -> Federation:
    """Three small tasks with unequal terminals."""
    return Request(data="synthetic", tasks=3, terminals=3, settings={"unequal": 0.5, "test": 20}).federation(seed)


@st.composite
def scarcity(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, float]]:
    """Prices and budgets of one to three types, some by terminal or station, that allow a few dozen rounds at most."""
    cost, budget = {}, {}
    for name in ("energy", "time", "money")[: draw(st.integers(1, 3))]:
        step = draw(st.floats(0.01, 2.0))
        if draw(st.booleans()):
            spread = draw(st.lists(st.floats(0.5, 3.0), min_size=9, max_size=9))
            cost[name] = {"terminal_step": [step * x for x in spread], "station_round": draw(st.floats(0.1, 20.0))}
        else:
            cost[name] = {"terminal_step": step, "station_round": draw(st.floats(0.1, 20.0))}
        if draw(st.booleans()):
            spread = draw(st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3))
            cost[name]["station_round"] = [cost[name]["station_round"] * x for x in spread]
        cost[name]["cloud_round"] = draw(st.sampled_from([0.0, 0.0, 5.0]))
        cost[name]["terminal_byte_up"] = draw(st.sampled_from([0.0, 1e-4]))
        budget[name] = draw(st.floats(1.0, 600.0))
    return cost, budget


@given(scarcity(), st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(FAULTS)), st.integers(0, 3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_policy_overspends_or_leaves_a_round_unbought(
    prices: tuple[dict[str, Any], dict[str, float]], policy: str, weather: str, seed: int
) -> None:
    """Spent ≤ budget for every type under every fault; at the end no next round and its certificate can be paid."""
    cost, budget = prices
    ledger = Ledger(cost, budget)
    if weather == "stragglers" and "time" not in cost:
        weather = "drop-outs"
    run = Run(federation(), METHOD, QUICK, ledger, FAULTS[weather])
    chosen = POLICIES[policy]()
    try:
        stopped = run.learn(chosen)
    except BudgetError:
        stopped = "budget spent"
    for name, limit in budget.items():
        assert ledger.spent[name] <= limit
    assert Ledger.replay(cost, budget, run.state.events) == ledger
    if stopped == "budget spent":
        situation = run.situation()
        plan = chosen.plan(situation)
        least = 1 if plan is None else plan.local_steps
        certified = situation.certificate_event(), situation.round_event(least)
        assert not ledger.can_afford(event_totals(situation.prices, situation.cloud_event(), *certified))


@dataclass(frozen=True)
class Uneven:
    """H and K_b as given, again and again."""

    local_steps: int
    station_rounds: tuple[int, ...]

    def plan(self, situation: Situation) -> Plan:
        """Return that plan."""
        return Plan(np.full(len(situation.sizes), self.local_steps), np.array(self.station_rounds))


@given(
    scarcity(), st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 9), st.sampled_from(sorted(FAULTS))
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_different_numbers_of_rounds_never_overspend(
    prices: tuple[dict[str, Any], dict[str, float]], station_rounds: list[int], steps: int, weather: str
) -> None:
    """With any K_b, spent ≤ budget for every type under every fault, and the ledger can be recomputed."""
    cost, budget = prices
    ledger = Ledger(cost, budget)
    if weather == "stragglers" and "time" not in cost:
        weather = "calm"
    run = Run(federation(), METHOD, QUICK, ledger, FAULTS[weather])
    with suppress(BudgetError):
        run.learn(Uneven(steps, tuple(station_rounds)))
    for name, limit in budget.items():
        assert ledger.spent[name] <= limit
    assert Ledger.replay(cost, budget, run.state.events) == ledger


def test_fast_stations_make_rounds_while_a_slow_one_makes_its_own() -> None:
    """A station ten times as slow makes one round in a server iteration, the others ten, in the same time."""
    cost = {"time": {"terminal_step": 0.0, "station_round": [10.0, 1.0, 1.0]}}
    ledger = Ledger(cost, {"time": 50.0})
    result = train(federation(), METHOD, Uneven(2, (1, 10, 10)), QUICK, ledger=ledger)
    assert (result.cloud_rounds, result.rounds) == (5, 50)
    assert ledger.spent["time"] == pytest.approx(50.0)
    worked = np.array([seen.answers > 0 for seen in result.observed])
    assert worked.sum(axis=0).tolist() == [5, 50, 50]


@pytest.mark.parametrize("weather", sorted(FAULTS))
def test_a_run_with_faults_repeats_to_the_bit_and_both_engines_agree(weather: str) -> None:
    """Faults are drawn from their seed: the same run again, and message by message, gives the same models."""
    results = [_faulty(weather, engine) for engine in ("inprocess", "inprocess", "message-passing")]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].models, other.models)
        assert results[0].ledger == other.ledger


def _faulty(weather: str, engine: str) -> Result:
    ledger = Ledger(["energy=0.1,10", "time=0.01,0.1"], "energy=400")
    return train(
        federation(),
        METHOD,
        POLICIES["measured"](),
        Settings(execution=Execution(engine=engine)),
        ledger=ledger,
        faults=FAULTS[weather],
    )


def test_lost_work_is_charged_and_absent_stations_are_not() -> None:
    """A drop-out costs what the work cost; a station that is away costs nothing."""
    spent = {}
    for name in ("calm", "drop-outs", "stations away"):
        ledger = Ledger("energy=0.1,10", None)
        train(federation(), METHOD, Fixed(2, 1, 20), QUICK, ledger=ledger, faults=FAULTS[name])
        spent[name] = ledger.spent["energy"]
    assert spent["drop-outs"] == spent["calm"]
    assert spent["stations away"] < spent["calm"]


def test_late_updates_are_dropped_and_the_round_is_cut_at_its_deadline() -> None:
    """With stragglers a round lasts no longer than patience times its plan, and some updates do not count."""
    ledger = Ledger("time=1,0", None)
    run = Run(federation(), METHOD, QUICK, ledger, Faults(slowdown=1.0, patience=1.2))
    run.learn(Fixed(5, 1, 30))
    per_round = ledger.totals("round")["time"]
    assert max(per_round.values()) <= 1.2 * 5 * (1 + 1e-12)
    assert sum(int(seen.answers.sum()) for seen in run.state.observed) < 30 * 9


def test_a_third_of_updates_lost_in_every_round_still_converges() -> None:
    """30 % drop-outs: the gap falls below 1e-6 all the same."""
    settings = Settings(certify_every=20, target_gap=1e-6, max_rounds=4000)
    result = train(federation(), METHOD, Fixed(10), settings, faults=Faults(dropout=0.3))
    assert result.certificate.gap < 1e-6


def test_terminals_that_come_and_go_leave_a_problem_that_is_still_solved() -> None:
    """After moves, absences and new rows the certificate of the problem as it then stands goes to zero."""
    faults = Faults(moves=0.3, churn=0.05, absence=3.0, late_rows=0.4, late_until=30)
    run = Run(federation(), METHOD, Settings(certify_every=10**9), Ledger({}), faults)
    run.learn(Fixed(5, 1, 40))
    object.__setattr__(faults, "moves", 0.0)
    object.__setattr__(faults, "churn", 0.0)
    run.learn(Fixed(10, 10, 160))
    assert -1e-12 <= run.certify().gap < 1e-6


def test_a_watcher_can_end_a_run_and_what_was_learned_is_kept() -> None:
    """False from the watcher stops after the round; the result is certified as usual."""
    result = train(federation(), METHOD, Fixed(2, 3, 50), QUICK, watch=lambda progress: progress.round < 7)
    assert result.stopped == "interrupted"
    assert result.rounds == 7
    assert result.certificate.round == 7


def test_a_target_gap_ends_a_run_early() -> None:
    """Once the certificate says it is good enough, no more is spent."""
    result = train(federation(), METHOD, Fixed(10, 1, 500), Settings(target_gap=1e-2))
    assert result.stopped == "target gap reached"
    assert result.certificate.gap <= 1e-2
    assert result.rounds < 500


def test_a_budget_that_pays_no_round_names_the_cheapest_one() -> None:
    """The error says what the least would cost."""
    with pytest.raises(BudgetError, match=r"cannot pay one round: the cheapest plan .* costs energy=30\.9"):
        train(federation(), METHOD, POLICIES["measured"](), QUICK, ledger=Ledger("energy=0.1,10", "energy=30"))
    with pytest.raises(BudgetError, match="of H=50"):
        train(federation(), METHOD, Fixed(50), QUICK, ledger=Ledger("energy=0.1,10", "energy=40"))


@pytest.mark.parametrize("faults", [{"dropout": 1.0}, {"dropout": -0.1}, {"patience": 0.5}, {"slowdown": float("nan")}])
def test_faults_that_make_no_sense_are_refused(faults: dict[str, float]) -> None:
    """Shares lie in [0, 1), lengths are at least 1."""
    with pytest.raises(ConfigError, match=next(iter(faults))):
        Faults(**faults)


def test_stretches_of_faults_leave_room_between_them() -> None:
    """A share that stretches of that length cannot make up is refused, with the length that can; then it is kept."""
    with pytest.raises(
        ConfigError, match=r"station_away=0\.8 is impossible in stretches of 3 rounds .* station_away_length=4 or more"
    ):
        Faults(station_away=0.8)
    faults = Faults(dropout=0.6, dropout_length=2.0, station_away=0.8, station_away_length=5.0, seed=1)
    weather = FaultSchedule(faults, federation())
    met = [weather.conditions(number) for number in range(1, 3001)]
    assert np.mean([each.lost for each in met]) == pytest.approx(0.6, abs=0.03)
    assert 1.0 - np.mean([each.stations for each in met]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("wrong", [{"max_rounds": 0}, {"certify_every": 0}, {"seed": -1}])
def test_settings_that_make_no_run_are_refused(wrong: dict[str, int]) -> None:
    """Before anything runs, by name."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Settings(**wrong)


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"engine": "ray", "actors": 0}, {"actors": 2}, {"engine": "gup"}])
def test_executions_that_make_no_run_are_refused(wrong: dict[str, Any]) -> None:
    """Numbers below one, words of other engines, and engines that there are not."""
    with pytest.raises(ConfigError, match=r"at least 1|not for inprocess|did you mean gpu\?"):
        Execution(**wrong)


def test_faults_are_read_from_text() -> None:
    """As on the command line; an unknown name is answered with the known ones."""
    assert Faults.parse("dropout=0.3, late_until=7", seed=4) == Faults(dropout=0.3, late_until=7, seed=4)
    with pytest.raises(ConfigError, match="choose from dropout"):
        Faults.parse("dropouts=0.3")
    with pytest.raises(ConfigError, match="needs a number"):
        Faults.parse("dropout=x")


def test_stragglers_need_a_type_that_measures_time() -> None:
    """Slowness without an elapsed type would change nothing: refused."""
    with pytest.raises(ConfigError, match="elapsed"):
        Run(federation(), METHOD, QUICK, Ledger("energy=0.1,10"), Faults(slowdown=0.5))
