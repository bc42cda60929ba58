"""What a base station tells the cloud, checked against what it was asked: one that lies is dropped, others go on.

`AnswerChecks` checks the form. A station cannot speak for others, claim more work than its orders, or count other
samples than its roster has. It cannot say that messages weighed less than they must, or let them count for more than
they can. It cannot say anything on which a training would break. `StationBounds` checks the numbers: reports and sums
must fit the rows and the dual box of all terminals of the station (`roles.plausibility`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.deploy.station.masked import DEALS
from rhfedmtl.deploy.station.questions import MOST_SENT
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.maths.kernels.rounds import CURVE, dual_length
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.message_sizes import masking_bytes
from rhfedmtl.roles.messages import WIDE, MomentsReport, Report, StationSums, Sums, Vector
from rhfedmtl.roles.plausibility import EXACT, FAR, Bounds

BODIES = {"assign": "done", "scale": "done", "centre": "done", "hide": "done", "transfer": "done", "trial": "metrics"}
"""Kinds of answers that are not called as what was asked for."""
LARGEST = 1e100
ALONE = ("assign", "report", "models", "roster")
"""Requests that a station answers without a word to its terminals."""
SLACK = 2
"""How many times its size a message may count: whole numbers, deals that are made anew, what links add."""
FIELDS = 256
"""Bytes of a message besides its numbers, at most."""
REMEMBERED = 8
"""Rosters of a station that answers may speak of: one that is sent again may be older than the last."""

Homes = Mapping[int, int]


class Members(NamedTuple):
    """Those of a station, as its roster had them."""

    samples: int
    terminals: int


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
        self._channel, self._profile, self._classes = method.channel, method.profile_length, len(job.classes)
        kinds = method.channel.dtype, method.channel.for_gradients.dtype
        self._update = framed(rows * width * min(kind.itemsize for kind in kinds))
        self._members: defaultdict[int, dict[int, Members]] = defaultdict(dict)
        self._kept_out: dict[int, int] = {}

    def answer(self, station: int, request: wire.Request, answer: wire.Answer, homes: Homes) -> None:
        """Refuse an answer that does not fit the request."""
        asked, name = request.WhichOneof("body"), answer.WhichOneof("body")
        terminals = self._terminals(station, homes)
        self._limit_below(station, request, answer, terminals)
        if name is None:
            if not answer.trouble:
                raise PeerError("an answer that says nothing")
            answer.trouble = answer.trouble[:400]
            if asked == "roster":
                raise PeerError(f"no roster, but trouble: {answer.trouble}")
            return
        if name != BODIES.get(str(asked), asked):
            raise PeerError(f"{name} as an answer to {asked}")
        content = getattr(answer, name)
        sender = {"report": "task", "sums": "task", "moments": "sender", "labels": "sender"}.get(name)
        if sender is not None and getattr(content, sender) != station:
            raise PeerError(f"station {station} speaks for station {getattr(content, sender)}")
        if name in ("report", "sums") and not self._counts(station, content):
            answer.ClearField(name)
            answer.trouble = f"station {station} tells of members that are in no roster of it"
        elif name == "round":
            self._round(request.round, content, terminals)
        elif name == "sums":
            self._sums(request.sums, content)
        elif name == "roster":
            self.roster(station, content, homes)
        elif name in self._checks:
            self._checks[name](content)
        if answer.HasField(name) and answer.bytes_below < (least := self._least_below(station, answer)):
            raise PeerError(f"{answer.bytes_below} bytes to and from terminals, where {name} take {least}")

    def roster(self, station: int, roster: wire.Roster, homes: Homes) -> None:
        """Refuse members that the network does not know, or that bring more samples than one may.

        Reports and sums over the same members are held against what it says.
        """
        seen: set[int] = set()
        for seat in roster.seats:
            if seat.terminal not in homes or seat.terminal in seen:
                raise PeerError(f"a roster with terminal {seat.terminal}, which is unknown or there twice")
            if not 0 < seat.n_samples <= self._limits.samples:
                raise PeerError(f"terminal {seat.terminal} with {seat.n_samples} samples")
            seen.add(seat.terminal)
        known = self._members[station]
        known.pop(roster.membership, None)
        known[roster.membership] = Members(sum(seat.n_samples for seat in roster.seats), len(roster.seats))
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
        self._kept_out[station] = sum(homes.get(t) == station for t in roster.quarantined)

    def _terminals(self, station: int, homes: Homes) -> int:
        """Terminals that a station may ask: those that belong to it, or have not left it yet."""
        last = next(reversed(self._members[station].values()), Members(0, 0))
        return max(last.terminals, sum(home == station for home in homes.values()))

    def _counts(self, station: int, said: wire.Report | wire.StationSums) -> bool:
        """Whether the members are known that a station speaks of; refused where they have not so many samples."""
        known = self._members[station].get(said.membership)
        if known is not None and said.n_samples != known.samples:
            raise PeerError(f"{said.n_samples} samples, where the roster of station {station} has {known.samples}")
        return known is not None

    # What messages weigh.

    def _limit_below(self, station: int, request: wire.Request, answer: wire.Answer, terminals: int) -> None:
        """Bytes to and from terminals count for no more than what they were asked can weigh."""
        asked, said = str(request.WhichOneof("body")), answer.bytes_below
        if said > 4 * MOST_SENT * self._message * terminals or (said and (asked in ALONE or answer.HasField("round"))):
            raise PeerError(f"{said} bytes to and from {terminals} terminals for {asked}")
        down, up = self._most(request, terminals)
        times = 1 + self._kept_out.get(station, 0)  # without each that told what cannot be, all are asked anew
        answer.bytes_below = min(said, times * terminals * (down + up))

    def _most(self, request: wire.Request, terminals: int) -> tuple[int, int]:
        """Bytes to and from one terminal that a request may lead to."""
        asked, model = request.WhichOneof("body"), math.prod(self._matrix)
        told, numbers = request.ByteSize(), 0
        if asked == "round":
            told, numbers = 8 * model, model + CURVE + self._profile
        elif asked == "sums":
            models, points = len(request.sums.models), sum(request.sums.points.shape[:1])
            numbers = points + self._dual_length + model + 1 + models
        elif asked in ("moments", "labels"):  # under masks, two sums
            told, numbers = 8 * self._features, 2 * WIDE * (1 + self._features)
        elif asked == "trial":
            numbers = WIDE * (2 + self._classes**2)
        elif asked == "transfer":
            numbers = WIDE * model
        down, up = masking_bytes(terminals, self._channel.least) if self._channel.sums_only else (0, 0)
        deals = DEALS * (4 * (down + up) + 8 * terminals) if self._channel.sums_only else 0
        down, up = MOST_SENT * framed(told + FIELDS) + down, framed(8 * numbers + FIELDS) + up
        return SLACK * (down + deals), SLACK * (up + deals)

    def _least_below(self, station: int, answer: wire.Answer) -> int:
        """Bytes to and from terminals without which there is no such answer."""
        name, of = answer.WhichOneof("body"), 1
        if name == "sums" and answer.sums.dual.shape[0]:  # a private certificate may be told again, or of few
            parts, of = answer.sums, self._members[station][answer.sums.membership].terminals
            of -= min(of, len(answer.sums.absent))
            told = 8 * sum(math.prod(part.shape) for part in (parts.losses, parts.dual, parts.gradient))
        elif name == "moments":
            told = 2 * self._features * self._channel.moments_dtype.itemsize
        elif name == "labels":
            told = len(answer.labels.sums.data)
        else:
            return 0
        return of * (framed(0) + framed(told))

    def _round(self, asked: wire.RoundRequest, said: wire.RoundResult, terminals: int) -> None:
        """A round as it was ordered: who worked, how long at most, and what its messages can have weighed."""
        if said.round != asked.round:
            raise PeerError(f"round {said.round} as an answer to round {asked.round}")
        steps = dict(zip(asked.terminals, asked.local_steps, strict=True))
        if codec.array(said.gains, "gains").shape != (CURVE,) or codec.finite(said.factor, "a factor") < 0.0:
            raise PeerError(f"gains of shape {tuple(said.gains.shape)} and a factor of {said.factor}")
        if len({effort.terminal for effort in said.efforts}) < len(said.efforts):
            raise PeerError("a terminal that worked twice in a round")
        most = self._most(wire.Request(round=asked), terminals)
        for effort in said.efforts:
            if steps.get(effort.terminal) != effort.local_steps:
                raise PeerError(f"{effort.local_steps} steps of terminal {effort.terminal}, which were not ordered")
            self._effort(effort, asked.deadline + self._patience, most)

    def _effort(self, effort: wire.Effort, longest: float, most: tuple[int, int]) -> None:
        """Time counts for no more than the cloud would have waited, and bytes for no more than messages can weigh."""
        if not 0.0 <= effort.work_seconds <= effort.wait_seconds:
            raise PeerError(
                f"{effort.work_seconds:g} of {effort.wait_seconds:g} s of work of terminal {effort.terminal}"
            )
        effort.work_seconds = min(effort.work_seconds, longest)
        effort.wait_seconds = min(effort.wait_seconds, longest)
        if max(effort.bytes_down, effort.bytes_up) > MOST_SENT * self._message:
            raise PeerError(f"{effort.bytes_down + effort.bytes_up} bytes of terminal {effort.terminal} in a round")
        if effort.answered and (effort.bytes_down < framed(0) or effort.bytes_up < self._update):
            raise PeerError(
                f"{effort.bytes_down} bytes to terminal {effort.terminal} and {effort.bytes_up} back, where its update "
                f"alone takes {self._update}"
            )
        effort.bytes_down, effort.bytes_up = min(effort.bytes_down, most[0]), min(effort.bytes_up, most[1])

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
        if (sums.worst is None) == bool(sums.absent) or (asked.gradient and sums.absent):
            raise PeerError(f"sums without terminals {sums.absent}, and what their rows add, do not fit together")
        if sums.worst is not None and (sums.worst.shape != sums.losses.shape or (sums.worst < 0.0).any()):
            raise PeerError(f"rows of absent terminals add {sums.worst.tolist()[:3]}, for {len(sums.losses)} points")
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
            unknown = name in ("auc", "balanced_accuracy") and math.isnan(value)  # of test rows of one class
            if name not in METRICS or not (unknown or 0.0 <= value <= (LARGEST if name == "rmse" else 1.0)):
                raise PeerError(f"a test metric {name[:40]!r} of {value:g}")


@dataclass(frozen=True)
class StationBounds:
    """Check reports and sums of stations by the bounds of all their terminals together.

    With n samples of mean weight at most w, rows no longer than R and a dual box that ends at B, ‖v_b‖ ≤ B w R. The sum
    of the losses of zero models gives the weights of the rows, and the other sums must fit it. ``row_norm`` is R;
    where it, or B, is infinite, ``limits.norm`` alone bounds a report.
    """

    method: Method
    limits: Limits
    columns: int
    row_norm: float

    def check_report(self, report: Report, terminals: int) -> None:
        """Refuse v_b that no dual variables in the box can give; noise of all rounds so far may have been added."""
        if not self.method.has_duals:
            return
        n, channel = max(report.n_samples, 1), self.method.channel
        bounds = self._bounds(report.task, n)
        if channel.noised:
            variance = float(channel.noise_variance(float(terminals))) * report.round * report.v.size
            spread = FAR * math.sqrt(variance)
            bounds = replace(bounds, weight=bounds.weight + spread, largest=bounds.largest + spread)
        bounds.check_share(n * report.v, "a report, by its samples,")

    def check_sums(self, sums: StationSums, models: Vector, points: Vector, share: Vector | None) -> None:
        """Refuse sums that rows, box and the reported ``share`` U_b do not allow; without it, as if it were unknown."""
        bounds = self._bounds(sums.task, max(sums.n_samples, 1))
        bounds = replace(bounds, columns=models.shape[1])
        of_station = Sums(sums.task, 0, sums.losses, sums.dual, sums.gradient, sums.residual)
        zero = np.flatnonzero(~points.any(axis=1))
        if len(zero) and math.isfinite(bounds.zero_loss):
            loss, largest = float(sums.losses[zero[0]]), bounds.zero_loss
            if loss > EXACT * largest:
                raise bounds.refuse(f"a loss of zero models of {loss:.3g}, where {largest:.3g} is possible")
            bounds = replace(bounds, weight=bounds.weight * loss / largest)
        bounds.check_sums(of_station, models, points, share)

    def check_term(self, sums: StationSums, model: Vector, noise: float, terminals: int) -> None:
        """Refuse a sum for a private certificate; masked terminals add noise for the least number that must answer."""
        channel = self.method.channel
        spread = noise * math.sqrt(max(1.0, terminals / channel.least))
        term = Sums(sums.task, 0, sums.losses, sums.dual, sums.gradient)
        replace(self._bounds(sums.task, max(sums.n_samples, 1)), columns=len(model)).check_term(term, model, spread)

    def _bounds(self, station: int, n: int) -> Bounds:
        weight = self.limits.weight * n
        return Bounds(station, self.method, self.columns, weight, self.row_norm, self.limits.norm * n, "station")
