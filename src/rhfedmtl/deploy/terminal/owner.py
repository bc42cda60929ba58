"""What the owner of a terminal wants, as files in its state folder: it sees them while it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rhfedmtl.errors import ConfigError
from rhfedmtl.files import PRIVATE, write_whole

ACCOUNT = "account.csv"
WISHES = ("paused", "withdraws", "withdrawn")


class Owner:
    """The wishes of one terminal's owner."""

    def __init__(self, state: Path) -> None:
        self._paused, self._withdraws, self._gone = (state / name for name in WISHES)

    @property
    def paused(self) -> bool:
        """Whether the terminal is to stay away for now."""
        return self._paused.exists()

    @property
    def withdraws(self) -> bool:
        """Whether it is to leave the network."""
        return self._withdraws.exists()

    @property
    def gone(self) -> str:
        """When it left because its owner wanted so; empty where it did not."""
        return self._gone.read_text().strip() if self._gone.exists() else ""

    def pause(self) -> None:
        """Let it stay away, from now on and over restarts."""
        self.check()
        _stamp(self._paused)

    def resume(self) -> None:
        """Let it come back."""
        self._paused.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Let it leave the network."""
        self.check()
        _stamp(self._withdraws)

    def note_gone(self) -> None:
        """Note that it has left, where its owner wanted so."""
        if self.withdraws:
            _stamp(self._gone)
            self._withdraws.unlink()

    def rejoin(self) -> None:
        """Let it take part again, after all: it has got new credentials."""
        for path in (self._paused, self._withdraws, self._gone):
            path.unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse to go on with a terminal that was withdrawn."""
        if self.gone:
            raise ConfigError(f"this terminal was withdrawn on {self.gone}: `join` with a new token takes it back")


def _stamp(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n", force=True, mode=PRIVATE)
