"""Rounds and certificates of a station that sees only sums over its terminals.

A terminal turns its answer into words (`words_of`) and masks them (`roles.secure.masking`). The station adds the masked
words up, and `SummingStation` continues with the sum. It never sees the unmasked answer of a single terminal.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rhfedmtl.errors import PeerError
from rhfedmtl.maths.kernels.rounds import CURVE
from rhfedmtl.roles import round_zero
from rhfedmtl.roles.channel import FINE, FixedPoint, MaskedSums, NoisedSums, normal_from
from rhfedmtl.roles.messages import (
    WIDE_FIELDS,
    Goodbye,
    Leave,
    Probe,
    RowProbe,
    ShareProbe,
    StationSums,
    Sums,
    Trial,
    Update,
    Vector,
    WorkOrder,
)
from rhfedmtl.roles.plausibility import FAR, Bounds, ImplausibleError
from rhfedmtl.roles.secure import masks
from rhfedmtl.roles.secure.masking import seat
from rhfedmtl.roles.secure.masks import Words
from rhfedmtl.roles.station import BaseStation, Merged, noise_address

SumRequest = WorkOrder | Probe | RowProbe | ShareProbe | Trial
"""Requests of a station that terminals answer under masks."""


def content_of(request: SumRequest) -> bytes:
    """Return a digest of the part of a request that is equal for all terminals.

    Masks depend on it, so masks of terminals with different requests do not cancel.
    """
    if isinstance(request, WorkOrder):
        head, arrays = struct.pack("<cQd", b"o", request.round, request.scale) + request.work.encode(), [request.model]
    elif isinstance(request, RowProbe):
        head, arrays = struct.pack("<c?", b"z", request.labels), [request.about]
        if (mapping := request.mapping) is not None:
            head += struct.pack("<?Q", mapping.unit, mapping.seed) + mapping.features
            arrays += [mapping.mean, mapping.scale, mapping.quantiles]
    elif isinstance(request, ShareProbe):
        head, arrays = struct.pack("<cQ", b"s", request.number), []
    elif isinstance(request, Trial):
        head, arrays = struct.pack("<cQ", b"t", request.number), [request.model]
    else:
        head, arrays = struct.pack("<cQ?", b"p", request.number, request.gradient), [request.models, request.points]
    shapes = repr([array.shape for array in arrays]).encode()
    return hashlib.sha256(b"".join([head, shapes, *(array.tobytes() for array in arrays)])).digest()


def seat_of(request: SumRequest, rows: int) -> bytes:
    """Return the part of a request that differs between terminals, with the terminal's number of rows."""
    if isinstance(request, RowProbe | Trial):
        return seat(0, rows, 0)
    return seat(request.verdict.incarnation, rows, request.local_steps if isinstance(request, WorkOrder) else 0)


def words_of(answer: Update | Sums | Vector, channel: FixedPoint, summed: Any = slice(0)) -> Words:
    """Return an answer as words that can be masked and added up.

    An update is in steps of the channel. Rows and shares take three words a number. Other numbers are in finer steps.
    ``summed`` selects the numbers of the line-search profile that are added up.
    """
    if isinstance(answer, np.ndarray):
        return round_zero.to_words(answer)
    if isinstance(answer, Update):
        parts = [(answer.delta, channel.grid_step), (answer.gains, FINE), (answer.profile[summed], FINE)]
    else:
        residual = np.empty(0) if answer.residual is None else answer.residual
        parts = [(part, FINE) for part in (answer.losses, answer.dual, answer.gradient, residual)]
    return np.concatenate([masks.to_words(values, step) for values, step in parts])


def noise_for(words: Words, request: WorkOrder | Probe, channel: NoisedSums, secret: bytes) -> Words:
    """Return a terminal's part of the noise on its answer.

    The noise is derived from the secret, the purpose of the request, and the answer itself. So the same answer always
    gets the same noise, and repeating it reveals nothing new. Two different answers never get the same noise, whatever
    the station has requested in between.
    """
    hidden, part, step = len(words), channel.part, channel.grid_step
    if isinstance(request, WorkOrder):
        hidden, purpose = len(words) - CURVE, f"round {request.round} of {request.verdict.incarnation}"
    else:
        part, step = (request.noise or 0.0) / math.sqrt(channel.least), FINE
        purpose = f"certificate in {request.noise}"
    seed = masks.derive(secret, purpose, hashlib.sha256(words.tobytes()).digest())
    noise = masks.to_words(part * normal_from(masks.mask(seed, 2 * hidden)), step)
    return np.concatenate([noise, np.zeros(len(words) - hidden, dtype=np.uint64)])


