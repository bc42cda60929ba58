"""The algorithms by name. A new algorithm is one file with a builder, and its line in ``ALGORITHMS``."""

from collections.abc import Callable

from rhfedmtl.algorithms.hfedmtl import hfedmtl
from rhfedmtl.algorithms.options import Algorithm, Options, pick
from rhfedmtl.algorithms.rhfedmtl import rhfedmtl

ALGORITHMS: dict[str, Callable[[Options, str], Algorithm]] = {
    "rhfedmtl": rhfedmtl,
    "hfedmtl": hfedmtl,
}


def build(name: str, options: Options, kind: str) -> Algorithm:
    """Algorithm called ``name`` for labels of this kind."""
    return pick("algorithm", name, ALGORITHMS)(options, kind)
