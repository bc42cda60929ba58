"""Bad input gives a clear error or a defined result, in both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import certify, cloud_of, federation

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.scaling import scalers
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.errors import ConfigError, DataError, PeerError, ProtocolError
from rhfedmtl.maths.losses import Hinge, SmoothedHinge, Squared
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed

ENGINES = pytest.mark.parametrize("engine", [InProcess, MessagePassing])
DATA = federation()


def spoiled(array: Any, place: Any, value: Any) -> Any:
    copy = np.array(array)
    copy[place] = value
    return copy


@ENGINES
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"X": spoiled(DATA.X, (23, 2), np.nan)},
            r"row 23 \(terminal 3 of task 'task 1'\), column 2 holds nan",
        ),
        ({"X": spoiled(DATA.X, (0, 0), np.inf)}, r"row 0 \(terminal 0 of task 'task 0'\), column 0 holds inf"),
        ({"X": DATA.X.astype(np.int64), "test_X": DATA.test_X.astype(np.int64)}, "int64"),
        ({"X": DATA.X.astype(np.float16), "test_X": DATA.test_X}, "float16"),
        ({"test_X": spoiled(DATA.test_X, (1, 1), np.nan)}, "row 1 of the test rows, column 1 holds nan"),
        (
            {"terminal_offsets": np.array([0, 7, 7, 22, 27, 28, 37, 41, 43, 49])},
            "terminal 1 of task 'task 0' has no rows",
        ),
        ({"task_offsets": np.array([0, 5, 5, 9])}, "task 'task 1' has no terminals"),
        ({"sample_weight": np.full(49, -1.0)}, r"row 0 \(terminal 0 of task 'task 0'\) has the weight -1"),
        ({"sample_weight": spoiled(np.ones(49), 48, np.nan)}, r"row 48 \(terminal 8 .* has the weight nan"),
        ({"sample_weight": spoiled(np.ones(49), 3, np.inf)}, "row 3 .* has the weight inf"),
    ],
    ids=[
        "nan",
        "infinity",
        "integers",
        "half precision",
        "test rows",
        "empty terminal",
        "empty task",
        "negative weight",
        "weight nan",
        "weight infinity",
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(engine: Any, changes: dict[str, Any], message: str) -> None:
    """The error names the task, the terminal and the row, before any kernel runs."""
    with pytest.raises(DataError, match=message):
        engine(replace(DATA, **changes), DualMethod())


@ENGINES
def test_numbers_are_no_classes(engine: Any) -> None:
    """A classifier's loss on a regression names both, and the way out."""
    with pytest.raises(DataError, match=r"SmoothedHinge needs classes.*use loss 'squared'"):
        engine(federation("regression"), DualMethod())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": spoiled(DATA.y, 5, 2)}, "class code 2 has no name"),
        ({"y": spoiled(DATA.y, 5, -1)}, "class code -1 has no name"),
        ({"y": DATA.y.astype(float)}, "whole numbers"),
        ({"class_names": ("only",)}, "nothing to tell apart"),
        ({"X": DATA.X[:, :3]}, "3 features, test rows 4"),
        ({"X": DATA.X[:48]}, "pair up"),
    ],
)
def test_a_federation_that_does_not_fit_together_cannot_be_made(changes: dict[str, Any], message: str) -> None:
    """Labels outside the classes and tables of different width are refused where they are put together."""
    with pytest.raises(DataError, match=message):
        replace(DATA, **changes)


def test_labels_that_are_not_finite_are_refused() -> None:
    """A regression needs finite numbers."""
    data = federation("regression")
    with pytest.raises(DataError, match="row 4: label nan"):
        replace(data, y=spoiled(data.y, 4, np.nan))


