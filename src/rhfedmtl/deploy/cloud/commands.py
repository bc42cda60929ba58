"""Commands of operators to the cloud: training, status, membership, certificates, audit.

`OperatorApi` calls `Commands.run` with the name of a command and its arguments; `rhfedmtl network` and `rhfedmtl
status` send them. To add a command, write a method and add it to the table in `Commands`. A refusal is a `ConfigError`
that names the way out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rhfedmtl.algorithms.options import Options
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.enrolment import EnrolmentService
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.station_sessions import StationSessions
from rhfedmtl.deploy.cloud.trainer import Trainer, Training
from rhfedmtl.deploy.node.audit import AuditTrail
from rhfedmtl.deploy.node.credentials import (
    CLOUD,
    STATION,
    TERMINAL,
    Identity,
    PeerCertificate,
    certifies,
    check_number,
)
from rhfedmtl.deploy.node.enrolment import Token
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.models.removal import obstacle

READ_CHUNK = 1 << 20
"""Bytes of the audit trail, or of an exported file, in a message."""


class Placements:
    """Commands about the station of a terminal: move, leave, forget, readmit.

    A decision goes to the registry first, and the stations carry it out, some of them later. If sums are masked or
    noised, several decisions are impossible: taking a share out of a sum would reveal the share. It never talks to a
    terminal.
    """

    def __init__(
        self, config: CloudConfig, registry: NodeRegistry, stations: StationSessions, trainer: Trainer
    ) -> None:
        self._config, self._registry, self._stations = config, registry, stations
        self._network = trainer.network

    @property
    def hidden(self) -> bool:
        """True if stations see only sums, under masks or in noise."""
        channel = self._network.method.channel
        return channel.sums_only or channel.noised

    async def move(self, terminal: int, station: int) -> dict[str, Any]:
        """Move a terminal to another station."""
        return self._place(terminal, check_number(station, STATION))

    async def leave(self, terminal: int) -> dict[str, Any]:
        """Remove a terminal from the network."""
        return self._place(terminal, -1)

    async def forget(self, terminal: int, certified: bool = False) -> dict[str, Any]:
        """Remove a terminal that will not come back, and take its share out of the sums.

        ``certified`` refuses the command unless a bound exists on the influence that remains in the models.
        """
        self._refuse_hidden(terminal)
        network, registry, stations = self._network, self._registry, self._stations
        relationship = Options.of(**self._config.learning.options).relationship
        rows = any(scaler.from_rows for scaler in network.scalers or [])
        if certified and (why := obstacle(scaled_by_rows=rows, relationship=relationship)):
            raise ConfigError(f"the influence of terminal {terminal} that remains cannot be bounded: {why}")
        holder = stations.rosters.station_of(check_number(terminal, TERMINAL))
        if holder < 0 and terminal not in registry.station:
            raise ConfigError(f"no terminal {terminal} was ever here: `rhfedmtl status` names the terminals that are")
        facts = {"terminal": terminal, "from": holder, "to": -1}
        if registry.station.get(terminal, -1) >= 0:
            facts = self._place(terminal, -1)
        if holder >= 0:
            await self._transfer(holder, wire.Transfer(terminal=terminal, forget=True))
        if certified and network.method.channel.sums_only and stations.rosters.station_of(terminal) >= 0:
            raise ConfigError(f"terminal {terminal} {self.waiting(holder, terminal)}: say it again when it is out")
        return facts

    async def readmit(self, terminal: int) -> dict[str, Any]:
        """Admit a terminal again that is in quarantine."""
        holder = next((b for b, o in self._stations.rosters.outlooks.items() if terminal in o.roster.quarantined), None)
        if holder is None:
            raise ConfigError(f"terminal {terminal} is in quarantine at no station that is there")
        await self._transfer(holder, wire.Transfer(terminal=terminal, readmit=True))
        return {"terminal": terminal, "station": holder}

    async def _transfer(self, station: int, wish: wire.Transfer) -> None:
        """Ask a station to carry out a transfer; raise a `ConfigError` if it does not."""
        answer = await self._stations.requests.ask(station, wire.Request(transfer=wish), self._config.waits.answer)
        if answer.trouble:
            raise ConfigError(f"station {station}: {answer.trouble}; say it again when it is there")

    def _refuse_hidden(self, terminal: int, *, leaves: bool = False) -> None:
        """Refuse to take a share out of hidden sums.

        The difference of two noised sums would reveal the share. A terminal that ``leaves`` a noised network may go,
        and its share stays in the sum.
        """
        method, learning = self._network.method, self._config.learning
        if leaves and method.channel.noised:
            return
        if method.channel.noised or learning.privacy:
            raise ConfigError(
                f"sums of this network are noised: the share of terminal {terminal} cannot be taken out of them; after "
                "the first round `rhfedmtl network leave` lets it go, and its part stays in the sum, in noise"
            )
        if method.channel.sums_only and not method.has_duals:
            raise ConfigError(
                f"{learning.algorithm} keeps models, not sums, of terminals: under masks no terminal leaves; "
                "take a method with dual variables, as rhfedmtl"
            )

    def waiting(self, station: int, terminal: int) -> str:
        """Return the words for a terminal that should leave a station whose sums are masked or noised."""
        goal = self._registry.station.get(terminal, -1)
        group = [t for t in self._stations.rosters.group(terminal) if self._registry.station.get(t, -1) != goal]
        names = ", ".join(map(str, group))
        if self._network.method.channel.noised:
            rest = f"; terminals {names}, which count together with it, take part in no more sums" if names else ""
            return f"leaves station {station}; its part of the noised sum stays there{rest}"
        needs = f"terminals {names} count together with it, and must go to the same place" if names else "it goes soon"
        return f"waits to leave station {station}, once all others there are present: {needs}; it counts until then"

    def _place(self, terminal: int, station: int) -> dict[str, Any]:
        """Assign a terminal to another station (−1: to no station).

        Its present station carries out the change after the next heartbeat.
        """
        self._refuse_hidden(terminal, leaves=station < 0)
        registry, stations, channel = self._registry, self._stations, self._network.method.channel
        old = registry.station.get(check_number(terminal, TERMINAL), -1)
        if old < 0 or old == station:
            raise ConfigError(f"terminal {terminal} is {'there already' if old >= 0 else 'under no station'}")
        if station >= 0 and stations.rosters.station_of(terminal) != old:
            # The new station would refuse the terminal, and could not send it to the right station.
            raise ConfigError(f"terminal {terminal} is not with station {old} now: it can be moved once it is there")
        if len(registry.homes(old)) == 1:
            raise ConfigError(f"terminal {terminal} is the last of station {old}: a task needs a terminal")
        # With fewer than 2 · least terminals there is only a single group, and a group leaves only as a whole.
        few = len({*registry.homes(old), *stations.rosters.members(old)}) < 2 * channel.least
        if channel.sums_only and (few or set(registry.homes(old)) <= set(stations.rosters.group(terminal))):
            raise ConfigError(
                f"terminal {terminal} counts together with all others of station {old}, so none can leave it: invite "
                f"{channel.least} new terminals or more first"
            )
        registry.place(terminal, station)
        stations.rosters.tell_access()
        facts = {"terminal": terminal, "from": old, "to": station}
        return {**facts, "waits": f"terminal {terminal} {self.waiting(old, terminal)}"} if self.hidden else facts


class Commands:
    """Carries out the commands of operators, by name.

    Callers check first that an operator sends the command, and write it to the audit trail. Results are plain values
    for JSON; an error is a refusal.
    """

    def __init__(
        self,
        config: CloudConfig,
        registry: NodeRegistry,
        stations: StationSessions,
        trainer: Trainer,
        enrolment: EnrolmentService,
        log: Log,
        trail: AuditTrail,
    ) -> None:
        self._config, self._registry, self._stations, self._trainer = config, registry, stations, trainer
        self._enrolment, self._log, self._trail = enrolment, log, trail
        self._placements = placements = Placements(config, registry, stations, trainer)
        self._table: Mapping[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "status": self._status,
            "curve": self._curve,
            "audit": self._audit,
            "requests": self._requests,
            "sign": self._sign,
            "train": self._train,
            "stop": self._stop,
            "move": placements.move,
            "leave": placements.leave,
            "forget": placements.forget,
            "readmit": placements.readmit,
            "revoke": self._revoke,
            "invite": self._invite,
        }

    async def run(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Carry out a command, and return its result as plain values; refuse an unknown name."""
        if name not in self._table:
            raise PeerError(f"unknown command {name[:40]!r}")
        return await self._table[name](**arguments)

    # Training.

    async def _status(self) -> dict[str, Any]:
        """Return the state of the training, and of every station and terminal."""
        trainer, placements = self._trainer, self._placements
        now, stations, running = time.time(), [], trainer.state is Training.RUNNING
        bill = await asyncio.to_thread(trainer.progress.bill, running=running)
        for b, task in enumerate(self._config.learning.tasks):
            session, outlook = (
                self._stations.acceptor.sessions.get(b),
                self._stations.rosters.outlooks.get(b, wire.Outlook()),
            )
            seats = {seat.terminal: seat for seat in outlook.roster.seats}
            terminals = sorted({*self._registry.homes(b), *seats, *outlook.roster.quarantined})
            excluded = trainer.network.excluded.get(b)
            leaving = {t for t in seats if self._registry.station.get(t, -1) != b}
            stations.append(
                {
                    "station": b,
                    "task": task,
                    "connected": session is not None,
                    "connected_seconds": now - session.since if session else None,
                    "heard_seconds": self._stations.requests.quiet(b) if session else None,
                    "spent": bill.get((b, -1), {}),
                    "round": outlook.round,
                    "excluded": excluded,
                    "last_error": f"excluded: it told {excluded}"
                    if excluded
                    else self._stations.requests.fault(b) or outlook.last_error,
                    "terminals": [
                        {
                            "terminal": t,
                            "member": t in seats,
                            "connected": t in seats and seats[t].connected and session is not None,
                            "samples": seats[t].n_samples if t in seats else None,
                            "spent": bill.get((b, t), {}),
                            "quarantined": outlook.roster.quarantined.get(t),
                            "declined": outlook.roster.declined.get(t),
                            "waits": placements.waiting(b, t) if placements.hidden and t in leaving else None,
                        }
                        for t in terminals
                    ],
                }
            )
        waits_for = self._stations.waited_for() if trainer.state is Training.RUNNING else []
        return {
            "network": self._config.node.network,
            "training": {**trainer.status, "waits_for": waits_for},
            "stations": stations,
            "last_error": self._log.last_error,
        }

    async def _curve(self) -> dict[str, Any]:
        return {"rounds": self._trainer.progress.curve()}

    async def _train(
        self, budget: list[str] | None = None, target_gap: float | None = None, privacy: str | None = None
    ) -> dict[str, Any]:
        """Order a training; arguments that are not set come from the configuration."""
        learning = self._config.learning
        gap = learning.target_gap if target_gap is None else float(target_gap)
        if not (math.isfinite(gap) and gap >= 0.0):
            raise ConfigError(f"a target gap of {gap}: give a number from 0")
        privacy = learning.privacy if privacy is None else privacy
        if privacy:
            learning.check_private(privacy)
            if gap:
                raise ConfigError("a private training has a certificate only at its end: leave --target-gap out")
        spec = {"budget": budget, "target_gap": gap, "privacy": privacy, "at": time.time()}
        self._trainer.order(spec)
        self._stations.requests.go_on()
        return spec

    async def _stop(self) -> dict[str, Any]:
        self._trainer.stop()
        self._stations.requests.stop()
        return {}

    # Certificates, and the audit trail.

    async def _revoke(self, node: str, serials: list[str] | None = None) -> dict[str, Any]:
        cloud_serial = self._config.credentials().peer.serial
        if node.partition("/")[0] == CLOUD or cloud_serial in (node, *(serials or ())):
            raise ConfigError(
                f"{node} is the cloud, and no node has a list of revoked clouds: its key is enough to act as the "
                "cloud. Stop it, and make a new network with `rhfedmtl network init`: an authority is cheap"
            )
        revoked = self._registry.revoke(node, serials or [])
        self._stations.rosters.tell_access()
        return {"revoked": revoked}

    async def _invite(
        self, role: str = TERMINAL, number: int | None = None, station: int | None = None
    ) -> dict[str, Any]:
        config = self._config
        if not config.enrolment.listen:
            raise ConfigError("this cloud hands out no certificates: set enrolment.listen and enrolment.address")
        secret, number = self._registry.invite(role, number, station)
        self._stations.rosters.tell_access()
        authorities = self._enrolment.authorities()
        token = Token(role, number, config.node.network, config.enrolment.address, authorities, secret)
        return {"token": token.text(), "role": role, "number": number}

    async def _requests(self) -> dict[str, Any]:
        """Return the certificates that nodes with tokens wait for."""
        names = ("role", "number", "request")
        waiting = self._registry.waiting().items()
        return {"requests": [{"token": key} | {name: token[name] for name in names} for key, token in waiting]}

    async def _sign(self, token: str, certificate: str) -> dict[str, Any]:
        """Store a certificate that an operator made; refuse it unless node and key match the waiting request."""
        request = self._registry.waiting().get(token)
        if request is not None:
            identity = PeerCertificate.read(certificate.encode()).identity
            expected = Identity(self._config.node.network, request["role"], request["number"])
            if identity != expected or not certifies(certificate.encode(), request["request"].encode()):
                raise ConfigError(f"that is no certificate for {expected} and the key that it has: it is of {identity}")
        self._registry.sign(token, certificate)
        return {"signed": f"{request['role']}/{request['number']}" if request else ""}

    async def _audit(self, start: int = 0) -> dict[str, Any]:
        """Return complete lines of the audit trail from a byte on, and the position of the next line."""
        lines = await asyncio.to_thread(self._trail.part, max(0, int(start)), READ_CHUNK)
        return {"lines": lines.decode(errors="replace"), "next": max(0, int(start)) + len(lines)}
