"""The owner's rules for a terminal, and the amounts used so far: steps per day, updates, privacy.

`Disclosure` and `TerminalMemory` use `SitePolicy`. It checks each request of the station against the configuration of
the terminal (`TerminalConfig`), which the station cannot change. The amounts are saved with the state of the terminal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.features.registry import NO_MAP
from rhfedmtl.maths.gaussian_privacy import mu_of

DAY_S = 86_400
STATE = "terminal.state"
OWNERS_LINE = ": only the owner may allow less, by least_steps in terminal.toml"
COUNTED = ("day", "steps_of_day", "releases", "privacy")
"""Fields of a terminal's state that count against the rules of its owner."""


def forget_learned(file: StateFile) -> None:
    """Delete the training state of a terminal. Keep its place and the amounts used: those messages have left."""
    try:
        old = wire.TerminalFile.FromString(file.read() or b"")
    except CorruptError:
        file.set_aside()
        return
    amounts = {name: getattr(old, name) for name in COUNTED}
    remaining = wire.TerminalFile(network=old.network, place=old.place, **amounts)
    if old.HasField("noising"):
        remaining.noising.CopyFrom(old.noising)
    if old.network:
        file.write(remaining.SerializeToString(), fsync=True)


class SitePolicy:
    """Rules of a terminal. ``used`` holds the amounts so far; `TerminalMemory` saves and restores them."""

    def __init__(self, config: TerminalConfig, now: Callable[[], float] = time.time) -> None:
        self._config, self._now = config, now
        self.used: dict[str, Any] = dict.fromkeys(COUNTED, 0)
        self._max_privacy = mu_of(config.epsilon, config.delta) ** 2 if config.epsilon else math.inf

    def refuses_job(self, job: wire.Job, rows: int, channel: Channel, *, uniform: bool = False) -> str:
        """Return why the rules exclude a job, or an empty string. With ``uniform`` draws, any H may leave rows out."""
        if channel.summed < self._config.least_summed:
            over = f"over {channel.summed} terminals" if channel.summed else "in the clear"
            return f"sums {over}, where sums over {self._config.least_summed} terminals, masked, are allowed"
        allowed, requested, minimum = self._config.algorithms, job.least_steps or rows, self._config.least_steps or rows
        if allowed and job.algorithm not in allowed:
            return f"{job.algorithm}, where {', '.join(allowed)} is allowed"
        if uniform and not self._config.least_steps:
            return f"rows drawn with replacement, where each of {rows} must be visited{OWNERS_LINE}"
        return f"H from {requested}, where H from {minimum} is allowed{OWNERS_LINE}" if requested < minimum else ""

    def refuses_features(self, text: str) -> str:
        """Return why the rules exclude the feature maps of a job, or an empty string."""
        names = [part.partition("=")[0].strip() for part in text.split("+")]
        refused = [name for name in names if name != NO_MAP and name not in self._config.features]
        if not refused:
            return ""
        allowed = ", ".join(self._config.features) or "none"
        return (
            f"the feature map {refused[0]}, where {allowed} is allowed: only the owner may allow it, by features in "
            "terminal.toml"
        )

    def refuses(self, steps: int, rows: int, price: float = math.inf) -> str:
        """Return why the rules exclude an order of so many steps now, or an empty string; it costs ``price`` in μ²."""
        config, today, sent = self._config, self.steps_of_today, self.used["releases"]
        minimum = config.least_steps or rows
        if not minimum <= steps <= config.most_steps:
            return f"{steps:,} steps, where {minimum:,} to {config.most_steps:,} are allowed"
        if config.steps_per_day and today + steps > config.steps_per_day:
            return f"{steps:,} steps after {today:,} of this day, where {config.steps_per_day:,} are allowed"
        if config.most_updates and sent >= config.most_updates:
            return f"an update after {sent:,}, where {config.most_updates:,} are allowed"
        return self.refuses_cost(price)

    def refuses_cost(self, price: float) -> str:
        """Return why a message that costs ``price`` in μ² must not leave, or an empty string if it may."""
        config, spent = self._config, self.used["privacy"]
        bound = f"epsilon={config.epsilon:g} at delta={config.delta:g}"
        if math.isinf(price) and config.epsilon:
            return f"a message without noise, where {bound} is allowed"
        if spent + price <= self._max_privacy * (1.0 + 1e-9) or not config.epsilon:
            return ""
        return f"a privacy cost of {price:.3g} after {spent:.3g}, where {bound} allows {self._max_privacy:.3g}"

    def note(self, steps: int, price: float = math.inf) -> None:
        """Count the steps and the update of an order, and charge its privacy."""
        today, releases = self.steps_of_today + steps, self.used["releases"] + 1
        self.used |= {"day": self._today, "steps_of_day": today, "releases": releases}
        self.charge(price)

    def charge(self, price: float) -> None:
        """Charge a message that is about to leave."""
        self.used["privacy"] += price

    def spend_all(self) -> None:
        """Count the whole privacy bound as spent, because the true amount is unknown."""
        if self._config.epsilon:
            self.used["privacy"] = max(self.used["privacy"], self._max_privacy * (1.0 + 1e-8))

    @property
    def steps_of_today(self) -> int:
        """Steps so far today (UTC)."""
        return self.used["steps_of_day"] if self.used["day"] == self._today else 0

    @property
    def _today(self) -> int:
        return int(self._now() // DAY_S)
