"""The interface of an engine: base stations and their terminals, driven BS iteration by BS iteration.

`training` calls a `Network`; engines and deployments implement it. The other protocols are optional abilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rhfedmtl.data.scaling import Moments, RowMap, Scaler
from rhfedmtl.maths.objective import Points
from rhfedmtl.resources.sizes import MessageSizes
from rhfedmtl.roles.messages import Anchor, Report, StationSums

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Outcome(NamedTuple):
    """Result of a BS iteration: answers, factor and summed gain curve of every station."""

    answers: IntArray
    factor: Float64Array
    gains: Float64Array


@dataclass(frozen=True)
class Later:
    """An array that is stored elsewhere; ``fill`` writes it piece by piece into an array of its shape."""

    shape: tuple[int, ...]
    fill: Callable[[Float64Array], None]

    def array(self) -> Float64Array:
        """Return the complete array in memory."""
        array = np.empty(self.shape)
        self.fill(array)
        return array


class State(NamedTuple):
    """State of a network: all that the rounds so far have changed. A network with the same data continues to the bit.

    Attributes
    ----------
    round : int
        Last round.
    station, sizes : IntArray
        Station and samples of every terminal. ``sizes`` may be left out if all rows have arrived.
    membership : IntArray
        Number of changes of members, by station.
    U : array
        The sums that `Method` calls U, by station.
    center, lam, gradient, origin : arrays
        The anchors: c_b, λ_b, True for gradient work, and the v_b that the anchor belongs to.
    alpha : array or Later
        Dual variables of all rows of the federation, arrived or not, with nothing pending.
    residual : array, optional
        Residual of each terminal, if the channel rounds updates.
    told : array, optional
        Models of the last orders, if the channel rounds models.
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
    """Base stations with their terminals, in this process or elsewhere."""

    shape: tuple[int, int]

    @property
    def station(self) -> IntArray:
        """Station of every terminal."""

    @property
    def sizes(self) -> IntArray:
        """Samples of every terminal."""

    @property
    def message_sizes(self) -> MessageSizes:
        """Sizes of the messages of a round."""

    @property
    def models(self) -> Float64Array:
        """Models of the orders, of every station."""

    def assign(self, anchors: list[Anchor]) -> None:
        """Pass anchors from the cloud to the stations."""

    def round(self, number: int, local_steps: IntArray, arrives: BoolArray | None = None) -> Outcome:
        """Run a BS iteration: terminals with steps > 0 work, and the updates that arrive are merged."""

    def reports(self, cloud_round: int) -> list[Report]:
        """Return the stations' reports to the cloud."""

    def sums(self, points: Points) -> list[StationSums | None]:
        """Return the sums of every station at each of the points, for the certificate."""

    def moments(self, mappings: Sequence[RowMap] | None = None) -> list[Moments]:
        """Round zero: return the moments of the training rows of every station, as its mapping makes them."""

    def scale(self, scalers: list[Scaler]) -> None:
        """Round zero: let every terminal scale its rows with the scaler of its station."""

    def move(self, terminal: int, station: int) -> None:
        """Move a terminal with its dual variables under another station (−1: no station)."""

    def grow(self, terminal: int, n_rows: int) -> None:
        """Let the next rows of a terminal arrive."""


@runtime_checkable
class LabelCentring(Protocol):
    """A network whose stations can centre the labels of a regression in round zero."""

    def labels(self) -> Float64Array:
        """Return the label sums of every station (`data.centring`)."""

    def centre(self, levels: Float64Array) -> None:
        """Let every terminal subtract the level of its station from its labels."""


@runtime_checkable
class ShareSums(Protocol):
    """A network that can add up the shares of its terminals, for a private certificate."""

    def station_shares(self) -> Float64Array:
        """Return Σ_t X_tᵀα_t of every station, without the noise in its U."""


class NoisedTerms(NamedTuple):
    """Σ_i [L(z_i) + L*(−α_i) + α_i z_i] of every station as of a round, with noise, and the number of samples."""

    round: int
    terms: Float64Array
    n_samples: Float64Array


@runtime_checkable
class TellsNoised(Protocol):
    """A network whose stations or terminals add the noise of a private certificate themselves."""

    def noised_terms(self, models: Float64Array, deviation: Float64Array) -> NoisedTerms:
        """Return the sums of every station under its model, with noise of these standard deviations."""


@runtime_checkable
class Excludes(Protocol):
    """A network of real stations, which continues without a station that sends impossible numbers."""

    @property
    def excluded(self) -> dict[int, str]:
        """Excluded stations, with the reason."""


@runtime_checkable
class Keeping(Protocol):
    """A network that can be written to a checkpoint."""

    def state(self) -> State:
        """Return all that the rounds so far have changed."""

    def resume(self, state: State) -> None:
        """Continue from a `state` of the same data; call it after round zero and before the first round."""
