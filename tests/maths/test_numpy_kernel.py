"""The kernel in NumPy gives the numbers of the compiled one, and a terminal needs no compiler to work with it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.maths.kernels import compiled_kernel, numpy_kernel, rounds
from rhfedmtl.maths.kernels.kernel import gradients
from rhfedmtl.maths.kernels.rounds import Slots
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.roles.messages import Anchor
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal

D, COLUMNS = 5, 2
ZERO = np.zeros(1, dtype=np.int64)
COMPILED_LAST = ("hinge", "squared-hinge")
"""Losses whose gradient steps are compiled for no other test."""
SLOTS = {
    "one model": Slots(1e-2, np.zeros(1), ZERO, False, 0),
    "held where it started": Slots(1e-2, np.array([0.4]), ZERO, False, 0),
    "shared and own": Slots(1e-2, np.array([0.0, 0.4]), np.zeros(2, dtype=np.int64), False, 0),
    "mixture": Slots(1e-2, np.zeros(3), np.arange(3), True, 0),
    "probed": Slots(1e-2, np.zeros(1), ZERO, False, 2),
    "following": Slots(1e-2, np.array([0.0, 0.4]), np.zeros(2, dtype=np.int64), False, 0, inner=3, outer=0.3),
    "corrected": Slots(1e-2, np.zeros(1), ZERO, False, 0, control=0.0),
    "corrected by a share": Slots(1e-2, np.zeros(1), ZERO, False, 0, control=0.2),
}
MATRIX = {"one model": 2, "held where it started": 2, "mixture": 7}


def rows_of(loss: str, intercept: bool) -> rounds.Rows:
    """Three terminals with rows of several weights, some of them zero."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(24, COLUMNS)) if loss == "squared" else rng.choice([-1.0, 1.0], size=(24, COLUMNS))
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], size=24)
    X = rng.normal(size=(24, D))
    ids = np.array([4, 7, 9])
    return rounds.make_rows(X, y, np.array([0, 9, 10, 24]), ids=ids, weight=weight, constant=0.4 if intercept else 0.0)


def orders_of(number: int, shape: tuple[int, int], uniform: bool, scale: float = 3.0) -> rounds.Orders:
    """H within a pass and beyond it; in the last round the first station asks for gradients."""
    models = 0.3 * np.random.default_rng(number).normal(size=(2, *shape))
    steps = np.array([5, 3, 40])
    gradient = np.array([number == 3, False])
    return rounds.Orders(models, np.full(2, scale), steps, np.uint64(3), np.uint64(number), uniform, gradient)


def close(left: Any, right: Any) -> None:
    """Equal to 1e-12 relative to the largest."""
    for a, b in zip(left, right, strict=True):
        finite = np.isfinite(a)
        np.testing.assert_array_equal(finite, np.isfinite(b))
        largest = np.abs(np.asarray(a)[finite]).max(initial=1.0)
        np.testing.assert_allclose(np.asarray(b)[finite], np.asarray(a)[finite], rtol=1e-12, atol=1e-12 * largest)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_coordinate_steps_are_those_of_the_compiled_kernel(loss: str, intercept: bool, uniform: bool) -> None:
    """Answers, profiles, pending changes, sums and shares over rounds with all kinds of verdicts."""
    given, rows = LOSSES[loss](), rows_of(loss, intercept)
    layout = rounds.make_layout(np.array([0, 0, 1]), 2, rows.ids)
    length = 3 if given.quadratic else len(rounds.FACTORS)
    shape = (COLUMNS, D + intercept)
    found = []
    for kernel in (compiled_kernel, numpy_kernel):
        duals, seen = rounds.make_duals(rows), []
        for number, factors in enumerate(([0.0, 0.0, 0.0], [1.0, 0.0, 0.5], [0.25, 1.0, 1.0]), start=1):
            duals.settle[:] = factors
            orders = orders_of(number, shape, uniform)
            seen += kernel.ascend(given, rows, layout, duals, orders, profile_length=length)
            seen += [duals.pending.copy(), kernel.profiles(given, rows, layout, duals, length)]
        duals.settle[:] = [0.5, 1.0, 0.0]
        models, points = orders_of(9, shape, uniform).models, np.array([[1.0, 0.0], [0.25, 0.5], [0.0, 0.0]])
        seen += kernel.sums(given, rows, layout, duals, np.stack([models, -models[::-1]]), points)
        seen += [gradients(kernel, given, rows, layout, models)]
        seen += [duals.alpha.copy(), kernel.shares(rows, layout, duals, shape[1])]
        found.append(seen)
    close(*found)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("kind", SLOTS)
