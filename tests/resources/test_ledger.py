"""The ledger: it never overspends, adds up in every direction, and comes back from disk as it was."""

from __future__ import annotations

import builtins
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhfedmtl.errors import BudgetError, ConfigError, DataError, MissingExtraError
from rhfedmtl.resources.billing import Parts, charges, event_totals
from rhfedmtl.resources.charge_log import COLUMNS
from rhfedmtl.resources.costs import SLACK, Budget, Cost
from rhfedmtl.resources.events import CloudEvent, Event, Placement, RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.ledger_file import load_ledger, save_ledger
from rhfedmtl.resources.steps import steps_affordable

PAPER = Placement(np.repeat(np.arange(5), 5), 5)
ENERGY = Cost.of("energy=0.1,10")


def random_events(seed: int, n_events: int, layout: Placement) -> Iterator[Event]:
    """Rounds and server iterations with random work, drop-outs and bytes; terminals move half way."""
    rng = np.random.default_rng(seed)
    n = layout.n_terminals
    moved = Placement(rng.integers(-1, layout.n_tasks, n), layout.n_tasks)
    for k in range(n_events):
        here = layout if k < n_events // 2 else moved
        stations = rng.random(here.n_tasks) < 0.9
        if k % 4 == 3:
            yield CloudEvent(k, here, stations=stations, bytes_up=rng.integers(0, 9, here.n_tasks))
        elif k % 4 == 2:
            yield RoundEvent(k, here, int(rng.integers(0, 9)), bytes_down=8)
        else:
            yield RoundEvent(k, here, rng.integers(0, 9, n), stations, rng.random(n) < 0.7, rng.integers(0, 99, n), 8.0)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Cost, Budget, list[Event]]:
    """Draw prices and budgets of one to three types, and a sequence of events."""
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    n_tasks, n = int(rng.integers(1, 4)), int(rng.integers(1, 8))
    types = {
        "energy": {"step": round(rng.random(), 1), "station": 1.0, "byte": 0.01},
        "time": {"step": rng.random(n), "station": rng.random(n_tasks), "cloud": 0.3, "station_byte_up": 0.1},
        "bytes": {"byte": 1},
    }
    names = draw(st.lists(st.sampled_from(list(types)), unique=True, min_size=1))
    limited = draw(st.lists(st.sampled_from(names), unique=True))
    limits = {name: draw(st.floats(0, {"energy": 50, "time": 20, "bytes": 999}[name])) for name in limited}
    layout = Placement(rng.integers(0, n_tasks, n), n_tasks)
    events = list(random_events(seed, draw(st.integers(0, 12)), layout))
    return Cost.of({name: types[name] for name in names}), Budget(limits), events


def charge_what_fits(cost: Cost, budget: Budget, events: list[Event]) -> tuple[Ledger, list[Event]]:
    """Charge each event that the budget still pays."""
    ledger, paid = Ledger(cost, budget), []
    for event in events:
        if ledger.can_afford(event):
            ledger.charge(event)
            paid.append(event)
    return ledger, paid


def test_fourteen_rounds_of_100_fill_1400_exactly() -> None:
    """A budget can be spent to the last bit, and not one charge beyond it."""
    ledger = Ledger("energy=0,20", "energy=1400")
    for k in range(14):
        assert ledger.charge(RoundEvent(k, PAPER, 1)) == {"energy": 100.0}
    assert (ledger.spent, ledger.left) == ({"energy": 1400.0}, {"energy": 0.0})
    with pytest.raises(BudgetError, match=r"round 14 would cost energy 100 of which 0 is left \(budget 1400\)"):
        ledger.charge(RoundEvent(14, PAPER, 1))
    assert len(ledger.log) == 14


