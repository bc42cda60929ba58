"""Commands ``plan`` (work and cost that a budget buys, or the budget for a target) and ``calibrate`` (measured prices).

Both only parse options and print: `rhfedmtl.planning` computes the plans and times this machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rhfedmtl.cli import plan_text as text_of
from rhfedmtl.cli.data import AsJson, Seed, with_data_options
from rhfedmtl.cli.options import (
    WORK_PANEL,
    Budgets,
    FaultText,
    Precision,
    PresetName,
    Prices,
    PrivacyText,
    Scale,
    option,
    print_json,
    with_planning_options,
    with_preset,
)
from rhfedmtl.data.request import SPLIT_FIELDS, Request
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.algorithms.options import Options
    from rhfedmtl.planning.plan import PlanReport
    from rhfedmtl.planning.target import TargetReport
    from rhfedmtl.resources.links import Link

TARGET = "Find the budget for a target"
WITHOUT = "Without data"
FIXED_BY_PILOT = ("loss", "relationship", "lambda1", "lambda2", "merge", "channel", "intercept", "uniform", "features")
"""Options that a saved pilot fixes."""
BENCH = "Sizes of the benchmark"
POWER = "Power"
LINKS = "Links (Shannon rate)"


@with_data_options
@with_planning_options
def plan(
    context: typer.Context,
    request: Request,
    options: Options,
    budget: Budgets = None,
    cost: Prices = None,
    precision: Precision = "float64",
    preset: PresetName = None,
    privacy: PrivacyText = "",
    faults: FaultText = "",
    pilot: Annotated[
        Path | None,
        option(
            WORK_PANEL,
            "--pilot",
            "File of a pilot. With data, the pilot is saved there; without data, it is read to plan for any budget.",
            metavar="FILE",
        ),
    ] = None,
    pilot_rounds: Annotated[
        int | None,
        option(WORK_PANEL, "--pilot-rounds", "Rounds simulated to predict the gap (0: no pilot). [a quarter]", min=0),
    ] = None,
    target: Annotated[
        str | None,
        option(TARGET, "--target", "gap=1e-3, accuracy=0.9, balanced_accuracy=…, auc=… or rmse=….", metavar="NAME=X"),
    ] = None,
    resource: Annotated[
        str | None, option(TARGET, "--resource", "Type of the budget to find. [the first without a budget]")
    ] = None,
    seeds: Annotated[int, option(TARGET, "--seeds", "Runs at each budget, each with its own seed.", min=1)] = 3,
    points: Annotated[int, option(TARGET, "--points", "Budgets on the grid, before the bisection.", min=2)] = 11,
    n_features: Annotated[
        int | None, option(WITHOUT, "--n-features", "Features of a row: needed if bytes have a price.")
    ] = None,
    columns: Annotated[int, option(WITHOUT, "--columns", "Models per task: 1, or the number of classes.")] = 1,
    scale: Scale = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Plan a run within a budget: H, K, M, cost, and the binding budget. Or find the budget for a target.

    Without --data, the plan uses only sizes (by default 5 tasks, 5 terminals and 70 samples per task). With data, a
    pilot of a few rounds also predicts the gap; it is simulated and not charged. A saved pilot plans for other prices
    and budgets at once, here and on the page of `rhfedmtl dashboard`.

    rhfedmtl plan --tasks 5 --terminals 5 --samples-per-task 70 --budget energy=1400 --cost energy=0.1,10

    rhfedmtl plan --policy paper --budget energy=1400 --budget time=60 --cost energy=0.1,10 --cost time=0.01,1

    rhfedmtl plan --data har --positive SITTING --samples-per-task 70 --budget energy=1400

    rhfedmtl plan --data har --positive SITTING --samples-per-task 70 --cost energy=0.1,10 --target accuracy=0.9

    rhfedmtl plan --data watch --grouped --budget energy=1400 --pilot runs/watch.pilot

    rhfedmtl plan --pilot runs/watch.pilot --budget energy=5000 --faults dropout=0.2

    rhfedmtl plan --terminals 1500 --samples-per-task 32000 --budget energy=1e6 --privacy epsilon=1,delta=1e-6
    """
    from rhfedmtl.algorithms.options import idle, no_effect
    from rhfedmtl.cli.live import budgets_bar
    from rhfedmtl.planning.pilot import Pilot
    from rhfedmtl.planning.request import PlanRequest
    from rhfedmtl.planning.target import Target
    from rhfedmtl.resources.costs import read_resources

    options, cost, budget = with_preset(preset, context, options, cost, budget)
    prices, limits = read_resources(cost, budget)
    options = options.in_precision(precision, bytes_bind=prices.has_bytes(limits))
    # Plans are for RHFedMTL and, with policy fixed, for HFedMTL: we refuse settings of other algorithms.
    if unheeded := idle("rhfedmtl", options):
        raise ConfigError(no_effect("a plan", unheeded, options))
    if pilot is not None and (privacy or target):
        raise ConfigError("--pilot predicts the gap of runs without privacy: leave out --privacy and --target")
    if privacy and target:
        raise ConfigError("the search for a target reads the rows in every run: leave out --privacy, or --target")
    with_data = (context.params["data"] or context.params["path"]) is not None
    if pilot is not None and not with_data:
        fixed = [name for name in SPLIT_FIELDS if getattr(request, name) is not None]
        fixed += [name for name in options.set_names() if name in FIXED_BY_PILOT]
        if fixed or n_features is not None or columns != 1:
            raise ConfigError(f"{pilot} fixes {', '.join(fixed) or 'the sizes'}: leave that out, or give --data")
    plan_request = PlanRequest(
        request,
        options,
        with_data,
        cost=tuple(cost or ()),
        budget=tuple(budget or ()),
        features=n_features,
        columns=columns,
        scale=scale,
        seed=seed,
        privacy=privacy,
        faults=faults,
        pilot=None if pilot is None or with_data else Pilot.load(pilot),
        keep=pilot if with_data else None,
    )
    if target is None:
        report: PlanReport | TargetReport = plan_request.plan(pilot_rounds)
    else:
        with budgets_bar(live=not as_json and sys.stderr.isatty()) as watch:
            report = plan_request.seek(Target.of(target), resource, seeds=seeds, points=points, watch=watch)
    if as_json:
        print_json({**report.to_dict(), "configuration": plan_request.configuration()})
    else:
        text_of.show(report)


