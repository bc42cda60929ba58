"""The record of a run, as plain values and as a folder: configuration, versions, data, result, rounds and costs.

`recording` builds records, this module writes and reads them. Reports, tables and figures take all numbers from a
record and compute nothing twice. A new field of a dataclass needs a default, or a higher ``FORMAT``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError
from rhfedmtl.files import write_whole
from rhfedmtl.models.task_models import Extras, TaskModels
from rhfedmtl.plain import INLINE, plain, read
from rhfedmtl.resources.ledger_file import save_ledger
from rhfedmtl.roles.words import bounded, in_words
from rhfedmtl.selection.tuning import TuningRecord
from rhfedmtl.selection.weights import SelectionRecord
from rhfedmtl.training.result import Result

FORMAT = 2
RECORD = "run.json"
"""Name of the record in the folder of a run."""
ORIGIN = ("key", "command", "configuration", "versions")
"""Fields that a model file keeps of the run that it came from."""
Number = float | None
"""A number, or None for NaN and infinity, which JSON cannot express."""


@dataclass(frozen=True)
class Configuration:
    """The settings of a run, with prices and budgets in their parsed form."""

    algorithm: str
    request: Request
    options: Options
    cost: dict[str, dict[str, Any]]
    budget: dict[str, float]
    faults: str
    scale: str | None
    target_gap: float
    certify_every: int | str
    tune: str
    seed: int
    privacy: str = ""
    free_evaluation: bool = False
    noise_from_seed: bool = False


@dataclass(frozen=True)
class DataIdentity:
    """Name and fingerprint of the data of a run."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Summary:
    """Result of a run: ``metrics`` (means over tasks), values of the worst task, certificate, work and costs.

    ``primal_at_zero`` is the objective of zero models; records of earlier versions do not have it. ``privacy`` has the
    plan of a private run, and its ``certificate``: ``gap``, and the ``probability`` that the bound holds.
    """

    metrics: Annotated[dict[str, Number], INLINE]
    worst_task: dict[str, Number]
    primal: Number
    dual: Number
    gap: Number
    relative_gap: Number
    rounds: int
    cloud_rounds: int
    terminal_steps: int
    local_steps: list[int]
    stopped: str
    spent: dict[str, float]
    budget: dict[str, float]
    binding: str | None
    seconds: float
    primal_at_zero: Number = None
    privacy: dict[str, Any] | None = None
    rounds_by_solver: dict[str, int] = field(default_factory=dict)

    @property
    def certified(self) -> str:
        """The certificate in words."""
        if self.privacy is not None:
            return bounded(self.gap, self.primal_at_zero, self.privacy["certificate"]["probability"])
        return in_words(self.relative_gap, self.dual)


@dataclass(frozen=True)
class RoundTable:
    """Table of BS iterations, column by column: costs, H and number of answers by station, gap, and metrics by task.

    Gaps and metrics are None in rounds without a certificate.
    """

    round: list[int]
    cloud_round: list[int]
    spent: dict[str, list[float]]
    primal: list[Number]
    dual: list[Number]
    gap: list[Number]
    station_gap: list[list[Number] | None]
    local_steps: list[list[float]]
    ordered: list[list[int]]
    answered: list[list[int]]
    metrics: dict[str, list[list[Number] | None]]

    @property
    def relative_gap(self) -> list[Number]:
        """Gap of each round as a share of the larger of primal and dual, as in `Certificate.relative_gap`."""
        rounds = zip(self.gap, self.primal, self.dual, strict=True)
        return [
            None if gap is None or primal is None or dual is None else gap / (max(abs(primal), abs(dual)) or 1.0)
            for gap, primal, dual in rounds
        ]


@dataclass(frozen=True)
class BillLine:
    """Amount of a resource type that a tier used."""

    tier: str
    type: str
    amount: float


