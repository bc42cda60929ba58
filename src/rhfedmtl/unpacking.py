"""Unpack files from other people with a limit, because a small file must not fill the memory.

A packed file may grow to `SMALL_FILE` bytes, or to `RATIO` times its size if that is more. A larger file is refused,
and its owner can unpack it first: a file without compression takes as much memory as its size shows.
"""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import DataError

SMALL_FILE = 1 << 26
"""Bytes that any file may unpack to: 64 MiB are harmless."""
RATIO = 20
"""Growth of larger files. Measured with gzip: decimals grow 3 times, codes 6 times, one-hot columns 74 times;
DEFLATE reaches 1,032. A byte of text can take 6 bytes of memory. Twice the value lets 10 MB take 2.4 GB of memory,
half of it refuses tables of repeated words."""
PIECE = 1 << 20
MAT_HEADER, MAT_COMPRESSED = 128, 15
"""Bytes before the elements of a MATLAB file, and the type of a compressed element."""


def max_bytes(path: Path) -> int:
    """Return the number of bytes that a packed file may unpack to."""
    return max(SMALL_FILE, RATIO * path.stat().st_size)


def check_growth(path: Path, size: float, remedy: str) -> None:
    """Refuse a packed file that unpacks to more bytes than its size allows."""
    if size > (limit := max_bytes(path)):
        raise DataError(
            f"{path} unpacks to more than {limit >> 20:,} MiB, far more than its {path.stat().st_size:,} bytes "
            f"explain: {remedy}"
        )


class _Limited(io.RawIOBase):
    """Bytes of a gzip file, with an error beyond the limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._packed = gzip.GzipFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._packed.seek(offset, whence)

    def tell(self) -> int:
        return self._packed.tell()

    def readinto(self, buffer: Any, /) -> int:
        count = self._packed.readinto(buffer)
        check_growth(self._path, self._packed.tell(), "unpack it first with gunzip, if you trust it")
        return count

    def close(self) -> None:
        self._packed.close()
        super().close()


def open_gzip(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a gzip file for reading, as bytes ("rb") or as text; reading beyond the limit raises an error."""
    stream = io.BufferedReader(_Limited(path))
    return stream if mode == "rb" else cast("IO[Any]", io.TextIOWrapper(stream, **options))


def check_zip(path: Path) -> None:
    """Refuse a zip archive whose parts are together too large."""
    with zipfile.ZipFile(path) as archive:
        check_parts(path, archive)


def check_parts(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse the parts of an archive in a file if they are together too large for the file."""
    size = sum(member.file_size for member in archive.infolist())
    check_growth(path, size, "unpack it first, if you trust it")


def check_mat(path: Path) -> None:
    """Refuse a MATLAB file (versions 5 to 7.2) whose compressed elements are together too large."""
    size = 0
    with path.open("rb") as file:
        order = "<" if file.read(MAT_HEADER)[-2:] == b"IM" else ">"
        while len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", tag)
            end = file.tell() + length
            if kind == MAT_COMPRESSED:
                unpacker = zlib.decompressobj()
                while piece := unpacker.unconsumed_tail or file.read(min(PIECE, end - file.tell())):
                    size += len(unpacker.decompress(piece, PIECE))
                    check_growth(path, size, "save it without compression (-v6 in MATLAB), if you trust it")
            file.seek(end)


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an ``.npz`` file, or those among ``names``; Python objects and huge arrays are refused."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = sum(member.file_size for member in members)
    check_growth(path, size, "save it with numpy.savez, which does not compress, if you trust it")
    with np.load(path, allow_pickle=False) as file:
        arrays = {}
        for name in file.files:
            if names is None or name in names:
                arrays[name] = array = file[name]
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{name} is not an array")
    return arrays


READING = (OSError, ValueError, EOFError, KeyError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors of a file of arrays that is damaged, or another kind of file."""


def why(error: BaseException) -> str:
    """Return why arrays cannot be read, without NumPy's advice to unpickle the file."""
    if "pickle" in str(error):
        return "it is damaged, or holds Python objects instead of numbers"
    return str(error) or type(error).__name__
