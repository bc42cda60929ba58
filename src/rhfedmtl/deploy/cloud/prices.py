"""Prices of what is measured: seconds, bytes and joules of a round, as the last rounds had them.

A plan is made with these prices, seconds and joules with a margin, and their total is set aside before a round, bytes
as if every question had to be sent again. Stations close a round at its deadline, which is the time that was set aside,
so a round takes longer by no more than the message that is under way then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rhfedmtl.deploy.cloud.config import MEASURABLE, Resources
from rhfedmtl.deploy.cloud.partners import Overhead
from rhfedmtl.deploy.cloud.remote_network import Round
from rhfedmtl.errors import BudgetError
from rhfedmtl.resources.billing import CLOUD, STATION_LINK, Charge, Parts, Placement
from rhfedmtl.resources.costs import Budget, Cost, FloatArray, Prices, read_resources

MARGIN = 2.0
"""How much longer than the last rounds a round may take before it is cut off."""
MEMORY = 0.3
"""Weight of the latest round in the running means."""
ON_SITE = 0.8
"""Share of the time of a round that stations may use; the rest is for the links between them and the cloud."""
WORTH_TELLING = 0.1
"""Prices that move by less than this share are left as they are, and so are plans made with them."""
FIRST_STEP_S, FIRST_LINK_S, FIRST_STATION_S = 1e-4, 0.02, 0.02


@dataclass
class Speeds:
    """Running means: seconds of a step and of the link of each terminal, of a station's own share, and bytes."""

    step: FloatArray
    link: FloatArray
    station: float = FIRST_STATION_S
    cloud: float = FIRST_STATION_S
    terminal_bytes: float = 0.0
    station_bytes: float = 0.0


class MeasuredPrices:
    """Turns what the rounds showed into prices to plan and to reserve by, and into charges."""

    def __init__(self, resources: Resources, cost: Cost) -> None:
        self._resources, self._cost = resources, cost
        self.names = tuple(name for name in resources.measured if name in cost)
        self._speeds = Speeds(np.empty(0), np.empty(0))
        self._told: Cost | None = None

    def __bool__(self) -> bool:
        return bool(self.names)

    def state(self) -> dict[str, Any]:
        """What the rounds so far have shown."""
        return {"speeds": vars(self._speeds), "told": self._told}

    def resume(self, state: dict[str, Any]) -> Cost | None:
        """Go on from what `state` gave; the prices that were told last."""
        speeds: dict[str, Any] = state["speeds"]
        self._speeds = Speeds(**{**speeds, "step": np.copy(speeds["step"]), "link": np.copy(speeds["link"])})
        self._told = None if state["told"] is None else Cost(state["told"])
        return self._told

    def planning(self, n_terminals: int, bytes_per_round: float, bytes_per_cloud_round: float) -> Cost:
        """Prices for a plan: those declared as they are, those measured by what the last rounds showed.

        Bytes are those that a terminal, and a station, would have by the sizes of their messages alone.
        """
        self._grow(n_terminals)
        live = {name: self._prices(name, bytes_per_round, bytes_per_cloud_round) for name in self.names}
        made = Cost({**self._cost.types, **live})
        if self._told is None or _moved(self._told, made, self.names):
            self._told = made
        return self._told

    def _prices(self, name: str, bytes_per_round: float, bytes_per_cloud_round: float) -> Prices:
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

    def learn(self, seen: Round) -> None:
        """Take in a round."""
        for t, effort in seen.efforts.items():
            if effort.answered and effort.local_steps and t < len(self._speeds.step):
                self._speeds.step[t] = _mix(self._speeds.step[t], effort.work_seconds / effort.local_steps)
                self._speeds.link[t] = _mix(self._speeds.link[t], effort.wait_seconds - effort.work_seconds)
        self._forget_slowness(seen)
        waits = _station_waits(seen)
        own = [a.seconds - waits.get(b, 0.0) for b, a in seen.answers.items() if a.WhichOneof("body") == "round"]
        self._speeds.station = _mix(self._speeds.station, max(own, default=self._speeds.station))
        each = [float(e.bytes_down + e.bytes_up) for e in seen.efforts.values()]
        self._speeds.terminal_bytes = _mix(self._speeds.terminal_bytes, max(each, default=0.0))

    def _forget_slowness(self, last: Round) -> None:
        """Move terminals without an order towards the median speed: a straggler gets another try later."""
        worked = [t for t, e in last.efforts.items() if e.answered and e.local_steps and t < len(self._speeds.step)]
        if not worked:
            return
        idle = np.setdiff1d(np.arange(len(self._speeds.step)), list(last.efforts))
        for seconds in (self._speeds.step, self._speeds.link):
            median = float(np.median(seconds[worked]))
            seconds[idle] = np.minimum(seconds[idle], (1.0 - MEMORY) * seconds[idle] + MEMORY * median)

    def parts(self, seen: Round, n_terminals: int, n_tasks: int) -> dict[str, Parts]:
        """What each node used of each measured type in a round."""
        work, link, used = (np.zeros(n_terminals) for _ in range(3))
        station, longest = np.zeros(n_tasks), np.zeros(n_tasks)
        for t, effort in seen.efforts.items():
            work[t] = effort.work_seconds if effort.answered else effort.wait_seconds
            link[t] = max(0.0, effort.wait_seconds - work[t])
            used[t] = effort.bytes_down + effort.bytes_up
        for b, waited in _station_waits(seen).items():
            station[b], longest[b] = max(0.0, seen.answers[b].seconds - waited), waited
        watts = self._resources
        every = {
            "time": Parts(work, link, station),
            "bytes": Parts(0.0, used, 0.0),
            "energy": Parts(watts.terminal_watts * work, 0.0, watts.station_watts * (station + longest)),
        }
        return {name: every[name] for name in self.names}

    def link_charges(self, number: int, layout: Placement, overhead: Overhead, seen: Round | None) -> list[Charge]:
        """Charges for the links between stations and cloud since the last round, and what they tell of prices.

        Certificates and what else no round pays for are among them, with the links to terminals.
        """
        seconds, n_bytes, aside = overhead.take()
        if seen is not None:
            for b, answer in seen.answers.items():
                n_bytes[b] += answer.bytes_down + answer.bytes_up
                aside[b] += answer.bytes_below
        made = []
        if "time" in self.names and seconds > 0.0:
            made.append(Charge.make(number, CLOUD, "time", layout, None, seconds))
        if "bytes" in self.names and (n_bytes + aside).any():
            made.append(Charge.make(number, STATION_LINK, "bytes", layout, None, n_bytes + aside))
        self._speeds.cloud = _mix(self._speeds.cloud, seconds)
        self._speeds.station_bytes = _mix(self._speeds.station_bytes, float(n_bytes.max(initial=0.0)))
        return made

    def waits(self, worst: dict[str, float], room: dict[str, float], patience: float) -> tuple[float, float]:
        """How long stations may wait in a round for which ``worst`` was set aside, and the cloud for a station then.

        Where time is measured and limited, a part of what was set aside is kept for the way back.
        """
        limit = self._resources.deadline
        if "time" not in self.names or "time" not in room:
            return limit, patience
        deadline = min(limit, ON_SITE * worst["time"])
        return deadline, min(patience, worst["time"] - deadline + max(0.0, room["time"]))

    def _grow(self, n: int) -> None:
        """Room for terminals that came since; they are taken to be like the others."""
        speeds, missing = self._speeds, n - len(self._speeds.step)
        if missing > 0:
            step = float(np.median(speeds.step)) if len(speeds.step) else self._guess("terminal_step", FIRST_STEP_S)
            link = float(np.median(speeds.link)) if len(speeds.link) else FIRST_LINK_S
            if not len(speeds.step):
                speeds.station = self._guess("station_round", FIRST_STATION_S)
            speeds.step = np.append(speeds.step, np.full(missing, step))
            speeds.link = np.append(speeds.link, np.full(missing, link))

    def _guess(self, price: str, otherwise: float) -> float:
        """The price that the configuration gives for time, as a first guess."""
        given = float(np.max(getattr(self._cost["time"], price))) if "time" in self._cost else 0.0
        return given or otherwise


