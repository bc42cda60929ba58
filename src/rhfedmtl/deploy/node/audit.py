"""The audit trail of a node: who did what, and when. Each line is a JSON object with a hash over all earlier lines.

Cloud and stations write it through `Log`; ``network audit`` reads and verifies it. A changed, removed or inserted line
breaks the chain of hashes from there on. This does not stop an attacker who can write the file and makes a new chain.
Therefore a reader remembers the hash of the last line it saw, and `check_seen` refuses a chain without that line.
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
LONGEST_ENTRY = 2000
"""Characters of a fact at most, so the last line always fits into the `_TAIL` bytes that `_end` reads."""
_TAIL = 1 << 16


@dataclass(frozen=True)
class AuditTrail:
    """An append-only file; with ``force``, `add` returns only after the line is on disk."""

    path: Path
    force: bool = True

    def add(self, event: str, actor: str, **facts: Any) -> None:
        """Append an event. Several processes may append at the same time."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            end, last = _end(file)
            entry = {"number": last.get("number", 0) + 1, "time": _now(), "who": actor, "event": event, **_short(facts)}
            line = json.dumps(entry | {HASH: _hash(last.get(HASH, ""), entry)}) + "\n"
            failpoint("audit", "before")
            try:
                os.ftruncate(file, end)  # remove half a line of a killed process, which nothing depends on
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
        """Return complete lines from byte ``start`` on, about ``size`` bytes; empty at the end of the file."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(start)
            lines = file.read(size)
            lines += file.readline() if lines and not lines.endswith(b"\n") else b""
        return lines[: lines.rfind(b"\n") + 1]


def verified(lines: Iterable[bytes | str]) -> list[dict[str, Any]]:
    """Return the entries of a trail; raise `DataError` with the first line that breaks the chain."""
    entries: list[dict[str, Any]] = []
    chain = ""
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            chain = _hash(chain, {name: value for name, value in entry.items() if name != HASH})
            intact = entry["number"] == number and entry[HASH] == chain
        except (ValueError, KeyError, TypeError, AttributeError):
            intact = False
        if not intact:
            raise DataError(
                f"the audit trail is broken at line {number}: it was changed, or lines before it were removed; "
                f"the lines before line {number} are unchanged"
            )
        entries.append(entry)
    return entries


def check_seen(entries: list[dict[str, Any]], path: Path) -> None:
    """Refuse a chain without the last line that was read here before, then remember its new last line in ``path``."""
    if path.exists():
        number, digest = json.loads(path.read_text())
        if number > len(entries) or (number and entries[number - 1][HASH] != digest):
            raise DataError(
                f"the audit trail has {len(entries)} lines, and line {number} is not the line that was read here "
                f"before: the trail was cut or replaced. To accept the present trail, remove {path}"
            )
    path.write_text(json.dumps([len(entries), entries[-1][HASH] if entries else ""]))


def local_user() -> str:
    """Return the user who gives a command on this machine."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _hash(before: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts as JSON values, with long values cut."""
    plain = {name: json.loads(json.dumps(value, default=str)) for name, value in facts.items()}
    return {
        name: value if len(str(value)) <= LONGEST_ENTRY else f"{str(value)[:LONGEST_ENTRY]} …"
        for name, value in plain.items()
    }


def _end(file: int) -> tuple[int, dict[str, Any]]:
    """Return the end of the last complete line, and its number and hash; empty if it cannot be read."""
    size = os.fstat(file).st_size
    start = max(0, size - _TAIL)
    tail = os.pread(file, size - start, start)
    lines = tail[: tail.rfind(b"\n") + 1]
    if not lines:
        return start, {}
    try:
        last: dict[str, Any] = json.loads(lines.splitlines()[-1])
        return start + len(lines), {"number": int(last["number"]), HASH: str(last[HASH])}
    except (ValueError, KeyError, TypeError):
        # A damaged trail goes on; `verified` names the line where it breaks.
        return start + len(lines), {}
