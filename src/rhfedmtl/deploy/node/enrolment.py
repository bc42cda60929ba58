"""How a node gets its credentials with a token: the key is made here, and never leaves this machine."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rhfedmtl import toml
from rhfedmtl.deploy.node.config import Config, Limits, NodeConfig, StationConfig, TerminalConfig, bind
from rhfedmtl.deploy.node.credentials import CLOUD, STATION, TERMINAL, Credentials, Identity, new_key, signing_request
from rhfedmtl.deploy.node.job import load_rows
from rhfedmtl.deploy.node.link import SERVICE, channel_options
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, DataError

TIMEOUT_S = 30.0
PATIENCE_S, AGAIN_S = 3600.0, 1.0
"""How long a newcomer waits for an operator to sign its certificate, and how often it asks."""


@dataclass(frozen=True)
class Token:
    """What a node needs for a certificate: who it is, where to ask, whom to trust there, a secret that counts once."""

    role: str
    number: int
    network: str
    address: str
    authorities: str
    secret: str

    def text(self) -> str:
        """One word to be copied."""
        return base64.urlsafe_b64encode(json.dumps(vars(self)).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read what `text` wrote."""
        try:
            return cls(**json.loads(base64.urlsafe_b64decode(text.strip().encode())))
        except (ValueError, TypeError):
            raise ConfigError("that is no token: copy the whole word that `rhfedmtl network invite` printed") from None


def read_token(source: str) -> str:
    """A token from a file, standard input or the environment: alone, or within what `network invite` printed."""
    if source == "-":
        text = sys.stdin.read()
    elif source:
        try:
            text = Path(source).read_text()
        except OSError as error:
            raise ConfigError(
                f"no file {source[:40]!r} ({error.strerror}): give a file with the token, - for standard input, or "
                "RHFEDMTL_TOKEN; on a command line everybody here could read it"
            ) from None
    else:
        text = os.environ.get("RHFEDMTL_TOKEN", "")
    words = text.replace('"', " ").replace(":", " ").replace(",", " ").split()
    return words[words.index("token") + 1] if "token" in words[:-1] else text.strip()


RULES = ("columns", "least_summed", "epsilon", "delta")
"""Rules of a new terminal that follow from how the network was made; ``least_steps`` is for its owner to write."""


def enrol(
    token_text: str,
    folder: Path,
    data: Path | None = None,
    *,
    waits: Callable[[], None] = lambda: None,
    patience: float = PATIENCE_S,
) -> dict[str, Any]:
    """Make a key here, get a certificate for it with a token, and write the configuration of the node.

    The key never leaves this machine. A node that is there already keeps its configuration and gets new credentials.
    ``waits`` is called once where an operator has to sign first.
    """
    token = Token.parse(token_text)
    _check_place(token, folder, data)
    key, secret = new_key()
    above = Identity(token.network, CLOUD)
    credentials = grpc.ssl_channel_credentials(token.authorities.encode())
    with grpc.secure_channel(token.address, credentials, options=channel_options(above, 1 << 20)) as channel:
        method = channel.unary_unary(f"/{SERVICE}.Enrolment/Enrol")

        def ask(request: bytes) -> wire.Enrolled:
            asked = wire.Enrol(token=token.secret, request=request).SerializeToString()
            reply = wire.Enrolled.FromString(call(method, asked, token.address))
            if reply.trouble:
                raise ConfigError(reply.trouble)
            return reply

        settings: dict[str, Any] = json.loads(ask(b"").settings)
        if data is not None:
            _check_rows(data, settings)
        request = signing_request(key)
        reply = _signed(lambda: ask(request), waits, patience)
    Credentials.of(folder).write(secret, reply.certificate, reply.authorities)
    path = folder / f"{token.role}.toml"
    if not path.exists():
        path.write_text(toml.write(_config(token, settings, data)))
    return {"role": token.role, "number": token.number, "config": str(path)}


def _signed(ask: Callable[[], wire.Enrolled], waits: Callable[[], None], patience: float) -> wire.Enrolled:
    """The cloud's answer once there is a certificate; asked for again while an operator has not signed."""
    until, told = time.monotonic() + patience, False
    while True:
        reply = ask()
        if reply.certificate:
            return reply
        if not told:
            waits()
            told = True
        if time.monotonic() > until:
            raise ConfigError(
                f"no operator has signed within {patience:.0f} s: ask for `rhfedmtl network sign`, and give this "
                "command again; the token still counts"
            )
        time.sleep(AGAIN_S)


def _check_place(token: Token, folder: Path, data: Path | None) -> None:
    """Refuse, before the token is used up, a folder that is another node's, or a terminal without rows."""
    there = Credentials.of(folder)
    if there.own.exists():
        owner = there.peer.identity
        if (owner.network, owner.role, owner.number) != (token.network, token.role, token.number):
            raise ConfigError(f"{folder} is the folder of {owner.uri}, the token is for {token.role} {token.number}")
    new = token.role == TERMINAL and not (folder / "terminal.toml").exists()
    if new and (data is None or not data.is_file()):
        given = "" if data is None else f", and there is no file {data}"
        raise ConfigError(f"a new terminal needs its rows{given}: give --data, a .csv file, or .npz with X and y")
    if data is not None and not new:
        raise ConfigError(f"--data is for new terminals: {token.role} {token.number} keeps what it has in {folder}")


def _check_rows(data: Path, settings: dict[str, Any]) -> None:
    """Say what `serve` would, before the token is used up: the cloud tells features and classes to who has one."""
    try:
        load_rows(data, settings["features"], tuple(settings["classes"]), tuple(settings["columns"]))
    except DataError as error:
        raise DataError(f"{error}. The token still counts: repair the rows, and give this command again") from None


def _config(token: Token, settings: dict[str, Any], data: Path | None) -> Config:
    station, address = settings["station"], settings["address"]
    if token.role == TERMINAL:
        assert data is not None
        node = NodeConfig(token.network, TERMINAL, token.number)
        rules = {name: settings[name] for name in RULES if name in settings}
        return TerminalConfig(node, station, address, str(data.resolve()), **rules)
    node = NodeConfig(token.network, STATION, token.number, listen=bind(address))
    return StationConfig(node, settings["cloud"], limits=Limits(message_bytes=settings["message_bytes"]))


def call(method: Any, data: bytes, address: str, way_out: str = "") -> bytes:
    """The answer of a cloud to one call."""
    try:
        answer: bytes = method(data, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise unanswered(error, address, way_out) from None
    return answer


def unanswered(error: grpc.RpcError, address: str, way_out: str = "") -> ConfigError:
    """What to tell a user whom a cloud did not answer."""
    why = str(error.details()).rpartition(": ")[2]  # what comes before names the address again
    return ConfigError(f"no answer from {address} ({why}): is the cloud running?{way_out}")
