"""Prices, budgets, the cost of an event and what a budget affords."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhfedmtl.errors import BudgetError, ConfigError
from rhfedmtl.resources.billing import Parts, charges, event_totals, totals
from rhfedmtl.resources.costs import Budget, Cost, binding, fits, times_affordable
from rhfedmtl.resources.events import CloudEvent, Placement, RoundEvent
from rhfedmtl.resources.exact import exact_sum
from rhfedmtl.resources.prices import PRICE_NAMES, Prices
from rhfedmtl.resources.steps import cost_curve, steps_affordable, steps_by_deadline
from rhfedmtl.resources.waiting import waiting_times

PRICE = st.floats(0, 1e6, allow_subnormal=False)
PAPER = Placement(np.repeat(np.arange(5), 5), 5)


@st.composite
def cost_tables(draw: st.DrawFn) -> dict[str, dict[str, object]]:
    """Draw tables of prices for up to three types."""
    names = draw(st.lists(st.sampled_from(["energy", "time", "bytes", "money_2", "x-y"]), unique=True, max_size=3))
    table: dict[str, dict[str, object]] = {}
    for name in names:
        prices: dict[str, object] = dict(draw(st.dictionaries(st.sampled_from(PRICE_NAMES), PRICE)))
        if draw(st.booleans()):
            prices["terminal_step"] = draw(st.lists(PRICE, min_size=1, max_size=4))
        table[name] = {**prices, "adds": draw(st.sampled_from(["sum", "elapsed"]))}
    return table


@st.composite
def round_events(draw: st.DrawFn) -> tuple[Cost, RoundEvent]:
    """Draw prices per node and a round with masks, bytes and non-members."""
    n_tasks = draw(st.integers(1, 4))
    task = np.array(draw(st.lists(st.integers(-1, n_tasks - 1), min_size=1, max_size=9)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = len(task)
    cost = Cost.of(
        {
            "energy": {"step": rng.random(n), "station": rng.random(n_tasks), "byte": rng.random()},
            "time": {"step": rng.random(n), "station": rng.random(n_tasks), "terminal_byte_up": rng.random(n)},
            "flat": [rng.random(), rng.random()],
        }
    )
    event = RoundEvent(
        3,
        Placement(task, n_tasks),
        rng.integers(0, 6, n),
        stations=rng.random(n_tasks) < 0.8,
        terminals=rng.random(n) < 0.8,
        bytes_down=rng.random(),
        bytes_up=rng.random(n),
        merges=draw(st.booleans()),
    )
    return cost, event


def by_hand(cost: Cost, event: RoundEvent) -> dict[str, float]:
    """Cost of a round by plain loops over stations and terminals."""
    layout = event.layout
    result = {}
    for name in cost:
        prices = {key: np.resize(getattr(cost[name], key), 9) for key in PRICE_NAMES}
        paths = []
        for b in range(layout.n_tasks):
            if not event.stations[b]:
                continue
            own = prices["station_round"][b] if event.merges else 0.0
            members = [t for t in range(layout.n_terminals) if layout.terminal_task[t] == b and event.terminals[t]]
            each = [
                event.local_steps[t] * prices["terminal_step"][t]
                + event.bytes_down * prices["terminal_byte_down"][t]
                + event.bytes_up[t] * prices["terminal_byte_up"][t]
                for t in members
            ]
            paths.append((own, each))
        if cost[name].adds == "sum":
            result[name] = sum(own + sum(each) for own, each in paths)
        else:
            result[name] = max((own + max(each, default=0.0) for own, each in paths), default=0.0)
    return result


def test_text_by_position() -> None:
    """`energy=0.1,10` is the price of a terminal step and of a BS iteration, as in the paper."""
    assert Cost.of("energy=0.1,10")["energy"] == Prices(terminal_step=0.1, station_round=10)


def test_text_by_name() -> None:
    """Named prices cover every tier, `byte` is every link, and a more precise name wins over it."""
    prices = Cost.of("energy=step:0.1,station:10,cloud:5,byte:1e-6,station_byte_up:2e-6,adds:elapsed")["energy"]
    expected = Prices(0.1, 10, 5, 1e-6, 1e-6, 2e-6, 1e-6, adds="elapsed")
    assert prices == expected


def test_several_types_in_one_or_more_texts() -> None:
    """Types may share a text, separated by commas, or come one by one; positions and names may mix."""
    expected = {"energy": Prices(0.1, 10), "time": Prices(1, 2, cloud_round=3, adds="elapsed")}
    assert Cost.of("energy=0.1,10,time=1,2,cloud:3") == Cost.of(["energy=0.1,10", "time=1,2,3"]) == Cost.of(expected)


def test_time_is_elapsed_unless_told_otherwise() -> None:
    """A type named `time` is elapsed by default, any other a sum, and both can be changed."""
    cost = Cost.of("time=1,1,cpu=1")
    assert (cost["time"].adds, cost["cpu"].adds) == ("elapsed", "sum")
    assert Cost.of("time=1,adds:sum")["time"].adds == "sum"


@settings(deadline=None)
@given(cost_tables())
def test_prices_survive_text_toml_and_table(table: dict[str, dict[str, object]]) -> None:
    """Formatting and parsing give the same prices, by every way."""
    cost = Cost.of(table)
    assert Cost.of(cost.format()) == cost
    assert Cost.of(",".join(cost.format())) == cost if cost else True
    assert Cost.of(cost.to_dict()) == cost


def test_toml_files(tmp_path: Path) -> None:
    """A TOML file holds prices and budget together, or prices alone."""
    path = tmp_path / "prices.toml"
    cost = Cost.of({"energy": {"step": [0.1, 0.2], "station": 10}, "time": "1e-3,0.5"})
    path.write_text(cost.to_toml() + "[budget]\nenergy = 1400\n")
    assert Cost.of(path) == cost
    assert Budget.of(path) == Budget({"energy": 1400.0})
    path.write_text("energy = [0.1, 10]\ntime = 2\n[budget]\nenergy = 3\n")
    assert Cost.from_toml(path) == Cost.of("energy=0.1,10,time=2")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["energy", "time", "money"]), st.floats(0, 1e300), max_size=3))
def test_budgets_survive_text(limits: dict[str, float]) -> None:
    """Formatting and parsing give the same limits."""
    assert Budget.of(Budget(limits).format()) == Budget(limits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0.1,10", "names no resource type"),
        ("energy=a", "'a' is not a number"),
        ("energy=", "'' is not a number"),
        ("energy=-1", "a price is a finite number >= 0"),
        ("energy=nan", "a price is a finite number >= 0"),
        ("energy=inf", "a price is a finite number >= 0"),
        ("energy=1,2,3,4", "4 prices by position"),
        ("energy=step:1,2", "comes after named prices"),
        ("energy=1,step:2", "'terminal_step' is given twice"),
        ("energy=step:1,terminal_step:2", "'terminal_step' is given twice"),
        ("energy=steps:1", "unknown price 'steps'"),
        ("energy=1,energy=2", "'energy' is given twice"),
        ("energy=adds:max", "adds up as 'sum' or as 'elapsed'"),
        ("energy=cloud:1/2", "cloud_round has shape"),
        ("2energy=1", "is not a name for a resource type"),
        ({"energy": {"step": [1, -2]}}, "terminal_step=-2 at node 1"),
        ({"energy": {"step": [[1]]}}, "shape"),
        ({"energy": {"step": "x"}}, "is not a price"),
        ({"energy": None}, "a price is a finite number"),
    ],
)
def test_bad_prices_are_refused(given: object, message: str) -> None:
    """Every bad price is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=message):
        Cost.of(given)  # type: ignore[arg-type]


