"""Command line: turns words into objects, calls the library, prints what came out. No logic of its own."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl import __version__, cli_compare, cli_data, cli_plan, cli_reproduce, cli_runs
from rhfedmtl.cli_data import AsJson, Seed, with_data_options
from rhfedmtl.cli_options import (
    METHOD_PANEL,
    WORK_PANEL,
    Budgets,
    FaultText,
    Prices,
    Scale,
    option,
    with_learning_options,
)
from rhfedmtl.data.request import Request
from rhfedmtl.errors import RHFedMTLError

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.engines.training import Progress, Result

app = typer.Typer(
    help="Resource-aware hierarchical federated multi-task learning. Start with: rhfedmtl train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_data.app, name="data")

RUNNING = "Running"
INTERRUPTED = 130
"""Status of a run that Ctrl-C ended, as shells have it."""
NAMES = (
    "rhfedmtl",
    "hfedmtl",
    "local",
    "cocoa",
    "cocoa+",
    "mocha",
    "fedavg",
    "fedprox",
    "hierfavg",
    "adaptive-fl",
    "ditto",
    "fedem",
    "pooled",
    "constant",
)
"""The algorithms, for the help alone: their registry would import the numerical libraries."""


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if show_version:
        typer.echo(f"rhfedmtl {__version__}")
        raise typer.Exit


@app.command()
@with_data_options
@with_learning_options
def train(
    request: Request,
    options: Options,
    algorithm: Annotated[str, option(METHOD_PANEL, "--algorithm", f"{', '.join(NAMES)}.")] = "rhfedmtl",
    scale: Scale = None,
    budget: Budgets = None,
    cost: Prices = None,
    target_gap: Annotated[float, option(WORK_PANEL, "--target-gap", "Stop once the gap is this small.")] = 0.0,
    faults: FaultText = "",
    tune: Annotated[
        bool,
        option(
            METHOD_PANEL, "--tune", "Choose the method's settings on a part of the training rows first; not charged."
        ),
    ] = False,
    seed: Seed = 0,
    threads: Annotated[int | None, option(RUNNING, "--threads", "Threads. [all cores]", min=1)] = None,
    engine: Annotated[str, option(RUNNING, "--engine", "inprocess, or linked (message by message).")] = "inprocess",
    certify_every: Annotated[
        int, option(RUNNING, "--certify-every", "Compute gap and accuracy every so many server iterations.", min=1)
    ] = 1,
    out: Annotated[Path, option(RUNNING, "--out", "Folder in which the run gets a folder of its own.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Learn one model per task, under a budget, and certify it.

    Without a word about data it trains on a small synthetic federation; without a budget, until the certified gap is
    a thousandth of the objective. For example:

    rhfedmtl train --data har --positive SITTING --tasks 5 --samples-per-task 70 --budget energy=1400

    rhfedmtl train --data table --path sites.csv --label y --task site --terminal device --budget energy=500

    rhfedmtl train --algorithm hfedmtl --local-steps 10 --station-rounds 5 --cloud-rounds 40
    """
    _train(request, algorithm, options, locals())


