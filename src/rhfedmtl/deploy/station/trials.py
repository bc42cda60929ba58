"""Test metrics of a model: on the test rows of a station, or on the test rows of its terminals.

`Requests` calls `Trials.answer`. If the station has test rows, it measures there. Otherwise its terminals count their
predictions by class (for a regression: sum the squared errors), and send only these sums, in the clear or under masks.
"""

from __future__ import annotations

import time

import numpy as np

from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.station.masked import sum_under_masks
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions, checked_tally
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.maths import metrics
from rhfedmtl.roles import round_zero
from rhfedmtl.roles.messages import WIDE_FIELDS, Trial, Vector
from rhfedmtl.roles.summed import SummingStation, SumRequest


class Trials:
    """Measures models for the cloud on the test rows of a station."""

    def __init__(self, config: StationConfig, memory: Memory, members: TerminalSessions) -> None:
        self._config, self._memory, self._members = config, memory, members
        self._tests: jobs.NodeRows | None = None

    async def answer(self, content: wire.TrialRequest, answer: wire.Answer) -> None:
        """Answer with the metrics of a model; empty if there are no test rows."""
        model, number = codec.array(content.model, "a model"), time.monotonic_ns()
        if self._config.test:
            values = self._measure_locally(model)
        elif self._memory.masked is not None:
            values = await self._measure_masked(self._memory.masked, Trial(number, model))
        else:
            message = wire.TerminalDown(trial=wire.Trial(number=number, model=content.model))
            present = await self._members.attendance.gather(self._memory.station.members)
            question = await self._members.questions.ask(
                "tally",
                dict.fromkeys(present, message),
                self._config.waits.answer,
                lambda tally: bool(tally.number == number),
            )
            values = _from_tallies([arrival.content for arrival in question.arrived.values()])
        answer.metrics.SetInParent()
        answer.metrics.values.update(values)

    def load(self) -> None:
        """Read the test rows of the station after the job has arrived; refuse rows that do not fit the job."""
        job = self._memory.job
        assert job is not None
        if self._config.test and self._tests is None:
            self._tests = jobs.load_rows(self._config.folder / self._config.test, job.features, tuple(job.classes))

    def _measure_locally(self, model: Vector) -> dict[str, float]:
        """Return the metrics on the test rows of the station."""
        self.load()
        job, scaling = self._memory.job, self._memory.agreed.scaling
        assert job is not None
        assert self._tests is not None
        if not len(self._tests.y):
            return {}
        X = self._tests.X if scaling is None else scaling.scaler.transform(self._tests.X)
        return metrics.measure(self._tests.y, metrics.scores(X, model), len(job.classes))

    async def _measure_masked(self, role: SummingStation, trial: Trial) -> dict[str, float]:
        """Return the metrics from a masked sum over the counts of all members; empty if a member is missing."""
        classes = len(self._memory.job.classes) if self._memory.job is not None else 0
        await self._members.attendance.gather(role.members)
        async with self._memory.turn:
            orders: dict[int, SumRequest] = dict.fromkeys(sorted(role.members), trial)
            length = WIDE_FIELDS * (2 + classes * classes)
            summed = await sum_under_masks(self._members, orders, length, self._config.waits.answer, require_all=True)
        if summed.words is None:
            return {}
        rows, squares, *counts = round_zero.to_numbers(summed.words).tolist()
        matrix = codec.tensor(np.reshape(counts, (classes, classes)))
        return _from_tallies([checked_tally(wire.Tally(rows=max(0, round(rows)), squares=squares, counts=matrix))])


def _from_tallies(tallies: list[wire.Tally]) -> dict[str, float]:
    """Return metrics from counts. The area under the curve needs single rows, so it is missing."""
    rows = sum(tally.rows for tally in tallies)
    if not rows:
        return {}
    counts = np.sum([codec.array(tally.counts, "counts") for tally in tallies], axis=0)
    if not counts.size:
        return {"rmse": float(np.sqrt(sum(tally.squares for tally in tallies) / rows))}
    class_rows = counts.sum(axis=1)
    present = class_rows > 0
    balanced = np.mean(np.diag(counts)[present] / class_rows[present]) if present.sum() > 1 else np.nan
    return {"accuracy": float(np.trace(counts) / rows), "balanced_accuracy": float(balanced)}
