"""Loggers: a run's numbers, round by round, in the tools that people already look at.

A logger is one small class with three methods. ``--log NAME[:WHERE]`` on the command line picks one from ``LOGGERS``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rhfedmtl.errors import MissingExtraError
from rhfedmtl.registry import Entry, Registry
from rhfedmtl.training.result import Progress, Watcher, mean


class Logger(Protocol):
    """Hears of a run as it goes."""

    def start(self, name: str, configuration: dict[str, Any]) -> None:
        """A run begins."""

    def round(self, number: int, values: dict[str, float]) -> None:
        """A BS iteration is done."""

    def end(self, stopped: str) -> None:
        """The run is over, and why."""


class TensorBoard:
    """Scalars for TensorBoard, in a folder."""

    def __init__(self, where: str = "") -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoard needs its writer: pip install 'rhfedmtl[tensorboard]'") from error
        self._folder, self._make = where or "tensorboard", SummaryWriter

    def start(self, name: str, configuration: dict[str, Any]) -> None:
        """Open a folder for the run, with its configuration as text."""
        self._writer = self._make(f"{self._folder}/{name}")
        self._writer.add_text("configuration", str(configuration))

    def round(self, number: int, values: dict[str, float]) -> None:
        """One scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)

    def end(self, stopped: str) -> None:
        """Close the folder."""
        self._writer.close()


class MLflow:
    """A run in MLflow; without a tracking server in the file mlflow.db."""

    def __init__(self, where: str = "") -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtraError("MLflow is not installed: pip install 'rhfedmtl[mlflow]'") from error
        self._mlflow = mlflow
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table that it creates
        mlflow.set_tracking_uri(where or "sqlite:///mlflow.db")
        mlflow.set_experiment("rhfedmtl")

    def start(self, name: str, configuration: dict[str, Any]) -> None:
        """Open a run with its configuration as parameters."""
        self._mlflow.start_run(run_name=name)
        flat = {f"{k}.{i}": v for k, part in configuration.items() if isinstance(part, dict) for i, v in part.items()}
        plain = {k: v for k, v in configuration.items() if not isinstance(v, dict)}
        self._mlflow.log_params({k: str(v)[:500] for k, v in {**plain, **flat}.items() if v is not None})

    def round(self, number: int, values: dict[str, float]) -> None:
        """All values of the round."""
        self._mlflow.log_metrics(values, step=number)

    def end(self, stopped: str) -> None:
        """Close the run."""
        self._mlflow.set_tag("stopped", stopped)
        self._mlflow.end_run()


LOGGERS: Registry[Entry[Logger]] = Registry(
    "logger",
    "loggers",
    Entry,
    {
        "tensorboard": Entry("curves in a folder of TensorBoard", "rhfedmtl.runs.tracking:TensorBoard"),
        "mlflow": Entry("curves in MLflow", "rhfedmtl.runs.tracking:MLflow"),
    },
)
"""Called with where it writes, an entry makes a `Logger`."""


def logger(text: str) -> Logger:
    """Logger from its name and, after a colon, where it writes."""
    name, _, where = text.partition(":")
    return LOGGERS[name](where)


def follow(watch: Watcher | None, loggers: Sequence[Logger]) -> Watcher | None:
    """A watcher that tells the loggers of every BS iteration, and otherwise does as ``watch``."""
    if not loggers:
        return watch

    def watched(progress: Progress) -> bool | None:
        for each in loggers:
            each.round(progress.round, values(progress))
        return None if watch is None else watch(progress)

    return watched


def values(progress: Progress) -> dict[str, float]:
    """What is worth a curve: metrics, gap, what is left of every budget, H."""
    found = {name: mean(by_task) for name, by_task in progress.metrics.items()}
    found |= {f"left_{name}": left for name, left in progress.left.items()}
    found["local_steps"] = float(np.median(progress.plan.local_steps))
    if progress.certificate is not None:
        found |= {"primal": progress.certificate.primal, "gap": progress.certificate.gap}
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}
