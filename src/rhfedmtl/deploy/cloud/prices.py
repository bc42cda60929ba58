"""Prices and charges of measured resource types: seconds, bytes and joules.

`MeasuredAccounting` calls `MeasuredPrices`: before a round for the prices of the plan, after it for the charges. Prices
follow the last rounds. Prices of seconds and joules have a margin. Before a round, the total at these prices is
reserved, for bytes as if every request were sent again. Stations close a round at its deadline, which comes from the
reserved time, so a round exceeds it only by the message that is on its way then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rhfedmtl.deploy.cloud.active_stations import Overhead
from rhfedmtl.deploy.cloud.config import MEASURABLE, Resources
from rhfedmtl.deploy.cloud.remote_network import Round
from rhfedmtl.errors import BudgetError
from rhfedmtl.resources.billing import CLOUD, STATION_LINK, Charge, Parts
from rhfedmtl.resources.costs import Budget, Cost, read_resources
from rhfedmtl.resources.events import Placement
from rhfedmtl.resources.prices import FloatArray, Prices

MARGIN = 2.0
"""Plan and reserve this many times the seconds of the last rounds; a round that takes longer is cut off."""
LATEST_WEIGHT = 0.3
"""Weight of the latest round in the running means."""
STATION_SHARE = 0.8
"""Share of the reserved time that stations may use; the rest is for the links between stations and cloud."""
NOTICEABLE_CHANGE = 0.1
"""Keep the planning prices, and the plans made with them, while every price changes by less than this share."""
FIRST_STEP_S, FIRST_LINK_S, FIRST_STATION_S = 1e-4, 0.02, 0.02
"""First guesses of the seconds of a local step, of the link of a terminal, and of a station."""


@dataclass
class Speeds:
    """Running means of seconds and bytes.

    ``step`` and ``link`` are seconds of a local step and of the link of each terminal. ``station`` and ``cloud`` are
    seconds of a round apart from waiting for the terminals, and of the links to the cloud. The bytes are the largest of
    any terminal and any station.
    """

    step: FloatArray
    link: FloatArray
    station: float = FIRST_STATION_S
    cloud: float = FIRST_STATION_S
    terminal_bytes: float = 0.0
    station_bytes: float = 0.0


class MeasuredPrices:
    """Turns the measurements of the last rounds into prices for plans and reservations, and into charges.

    ``names`` are the measured types that have a price.
    """

    def __init__(self, resources: Resources, cost: Cost) -> None:
        self._resources, self._cost = resources, cost
        self.names = tuple(name for name in resources.measured if name in cost)
        self._speeds = Speeds(np.empty(0), np.empty(0))
        self._published: Cost | None = None  # the last planning prices

    def __bool__(self) -> bool:
        return bool(self.names)

    def state(self) -> dict[str, Any]:
        """Return the measurements and the last planning prices."""
        return {"speeds": vars(self._speeds), "told": self._published}

    def resume(self, state: dict[str, Any]) -> Cost | None:
        """Continue from the result of `state`, and return the last planning prices."""
        speeds: dict[str, Any] = state["speeds"]
        self._speeds = Speeds(**{**speeds, "step": np.copy(speeds["step"]), "link": np.copy(speeds["link"])})
        self._published = None if state["told"] is None else Cost(state["told"])
        return self._published

    def planning(self, n_terminals: int, bytes_per_round: float, bytes_per_cloud_round: float) -> Cost:
        """Return the prices for a plan: declared prices unchanged, measured prices by the last rounds.

        Parameters
        ----------
        n_terminals : int
            Number of terminals; new terminals get the median speed.
        bytes_per_round : float
            Bytes of a terminal in a round, by the sizes of its messages alone.
        bytes_per_cloud_round : float
            Bytes of a station in a server iteration, by the sizes of its messages alone.
        """
        self._add_terminals(n_terminals)
        measured = {name: self._prices(name, bytes_per_round, bytes_per_cloud_round) for name in self.names}
        cost = Cost({**self._cost.types, **measured})
        if self._published is None or _has_changed(self._published, cost, self.names):
            self._published = cost
        return self._published

    def _prices(self, name: str, bytes_per_round: float, bytes_per_cloud_round: float) -> Prices:
        """Return the prices of a measured type by the running means."""
        speeds, watts = self._speeds, self._resources
        if name == "bytes":
            below = max(1.0, speeds.terminal_bytes / max(bytes_per_round, 1.0))
            above = max(1.0, speeds.station_bytes / max(bytes_per_cloud_round, 1.0))
            return Prices(0.0, 0.0, 0.0, below, below, above, above)
        wait = speeds.link / max(bytes_per_round, 1.0)
        time = Prices(
            MARGIN * speeds.step,
            MARGIN * speeds.station,
            MARGIN * speeds.cloud,
            MARGIN * wait,
            MARGIN * wait,
            adds="elapsed",
        )
        if name == "time":
            return time
        slowest = MARGIN * float(speeds.step.max(initial=0.0)), MARGIN * float(wait.max(initial=0.0))
        return Prices(
            watts.terminal_watts * slowest[0],
            watts.station_watts * MARGIN * (speeds.station + float(speeds.link.max(initial=0.0))),
            0.0,
            watts.terminal_watts * slowest[1],
            watts.terminal_watts * slowest[1],
        )

    def learn(self, last_round: Round) -> None:
        """Update the running means with a round."""
        speeds, efforts = self._speeds, last_round.efforts
        worked = [t for t, e in efforts.items() if e.answered and e.local_steps and t < len(speeds.step)]
        for t in worked:
            speeds.step[t] = _mix(speeds.step[t], efforts[t].work_seconds / efforts[t].local_steps)
            speeds.link[t] = _mix(speeds.link[t], efforts[t].wait_seconds - efforts[t].work_seconds)
        # Move terminals without an order towards the median speed, so a straggler gets another order later.
        idle = np.setdiff1d(np.arange(len(speeds.step)), list(efforts))
        for seconds in (speeds.step, speeds.link) if worked else ():
            median = float(np.median(seconds[worked]))
            target = (1.0 - LATEST_WEIGHT) * seconds[idle] + LATEST_WEIGHT * median
            seconds[idle] = np.minimum(seconds[idle], target)
        waits, answers = _station_waits(last_round), last_round.answers
        station = [a.seconds - waits.get(b, 0.0) for b, a in answers.items() if a.WhichOneof("body") == "round"]
        speeds.station = _mix(speeds.station, max(station, default=speeds.station))
        terminal_bytes = [float(e.bytes_down + e.bytes_up) for e in efforts.values()]
        speeds.terminal_bytes = _mix(speeds.terminal_bytes, max(terminal_bytes, default=0.0))

    def parts(self, last_round: Round, n_terminals: int, n_tasks: int) -> dict[str, Parts]:
        """Return the use of each measured type by each node in a round.

        A terminal that did not answer counts as working for the whole time that its station waited.
        """
        work, link, used = (np.zeros(n_terminals) for _ in range(3))
        station, longest = np.zeros(n_tasks), np.zeros(n_tasks)
        for t, effort in last_round.efforts.items():
            work[t] = effort.work_seconds if effort.answered else effort.wait_seconds
            link[t] = max(0.0, effort.wait_seconds - work[t])
            used[t] = effort.bytes_down + effort.bytes_up
        for b, waited in _station_waits(last_round).items():
            station[b], longest[b] = max(0.0, last_round.answers[b].seconds - waited), waited
        watts = self._resources
        by_type = {
            "time": Parts(work, link, station),
            "bytes": Parts(0.0, used, 0.0),
            "energy": Parts(watts.terminal_watts * work, 0.0, watts.station_watts * (station + longest)),
        }
        return {name: by_type[name] for name in self.names}

    def link_charges(
        self, number: int, layout: Placement, overhead: Overhead, last_round: Round | None
    ) -> list[Charge]:
        """Return the charges of the links between stations and cloud since the last call, and learn from them.

        Requests outside rounds, such as certificates, are charged here too, with their bytes to and from terminals.
        """
        seconds, n_bytes, aside = overhead.take()
        if last_round is not None:
            for b, answer in last_round.answers.items():
                n_bytes[b] += answer.bytes_down + answer.bytes_up
                aside[b] += answer.bytes_below
        charges = []
        if "time" in self.names and seconds > 0.0:
            charges.append(Charge.make(number, CLOUD, "time", layout, None, seconds))
        if "bytes" in self.names and (n_bytes + aside).any():
            charges.append(Charge.make(number, STATION_LINK, "bytes", layout, None, n_bytes + aside))
        self._speeds.cloud = _mix(self._speeds.cloud, seconds)
        self._speeds.station_bytes = _mix(self._speeds.station_bytes, float(n_bytes.max(initial=0.0)))
        return charges

    def waits(self, worst: dict[str, float], remaining: dict[str, float], patience: float) -> tuple[float, float]:
        """Return the deadline of a round for its stations, and the seconds that the cloud then waits for a station.

        If time is measured and limited, both follow from the reserved time ``worst["time"]``: stations may use a share
        of it, and the rest is for the links to the cloud. ``remaining`` is the budget beyond the reservation.
        """
        limit = self._resources.deadline
        if "time" not in self.names or "time" not in remaining:
            return limit, patience
        deadline = min(limit, STATION_SHARE * worst["time"])
        return deadline, min(patience, worst["time"] - deadline + max(0.0, remaining["time"]))

    def _add_terminals(self, n: int) -> None:
        """Give new terminals the median speed of the others, or the first guess if there are no others."""
        speeds, missing = self._speeds, n - len(self._speeds.step)
        if missing > 0:
            step = float(np.median(speeds.step)) if len(speeds.step) else self._guess("terminal_step", FIRST_STEP_S)
            link = float(np.median(speeds.link)) if len(speeds.link) else FIRST_LINK_S
            if not len(speeds.step):
                speeds.station = self._guess("station_round", FIRST_STATION_S)
            speeds.step = np.append(speeds.step, np.full(missing, step))
            speeds.link = np.append(speeds.link, np.full(missing, link))

    def _guess(self, price: str, default: float) -> float:
        """Return the configured price of time as a first guess, or the default."""
        configured = float(np.max(getattr(self._cost["time"], price))) if "time" in self._cost else 0.0
        return configured or default


def costs_and_limits(resources: Resources, spec: dict[str, Any], measured: Sequence[str]) -> tuple[Cost, Budget]:
    """Return the prices and limits of a training; every measured type has a price, which may be zero.

    Refuse a limit on a type that this network has not counted so far.
    """
    measured = spec.get("measured", measured)
    unpriced = [f"{name}=0" for name in measured if name not in Cost.of(resources.cost)]
    cost, budget = read_resources([*resources.cost, *unpriced], spec["budget"] or resources.budget)
    for name in MEASURABLE:
        if name in budget and name not in cost:
            command = "reset" if name == "bytes" else f"init --measure {name}"
            raise BudgetError(
                f"budget {name}={budget[name]:g}: this network has not counted {name} so far; start over with "
                f"`rhfedmtl network {command}`"
            )
    missing = {name: Prices(adds="elapsed" if name == "time" else "sum") for name in measured if name not in cost}
    types = {**cost.types, **missing}
    if "time" in measured:
        types["time"] = replace(types["time"], adds="elapsed")
    return Cost(types), budget


def measured_types(resources: Resources, spec: dict[str, Any], cost: Cost | None) -> list[str]:
    """Return the measured types: the configured types, and bytes if they have a limit but no price.

    ``cost`` has the types of earlier trainings, if there were any: only the first training can add bytes.
    """
    first = Budget.of(spec["budget"] or resources.budget) if cost is None else cost
    more = {"bytes"} & set(first) - {*resources.measured, *Cost.of(resources.cost)}
    return [*resources.measured, *more]


def _station_waits(last_round: Round) -> dict[int, float]:
    """Return the seconds for which each station waited for the slowest of its terminals."""
    answers = {b: a.round for b, a in last_round.answers.items() if a.WhichOneof("body") == "round"}
    return {b: max((e.wait_seconds for e in r.efforts), default=0.0) for b, r in answers.items()}


def _mix(old: float, new: float) -> float:
    """Return the running mean; a larger value replaces it at once."""
    return max(new, 0.0) if new > old else (1.0 - LATEST_WEIGHT) * old + LATEST_WEIGHT * max(new, 0.0)


def _has_changed(old: Cost, new: Cost, names: tuple[str, ...]) -> bool:
    """Return True if a measured price has changed enough for a new plan."""
    for name in names:
        for part in ("terminal_step", "station_round", "cloud_round", "terminal_byte_up", "station_byte_up"):
            a, b = np.asarray(getattr(old[name], part)), np.asarray(getattr(new[name], part))
            if a.shape != b.shape or np.any(np.abs(a - b) > NOTICEABLE_CHANGE * np.maximum(a, b)):
                return True
    return False
