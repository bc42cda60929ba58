"""Files that are whole or not there: what a node must remember, with a checksum, and the journal of the cloud.

A file is replaced in one step, so that a process that is killed leaves the old one or the new one. Without ``fsync``
this holds for processes; after a crash of the whole machine the file is then not trusted, which the number of the
machine's last start shows.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from rhfedmtl.errors import ConfigError, DataError

MAGIC = b"rhfedmtl1\n"
_HEAD = struct.Struct("<10s36s32sQ")
_ENTRY = struct.Struct("<4sI32sI")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class CorruptError(DataError):
    """A file that a node wrote cannot be what it wrote: nothing in it is used."""


def boot() -> bytes:
    """What changes whenever the machine starts; empty where the system does not tell."""
    try:
        return _BOOT.read_bytes().strip()[:36]
    except OSError:
        return b""


class Lock:
    """Holds a state folder for one process; a second one is refused instead of spoiling the first one's state."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(f"{folder} is in use: is this node running already?") from None

    def release(self) -> None:
        """Let the folder go."""
        os.close(self._file)


class StateFile:
    """One file, written whole."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path = path
        self.fsync = fsync or not boot()
        self._draft = path.with_name(f".{path.name}.draft")
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, payload: bytes, *, fsync: bool | None = None) -> None:
        """Replace the file; with ``fsync`` it also survives a crash of the machine."""
        sync = self.fsync if fsync is None else fsync
        head = _HEAD.pack(MAGIC, b"" if sync else boot(), hashlib.sha256(payload).digest(), len(payload))
        file = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(file, head + payload)
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
        self._draft.replace(self.path)
        if sync:
            _sync_folder(self.path.parent)

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
        started = started.rstrip(b"\0")
        if started and started != boot():
            raise CorruptError(f"{self.path} was not forced to disk before the machine went down: it may be old")
        return payload

    def set_aside(self) -> Path:
        """Move a file that cannot be used out of the way; it is kept for whoever wants to look at it."""
        for i in range(1000):
            target = self.path.with_name(f"{self.path.name}.damaged{i}")
            if not target.exists():
                self.path.rename(target)
                return target
        raise DataError(f"{self.path.parent} is full of damaged files: remove some")


class Journal:
    """Entries one after the other, each with its checksum. The last may be torn, and then never happened."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path = path
        self.fsync = fsync
        path.parent.mkdir(parents=True, exist_ok=True)
        self._entries = list(self._read())
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def entries(self) -> list[bytes]:
        """What was there when the journal was opened; they are handed out once."""
        entries, self._entries = self._entries, []
        return entries

    def append(self, payload: bytes, *, force: bool = False) -> None:
        """Add an entry; ``force`` puts it, and all before it, on the disk where the journal does so at all."""
        _write_all(self._file, _entry_head(payload) + payload)
        if force and self.fsync:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Force everything to disk, and end."""
        os.fsync(self._file)
        os.close(self._file)

    def _read(self) -> Iterator[bytes]:
        data = self.path.read_bytes() if self.path.exists() else b""
        at = 0
        while at < len(data):
            start = at + _ENTRY.size
            if start > len(data):
                return self._cut(at)
            _, length, digest, check = _ENTRY.unpack_from(data, at)
            payload = data[start : start + length]
            sound = zlib.crc32(data[at : start - 4]) == check
            if sound and len(payload) < length:
                return self._cut(at)
            if not sound or hashlib.sha256(payload).digest() != digest:
                raise CorruptError(
                    f"{self.path} is damaged at byte {at}: what was spent cannot be known from it. Put back a copy of "
                    "the file, or begin anew with `rhfedmtl network reset`"
                )
            yield payload
            at = start + length
        return None

    def _cut(self, at: int) -> None:
        """Take off an entry that was being written when the process was killed: nobody was told of it."""
        with self.path.open("r+b") as file:
            file.truncate(at)


def _entry_head(payload: bytes) -> bytes:
    head = _ENTRY.pack(b"rhj1", len(payload), hashlib.sha256(payload).digest(), 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