def test_rounds_that_cost_each_terminal_the_same_again_take_no_more_memory() -> None:
    ledger, steps = Ledger("energy=0.1,10"), np.arange(25)
    for number in range(4):
        ledger.charge(RoundEvent(number, PAPER, steps + (number == 2)))
    first, again, other, back = (c.amount for c in ledger.log.charges if isinstance(c.amount, np.ndarray))
    assert again is first
    assert other is not first
    np.testing.assert_array_equal(back, first)


def test_decimal_prices_behave_as_on_paper() -> None:
    """Three steps at 0.1 fit a budget of 0.3, and 0.3 is what is reported, by every column."""
    ledger = Ledger("energy=0.1", "energy=0.3")
    for k in range(3):
        ledger.charge(RoundEvent(k, Placement(np.array([0]), 1), 1))
    assert ledger.spent == {"energy": 0.3}
    assert ledger.left == {"energy": 0.0}
    assert ledger.totals("tier") == {"energy": {"terminal": 0.3}}
    assert ledger.overshoot == {}


def test_many_small_charges_do_not_drift() -> None:
    """Ten thousand charges of 0.1 are 1000, where plain addition is already off."""
    ledger = Ledger("energy=0.1", "energy=1000")
    event = RoundEvent(0, Placement(np.array([0]), 1), 1)
    for _ in range(10_000):
        ledger.charge(event)
    assert ledger.spent["energy"] == 1000.0
    assert not ledger.can_afford(event)
    assert sum([0.1] * 10_000) != 1000.0


def test_small_charges_count_beside_large_ones() -> None:
    """A thousand charges of 1 after one of 1e17 are all there, though each alone is lost to rounding."""
    ledger, layout = Ledger("money=1"), Placement(np.array([0]), 1)
    ledger.charge(RoundEvent(0, layout, 10**17))
    for k in range(1000):
        ledger.charge(RoundEvent(k, layout, 1))
    assert ledger.spent["money"] == 1e17 + 1000.0 != 1e17


@settings(deadline=None)
@given(situations())
def test_no_sequence_of_charges_overspends(situation: tuple[Cost, Budget, list[Event]]) -> None:
    """Spent never exceeds the budget of any type, a refused charge leaves no trace, and the rest is recorded."""
    cost, budget, events = situation
    ledger = Ledger(cost, budget)
    expected: dict[str, list[float]] = {name: [] for name in cost}
    for event in events:
        before, could = (ledger.spent, len(ledger.log)), ledger.can_afford(event)
        try:
            amounts = ledger.charge(event)
        except BudgetError:
            assert not could
            assert (ledger.spent, len(ledger.log)) == before
            continue
        assert could
        for name, amount in amounts.items():
            expected[name].append(amount)
        for name, limit in budget.items():
            assert ledger.spent[name] <= limit
            assert 0 <= ledger.left[name] <= limit
    for name, amounts_so_far in expected.items():
        assert ledger.spent[name] == pytest.approx(math.fsum(amounts_so_far), rel=2 * SLACK, abs=1e-300)


@settings(deadline=None)
@given(situations())
def test_totals_agree_by_every_column(situation: tuple[Cost, Budget, list[Event]]) -> None:
    """Totals by any columns add up to what was spent, and to the rows of the ledger."""
    ledger, _ = charge_what_fits(*situation)
    columns = ledger.log.columns()
    for size in range(3):
        for by in itertools.permutations(COLUMNS[:-1], size):
            for name, table in ledger.totals(*by).items():
                assert math.fsum(table.values()) == pytest.approx(ledger.spent[name], rel=1e-11, abs=1e-300)
                expected: dict[Any, float] = {}
                of_type = columns["type"] == name
                keys = zip(*(columns[c][of_type].tolist() for c in by), strict=True) if by else [()] * of_type.sum()
                for key, amount in zip(keys, columns["amount"][of_type], strict=True):
                    short = key[0] if len(by) == 1 else key
                    expected[short] = expected.get(short, 0.0) + amount
                assert {k: v for k, v in expected.items() if v} == pytest.approx(table, rel=1e-11)


