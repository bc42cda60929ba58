"""Files that are replaced in one step: who is killed leaves the old one or the new. Folders that one process holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rhfedmtl.errors import ConfigError
from rhfedmtl.failpoints import failpoint

PRIVATE, PUBLIC = 0o600, 0o644
"""Modes of files for their owner alone, and of files that everybody may read."""


@contextlib.contextmanager
def replacing(path: Path, *, force: bool = False, mode: int = 0o666, alone: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when the block ends; where it fails, nothing changes.

    With ``force`` it then survives a crash of the machine too. Who is the only one to write this path says so by
    ``alone``: its drafts share a name, so that those of killed processes do not pile up.
    """
    draft = draft_of(path) if alone else path.with_name(f".{path.name}.{os.getpid()}.draft")
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
        _sync_folder(path.parent)


def draft_of(path: Path) -> Path:
    """Return the path of the draft that replaces ``path``, if a single process writes there."""
    return path.with_name(f".{path.name}.draft")


def write_whole(path: Path, content: str | bytes, *, force: bool = False, mode: int = 0o666) -> None:
    """Let a file hold this text, or these bytes, and nothing else."""
    with replacing(path, force=force, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_parts(path: Path, parts: Iterable[bytes], *, force: bool = True) -> None:
    """The same for state of one process: many parts, for its owner alone."""
    with replacing(path, force=force, mode=PRIVATE, alone=True) as file:
        file.writelines(parts)


def write_at(file: int, data: bytes, at: int) -> None:
    """Write all of it at a place of an open file."""
    view = memoryview(data)
    while view:
        view = view[os.pwrite(file, view, at + len(data) - len(view)) :]


def _sync_folder(folder: Path) -> None:
    """Force a new name to disk, where folders can be opened."""
    with contextlib.suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


class Lock:
    """Holds a folder for one process; a second one is refused instead of spoiling what the first one writes there.

    It is free when the process ends, however that is. Where the system, or a file system, knows no locks, none is held.
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
        """Let the folder go."""
        if self._file >= 0:
            os.close(self._file)