def _numbers_of(words: Words, shapes: Sequence[tuple[int, ...]], steps: Sequence[float]) -> list[Vector]:
    """Return the arrays with these shapes and steps that a sum of words stands for."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    pieces = np.split(words, ends[:-1])
    return [masks.to_numbers(w, step).reshape(shape) for w, shape, step in zip(pieces, shapes, steps, strict=True)]


class SummingStation(BaseStation):
    """A station that learns sums over its terminals, and nothing about a single terminal.

    It does not know the terminals' current shares. When some leave together, the others send the sum of their shares.
    It checks a sum with the added bounds of all terminals in it. If the sum is impossible, the round is void, and the
    error names all of these terminals.
    """

    @property
    def channel(self) -> MaskedSums:
        """Channel that turns numbers into words."""
        assert isinstance(self.method.channel, MaskedSums)
        return self.method.channel

    @property
    def update_words(self) -> int:
        """Words of an update."""
        return int(np.prod(self.shape)) + CURVE + int(self.method.masked_profile.sum())

    @property
    def sums_words(self) -> int:
        """Words of an answer to the last probe."""
        return sum(int(np.prod(shape)) for shape in self._probed.shapes)

    def close_void(self) -> Merged:
        """Close a round without a valid sum."""
        self._states.enter("close round")
        self._updates, self._orders = {}, {}
        self.roster.probe += 1
        return Merged(self.round)

    def close_sum(self, answered: Iterable[int], words: Words) -> Merged:
        """Merge a sum of updates; raise `PeerError`, and leave the round open, if the sum is impossible."""
        summed = self.method.masked_profile
        shapes = self.shape, (CURVE,), (int(summed.sum()),)
        delta, gains, profile_sums = _numbers_of(words, shapes, (self.channel.grid_step, FINE, FINE))
        profile = np.full(len(summed), 1.0 if self.method.loss.quadratic else -np.inf)
        profile[summed] = profile_sums
        terminals = sorted(self._orders.keys() & set(answered))

        def check(bounds: Bounds) -> None:
            order = max(self._orders.values(), key=lambda order: order.local_steps)
            if self.channel.noised:  # noise makes the sum longer than the terminals' parts can be
                variance = float(self.channel.noise_variance(len(self._orders)))
                longer = FAR * math.sqrt(variance * delta.size)
                bounds = replace(bounds, weight=bounds.weight + longer, largest=bounds.largest + longer)
            bounds.check_update(Update(self.round, -1, delta, gains, profile), np.zeros(self.shape), order)

        self._check(terminals, check)
        void = self.close_void()
        if len(terminals) < self.channel.least:
            return void
        address = noise_address(self._seed, self.round, self.task)
        delta = self.channel.received(delta, address, len(terminals))
        factor = self._factor(terminals, delta, profile)
        if factor is None:
            return void
        self.roster.U = self.method.merged(self.U, delta, factor, self._anchored().center)
        for t in terminals:
            self.members[t] = replace(self.members[t], applied_round=self.round, applied_factor=factor)
        return Merged(self.round, tuple(terminals), factor, gains)

    def masked_sums(self, words: Words, terminals: Iterable[int]) -> StationSums:
        """Return the sum of these terminals' answers to the last probe; raise `PeerError` if it is impossible."""
        self._states.enter(Sums)
        probed = self._probed
        result = self._station_sums(*_numbers_of(words, probed.shapes, (FINE,) * len(probed.shapes)))
        sums = Sums(-1, self.roster.probe, result.losses, result.dual, result.gradient, result.residual)
        if probed.noise is not None:
            spread = probed.noise * math.sqrt(len(self.members) / self.channel.least)
            self._check(terminals, lambda bounds: bounds.check_term(sums, probed.models[0], spread))
            missing = self.roster.missing_terms(set(terminals), probed.models[0])
            return replace(result, losses=result.losses + missing)
        columns = probed.models.shape[1]
        self._check(
            self.members,
            lambda bounds: replace(bounds, columns=columns).check_sums(sums, probed.models, probed.points, self.U),
        )
        return result

    @property
    def share_words(self) -> int:
        """Words of a share."""
        return WIDE_FIELDS * int(np.prod(self.shape))

    def share_probes(self, staying: Iterable[int]) -> list[ShareProbe]:
        """Return probes that request the sum of the received shares, without residuals, of the terminals that stay."""
        self._states.enter(Probe)
        self.roster.probe += 1
        number = self.roster.probe
        return [ShareProbe(t, number, self.members[t].verdict(self.round)) for t in sorted(staying)]

    def keep(self, staying: Iterable[int], words: Words) -> list[Goodbye]:
        """Let all other terminals leave: U_b becomes the sum of the shares that the staying terminals sent.

        Raise `PeerError` if one of the two sums is impossible.
        """
        self._states.enter(Leave)
        sum_of_staying = round_zero.to_numbers(words).reshape(self.shape)
        leaving = sorted(self.members.keys() - set(staying))
        for terminals, share in ((staying, sum_of_staying), (leaving, self.U - sum_of_staying)):
            self._check(terminals, partial(Bounds.check_share, share=share))
        goodbyes = [Goodbye(t, self.members[t].incarnation) for t in leaving]
        for t in leaving:
            self.roster.drop(t, np.zeros(self.shape))
        self.roster.U = sum_of_staying
        return goodbyes

    def row_sums(self, request: RowProbe, words: Words) -> Vector:
        """Return a sum of round zero.

        Raise `PeerError` if it counts another number of rows than have joined, or if a weight or a sum of squares is
        negative.
        """
        numbers = round_zero.to_numbers(words)
        rows = self.n_samples if not request.about.size and not request.labels else None
        if (rows is not None and numbers[0] != rows) or (numbers if request.about.size else numbers[:1]).min() < 0.0:
            names = ", ".join(map(str, sorted(self.members)))
            raise PeerError(
                f"terminals {names} together told sums of {numbers[0]:g} and more, where {rows} rows joined"
            )
        return numbers

    def _check(self, terminals: Iterable[int], check: Callable[[Bounds], None]) -> None:
        """Check a sum with the added bounds of these terminals."""
        bounds = [self.roster.bounds(t) for t in terminals]
        if not bounds:
            return
        weight, largest = (sum(getattr(part, name) for part in bounds) for name in ("weight", "largest"))
        try:
            check(replace(bounds[0], terminal=-1, weight=weight, largest=largest, rows=0))
        except ImplausibleError as error:
            names = ", ".join(str(part.terminal) for part in bounds)
            raise PeerError(f"terminals {names} together told {error.reason}") from None
