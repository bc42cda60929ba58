"""Loggers: send the numbers of each round to TensorBoard or MLflow.

``--log NAME[:WHERE]`` selects a logger from ``LOGGERS``. To add a logger, write a class with the three methods of
`Logger` and register it.
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
    """Receiver of the numbers of a run."""

    def start(self, name: str, configuration: dict[str, Any]) -> None:
        """Start a run."""

    def round(self, number: int, values: dict[str, float]) -> None:
        """Log the values of a BS iteration."""

    def end(self, stopped: str) -> None:
        """End the run; ``stopped`` is the reason."""


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
        """Write a scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)

    def end(self, stopped: str) -> None:
        """Close the folder."""
        self._writer.close()


class MLflow:
    """A run in MLflow; without a tracking server, in the file mlflow.db."""

    def __init__(self, where: str = "") -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtraError("MLflow is not installed: pip install 'rhfedmtl[mlflow]'") from error
        self._mlflow = mlflow
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table that it creates
        mlflow.set_tracking_uri(where or "sqlite:///mlflow.db")
        mlflow.set_experiment("rhfedmtl")

    def start(self, name: str, configuration: dict[str, Any]) -> None:
        """Open a run with its configuration as parameters."""
        self._mlflow.start_run(run_name=name)
        flat = {f"{k}.{i}": v for k, part in configuration.items() if isinstance(part, dict) for i, v in part.items()}
        plain = {k: v for k, v in configuration.items() if not isinstance(v, dict)}
        self._mlflow.log_params({k: str(v)[:500] for k, v in {**plain, **flat}.items() if v is not None})

    def round(self, number: int, values: dict[str, float]) -> None:
        """Log all values of the round."""
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
"""Entries make a `Logger` from the place that it writes to."""


def logger(text: str) -> Logger:
    """Make a logger from its name and, after a colon, the place that it writes to."""
    name, _, where = text.partition(":")
    return LOGGERS[name](where)


def follow(watch: Watcher | None, loggers: Sequence[Logger]) -> Watcher | None:
    """Return a watcher that passes every BS iteration to the loggers and then calls ``watch``."""
    if not loggers:
        return watch

    def watched(progress: Progress) -> bool | None:
        for receiver in loggers:
            receiver.round(progress.round, values(progress))
        return None if watch is None else watch(progress)

    return watched


def values(progress: Progress) -> dict[str, float]:
    """Return the numbers to plot: metrics, gap, remaining budget, H."""
    numbers = {name: mean(by_task) for name, by_task in progress.metrics.items()}
    numbers |= {f"left_{name}": amount for name, amount in progress.left.items()}
    numbers["local_steps"] = float(np.median(progress.plan.local_steps))
    if progress.certificate is not None:
        numbers |= {"primal": progress.certificate.primal, "gap": progress.certificate.gap}
    return {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
