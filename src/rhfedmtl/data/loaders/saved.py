"""Save a federation in a folder of ``.npy`` files and a JSON file, and load it memory-mapped.

`rhfedmtl data split … --out FOLDER` calls `save`; the data set ``saved`` calls `load`. ``federation.json`` is written
last and moved into place, so `load` refuses a folder that is incomplete.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl import unpacking
from rhfedmtl.data.federation import ARRAYS, Federation, Origin
from rhfedmtl.data.mapped import map_of
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.errors import DataError
from rhfedmtl.files import replacing, write_whole

NAMES = ("task_names", "class_names", "feature_names", "terminal_names", "notes")
INDEX = "federation.json"
FORMAT = 2


def allocate(folder: Path | None, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array: in memory, or memory-mapped as ``folder/name.npy`` if there is a folder."""
    if folder is None or 0 in shape:
        return np.empty(shape, dtype=dtype)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.dtype(dtype), shape=shape)


def save(federation: Federation, folder: Path) -> None:
    """Write ``federation`` into ``folder``; arrays that are memory maps of files in this folder are only flushed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    stored = [name for name in ARRAYS if getattr(federation, name) is not None]
    for name in stored:
        array, file = getattr(federation, name), folder / f"{name}.npy"
        mapped = map_of(array)
        if mapped is not None and mapped.filename is not None and Path(mapped.filename) == file.resolve():
            mapped.flush()
            continue
        with replacing(file) as stream:
            np.save(stream, array, allow_pickle=False)
    index = {
        "format": FORMAT,
        "arrays": {name: list(getattr(federation, name).shape) for name in stored},
        "origin": asdict(federation.origin),
        "preparation": None if federation.preparation is None else federation.preparation.to_dict(),
        "terminals_drawn": federation.terminals_drawn,
        **{name: getattr(federation, name) for name in NAMES},
    }
    write_whole(folder / INDEX, json.dumps(index, indent=1))


def load(folder: Path | None) -> Federation:
    """Load a federation from ``folder`` as memory maps, which may be larger than the memory."""
    if folder is None:
        raise DataError("a saved federation needs --path FOLDER")
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds no {INDEX}: it is not a saved federation, or was never finished; "
            "write one with `rhfedmtl data split … --out FOLDER`"
        ) from error
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{folder / INDEX} cannot be read ({error}): write the federation again") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT or not set(index["arrays"]) <= set(ARRAYS):
        raise DataError(f"{folder / INDEX} is not of format {FORMAT}: write the federation again with this version")
    arrays: dict[str, Any] = {}
    for name, shape in index["arrays"].items():
        file = folder / f"{name}.npy"
        try:
            arrays[name] = np.load(file, mmap_mode=None if 0 in shape else "r", allow_pickle=False)
        except unpacking.READING as error:
            raise DataError(f"{file} cannot be read ({unpacking.why(error)}): write the federation again") from error
        if list(arrays[name].shape) != shape:
            raise DataError(f"{file} has shape {arrays[name].shape}, {INDEX} says {tuple(shape)}: write it again")
    names: dict[str, Any] = {name: tuple(index[name]) for name in NAMES}
    fields = index["preparation"]
    preparation = None if fields is None else Preparation.from_dict(fields)
    origin, drawn = Origin(**index["origin"]), bool(index.get("terminals_drawn", False))
    return Federation(**arrays, **names, origin=origin, preparation=preparation, terminals_drawn=drawn)
