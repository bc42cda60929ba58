"""Measured prices: a line through what was timed, bytes from the messages, and a file that is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhfedmtl.errors import ConfigError
from rhfedmtl.planning.calibration import Bench, Calibration, Power, calibrate, fit_line, price_file
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.links import Link
from rhfedmtl.roles.message_sizes import message_sizes

MEASURED = Calibration(Bench(terminals=4), 1e-6, 1e-4, 2e-4, 3e-4, {64: 1.64e-4}, message_sizes((1, 100), 1, 0))


class Ticks:
    """A clock that goes on by one every time somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the next whole second."""
        self.now += 1.0
        return self.now


def test_a_line_gives_back_slope_and_intercept() -> None:
    """Times that lie on a line give its two numbers; neither is ever negative."""
    H = np.array([64.0, 256.0, 1024.0])
    assert fit_line(H, 1e-6 * H + 5e-5) == pytest.approx((1e-6, 5e-5))
    slope, intercept = fit_line(H, 1e-6 * H - 1e-5)
    assert intercept == 0.0
    assert slope > 0.0
    assert fit_line(H, np.array([3.0, 2.0, 1.0])) == (0.0, 2.0)


def test_the_roles_are_what_is_timed() -> None:
    """With a clock that only counts looks, an order takes one tick, a station two, a cloud one."""
    found = calibrate(Bench(features=3, rows=4, terminals=2, tasks=2, repeats=4), clock=Ticks())
    assert set(found.orders.values()) == {1.0}
    assert (found.station_seconds, found.cloud_seconds) == (2.0, 1.0)
    assert found.step_seconds == pytest.approx(0.0, abs=1e-9)
    assert found.order_seconds == pytest.approx(1.0)


@pytest.mark.parametrize(("columns", "dtype"), [(1, "float32"), (3, "float64")])
def test_bytes_are_those_of_the_messages(columns: int, dtype: Any) -> None:
    """Message sizes follow from the shape of the models, whatever the rows are stored as."""
    found = calibrate(Bench(features=7, rows=5, columns=columns, dtype=dtype, repeats=2), clock=Ticks())
    assert found.bytes == message_sizes((columns, 7 + 1), columns, 0)  # the intercept travels too


def test_real_times_are_positive() -> None:
    """On the machine at hand everything takes some time, and more steps do not take less."""
    found = calibrate(Bench(features=20, rows=10, repeats=5))
    assert min(found.station_seconds, found.cloud_seconds, *found.orders.values()) > 0.0
    assert found.step_seconds >= 0.0
    assert min(found.orders) == 64


def test_energy_is_time_times_power() -> None:
    """Joules are watts times seconds; a slower terminal takes longer and more of both."""
    cost = MEASURED.cost(Power(2.0, 50.0, 100.0, terminal_slowdown=10.0))
    time, energy = cost["time"], cost["energy"]
    assert time.adds == "elapsed"
    assert time.terminal_step == pytest.approx(1e-5)
    assert time.station_round == pytest.approx(2e-4 + 1e-3)
    assert energy.terminal_step == pytest.approx(2e-5)
    assert energy.station_round == pytest.approx(2e-4 * 50 + 4 * 1e-3 * 2)
    assert energy.cloud_round == pytest.approx(3e-2)
    assert cost["bytes"].terminal_byte_up == 1.0


def test_links_add_prices_of_bytes() -> None:
    """A link of 1 MHz at an SNR of 1 carries 1 Mbit/s: 8 microseconds a byte, and its power in them."""
    cost = MEASURED.cost(terminal_up=Link(1e6, 1.0, 0.5))
    assert cost["time"].terminal_byte_up == pytest.approx(8e-6)
    assert cost["energy"].terminal_byte_up == pytest.approx(4e-6)
    assert cost["time"].terminal_byte_down == 0.0


def test_a_price_file_is_read_back(tmp_path: Path) -> None:
    """What is written is what `Cost.from_toml` and a ledger read, and its head says how it was measured."""
    cost = MEASURED.cost(terminal_up=Link(np.array([1e6, 2e6]), 1.0, 0.5))
    text = price_file(MEASURED, cost, Power())
    path = tmp_path / "prices.toml"
    path.write_text(text)
    assert Cost.from_toml(path) == cost
    assert set(Ledger(path, "time=3").cost) == {"time", "energy", "bytes"}
    assert text.startswith("# Measured by rhfedmtl calibrate")


@pytest.mark.parametrize(
    "bad", [{"features": 0}, {"rows": -1}, {"columns": 2}, {"dtype": "int8"}, {"repeats": 0}, {"tasks": True}]
)
def test_absurd_benches_are_refused(bad: dict[str, Any]) -> None:
    """Sizes of nothing, two columns, and rows that are no floats are errors."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Bench(**bad)


@pytest.mark.parametrize("bad", [{"terminal_watts": -1.0}, {"station_watts": float("nan")}, {"terminal_slowdown": 0.0}])
def test_absurd_powers_are_refused(bad: dict[str, float]) -> None:
    """Power is finite and not negative, and nobody is infinitely fast."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Power(**bad)
