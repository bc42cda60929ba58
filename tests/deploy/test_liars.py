"""One terminal of four that lies, with good credentials: it is found out and taken out, and nobody else suffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.liar import LIES, Lie

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.maths.losses import Hinge, Logistic, SmoothedHinge, Squared, SquaredHinge
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Run, Settings

LIAR = 5


def lying(network: MessagePassing, method: str, lie: Lie) -> None:
    """Let one terminal say something else."""
    honest = getattr(network.terminals[LIAR], method)

    def say(*given: Any) -> Any:
        said = honest(*given)
        return None if said is None else lie(said)

    setattr(network.terminals[LIAR], method, say)


def learned(
    method: DualMethod,
    monkeypatch: pytest.MonkeyPatch,
    lie: str = "",
    without: bool = False,
    federation: Federation | None = None,
    **more: Any,
) -> Any:
    """Metric of every task after some rounds of the linked engine, and its stations."""
    federation = federation or nets.small(3, 4, 240)
    made: list[MessagePassing] = []

    class Lying(MessagePassing):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)
            if without:
                self.move(LIAR, -1)
            if lie and LIES[lie][0] != "join":
                lying(self, *LIES[lie])

    monkeypatch.setattr("rhfedmtl.engines.message_passing.MessagePassing", Lying)
    settings = Settings(execution=replace(Settings().execution, engine="linked"), max_rounds=20, **more)
    run = Run(federation, method, settings, Ledger({}))
    if lie and LIES[lie][0] == "join":
        with pytest.raises(Exception, match="share"):
            made[0].stations[1].admit(LIES[lie][1](made[0].terminals[LIAR].join()))
        made[0]._strike(made[0].stations[1])
    result = run.result(run.learn(POLICIES["fixed"](local_steps=30)))
    return result.metrics.get("accuracy"), made[0].stations


def merge_for(lie: str) -> DualMethod:
    """A line search where its numbers are lied about."""
    return DualMethod(SmoothedHinge(), merge=MERGES["line-search" if lie == "line search" else "add"]())


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_taken_out_and_nobody_else(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy of all tasks within two points of a run without it, and its share is in no sum."""
    found, stations = learned(merge_for(lie), monkeypatch, lie)
    right, _ = learned(merge_for(lie), monkeypatch, without=True)
    assert [sorted(station.quarantined) for station in stations] == [[], [LIAR], []]
    assert LIAR not in stations[1].members
    total = sum(member.share for member in stations[1].members.values())
    np.testing.assert_allclose(stations[1].U, total, atol=1e-9)
    assert np.abs(found - right).max() <= 0.02


OTHERS = SmoothedHinge(5.0), Hinge(), SquaredHinge(), Logistic()
SLOW = [pytest.param(loss, marks=pytest.mark.slow) for loss in OTHERS]


@pytest.mark.parametrize("loss", [SmoothedHinge(), *SLOW], ids=str)
@pytest.mark.parametrize("merge", sorted(MERGES))
def test_nobody_honest_is_blamed(loss: Any, merge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss and merge stays within the bounds, from the first round to a small gap."""
    _, stations = learned(DualMethod(loss, merge=MERGES[merge]()), monkeypatch)
    assert not any(station.quarantined for station in stations)


def unequal(made: Federation) -> Federation:
    """The same rows with terminals of one row, of three, and of all others."""
    n = np.diff(made.terminal_offsets[made.task_offsets])[0]
    starts = made.terminal_offsets[made.task_offsets[:-1], None] + np.array([0, 1, 4, n // 2])
    return replace(made, terminal_offsets=np.append(starts.ravel(), made.terminal_offsets[-1]))


def weighted(made: Federation) -> Federation:
    """The same rows with weights from almost nothing to a hundred."""
    return replace(made, sample_weight=10.0 ** np.random.default_rng(0).uniform(-3.0, 2.0, len(made.y)))


HONEST: dict[str, tuple[Any, Callable[[], Federation], dict[str, Any]]] = {
    "one row": (SmoothedHinge(), lambda: unequal(nets.small(3, 4, 60)), {}),
    "weights": (SmoothedHinge(), lambda: weighted(nets.small(3, 4, 60)), {}),
    "one row with weights": (SmoothedHinge(), lambda: weighted(unequal(nets.small(3, 4, 60))), {}),
    "far labels": (Squared(), lambda: nets.levelled(3, 4, 60), {"scale": "standard"}),
    "standardised": (SmoothedHinge(), lambda: nets.small(3, 4, 60), {"scale": "standard"}),
    "as they are": (SmoothedHinge(), lambda: nets.small(3, 4, 60), {"scale": "none"}),
}


@pytest.mark.parametrize("case", HONEST)
def test_nobody_odd_is_blamed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals of one row, of very unequal sizes and weights, far-apart labels, and rows that are not unit."""
    loss, made, more = HONEST[case]
    _, stations = learned(DualMethod(loss), monkeypatch, federation=made(), **more)
    assert not any(station.quarantined for station in stations)


@pytest.mark.parametrize("name", ["none", "learned", "clusters"])
def test_no_relationship_brings_blame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors of other couplings than the mean leave everybody within the bounds."""
    method = DualMethod(SmoothedHinge(), relationship=RELATIONSHIPS[name]())
    _, stations = learned(method, monkeypatch, federation=nets.small(3, 4, 60))
    assert not any(station.quarantined for station in stations)
