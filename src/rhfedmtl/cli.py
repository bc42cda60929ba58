"""Command line: turns words into objects, calls the library, prints what came out. No logic of its own."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl import (
    __version__,
    cli_bench,
    cli_compare,
    cli_data,
    cli_doctor,
    cli_models,
    cli_network,
    cli_plan,
    cli_report,
    cli_reproduce,
    cli_runs,
    cli_settings,
    cli_text,
)
from rhfedmtl.cli_data import AsJson, Seed, with_data_options
from rhfedmtl.cli_options import (
    METHOD_PANEL,
    RUNNING,
    WORK_PANEL,
    Address,
    Budgets,
    FaultText,
    Prices,
    Scale,
    option,
    with_learning_options,
)
from rhfedmtl.cli_text import amount, metric
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, RHFedMTLError

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.engines.training import Progress, Result
    from rhfedmtl.experiments.configs import RunConfig

app = typer.Typer(
    help="Resource-aware hierarchical federated multi-task learning. Start with: rhfedmtl train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": cli_settings.ENVIRONMENT},
)
app.add_typer(cli_data.app, name="data")

HOW = ("engine", "threads", "address", "actors")
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
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings of commands (TOML); what is typed goes before it. [rhfedmtl.toml, if there]"),
    ] = None,
) -> None:
    if show_version:
        typer.echo(f"rhfedmtl {__version__}")
        raise typer.Exit
    context.default_map = cli_settings.defaults(config, context.command)


@app.command()
@with_data_options
@with_learning_options
def train(
    context: typer.Context,
    request: Request,
    options: Options,
    algorithm: Annotated[str, option(METHOD_PANEL, "--algorithm", f"{', '.join(NAMES)}.")] = "rhfedmtl",
    scale: Scale = None,
    budget: Budgets = None,
    cost: Prices = None,
    target_gap: Annotated[
        float, option(WORK_PANEL, "--target-gap", "Stop once the gap is this small.", show_default="never")
    ] = 0.0,
    faults: FaultText = "",
    tune: Annotated[
        bool,
        option(
            METHOD_PANEL, "--tune", "Choose the method's settings on a part of the training rows first; not charged."
        ),
    ] = False,
    seed: Seed = 0,
    threads: Annotated[int | None, option(RUNNING, "--threads", "Threads. [all cores]", min=1)] = None,
    engine: Annotated[
        str | None, option(RUNNING, "--engine", "inprocess, linked (message by message), ray, or gpu. [inprocess]")
    ] = None,
    address: Address = None,
    actors: Annotated[
        int | None, option(RUNNING, "--actors", "Processes of ray that share out the stations. [one a node]", min=1)
    ] = None,
    resume: Annotated[
        Path | None, option(RUNNING, "--resume", "Go on with the interrupted run in this folder, all else as it was.")
    ] = None,
    checkpoint_every: Annotated[
        float, option(RUNNING, "--checkpoint-every", "Seconds between checkpoints, to resume from.", min=0.0)
    ] = 30.0,
    certify_every: Annotated[
        int, option(RUNNING, "--certify-every", "Compute gap and accuracy every so many server iterations.", min=1)
    ] = 1,
    log: Annotated[
        list[str] | None,
        option(RUNNING, "--log", "Curves while it runs: tensorboard[:FOLDER], mlflow[:URI]; may be repeated."),
    ] = None,
    out: Annotated[Path, option(RUNNING, "--out", "Folder in which the run gets a folder of its own.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Learn one model per task, under a budget, and certify it.

    Without a word about data it trains on a small synthetic federation; without a budget, until the certified gap is
    a thousandth of the objective. For example:

    rhfedmtl train --data har --positive SITTING --tasks 5 --samples-per-task 70 --budget energy=1400

    rhfedmtl train --path sites.csv --label y --task site --terminal device --budget energy=500

    rhfedmtl train --algorithm hfedmtl --local-steps 10 --station-rounds 5 --cloud-rounds 40

    rhfedmtl train --resume runs/20260101-120000-rhfedmtl-har-0
    """
    _train(request, algorithm, options, locals())


