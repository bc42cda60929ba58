"""The operator's end: commands to the cloud, and certificates for tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl.deploy import wire_pb2 as wire
from rhfedmtl.deploy.config import Node, StationConfig, TerminalConfig, papers_of, read_operator, to_toml
from rhfedmtl.deploy.identity import CLOUD, STATION, TERMINAL, Identity, Papers, new_key, signing_request
from rhfedmtl.deploy.link import SERVICE, channel_options
from rhfedmtl.deploy.registry import Token
from rhfedmtl.errors import ConfigError

LARGEST = 1 << 26
TIMEOUT_S = 30.0


class Operator:
    """Sends commands with the operator's certificate."""

    def __init__(self, network: Path) -> None:
        folder = network / "operator" if (network / "operator").is_dir() else network
        config = read_operator(folder / "operator.toml")
        self._config, self._papers = config, papers_of(config.node, config.folder)

    def command(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What the cloud answers; its refusal is raised."""
        above = Identity(self._config.node.network, CLOUD)
        command = wire.Command(name=name, arguments=json.dumps(arguments))
        with grpc.secure_channel(
            self._config.cloud, self._papers.client(), options=channel_options(above, LARGEST)
        ) as channel:
            call = channel.unary_unary(f"/{SERVICE}.Control/Command")
            reply = wire.Reply.FromString(_call(call, command.SerializeToString(), self._config.cloud))
        if reply.trouble:
            raise ConfigError(reply.trouble)
        result: dict[str, Any] = json.loads(reply.result)
        return result

    def wait_for_cloud(self, seconds: float) -> dict[str, Any]:
        """Status of a cloud that is just starting."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.command("status")
            except ConfigError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


def enrol(token_text: str, folder: Path, data: Path | None = None) -> dict[str, Any]:
    """Make a key here, get a certificate for it with a token, and write the configuration of the node.

    The key never leaves this machine. A node that is there already keeps its configuration and gets new papers.
    """
    token = Token.parse(token_text)
    key, secret = new_key()
    above = Identity(token.network, CLOUD)
    credentials = grpc.ssl_channel_credentials(token.authorities.encode())
    request = wire.Enrol(token=token.secret, request=signing_request(key))
    with grpc.secure_channel(token.address, credentials, options=channel_options(above, 1 << 20)) as channel:
        call = channel.unary_unary(f"/{SERVICE}.Enrolment/Enrol")
        reply = wire.Enrolled.FromString(_call(call, request.SerializeToString(), token.address))
    if reply.trouble:
        raise ConfigError(reply.trouble)
    settings: dict[str, Any] = json.loads(reply.settings)
    Papers.of(folder).write(secret, reply.certificate, reply.authorities)
    path = folder / f"{settings['role']}.toml"
    if not path.exists():
        path.write_text(to_toml(_config(token.network, settings, data)))
    return {"role": settings["role"], "number": settings["number"], "config": str(path)}


def _config(network: str, settings: dict[str, Any], data: Path | None) -> Any:
    node = Node(network, settings["role"], settings["number"])
    if settings["role"] == TERMINAL:
        if data is None:
            raise ConfigError("a new terminal needs its rows: give an .npz file with X and y")
        return TerminalConfig(
            node, settings["station"], settings["address"], str(data.resolve()), least_steps=settings["least_steps"]
        )
    if settings["role"] == STATION:
        return StationConfig(node, settings["cloud"])
    raise ConfigError(f"a {settings['role']} is set up by `rhfedmtl network init`")


def _call(call: Any, data: bytes, address: str) -> bytes:
    try:
        answer: bytes = call(data, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise ConfigError(f"no answer from {address}: {error.details()}") from None
    return answer
