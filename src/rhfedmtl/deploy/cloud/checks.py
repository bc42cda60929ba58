"""Check the messages of base stations, so a faulty or lying station cannot harm a training.

`AnswerChecks` checks the form of each answer against its request; `StationSessions` calls it for every message. It
refuses an answer with a `PeerError`. A station cannot answer for other stations, report more work than its orders, or
count other samples than its roster. It cannot report fewer bytes than its messages have, and too many bytes are cut to
the largest possible size. Shapes and numbers that would break the training are refused as well.

`StationBounds` checks the numbers of reports and sums; `RemoteNetwork` calls it. They must fit the rows and the dual
box of all terminals of the station (`roles.plausibility`). A station that breaks a bound is excluded, and the other
stations continue.
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
from rhfedmtl.roles.messages import WIDE_FIELDS, MomentsReport, MomentsRequest, Report, StationSums, Sums, Vector
from rhfedmtl.roles.plausibility import EXACT, FAR, Bounds, impossible_columns

BODIES = {"assign": "done", "scale": "done", "centre": "done", "hide": "done", "transfer": "done", "trial": "metrics"}
"""Answer to each kind of request whose answer has another name than the request."""
LARGEST_ERROR = 1e100
"""Largest root mean squared error that a station may report."""
STATION_ONLY = ("assign", "report", "models", "roster")
"""Requests that a station answers without a message to its terminals."""
ROUND_SLACK = 2
"""Allow this many times the computed size of a message, for whole numbers on the wire, repeated deals and links."""
FIELDS = 256
"""Largest number of bytes of a message in addition to its numbers."""
REMEMBERED_ROSTERS = 8
"""Remember so many rosters of a station: an answer that is sent again may refer to an older roster."""

Homes = Mapping[int, int]
"""Station of each terminal."""


class Members(NamedTuple):
    """Number of terminals of a station and of their samples, from its roster."""

    samples: int
    terminals: int


class AnswerChecks:
    """Checks each answer of a station against its request, and every roster.

    Some checks correct an answer instead of refusing it: too many bytes or seconds are cut to the largest possible
    value, and an answer about unknown members becomes an answer with ``trouble``.

    Parameters
    ----------
    job : wire.Job
        Gives the shapes of all arrays.
    limits : Limits
        Limits of the cloud for samples, norms and bytes.
    patience : float
        Seconds for which the cloud waits for a station.
    """

    def __init__(self, job: wire.Job, limits: Limits, patience: float) -> None:
        method = method_of(job)
        (rows, width), shared = jobs.matrix_of(job, method)
        self._matrix, self._shared, self._features = (rows, width), (shared, width), job.features
        self._limits, self._patience, self._dual_length = limits, patience, dual_length(method.loss)
        self._tells_residual = method.tells_residual
        self._checks: dict[str, Callable[[Any], None]] = {
            "report": self._report,
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
        """Refuse an answer of a station that does not fit the request."""
        kind, name = request.WhichOneof("body"), answer.WhichOneof("body")
        terminals = self._terminals(station, homes)
        self._limit_below(station, request, answer, terminals)
        if name is None:
            if not answer.trouble:
                raise PeerError("an empty answer")
            answer.trouble = answer.trouble[:400]
            if kind == "roster":
                raise PeerError(f"no roster, but trouble: {answer.trouble}")
            return
        if name != BODIES.get(str(kind), kind):
            raise PeerError(f"{name} as an answer to {kind}")
        content = getattr(answer, name)
        sender = {"report": "task", "sums": "task", "moments": "sender", "labels": "sender"}.get(name)
        if sender is not None and getattr(content, sender) != station:
            raise PeerError(f"station {station} speaks for station {getattr(content, sender)}")
        if name in ("report", "sums") and not self._knows_members(station, content):
            answer.ClearField(name)
            answer.trouble = f"station {station} tells of members that are in no roster of it"
        elif name == "round":
            self._round(request.round, content, terminals)
        elif name == "sums":
            self._sums(request.sums, content)
        elif name == "moments":
            self._moments(request.moments, content)
        elif name == "roster":
            self.roster(station, content, homes)
        elif name in self._checks:
            self._checks[name](content)
        if answer.HasField(name) and answer.bytes_below < (smallest := self._smallest_below(station, answer)):
            raise PeerError(f"{answer.bytes_below} bytes to and from terminals, where {name} take {smallest}")

    def roster(self, station: int, roster: wire.Roster, homes: Homes) -> None:
        """Refuse a roster with unknown or repeated terminals, or with too many samples of a terminal.

        Later reports and sums over the same members must have the same number of samples.
        """
        terminals: set[int] = set()
        for seat in roster.seats:
            if seat.terminal not in homes or seat.terminal in terminals:
                raise PeerError(f"a roster with terminal {seat.terminal}, which is unknown or there twice")
            if not 0 < seat.n_samples <= self._limits.samples:
                raise PeerError(f"terminal {seat.terminal} with {seat.n_samples} samples")
            terminals.add(seat.terminal)
        rosters = self._members[station]
        rosters.pop(roster.membership, None)
        rosters[roster.membership] = Members(sum(seat.n_samples for seat in roster.seats), len(roster.seats))
        if len(rosters) > REMEMBERED_ROSTERS:
            del rosters[next(iter(rosters))]
        self._kept_out[station] = sum(homes.get(t) == station for t in roster.quarantined)

    def _terminals(self, station: int, homes: Homes) -> int:
        """Return the number of terminals that a station may ask: they belong to it, or have not left it yet."""
        last = next(reversed(self._members[station].values()), Members(0, 0))
        return max(last.terminals, sum(home == station for home in homes.values()))

    def _knows_members(self, station: int, content: wire.Report | wire.StationSums) -> bool:
        """Return True if a roster has the members of a report or of sums; refuse another number of samples."""
        members = self._members[station].get(content.membership)
        if members is not None and content.n_samples != members.samples:
            raise PeerError(f"{content.n_samples} samples, where the roster of station {station} has {members.samples}")
        return members is not None

    # Sizes of messages.

    def _limit_below(self, station: int, request: wire.Request, answer: wire.Answer, terminals: int) -> None:
        """Cut the reported bytes to and from terminals to the largest possible size; refuse absurd numbers."""
        kind, reported = str(request.WhichOneof("body")), answer.bytes_below
        silent = kind in STATION_ONLY or answer.HasField("round")  # the efforts of a round have their own bytes
        if reported > 4 * MOST_SENT * self._message * terminals or (reported and silent):
            raise PeerError(f"{reported} bytes to and from {terminals} terminals for {kind}")
        down, up = self._largest(request, terminals)
        # Each terminal that goes into quarantine may have caused another request to all terminals.
        times = 1 + self._kept_out.get(station, 0)
        answer.bytes_below = min(reported, times * terminals * (down + up))

    def _largest(self, request: wire.Request, terminals: int) -> tuple[int, int]:
        """Return the largest possible numbers of bytes to and from a terminal for a request."""
        kind, model = request.WhichOneof("body"), math.prod(self._matrix)
        content, numbers = request.ByteSize(), 0
        if kind == "round":
            content, numbers = 8 * model, model + CURVE + self._profile
        elif kind == "sums":
            models, points = len(request.sums.models), sum(request.sums.points.shape[:1])
            numbers = points + self._dual_length + model + 1 + models
        elif kind in ("moments", "labels"):  # under masks, two sums
            columns = self._columns(request.moments)
            content, numbers = 2 * content + 8 * columns, 2 * WIDE_FIELDS * (1 + columns)
        elif kind == "trial":
            numbers = WIDE_FIELDS * (2 + self._classes**2)
        elif kind == "transfer":
            numbers = WIDE_FIELDS * model
        down, up = masking_bytes(terminals, self._channel.least) if self._channel.sums_only else (0, 0)
        deals = DEALS * (4 * (down + up) + 8 * terminals) if self._channel.sums_only else 0
        down, up = MOST_SENT * framed(content + FIELDS) + down, framed(8 * numbers + FIELDS) + up
        return ROUND_SLACK * (down + deals), ROUND_SLACK * (up + deals)

    def _smallest_below(self, station: int, answer: wire.Answer) -> int:
        """Return the smallest possible number of bytes to and from terminals for an answer."""
        name, n_terminals = answer.WhichOneof("body"), 1
        # A station may repeat a private certificate from memory, or make it with few terminals: no check for it.
        if name == "sums" and answer.sums.dual.shape[0]:
            parts, n_terminals = answer.sums, self._members[station][answer.sums.membership].terminals
            n_terminals -= min(n_terminals, len(answer.sums.absent))
            content = 8 * sum(math.prod(part.shape) for part in (parts.losses, parts.dual, parts.gradient))
        elif name == "moments":
            content = 2 * math.prod(answer.moments.mean.shape) * self._channel.moments_dtype.itemsize
        elif name == "labels":
            content = len(answer.labels.sums.data)
        else:
            return 0
        return n_terminals * (framed(0) + framed(content))

    def _round(self, request: wire.RoundRequest, result: wire.RoundResult, terminals: int) -> None:
        """Refuse a round with other terminals or steps than ordered, or with impossible numbers."""
        if result.round != request.round:
            raise PeerError(f"round {result.round} as an answer to round {request.round}")
        steps = dict(zip(request.terminals, request.local_steps, strict=True))
        if codec.array(result.gains, "gains").shape != (CURVE,) or codec.finite(result.factor, "a factor") < 0.0:
            raise PeerError(f"gains of shape {tuple(result.gains.shape)} and a factor of {result.factor}")
        if len({effort.terminal for effort in result.efforts}) < len(result.efforts):
            raise PeerError("a terminal that worked twice in a round")
        largest = self._largest(wire.Request(round=request), terminals)
        for effort in result.efforts:
            if steps.get(effort.terminal) != effort.local_steps:
                raise PeerError(f"{effort.local_steps} steps of terminal {effort.terminal}, which were not ordered")
            self._effort(effort, request.deadline + self._patience, largest)

    def _effort(self, effort: wire.Effort, longest: float, largest: tuple[int, int]) -> None:
        """Refuse impossible seconds and bytes of a terminal; cut the rest to the largest possible values."""
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
        effort.bytes_down, effort.bytes_up = min(effort.bytes_down, largest[0]), min(effort.bytes_up, largest[1])

    def _report(self, report: wire.Report) -> None:
        v = codec.from_wire(Report, report).v
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(v))
        if v.shape != self._shared or norm > self._limits.norm:
            raise PeerError(f"a report of shape {v.shape} and norm {norm:.3g}")

    def _sums(self, request: wire.SumsRequest, answer: wire.StationSums) -> None:
        sums = codec.from_wire(StationSums, answer)
        if request.HasField("noise"):  # a single number, which noise may have made negative
            if (sums.losses.shape, sums.dual.size, sums.gradient.size, sums.residual) != ((1,), 0, 0, None):
                raise PeerError("more numbers than a private certificate needs")
            return
        points = tuple(request.points.shape)
        if sums.losses.shape != points[:1] or (sums.losses < 0.0).any():
            raise PeerError(f"loss sums of shape {sums.losses.shape} for points of shape {points}")
        gradient_shape = tuple(request.models[0].shape) if request.gradient else (0,)
        if sums.dual.shape != (self._dual_length,) or sums.gradient.shape != gradient_shape:
            raise PeerError(f"dual sums of shape {sums.dual.shape} and a gradient of shape {sums.gradient.shape}")
        if (sums.worst is None) == bool(sums.absent) or (request.gradient and sums.absent):
            raise PeerError(f"sums without terminals {sums.absent} do not fit the worst case of their rows")
        if sums.worst is not None and (sums.worst.shape != sums.losses.shape or (sums.worst < 0.0).any()):
            raise PeerError(f"rows of absent terminals add {sums.worst.tolist()[:3]}, for {len(sums.losses)} points")
        residual, needed = sums.residual, (1 + len(request.models),)
        if (residual is not None) != self._tells_residual or (residual is not None and residual.shape != needed):
            raise PeerError("sums without the residuals of rounded updates, or with others than requested")

    def _columns(self, request: wire.MomentsRequest) -> int:
        """Return the number of columns of the rows of a request for moments."""
        mapping = codec.from_wire(MomentsRequest, request).row_map
        return self._features if mapping is None else mapping.columns

    def _moments(self, request: wire.MomentsRequest, answer: wire.MomentsReport) -> None:
        """Refuse moments of other columns than requested, and moments that no mapped rows have."""
        report, mapping = codec.from_wire(MomentsReport, answer), codec.from_wire(MomentsRequest, request).row_map
        columns = self._features if mapping is None else mapping.columns
        if report.mean.shape != (columns,):
            raise PeerError(f"moments of {tuple(report.mean.shape)} columns, where {columns} were asked for")
        if mapping is not None and (reason := impossible_columns(report.moments, mapping)):
            raise PeerError(reason)

    def _models(self, models: wire.Tensor) -> None:
        if codec.array(models, "models").shape != self._matrix:
            raise PeerError(f"models of shape {tuple(models.shape)}")

    def _metrics(self, metrics: wire.Metrics) -> None:
        for name, value in metrics.values.items():
            # These metrics are undefined if all test rows have the same class.
            undefined = name in ("auc", "balanced_accuracy") and math.isnan(value)
            if name not in METRICS or not (undefined or 0.0 <= value <= (LARGEST_ERROR if name == "rmse" else 1.0)):
                raise PeerError(f"a test metric {name[:40]!r} of {value:g}")


@dataclass(frozen=True)
class StationBounds:
    """Checks reports and sums of stations by the bounds of all their terminals together.

    With n samples of mean weight at most w, rows no longer than R and a dual box that ends at B, ‖v_b‖ ≤ B w R. The sum
    of the losses of zero models gives the weights of the rows, and the other sums must fit it.

    A failed check raises `roles.plausibility.ImplausibleError`.

    Attributes
    ----------
    method : Method
        Method of the algorithm.
    limits : Limits
        Limits of the cloud; ``limits.weight`` is w. If R or B is infinite, ``limits.norm`` alone bounds a report.
    columns : int
        Number of columns, as in `Bounds`.
    row_norm : float
        R.
    """

    method: Method
    limits: Limits
    columns: int
    row_norm: float

    def check_report(self, report: Report, terminals: int) -> None:
        """Refuse v_b that no dual variables in the box can give, with room for the noise of all rounds so far."""
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
        """Refuse sums that rows, dual box and the reported ``share`` U_b do not allow; ``share`` may be unknown."""
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
        """Refuse an impossible sum for a private certificate.

        With masks each terminal adds its part of the noise as if only the smallest allowed number of terminals
        answered, so all together add more.
        """
        channel = self.method.channel
        spread = noise * math.sqrt(max(1.0, terminals / channel.least))
        term = Sums(sums.task, 0, sums.losses, sums.dual, sums.gradient)
        replace(self._bounds(sums.task, max(sums.n_samples, 1)), columns=len(model)).check_term(term, model, spread)

    def _bounds(self, station: int, n: int) -> Bounds:
        weight = self.limits.weight * n
        return Bounds(station, self.method, self.columns, weight, self.row_norm, self.limits.norm * n, "station")
