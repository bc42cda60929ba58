"""The account of a terminal: each message that left or came in, and the byte budget.

The file is CSV, so the owner can read it without this library.

`MeteredLink` writes each message to ``account.csv`` before the message leaves. When the file grows, the lines of a day
are added up. Bytes include frames, TLS records and handshakes; TCP and IP add about 40 bytes per packet.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rhfedmtl.files import PRIVATE, write_at, write_whole

UP, DOWN = "up", "down"
LONGEST_ACCOUNT = 1 << 20
"""Add up the lines of each day when the file exceeds so many bytes."""
CONTENTS = {
    "connection": "TLS handshake: the identity of this terminal",
    "hello": "the number of this terminal, and the last round it knows",
    "moments": "number of rows; mean and spread of each feature; for feature maps also of their columns, and "
    "counts of rows up to some values of each feature",
    "labels": "sums over the labels of a regression",
    "scaled": "confirmation that the rows are scaled",
    "centred": "confirmation that the labels are centred",
    "join": "number of rows, and the share Xᵀα",
    "update": "the change XᵀΔα from some steps, and their gains",
    "sums": "sums of losses and of dual terms over all rows, and a gradient",
    "tally": "counts of test rows by class and predicted class (regression: the sum of squared errors)",
    "leave": "the share Xᵀα, to take it out of the sum",
    "declined": "that its site does not allow a request, or that it withholds its part of a sum, and why",
    "key": "a public key for masks, and proof that the key belongs to this terminal",
    "deal": "shares of the secrets of a masked sum, encrypted for its neighbours",
    "masked": "an update or sums under masks: they look random to anyone who lacks some of the masked answers",
    "opened": "shares that remove the masks from a sum over several terminals",
    "rest": "that this terminal disconnects for a while",
    "withdraw": "that its owner withdraws it from the network",
}
"""Content of each kind of message from a terminal."""


@dataclass(frozen=True)
class AccountLine:
    """Number and bytes of messages with the same kind, direction (``way``), station and day."""

    first: str
    last: str
    way: str
    kind: str
    station: int
    messages: int
    bytes: int

    @property
    def day(self) -> str:
        """Day (UTC), such as 2026-11-16."""
        return self.first[:10]


class Account:
    """Account of a terminal, with a budget for bytes in both directions.

    ``budget`` bytes (0: no limit) may be used in ``days`` days (0: for ever).
    """

    def __init__(self, path: Path, budget: int = 0, days: int = 0, now: Callable[[], datetime] | None = None) -> None:
        self._path, self.budget, self.days = path, budget, days
        self._now = now or (lambda: datetime.now(UTC))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._by_day: dict[str, int] = {}
        for line in read(path):
            self._by_day[line.day] = self._by_day.get(line.day, 0) + line.bytes

    def note(self, direction: str, kind: str, station: int, n_bytes: int) -> None:
        """Write a message to the account. On an error, the file is unchanged, and the message must not leave."""
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        line = AccountLine(stamp, stamp, direction, kind, station, 1, n_bytes)
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            row = (b"" if end else _row(field.name for field in fields(AccountLine))) + _row(astuple(line))
            try:
                write_at(file.fileno(), row, end)
            except OSError:
                file.truncate(end)
                raise
        self._by_day[line.day] = self._by_day.get(line.day, 0) + n_bytes
        if end + len(row) > LONGEST_ACCOUNT:
            # Add up the lines of each day, and replace the file in a single step.
            rows = [astuple(line) for line in add_up(read(self._path), by_day=True)]
            names = [column.name for column in fields(AccountLine)]
            write_whole(self._path, b"".join(map(_row, [names, *rows])), mode=PRIVATE)

    @property
    def used(self) -> int:
        """Bytes in both directions in the last ``days`` days, or ever."""
        first = f"{self._now() - timedelta(days=self.days - 1):%Y-%m-%d}" if self.days else ""
        return sum(n_bytes for day, n_bytes in self._by_day.items() if day >= first)

    def allows(self, n_bytes: int) -> bool:
        """Return True if the budget allows so many more bytes."""
        return not self.budget or self.used + n_bytes <= self.budget

    @property
    def in_words(self) -> str:
        """State of the budget as text."""
        period = f" in {self.days} days" if self.days else ""
        return f"{self.used:,} of {self.budget:,} bytes{period} are used" if self.budget else f"{self.used:,} bytes"


def read(path: Path) -> Iterator[AccountLine]:
    """Iterate over the lines of an account; skip a line that a power failure cut."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                numbers = {name: int(row[name]) for name in ("station", "messages", "bytes")}
                yield AccountLine(first=row["first"], last=row["last"], way=row["way"], kind=row["kind"], **numbers)
            except (KeyError, TypeError, ValueError):
                continue


def add_up(lines: Iterator[AccountLine], *, by_day: bool) -> list[AccountLine]:
    """Add up lines with the same direction and kind (and with ``by_day``, station and day), ordered by start."""
    sums: dict[tuple[object, ...], AccountLine] = {}
    for line in lines:
        key = line.way, line.kind, line.station if by_day else -1, line.day if by_day else ""
        old = sums.get(key, replace(line, messages=0, bytes=0))
        sums[key] = replace(
            old,
            first=min(old.first, line.first),
            last=max(old.last, line.last),
            messages=old.messages + line.messages,
            bytes=old.bytes + line.bytes,
        )
    return sorted(sums.values(), key=lambda line: (line.way != UP, line.first))


def _row(values: Iterable[object]) -> bytes:
    return (",".join(map(str, values)) + "\r\n").encode()
