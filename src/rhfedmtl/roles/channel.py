"""What happens to an update on its way from a terminal to its station: nothing, clipping, rounding; and to the sum.

A channel takes the updates of any number of terminals, so that one terminal in a deployment and a million in a
simulation send the same numbers, to the bit. It keeps U_b tied to the dual variables (MATHS §11):

* **Clipping** is a factor on Δα_t, which stays in its box: U_b = Σ_t X_tᵀα_t stays exact.
* **Rounding** leaves a residual on the terminal, which its next update takes along: U_b + Σ_t res_t = Σ_t X_tᵀα_t stays
  exact, as the residual waits for the verdict like Δα does (`settled`). A certificate counts what residuals may hold,
  of which terminals tell norms and products with the models (`kept_back`); stations tell the same of what their
  reports lack.
* **Noise** on the sum, after clipping, is a linear term in the objective: U_b = Σ_t X_tᵀα_t + Ξ, whose law is public.

Gains are told as the steps made them, before the channel; with noise, not at all.

Add a channel: write a frozen dataclass with ``send`` (or, for a rounding, ``rounded``), and its line in
``CHANNELS`` (`algorithms/registry.py`).
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.method import Channel, FloatArray, Method, Sent
from rhfedmtl.errors import ConfigError

FINE = 2.0**-36
"""Step of numbers other than updates in masked sums: below 2^17 they add up exactly in any order."""
LEAST_STEPS = 4
"""Steps that the noise of one terminal is wide at least: on coarser grids sums tell more than is counted."""
_NOISE = 0x6E6F697365
"""First word of the address of all noise, so that it is none of what else is drawn from a seed."""


@dataclass(frozen=True)
class Clip(Channel):
    """No update is longer than ``clip_norm``, C: Δα_t is scaled by min(1, C/‖X_tᵀΔα_t‖)."""

    clip_norm: float = 1.0

    identity: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a bound that lets nothing through, or is none."""
        _check_positive("clip_norm", self.clip_norm)

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Scaled to the bound where they are longer."""
        norm = np.sqrt(np.square(_flat(delta)).sum(axis=1))
        factor = np.divide(self.clip_norm, norm, out=np.ones(len(delta)), where=norm > self.clip_norm)
        return Sent(factor[:, None, None] * delta, factor)


@dataclass(frozen=True)
class Noised(Clip):
    """Clipped, and every number of the sum gets Gaussian noise of standard deviation ``noise``: (C/s)-private.

    A private run makes it (`training.privacy`): noise needs its account to protect a terminal. With a secret ``key``,
    only the owner of the key can repeat the noise of a round.
    """

    noise: float = 1.0
    key: bytes | None = field(default=None, repr=False, compare=False)

    tells_gains: ClassVar[bool] = False
    noised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a bound or a noise that is none."""
        super().__post_init__()
        _check_positive("noise", self.noise)

    @property
    def price(self) -> float:
        """(C/s)²."""
        return (self.clip_norm / self.noise) ** 2

    def received(self, total: FloatArray, address: tuple[int, ...] | None, answers: int) -> FloatArray:
        """With noise, from the operating system unless there is an address to draw it again."""
        return np.asarray(total + self.noise * standard_normal(total.shape, address, self.key))

    def noise_variance(self, answers: npt.ArrayLike) -> FloatArray:
        """s²."""
        return np.full(np.shape(answers), self.noise**2)


@dataclass(frozen=True)
class Rounding(Channel):
    """Fewer bits for each number; what rounding takes away goes with the next update."""

    identity: ClassVar[bool] = False
    keeps_residual: ClassVar[bool] = True

    @abstractmethod
    def rounded(self, wanted: FloatArray) -> FloatArray:
        """The nearest numbers that the wire holds exactly; those that it holds stay as they are."""

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Rounded with what was kept back before."""
        wanted = delta if residual is None else delta + residual
        with np.errstate(over="ignore", invalid="ignore"):  # the station refuses what is not finite
            sent = self.rounded(wanted)
            return Sent(sent, np.ones(len(delta)), wanted - sent)


@dataclass(frozen=True)
class Float32(Rounding):
    """Single precision: four bytes a number."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    report_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    moments_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def rounded(self, wanted: FloatArray) -> FloatArray:
        """To 24 bits."""
        return wanted.astype(np.float32).astype(np.float64)

    def models(self, wanted: FloatArray, told: FloatArray) -> FloatArray:
        """Rounded."""
        with np.errstate(over="ignore"):  # terminals refuse what is not finite
            return self.rounded(wanted)


