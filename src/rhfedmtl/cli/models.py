"""Command line: what to do with models: ``predict`` new rows, ``export`` for other programs, ``release`` in noise."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json
from rhfedmtl.cli.text import fact
from rhfedmtl.data.registry import parse_names
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    pass

Model = Annotated[
    Path, typer.Argument(help="Folder of a run (of several: the latest), or a model file.", show_default=False)
]
FORMATS = ("onnx", "npz", "json")


def predict(
    model: Model,
    path: Annotated[Path, typer.Option("--path", help="Rows: .csv, .tsv, .parquet or .npz.", show_default=False)],
    task_column: Annotated[
        str | None,
        typer.Option("--task-column", help="Column with each row's task.", show_default="that of training, or task"),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task of all rows, instead of a column.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column of true labels, to say what is right.")] = None,
    drop: Annotated[str, typer.Option("--drop", help="Columns that are no features: a,b,c.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="CSV file for the predictions. [standard output]")] = None,
    formulas: Annotated[
        bool,
        typer.Option(
            "--formulas",
            help="Write texts that start with =, +, - or @ unchanged: a spreadsheet may run them. [with a ' before]",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict new rows, each with the model of its task.

    Unseen tasks get a note and the model of all training rows; models from a budget or a network have only their mean.

    Features are found by name where the model knows their names; other columns are left aside. For example:

    rhfedmtl predict runs/20260102-120000-rhfedmtl-table-0 --path new.csv --task-column site --out predictions.csv

    rhfedmtl predict model.npz --path new.parquet --task site-3 --json
    """
    from rhfedmtl.models.predictions import NewRows
    from rhfedmtl.models.task_models import TaskModels

    if out is not None and out.suffix.lower() in (".parquet", ".npz", ".json", ".xlsx", ".gz", ".tsv"):
        raise ConfigError(f"--out {out}: predictions are written as CSV; name it {out.with_suffix('.csv')}")
    models = TaskModels.load(model)
    asked = NewRows(models, path, task_column, task, label, list(parse_names(drop)))
    found = asked.predict()
    if out is not None:
        _write(out, found, formulas=formulas)
    facts = {
        "rows": len(found["prediction"]),
        **asked.facts(found),
        "saved": None if out is None else str(out),
    }
    if as_json:
        print_json({**facts, **({} if out is not None else {"predictions": _columns(found)})})
        return
    if facts["unknown_tasks"]:
        names = ", ".join(facts["unknown_tasks"][:5]) + (" and more" if len(facts["unknown_tasks"]) > 5 else "")
        typer.echo(f"note: not learned, so predicted with {models.unseen_words}: task {names}", err=True)
    if asked.without_task:
        rows = f"{len(asked.without_task):,} of {facts['rows']:,} rows have no {asked.column!r}"
        typer.echo(
            f"note: {rows}: predicted with {models.unseen_words}, the first is {asked.place(asked.without_task[0])}",
            err=True,
        )
    if asked.same:
        pairs = [f"{word} for {name}" for word, name in asked.same.items()]
        shown = ", ".join(pairs[:5]) + (" and more" if len(pairs) > 5 else "")
        typer.echo(f"note: taken for the task of the same number: {shown}", err=True)
    if asked.filled:
        typer.echo(
            f"note: gaps in {', '.join(asked.filled)}, which had none in training: filled by the mean of the training "
            "rows",
            err=True,
        )
    if out is None:
        _table(sys.stdout, found, formulas=formulas)
    else:
        typer.echo(f"{facts['rows']} rows predicted, written to {out}")
    for name, value in facts["metrics"].items():  # beside the table, not in it
        text = "- (no task has two classes)" if value is None else f"{value:.4f} (mean over tasks)"
        typer.echo(f"{name.replace('_', ' ')} {text}", err=out is None)


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="File to write.", show_default=False)],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="Task whose model it is.", show_default="the only one, or the model for unseen tasks"
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}.", show_default="by the ending of --out")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Precision of ONNX: float64 or float32.")] = "float64",
    as_json: AsJson = False,
) -> None:
    """Write the model of one task, with its scaling, for use elsewhere: ONNX, a model file of its own, or plain JSON.

    For example:

    rhfedmtl export runs/20260102-120000-rhfedmtl-table-0 --task site-3 --out site-3.onnx
    """
    import json

    from rhfedmtl import array_file
    from rhfedmtl.models.task_models import TaskModels

    chosen = form or out.suffix.removeprefix(".")
    if chosen not in FORMATS:
        raise ConfigError(f"unknown format {chosen!r}: choose one of {', '.join(FORMATS)} with --format")
    models = TaskModels.load(model)
    one = models.only(task)
    if chosen == "onnx":
        one.to_onnx(out, dtype=dtype)
    elif chosen == "npz":
        one.save(out)
    else:
        with array_file.writing(out):
            out.write_text(json.dumps(one.to_dict(), allow_nan=False) + "\n", encoding="utf-8")
    name = str(one.tasks[0])
    if as_json:
        print_json({"task": name, "format": chosen, "saved": str(out)})
    else:
        title = models.unseen_words if name == "reference" else f"model of task {name}"
        typer.echo(f"{title} written to {out} ({chosen})")


def release(
    model: Model,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Bound on what is learned of any row.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Chance that the bound does not hold.")] = 1e-6,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write.", show_default="released.npz beside the model")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write models that may be given away: noise hides every single training row, and the file says how well.

    The noise follows from the gap that the run was told to reach, so train with a target, rows of unit norm and weights
    given as numbers. For example:

    rhfedmtl train --data har --positive SITTING --scale unit --lambda1 0.1 --lambda2 1 --target-gap 1e-6

    rhfedmtl release runs/20260102-120000-rhfedmtl-har-0 --epsilon 1 --delta 1e-6
    """
    from rhfedmtl.models.task_models import TaskModels

    released = TaskModels.load(model).release(epsilon, delta)
    statement = released.provenance["privacy"]
    out = out or (model if model.is_dir() else model.parent) / "released.npz"
    released.save(out)
    if as_json:
        print_json({**statement, "saved": str(out)})
    else:
        fact("released", statement["words"])
        fact("noise", f"{statement['noise']:.3g} for a sensitivity of {statement['sensitivity']:.3g}")
        told = statement["in_all"]
        several = f"{told['releases']} of these models so far, together ({told['epsilon']:.4g}, {told['delta']:g}); "
        fact("releases", f"{several if told['releases'] > 1 else ''}they add up: give the same one to everybody")
        typer.echo(f"saved in      {out}")


def _columns(found: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: values if isinstance(values, list) else values.tolist() for name, values in found.items()}


def _write(out: Path, found: dict[str, Any], *, formulas: bool) -> None:
    from rhfedmtl import array_file

    with array_file.writing(out), out.open("w", newline="", encoding="utf-8") as file:
        _table(file, found, formulas=formulas)


def _table(file: Any, found: dict[str, Any], *, formulas: bool) -> None:
    columns = _columns(found)
    table = csv.writer(file, lineterminator="\n")
    table.writerow(columns if formulas else map(_quoted, columns))
    table.writerows(zip(*(map(_quoted, cells) if not formulas else cells for cells in columns.values()), strict=True))


def _quoted(cell: Any) -> Any:
    """The cell, with a quote before a text that a spreadsheet would run as a formula; a number is no formula."""
    from rhfedmtl.data.loaders.cells import Notation

    starts = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if starts and not Notation().is_number(cell) else cell
