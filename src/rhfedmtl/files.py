"""Atomic file writes, and locks on folders.

`replacing` and `write_whole` replace a file in a single step: a process that is killed leaves the old file or the new
file, never a part. Nodes, checkpoints and records all write through this module.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rhfedmtl.errors import ConfigError
from rhfedmtl.failpoints import failpoint

PRIVATE, PUBLIC_MODE = 0o600, 0o644
"""Modes of files for their owner only, and of files that all users may read."""


@contextlib.contextmanager
def replacing(path: Path, *, force: bool = False, mode: int = 0o666, single_writer: bool = False) -> Iterator[BinaryIO]:
    """Open a draft that replaces ``path`` at the end of the block; if the block fails, ``path`` does not change.

    With ``force``, the new file also survives a crash of the machine. Set ``single_writer`` if only a single process
    writes this path: all of its drafts then have the same name, and drafts of killed processes do not accumulate.
    """
    draft = draft_of(path) if single_writer else path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with os.fdopen(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w+b") as file:
            yield file
            file.flush()
            if force:
                os.fsync(file.fileno())
        failpoint("replace", path.name.rstrip("0123456789"))
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if force:
        with contextlib.suppress(OSError):  # not all systems can open a folder
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def draft_of(path: Path) -> Path:
    """Return the path of the draft that replaces ``path``, for a single writer."""
    return path.with_name(f".{path.name}.draft")


def write_whole(path: Path, content: str | bytes, *, force: bool = False, mode: int = 0o666) -> None:
    """Write this text or these bytes as the complete content of a file."""
    with replacing(path, force=force, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_parts(path: Path, parts: Iterable[bytes], *, force: bool = True) -> None:
    """Write many parts into a file of this process, which only its owner may read."""
    with replacing(path, force=force, mode=PRIVATE, single_writer=True) as file:
        file.writelines(parts)


def write_at(file: int, data: bytes, at: int) -> None:
    """Write all data at a position of an open file."""
    view = memoryview(data)
    while view:
        view = view[os.pwrite(file, view, at + len(data) - len(view)) :]


class Lock:
    """Lock of a folder for a single process; a second process is refused, because both would write the same files.

    The lock ends with the process, also after a crash. On a system or file system without locks, there is no
    protection.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = -1
        try:
            import fcntl
        except ImportError:
            return
        self._file = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"{folder} is in use: is it running already?") from None
        except OSError:
            return

    def release(self) -> None:
        """Release the folder."""
        if self._file >= 0:
            os.close(self._file)