def _train(request: Request, algorithm: str, options: Options, given: dict[str, Any]) -> None:
    from rhfedmtl.experiments import single, tracking
    from rhfedmtl.experiments.configs import RunConfig

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
    config.check_heeded()
    loggers = [tracking.logger(text) for text in given["log"] or ()]
    start = _interrupted_run(given["resume"], given["context"])
    how = _how(given, None if start is None else start.notes["how"])
    with how.ready():
        if start is None:
            run = single.begin(config, how, given["out"], given["checkpoint_every"])
        else:
            run = single.take_up(start, how, given["checkpoint_every"])
        if how.address is not None:  # Ray ends a driver that loses its cluster without a word
            typer.echo(f"should the cluster be lost, go on with: {single.go_on(run.folder)}", err=True)
        for logger in loggers:
            logger.start(run.folder.name, run.config.to_dict())
        live = not given["as_json"] and sys.stderr.isatty()
        with _watcher(live=live, share_done=_ShareDone(run.chosen)) as watch:
            result = run.run(tracking.follow(watch, loggers))
        known = run.finish(result)
    for logger in loggers:
        logger.end(known["result"])
    facts = {**known["result"], "algorithm": run.config.algorithm, "seed": run.config.seed, "saved": str(run.folder)}
    facts |= {"tuning": known["tuning"]} if run.tuning else {}
    facts |= {"notes": notes} if (notes := run.config.notes()) else {}
    if given["as_json"]:
        typer.echo(json.dumps(facts, allow_nan=False))
    else:
        _print_result(facts, run.federation.task_names, result)
    if result.stopped == "interrupted":
        way = f"; go on with: {single.go_on(run.folder)}" if run.checkpoint.exists() else ""
        typer.echo(f"interrupted after round {result.rounds}{way}", err=True)
        raise typer.Exit(INTERRUPTED)


def _interrupted_run(folder: Path | None, context: typer.Context) -> Any:
    """The checkpoint to go on from; refuses words that ask for another run."""
    if folder is None:
        return None
    from rhfedmtl.experiments import single

    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if other := sorted(typed - {"resume", *HOW, "checkpoint_every", "log", "as_json"}):
        words = ", ".join("--" + name.replace("_", "-") for name in other)
        raise ConfigError(f"--resume goes on with the run as it was: leave out {words}")
    return single.read(folder)


def _how(given: dict[str, Any], before: Any) -> Any:
    """Where to run: as told, else as the interrupted run did, else here."""
    from rhfedmtl.experiments.single import How

    told = {name: given[name] for name in HOW if given[name] is not None}
    if before is None or told.get("engine", before.engine) != before.engine:
        return How(**told)
    return replace(before, **told)


@contextmanager
def _watcher(*, live: bool, share_done: _ShareDone) -> Iterator[Any]:
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
            task = bar.add_task("", total=1.0, state="getting ready (the first run compiles, some seconds)")

            def show(progress: Progress) -> bool:
                bar.update(task, completed=share_done(progress), state=_state(progress))
                return not stop

            yield show
    finally:
        signal.signal(signal.SIGINT, before)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        BarColumn(8),
        TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
        TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


class _ShareDone:
    """How far a run has come: by its budgets and server iterations, or on the way of the gap to where it ends.

    The gap falls by about the same factor in every round, so its logarithm tells the time.
    """

    def __init__(self, config: RunConfig) -> None:
        self._limits = dict(config.resources()[1])
        self._cloud_rounds = config.options.cloud_rounds
        self._target = config.target_gap
        self._first: float | None = None

    def __call__(self, progress: Progress) -> float:
        """Share from 0 to 1."""
        shares = [1.0 - progress.left.get(name, limit) / limit for name, limit in self._limits.items() if limit > 0.0]
        if self._cloud_rounds:
            shares.append(progress.cloud_round / self._cloud_rounds)
        if self._target or not shares:
            shares.append(self._way(progress))
        return max(shares)

    def _way(self, progress: Progress) -> float:
        from rhfedmtl.experiments.configs import GOOD_ENOUGH, OPEN_ROUNDS

        found = progress.certificate
        if found is None or not 0.0 < found.gap < float("inf"):
            return progress.round / OPEN_ROUNDS
        target = self._target or GOOD_ENOUGH * found.gap / found.relative_gap
        self._first = self._first or found.gap
        return max(0.0, math.log(self._first / found.gap)) / max(math.log(self._first / target), 1e-9)


