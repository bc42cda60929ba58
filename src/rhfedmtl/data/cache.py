"""Where data files lie, and how they get there: downloads that resume, are checked, and appear only when whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rhfedmtl.errors import DataError

BLOCK = 1 << 20
TIMEOUT_S = 30.0


def cache_folder() -> Path:
    """``RHFEDMTL_CACHE``, or the platform's folder for caches."""
    chosen = os.environ.get("RHFEDMTL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("rhfedmtl"))


def find(names: Iterable[str]) -> Path | None:
    """First of ``names`` in ``RHFEDMTL_DATA`` (a folder with data that the user already has) or in the cache."""
    own = os.environ.get("RHFEDMTL_DATA")
    folders = [Path(own).expanduser()] if own else []
    candidates = (folder / name for folder in [*folders, cache_folder()] for name in names)
    return next((path for path in candidates if path.exists()), None)


def existing(path: Path) -> Path:
    """Return ``path``, or say that it is not there."""
    if not path.exists():
        raise DataError(f"no such file or folder: {path}")
    return path


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download(url: str, name: str, digest: str, otherwise: str) -> Path:
    """File ``name`` in the cache, fetched from ``url`` unless it is there already with the right SHA-256.

    A broken connection leaves ``name.part``, from which the next call goes on. ``otherwise`` says what to do where
    there is no network.
    """
    import pooch

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(
            pooch.retrieve(url, f"sha256:{digest}", fname=name, path=folder, downloader=_Resuming(folder, name))
        )
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, _CutOffError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"cannot download {url} ({reason}): {otherwise}") from error
    except ValueError as error:
        raise DataError(
            f"{url} does not have the SHA-256 {digest} that is expected, and was thrown away: "
            f"the file changed at its source or on the way; {otherwise}"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot write to the cache {folder} ({error}): set RHFEDMTL_CACHE to another folder"
        ) from error


class _CutOffError(Exception):
    """The connection ended before the file did."""


class _Resuming:
    """A downloader for pooch that keeps what has arrived and asks only for what is missing (HTTP Range)."""

    def __init__(self, folder: Path, name: str) -> None:
        self.part = folder / f"{name}.part"

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Fetch ``url`` into ``output_file``, which pooch checks and moves into place."""
        have = self.part.stat().st_size if self.part.exists() else 0
        try:
            self._fetch(url, have)
        except urllib.error.HTTPError as error:
            # 416: the part is as long as the file, or longer than a file that changed; start anew.
            if error.code != 416 or not have:
                raise
            self._fetch(url, 0)
        shutil.move(self.part, output_file)

    def _fetch(self, url: str, have: int) -> None:
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            resumed = have > 0 and response.status == 206
            expected = response.headers.get("Content-Length")
            with self.part.open("ab" if resumed else "wb") as stream:
                shutil.copyfileobj(response, stream, BLOCK)
        got = self.part.stat().st_size - (have if resumed else 0)
        if expected is not None and got < int(expected):
            raise _CutOffError(f"the connection ended after {got} of {expected} bytes; call again to go on from there")
