"""Round zero: terminals send sums of their rows, and get a common scaling and the levels of their labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data import centring
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import Scaler, scalers
from rhfedmtl.engines.network import LabelCentring, Network
from rhfedmtl.maths.relationships import Models
from rhfedmtl.resources.events import Event, Placement, round_zero_events
from rhfedmtl.roles.message_sizes import round_zero_bytes
from rhfedmtl.training.settings import Settings


@dataclass(frozen=True, eq=False)
class Units:
    """Scaling of a run, which converts models between the units of the rounds and of the data.

    ``levels`` are the means subtracted from the labels of each station, and ``constant`` is the feature that stands for
    the intercept.
    """

    scalers: list[Scaler]
    levels: npt.NDArray[np.float64] | None
    constant: float

    def as_given(self, models: Models) -> Models:
        """Return models of the stations whose last number is the intercept itself, for the original labels."""
        return centring.with_intercepts(models, self.constant, self.levels)

    def as_learned(self, models: Models) -> Models:
        """Return models of the stations as rounds have them: undoes `as_given`."""
        return centring.without_intercepts(models, self.constant, self.levels)


def round_zero(
    federation: Federation,
    network: Network,
    method: Method,
    settings: Settings,
    layout: Placement,
    names: tuple[str, ...],
    *,
    private: bool,
    check: Callable[[list[Event]], None],
    charge: Callable[[Event], None],
) -> Units:
    """Scale the rows of all terminals; only the bytes of the sums are charged.

    ``check`` refuses events that the budget cannot pay, before any message; ``names`` are the names of the features.
    """
    channel, preparation = method.channel, federation.preparation
    among = channel.masked_among(layout.members)
    if preparation is not None and (among or private):
        preparation.refuse_disclosure("--masked" if among else "--privacy", means=private)
    features = network.shape[1] - method.intercept if settings.scale.startswith("standard") else 0
    labels = method.intercept and federation.kind == "regression"
    centred = network if labels and isinstance(network, LabelCentring) else None
    sizes = round_zero_bytes(
        features, labels=centred is not None, preparation=preparation, masked_among=among, channel=channel
    )
    events = round_zero_events(layout, *sizes)
    check(events)
    used = scalers(network.moments(), settings.scale, settings.scale_per_station, channel.moments_dtype, names)
    levels = None
    if centred is not None:
        levels = centring.levels(centred.labels())
        centred.centre(levels)
    for event in events:
        charge(event)
    network.scale(used)
    constant = used[0].constant(network.shape[1] - 1) if method.intercept else 1.0
    return Units(used, levels, constant)