@ENGINES
@pytest.mark.parametrize("loss", [SmoothedHinge(), Hinge(), Squared()])
def test_rows_of_zeros_have_a_defined_result(engine: Any, loss: Any) -> None:
    """Features that are all zero teach nothing: models of zero, and a certificate for them."""
    zeros = replace(DATA, X=np.zeros_like(DATA.X), test_X=np.zeros_like(DATA.test_X))
    method = DualMethod(loss, MeanRegularised(1e-2, 1e-2), intercept=False)
    network = engine(zeros, method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 60):
        network.assign(cloud.assign())
        network.round(number, np.full(9, 12))
    certificate = certify(network, cloud)
    assert not certificate.models.any()
    assert -1e-12 <= certificate.gap < 1e-6


@ENGINES
def test_a_round_without_work_changes_nothing(engine: Any) -> None:
    """H = 0 for everybody is an empty round."""
    method = DualMethod()
    network = engine(DATA, method)
    network.assign(cloud_of(network, method.relationship).assign())
    outcome = network.round(1, np.zeros(9, dtype=np.int64))
    assert not outcome.answers.any()
    assert not outcome.factor.any()
    assert not network.V.any()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_a_plan_needs_whole_steps(steps: Any) -> None:
    """H = 0 is refused where it is asked for."""
    with pytest.raises(ConfigError, match="local_steps"):
        Fixed(local_steps=steps)


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan")])
def test_a_method_refuses_a_loss_that_makes_no_sense(gamma: float) -> None:
    """γ ≤ 0 is refused when the method is put together."""
    with pytest.raises(ConfigError, match="gamma > 0"):
        DualMethod(SmoothedHinge(gamma))


@ENGINES
def test_rounds_need_anchors_and_go_forward(engine: Any) -> None:
    """Both engines name the same mistakes of who drives them."""
    network = engine(DATA, DualMethod())
    with pytest.raises(ProtocolError, match=r"without an anchor|no anchor yet"):
        network.round(1, np.full(9, 2))
    network.assign(cloud_of(network, DualMethod().relationship).assign())
    network.round(2, np.full(9, 2))
    with pytest.raises(ProtocolError, match="cannot follow"):
        network.round(2, np.full(9, 2))


@ENGINES
def test_models_of_another_shape_are_not_probed(engine: Any) -> None:
    """A model shorter than the rows would be read beyond its end."""
    network = engine(DATA, DualMethod())
    with pytest.raises(PeerError, match="shape"):
        network.sums(Points(np.zeros((1, 3, 1, 2)), np.eye(1)))


@ENGINES
def test_scaling_comes_before_the_first_round(engine: Any) -> None:
    """Rows under learned duals must not change; told twice, they are scaled once."""
    method = DualMethod()
    network = engine(DATA, method)
    used = scalers(network.moments(), "standard-unit")
    network.scale(used)
    network.scale(used)
    moments = network.moments()
    assert sum(np.sum(m.spread + m.count * m.mean**2) for m in moments) == pytest.approx(len(DATA.X))
    network.assign(cloud_of(network, method.relationship).assign())
    network.round(1, np.full(9, 2))
    with pytest.raises(ProtocolError, match="before the first round"):
        network.scale(used)


def test_nobody_moves_to_a_place_that_is_not_there() -> None:
    """An unknown terminal or station leaves everything as it was."""
    network = InProcess(DATA, DualMethod())
    for terminal, station in ((9, 0), (-1, 0), (0, 3), (0, -2)):
        with pytest.raises(ProtocolError, match="no move"):
            network.move(terminal, station)
    np.testing.assert_array_equal(network.station, DATA.terminal_task)


def test_weights_of_zero_are_absent_rows() -> None:
    """A task whose rows all weigh nothing ends at the mean of the others, and the gap stays sound."""
    weight = np.where(DATA.row_task == 1, 0.0, 1.0)
    method = DualMethod(relationship=MeanRegularised(1e-2, 1.0))
    network = InProcess(replace(DATA, sample_weight=weight), method)
    cloud = cloud_of(network, method.relationship)
    for number in range(1, 400):
        network.assign(cloud.assign())
        network.round(number, np.full(9, 12))
        certificate = certify(network, cloud)
    assert certificate.gap >= -1e-12
    W = certificate.models[:, 0]
    np.testing.assert_allclose(W[1], W.mean(axis=0) * 1.0 / 1.01, rtol=1e-3)