def test_bad_files_are_refused(tmp_path: Path) -> None:
    """A file that is missing, is not TOML or holds no table is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml"):
        Cost.of(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("cost = ")
    with pytest.raises(ConfigError, match=r"bad.toml is not valid TOML"):
        Cost.of(tmp_path / "bad.toml")
    (tmp_path / "flat.toml").write_text("cost = 3\nbudget = 4\n")
    with pytest.raises(ConfigError, match="expected a table"):
        Cost.of(tmp_path / "flat.toml")
    with pytest.raises(ConfigError, match="expected a table"):
        Budget.of(tmp_path / "flat.toml")


def test_bad_budgets_are_refused() -> None:
    """A limit that is negative, infinite, not a number, or without a price is refused."""
    for text in ("energy=-1", "energy=nan", "energy=inf"):
        with pytest.raises(BudgetError, match="a limit is a finite number >= 0"):
            Budget.of(text)
    with pytest.raises(ConfigError, match="'x' is not a number"):
        Budget.of("energy=x")
    with pytest.raises(BudgetError, match=r"budget time=3 has no price.*prices for: energy"):
        Budget.of("time=3").check(Cost.of("energy=0.1,10"))
    with pytest.raises(ConfigError, match="no prices for 'time'"):
        Cost.of("energy=1")["time"]


def test_array_prices_must_match_the_nodes() -> None:
    """A price per terminal needs one value for each terminal."""
    with pytest.raises(ConfigError, match="terminal_step has 2 values, but there are 25 terminals"):
        event_totals(Cost.of("energy=0.1/0.2,10"), RoundEvent(1, PAPER, 1))
    with pytest.raises(ConfigError, match="station_round has 2 values, but there are 5 stations"):
        event_totals(Cost.of("energy=0.1,1/2"), RoundEvent(1, PAPER, 1))


def test_paper_prices_by_hand() -> None:
    """Five stations of five terminals with H = 2 cost 5 · 10 + 25 · 2 · 0.1 = 55."""
    event = RoundEvent(1, PAPER, 2)
    assert event_totals(Cost.of("energy=0.1,10"), event) == {"energy": 55.0}
    assert event_totals(Cost.of("time=0.1,10"), event) == {"time": 10.2}


def test_elapsed_names_the_critical_path() -> None:
    """The slowest terminal under the slowest station is charged, and nobody else."""
    layout = Placement(np.array([0, 0, 1]), 2)
    cost = Cost.of({"time": {"step": [1, 2, 3], "station": [10, 1], "terminal_byte_up": [0, 1, 0]}})
    made = charges(cost, RoundEvent(1, layout, 2, bytes_up=4))
    rows = [(c.tier, *(column.tolist() for column in c.columns())) for c in made]
    assert rows == [("terminal", [0], [1], [4.0]), ("terminal-link", [0], [1], [4.0]), ("station", [0], [-1], [10.0])]


def test_a_station_without_terminals_can_be_the_slowest() -> None:
    """A slow station counts even where none of its terminals works."""
    cost = Cost.of({"time": {"step": 1, "station": [1, 50]}})
    made = charges(cost, RoundEvent(1, Placement(np.array([0, 1]), 2), 3, terminals=np.array([True, False])))
    assert totals(made) == {"time": 50.0}


def test_a_deadline_caps_the_wait() -> None:
    """Stations wait until the deadline and no longer, while the work of the slow terminal is still paid."""
    cost = Cost.of({"time": {"step": [1, 9]}, "energy": "1"})
    event = RoundEvent(1, Placement(np.array([0, 0]), 1), 2, deadline={"time": 5.0})
    assert event_totals(cost, event) == {"time": 5.0, "energy": 4.0}


def test_a_station_that_was_waiting_anyway_takes_no_more_time() -> None:
    """While the slow station makes its only round, the fast one makes three more; a fourth takes time."""
    cost = Cost.of({"time": {"step": 1, "station": [9, 1]}})
    event = RoundEvent(1, Placement(np.array([0, 1]), 2), 1)
    spent = [event_totals(cost, event)["time"]]
    for k in range(2, 7):
        event = replace(event, round=k, stations=np.array([False, True]), ahead=waiting_times(cost, event))
        spent.append(event_totals(cost, event)["time"])
    assert spent == [10.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    assert [(c.tier, c.total) for c in charges(cost, event)] == [("terminal", 1.0), ("station", 1.0)]


def test_what_was_waited_is_taken_off_the_path_from_its_beginning() -> None:
    """Half of the work was done while others were waited for: the other half, the link and the station are charged."""
    cost = Cost.of("time=step:1,station:2,byte:1")
    event = RoundEvent(1, Placement(np.array([0]), 1), 4, bytes_up=3, ahead={"time": np.array([2.0])})
    made = charges(cost, event)
    assert [(c.tier, c.total) for c in made] == [("terminal", 2.0), ("terminal-link", 3.0), ("station", 2.0)]
    later = replace(event, ahead={"time": np.array([8.0])})
    assert [(c.tier, c.total) for c in charges(cost, later)] == [("station", 1.0)]
    assert charges(cost, replace(event, ahead={"time": np.array([9.0])})) == ()


@settings(deadline=None)
@given(round_events(), st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_rounds_of_a_server_iteration_take_as_long_as_the_slowest_station(
    pair: tuple[Cost, RoundEvent], numbers: list[int]
) -> None:
    """With K_b rounds each, elapsed types cost max_b of a station's own rounds, others the sum of all of them."""
    cost, event = pair
    K = np.array(numbers[: event.layout.n_tasks])
    assert event.stations is not None
    spent = dict.fromkeys(cost, 0.0)
    ahead = None
    for k in range(int(K.max())):
        now = replace(event, stations=k < K, ahead=ahead)
        spent = {name: amount + event_totals(cost, now)[name] for name, amount in spent.items()}
        ahead = waiting_times(cost, now)
    alone = [event_totals(cost, replace(event, stations=np.arange(len(K)) == b)) for b in range(len(K))]
    for name in cost:
        own = [k * each[name] for k, each in zip(K.tolist(), alone, strict=True)]
        assert spent[name] == pytest.approx(max(own) if cost[name].adds == "elapsed" else sum(own), abs=1e-9)


