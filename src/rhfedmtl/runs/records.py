"""A run as plain values, and as a folder: configuration, versions, data fingerprint, result, every round, the bill.

Everything that reports, tables and figures show is read from such a record; nothing is computed twice.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.options import Options
from rhfedmtl.data.federation import Federation
from rhfedmtl.training.run import Result, mean
from rhfedmtl.provenance import versions
from rhfedmtl.errors import ConfigError
from rhfedmtl.training.config import RunConfig
from rhfedmtl.maths.runs import bincount
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.billing import RoundEvent
from rhfedmtl.resources.costs import binding

Record = dict[str, Any]
FORMAT = 2
MOST_RELATED = 200
"""The relationship of more tasks than this is left out of a record."""


def record(config: RunConfig, federation: Federation, result: Result | None, **more: Any) -> Record:
    """All that is to be known of a run, in plain values; ``result`` is None where the budget paid no round."""
    known: Record = {
        "format": FORMAT,
        "key": config.key,
        "versions": versions(),
        "configuration": config.to_dict(),
        "command": config.command(),
        "data": {"name": federation.origin.name, "fingerprint": federation.fingerprint()},
        "tasks": list(federation.task_names),
        "result": None,
        "refused": None,
        "tuning": None,
    }
    if result is not None:
        known |= {
            "result": summary(result),
            "by_task": {name: values.tolist() for name, values in result.metrics.items()},
            "rounds": rounds(result),
            "bill": bill(result),
            "relationship": _relationship(federation, result),
        }
    return plain({**known, **more})  # type: ignore[no-any-return]


def summary(result: Result) -> dict[str, Any]:
    """The result of a run in plain values: metrics (mean over tasks, and worst task), certificate, what was spent."""
    certificate, ledger = result.certificate, result.ledger
    metrics = {name: mean(values) for name, values in result.metrics.items()}
    worst = {name: _worst(name, values) for name, values in result.metrics.items()}
    facts = {
        **metrics,
        "worst_task": worst,
        "primal": certificate.primal,
        "dual": certificate.dual,
        "gap": certificate.gap,
        "relative_gap": certificate.relative_gap,
        "rounds": result.rounds,
        "cloud_rounds": result.cloud_rounds,
        "terminal_steps": result.terminal_steps,
        "local_steps": result.local_steps,
        "stopped": result.stopped,
        "spent": ledger.spent,
        "budget": dict(ledger.budget),
        "binding": binding(ledger.spent, dict(ledger.budget)),
        "seconds": result.seconds,
    }
    return plain(facts)  # type: ignore[no-any-return]


def rounds(result: Result) -> dict[str, Any]:
    """Every BS iteration, column by column: what was spent, H and who answered by station, gap and metrics by task."""
    moments = result.history
    work = [_by_station(event) for event in result.events if isinstance(event, RoundEvent) and event.merges]
    names = list(result.metrics)
    return {
        "round": [moment.round for moment in moments],
        "cloud_round": [moment.cloud_round for moment in moments],
        "spent": {name: [moment.spent[name] for moment in moments] for name in result.ledger.spent},
        "primal": [moment.primal for moment in moments],
        "dual": [moment.dual for moment in moments],
        "gap": [moment.gap for moment in moments],
        "station_gap": [None if m.station_gaps is None else m.station_gaps.tolist() for m in moments],
        "local_steps": [steps for steps, _ in work],
        "ordered": [ordered for _, ordered in work],
        "answered": [seen.answers.tolist() for seen in result.observed],
        "metrics": {n: [m.metrics[n].tolist() if n in m.metrics else None for m in moments] for n in names},
    }


def _by_station(event: RoundEvent) -> tuple[list[float], list[int]]:
    """Mean H of the terminals that were asked, and their number, of every station."""
    layout = event.layout
    if event.terminal_ids is None and isinstance(event.local_steps, int):
        count = bincount(layout.terminal_task, layout.n_tasks) * (event.local_steps > 0)
        return np.where(count > 0, float(event.local_steps), 0.0).tolist(), count.tolist()
    steps = np.broadcast_to(event.local_steps, layout.n_terminals)
    asked = (layout.terminal_task >= 0) & (steps > 0)
    if event.terminals is not None:
        asked = asked & event.terminals
    if event.stations is not None:
        asked = asked & event.stations[layout.terminal_task]
    station = layout.terminal_task[asked]
    count = np.bincount(station, minlength=layout.n_tasks)
    total = np.bincount(station, steps[asked], layout.n_tasks)
    return (total / np.maximum(count, 1)).tolist(), count.tolist()


def bill(result: Result) -> list[dict[str, Any]]:
    """Where the budget went: tier by tier, for each type."""
    totals = result.ledger.totals("tier")
    return [{"tier": t, "type": name, "amount": x} for name, by_tier in totals.items() for t, x in by_tier.items()]


def _relationship(federation: Federation, result: Result) -> list[list[float]] | None:
    """Who helps whom at the end of the run; of the tasks as they are evaluated, not as a method regrouped them."""
    if result.relationship is None or not 1 < federation.n_tasks <= MOST_RELATED:
        return None
    if len(result.certificate.models) != federation.n_tasks:
        return None
    return result.relationship.affinity(federation.n_tasks).tolist()  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """The same without NaN and infinity, which JSON has no word for: they become null."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _worst(name: str, values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan")
    return float(known.max() if name == "rmse" else known.min())


