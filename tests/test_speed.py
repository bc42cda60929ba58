"""The jobs that `benchmarks/speed.py` compares do the same work, and no figure is missing. No test asserts on time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import speed
from benchmarks import speed_kernels as kernels
from benchmarks import speed_liblinear as solver
from benchmarks import speed_timing as timing

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.maths.kernels import numpy_kernel, sdca
from rhfedmtl.maths.losses import Hinge, SmoothedHinge, SquaredHinge
from rhfedmtl.maths.relationships import Unrelated
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings
from tests.reference.sdca import ascend
from tests.reference.sdca import visits as plain_visits

SCRIPT = (sys.executable, str(Path(speed.__file__).resolve()))


def small_problem() -> tuple[np.ndarray, np.ndarray]:
    """Unit rows in single precision, and labels 0 and 1."""
    X, y = solver.problem(rows=200, d=12, seed=1)
    return X.astype(np.float32), y


def test_the_touched_rows_are_those_of_a_round() -> None:
    """The loop that only reads rows visits the rows of a round of another seed, in its order."""
    sizes = np.array([3, 5, 2])
    order = kernels.visits(sizes, 7, 4)
    for t, start in enumerate((0, 3, 8)):
        expected = plain_visits(int(kernels.OTHER_SEED), 4, t, int(sizes[t]), 7)
        np.testing.assert_array_equal(order[t] - start, expected)


def test_touching_rows_is_compared_with_a_round() -> None:
    """The loop that only reads rows compiles and runs; both times are positive."""
    times = kernels.stream_fraction(12, 4, 4, megabytes=0.01, repeats=2)
    assert times["ns_per_step"] > 0.0 < times["touch_ns_per_step"]


def test_the_yardstick_takes_the_steps_of_the_library() -> None:
    """Coordinate steps in NumPy give the update and the gains of plain loops over the same order."""
    rng = np.random.default_rng(0)
    X, y, steps = rng.normal(size=(6, 4)), rng.choice([-1.0, 1.0], 6), 15
    alpha, w = 0.3 * y, rng.normal(size=4)
    again = np.random.default_rng(7)
    order = np.concatenate([again.permutation(6) for _ in range(3)])[:steps]
    norm = np.square(X).sum(axis=1)
    delta, gains = kernels.numpy_round(X, y, norm, alpha, w.copy(), 2.0, np.random.default_rng(7), steps)
    plain = ascend(SmoothedHinge(), X, y[:, None], alpha[:, None], w[None], 2.0, order.tolist())
    np.testing.assert_allclose(delta, plain.delta[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gains, plain.gains, rtol=1e-5, atol=1e-7)


def test_plain_python_takes_the_steps_of_the_numpy_kernel() -> None:
    """Without numba the loops of the compiled kernel give the update and the gains of the NumPy kernel."""
    a_pass, copy = kernels.one_terminal(12, 5), kernels.interpreted()
    assert copy is not sdca
    for plain, other in zip(a_pass(copy.run_round), a_pass(numpy_kernel.ascend), strict=True):
        np.testing.assert_allclose(plain, other, rtol=1e-12, atol=1e-15)
    assert sys.modules[copy.__name__] is sdca


@pytest.mark.slow
def test_our_gap_is_the_one_that_the_run_certifies() -> None:
    """The gap that judges liblinear equals the certificate for our own models and duals."""
    X, y = small_problem()
    method = DualMethod(SquaredHinge(), relationship=Unrelated(solver.LAMBDA), intercept=False)
    result = train(solver.one_terminal(X, y), method, Fixed(len(X), 1, 5), Settings(scale="none"))
    labels = np.where(y > 0, 1.0, -1.0)
    w = result.models[0, 0]
    best = solver.gap_of(X, labels, w, labels * np.maximum(0.0, 1.0 - labels * (X @ w)), SquaredHinge())
    assert best >= -1e-12
    assert result.certificate.relative_gap >= -1e-12
    long = train(solver.one_terminal(X, y), method, Fixed(len(X), 1, 3000), Settings(scale="none", certify_every=500))
    primal, dual = long.certificate.primal, long.certificate.dual
    assert long.certificate.relative_gap == pytest.approx((primal - dual) / primal)
    w = long.models[0, 0]
    alpha = labels * np.maximum(0.0, 1.0 - labels * (X @ w))
    assert solver.gap_of(X, labels, w, alpha, SquaredHinge()) < 1e-4


@pytest.mark.parametrize("loss", [SquaredHinge(), pytest.param(Hinge(), marks=pytest.mark.slow)])
def test_liblinear_solves_the_problem_that_we_solve(loss: SquaredHinge | Hinge) -> None:
    """The gap of liblinear's model and ours are both below the gap that both must reach."""
    X, y = small_problem()
    assert -1e-9 <= solver.solve_by_liblinear(X, y, loss)["gap"] <= solver.GAP
    assert -1e-12 <= solver.solve_here(X, y, loss).certificate.relative_gap <= solver.GAP


