"""One terminal of four that lies, with good credentials: it is found out and taken out, and nobody else suffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.liar import LIES

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.maths.losses import Hinge, Logistic, SmoothedHinge, Squared, SquaredHinge
from rhfedmtl.maths.registry import RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.roster import Roster
from rhfedmtl.roles.terminal import Terminal
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

LIAR = 5
LABEL_LIES = {"weight": [1e9, 0.0, 0.0], "mean": [0.0, 1e9, 0.0], "square": [0.0, 0.0, 1e15]}


def lying(patch: pytest.MonkeyPatch, lie: str) -> None:
    """Let one terminal say something else; one that lies of its rows tells moments of as many."""
    method, changed = LIES[lie]
    for name in (method, "moments") if lie == "rows at joining" else (method,):
        honest = getattr(Terminal, name)

        def say(self: Terminal, *given: Any, told: Any = honest, of: str = name) -> Any:
            said = told(self, *given)
            if said is None or self.identity != LIAR:
                return said
            return changed(said) if of == method else replace(said, count=100_000)

        patch.setattr(Terminal, name, say)


def learned(
    method: DualMethod, lie: str = "", without: bool = False, federation: Federation | None = None, **more: Any
) -> Any:
    """Metric of every task after some rounds of the message-passing engine, and its stations."""
    federation = federation or nets.small(3, 4, 240)
    made: list[MessagePassing] = []

    class Watched(MessagePassing):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)
            if without:
                self.move(LIAR, -1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rhfedmtl.engines.message_passing.MessagePassing", Watched)
        if lie:
            lying(patch, lie)
        settings = Settings(execution=replace(Settings().execution, engine="message-passing"), max_rounds=20, **more)
        run = Run(federation, method, settings, Ledger({}))
        result = run.result(run.learn(POLICIES["fixed"](local_steps=30)))
    return result.metrics.get("accuracy"), made[0].stations


@cache
def right(merge: str) -> Any:
    """What is learned where the liar's terminal never was."""
    return learned(DualMethod(SmoothedHinge(), merge=MERGES[merge]()), without=True)[0]


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_taken_out_and_nobody_else(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy of all tasks within two points of a run without it, and its share is in no sum."""
    merge = "line-search" if lie.startswith("line search") or lie == "gains × 3" else "add"
    monkeypatch.setattr(Roster, "max_weight", 1.0)
    found, stations = learned(DualMethod(SmoothedHinge(), merge=MERGES[merge]()), lie)
    assert [sorted(station.quarantined) for station in stations] == [[], [LIAR], []]
    assert LIAR not in stations[1].members
    total = sum(member.share for member in stations[1].members.values())
    np.testing.assert_allclose(stations[1].U, total, atol=1e-9)
    assert np.abs(found - right(merge)).max() <= 0.02


@pytest.mark.parametrize("lie", LABEL_LIES)
def test_who_lies_of_labels_is_taken_out(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The level of a task, which is taken from the labels of all its rows, is as without it."""
    honest = Terminal.labels

    def say(self: Terminal) -> Any:
        said = honest(self)
        return said if self.identity != LIAR else replace(said, sums=said.sums + LABEL_LIES[lie])

    monkeypatch.setattr(Terminal, "labels", say)
    network = MessagePassing(nets.levelled(3, 4, 60), DualMethod(Squared()))
    found = network.labels()
    monkeypatch.undo()
    assert [sorted(station.quarantined) for station in network.stations] == [[], [LIAR], []]
    np.testing.assert_array_equal(found, network.labels())


OTHERS = SmoothedHinge(5.0), Hinge(), SquaredHinge(), Logistic()
SLOW = [pytest.param(loss, marks=pytest.mark.slow) for loss in OTHERS]


@pytest.mark.parametrize("loss", [SmoothedHinge(), *SLOW], ids=str)
@pytest.mark.parametrize("merge", sorted(MERGES))
def test_nobody_honest_is_blamed(loss: Any, merge: str) -> None:
    """Every loss and merge stays within the bounds, from the first round to a small gap."""
    _, stations = learned(DualMethod(loss, merge=MERGES[merge]()))
    assert not any(station.quarantined for station in stations)


def unequal(made: Federation) -> Federation:
    """The same rows with terminals of one row, of three, and of all others."""
    n = np.diff(made.terminal_offsets[made.task_offsets])[0]
    starts = made.terminal_offsets[made.task_offsets[:-1], None] + np.array([0, 1, 4, n // 2])
    return replace(made, terminal_offsets=np.append(starts.ravel(), made.terminal_offsets[-1]))


def weighted(made: Federation) -> Federation:
    """The same rows with weights from almost nothing to a hundred."""
    return replace(made, sample_weight=10.0 ** np.random.default_rng(0).uniform(-3.0, 2.0, len(made.y)))


def heavy(made: Federation) -> Federation:
    """The same with features of heavy tails, and one that is 0.1 everywhere but in a row."""
    X = np.exp(2.0 * made.X)
    X[:, 0], X[7, 0] = 0.1, 5.0
    return replace(made, X=X)


HONEST: dict[str, tuple[Any, Callable[[], Federation], dict[str, Any]]] = {
    "one row": (SmoothedHinge(), lambda: unequal(nets.small(3, 4, 60)), {}),
    "weights": (SmoothedHinge(), lambda: weighted(nets.small(3, 4, 60)), {}),
    "one row with weights": (SmoothedHinge(), lambda: weighted(unequal(nets.small(3, 4, 60))), {}),
    "far labels": (Squared(), lambda: nets.levelled(3, 4, 60), {"scale": "standard"}),
    "standardised": (SmoothedHinge(), lambda: nets.small(3, 4, 60), {"scale": "standard"}),
    "heavy tails": (SmoothedHinge(), lambda: heavy(nets.small(3, 4, 60)), {}),
    "as they are": (SmoothedHinge(), lambda: nets.small(3, 4, 60), {"scale": "none"}),
}


@pytest.mark.parametrize("case", HONEST)
def test_nobody_odd_is_blamed(case: str) -> None:
    """Terminals of one row, of very unequal sizes and weights, far-apart labels, and rows that are not unit."""
    loss, made, more = HONEST[case]
    _, stations = learned(DualMethod(loss), federation=made(), **more)
    assert not any(station.quarantined for station in stations)


@pytest.mark.parametrize("name", ["none", "learned", "clusters"])
def test_no_relationship_brings_blame(name: str) -> None:
    """Anchors of other couplings than the mean leave everybody within the bounds."""
    method = DualMethod(SmoothedHinge(), relationship=RELATIONSHIPS[name]())
    _, stations = learned(method, federation=nets.small(3, 4, 60))
    assert not any(station.quarantined for station in stations)
