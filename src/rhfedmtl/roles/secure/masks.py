"""Masks that look random and cancel in a sum, and secrets that only many shares together restore.

Pure functions on bytes and words, used by both sides of a masked sum. X25519 agrees on the secret of a pair, HKDF
derives seeds from secrets, and ChaCha20 makes masks from seeds. Secrets are shared over the prime field of 2^127 − 1
(Shamir 1979).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from rhfedmtl.errors import DataError, PeerError

Words = npt.NDArray[np.uint64]

PRIME = 2**127 - 1
SEED = 16
"""Bytes of a seed, and of a share of a seed."""
PUBLIC_KEY_BYTES = 32
"""Bytes of a public key."""
_LARGEST = 2.0**62


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return the common secret of two terminals that know each other's public keys, extracted with HKDF (RFC 5869)."""
    try:
        return hmac.digest(bytes(32), private.exchange(X25519PublicKey.from_public_bytes(public)), "sha256")
    except (ValueError, InvalidKey) as error:
        raise PeerError(f"no key for masks: {error}") from None


def derive(secret: bytes, *labels: Any, length: int = SEED) -> bytes:
    """Return the seed for a purpose: a block of HKDF. It reveals nothing about the secret or about other seeds."""
    info = b"\0".join(label if isinstance(label, bytes) else str(label).encode() for label in labels)
    return hmac.digest(secret, info + b"\1", "sha256")[:length]


def mask(seed: bytes, length: int) -> Words:
    """Return a mask of this many words; without the seed it cannot be told from random words."""
    return np.frombuffer(_pad(seed, 8 * length), dtype="<u8").astype(np.uint64)


def hidden(seed: bytes, text: bytes) -> bytes:
    """Return a text under the pad of a seed that is used once; a second call with the result returns the text."""
    return under(_pad(seed, len(text)), text)


def under(pad: bytes, text: bytes) -> bytes:
    """Return a text under a pad of the same length; a second call with the result returns the text."""
    both = int.from_bytes(text, "little") ^ int.from_bytes(pad, "little")
    return both.to_bytes(len(text), "little")


def _pad(seed: bytes, length: int) -> bytes:
    cipher = Cipher(algorithms.ChaCha20(seed + seed[::-1], bytes(16)), None).encryptor()
    return cipher.update(bytes(length))


def pieces(data: bytes, size: int) -> list[bytes]:
    """Return consecutive pieces of ``size`` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def new_secret() -> int:
    """Return a random number that `split` can share."""
    return secrets.randbelow(PRIME)


def split(secret: int, holders: Iterable[int], threshold: int) -> dict[int, int]:
    """Return shares of a secret, by holder: any ``threshold`` of them restore it, fewer reveal nothing."""
    line = [*(secrets.randbelow(PRIME) for _ in range(threshold - 1)), secret]
    shares = {}
    for holder in holders:
        value, at = 0, holder + 1
        for coefficient in line:  # the numbers stay short without a remainder at each step
            value = value * at + coefficient
        shares[holder] = value % PRIME
    return shares


def joined(shares: Mapping[int, int]) -> int:
    """Return the secret from exactly ``threshold`` shares: the polynomial through them, at 0."""
    weights = _at_zero(tuple(shares))
    return sum(share * weight for share, weight in zip(shares.values(), weights, strict=True)) % PRIME


@lru_cache(maxsize=256)
def _at_zero(holders: tuple[int, ...]) -> list[int]:
    """Return the weight of each holder's share at 0, with a single modular inverse (Montgomery 1987)."""
    product_of_all = math.prod(t + 1 for t in holders)
    below = [math.prod(j - i for j in holders if j != i) * (i + 1) for i in holders]
    products = list(accumulate(below, lambda product, factor: product * factor % PRIME, initial=1))
    inverse, weights = pow(products[-1], -1, PRIME), []
    for factor, before in zip(reversed(below), reversed(products[:-1]), strict=True):
        weights.append(product_of_all * before * inverse % PRIME)
        inverse = inverse * factor % PRIME
    return weights[::-1]


def threshold(neighbours: int) -> int:
    """Return the number of shares that restore a secret: more than two thirds of a terminal and its neighbours."""
    return 2 * (neighbours + 1) // 3 + 1


def bound_to(content: bytes, context: bytes) -> bytes:
    """Return the digest that masks depend on: the common request, and the messages received before it."""
    return hashlib.sha256(hashlib.sha256(content).digest() + context).digest()


def pair_seed(pair: bytes, content: bytes, everyone: bytes, first: bytes, second: bytes) -> bytes:
    """Return the seed of the mask of a pair, which depends on the complete requests to both terminals."""
    digest = hashlib.sha256(content + everyone + min(first, second) + max(first, second)).digest()
    return derive(pair, "mask", digest)


def add(total: Words, more: Words, plus: bool) -> Words:
    """Return the sum or the difference of words, modulo 2^64."""
    return total + more if plus else total - more


def to_bytes(number: int) -> bytes:
    """Return the bytes of a share, or of a secret as a seed."""
    return number.to_bytes(SEED, "little")


def from_bytes(shares: bytes) -> list[int]:
    """Return consecutive shares as numbers."""
    return [int.from_bytes(share, "little") for share in pieces(shares, SEED)]


def to_words(values: npt.NDArray[np.float64], step: float) -> Words:
    """Return multiples of a step as words; raise `DataError` for numbers too large to add up."""
    multiples = np.rint(np.ravel(values) / step)
    if not (np.abs(multiples) < _LARGEST).all():
        raise DataError(f"numbers up to {np.abs(values).max():.3g} cannot be added up in steps of {step:g}: scale them")
    return multiples.astype(np.int64).view(np.uint64)


def to_numbers(words: Words, step: float) -> npt.NDArray[np.float64]:
    """Return the numbers that words stand for."""
    return words.view(np.int64).astype(np.float64) * step
