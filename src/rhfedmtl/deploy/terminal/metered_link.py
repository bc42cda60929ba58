"""The link of a terminal to its station, within the limits of its owner: pause, sleep and byte budget.

`MeteredLink` wraps `rhfedmtl.deploy.node.link.Uplink`. It writes each message to the owner's account before the message
leaves, and disconnects while there is a reason to rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.node.credentials import STATION, Identity
from rhfedmtl.deploy.node.dialogues import TERMINAL_TO_STATION
from rhfedmtl.deploy.node.link import Uplink
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.terminal.account import DOWN, UP, Account
from rhfedmtl.deploy.terminal.disclosure import Disclosure
from rhfedmtl.deploy.terminal.memory import TerminalMemory
from rhfedmtl.deploy.terminal.owner import ACCOUNT, Owner
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.resources.sizes import framed

MESSAGE_BYTES = 1 << 26
"""Limit for messages of the station. It is large because the shapes are unknown until the job arrives."""
REST = 2 * framed(0)
"""Bytes of the message that ends a stream before a rest."""
HANDSHAKE_BYTES = {UP: 2600, DOWN: 3600}
"""Measured bytes of a connection with mutual TLS."""
ENVELOPE_BYTES = 512
"""Bytes of an order or an update besides its vector."""


class MeteredLink:
    """The stream to the station, which rests while it is paused, asleep, or above its byte budget.

    The service and `RowAnswers` send through it. It also tells the station if the owner withdraws, or allows orders
    again. It never looks into a message.
    """

    def __init__(
        self,
        config: TerminalConfig,
        owner: Owner,
        memory: TerminalMemory,
        disclosure: Disclosure,
        hello: Callable[[], wire.Hello],
        receive: Callable[[str, Any], Awaitable[None]],
        log: Log,
        meters: Meters,
    ) -> None:
        self._config, self._owner, self._memory, self._disclosure, self._log = config, owner, memory, disclosure, log
        self.account = Account(config.state / ACCOUNT, config.byte_budget, config.budget_days)
        self.uplink = Uplink(
            TERMINAL_TO_STATION,
            config.credentials(),
            hello,
            receive,
            log,
            meters,
            MESSAGE_BYTES,
            self._spend,
            config.link,
        )
        self._declined: wire.Declined | None = None
        self._asleep_until = -math.inf
        self._withdrawal_sent = False

    def send(self, **body: Any) -> bool:
        """Queue a message; False if it cannot leave."""
        return self.uplink.send(**body)

    def decline(self, declined: wire.Declined) -> None:
        """Tell the station that the owner does not allow its request."""
        self._log("declined", "warning", round=declined.round or None, reason=declined.reason)
        self._declined = declined
        self.send(declined=declined)

    async def run(self) -> None:
        """Keep a stream to the station of the present place, until the link is closed."""
        self.heed_owner()
        place, network = self._memory.place, self._memory.identity.network
        await self.uplink.run(lambda: (Identity(network, STATION, place.station), place.address))

    def sleep(self) -> None:
        """Rest after an answer, for as long as the configuration says."""
        if self._config.sleep > 0.0:
            self._asleep_until = time.monotonic() + self._config.sleep
        self.heed_owner()

    def heed_owner(self) -> None:
        """Rest while there is a reason to, and tell the station if the owner leaves or allows more than before."""
        role, link = self._memory.role, self.uplink
        link.rest(self._reason_to_rest())
        if self._declined is not None and role is not None and not self._disclosure.refuses(self._declined.local_steps):
            self._declined = None
            self.send(declined=wire.Declined())
        if self._owner.withdraws and link.connected and not self._withdrawal_sent and role is not None:
            self._withdrawal_sent = self.send(withdraw=wire.Nothing())

    def _reason_to_rest(self) -> str:
        """Return why there should be no stream now; empty if there should."""
        if self._owner.withdraws:  # a terminal must connect to leave
            return ""
        if self._owner.paused:
            return "paused by its owner"
        # A connection, an order and its answer, with everything around them.
        role = self._memory.role
        vectors = 2 * (8 * math.prod(role.shape) + ENVELOPE_BYTES) if role else 0
        next_bytes = sum(HANDSHAKE_BYTES.values()) + vectors
        if not self.account.allows(next_bytes):
            return f"byte budget: {self.account.in_words}, the next answer needs {next_bytes:,}"
        return "asleep" if time.monotonic() < self._asleep_until else ""

    def _spend(self, direction: str, kind: str, n_bytes: int) -> bool:
        """Write a message to the account; return False if it exceeds the byte budget and must not leave."""
        station = self._memory.place.station
        if kind == "hello":
            self._withdrawal_sent = False
            for handshake_direction, handshake in HANDSHAKE_BYTES.items():
                self.account.note(handshake_direction, "connection", station, handshake)
        elif direction == UP and kind != "rest" and not self.account.allows(framed(n_bytes) + REST):  # and the rest
            self._log("not sent", "warning", reason=f"byte budget: {self.account.in_words}, {kind} has {n_bytes:,}")
            self.uplink.rest(f"byte budget: {self.account.in_words}")
            return False
        self.account.note(direction, kind, station, framed(n_bytes))
        return True
