"""Rounds and certificates of which a station sees sums alone: what goes through masks, and what is merged."""

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
    WIDE,
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
from rhfedmtl.roles.station import BaseStation, Merged

SumRequest = WorkOrder | Probe | RowProbe | ShareProbe | Trial
"""What a station asks for that is told under masks."""


def content_of(asked: SumRequest) -> bytes:
    """What all are asked alike: masks rest on it, so that unequal orders do not cancel."""
    if isinstance(asked, WorkOrder):
        head, arrays = struct.pack("<cQd", b"o", asked.round, asked.scale) + asked.work.encode(), [asked.model]
    elif isinstance(asked, RowProbe):
        head, arrays = struct.pack("<c?", b"z", asked.labels), [asked.about]
    elif isinstance(asked, ShareProbe):
        head, arrays = struct.pack("<cQ", b"s", asked.number), []
    elif isinstance(asked, Trial):
        head, arrays = struct.pack("<cQ", b"t", asked.number), [asked.model]
    else:
        head, arrays = struct.pack("<cQ?", b"p", asked.number, asked.gradient), [asked.models, asked.points]
    shapes = repr([each.shape for each in arrays]).encode()
    return hashlib.sha256(b"".join([head, shapes, *(each.tobytes() for each in arrays)])).digest()


def seat_of(asked: SumRequest, rows: int) -> bytes:
    """What one terminal is asked that others are not, and how many rows it has."""
    if isinstance(asked, RowProbe | Trial):
        return seat(0, rows, 0)
    return seat(asked.verdict.incarnation, rows, asked.local_steps if isinstance(asked, WorkOrder) else 0)


def words_of(answer: Update | Sums | Vector, channel: FixedPoint, summed: Any = slice(0)) -> Words:
    """An answer as words: updates in the steps of the channel, rows and shares in three words a number, else in finer.

    ``summed`` says which numbers of a line search are added up.
    """
    if isinstance(answer, np.ndarray):
        return round_zero.to_words(answer)
    if isinstance(answer, Update):
        parts = [(answer.delta, channel.grid_step), (answer.gains, FINE), (answer.profile[summed], FINE)]
    else:
        kept = np.empty(0) if answer.residual is None else answer.residual
        parts = [(part, FINE) for part in (answer.losses, answer.dual, answer.gradient, kept)]
    return np.concatenate([masks.to_words(values, step) for values, step in parts])


def noise_for(words: Words, asked: WorkOrder | Probe, channel: NoisedSums, secret: bytes) -> Words:
    """A terminal's part of the noise on what it answers: the same again for the same answer, as nothing new is told.

    It rests on the answer itself: whatever else was asked meanwhile, no answer is hidden in another's noise.
    """
    hidden, part, step = len(words), channel.part, channel.grid_step
    if isinstance(asked, WorkOrder):
        hidden, of = len(words) - CURVE, f"round {asked.round} of {asked.verdict.incarnation}"
    else:
        part, step = (asked.noise or 0.0) / math.sqrt(channel.least), FINE
        of = f"certificate in {asked.noise}"
    seed = masks.derive(secret, of, hashlib.sha256(words.tobytes()).digest())
    noise = masks.to_words(part * normal_from(masks.mask(seed, 2 * hidden)), step)
    return np.concatenate([noise, np.zeros(len(words) - hidden, dtype=np.uint64)])


