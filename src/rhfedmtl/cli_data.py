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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rhfedmtl.data.registry import DATASETS, Dataset, dataset, parse_setting
from rhfedmtl.data.request import Request, parse_tasks
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation

R = TypeVar("R")
PANEL = "Data"
TABLE_PANEL = "Data: columns of a table"


def _option(*names: str, help: str, panel: str = PANEL, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


OPTIONS: dict[str, Any] = {
    "data": Annotated[str, _option("--data", help=f"Data set: {', '.join(DATASETS)}.")],
    "path": Annotated[str | None, _option("--path", help="File or folder to read it from.")],
    "tasks": Annotated[str | None, _option("--tasks", help="Number of tasks, drawn with the seed, or a,b,c. [all]")],
    "terminals": Annotated[int | None, _option("--terminals", help="Terminals per task. [5, or the data's own]", min=1)],
    "partition": Annotated[
        str | None,
        _option("--partition", help="Rows to terminals: iid, blocks, dirichlet:ALPHA, powerlaw:EXPONENT, column."),
    ],
    "samples_per_task": Annotated[
        int | None, _option("--samples-per-task", help="Rows drawn per task, training and test. [all]", min=1)
    ],
    "test_fraction": Annotated[float | None, _option("--test-fraction", help="Share set apart for the test. [0.25]")],
    "test_rest": Annotated[
        bool | None, _option("--test-rest", help="Test on all remaining rows of a task.", show_default=False)
    ],
    "grouped": Annotated[
        bool | None, _option("--grouped", help="Keep overlapping windows on one side of the test.", show_default=False)
    ],
    "positive": Annotated[str | None, _option("--positive", help="Ask one question: this class or another?")],
    "balanced": Annotated[
        bool | None,
        _option("--balanced/--unbalanced", help="Equal numbers of each class. [with --positive]", show_default=False),
    ],
    "label": Annotated[str | None, _option("--label", help="Column of labels. [y]", panel=TABLE_PANEL)],
    "task": Annotated[str | None, _option("--task", help="Column of tasks. [task]", panel=TABLE_PANEL)],
    "terminal": Annotated[str | None, _option("--terminal", help="Column of terminals.", panel=TABLE_PANEL)],
    "group": Annotated[str | None, _option("--group", help="Column of groups, for --grouped.", panel=TABLE_PANEL)],
    "drop": Annotated[str | None, _option("--drop", help="Columns to leave out: a,b,c.", panel=TABLE_PANEL)],
    "kind": Annotated[str | None, _option("--kind", help="classes or regression. [by the labels]", panel=TABLE_PANEL)],
    "set": Annotated[
        list[str] | None,
        _option("--set", help="Setting of the data set, NAME=VALUE; `rhfedmtl data list` names them."),
    ],
}
COLUMNS = ("label", "task", "terminal", "group", "drop", "kind")


def request_from_options(**options: Any) -> Request:
    """Request that the values of ``OPTIONS`` ask for."""
    given = {name: value for name, value in options.items() if value is not None}
    entry = dataset(given.get("data", Request.data))
    settings = dict(_setting(entry, text) for text in given.pop("set", None) or ())
    for name in COLUMNS:
        if name in given:
            if name not in entry.setting_types():
                raise ConfigError(f"--{name} names a column of a table: use it with --data table")
            settings[name] = given.pop(name)
    if "tasks" in given:
        given["tasks"] = parse_tasks(given["tasks"])
    return Request(**given, settings=settings)


def federation_from_options(seed: int = 0, **options: Any) -> Federation:
    """Federation that the values of ``OPTIONS`` ask for."""
    return request_from_options(**options).federation(seed)


def with_data_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace the parameter ``request`` of a command by the shared data options."""

    @functools.wraps(command)
    def expanded(**values: Any) -> R:
        options = {name: values.pop(name) for name in OPTIONS}
        return command(request=request_from_options(**options), **values)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "request"]
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=Request.data if name == "data" else None,
            annotation=annotation,
        )
        for name, annotation in OPTIONS.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    # Arguments (without a default) stand first, as in a hand-written signature.
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    expanded.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in [*parameters, *shared]}
    return expanded


def _setting(entry: Dataset, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set needs NAME=VALUE, got {text!r}")
    return name, parse_setting(entry, name, value)