def new_folder(root: Path, name: str) -> Path:
    """Make a folder of its own for a run: date, time and name; never one that exists."""
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


def save(folder: Path, known: Record, federation: Federation, result: Result) -> None:
    """Write run.json, the table of rounds, ledger.json and model.npz into ``folder``."""
    (folder / "run.json").write_text(json.dumps(known, allow_nan=False) + "\n")
    save_rounds(folder, [known])
    result.ledger.save(folder / "ledger.json")
    _save_model(folder / "model.npz", known, federation, result)


def save_rounds(folder: Path, many: Iterable[Record]) -> Path:
    """One row per run, BS iteration and task: rounds.parquet, or rounds.csv where pyarrow is not installed."""
    rows = [row for each in many for row in round_rows(each)]
    names = list(dict.fromkeys(name for row in rows for name in row))
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


def round_rows(known: Record) -> Iterator[dict[str, Any]]:
    """Rows of one run: one for each BS iteration and task; a gap is that of all tasks, ``station_gap`` of one."""
    table, configuration = known.get("rounds"), known["configuration"]
    if table is None:
        return
    single = len(table["local_steps"][0]) == 1
    for i, number in enumerate(table["round"]):
        for b, task in enumerate(known["tasks"]):
            station = 0 if single else b
            row = {
                "run": known["key"],
                "algorithm": configuration["algorithm"],
                "seed": configuration["seed"],
                "round": number,
                "cloud_round": table["cloud_round"][i],
                "task": task,
                "local_steps": table["local_steps"][i][station],
                "ordered": table["ordered"][i][station],
                "answered": table["answered"][i][station],
                "primal": table["primal"][i],
                "dual": table["dual"][i],
                "gap": table["gap"][i],
                "station_gap": None if table["station_gap"][i] is None else table["station_gap"][i][station],
            }
            row |= {f"spent_{name}": values[i] for name, values in table["spent"].items()}
            row |= {name: None if v[i] is None else v[i][b] for name, v in table["metrics"].items()}
            yield row


def load(path: Path) -> Record:
    """The record in a file; refused where it is none."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as the record of a run: {error}") from error
    if not isinstance(known, dict) or known.get("format") != FORMAT or "configuration" not in known:
        raise ConfigError(f"{path} is no record of a run in format {FORMAT}; make the run again with this version")
    return known


cached = lru_cache(maxsize=20_000)(load)


def _save_model(path: Path, known: Record, federation: Federation, result: Result) -> None:
    """Models with their scaling, certificate and totals, in one sealed file."""
    loss = Options(**known["configuration"]["options"]).chosen_loss(federation.kind)
    origin = {name: known[name] for name in ("key", "command", "configuration", "versions")}
    TaskModels.from_result(federation, result, loss, origin).save(path)