def costs_and_limits(resources: Resources, spec: dict[str, Any], measured: Sequence[str]) -> tuple[Cost, Budget]:
    """Return the prices and the limits of a training, with a place for every measured type."""
    measured = spec.get("measured", measured)
    unpriced = [f"{name}=0" for name in measured if name not in Cost.of(resources.cost)]
    cost, budget = read_resources([*resources.cost, *unpriced], spec["budget"] or resources.budget)
    for name in MEASURABLE:
        if name in budget and name not in cost:
            command = "reset" if name == "bytes" else f"init --measure {name}"
            raise BudgetError(
                f"budget {name}={budget[name]:g}: this network has not counted {name} so far; begin again with "
                f"`rhfedmtl network {command}`"
            )
    missing = {name: Prices(adds="elapsed" if name == "time" else "sum") for name in measured if name not in cost}
    types = {**cost.types, **missing}
    if "time" in measured:
        types["time"] = replace(types["time"], adds="elapsed")
    return Cost(types), budget


def measured_types(resources: Resources, spec: dict[str, Any], cost: Cost | None) -> list[str]:
    """Return the measured types: the configured, and bytes if the first training limits them and they have no price.

    ``cost`` has the types of earlier trainings.
    """
    first = Budget.of(spec["budget"] or resources.budget) if cost is None else cost
    more = {"bytes"} & set(first) - {*resources.measured, *Cost.of(resources.cost)}
    return [*resources.measured, *more]


def _station_waits(seen: Round) -> dict[int, float]:
    """How long each station waited for the slowest of its terminals."""
    answers = {b: a.round for b, a in seen.answers.items() if a.WhichOneof("body") == "round"}
    return {b: max((e.wait_seconds for e in r.efforts), default=0.0) for b, r in answers.items()}


def _mix(old: float, new: float) -> float:
    """Running mean; a slower round counts at once."""
    return max(new, 0.0) if new > old else (1.0 - MEMORY) * old + MEMORY * max(new, 0.0)


def _moved(old: Cost, new: Cost, names: tuple[str, ...]) -> bool:
    """Whether a measured price has moved enough to plan anew."""
    for name in names:
        for part in ("terminal_step", "station_round", "cloud_round", "terminal_byte_up", "station_byte_up"):
            a, b = np.asarray(getattr(old[name], part)), np.asarray(getattr(new[name], part))
            if a.shape != b.shape or np.any(np.abs(a - b) > WORTH_TELLING * np.maximum(a, b)):
                return True
    return False
