"""The memory of a terminal over restarts: its role (rows and duals), agreements, place, and amounts used.

`TerminalService` and its parts read and change it, and call `TerminalMemory.save` before they send a message that
depends on a change. The state lies in ``terminal.state``. If the file is damaged or old, the terminal starts again at α
= 0, or joins with old duals; if its owner bounds ε, it refuses to start without the lost amounts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import encode
from rhfedmtl.deploy.node import job as jobs
from rhfedmtl.deploy.node.config import TerminalConfig
from rhfedmtl.deploy.node.log import Log, Meters
from rhfedmtl.deploy.node.state import CorruptError, StateFile
from rhfedmtl.deploy.terminal.account import UP, read
from rhfedmtl.deploy.terminal.masked import MaskedAnswers
from rhfedmtl.deploy.terminal.owner import ACCOUNT
from rhfedmtl.deploy.terminal.site import STATE, SitePolicy
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.maths.kernels.kernel import COMPILED, best_kernel, find_kernel
from rhfedmtl.roles.channel import MaskedSums
from rhfedmtl.roles.messages import Noising
from rhfedmtl.roles.round_zero import check_scaling
from rhfedmtl.roles.terminal import Terminal, TerminalState

WarmUp = Callable[[Method, npt.NDArray[Any], npt.NDArray[np.float64], Any], None]


class TerminalMemory:
    """State of a terminal.

    Attributes
    ----------
    role, job : Terminal, wire.Job
        The role with its rows, and the job; missing until the station has sent the job.
    agreed : Agreement
        Scaling, centring and noise of round zero.
    place : wire.Place
        Number and address of the present station.
    epoch : str
        Epoch of the station that the terminal joined.
    site : SitePolicy
        The owner's rules, and the amounts used.
    masks : MaskedAnswers, optional
        The terminal's part in masked sums.
    """

    def __init__(
        self, config: TerminalConfig, log: Log, meters: Meters, method_of: jobs.MethodOf, warm_up: WarmUp
    ) -> None:
        self._config, self._log, self._meters = config, log, meters
        self._method_of, self._compile = method_of, warm_up
        self.identity = config.identity
        self.file = StateFile(config.state / STATE, fsync=config.node.fsync or config.epsilon > 0.0)
        self.role: Terminal | None = None
        self.job: wire.Job | None = None
        self.agreed = jobs.Agreement()
        self.place = wire.Place(station=config.station, address=config.address)
        self.epoch = ""
        self.secret = secrets.token_bytes(32)
        self.certified = b""
        """Digest of the last private certificate."""
        self.mapped: tuple[bytes, ...] = ()
        """Digests of the feature maps for which moments have left."""
        self.site = SitePolicy(config)
        self.masks: MaskedAnswers | None = None
        self.tests: jobs.NodeRows | None = None
        self.warm_up: Callable[[], None] = lambda: None
        """Compiles the kernel for these rows; takes seconds the first time."""
        self._rows_digest = b""
        self._kernel = find_kernel(config.kernel)
        self._restore()

    @property
    def terminal(self) -> Terminal:
        """The role; an error before the station has sent the job."""
        if self.role is None:
            raise PeerError(f"terminal {self.identity.number} has no job from its station yet")
        return self.role

    def begin(self, job: wire.Job, incarnation: int = 0) -> None:
        """Take the job from the station, load the rows, and make the role."""
        config, method = self._config, self._method_of(job)
        jobs.shape_of(job, method)
        classes = tuple(job.classes)
        rows = jobs.load_rows(config.folder / config.data, job.features, classes, config.columns)
        self._rows_digest = rows.digest
        if config.test:
            self.tests = jobs.load_rows(config.folder / config.test, job.features, classes, config.columns)
        self.job = wire.Job()
        self.job.CopyFrom(job)
        if self.masks is None and isinstance(method.channel, MaskedSums):
            self.masks = MaskedAnswers(
                self.identity, config.credentials(), method.channel, self.secret, self.save, method.masked_profile
            )
        y = encode(rows.y, classes)
        if best_kernel(config.kernel) == COMPILED:
            self.warm_up = partial(self._compile, method, rows.X[:2], y[:2], rows.weight)
        self.role = Terminal(
            self.identity.number,
            rows.X,
            y,
            method,
            seed=self.secret if config.row_seed < 0 else config.row_seed,
            weight=rows.weight,
            incarnation=incarnation,
            kernel=self._kernel,
        )

    def agree(self, news: jobs.Agreement) -> None:
        """Take over agreements that the station sends, and write them down."""
        agreed, role = self.agreed, self.terminal
        if news.scaling is not None and agreed.scaling is None:
            check_scaling(self.identity.number, role.method.features, role.rows.X.shape[1], news.scaling)
            agreed.scaling = news.scaling  # a terminal with duals from unscaled rows starts again
            role.scale(news.scaling)
            self.save()
        if news.centring is not None and agreed.centring is None:
            agreed.centring = news.centring  # a terminal that moves keeps the level that its duals belong to
            role.centre(news.centring)
            self.save()
        if news.noising is not None and agreed.noising is None:
            self._hide(news.noising)
            agreed.noising = news.noising
            self.save()
        elif news.noising is not None and news.noising != agreed.noising:
            raise PeerError(f"{news.noising}, where {agreed.noising} was agreed on")

    def _hide(self, noising: Noising) -> None:
        role = self.terminal
        role.hide(noising)
        if self.masks is not None and isinstance(role.method.channel, MaskedSums):
            self.masks.channel = role.method.channel

    def _prepare(self) -> None:
        """Apply the agreements to rows that were just loaded."""
        if self.agreed.scaling is not None:
            self.terminal.scale(self.agreed.scaling)
        if self.agreed.centring is not None:
            self.terminal.centre(self.agreed.centring)
        if self.agreed.noising is not None:
            self._hide(self.agreed.noising)

    def give_up(self) -> None:
        """Give up the dual variables: α = 0, and a new incarnation."""
        assert self.job is not None
        self.begin(self.job, self.terminal.incarnation)
        self._prepare()

    def fall_back(self, reason: str, incarnation: int = 0) -> None:
        """Join as a newcomer with old dual variables, although the station knew later values.

        The amounts used are as old as the copy, so the whole privacy bound counts as spent.
        """
        self.site.spend_all()
        self._log("state is old", "warning", reason=f"{reason}; joining again with an old state")
        self.terminal.fall_back(incarnation)

    # The file.

    def save(self, *, fsync: bool | None = None) -> None:
        """Write the state to disk. Call it before sending a message that depends on a change."""
        if self.role is None:
            return
        with self._meters.saves.time():
            self.file.write(self.record().SerializeToString(), fsync=fsync)

    def record(self) -> wire.TerminalFile:
        """Return the content of the file."""
        state = self.terminal.state
        record: wire.TerminalFile = codec.to_wire(
            state,
            network=self.identity.network,
            epoch=self.epoch,
            job=self.job,
            place=self.place,
            rows=len(state.alpha),
            rows_digest=self._rows_digest,
            secret=self.secret,
            certified=self.certified,
            mapped=self.mapped,
        )
        for name, number in self.site.used.items():
            setattr(record, name, number)
        self.agreed.write(record)
        if self.masks is not None:
            self.masks.note(record)
            record.history = self.terminal.history
        return record

    def _restore(self) -> None:
        config = self._config
        try:
            payload = self.file.read()
        except CorruptError as error:
            self._need_account(str(error))
            aside = self.file.set_aside()
            self._log("state damaged", "error", reason=f"{error}; kept as {aside.name}, starting again at alpha = 0")
            return
        if payload is None:
            if any(line.way == UP and line.kind in ("update", "masked") for line in read(config.state / ACCOUNT)):
                self._need_account(f"{self.file.path} is gone")
            return
        record = wire.TerminalFile.FromString(payload)
        if record.network != self.identity.network:
            raise ConfigError(f"{self.file.path} belongs to network {record.network!r}: give another state folder")
        self.secret = record.secret or self.secret
        self.site.used = {name: getattr(record, name) for name in self.site.used}
        if record.place.station != config.station:  # it has moved since its configuration was written
            self.place.CopyFrom(record.place)
        if not record.HasField("job"):  # a reset deleted the rest
            return
        self.begin(record.job)
        if self.terminal.n_samples != record.rows or record.rows_digest not in (b"", self._rows_digest):
            raise ConfigError(
                f"{config.data} has other rows than the {record.rows} that {self.file.path} was made with: "
                "put the old rows back, or move that file away, and this terminal starts again with the new rows"
            )
        self.epoch = record.epoch
        self.agreed = jobs.Agreement.read(record)
        self.certified, self.mapped = record.certified, tuple(record.mapped)
        self._prepare()
        self.terminal.restore(codec.from_wire(TerminalState, record))
        if self.masks is not None:
            self.masks.restore(record)
            self.terminal.history = record.history

    def _need_account(self, reason: str) -> None:
        """Refuse to go on if the owner bounds ε, and the file with the amount spent is lost."""
        if self._config.epsilon:
            raise ConfigError(
                f"{reason}: the privacy spent is unknown, and the owner allows epsilon={self._config.epsilon:g}; "
                f"put the file back, or move it and {ACCOUNT} away to start an account without the earlier messages"
            )