@settings(deadline=None)
@given(situations(), st.integers(0, 20))
def test_a_condensed_ledger_keeps_all_totals_but_those_by_round(
    situation: tuple[Cost, Budget, list[Event]], most: int
) -> None:
    """Whatever is added up over rounds, what was spent, what is left and totals by tier, task and terminal stay."""
    ledger, _ = charge_what_fits(*situation)
    by = (("tier",), ("task",), ("terminal",), ("tier", "task"), ("tier", "terminal"))
    spent, before = ledger.spent, [ledger.totals(*names) for names in by]
    ledger.log.condense(most)
    assert ledger.spent == spent
    for names, table in zip(by, before, strict=True):
        for name, totals in ledger.totals(*names).items():
            assert {key: amount for key, amount in totals.items() if amount} == pytest.approx(table[name], rel=1e-11)


def test_a_training_without_an_end_holds_a_bounded_number_of_amounts() -> None:
    """Charges that differ in every round are held in full for the last rounds only; nothing is forgotten in sum."""
    layout, ledger = Placement(np.repeat([0, 1], 5), 2), Ledger("energy=0.25,1")
    held = []
    for number in range(1, 2001):
        ledger.charge(RoundEvent(number, layout, np.arange(number % 7, number % 7 + 10)))
        ledger.log.condense(200)
        held.append(len(ledger.log))
    assert max(held) <= 50
    assert ledger.log.charges[-1].round == 2000
    steps = sum(int(np.arange(number % 7, number % 7 + 10).sum()) for number in range(1, 2001))
    assert ledger.spent == {"energy": 0.25 * steps + 2 * 2000}
    assert math.fsum(ledger.totals("terminal")["energy"].values()) == ledger.spent["energy"]


@settings(max_examples=40, deadline=None)
@given(situations(), st.sampled_from([".json", ".parquet"]))
def test_disk_and_replay_give_an_equal_ledger(
    tmp_path_factory: pytest.TempPathFactory, situation: tuple[Cost, Budget, list[Event]], suffix: str
) -> None:
    """A ledger comes back from JSON and Parquet as it was, and from the events of the run as well."""
    ledger, paid = charge_what_fits(*situation)
    reservation = ledger.reserve({next(iter(ledger.cost)): 0.0})
    path = tmp_path_factory.mktemp("ledger") / f"ledger{suffix}"
    save_ledger(ledger, path)
    loaded = load_ledger(path)
    assert loaded == ledger
    assert (loaded.spent, loaded.left) == (ledger.spent, ledger.left)
    ledger.release(reservation)
    assert Ledger.replay(ledger.cost, ledger.budget, paid) == ledger


@settings(deadline=None)
@given(situations())
def test_the_largest_affordable_round_is_accepted_and_one_step_more_refused(
    situation: tuple[Cost, Budget, list[Event]],
) -> None:
    """What `steps_affordable` finds in the ledger's room is what the ledger takes, to the step."""
    ledger, _ = charge_what_fits(*situation)
    event = RoundEvent(99, Placement(np.arange(3) % 2, 2), 0)
    cost = Cost.of(dict.fromkeys(ledger.cost, "0.1,0.7"))
    h = steps_affordable(cost, event, ledger.remaining, max_steps=200)
    assert h == 200 or not ledger.can_afford(charges(cost, replace(event, local_steps=h + 1)))
    if h:
        ledger.charge(charges(cost, replace(event, local_steps=h)))
        assert all(ledger.spent[name] <= limit for name, limit in ledger.budget.items())


