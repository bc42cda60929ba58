"""Reproduce the paper's table and figures, and further studies: run named specifications and compare printed values.

The specifications are the TOML files of the folder ``experiments`` in the repository, which the wheel contains. The
command ``rhfedmtl reproduce`` calls `reproduce` and prints `summaries`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rhfedmtl.data import cache
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.runs import records
from rhfedmtl.runs.sweep import Watch, Workers
from rhfedmtl.studies import cost_figure
from rhfedmtl.studies import spec as specs
from rhfedmtl.studies.planned import PlannedStudy, run_all
from rhfedmtl.studies.study import StudyResult

GROUPS = {"all": "paper", "beyond": "beyond", "baselines": "baselines"}
"""Names of groups of studies, and the folders of their specifications."""
FILES = {"har": "har.npz", "landmine": "landmine.npz", "landmine-authors": "small.mat"}
"""Names of data files in a folder with several data sets."""


def folder() -> Path:
    """Return the folder of the specifications: in the installed package, or in the repository."""
    file = Path(__file__).resolve()
    for place in (file.parents[1] / "specs", file.parents[3] / "experiments"):
        if (place / "paper").is_dir():
            return place
    raise ConfigError("the specifications of the paper are not installed; install rhfedmtl again")


def names(group: str) -> list[str]:
    """Return the names of a group, with the paper's table first and the authors' protocol last."""
    studies = sorted(path.stem for path in (folder() / group).glob("*.toml"))
    if group == "paper":
        order = ("table", "fig", "authors")
        by_kind = [[name for name in [*studies, cost_figure.FIGURE_NAME] if name.startswith(kind)] for kind in order]
        studies = [name for kind in by_kind for name in sorted(kind)]
    return studies


def titles(group: str) -> dict[str, str]:
    """Return the titles of a group, by name."""
    texts = {}
    for name in names(group):
        path = folder() / group / f"{name}.toml"
        texts[name] = tomllib.loads(path.read_text(encoding="utf-8"))["title"] if path.exists() else cost_figure.TITLE
    return texts


def expand(requested: Sequence[str]) -> list[str]:
    """Return the studies for the requested names of studies or groups."""
    groups = {word: names(group) for word, group in GROUPS.items()}
    choices = [name for group, members in groups.items() for name in (group, *members)]
    for name in requested:
        if name not in choices:
            hint = nearest(name, choices)
            raise ConfigError(
                f"nothing called {name!r} to reproduce: choose from {', '.join(choices)}, published{hint}"
            )
    return list(dict.fromkeys(study for name in requested for study in groups.get(name, [name])))


@dataclass(frozen=True)
class Reproduced:
    """Finished studies, and the reason for each omitted study."""

    studies: list[StudyResult]
    theory: bool
    left_out: dict[str, str]


def reproduce(
    requested: Sequence[str],
    out: Path,
    *,
    path: Path | None = None,
    seeds: int | None = None,
    first_seed: int = 0,
    workers: Workers = None,
    watch: Watch | None = None,
    command: str = "",
) -> Reproduced:
    """Run the requested studies, and write tables and records into ``out``.

    ``path`` is the file of the data set, or a folder with several. A study without its data is left out, with the
    reason, unless the user requested it by name.
    """
    names_to_run, left_out = expand(requested), {}
    studies = []
    for name in names_to_run:
        if name == cost_figure.FIGURE_NAME:
            continue
        try:
            studies.append(_study(name, path, seeds, first_seed))
        except DataMissingError as error:
            if name in requested:
                raise
            left_out[name] = str(error)
    results = run_all(studies, out, workers=workers, watch=watch, command=command) if studies else []
    if cost_figure.FIGURE_NAME in names_to_run:
        cost_figure.save(out)
    runs = sorted((out / "runs").glob("*.json"))
    newest = max((path.stat().st_mtime_ns for path in runs), default=0)
    written = [path.stat().st_mtime_ns for path in out.glob("rounds.*")]
    if runs and max(written, default=0) < newest:
        records.save_rounds(out, (records.load(path) for path in runs))
    return Reproduced(results, cost_figure.FIGURE_NAME in names_to_run, left_out)


class DataMissingError(ConfigError):
    """A specification needs data that is missing."""


def _study(name: str, path: Path | None, seeds: int | None, first_seed: int) -> PlannedStudy:
    file = next(folder().glob(f"*/{name}.toml"))
    data = tomllib.loads(file.read_text())["data"]
    place = _file(data["name"], FILES.get(data["name"], data.get("path")), path)
    changes = {} if place is None else {"data.path": str(place)}
    return specs.read(file, changes=changes, seeds=seeds, first_seed=first_seed)


def _file(data: str, name: str | None, path: Path | None) -> Path | None:
    """Return the file of a data set, given or next to the given file; None if the loader finds it without a path."""
    if name is None:
        return None
    if path is None:
        path = cache.find([name])
        if path is None and data != "har":  # HAR can be downloaded
            raise DataMissingError(f"data {data}: give --path with {name}, or a folder that holds it")
        return path
    candidate = (path if path.is_dir() else path.parent) / name
    if path.is_file() and data == "landmine-authors":
        return candidate if path.name in FILES.values() else path
    if path.is_file() and data == "har":
        return path
    if candidate.is_file():
        return candidate
    if data != "har":
        raise DataMissingError(f"data {data}: {candidate} is not there")
    return path


@dataclass(frozen=True)
class StudySummary:
    """Path of a study's table, number of its runs, findings, and the λ2 of each method."""

    name: str
    table: str
    runs: int
    findings: list[str]
    lambda2: dict[str, str] = field(default_factory=dict)


def summaries(reproduced: Reproduced, out: Path) -> list[StudySummary]:
    """Return a summary of each study."""
    studies = [
        StudySummary(
            name,
            str(out / f"{name}.csv"),
            sum(result.ran().values()),
            [*result.study.findings, *(f"Not run: {reason}" for reason in result.refusals())],
            result.weight_ranges("lambda2"),
        )
        for result in reproduced.studies
        for name in [result.study.name]
    ]
    if reproduced.theory:
        lines = cost_figure.findings(cost_figure.load(out) or [])
        studies.append(StudySummary(cost_figure.FIGURE_NAME, str(out / "fig-cost.csv"), 0, lines))
    return studies