def _numbers_of(words: Words, shapes: Sequence[tuple[int, ...]], steps: Sequence[float]) -> list[Vector]:
    """The parts of a sum of words, by their shapes and steps."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    pieces = np.split(words, ends[:-1])
    return [masks.to_numbers(w, step).reshape(shape) for w, shape, step in zip(pieces, shapes, steps, strict=True)]


class SummingStation(BaseStation):
    """A station that learns sums over its terminals, and nothing of one.

    It holds no shares: where some go, together, the others tell the sum of theirs. It checks sums by the bounds of all
    who are in them: where one cannot be, the round is void, and those who are in it are named together.
    """

    @property
    def channel(self) -> MaskedSums:
        """How numbers become words."""
        assert isinstance(self.method.channel, MaskedSums)
        return self.method.channel

    @property
    def update_words(self) -> int:
        """Words of an update."""
        return int(np.prod(self.shape)) + CURVE + int(self.method.masked_profile.sum())

    @property
    def sums_words(self) -> int:
        """Words of what the last probe asks for."""
        return sum(int(np.prod(shape)) for shape in self._probed)

    def close_void(self) -> Merged:
        """Close a round of which no sum came out, or none that can be."""
        self.phase = self._after("close round")
        self._updates, self._orders = {}, {}
        self._probe += 1
        return Merged(self.round)

    def close_sum(self, answered: Iterable[int], words: Words) -> Merged:
        """Merge a sum of updates; refused, with the round still open, where it cannot be."""
        summed = self.method.masked_profile
        shapes = self.shape, (CURVE,), (int(summed.sum()),)
        delta, gains, found = _numbers_of(words, shapes, (self.channel.grid_step, FINE, FINE))
        profile = np.full(len(summed), 1.0 if self.method.loss.quadratic else -np.inf)
        profile[summed] = found
        arrived = sorted(self._asked & set(answered))
        self._check(arrived, lambda bounds: self._check_sum(bounds, delta, gains, profile))
        void = self.close_void()
        if len(arrived) < self.channel.least:
            return void
        delta = self._received(delta, len(arrived))
        factor = self._factor(arrived, delta, profile)
        if factor is None:
            return void
        self.U = self.method.merged(self.U, delta, factor, self._anchored().center)
        for t in arrived:
            self.members[t] = replace(self.members[t], applied_round=self.round, applied_factor=factor)
        return Merged(self.round, tuple(arrived), factor, gains)

    def told_sums(self, words: Words, arrived: Iterable[int]) -> StationSums:
        """What the last probe asked for, of these members together; refused where it cannot be."""
        self.phase = self._after(Sums)
        parts = _numbers_of(words, self._probed, (FINE,) * len(self._probed))
        found, (models, points) = self._told_sums(*parts), self._probed_at
        told = Sums(-1, self._probe, found.losses, found.dual, found.gradient, found.residual)
        if self._probe_noise is not None:
            spread = self._probe_noise * math.sqrt(len(self.members) / self.channel.least)
            self._check(arrived, lambda bounds: bounds.check_term(told, models[0], spread))
            found = replace(found, losses=found.losses + self._worst(arrived))
        else:
            columns = models.shape[1]
            self._check(
                self.members,
                lambda bounds: replace(bounds, columns=columns).check_sums(told, models, points, self.U),
            )
        return found

    @property
    def share_words(self) -> int:
        """Words of a share."""
        return WIDE * int(np.prod(self.shape))

    def share_probes(self, stay: Iterable[int]) -> list[ShareProbe]:
        """Ask for the sum of what the station has of those who stay."""
        self.phase = self._after(Probe)
        self._probe += 1
        return [ShareProbe(t, self._probe, self.members[t].verdict(self.round)) for t in sorted(stay)]

    def keep(self, stay: Iterable[int], words: Words) -> list[Goodbye]:
        """Let all others go: U_b is, from now on, the sum that those who stay have told; refused where it cannot be."""
        self.phase = self._after(Leave)
        kept, going = round_zero.to_numbers(words).reshape(self.shape), sorted(self.members.keys() - set(stay))
        for terminals, share in ((stay, kept), (going, self.U - kept)):
            self._check(terminals, partial(Bounds.check_share, share=share))
        goodbyes = [Goodbye(t, self.members[t].incarnation) for t in going]
        for t in going:
            self._drop(t, np.zeros(self.shape))
        self.U = kept
        return goodbyes

    def told_rows(self, asked: RowProbe, words: Words) -> Vector:
        """A sum of round zero; refused where it cannot be of as many rows as joined, or of any."""
        told = round_zero.to_numbers(words)
        rows = self.n_samples if not asked.about.size and not asked.labels else None
        if (rows is not None and told[0] != rows) or (told if asked.about.size else told[:1]).min() < 0.0:
            names = ", ".join(map(str, sorted(self.members)))
            raise PeerError(f"terminals {names} together told sums of {told[0]:g} and more, where {rows} rows joined")
        return told

    def _check_sum(self, bounds: Bounds, delta: Vector, gains: Vector, profile: Vector) -> None:
        if self.channel.noised:
            spread = math.sqrt(float(self.channel.noise_variance(len(self._asked))) * delta.size)
            bounds = replace(bounds, weight=bounds.weight + FAR * spread, largest=bounds.largest + FAR * spread)
        order = max(self._orders.values(), key=lambda order: order.local_steps)
        update = Update(self.round, -1, delta, gains, profile)
        bounds.check_update(update, np.zeros(self.shape), order)

    def _check(self, terminals: Iterable[int], check: Callable[[Bounds], None]) -> None:
        """Hold what these told together against what they can say together."""
        each = [self._bounds(t, self.members[t]) for t in terminals]
        if not each:
            return
        weight, largest = (sum(getattr(one, name) for one in each) for name in ("weight", "largest"))
        try:
            check(replace(each[0], terminal=-1, weight=weight, largest=largest, rows=0))
        except ImplausibleError as error:
            names = ", ".join(str(one.terminal) for one in each)
            raise PeerError(f"terminals {names} together told {error.reason}") from None
