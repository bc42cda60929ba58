"""Rosters: the members that each station last reported, compared with the registry of the cloud.

`StationSessions` passes every outlook to `Rosters`. `Commands` and the training look up members here.
"""

from __future__ import annotations

import asyncio
import math
import time

from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.station_requests import StationRequests
from rhfedmtl.deploy.node.acceptor import Acceptor
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.memory import NOWHERE
from rhfedmtl.deploy.wire import wire_pb2 as wire

ROSTERS_AT_ONCE = 16
"""Ask a station to let another terminal go only while fewer requests to it are open."""


class Rosters:
    """The last outlook of each station, and the requests that bring members to the station of the registry.

    If a station has a terminal that belongs to another station, it receives a request to release the terminal. It
    changes the registry only if an owner withdraws a terminal, or if a moving terminal has arrived.
    """

    def __init__(
        self, config: CloudConfig, registry: NodeRegistry, acceptor: Acceptor, requests: StationRequests, log: Log
    ) -> None:
        self._config, self._registry, self._acceptor, self._requests = config, registry, acceptor, requests
        self._log = log
        self.outlooks: dict[int, wire.Outlook] = {}
        self._transfers: dict[int, dict[tuple[int, int], float]] = {b: {} for b in range(len(config.stations))}
        self.tasks: set[asyncio.Task[wire.Answer]] = set()

    def hear(self, station: int, outlook: wire.Outlook) -> None:
        """Store the outlook of a station, log changes, and act on withdrawals, arrivals and misplaced terminals."""
        registry, roster = self._registry, outlook.roster
        self.strike(station, roster)
        self._note_members(station, roster)
        self.outlooks[station] = outlook
        arrived = registry.arrived(station, (seat.terminal for seat in roster.seats))
        withdrawn = [s.terminal for s in roster.seats if s.withdraws and registry.station.get(s.terminal) == station]
        for terminal in withdrawn:
            self._log("withdrawn", "warning", reason=f"the owner of terminal {terminal} takes it out of the network")
            registry.place(terminal, -1)
        if withdrawn or arrived:
            self.tell_access()
        self._straighten(station)

    def hear_round(self, station: int, answer: wire.Answer) -> None:
        """Take the roster and the round of an answer: answers come more often than outlooks."""
        self.strike(station, answer.roster)
        if station in self.outlooks:
            self.outlooks[station].round = max(self.outlooks[station].round, answer.round.round)

    def _note_members(self, station: int, roster: wire.Roster) -> None:
        """Log the terminals that have joined, left, or gone into quarantine since the last outlook."""
        old = self.outlooks.get(station, wire.Outlook()).roster
        before, now = ({(s.terminal, s.incarnation) for s in entry.seats} for entry in (old, roster))
        joined, departed = ([t for t, _ in sorted(terminals)] for terminals in (now - before, before - now))
        if joined or departed:
            self._log("members", peer=f"station {station}", joined=joined, gone=departed)
        for t in sorted({*roster.quarantined} - {*old.quarantined}):
            self._log("quarantined", "warning", peer=f"terminal {t}", reason=roster.quarantined[t], station=station)
        rosters = [outlook.roster for b, outlook in self.outlooks.items() if b != station]
        if not any(entry.quarantined for entry in (roster, *rosters)):
            self._log.over("quarantined")

    def strike(self, station: int, roster: wire.Roster) -> None:
        """Remove from a roster the terminals that belong to another station and are members there.

        Without this, a lying station could claim the terminals of another station.
        """
        seats = []
        for seat in roster.seats:
            home = self._registry.station.get(seat.terminal, -1)
            if home == station or seat.terminal not in self.members(home):
                seats.append(seat)
        if len(seats) < len(roster.seats):
            del roster.seats[:]
            roster.seats.extend(seats)

    def tell_access(self) -> None:
        """Send all stations their allowed terminals and the revoked certificates."""
        self._acceptor.revoke(self._registry.revoked)
        for b, session in list(self._acceptor.sessions.items()):
            access = wire.Access(allowed=self._registry.allowed(b), revoked=sorted(self._registry.revoked))
            session.send(access=access)

    def _straighten(self, station: int) -> None:
        """Ask a station to release terminals that belong elsewhere, and repeat the request after a while.

        A limited number of requests is open at a time, or they would fill the station's queue. Terminals without a
        request so far come first.
        """

        def note_end(task: asyncio.Task[wire.Answer]) -> None:
            self.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._log("no answer", "warning", reason=f"{type(error).__name__}: {error}")

        registry, again = self._registry, self._config.waits.again
        moves = [(s.terminal, registry.station.get(s.terminal, -1)) for s in self.outlooks[station].roster.seats]
        sent_at = {move: self._transfers[station].get(move, -math.inf) for move in moves if move[1] != station}
        now, free_slots = time.monotonic(), max(0, ROSTERS_AT_ONCE - len(self._requests.pending[station]))
        due = [move for move, at in sent_at.items() if at + again <= now]
        for move in sorted(due, key=lambda move: sent_at[move])[:free_slots]:
            sent_at[move] = now
            terminal, home = move
            place = wire.Place(station=NOWHERE if home < 0 else home, address=registry.address.get(home, ""))
            request = wire.Request(transfer=wire.Transfer(terminal=terminal, destination=place))
            task = asyncio.create_task(self._requests.ask(station, request, self._config.waits.answer))
            self.tasks.add(task)
            task.add_done_callback(note_end)
        self._transfers[station] = sent_at

    # Look up members.

    def station_of(self, terminal: int) -> int:
        """Return the station that has a terminal as a member, or −1."""
        return next((b for b in self.outlooks if terminal in self.members(b)), -1)

    def members(self, station: int) -> list[int]:
        """Return the members of a station."""
        return [seat.terminal for seat in self.outlooks.get(station, wire.Outlook()).roster.seats]

    def group(self, terminal: int) -> list[int]:
        """Return the group of a terminal: its terminals count only together in masked sums."""
        seats = (seat for o in self.outlooks.values() for seat in o.roster.seats if seat.terminal == terminal)
        return list(next(seats, wire.Seat()).group)

    def memberships(self) -> dict[int, int]:
        """Return the number of membership changes of each station."""
        return {b: outlook.membership for b, outlook in sorted(self.outlooks.items())}
