"""The operator's end of a network: send commands to the cloud, watch a training, fetch its result.

`rhfedmtl network` and `rhfedmtl status` use `Operator`; `cloud.operator_api` is the other end. It needs the folder with
the operator's credentials and a running cloud. The methods with ``offline`` in their name, and `last_result`, read the
folder of a cloud that does not run instead.
"""

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

LARGEST_REPLY = 1 << 26
"""Largest message from the cloud, in bytes."""
EXPORT_S = 600.0
"""Longest time of an export."""
AWAY_S = 60.0
"""`watch` and `follow` wait this long for a cloud that does not answer."""
STOPPED = " `rhfedmtl serve cloud --config FOLDER/cloud/cloud.toml` starts it"
START_S = 5.0
"""Time until a cloud that was just started answers."""
RECOVERING = "recovering"
UNDER_WAY = ("running", RECOVERING)
RESULT = "result.json"
EXPORTED = ("model.npz", "ledger.json", RESULT)


class Operator:
    """Sends commands with the operator's certificate.

    Parameters
    ----------
    network : Path
        Folder of the network, or its ``operator`` folder alone.
    """

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
        """Return the answer of the cloud to a command; raise a `ConfigError` if it refuses or does not answer."""
        command = wire.Command(name=name, arguments=json.dumps(arguments))
        with self._channel() as channel:
            method = channel.unary_unary(f"/{SERVICE}.Control/Command")
            reply = wire.Reply.FromString(call(method, command.SerializeToString(), self._config.cloud, STOPPED))
        if reply.trouble:
            raise ConfigError(reply.trouble)
        result: dict[str, Any] = json.loads(reply.result)
        return result

    def started(self) -> Operator:
        """Wait a few seconds for a cloud that is just starting; if it does not start, the next command raises."""
        with self._channel() as channel, contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(START_S)
        return self

    def export(self, folder: Path) -> list[str]:
        """Fetch models, ledger and result of the last training into a folder, and return the names of the files."""
        names: list[str] = []
        with self._channel() as channel:
            method = channel.unary_stream(f"/{SERVICE}.Control/Export")
            try:
                for data in method(b"", timeout=EXPORT_S):
                    names = take_chunk(folder, wire.Chunk.FromString(data), names)
            except grpc.RpcError as error:
                way_out = " On the machine with its folder, --offline takes the last result from there"
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
        """Copy the files of `export` from the folder of a cloud that does not run."""
        config = read_cloud(network / "cloud" / "cloud.toml")
        if not config.result.is_dir():
            raise ConfigError(
                f"{network} has nothing to export yet: no training has ended; run `rhfedmtl network up` first"
            )
        try:
            Lock(config.state).release()
        except ConfigError:
            raise ConfigError(f"the cloud of {network} is running: ask it, without --offline") from None
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(config.result / name, folder)).name for name in EXPORTED]

    def sign(self, authority: Authority) -> list[str]:
        """Sign all waiting certificate requests, and return the nodes; the key of the authority stays here."""
        signed = []
        for request in self.command("requests")["requests"]:
            identity = Identity(self._config.node.network, request["role"], request["number"])
            certificate = authority.issue_for(identity, request["request"].encode()).decode()
            signed.append(self.command("sign", token=request["token"], certificate=certificate)["signed"])
        return signed

    def audit(self) -> list[dict[str, Any]]:
        """Return the audit trail of the cloud.

        Check its hash chain, and that it continues the trail that this operator read before.
        """
        start, lines = 0, ""
        while (part := self.command("audit", start=start))["lines"]:
            start, lines = part["next"], lines + part["lines"]
        return self._verified(lines.splitlines())

    def audit_offline(self, network: Path, name: str = CLOUD) -> list[dict[str, Any]]:
        """Return the checked audit trail from the folder of the cloud or of a station, which need not run."""
        read = read_cloud if name == CLOUD else read_station
        path = read(network / name / f"{name.partition('-')[0]}.toml").state / audit.AUDIT
        return self._verified(path.read_text().splitlines() if path.exists() else [], name)

    def _verified(self, lines: list[str], name: str = CLOUD) -> list[dict[str, Any]]:
        entries = audit.verified(lines)
        audit.check_seen(entries, self._config.folder / f"{name}.audit.seen")
        return entries

    def watch(self, show: Callable[[dict[str, Any]], None]) -> None:
        """Show the status of the network every second without end; wait for a cloud that is away for a while."""
        while True:
            show(self.wait_for_cloud(AWAY_S))
            time.sleep(1.0)

    def follow(self, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Show the status of the network until its training ends, and return the facts of the training."""
        while True:
            status = self.wait_for_cloud(AWAY_S)
            show(status)
            training: dict[str, Any] = status["training"]
            if training["state"] not in UNDER_WAY:
                return training
            time.sleep(0.2)

    def _channel(self) -> grpc.Channel:
        cloud = Identity(self._config.node.network, CLOUD)
        return grpc.secure_channel(
            self._config.cloud, self._credentials.client(), options=channel_options(cloud, LARGEST_REPLY)
        )

    def wait_for_cloud(self, seconds: float, on_wait: Callable[[], Any] = lambda: None) -> dict[str, Any]:
        """Return the status, and wait for the cloud up to so many seconds; call ``on_wait`` between attempts."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.command("status")
            except ConfigError:
                if time.monotonic() > until:
                    raise
                on_wait()
                time.sleep(0.1)


def take_chunk(folder: Path, chunk: wire.Chunk, names: list[str]) -> list[str]:
    """Write a part of an exported file, and return the names of all files so far; refuse files outside `EXPORTED`."""
    if chunk.trouble:
        raise ConfigError(chunk.trouble)
    if chunk.name not in EXPORTED:
        raise PeerError(f"the cloud sends a file {chunk.name[:40]!r}, which is not part of an export")
    fresh = chunk.name not in names
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / chunk.name).open("wb" if fresh else "ab") as file:
        file.write(chunk.data)
    return [*names, chunk.name] if fresh else names
