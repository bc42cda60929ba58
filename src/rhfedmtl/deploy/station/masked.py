"""Masked sums of a station: `sum_under_masks` gets the sum of the answers of several terminals, and no single answer.

Rounds, certificates, round zero, trials and transfers call it. The cryptography is in `rhfedmtl.roles.secure`; here are
the messages: circles (keys of the neighbours) and deals (shares of secrets), masked words, and the shares that unmask
the sum over the terminals that answered. Each sum unmasks a single set of terminals, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rhfedmtl.deploy.station.questions import Question
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError
from rhfedmtl.roles.messages import Probe, RowProbe, ShareProbe, Trial, WorkOrder
from rhfedmtl.roles.secure.masking import Masked
from rhfedmtl.roles.secure.masks import Words
from rhfedmtl.roles.summed import SumRequest, content_of, seat_of

DEALS = 3
"""Form circles at most so often for a sum: a terminal that reconnects has a new key and needs new circles."""

QUESTION_NAMES = {WorkOrder: "order", Probe: "probe", RowProbe: "ask_rows", ShareProbe: "ask_share", Trial: "trial"}


class SummedRound(NamedTuple):
    """Result of a masked sum.

    Attributes
    ----------
    words : Words, optional
        The sum; missing if it is void.
    arrived : frozenset of int
        Terminals in the sum; empty if it is void.
    question : Question, optional
        The question that asked for the words; missing if no order was sent.
    extra_questions : list of Question
        The questions for deals and for unmasking.
    """

    words: Words | None
    arrived: frozenset[int]
    question: Question | None
    extra_questions: list[Question]


async def sum_under_masks(
    members: TerminalSessions,
    orders: Mapping[int, SumRequest],
    length: int,
    seconds: float,
    *,
    require_all: bool = False,
) -> SummedRound:
    """Ask terminals for a masked sum.

    Parameters
    ----------
    members : TerminalSessions
        The terminals of the station.
    orders : mapping
        The request to each terminal.
    length : int
        Number of words of an answer.
    seconds : float
        Time limit for each step.
    require_all : bool
        Unmask nothing unless all terminals of ``orders`` have answered.
    """
    # 1. Form circles of terminals until each has the current keys of its neighbours.
    room, questions, extra_questions = members.attendance.room, members.questions, []
    for _ in range(DEALS):
        circles = room.prepare(t for t in members.attendance.present() if t in orders)
        if not circles:
            break
        messages = {t: wire.TerminalDown(circle=codec.to_wire(circle)) for t, circle in circles.items()}
        extra_questions.append(await questions.ask("deal", messages, seconds, room.receive, again=False))
    # 2. Send the orders, and collect the masked words.
    no_terminals: frozenset[int] = frozenset()
    seats = {t: seat_of(order, members.attendance.rows(t)) for t, order in orders.items()}
    summed = room.start(content_of(next(iter(orders.values()))), seats) if orders else None
    if summed is None or (require_all and len(summed.partners()) < len(orders)):
        return SummedRound(None, no_terminals, None, extra_questions)
    messages = {}
    for t, partners in summed.partners().items():
        form = codec.to_wire(orders[t], partners=codec.to_wire(partners))
        messages[t] = wire.TerminalDown(**{QUESTION_NAMES[type(orders[t])]: form})

    def fits(masked: Masked) -> bool:
        if len(masked.words) != length:
            raise PeerError(f"{len(masked.words)} words of terminal {masked.terminal}: {length} are needed")
        return summed.receive(masked)

    question = await questions.ask("masked", messages, seconds, fits, again=False)
    # 3. Unmask the sum over the terminals that answered.
    unmask = None if require_all and len(question.arrived) < len(orders) else summed.close()
    if unmask is None or summed.arrived is None:
        return SummedRound(None, no_terminals, question, extra_questions)
    down = dict.fromkeys(summed.answered, wire.TerminalDown(unmask=codec.to_wire(unmask)))
    extra_questions.append(await questions.ask("opened", down, seconds, summed.open, again=False))
    words = summed.total()
    return SummedRound(words, no_terminals if words is None else summed.arrived, question, extra_questions)
