"""Configuration of the cloud: the learning task, costs and limits, stations and terminals.

`read_cloud` reads and checks ``cloud.toml``; ``network init`` writes it. Only the cloud reads this file: stations and
terminals receive the job (`Learning.job`) when they connect. Every class refuses invalid values with a `ConfigError`.
"""

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
from rhfedmtl.deploy.node.job import check_columns
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
    """The learning task of the network.

    Attributes
    ----------
    features : int
        Number of features of a row.
    tasks : tuple[str, ...]
        Name of the task of each station.
    classes : tuple[str, ...]
        Names of the classes; empty for a regression.
    target_gap, target_relative_gap : float
        A training ends at either target. A ``target_relative_gap`` of 0 continues while the budget lasts, for members
        that join later.
    least_steps : int
        Smallest H of every order; 0 means a pass over each terminal's rows. With H = 1 an update is a scaled data row.
    precision : str
        Precision of updates and models on the wire.
    test_rows : str
        Place of the rows for evaluation: "station" or "terminal".
    feature_names : tuple[str, ...]
        Names of the columns, stored in the models; terminals sort named columns into this order.
    privacy : str
        Bound on the information about a terminal, as in "epsilon=1,delta=1e-6".
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
        """Refuse values that no node can follow."""
        _check_choice("test_rows", self.test_rows, (STATION, TERMINAL))
        if self.scale:
            _check_choice("scale", self.scale, SCALES)
        check_certify_every(self.certify_every)
        check_numbers(self, 1, "features", "max_rounds")
        check_numbers(self, ONE_PASS, "least_steps")
        check_numbers(self, 0.0, "seed", "target_gap", "target_relative_gap")
        if self.feature_names and len(self.feature_names) != self.features:
            raise ConfigError(
                f"{len(self.feature_names)} feature_names for {self.features} features: name all, or leave the line out"
            )
        check_columns(self._options().chosen_features(), self.features)
        if open_weights := self._options().auto:
            raise ConfigError(
                f"{open_weights[0]} = auto: no node has all rows, so the network cannot choose it. Run "
                "`rhfedmtl train` on similar rows and give the number that it chooses"
            )
        if self.privacy:
            self.check_private(self.privacy)

    @property
    def terminal_bound(self) -> dict[str, Any]:
        """Bound ε and δ that terminals demand; empty for a training without privacy."""
        bound = Privacy.parse(self.privacy) if self.privacy else None
        return {"epsilon": bound.epsilon, "delta": bound.delta} if bound else {}

    def check_private(self, privacy: str) -> Privacy:
        """Return the privacy bound; refuse settings that release more than it covers."""
        ends = {"certify_every": self.certify_every, "target_gap": self.target_gap}
        config = RunConfig(self.algorithm, options=self._options(), scale=self.scale or None, privacy=privacy, **ends)  # type: ignore[arg-type]
        config.check()
        _check_choice("test_rows", self.test_rows, (STATION,))
        if len(self.classes) < 2:
            raise ConfigError(f"--privacy {privacy}: labels of a regression have no bound; use it with classes only")
        return Privacy.parse(privacy)

    def private_plan(
        self, start: Situation, privacy: Privacy, kind: str, shape: tuple[int, int]
    ) -> tuple[Algorithm, PrivatePlan]:
        """Return the algorithm and the plan of a private training."""
        options = Options.of(**json.loads(self.job().options))
        return planned(self.algorithm, options, kind, start, privacy, shape)

    def job(self) -> wire.Job:
        """Return the job that the cloud sends to the stations, and the stations to their terminals."""
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
        """Channel of updates and models: precision, masks and noise on the wire."""
        return self._options().chosen_channel()

    def _options(self) -> Options:
        """Return the options of the algorithm, with the precision in its channel."""
        return Options.of(**self.options).in_precision(self.precision)


@dataclass(frozen=True)
class Resources:
    """Prices and limits as on the command line, and the measured resource types.

    Attributes
    ----------
    cost, budget : tuple[str, ...]
        Prices and limits, as for ``--cost`` and ``--budget``.
    measured : tuple[str, ...]
        Any of ``time`` (elapsed seconds), ``bytes`` and ``energy`` (joules: measured seconds times the powers below).
        Prices of measured types are first guesses, which the cloud corrects after every round.
    terminal_watts, station_watts : float
        Power of a terminal and of a station while it works.
    deadline : float
        Seconds for which a station waits for its terminals; slower terminals get a smaller H.
    """

    cost: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    terminal_watts: float = 0.0
    station_watts: float = 0.0
    deadline: float = 30.0

    def __post_init__(self) -> None:
        """Refuse types that cannot be measured, and invalid prices, limits and powers."""
        for name in self.measured:
            _check_choice("measured", name, MEASURABLE)
        check_numbers(self, 0.0, "deadline", above=True)
        check_numbers(self, 0.0, "terminal_watts", "station_watts")
        for name, parse in (("cost", Cost.of), ("budget", Budget.of)):
            try:
                parse(getattr(self, name))
            except RHFedMTLError as error:
                raise ConfigError(f"{name} = {list(getattr(self, name))}: {error}") from None


@dataclass(frozen=True)
class Enrolment:
    """The port at which nodes exchange tokens for certificates; without ``listen`` there is no such port.

    Attributes
    ----------
    listen, address : str
        Address to listen on, and the address that other machines use.
    authority : str
        Folder with the key of the certificate authority: the cloud then signs requests. Without it operators sign them
        with ``rhfedmtl network sign``, and the cloud never has the key.
    """

    listen: str = ""
    address: str = ""
    authority: str = ""

    def __post_init__(self) -> None:
        """Refuse an address that new nodes could not use."""
        if self.listen:
            split_address(self.listen, "listen")
            split_address(self.address, "address")


@dataclass(frozen=True)
class StationEntry:
    """A station: its address for terminals, and the numbers of its terminals."""

    address: str
    terminals: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an address that terminals could not use."""
        split_address(self.address, "address")


@dataclass(frozen=True)
class CloudConfig(Config):
    """The whole configuration file; a journal longer than ``journal_bytes`` is replaced by a checkpoint."""

    learning: Learning
    stations: tuple[StationEntry, ...]
    resources: Resources = field(default_factory=Resources)
    waits: Waits = field(default_factory=Waits)
    limits: Limits = field(default_factory=Limits)
    enrolment: Enrolment = field(default_factory=Enrolment)
    journal_bytes: int = 1 << 26

    @property
    def result(self) -> Path:
        """Folder with the result of the last training, which operators can read while no cloud runs."""
        return self.state / "result"

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        split_address(self.node.listen, "node.listen")
        check_numbers(self, 1, "journal_bytes")
        if len(self.stations) != len(self.learning.tasks):
            raise ConfigError(
                f"{len(self.stations)} stations for {len(self.learning.tasks)} tasks: every task needs a station"
            )
        ids = [check_number(t, TERMINAL) for entry in self.stations for t in entry.terminals]
        if len(set(ids)) < len(ids):
            raise ConfigError("a terminal is under two stations: numbers are global, so list each terminal once")

    def check_files(self) -> None:
        """Refuse to start without the authority's key if the cloud should sign with it."""
        authority = self.enrolment.authority
        if authority and not (self.folder / authority / "ca.key").is_file():
            missing = f"there is no file {self.folder / authority / 'ca.key'}"
            raise ConfigError(f"enrolment.authority = {authority!r}: {missing}: put it there, or leave the line out")


read_cloud = partial(read, CloudConfig, CLOUD)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} = {value!r}: choose from {', '.join(choices)}{nearest(value, choices)}")
