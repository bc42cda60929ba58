"""Commands ``runs list|show|compare``: list recorded runs, show a run, and compare runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json
from rhfedmtl.cli.text import amount, certified, console, fact
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.plain import plain

if TYPE_CHECKING:
    from rhfedmtl.runs.records import Record

app = typer.Typer(no_args_is_help=True, help="List runs, show a run, or compare runs.")
Folder = Annotated[Path, typer.Option("--folder", help="Folder of runs of `train`, or the --out of a sweep.")]
CERTIFICATE = ("primal", "primal_at_zero", "dual", "gap", "relative_gap")
WORK_FIELDS = ("rounds", "terminal_steps", "seconds")
FACTS = (*METRICS, *CERTIFICATE, *WORK_FIELDS)
RESULTS = {"balanced_accuracy": "balanced accuracy", "rmse": "RMSE for numeric labels"}
"""Metrics for the list; a run shows the first that it has."""

TIER_NAMES = {"terminal": "terminals", "station": "stations", "cloud": "the cloud"}
FACT_WIDTH = 26
"""Width of the column with the names of facts."""


@app.command("list")
def list_runs(
    place: Annotated[
        Path | None, typer.Argument(help="Folder of runs, as with --folder.", metavar="[FOLDER]", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder of runs of `train`, or the --out of a sweep. [runs]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs with algorithm, data, seed, budget, result and certified gap; name unreadable files.

    rhfedmtl runs list out/
    """
    from rhfedmtl.runs import lookup

    if place is not None and folder is not None:
        raise ConfigError(f"{place} and --folder {folder} both name the folder of runs: leave out --folder")
    folder = place or folder or Path("runs")
    records, refused = lookup.readable(folder)
    if as_json:
        print_json(
            {"runs": [{"name": name, **_line(record)} for name, record in records.items()], "unreadable": refused}
        )
        return
    if records:
        _table(records)
    elif not refused:
        typer.echo(f"no runs in {folder} yet: make one with `rhfedmtl train`")
    for reason in refused:
        typer.echo(f"unreadable: {reason}", err=True)


def _line(record: Record) -> dict[str, Any]:
    """Return the row of a run in the list."""
    configuration, facts = record.configuration, _facts(record)
    metric = next((name for name in RESULTS if facts.get(name) is not None), None)
    return {
        "algorithm": configuration.algorithm,
        "data": record.data.name,
        "seed": configuration.seed,
        "budget": configuration.budget,
        "metric": metric,
        "value": facts.get(metric) if metric else None,
        "gap": facts.get("gap"),
        "relative_gap": facts.get("relative_gap"),
        "rounds": facts.get("rounds"),
    }


def _facts(record: Record) -> dict[str, Any]:
    """Return the results by name; an empty dictionary if the budget paid no round."""
    facts: dict[str, Any] = plain(record.result) or {}
    return facts


def _table(records: dict[str, Record]) -> None:
    from rich.table import Table

    from rhfedmtl.resources.costs import amounts_text

    table = Table(box=None, pad_edge=False)
    for name in ("run", "algorithm", "data", "seed", "budget", "result", "relative gap"):
        right = name in ("seed", "result", "relative gap")
        table.add_column(name, justify="right" if right else "left", overflow="ellipsis", no_wrap=True)
    # Shorten names to the time of the run if that identifies all runs.
    length = next((n for n in (15, 20) if len({name[:n] for name in records}) == len(records)), None)
    lines = {name: _line(record) for name, record in records.items()}
    for name, record in records.items():
        line = lines[name]
        budget = amounts_text(line["budget"])
        value = "refused" if record.result is None else _number(line["value"])
        facts = name[:length], line["algorithm"], line["data"], str(line["seed"]), budget, value
        table.add_row(*facts, _number(line["relative_gap"]))
    console().print(table)
    metrics = {line["metric"] for line in lines.values()}
    if words := [words for name, words in RESULTS.items() if name in metrics]:
        typer.echo(f"result: {', '.join(words)}")


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(help="Name of a run or a part of it, its file, or its folder (the latest run of several).")
    ],
    folder: Folder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show a run: settings, results, every task, spending, and the command to repeat it.

    rhfedmtl runs show 20260101-120000-rhfedmtl-har-0
    """
    from rhfedmtl.runs import lookup

    record = lookup.pick(folder, run)
    if as_json:
        print_json(record.to_dict())
        return
    for name, text in _describe(record):
        fact(name, text, FACT_WIDTH)
    typer.echo(f"{'repeat':<{FACT_WIDTH}}{record.command}")  # Not wrapped, because users copy it.


def _describe(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the facts of a run as pairs of name and text."""
    if record.refused is not None:
        yield "refused", record.refused
    facts = _facts(record)
    if facts.get("stopped", record.refused or "running") == "running":
        yield "state", "still running; results so far" if facts else "running; no round is finished yet"
    for name in (*METRICS, *WORK_FIELDS):
        if facts.get(name) is not None:
            yield name.replace("_", " "), _number(facts[name])
        if facts and name == METRICS[-1]:
            yield "certificate", certified(facts)
    for metric, values in record.by_task.items():
        parts = (f"{task} {_number(value)}" for task, value in zip(record.tasks[:12], values, strict=False))
        more = f", … {len(values) - 12} more" if len(values) > 12 else ""
        yield f"{metric.replace('_', ' ')} by task", f"{', '.join(parts)}{more}"
    for line in record.bill:
        yield "spent", f"{line.type} {amount(line.amount)} by {TIER_NAMES.get(line.tier, line.tier)}"
    if record.tuning is not None:
        yield "tuned", ", ".join(f"{name}={value}" for name, value in record.tuning.chosen.items()) or "no settings"
    if record.weights:
        yield "weights", record.weights_text()
    yield "data", f"{record.data.name}, fingerprint {record.data.fingerprint[:16]}"
    yield "versions", ", ".join(f"{name} {number}" for name, number in record.versions.items())


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Two or more runs, as in `runs show`.")],
    folder: Folder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare runs: the settings in which they differ, and their results.

    rhfedmtl runs compare 20260101-120000 20260101-120500
    """
    from rhfedmtl.runs import lookup

    records = [lookup.pick(folder, name) for name in runs]
    settings = lookup.differing(records)
    results = {name: [_facts(record).get(name) for record in records] for name in FACTS}
    results = {name: values for name, values in results.items() if any(value is not None for value in values)}
    if as_json:
        print_json({"runs": runs, "settings": settings, "results": results})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in runs:
        table.add_column(Path(name).name[-24:], justify="right", overflow="fold")
    for part in (settings, results):
        for name, values in part.items():
            table.add_row(name.replace("_", " "), *(_number(value) for value in values))
        table.add_section()
    console().print(table)


def _number(value: Any) -> str:
    from rhfedmtl.display import written

    return "-" if value is None else written(value)
