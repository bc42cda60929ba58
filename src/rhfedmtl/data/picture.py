"""Draw which terminal has which rows: a panel for each task, a bar for each terminal, coloured by class.

`rhfedmtl data` calls `draw`. If there are too many terminals for bars, the picture shows terminal sizes as a map and
the class shares of each task as bars.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.federation import Federation
from rhfedmtl.errors import DataError, MissingExtraError

MAX_PANELS = 12
MAX_BARS = 40
MAX_TASKS = 40
MAX_COLUMNS = 400
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB", "#222255", "#994F00", "#44AA99")


def draw(federation: Federation, file: Path) -> None:
    """Draw ``federation`` into ``file``; the file's ending selects the format."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("pictures need matplotlib: pip install 'rhfedmtl[plot]'") from error
    few = federation.n_tasks <= MAX_PANELS and np.diff(federation.task_offsets).max() <= MAX_BARS
    figure = _bars(federation, Figure) if few else _map(federation, Figure)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw into {file} ({error})") from error


def _counts(federation: Federation) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[str]]:
    """Return rows per terminal and test rows per task, by class (or third of the labels), and the names of classes."""
    if federation.class_names:
        names, train, test = list(federation.class_names), federation.y, federation.test_y
    else:
        edges = np.quantile(federation.y, [1 / 3, 2 / 3])
        names = [f"y ≤ {edges[0]:.3g}", f"y ≤ {edges[1]:.3g}", "above"]
        train, test = np.searchsorted(edges, federation.y), np.searchsorted(edges, federation.test_y)
    terminal = np.repeat(np.arange(federation.n_terminals), np.diff(federation.terminal_offsets))
    task = np.repeat(np.arange(federation.n_tasks), np.diff(federation.test_offsets))
    train_counts = np.bincount(terminal * len(names) + train, minlength=federation.n_terminals * len(names))
    test_counts = np.bincount(task * len(names) + test, minlength=federation.n_tasks * len(names))
    return train_counts.reshape(-1, len(names)), test_counts.reshape(-1, len(names)), names


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"


def _title(federation: Federation) -> str:
    return (
        f"{federation.origin.name}: {federation.n_tasks:,} tasks, {federation.n_terminals:,} terminals, "
        f"{len(federation.X):,} training and {len(federation.test_X):,} test rows"
    )


def _bars(federation: Federation, figure_class: Any) -> Any:
    train_counts, test_counts, names = _counts(federation)
    columns = min(3, federation.n_tasks)
    rows = -(-federation.n_tasks // columns)
    figure = figure_class(figsize=(1.5 + 3.2 * columns, 1.5 + 2.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for b, panel in enumerate(axes.flat):
        if b >= federation.n_tasks:
            panel.set_visible(False)
            continue
        mine = slice(federation.task_offsets[b], federation.task_offsets[b + 1])
        _panel(panel, train_counts[mine], test_counts[b], federation.task_names[b])
        if b % columns == 0:
            panel.set_ylabel("training rows")
        if b + columns >= federation.n_tasks:
            panel.set_xlabel("terminal")
    figure.suptitle(_title(federation), fontsize=11)
    _legend(figure, names)
    return figure


def _panel(panel: Any, train_counts: npt.NDArray[np.int64], test_counts: npt.NDArray[np.int64], name: str) -> None:
    place = np.arange(len(train_counts))
    bottom = np.zeros(len(train_counts), dtype=np.int64)
    for c in range(train_counts.shape[1]):
        panel.bar(place, train_counts[:, c], bottom=bottom, width=0.8, color=COLOURS[c % len(COLOURS)])
        bottom += train_counts[:, c]
    rows = f"{train_counts.sum():,} train + {test_counts.sum():,} test"
    panel.set_title(f"{_short(name)}   {rows}", fontsize=9, loc="left")
    panel.set_xticks(place if len(place) <= 15 else place[:: -(-len(place) // 10)])
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _map(federation: Federation, figure_class: Any) -> Any:
    """Draw terminal sizes as a map and class shares as bars, for the first tasks and terminals."""
    train_counts, _, names = _counts(federation)
    n_tasks = min(federation.n_tasks, MAX_TASKS)
    widths = np.diff(federation.task_offsets)[:n_tasks]
    width = int(min(widths.max(), MAX_COLUMNS))
    sizes = np.full((n_tasks, width), np.nan)
    for b in range(n_tasks):
        start = federation.task_offsets[b]
        stop = min(federation.task_offsets[b + 1], start + width)
        sizes[b, : stop - start] = train_counts[start:stop].sum(axis=1)
    figure = figure_class(figsize=(11, 1.8 + max(2.5, 0.17 * n_tasks)), layout="constrained")
    sizes_panel, shares_panel = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    image = sizes_panel.imshow(sizes, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0)
    figure.colorbar(image, ax=sizes_panel, label="training rows of a terminal", pad=0.01)
    sizes_panel.set_yticks(np.arange(n_tasks), [_short(name) for name in federation.task_names[:n_tasks]], fontsize=7)
    sizes_panel.xaxis.get_major_locator().set_params(integer=True)
    sizes_panel.set_xlabel("terminal" + (f" (the first {width} of each task)" if widths.max() > width else ""))
    by_task = np.add.reduceat(train_counts, federation.task_offsets[:-1], axis=0)[:n_tasks]
    _shares(shares_panel, by_task / by_task.sum(axis=1, keepdims=True))
    restriction = f" (the first {n_tasks} tasks)" if n_tasks < federation.n_tasks else ""
    figure.suptitle(_title(federation) + restriction, fontsize=11)
    _legend(figure, names)
    return figure


def _shares(panel: Any, shares: npt.NDArray[np.float64]) -> None:
    start = np.zeros(len(shares))
    for c in range(shares.shape[1]):
        panel.barh(np.arange(len(shares)), shares[:, c], left=start, height=0.8, color=COLOURS[c % len(COLOURS)])
        start += shares[:, c]
    panel.set_xlim(0, 1)
    panel.set_xlabel("share of training rows")
    panel.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, names: list[str]) -> None:
    from matplotlib.patches import Patch

    coloured = names[: len(COLOURS)]
    handles = [Patch(color=COLOURS[c], label=name) for c, name in enumerate(coloured)]
    if len(names) > len(coloured):
        handles.append(Patch(alpha=0, label=f"… {len(names)} classes, colours repeat"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(7, len(handles)), fontsize=8, frameon=False)
