"""Files that are whole or not there: what a node must remember, with a checksum, and the journal of the cloud.

A file is replaced in one step, so that a process that is killed leaves the old one or the new one. Without ``fsync``
this holds for processes; after a crash of the whole machine the file is then not trusted, which the number of the
machine's last start shows. That number is forced to disk before the first change that is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from rhfedmtl.errors import BusyError, DataError
from rhfedmtl.failpoints import failpoint
from rhfedmtl.files import write_at, write_parts

MAGIC, JOURNAL_MAGIC = b"rhfedmtl1\n", b"rhfedmtlk\n"
_HEAD = struct.Struct("<10s36s32sQ")
_JOURNAL = struct.Struct("<10s36sQI")
_ENTRY = struct.Struct("<4sI32sI")
_BLOCK = 512
KEPT = 10
"""Damaged files that are kept for whoever wants to look at them; older ones go."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class CorruptError(DataError):
    """A file that a node wrote cannot be what it wrote: nothing in it is used."""


class UnwrittenError(BusyError):
    """A disk is full: nobody may be told of what is not written down, so a node ends, and starts again later."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Say plainly what a disk does not take: among what can happen on a link it would look like one that broke."""
    try:
        yield
    except OSError as error:
        raise unwritten(error) from None


def unwritten(error: OSError) -> UnwrittenError:
    """Why a node does not go on."""
    what = f"cannot write {error.filename or 'its state'}: {error.strerror or error}"
    return UnwrittenError(f"{what}; make room: started again, it goes on where it was")


def refusal(error: Exception) -> str:
    """Say why a command is refused; an error of a file names the file and the remedy, not a number."""
    if not isinstance(error, OSError):
        return str(error)
    file, reason = error.filename or "its state", error.strerror or str(error)
    return f"the cloud cannot use {file}: {reason}; mend that on the cloud's machine, and give the command again"


def boot() -> bytes:
    """What changes whenever the machine starts; empty where the system does not tell."""
    try:
        return _BOOT.read_bytes().strip()[:36]
    except OSError:
        return b""


class StateFile:
    """One file, written whole."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path = path
        self.fsync = fsync or not boot()
        self._marked = False  # whether the disk knows that this file is not forced to it
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, payload: bytes, *, fsync: bool | None = None) -> None:
        """Replace the file; with ``fsync`` it also survives a crash of the machine."""
        lasting = self.fsync if fsync is None else fsync
        head = _HEAD.pack(MAGIC, b"" if lasting else boot(), hashlib.sha256(payload).digest(), len(payload))
        # The first that is not forced still is, so that no older one that was can be taken for the latest.
        force = lasting or not self._marked
        self._marked = not lasting
        failpoint("save", self.path.name, "before")
        write_parts(self.path, [head, payload], force=force)
        failpoint("save", self.path.name, "after")

    def read(self) -> bytes | None:
        """The payload; None where there is no file. What is damaged, or older than a crash, is refused."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) < _HEAD.size:
            raise CorruptError(f"{self.path} has {len(data)} bytes: too few for a state file")
        magic, started, digest, length = _HEAD.unpack_from(data)
        payload = data[_HEAD.size :]
        if magic != MAGIC or len(payload) != length or hashlib.sha256(payload).digest() != digest:
            raise CorruptError(f"{self.path} is damaged: its checksum does not fit")
        _check_start(started, self.path)
        return payload

    def set_aside(self) -> Path:
        """Move a file that cannot be used out of the way; the last few are kept for whoever wants to look at them."""
        number = time.time_ns()
        target = self.path.with_name(f"{self.path.name}.damaged-{number}")
        self.path.rename(target)
        for old in sorted(self.path.parent.glob(f"{self.path.name}.damaged-*"))[:-KEPT]:
            old.unlink()
        return target


