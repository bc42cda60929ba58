"""Durable state of a node: `StateFile`, which is replaced as a unit, and `Journal`, to which the cloud appends.

All nodes use it. Every file carries checksums: a damaged file raises `CorruptError`, and nothing in it is used.

Theory of operation. A new version of a file replaces the old version in a single step. A process that is killed thus
leaves the old or the new version, never a mixture. A crash of the whole machine is different, because the file may
still be in the cache of the operating system:

- With ``fsync``, each write is forced to disk, and the state survives a crash of the machine.
- Without ``fsync``, the head of the file names the present start of the machine (the kernel's boot id). After the next
  start, the file may be old, and reading it raises `CorruptError`. The first write without ``fsync`` is forced to disk
  all the same, so no earlier, trusted version can reappear after a crash.

A torn last entry of a journal is cut off: it was being written when the process was killed, and no message that depends
on it had been sent. The head of the journal holds its committed length, so a journal that lost more than this entry is
refused.
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
"""Keep the latest so many damaged files for inspection."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class CorruptError(DataError):
    """A state file is damaged, or may be older than a crash of the machine. Nothing in it is used."""


class UnwrittenError(BusyError):
    """The disk is full. A node must not announce state that is not on disk, so it ends and is started again later."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Turn an `OSError` of the disk into `UnwrittenError`, as the link would take it for a broken connection."""
    try:
        yield
    except OSError as error:
        raise unwritten(error) from None


def unwritten(error: OSError) -> UnwrittenError:
    """Return the error that ends a node whose disk takes no more data."""
    problem = f"cannot write {error.filename or 'its state'}: {error.strerror or error}"
    return UnwrittenError(f"{problem}; make room: started again, it goes on where it was")


def refusal(error: Exception) -> str:
    """Return the reason why the cloud refuses a command. For an error of a file, name the file and the remedy."""
    if not isinstance(error, OSError):
        return str(error)
    file, reason = error.filename or "its state", error.strerror or str(error)
    return f"the cloud cannot use {file}: {reason}; mend that on the cloud's machine, and give the command again"


def boot() -> bytes:
    """Return the boot id, which changes with each start of the machine; empty if the system has no boot id."""
    try:
        return _BOOT.read_bytes().strip()[:36]
    except OSError:
        return b""


class StateFile:
    """A file with a checksum that is always replaced completely."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path = path
        self.fsync = fsync or not boot()
        self._marked = False  # True if the version on disk says that later versions are not forced to disk
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, payload: bytes, *, fsync: bool | None = None) -> None:
        """Replace the file. With ``fsync`` (default: as constructed), it also survives a crash of the machine."""
        lasting = self.fsync if fsync is None else fsync
        head = _HEAD.pack(MAGIC, b"" if lasting else boot(), hashlib.sha256(payload).digest(), len(payload))
        # Force the first unforced version too: after a crash, an older forced version would be taken for the latest.
        force = lasting or not self._marked
        self._marked = not lasting
        failpoint("save", self.path.name, "before")
        write_parts(self.path, [head, payload], force=force)
        failpoint("save", self.path.name, "after")

    def read(self) -> bytes | None:
        """Return the payload, or None if there is no file; raise `CorruptError` for a damaged or outdated file."""
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
        """Rename a file that cannot be used, and return its new path; keep the last `KEPT` such files."""
        number = time.time_ns()
        target = self.path.with_name(f"{self.path.name}.damaged-{number}")
        self.path.rename(target)
        for old in sorted(self.path.parent.glob(f"{self.path.name}.damaged-*"))[:-KEPT]:
            old.unlink()
        return target


class Journal:
    """A file of entries, each with a checksum; the cloud keeps its decisions in it.

    If the last entry is torn, it is removed on opening, and ``cut`` is the number of bytes removed. A journal that is
    shorter than its committed length is refused with `CorruptError`.
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
        """Bytes of the file."""
        return self._size

    def entries(self) -> list[bytes]:
        """Return the entries that the file had when it was opened. Later calls return an empty list, to free memory."""
        entries, self._entries = self._entries, []
        return entries

    def append(self, payload: bytes, *, force: bool = False) -> None:
        """Append an entry. With ``force`` and ``self.fsync``, put it and all earlier entries on disk."""
        data = _entry_head(payload) + payload
        try:
            write_at(self._file, data, self._size)
        except OSError:
            os.ftruncate(self._file, self._size)  # half an entry before the next would be damage
            raise
        self._size += len(data)
        failpoint("journal", "written")
        if force and self.fsync:
            os.fdatasync(self._file)
        if force or not self.fsync:  # the committed length must not exceed the entries on disk
            self._write_head()

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Replace all entries by ``payloads`` in a single step."""
        self._write_file(payloads)
        os.close(self._file)
        self._open()

    def close(self) -> None:
        """Force everything to disk, and close the file."""
        os.fsync(self._file)
        self._mark(b"")
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY)
        self._size = os.fstat(self._file).st_size
        self._mark(b"" if self.fsync else boot())

    def _mark(self, started: bytes) -> None:
        """Write to the head, and force to disk, the boot id ``started``; empty if every entry is forced to disk."""
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
        committed = self._check_head(data)
        at = _JOURNAL.size
        while at < len(data):
            start = at + _ENTRY.size
            if start > len(data):
                return self._cut(at, committed, len(data))
            _, length, digest, check = _ENTRY.unpack_from(data, at)
            payload = data[start : start + length]
            sound = zlib.crc32(data[at : start - 4]) == check
            if sound and len(payload) < length:
                return self._cut(at, committed, len(data))
            if not sound or hashlib.sha256(payload).digest() != digest:
                if _is_blank_after(data, at):
                    return self._cut(at, committed, len(data))
                raise self._damaged(f"is damaged at byte {at}")
            yield payload
            at = start + length
        return self._cut(at, committed, len(data))

    def _check_head(self, data: bytes) -> int:
        """Check the head and return the committed length."""
        head = data[: _JOURNAL.size]
        if len(head) < _JOURNAL.size or zlib.crc32(head[:-4]) != _JOURNAL.unpack(head)[3] or head[:10] != JOURNAL_MAGIC:
            raise self._damaged("is damaged at its beginning, or of another version")
        try:
            _check_start(data[10:46], self.path)
        except CorruptError:
            raise self._damaged("was not forced to disk before the machine went down") from None
        return int(_JOURNAL.unpack(head)[2])

    def _damaged(self, problem: str) -> CorruptError:
        return CorruptError(
            f"{self.path} {problem}: the amounts spent cannot be read from it. Put back a copy of the file, or start "
            "again with `rhfedmtl network reset`"
        )

    def _cut(self, at: int, committed: int, size: int) -> None:
        """Cut off an entry that was being written when the process was killed; refuse to cut below ``committed``."""
        if at < committed:
            raise self._damaged(f"was cut: it had {committed} bytes, and {at} can be read")
        if at < size:
            self.cut = size - at
            os.truncate(self.path, at)


def _is_blank_after(data: bytes, at: int) -> bool:
    """Return True if the file ends in unwritten blocks (zeros), which a machine crash leaves in the last entry."""
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
