"""Commands ``data list|fetch|describe|split|windows``, and the data options that other commands share.

A command that works on data takes a ``Request`` and is decorated::

    @app.command()
    @with_data_options
    def train(request: Request, seed: int = 0) -> None: ...

The decorator replaces ``request`` by an option for each entry of ``OPTIONS``. To add a data option, add a row to
``OF_DATA`` or ``OF_A_TABLE``.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from rhfedmtl.cli.options import expand, given_options, option
from rhfedmtl.cli.text import fact, paragraph, width
from rhfedmtl.data.registry import DATASETS, Dataset, parse_names, parse_setting
from rhfedmtl.data.request import Request, parse_tasks
from rhfedmtl.errors import ConfigError
from rhfedmtl.features.registry import NO_MAP

app = typer.Typer(
    no_args_is_help=True,
    help="List, fetch and describe data sets, split them over base stations and terminals, and cut raw signals.",
)
R = TypeVar("R")


Row = tuple[str, Any, str | None, str, str]
OF_DATA: tuple[Row, ...] = (
    ("data", str, "NAME", f"Data set: {', '.join(DATASETS)}.", "synthetic; table with --path"),
    ("path", str, "PATH", "File or folder to read it from.", ""),
    ("tasks", str, "N", "Number of tasks, or their names: a,b,c (a single task: 1,).", "all"),
    ("terminals", int, "N", "Terminals per task.", "5, or as in the data"),
    (
        "partition",
        str,
        "NAME",
        "Distribution of rows to terminals: iid, blocks, dirichlet:ALPHA, powerlaw:EXPONENT, column.",
        "iid, or column if the data has that column",
    ),
    ("samples_per_task", int, "N", "Rows drawn per task, training and test together.", "all"),
    ("test_fraction", float, "SHARE", "Share of test rows.", "0.25"),
    ("test_rest", bool, None, "Test on all remaining rows of a task instead.", ""),
    ("grouped", bool, None, "Do not split overlapping windows between training and test.", ""),
    ("positive", str, "CLASS", "This class against the rest: a problem of two classes.", ""),
    ("balanced/unbalanced", bool, None, "Equal numbers of each class; the default with --positive.", ""),
    (
        "class_weight",
        str,
        "HOW",
        "balanced: all classes of a task have the same weight in its loss.",
        "all rows have the same weight",
    ),
    ("set", list[str], "NAME=VALUE", "Setting of the data set; `rhfedmtl data list` lists them.", ""),
)
OF_A_TABLE: tuple[Row, ...] = (
    ("label", str, "COLUMN", "Column of labels.", "y"),
    ("task", str, "COLUMN", "Column of tasks.", "task"),
    ("terminal", str, "COLUMN", "Column of terminals.", "terminal"),
    ("group", str, "COLUMN", "Column of groups, which are not split between training and test.", ""),
    ("drop", str, "COLUMN", "Columns to leave out: a,b,c.", ""),
    ("kind", str, "KIND", "classes or regression.", "from the labels"),
    ("missing", str, "HOW", "Missing values: mean (with an indicator), drop-rows, drop-columns, error.", "mean"),
    ("na", str, "WORDS", "More words for missing values: a,b,c.", "NA, ?, …"),
    ("categories", str, "COLUMN", "Numeric columns to read as categories: a,b,c.", ""),
    ("small_tasks", str, "HOW", "Tasks with a single row or class: keep, drop, error.", "keep"),
)
"""Options: name, type, placeholder of the value, help, and default."""


def _options(panel: str, rows: tuple[Row, ...]) -> dict[str, tuple[Any, None]]:
    """Return annotations without defaults by name; integers are counts of at least 1."""
    options: dict[str, tuple[Any, None]] = {}
    for name, kind, metavar, text, default in rows:
        flag = "/".join("--" + word.replace("_", "-") for word in name.split("/"))
        more = {"metavar": metavar, "show_default": default or False, **({"min": 1} if kind is int else {})}
        options[name.partition("/")[0]] = Annotated[kind | None, option(panel, flag, text, **more)], None
    return options


OF_WINDOWS: tuple[Row, ...] = (
    ("length", float, "SECONDS", "Length of a window.", "2.56"),
    ("step", float, "SECONDS", "Time from the start of a window to the next.", "half of the length"),
    (
        "rate",
        float,
        "HZ",
        "Samples per second: series are resampled to it, or have it if they have no time stamps.",
        "their own usual rate",
    ),
    ("gaps", str, "HOW", "Times without samples: error, or split (no window spans them).", "error"),
    ("max_gap", float, "SECONDS", "Longest time across which to interpolate.", "less than two samples missing"),
    (
        "group_length",
        float,
        "SECONDS",
        "Cut recordings into parts of this length; each part is a group.",
        "a recording is a group",
    ),
    ("cut_labels", bool, None, "Cut recordings where the label changes; each part is a group.", ""),
    ("statistics", str, "NAMES", "Statistics of a window: a,b,c; help explains them.", "all"),
)
OF_RECORDINGS: tuple[Row, ...] = (
    ("time", str, "COLUMN", "Column of time stamps.", "time, if there is one"),
    ("unit", str, "UNIT", "Unit of time stamps that are numbers: s, ms, us, ns.", "s"),
    ("label", str, "COLUMN", "Column of labels; a window gets the most frequent.", "no labels"),
    ("task", str, "COLUMN", "Column of tasks.", "name of the file, or of its folder"),
    ("terminal", str, "COLUMN", "Column of terminals.", ""),
    ("group", str, "COLUMN", "Column that tells recordings apart; each is a group.", "each file, cut at gaps"),
    ("drop", str, "COLUMN", "Columns to leave out: a,b,c.", ""),
)
COLUMNS = _options("Data: columns of a table", OF_A_TABLE)
OPTIONS = _options("Data", OF_DATA) | COLUMNS


def request_from_options(**options: Any) -> Request:
    """Return the request for values of ``OPTIONS``."""
    values = {name: value for name, value in options.items() if value is not None}
    values.setdefault("data", "table" if "path" in values else Request.data)
    entry = DATASETS[values["data"]]
    settings = dict(_setting(entry, text) for text in values.pop("set", None) or ())
    for name in COLUMNS:
        if name in values:
            if name not in entry.setting_types():
                word = name.replace("_", "-")
                raise ConfigError(f"--{word} is an option for tables: use it with --data table")
            settings[name] = values.pop(name)
    if "tasks" in values:
        values["tasks"] = parse_tasks(values["tasks"])
    return Request(**values, settings=settings)


def with_data_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace the parameter ``request`` of a command by the shared data options."""
    return expand(command, "request", OPTIONS, request_from_options)


