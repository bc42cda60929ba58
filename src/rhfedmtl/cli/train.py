"""Command ``train``: make a run, show its progress, and save models, certificate and record in a folder.

This module builds a `RunConfig` from the options, and `rhfedmtl.runs.session` carries out the run. Ctrl-C ends the run
after the current round and keeps the models; ``--resume`` continues it.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.algorithms.options import AUTO
from rhfedmtl.algorithms.registry import ALGORITHMS
from rhfedmtl.cli.data import AsJson, Seed, with_data_options
from rhfedmtl.cli.options import (
    CHOSEN,
    METHOD_PANEL,
    RUNNING,
    WORK_PANEL,
    Address,
    Budgets,
    CertifyEvery,
    FaultText,
    FreeEvaluation,
    Precision,
    PresetName,
    Prices,
    PrivacyText,
    Scale,
    chosen_from,
    every,
    given,
    option,
    print_json,
    spelt,
    typed,
    with_learning_options,
    with_preset,
)
from rhfedmtl.cli.text import show_run
from rhfedmtl.data.request import Request
from rhfedmtl.engines.registry import ENGINES, Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.plain import plain

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.runs.records import Record
    from rhfedmtl.runs.session import Session
    from rhfedmtl.training.checkpoint import Checkpoint
    from rhfedmtl.training.result import Result

EXECUTION_OPTIONS = tuple(field.name for field in fields(Execution))
INTERRUPTED_STATUS = 130
"""Exit status after Ctrl-C, as in shells."""


@with_data_options
@with_learning_options(CHOSEN)
def train(
    context: typer.Context,
    request: Request,
    options: Options,
    algorithm: Annotated[str, option(METHOD_PANEL, "--algorithm", **chosen_from(ALGORITHMS))] = "rhfedmtl",
    scale: Scale = None,
    budget: Budgets = None,
    cost: Prices = None,
    preset: PresetName = None,
    privacy: PrivacyText = "",
    target_gap: Annotated[
        float, option(WORK_PANEL, "--target-gap", "Stop once the gap is this small.", show_default="never")
    ] = 0.0,
    faults: FaultText = "",
    tune: Annotated[
        bool,
        option(
            METHOD_PANEL, "--tune", "First choose the method's settings on a part of the training rows; not charged."
        ),
    ] = False,
    seed: Seed = 0,
    threads: Annotated[int | None, option(RUNNING, "--threads", "Threads. [all cores]", min=1)] = None,
    engine: Annotated[
        str | None,
        option(RUNNING, "--engine", **chosen_from(ENGINES, "Engine: ", Execution.engine)),
    ] = None,
    address: Address = None,
    actors: Annotated[
        int | None, option(RUNNING, "--actors", "Ray processes that share the stations. [one per node]", min=1)
    ] = None,
    resume: Annotated[
        Path | None, option(RUNNING, "--resume", "Continue the interrupted run in this folder with its settings.")
    ] = None,
    checkpoint_every: Annotated[
        float, option(RUNNING, "--checkpoint-every", "Seconds between checkpoints for --resume.", min=0.0)
    ] = 30.0,
    precision: Precision = "float64",
    certify_every: CertifyEvery = AUTO,
    free_evaluation: FreeEvaluation = False,
    log: Annotated[
        list[str] | None,
        option(RUNNING, "--log", "Log curves during the run: tensorboard[:FOLDER], mlflow[:URI]; can be repeated."),
    ] = None,
    out: Annotated[Path, option(RUNNING, "--out", "Folder for runs; each run gets its own folder.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train one model per task within a budget, and certify the result.

    By default, it trains a small synthetic federation to a relative gap of 0.001, without a budget. For example:

    rhfedmtl train --path sites.csv --label y --task site --budget energy=500

    rhfedmtl train --data watch --grouped --budget energy=2000
    """
    from rhfedmtl.cli import live as running
    from rhfedmtl.runs import session, tracking
    from rhfedmtl.training.config import RunConfig

    options, cost, budget = with_preset(preset, context, options, cost, budget)
    config = RunConfig(
        algorithm,
        request,
        options,
        cost=tuple(cost or ()),
        budget=tuple(budget or ()),
        faults=faults,
        scale=scale,
        target_gap=target_gap,
        certify_every=every(certify_every),
        tune="auto" if tune else "",
        seed=seed,
        privacy=privacy,
        free_evaluation=free_evaluation,
        noise_from_seed=bool(privacy) and given(context, "seed"),
    )
    prices, limits = config.resources()
    config = replace(config, options=options.in_precision(precision, bytes_bind=prices.has_bytes(limits)))
    config.check_heeded()
    loggers = [tracking.logger(text) for text in log or ()]
    start: Checkpoint | None = None
    if resume is not None:
        if conflicts := typed(context) - {"resume", *EXECUTION_OPTIONS, "checkpoint_every", "log", "as_json"}:
            raise ConfigError(f"--resume continues the run with its settings: leave out {spelt(conflicts)}")
        start = session.read(resume)
    execution = _execution({"engine": engine, "threads": threads, "address": address, "actors": actors}, start)
    live = not as_json and sys.stderr.isatty()
    with (
        session.ready(execution),
        running.watched(live=live, share_done=running.ShareDone(start.notes["config"] if start else config)) as watch,
    ):
        if start is None:
            run = session.begin(config, execution, out, checkpoint_every, watch)
        else:
            run = session.take_up(start, execution, checkpoint_every)
        if execution.address is not None:  # Ray ends a driver that loses its cluster without a message.
            typer.echo(f"if the cluster fails, continue with: {session.go_on(run.folder)}", err=True)
        for logger in loggers:
            logger.start(run.folder.name, run.config.to_dict())
        result = run.run(tracking.follow(watch, loggers))
        record = run.finish(result)
        for logger in loggers:
            logger.end(result.stopped)
    _show(run, result, record, as_json=as_json)


