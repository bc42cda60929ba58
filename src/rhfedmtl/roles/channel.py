"""Channels change updates on their way from a terminal to its station: they clip, round, or add noise to the sum.

Terminals call `send`, stations call `received`, and batched engines call both for all terminals at once. A channel
never sees rows or dual variables.

**Theory of operation.** A channel takes the updates of any number of terminals. So a terminal in a deployment and a
million terminals in a simulation send the same numbers, to the bit. A channel keeps the relation of U_b to the dual
variables (MATHS §11):

* **Clipping** multiplies Δα_t with a factor. Δα_t stays in its box, and U_b = Σ_t X_tᵀα_t stays exact.
* **Rounding** leaves a residual on the terminal, and the next update includes it. U_b + Σ_t res_t = Σ_t X_tᵀα_t stays
  exact, as the residual waits for the verdict like Δα does (`settled`). A certificate counts the largest effect of the
  residuals: terminals send their norms and their products with the models (`kept_back`), and stations send the same for
  the rounding of their reports.
* **Noise** on the sum, after clipping, is a linear term in the objective: U_b = Σ_t X_tᵀα_t + Ξ. The distribution of Ξ
  is public.

Gains are sent as the steps made them, before the channel; with noise they are not sent.

To add a channel, write a frozen dataclass with ``send`` (or ``rounded`` for a rounding channel), and add it to
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
"""Step of numbers other than updates in masked sums. Numbers below 2^17 add up exactly in any order."""
LEAST_STEPS = 4
"""Smallest standard deviation of a terminal's noise, in steps. On coarser grids sums reveal more than is counted."""
_NOISE = 0x6E6F697365
"""First word of the address of all noise, so noise is independent of other draws from the seed."""


@dataclass(frozen=True)
class Clip(Channel):
    """Limit the norm of every update to ``clip_norm``, C: scale Δα_t by min(1, C/‖X_tᵀΔα_t‖)."""

    clip_norm: float = 1.0

    identity: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a bound that is not a finite positive number."""
        _check_positive("clip_norm", self.clip_norm)

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Return the updates, scaled to the bound if they are longer."""
        norm = np.sqrt(np.square(_flat(delta)).sum(axis=1))
        factor = np.divide(self.clip_norm, norm, out=np.ones(len(delta)), where=norm > self.clip_norm)
        return Sent(factor[:, None, None] * delta, factor)


@dataclass(frozen=True)
class Noised(Clip):
    """Clip updates, and add Gaussian noise of standard deviation ``noise`` to every number of the sum: (C/s)-private.

    Only a private run makes this channel (`training.privacy`): the noise protects a terminal only together with the
    account of that run. With a secret ``key``, only the owner of the key can repeat the noise of a round.
    """

    noise: float = 1.0
    key: bytes | None = field(default=None, repr=False, compare=False)

    tells_gains: ClassVar[bool] = False
    noised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a bound or a noise that is not a finite positive number."""
        super().__post_init__()
        _check_positive("noise", self.noise)

    @property
    def price(self) -> float:
        """(C/s)²."""
        return (self.clip_norm / self.noise) ** 2

    def received(self, total: FloatArray, address: tuple[int, ...] | None, answers: int) -> FloatArray:
        """Return the sum with noise: from the operating system, or repeatable if there is an address."""
        return np.asarray(total + self.noise * standard_normal(total.shape, address, self.key))

    def noise_variance(self, answers: npt.ArrayLike) -> FloatArray:
        """s²."""
        return np.full(np.shape(answers), self.noise**2)


@dataclass(frozen=True)
class Rounding(Channel):
    """Send fewer bits per number; the next update includes the rounding error."""

    identity: ClassVar[bool] = False
    keeps_residual: ClassVar[bool] = True

    @abstractmethod
    def rounded(self, values: FloatArray) -> FloatArray:
        """Return the nearest numbers that the wire holds exactly; rounded numbers do not change again."""

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Return the rounded sum of update and residual, with the new residual."""
        values = delta if residual is None else delta + residual
        with np.errstate(over="ignore", invalid="ignore"):  # the station refuses infinite numbers
            sent = self.rounded(values)
            return Sent(sent, np.ones(len(delta)), values - sent)


