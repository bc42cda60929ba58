"""How fast the library is on this machine: ratios measured in one run, for ``rhfedmtl bench`` and ``benchmarks/``."""