def test_a_different_ledger_is_not_equal() -> None:
    """One other step, round, price or budget makes another ledger."""
    events = [RoundEvent(1, PAPER, 2)]
    ledger = Ledger.replay(ENERGY, "energy=100", events)
    assert ledger == Ledger.replay(ENERGY, "energy=100", [RoundEvent(1, Placement(PAPER.terminal_task, 5), 2)])
    assert ledger != Ledger.replay(ENERGY, "energy=100", [RoundEvent(1, PAPER, 3)])
    assert ledger != Ledger.replay(ENERGY, "energy=100", [RoundEvent(2, PAPER, 2)])
    assert ledger != Ledger.replay(ENERGY, "energy=101", events)
    assert ledger != Ledger.replay("energy=0.1,9", "energy=100", events)
    assert ledger != Ledger.replay(ENERGY, "energy=100", [RoundEvent(1, PAPER, 2, terminals=np.arange(25) > 3)])


def test_elapsed_time_adds_up_and_says_who_determined_it() -> None:
    """Totals of an elapsed type are the time that passed, and every second has an owner."""
    cost = Cost.of({"time": {"step": [1.0, 2.0, 5.0], "station": [3.0, 1.0], "cloud": 10}})
    layout = Placement(np.array([0, 0, 1]), 2)
    ledger = Ledger(cost, "time=100")
    ledger.charge(RoundEvent(1, layout, 2))
    ledger.charge(RoundEvent(2, layout, 2, terminals=np.array([True, True, False])))
    ledger.charge(CloudEvent(2, layout))
    assert ledger.spent["time"] == (1 + 10) + (3 + 4) + 10
    assert ledger.totals("terminal")["time"] == {2: 10.0, 1: 4.0, -1: 14.0}
    assert ledger.totals("round", "tier")["time"][2, "station"] == 3.0


def test_a_million_terminals_stay_compact(tmp_path: Path) -> None:
    """A round of a million equal charges is one number, and of different charges one array."""
    layout = Placement(np.repeat(np.arange(1000), 1000), 1000)
    ledger = Ledger("energy=0.1,10", "energy=2e7")
    for k in range(50):
        ledger.charge(RoundEvent(k, layout, 2))
    assert all(isinstance(charge.amount, float) and charge.nodes is None for charge in ledger.log.charges)
    assert ledger.spent["energy"] == 50 * 210_000
    save_ledger(ledger, tmp_path / "ledger.json")
    assert load_ledger(tmp_path / "ledger.json") == ledger
    different = np.arange(1_000_000) % 7
    ledger = Ledger("energy=0.1,10")
    ledger.charge(RoundEvent(50, layout, different))
    terminals = ledger.log.charges[0].amount
    assert isinstance(terminals, np.ndarray)
    assert terminals.nbytes == 8_000_000
    assert ledger.totals("tier")["energy"]["terminal"] == pytest.approx(0.1 * different.sum(), rel=1e-15)


def test_reserve_then_settle() -> None:
    """A reservation holds the worst case back, and settling returns what was not used."""
    ledger = Ledger(ENERGY, "energy=100")
    number = ledger.reserve(RoundEvent(1, PAPER, 10))
    assert (ledger.reserved, ledger.left, ledger.spent) == ({"energy": 75.0}, {"energy": 25.0}, {"energy": 0.0})
    assert not ledger.can_afford(RoundEvent(2, PAPER, 1))
    assert ledger.settle(number, RoundEvent(1, PAPER, 2)) == {"energy": 55.0}
    assert (ledger.reserved, ledger.left) == ({"energy": 0.0}, {"energy": 45.0})
    with pytest.raises(BudgetError, match="reservation 0 is not open"):
        ledger.settle(number, RoundEvent(1, PAPER, 2))
    with pytest.raises(BudgetError, match="reservation 7 is not open"):
        ledger.release(7)


def test_declared_types_cannot_exceed_their_reservation() -> None:
    """Settling more than was reserved is refused for declared types, and the reservation stays open."""
    ledger = Ledger(ENERGY, "energy=100")
    number = ledger.reserve({"energy": 50.0})
    with pytest.raises(BudgetError, match="55 spent, but only 50 reserved"):
        ledger.settle(number, RoundEvent(1, PAPER, 2))
    assert (len(ledger.log), ledger.reserved) == (0, {"energy": 50.0})