def _train(request: Request, algorithm: str, options: Options, given: dict[str, Any]) -> None:
    from rhfedmtl.experiments import records
    from rhfedmtl.experiments.configs import RunConfig
    from rhfedmtl.experiments.tuning import tuned
    from rhfedmtl.resources.ledger import Ledger

    config = RunConfig(
        algorithm,
        request,
        options,
        cost=tuple(given["cost"] or ()),
        budget=tuple(given["budget"] or ()),
        faults=given["faults"],
        scale=given["scale"],
        target_gap=given["target_gap"],
        certify_every=given["certify_every"],
        tune="auto" if given["tune"] else "",
        seed=given["seed"],
    )
    config.check()
    ledger = Ledger(*config.resources())
    federation = config.federation()
    chosen, tuning = tuned(config, federation, threads=given["threads"])
    folder = records.new_folder(given["out"], f"{algorithm}-{request.data}-{given['seed']}")
    try:
        live = not given["as_json"] and sys.stderr.isatty()
        with _watcher(live=live, ledger=ledger, options=chosen.options) as watch:
            result = chosen.run(
                federation, ledger=ledger, watch=watch, engine=given["engine"], threads=given["threads"]
            )
    except RHFedMTLError:
        folder.rmdir()
        raise
    known = records.record(config, federation, result, tuning=tuning or None)
    records.save(folder, known, federation, result)
    facts = {**known["result"], "algorithm": algorithm, "seed": given["seed"], "saved": str(folder)}
    facts |= {"tuning": known["tuning"]} if tuning else {}
    if given["as_json"]:
        typer.echo(json.dumps(facts, allow_nan=False))
    else:
        _print_result(facts, federation.task_names, result)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _watcher(*, live: bool, ledger: Any, options: Options) -> Iterator[Any]:
    """Show progress while a run goes on; Ctrl-C ends it after the present round, and what was done is kept."""
    stop = False

    def interrupt(*_: Any) -> None:
        nonlocal stop
        if stop:
            raise KeyboardInterrupt
        stop = True

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        if not live:
            yield lambda progress: not stop
            return
        with _bar() as bar:
            task = bar.add_task("", total=1.0, state="scaling")

            def show(progress: Progress) -> bool:
                done = _share_done(progress, ledger, options)
                bar.update(task, completed=done, state=_state(progress))
                return not stop

            yield show
    finally:
        signal.signal(signal.SIGINT, before)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _share_done(progress: Progress, ledger: Any, options: Options) -> float:
    shares = [ledger.spent[name] / limit for name, limit in ledger.budget.items() if limit > 0.0]
    if options.cloud_rounds:
        shares.append(progress.cloud_round / options.cloud_rounds)
    return max(shares, default=progress.round / 100)


def _state(progress: Progress) -> str:
    from rhfedmtl.engines.training import mean

    parts = [f"round {progress.round}"]
    parts += [f"{name} {mean(progress.metrics[name]):.3f}" for name in ("accuracy", "rmse") if name in progress.metrics]
    if progress.certificate is not None:
        parts.append(f"gap {progress.certificate.gap:.1e}")
    parts += [f"{name} left {left:.4g}" for name, left in progress.left.items() if left != float("inf")]
    return "  ".join(parts)


def _print_result(facts: dict[str, Any], tasks: tuple[str, ...], result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=min(80, Console().width), soft_wrap=False)
    table = Table(title=f"{facts['algorithm']}: test results by task", title_justify="left")
    table.add_column("task")
    for name in result.metrics:
        table.add_column(name.replace("_", " "), justify="right")
    for b, task in enumerate(tasks[:20]):
        table.add_row(task, *(_number(values[b]) for values in result.metrics.values()))
    if len(tasks) > 20:
        table.add_row(f"… {len(tasks) - 20} more", *("" for _ in result.metrics))
    table.add_section()
    table.add_row("mean", *(_number(facts[name]) for name in result.metrics), style="bold")
    console.print(table)
    for line in _closing_lines(facts):
        console.print(line, highlight=False)


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3f}"  # noqa: PLR0124 (NaN is not itself)


def _closing_lines(facts: dict[str, Any]) -> list[str]:
    steps = facts["local_steps"]
    H = str(steps[0]) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
    lines = [
        f"certificate   gap {facts['gap']:.2e} (primal {facts['primal']:.6f}, dual {facts['dual']:.6f})"
        if facts["gap"] is not None
        else f"objective     {facts['primal']:.6f} (no dual, so no certificate)",
        f"work          {facts['rounds']} rounds in {facts['cloud_rounds']} server iterations",
        f"local steps   H = {H}, {facts['terminal_steps']} in all",
    ]
    for name, amount in facts["spent"].items():
        limit = facts["budget"].get(name)
        lines.append(f"spent         {name} {amount:g}" + (f" of {limit:g}" if limit is not None else ""))
    if "tuning" in facts:
        chosen = ", ".join(f"{name}={value}" for name, value in facts["tuning"]["chosen"].items())
        lines.append(f"tuned         {chosen or 'nothing'} ({facts['tuning']['trials']} trials, not charged)")
    lines.append(f"stopped       {facts['stopped']}, after {facts['seconds']:.2f} s")
    lines.append(f"saved in      {facts['saved']}")
    return lines


for _commands in (cli_plan, cli_compare, cli_reproduce, cli_runs):
    _commands.register(app)


def main() -> None:
    """Run the command line; errors raised on purpose are printed plainly and end with status 2."""
    try:
        app()
    except RHFedMTLError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
