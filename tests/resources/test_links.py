"""Links: from bandwidth, signal-to-noise and power to time and energy per byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.events import Placement, RoundEvent
from rhfedmtl.resources.links import CSV_COLUMNS, Link, read_links, with_links


def test_shannon_rate_by_hand() -> None:
    """1 MHz at SNR 3 carries 2 Mbit/s: 4 µs a byte, and 0.8 µJ at 0.2 W."""
    link = Link(1e6, 3.0, 0.2)
    assert link.rate == pytest.approx(2e6)
    assert link.seconds_per_byte == pytest.approx(4e-6)
    assert link.joules_per_byte == pytest.approx(0.8e-6)


def test_three_ways_to_give_the_signal() -> None:
    """Decibels, a plain ratio, and power with gain and noise describe the same link."""
    plain = Link(1e6, 100.0, 0.1)
    assert Link.from_db(1e6, 20.0, 0.1).rate == pytest.approx(plain.rate)
    assert Link.from_gain(1e6, 0.1, gain=1e-8, noise_w_per_hz=1e-17).rate == pytest.approx(plain.rate)
    assert Link.from_gain(1e6, 1e-3, gain=1.0).snr == pytest.approx(10**17.4 / 1e6)


@settings(deadline=None)
@given(st.floats(1e3, 1e9), st.floats(-20, 60), st.floats(0, 100))
def test_better_links_are_cheaper(bandwidth: float, snr_db: float, power: float) -> None:
    """More bandwidth or more signal never makes a byte slower or dearer."""
    link = Link.from_db(bandwidth, snr_db, power)
    for better in (Link.from_db(2 * bandwidth, snr_db, power), Link.from_db(bandwidth, snr_db + 3, power)):
        assert better.seconds_per_byte < link.seconds_per_byte
        assert better.joules_per_byte <= link.joules_per_byte


def test_links_become_prices() -> None:
    """Seconds go to an elapsed type, joules to a sum; other prices stay as they are."""
    up = Link(np.array([1e6, 2e6]), 3.0, 0.5)
    cost = with_links(Cost.of("energy=0.1,10"), terminal_up=up, station_down=Link(8e6, 1.0))
    assert (cost["time"].adds, cost["energy"].adds) == ("elapsed", "sum")
    assert cost["energy"].terminal_step == 0.1
    np.testing.assert_allclose(cost["time"].terminal_byte_up, [4e-6, 2e-6])
    assert cost["time"].station_byte_down == pytest.approx(1e-6)
    used = event_totals(cost, RoundEvent(1, Placement(np.array([0, 0]), 1), 1, bytes_up=1e6))
    assert used == pytest.approx({"energy": 0.2 + 10 + 0.5 * 6, "time": 4.0})


def test_csv_of_terminals(tmp_path: Path) -> None:
    """Rows may come in any order of terminals, in decibels or plain units."""
    path = tmp_path / "links.csv"
    path.write_text("terminal,bandwidth_hz,snr_db,power_dbm\n1,2e6,10,20\n0,1e6,20,30\n")
    link = read_links(path)
    np.testing.assert_allclose(link.bandwidth_hz, [1e6, 2e6])
    np.testing.assert_allclose(link.snr, [100, 10])
    np.testing.assert_allclose(link.power_w, [1.0, 0.1])
    path.write_text("bandwidth_hz, gain_db, noise_dbm_hz, power_w\n1e6, -80, -140, 0.1\n")
    np.testing.assert_allclose(read_links(path).snr, [100.0])
    path.write_text("bandwidth_hz,gain_db,power_w\n1e6,-80,0.1\n")
    np.testing.assert_allclose(read_links(path).snr, [0.1 * 1e-8 / (1e6 * 10**-20.4)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bandwidth_hz,snr,power_w\n1e6,3,1\n1e6,x,1\n", "row 3, column snr: 'x' is not a number"),
        ("bandwidth_hz,snr,power_w\n1e6,3\n", "row 2, column power_w: 'None' is not a number"),
        ("bandwidth_hz,snr,power_w\n0,3,1\n", "row 2, column bandwidth_hz: 0 is out of range"),
        ("bandwidth_hz,snr,power_w\n1e6,3,-1\n", "row 2, column power_w: -1 is out of range"),
        ("bandwidth_hz,snr_db,power_w\n1e6,nan,1\n", "row 2, column snr_db: nan is out of range"),
        ("bandwidth_hz,snr,power_w\n1e6,3,1,9\n", "row 2: more values than columns"),
        ("terminal,bandwidth_hz,snr,power_w\n0,1e6,3,1\n2,1e6,3,1\n", "row 3, column terminal: 2; ids must be 0 to 1"),
        ("bandwidth_hz,snr,power_w\n", "no rows"),
        ("", "no rows"),
        ("bandwidth_hz,power_w\n1,1\n", "one column out of snr_db, snr, gain_db, has none"),
        ("bandwidth_hz,snr,snr_db,power_w\n1,1,1,1\n", "has snr_db and snr"),
        ("bandwidth,snr,power_w\n1,1,1\n", "unknown column 'bandwidth'"),
        ("snr,snr,power_w\n1,1,1\n", "a column appears twice"),
        ("bandwidth_hz,snr,power_w,noise_dbm_hz\n1,1,1,1\n", "noise_dbm_hz goes with gain_db"),
    ],
)
def test_bad_csv_names_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    """Every fault of the file is a DataError that says where it is."""
    path = tmp_path / "links.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_links(path)


def test_missing_csv(tmp_path: Path) -> None:
    """A file that is not there is a DataError that names it."""
    with pytest.raises(DataError, match="cannot read"):
        read_links(tmp_path / "none.csv")


def test_impossible_links_are_refused() -> None:
    """No bandwidth, no signal, negative power, unequal numbers of nodes: refused with the value."""
    for arguments in ((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, -1.0), (np.inf, 1.0, 1.0), (1.0, np.nan, 1.0)):
        with pytest.raises(ConfigError, match="a link needs finite numbers"):
            Link(*arguments)
    with pytest.raises(ConfigError, match=r"\[2, 3\] values"):
        Link(np.ones(2), np.ones(3))
    with pytest.raises(ConfigError, match="noise"):
        Link.from_gain(1.0, 1.0, 1.0, 0.0)


def test_every_column_is_documented() -> None:
    """The table of columns says something about each."""
    assert all(CSV_COLUMNS.values())
