"""Heartbeats of a station: every second, and after each change, it sends its roster to the cloud.

The roster lists the members and their state. If heartbeats stop, `status` at the cloud shows the station as missing.
"""

from __future__ import annotations

import asyncio
import contextlib

from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.station.memory import Memory
from rhfedmtl.deploy.station.terminal_sessions import TerminalSessions
from rhfedmtl.deploy.wire import wire_pb2 as wire

HEARTBEAT_S = 1.0


class Heartbeat:
    """Sends the roster, the last round and the last error of a station to the cloud.

    `StationService` runs `beat`. Code that changes the members sets ``news``, and a heartbeat reports several changes
    together. It only reads the memory, and never waits for terminals.
    """

    def __init__(self, memory: Memory, members: TerminalSessions, link: Uplink, news: asyncio.Event, log: Log) -> None:
        self._memory, self._members, self._link, self._news, self._log = memory, members, link, news, log
        self._sent_membership = -1

    async def beat(self) -> None:
        """Send a heartbeat every second, and soon after each change."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), HEARTBEAT_S)
            self._news.clear()
            if self._memory.role is not None:
                self.send()

    def send(self) -> None:
        """Send a heartbeat now."""
        roster, role = self.roster(), self._memory.role
        outlook = wire.Outlook(
            membership=roster.membership,
            round=role.round if role else 0,
            roster=roster,
            last_error=self._log.last_error[:400],
        )
        if self._link.send(outlook=outlook):
            self._sent_membership = roster.membership

    def send_members_if_new(self) -> None:
        """Send a heartbeat if this stream has not yet carried the present members."""
        role = self._memory.role
        if role is not None and role.membership != self._sent_membership:
            self.send()

    def begin_stream(self) -> None:
        """Note that a new stream has started, which has not carried the members yet."""
        self._sent_membership = -1

    def roster(self) -> wire.Roster:
        """Return the members, and the terminals that are in quarantine or decline."""
        memory, attendance = self._memory, self._members.attendance
        role = memory.role
        if role is None:
            return wire.Roster()
        present = set(attendance.present())
        seats = [
            wire.Seat(
                terminal=t,
                n_samples=m.n_samples,
                incarnation=m.incarnation,
                connected=t in present,
                withdraws=attendance.withdraws(t),
                group=sorted(attendance.room.group(t)) if memory.masked else (),
            )
            for t, m in sorted(role.members.items())
        ]
        declined = {t: refusal.reason for t, refusal in self._members.questions.declined.items()}
        return wire.Roster(membership=role.membership, seats=seats, quarantined=role.quarantined, declined=declined)
