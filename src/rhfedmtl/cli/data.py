"""Commands ``data list|fetch|describe|split``, and the data options that other commands share.

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

from rhfedmtl.cli.options import expand, option
from rhfedmtl.cli.text import width
from rhfedmtl.data.registry import DATASETS, Dataset, parse_setting
from rhfedmtl.data.request import Request, parse_tasks
from rhfedmtl.errors import ConfigError
from rhfedmtl.features.registry import NO_MAP

app = typer.Typer(
    no_args_is_help=True, help="List, fetch and describe data sets, and split them over base stations and terminals."
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
    from rhfedmtl.features.maps import Features

    maps = Features(features)
    federated = DATASETS[request.data].federated
    data = request.federation(seed) if federated else request.source()
    facts, lines = summary(data), text(data)
    if maps:
        facts |= {"maps": maps.text, "mapped_features": maps.columns(facts["features"])}
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
