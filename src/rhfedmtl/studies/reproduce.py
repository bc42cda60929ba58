"""The paper's table and figures, and what goes beyond them: named specifications, run and put beside printed values.

The specifications are the TOML files of the folder ``experiments`` in the repository, which the wheel carries along.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rhfedmtl.data import cache
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.runs import records
from rhfedmtl.runs.sweep import Watch, Workers
from rhfedmtl.studies import cost_figure
from rhfedmtl.studies import spec as specs
from rhfedmtl.studies.planned import PlannedStudy, run_all
from rhfedmtl.studies.study import StudyResult

GROUPS = {"all": "paper", "beyond": "beyond", "baselines": "baselines"}
"""What groups of studies are called, and the folders of their specifications."""
PROTOCOLS = ("text", "authors")
FILES = {"har": "har.npz", "landmine": "landmine.npz", "landmine-authors": "small.mat"}
"""How files of data sets are called in a folder that holds several of them."""

AUTHORS: dict[str, Any] = {
    "data.name": "landmine-authors",
    "data.positive": None,
    "data.samples_per_task": None,
    "data.test_rest": None,
    "learning.lambda2": 1e-12,
    "learning.scale": "none",
    "metric": "accuracy",
    "last": 3,
    "notes": [
        "Protocol of the authors' code: 1,464 rows of Landmine, all fields joined and cut anew into tasks; the best of "
        "the last three rounds counts. 94 % of the labels are one class: the majority class is hard to beat here."
    ],
}
"""What the authors' public code does otherwise than the paper's text says."""


def folder() -> Path:
    """Where the specifications lie: in the installed package, or in the repository."""
    here = Path(__file__).resolve()
    for place in (here.parents[1] / "specs", here.parents[3] / "experiments"):
        if (place / "paper").is_dir():
            return place
    raise ConfigError("the specifications of the paper are not installed; install rhfedmtl again")


def names(group: str) -> list[str]:
    """Names of a group, the table of the paper first."""
    found = sorted(path.stem for path in (folder() / group).glob("*.toml"))
    if group == "paper":
        found = sorted([*found, cost_figure.NAME], key=lambda name: (name.startswith("fig"), name))
    return found


def titles(group: str) -> dict[str, str]:
    """Titles of a group, by name."""
    found = {}
    for name in names(group):
        path = folder() / group / f"{name}.toml"
        found[name] = tomllib.loads(path.read_text(encoding="utf-8"))["title"] if path.exists() else cost_figure.TITLE
    return found


def expand(asked: Sequence[str]) -> list[str]:
    """Names of what was asked for: of single studies, or of groups."""
    groups = {word: names(group) for word, group in GROUPS.items()}
    known = [each for word, found in groups.items() for each in (word, *found)]
    groups["table3"] = ["table3", "table3-tuned"]
    for name in asked:
        if name not in known:
            hint = nearest(name, known)
            raise ConfigError(f"nothing called {name!r} to reproduce: choose from {', '.join(known)}, published{hint}")
    return list(dict.fromkeys(each for name in asked for each in groups.get(name, [name])))


@dataclass(frozen=True)
class Reproduced:
    """What was run, and what had to be left out and why."""

    studies: list[StudyResult]
    theory: bool
    left_out: dict[str, str]


def reproduce(
    asked: Sequence[str],
    out: Path,
    *,
    path: Path | None = None,
    seeds: int | None = None,
    protocol: str = "text",
    workers: Workers = None,
    watch: Watch | None = None,
    command: str = "",
) -> Reproduced:
    """Run what was asked for, and write tables and records into ``out``.

    ``path`` is the file of the data set, or a folder that holds several. A specification whose data is not at hand is
    left out, with the reason; one of the paper, or that was asked for by its name, is refused.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"no protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    wanted, left_out = expand(asked), {}
    studies = []
    for name in wanted:
        if name == cost_figure.NAME:
            continue
        try:
            studies.append(_study(name, path, seeds, protocol))
        except DataMissingError as error:
            if name in asked or name in names("paper"):
                raise
            left_out[name] = str(error)
    found = run_all(studies, out, workers=workers, watch=watch, command=command) if studies else []
    if cost_figure.NAME in wanted:
        cost_figure.save(out)
    runs = sorted((out / "runs").glob("*.json"))
    newest = max((path.stat().st_mtime_ns for path in runs), default=0)
    made = [path.stat().st_mtime_ns for path in out.glob("rounds.*")]
    if runs and max(made, default=0) < newest:
        records.save_rounds(out, (records.load(path) for path in runs))
    return Reproduced(found, cost_figure.NAME in wanted, left_out)


class DataMissingError(ConfigError):
    """A specification needs data that is not at hand."""


def _study(name: str, path: Path | None, seeds: int | None, protocol: str) -> PlannedStudy:
    file = next(folder().glob(f"*/{name}.toml"))
    changes = dict(AUTHORS) if protocol == "authors" else {}
    data = tomllib.loads(file.read_text())["data"]
    asked = changes.get("data.name") or data["name"]
    if (place := _file(asked, FILES.get(asked, data.get("path")), path)) is not None:
        changes["data.path"] = str(place)
    return specs.read(file, changes=changes, seeds=seeds)


def _file(data: str, name: str | None, path: Path | None) -> Path | None:
    """File of a data set: the one that was given, or that of its name beside it; None where the loader knows."""
    if name is None:
        return None
    if path is None:
        path = cache.find([name])
        if path is None and data != "har":  # which can be downloaded
            raise DataMissingError(f"data {data}: give --path with {name}, or a folder that holds it")
        return path
    beside = (path if path.is_dir() else path.parent) / name
    if path.is_file() and data == "landmine-authors":
        return beside if path.name in FILES.values() else path
    if path.is_file() and data == "har":
        return path
    if beside.is_file():
        return beside
    if data != "har":
        raise DataMissingError(f"data {data}: {beside} is not there")
    return path


@dataclass(frozen=True)
class StudySummary:
    """Where the table of a study is, its number of runs, its findings, and the λ2 that each method used."""

    name: str
    table: str
    runs: int
    findings: list[str]
    lambda2: dict[str, str] = field(default_factory=dict)


def summaries(found: Reproduced, out: Path) -> list[StudySummary]:
    """What was reproduced, study by study."""
    studies = [
        StudySummary(
            name,
            str(out / f"{name}.csv"),
            sum(result.ran().values()),
            [*result.study.findings, *(f"Not run: {reason}" for reason in result.refusals())],
            result.weight_ranges("lambda2"),
        )
        for result in found.studies
        for name in [result.study.name]
    ]
    if found.theory:
        told = cost_figure.findings(cost_figure.load(out) or [])
        studies.append(StudySummary(cost_figure.NAME, str(out / "fig-cost.csv"), 0, told))
    return studies
