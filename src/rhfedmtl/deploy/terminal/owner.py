"""The owner's wishes for a terminal (pause, withdraw), as files in its state folder.

The commands of `rhfedmtl-terminal` write these files, and a running terminal checks them regularly.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rhfedmtl.errors import ConfigError
from rhfedmtl.files import PRIVATE, write_whole

ACCOUNT = "account.csv"
WISHES = ("paused", "withdraws", "withdrawn")


class Owner:
    """Wishes of the owner of a terminal."""

    def __init__(self, state: Path) -> None:
        self._paused, self._withdraws, self._withdrawn = (state / name for name in WISHES)

    @property
    def paused(self) -> bool:
        """True if the terminal must stay away for now."""
        return self._paused.exists()

    @property
    def withdraws(self) -> bool:
        """True if the terminal must leave the network."""
        return self._withdraws.exists()

    @property
    def withdrawn_on(self) -> str:
        """Time at which the terminal left on its owner's wish; empty if it did not."""
        return self._withdrawn.read_text().strip() if self._withdrawn.exists() else ""

    def pause(self) -> None:
        """Keep the terminal away from the network, also over restarts, until `resume`."""
        self.check()
        _stamp(self._paused)

    def resume(self) -> None:
        """End a pause."""
        self._paused.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Make the terminal leave the network."""
        self.check()
        _stamp(self._withdraws)

    def note_withdrawn(self) -> None:
        """Note that the terminal has left, if its owner wanted this."""
        if self.withdraws:
            _stamp(self._withdrawn)
            self._withdraws.unlink()

    def rejoin(self) -> None:
        """Clear all wishes, so a terminal with new credentials takes part again."""
        for path in (self._paused, self._withdraws, self._withdrawn):
            path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise `ConfigError` for a terminal that was withdrawn."""
        if time := self.withdrawn_on:
            raise ConfigError(f"this terminal was withdrawn on {time}: `join` with a new token takes it back")


def _stamp(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n", force=True, mode=PRIVATE)