def test_measured_overshoot_is_recorded_and_stops_everything_after() -> None:
    """What was measured beyond the limit is told as it is, and no further charge of that type is taken."""
    ledger = Ledger("time=1,1", "time=10")
    event = RoundEvent(1, PAPER, 3)
    number = ledger.reserve({"time": 9.0})
    made = charges(ledger.cost, event, {"time": Parts(terminal=10.5, station=1.0)})
    ledger.settle(number, made, measured=("time",))
    assert (ledger.spent, ledger.left, ledger.overshoot) == ({"time": 11.5}, {"time": 0.0}, {"time": 1.5})
    assert not ledger.can_afford({"time": 1e-9})


def test_unlimited_types_are_recorded() -> None:
    """A priced type without a limit is on record and never refused."""
    ledger = Ledger("energy=0.1,10,bytes=byte:1", "energy=60")
    ledger.charge(RoundEvent(1, PAPER, 2, bytes_up=1e9))
    assert ledger.spent == {"energy": 55.0, "bytes": 2.5e10}
    assert ledger.left == {"energy": 5.0, "bytes": math.inf}
    assert list(ledger.remaining) == ["energy"]


def test_more_budget_for_the_same_run() -> None:
    """A run goes on under a larger budget with its charges, and a budget below them is refused."""
    ledger = Ledger.replay(ENERGY, "energy=60", [RoundEvent(1, PAPER, 2)])
    more = ledger.with_budget("energy=200")
    assert (more.spent, more.left) == ({"energy": 55.0}, {"energy": 145.0})
    with pytest.raises(BudgetError, match="would cost energy 55"):
        ledger.with_budget("energy=50")


def test_standardisation_is_charged_in_bytes_only() -> None:
    """Messages without a merge cost their bytes, not a BS iteration."""
    cost = Cost.of("energy=0.1,10,byte:0.5")
    assert event_totals(cost, RoundEvent(0, PAPER, 0, bytes_up=2, merges=False)) == {"energy": 25.0}


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "not json",
        '{"format": 2}',
        '{"format": 1, "cost": {"e": 1}, "budget": {}, "reserved": [], "next_reservation": 0, "layouts": [],'
        ' "charges": [[1, "moon", "e", 0, null, 1.0]]}',
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str) -> None:
    """A file that is no ledger is a DataError that names it."""
    for name in ("ledger.json", "ledger.parquet"):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=f"{name} is not a ledger"):
            load_ledger(tmp_path / name)


def test_json_holds_plain_numbers(tmp_path: Path) -> None:
    """The JSON file is standard JSON with one entry per charge."""
    save_ledger(Ledger.replay(ENERGY, "energy=100", [RoundEvent(1, PAPER, 2)]), tmp_path / "ledger.json")
    table = json.loads((tmp_path / "ledger.json").read_text())
    assert table["charges"] == [[1, "terminal", "energy", 0, None, 0.2], [1, "station", "energy", 0, None, 10.0]]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the error names the extra."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'rhfedmtl\[parquet\]'"):
        save_ledger(Ledger(ENERGY), tmp_path / "ledger.parquet")


def test_bad_requests_are_refused() -> None:
    """Unknown columns, unknown types, negative totals and budgets without a price are refused."""
    ledger = Ledger(ENERGY, "energy=1")
    with pytest.raises(ConfigError, match="totals by 'colour'"):
        ledger.totals("colour")
    with pytest.raises(BudgetError, match="'time' has no price"):
        ledger.can_afford({"time": 1.0})
    with pytest.raises(BudgetError, match="not finite"):
        ledger.reserve({"energy": math.nan})
    with pytest.raises(BudgetError, match="has no price"):
        Ledger(ENERGY, "time=1")
    assert repr(ledger) == "<Ledger 0 charges: energy 0 of 1>"