@pytest.mark.parametrize("loss", [pytest.param(n, marks=pytest.mark.slow) if n in COMPILED_LAST else n for n in LOSSES])
def test_gradient_steps_are_those_of_the_compiled_kernel(loss: str, kind: str, uniform: bool) -> None:
    """Every arrangement of slots, with estimates, and with what corrected steps keep of their rows."""
    rows, shape = rows_of(loss, intercept=True), (MATRIX.get(kind, 2 * COLUMNS), D + 1)
    layout = rounds.make_layout(np.array([0, 0, 1]), 2, rows.ids)
    orders = orders_of(2, shape, uniform, scale=0.05)
    found = []
    for kernel in (compiled_kernel, numpy_kernel):
        duals = rounds.make_duals(rows)
        duals.alpha[:] = np.random.default_rng(1).normal(size=duals.alpha.shape)
        answers = kernel.descend(LOSSES[loss](), rows, layout, duals, orders, SLOTS[kind])
        found.append([*answers, duals.pending])
    close(*found)


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("loss", LOSSES)
def test_merged_models_are_those_of_the_compiled_kernel(loss: str, merge: str) -> None:
    """A station and two terminals with weighted rows, some rounds: models, shares and certificates' sums."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, D))
    y = rng.normal(size=(20, 1)) if loss == "squared" else rng.choice([-1.0, 1.0], size=(20, 1))
    weight = rng.choice([0.5, 1.0, 2.0], size=20)
    method = DualMethod(LOSSES[loss](), merge=MERGES[merge]())
    found = []
    for kernel in (compiled_kernel, numpy_kernel):
        parts = (slice(0, 8), slice(8, 20))
        terminals = [Terminal(t, X[p], y[p], method, weight=weight[p], kernel=kernel) for t, p in enumerate(parts)]
        station = BaseStation(0, terminals[0].shape, method)
        for terminal in terminals:
            station.roster.admit(terminal.join())
        station.receive_anchor(Anchor(1, 0, np.zeros(station.shape), 0.1))
        for number in range(1, 6):
            for order in station.open_round(number, {0: 8, 1: 15}):
                station.receive(terminals[order.terminal].work(order))
            station.close_round()
        probes = station.probes(station.model[None], np.eye(1), gradient=True)
        sums = station.add_sums([terminals[probe.terminal].probe(probe) for probe in probes])
        found.append([station.model, station.U, sums.losses, sums.dual])
    close(*found)


LIGHT = """
import sys
for name in ("numba", "llvmlite", "scipy", "sklearn", "typer", "rich", "pandas", "matplotlib"):
    sys.modules[name] = None
import numpy as np
from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Add, LineSearch
from rhfedmtl.maths.kernels.rounds import dual_sums
from rhfedmtl.maths.registry import LOSSES
from itertools import product
from rhfedmtl.roles.channel import Float32, Int8
from rhfedmtl.roles.messages import Anchor, Scaling
from rhfedmtl.roles.station import BaseStation
from rhfedmtl.roles.terminal import Terminal
from rhfedmtl.data.scaling import Moments, Scaler
rng = np.random.default_rng(0)
X = rng.normal(size=(30, 4)) + 2.0
y = np.where(X @ [1.0, -1.0, 0.5, 0.0] > 1.0, 1.0, -1.0)[:, None]
for loss, (merge, channel) in product(LOSSES.values(), ((Add, Int8), (LineSearch, Float32))):
    method = DualMethod(loss(), merge=merge(), channel=channel())
    terminal = Terminal(0, X, y, method)
    report = terminal.moments()
    moments = Moments(report.count, report.mean, report.spread)
    terminal.scale(Scaling.of(Scaler.from_moments(moments, "standard-unit")))
    station = BaseStation(0, terminal.shape, method)
    station.roster.admit(terminal.join())
    station.receive_anchor(Anchor(1, 0, np.zeros(terminal.shape), 1e-2))
    for number in range(1, 30):
        for order in station.open_round(number, {0: 30}):
            station.receive(terminal.work(order))
        station.close_round()
    for probe in station.probes(station.model[None], np.eye(1), gradient=True):
        sums = station.add_sums([terminal.probe(probe)])
    v = station.v
    primal = sums.losses[0] / 30 + 0.5e-2 * np.sum(station.model**2)
    gap = primal - (dual_sums(sums.dual[None])[0] / 30 - np.sum(v * v) / 2e-2)
    assert abs(gap) < 5e-2 * primal, (loss, gap, primal)
    scores = Scaler.from_moments(moments, "standard-unit").transform(X) @ station.model[0, :4] + station.model[0, 4]
    assert np.mean(np.sign(scores) == y[:, 0]) > 0.9
print("trained")
"""


def test_a_terminal_trains_without_a_compiler() -> None:
    """Roles, channel, round zero and all losses, where nothing but NumPy can be imported."""
    run = subprocess.run([sys.executable, "-c", LIGHT], check=False, capture_output=True, text=True, timeout=300)
    assert run.stdout == "trained\n", run.stderr
