"""The audit trail of a node: who did what, and when. One JSON object a line, each with a hash over all before it.

A line that is changed, taken out or put in breaks the chain from there on. Who can write the file can make a new chain:
whoever looks keeps the hash of the last line that he saw, and a chain without it is refused.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rhfedmtl.errors import DataError
from rhfedmtl.failpoints import failpoint
from rhfedmtl.files import write_at

AUDIT = "audit.jsonl"
HASH = "hash"
LONGEST = 2000
"""Characters of a fact; a line is never longer than the part of the file that is read for it."""
_TAIL = 1 << 16


@dataclass(frozen=True)
class AuditTrail:
    """A file that only grows; ``force`` puts each line on the disk before it counts."""

    path: Path
    force: bool = True

    def add(self, event: str, who: str, **facts: Any) -> None:
        """Write down an event; other processes may do so at the same time."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            end, last = _end(file)
            entry = {"number": last.get("number", 0) + 1, "time": _now(), "who": who, "event": event, **_short(facts)}
            line = json.dumps(entry | {HASH: _hash(last.get(HASH, ""), entry)}) + "\n"
            failpoint("audit", "before")
            try:
                os.ftruncate(file, end)  # half a line of a process that was killed: nobody was told of it
                write_at(file, line.encode(), end)
            except OSError:
                os.ftruncate(file, end)
                raise
            failpoint("audit", "after")
            if self.force:
                os.fsync(file)
        finally:
            os.close(file)

    def part(self, start: int, size: int) -> bytes:
        """Whole lines from a byte on, about so many bytes; nothing at the end."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(start)
            found = file.read(size)
            found += file.readline() if found and not found.endswith(b"\n") else b""
        return found[: found.rfind(b"\n") + 1]


def verified(lines: Iterable[bytes | str]) -> list[dict[str, Any]]:
    """The entries of a trail, whose chain is whole; else the first that does not fit is named."""
    entries: list[dict[str, Any]] = []
    chain = ""
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            chain = _hash(chain, {name: value for name, value in entry.items() if name != HASH})
            whole = entry["number"] == number and entry[HASH] == chain
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise DataError(
                f"the audit trail is broken at line {number}: it was changed, or lines before it were taken out; what "
                f"stands before line {number} is as it was written"
            )
        entries.append(entry)
    return entries


def check_seen(entries: list[dict[str, Any]], path: Path) -> None:
    """Refuse a chain that does not hold the last line that was seen from here; then remember its last."""
    if path.exists():
        number, seen = json.loads(path.read_text())
        if number > len(entries) or (number and entries[number - 1][HASH] != seen):
            raise DataError(
                f"the audit trail has {len(entries)} lines, and line {number} is not the one that was seen from here: "
                f"it was cut, or written anew. To begin again with this one, remove {path}"
            )
    path.write_text(json.dumps([len(entries), entries[-1][HASH] if entries else ""]))


def local_user() -> str:
    """Who gives a command on this machine."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _hash(before: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as JSON has them, and long ones cut."""
    plain = {name: json.loads(json.dumps(value, default=str)) for name, value in facts.items()}
    return {name: value if len(str(value)) <= LONGEST else f"{str(value)[:LONGEST]} …" for name, value in plain.items()}


def _end(file: int) -> tuple[int, dict[str, Any]]:
    """Where the last whole line ends, and what it says."""
    size = os.fstat(file).st_size
    start = max(0, size - _TAIL)
    tail = os.pread(file, size - start, start)
    whole = tail[: tail.rfind(b"\n") + 1]
    if not whole:
        return start, {}
    try:
        last: dict[str, Any] = json.loads(whole.splitlines()[-1])
        return start + len(whole), {"number": int(last["number"]), HASH: str(last[HASH])}
    except (ValueError, KeyError, TypeError):
        # A trail that somebody spoiled goes on; whoever looks at it is told where it breaks.
        return start + len(whole), {}
