"""Memory of a base station over restarts: `Memory` holds its role, its agreements, and the round it had open.

The parts of the station read and change it, and call `Memory.save` before they send a message that depends on a change.
The state lies in ``station.state``; ``round.state`` names the open round and its orders. With both, a station that was
killed in a round either sends the same orders again or gives the round up.
"""

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
"""Station number in a `Place` that means: the terminal leaves the network."""


class Rounds(StrEnum):
    """State of a station with respect to its rounds."""

    UNTOLD = "untold"
    """It has not received the job from the cloud."""
    IDLE = "idle"
    OPEN = "open"
    INTERRUPTED = "interrupted"
    """It was killed in a round. It may send the same orders again, or give the round up."""


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
"""Requests of the cloud, and events of a round. The station gives an interrupted round up before it carries out a
request that leads to ``idle``. Only the round itself, and requests that are allowed at any time, may come before."""


class Memory:
    """State of a station.

    If the file is damaged, or may be older than a crash of the machine, nothing in it is used. The station starts a new
    ``epoch`` without members. Its terminals join again with their duals, and U_b is computed again from their shares.
    The same happens if a peer knows a later state of the station, which was then restored from an old copy.

    Attributes
    ----------
    turn : asyncio.Lock
        Held by code that opens a round, or that needs the role while no round is open.
    role, job, agreed
        The role and the job (missing until the cloud has sent it), and the agreements of round zero.
    last : RoundResult, optional
        Result of the last round, in case the cloud asks for it again.
    allowed, revoked : set
        Terminals that may join, and serial numbers of revoked certificates.
    leaving : dict
        Destination of each terminal that moves or leaves.
    epoch : str
        Random name of the life of this state; terminals of another epoch join again.
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
        """The last private certificate: digest of its request, and the sums that were sent."""
        self.last: wire.RoundResult | None = None
        self.allowed: set[int] = set()
        self.revoked: set[str] = set()
        self.leaving: dict[int, wire.Place] = {}
        self.rounds = Machine(ROUNDS, Rounds.UNTOLD)
        self._interrupted: wire.OpenFile | None = None
        self.epoch = secrets.token_hex(8)
        self.from_disk = False
        """True if the state was read from a file, which may be an old copy."""
        self._restore()

    @property
    def station(self) -> BaseStation:
        """The role; raises `NotReadyError` before the cloud has sent the job."""
        if self.role is None:
            raise NotReadyError(f"station {self.task} has not heard from the cloud yet: try again")
        return self.role

    @property
    def masked(self) -> SummingStation | None:
        """The role if the station sees only masked sums over its terminals, else None."""
        return self.role if isinstance(self.role, SummingStation) else None

    @property
    def sealed(self) -> bool:
        """True if no share may enter or leave the sum alone, because the difference would reveal it."""
        return self.role is not None and self.role.method.channel.sealed

    def ready_to_leave(self, room: MaskRoom) -> frozenset[int]:
        """Return the members of a masked sum that can leave now: their whole group goes to the same destination."""
        if self.role is None:
            return frozenset()
        to = {t: place.station for t, place in self.leaving.items() if t in self.role.members}
        return frozenset(t for t in to if all(to.get(n) == to[t] for n in room.group(t)))

    def agree(self, news: Agreement) -> None:
        """Take over agreements, and apply them to the role."""
        _apply_agreements(self.station, news)
        self.agreed = replace(self.agreed, **{name: part for name, part in vars(news).items() if part is not None})

    def begin(self, job: wire.Job) -> bool:
        """Take the job from the cloud; return False if it has the job already. A network never changes its job."""
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
        """Return a role without members. Its membership number starts at random, so it differs from earlier epochs."""
        method = method_of(job)
        matrix, shared = matrix_of(job, method)
        kind = SummingStation if method.channel.sums_only else BaseStation
        role = kind(self.task, matrix, method, shared)
        roster = role.roster
        roster.membership, roster.max_share_norm = secrets.randbits(40), self._limits.norm
        roster.max_weight = self._limits.weight
        _apply_agreements(role, self.agreed)
        return role

    @property
    def latest(self) -> int:
        """Last round that terminals can know of, including a round that was interrupted."""
        opened = 0 if self._interrupted is None else self._interrupted.round
        return max(opened, 0 if self.role is None else self.role.round)

    def start_epoch(self, reason: str) -> None:
        """Start a new epoch without members, because this state is older than theirs; the caller holds the turn."""
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
        """Write the state to disk. Call it before sending a message that depends on a change."""
        if self.role is None:
            return
        with self._meters.saves.time():
            self._file.write(self.record().SerializeToString(), fsync=fsync)

    def note_open(self, number: int, plan: Mapping[int, int], ordered: Mapping[int, int]) -> None:
        """Save that a round is about to open, with its plan (H by terminal) and the orders that go out."""
        note = wire.OpenFile(round=number, digest=self._digest(plan), ordered=dict(ordered))
        self._open_file.write(note.SerializeToString())
        self.rounds.on("open")
        self._interrupted = None

    def earlier_orders(self, number: int) -> dict[int, int]:
        """Return H of the terminals that got orders for this round before the station was killed."""
        opened = self._interrupted
        return dict(opened.ordered) if opened is not None and opened.round == number else {}

    def may_reopen(self, number: int, plan: Mapping[int, int]) -> bool:
        """Return True if this round was not interrupted, or if its orders would be equal to the bit."""
        opened = self._interrupted
        return opened is None or opened.round != number or opened.digest == self._digest(plan)

    def give_up_round(self) -> None:
        """Close the interrupted round without merging anything: its updates count as late."""
        opened, self._interrupted = self._interrupted, None
        self.rounds.on("give up")
        if opened is not None and opened.round > self.station.round:
            self.station.open_round(opened.round, {})
            self.station.close_round()
            self.last = None
            self.save()

    def seat(self, terminal: int) -> Member | None:
        """Return the record of a present or former member; None for a stranger."""
        if self.role is None:
            return None
        return self.role.members.get(terminal) or self.role.state.departed.get(terminal)

    def _digest(self, steps: Mapping[int, int]) -> bytes:
        """Return a digest of all values that the orders of a round depend on."""
        role = self.station
        digest = hashlib.sha256(role.U.tobytes())
        if role.anchor is not None:
            digest.update(role.anchor.center.tobytes() + struct.pack("<d", role.anchor.lam) + role.anchor.work.encode())
            digest.update(b"" if role.anchor.origin is None else role.anchor.origin.tobytes())
        for t in sorted(role.members):
            digest.update(struct.pack("<QQQ", t, role.members[t].incarnation, steps.get(t, 0)))
        return digest.digest()

    def record(self) -> wire.StationFile:
        """Return the content of the state file."""
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
            {seat.terminal: codec.from_wire(Member, seat) for seat in record.members if seat.departed is departed}
            for departed in (False, True)
        )
        barred = dict(record.quarantined)
        if math.isinf(record.anchor.lam):  # protocol 3 requested a gradient in this way
            record.anchor.work, record.anchor.lam = wire.GRADIENT, 1.0
        self.station.restore(
            codec.from_wire(StationState, record, members=members, departed=departed, quarantined=barred)
        )
        if self.agreed.scaling is not None:
            self.station.roster.scaled(self.agreed.scaling)
        open_round = wire.OpenFile.FromString(opened) if opened is not None else None
        if open_round is not None and open_round.round > self.station.round:
            self._interrupted = open_round
            self.rounds.on("restart")


def _apply_agreements(role: BaseStation, agreed: Agreement) -> None:
    """Apply scaling and noise to a role. Centring concerns only the terminals."""
    if agreed.scaling is not None:
        role.roster.scaled(agreed.scaling)
    if agreed.noising is not None:
        role.hide(agreed.noising)
