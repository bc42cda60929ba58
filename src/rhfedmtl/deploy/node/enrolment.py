"""Enrolment of a node: exchange a token for a certificate, and write the configuration of the node.

``network invite`` prints the token, and ``join`` of the new node calls `enrol`. The node generates its key, and the key
never leaves its machine: only a signing request goes to the cloud. If the network signs by hand, `enrol`
waits for ``network sign``. It checks folder and rows first, so a mistake there does not use up the token.
"""

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
"""Time limit for an operator to sign the certificate of a new node, and the interval of its requests."""


@dataclass(frozen=True)
class Token:
    """Invitation of a node: its identity, the address and authorities of the cloud, and a secret that is valid once."""

    role: str
    number: int
    network: str
    address: str
    authorities: str
    secret: str

    def text(self) -> str:
        """Return the token as a single word that can be copied."""
        return base64.urlsafe_b64encode(json.dumps(vars(self)).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token from the word that `text` returned."""
        try:
            return cls(**json.loads(base64.urlsafe_b64decode(text.strip().encode())))
        except (ValueError, TypeError):
            raise ConfigError("that is no token: copy the whole word that `rhfedmtl network invite` printed") from None


def read_token(source: str) -> str:
    """Return the token in a file, standard input or the environment; accept the JSON of `network invite` around it."""
    if source == "-":
        text = sys.stdin.read()
    elif source:
        try:
            text = Path(source).read_text()
        except OSError as error:
            raise ConfigError(
                f"no file {source[:40]!r} ({error.strerror}): give a file with the token, - for standard input, or "
                "RHFEDMTL_TOKEN; other users of this machine could read a token on the command line"
            ) from None
    else:
        text = os.environ.get("RHFEDMTL_TOKEN", "")
    words = text.replace('"', " ").replace(":", " ").replace(",", " ").split()
    return words[words.index("token") + 1] if "token" in words[:-1] else text.strip()


RULES = ("columns", "least_summed", "epsilon", "delta")
"""Rules that a new terminal takes over from the network; its owner may add others, such as ``least_steps``."""


def enrol(
    token_text: str,
    folder: Path,
    data: Path | None = None,
    *,
    waits: Callable[[], None] = lambda: None,
    patience: float = PATIENCE_S,
) -> dict[str, Any]:
    """Generate a key, get a certificate for it with a token, and write the configuration of the node.

    The key never leaves this machine. An existing node keeps its configuration and gets new credentials.

    Parameters
    ----------
    token_text : str
        The token, as `Token.text` wrote it.
    folder : Path
        Folder of the node; created if needed.
    data : Path, optional
        Rows of a new terminal.
    waits : callable
        Called once if an operator has to sign first.
    patience : float
        Seconds to wait for the operator.

    Returns
    -------
    dict
        Role, number and path of the configuration.
    """
    token = Token.parse(token_text)
    _check_place(token, folder, data)
    key, secret = new_key()
    above = Identity(token.network, CLOUD)
    credentials = grpc.ssl_channel_credentials(token.authorities.encode())
    with grpc.secure_channel(token.address, credentials, options=channel_options(above, 1 << 20)) as channel:
        method = channel.unary_unary(f"/{SERVICE}.Enrolment/Enrol")

        def ask(request: bytes) -> wire.Enrolled:
            message = wire.Enrol(token=token.secret, request=request).SerializeToString()
            reply = wire.Enrolled.FromString(call(method, message, token.address))
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
    """Repeat the request until the cloud returns a certificate; raise `ConfigError` after ``patience`` seconds."""
    until, announced = time.monotonic() + patience, False
    while True:
        reply = ask()
        if reply.certificate:
            return reply
        if not announced:
            waits()
            announced = True
        if time.monotonic() > until:
            raise ConfigError(
                f"no operator has signed within {patience:.0f} s: ask for `rhfedmtl network sign`, and give this "
                "command again; the token still counts"
            )
        time.sleep(AGAIN_S)


def _check_place(token: Token, folder: Path, data: Path | None) -> None:
    """Refuse the folder of another node, and a new terminal without rows, before the token is used up."""
    credentials = Credentials.of(folder)
    if credentials.node_file.exists():
        owner = credentials.peer.identity
        if (owner.network, owner.role, owner.number) != (token.network, token.role, token.number):
            raise ConfigError(f"{folder} is the folder of {owner.uri}, the token is for {token.role} {token.number}")
    new = token.role == TERMINAL and not (folder / "terminal.toml").exists()
    if new and (data is None or not data.is_file()):
        missing = "" if data is None else f", and there is no file {data}"
        raise ConfigError(f"a new terminal needs its rows{missing}: give --data, a .csv file, or .npz with X and y")
    if data is not None and not new:
        raise ConfigError(f"--data is for new terminals: {token.role} {token.number} keeps what it has in {folder}")


def _check_rows(data: Path, settings: dict[str, Any]) -> None:
    """Check the rows as `serve` would, before the token is used up. The cloud has sent features and classes."""
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
    """Return the answer of the cloud to a call; raise `ConfigError` with ``way_out`` if there is no answer."""
    try:
        answer: bytes = method(data, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise unanswered(error, address, way_out) from None
    return answer


def unanswered(error: grpc.RpcError, address: str, way_out: str = "") -> ConfigError:
    """Return the error for a user whose cloud does not answer."""
    why = str(error.details()).rpartition(": ")[2]  # the text before it repeats the address
    return ConfigError(f"no answer from {address} ({why}): is the cloud running?{way_out}")
