"""Sizes of messages in bytes, for callers that do not make the messages.

Policies plan with them, and batched engines charge them. A test compares them with the sizes of real messages.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rhfedmtl.algorithms.method import Channel
from rhfedmtl.data.centring import LABEL_NUMBERS
from rhfedmtl.data.preparation import Preparation
from rhfedmtl.features.base import LEVELS, PASSES
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.resources.sizes import CertificateSizes, MessageSizes, framed
from rhfedmtl.roles import messages
from rhfedmtl.roles.encoding import INTEGER, NUMBER, delimited, model
from rhfedmtl.roles.messages import EMPTY, ENVELOPE, SEAT, WIDE_FIELDS, field_bytes, size_of

IDENTITY, NO_MAPS = Channel(), Features()
DENSE = 50
"""Neighbours of a terminal in masked sums over small groups (`roles.secure.masking`); a small station uses all."""
SECRET_SHARE = 16
"""Bytes of a share of a secret."""


def mask_reach(group: int) -> int:
    """Return the number of neighbours on each side of a terminal, on a ring with groups of this size.

    The reach is large enough that two members of a group have most neighbours in common: of two disjoint sets of
    terminals, the first cannot hold enough shares of a member while the second holds enough shares of another member.
    """
    return max(DENSE // 2, 3 * group // 2)


def masking_bytes(terminals: int, smallest: int) -> tuple[int, int]:
    """Return the bytes that a masked round adds for a terminal, down and up, besides its order and its words.

    Partners go with the order. The deal for the next slot goes with the words.
    """
    if not terminals:
        return 0, 0
    largest = -(-terminals // max(terminals // smallest, 1))
    near, members = min(terminals - 1, 2 * mask_reach(largest)), field_bytes(bytes(4 + -(-terminals // 8)))
    shares = field_bytes(bytes(2 * SECRET_SHARE * near))
    partners = delimited(INTEGER + members + field_bytes(bytes(SEAT * near)) + shares)
    unmask = framed(ENVELOPE + delimited(INTEGER + members))
    deal = delimited(2 * INTEGER + shares + field_bytes(bytes(SECRET_SHARE * near)))
    opened = framed(ENVELOPE + delimited(2 * INTEGER + field_bytes(bytes(SECRET_SHARE * (near + 1)))))
    return partners + unmask, deal + opened


@cache
def message_sizes(
    shape: tuple[int, int],
    shared_rows: int,
    profile_length: int,
    channel: Channel = IDENTITY,
    masked_among: int = 0,
) -> MessageSizes:
    """Return the sizes of the messages of a round.

    Parameters
    ----------
    shape : tuple[int, int]
        Rows × features of orders and updates.
    shared_rows : int
        Rows that travel between station and cloud.
    profile_length : int
        Numbers in the profile of an update.
    channel : Channel
        Encoding of updates, models and reports.
    masked_among : int
        Terminals of the largest station if sums are masked, else 0.
    """
    down, up = masking_bytes(masked_among, channel.least)
    w, shared = np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (shared_rows, shape[1]))
    gains, profile = np.broadcast_to(0.0, CURVE), np.broadcast_to(0.0, profile_length)
    request, result = 2 * delimited(0) + INTEGER + NUMBER, INTEGER + 2 * NUMBER + field_bytes(gains)
    order = messages.WorkOrder(0, 0, w, 1.0, 0, messages.Verdict(), channel.model_dtype)
    anchor, name = messages.Anchor(0, 0, shared, 1.0, channel.model_dtype), model(shared.shape)
    return MessageSizes(
        order.n_bytes + down,
        messages.Update(0, 0, w, gains, profile, channel.dtype).n_bytes + up,
        anchor.n_bytes,
        messages.Report(0, 0, 0, shared, 0, 0, channel.report_dtype).n_bytes,
        framed(ENVELOPE + delimited(request)),
        framed(ENVELOPE + delimited(result)),
        3,
        delimited(3 * INTEGER + 2 * NUMBER + 6),
        size_of(order, model=model(shape)) + down,
        messages.Update(0, 0, w, gains, profile, channel.for_gradients.dtype).n_bytes + up,
        size_of(anchor, center=name, origin=name),
    )


@cache
def certificate_sizes(
    shape: tuple[int, int],
    n_models: int,
    n_points: int,
    dual_length: int,
    channel: Channel,
    *,
    gradient: bool = False,
    residual: bool = False,
    known: int = 0,
    masked_among: int = 0,
) -> CertificateSizes:
    """Return the sizes of the messages of a certificate.

    It evaluates ``n_points`` combinations of ``n_models`` models, and terminals know ``known`` of the models. A station
    also measures the test metrics of a combination.
    """
    down, up = masking_bytes(masked_among, channel.least)
    residuals = np.broadcast_to(0.0, 1 + n_models) if residual else None
    matrix, models = np.broadcast_to(0.0, shape), np.broadcast_to(0.0, (n_models, *shape))
    points, losses, dual = (np.broadcast_to(0.0, n) for n in ((n_points, n_models), n_points, dual_length))
    slope = matrix if gradient else np.empty(0)
    sent = (n_models - known) * model(shape, channel.model_dtype) + known * model(shape)
    trial = framed(ENVELOPE + delimited(model(shape) + n_models * NUMBER))
    metrics = framed(ENVELOPE + 4 * delimited(25))
    return CertificateSizes(
        size_of(messages.Probe(0, 0, models, points, gradient, messages.Verdict()), models=sent) + down,
        messages.Sums(0, 0, losses, dual, slope, residuals).n_bytes + up,
        framed(ENVELOPE + delimited(sent + field_bytes(points))) + trial,
        messages.StationSums(0, 0, losses, dual, slope, 0, 0, residuals).n_bytes + metrics,
    )


def round_zero_bytes(
    n_features: int,
    *,
    scale: str = "standard",
    labels: bool = False,
    preparation: Preparation | None = None,
    masked_among: int = 0,
    channel: Channel = IDENTITY,
    maps: Features = NO_MAPS,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the bytes up and down of a terminal, and of a station, in round zero.

    They cover feature maps, the scaling of features, the levels of labels, and the columns of a table. Every node is
    charged for the whole vocabulary, the most that a terminal can send. If sums are masked, terminals send moments,
    label sums, and counts and sums of columns under masks.
    """
    kind, standard = channel.moments_dtype, scale.startswith("standard")
    surveys, mapping = _surveys(n_features, scale, maps, kind)
    requests, reports = [messages.MomentsRequest(form).n_bytes for _, form in surveys], []
    columns: list[messages.Message] = []
    answers: list[messages.Message] = []
    for width, _ in surveys:
        numbers = np.broadcast_to(0.0, width)
        reports.append(messages.MomentsReport(0, 0, numbers, numbers, kind).n_bytes)
    if standard or maps:
        scaled = np.broadcast_to(0.0, maps.columns(n_features) if standard else 0)
        answers.append(messages.Scaling(scaled, scaled, True, kind, mapping))
    # Each masked sum: its mapping, the numbers of the mean that it is about, and its own numbers.
    sums = [(form, *size) for width, form in surveys for size in ((0, 1 + width), (width, width))]
    if preparation is not None:
        zeros, words = np.zeros(len(preparation.columns)), preparation.vocabulary
        columns.append(messages.ColumnsReport(0, zeros, zeros, words))
        answers.append(messages.ColumnsAgreed(zeros, zeros, words))
        requests.append(EMPTY)
    if labels:
        reports.append(messages.LabelsReport(0, np.zeros(LABEL_NUMBERS)).n_bytes)
        answers.append(messages.Centring(0.0))
        requests.append(EMPTY)
        sums += [(None, 0, 2), (None, 1, 1)]
    column_bytes, down = (sum(message.n_bytes for message in part) for part in (columns, answers))
    up = column_bytes + sum(reports) + len(answers) * EMPTY
    station = up, down + sum(requests)
    if not masked_among:
        return station, station
    if preparation is not None:
        sums.append((None, 0, 2 * len(preparation.columns)))
    masks_down, masks_up = masking_bytes(masked_among, channel.least)
    terminal_up = terminal_down = 0
    for form, about, width in sums:
        words_up = framed(ENVELOPE + delimited(2 * INTEGER + delimited(8 * WIDE_FIELDS * width)))
        terminal_up += words_up + masks_up
        terminal_down += messages.RowProbe(False, np.broadcast_to(0.0, about), form).n_bytes + masks_down
    return (terminal_up, down + terminal_down), station


Mapping = messages.FeatureMapping | None


def _surveys(
    n_features: int, scale: str, maps: Features, kind: np.dtype[Any]
) -> tuple[list[tuple[int, Mapping]], Mapping]:
    """Return the columns and the mapping of each request for moments, in their order, and the mapping of the rows."""
    standard, first = scale.startswith("standard"), scale != "unit"
    surveys: list[tuple[int, Mapping]] = [(n_features, None)] if standard or (maps and first) else []
    if not maps:
        return surveys, None
    levels = len(LEVELS) if maps.needs_quantiles else 0
    means, quantiles = np.broadcast_to(0.0, n_features * first), np.broadcast_to(0.0, (n_features, levels))
    mapping, counts = (
        messages.FeatureMapping(text.encode(), means, means, not first, quantiles, 0, kind)
        for text in (maps.text, maps.counts.text)
    )
    if first and levels:
        surveys += [(maps.n_mapped(n_features) * levels, counts)] * PASSES
    if standard:
        surveys.append((maps.columns(n_features), mapping))
    return surveys, mapping
