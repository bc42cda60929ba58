"""Arrays in memory-mapped files, for data that is larger than the memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def map_of(array: Any) -> np.memmap[Any, Any] | None:
    """Return the memory map that an array is a view of, or None if it lies in memory."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array


def buffer_like(array: npt.NDArray[Any], columns: int | None = None) -> npt.NDArray[Any]:
    """Return an uninitialised array like ``array``: in memory, or in an unnamed file if ``array`` is memory-mapped.

    It has ``columns`` columns if they are given.

    The file lies in the folder of the mapped file, or among the temporary files if that folder is read-only. It
    disappears together with the array.
    """
    mapped = map_of(array)
    shape = array.shape if columns is None else (*array.shape[:-1], columns)
    if mapped is None or mapped.filename is None or not array.size:
        return np.empty(shape, array.dtype)
    with _unnamed_file(Path(mapped.filename).parent) as file:
        return np.memmap(file, array.dtype, "w+", shape=shape)


def _unnamed_file(folder: Path) -> Any:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()
