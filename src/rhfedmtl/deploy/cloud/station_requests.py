"""Send requests to stations, send them again if they may be lost, wait for the answers, and give up.

`CloudService.ask_all` asks for the training; `Commands` and `Rosters` ask directly. `StationSessions` delivers the
checked answers. All of this runs on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.node.acceptor import Acceptor
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.questions import MOST_SENT
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.resources.sizes import framed

QUIET_S = 3.0
"""Stations send a heartbeat every second. After this long without one, `status` lists the station as missing."""
BREAKS = 3
"""After so many broken streams without an answer, `status` shows a fault of the station."""
STOP_S = 8.0
"""After an operator ends a training, its requests take at most this long together; an open round takes half of it."""


@dataclass
class Pending:
    """An open request; ``news`` wakes the task that waits for its answer."""

    request: wire.Request
    answer: wire.Answer | None = None
    sent: int = 0
    n_bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> bool:
        """Wait for news for at most so many seconds; return False if nothing happened."""
        self.news.clear()
        try:
            await asyncio.wait_for(self.news.wait(), seconds)
        except TimeoutError:
            return False
        return True


class StationRequests:
    """Sends requests to the stations of a network, and waits for the answers within the patience of the cloud.

    It also records the condition of each station: its last sign of life, broken streams, faults. It never looks at the
    content of an answer.
    """

    def __init__(self, config: CloudConfig, acceptor: Acceptor, log: Log) -> None:
        self._config, self._acceptor, self._log = config, acceptor, log
        self._ids = itertools.count(secrets.randbits(31) << 32)
        self.pending: dict[int, dict[int, Pending]] = {b: {} for b in range(len(config.stations))}
        """Open requests of each station, by their number."""
        self.heard = dict.fromkeys(self.pending, time.monotonic())
        """Time of the last message of each station."""
        # Seconds of waiting since the last answer of a station to each kind of request; a new connection does not
        # reset them.
        self._waited: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._owed: dict[int, wire.Request] = {}  # last request of each station that has used up the patience
        self._stop_at = math.inf
        self._absent: set[int] = set()
        self._breaks = dict.fromkeys(self.pending, 0)  # broken streams since the last answer
        self.faults: dict[int, str] = {}
        """The last wrong answer of each station, until it gives a good answer."""
        self.counts_bytes: Callable[[], bool] = lambda: True
        """Returns True if the training measures bytes."""
        self._kind = config.learning.channel.model_dtype

    async def ask(self, station: int, request: wire.Request, seconds: float, *, training: bool = False) -> wire.Answer:
        """Return the answer of a station; send the request again if it may be lost.

        Never raises for a silent station: the answer then has ``trouble``, and ``away`` if the request was not sent.

        1. Stations send a heartbeat every second. The cloud neither asks nor waits for a station that was silent for
           longer than its patience, or that may not connect after a refusal.
        2. Between two answers to requests of a kind the cloud waits ``seconds`` in total; a new connection does not
           restart this time. After that the station gets a single request, which it may answer late.
        3. A stop of the operator cuts requests of a ``training`` short.
        """
        patience, bars = self._config.waits.patience, self._acceptor.bars
        request.id = next(self._ids)
        pending = Pending(request)
        self.pending[station][request.id] = pending
        kind = station, request_name(request)
        until = pending.began + max(0.0, seconds - self._waited[kind])

        def end() -> float:
            """Return the time at which a stop of the operator ends the request."""
            share = 0.5 if request.HasField("round") else 1.0
            return self._stop_at + share * STOP_S if training else math.inf

        def rest() -> float:
            """Return the seconds for which to wait."""
            if bars(station):
                return 0.0
            return min(until, self.heard[station] + patience, end()) - time.monotonic()

        in_time = rest() > 0.0
        owes = station in self._owed or pending.began >= end()
        is_away = bars(station) or self.quiet(station) >= patience
        if in_time or not (owes or is_away):
            self._deliver(station, pending)
        try:
            while pending.answer is None and (remaining := rest()) > 0.0:
                if not await pending.wait(min(remaining, self._config.waits.again)):
                    self._deliver(station, pending)
        finally:
            del self.pending[station][request.id]
        answer = pending.answer
        if answer is None:
            self._waited[kind] += time.monotonic() - pending.began
            if pending.sent and self._waited[kind] >= seconds:
                self._owed[station] = request
            fault = f": {self.fault(station)}" if self.fault(station) else ""
            if pending.sent:
                self._log("no answer", "warning", reason=f"station {station} does not answer{fault}")
                answer = wire.Answer(trouble=f"station {station} does not answer{fault}")
            else:
                answer = wire.Answer(trouble=f"station {station} is away{fault}", away=True)
        answer.seconds = time.monotonic() - pending.began
        answer.bytes_down = pending.n_bytes
        if answer.away and station not in self._absent:  # log it only once
            self._log("no answer", "warning", reason=answer.trouble)
        (self._absent.add if answer.away else self._absent.discard)(station)
        if not self._absent:
            self._log.over("no answer")
        return answer

    def _deliver(self, station: int, pending: Pending) -> None:
        """Send a request; if bytes are measured, send it at most ``MOST_SENT`` times."""
        session = self._acceptor.sessions.get(station)
        spent = pending.sent >= MOST_SENT and self.counts_bytes()
        if session is None or spent:
            return
        message = wire.StationDown(request=pending.request)
        if n_bytes := session.send_message(request_name(pending.request), message, self._kind):
            pending.sent += 1
            pending.n_bytes += framed(n_bytes)

    def deliver_again(self, station: int) -> None:
        """Send the open requests to a station that has reconnected."""
        for pending in list(self.pending[station].values()):
            self._deliver(station, pending)

    def forgive(self, station: int) -> None:
        """Stop waiting for a late answer: the last stream of the station may have lost the request."""
        self._owed.pop(station, None)

    def find(self, station: int, answer: wire.Answer) -> Pending | None:
        """Return the request of an answer, which may be late, or None if the cloud does not wait for it."""
        pending, owed = self.pending[station].get(answer.id), self._owed.get(station)
        if pending is None and owed is not None and owed.id == answer.id:
            return Pending(owed)
        return pending if pending is not None and pending.answer is None else None

    def take(self, station: int, pending: Pending, answer: wire.Answer) -> None:
        """Take a checked answer, and wake the task that waits for it."""
        owed, name = self._owed.get(station), request_name(pending.request)
        if owed is not None and owed.id == answer.id:
            del self._owed[station]
        self._waited[station, name] = 0.0
        self._breaks[station] = 0
        answer.away &= pending.request.HasField("round") and not answer.HasField("round")
        if not answer.trouble:
            self.faults.pop(station, None)
            if not self.faults:
                self._log.over("fault")
        elif not answer.away:
            self.blame(station, f"it answers {name} with: {answer.trouble}")
        pending.answer = answer
        pending.news.set()

    # An operator's stop.

    def stop(self) -> None:
        """Cut requests of the training short, because an operator ends it."""
        self._stop_at = min(self._stop_at, time.monotonic())
        for b in self.pending:
            self.wake(b)

    def go_on(self) -> None:
        """Give requests of a training their full time again."""
        self._stop_at = math.inf

    def wake(self, station: int) -> None:
        """Let the tasks that wait for a station check again whether to wait."""
        for pending in self.pending[station].values():
            pending.news.set()

    # The condition of a station.

    def quiet(self, station: int) -> float:
        """Return the seconds since the last message of a station."""
        return time.monotonic() - self.heard[station]

    def fault(self, station: int) -> str:
        """Return the last wrong answer of a station, or the reason of its refusal; empty if it works."""
        return self.faults.get(station) or self._acceptor.refusals.get(station, "")

    def blame(self, station: int, fault: str) -> None:
        """Note a fault of a station, and log it if it is new."""
        if self.faults.get(station) != fault:
            self._log.seldom("fault", "warning", peer=f"station {station}", reason=f"station {station}: {fault}")
        self.faults[station] = fault

    def note_break(self, station: int, largest: int) -> None:
        """Note that a stream broke; several in a row without an answer are a fault."""
        self._breaks[station] += bool(self.pending[station])
        if self._breaks[station] >= BREAKS and not self._acceptor.bars(station):
            causes = f"its disk is full, a bad link, or messages above {largest} bytes"
            self.blame(station, f"its stream broke {self._breaks[station]} times before it answered ({causes})")

    def waited_for(self) -> list[str]:
        """Return the stations that the cloud waits for now, in words."""
        names = []
        for b, pending in self.pending.items():
            is_away = b not in self._acceptor.sessions or self.quiet(b) > QUIET_S
            owes = bool(pending) and (is_away or self._breaks[b] >= BREAKS)
            if owes or len(self._absent) == len(self.pending):
                names.append(self.stands(b))
        return names

    def stands(self, station: int) -> str:
        """Return the name of a station with its trouble."""
        fault, quiet = self.fault(station), self.quiet(station)
        if station not in self._acceptor.sessions:
            return f"station {station} (not connected{f'; {fault}' if fault else ''})"
        if fault and quiet <= QUIET_S:
            return f"station {station} ({fault})"
        return f"station {station} ({f'silent for {quiet:.0f} s' if quiet > QUIET_S else 'none of its terminals'})"


def request_name(request: wire.Request) -> str:
    """Return the name of a request for messages."""
    return f"request {request.WhichOneof('body')}"