@dataclass(frozen=True)
class Float32(Rounding):
    """Send single precision: four bytes a number."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    report_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    moments_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    def rounded(self, values: FloatArray) -> FloatArray:
        """Return the numbers rounded to 24 bits."""
        return values.astype(np.float32).astype(np.float64)

    def models(self, values: FloatArray, last: FloatArray) -> FloatArray:
        """Return the rounded models."""
        with np.errstate(over="ignore"):  # terminals refuse infinite numbers
            return self.rounded(values)


@dataclass(frozen=True)
class Int8(Rounding):
    """Send integer multiples, from −127 to 127, of a step that each update chooses: a byte a number, and the step.

    The step is a power of two, so multiples are exact, and the step can be computed from a rounded update. For a model
    the difference to the last sent model is rounded, including its rounding error. So the error vanishes as the models
    converge.
    """

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int8)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int8)
    report_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    moments_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    bits: ClassVar[int] = 7

    @property
    def for_gradients(self) -> Channel:
        """Channel with two bytes a number: a single byte of a gradient would mislead the search."""
        return Int16()

    def rounded(self, values: FloatArray) -> FloatArray:
        """Return multiples of the smallest power of two with 127 multiples up to the largest number."""
        largest = np.abs(_flat(values)).max(axis=1, initial=0.0)[:, None, None]
        fraction, exponent = np.frexp(largest)
        tiny = np.finfo(np.float64).smallest_subnormal
        step = np.maximum(np.ldexp(1.0, exponent - self.bits + (fraction > 1.0 - 0.5**self.bits)), tiny)
        return np.asarray(np.rint(values / step) * step)

    def models(self, values: FloatArray, last: FloatArray) -> FloatArray:
        """Return the last sent models plus the rounded difference."""
        with np.errstate(over="ignore", invalid="ignore"):  # terminals refuse infinite numbers
            return np.asarray(last + self.rounded(values - last))


@dataclass(frozen=True)
class Int16(Int8):
    """Send two bytes a number, in the same way."""

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int16)
    model_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int16)
    bits: ClassVar[int] = 15


@dataclass(frozen=True)
class FixedPoint(Rounding):
    """Send integer multiples of a public ``grid_step``, which can be added up under masks."""

    grid_step: float = 2.0**-20

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int64)

    def __post_init__(self) -> None:
        """Refuse a step that is not a finite positive number."""
        _check_positive("grid_step", self.grid_step)

    def rounded(self, values: FloatArray) -> FloatArray:
        """Return the nearest multiples of the step."""
        return np.asarray(np.rint(values / self.grid_step) * self.grid_step)


@dataclass(frozen=True)
class MaskedSums(FixedPoint):
    """Send multiples of a public step, added up under masks (`roles.secure.masking`).

    A sum has ``least_summed`` terminals or more; with fewer answers the round is void. A station learns the sums and
    nothing else. Other sums, for plans and certificates, have a finer step.
    """

    least_summed: int = 3

    sums_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse sums over a single terminal."""
        super().__post_init__()
        if self.least_summed < 2:
            raise ConfigError(f"least_summed must be at least 2, got {self.least_summed}: a sum over one hides nothing")

    @property
    def least(self) -> int:
        """Smallest number of terminals in a sum."""
        return self.least_summed

    def counted(self, values: FloatArray) -> FloatArray:
        """Return multiples of a step that is fine enough for a certificate; they add up exactly."""
        return np.asarray(np.rint(values / FINE) * FINE)


@dataclass(frozen=True)
class NoisedSums(MaskedSums):
    """Clip update plus residual to ``clip_norm``, C, and add a part of the noise s to it before the mask.

    Every terminal adds noise of standard deviation s/√T, T = ``least_summed``, in whole steps: m terminals add variance
    s²m/T. A sum over T or more terminals is (C/s)-private: rounded Gaussian parts with a standard deviation of four
    steps or more add up to a rounded Gaussian, except for e^{−16π²}, and rounding after noise reveals nothing.
    """

    clip_norm: float = 1.0
    noise: float = 1.0
    key: bytes | None = field(default=None, repr=False, compare=False)

    tells_gains: ClassVar[bool] = False
    noised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a bound that is not a finite positive number, and noise too small for the grid."""
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
        """Standard deviation of a terminal's noise."""
        return self.noise / math.sqrt(self.least_summed)

    @property
    def price(self) -> float:
        """(C/s)²."""
        return (self.clip_norm / self.noise) ** 2

    def send(self, delta: FloatArray, residual: FloatArray | None) -> Sent:
        """Scale the updates: the rounded sum of update and residual is then no longer than the bound."""
        norms = np.sqrt(np.square(_flat(delta)).sum(axis=1))
        residual_norms = 0.0 if residual is None else np.sqrt(np.square(_flat(residual)).sum(axis=1))
        limit = self.clip_norm - self.rounding(delta[0].size) - residual_norms
        factor = np.divide(np.maximum(limit, 0.0), norms, out=np.ones(len(delta)), where=norms > limit)
        return super().send(factor[:, None, None] * delta, residual)._replace(factor=factor)

    def rounding(self, numbers: int) -> float:
        """Return the largest norm of the rounding error of this many numbers."""
        return 0.5 * self.grid_step * math.sqrt(numbers)

    def received(self, total: FloatArray, address: tuple[int, ...] | None, answers: int) -> FloatArray:
        """Return the sum with the terminals' noise; a simulation draws the noise here."""
        if address is None:
            return total
        spread = math.sqrt(float(self.noise_variance(answers)))
        return np.asarray(total + self.rounded(spread * standard_normal(total.shape, address, self.key)))

    def noise_variance(self, answers: npt.ArrayLike) -> FloatArray:
        """s²m/T."""
        return self.noise**2 * np.asarray(answers, dtype=np.float64) / self.least_summed


