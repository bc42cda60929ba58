"""Write a run to a file, and read it, so that a run that was interrupted continues to the bit.

The loop calls `Keeper.keep`, and `train --resume` calls `read`. A draft is written, forced to disk and moved into its
place, so a kill never leaves half a checkpoint. The file ends with its SHA-256: a damaged or truncated file is refused.
Large arrays are written and mapped in pieces, and never copied into memory. Draws have an address (seed, round,
terminal), so the file holds no state of a random generator, only the secret key that a private run draws its noise
from. Only the owner can read the file, and a complete run removes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from rhfedmtl.engines.network import Later
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.files import PRIVATE, draft_of, replacing
from rhfedmtl.training import snapshot
from rhfedmtl.training.packing import Array, External, Packer, Unpacker

if TYPE_CHECKING:
    from rhfedmtl.training.run import Run

FORMAT = 7
SECONDS = 30.0
"""Seconds between checkpoints by default: a crash loses at most so much work."""
SHARE = 0.05
"""Largest share of the time for checkpoints: large runs write them less often."""
MAPPED = 1 << 24
NOISE_KEY = "noise key"
"""Name of the secret key among the notes; a private run draws its noise from it."""
_MAGIC = b"rhfedmtl checkpoint\n"
_LENGTH = struct.Struct("<Q")
_ALIGN = 64


class Keeper:
    """Puts a run away at ``path``, every so many ``seconds``; ``notes`` say how to build the run again."""

    def __init__(self, path: Path, notes: Mapping[str, Any] | None = None, seconds: float = SECONDS) -> None:
        self.path = path
        self.notes = dict(notes or {})
        self.seconds = seconds
        self._next = time.monotonic() + seconds

    @property
    def due(self) -> bool:
        """True if the next checkpoint is due."""
        return time.monotonic() >= self._next

    def keep(self, run: Run) -> None:
        """Write a checkpoint, which replaces the previous file."""
        started = time.monotonic()
        key = None if run.noise_key is None else run.noise_key.hex()
        write(self.path, {**self.notes, NOISE_KEY: key}, snapshot.take(run), {"ledger": run.ledger})
        ended = time.monotonic()
        self._next = ended + max(self.seconds, (ended - started) / SHARE)

    def discard(self) -> None:
        """Remove the checkpoint of a run that is complete."""
        discard(self.path)


class Checkpoint:
    """A checkpoint file: its notes are read at once, its state when a run takes it."""

    def __init__(self, path: Path, table: Mapping[str, Any], arrays: list[Array]) -> None:
        self.path = path
        self._table, self._arrays = table, arrays
        self.notes: dict[str, Any] = self._unpacked("notes", {})

    def state(self, external: External) -> dict[str, Any]:
        """Return the state, with the ``external`` objects in their places."""
        state: dict[str, Any] = self._unpacked("state", external)
        return state

    @property
    def noise_key(self) -> bytes | None:
        """Secret key of the noise, if the run is private."""
        key: str | None = self.notes.get(NOISE_KEY)
        return None if key is None else bytes.fromhex(key)

    def _unpacked(self, part: str, external: External) -> Any:
        try:
            return Unpacker(self._arrays, self._table["objects"], external).unpack(self._table[part])
        except (KeyError, IndexError, TypeError, ValueError, ImportError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.path} does not fit this version ({error!r}): start the run again") from error


def write(path: Path, notes: Mapping[str, Any], state: Mapping[str, Any], external: External | None = None) -> None:
    """Write notes and state; objects in ``external`` are not written."""
    packer = Packer(external)
    table = {"format": FORMAT, "notes": packer.pack(notes), "state": packer.pack(state), "objects": packer.objects}
    try:
        with replacing(path, force=True, mode=PRIVATE, single_writer=True) as file:
            _fill(file, table, packer.arrays)
    except OSError as error:
        raise ConfigError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; raise DataError if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            table, start = _table(file, path)
        arrays = [_array(path, start + offset, np.dtype(kind), tuple(shape)) for kind, shape, offset in table["arrays"]]
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint {path}: the run was not interrupted, or is complete") from None
    except (OSError, struct.error) as error:
        raise DataError(f"the checkpoint {path} cannot be read: {error}") from error
    return Checkpoint(path, table, arrays)


def discard(path: Path) -> None:
    """Remove a checkpoint, and the unfinished draft of a killed process."""
    path.unlink(missing_ok=True)
    draft_of(path).unlink(missing_ok=True)


def _fill(file: BinaryIO, table: Mapping[str, Any], arrays: list[Array | Later]) -> None:
    """Write magic, length of the table, the table, the arrays at aligned offsets, and the digest."""
    offsets = np.cumsum([0, *(_aligned(_size(array)) for array in arrays)]).tolist()
    places = [(_dtype(array).str, array.shape, offset) for array, offset in zip(arrays, offsets, strict=False)]
    text = json.dumps({**table, "arrays": places}, allow_nan=False, separators=(",", ":")).encode()
    start = _start(len(text))
    file.write(_MAGIC + _LENGTH.pack(len(text)) + text)
    file.truncate(start + offsets[-1])
    for array, offset in zip(arrays, offsets, strict=False):
        if isinstance(array, Later):
            file.flush()
            array.fill(np.memmap(file, np.float64, "r+", start + offset, array.shape))
        elif array.size:
            file.seek(start + offset)
            file.write(np.ascontiguousarray(array).data)
    file.flush()
    digest = _digest(file, file.seek(0, os.SEEK_END))
    file.seek(0, os.SEEK_END)
    file.write(digest)
    file.flush()


def _table(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Return the table of a complete file, and the offset of its arrays."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DataError(f"{path} is not a checkpoint of rhfedmtl")
    end = file.seek(0, os.SEEK_END) - hashlib.sha256().digest_size
    if end <= len(_MAGIC) + _LENGTH.size or _digest(file, end) != file.read():
        raise DataError(f"the checkpoint {path} is damaged (its checksum does not fit): start the run again")
    file.seek(len(_MAGIC))
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    table = json.loads(file.read(length))
    if table["format"] != FORMAT:
        raise DataError(
            f"{path} has format {table['format']}, this version reads {FORMAT}: use the version that wrote it"
        )
    return table, _start(length)


def _digest(file: BinaryIO, length: int) -> bytes:
    """SHA-256 of the first ``length`` bytes; the file position is then after them."""
    digest = hashlib.sha256()
    file.seek(0)
    while length and (block := file.read(min(length, 1 << 20))):
        digest.update(block)
        length -= len(block)
    return digest.digest()


def _array(path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of the file, in memory, or mapped if it is large."""
    count = int(np.prod(shape))
    if count * dtype.itemsize >= MAPPED:
        return np.memmap(path, dtype, "r", offset, shape)
    array = np.fromfile(path, dtype, count, offset=offset).reshape(shape)
    array.flags.writeable = False
    return array


def _start(length: int) -> int:
    return _aligned(len(_MAGIC) + _LENGTH.size + length)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _size(array: Array | Later) -> int:
    return int(np.prod(array.shape)) * _dtype(array).itemsize


def _dtype(array: Array | Later) -> np.dtype[Any]:
    return np.dtype(np.float64) if isinstance(array, Later) else array.dtype
