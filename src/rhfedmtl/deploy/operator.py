"""The operator's end: commands to the cloud, and certificates for tokens."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl import toml
from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.cloud.registry import Token
from rhfedmtl.deploy.node.config import Config, Limits, NodeConfig, StationConfig, TerminalConfig, bind, read_operator
from rhfedmtl.deploy.node.credentials import CLOUD, STATION, TERMINAL, Credentials, Identity, new_key, signing_request
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.node.state import Lock
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError

LARGEST = 1 << 26
TIMEOUT_S = 30.0
EXPORT_S = 600.0
EXPORTED = ("model.npz", "ledger.json", "result.json")


class Operator:
    """Sends commands with the operator's certificate."""

    def __init__(self, network: Path) -> None:
        folder = network / "operator" if (network / "operator").is_dir() else network
        config = read_operator(folder / "operator.toml")
        self._config, self._credentials = config, config.credentials()

    def command(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What the cloud answers; its refusal is raised."""
        command = wire.Command(name=name, arguments=json.dumps(arguments))
        with self._channel() as channel:
            call = channel.unary_unary(f"/{SERVICE}.Control/Command")
            reply = wire.Reply.FromString(_call(call, command.SerializeToString(), self._config.cloud))
        if reply.trouble:
            raise ConfigError(reply.trouble)
        result: dict[str, Any] = json.loads(reply.result)
        return result

    def export(self, folder: Path) -> list[str]:
        """Fetch models, ledger and result of the last training into a folder; the names of the files."""
        names: list[str] = []
        with self._channel() as channel:
            call = channel.unary_stream(f"/{SERVICE}.Control/Export")
            try:
                for data in call(b"", timeout=EXPORT_S):
                    names = take_chunk(folder, wire.Chunk.FromString(data), names)
            except grpc.RpcError as error:
                raise ConfigError(f"no answer from {self._config.cloud}: {error.details()}") from None
        return names

    @staticmethod
    def export_offline(network: Path, folder: Path) -> list[str]:
        """Copy what `export` would fetch from the folder of a cloud that does not run."""
        config = read_cloud(network / "cloud" / "cloud.toml")
        if not config.result.is_dir():
            raise ConfigError(
                f"{network} has nothing to export yet: no training has ended; begin one with `network up`"
            )
        try:
            Lock(config.state).release()
        except ConfigError:
            raise ConfigError(f"the cloud of {network} is running: ask it, without --offline") from None
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(config.result / name, folder)).name for name in EXPORTED]

    def _channel(self) -> grpc.Channel:
        above = Identity(self._config.node.network, CLOUD)
        return grpc.secure_channel(
            self._config.cloud, self._credentials.client(), options=channel_options(above, LARGEST)
        )

    def wait_for_cloud(self, seconds: float, each: Callable[[], Any] = lambda: None) -> dict[str, Any]:
        """Status of a cloud that is just starting; ``each`` is called while waiting."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.command("status")
            except ConfigError:
                if time.monotonic() > until:
                    raise
                each()
                time.sleep(0.1)


def take_chunk(folder: Path, chunk: wire.Chunk, names: list[str]) -> list[str]:
    """Write a part of an exported file; the names of all files so far. Others than `EXPORTED` are refused."""
    if chunk.trouble:
        raise ConfigError(chunk.trouble)
    if chunk.name not in EXPORTED:
        raise PeerError(f"the cloud sends a file {chunk.name[:40]!r}, which nobody asked for")
    fresh = chunk.name not in names
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / chunk.name).open("wb" if fresh else "ab") as file:
        file.write(chunk.data)
    return [*names, chunk.name] if fresh else names


def enrol(token_text: str, folder: Path, data: Path | None = None) -> dict[str, Any]:
    """Make a key here, get a certificate for it with a token, and write the configuration of the node.

    The key never leaves this machine. A node that is there already keeps its configuration and gets new credentials.
    """
    token = Token.parse(token_text)
    _check_place(token, folder, data)
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
    Credentials.of(folder).write(secret, reply.certificate, reply.authorities)
    path = folder / f"{token.role}.toml"
    if not path.exists():
        path.write_text(toml.write(_config(token, settings, data)))
    return {"role": token.role, "number": token.number, "config": str(path)}


def _check_place(token: Token, folder: Path, data: Path | None) -> None:
    """Refuse, before the token is used up, a folder that is another node's, or a terminal without rows."""
    there = Credentials.of(folder)
    if there.own.exists():
        owner = there.peer.identity
        if (owner.network, owner.role, owner.number) != (token.network, token.role, token.number):
            raise ConfigError(f"{folder} is the folder of {owner.uri}, the token is for {token.role} {token.number}")
    new = token.role == TERMINAL and not (folder / "terminal.toml").exists()
    if new and (data is None or not data.is_file()):
        raise ConfigError("a new terminal needs its rows: give --data, an .npz file with X and y")
    if data is not None and not new:
        raise ConfigError(f"--data is for new terminals: {token.role} {token.number} keeps what it has in {folder}")


def _config(token: Token, settings: dict[str, Any], data: Path | None) -> Config:
    station, address = settings["station"], settings["address"]
    if token.role == TERMINAL:
        assert data is not None
        node = NodeConfig(token.network, TERMINAL, token.number)
        return TerminalConfig(node, station, address, str(data.resolve()), least_steps=settings["least_steps"])
    node = NodeConfig(token.network, STATION, token.number, listen=bind(address))
    return StationConfig(node, settings["cloud"], limits=Limits(message_bytes=settings["message_bytes"]))


def _call(call: Any, data: bytes, address: str) -> bytes:
    try:
        answer: bytes = call(data, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise ConfigError(f"no answer from {address}: is the cloud running? {error.details()}") from None
    return answer
