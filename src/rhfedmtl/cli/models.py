"""Command line: what to do with models: ``predict`` new rows, ``export`` for other programs, ``release`` in noise."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json
from rhfedmtl.cli.text import fact
from rhfedmtl.data.registry import parse_names
from rhfedmtl.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from rhfedmtl.models.task_models import TaskModels

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
    from rhfedmtl.models.task_models import TaskModels

    if out is not None and out.suffix.lower() in (".parquet", ".npz", ".json", ".xlsx", ".gz", ".tsv"):
        raise ConfigError(f"--out {out}: predictions are written as CSV; name it {out.with_suffix('.csv')}")
    models = TaskModels.load(model)
    asked = _Asked(models, path, task_column, task, label, list(parse_names(drop)))
    found = _predicted(models, asked)
    if out is not None:
        _write(out, found, formulas=formulas)
    facts = {
        "rows": len(found["prediction"]),
        **_facts(models, asked, found),
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


class _Asked:
    """What is asked of `predict`: the rows, and which column is what."""

    def __init__(
        self,
        models: TaskModels,
        path: Path,
        task_column: str | None,
        task: str | None,
        label: str | None,
        drop: list[str],
    ) -> None:
        from rhfedmtl.data.loaders.cells import GAPS
        from rhfedmtl.data.loaders.table import listing
        from rhfedmtl.data.loaders.table_files import read

        if task is not None and task_column is not None:
            raise ConfigError("--task names the task of all rows, --task-column that of each: give one of them")
        self.where, self.task, self.label, self.drop = str(path), task, label, drop
        self.filled: list[str] = []
        self.same: dict[str, str] = {}
        self.without_task: list[int] = []
        request = models.provenance.get("configuration", {}).get("request", {})
        self.column = task_column or request.get("settings", {}).get("task") or "task"
        known = models.preparation
        texts = [] if known is None else [known.columns[j] for j in known.texts]
        gaps = GAPS if known is None or not known.gap_words else GAPS | set(known.gap_words)
        self.read = read(path, [name for name in (self.column, label, *texts) if name is not None], gaps)
        self.table, self.place = self.read.columns, self.read.place
        for name in [*([task_column] if task_column else []), *([label] if label else []), *drop]:
            if name not in self.table:
                hint = nearest(name, self.table)
                raise DataError(f"{path} has no column {name!r}: it has {listing(list(self.table))}{hint}")

    def tasks(self, models: TaskModels) -> Any:
        """Name of every row's task, empty if its cell is empty; or the task of all rows."""
        from rhfedmtl.data.loaders import cells

        if self.task is not None:
            if self.task in self.table and models.find(self.task)[0] < 0:
                raise DataError(
                    f"--task {self.task} names one task for all rows; for a column: --task-column {self.task}"
                )
            return str(models.only(self.task).tasks[0])
        if self.column in self.table:
            words = cells.spelled(self.table[self.column])
            self.without_task = [row for row, word in enumerate(words) if word is None]
            # Tasks that training does not know as they are written, and the one that it knows of the same number.
            numbers = {str(name): cells.plain_number(str(name)) for name in models.tasks.tolist()}
            count = Counter(numbers.values())
            only = {number: name for name, number in numbers.items() if count[number] == 1}
            strange = sorted({word for word in words if word is not None} - numbers.keys())
            self.same = {word: only[number] for word in strange if (number := cells.plain_number(word)) in only}
            return ["" if word is None else self.same.get(word, word) for word in words]
        if len(models.tasks) == 1:
            return str(models.tasks[0])
        raise DataError(
            f"{self.where} has no column {self.column!r} that names each row's task: name it with --task-column, or "
            "one task for all rows with --task"
        )

    def rows(self, models: TaskModels) -> tuple[Any, list[str]]:
        """Features in the order of the models, and columns with gaps that had none in training."""
        import numpy as np

        from rhfedmtl.data.loaders import cells, table

        names = self._features(models)
        if models.preparation is not None or names == list(models.feature_names):
            return models.prepared(self.read, self.where)
        if len(names) != models.n_features:
            raise DataError(
                f"{self.where} has {len(names)} features ({table.listing(names)}), the models were learned from "
                f"{models.n_features}: leave other columns out with --drop"
            )
        where, notation = f"{self.where}, column", self.read.notation
        columns = [cells.needed_numbers(self.table[name], notation, f"{where} {name!r}", self.place) for name in names]
        return np.column_stack(columns), []

    def _features(self, models: TaskModels) -> list[str]:
        """Columns that hold the features; those of an array X, which has no names, in order."""
        from rhfedmtl.data.loaders.table import is_index

        known, aside = list(models.feature_names), {self.column, self.label, *self.drop}
        unnamed = [f"X{j}" for j in range(models.n_features)]
        in_order = self.where.endswith(".npz") and f"X{models.n_features}" not in self.table
        if in_order and self.table.keys() >= set(unnamed) and not self.table.keys() & set(known):
            return unnamed
        free = known or [name for name in self.table if name not in aside]
        if len(free) <= models.n_features:
            return free
        return [name for name in free if not is_index(name, self.table[name])]


