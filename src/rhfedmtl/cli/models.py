"""Commands for saved models: ``predict`` new rows, ``adapt`` to new tasks, ``export``, ``release`` with noise."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json
from rhfedmtl.cli.text import fact
from rhfedmtl.data.registry import parse_names
from rhfedmtl.errors import ConfigError

Model = Annotated[
    Path,
    typer.Argument(help="Folder of a run, folder of runs (the latest is used), or model file.", show_default=False),
]
Rows = Annotated[Path, typer.Option("--path", help="Rows: .csv, .tsv, .parquet or .npz.", show_default=False)]
FORMATS = ("onnx", "npz", "json")
ADAPTED = "adapted.npz"
"""Name of the file of adapted models, next to the models of the run."""


def predict(
    model: Model,
    path: Rows,
    task_column: Annotated[
        str | None,
        typer.Option("--task-column", help="Column with each row's task.", show_default="as in training, or task"),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task of all rows, instead of a column.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column of true labels, to compute metrics.")] = None,
    drop: Annotated[str, typer.Option("--drop", help="Columns to ignore: a,b,c.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="CSV file for the predictions. [standard output]")] = None,
    formulas: Annotated[
        bool,
        typer.Option(
            "--formulas",
            help="Write text that starts with =, +, - or @ unchanged, although a spreadsheet may run it. [after a ']",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict new rows, each with the model of its task.

    For an unseen task, the command prints a note and uses the model of all training rows. Models from a budget or a
    network have only the mean model for that.

    If the model has feature names, features are matched by name and other columns are ignored. For example:

    rhfedmtl predict runs/20260102-120000-rhfedmtl-table-0 --path new.csv --task-column site --out predictions.csv

    rhfedmtl predict model.npz --path new.parquet --task site-3 --json
    """
    from rhfedmtl.models.predictions import NewRows
    from rhfedmtl.models.task_models import TaskModels

    if out is not None and out.suffix.lower() in (".parquet", ".npz", ".json", ".xlsx", ".gz", ".tsv"):
        raise ConfigError(f"--out {out}: predictions are written as CSV; use {out.with_suffix('.csv')}")
    models = TaskModels.load(model)
    new_rows = NewRows(models, path, task_column, task, label, list(parse_names(drop)))
    predictions = new_rows.predict()
    if out is not None:
        _write(out, predictions, formulas=formulas)
    facts = {
        "rows": len(predictions["prediction"]),
        **new_rows.facts(predictions),
        "saved": None if out is None else str(out),
    }
    if as_json:
        print_json({**facts, **({} if out is not None else {"predictions": _columns(predictions)})})
        return
    if facts["unknown_tasks"]:
        names = ", ".join(facts["unknown_tasks"][:5]) + (" and more" if len(facts["unknown_tasks"]) > 5 else "")
        typer.echo(f"note: no model for task {names}: predicted with {models.unseen_words}", err=True)
    if new_rows.without_task:
        rows = f"{len(new_rows.without_task):,} of {facts['rows']:,} rows have no {new_rows.column!r}"
        typer.echo(
            f"note: {rows} (first: {new_rows.place(new_rows.without_task[0])}): predicted with {models.unseen_words}",
            err=True,
        )
    if new_rows.same:
        pairs = [f"{word} for {name}" for word, name in new_rows.same.items()]
        pairs_text = ", ".join(pairs[:5]) + (" and more" if len(pairs) > 5 else "")
        typer.echo(f"note: matched tasks by number: {pairs_text}", err=True)
    if new_rows.filled:
        typer.echo(
            f"note: missing values in {', '.join(new_rows.filled)}, but not in training: filled with the mean of the "
            "training rows",
            err=True,
        )
    if out is None:
        _table(sys.stdout, predictions, formulas=formulas)
    else:
        typer.echo(f"{facts['rows']} rows predicted, written to {out}")
    for name, value in facts["metrics"].items():  # On stderr if the table itself goes to standard output.
        text = "- (no task has two classes)" if value is None else f"{value:.4f} (mean over tasks)"
        typer.echo(f"{name.replace('_', ' ')} {text}", err=out is None)


