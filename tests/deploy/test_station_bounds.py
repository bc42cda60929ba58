"""The cloud refuses no honest station: over losses, channels, couplings, scalings, weights and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.test_liars import HONEST, unequal, weighted
from tests.roles.channels import SAMPLES
from tests.turns import in_turn

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.federation import Federation
from rhfedmtl.deploy.cloud.checks import StationBounds
from rhfedmtl.deploy.node.config import Limits
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.maths.losses import Hinge, Logistic, SmoothedHinge, Squared, SquaredHinge
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.plausibility import ImplausibleError
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings

CLASSIFIERS = SmoothedHinge(), SmoothedHinge(0.1), SmoothedHinge(5.0), Hinge(), SquaredHinge(), Logistic()
assert {type(loss) for loss in (*CLASSIFIERS, Squared())} == {type(LOSSES[name]()) for name in LOSSES.own}, (
    "every loss is tried"
)


class Checked(MessagePassing):
    """A network that checks reports and sums as a cloud checks real stations."""

    checks = 0

    def scale(self, scalers: Any) -> None:
        """Note how long rows are."""
        super().scale(scalers)
        weights = self._federation.sample_weight
        ends = np.split(np.arange(len(self._federation.X)), self._federation.terminal_offsets[1:-1])
        heaviest = 1.0 if weights is None else max(1.0, *(float(weights[rows].mean()) for rows in ends))
        norm = scalers[0].radius(self.shape[1], intercept=self.method.intercept)
        self.bounds = StationBounds(self.method, Limits(weight=heaviest), self.shape[0], norm)

    def reports(self, cloud_round: int) -> Any:
        """Check each of them."""
        reports = super().reports(cloud_round)
        for report in reports:
            self.bounds.check_report(report, len(self.stations[report.task].members))
        self.shares = {report.task: max(report.n_samples, 1) * report.v for report in reports}
        Checked.checks += 1
        return reports

    def sums(self, points: Points) -> Any:
        """Check each of them."""
        answers = super().sums(points)
        for sums in answers:
            assert sums is not None
            share = self.shares[sums.task] if self.method.has_duals else None
            self.bounds.check_sums(sums, points.models[:, sums.task], points.combinations, share)
        Checked.checks += 1
        return answers


def learn(
    method: Any,
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    policy: str = "",
    local_steps: int = 30,
    **more: Any,
) -> None:
    """Some rounds of a network that is checked."""
    monkeypatch.setattr("rhfedmtl.engines.message_passing.MessagePassing", Checked)
    Checked.checks = 0
    settings = Settings(execution=replace(Settings().execution, engine="message-passing"), max_rounds=12, **more)
    run = Run(federation, method, settings, Ledger({}))
    run.result(run.learn(POLICIES[policy]() if policy else POLICIES["fixed"](local_steps=local_steps)))
    assert Checked.checks > 12
    assert not any(station.quarantined for station in run.network.stations)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("channel", "loss"), in_turn(SAMPLES, CLASSIFIERS), ids=str)
def test_no_loss_and_no_channel_brings_blame(channel: str, loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default policy takes quasi-Newton steps too, where gradients take the place of sums."""
    merges = ["auto"] if channel == "masked" else ["auto", "line-search", "average"]
    for merge in merges:
        method = DualMethod(loss, merge=MERGES[merge](), channel=SAMPLES[channel])
        learn(method, nets.small(3, 4, 60), monkeypatch, policy="measured")


@pytest.mark.parametrize("channel", SAMPLES)
@pytest.mark.parametrize("scale", ["standard", "standard-unit", "none"])
def test_no_regression_brings_blame(channel: str, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that lie far apart, and a loss without a box."""
    learn(DualMethod(Squared(), channel=SAMPLES[channel]), nets.levelled(3, 4, 60), monkeypatch, scale=scale)


CASES: dict[str, Callable[[], Federation]] = {
    "one row": lambda: unequal(nets.small(3, 4, 60)),
    "weights": lambda: weighted(nets.small(3, 4, 60)),
    "three classes": lambda: nets.small(3, 4, 60, classes=3),
    "one row with weights": lambda: weighted(unequal(nets.small(3, 4, 60))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss", [SmoothedHinge(), Logistic(), SquaredHinge()], ids=str)
@pytest.mark.parametrize("channel", ["identity", "int8"])
def test_no_odd_rows_bring_blame(case: str, loss: Any, channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, weights from almost nothing to a hundred, several columns."""
    learn(DualMethod(loss, channel=SAMPLES[channel]), CASES[case](), monkeypatch)


@pytest.mark.parametrize("case", HONEST)
def test_no_odd_station_is_blamed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases in which no terminal is blamed."""
    loss, made, more = HONEST[case]
    learn(DualMethod(loss), made(), monkeypatch, **more)


@pytest.mark.parametrize(
    ("loss", "steps", "lambda1"), in_turn([*CLASSIFIERS, Squared()], [1, 7, 3000], [1e-7, 1e-2, 10.0]), ids=str
)
def test_no_work_brings_blame(loss: Any, steps: int, lambda1: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders from a step to many passes, small and large weights, and rows in single precision."""
    made = nets.small(2, 3, 45) if loss.classifier else nets.levelled(2, 3, 45)
    for federation in (made, replace(made, X=made.X.astype(np.float32))):
        for merge in ("add", "line-search"):
            method = DualMethod(loss, RELATIONSHIPS["mean"](lambda1, 1e-2), merge=MERGES[merge]())
            learn(method, federation, monkeypatch, local_steps=steps, scale="standard-unit")


@pytest.mark.parametrize("relationship", sorted(RELATIONSHIPS))
def test_no_coupling_brings_blame(relationship: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weak and strong."""
    for weights in ((0.01, 0.01), (1e-3, 10.0)):
        method = DualMethod(SmoothedHinge(), RELATIONSHIPS[relationship](*weights))
        learn(method, nets.small(3, 4, 60), monkeypatch)


def test_a_report_beyond_the_box_is_refused() -> None:
    """The norm that brought all tasks to chance: 5, where unit rows and the box allow about 1."""
    from rhfedmtl.roles.messages import Report

    bounds = StationBounds(DualMethod(SmoothedHinge()), Limits(), 1, 1.25)
    v = np.eye(1, 21)
    bounds.check_report(Report(1, 0, 1, 1.25 * v, 40, 1), 4)
    with pytest.raises(ImplausibleError, match=r"station 0 told a report.* of norm 200, where 50\.5 is possible"):
        bounds.check_report(Report(1, 0, 1, 5.0 * v, 40, 1), 4)