def test_waiting_is_checked() -> None:
    """One time for each station, and none of them negative."""
    with pytest.raises(ConfigError, match="ahead of time"):
        RoundEvent(1, PAPER, 1, ahead={"time": np.zeros(4)})


def test_cloud_iteration_by_hand() -> None:
    """A server iteration is paid once, its links per station; elapsed counts the slowest link."""
    cost = Cost.of("energy=cloud:7,byte:2,time=cloud:7,station_byte_up:1/2/3")
    event = CloudEvent(4, Placement(np.arange(3), 3), stations=np.array([True, True, False]), bytes_down=1, bytes_up=10)
    assert event_totals(cost, event) == {"energy": 7.0 + 2 * 2 * 11, "time": 27.0}
    assert event_totals(cost, replace(event, merges=False))["energy"] == 44.0


def test_measured_amounts_replace_prices() -> None:
    """Where a type was measured, its charges are what was measured, and the caller's arrays stay its own."""
    used = np.array([1.0, 5.0, 2.0])
    measured = {"time": Parts(terminal=used, station=0.5), "bytes": Parts(terminal_link=used * 100)}
    made = charges(Cost.of("time=1,1,bytes=byte:1"), RoundEvent(1, Placement(np.zeros(3), 1), 1), measured)
    used[:] = 0
    assert totals(made) == {"time": 5.5, "bytes": 800.0}