def calibrate(
    n_features: Annotated[int, option(BENCH, "--n-features", "Features of a row.")] = 100,
    rows: Annotated[int, option(BENCH, "--rows", "Rows on a terminal.")] = 50,
    columns: Annotated[int, option(BENCH, "--columns", "Models per task: 1, or the number of classes.")] = 1,
    terminals: Annotated[int, option(BENCH, "--terminals", "Terminals of a station.")] = 5,
    tasks: Annotated[int, option(BENCH, "--tasks", "Tasks that the cloud couples.")] = 5,
    dtype: Annotated[str, option(BENCH, "--dtype", "float64 or float32.")] = "float64",
    repeats: Annotated[int, option(BENCH, "--repeats", "Measurements per median.")] = 15,
    terminal_watts: Annotated[float, option(POWER, "--terminal-watts", "Power of a working terminal.")] = 2.0,
    station_watts: Annotated[float, option(POWER, "--station-watts", "Power of a working station.")] = 50.0,
    cloud_watts: Annotated[float, option(POWER, "--cloud-watts", "Power of the working cloud.")] = 100.0,
    slowdown: Annotated[
        float, option(POWER, "--terminal-slowdown", "Factor by which a terminal is slower than this machine.")
    ] = 1.0,
    terminal_up: Annotated[str | None, option(LINKS, "--terminal-up", "Terminal to station.", metavar="LINK")] = None,
    terminal_down: Annotated[
        str | None, option(LINKS, "--terminal-down", "Station to terminal.", metavar="LINK")
    ] = None,
    station_up: Annotated[str | None, option(LINKS, "--station-up", "Station to cloud.", metavar="LINK")] = None,
    station_down: Annotated[str | None, option(LINKS, "--station-down", "Cloud to station.", metavar="LINK")] = None,
    links: Annotated[
        Path | None,
        option(LINKS, "--links", "CSV with the uplink of every terminal, one row per terminal.", metavar="FILE"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Price file to write, for --cost of train and plan.")] = Path(
        "prices.toml"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure prices on this machine: time of a terminal step, a merge and a server iteration; bytes; energy.

    A LINK is BANDWIDTH_HZ,SNR_DB,WATTS: the Shannon rate turns it into time and energy per byte. For example:

    rhfedmtl calibrate --n-features 561 --rows 10 --terminal-slowdown 20 --out prices.toml

    rhfedmtl calibrate --terminal-up 1e6,10,0.2 --station-up 1e8,30,1

    rhfedmtl plan --cost prices.toml --n-features 561 --budget energy=0.5 --budget time=2
    """
    from rhfedmtl.planning import calibration
    from rhfedmtl.resources.links import read_links

    if links is not None and terminal_up is not None:
        raise ConfigError("--links and --terminal-up both set the uplinks of terminals: leave out one of them")
    texts = {
        "terminal_up": terminal_up,
        "terminal_down": terminal_down,
        "station_up": station_up,
        "station_down": station_down,
    }
    used = {name: _link(text) for name, text in texts.items() if text is not None}
    if links is not None:
        used["terminal_up"] = read_links(links)
    power = calibration.Power(terminal_watts, station_watts, cloud_watts, slowdown)
    bench = calibration.Bench(n_features, rows, columns, terminals, tasks, dtype, repeats)  # type: ignore[arg-type]
    # The measurement takes a while, so refuse an unwritable file before it.
    why = "it is a folder" if out.is_dir() else "" if out.parent.is_dir() else f"there is no folder {out.parent}"
    if why:
        raise ConfigError(f"cannot write {out}: {why}; choose another file with --out")
    measured = calibration.calibrate(bench)
    cost = measured.cost(power, **used)
    out.write_text(calibration.price_file(measured, cost, power), encoding="utf-8")
    if as_json:
        print_json({"measured": measured.to_dict(), "cost": cost.to_dict(), "saved": str(out)})
    else:
        text_of.show_calibration(measured, cost, out)


def _link(text: str) -> Link:
    """Read a link from BANDWIDTH_HZ,SNR_DB[,WATTS]."""
    from rhfedmtl.resources.links import Link

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise ConfigError(f"link {text!r}: write BANDWIDTH_HZ,SNR_DB,WATTS, as in 1e6,10,0.2")
    return Link.from_db(*numbers)
