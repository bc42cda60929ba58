"""What the site of a terminal lets it be asked for, whatever its station says, and how much of that is used up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.maths.gaussian_privacy import mu_of

DAY_S = 86_400
STATE = "terminal.state"
OWNERS_LINE = ": only the owner may allow less, by least_steps in terminal.toml"
COUNTED = ("day", "steps_of_day", "releases", "privacy")
"""What of a terminal's state is held against the rules of its owner."""


def forget_learned(file: StateFile) -> None:
    """Leave of a terminal's state where it belongs, and what is held against the rules of its owner: that has left."""
    try:
        old = wire.TerminalFile.FromString(file.read() or b"")
    except CorruptError:
        file.set_aside()
        return
    kept = wire.TerminalFile(network=old.network, place=old.place, **{name: getattr(old, name) for name in COUNTED})
    if old.HasField("noising"):
        kept.noising.CopyFrom(old.noising)
    if old.network:
        file.write(kept.SerializeToString(), fsync=True)


class SitePolicy:
    """Policy of one terminal, from its own configuration; ``used`` is written down with its state."""

    def __init__(self, config: TerminalConfig, now: Callable[[], float] = time.time) -> None:
        self._config, self._now = config, now
        self.used: dict[str, Any] = dict.fromkeys(COUNTED, 0)
        self._most = mu_of(config.epsilon, config.delta) ** 2 if config.epsilon else math.inf

    def refuses_job(self, job: wire.Job, rows: int, channel: Channel, *, uniform: bool = False) -> str:
        """Why nothing of a job is done here; empty if it may be. ``uniform`` draws may leave rows out at any H."""
        if channel.summed < self._config.least_summed:
            over = f"over {channel.summed} terminals" if channel.summed else "in the clear"
            return f"sums {over}, where sums over {self._config.least_summed} terminals, masked, are allowed"
        allowed, asked, least = self._config.algorithms, job.least_steps or rows, self._config.least_steps or rows
        if allowed and job.algorithm not in allowed:
            return f"{job.algorithm}, where {', '.join(allowed)} is allowed"
        if uniform and not self._config.least_steps:
            return f"rows drawn with replacement, where each of {rows} must be visited{OWNERS_LINE}"
        return f"H from {asked}, where H from {least} is allowed{OWNERS_LINE}" if asked < least else ""

    def refuses(self, steps: int, rows: int, price: float = math.inf) -> str:
        """Why an order of so many steps, whose update tells so much, is not taken now; empty if it is."""
        config, taken, sent = self._config, self.steps_of_today, self.used["releases"]
        least = config.least_steps or rows
        if not least <= steps <= config.most_steps:
            return f"{steps:,} steps, where {least:,} to {config.most_steps:,} are allowed"
        if config.steps_per_day and taken + steps > config.steps_per_day:
            return f"{steps:,} steps after {taken:,} of this day, where {config.steps_per_day:,} are allowed"
        if config.most_updates and sent >= config.most_updates:
            return f"an update after {sent:,}, where {config.most_updates:,} are allowed"
        return self.refuses_telling(price)

    def refuses_telling(self, price: float) -> str:
        """Why nothing that costs so much of μ² may leave; empty if it may."""
        config, spent = self._config, self.used["privacy"]
        bound = f"epsilon={config.epsilon:g} at delta={config.delta:g}"
        if math.isinf(price) and config.epsilon:
            return f"what no noise hides, where {bound} is allowed"
        if spent + price <= self._most * (1.0 + 1e-9) or not config.epsilon:
            return ""
        return f"{price:.3g} of privacy after {spent:.3g}, where {bound} allows {self._most:.3g}"

    def note(self, steps: int, price: float = math.inf) -> None:
        """Count an order that was worked on."""
        taken, releases = self.steps_of_today + steps, self.used["releases"] + 1
        self.used |= {"day": self._today, "steps_of_day": taken, "releases": releases}
        self.note_told(price)

    def note_told(self, price: float) -> None:
        """Count what is about to leave."""
        self.used["privacy"] += price

    def spend_all(self) -> None:
        """Count all that the owner allows as told, where it is not known what was."""
        if self._config.epsilon:
            self.used["privacy"] = max(self.used["privacy"], self._most * (1.0 + 1e-8))

    @property
    def steps_of_today(self) -> int:
        """Steps so far on this day (UTC)."""
        return self.used["steps_of_day"] if self.used["day"] == self._today else 0

    @property
    def _today(self) -> int:
        return int(self._now() // DAY_S)
