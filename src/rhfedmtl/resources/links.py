"""Turn bandwidth, signal-to-noise ratio and transmit power of links into time and energy per byte.

A user adds the result to the prices with `with_links`, or reads the links of a CSV file with `read_links`.

Shannon rate of a link of bandwidth B: rate = B log2(1 + SNR) bit/s. A byte takes 8 / rate seconds. The sender spends
its transmit power during this time.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.prices import FloatArray, Prices

Value = float | FloatArray

CSV_COLUMNS: Mapping[str, str] = {
    "terminal": "id of the terminal, 0, 1, 2, ... in any order (optional: order of the rows)",
    "bandwidth_hz": "bandwidth of the link",
    "snr_db": "signal-to-noise ratio in decibels; or",
    "snr": "signal-to-noise ratio as a plain ratio; or",
    "gain_db": "channel gain in decibels, with",
    "noise_dbm_hz": "noise density in dBm per Hz (optional, default -174: thermal noise at room temperature)",
    "power_w": "transmit power in watts; or",
    "power_dbm": "transmit power in dBm",
}
THERMAL_NOISE_DBM_HZ = -174.0


@dataclass(frozen=True, eq=False)
class Link:
    """A link in a single direction, or (with arrays) the links of all terminals or stations.

    Parameters
    ----------
    bandwidth_hz
        Bandwidth that the sender does not share.
    snr
        Signal-to-noise ratio at the receiver, as a plain ratio.
    power_w
        Power of the sender while it sends.
    """

    bandwidth_hz: Value
    snr: Value
    power_w: Value = 0.0

    def __post_init__(self) -> None:
        """Refuse links that cannot carry a byte."""
        for name in ("bandwidth_hz", "snr", "power_w"):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            lowest = 0.0 if name == "power_w" else np.nextafter(0, 1)
            if value.ndim > 1 or not np.all(np.isfinite(value) & (value >= lowest)):
                domain = ">= 0" if name == "power_w" else "> 0"
                raise ConfigError(f"{name}={getattr(self, name)}: a link needs finite numbers {domain}")
            object.__setattr__(self, name, value if value.ndim else float(value))
        sizes = {len(v) for v in (self.bandwidth_hz, self.snr, self.power_w) if isinstance(v, np.ndarray)}
        if len(sizes) > 1:
            raise ConfigError(f"bandwidth, SNR and power have {sorted(sizes)} values: the numbers must agree")

    @classmethod
    def from_db(cls, bandwidth_hz: Value, snr_db: Value, power_w: Value = 0.0) -> Link:
        """Return the link with SNR = 10^(snr_db / 10)."""
        return cls(bandwidth_hz, from_decibels(snr_db), power_w)

    @classmethod
    def from_gain(
        cls,
        bandwidth_hz: Value,
        power_w: Value,
        gain: Value,
        noise_w_per_hz: Value = 10 ** (THERMAL_NOISE_DBM_HZ / 10) / 1000,
    ) -> Link:
        """Return the link with SNR = power · gain / (noise density · bandwidth)."""
        noise = np.asarray(noise_w_per_hz) * np.asarray(bandwidth_hz)
        if np.any(noise <= 0):
            raise ConfigError(f"noise of {noise_w_per_hz} W/Hz over {bandwidth_hz} Hz: both must be > 0")
        return cls(bandwidth_hz, np.asarray(power_w) * np.asarray(gain) / noise, power_w)

    @property
    def rate(self) -> Value:
        """Shannon rate in bit/s: B log2(1 + SNR)."""
        return _plain(self.bandwidth_hz * np.log1p(self.snr) / math.log(2))

    @property
    def seconds_per_byte(self) -> Value:
        """Seconds per byte: 8 / rate."""
        return _plain(np.divide(8.0, self.rate))

    @property
    def joules_per_byte(self) -> Value:
        """Joules per byte: transmit power times seconds per byte."""
        return _plain(np.multiply(self.power_w, self.seconds_per_byte))


def with_links(
    cost: Cost,
    *,
    terminal_up: Link | None = None,
    terminal_down: Link | None = None,
    station_up: Link | None = None,
    station_down: Link | None = None,
) -> Cost:
    """Return ``cost`` with the byte prices of these links, for the types time (elapsed) and energy (sum).

    A type without prices is added. The price of a direction without a link does not change.
    """
    directions = {
        "terminal_byte_up": terminal_up,
        "terminal_byte_down": terminal_down,
        "station_byte_up": station_up,
        "station_byte_down": station_down,
    }
    links = {name: link for name, link in directions.items() if link is not None}
    seconds: dict[str, Any] = {name: link.seconds_per_byte for name, link in links.items()}
    joules: dict[str, Any] = {name: link.joules_per_byte for name, link in links.items()}
    types = dict(cost.types)
    types["time"] = replace(types.get("time", Prices(adds="elapsed")), **seconds)
    types["energy"] = replace(types.get("energy", Prices()), **joules)
    return Cost(types)


def read_links(path: str | Path) -> Link:
    """Read the links of terminals (or stations) from a CSV file with the columns of `CSV_COLUMNS`, a link per row."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = list(reader)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    _check_columns(path, columns, len(rows))
    values = {name: _column(path, rows, name) for name in columns}
    order = _order(path, values, len(rows))
    return _link({name: column[order] for name, column in values.items()}, path)


