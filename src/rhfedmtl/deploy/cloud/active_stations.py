"""The stations that take part in a training: send them requests through the journal, and read their answers.

`RemoteNetwork` calls `ActiveStations` in the training thread. `Overhead` collects bytes and seconds that no round has
paid for; `prices` charges them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.journal import Answers, TrainingJournal
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.engines.network import Float64Array
from rhfedmtl.errors import IncompleteError, PeerError
from rhfedmtl.roles.messages import Message

ITERATING = ("round", "assign", "report")
"""Requests of server iterations: their bytes and seconds determine prices."""
WAY_OUT = "Find out why, then start over with `rhfedmtl network reset`"
"""Advice to the operator about an excluded station."""


class Overhead:
    """Seconds and bytes on the links between stations and cloud that no round has paid for yet.

    ``aside`` are the bytes, also on the links to terminals, of requests outside server iterations: certificates,
    trials, round zero, rosters.
    """

    def __init__(self, n_stations: int) -> None:
        self._n = n_stations
        self.seconds = 0.0
        self.bytes, self.aside = np.zeros(n_stations), np.zeros(n_stations)

    def note_aside(self, answers: Answers) -> None:
        """Count the bytes of a request that is no part of a server iteration."""
        for b, answer in answers.items():
            self.aside[b] += answer.bytes_down + answer.bytes_up + answer.bytes_below

    def note(self, answers: Answers) -> None:
        """Count the messages of a request to all stations."""
        self.seconds += max((answer.seconds for answer in answers.values()), default=0.0)
        for b, answer in answers.items():
            self.bytes[b] += answer.bytes_down + answer.bytes_up

    def take(self) -> tuple[float, Float64Array, Float64Array]:
        """Return the sums so far, and reset them to zero."""
        sums = self.seconds, self.bytes, self.aside
        self.seconds, self.bytes, self.aside = 0.0, np.zeros(self._n), np.zeros(self._n)
        return sums


class ActiveStations:
    """Sends requests to all stations that take part, and reads their answers.

    Every request goes through the journal, so a cloud that was killed repeats only the open request. It never asks an
    excluded station, and never changes an answer.
    """

    def __init__(self, config: CloudConfig, journal: TrainingJournal) -> None:
        self._config, self._journal = config, journal
        self.patience = config.waits.patience
        """Seconds to wait for a station."""
        self.excluded: dict[int, str] = {}
        """Stations that sent impossible numbers, with the reason: the cloud does not ask them any more."""
        self.on_excluded: Callable[[int, str], None] = lambda station, reason: None
        """Called when a station is excluded."""
        self.overhead = Overhead(len(config.stations))
        self.incomplete = ""
        """The reason why the last attempt gave no certificate."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the stations that take part: all but the excluded."""
        return [b for b in range(len(self._config.stations)) if b not in self.excluded]

    def each(self, make: Callable[[int], wire.Request]) -> dict[int, wire.Request]:
        """Return the request of each station that takes part."""
        return {b: make(b) for b in self.numbers}

    def ask(self, kind: str, note: Any, requests: Mapping[int, wire.Request], seconds: float | None = None) -> Answers:
        """Return the answers of the stations; ``note`` identifies the request in the journal."""
        answers = self._journal.ask(kind, note, requests, self.patience if seconds is None else seconds)
        if kind not in ITERATING:
            self.overhead.note_aside(answers)
        return answers

    def from_all(self, answers: Answers, body: str) -> dict[int, Any]:
        """Return the bodies of all answers; raise an `IncompleteError` if a body is missing."""
        complete = bodies(answers, body)
        if silent := [f"station {b}: {a.trouble or 'away'}" for b, a in answers.items() if b not in complete]:
            self.incomplete = "; ".join(silent)
            raise IncompleteError(f"no certificate this time: {self.incomplete}")
        return {b: complete[b] for b in answers}

    def tell(self, kind: str, content: Callable[[int], Any] = lambda b: wire.Nothing(), note: Any = None) -> list[Any]:
        """Return the sums of every station over its rows, in round zero; ``content`` is the request to a station."""
        requests = self.each(lambda b: wire.Request(**{kind: content(b)}))
        answers = self._ask_all(kind, requests, note)
        return [codec.read(getattr(answer, kind)) for answer in answers]

    def agree(self, kind: str, messages: Sequence[Message]) -> None:
        """Send each station its agreement, in round zero; all must confirm it before the first round."""
        self._ask_all(kind, {b: wire.Request(**{kind: codec.to_wire(m)}) for b, m in enumerate(messages)})

    def _ask_all(self, kind: str, requests: Mapping[int, wire.Request], note: Any = None) -> list[wire.Answer]:
        """Return the answers in the order of the requests; raise a `PeerError` if a station does not answer."""
        answers = self.ask(kind, note, requests, 2.0 * self._config.waits.answer)
        for b in requests:
            if answers[b].trouble or answers[b].WhichOneof("body") is None:
                raise PeerError(f"station {b}: {answers[b].trouble or 'no answer'}")
        return [answers[b] for b in requests]

    def exclude(self, station: int, reason: str, method: Method) -> None:
        """Exclude a station from all further trainings; raise a `PeerError` if the training cannot continue without it.

        A private training needs all stations, and so does a method that averages models.
        """
        self.excluded[station] = reason
        self.on_excluded(station, reason)
        words = f"station {station} told {reason}"
        if not method.has_duals or method.channel.noised:
            why = "a private training" if method.channel.noised else "a method that averages models"
            raise PeerError(f"{words}: {why} cannot go on without it. {WAY_OUT}")
        if not self.numbers:
            raise PeerError(f"{words}, and there is no other station. {WAY_OUT}")


def bodies(answers: Answers, body: str) -> dict[int, Any]:
    """Return the bodies of the answers that have one of this kind; `AnswerChecks` has checked their senders."""
    return {b: getattr(answer, body) for b, answer in answers.items() if answer.WhichOneof("body") == body}
