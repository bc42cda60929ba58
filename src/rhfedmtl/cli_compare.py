"""Command line: ``compare`` (methods side by side at equal cost)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.cli_data import AsJson, with_data_options
from rhfedmtl.cli_options import METHOD_PANEL, WORK_PANEL, FaultText, Scale, option, with_learning_options
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.experiments.comparison import Comparison


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


@with_data_options
@with_learning_options
def compare(
    request: Request,
    options: Options,
    algorithms: Annotated[
        str, option(METHOD_PANEL, "--algorithms", "Methods; the others are compared with the first: a,b,c.")
    ] = "rhfedmtl,hfedmtl,fedavg,local",
    budgets: Annotated[str, option(WORK_PANEL, "--budgets", "Amounts of the resource: 200,1400.")] = "400,1400",
    cost: Annotated[
        str, option(WORK_PANEL, "--cost", "Prices of the one resource: TYPE=STEP,STATION[,CLOUD].")
    ] = "energy=0.1,10",
    faults: FaultText = "",
    scale: Scale = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: splits and runs 0, 1, ….")] = 10,
    metric: Annotated[str | None, typer.Option(help="accuracy, balanced_accuracy, auc, rmse. [by the labels]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. [all cores]")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records and compare.csv.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Put methods side by side at equal cost: the same splits, prices and budgets for all, seed by seed.

    Methods that decide H themselves pay no heed to --local-steps; the others take 2 steps a round unless told.
    Runs that the folder already has are not made again, so a comparison that was stopped goes on. For example:

    rhfedmtl compare --data watch --grouped --algorithms rhfedmtl,hfedmtl,fedavg,local --budgets 800,3200 --seeds 5
    """
    from rhfedmtl.experiments.comparison import compare as run_comparison
    from rhfedmtl.experiments.configs import RunConfig
    from rhfedmtl.experiments.sweep import Store

    resource = cost.partition("=")[0]
    limits = [f"{resource}={_amount(text):g}" for text in budgets.split(",")]
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    base = RunConfig(request=request, options=options, cost=(cost,), faults=faults, scale=scale)
    with _bar(live=not as_json and sys.stderr.isatty()) as watch:
        found = run_comparison(
            base, names, limits, range(seeds), Store(out / "runs"), metric=metric, workers=workers, watch=watch
        )
    found.to_csv(out / "compare.csv")
    if as_json:
        typer.echo(json.dumps({**asdict(found), "saved": str(out)}, allow_nan=False))
    else:
        _show(found, out)


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--budgets needs numbers as in 200,1400, got {text!r}") from None


@contextmanager
def _bar(*, live: bool) -> Iterator[Any]:
    """Show how many runs are done, and the time left."""
    if not live:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(found: Comparison, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=min(80, Console().width))
    title = f"{found.metric.replace('_', ' ')}: mean over {found.cells[0].seeds} seeds, ± half of the 95 % interval"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for budget in found.budgets:
        table.add_column(budget, justify="right")
    for name in found.algorithms:
        table.add_row(name, *(_text(found, name, budget) for budget in found.budgets))
    console.print(table)
    first = found.algorithms[0]
    for budget in found.budgets:
        for name in found.algorithms[1:]:
            difference = found.cell(name, budget).minus_first
            if difference is not None and difference[0] - difference[1] > 0.0 and found.metric != "rmse":
                margin = f"{difference[0]:.4f} ± {difference[1]:.4f}"
                console.print(f"at {budget} {name} is better than {first}, by {margin}")
    console.print(f"saved in {out}: runs, and compare.csv", highlight=False)


def _text(found: Comparison, name: str, budget: str) -> str:
    cell = found.cell(name, budget)
    if cell.mean is None:
        return "-"
    text = f"{cell.mean:.3f} ± {cell.half:.3f}"
    return f"[bold]{text}[/bold] *" if found.best(budget) == name else text
