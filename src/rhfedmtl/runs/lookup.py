"""Finding records again: runs that ``train`` made, and those of sweeps, under one folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rhfedmtl.errors import ConfigError
from rhfedmtl.plain import plain
from rhfedmtl.runs import progress, records
from rhfedmtl.runs.records import RECORD, Record


def find(folder: Path, *, under_way: bool = False) -> dict[str, Path]:
    """Files of records under a folder by a short name: that of the run's folder, or the run's key in a sweep.

    Runs and sweeps that are ``under_way`` have files of progress, and are found where they are asked for.
    """
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: make a run first (rhfedmtl train), or name another with --folder")
    going: dict[str, Path] = {}
    made: dict[str, Path] = {}
    swept: dict[str, Path] = {}
    for text, folders, names in os.walk(folder):
        folders.sort()
        place = Path(text)
        if under_way and progress.NAME in names:
            going[place.name] = place / progress.NAME
        if under_way and progress.SWEEP in names:
            going[str(place)] = place / progress.SWEEP
        if RECORD in names:
            made[place.name] = place / RECORD
        if place.name == "runs":
            swept |= {name[:-5]: place / name for name in sorted(names) if name.endswith(".json") and name != RECORD}
    return {**going, **made, **swept}


def readable(folder: Path) -> tuple[dict[str, Record], list[str]]:
    """The records under a folder, and in a line each what is wrong with the files that are none."""
    known: dict[str, Record] = {}
    refused: list[str] = []
    for name, path in find(folder).items():
        try:
            known[name] = records.load(path)
        except ConfigError as error:
            refused.append(str(error))
    return known, refused


def pick(folder: Path, name: str) -> Record:
    """The one record whose name begins so; of a run that goes on, how far it came.

    ``name`` may also be a path: that of a file, of a run's folder, or of one that holds runs; then it is the latest.
    """
    path = Path(name)
    latest = max(path.glob(f"*/{RECORD}"), key=lambda found: found.stat().st_mtime_ns, default=path)
    for file in (path, path / RECORD, path / progress.NAME, latest):
        if file.is_file():
            return load(file)
    found = {known: file for known, file in find(folder, under_way=True).items() if file.name != progress.SWEEP}
    fitting = [name] if name in found else [known for known in found if known.startswith(name)]
    fitting = fitting or [known for known in found if name in known]
    if len(fitting) != 1:
        several = (
            f"{len(fitting)} runs fit: {', '.join(fitting[:4])}, …" if fitting else f"none of {len(found)} runs fits"
        )
        listing = "rhfedmtl runs list" + ("" if folder == Path("runs") else f" --folder {folder}")
        raise ConfigError(f"which run is {name!r} in {folder}? {several}; `{listing}` shows them")
    return load(found[fitting[0]])


def load(path: Path) -> Record:
    """A record from its file; or from that of its progress."""
    return progress.load(path).record if path.name == progress.NAME else records.load(path)


def differing(many: Iterable[Record]) -> dict[str, list[Any]]:
    """Settings by their place that are not the same in all runs."""
    tables = [flat(plain(each.configuration)) for each in many]
    places = list(dict.fromkeys(place for table in tables for place in table))
    values = {place: [table.get(place) for table in tables] for place in places}
    return {place: row for place, row in values.items() if any(value != row[0] for value in row)}


def flat(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Values of nested tables by their places, as in ``budget.energy``."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}": value}
    return found
