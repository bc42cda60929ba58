"""Configuration of the cloud: what the network learns, what it may cost, and who belongs to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.algorithms.options import Options
from rhfedmtl.algorithms.registry import Algorithm
from rhfedmtl.data.scaling import SCALES
from rhfedmtl.deploy.node.config import Config, Limits, Waits, check_numbers, read
from rhfedmtl.deploy.node.credentials import CLOUD, STATION, TERMINAL, check_number
from rhfedmtl.deploy.node.log import split_address
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.errors import ConfigError, RHFedMTLError, nearest
from rhfedmtl.policies.base import AUTO, ONE_PASS, Situation, check_certify_every
from rhfedmtl.resources.costs import Budget, Cost
from rhfedmtl.training.config import PRECISION, RunConfig
from rhfedmtl.training.privacy import Privacy, PrivatePlan, planned

MEASURABLE = ("time", "bytes", "energy")


@dataclass(frozen=True)
class Learning:
    """What the network learns; the cloud tells the others.

    ``test_rows`` says where rows for evaluation lie: "station" or "terminal". ``least_steps`` is the smallest H that
    is ever asked for: with H = 1 an update is a scaled data row; 0 is one pass over each terminal's own rows.
    ``precision`` is that of updates and models on the wire. A training ends at either target; with a
    ``target_relative_gap`` of 0 it goes on while its budget lasts, for members to come. ``feature_names`` go into the
    models: rows with named columns are put into their order. ``privacy`` bounds what is learned of a terminal, as in
    "epsilon=1,delta=1e-6".
    """

    features: int
    tasks: tuple[str, ...]
    classes: tuple[str, ...] = ()
    algorithm: str = "rhfedmtl"
    options: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    seed: int = 0
    certify_every: int | str = AUTO
    target_gap: float = 0.0
    target_relative_gap: float = PRECISION
    max_rounds: int = 1_000_000
    least_steps: int = ONE_PASS
    precision: str = "float64"
    test_rows: str = STATION
    feature_names: tuple[str, ...] = ()
    privacy: str = ""

    def __post_init__(self) -> None:
        """Refuse what no node could follow."""
        _choose("test_rows", self.test_rows, (STATION, TERMINAL))
        if self.scale:
            _choose("scale", self.scale, SCALES)
        check_certify_every(self.certify_every)
        check_numbers(self, 1, "features", "max_rounds")
        check_numbers(self, ONE_PASS, "least_steps")
        check_numbers(self, 0.0, "seed", "target_gap", "target_relative_gap")
        if self.feature_names and len(self.feature_names) != self.features:
            raise ConfigError(
                f"{len(self.feature_names)} feature_names for {self.features} features: name all, or none"
            )
        if open_weights := self._options().auto:
            raise ConfigError(
                f"{open_weights[0]} = auto: nobody in a network has all rows to choose weights on. `rhfedmtl train` on "
                "rows like these says what it chooses: give that number"
            )
        if self.privacy:
            self.check_private(self.privacy)

    @property
    def terminal_bound(self) -> dict[str, Any]:
        """What terminals insist on: ε and δ, or nothing."""
        bound = Privacy.parse(self.privacy) if self.privacy else None
        return {"epsilon": bound.epsilon, "delta": bound.delta} if bound else {}

    def check_private(self, privacy: str) -> Privacy:
        """The bound, once all that would tell more is refused."""
        given = {"certify_every": self.certify_every, "target_gap": self.target_gap}
        config = RunConfig(self.algorithm, options=self._options(), scale=self.scale or None, privacy=privacy, **given)  # type: ignore[arg-type]
        config.check()
        _choose("test_rows", self.test_rows, (STATION,))
        if len(self.classes) < 2:
            raise ConfigError(f"--privacy {privacy}: labels of a regression have no bound; it is for classes")
        return Privacy.parse(privacy)

    def private_plan(
        self, start: Situation, privacy: Privacy, kind: str, shape: tuple[int, int]
    ) -> tuple[Algorithm, PrivatePlan]:
        """Return the algorithm and the plan of a private training."""
        options = Options.of(**json.loads(self.job().options))
        return planned(self.algorithm, options, kind, start, privacy, shape)

    def job(self) -> wire.Job:
        """What the cloud tells the stations, and they their terminals."""
        options = self._options()
        return wire.Job(
            algorithm=self.algorithm,
            options=json.dumps(options.to_dict(), sort_keys=True),
            classes=self.classes,
            features=self.features,
            least_steps=self.least_steps,
        )

    @property
    def channel(self) -> Channel:
        """What happens to updates and models on their way."""
        return self._options().chosen_channel()

    def _options(self) -> Options:
        """As they are given; a precision is that of a channel."""
        return Options.of(**self.options).in_precision(self.precision)


@dataclass(frozen=True)
class Resources:
    """Prices and limits, as on the command line, and which types are measured instead.

    ``measured`` may name ``time`` (seconds, elapsed), ``bytes`` and ``energy`` (joules: the powers below, in watts,
    times the seconds that were measured). Their prices are first guesses, and follow what is measured.
    ``deadline`` is how long, in seconds, a station waits for its terminals; terminals that would need longer get a
    smaller H.
    """

    cost: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    terminal_watts: float = 0.0
    station_watts: float = 0.0
    deadline: float = 30.0

    def __post_init__(self) -> None:
        """Refuse types that nobody can measure, and prices, limits and powers that are none."""
        for name in self.measured:
            _choose("measured", name, MEASURABLE)
        check_numbers(self, 0.0, "deadline", above=True)
        check_numbers(self, 0.0, "terminal_watts", "station_watts")
        for given, parse in (("cost", Cost.of), ("budget", Budget.of)):
            try:
                parse(getattr(self, given))
            except RHFedMTLError as error:
                raise ConfigError(f"{given} = {list(getattr(self, given))}: {error}") from None


@dataclass(frozen=True)
class Enrolment:
    """Where nodes ask for certificates with tokens; without an address they cannot.

    ``address`` is how others reach it. Operators sign what is asked for, with `network sign`; where ``authority`` names
    the folder with the key of the certificate authority, the cloud does it by itself.
    """

    listen: str = ""
    address: str = ""
    authority: str = ""

    def __post_init__(self) -> None:
        """Refuse an address that newcomers could not use."""
        if self.listen:
            split_address(self.listen, "listen")
            split_address(self.address, "address")


@dataclass(frozen=True)
class StationEntry:
    """What the cloud knows of a station: the address for its terminals, and who they are."""

    address: str
    terminals: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an address that terminals could not use."""
        split_address(self.address, "address")


