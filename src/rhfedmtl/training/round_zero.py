"""Round zero: terminals send sums of their rows, and get a common scaling and the levels of their labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data import centring
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.scaling import NO_MOMENTS, RowMap, Scaler, rounded, scalers, total
from rhfedmtl.engines.network import LabelCentring, Network
from rhfedmtl.features.base import PASSES, FloatArray, Statistics, at_edges, between_edges, normal_quantiles
from rhfedmtl.features.maps import Features
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
    n_columns: int,
    *,
    private: bool,
    earlier: list[Scaler] | None,
    check: Callable[[list[Event]], None],
    charge: Callable[[Event], None],
) -> Units:
    """Scale the rows of all terminals; only the bytes of the sums are charged.

    ``check`` refuses events that the budget cannot pay, before any message; ``names`` are the names of the features,
    and ``n_columns`` is their number. ``earlier`` are the scalers, if another run on the same rows has made them.
    """
    channel, preparation = method.channel, federation.preparation
    among = channel.masked_among(layout.members)
    if preparation is not None and (among or private):
        preparation.refuse_disclosure("--masked" if among else "--privacy", means=private)
    labels = method.intercept and federation.kind == "regression"
    centred = network if labels and isinstance(network, LabelCentring) else None
    sizes = round_zero_bytes(
        n_columns,
        scale=settings.scale,
        labels=centred is not None,
        preparation=preparation,
        masked_among=among,
        channel=channel,
        maps=method.features,
    )
    events = round_zero_events(layout, *sizes)
    check(events)
    used = earlier or agreed_scalers(network, (layout.n_tasks, n_columns), method, settings, names)
    levels = None
    if centred is not None:
        levels = centring.levels(centred.labels())
        centred.centre(levels)
    for event in events:
        charge(event)
    network.scale(used)
    constant = used[0].constant(network.shape[1] - 1) if method.intercept else 1.0
    return Units(used, levels, constant)


def agreed_scalers(
    network: Network, shape: tuple[int, int], method: Method, settings: Settings, names: Sequence[str]
) -> list[Scaler]:
    """Return the scaler of every station, from sums that the terminals send; ``shape`` is stations × columns."""
    kind = method.channel.moments_dtype
    if not method.features:
        return scalers(network.moments(), settings.scale, settings.scale_per_station, kind, names)
    mappings = row_maps(network, shape, method.features, settings, kind, names)
    standard = settings.scale.startswith("standard")
    moments = network.moments(mappings) if standard else [NO_MOMENTS] * shape[0]
    return scalers(moments, settings.scale, settings.scale_per_station, kind, (), mappings)


def row_maps(
    network: Network,
    shape: tuple[int, int],
    features: Features,
    settings: Settings,
    dtype: np.dtype[Any],
    names: Sequence[str],
) -> list[RowMap]:
    """Return the maps of every station's rows: rows are standardised or get norm 1, and quantiles come from counts.

    ``shape`` is stations × columns. Rows of norm 1 need no statistics: their quantiles are those of normal columns,
    which are public.
    """
    n_stations, n_columns = shape
    first = "unit" if settings.scale == "unit" else "standard"
    moments = network.moments() if first == "standard" else [NO_MOMENTS] * n_stations
    before = scalers(moments, first, settings.scale_per_station, dtype, names)
    public = rounded(normal_quantiles(n_columns, 1.0 if first == "standard" else 1.0 / math.sqrt(n_columns)), dtype)
    quantiles = [public if features.needs_quantiles else np.empty((n_columns, 0))] * len(before)
    if features.needs_quantiles and first == "standard":
        quantiles = _quantiles(network, features, before, public, settings, dtype)
    pairs = zip(before, quantiles, strict=True)
    return [RowMap(features, scaler, Statistics(found, settings.seed)) for scaler, found in pairs]


def _quantiles(
    network: Network,
    features: Features,
    before: list[Scaler],
    public: FloatArray,
    settings: Settings,
    dtype: np.dtype[Any],
) -> list[FloatArray]:
    """Return the quantiles of every station's columns, from passes of counts.

    The first pass counts rows up to the quantiles of normal columns, and each further pass up to edges between those so
    far. Means of columns that are 0 or 1 are counts, so terminals send moments, as for the scaling.
    """
    counts, width = features.counts, features.n_mapped(len(public))
    groups = len(before) if settings.scale_per_station else 1  # all stations have the same quantiles by default
    following = [public] * groups
    edges: list[FloatArray] = [public[:, :0]] * groups
    shares = edges
    for _ in range(PASSES):
        maps = [RowMap(counts, scaler, Statistics(following[b % groups])) for b, scaler in enumerate(before)]
        moments = network.moments(maps)
        moments = moments if settings.scale_per_station else [total(moments)]
        # Counts are whole numbers: rounding undoes the rounding of means, so masked sums give the same bits.
        counted = [np.rint(part.count * part.mean) / max(part.count, 1) for part in moments]
        rest = np.ones_like(public[width:])
        passed = [np.concatenate([part.reshape(width, -1), rest]) for part in counted]
        edges = [np.sort(np.concatenate(pair, axis=1), axis=1) for pair in zip(edges, following, strict=True)]
        shares = [np.sort(np.concatenate(pair, axis=1), axis=1) for pair in zip(shares, passed, strict=True)]
        following = [rounded(between_edges(at, share), dtype) for at, share in zip(edges, shares, strict=True)]
    found = [at_edges(at, share) for at, share in zip(edges, shares, strict=True)]
    return found if settings.scale_per_station else found * len(before)
