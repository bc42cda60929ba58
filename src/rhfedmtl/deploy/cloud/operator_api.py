"""The gRPC service of the cloud for operators: check the caller, write the audit trail, run commands, send exports.

`deploy.operator.Operator` is the other end. `Commands` carries out a command; this module only transports it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl.deploy.cloud.commands import READ_CHUNK, Commands
from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.cloud.registry import NodeRegistry
from rhfedmtl.deploy.cloud.station_sessions import StationSessions
from rhfedmtl.deploy.cloud.trainer import Trainer
from rhfedmtl.deploy.node.acceptor import first_message
from rhfedmtl.deploy.node.audit import AuditTrail
from rhfedmtl.deploy.node.credentials import OPERATOR, caller
from rhfedmtl.deploy.node.link import SERVICE
from rhfedmtl.deploy.node.log import Log
from rhfedmtl.deploy.node.state import refusal
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import PeerError, RHFedMTLError
from rhfedmtl.failpoints import failpoint
from rhfedmtl.plain import plain

UNAUDITED = ("status", "curve", "audit", "requests")
"""Commands that only read."""


class OperatorApi:
    """Serves operators on the port of the cloud.

    It checks the caller's certificate and writes the command to the audit trail before it carries out anything. It
    never answers a caller without an operator's certificate.
    """

    def __init__(
        self,
        config: CloudConfig,
        registry: NodeRegistry,
        stations: StationSessions,
        trainer: Trainer,
        commands: Commands,
        log: Log,
        trail: AuditTrail,
    ) -> None:
        self._config, self._registry, self._stations, self._trainer = config, registry, stations, trainer
        self._commands, self._log, self.trail = commands, log, trail

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC service for operators."""
        # As streams, gRPC reads no message before the caller is identified. The caller sees no difference.
        methods = {
            "Command": grpc.stream_unary_rpc_method_handler(self.command),
            "Export": grpc.stream_stream_rpc_method_handler(self.export),
        }
        return grpc.method_handlers_generic_handler(f"{SERVICE}.Control", methods)

    async def command(self, _: Any, context: Any) -> bytes:
        """Carry out a command, and reply with its result or with the reason of a refusal."""
        reply, operator, name = wire.Reply(), context.peer(), ""
        try:
            operator = self.check_operator(context)
            command = codec.parse(wire.Command, await first_message(context))
            name, arguments = command.name[:40], json.loads(command.arguments or "{}")
            if name not in UNAUDITED:  # before the command: without its entry in the trail, it must not run
                self.trail.add("command", operator, command=name, arguments=arguments)
            failpoint("command", name, "before")
            reply.result = json.dumps(plain(await self._commands.run(command.name, **arguments)))
            failpoint("command", name, "after")
        except (RHFedMTLError, ValueError, TypeError, OSError) as error:
            level = "info" if name else "warning"  # an operator reads the reply; a stranger is worth a warning
            self._log.seldom("command refused", level, peer=operator, command=name, reason=refusal(error))
            reply.trouble = refusal(error)
        return reply.SerializeToString()

    async def export(self, _: Any, context: Any) -> AsyncIterator[bytes]:
        """Send models, ledger and result of the last training, file by file."""
        with tempfile.TemporaryDirectory(prefix="rhfedmtl-") as folder:
            try:
                self.trail.add("command", self.check_operator(context), command="export")
                files, status = self._trainer.files, self._trainer.status
                names = await asyncio.to_thread(files.save, Path(folder), status)
            except (RHFedMTLError, OSError) as error:
                yield wire.Chunk(trouble=refusal(error)).SerializeToString()
                return
            for name in names:
                with Path(folder, name).open("rb") as file:
                    while data := file.read(READ_CHUNK):
                        yield wire.Chunk(name=name, data=data).SerializeToString()

    def check_operator(self, context: Any) -> str:
        """Return the operator behind a call, in words for the audit trail; refuse all other callers."""
        peer = caller(context.auth_context())
        identity = peer.identity
        revoked = peer.serial in self._registry.revoked
        if identity.role == OPERATOR and identity.network == self._config.node.network and not revoked:
            return f"{identity}, certificate {peer.serial}, from {context.peer()}"
        self._stations.acceptor.cutter.add(context.peer())
        raise PeerError(f"{identity.uri} is no operator of this network, or its certificate was revoked")
