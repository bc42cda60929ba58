"""What a base station remembers over a restart: its role, what it was told, and the round that it had open."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import struct
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from rhfedmtl.deploy.methods import method_of
from rhfedmtl.deploy.node.acceptor import NotReadyError
from rhfedmtl.deploy.node.config import StationConfig
from rhfedmtl.deploy.node.job import Agreement, matrix_of
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.deploy.node.states import Machine, Table
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.roles.roster import Member, StationState
from rhfedmtl.roles.secure.masked_sums import MaskRoom
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.summed import SummingStation

NOWHERE = 0xFFFFFFFF
"""Station of a `Place` that is none: the terminal leaves the network."""


class Rounds(StrEnum):
    """Where a station stands with its rounds."""

    UNTOLD = "untold"
    """It has not heard from the cloud what is learned."""
    IDLE = "idle"
    OPEN = "open"
    INTERRUPTED = "interrupted"
    """It was killed in a round: the same orders may go out again, or the round is given up."""


_ALWAYS = ("round", "roster", "transfer")
_BETWEEN_ROUNDS = ("assign", "report", "sums", "moments", "scale", "labels", "centre", "hide", "models", "trial")
ROUNDS: Table[Rounds] = {
    Rounds.UNTOLD: {"job": Rounds.IDLE, **dict.fromkeys((*_ALWAYS, *_BETWEEN_ROUNDS), Rounds.UNTOLD)},
    Rounds.IDLE: {
        **dict.fromkeys((*_ALWAYS, *_BETWEEN_ROUNDS), Rounds.IDLE),
        "open": Rounds.OPEN,
        "restart": Rounds.INTERRUPTED,
    },
    Rounds.OPEN: {"merge": Rounds.IDLE},
    Rounds.INTERRUPTED: {
        **dict.fromkeys(_ALWAYS, Rounds.INTERRUPTED),
        **dict.fromkeys(_BETWEEN_ROUNDS, Rounds.IDLE),
        "open": Rounds.OPEN,
        "give up": Rounds.IDLE,
    },
}
"""Requests of the cloud, and what happens to a round. One that was interrupted is given up before a request that leads
to ``idle``: only the round itself, and what needs no round, may come first."""


class Memory:
    """State of a station. ``turn`` is held by whoever needs the role without an open round, or opens one.

    Where the file is damaged, or older than a crash of the machine, nothing of it is used: the station begins a new
    ``epoch`` without members, and its terminals join again with what they know, so that U_b is made anew from them.
    The same where a peer knows more of the station than it does itself: then it was put back from an old copy.
    """

    def __init__(self, config: StationConfig, log: Log, meters: Meters) -> None:
        self._network, self.task = config.node.network, config.node.number
        self._file = StateFile(config.state / "station.state", fsync=config.node.fsync)
        self._open_file = StateFile(config.state / "round.state", fsync=config.node.fsync)
        self._log, self._meters = log, meters
        self._limits = config.limits
        self.turn = asyncio.Lock()
        self.role: BaseStation | None = None
        self.job: wire.Job | None = None
        self.agreed = Agreement()
        self.certified: tuple[bytes, wire.StationSums] | None = None
        """The last private certificate: for what, and what was told."""
        self.last: wire.RoundResult | None = None
        self.allowed: set[int] = set()
        self.revoked: set[str] = set()
        self.leaving: dict[int, wire.Place] = {}
        self.rounds = Machine(ROUNDS, Rounds.UNTOLD)
        self._interrupted: wire.OpenFile | None = None
        self.epoch = secrets.token_hex(8)
        self.from_disk = False
        """Whether this process took it from its files, so that it may be an old copy."""
        self._restore()

    @property
    def station(self) -> BaseStation:
        """The role; there is none before the cloud has said what is learned."""
        if self.role is None:
            raise NotReadyError(f"station {self.task} has not heard from the cloud yet: try again")
        return self.role

    @property
    def masked(self) -> SummingStation | None:
        """The role of a station that sees sums over its terminals alone."""
        return self.role if isinstance(self.role, SummingStation) else None

    @property
    def sealed(self) -> bool:
        """Whether no share of a terminal goes into the sum, or out of it, by itself."""
        return self.role is not None and self.role.method.channel.sealed

    def waiting(self, room: MaskRoom) -> frozenset[int]:
        """Members of a masked sum who go next: of whom all that count together are to go to one place."""
        if self.role is None:
            return frozenset()
        to = {t: place.station for t, place in self.leaving.items() if t in self.role.members}
        return frozenset(t for t in to if all(to.get(n) == to[t] for n in room.group(t)))

    def agree(self, given: Agreement) -> None:
        """Take what holds from now on, and let the role heed it."""
        _heed(self.station, given)
        self.agreed = replace(self.agreed, **{name: part for name, part in vars(given).items() if part is not None})

    def begin(self, job: wire.Job) -> bool:
        """Take the job from the cloud; it stays the same for the life of the network. False if it is known already."""
        if self.job is not None:
            if self.job != job:
                raise PeerError("the network learns something else now: this station's state belongs to another job")
            return False
        self.role = self._new_role(job)
        self.rounds.on("job")
        self.job = wire.Job()
        self.job.CopyFrom(job)
        return True

    def _new_role(self, job: wire.Job) -> BaseStation:
        """A station without members. It counts from anywhere: no problem of another epoch has the same number."""
        method = method_of(job)
        matrix, shared = matrix_of(job, method)
        kind = SummingStation if method.channel.sums_only else BaseStation
        role = kind(self.task, matrix, method, shared)
        roster = role.roster
        roster.membership, roster.max_share_norm = secrets.randbits(40), self._limits.norm
        roster.max_weight = self._limits.weight
        _heed(role, self.agreed)
        return role

    @property
    def latest(self) -> int:
        """The last round that terminals can know of."""
        opened = 0 if self._interrupted is None else self._interrupted.round
        return max(opened, 0 if self.role is None else self.role.round)

    def begin_anew(self, reason: str) -> None:
        """Forget the members, in a turn: what is known of them is older than what they know."""
        assert self.job is not None
        before, self.role = self.station, self._new_role(self.job)
        self.role.roster.quarantined, anchor = before.quarantined, before.anchor
        self.epoch, self.last, self._interrupted, self.from_disk = secrets.token_hex(8), None, None, False
        if anchor is not None:
            self.role.receive_anchor(anchor)
        self.rounds = Machine(ROUNDS, Rounds.IDLE)
        self.save()
        self._log("begins anew", "error", reason=f"{reason}; terminals will join again", epoch=self.epoch)

    def save(self, *, fsync: bool | None = None) -> None:
        """Write everything down; comes before any message that rests on it."""
        if self.role is None:
            return
        with self._meters.saves.time():
            self._file.write(self.record().SerializeToString(), fsync=fsync)

    def note_open(self, number: int, asked: Mapping[int, int], ordered: Mapping[int, int]) -> None:
        """Write down that a round is about to be opened, and who is given orders."""
        note = wire.OpenFile(round=number, digest=self._digest(asked), ordered=dict(ordered))
        self._open_file.write(note.SerializeToString())
        self.rounds.on("open")
        self._interrupted = None

    def earlier_orders(self, number: int) -> dict[int, int]:
        """Steps of the terminals that were given orders for this round before the station was killed."""
        found = self._interrupted
        return dict(found.ordered) if found is not None and found.round == number else {}

    def may_reopen(self, number: int, asked: Mapping[int, int]) -> bool:
        """Whether this round was not open before, or would be the same to the bit: then orders may go out again."""
        found = self._interrupted
        return found is None or found.round != number or found.digest == self._digest(asked)

    def give_up_round(self) -> None:
        """Close the round that was open when the station was killed, with nothing merged: its updates are late."""
        found, self._interrupted = self._interrupted, None
        self.rounds.on("give up")
        if found is not None and found.round > self.station.round:
            self.station.open_round(found.round, {})
            self.station.close_round()
            self.last = None
            self.save()

    def seat(self, terminal: int) -> Member | None:
        """What is known of a terminal, member or gone."""
        if self.role is None:
            return None
        return self.role.members.get(terminal) or self.role.state.departed.get(terminal)

    def _digest(self, steps: Mapping[int, int]) -> bytes:
        """Of all that an order rests on."""
        role = self.station
        digest = hashlib.sha256(role.U.tobytes())
        if role.anchor is not None:
            digest.update(role.anchor.center.tobytes() + struct.pack("<d", role.anchor.lam) + role.anchor.work.encode())
            digest.update(b"" if role.anchor.origin is None else role.anchor.origin.tobytes())
        for t in sorted(role.members):
            digest.update(struct.pack("<QQQ", t, role.members[t].incarnation, steps.get(t, 0)))
        return digest.digest()

    def record(self) -> wire.StationFile:
        """All that is written down."""
        state = self.station.state
        seats = [(t, m, False) for t, m in state.members.items()] + [(t, m, True) for t, m in state.departed.items()]
        record: wire.StationFile = codec.to_wire(
            state,
            network=self._network,
            epoch=self.epoch,
            job=self.job,
            allowed=sorted(self.allowed),
            revoked=sorted(self.revoked),
            members=[codec.to_wire(m, terminal=t, departed=departed) for t, m, departed in seats],
            quarantined=state.quarantined,
        )
        for t, place in self.leaving.items():
            record.leaving[t].CopyFrom(place)
        self.agreed.write(record)
        if self.last is not None:
            record.last.CopyFrom(self.last)
        if self.certified is not None:
            record.certified = self.certified[0]
            record.certificate.CopyFrom(self.certified[1])
        return record

    def _restore(self) -> None:
        try:
            payload, opened = self._file.read(), self._open_file.read()
        except CorruptError as error:
            for file in (self._file, self._open_file):
                if file.path.exists():
                    file.set_aside()
            self._log(
                "state damaged", "error", reason=f"{error}; set aside, terminals will join again", epoch=self.epoch
            )
            return
        if payload is None:
            return
        self.from_disk = True
        record = wire.StationFile.FromString(payload)
        if record.network != self._network:
            raise ConfigError(f"{self._file.path} belongs to network {record.network!r}: give another state folder")
        if record.HasField("certificate"):
            self.certified = record.certified, record.certificate
        self.agreed = Agreement.read(record)
        self.begin(record.job)
        self.epoch, self.allowed, self.revoked = record.epoch, set(record.allowed), set(record.revoked)
        self.last = record.last if record.HasField("last") else None
        self.leaving = dict(record.leaving.items())
        members, departed = (
            {each.terminal: codec.from_wire(Member, each) for each in record.members if each.departed is gone}
            for gone in (False, True)
        )
        barred = dict(record.quarantined)
        if math.isinf(record.anchor.lam):  # as protocol 3 asked for a gradient
            record.anchor.work, record.anchor.lam = wire.GRADIENT, 1.0
        self.station.restore(
            codec.from_wire(StationState, record, members=members, departed=departed, quarantined=barred)
        )
        if self.agreed.scaling is not None:
            self.station.roster.scaled(self.agreed.scaling)
        found = wire.OpenFile.FromString(opened) if opened is not None else None
        if found is not None and found.round > self.station.round:
            self._interrupted = found
            self.rounds.on("restart")


def _heed(role: BaseStation, agreed: Agreement) -> None:
    """Let a role know what was agreed on, of which levels of labels are the terminals' alone."""
    if agreed.scaling is not None:
        role.roster.scaled(agreed.scaling)
    if agreed.noising is not None:
        role.hide(agreed.noising)