@pytest.mark.slow
def test_figures_of_kernels_are_whole() -> None:
    """Every figure is a positive number, on the smallest of problems too."""
    figures = [
        *kernels.stream_fraction(9, 4, 2, megabytes=0.01, repeats=3).values(),
        *kernels.thread_speedup(2, repeats=3).values(),
        kernels.numpy_ratio(3, repeats=3)["ratio"],
        *kernels.interpreted_ratio(4, 3, repeats=3).values(),
        kernels.small_round(repeats=3),
    ]
    assert all(np.isfinite(number) and number >= 0.0 for number in figures)


def test_rounds_are_measured_in_a_process_of_their_own() -> None:
    """A fresh process measures time and memory of a small network with the given sizes."""
    figures = timing.rounds_of(20, 5, samples=3, d=4, steps=2, threads=1)
    assert (figures["terminals"], figures["tasks"], figures["d"]) == (20, 5, 4)
    assert figures["ns_per_step"] == pytest.approx(1e9 * figures["seconds"] / (20 * 2))
    assert figures["data_mb"] == pytest.approx(20 * 3 * 4 * 4 / 1e6)


def test_large_federations_repeat_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the drawn numbers are copies, of unit norm."""
    monkeypatch.setattr(timing, "DISTINCT", 40)
    data = timing.federation(2, 3, 4, 5)
    assert data.X.shape == (24, 5)
    np.testing.assert_array_equal(data.X[:8], data.X[8:16])
    np.testing.assert_allclose(np.linalg.norm(data.X, axis=1), 1.0, rtol=1e-6)


def test_the_script_runs_from_any_folder(tmp_path: Path) -> None:
    """`benchmarks/speed.py --help` lists its options, wherever the user stands."""
    shown = subprocess.run([*SCRIPT, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--quick" in shown.stdout
    assert "--json" in shown.stdout


def test_the_table_has_every_main_ratio() -> None:
    """The table of the quick figures has a line for every main ratio, and for each number of features."""
    figures = {name: 0.5 for name, _, _ in speed.MAIN}
    assert len(speed.text({**figures, "numpy_step_ratio": {"9": 100.0}}).splitlines()) == len(speed.MAIN) + 1


@pytest.mark.slow
def test_the_quick_benchmark_gives_all_ratios(tmp_path: Path) -> None:
    """`benchmarks/speed.py --quick --json` prints a JSON object with all ratios."""
    done = subprocess.run([*SCRIPT, "--quick", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    ratios = {name for name, _, _ in speed.MAIN}
    assert figures.keys() == ratios | {"numpy_step_ratio", "gap_problem", "details", "machine"}
    assert all(figures[name] > 0.0 for name in ratios - {"memory_beyond_data"})
    assert set(figures["numpy_step_ratio"]) == {"9", "561"}
