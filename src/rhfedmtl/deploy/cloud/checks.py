"""What a base station tells the cloud, checked against what it was asked: one that lies is dropped, others go on.

A station may still be wrong about its own task. It cannot speak for others, claim more work than was ordered, or say
anything on which a training would break.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.deploy.station.terminal_sessions import MOST_SENT
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.kernels.rounds import CURVE, dual_length
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.roles.messages import MomentsReport, Report, StationSums

BODIES = {"assign": "done", "scale": "done", "centre": "done", "hide": "done", "transfer": "done", "trial": "metrics"}
"""Kinds of answers that are not called as what was asked for."""
LARGEST = 1e100

Homes = Mapping[int, int]


class AnswerChecks:
    """Knows the shapes of a job, the limits of the cloud, and how long it waits for a station."""

    def __init__(self, job: wire.Job, limits: Limits, patience: float) -> None:
        method = method_of(job)
        (rows, width), shared = jobs.matrix_of(job, method)
        self._matrix, self._shared, self._features = (rows, width), (shared, width), job.features
        self._limits, self._patience, self._dual_length = limits, patience, dual_length(method.loss)
        self._tells_residual = method.tells_residual
        self._checks: dict[str, Callable[[Any], None]] = {
            "report": self._report,
            "moments": self._moments,
            "labels": codec.read,
            "models": self._models,
            "metrics": self._metrics,
        }
        self._message = jobs.message_limit(job, method, limits)

    def answer(self, station: int, request: wire.Request, answer: wire.Answer, homes: Homes) -> None:
        """Refuse an answer that does not fit the request."""
        asked, name = request.WhichOneof("body"), answer.WhichOneof("body")
        terminals = sum(home == station for home in homes.values())
        if answer.bytes_below > 4 * MOST_SENT * self._message * terminals:
            raise PeerError(f"{answer.bytes_below} bytes to and from {terminals} terminals")
        if name is None:
            if not answer.trouble:
                raise PeerError("an answer that says nothing")
            answer.trouble = answer.trouble[:400]
            return
        if name != BODIES.get(str(asked), asked):
            raise PeerError(f"{name} as an answer to {asked}")
        content = getattr(answer, name)
        sender = {"report": "task", "sums": "task", "moments": "sender", "labels": "sender"}.get(name)
        if sender is not None and getattr(content, sender) != station:
            raise PeerError(f"station {station} speaks for station {getattr(content, sender)}")
        if name == "round":
            self._round(request.round, content)
        elif name == "sums":
            self._sums(request.sums, content)
        elif name == "roster":
            self.roster(content, homes)
        elif name in self._checks:
            self._checks[name](content)

    def roster(self, roster: wire.Roster, homes: Homes) -> None:
        """Refuse members that the network does not know, or that bring more samples than one may."""
        seen: set[int] = set()
        for seat in roster.seats:
            if seat.terminal not in homes or seat.terminal in seen:
                raise PeerError(f"a roster with terminal {seat.terminal}, which is unknown or there twice")
            if not 0 < seat.n_samples <= self._limits.samples:
                raise PeerError(f"terminal {seat.terminal} with {seat.n_samples} samples")
            seen.add(seat.terminal)

    def _round(self, asked: wire.RoundRequest, said: wire.RoundResult) -> None:
        """A round as it was ordered: who worked, how long at most, and what its messages can have weighed."""
        if said.round != asked.round:
            raise PeerError(f"round {said.round} as an answer to round {asked.round}")
        steps = dict(zip(asked.terminals, asked.local_steps, strict=True))
        if codec.array(said.gains, "gains").shape != (CURVE,) or codec.finite(said.factor, "a factor") < 0.0:
            raise PeerError(f"gains of shape {tuple(said.gains.shape)} and a factor of {said.factor}")
        if len({effort.terminal for effort in said.efforts}) < len(said.efforts):
            raise PeerError("a terminal that worked twice in a round")
        for effort in said.efforts:
            if steps.get(effort.terminal) != effort.local_steps:
                raise PeerError(f"{effort.local_steps} steps of terminal {effort.terminal}, which were not ordered")
            self._effort(effort, asked.deadline + self._patience)

    def _effort(self, effort: wire.Effort, longest: float) -> None:
        """Time counts for no more than the cloud would have waited."""
        if not 0.0 <= effort.work_seconds <= effort.wait_seconds:
            raise PeerError(
                f"{effort.work_seconds:g} of {effort.wait_seconds:g} s of work of terminal {effort.terminal}"
            )
        effort.work_seconds = min(effort.work_seconds, longest)
        effort.wait_seconds = min(effort.wait_seconds, longest)
        if max(effort.bytes_down, effort.bytes_up) > MOST_SENT * self._message:
            raise PeerError(f"{effort.bytes_down + effort.bytes_up} bytes of terminal {effort.terminal} in a round")

    def _report(self, report: wire.Report) -> None:
        v = codec.from_wire(Report, report).v
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(v))
        if v.shape != self._shared or norm > self._limits.norm:
            raise PeerError(f"a report of shape {v.shape} and norm {norm:.3g}")

    def _sums(self, asked: wire.SumsRequest, said: wire.StationSums) -> None:
        sums = codec.from_wire(StationSums, said)
        if asked.HasField("noise"):  # one number, which noise may have made negative
            if (sums.losses.shape, sums.dual.size, sums.gradient.size, sums.residual) != ((1,), 0, 0, None):
                raise PeerError("more than a private certificate is made from")
            return
        if sums.losses.shape != tuple(asked.points.shape[:1]) or (sums.losses < 0.0).any():
            raise PeerError(f"loss sums of shape {sums.losses.shape} for points of shape {tuple(asked.points.shape)}")
        slope = tuple(asked.models[0].shape) if asked.gradient else (0,)
        if sums.dual.shape != (self._dual_length,) or sums.gradient.shape != slope:
            raise PeerError(f"dual sums of shape {sums.dual.shape} and a gradient of shape {sums.gradient.shape}")
        residual, needed = sums.residual, (1 + len(asked.models),)
        if (residual is not None) != self._tells_residual or (residual is not None and residual.shape != needed):
            raise PeerError("sums without what was kept back of rounded updates, or with something else")

    def _moments(self, moments: wire.MomentsReport) -> None:
        if codec.from_wire(MomentsReport, moments).mean.shape != (self._features,):
            raise PeerError(f"moments of {tuple(moments.mean.shape)} features, the job has {self._features}")

    def _models(self, models: wire.Tensor) -> None:
        if codec.array(models, "models").shape != self._matrix:
            raise PeerError(f"models of shape {tuple(models.shape)}")

    def _metrics(self, metrics: wire.Metrics) -> None:
        for name, value in metrics.values.items():
            if name not in METRICS or value < 0.0 or value > (LARGEST if name == "rmse" else 1.0):
                raise PeerError(f"a test metric {name[:40]!r} of {value:g}")