def _state(progress: Progress) -> str:
    from rhfedmtl.engines.training import mean

    parts = [f"round {progress.round}"]
    parts += [f"{name} {mean(progress.metrics[name]):.3f}" for name in ("accuracy", "rmse") if name in progress.metrics]
    if progress.certificate is not None:
        parts.append(f"gap {progress.certificate.gap:.1e}")
    parts += [f"{name} left {left:,.4g}" for name, left in progress.left.items() if left != float("inf")]
    return "  ".join(parts)


def _print_result(facts: dict[str, Any], tasks: tuple[str, ...], result: Result) -> None:
    from rich.table import Table

    typer.echo(f"{facts['algorithm']}: test results by task")
    table = Table()
    table.add_column("task")
    for name in result.metrics:
        table.add_column(name.replace("_", " "), justify="right")
    for b, task in enumerate(tasks[:20]):
        table.add_row(task, *(metric(values[b]) for values in result.metrics.values()))
    if len(tasks) > 20:
        table.add_row(f"… {len(tasks) - 20} more", *("" for _ in result.metrics))
    table.add_section()
    table.add_row("mean", *(metric(facts[name]) for name in result.metrics), style="bold")
    cli_text.console().print(table)
    for name, text in _closing_facts(facts):
        cli_text.fact(name, text)
    typer.echo(f"saved in      {facts['saved']}")  # whole, to be copied


def _closing_facts(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if facts["gap"] is not None:
        yield "certificate", f"gap {facts['gap']:.2e} (primal {facts['primal']:.6f}, dual {facts['dual']:.6f})"
    else:
        yield "objective", f"{facts['primal']:.6f} (no dual, so no certificate)"
    yield "work", f"{facts['rounds']:,} rounds in {facts['cloud_rounds']:,} server iterations"
    steps = facts["local_steps"]
    H = str(steps[0]) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
    yield "local steps", f"H = {H}, {facts['terminal_steps']:,} in all"
    for name, spent in facts["spent"].items():
        limit = facts["budget"].get(name)
        yield "spent", f"{name} {amount(spent)}" + (f" of {amount(limit)}" if limit is not None else "")
    if "tuning" in facts:
        chosen = ", ".join(f"{name}={value}" for name, value in facts["tuning"]["chosen"].items())
        yield "tuned", f"{chosen or 'nothing'} ({facts['tuning']['trials']} trials, not charged)"
    yield from (("note", note) for note in facts.get("notes", ()))
    yield "stopped", f"{facts['stopped']}, after {facts['seconds']:.2f} s"


_COMMANDS = (cli_plan, cli_compare, cli_models, cli_reproduce, cli_report, cli_runs, cli_doctor, cli_bench, cli_network)
for _commands in _COMMANDS:
    _commands.register(app)

PANELS = {
    "Learn": ("train", "plan", "compare", "reproduce"),
    "Use what was learned": ("predict", "export"),
    "Look": ("report", "runs", "data"),
    "This machine": ("doctor", "calibrate", "bench"),
    "Networks of real nodes": ("network", "serve", "status"),
}
"""The commands in the order of the help."""
GOES_ON = "what is finished is kept, and the same command goes on from there"
LAST_WORDS = {
    "train": "nothing was learned yet, so nothing is kept; to start again, give the same command",
    "compare": GOES_ON,
    "reproduce": GOES_ON,
    "bench": "nothing was saved",
    "calibrate": "nothing was saved",
}
"""What became of a command that Ctrl-C ended, where there is something to say."""


def program() -> Any:
    """The whole command line, its commands in panels; Ctrl-C is answered with a word."""
    group: Any = typer.main.get_command(app)
    invoke = group.invoke

    def answered(context: typer.Context) -> Any:
        try:
            return invoke(context)
        except KeyboardInterrupt as end:
            words = str(end) or LAST_WORDS.get(context.invoked_subcommand or "", "")
            typer.echo(f"interrupted: {words}" if words else "interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None

    group.invoke = answered
    named = {name: panel for panel, names in PANELS.items() for name in names}
    for name, panel in named.items():
        group.commands[name].rich_help_panel = panel
    group.commands = {name: group.commands[name] for name in named} | group.commands
    group.list_commands = lambda context: list(group.commands)
    return cli_settings.quiet(group)


def main() -> None:
    """Run the command line; errors raised on purpose, and those of files, are printed plainly and end with status 2."""
    try:
        program()()
    except RHFedMTLError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"error: cannot use {error.filename}: {error.strerror}", err=True)
        raise SystemExit(2) from None
