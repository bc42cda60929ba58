"""The algorithms by name. A new algorithm is one file with a builder, and its line in ``ALGORITHMS``."""

from collections.abc import Callable

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
