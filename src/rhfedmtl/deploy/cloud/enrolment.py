"""Enrolment of new nodes: exchange a token for a certificate, on a port that requires no certificate.

An operator makes a token with `rhfedmtl network invite`. The node sends the token with a certificate request, first
without the request to see its settings. The cloud signs the request if it has the authority's key; otherwise the node
asks again until an operator has signed. `NodeRegistry` keeps the tokens.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import grpc
from grpc import aio

from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.acceptor import Rate, first_message
from rhfedmtl.deploy.node.credentials import TERMINAL, Authority, Credentials, Identity, PeerCertificate, requested_key
from rhfedmtl.deploy.node.link import SERVICE
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.node.server import guarded, listen
from rhfedmtl.deploy.node.state import refusal
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError

TRIES_A_SECOND = 5.0
"""Wrong tokens of an address that get an answer, per second."""
ENROLMENTS_AT_ONCE = 128
"""Connections at the same time."""
ADDRESSES = 1024
"""Addresses whose wrong tokens are counted."""
ENROLMENT_BYTES = 1 << 14
"""Largest message on this port."""


class EnrolmentService:
    """Gives certificates and settings to nodes with a valid token.

    `CloudService` opens it if the configuration names an address. The key of a node stays on the node. Flooding the
    port with wrong tokens does not block valid tokens. It never makes a token, and never assigns a terminal.
    """

    def __init__(self, config: CloudConfig, registry: NodeRegistry, log: Log) -> None:
        self._config, self._registry, self._log = config, registry, log
        self._server: Any = None
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    async def open(self, credentials: Credentials) -> None:
        """Open the port, if the configuration names an address for it."""
        address = self._config.enrolment.listen
        if not address:
            return
        # The port is open to strangers, so calls are short and their number is limited.
        age = [("grpc.max_connection_age_ms", 10_000), ("grpc.max_connection_age_grace_ms", 5_000)]
        self._server = aio.server(options=[*guarded(ENROLMENTS_AT_ONCE, ENROLMENT_BYTES), *age])
        method = grpc.stream_unary_rpc_method_handler(self.enrol)
        handler = grpc.method_handlers_generic_handler(f"{SERVICE}.Enrolment", {"Enrol": method})
        self._server.add_generic_rpc_handlers((handler,))
        await listen(self._server, address, credentials.server(certified_callers=False), self._log)
        await self._server.start()

    async def close(self) -> None:
        """Close the port."""
        if self._server is not None:
            await self._server.stop(0.2)

    async def enrol(self, _: Any, context: Any) -> bytes:
        """Answer a node with its settings, and with its certificate once it is signed; a wrong token gets a refusal."""
        network, registry, reply = self._config.node.network, self._registry, wire.Enrolled()
        try:
            request = codec.parse(wire.Enrol, await first_message(context))
            self._check_tries(request.token, context.peer())
            role, number = registry.find(request.token)
            reply.settings = json.dumps(self._settings(role, number))
            if not request.request:  # the node first checks that its rows fit the settings
                return reply.SerializeToString()
            requested_key(request.request)  # raises for an invalid request, before the token is used up
            certificate = self._certificate(request, Identity(network, role, number))
            if certificate:  # otherwise the node asks again, until an operator has signed
                serial = PeerCertificate.read(certificate).serial
                registry.redeem(request.token, serial)
                reply.certificate, reply.authorities = certificate, self.authorities().encode()
                self._log("enrolled", peer=f"{role} {number}", serial=serial)
        except (RHFedMTLError, OSError) as error:
            # A stranger can cause every error but an OSError, so only the latter is a problem of this network.
            level = "warning" if isinstance(error, OSError) else "info"
            self._log.seldom("enrolment refused", level, reason=refusal(error), peer=context.peer())
            reply.trouble = refusal(error)
        return reply.SerializeToString()

    def authorities(self) -> str:
        """Return the certificates of the network's authorities."""
        return (self._config.folder / self._config.node.credentials / "ca.crt").read_text()

    def _check_tries(self, token: str, peer: str) -> None:
        """Limit the wrong tokens that an address may try. A valid token always passes."""
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
        """Return the settings that a new node writes into its configuration."""
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

    def _certificate(self, request: wire.Enrol, identity: Identity) -> bytes:
        """Return a certificate from the cloud's authority or from an operator; empty while it is not signed."""
        enrolment = self._config.enrolment
        if enrolment.authority:
            return Authority.load(self._config.folder / enrolment.authority).issue_for(identity, request.request)
        n_waiting = len(self._registry.waiting())
        certificate = self._registry.ask(request.token, request.request)
        if len(self._registry.waiting()) > n_waiting:
            self._log("certificate asked for", peer=f"{identity.role} {identity.number}")
        return certificate
