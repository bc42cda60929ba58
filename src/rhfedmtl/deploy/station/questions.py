"""Questions of a station to its terminals: `Questions` sends them and collects the answers that arrive in time.

A question is a message to each of several terminals that needs an answer: orders, probes, requests of round zero.
Rounds, certificates and round zero call `Questions.ask`; `TerminalSessions` passes every answer to `Questions.take`.

Theory of operation. At most a single question is open at any time.

1. `ask` sends the messages and then waits for news. Terminals that are joining or leaving are not asked.
2. `take` accepts an answer if the open question waits for this terminal and this kind of message, and if ``fits``
   accepts its content. Any other answer changes nothing, so late and repeated answers are harmless.
3. If a terminal reconnects while the question is open, `repeat` sends its message again, up to `MOST_SENT` times in
   all. This needs the same incarnation; a newcomer has nothing to answer with. Masked questions are never repeated,
   because their keys belong to a stream.
4. `ask` returns when all terminals have answered or are lost (they left, declined or changed), or when the time is up.
   If no awaited terminal is connected, it waits only for the short time that a reconnect needs.
5. A connected terminal that did not answer counts as silent: it is not present until its next message.

Separately, `note_probe` counts missed probes. After `MISSED_PROBES` in a row, certificates go on without the terminal.
A late answer shows that it works, so the next certificate waits for it again.
"""

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
"""Send a question to a terminal at most so often (again only if the link broke). This bounds the bytes of a round."""
MISSED_PROBES = 2
"""After so many unanswered probes in a row, certificates count the rows of a terminal with their worst-case loss."""
WORK_ANSWERS = ("update", "masked")
"""Answers to an order."""


class Arrival(NamedTuple):
    """An answer of a terminal: content, bytes, and the seconds of work that the terminal reports."""

    content: Any
    n_bytes: int
    seconds: float


Sent = wire.TerminalDown | WorkOrder | Probe
"""A message with a question. Orders and probes share their models, so they are encoded only when sent."""


class Question:
    """Messages to terminals, and their answers so far.

    Parameters
    ----------
    answer : str
        Kind of message that answers the question.
    messages : mapping
        The message to each terminal.
    fits : callable
        Returns True for an acceptable answer; may raise `PeerError` for an answer that no honest terminal sends.
    again : bool
        Send the message again to a terminal that reconnects.
    """

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
        """Return the bytes sent to a terminal, and the bytes of its answer, with frames."""
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
    """Asks the terminals of a station, and collects the answers. A single question is open at a time.

    It never computes with an answer, and never changes the members.
    """

    def __init__(self, memory: Memory, attendance: Attendance, log: Log) -> None:
        self._memory, self._attendance, self._log = memory, attendance, log
        self._question: Question | None = None
        self.n_bytes = 0
        """Bytes of all questions so far and of their answers, with frames."""
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
        """Send each terminal its message, and collect answers until all have arrived or ``seconds`` have passed.

        See `Question` for the other parameters. The answers are in ``arrived`` of the question that it returns.
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
        """Return True if the open question waits for a terminal; with ``answers``, for an answer of these kinds."""
        question = self._question
        return question is not None and terminal in question.missing and (not answers or question.answer in answers)

    def take(self, terminal: int, name: str, arrival: Arrival) -> None:
        """Take an answer to the open question; ignore every other answer."""
        question = self._question
        if name == "sums" and self._missed[terminal] >= MISSED_PROBES:  # a late answer: ask again
            self._missed[terminal] = MISSED_PROBES - 1
        if question is None or not self.waits_for(terminal, name) or not question.fits(arrival.content):
            return
        question.take(terminal, arrival)
        if name in WORK_ANSWERS:
            self.declined.pop(terminal, None)
        self._attendance.news.set()

    def take_refusal(self, terminal: int, arrival: Arrival) -> bool:
        """Count a declined order as an answer; return False if the open question is no order to this terminal."""
        if self._question is None or not self.waits_for(terminal, *WORK_ANSWERS):
            return False
        self._question.take(terminal, arrival)
        self.declined[terminal] = arrival.content
        return True

    def declines(self, terminal: int, steps: int) -> bool:
        """Return True if the site of a terminal has declined so many steps and has not allowed them since."""
        return terminal in self.declined and self.declined[terminal].local_steps == steps

    def lose(self, terminal: int) -> None:
        """Stop waiting for the answer of a terminal."""
        if self._question is not None and self.waits_for(terminal):
            self._question.lost.add(terminal)
            self._attendance.news.set()

    def note_end(self, terminal: int) -> None:
        """Stop waiting for a terminal whose stream has ended, unless the question goes to its next stream again."""
        if self._question is not None and not self._question.again:
            self.lose(terminal)

    def repeat(self, terminal: int) -> None:
        """Ask a terminal again after it has reconnected. A newcomer is lost, as is a terminal at the limit."""
        question, member = self._question, self._memory.station.members.get(terminal)
        if question is None or terminal not in question.missing:
            return
        same = member is not None and self._attendance.incarnation(terminal) == member.incarnation
        if not (same and question.again and self._send(question, terminal)):
            question.lost.add(terminal)

    # Terminals that miss probes.

    def absent(self) -> list[int]:
        """Return the members that missed `MISSED_PROBES` probes in a row: certificates go on without them."""
        return [t for t in sorted(self._memory.station.members) if self._missed[t] >= MISSED_PROBES]

    def note_probe(self, arrived: Iterable[int], missing: Iterable[int]) -> None:
        """Count the missed probes of terminals; an answer clears them."""
        for t in arrived:
            self._missed.pop(t, None)
        for t in missing:
            self._missed[t] += 1
            if self._missed[t] == MISSED_PROBES:
                self._log("absent", "warning", peer=f"terminal {t}", reason=f"no answer to {MISSED_PROBES} probes")