@dataclass(frozen=True)
class Int8(Rounding):
    """Whole multiples, from −127 to 127, of a step that each update chooses: one byte a number, and the step.

    The step is a power of two, so that multiples are exact, and it can be read off an update that was rounded. Of a
    model the difference to the last one is rounded, with what that one lacked: as models settle, so does their error.
    """

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int8)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int8)
    report_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    moments_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    bits: ClassVar[int] = 7

    @property
    def for_gradients(self) -> Channel:
        """Two bytes a number: what one leaves of a gradient would mislead the search."""
        return Int16()

    def rounded(self, wanted: FloatArray) -> FloatArray:
        """To multiples of the least power of two of which 127 reach the largest number."""
        largest = np.abs(_flat(wanted)).max(axis=1, initial=0.0)[:, None, None]
        fraction, exponent = np.frexp(largest)
        least = np.finfo(np.float64).smallest_subnormal
        step = np.maximum(np.ldexp(1.0, exponent - self.bits + (fraction > 1.0 - 0.5**self.bits)), least)
        return np.asarray(np.rint(wanted / step) * step)

    def models(self, wanted: FloatArray, told: FloatArray) -> FloatArray:
        """What was told, and the rounded difference to it."""
        with np.errstate(over="ignore", invalid="ignore"):  # terminals refuse what is not finite
            return np.asarray(told + self.rounded(wanted - told))


@dataclass(frozen=True)
class Int16(Int8):
    """The same with two bytes a number."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int16)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int16)
    bits: ClassVar[int] = 15


@dataclass(frozen=True)
class FixedPoint(Rounding):
    """Whole multiples of one public ``grid_step``: integers, which can be added up under masks."""

    grid_step: float = 2.0**-20

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int64)

    def __post_init__(self) -> None:
        """Refuse a step that is none."""
        _check_positive("grid_step", self.grid_step)

    def rounded(self, wanted: FloatArray) -> FloatArray:
        """To multiples of the step."""
        return np.asarray(np.rint(wanted / self.grid_step) * self.grid_step)


@dataclass(frozen=True)
class MaskedSums(FixedPoint):
    """Multiples of one public step, added up under masks (`roles.secure.masking`) by ``least_summed`` terminals.

    A station learns the sums and nothing else: with fewer answers a round is void. What else is added up, for plans
    and certificates, has a finer step.
    """

    least_summed: int = 3

    sums_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse sums that hide nobody."""
        super().__post_init__()
        if self.least_summed < 2:
            raise ConfigError(f"least_summed must be at least 2, got {self.least_summed}: a sum over one hides nothing")

    @property
    def least(self) -> int:
        """As told."""
        return self.least_summed

    def counted(self, values: FloatArray) -> FloatArray:
        """Multiples of a step fine enough for a certificate, which add up exactly."""
        return np.asarray(np.rint(values / FINE) * FINE)


@dataclass(frozen=True)
class NoisedSums(MaskedSums):
    """Clipped to ``clip_norm``, C, with what was kept back, and hidden before the mask in a part of the noise s.

    Every terminal adds noise of deviation s/√T, T = ``least_summed``, in whole steps: m of them bring s²m/T. A sum over
    T or more is (C/s)-private: rounded Gaussian parts, four steps wide or more, add up to a rounded Gaussian but for
    e^{−16π²}, and rounding after noise tells nothing.
    """

    clip_norm: float = 1.0
    noise: float = 1.0
    key: bytes | None = field(default=None, repr=False, compare=False)

    tells_gains: ClassVar[bool] = False
    noised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a bound that is none, and noise that the grid would show through."""
        super().__post_init__()
        for name in ("clip_norm", "noise"):
            _check_positive(name, getattr(self, name))
        if self.part < LEAST_STEPS * self.grid_step:
            raise ConfigError(
                f"noise of {self.part:.3g} from each terminal on a grid of {self.grid_step:.3g}: {LEAST_STEPS} steps "
                "are the least, take a larger clip"
            )

    @property
    def part(self) -> float:
        """Deviation of the noise of one terminal."""
        return self.noise / math.sqrt(self.least_summed)

    @property
    def price(self) -> float:
        """(C/s)²."""
        return (self.clip_norm / self.noise) ** 2

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Scaled so that what is sent, rounded and with what was kept back before, is no longer than the bound."""
        norms = [
            np.sqrt(np.square(_flat(each)).sum(axis=1)) for each in (delta, delta if residual is None else residual)
        ]
        room = self.clip_norm - self.rounding(delta[0].size) - (norms[1] if residual is not None else 0.0)
        factor = np.divide(np.maximum(room, 0.0), norms[0], out=np.ones(len(delta)), where=norms[0] > room)
        return super().send(factor[:, None, None] * delta, residual)._replace(factor=factor)

    def rounding(self, numbers: int) -> float:
        """Longest that rounding makes or takes of so many numbers."""
        return 0.5 * self.grid_step * math.sqrt(numbers)

    def received(self, total: FloatArray, address: tuple[int, ...] | None, answers: int) -> FloatArray:
        """As it comes out of the masks, with the terminals' noise in it; a simulation draws it here."""
        if address is None:
            return total
        spread = math.sqrt(float(self.noise_variance(answers)))
        return np.asarray(total + self.rounded(spread * standard_normal(total.shape, address, self.key)))

    def noise_variance(self, answers: npt.ArrayLike) -> FloatArray:
        """s²m/T."""
        return self.noise**2 * np.asarray(answers, dtype=np.float64) / self.least_summed


