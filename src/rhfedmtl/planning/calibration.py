"""Measure prices: time terminal steps, station merges and server iterations on this machine, and count their bytes.

The command ``calibrate`` calls this module. It times the real roles. A terminal answers work orders of different H, and
a line through the median times gives the time of a step and the fixed time of an order. A station opens and closes
rounds; a cloud hands out anchors and takes reports. The sizes of the messages give the bytes. Energy is time multiplied
by a stated power, so it is only as good as that power.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation, Origin
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.errors import ConfigError
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.links import Link, with_links
from rhfedmtl.resources.prices import Prices
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.roles.messages import Report

Clock = Callable[[], float]
_SHORTEST_STEPS, _LONGEST_STEPS = 64, 4096
_LONGEST_SECONDS = 0.02  # The largest H is chosen to make an order about this long.


@dataclass(frozen=True)
class Bench:
    """Sizes of the timed network: one station with its terminals and rows, and a cloud over all tasks.

    ``columns`` is the number of models per task: 1, or the number of classes. Each time is a median over ``repeats``.
    """

    features: int = 100
    rows: int = 50
    columns: int = 1
    terminals: int = 5
    tasks: int = 5
    dtype: Literal["float32", "float64"] = "float64"
    repeats: int = 15

    def __post_init__(self) -> None:
        """Refuse impossible sizes."""
        for name in ("features", "rows", "columns", "terminals", "tasks", "repeats"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {count!r}")
        if self.columns == 2:
            raise ConfigError("columns=2: two classes have one model; give 1, or 3 and more for that many classes")
        if self.dtype not in ("float32", "float64"):
            raise ConfigError(f"dtype {self.dtype!r}: rows are float32 or float64")

    def federation(self) -> Federation:
        """Return the terminals of a single station with random rows of norm 1 and random labels."""
        rng = np.random.default_rng(0)
        n = self.rows * self.terminals
        X = rng.standard_normal((n, self.features))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        classes = max(2, self.columns)
        return Federation.untested(
            X.astype(self.dtype),
            (np.arange(n) % classes).astype(np.int16),
            np.arange(self.terminals + 1) * self.rows,
            np.array([0, self.terminals]),
            task_names=("bench",),
            class_names=tuple(f"class {c}" for c in range(classes)),
            origin=Origin("bench"),
        )


@dataclass(frozen=True)
class Power:
    """Watts that nodes draw while they work, and the factor by which a terminal is slower than the timed machine."""

    terminal_watts: float = 2.0
    station_watts: float = 50.0
    cloud_watts: float = 100.0
    terminal_slowdown: float = 1.0

    def __post_init__(self) -> None:
        """Refuse impossible powers."""
        for name in ("terminal_watts", "station_watts", "cloud_watts", "terminal_slowdown"):
            value = getattr(self, name)
            positive = name == "terminal_slowdown"
            if not np.isfinite(value) or value < 0.0 or (positive and value == 0.0):
                raise ConfigError(f"{name}={value}: it must be a finite number {'> 0' if positive else '>= 0'}")


@dataclass(frozen=True)
class Calibration:
    """Measured seconds and bytes; ``orders`` maps H to the median time of an order."""

    bench: Bench
    step_seconds: float
    order_seconds: float
    station_seconds: float
    cloud_seconds: float
    orders: dict[int, float]
    bytes: MessageSizes

    def cost(self, power: Power | None = None, **links: Link | None) -> Cost:
        """Return prices of time (elapsed, s), energy (J) and bytes; the fixed time of an order counts to the round.

        Without ``links`` (as `with_links` takes them) bytes take no time and no energy.
        """
        power = power or Power()
        step, order = (power.terminal_slowdown * s for s in (self.step_seconds, self.order_seconds))
        orders = self.bench.terminals * order * power.terminal_watts
        cost = Cost(
            {
                "time": Prices(step, self.station_seconds + order, self.cloud_seconds, adds="elapsed"),
                "energy": Prices(
                    step * power.terminal_watts,
                    self.station_seconds * power.station_watts + orders,
                    self.cloud_seconds * power.cloud_watts,
                ),
                "bytes": Prices(
                    terminal_byte_up=1.0, terminal_byte_down=1.0, station_byte_up=1.0, station_byte_down=1.0
                ),
            }
        )
        return with_links(cost, **links)

    def to_dict(self) -> dict[str, Any]:
        """Return all measurements as plain values."""
        return asdict(self)


def calibrate(bench: Bench | None = None, *, clock: Clock = time.perf_counter) -> Calibration:
    """Time the roles on this machine."""
    bench = bench or Bench()
    timed = _Timed(bench, clock)
    timed.round(1)  # compiles the kernels, or loads them
    step, order, orders = timed.terminal()
    return Calibration(bench, step, order, timed.station(), timed.cloud(), orders, timed.network.message_sizes)


def price_file(calibration: Calibration, cost: Cost, power: Power) -> str:
    """Return the text of a price file for ``--cost``, with a header that names the source of its numbers."""
    b = calibration.bench
    head = [
        f"# Measured by rhfedmtl calibrate, for {b.terminals} terminals of a station, {b.rows} {b.dtype} rows of",
        f"# {b.features} features each, {b.columns} model(s) per task and {b.tasks} tasks. Time in seconds, energy in",
        f"# joules at {power.terminal_watts:g} W per terminal ({power.terminal_slowdown:g} times slower than this",
        f"# machine), {power.station_watts:g} W per station and {power.cloud_watts:g} W for the cloud; bytes are the",
        "# sizes of the messages.",
        "",
        "",
    ]
    return "\n".join(head) + cost.to_toml()


class _Timed:
    """Run the roles and take their times."""

    def __init__(self, bench: Bench, clock: Clock) -> None:
        self.bench, self.method, self.clock = bench, DualMethod(), clock
        self.network = MessagePassing(bench.federation(), self.method, seed=0)
        self.network.assign(Cloud(self.method.relationship, 1, self.network.shape).assign())
        self._number = 0

    def round(self, steps: int) -> tuple[float, list[float]]:
        """Run a BS iteration and return the seconds of the station and of every terminal."""
        station, self._number = self.network.stations[0], self._number + 1
        start = self.clock()
        orders = station.open_round(self._number, dict.fromkeys(station.members, steps))
        opening = self.clock() - start
        updates, terminals = [], []
        for order in orders:
            start = self.clock()
            updates.append(self.network.terminals[order.terminal].work(order))
            terminals.append(self.clock() - start)
        start = self.clock()
        for update in updates:
            if update is not None:
                station.receive(update)
        station.close_round()
        return opening + self.clock() - start, terminals

    def terminal(self) -> tuple[float, float, dict[int, float]]:
        """Return the seconds of a step, the seconds of an order, and the median time of an order for each H.

        The line through the medians has the smallest relative errors.
        """
        shortest = self._median(_SHORTEST_STEPS)
        longest = int(_SHORTEST_STEPS * _LONGEST_SECONDS / max(shortest, 1e-9))
        longest = min(max(longest, 8 * _SHORTEST_STEPS), _LONGEST_STEPS)
        H = np.unique(np.geomspace(_SHORTEST_STEPS, longest, 6).astype(np.int64)).tolist()
        orders = {h: self._median(h) for h in H}
        step, order = fit_line(np.array(H, dtype=np.float64), np.array(list(orders.values())))
        return step, order, orders

    def station(self) -> float:
        """Return the seconds that a station works in a round."""
        return float(np.median([self.round(1)[0] for _ in range(max(5, self.bench.repeats))]))

    def cloud(self) -> float:
        """Return the seconds of a server iteration over all tasks."""
        cloud = Cloud(self.method.relationship, self.bench.tasks, self.network.shape)
        v = np.zeros(self.network.shape)
        seconds = []
        for number in range(1, max(5, self.bench.repeats) + 1):
            reports = [Report(number, b, number, v, self.bench.rows, 0) for b in range(self.bench.tasks)]
            start = self.clock()
            cloud.assign()
            for report in reports:
                cloud.receive(report)
            seconds.append(self.clock() - start)
        return float(np.median(seconds))

    def _median(self, steps: int) -> float:
        """Return the median seconds of an order of H steps, over terminals and repetitions."""
        repeats = -(-self.bench.repeats // self.bench.terminals)
        return float(np.median([s for _ in range(max(2, repeats)) for s in self.round(steps)[1]]))


def fit_line(H: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the non-negative slope and intercept with the smallest squared relative error."""
    weight = 1.0 / np.maximum(seconds, 1e-12)
    A = np.stack([H, np.ones_like(H)], axis=1) * weight[:, None]
    slope, intercept = np.linalg.lstsq(A, seconds * weight, rcond=None)[0]
    if intercept < 0.0:  # An order cannot take negative time: fit a line through the origin.
        slope, intercept = float((A[:, 0] @ (seconds * weight)) / (A[:, 0] @ A[:, 0])), 0.0
    if slope < 0.0:
        slope, intercept = 0.0, float(np.median(seconds))
    return float(slope), float(intercept)
