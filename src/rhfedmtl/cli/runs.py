"""Command line: ``runs list|show|compare`` (what was run, with which settings, and what came out)."""

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

app = typer.Typer(no_args_is_help=True, help="Look at runs that were made: list them, show one, compare some.")
Folder = Annotated[Path, typer.Option("--folder", help="Where runs are: of `train`, or the --out of a sweep.")]
CERTIFICATE = ("primal", "primal_at_zero", "dual", "gap", "relative_gap")
WORK = ("rounds", "terminal_steps", "seconds")
FACTS = (*METRICS, *CERTIFICATE, *WORK)
RESULTS = {"balanced_accuracy": "balanced accuracy", "rmse": "RMSE where labels are numbers"}
"""What is listed of a run, the first of these that it has."""

TIERS = {"terminal": "terminals", "station": "stations", "cloud": "the cloud"}
NAMES = 26
"""Columns for the names of facts."""


@app.command("list")
def list_runs(
    place: Annotated[
        Path | None, typer.Argument(help="Where runs are, as with --folder.", metavar="[FOLDER]", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where runs are: of `train`, or the --out of a sweep. [runs]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs: algorithm, data, seed, budget, result, certified gap. Files that cannot be read are named.

    rhfedmtl runs list out/
    """
    from rhfedmtl.runs import lookup

    if place is not None and folder is not None:
        raise ConfigError(f"{place} and --folder {folder} both say where the runs are: leave --folder out")
    folder = place or folder or Path("runs")
    found, refused = lookup.readable(folder)
    if as_json:
        print_json({"runs": [{"name": name, **_line(known)} for name, known in found.items()], "unreadable": refused})
        return
    if found:
        _table(found)
    elif not refused:
        typer.echo(f"no runs in {folder} yet: make one with `rhfedmtl train`")
    for reason in refused:
        typer.echo(f"unreadable: {reason}", err=True)


def _line(known: Record) -> dict[str, Any]:
    """One run in a line."""
    configuration, facts = known.configuration, _facts(known)
    metric = next((name for name in RESULTS if facts.get(name) is not None), None)
    return {
        "algorithm": configuration.algorithm,
        "data": known.data.name,
        "seed": configuration.seed,
        "budget": configuration.budget,
        "metric": metric,
        "value": facts.get(metric) if metric else None,
        "gap": facts.get("gap"),
        "relative_gap": facts.get("relative_gap"),
        "rounds": facts.get("rounds"),
    }


def _facts(known: Record) -> dict[str, Any]:
    """What came out, by name; nothing where the budget paid no round."""
    facts: dict[str, Any] = plain(known.result) or {}
    return facts


def _table(found: dict[str, Record]) -> None:
    from rich.table import Table

    from rhfedmtl.resources.costs import amounts_text

    table = Table(box=None, pad_edge=False)
    for name in ("run", "algorithm", "data", "seed", "budget", "result", "relative gap"):
        right = name in ("seed", "result", "relative gap")
        table.add_column(name, justify="right" if right else "left", overflow="ellipsis", no_wrap=True)
    # As much of each name as tells it from the others: the time of a run if that is enough.
    length = next((n for n in (15, 20) if len({name[:n] for name in found}) == len(found)), None)
    lines = {name: _line(known) for name, known in found.items()}
    for name, known in found.items():
        line = lines[name]
        budget = amounts_text(line["budget"])
        value = "refused" if known.result is None else _number(line["value"])
        facts = name[:length], line["algorithm"], line["data"], str(line["seed"]), budget, value
        table.add_row(*facts, _number(line["relative_gap"]))
    console().print(table)
    shown = {line["metric"] for line in lines.values()}
    if words := [words for name, words in RESULTS.items() if name in shown]:
        typer.echo(f"result: {', '.join(words)}")


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(help="Name of a run (a part will do), its file or folder (of several: the latest).")
    ],
    folder: Folder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show one run: what was asked, what came out, every task, where the budget went, and how to repeat it.

    rhfedmtl runs show 20260101-120000-rhfedmtl-har-0
    """
    from rhfedmtl.runs import lookup

    known = lookup.pick(folder, run)
    if as_json:
        print_json(known.to_dict())
        return
    for name, text in _story(known):
        fact(name, text, NAMES)
    typer.echo(f"{'repeat':<{NAMES}}{known.command}")  # whole, to be copied


def _story(known: Record) -> Iterator[tuple[str, str]]:
    """What to say of a run, fact by fact."""
    if known.refused is not None:
        yield "refused", known.refused
    facts = _facts(known)
    if facts.get("stopped", known.refused or "running") == "running":
        yield "state", "it has not ended: so far" if facts else "no round is finished yet"
    for name in (*METRICS, *WORK):
        if facts.get(name) is not None:
            yield name.replace("_", " "), _number(facts[name])
        if facts and name == METRICS[-1]:
            yield "certificate", certified(facts)
    for metric, values in known.by_task.items():
        parts = (f"{task} {_number(value)}" for task, value in zip(known.tasks[:12], values, strict=False))
        more = f", … {len(values) - 12} more" if len(values) > 12 else ""
        yield f"{metric.replace('_', ' ')} by task", f"{', '.join(parts)}{more}"
    for line in known.bill:
        yield "spent", f"{line.type} {amount(line.amount)} by {TIERS.get(line.tier, line.tier)}"
    if known.tuning is not None:
        yield "tuned", ", ".join(f"{name}={value}" for name, value in known.tuning.chosen.items()) or "nothing"
    if known.weights:
        yield "weights", known.weights_text()
    yield "data", f"{known.data.name}, fingerprint {known.data.fingerprint[:16]}"
    yield "versions", ", ".join(f"{name} {number}" for name, number in known.versions.items())


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Two or more runs, as in `runs show`.")],
    folder: Folder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Put runs side by side: the settings in which they differ, and their results.

    rhfedmtl runs compare 20260101-120000 20260101-120500
    """
    from rhfedmtl.runs import lookup

    many = [lookup.pick(folder, name) for name in runs]
    settings = lookup.differing(many)
    results = {name: [_facts(known).get(name) for known in many] for name in FACTS}
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