def adapt(
    model: Model,
    path: Rows,
    label: Annotated[
        str | None, typer.Option("--label", help="Column of labels.", show_default="as in training")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Name of the new task, for all rows.")] = None,
    task_column: Annotated[
        str | None,
        typer.Option("--task-column", help="Column of new tasks.", show_default="as in training, or task"),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Column of groups, such as overlapping windows, to hold out together.")
    ] = None,
    lambda2: Annotated[
        float | None,
        typer.Option(
            "--lambda2", help="Weight of the distance to the mean model.", show_default="chosen on held-out rows"
        ),
    ] = None,
    drop: Annotated[str, typer.Option("--drop", help="Columns to ignore: a,b,c.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write.", show_default=f"{ADAPTED} next to the model")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a new task from a few rows: a certified local problem against the models of a run, which do not change.

    The new file holds all models of the run, and the new task. For example:

    rhfedmtl adapt runs/20260102-120000-rhfedmtl-table-0 --path new.csv --task site-9

    rhfedmtl predict runs/20260102-120000-rhfedmtl-table-0/adapted.npz --path more.csv --task site-9
    """
    from rhfedmtl.models.model_file import model_path
    from rhfedmtl.models.predictions import NewRows, label_column
    from rhfedmtl.models.task_models import TaskModels

    source = model_path(model)
    out = out or source.with_name(ADAPTED)
    if out.suffix.lower() != ".npz":
        raise ConfigError(f"--out {out}: adapted models are written as .npz; export writes other formats")
    if out.exists() and not (source.exists() and out.samefile(source)):
        raise ConfigError(
            f"{out} exists: add a task to it with `rhfedmtl adapt {out} …`, or name another file with --out"
        )
    models = TaskModels.load(source)
    columns = [*parse_names(drop), *([group] if group else [])]
    new_rows = NewRows(models, path, task_column, task, label or label_column(models), columns)
    adapted = new_rows.adapted(group, lambda2)
    adapted.save(out)
    records = adapted.adapted[len(models.adapted) :]
    facts = [
        {**record.to_dict(), "gap": record.gap, "relative_gap": record.relative_gap, "words": record.words}
        for record in records
    ]
    if as_json:
        print_json({"adapted": facts, "tasks": len(adapted.tasks), "saved": str(out)})
        return
    for record in records:
        fact("new task", f"task {record.task}, from {record.rows} rows")
        fact("reference", record.reference_words)
        fact(
            "certificate", f"{record.words} (gap {record.gap:.2e}: primal {record.primal:.6f}, dual {record.dual:.6f})"
        )
    fact("other models", f"{len(models.tasks)} tasks, unchanged")
    fact("saved in", str(out))


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="File to write.", show_default=False)],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="Task whose model to write.", show_default="the only task, or the model for unseen tasks"
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}.", show_default="from the ending of --out")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Precision of ONNX: float64 or float32.")] = "float64",
    as_json: AsJson = False,
) -> None:
    """Write the model of a single task, with its scaling, as ONNX, as a model file, or as JSON.

    For example:

    rhfedmtl export runs/20260102-120000-rhfedmtl-table-0 --task site-3 --out site-3.onnx
    """
    import json

    from rhfedmtl import array_file
    from rhfedmtl.models.task_models import TaskModels

    file_format = form or out.suffix.removeprefix(".")
    if file_format not in FORMATS:
        raise ConfigError(f"unknown format {file_format!r}: choose one of {', '.join(FORMATS)} with --format")
    models = TaskModels.load(model)
    task_models = models.only(task)
    if file_format == "onnx":
        task_models.to_onnx(out, dtype=dtype)
    elif file_format == "npz":
        task_models.save(out)
    else:
        with array_file.writing(out):
            out.write_text(json.dumps(task_models.to_dict(), allow_nan=False) + "\n", encoding="utf-8")
    name = str(task_models.tasks[0])
    if as_json:
        print_json({"task": name, "format": file_format, "saved": str(out)})
    else:
        title = models.unseen_words if name == "reference" else f"model of task {name}"
        typer.echo(f"{title} written to {out} ({file_format})")


def release(
    model: Model,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="Privacy loss: bound on what the models reveal of any row.")
    ] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Probability that the bound does not hold.")] = 1e-6,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write.", show_default="released.npz next to the model")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write models for publication: noise hides every single training row, and the file states the privacy loss.

    The noise depends on the gap that the run had to reach. Train with a target gap, rows of unit norm, and weights
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
        total = statement["in_all"]
        several = f"{total['releases']} of these models so far, together ({total['epsilon']:.4g}, {total['delta']:g}); "
        fact("releases", f"{several if total['releases'] > 1 else ''}losses add up: give everybody the same file")
        typer.echo(f"saved in      {out}")


def _columns(predictions: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: values if isinstance(values, list) else values.tolist() for name, values in predictions.items()}


def _write(out: Path, predictions: dict[str, Any], *, formulas: bool) -> None:
    from rhfedmtl import array_file

    with array_file.writing(out), out.open("w", newline="", encoding="utf-8") as file:
        _table(file, predictions, formulas=formulas)


def _table(file: Any, predictions: dict[str, Any], *, formulas: bool) -> None:
    columns = _columns(predictions)
    table = csv.writer(file, lineterminator="\n")
    table.writerow(columns if formulas else map(_quoted, columns))
    table.writerows(zip(*(map(_quoted, cells) if not formulas else cells for cells in columns.values()), strict=True))


def _quoted(cell: Any) -> Any:
    """Return the cell, with a quote in front if a spreadsheet would run the text as a formula; numbers are safe."""
    from rhfedmtl.data.loaders.cells import Notation

    starts = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if starts and not Notation().is_number(cell) else cell
