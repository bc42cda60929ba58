"""A lying station among three real processes: the cloud names it, leaves it out, and learns the other tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy import nets
from tests.deploy.lying_station import LIES, lying

from rhfedmtl.deploy.local.supervisor import Supervisor
from rhfedmtl.deploy.operator import Operator
from rhfedmtl.models.task_models import TaskModels

LIAR = 1


def learned(folder: Path, lie: str = "", **learning: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Accuracy of every task after a training in which a station may lie, with the training and its station."""
    made = nets.small(3, 4, 240)
    options = {"lambda1": 0.1, "lambda2": 0.1}
    nets.build(folder, made, learning={"options": options, **learning})
    with Supervisor(folder) as supervisor:
        supervisor.start(name for name in supervisor.names if not lie or name != f"station-{LIAR}")
        operator = Operator(folder)
        operator.wait_for_cloud(nets.PATIENCE_S)
        if lie:
            with lying(folder, f"station-{LIAR}", lie):
                training = nets.trained(operator, supervisor.keep_up, budget=["energy=6000"])
        else:
            training = nets.trained(operator, supervisor.keep_up, budget=["energy=6000"])
        station = operator.command("status")["stations"][LIAR]
        operator.export(folder / "out")
    models = TaskModels.load(folder / "out" / "model.npz")
    predicted = models.predict(made.test_X, np.repeat(models.tasks, np.diff(made.test_offsets)))
    right = np.add.reduceat(predicted == models.classes[made.test_y], made.test_offsets[:-1])
    return right / np.diff(made.test_offsets), training, station


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Accuracy of every task if all stations are honest: the cloud names no station."""
    accuracy, training, station = learned(tmp_path_factory.mktemp("honest") / "net")
    assert (training["excluded"], station["excluded"]) == ({}, None)
    return accuracy


@pytest.mark.parametrize("lie", [pytest.param(lie, marks=[pytest.mark.slow] * (i % 2)) for i, lie in enumerate(LIES)])
def test_a_station_that_lies_is_named_and_left_out(lie: str, honest: Any, tmp_path: Path) -> None:
    """The other tasks are learned and certified; log, status and result name the culprit and its task."""
    accuracy, training, station = learned(tmp_path / "net", lie)
    print(f"\n {lie}: {accuracy.round(3)} honest {honest.round(3)}")  # noqa: T201
    rest = [b for b in range(3) if b != LIAR]
    reason = LIES[lie][2]
    assert list(training["excluded"]) == [f"task-{LIAR}"]
    assert reason in training["excluded"][f"task-{LIAR}"]
    assert reason in station["excluded"]
    assert training["relative_gap"] < 0.05
    (logged,) = nets.logged(tmp_path / "net", "cloud", "excluded")
    assert f"station {LIAR} told" in logged["reason"]
    models = TaskModels.load(tmp_path / "net" / "out" / "model.npz")
    assert list(models.provenance["without_certificate"]) == [f"task-{LIAR}"]
    assert np.abs(accuracy - honest)[rest].max() <= 0.05


def test_a_cloud_that_was_killed_still_knows_who_is_left_out(tmp_path: Path) -> None:
    """Over a restart, from its journal, and from the checkpoint that takes its place."""
    folder = nets.build(tmp_path / "net", nets.small(3, 2, 40), learning={"target_relative_gap": 0.0})
    nets.shorten_journals(folder, 20_000)
    name = f"station-{LIAR}"

    def left_out(status: dict[str, Any], after: int) -> bool:
        station = status["stations"][LIAR]
        return bool(station["excluded"]) and (status["training"].get("certified_round") or 0) > after

    with nets.paced(folder / "pace", nets.PAUSE_S), Supervisor(folder) as supervisor:
        supervisor.start(node for node in supervisor.names if node != name)
        operator = Operator(folder)
        operator.wait_for_cloud(nets.PATIENCE_S)
        with lying(folder, name, "report"):
            operator.command("train", budget=["energy=1e9"])
            for _ in range(3):
                nets.wait(operator, lambda s: left_out(s, 0))
                after = operator.command("status")["training"]["certified_round"]
                nets.wait(operator, lambda s, after=after: left_out(s, after + 20))  # type: ignore[misc]
                nets.restart(supervisor, "cloud")
                operator.wait_for_cloud(nets.PATIENCE_S)
            nets.wait(operator, lambda s: left_out(s, 0))
    first, *later = nets.logged(folder, "cloud", "excluded")
    assert not first["again"]
    assert all(event["again"] for event in later)
