"""What an engine offers: base stations and their terminals, driven one BS iteration at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.maths.objective import Points
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.messages import Anchor, Report, StationSums

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Outcome(NamedTuple):
    """What came of one BS iteration: answers, factor and summed gain curve of every station."""

    answers: IntArray
    factor: Float64Array
    gains: Float64Array


@dataclass(frozen=True)
class Later:
    """An array that lies elsewhere, in pieces: ``fill`` writes it into whatever has its shape, piece by piece."""

    shape: tuple[int, ...]
    fill: Callable[[Float64Array], None]

    def array(self) -> Float64Array:
        """All of it in memory."""
        made = np.empty(self.shape)
        self.fill(made)
        return made


class State(NamedTuple):
    """All that the rounds so far have changed in a network; with the same data and settings it goes on to the bit.

    ``station`` and ``sizes`` are by terminal, ``alpha`` by row as the federation has them, arrived or not, with
    everything settled; the others are by station. Where all rows have arrived, ``sizes`` may be None. ``U`` is what
    `Method` calls so, ``center``, ``lam``, ``gradient`` (its work) and ``origin`` the anchor; ``residual`` is what each
    terminal keeps back of its updates, ``told`` are the models of the last orders, None where the channel rounds
    nothing.
    """

    round: int
    station: IntArray
    sizes: IntArray | None
    membership: IntArray
    U: Float64Array
    center: Float64Array
    lam: Float64Array
    gradient: BoolArray
    alpha: Float64Array | Later
    residual: Float64Array | None = None
    told: Float64Array | None = None
    origin: Float64Array | None = None


class Network(Protocol):
    """Base stations with their terminals, wherever they run."""

    shape: tuple[int, int]

    @property
    def station(self) -> IntArray:
        """Station of every terminal."""

    @property
    def sizes(self) -> IntArray:
        """Samples of every terminal."""

    @property
    def message_sizes(self) -> MessageSizes:
        """Bytes of the messages of a round."""

    @property
    def models(self) -> Float64Array:
        """What orders start from, of every station."""

    def assign(self, anchors: list[Anchor]) -> None:
        """Carry anchors from the cloud to the stations."""

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """One BS iteration: terminals with steps > 0 work, the updates of those that arrive are merged."""

    def reports(self, cloud_round: int) -> list[Report]:
        """Carry the stations' reports to the cloud."""

    def sums(self, points: Points) -> list[StationSums | None]:
        """Sums of every station at each of the points, for the certificate."""

    def moments(self) -> list[Moments]:
        """Round zero: moments of the training rows of every station."""

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: let every terminal scale its rows as its station says."""

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal, with its duals, under another station (−1: out of the network; its duals stay its own)."""

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive."""


@runtime_checkable
class LabelCentring(Protocol):
    """A network whose stations can centre the labels of a regression in round zero."""

    def labels(self) -> Float64Array:
        """Label sums of every station (`data.centring`)."""

    def centre(self, levels: Float64Array) -> None:
        """Let every terminal subtract the level of its station from its labels."""


@runtime_checkable
class ShareSums(Protocol):
    """A network that can add up what its terminals have in their stations' sums: what a private certificate needs."""

    def station_shares(self) -> Float64Array:
        """Σ_t X_tᵀα_t of every station, without the noise that its U has."""


class NoisedTerms(NamedTuple):
    """Σ_i [L(z_i) + L*(−α_i) + α_i z_i] of every station as of a round, in noise; and over how many samples."""

    round: int
    terms: Float64Array
    n_samples: Float64Array


@runtime_checkable
class TellsNoised(Protocol):
    """A network whose stations, or terminals, hide themselves what a private certificate needs."""

    def noised_terms(self, models: Float64Array, deviation: Float64Array) -> NoisedTerms:
        """Sums of every station under its model, in noise of these deviations."""


@runtime_checkable
class Excludes(Protocol):
    """A network of real stations, which goes on without a station whose numbers cannot be true."""

    @property
    def excluded(self) -> dict[int, str]:
        """Stations that take no part any more, with the reason."""


@runtime_checkable
class Keeping(Protocol):
    """A network that can be put away and taken up again: what checkpoints need."""

    def state(self) -> State:
        """All that the rounds so far have changed."""

    def resume(self, state: State) -> None:
        """Go on from what `state` gave for the same data, after round zero and before anything else."""
