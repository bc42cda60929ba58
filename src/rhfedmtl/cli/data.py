"""Command line for data, and the data options that other commands share.

A command that works on data is written for a ``Request`` and decorated::

    @app.command()
    @with_data_options
    def train(request: Request, seed: int = 0) -> None: ...

The decorator replaces ``request`` by one option per line of ``OPTIONS``.
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

app = typer.Typer(no_args_is_help=True, help="Look at data, fetch it, and split it over base stations and terminals.")
R = TypeVar("R")


Row = tuple[str, Any, str | None, str, str]
OF_DATA: tuple[Row, ...] = (
    ("data", str, "NAME", f"Data set: {', '.join(DATASETS)}.", "synthetic; table where --path is given"),
    ("path", str, "PATH", "File or folder to read it from.", ""),
    ("tasks", str, "N", "How many tasks to draw, or which: a,b,c (one alone: 1,).", "all"),
    ("terminals", int, "N", "Terminals per task.", "5, or the data's own"),
    (
        "partition",
        str,
        "NAME",
        "Rows to terminals: iid, blocks, dirichlet:ALPHA, powerlaw:EXPONENT, column.",
        "iid, or column where there is one",
    ),
    ("samples_per_task", int, "N", "Rows drawn per task, training and test together.", "all"),
    ("test_fraction", float, "SHARE", "Share for the test.", "0.25"),
    ("test_rest", bool, None, "Test on all remaining rows of a task instead.", ""),
    ("grouped", bool, None, "Keep overlapping windows on one side of the test.", ""),
    ("positive", str, "CLASS", "One class against the rest: a problem of two classes.", ""),
    ("balanced/unbalanced", bool, None, "Equal numbers of each class; the default with --positive.", ""),
    (
        "class_weight",
        str,
        "HOW",
        "balanced: all classes of a task weigh the same in its loss.",
        "rows weigh the same",
    ),
    ("set", list[str], "NAME=VALUE", "Setting of the data set; `rhfedmtl data list` names them.", ""),
)
OF_A_TABLE: tuple[Row, ...] = (
    ("label", str, "COLUMN", "Column of labels.", "y"),
    ("task", str, "COLUMN", "Column of tasks.", "task"),
    ("terminal", str, "COLUMN", "Column of terminals.", "terminal"),
    ("group", str, "COLUMN", "Column of groups, which stay on one side of the test.", ""),
    ("drop", str, "COLUMN", "Columns to leave out: a,b,c.", ""),
    ("kind", str, "KIND", "classes or regression.", "as the labels look"),
    ("missing", str, "HOW", "Missing values: mean (and mark), drop-rows, drop-columns, error.", "mean"),
    ("na", str, "WORDS", "More words that stand for a gap: a,b,c.", "NA, ?, …"),
    ("categories", str, "COLUMN", "Columns of numbers to take as text: a,b,c.", ""),
    ("small_tasks", str, "HOW", "Tasks of one row or class: keep, drop, error.", "keep"),
)
"""Options: name, type, what stands for a value, help, and what holds where it is not given."""


def _options(panel: str, rows: tuple[Row, ...]) -> dict[str, tuple[Any, None]]:
    """Annotations, and no default, by name; whole numbers are counts."""
    made: dict[str, tuple[Any, None]] = {}
    for name, kind, metavar, text, usual in rows:
        flag = "/".join("--" + word.replace("_", "-") for word in name.split("/"))
        more = {"metavar": metavar, "show_default": usual or False, **({"min": 1} if kind is int else {})}
        made[name.partition("/")[0]] = Annotated[kind | None, option(panel, flag, text, **more)], None
    return made


COLUMNS = _options("Data: columns of a table", OF_A_TABLE)
OPTIONS = _options("Data", OF_DATA) | COLUMNS


def request_from_options(**options: Any) -> Request:
    """Request that the values of ``OPTIONS`` ask for."""
    given = {name: value for name, value in options.items() if value is not None}
    given.setdefault("data", "table" if "path" in given else Request.data)
    entry = DATASETS[given["data"]]
    settings = dict(_setting(entry, text) for text in given.pop("set", None) or ())
    for name in COLUMNS:
        if name in given:
            if name not in entry.setting_types():
                word = name.replace("_", "-")
                raise ConfigError(f"--{word} names a column of a table, or how to read it: use it with --data table")
            settings[name] = given.pop(name)
    if "tasks" in given:
        given["tasks"] = parse_tasks(given["tasks"])
    return Request(**given, settings=settings)


def with_data_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace the parameter ``request`` of a command by the shared data options."""
    return expand(command, "request", OPTIONS, request_from_options)


def _setting(entry: Dataset, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set needs NAME=VALUE, got {text!r}")
    return name, parse_setting(entry, name, value)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help=f"Data set: {', '.join(DATASETS)}.", show_default=False)]
NameOrPath = Annotated[
    str | None,
    typer.Argument(
        metavar="name",
        help=f"Data set: {', '.join(DATASETS)}.",
        show_default="synthetic; table where --path is given",
    ),
]
MOST_SEED = 2**63 - 1
"""Records hold seeds in 64 bits."""


def check_seed(seed: int | None) -> int | None:
    """Refuse a seed that no record can hold; the range would fill the help."""
    if seed is not None and seed > MOST_SEED:
        raise ConfigError(f"--seed {seed}: a seed lies between 0 and {MOST_SEED}")
    return seed


Seed = Annotated[int, typer.Option("--seed", help="Seed of every draw.", min=0, callback=check_seed)]


def _show(facts: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else text)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the data sets, how to come by them, and their own settings.

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
        own = [key for key in settings if key not in COLUMNS and key not in entry.sizes]
        if own:
            lines.append("--set " + ", ".join(f"{key}={settings[key]}" for key in own))
        indent: Any = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
        blocks.append("\n".join([name, *(textwrap.fill(line, width(), **indent) for line in lines)]))
    _show({"datasets": facts}, "\n".join(blocks), as_json)


@app.command()
def fetch(name: Name, as_json: AsJson = False) -> None:
    """Bring a data set onto this machine, checked, and say where it lies.

    The folder is RHFEDMTL_CACHE, or the platform's folder for caches. A download that was cut off goes on where it
    stopped. Example: rhfedmtl data fetch har
    """
    path = DATASETS[name].fetch()
    _show({"name": name, "path": str(path)}, f"{name}: {path}", as_json)


def _named(command: Callable[..., R]) -> Callable[..., R]:
    """The same with the data set as an argument instead of the option ``--data``."""
    return expand(command, "request", OPTIONS | {"data": (NameOrPath, None)}, request_from_options)


@app.command()
@_named
def describe(request: Request, seed: Seed = 0, as_json: AsJson = False) -> None:
    """Say what a data set holds: rows, features, tasks, classes, origin and licence.

    For example:

    rhfedmtl data describe har --path har.npz

    rhfedmtl data describe --path sites.csv --label y --task site
    """
    from rhfedmtl.data.describe import summary, text

    made = DATASETS[request.data].federated
    data = request.federation(seed) if made else request.source()
    _show(summary(data), text(data), as_json)


@app.command()
@_named
def split(
    request: Request,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Save the federation in this folder.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw who holds what into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Split a data set over base stations (tasks) and terminals, and say who holds what.

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
