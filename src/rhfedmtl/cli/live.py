"""Live progress lines on stderr: for a run, for the runs of a sweep, and for the budgets of a plan.

A command imports this module only when it starts, because rich and the training code take time to load. Without a
terminal, or with --json, the functions show nothing.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column

from rhfedmtl.cli.text import amount
from rhfedmtl.roles.words import by_solver
from rhfedmtl.training.config import GOOD_ENOUGH, OPEN_ROUNDS, RunConfig
from rhfedmtl.training.result import Progress, mean


@contextmanager
def watched(*, live: bool, share_done: ShareDone) -> Iterator[Any]:
    """Show progress of a run; Ctrl-C ends the run after the current round and keeps the models.

    Before the first round ends there is nothing to keep, so Ctrl-C ends the run at once.
    """
    started = stop = False

    def interrupt(*_: Any) -> None:
        nonlocal stop
        if stop or not started:
            raise KeyboardInterrupt
        stop = True

    def should_continue(_: Progress) -> bool:
        nonlocal started
        started = True
        return not stop

    previous_handler = signal.signal(signal.SIGINT, interrupt)
    try:
        if not live:
            yield should_continue
            return
        columns = (
            BarColumn(8),
            TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
            TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=1.0, state="starting (the first run compiles for some seconds)")

            def show(progress: Progress) -> bool:
                bar.update(task, completed=share_done(progress), state=_state(progress))
                return should_continue(progress)

            yield show
    finally:
        signal.signal(signal.SIGINT, previous_handler)


class ShareDone:
    """Share of a run that is complete: by budgets, by server iterations, or by the gap relative to its target.

    The gap falls by about the same factor in every round, so its logarithm grows with time.
    """

    def __init__(self, config: RunConfig) -> None:
        self._limits = dict(config.resources()[1])
        self._cloud_rounds = config.options.cloud_rounds
        self._target = config.target_gap
        self._first: float | None = None

    def __call__(self, progress: Progress) -> float:
        """Return the share from 0 to 1."""
        shares = [1.0 - progress.left.get(name, limit) / limit for name, limit in self._limits.items() if limit > 0.0]
        if self._cloud_rounds:
            shares.append(progress.cloud_round / self._cloud_rounds)
        certificate = progress.certificate
        if shares and not self._target:
            return max(shares)
        if certificate is None or not 0.0 < certificate.gap < float("inf"):
            shares.append(progress.round / OPEN_ROUNDS)
        else:
            target = self._target or GOOD_ENOUGH * certificate.gap / certificate.relative_gap
            self._first = self._first or certificate.gap
            share = math.log(self._first / certificate.gap) / max(math.log(self._first / target), 1e-9)
            shares.append(min(max(0.0, share), 1.0))
        return max(shares)


def _state(progress: Progress) -> str:
    parts = [f"round {progress.round}" + (f" ({by_solver(progress.rounds_by_solver)})" if progress.round else "")]
    parts += [f"{name} {mean(progress.metrics[name]):.3f}" for name in ("accuracy", "rmse") if name in progress.metrics]
    if progress.certificate is not None:
        parts.append(f"relative gap {progress.certificate.relative_gap:.1e}")
    parts += [f"{name} left {amount(rest)}" for name, rest in progress.left.items() if rest != float("inf")]
    return "  ".join(parts)


@contextmanager
def runs_bar(*, live: bool) -> Iterator[Any]:
    """Show the number of finished runs, the time left, and method, budget and seed of the last finished run."""
    if not live:
        yield None
        return
    run = TextColumn("{task.fields[run]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (BarColumn(12), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"), run)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, run="")
        yield lambda done, total, run: bar.update(task, completed=done, total=total, run=f"last: {run}")


@contextmanager
def budgets_bar(*, live: bool) -> Iterator[Any]:
    """Show how many budgets a search has tried, and the result of the last budget."""
    if not live:
        yield lambda *_: None
        return
    columns = (BarColumn(24), TextColumn("{task.completed}/{task.total} budgets  {task.fields[state]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, state="first budget")

        def show(done: int, total: int, point: Any) -> None:
            bar.update(task, completed=done, total=total, state=f"{amount(point.budget)} gives {point.result:.4g}")

        yield show