def _show(run: Session, result: Result, record: Record, *, as_json: bool) -> None:
    """Print the result; after Ctrl-C, also print the command that continues the run."""
    from rhfedmtl.models.task_models import TaskModels
    from rhfedmtl.runs import session

    facts = {name: value for name, value in plain(record.result).items() if value is not None or name != "privacy"}
    facts |= {"algorithm": run.config.algorithm, "seed": run.config.seed}
    facts |= {"certificate": facts["privacy"]["certificate"]} if "privacy" in facts else {}
    facts |= {"free_evaluation": True} if run.config.free_evaluation else {}
    models = TaskModels.load(run.folder)
    facts |= {"unseen_model": models.unseen_kind, "saved": str(run.folder)}
    facts |= {"weights": record.weights}
    facts |= {"tuning": plain(record.tuning)} if record.tuning else {}
    facts |= {"selection": plain(record.selection)} if record.selection else {}
    facts |= {"notes": notes} if (notes := [*run.federation.notes, *run.config.notes()]) else {}
    if as_json:
        print_json(facts)
    else:
        more = {"weights": record.weights_text()}
        more |= {"unseen tasks": f"{models.unseen_words}"} if len(models.tasks) > 1 else {}
        show_run(facts, run.federation.task_names, result.metrics, more)
        typer.echo(f"saved in      {facts['saved']}")  # Not wrapped, because users copy it.
    if result.stopped == "interrupted":
        hint = f"; continue with: {session.go_on(run.folder)}" if run.checkpoint.exists() else ""
        typer.echo(f"interrupted after round {result.rounds}{hint}", err=True)
        raise typer.Exit(INTERRUPTED_STATUS)


def _execution(values: dict[str, Any], start: Checkpoint | None) -> Execution:
    """Return where to run: as the options say, or as the interrupted run did, or on this machine."""
    chosen = {name: value for name, value in values.items() if value is not None}
    previous: Execution | None = None if start is None else start.notes["how"]
    if previous is None or chosen.get("engine", previous.engine) != previous.engine:
        return Execution(**chosen)
    return replace(previous, **chosen)
