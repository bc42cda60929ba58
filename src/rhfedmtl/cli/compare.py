"""Command line: ``compare`` (methods side by side at equal cost, by options or by a specification)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson, with_data_options
from rhfedmtl.cli.options import (
    COMPARED,
    METHOD_PANEL,
    RUNNING,
    WORK_PANEL,
    Address,
    FaultText,
    PrivacyText,
    Scale,
    option,
    print_json,
    spelt,
    typed,
    with_learning_options,
)
from rhfedmtl.cli.text import paragraph, show_lambda2, show_study
from rhfedmtl.data.registry import parse_names
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.plain import plain
from rhfedmtl.roles.words import how_many

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.data.federation import Federation
    from rhfedmtl.studies.planned import PlannedStudy

MANY = 6
"""Methods beyond which tables speak for themselves."""
BESIDE_SPEC = {"spec", "path", "seeds", "workers", "engine", "address", "out", "as_json"}
"""Options that a specification leaves to the command line."""
MOST_REASONS = 3
"""Reasons of refused runs that are told."""
Workers = Annotated[int | None, typer.Option(min=1, help="Processes. [all cores]")]
SweepEngine = Annotated[
    str, option(RUNNING, "--engine", "Where runs are made: inprocess (this machine), or ray (a cluster).")
]


@with_data_options
@with_learning_options(COMPARED)
def compare(
    context: typer.Context,
    request: Request,
    options: Options,
    spec: Annotated[
        Path | None,
        typer.Argument(help="A specification (TOML); beside it go --path, --seeds and how to run it."),
    ] = None,
    algorithms: Annotated[
        str, option(METHOD_PANEL, "--algorithms", "Methods; the others are compared with the first: a,b,c.")
    ] = "rhfedmtl,hfedmtl,fedavg,local",
    budgets: Annotated[str, option(WORK_PANEL, "--budgets", "Amounts of the resource: 200,1400.")] = "400,1400",
    cost: Annotated[
        str, option(WORK_PANEL, "--cost", "Prices of the one resource: TYPE=STEP,STATION[,CLOUD].")
    ] = "energy=0.1,10",
    faults: FaultText = "",
    privacy: PrivacyText = "",
    scale: Scale = None,
    tune: Annotated[
        bool, option(METHOD_PANEL, "--tune", "Choose every method's settings on a part of the training rows first.")
    ] = False,
    metric: Annotated[
        str | None, option(METHOD_PANEL, "--metric", "accuracy, balanced_accuracy, auc, rmse. [by the labels]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds: splits and runs 0, 1, …. [10, or as specified]")
    ] = None,
    workers: Workers = None,
    engine: SweepEngine = "inprocess",
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Folder for the records and the table.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Put methods side by side at equal cost: the same splits, prices and budgets for all, seed by seed.

    Methods that decide H themselves pay no heed to --local-steps; the others take 2 steps a round unless told, or
    tuned. Runs that the folder already has are not made again, so a comparison that was stopped goes on. For example:

    rhfedmtl compare --data watch --grouped --algorithms rhfedmtl,hfedmtl,fedavg,local --budgets 800,3200 --seeds 5

    rhfedmtl compare experiments/beyond/dropouts.toml --seeds 5 --out out/

    rhfedmtl compare --data har --seeds 20 --engine ray --address auto
    """
    from rhfedmtl.cli.live import runs_bar
    from rhfedmtl.studies import spec as specs
    from rhfedmtl.studies.findings import verdicts
    from rhfedmtl.studies.overall import overall
    from rhfedmtl.studies.planned import side_by_side
    from rhfedmtl.training.config import RunConfig
    from rhfedmtl.training.privacy import SIMULATION

    planned: PlannedStudy
    if spec is not None:
        if other := typed(context) - BESIDE_SPEC:
            raise ConfigError(f"{spec} says what is compared: set it there, and leave out {spelt(other)}")
        planned = specs.read(spec, changes={"data.path": request.path} if request.path else {}, seeds=seeds)
    else:
        federation = request.federation(0)
        for note in () if as_json else federation.notes:
            paragraph(note, "note: ")
        metric = metric or ("rmse" if federation.kind == "regression" else "balanced_accuracy")
        _check_metric(metric, federation)
        base = RunConfig(
            request=request,
            options=options,
            cost=(cost,),
            faults=faults,
            scale=scale,
            tune=metric if tune else "",
            privacy=privacy,
        )
        names = list(parse_names(algorithms))
        planned = side_by_side(base, names, [_amount(text) for text in budgets.split(",")], seeds or 10, metric)
    replaced = planned.replaces(out)
    with spread(engine, address, workers) as makers, runs_bar(live=not as_json and sys.stderr.isatty()) as watch:
        found = planned.run(out, workers=makers, watch=watch)
    refusals, nothing = found.refusals(), all(cell.mean is None for cell in found.cells)
    if as_json:
        cells = [{**plain(cell), "verdict": cell.verdict} for cell in found.cells]
        areas = [{"at": at, **plain(row)} for at in found.study.others for row in overall(found, at)]
        facts = {"study": found.study.name, "metric": found.study.metric, "cells": cells, "overall": areas}
        print_json({**facts, "not_run": refusals, "saved": str(out)})
    else:
        show_study(found)
        for line in verdicts(found) if len(found.running) <= MANY else ():
            paragraph(line)
        show_lambda2(found)
        for reason in refusals[:MOST_REASONS]:
            paragraph(reason, "not run: ")
        if more := refusals[MOST_REASONS:]:
            paragraph(f"{how_many(len(more), 'more reason')}, all of them in --json and in the report", "not run: ")
        if not refusals and nothing:
            paragraph(f"no run has {found.study.metric} on test rows: name another metric, or hold rows back", "note: ")
        notes = ["the tables of an earlier comparison with other settings were replaced; its runs are kept"]
        notes = notes if replaced else []
        notes += [SIMULATION] if any(config.noise_from_seed for config in planned.configs.values()) else []
        for note in notes:
            paragraph(note, "note: ")
        name = found.study.name
        typer.echo(f"saved in {out}: runs, {name}.csv, {name}-seeds.csv and {name}-differences.csv")
        typer.echo(f"next: rhfedmtl report {out}")
    if refusals and nothing:
        raise typer.Exit(2)


def _check_metric(metric: str, federation: Federation) -> None:
    from rhfedmtl.maths.metrics import fitting

    if metric not in (known := fitting(len(federation.class_names))):
        fits = f"{federation.kind} labels have {', '.join(known)}"
        raise ConfigError(f"no metric {metric!r} here: {fits}{nearest(metric, known)}")


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--budgets needs numbers as in 200,1400, got {text!r}") from None


@contextmanager
def spread(engine: str, address: str | None, workers: int | None) -> Iterator[Any]:
    """Who makes the runs of a sweep: processes of this machine, or a Ray cluster."""
    if engine not in ("inprocess", "ray"):
        raise ConfigError(f"runs are made by --engine inprocess, or by --engine ray [--address …]; got {engine!r}")
    if engine == "inprocess":
        if address is not None:
            raise ConfigError(f"--address {address} is for --engine ray: name both, or neither")
        yield workers
        return
    if workers is not None:
        raise ConfigError("--workers is for this machine: the cores of a Ray cluster decide how many runs it makes")
    from rhfedmtl.engines.cluster.ray import Pool, session

    with redirect_stdout(sys.stderr), session(address), Pool() as pool:
        yield pool