@dataclass(frozen=True)
class CloudConfig(Config):
    """Configuration of the cloud; a journal longer than ``journal_bytes`` is replaced by a checkpoint."""

    learning: Learning
    stations: tuple[StationEntry, ...]
    resources: Resources = field(default_factory=Resources)
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)
    enrolment: Enrolment = field(default_factory=Enrolment)
    journal_bytes: int = 1 << 26

    @property
    def result(self) -> Path:
        """Folder with what the last training came to, for who asks when no cloud runs."""
        return self.state / "result"

    def __post_init__(self) -> None:
        """Refuse a network that does not add up."""
        split_address(self.node.listen, "node.listen")
        check_numbers(self, 1, "journal_bytes")
        if len(self.stations) != len(self.learning.tasks):
            raise ConfigError(f"{len(self.stations)} stations for {len(self.learning.tasks)} tasks: one for each")
        ids = [check_number(t, TERMINAL) for entry in self.stations for t in entry.terminals]
        if len(set(ids)) < len(ids):
            raise ConfigError("a terminal is under two stations: ids are global, each belongs to one")

    def check_files(self) -> None:
        """Refuse to start without the authority's key, where the cloud is to answer tokens with it."""
        given = self.enrolment.authority
        if given and not (self.folder / given / "ca.key").is_file():
            missing = f"there is no file {self.folder / given / 'ca.key'}"
            raise ConfigError(f"enrolment.authority = {given!r}: {missing}: put it there, or leave the line out")


read_cloud = partial(read, CloudConfig, CLOUD)


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} = {value!r}: choose from {', '.join(known)}{nearest(value, known)}")