class Journal:
    """Entries one after the other, each with its checksum. The last may be torn, and then never happened.

    The head says how long the journal was when an entry counted last: one that has lost more than what was being
    written is refused. ``cut`` is how many bytes of a torn entry were taken off.
    """

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path = path
        self.fsync = fsync or not boot()
        self.cut = 0
        self._started = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._entries = list(self._read())
        if not path.exists():
            self._write_file([])
        self._open()

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def entries(self) -> list[bytes]:
        """What was there when the journal was opened; they are handed out once."""
        entries, self._entries = self._entries, []
        return entries

    def append(self, payload: bytes, *, force: bool = False) -> None:
        """Add an entry; ``force`` puts it, and all before it, on the disk where the journal does so at all."""
        data = _entry_head(payload) + payload
        try:
            write_at(self._file, data, self._size)
        except OSError:
            os.ftruncate(self._file, self._size)  # half an entry in the middle would be damage
            raise
        self._size += len(data)
        failpoint("journal", "written")
        if force and self.fsync:
            os.fdatasync(self._file)
        if force or not self.fsync:  # never longer than what is on the disk
            self._write_head()

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Let these entries stand in place of all that there are, in one step."""
        self._write_file(payloads)
        os.close(self._file)
        self._open()

    def close(self) -> None:
        """Force everything to disk, and end."""
        os.fsync(self._file)
        self._mark(b"")
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY)
        self._size = os.fstat(self._file).st_size
        self._mark(b"" if self.fsync else boot())

    def _mark(self, started: bytes) -> None:
        """Say on the disk whether entries are forced to it, and if not, since which start of the machine."""
        self._started = started
        self._write_head()
        os.fsync(self._file)

    def _write_head(self) -> None:
        os.pwrite(self._file, _journal_head(self._started, self._size), 0)

    def _write_file(self, payloads: Iterable[bytes]) -> None:
        entries = (_entry_head(payload) + payload for payload in payloads)
        write_parts(self.path, chain([_journal_head(b"", 0)], entries))

    def _read(self) -> Iterator[bytes]:
        if not self.path.exists():
            return None
        data = self.path.read_bytes()
        known = self._check_head(data)
        at = _JOURNAL.size
        while at < len(data):
            start = at + _ENTRY.size
            if start > len(data):
                return self._cut(at, known, len(data))
            _, length, digest, check = _ENTRY.unpack_from(data, at)
            payload = data[start : start + length]
            sound = zlib.crc32(data[at : start - 4]) == check
            if sound and len(payload) < length:
                return self._cut(at, known, len(data))
            if not sound or hashlib.sha256(payload).digest() != digest:
                if _is_blank_after(data, at):
                    return self._cut(at, known, len(data))
                raise self._damaged(f"is damaged at byte {at}")
            yield payload
            at = start + length
        return self._cut(at, known, len(data))

    def _check_head(self, data: bytes) -> int:
        """How long the journal was at least."""
        head = data[: _JOURNAL.size]
        if len(head) < _JOURNAL.size or zlib.crc32(head[:-4]) != _JOURNAL.unpack(head)[3] or head[:10] != JOURNAL_MAGIC:
            raise self._damaged("is damaged at its beginning, or of another version")
        try:
            _check_start(data[10:46], self.path)
        except CorruptError:
            raise self._damaged("was not forced to disk before the machine went down") from None
        return int(_JOURNAL.unpack(head)[2])

    def _damaged(self, how: str) -> CorruptError:
        return CorruptError(
            f"{self.path} {how}: what was spent cannot be known from it. Put back a copy of the file, or begin anew "
            "with `rhfedmtl network reset`"
        )

    def _cut(self, at: int, known: int, size: int) -> None:
        """Take off an entry that was being written when the process was killed: nobody was told of it."""
        if at < known:
            raise self._damaged(f"was cut: it had {known} bytes, and {at} can be read")
        if at < size:
            self.cut = size - at
            os.truncate(self.path, at)


def _is_blank_after(data: bytes, at: int) -> bool:
    """Whether whole blocks at the end were never written, which a crash of the machine leaves of the last entry."""
    written = len(data.rstrip(b"\0"))
    blank = -(-max(written, at) // _BLOCK) * _BLOCK
    return len(data) - blank >= _BLOCK or (written <= at and len(data) > at)


def _check_start(started: bytes, path: Path) -> None:
    started = started.rstrip(b"\0")
    if started and started != boot():
        raise CorruptError(f"{path} was not forced to disk before the machine went down: it may be old")


def _journal_head(started: bytes, size: int) -> bytes:
    head = _JOURNAL.pack(JOURNAL_MAGIC, started, size, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def _entry_head(payload: bytes) -> bytes:
    head = _ENTRY.pack(b"rhj1", len(payload), hashlib.sha256(payload).digest(), 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))