def _setting(entry: Dataset, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set needs NAME=VALUE, got {text!r}")
    return name, parse_setting(entry, name, value)


AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
Name = Annotated[str, typer.Argument(help=f"Data set: {', '.join(DATASETS)}.", show_default=False)]
NameOrPath = Annotated[
    str | None,
    typer.Argument(
        metavar="name",
        help=f"Data set: {', '.join(DATASETS)}.",
        show_default="synthetic; table with --path",
    ),
]
MOST_SEED = 2**63 - 1
"""Records store seeds in 64 bits."""


def check_seed(seed: int | None) -> int | None:
    """Refuse a seed that a record cannot store; a range in the option would fill the help."""
    if seed is not None and seed > MOST_SEED:
        raise ConfigError(f"--seed {seed}: a seed lies between 0 and {MOST_SEED}")
    return seed


Seed = Annotated[int, typer.Option("--seed", help="Seed of all random numbers.", min=0, callback=check_seed)]


def _show(facts: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else text)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the data sets, how to get them, and their settings.

    Example: rhfedmtl data list
    """
    facts = {}
    blocks = []
    for name, entry in DATASETS.items():
        settings = entry.setting_defaults()
        facts[name] = {
            "title": entry.title,
            "licence": entry.licence,
            "obtain": entry.obtain,
            "fetchable": bool(entry.fetcher),
            "settings": settings,
        }
        lines = [entry.title, f"get it: {entry.obtain}", f"licence: {entry.licence}"]
        own_settings = [key for key in settings if key not in COLUMNS and key not in entry.sizes]
        if own_settings:
            lines.append("--set " + ", ".join(f"{key}={settings[key]}" for key in own_settings))
        indent: Any = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
        blocks.append("\n".join([name, *(textwrap.fill(line, width(), **indent) for line in lines)]))
    _show({"datasets": facts}, "\n".join(blocks), as_json)


@app.command()
def fetch(name: Name, as_json: AsJson = False) -> None:
    """Download a data set, check it, and print its path.

    It goes to RHFEDMTL_CACHE or the platform's cache folder. An interrupted download continues where it stopped.
    Example: rhfedmtl data fetch har
    """
    path = DATASETS[name].fetch()
    _show({"name": name, "path": str(path)}, f"{name}: {path}", as_json)


def _named(command: Callable[..., R]) -> Callable[..., R]:
    """Replace ``request`` as `with_data_options` does, with the data set as an argument instead of ``--data``."""
    return expand(command, "request", OPTIONS | {"data": (NameOrPath, None)}, request_from_options)


def _cutting(command: Callable[..., R]) -> Callable[..., R]:
    """Replace ``cut`` by the options for windows of raw signals."""
    options = _options("Windows", OF_WINDOWS) | _options("Columns", OF_RECORDINGS)
    return expand(command, "cut", options, given_options)


@app.command()
@_named
def describe(
    request: Request,
    seed: Seed = 0,
    features: Annotated[
        str, typer.Option("--features", help="Count the columns behind these feature maps.", metavar="MAPS")
    ] = NO_MAP,
    as_json: AsJson = False,
) -> None:
    """Describe a data set: rows, features, tasks, classes, origin and licence.

    For example:

    rhfedmtl data describe har --path har.npz

    rhfedmtl data describe --path sites.csv --label y --task site
    """
    from rhfedmtl.data.describe import summary, text
    from rhfedmtl.data.federation import Federation
    from rhfedmtl.features.maps import Features

    if features == "auto":
        raise ConfigError("--features auto: training chooses the map; to count columns, name a map, such as splines")
    maps = Features(features)
    federated = DATASETS[request.data].federated
    data = request.federation(seed) if federated else request.source()
    facts, lines = summary(data), text(data)
    if maps:
        federation = data if isinstance(data, Federation) else request.federation(seed, data)
        if federation.preparation is not None:
            maps = maps.of_first(len(federation.preparation.numbers))
        facts |= {"maps": maps.text, "mapped_features": maps.columns(federation.n_features)}
        lines += f"\n{'feature maps':<17}{facts['mapped_features']:,} columns with {features}"
    _show(facts, lines, as_json)


@app.command()
@_named
def split(
    request: Request,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Save the federation in this folder.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the rows of all terminals into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Split a data set over base stations (tasks) and terminals, and describe the result.

    For example:

    rhfedmtl data split har --tasks 5 --positive SITTING --samples-per-task 70 --plot who.png

    rhfedmtl data split watch --terminals 4 --partition dirichlet:0.3 --grouped --out folder

    rhfedmtl train --data saved --path folder
    """
    from rhfedmtl.data import describe

    federation = request.federation(seed)
    facts = {**describe.summary(federation), "seed": seed, "fingerprint": federation.fingerprint()}
    lines = [describe.text(federation)]
    if out is not None:
        from rhfedmtl.data.loaders.saved import save

        save(federation, out)
        facts["out"] = str(out)
        lines.append(f"saved in {out}: use it with --data saved --path {out}")
    if plot is not None:
        from rhfedmtl.data.picture import draw

        draw(federation, plot)
        facts["plot"] = str(plot)
        lines.append(f"drawn in {plot}")
    _show(facts, "\n\n".join(lines), as_json)


@app.command()
@_cutting
def windows(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder with a CSV or Parquet file (or a folder) per person or device.", show_default=False
        ),
    ],
    cut: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet.")] = Path("windows.csv"),
    as_json: AsJson = False,
) -> None:
    """Cut raw signals into windows, and write a table of their statistics for training.

    Windows that overlap are in the same group, so a split keeps them together. For example, with a file per person:

    rhfedmtl data windows recordings --label activity --out windows.csv

    rhfedmtl train --path windows.csv --label activity --task task --group group
    """
    from rhfedmtl.data.loaders import recordings
    from rhfedmtl.data.loaders.window_statistics import STATISTICS

    if cut.get("statistics") == "help":
        indent = 2 + max(map(len, STATISTICS))
        for name, statistic in STATISTICS.items():
            paragraph(statistic.title, f"{name:{indent}}", " " * indent)
        return
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: the table is written as .csv or .parquet")
    if folder.resolve() in out.resolve().parents:
        raise ConfigError(f"--out {out} lies in the folder of recordings, which would read it as one: write elsewhere")
    cut |= {name: parse_names(cut[name]) for name in ("drop", "statistics") if name in cut}
    settings = recordings.Cut(**cut)
    table = recordings.window_table(recordings.read_folder(folder, settings), settings)
    recordings.write(table, out)
    facts = {**table.facts, "notes": list(table.notes), "saved": str(out)}
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    seconds = f"{facts['samples'] / facts['rate']:g} s ({facts['samples']} samples at {facts['rate']:g} Hz)"
    fact("windows", f"{facts['windows']:,} of {seconds}, every {facts['step'] / facts['rate']:g} s")
    fact("from", f"{facts['files']} files: {facts['tasks']} tasks, {facts['groups']} groups of overlapping windows")
    fact("features", f"{facts['features']}: statistics of {', '.join(facts['channels'])}")
    for note in table.notes:
        fact("note", note)
    fact("saved in", str(out))
    if settings.label is not None:
        typer.echo(f"next: rhfedmtl train --path {out} {settings.training_options()}")
