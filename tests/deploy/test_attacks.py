"""The attacks of `benchmarks/attacks.py` speak the protocol of the product, and their controls can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import attacks
from tests.deploy import nets

from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire


def test_attacks_speak_the_protocol_of_the_product(tmp_path: Path) -> None:
    """A good terminal gets in with this protocol, and not with another: the control tells them apart."""
    folder = nets.build(tmp_path / "net", nets.small(1, 3, 30))
    hello = wire.TerminalUp.FromString(attacks.greeting(folder)).hello
    assert (hello.oldest, hello.newest, hello.node) == (codec.PROTOCOL, codec.PROTOCOL, 1)
    with nets.running(folder) as (supervisor, operator):
        nets.wait(operator, nets.all_connected)
        supervisor.kill("terminal-1")
        supervisor.processes["terminal-1"].join()
        nets.wait(operator, lambda s: not s["stations"][0]["terminals"][1]["connected"])
        assert attacks.gets_in(folder)
        assert not attacks.gets_in(folder, protocol=codec.PROTOCOL - 1)
        assert attacks.speaks_where_it_may(folder, attacks.CLOUD, "Control/Command")


def test_an_attack_without_its_control_ends() -> None:
    """Refusals after a control that failed would prove nothing."""
    attacks.must(True, "flood")
    with pytest.raises(SystemExit, match="the control of 'flood' failed"):
        attacks.must(False, "flood")