def _predicted(models: TaskModels, asked: _Asked) -> dict[str, Any]:
    """Columns of the answer: task, prediction, scores, and probabilities where there are any."""
    tasks, (X, asked.filled) = asked.tasks(models), asked.rows(models)
    scores = models.scores(X, tasks)
    found: dict[str, Any] = {"task": tasks if isinstance(tasks, list) else [tasks] * len(X)}
    found["prediction"] = models.labels(scores)
    names = ["score"] if scores.shape[1] == 1 else [f"score_{name}" for name in models.classes.tolist()]
    if models.kind != "regression":
        found |= dict(zip(names, scores.T, strict=True))
    if models.proper:
        odds = models.probabilities(scores)
        found |= {f"probability_{name}": odds[:, k] for k, name in enumerate(models.classes.tolist())}
    return found


def _facts(models: TaskModels, asked: _Asked, found: dict[str, Any]) -> dict[str, Any]:
    """Tasks that were not learned, and metrics where the labels are known."""
    tasks = sorted(set(found["task"]) - {""})
    unknown = [name for name, b in zip(tasks, models.find(tasks).tolist(), strict=True) if b < 0]
    return {
        "tasks": len(tasks),
        "unknown_tasks": unknown,
        "unseen_model": models.unseen_kind,
        "without_task": len(asked.without_task),
        "filled": asked.filled,
        "metrics": _metrics(models, asked, found),
    }


def _metrics(models: TaskModels, asked: _Asked, found: dict[str, Any]) -> dict[str, float | None]:
    """How many are right: the mean over tasks of each metric."""
    import numpy as np

    from rhfedmtl.data.loaders import cells, table
    from rhfedmtl.maths import metrics
    from rhfedmtl.training.result import mean

    if asked.label is None:
        return {}
    where = f"{asked.where}, column {asked.label!r}"
    if models.kind == "regression":
        truth = cells.needed_numbers(asked.table[asked.label], asked.read.notation, where, asked.place)
        scores = found["prediction"][:, None]
    else:
        labels = _words(asked.table[asked.label], where, asked.place)
        codes = {str(name): k for k, name in enumerate(models.classes.tolist())}
        # Labels of whole numbers go by their value, however they are written.
        spelt = {label: label if label in codes else cells.plain_number(label) for label in set(labels)}
        strange = sorted(label for label in spelt if spelt[label] not in codes)
        if strange:
            raise DataError(f"{where} holds the label {strange[0]!r}, the models know {table.listing(list(codes))}")
        truth = np.array([codes[spelt[label]] for label in labels])
        scores = np.column_stack([values for name, values in found.items() if name.split("_")[0] == "score"])
    task = np.array(found["task"])
    names = [name for name in np.unique(task) if name]  # rows without a task belong to no mean over tasks
    parts = [metrics.measure(truth[task == name], scores[task == name], len(models.classes)) for name in names]
    means = {name: mean(np.array([part[name] for part in parts])) for name in (parts[0] if parts else ())}
    return {name: None if np.isnan(value) else value for name, value in means.items()}


def _words(column: Any, where: str, place: Any) -> list[str]:
    """Keys as they are written; none may be missing."""
    from rhfedmtl.data.loaders import cells

    words = cells.spelled(column)
    if None in words:
        raise DataError(f"{where}, {place(words.index(None))} is empty: fill it or drop the row")
    return [str(word) for word in words]


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