@settings(deadline=None)
@given(round_events())
def test_charges_equal_plain_loops(pair: tuple[Cost, RoundEvent]) -> None:
    """Vectorised charges equal loops over stations and terminals, for sums and for elapsed types."""
    cost, event = pair
    assert event_totals(cost, event) == pytest.approx(by_hand(cost, event), rel=1e-12)


@settings(deadline=None)
@given(round_events(), st.integers(0, 50))
def test_curve_equals_charges(pair: tuple[Cost, RoundEvent], h: int) -> None:
    """The cost curve over H agrees with the charges of a round with that H."""
    cost, event = pair
    curve = {name: float(values[0]) for name, values in cost_curve(cost, event, [h]).items()}
    assert curve == pytest.approx(event_totals(cost, replace(event, local_steps=h)), rel=1e-12, abs=1e-15)


@settings(deadline=None)
@given(round_events(), st.floats(0, 20), st.floats(0, 20))
def test_largest_affordable_steps(pair: tuple[Cost, RoundEvent], energy: float, time: float) -> None:
    """The largest uniform H fits, and one more does not."""
    cost, event = pair
    room = {"energy": energy, "time": time}
    h = steps_affordable(cost, event, room, max_steps=1000)
    assert h == 0 or fits(event_totals(cost, replace(event, local_steps=h)), room)
    assert h == 1000 or not fits(event_totals(cost, replace(event, local_steps=h + 1)), room)


