"""What the cloud answers people: commands of operators, and certificates for tokens."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from rhfedmtl.algorithms.options import Options
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.station_sessions import StationSessions
from rhfedmtl.deploy.cloud.trainer import Trainer, Training
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.audit import AuditTrail
from rhfedmtl.deploy.node.credentials import (
    CLOUD,
    OPERATOR,
    STATION,
    TERMINAL,
    Authority,
    Credentials,
    Identity,
    PeerCertificate,
    caller,
    certifies,
    check_number,
    requested_key,
)
from rhfedmtl.deploy.node.enrolment import Token
from rhfedmtl.deploy.node.link import GREETING_S, SERVICE, Rate
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.node.server import guarded, listen
from rhfedmtl.deploy.node.state import refusal
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError, RHFedMTLError
from rhfedmtl.failpoints import failpoint
from rhfedmtl.models.removal import obstacle
from rhfedmtl.plain import plain

TRIES_A_SECOND = 5.0
"""Wrong tokens of one address that are looked at."""
AT_ONCE = 128
ADDRESSES = 1024
ENROLMENT_BYTES = 1 << 14
CHUNK = 1 << 20
UNAUDITED = ("status", "curve", "audit", "requests")
"""Commands that only look."""


class OperatorApi:
    """Answers operators on the cloud's own port, and newcomers on another, where no certificate is asked for."""

    def __init__(
        self,
        config: CloudConfig,
        registry: NodeRegistry,
        stations: StationSessions,
        trainer: Trainer,
        log: Log,
        trail: AuditTrail,
    ) -> None:
        self._config, self._registry, self._stations = config, registry, stations
        self._trainer, self._log, self._trail = trainer, log, trail
        self._enrolment: Any = None
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for operators."""
        # As streams, so that nothing is read before it is known who calls; to the caller it is the same.
        methods = {
            "Command": grpc.stream_unary_rpc_method_handler(self._command),
            "Export": grpc.stream_stream_rpc_method_handler(self._export),
        }
        return grpc.method_handlers_generic_handler(f"{SERVICE}.Control", methods)

    async def open(self, credentials: Credentials) -> None:
        """Begin to hand out certificates, if so configured."""
        enrolment = self._config.enrolment
        if not enrolment.listen:
            return
        credentials = credentials.server(callers_known=False)
        # Anybody can call here: nobody stays long, and few are heard at once.
        age = [("grpc.max_connection_age_ms", 10_000), ("grpc.max_connection_age_grace_ms", 5_000)]
        self._enrolment = aio.server(options=[*guarded(AT_ONCE, ENROLMENT_BYTES), *age])
        method = grpc.stream_unary_rpc_method_handler(self._enrol)
        handler = grpc.method_handlers_generic_handler(f"{SERVICE}.Enrolment", {"Enrol": method})
        self._enrolment.add_generic_rpc_handlers((handler,))
        await listen(self._enrolment, enrolment.listen, credentials, self._log)
        await self._enrolment.start()

    async def close(self) -> None:
        """Stop handing out certificates."""
        if self._enrolment is not None:
            await self._enrolment.stop(0.2)

    async def _command(self, _: Any, context: Any) -> bytes:
        reply, who, name = wire.Reply(), context.peer(), ""
        try:
            who = self._check_operator(context)
            command = codec.parse(wire.Command, await _said(context))
            name, arguments = command.name[:40], json.loads(command.arguments or "{}")
            if name not in UNAUDITED:  # a command that cannot be written down is not carried out
                self._trail.add("command", who, command=name, arguments=arguments)
            failpoint("command", name, "before")
            reply.result = json.dumps(plain(await self.command(command.name, **arguments)))
            failpoint("command", name, "after")
        except (RHFedMTLError, ValueError, TypeError, OSError) as error:
            level = "info" if name else "warning"  # an operator hears it, and need not be told again
            self._log.seldom("command refused", level, peer=who, command=name, reason=refusal(error))
            reply.trouble = refusal(error)
        return reply.SerializeToString()

    async def _export(self, _: Any, context: Any) -> AsyncIterator[bytes]:
        """Models, ledger and result of the last training, file by file."""
        with tempfile.TemporaryDirectory(prefix="rhfedmtl-") as folder:
            try:
                self._trail.add("command", self._check_operator(context), command="export")
                names = await asyncio.to_thread(self._trainer.save, Path(folder))
            except (RHFedMTLError, OSError) as error:
                yield wire.Chunk(trouble=refusal(error)).SerializeToString()
                return
            for name in names:
                with Path(folder, name).open("rb") as file:
                    while data := file.read(CHUNK):
                        yield wire.Chunk(name=name, data=data).SerializeToString()

    def _check_operator(self, context: Any) -> str:
        """Who gives a command; refused where it is no operator."""
        peer = caller(context.auth_context())
        who = peer.identity
        if (
            who.role == OPERATOR
            and who.network == self._config.node.network
            and peer.serial not in self._registry.revoked
        ):
            return f"{who}, certificate {peer.serial}, from {context.peer()}"
        self._stations.acceptor.cutter.add(context.peer())
        raise PeerError(f"{who.uri} is no operator of this network, or its certificate was revoked")

    # Commands.

    async def command(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Carry out a command; what came of it, in plain values."""
        if name not in self.COMMANDS:
            raise PeerError(f"unknown command {name[:40]!r}")
        return await self.COMMANDS[name](self, **arguments)

    async def _status(self) -> dict[str, Any]:
        now, stations, bill = time.time(), [], await asyncio.to_thread(self._trainer.bill)
        for b, task in enumerate(self._config.learning.tasks):
            session, outlook = self._stations.acceptor.sessions.get(b), self._stations.outlooks.get(b, wire.Outlook())
            seats = {seat.terminal: seat for seat in outlook.roster.seats}
            known = sorted({*self._registry.homes(b), *seats, *outlook.roster.quarantined})
            excluded = self._trainer.network.excluded.get(b)
            leaving = {t for t in seats if self._registry.station.get(t, -1) != b}
            stations.append(
                {
                    "station": b,
                    "task": task,
                    "connected": session is not None,
                    "connected_seconds": now - session.since if session else None,
                    "heard_seconds": self._stations.quiet(b) if session else None,
                    "spent": bill.get((b, -1), {}),
                    "round": outlook.round,
                    "excluded": excluded,
                    "last_error": f"excluded: it told {excluded}"
                    if excluded
                    else self._stations.fault(b) or outlook.last_error,
                    "terminals": [
                        {
                            "terminal": t,
                            "member": t in seats,
                            "connected": t in seats and seats[t].connected and session is not None,
                            "samples": seats[t].n_samples if t in seats else None,
                            "spent": bill.get((b, t), {}),
                            "quarantined": outlook.roster.quarantined.get(t),
                            "declined": outlook.roster.declined.get(t),
                            "waits": self._waiting(b, t) if (self._masked or self._noised) and t in leaving else None,
                        }
                        for t in known
                    ],
                }
            )
        return {
            "network": self._config.node.network,
            "training": {**self._trainer.status, "waits_for": self._waits_for()},
            "stations": stations,
            "last_error": self._log.last_error,
        }

    def _waits_for(self) -> list[str]:
        return self._stations.waited_for() if self._trainer.state is Training.RUNNING else []

    async def _train(
        self, budget: list[str] | None = None, target_gap: float | None = None, privacy: str | None = None
    ) -> dict[str, Any]:
        gap = self._config.learning.target_gap if target_gap is None else float(target_gap)
        if not (math.isfinite(gap) and gap >= 0.0):
            raise ConfigError(f"a target gap of {gap}: give a number from 0")
        privacy = self._config.learning.privacy if privacy is None else privacy
        if privacy:
            self._config.learning.check_private(privacy)
            if gap:
                raise ConfigError("one certificate leaves a private training, at its end: leave --target-gap out")
        spec = {"budget": budget, "target_gap": gap, "privacy": privacy, "at": time.time()}
        self._trainer.order(spec)
        self._stations.go_on()
        return spec

    async def _stop(self) -> dict[str, Any]:
        self._trainer.stop()
        self._stations.stop()
        return {}

    async def _move(self, terminal: int, station: int) -> dict[str, Any]:
        return self._place(terminal, check_number(station, STATION))

    async def _leave(self, terminal: int) -> dict[str, Any]:
        return self._place(terminal, -1)

    async def _forget(self, terminal: int, certified: bool = False) -> dict[str, Any]:
        """Take out a terminal that will not come back; ``certified``, only where it can be said what is left of it."""
        self._refuse_noised(terminal)
        learned = self._trainer.network.scalers or []
        relationship = Options.of(**self._config.learning.options).relationship
        rows = any(scaler.mean is not None for scaler in learned)
        if certified and (why := obstacle(scaled_by_rows=rows, relationship=relationship)):
            raise ConfigError(f"what would be left of terminal {terminal} cannot be bounded: {why}")
        holder = self._stations.station_of(check_number(terminal, TERMINAL))
        if holder < 0 and terminal not in self._registry.station:
            raise ConfigError(f"no terminal {terminal} was ever here: `rhfedmtl status` names those that are")
        facts = {"terminal": terminal, "from": holder, "to": -1}
        if self._registry.station.get(terminal, -1) >= 0:
            facts = self._place(terminal, -1)
        if holder >= 0:
            await self._transfer(holder, wire.Transfer(terminal=terminal, forget=True))
        if certified and self._masked and self._stations.station_of(terminal) >= 0:
            raise ConfigError(f"terminal {terminal} {self._waiting(holder, terminal)}: say it again when it is out")
        return facts

    async def _readmit(self, terminal: int) -> dict[str, Any]:
        """Let a terminal in again that is in quarantine."""
        holder = next((b for b, o in self._stations.outlooks.items() if terminal in o.roster.quarantined), None)
        if holder is None:
            raise ConfigError(f"terminal {terminal} is in quarantine at no station that is there")
        await self._transfer(holder, wire.Transfer(terminal=terminal, readmit=True))
        return {"terminal": terminal, "station": holder}

    async def _transfer(self, station: int, wish: wire.Transfer) -> None:
        """Have a station do something about a terminal; refused where it does not."""
        answer = await self._stations.ask(station, wire.Request(transfer=wish), self._config.waits.answer)
        if answer.trouble:
            raise ConfigError(f"station {station}: {answer.trouble}; say it again when it is there")

    @property
    def _masked(self) -> bool:
        return self._trainer.network.method.channel.sums_only

    @property
    def _noised(self) -> bool:
        return self._trainer.network.method.channel.noised

    def _refuse_noised(self, terminal: int, *, leaves: bool = False) -> None:
        """Nobody can take a share out of a sum in noise: the sum without it would tell it; but it may stay behind."""
        if leaves and self._noised:
            return
        if self._noised or self._config.learning.privacy:
            raise ConfigError(
                f"sums of this network are noised: what terminal {terminal} put into them cannot be taken out; after "
                "the first round `rhfedmtl network leave` lets it go, and its part stays in the sum, in noise"
            )
        if self._masked and not self._trainer.network.method.has_duals:
            raise ConfigError(
                f"{self._config.learning.algorithm} keeps models, not sums, of terminals: under masks nobody leaves; "
                "take a method with dual variables, as rhfedmtl"
            )

    def _waiting(self, station: int, terminal: int) -> str:
        """What somebody waits for who is to leave a station whose sums are masked."""
        to = self._registry.station.get(terminal, -1)
        others = [t for t in self._stations.group(terminal) if self._registry.station.get(t, -1) != to]
        names = ", ".join(map(str, others))
        if self._noised:
            group = f"; terminals {names}, which count together with it, take part in no more sums" if names else ""
            return f"leaves station {station}; what it put into the noised sum stays there{group}"
        needs = f"terminals {names} count together with it, and must go to the same place" if names else "it goes soon"
        return f"waits to leave station {station}, once all others there are present: {needs}; it counts until then"

    def _place(self, terminal: int, station: int) -> dict[str, Any]:
        """Let a terminal belong elsewhere; its station hears of it as soon as it says that it still has it."""
        self._refuse_noised(terminal, leaves=station < 0)
        registry = self._registry
        old = registry.station.get(check_number(terminal, TERMINAL), -1)
        if old < 0 or old == station:
            raise ConfigError(f"terminal {terminal} is {'there already' if old >= 0 else 'under no station'}")
        if station >= 0 and self._stations.station_of(terminal) != old:
            # It would be sent to a station that then refuses it, and nobody could tell it where else to go.
            raise ConfigError(f"terminal {terminal} is not with station {old} now: it can be moved once it is there")
        if len(registry.homes(old)) == 1:
            raise ConfigError(f"terminal {terminal} is the only one of station {old}: a task needs one at least")
        least = self._trainer.network.method.channel.least
        few = len({*registry.homes(old), *self._stations.members(old)}) < 2 * least
        if self._masked and (few or set(registry.homes(old)) <= set(self._stations.group(terminal))):
            raise ConfigError(
                f"terminal {terminal} counts together with all others of station {old}, so nobody leaves it: invite "
                f"{least} new terminals or more first"
            )
        registry.place(terminal, station)
        self._stations.tell_access()
        facts = {"terminal": terminal, "from": old, "to": station}
        said = self._masked or self._noised
        return {**facts, "waits": f"terminal {terminal} {self._waiting(old, terminal)}"} if said else facts

    async def _revoke(self, node: str, serials: list[str] | None = None) -> dict[str, Any]:
        own = self._config.credentials().peer.serial
        if node.partition("/")[0] == CLOUD or own in (node, *(serials or ())):
            raise ConfigError(
                f"{node} is the cloud, and no node has a list of revoked clouds: whoever has its key can play it to "
                "the stations. Stop it, and make a new network with `rhfedmtl network init`: an authority is cheap"
            )
        revoked = self._registry.revoke(node, serials or [])
        self._stations.tell_access()
        return {"revoked": revoked}

    async def _invite(
        self, role: str = TERMINAL, number: int | None = None, station: int | None = None
    ) -> dict[str, Any]:
        config = self._config
        if not config.enrolment.listen:
            raise ConfigError("this cloud hands out no certificates: set enrolment.listen and enrolment.address")
        secret, number = self._registry.invite(role, number, station)
        self._stations.tell_access()
        token = Token(role, number, config.node.network, config.enrolment.address, self._authorities(), secret)
        return {"token": token.text(), "role": role, "number": number}

    async def _requests(self) -> dict[str, Any]:
        """Certificates that nodes with tokens wait for."""
        names = ("role", "number", "request")
        waiting = self._registry.waiting().items()
        return {"requests": [{"token": key} | {name: token[name] for name in names} for key, token in waiting]}

    async def _sign(self, token: str, certificate: str) -> dict[str, Any]:
        """Take a certificate that an operator made: it must be for the node and the key that wait for it."""
        asked = self._registry.waiting().get(token)
        if asked is not None:
            who = PeerCertificate.read(certificate.encode()).identity
            expected = Identity(self._config.node.network, asked["role"], asked["number"])
            if who != expected or not certifies(certificate.encode(), asked["request"].encode()):
                raise ConfigError(f"that is no certificate for {expected} and the key that it has: it is of {who}")
        self._registry.sign(token, certificate)
        return {"signed": f"{asked['role']}/{asked['number']}" if asked else ""}

    async def _audit(self, start: int = 0) -> dict[str, Any]:
        """The audit trail from a byte on: some whole lines, and where the next begin."""
        lines = await asyncio.to_thread(self._trail.part, max(0, int(start)), CHUNK)
        return {"lines": lines.decode(errors="replace"), "next": max(0, int(start)) + len(lines)}

    async def _curve(self) -> dict[str, Any]:
        return {"rounds": self._trainer.curve()}

    COMMANDS: Mapping[str, Callable[..., Awaitable[dict[str, Any]]]] = {
        "status": _status,
        "curve": _curve,
        "audit": _audit,
        "requests": _requests,
        "sign": _sign,
        "train": _train,
        "stop": _stop,
        "move": _move,
        "leave": _leave,
        "forget": _forget,
        "readmit": _readmit,
        "revoke": _revoke,
        "invite": _invite,
    }

    # Certificates.

    async def _enrol(self, _: Any, context: Any) -> bytes:
        config, registry, reply = self._config, self._registry, wire.Enrolled()
        try:
            asked = codec.parse(wire.Enrol, await _said(context))
            self._check_tries(asked.token, context.peer())
            role, number = registry.find(asked.token)
            reply.settings = json.dumps(self._settings(role, number))
            if not asked.request:  # it looks first whether its rows fit
                return reply.SerializeToString()
            requested_key(asked.request)  # a request that cannot be signed uses no token up
            certificate = self._certificate(asked, Identity(config.node.network, role, number))
            if certificate:  # else it asks again, until an operator has signed
                serial = PeerCertificate.read(certificate).serial
                registry.redeem(asked.token, serial)
                reply.certificate, reply.authorities = certificate, self._authorities().encode()
                self._log("enrolled", peer=f"{role} {number}", serial=serial)
        except (RHFedMTLError, OSError) as error:
            # Anybody can cause the first kind: it is in the trail, and no trouble of this network.
            level = "warning" if isinstance(error, OSError) else "info"
            self._log.seldom("enrolment refused", level, reason=refusal(error), peer=context.peer())
            reply.trouble = refusal(error)
        return reply.SerializeToString()

    def _certificate(self, asked: wire.Enrol, who: Identity) -> bytes:
        """Of the operator's making, or of the cloud's where it has the key; nothing while none is signed."""
        enrolment = self._config.enrolment
        if enrolment.authority:
            return Authority.load(self._config.folder / enrolment.authority).issue_for(who, asked.request)
        before = len(self._registry.waiting())
        certificate = self._registry.ask(asked.token, asked.request)
        if len(self._registry.waiting()) > before:
            self._log("certificate asked for", peer=f"{who.role} {who.number}")
        return certificate

    def _authorities(self) -> str:
        return (self._config.folder / self._config.node.credentials / "ca.crt").read_text()

    def _check_tries(self, token: str, peer: str) -> None:
        """Few tries of one address with tokens that are none. Who has a token is heard, whatever others do."""
        if self._registry.knows(token):
            return
        address = peer.rpartition(":")[0]
        rate = self._rates.pop(address, None) or Rate(TRIES_A_SECOND)
        self._rates[address] = rate
        if len(self._rates) > ADDRESSES:
            self._rates.popitem(last=False)
        if not rate.allows():
            raise PeerError("too many tries: wait a second")

    def _settings(self, role: str, number: int) -> dict[str, Any]:
        registry, config, job = self._registry, self._config, self._config.learning.job()
        method = method_of(job)
        station = registry.station.get(number, -1) if role == TERMINAL else number
        host, port = config.enrolment.address.rpartition(":")[0], config.node.listen.rpartition(":")[2]
        return {
            "role": role,
            "number": number,
            "station": station,
            "address": registry.address.get(station, ""),
            "cloud": f"{host}:{port}",
            "columns": config.learning.feature_names,
            "classes": config.learning.classes,
            "features": config.learning.features,
            "least_summed": method.channel.summed,
            **config.learning.terminal_bound,
            "message_bytes": jobs.message_limit(job, method, config.limits),
        }


async def _said(context: Any) -> bytes:
    """The one message of a call, from a caller that may speak."""
    try:
        data = await asyncio.wait_for(context.read(), GREETING_S)
    except TimeoutError:
        raise PeerError("a call that says nothing") from None
    return b"" if data is aio.EOF else bytes(data)
