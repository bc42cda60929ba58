"""Command ``compare``: train several methods at equal cost, and print and save the comparison.

The methods come from options or from a specification (TOML). Runs are stored in the folder ``--out``, and a second call
makes only missing runs. `rhfedmtl.studies` plans, runs and evaluates the comparison; this module only builds it from
the options and prints it. `reproduce` uses `spread` as well.
"""

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
    PresetName,
    PrivacyText,
    Scale,
    given,
    option,
    preset_weights,
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

ALLOWED_WITH_SPEC = {"spec", "path", "seeds", "first_seed", "workers", "engine", "address", "out", "as_json"}
"""Options that a user can combine with a specification."""
MAX_REASONS = 3
"""Number of printed reasons why runs were refused."""
Workers = Annotated[int | None, typer.Option(min=1, help="Processes. [all cores]")]
FirstSeed = Annotated[int, typer.Option("--first-seed", min=0, help="First seed; the others follow it.")]
SweepEngine = Annotated[str, option(RUNNING, "--engine", "Where to run: inprocess (this machine) or ray (a cluster).")]


@with_data_options
@with_learning_options(COMPARED)
def compare(
    context: typer.Context,
    request: Request,
    options: Options,
    spec: Annotated[
        Path | None,
        typer.Argument(help="A specification (TOML); it can be combined with --path, --seeds and the running options."),
    ] = None,
    algorithms: Annotated[
        str, option(METHOD_PANEL, "--algorithms", "Methods: a,b,c; all are compared with the first.")
    ] = "rhfedmtl,hfedmtl,fedavg,local",
    budgets: Annotated[str, option(WORK_PANEL, "--budgets", "Amounts of the resource: 200,1400.")] = "400,1400",
    cost: Annotated[
        str, option(WORK_PANEL, "--cost", "Prices of the resource: TYPE=STEP,STATION[,CLOUD].")
    ] = "energy=0.1,10",
    preset: PresetName = None,
    faults: FaultText = "",
    privacy: PrivacyText = "",
    scale: Scale = None,
    tune: Annotated[
        bool,
        option(METHOD_PANEL, "--tune", "First choose the settings of every method on a part of the training rows."),
    ] = False,
    metric: Annotated[
        str | None, option(METHOD_PANEL, "--metric", "accuracy, balanced_accuracy, auc, rmse. [by the labels]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; each has its own split. [10, or as specified]")
    ] = None,
    first_seed: FirstSeed = 0,
    workers: Workers = None,
    engine: SweepEngine = "inprocess",
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Folder for the records and the table.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Compare methods at equal cost: all get the same splits, prices and budgets for each seed.

    Methods that choose H themselves ignore --local-steps; the others make 2 steps in a round by default, unless --tune
    chooses it. Finished runs in the folder are reused, so you can stop a comparison and continue it. For example:

    rhfedmtl compare --data watch --grouped --algorithms rhfedmtl,hfedmtl,fedavg,local --budgets 800,3200 --seeds 5

    rhfedmtl compare experiments/beyond/dropouts.toml --seeds 5 --out out/

    rhfedmtl compare --data har --seeds 20 --engine ray --address auto
    """
    from rhfedmtl.cli.live import runs_bar
    from rhfedmtl.studies import spec as specs
    from rhfedmtl.studies.findings import main_findings, who_is_ahead
    from rhfedmtl.studies.overall import overall
    from rhfedmtl.studies.planned import side_by_side
    from rhfedmtl.training.config import RunConfig
    from rhfedmtl.training.privacy import SIMULATION

    planned: PlannedStudy
    cost, budgets, options = _with_preset(context, preset, cost, budgets, options)
    if spec is not None:
        if conflicts := typed(context) - ALLOWED_WITH_SPEC:
            raise ConfigError(f"{spec} defines the comparison: change it there, and leave out {spelt(conflicts)}")
        changes = {"data.path": request.path} if request.path else {}
        planned = specs.read(spec, changes=changes, seeds=seeds, first_seed=first_seed)
    else:
        federation = request.federation(first_seed)
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
        names, amounts = list(parse_names(algorithms)), [_amount(text) for text in budgets.split(",")]
        planned = side_by_side(base, names, amounts, range(first_seed, first_seed + (seeds or 10)), metric)
    replaced = planned.replaces(out)
    with spread(engine, address, workers) as makers, runs_bar(live=not as_json and sys.stderr.isatty()) as watch:
        result = planned.run(out, workers=makers, watch=watch)
    refusals, no_values = result.refusals(), all(cell.mean is None for cell in result.cells)
    if as_json:
        cells = [{**plain(cell), "verdict": cell.verdict} for cell in result.cells]
        areas = [{"at": at, **plain(row)} for at in result.study.others for row in overall(result, at)]
        facts = {"study": result.study.name, "metric": result.study.metric, "cells": cells, "overall": areas}
        facts |= {"finding": who_is_ahead(result), "moves_data": sorted(result.moving)}
        print_json({**facts, "not_run": refusals, "saved": str(out)})
    else:
        show_study(result)
        for line in main_findings(result):
            paragraph(line)
        show_lambda2(result)
        for reason in refusals[:MAX_REASONS]:
            paragraph(reason, "not run: ")
        if further_reasons := refusals[MAX_REASONS:]:
            paragraph(f"{how_many(len(further_reasons), 'more reason')}; --json and the report list all", "not run: ")
        if not refusals and no_values:
            paragraph(
                f"no run has {result.study.metric} on test rows: choose another metric, or keep rows for the test",
                "note: ",
            )
        notes = {"replaced the tables of an earlier comparison with other settings; its runs remain": replaced}
        notes |= {SIMULATION: any(config.noise_from_seed for config in planned.configs.values())}
        for note in (note for note, applies in notes.items() if applies):
            paragraph(note, "note: ")
        name = result.study.name
        typer.echo(f"saved in {out}: runs, {name}.csv, {name}-seeds.csv and {name}-differences.csv")
        typer.echo(f"next: rhfedmtl report {out}")
    if refusals and no_values:
        raise typer.Exit(2)


def _with_preset(
    context: typer.Context, name: str | None, cost: str, budgets: str, options: Options
) -> tuple[str, str, Options]:
    """Return prices, budgets and options with those of the preset unless the user set them."""
    if name is None:
        return cost, budgets, options
    preset, options = preset_weights(name, context, options)
    cost = cost if given(context, "cost") else preset["cost"]
    return cost, budgets if given(context, "budgets") else f"{preset['budget']}", options


def _check_metric(metric: str, federation: Federation) -> None:
    from rhfedmtl.maths.metrics import fitting

    if metric not in (metrics := fitting(len(federation.class_names))):
        fits = f"{federation.kind} labels have {', '.join(metrics)}"
        raise ConfigError(f"no metric {metric!r} for these labels: {fits}{nearest(metric, metrics)}")


def _amount(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--budgets needs numbers as in 200,1400, got {text!r}") from None


@contextmanager
def spread(engine: str, address: str | None, workers: int | None) -> Iterator[Any]:
    """Yield what executes the runs of a sweep: a number of processes, or a Ray cluster."""
    if engine not in ("inprocess", "ray"):
        raise ConfigError(f"a sweep runs with --engine inprocess or --engine ray [--address …], got {engine!r}")
    if engine == "inprocess":
        if address is not None:
            raise ConfigError(f"--address {address} is for --engine ray: name both, or neither")
        yield workers
        return
    if workers is not None:
        raise ConfigError("--workers is for this machine: a Ray cluster makes as many runs at a time as it has cores")
    from rhfedmtl.engines.cluster.ray import Pool, session

    with redirect_stdout(sys.stderr), session(address), Pool() as pool:
        yield pool
