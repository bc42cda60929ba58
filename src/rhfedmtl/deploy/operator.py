"""The operator's end: commands to the cloud."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl.deploy.cloud.config import read_cloud
from rhfedmtl.deploy.node import audit
from rhfedmtl.deploy.node.config import read_operator, read_station
from rhfedmtl.deploy.node.credentials import CLOUD, Authority, Identity
from rhfedmtl.deploy.node.enrolment import call, unanswered
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.files import Lock

LARGEST = 1 << 26
EXPORT_S = 600.0
AWAY_S = 60.0
"""How long a cloud may be away for whoever looks on."""
STOPPED = " `rhfedmtl serve cloud --config FOLDER/cloud/cloud.toml` starts it"
START_S = 5.0
"""A cloud that was just started may take so long until it answers."""
RECOVERING = "recovering"
UNDER_WAY = ("running", RECOVERING)
RESULT = "result.json"
EXPORTED = ("model.npz", "ledger.json", RESULT)


class Operator:
    """Sends commands with the operator's certificate."""

    def __init__(self, network: Path) -> None:
        folder = network / "operator" if (network / "operator").is_dir() else network
        if not (folder / "operator.toml").exists():
            raise ConfigError(
                f"{network} is no network, and has no operator's credentials: name the folder that `rhfedmtl network "
                "init` made, or its operator/"
            )
        config = read_operator(folder / "operator.toml")
        self._config, self._credentials = config, config.credentials()

    def command(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What the cloud answers; its refusal is raised."""
        command = wire.Command(name=name, arguments=json.dumps(arguments))
        with self._channel() as channel:
            method = channel.unary_unary(f"/{SERVICE}.Control/Command")
            reply = wire.Reply.FromString(call(method, command.SerializeToString(), self._config.cloud, STOPPED))
        if reply.trouble:
            raise ConfigError(reply.trouble)
        result: dict[str, Any] = json.loads(reply.result)
        return result

    def started(self) -> Operator:
        """Wait a few seconds for a cloud that is just starting; a later command says why it does not answer."""
        with self._channel() as channel, contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(START_S)
        return self

    def export(self, folder: Path) -> list[str]:
        """Fetch models, ledger and result of the last training into a folder; the names of the files."""
        names: list[str] = []
        with self._channel() as channel:
            method = channel.unary_stream(f"/{SERVICE}.Control/Export")
            try:
                for data in method(b"", timeout=EXPORT_S):
                    names = take_chunk(folder, wire.Chunk.FromString(data), names)
            except grpc.RpcError as error:
                way_out = " Where its folder is, --offline takes the last result from there"
                raise unanswered(error, self._config.cloud, way_out) from None
        return names

    @staticmethod
    def last_result(network: Path) -> dict[str, Any] | None:
        """Return the result of the last training in a folder, if its cloud does not run."""
        path = network / "cloud" / "cloud.toml"
        if not path.exists():
            return None
        config = read_cloud(path)
        if not (config.result / RESULT).is_file():
            return None
        try:
            Lock(config.state).release()
        except ConfigError:
            return None
        training: dict[str, Any] = json.loads((config.result / RESULT).read_text())
        return {"network": config.node.network, "running": False, "training": training}

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

    def sign(self, authority: Authority) -> list[str]:
        """Sign what nodes with tokens wait for; the key of the authority stays here. Returns the nodes."""
        signed = []
        for asked in self.command("requests")["requests"]:
            who = Identity(self._config.node.network, asked["role"], asked["number"])
            certificate = authority.issue_for(who, asked["request"].encode()).decode()
            signed.append(self.command("sign", token=asked["token"], certificate=certificate)["signed"])
        return signed

    def audit(self) -> list[dict[str, Any]]:
        """The audit trail of the cloud, its chain checked here, and against what was seen from here before."""
        start, lines = 0, ""
        while (found := self.command("audit", start=start))["lines"]:
            start, lines = found["next"], lines + found["lines"]
        return self._seen(lines.splitlines())

    def audit_offline(self, network: Path, name: str = CLOUD) -> list[dict[str, Any]]:
        """The same from the folder of the cloud, or of a station, that need not run."""
        read = read_cloud if name == CLOUD else read_station
        path = read(network / name / f"{name.partition('-')[0]}.toml").state / audit.AUDIT
        return self._seen(path.read_text().splitlines() if path.exists() else [], name)

    def _seen(self, lines: list[str], name: str = CLOUD) -> list[dict[str, Any]]:
        entries = audit.verified(lines)
        audit.check_seen(entries, self._config.folder / f"{name}.audit.seen")
        return entries

    def watch(self, show: Callable[[dict[str, Any]], None]) -> None:
        """Show how the network stands every second, without an end; a cloud that is away for a while is waited for."""
        while True:
            show(self.wait_for_cloud(AWAY_S))
            time.sleep(1.0)

    def follow(self, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Show how the network stands until its training ends; what that came to."""
        while True:
            status = self.wait_for_cloud(AWAY_S)
            show(status)
            training: dict[str, Any] = status["training"]
            if training["state"] not in UNDER_WAY:
                return training
            time.sleep(0.2)

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
