"""Describe a source or a federation, as plain values (``--json``) or as text of at most 80 columns (``data show``)."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation, Origin, Source

WIDTH = 80
MAX_TASKS_LISTED = 20


def summary(data: Source | Federation) -> dict[str, Any]:
    """Return sizes, classes and origin as plain values, for ``--json``."""
    return _source_summary(data) if isinstance(data, Source) else _federation_summary(data)


def text(data: Source | Federation) -> str:
    """Return sizes, classes and origin as text of at most 80 columns."""
    if isinstance(data, Federation):
        facts = _federation_summary(data)
        total = f"{facts['train_rows']:,} for training, {facts['test_rows']:,} for test"
        lines = [
            ("tasks", f"{facts['tasks']:,}"),
            ("terminals", f"{facts['terminals']:,} with {_range(facts['rows_per_terminal'])} rows"),
            ("rows", f"{total} × {facts['features']} features ({facts['dtype']}, {facts['megabytes']:,} MB)"),
            *_label_lines("training labels", facts["train_labels"], data.kind),
            *_label_lines("test labels", facts["test_labels"], data.kind),
        ]
        rows = [f"{'task':<32}{'terminals':>12}{'training rows':>16}{'test rows':>12}"]
        for name, task in facts["per_task"].items():
            short_name = textwrap.shorten(name, 31, placeholder="…") or name[:31]
            rows.append(f"{short_name:<32}{task['terminals']:>12,}{task['train_rows']:>16,}{task['test_rows']:>12,}")
        if facts["tasks"] > MAX_TASKS_LISTED:
            rows.append(f"… and {facts['tasks'] - MAX_TASKS_LISTED:,} more tasks")
        return _text(facts, lines) + "\n\n" + "\n".join(rows)
    facts = _source_summary(data)
    sizes = np.array(list(facts["rows_per_task"].values()))
    lines = [
        ("rows", f"{facts['rows']:,} × {facts['features']} features ({facts['dtype']})"),
        ("tasks", f"{facts['tasks']} ({_names(data.task_names)})"),
        ("rows per task", _range(_spread(sizes))),
        *_label_lines("labels", facts["labels"], data.kind),
    ]
    if facts["terminals"] is not None:
        lines.append(("terminals", f"{facts['terminals']:,} by a column"))
    if facts["groups"] is not None:
        lines.append(("groups", f"{facts['groups']:,} (kept whole by --grouped)"))
    columns = [("column", f"{name}: {use}") for name, use in data.treatment]
    return _text(facts, [*lines, *columns])


def _source_summary(source: Source) -> dict[str, Any]:
    """Return sizes, classes and origin of rows that are not split yet."""
    sizes = np.bincount(source.task, minlength=len(source.task_names))
    return {
        **_head(source.origin, source.kind),
        "rows": len(source.X),
        "features": int(source.X.shape[1]),
        "dtype": str(source.X.dtype),
        "tasks": len(source.task_names),
        "rows_per_task": dict(zip(source.task_names, sizes.tolist(), strict=True)),
        "labels": _labels(source.y, source.class_names),
        "terminals": _terminals(source),
        "groups": None if source.group is None else len(np.unique(source.group)),
        "columns": dict(source.treatment),
        "notes": list(source.notes),
    }


def _terminals(source: Source) -> int | None:
    """Return the number of terminals in the terminal column; a name under two tasks counts twice, as in a split."""
    if source.terminal is None:
        return None
    return len(np.unique(np.column_stack([source.task, source.terminal]), axis=0))


def _federation_summary(federation: Federation) -> dict[str, Any]:
    """Return sizes of tasks and terminals, classes and origin of a federation."""
    sizes = np.diff(federation.terminal_offsets)
    tasks = {
        "terminals": np.diff(federation.task_offsets),
        "train_rows": np.diff(federation.terminal_offsets[federation.task_offsets]),
        "test_rows": np.diff(federation.test_offsets),
    }
    return {
        **_head(federation.origin, federation.kind),
        "features": federation.n_features,
        "dtype": str(federation.X.dtype),
        "tasks": federation.n_tasks,
        "terminals": federation.n_terminals,
        "train_rows": len(federation.X),
        "test_rows": len(federation.test_X),
        "rows_per_terminal": _spread(sizes),
        "train_labels": _labels(federation.y, federation.class_names),
        "test_labels": _labels(federation.test_y, federation.class_names),
        "per_task": {
            name: {key: int(values[b]) for key, values in tasks.items()}
            for b, name in enumerate(federation.task_names[:MAX_TASKS_LISTED])
        },
        "notes": list(federation.notes),
        "megabytes": round((federation.X.nbytes + federation.test_X.nbytes) / 1e6, 1),
    }


def _head(origin: Origin, kind: str) -> dict[str, Any]:
    return {
        "name": origin.name,
        "kind": kind,
        "source": origin.source,
        "licence": origin.licence,
        "citation": origin.citation,
    }


def _labels(y: npt.NDArray[Any], class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return the number of rows of each class, or the spread of the labels of a regression."""
    if not class_names:
        return _spread(y)
    counts = sum(
        (np.bincount(y[start : start + 2**20], minlength=len(class_names)) for start in range(0, len(y), 2**20)),
        np.zeros(len(class_names), dtype=np.int64),
    )
    return dict(zip(class_names, counts.tolist(), strict=True))


def _spread(values: npt.NDArray[Any]) -> dict[str, Any]:
    if not len(values):
        return {"least": None, "median": None, "mean": None, "greatest": None}
    return {
        "least": values.min().item(),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "greatest": values.max().item(),
    }


def _label_lines(title: str, labels: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    if kind == "regression":
        return [(title, _range(labels) if labels["mean"] is not None else "none")]
    counts = [f"{name} {count:,}" for name, count in list(labels.items())[:MAX_TASKS_LISTED]]
    more = f", … ({len(labels)} classes)" if len(labels) > MAX_TASKS_LISTED else ""
    return [(title, ", ".join(counts) + more)]


def _range(spread: dict[str, Any]) -> str:
    if spread["least"] == spread["greatest"]:
        return f"{spread['least']:,.6g}"
    return f"{spread['least']:,.6g} to {spread['greatest']:,.6g} (mean {spread['mean']:,.4g})"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]}"


def _text(facts: dict[str, Any], lines: list[tuple[str, str]]) -> str:
    notes = [("note", note) for note in facts["notes"]]
    lines = [*lines, *notes, ("from", facts["source"]), ("licence", facts["licence"]), ("cite", facts["citation"])]
    indent = " " * 17
    wrapped = [
        textwrap.fill(text, WIDTH, initial_indent=f"{title:<17}", subsequent_indent=indent, break_on_hyphens=False)
        for title, text in lines
        if text
    ]
    return "\n".join([f"{facts['name']} ({facts['kind']})", *wrapped])
