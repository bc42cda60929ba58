"""The algorithms by name. A new algorithm is one file with a builder, and its line in ``ALGORITHMS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rhfedmtl.algorithms.adaptive import adaptive_fl
from rhfedmtl.algorithms.cocoa import cocoa, cocoa_plus
from rhfedmtl.algorithms.ditto import ditto
from rhfedmtl.algorithms.fedavg import fedavg, hierfavg
from rhfedmtl.algorithms.fedem import fedem
from rhfedmtl.algorithms.fedprox import fedprox
from rhfedmtl.algorithms.hfedmtl import hfedmtl
from rhfedmtl.algorithms.local import local
from rhfedmtl.algorithms.mocha import mocha
from rhfedmtl.algorithms.options import Algorithm, Options, pick
from rhfedmtl.algorithms.pooled import constant, pooled
from rhfedmtl.algorithms.rhfedmtl import rhfedmtl
from rhfedmtl.errors import ConfigError

ALGORITHMS: dict[str, Callable[[Options, str], Algorithm]] = {
    "rhfedmtl": rhfedmtl,
    "hfedmtl": hfedmtl,
    "local": local,
    "cocoa": cocoa,
    "cocoa+": cocoa_plus,
    "mocha": mocha,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "hierfavg": hierfavg,
    "adaptive-fl": adaptive_fl,
    "ditto": ditto,
    "fedem": fedem,
    "pooled": pooled,
    "constant": constant,
}


DECIDES = frozenset({"rhfedmtl", "local", "mocha", "adaptive-fl", "pooled", "constant"})
"""Those that decide H and K themselves."""
YARDSTICKS = frozenset({"pooled", "constant"})
"""Those that are not charged and know no budget."""


def build(name: str, options: Options, kind: str) -> Algorithm:
    """Algorithm called ``name`` for labels of this kind."""
    return pick("algorithm", name, ALGORITHMS)(options, kind)


def idle(name: str, options: Options, kind: str = "binary", built: Algorithm | None = None) -> list[str]:
    """Options that were set and that this algorithm pays no heed to: with another value it would be the same.

    ``built`` is what the options build, where the caller has it already.
    """
    shown = repr(built or build(name, options, kind))  # not all relationships compare by value, but all show it
    return [option for option in options.given() if repr(_rebuilt(name, options, kind, option)) == shown]


def _rebuilt(name: str, options: Options, kind: str, option: str) -> Algorithm | None:
    """The algorithm with another value of one option; None where it refuses that value, and so pays heed to it."""
    value: Any = getattr(options, option)
    other: Any = not value if isinstance(value, bool) else f"{value}?" if isinstance(value, str) else value + 1
    try:
        return build(name, replace(options, **{option: other}), kind)
    except ConfigError:
        return None


def no_effect(name: str, unheeded: list[str]) -> str:
    """What to say of options that an algorithm pays no heed to."""
    have, them = ("has", "it") if len(unheeded) == 1 else ("have", "them")
    return f"{', '.join(unheeded)} {have} no effect on {name}: leave {them} out"
