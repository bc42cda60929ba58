"""Sums that a station holds under masks: circles and deals, orders and words, one set unmasked."""

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
"""How often circles are made for one sum: who connects anew has a new key."""


NAMES = {WorkOrder: "order", Probe: "probe", RowProbe: "ask_rows", ShareProbe: "ask_share", Trial: "trial"}


class SummedRound(NamedTuple):
    """What came of a sum: its words, over whom (nobody where it is void), and what was asked: for words, and else."""

    words: Words | None
    arrived: frozenset[int]
    told: Question | None
    others: list[Question]


async def hold(
    members: TerminalSessions, orders: Mapping[int, SumRequest], length: int, seconds: float, *, whole: bool = False
) -> SummedRound:
    """Ask all of them, each step for at most so long. With ``whole`` no sum without one of them is unmasked."""
    room, questions, others = members.attendance.room, members.questions, []
    for _ in range(DEALS):
        circles = room.prepare(t for t in members.attendance.present() if t in orders)
        if not circles:
            break
        messages = {t: wire.TerminalDown(circle=codec.to_wire(circle)) for t, circle in circles.items()}
        others.append(await questions.ask("deal", messages, seconds, room.receive, again=False))
    nobody: frozenset[int] = frozenset()
    seats = {t: seat_of(order, members.attendance.rows(t)) for t, order in orders.items()}
    summed = room.start(content_of(next(iter(orders.values()))), seats) if orders else None
    if summed is None or (whole and len(summed.partners()) < len(orders)):
        return SummedRound(None, nobody, None, others)
    messages = {}
    for t, partners in summed.partners().items():
        form = codec.to_wire(orders[t], partners=codec.to_wire(partners))
        messages[t] = wire.TerminalDown(**{NAMES[type(orders[t])]: form})

    def fits(masked: Masked) -> bool:
        if len(masked.words) != length:
            raise PeerError(f"{len(masked.words)} words of terminal {masked.terminal}: {length} are needed")
        return summed.receive(masked)

    told = await questions.ask("masked", messages, seconds, fits, again=False)
    unmask = None if whole and len(told.arrived) < len(orders) else summed.close()
    if unmask is None or summed.arrived is None:
        return SummedRound(None, nobody, told, others)
    down = dict.fromkeys(summed.answered, wire.TerminalDown(unmask=codec.to_wire(unmask)))
    others.append(await questions.ask("opened", down, seconds, summed.open, again=False))
    words = summed.total()
    return SummedRound(words, nobody if words is None else summed.arrived, told, others)