def group_starts(n: int, least: int) -> npt.NDArray[np.int64]:
    """Return the starts of the groups of n terminals in masked sums.

    There are as many groups as possible with ``least`` terminals or more, of nearly equal size.
    """
    groups = np.arange(n // least)
    size, larger = divmod(n, max(len(groups), 1))
    return np.asarray(size * groups + np.minimum(groups, larger))


def with_noise(channel: Channel, clip: float, noise: float) -> Noised | NoisedSums:
    """Return a channel that clips and adds noise: at the station, or at terminals if sums are masked."""
    if isinstance(channel, MaskedSums):
        return NoisedSums(channel.grid_step, channel.least_summed, clip, noise)
    return Noised(clip, noise)


def keyed(channel: Channel, key: bytes) -> Channel:
    """Return the channel with a secret key for its noise."""
    assert isinstance(channel, Noised | NoisedSums)
    return replace(channel, key=key)


def kept_back(residual: FloatArray, models: FloatArray) -> FloatArray:
    """Return ‖res_t‖ and ⟨res_t, w⟩ for each of the models (m, terminal, row, feature), a terminal per row."""
    flat = _flat(residual)
    products = [(flat * _flat(model)).sum(axis=1) for model in models]
    return np.stack([np.sqrt(np.square(flat).sum(axis=1)), *products], axis=1)


def settled(residual: FloatArray, sent: FloatArray, factor: float | FloatArray) -> FloatArray:
    """Return (1 − η) res_old + η res_new: the residual after the update was applied with factor η."""
    return np.asarray((1.0 - factor) * residual + factor * sent)


def standard_normal(shape: tuple[int, ...], address: tuple[int, ...] | None, key: bytes | None = None) -> FloatArray:
    """Return standard normal numbers: fixed by an address, or new numbers from the operating system without it.

    An address starts with a seed. A secret ``key`` replaces the seed, so only its owner can repeat the numbers.
    """
    if address is not None and key is not None:
        place = struct.pack(f"<{len(address) - 1}q", *address[1:])
        words = hashlib.shake_256(key + b"rhfedmtl noise" + place).digest(16 * math.prod(shape))
        return normal_from(np.frombuffer(words, dtype="<u8").astype(np.uint64)).reshape(shape)
    if address is not None:
        return np.random.default_rng([_NOISE, *address]).standard_normal(shape)
    return normal_from(np.frombuffer(os.urandom(16 * math.prod(shape)), dtype=np.uint64)).reshape(shape)


def normal_from(words: npt.NDArray[np.uint64]) -> FloatArray:
    """Return standard normal numbers from twice as many random words (Box and Muller 1958)."""
    bits = words.reshape(2, -1)
    radius, angle = ((bits >> np.uint64(11)) + 1.0) * 2.0**-53
    return np.asarray(np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle))


def sent_models(method: Method, values: FloatArray, last: FloatArray, exact: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the models of orders as the channel sends them, a station per row.

    ``last`` are the models of the last orders. ``exact`` models are not rounded: models of a gradient round, and start
    models that the terminals know.
    """
    return np.where(exact[:, None, None], values, method.channel.models(values, last))


def _flat(updates: FloatArray) -> FloatArray:
    return updates.reshape(len(updates), updates.shape[1] * updates.shape[2])


def _check_positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name} of a channel must be a finite number > 0, got {value}")
