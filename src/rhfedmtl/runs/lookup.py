"""Find records of runs under a folder, from ``train`` and from sweeps.

The ``runs`` commands, the report and the dashboard use it. `find` only lists files; `load`, `pick` and `readable` read
them.
"""

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
    """Return the files of records under a folder, by the name of the run's folder or the run's key in a sweep.

    With ``under_way``, return the progress files of running runs and sweeps too.
    """
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: make a run first (rhfedmtl train), or name another with --folder")
    running: dict[str, Path] = {}
    runs: dict[str, Path] = {}
    sweep_runs: dict[str, Path] = {}
    for text, folders, names in os.walk(folder):
        folders.sort()
        place = Path(text)
        if under_way and progress.PROGRESS_FILE in names:
            running[place.name] = place / progress.PROGRESS_FILE
        if under_way and progress.SWEEP in names:
            running[str(place)] = place / progress.SWEEP
        if RECORD in names:
            runs[place.name] = place / RECORD
        if place.name == "runs":
            files = sorted(name for name in names if name.endswith(".json") and name != RECORD)
            sweep_runs |= {name[:-5]: place / name for name in files}
    return {**running, **runs, **sweep_runs}


def readable(folder: Path) -> tuple[dict[str, Record], list[str]]:
    """Return the readable records under a folder, and an error message for each unreadable file."""
    readable_records: dict[str, Record] = {}
    errors: list[str] = []
    for name, path in find(folder).items():
        try:
            readable_records[name] = records.load(path)
        except ConfigError as error:
            errors.append(str(error))
    return readable_records, errors


def pick(folder: Path, name: str) -> Record:
    """Return the only record whose name starts with ``name``, or the progress of a running run.

    ``name`` may also be the path of a file, of a run's folder, or of a folder with runs, which means the latest run.
    """
    path = Path(name)
    latest = max(path.glob(f"*/{RECORD}"), key=lambda file: file.stat().st_mtime_ns, default=path)
    for file in (path, path / RECORD, path / progress.PROGRESS_FILE, latest):
        if file.is_file():
            return load(file)
    files = {run: file for run, file in find(folder, under_way=True).items() if file.name != progress.SWEEP}
    fitting = [name] if name in files else [run for run in files if run.startswith(name)]
    fitting = fitting or [run for run in files if name in run]
    if len(fitting) != 1:
        several = (
            f"{len(fitting)} runs fit: {', '.join(fitting[:4])}, …" if fitting else f"none of {len(files)} runs fits"
        )
        listing = "rhfedmtl runs list" + ("" if folder == Path("runs") else f" --folder {folder}")
        raise ConfigError(f"which run is {name!r} in {folder}? {several}; `{listing}` shows them")
    return load(files[fitting[0]])


def load(path: Path) -> Record:
    """Load a record from its file, or from a progress file."""
    return progress.load(path).record if path.name == progress.PROGRESS_FILE else records.load(path)


def differing(runs: Iterable[Record]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs, by their place in the configuration."""
    tables = [flat(plain(run.configuration)) for run in runs]
    places = list(dict.fromkeys(place for table in tables for place in table))
    values = {place: [table.get(place) for table in tables] for place in places}
    return {place: row for place, row in values.items() if any(value != row[0] for value in row)}


def flat(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their place, such as ``budget.energy``."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}": value}
    return values
