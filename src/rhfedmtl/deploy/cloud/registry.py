"""Registry of the cloud's nodes: the station of each terminal, revoked certificates, and open tokens.

`Commands` changes it for operators, and `EnrolmentService` for new nodes with a token. `StationSessions` and `Rosters`
read it. Every change goes to disk before it takes effect, so a cloud that restarts never forgets a revocation. The
registry never talks to a node.
"""

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
"""Fewest hexadecimal digits of a serial number, which has 160 random bits; the number of a node is shorter."""


@dataclass
class NodeRegistry:
    """Tables of nodes and tokens in a state file; a change is on disk before it takes effect."""

    file: StateFile
    station: dict[int, int]
    """Station of each terminal; −1 if it has left the network."""
    address: dict[int, str]
    """Address of each station for its terminals."""
    revoked: set[str] = field(default_factory=set)
    """Serial numbers of revoked certificates."""
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Open tokens by the hash of their secret."""
    issued: dict[str, list[str]] = field(default_factory=dict)
    """Serial numbers of the certificates that each node received for a token."""
    before: dict[int, int] = field(default_factory=dict)
    """Terminals that are moving to another station, with the station that they leave."""
    cut_off: list[str] = field(default_factory=list)
    """Nodes whose certificates were revoked and that have not received a new certificate since."""
    planned: frozenset[int] = frozenset()
    """Terminals of the configuration: they have credentials from the start."""

    @classmethod
    def open(cls, config: CloudConfig) -> NodeRegistry:
        """Read the registry from the state folder; without a file, make it from the configuration."""
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
        """Return the terminals that belong to a station."""
        return sorted(t for t, b in self.station.items() if b == station)

    def expected(self, station: int) -> set[int]:
        """Return the terminals of a station for which a training waits at its start.

        It does not wait for terminals that were invited but never enrolled, or that were cut off.
        """
        enrolled = {*self.planned, *(t for t in self.station if f"{TERMINAL}/{t}" in self.issued)}
        return {t for t in self.homes(station) if t in enrolled and f"{TERMINAL}/{t}" not in self.cut_off}

    def allowed(self, station: int) -> list[int]:
        """Return the terminals that may join a station.

        These include terminals that are still moving away, because they join again if the station loses its memory.
        """
        return sorted({*self.homes(station), *(t for t, b in self.before.items() if b == station)})

    def place(self, terminal: int, station: int) -> None:
        """Assign a terminal to a station; −1 removes it from the network."""
        self._change(**self._placement(terminal, station))

    def _placement(self, terminal: int, station: int) -> dict[str, Any]:
        """Return the tables ``station`` and ``before`` after an assignment."""
        check_number(terminal, TERMINAL)
        if station != -1 and check_number(station, STATION) not in self.address:
            raise ConfigError(f"no station {station}: there are {len(self.address)}, from 0")
        old = self.station.get(terminal, -1)
        before = {t: b for t, b in self.before.items() if t != terminal}
        if old >= 0 and station >= 0 and old != station:
            before[terminal] = old
        return {"station": {**self.station, terminal: station}, "before": before}

    def arrived(self, station: int, terminals: Iterable[int]) -> bool:
        """Note the members of a station; return True if a moving terminal has arrived there."""
        arrivals = {t for t in terminals if t in self.before and self.station[t] == station}
        if arrivals:
            self._change(before={t: b for t, b in self.before.items() if t not in arrivals})
        return bool(arrivals)

    def revoke(self, node: str, serials: Sequence[str] = ()) -> list[str]:
        """Revoke all certificates of a node, and return their serial numbers.

        Parameters
        ----------
        node : str
            A node, as in ``terminal/3``, or a single serial number.
        serials : Sequence[str]
            Further serial numbers of the node, for example from `network init`.
        """
        registered = {*serials, *self.issued.get(node, ())}
        revoked = registered or {node}
        if (not registered and len(node) < SHORTEST_SERIAL) or set("".join(revoked)) - set("0123456789abcdef"):
            raise ConfigError(
                f"the registry has no certificate of {node!r}: name the node, as in terminal/3, or a whole serial "
                "number, which is in the log of the node that it connects to"
            )
        self._change(revoked=self.revoked | revoked, cut_off=[*self.cut_off, node])
        return sorted(revoked)

    def invite(self, role: str, number: int | None, station: int | None) -> tuple[str, int]:
        """Make a token for a single certificate; return its secret and the number of the node.

        Parameters
        ----------
        role : str
            Terminal or station.
        number : int, optional
            Number of the node. By default the next free number, for a new terminal.
        station : int, optional
            Station of a terminal. By default its present station.
        """
        if role not in (TERMINAL, STATION):
            raise ConfigError(f"no token for a {role}: tokens are for terminals and stations")
        tokens = {key: token for key, token in self.tokens.items() if token["until"] >= time.time()}
        if role == STATION and number not in self.address:
            raise ConfigError(f"name the station: there are {len(self.address)}, from 0")
        if role == STATION and station is not None:
            raise ConfigError("a station belongs to no other station: name it by its number alone")
        if number is None:
            numbers = [*self.station, *(token["number"] for token in tokens.values() if token["role"] == TERMINAL)]
            number = max(numbers, default=-1) + 1
        check_number(number, role)
        changed = self._placement(number, station) if role == TERMINAL and station is not None else {}
        if role == TERMINAL and changed.get("station", self.station).get(number, -1) < 0:
            raise ConfigError(f"terminal {number} belongs to no station yet: name its station")
        secret = secrets.token_urlsafe(24)
        tokens[_hash(secret)] = {"role": role, "number": number, "until": time.time() + TOKEN_S}
        self._change(tokens=tokens, **changed)
        return secret, number

    def knows(self, secret: str) -> bool:
        """Return True if a secret belongs to an open token."""
        return _hash(secret) in self.tokens

    def find(self, secret: str) -> tuple[str, int]:
        """Return role and number of the node that a secret is for; refuse a used or expired token."""
        token = self.tokens.get(_hash(secret))
        if token is None:
            raise PeerError("this token is not known, or was used already: ask for a new token")
        if token["until"] < time.time():
            raise PeerError("this token is too old: ask for a new token")
        return token["role"], token["number"]

    def ask(self, secret: str, request: bytes) -> bytes:
        """Return the certificate that an operator signed for this request.

        Empty while it is not signed: the request then waits for the signature.
        """
        self.find(secret)
        token = self.tokens[_hash(secret)]
        if token.get("request") != request.decode():
            unsigned = {name: value for name, value in token.items() if name != "certificate"}
            self._change(tokens={**self.tokens, _hash(secret): unsigned | {"request": request.decode()}})
            return b""
        return str(token.get("certificate", "")).encode()

    def waiting(self) -> dict[str, dict[str, Any]]:
        """Return the requests that wait for an operator's signature, by the hashes of their tokens."""
        now = time.time()
        valid = {key: token for key, token in self.tokens.items() if token.get("request") and token["until"] >= now}
        return {key: token for key, token in valid.items() if not token.get("certificate")}

    def sign(self, token: str, certificate: str) -> None:
        """Store the certificate for a waiting request."""
        if token not in self.waiting():
            raise ConfigError("no node waits for this certificate any more: list the requests again")
        self._change(tokens={**self.tokens, token: self.tokens[token] | {"certificate": certificate}})

    def redeem(self, secret: str, serial: str) -> None:
        """Close the token of a secret, and note its certificate, so `revoke` finds it by the name of the node."""
        role, number = self.find(secret)
        node = f"{role}/{number}"
        self._change(
            tokens={key: token for key, token in self.tokens.items() if key != _hash(secret)},
            issued={**self.issued, node: [*self.issued.get(node, ()), serial]},
            cut_off=[entry for entry in self.cut_off if entry != node],
        )

    def _change(self, **changed: Any) -> None:
        """Write all tables with these changes to disk, and only then change them in memory."""
        table = {name: changed.get(name, getattr(self, name)) for name in _WRITTEN}
        self.file.write(json.dumps({**table, "revoked": sorted(table["revoked"])}).encode())
        for name, value in changed.items():
            setattr(self, name, value)


_WRITTEN = ("station", "revoked", "tokens", "issued", "before", "cut_off")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
