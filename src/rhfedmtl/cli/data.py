"""Command line for data, and the data options that other commands share.

A command that works on data is written for a ``Request`` and decorated::

    @app.command()
    @with_data_options
    def train(request: Request, seed: int = 0) -> None: ...

The decorator replaces ``request`` by one option per line of ``OPTIONS``.
"""

from __future__ import annotations

import functools
import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rhfedmtl.cli.options import expand
from rhfedmtl.cli.text import width
from rhfedmtl.data.registry import DATASETS, Dataset, parse_setting
from rhfedmtl.data.request import Request, parse_tasks
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation

app = typer.Typer(no_args_is_help=True, help="Look at data, fetch it, and split it over base stations and terminals.")
R = TypeVar("R")
PANEL = "Data"
TABLE_PANEL = "Data: columns of a table"


def _option(*names: str, help: str, panel: str = PANEL, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def _flag(name: str, help: str) -> Any:  # noqa: A002
    return _option(name, help=help, show_default=False)


def _column(name: str, help: str, **more: Any) -> Any:  # noqa: A002
    return _word(name, "COLUMN", help, **more)


def _word(name: str, metavar: str, help: str, **more: Any) -> Any:  # noqa: A002
    return _option(name, help=help, panel=TABLE_PANEL, metavar=metavar, **more)


OPTIONS: dict[str, Any] = {
    "data": Annotated[
        str | None,
        _option(
            "--data",
            help=f"Data set: {', '.join(DATASETS)}.",
            metavar="NAME",
            show_default="synthetic; table where --path is given",
        ),
    ],
    "path": Annotated[str | None, _option("--path", help="File or folder to read it from.", metavar="PATH")],
    "tasks": Annotated[
        str | None,
        _option("--tasks", help="How many tasks to draw, or which: a,b,c.", metavar="N", show_default="all"),
    ],
    "terminals": Annotated[
        int | None,
        _option("--terminals", help="Terminals per task.", metavar="N", show_default="5, or the data's own", min=1),
    ],
    "partition": Annotated[
        str | None,
        _option(
            "--partition",
            help="Rows to terminals: iid, blocks, dirichlet:ALPHA, powerlaw:EXPONENT, column.",
            metavar="NAME",
            show_default="iid, or column where there is one",
        ),
    ],
    "samples_per_task": Annotated[
        int | None,
        _option(
            "--samples-per-task",
            help="Rows drawn per task, training and test together.",
            metavar="N",
            show_default="all",
            min=1,
        ),
    ],
    "test_fraction": Annotated[
        float | None, _option("--test-fraction", help="Share for the test.", metavar="SHARE", show_default="0.25")
    ],
    "test_rest": Annotated[bool | None, _flag("--test-rest", help="Test on all remaining rows of a task instead.")],
    "grouped": Annotated[bool | None, _flag("--grouped", help="Keep overlapping windows on one side of the test.")],
    "positive": Annotated[
        str | None, _option("--positive", help="One class against the rest: a problem of two classes.", metavar="CLASS")
    ],
    "balanced": Annotated[
        bool | None,
        _flag("--balanced/--unbalanced", help="Equal numbers of each class; the default with --positive."),
    ],
    "class_weight": Annotated[
        str | None,
        _option(
            "--class-weight",
            help="balanced: all classes of a task weigh the same in its loss.",
            metavar="HOW",
            show_default="rows weigh the same",
        ),
    ],
    "set": Annotated[
        list[str] | None,
        _option("--set", help="Setting of the data set; `rhfedmtl data list` names them.", metavar="NAME=VALUE"),
    ],
    "label": Annotated[str | None, _column("--label", help="Column of labels.", show_default="y")],
    "task": Annotated[str | None, _column("--task", help="Column of tasks.", show_default="task")],
    "terminal": Annotated[str | None, _column("--terminal", help="Column of terminals.", show_default="terminal")],
    "group": Annotated[str | None, _column("--group", help="Column of groups, for --grouped.")],
    "drop": Annotated[str | None, _column("--drop", help="Columns to leave out: a,b,c.")],
    "kind": Annotated[
        str | None, _word("--kind", "KIND", help="classes or regression.", show_default="as the labels look")
    ],
    "missing": Annotated[
        str | None,
        _word(
            "--missing",
            "HOW",
            help="Missing values: mean (and mark), drop-rows, drop-columns, error.",
            show_default="mean",
        ),
    ],
    "na": Annotated[
        str | None, _word("--na", "WORDS", help="More words that stand for a gap: a,b,c.", show_default="NA, ?, …")
    ],
    "categories": Annotated[str | None, _column("--categories", help="Columns of numbers to take as text: a,b,c.")],
    "small_tasks": Annotated[
        str | None,
        _word("--small-tasks", "HOW", help="Tasks of one row or class: keep, drop, error.", show_default="keep"),
    ],
}
COLUMNS = ("label", "task", "terminal", "group", "drop", "kind", "missing", "na", "categories", "small_tasks")


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


def federation_from_options(seed: int = 0, **options: Any) -> Federation:
    """Return the federation that the values of ``OPTIONS`` ask for."""
    return request_from_options(**options).federation(seed)


def with_data_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace the parameter ``request`` of a command by the shared data options."""
    shared = {name: (annotation, None) for name, annotation in OPTIONS.items()}
    return expand(command, "request", shared, request_from_options)


def _setting(entry: Dataset, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set needs NAME=VALUE, got {text!r}")
    return name, parse_setting(entry, name, value)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help=f"Data set: {', '.join(DATASETS)}.", show_default=False)]
NameOrPath = Annotated[
    str | None,
    typer.Argument(help=f"Data set: {', '.join(DATASETS)}.", show_default="synthetic; table where --path is given"),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every draw.", min=0)]


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
        blocks.append("\n".join([name, *(_indented(line) for line in lines)]))
    _show({"datasets": facts}, "\n".join(blocks), as_json)


def _indented(line: str) -> str:
    return textwrap.fill(line, width(), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


@app.command()
def fetch(name: Name, as_json: AsJson = False) -> None:
    """Bring a data set onto this machine, checked, and say where it lies.

    The folder is RHFEDMTL_CACHE, or the platform's folder for caches. A download that was cut off goes on where it
    stopped. Example: rhfedmtl data fetch har
    """
    path = DATASETS[name].fetch()
    _show({"name": name, "path": str(path)}, f"{name}: {path}", as_json)


def _describe(request: Request, seed: int, as_json: bool) -> None:
    """Describe rows before the split, or a federation where the data comes as one."""
    from rhfedmtl.data import describe

    made = DATASETS[request.data].federated
    data = request.federation(seed) if made else request.source()
    _show(describe.summary(data), describe.text(data), as_json)


def _named(command: Callable[..., None]) -> Callable[..., None]:
    """Take the data set as an argument instead of the option ``--data``."""
    shared = with_data_options(command)

    @functools.wraps(command)
    def named(name: str | None = None, **values: Any) -> None:
        shared(data=name, **values)

    parameters = [p for p in inspect.signature(shared).parameters.values() if p.name != "data"]
    first = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=NameOrPath)
    named.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    named.__annotations__ = {p.name: p.annotation for p in [first, *parameters]}
    return named


@app.command()
@_named
def describe(request: Request, seed: Seed = 0, as_json: AsJson = False) -> None:
    """Say what a data set holds: rows, features, tasks, classes, origin and licence.

    For example:

    rhfedmtl data describe har --path har.npz

    rhfedmtl data describe --path sites.csv --label y --task site
    """
    _describe(request, seed, as_json)


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
