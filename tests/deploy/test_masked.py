"""Networks whose stations see sums alone: the numbers of one process, whoever is killed; and what nobody is told."""

from __future__ import annotations

from pathlib import Path

from tests.deploy import nets
from tests.deploy.test_network import assert_same, in_process

from rhfedmtl.algorithms.options import Options

MASKED = {"options": {"channel": "masked"}, "scale": "unit"}


def test_a_masked_network_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    """Models, certificate and ledger are those of a simulation, to the bit; the owner sees what left."""
    federation = nets.small(2, 4, 40)
    folder = nets.build(tmp_path / "net", federation, learning=MASKED)
    with nets.running(folder) as (_, operator):
        nets.trained(operator, budget=["energy=400"])
        operator.export(tmp_path / "out")
    assert_same(tmp_path / "out", in_process(federation, "energy=400", options=Options(channel="masked"), scale="unit"))
