"""Arrays that lie in files, and may be larger than the memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def map_of(array: Any) -> np.memmap[Any, Any] | None:
    """The memory map that an array is a part of, or None."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array


def room_like(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Room for rows like these: in memory, or, where they are mapped from a file, in a nameless file beside it.

    Such a file is gone with the array. Where the folder cannot be written to, it lies among the temporary files.
    """
    origin = map_of(array)
    if origin is None or origin.filename is None or not array.size:
        return np.empty_like(array, order="C", subok=False)
    with _nameless(Path(origin.filename).parent) as file:
        return np.memmap(file, array.dtype, "w+", shape=array.shape)


def _nameless(folder: Path) -> Any:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()
