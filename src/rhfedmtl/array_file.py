"""A file of arrays and plain values with a checksum, for models and checkpoints.

The file is an ``.npz`` archive that `numpy.load` reads without pickle. It contains the arrays and ``header``, the bytes
of a JSON object with the kind of file, the version of its format, and a SHA-256 of everything else. `read` refuses a
file that is damaged, cut short, of another kind, or of a newer format. It never executes code from a file.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl import unpacking
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.files import write_whole

Array = npt.NDArray[Any]
HEADER = "header"


class Kind(NamedTuple):
    """A kind of file: its name, the current version of its format, and the arrays that it may contain."""

    name: str
    format: int
    arrays: Collection[str]


def write(path: Path, kind: Kind, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write header and arrays atomically: if the process is killed, the old file (or no file) remains."""
    sealed = {"magic": kind.name, "format": kind.format, **header}
    try:
        text = json.dumps({**sealed, "sha256": _digest(sealed, arrays)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a {kind.name} holds something that is not a plain value: {error}") from error
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **{HEADER: np.frombuffer(text.encode(), dtype=np.uint8)})  # type: ignore[arg-type]
    with writing(path):
        write_whole(path, buffer.getvalue())


def read(path: Path, kind: Kind) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header and arrays of a file; refuse a damaged file and other kinds of files."""
    try:
        # Parts must be uncompressed, so the arrays cannot be larger than the file.
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        names = {member.filename.removesuffix(".npy") for member in members}
        if HEADER not in names or not names <= {*kind.arrays, HEADER}:
            raise DataError(f"{path} is not a {kind.name}: it holds {', '.join(sorted(names)[:6]) or 'nothing'}")
        if any(member.compress_type != zipfile.ZIP_STORED or member.file_size > size for member in members):
            raise DataError(f"{path} is not a {kind.name}: its parts are compressed")
        arrays = unpacking.read_npz(path)
        header = json.loads(arrays.pop(HEADER).tobytes())
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"no {kind.name} {path}: there is no such file") from None
    except unpacking.READING as error:
        raise DataError(
            f"{path} is not a {kind.name}, or was damaged ({unpacking.why(error)}): save it again"
        ) from error
    if not isinstance(header, dict) or header.get("magic") != kind.name or not isinstance(header.get("format"), int):
        raise DataError(f"{path} is not a {kind.name}: its header is of another kind")
    if header["format"] > kind.format:
        raise DataError(
            f"{path} has format {header['format']}, this version reads up to {kind.format}: install a newer rhfedmtl"
        )
    if header.pop("sha256", None) != _digest(header, arrays):
        raise DataError(f"{path} was damaged or changed after it was written (checksum): save it again")
    return header, arrays


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a message that says why the file cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _digest(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256 over the header, and over name, type, shape and bytes of every array."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