def group_starts(n: int, least: int) -> npt.NDArray[np.int64]:
    """Where groups begin of n terminals that count together in masked sums: as many as have ``least``, all alike."""
    places = np.arange(n // least)
    size, more = divmod(n, max(len(places), 1))
    return np.asarray(size * places + np.minimum(places, more))


def with_noise(channel: Channel, clip: float, noise: float) -> Noised | NoisedSums:
    """A channel that clips and adds noise, by the station, or by terminals where sums are masked."""
    if isinstance(channel, MaskedSums):
        return NoisedSums(channel.grid_step, channel.least_summed, clip, noise)
    return Noised(clip, noise)


def keyed(channel: Channel, key: bytes) -> Channel:
    """Let a channel draw its noise from a secret key."""
    assert isinstance(channel, Noised | NoisedSums)
    return replace(channel, key=key)


def kept_back(residual: FloatArray, models: FloatArray) -> FloatArray:
    """‖res_t‖ and, under each of the models (m, terminal, row, feature), ⟨res_t, w⟩: a row for each terminal."""
    flat = _flat(residual)
    products = [(flat * _flat(model)).sum(axis=1) for model in models]
    return np.stack([np.sqrt(np.square(flat).sum(axis=1)), *products], axis=1)


def settled(residual: FloatArray, sent: FloatArray, factor: float | FloatArray) -> FloatArray:
    """(1 − η) res_old + η res_new: what a terminal keeps back once its update was applied with factor η."""
    return np.asarray((1.0 - factor) * residual + factor * sent)


def standard_normal(shape: tuple[int, ...], address: tuple[int, ...] | None, key: bytes | None = None) -> FloatArray:
    """Standard normal numbers: those at an address, or without an address fresh ones from the operating system.

    An address starts with a seed. A secret ``key`` replaces the seed: only its owner can repeat the numbers.
    """
    if address is not None and key is not None:
        place = struct.pack(f"<{len(address) - 1}q", *address[1:])
        words = hashlib.shake_256(key + b"rhfedmtl noise" + place).digest(16 * math.prod(shape))
        return normal_from(np.frombuffer(words, dtype="<u8").astype(np.uint64)).reshape(shape)
    if address is not None:
        return np.random.default_rng([_NOISE, *address]).standard_normal(shape)
    return normal_from(np.frombuffer(os.urandom(16 * math.prod(shape)), dtype=np.uint64)).reshape(shape)


def normal_from(words: npt.NDArray[np.uint64]) -> FloatArray:
    """Standard normal numbers from twice as many random words (Box and Muller 1958)."""
    bits = words.reshape(2, -1)
    radius, angle = ((bits >> np.uint64(11)) + 1.0) * 2.0**-53
    return np.asarray(np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle))


def sent_models(method: Method, wanted: FloatArray, last: FloatArray, exact: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the models of orders as the channel sends them, one station per row.

    ``last`` are the models of the last orders. ``exact`` models are not rounded: those of a gradient round, and start
    models that the terminals know.
    """
    return np.where(exact[:, None, None], wanted, method.channel.models(wanted, last))


def _flat(updates: FloatArray) -> FloatArray:
    """All numbers of an update in one row."""
    return updates.reshape(len(updates), updates.shape[1] * updates.shape[2])


def _check_positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name} of a channel must be a finite number > 0, got {value}")
