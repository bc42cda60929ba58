"""Questions of a station to its terminals: orders, probes and others, and the answers that come in time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.attendance import Attendance
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.messages import Probe, WorkOrder

MOST_SENT = 2
"""A terminal gets a question at most so often: again only if its link broke, which bounds the bytes."""
MISSED_PROBES = 2
"""After so many probes in a row without an answer, certificates count the rows of a terminal at their worst."""
WORK = ("update", "masked")
"""Answers to an order."""


class Arrival(NamedTuple):
    """An answer: its content, its bytes, and the seconds of work that the terminal reports."""

    content: Any
    n_bytes: int
    seconds: float


Sent = wire.TerminalDown | WorkOrder | Probe
"""A message with a question. Orders and probes share their models, and get their form when they are sent."""


class Question:
    """Messages to terminals and their answers so far. ``again``: a terminal that reconnects gets its message again."""

    def __init__(
        self, answer: str, messages: Mapping[int, Sent], fits: Callable[[Any], bool], *, again: bool = True
    ) -> None:
        self.answer, self.messages, self.fits, self.again = answer, messages, fits, again
        self.arrived: dict[int, Arrival] = {}
        self.at: dict[int, float] = {}
        self.sent: dict[int, int] = dict.fromkeys(messages, 0)
        self.down: dict[int, int] = dict.fromkeys(messages, 0)
        self.lost: set[int] = set()
        self.began = time.monotonic()

    def n_bytes(self, terminal: int) -> tuple[int, int]:
        """Return the bytes to a terminal, and of its answer, with frames."""
        arrival = self.arrived.get(terminal)
        return self.down.get(terminal, 0), 0 if arrival is None else framed(arrival.n_bytes)

    def take(self, terminal: int, arrival: Arrival) -> None:
        """Note the answer of a terminal, and its time."""
        self.arrived[terminal] = arrival
        self.at[terminal] = time.monotonic()

    @property
    def missing(self) -> list[int]:
        """Terminals that may still answer."""
        return [t for t in self.messages if t not in self.arrived and t not in self.lost]


class Questions:
    """Asks the terminals of a station a question at a time, and collects the answers that fit it.

    Rounds, certificates and round zero call `ask`; `TerminalSessions` passes answers to `take`. An answer that is late,
    or that no question asked for, changes nothing. It never computes with an answer, and never changes the members.
    """

    def __init__(self, memory: Memory, attendance: Attendance, log: Log) -> None:
        self._memory, self._attendance, self._log = memory, attendance, log
        self._question: Question | None = None
        self.n_bytes = 0
        """Of all questions so far and their answers, with frames."""
        self.declined: dict[int, wire.Declined] = {}
        """The last order that each site declined, until it works again or reconnects."""
        self._missed: Counter[int] = Counter()

    async def ask(
        self,
        answer: str,
        messages: Mapping[int, Sent],
        seconds: float,
        fits: Callable[[Any], bool] = lambda _: True,
        *,
        again: bool = True,
    ) -> Question:
        """Send to each terminal its message and collect answers of kind ``answer``, until all are there or time is up.

        It waits only a little for terminals that are not connected, and not at all for terminals that join or leave.
        """
        attendance, sessions = self._attendance, self._attendance.acceptor.sessions
        question = Question(answer, messages, fits, again=again)
        question.lost.update(attendance.changing & messages.keys())
        self._question = question
        for t in question.missing:
            self._send(question, t)
        deadline = time.monotonic() + seconds
        while missing := question.missing:
            connected = any(t in sessions for t in missing)
            until = deadline if connected else min(deadline, max(map(attendance.due, missing)))
            if time.monotonic() >= until:
                break
            await attendance.wait(until)
        self._question = None
        attendance.silent.update(t for t in question.missing if t in sessions)
        question.lost.clear()
        self.n_bytes += sum(sum(question.n_bytes(t)) for t in question.messages)
        return question

    def _send(self, question: Question, terminal: int) -> bool:
        session = self._attendance.acceptor.sessions.get(terminal)
        if session is None or question.sent[terminal] >= MOST_SENT:
            return False
        message, kind = question.messages[terminal], self._memory.station.method.channel.model_dtype
        if isinstance(message, WorkOrder):
            message = wire.TerminalDown(order=codec.to_wire(message))
        elif isinstance(message, Probe):
            message = wire.TerminalDown(probe=codec.to_wire(message))
        n_bytes = session.send_message(f"question {question.answer}", message, kind)
        if n_bytes:
            question.sent[terminal] += 1
            question.down[terminal] += framed(n_bytes)
        return bool(n_bytes)

    def waits_for(self, terminal: int, *answers: str) -> bool:
        """Return True if the present question, about these ``answers`` if given, waits for a terminal."""
        question = self._question
        return question is not None and terminal in question.missing and (not answers or question.answer in answers)

    def take(self, terminal: int, name: str, arrival: Arrival) -> None:
        """Take an answer to the present question; every other answer changes nothing."""
        question = self._question
        if name == "sums" and self._missed[terminal] >= MISSED_PROBES:  # a late answer: ask again
            self._missed[terminal] = MISSED_PROBES - 1
        if question is None or not self.waits_for(terminal, name) or not question.fits(arrival.content):
            return
        question.take(terminal, arrival)
        if name in WORK:
            self.declined.pop(terminal, None)
        self._attendance.news.set()

    def take_refusal(self, terminal: int, arrival: Arrival) -> bool:
        """Take a declined order for an answer; False if the present question is no order to this terminal."""
        if self._question is None or not self.waits_for(terminal, *WORK):
            return False
        self._question.take(terminal, arrival)
        self.declined[terminal] = arrival.content
        return True

    def declines(self, terminal: int, steps: int) -> bool:
        """Return True if the site of a terminal has declined as many steps, and has not allowed them since."""
        return terminal in self.declined and self.declined[terminal].local_steps == steps

    def lose(self, terminal: int) -> None:
        """Stop waiting for the answer of a terminal."""
        if self._question is not None and self.waits_for(terminal):
            self._question.lost.add(terminal)
            self._attendance.news.set()

    def note_end(self, terminal: int) -> None:
        """Stop waiting if a stream has ended, and the question is not for its next stream."""
        if self._question is not None and not self._question.again:
            self.lose(terminal)

    def repeat(self, terminal: int) -> None:
        """Ask a terminal again that has reconnected; a newcomer is lost, as is a terminal with enough repeats."""
        question, member = self._question, self._memory.station.members.get(terminal)
        if question is None or terminal not in question.missing:
            return
        same = member is not None and self._attendance.incarnation(terminal) == member.incarnation
        if not (same and question.again and self._send(question, terminal)):
            question.lost.add(terminal)

    # Terminals that leave probes unanswered.

    def absent(self) -> list[int]:
        """Return the members that missed so many probes that certificates go on without them."""
        return [t for t in sorted(self._memory.station.members) if self._missed[t] >= MISSED_PROBES]

    def note_probe(self, arrived: Iterable[int], missing: Iterable[int]) -> None:
        """Count the missed probes of terminals; an answer clears them."""
        for t in arrived:
            self._missed.pop(t, None)
        for t in missing:
            self._missed[t] += 1
            if self._missed[t] == MISSED_PROBES:
                self._log("absent", "warning", peer=f"terminal {t}", reason=f"no answer to {MISSED_PROBES} probes")
