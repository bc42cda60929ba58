"""Somebody who speaks to a node with whatever credentials it has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl.deploy.node.config import read_station
from rhfedmtl.deploy.node.credentials import Authority, Identity, new_key
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire


class Intruder:
    """Speaks to a node with whatever credentials it has."""

    def __init__(self, address: str, above: Identity, credentials: grpc.ChannelCredentials) -> None:
        self._address, self._above, self._credentials = address, above, credentials

    def say(self, service: str, messages: Iterable[bytes]) -> str:
        """Send messages on a stream and return what came of it: the reason of the refusal."""
        options = channel_options(self._above, 1 << 26)
        with grpc.secure_channel(self._address, self._credentials, options=options) as channel:
            call = channel.stream_stream(f"/{SERVICE}.{service}/Attach")(iter(messages), timeout=5)
            try:
                for _ in call:
                    pass
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]
        return "not refused"


def hello(node: int, network: str = "test-net", newest: int = codec.PROTOCOL) -> bytes:
    """A greeting of a terminal."""
    return wire.TerminalUp(
        hello=wire.Hello(oldest=newest, newest=newest, network=network, node=node)
    ).SerializeToString()


def credentials_for(authority: Authority, identity: Identity, **more: Any) -> grpc.ChannelCredentials:
    """Credentials with a new key."""
    key, secret = new_key()
    return grpc.ssl_channel_credentials(
        authority.certificate, secret, authority.issue(identity, key.public_key(), **more)
    )


def station(folder: Path) -> tuple[str, Identity]:
    """Address and name of the station under attack."""
    return read_station(folder / "station-0" / "station.toml").node.listen, Identity("test-net", "station", 0)
