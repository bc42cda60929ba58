"""What the cloud knows of its nodes: who belongs where, whose credentials are revoked, and open tokens."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rhfedmtl.deploy.cloud.config import CloudConfig
from rhfedmtl.deploy.node.credentials import STATION, TERMINAL, check_number
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.errors import ConfigError, PeerError

REGISTRY = "registry.state"
TOKEN_S = 24 * 3600.0
SHORTEST_SERIAL = 24
"""Hexadecimal digits; serial numbers are drawn with 160 bits, so that a number of a node is none."""


@dataclass
class NodeRegistry:
    """Written down before anybody is told of a change."""

    file: StateFile
    station: dict[int, int]
    address: dict[int, str]
    revoked: set[str] = field(default_factory=set)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    issued: dict[str, list[str]] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    """Terminals on their way from one station to another, and where they come from."""
    cut_off: list[str] = field(default_factory=list)
    """Nodes whose certificates were revoked, and that got none for a token since."""
    planned: frozenset[int] = frozenset()
    """Terminals of the configuration: they have had credentials from the beginning."""

    @classmethod
    def open(cls, config: CloudConfig) -> NodeRegistry:
        """From the state folder, or as the configuration has it."""
        file = StateFile(config.state / REGISTRY, fsync=True)
        home = {t: b for b, entry in enumerate(config.stations) for t in entry.terminals}
        addresses = {b: entry.address for b, entry in enumerate(config.stations)}
        registry = cls(file, home, addresses, planned=frozenset(home))
        try:
            payload = file.read()
        except CorruptError as error:
            raise CorruptError(
                f"{error}. Put back a copy; without the file, moves and revocations of operators are forgotten"
            ) from None
        if payload is not None:
            table = json.loads(payload)
            registry.station = home | {int(t): b for t, b in table["station"].items()}
            registry.revoked, registry.tokens = set(table["revoked"]), table["tokens"]
            registry.issued, registry.cut_off = table.get("issued", {}), table.get("cut_off", [])
            registry.before = {int(t): b for t, b in table.get("before", {}).items()}
        return registry

    def homes(self, station: int) -> list[int]:
        """Terminals that belong to a station."""
        return sorted(t for t, b in self.station.items() if b == station)

    def expected(self, station: int) -> set[int]:
        """Those that a training waits for when it begins: not one that was invited and never came, or was cut off."""
        known = {*self.planned, *(t for t in self.station if f"{TERMINAL}/{t}" in self.issued)}
        return {t for t in self.homes(station) if t in known and f"{TERMINAL}/{t}" not in self.cut_off}

    def allowed(self, station: int) -> list[int]:
        """Terminals that may join a station: its own, and those that are to leave it, should it lose its memory."""
        return sorted({*self.homes(station), *(t for t, b in self.before.items() if b == station)})

    def place(self, terminal: int, station: int) -> None:
        """Let a terminal belong to a station (−1: to none)."""
        self._change(**self._placed(terminal, station))

    def _placed(self, terminal: int, station: int) -> dict[str, Any]:
        check_number(terminal, TERMINAL)
        if station != -1 and check_number(station, STATION) not in self.address:
            raise ConfigError(f"no station {station}: there are {len(self.address)}, from 0")
        old = self.station.get(terminal, -1)
        before = {t: b for t, b in self.before.items() if t != terminal}
        if old >= 0 and station >= 0 and old != station:
            before[terminal] = old
        return {"station": {**self.station, terminal: station}, "before": before}

    def arrived(self, station: int, terminals: Iterable[int]) -> bool:
        """Note who is a member of a station; whether one of them was on its way there."""
        there = {t for t in terminals if t in self.before and self.station[t] == station}
        if there:
            self._change(before={t: b for t, b in self.before.items() if t not in there})
        return bool(there)

    def revoke(self, node: str, serials: Sequence[str] = ()) -> list[str]:
        """Let all certificates of a node count no more: those that are named, and those issued here; or one serial."""
        known = {*serials, *self.issued.get(node, ())}
        found = known or {node}
        if (not known and len(node) < SHORTEST_SERIAL) or set("".join(found)) - set("0123456789abcdef"):
            raise ConfigError(
                f"no certificate of {node!r} is known here: name the node, as in terminal/3, or a whole serial number, "
                "which is in the log of the node that it connects to"
            )
        self._change(revoked=self.revoked | found, cut_off=[*self.cut_off, node])
        return sorted(found)

    def invite(self, role: str, number: int | None, station: int | None) -> tuple[str, int]:
        """A secret for one certificate, and the node that it is for: a new terminal where no number is given."""
        if role not in (TERMINAL, STATION):
            raise ConfigError(f"no token for a {role}: tokens are for terminals and stations")
        tokens = {key: token for key, token in self.tokens.items() if token["until"] >= time.time()}
        if role == STATION and number not in self.address:
            raise ConfigError(f"name the station: there are {len(self.address)}, from 0")
        if role == STATION and station is not None:
            raise ConfigError("a station is under no other: name the one that gets new credentials by its number alone")
        if number is None:
            taken = [*self.station, *(token["number"] for token in tokens.values() if token["role"] == TERMINAL)]
            number = max(taken, default=-1) + 1
        check_number(number, role)
        changed = self._placed(number, station) if role == TERMINAL and station is not None else {}
        if role == TERMINAL and changed.get("station", self.station).get(number, -1) < 0:
            raise ConfigError(f"terminal {number} belongs to no station yet: name one")
        secret = secrets.token_urlsafe(24)
        tokens[_hash(secret)] = {"role": role, "number": number, "until": time.time() + TOKEN_S}
        self._change(tokens=tokens, **changed)
        return secret, number

    def knows(self, secret: str) -> bool:
        """Whether a secret is one of those that were given out and not used."""
        return _hash(secret) in self.tokens

    def find(self, secret: str) -> tuple[str, int]:
        """Role and number that a secret stands for."""
        found = self.tokens.get(_hash(secret))
        if found is None:
            raise PeerError("this token is not known, or was used already: ask for a new one")
        if found["until"] < time.time():
            raise PeerError("this token is too old: ask for a new one")
        return found["role"], found["number"]

    def ask(self, secret: str, request: bytes) -> bytes:
        """The certificate that an operator signed for this request; nothing yet, and it waits to be signed."""
        self.find(secret)
        token = self.tokens[_hash(secret)]
        if token.get("request") != request.decode():
            unsigned = {name: value for name, value in token.items() if name != "certificate"}
            self._change(tokens={**self.tokens, _hash(secret): unsigned | {"request": request.decode()}})
            return b""
        return str(token.get("certificate", "")).encode()

    def waiting(self) -> dict[str, dict[str, Any]]:
        """Requests that wait for an operator's signature, by the hashes of their tokens."""
        now = time.time()
        waits = {key: token for key, token in self.tokens.items() if token.get("request") and token["until"] >= now}
        return {key: token for key, token in waits.items() if not token.get("certificate")}

    def sign(self, token: str, certificate: str) -> None:
        """Take a certificate for a request that waits."""
        if token not in self.waiting():
            raise ConfigError("nobody waits for this certificate any more: look again")
        self._change(tokens={**self.tokens, token: self.tokens[token] | {"certificate": certificate}})

    def redeem(self, secret: str, serial: str) -> None:
        """Note the certificate that was made for a secret, which counts no more: it can be revoked by its node."""
        role, number = self.find(secret)
        node = f"{role}/{number}"
        self._change(
            tokens={key: token for key, token in self.tokens.items() if key != _hash(secret)},
            issued={**self.issued, node: [*self.issued.get(node, ()), serial]},
            cut_off=[each for each in self.cut_off if each != node],
        )

    def _change(self, **changed: Any) -> None:
        """Write down how things stand with these changes, and only then let them count."""
        table = {name: changed.get(name, getattr(self, name)) for name in _WRITTEN}
        self.file.write(json.dumps({**table, "revoked": sorted(table["revoked"])}).encode())
        for name, value in changed.items():
            setattr(self, name, value)


_WRITTEN = ("station", "revoked", "tokens", "issued", "before", "cut_off")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