@dataclass(frozen=True)
class Record:
    """The saved facts about a run.

    ``result`` is None if the budget could not pay a round or the method ``diverged`` in a sweep; ``refused`` gives the
    reason. ``file`` is the digest of the data file that a sweep read. ``weights`` are the λ1 and λ2 of the run; a
    method that couples no tasks has no λ2.
    """

    key: str
    versions: dict[str, str]
    configuration: Configuration
    command: str
    data: DataIdentity
    tasks: list[str]
    result: Summary | None = None
    refused: str | None = None
    diverged: bool = False
    tuning: TuningRecord | None = None
    selection: SelectionRecord | None = None
    by_task: dict[str, list[Number]] = field(default_factory=dict)
    rounds: RoundTable | None = None
    bill: list[BillLine] = field(default_factory=list)
    relationship: list[list[float]] | None = None
    file: str | None = None
    weights: dict[str, float] = field(default_factory=dict)

    def weights_text(self) -> str:
        """λ1 and λ2 in a line; with the reason if they were chosen."""
        if self.selection is not None:
            return self.selection.text()
        return ", ".join(f"{name} {value:.3g}" for name, value in self.weights.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the record as written to its file, without empty optional fields."""
        table = {"format": FORMAT, **plain(self)}
        if self.file is None:
            del table["file"]
        if not self.diverged:
            del table["diverged"]
        for part, empty in ((table["configuration"], ""), (table["result"] or {}, None)):
            if part.get("privacy") == empty:
                part.pop("privacy", None)
        for name in ("free_evaluation", "noise_from_seed"):
            if not getattr(self.configuration, name):
                table["configuration"].pop(name)
        return table


def columns(rounds: Sequence[Any], spent: Iterable[str]) -> dict[str, Any]:
    """Return the columns that running and finished runs share: round, server iteration, certificate and costs."""
    names = ("round", "cloud_round", "primal", "dual", "gap")
    table: dict[str, Any] = {name: [getattr(item, name) for item in rounds] for name in names}
    return table | {"spent": {name: [item.spent[name] for item in rounds] for name in spent}}


def new_folder(root: Path, name: str) -> Path:
    """Make a new folder for a run, named by date, time and ``name``."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        folder = root / (f"{stamp}-{name}" if attempt == 0 else f"{stamp}-{name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot write to {root}: {error.strerror}; choose another folder with --out") from error
        return folder
    raise ConfigError(f"no free folder name like {stamp}-{name} in {root}")


def save(
    folder: Path,
    record: Record,
    federation: Federation,
    result: Result,
    extras: Extras | None = None,
) -> None:
    """Write run.json, the table of rounds, ledger.json and model.npz, with the extras of the models."""
    write_whole(folder / RECORD, json.dumps(record.to_dict(), allow_nan=False) + "\n")
    save_rounds(folder, [record])
    save_ledger(result.ledger, folder / "ledger.json")
    loss = record.configuration.options.chosen_loss(federation.kind)
    tuning, selection = record.tuning, record.selection
    chosen = {**(tuning.chosen if tuning else {}), **(selection.chosen if selection else {})}
    if result.private is not None:
        chosen |= {"lambda1": result.private.lambda1, "lambda2": result.private.lambda2}
    origin = plain({**{name: getattr(record, name) for name in ORIGIN}, **({"chosen": chosen} if chosen else {})})
    TaskModels.from_result(federation, result, loss, origin, extras).save(folder / "model.npz")


def save_rounds(folder: Path, runs: Iterable[Record]) -> Path:
    """Write a row per run, BS iteration and task: rounds.parquet, or rounds.csv if pyarrow is not installed."""
    rows = [row for record in runs for row in round_rows(record)]
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    if find_spec("pyarrow") is None:
        path = folder / "rounds.csv"
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, fieldnames=names)
            table.writeheader()
            table.writerows(rows)
        return path
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / "rounds.parquet"
    parquet.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    return path


def round_rows(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run, for each BS iteration and task; ``gap`` covers all tasks, ``station_gap`` a station."""
    table, configuration = record.rounds, record.configuration
    if table is None:
        return
    single = len(table.local_steps[0]) == 1
    for i, number in enumerate(table.round):
        for b, task in enumerate(record.tasks):
            station = 0 if single else b
            gaps = table.station_gap[i]
            row = {
                "run": record.key,
                "algorithm": configuration.algorithm,
                "seed": configuration.seed,
                "round": number,
                "cloud_round": table.cloud_round[i],
                "task": task,
                "local_steps": table.local_steps[i][station],
                "ordered": table.ordered[i][station],
                "answered": table.answered[i][station],
                "primal": table.primal[i],
                "dual": table.dual[i],
                "gap": table.gap[i],
                "station_gap": None if gaps is None else gaps[station],
            }
            for name, amounts in table.spent.items():
                row[f"spent_{name}"] = amounts[i]
            for name, by_round in table.metrics.items():
                metrics = by_round[i]
                row[name] = None if metrics is None else metrics[b]
            yield row


def load(path: Path) -> Record:
    """Load the record in a file; refuse other files and other versions with a message of a single line."""
    try:
        table = json.loads(path.read_text())
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise ConfigError(f"{path} is no record of a run in format {FORMAT}; make the run again with this version")
        return read(Record, table)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as the record of a run: {error}") from error


cached = lru_cache(maxsize=20_000)(load)
