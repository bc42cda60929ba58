"""Find data files, and download them into a cache.

Loaders call `find` for files that the user already has, and `download` otherwise. A download resumes after a broken
connection, and is checked against its SHA-256 before it gets its final name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path

from rhfedmtl.errors import DataError

BLOCK = 1 << 20
TIMEOUT_S = 30.0


def cache_folder() -> Path:
    """Return ``RHFEDMTL_CACHE``, or the platform's cache folder."""
    chosen = os.environ.get("RHFEDMTL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("rhfedmtl"))


def find(names: Iterable[str]) -> Path | None:
    """Return the first of ``names`` that exists in ``RHFEDMTL_DATA`` (the user's own data folder) or in the cache."""
    own = os.environ.get("RHFEDMTL_DATA")
    folders = [Path(own).expanduser()] if own else []
    candidates = (folder / name for folder in [*folders, cache_folder()] for name in names)
    return next((path for path in candidates if path.exists()), None)


def existing(path: Path) -> Path:
    """Return ``path``, or raise an error if it does not exist."""
    if not path.exists():
        raise DataError(f"no such file or folder: {path}")
    return path


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download(url: str, name: str, digest: str, otherwise: str) -> Path:
    """Return file ``name`` in the cache; download it from ``url`` unless the file is there with the right SHA-256.

    A broken connection leaves ``name.part``, and the next call continues from it. ``otherwise`` ends the error message:
    it tells the user what to do without a network.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        if not (file.exists() and sha256(file) == digest):
            part = _fetched(url, folder / f"{name}.part")
            if sha256(part) != digest:
                part.unlink()
                raise DataError(
                    f"{url} does not have the SHA-256 {digest} that is expected, and was thrown away: "
                    f"the file changed at its source or on the way; {otherwise}"
                )
            part.replace(file)
        return file
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, _CutOffError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"cannot download {url} ({reason}): {otherwise}") from error
    except OSError as error:
        raise DataError(
            f"cannot write to the cache {folder} ({error}): set RHFEDMTL_CACHE to another folder"
        ) from error


class _CutOffError(Exception):
    """The connection ended before the end of the file."""


def _fetched(url: str, part: Path) -> Path:
    """Download ``url`` into ``part``; continue from the bytes that ``part`` already has."""
    have = part.stat().st_size if part.exists() else 0
    try:
        _fetch(url, part, have)
    except urllib.error.HTTPError as error:
        # 416: the part is as long as the file, or the file has changed and is shorter; start again.
        if error.code != 416 or not have:
            raise
        _fetch(url, part, 0)
    return part


def _fetch(url: str, part: Path, have: int) -> None:
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        resumed = have > 0 and response.status == 206
        expected = response.headers.get("Content-Length")
        with part.open("ab" if resumed else "wb") as stream:
            shutil.copyfileobj(response, stream, BLOCK)
    got = part.stat().st_size - (have if resumed else 0)
    if expected is not None and got < int(expected):
        raise _CutOffError(f"the connection ended after {got} of {expected} bytes; call again to go on from there")
