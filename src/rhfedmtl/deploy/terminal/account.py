"""What left a terminal, and what it may: the account of its owner, in a file that can be read without this library.

Each message is a line of ``account.csv`` before it goes out; lines of one day are added up when there are many. Bytes
are those of messages with their frames and TLS records, and of handshakes; TCP and IP add about 40 to each packet.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rhfedmtl.files import PRIVATE, write_at, write_whole

UP, DOWN = "up", "down"
LONGEST = 1 << 20
"""Bytes of the file from which on lines of one day are added up."""
CONTENTS = {
    "connection": "TLS handshake: who this is",
    "hello": "its number, the last round it knows",
    "moments": "number of rows; mean and spread of each feature",
    "labels": "sums over labels, of a regression",
    "scaled": "that rows are scaled",
    "centred": "that labels are centred",
    "join": "number of rows, and the share Xᵀα",
    "update": "the change XᵀΔα of some steps, how much they gained",
    "sums": "sums of losses and of dual terms over all rows, and a gradient",
    "tally": "how many test rows were taken for which class",
    "leave": "the share Xᵀα, to take it out of the sum",
    "declined": "that its site does not allow what was asked for, or that it keeps its part of a sum, and why",
    "key": "a public key for masks, and the proof that it is its own",
    "deal": "shares of the secrets of a sum under pads, for its neighbours",
    "masked": "an update or sums under masks: random to whoever has fewer than all",
    "opened": "shares that take the masks off a sum over several terminals",
    "rest": "that it stays away for a while",
    "withdraw": "that its owner takes it out of the network",
}
"""What the messages of a terminal say."""


@dataclass(frozen=True)
class AccountLine:
    """Messages of one kind, one way, to or from one station, on one day: how many, and how many bytes."""

    first: str
    last: str
    way: str
    kind: str
    station: int
    messages: int
    bytes: int

    @property
    def day(self) -> str:
        """The day, as in 2026-11-16 (UTC)."""
        return self.first[:10]


class Account:
    """The account of one terminal. ``budget`` bytes (0: any number) may go both ways in ``days`` days (0: ever)."""

    def __init__(self, path: Path, budget: int = 0, days: int = 0, now: Callable[[], datetime] | None = None) -> None:
        self._path, self.budget, self.days = path, budget, days
        self._now = now or (lambda: datetime.now(UTC))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._by_day: dict[str, int] = {}
        for line in read(path):
            self._by_day[line.day] = self._by_day.get(line.day, 0) + line.bytes

    def note(self, way: str, kind: str, station: int, n_bytes: int) -> None:
        """Write a message down, wholly; where that fails, nothing of it is in the file, and it must not go out."""
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        line = AccountLine(stamp, stamp, way, kind, station, 1, n_bytes)
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            row = (b"" if end else _row(each.name for each in fields(AccountLine))) + _row(astuple(line))
            try:
                write_at(file.fileno(), row, end)
            except OSError:
                file.truncate(end)
                raise
        self._by_day[line.day] = self._by_day.get(line.day, 0) + n_bytes
        if end + len(row) > LONGEST:
            # Add the lines of a day up, in one step.
            rows = [astuple(line) for line in added(read(self._path), by_day=True)]
            names = [column.name for column in fields(AccountLine)]
            write_whole(self._path, b"".join(map(_row, [names, *rows])), mode=PRIVATE)

    @property
    def used(self) -> int:
        """Bytes, both ways, in the days that the budget is for."""
        first = f"{self._now() - timedelta(days=self.days - 1):%Y-%m-%d}" if self.days else ""
        return sum(n_bytes for day, n_bytes in self._by_day.items() if day >= first)

    def allows(self, n_bytes: int) -> bool:
        """Whether the budget has room for so many bytes more."""
        return not self.budget or self.used + n_bytes <= self.budget

    @property
    def in_words(self) -> str:
        """How the budget stands."""
        period = f" in {self.days} days" if self.days else ""
        return f"{self.used:,} of {self.budget:,} bytes{period} are used" if self.budget else f"{self.used:,} bytes"


def read(path: Path) -> Iterator[AccountLine]:
    """The lines of an account; one that was being written when the power went is left out."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                numbers = {name: int(row[name]) for name in ("station", "messages", "bytes")}
                yield AccountLine(first=row["first"], last=row["last"], way=row["way"], kind=row["kind"], **numbers)
            except (KeyError, TypeError, ValueError):
                continue


def added(lines: Iterator[AccountLine], *, by_day: bool) -> list[AccountLine]:
    """Lines of one way and kind as one, of all days or of each; in the order in which they began."""
    found: dict[tuple[object, ...], AccountLine] = {}
    for line in lines:
        key = line.way, line.kind, line.station if by_day else -1, line.day if by_day else ""
        old = found.get(key, replace(line, messages=0, bytes=0))
        found[key] = replace(
            old,
            first=min(old.first, line.first),
            last=max(old.last, line.last),
            messages=old.messages + line.messages,
            bytes=old.bytes + line.bytes,
        )
    return sorted(found.values(), key=lambda line: (line.way != UP, line.first))


def _row(values: Iterable[object]) -> bytes:
    return (",".join(map(str, values)) + "\r\n").encode()