def from_decibels(value: Value) -> Value:
    """Return 10^(value / 10)."""
    return _plain(np.power(10.0, np.asarray(value, dtype=np.float64) / 10))


def _check_columns(path: Path, columns: list[str], n_rows: int) -> None:
    """Check that the columns specify bandwidth, SNR and power, each in exactly one of the possible ways."""
    unknown = [name for name in columns if name not in CSV_COLUMNS]
    if unknown:
        raise DataError(f"{path}: unknown column '{unknown[0]}'; known are {', '.join(CSV_COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise DataError(f"{path}: a column appears twice in {', '.join(columns)}")
    if not n_rows:
        raise DataError(f"{path}: no rows; add a row per terminal")
    for choice in (("bandwidth_hz",), ("snr_db", "snr", "gain_db"), ("power_w", "power_dbm")):
        matches = [name for name in choice if name in columns]
        if len(matches) != 1:
            present = " and ".join(matches) or "none"
            raise DataError(f"{path}: needs one column out of {', '.join(choice)}, has {present}")


def _column(path: Path, rows: list[dict[str, Any]], name: str) -> FloatArray:
    """Return a column as numbers and check their domain; errors name row and column."""
    positive = name in ("bandwidth_hz", "snr")
    column = np.empty(len(rows))
    for i, row in enumerate(rows):
        try:
            column[i] = float(row[name])
        except (TypeError, ValueError):
            raise DataError(f"{path}, row {i + 2}, column {name}: '{row[name]}' is not a number") from None
        if not math.isfinite(column[i]) or (positive and column[i] <= 0) or (name == "power_w" and column[i] < 0):
            raise DataError(f"{path}, row {i + 2}, column {name}: {column[i]:g} is out of range")
        if None in row:
            raise DataError(f"{path}, row {i + 2}: more values than columns")
    return column


def _order(path: Path, values: Mapping[str, FloatArray], n_rows: int) -> npt.NDArray[np.intp]:
    """Return the rows in the order of their terminals."""
    ids = values.get("terminal", np.arange(n_rows, dtype=np.float64))
    order = np.argsort(ids, kind="stable")
    wrong = np.flatnonzero(ids[order] != np.arange(n_rows))
    if len(wrong):
        row = int(order[wrong[0]])
        raise DataError(
            f"{path}, row {row + 2}, column terminal: {ids[row]:g}; ids must be 0 to {n_rows - 1}, each once"
        )
    return order


def _link(values: Mapping[str, FloatArray], path: Path) -> Link:
    power = values["power_w"] if "power_w" in values else from_decibels(values["power_dbm"] - 30)
    if "gain_db" in values:
        noise = values.get("noise_dbm_hz", np.array(THERMAL_NOISE_DBM_HZ))
        return Link.from_gain(
            values["bandwidth_hz"], power, from_decibels(values["gain_db"]), from_decibels(noise - 30)
        )
    if "noise_dbm_hz" in values:
        raise DataError(f"{path}: noise_dbm_hz goes with gain_db; an SNR already contains the noise")
    snr = values["snr"] if "snr" in values else from_decibels(values["snr_db"])
    return Link(values["bandwidth_hz"], snr, power)


def _plain(value: Any) -> Value:
    """Return a single number as a float."""
    return value if isinstance(value, np.ndarray) and value.ndim else float(value)