def test_affordable_steps_with_free_work_or_a_deadline() -> None:
    """Free steps are limited by `most` alone; a deadline makes further steps free in elapsed time."""
    event = RoundEvent(1, PAPER, 0)
    assert steps_affordable(Cost.of("energy=0,10"), event, {"energy": 50}, max_steps=77) == 77
    assert steps_affordable(Cost.of("energy=0,10"), event, {"energy": 49}, max_steps=77) == 0
    capped = replace(event, deadline={"time": 3.0})
    assert steps_affordable(Cost.of("time=1,1"), capped, {"time": 4.0}, max_steps=77) == 77
    assert steps_affordable(Cost.of("time=1,1"), capped, {"time": 3.5}, max_steps=77) == 2


@settings(deadline=None)
@given(round_events(), st.floats(0.01, 10))
def test_steps_by_deadline(pair: tuple[Cost, RoundEvent], deadline: float) -> None:
    """Each terminal ends within the deadline, would miss it with one more step, and idle ones get no steps."""
    cost, event = pair
    steps = steps_by_deadline(cost, event, {"time": deadline}, max_steps=500)
    works = set(range(event.layout.n_terminals) if event.terminal_ids is None else event.terminal_ids)
    for t, h in enumerate(steps):
        alone = replace(
            event,
            terminals=np.arange(len(steps)) == t,
            stations=np.arange(event.layout.n_tasks) == event.layout.terminal_task[t],
        )
        if t not in works:
            assert h == 0
            continue
        slack = deadline * (1 + 2e-12)
        assert h == 0 or event_totals(cost, replace(alone, local_steps=int(h)))["time"] <= slack
        assert h == 500 or event_totals(cost, replace(alone, local_steps=int(h) + 1))["time"] > deadline


def test_deadlines_need_an_elapsed_type() -> None:
    """A deadline on a type that is a sum is refused."""
    with pytest.raises(ConfigError, match="a deadline needs 'elapsed'"):
        steps_by_deadline(Cost.of("energy=1"), RoundEvent(1, PAPER, 1), {"energy": 3.0})


def test_times_affordable() -> None:
    """14 rounds of 100 fit into 1400, 3 of 0.1 into 0.3; free rounds are limited by `most` alone."""
    assert times_affordable({"energy": 100.0}, Budget.of("energy=1400").with_slack(), 999) == 14
    assert times_affordable({"energy": 0.1, "time": 9.0}, Budget.of("energy=0.3").with_slack(), 999) == 3
    assert times_affordable({"energy": 0.0}, {"energy": 0.0}, 999) == 999
    assert times_affordable({"energy": 1.0}, {"energy": -1.0}, 999) == 0


def test_binding_type() -> None:
    """The type with the largest share of its room binds; without limits none does."""
    assert binding({"energy": 10.0, "time": 1.0}, {"energy": 100.0, "time": 5.0}) == "time"
    assert binding({"energy": 10.0, "time": 1.0}, {"energy": 0.0, "time": 5.0}) == "energy"
    assert binding({"energy": 10.0}, {}) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 2**32))
def test_exact_sum(n: int, seed: int) -> None:
    """The vectorised sum equals `math.fsum`."""
    values = 10.0 ** np.random.default_rng(seed).uniform(-9, 9, n)
    assert exact_sum(values) == pytest.approx(math.fsum(values), rel=3e-16)


def test_exact_sum_keeps_small_values_beside_large_ones() -> None:
    """Thousands of ones beside 1e17 are all counted, wherever they stand."""
    values = np.ones(4801)
    values[1234] = 1e17
    assert exact_sum(values) == 1e17 + 4800


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_steps": -1}, "local_steps=-1"),
        ({"local_steps": np.zeros(3)}, "shape"),
        ({"bytes_up": np.full(25, np.nan)}, "finite"),
        ({"terminals": np.ones(25)}, "a mask of"),
        ({"stations": np.ones(25, dtype=bool)}, "a mask of 5 booleans"),
    ],
)
def test_bad_events_are_refused(change: dict[str, object], message: str) -> None:
    """An event with a wrong size or sign is refused when it is made."""
    with pytest.raises(ConfigError, match=message):
        replace(RoundEvent(1, PAPER, 1), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bytes_down"):
        CloudEvent(1, PAPER, bytes_down=-1)
    with pytest.raises(ConfigError, match="stations 0 to 1"):
        Placement(np.array([0, 2]), 2)
