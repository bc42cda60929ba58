"""The GPU engine against engine `inprocess`, on a card, or with Triton's interpreter in the place of one."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.problems import cloud_of, federation

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.algorithms.sgd import SgdMethod
from rhfedmtl.data.scaling import scalers
from rhfedmtl.engines.gpu import card as gpu_card
from rhfedmtl.engines.gpu.engine import Gpu
from rhfedmtl.engines.gpu.terminals import interpreted
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.errors import ConfigError, MissingExtraError
from rhfedmtl.maths.losses import Hinge, SmoothedHinge
from rhfedmtl.maths.objective import Points
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.roles.messages import Anchor

# Triton's interpreter turns arrays of one number into numbers.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
METHOD = DualMethod(relationship=MeanRegularised(1e-2, 3e-2))


@pytest.fixture
def card() -> type[Gpu]:
    """The engine, where there is a card, or with kernels that Python runs."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'rhfedmtl[gpu]'")
    pytest.importorskip("triton", reason="needs Triton: pip install 'rhfedmtl[gpu]'")
    if not interpreted() and not torch.cuda.is_available():
        pytest.skip("no GPU, and TRITON_INTERPRET=1, with which kernels run in Python, is not set")
    if interpreted() and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton's interpreter does not work with NumPy 2.4 and later")
    return Gpu


def test_kernels_are_called_with_their_arguments() -> None:
    """Calls name arguments that a kernel has, and all that it needs; a machine without a card runs no such call."""
    folder = Path(inspect.getfile(gpu_card)).parent
    kernels = {
        node.name: [argument.arg for argument in node.args.args]
        for node in ast.parse((folder / "kernels.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    called = set()
    for node in ast.walk(ast.parse((folder / "terminals.py").read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        name, arguments = ast.unparse(node.func.value).rpartition("._kernels.")[2], node.args
        keywords = {keyword.arg for keyword in node.keywords}
        open_ended = None in keywords or any(isinstance(argument, ast.Starred) for argument in arguments)
        rest = kernels[name][len(arguments) :]
        assert keywords - {None, "num_warps", "num_stages"} <= set(rest), name
        assert open_ended or set(rest) <= keywords, name
        called.add(name)
    assert called == {"draw_rows", "ascend", "follow_profile", "settle", "add_up", "add_blocks"}


def numbers(network: Any, method: DualMethod, *, late: bool = False, most: int = 14) -> list[Any]:
    """Everything that comes out of a run with drop-outs, idle terminals, moves and rows that arrive late."""
    rng = np.random.default_rng(3)
    cloud = cloud_of(network, method.relationship)
    network.scale(scalers(network.moments(), "standard-unit"))
    n, seen = len(network.station), []
    for number in (1, 2, 4):
        network.assign(cloud.assign())
        steps = rng.integers(0, most + 1, size=n)
        seen += network.round(number, steps, rng.random(n) < 0.7 if number == 2 else None)
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
        certificate = cloud.certify(network.sums(cloud.candidates()))
        assert certificate is not None
        seen += [np.array([certificate.primal, certificate.dual]), certificate.models, network.V, network.alpha.copy()]
        network.move(number % n, 0)
        if late:
            network.grow(0, 1)
    return [*seen, network.V, network.station.copy(), network.sizes]


def assert_close(left: list[Any], right: list[Any]) -> None:
    """Equal up to the rounding of single precision."""
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6 * max(1e-3, float(np.abs(one).max())))


@pytest.mark.parametrize("merge", ["average", "line-search"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_card_gives_the_numbers_of_the_processor(card: Any, loss: str, merge: str) -> None:
    """Models, duals, certificates and gains agree up to single precision, for every loss, with weights and columns."""
    uniform = loss == "hinge"  # its passes are refused, see below
    method = DualMethod(LOSSES[loss](), MeanRegularised(1e-2, 3e-2), MERGES[merge](), intercept=True, uniform=uniform)
    kind = "regression" if loss == "squared" else "classes"
    data = federation(kind, sizes=((7, 3, 18), (5, 4)), d=20, weighted=True, dtype=np.float32)
    assert_close(*(numbers(engine(data, method, seed=4), method) for engine in (InProcess, card)))


@pytest.mark.parametrize("uniform", [False, True])
def test_small_decks_and_large_ones_are_shuffled_alike(card: Any, uniform: bool) -> None:
    """Decks of up to 16 rows are kept in one number, larger ones in memory: the draws are those of the processor."""
    method = DualMethod(relationship=MeanRegularised(1e-2, 3e-2), uniform=uniform)
    for sizes in (((4, 16), (1, 9)), ((4, 17), (1, 40))):
        data = federation(sizes=sizes, dtype=np.float32)
        assert_close(*(numbers(engine(data, method, seed=4), method) for engine in (InProcess, card)))


def test_terminals_that_visit_no_row_twice_agree(card: Any) -> None:
    """Changes of one pass or less are stored together when a terminal is done; those of more at every step."""
    data = federation(sizes=((7, 8, 18), (5, 40)), dtype=np.float32)
    assert_close(*(numbers(engine(data, METHOD, seed=4), METHOD, most=5) for engine in (InProcess, card)))


def test_many_blocks_are_added_up_in_groups(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stations of several blocks, in several launches and sums of sums, give what the processor gives."""
    monkeypatch.setattr(gpu_card, "CARD_VISITS", 100)
    monkeypatch.setattr(gpu_card, "ADDENDS", 2)
    data = federation(sizes=((2,) * 70, (3,) * 17), dtype=np.float32)
    assert_close(*(numbers(engine(data, METHOD, seed=4), METHOD) for engine in (InProcess, card)))


def test_gradient_rounds_on_the_card_are_those_of_the_processor(card: Any) -> None:
    """The gradient replaces the duals of earlier steps, at any λ_b; the model stays at the centre."""
    data, results = federation(sizes=((7, 8), (5, 4)), dtype=np.float32), []
    for engine, lam in ((InProcess, 0.5), (card, 0.5), (card, 1e-9)):
        network = engine(data, METHOD, seed=4)
        centre = np.random.default_rng(1).normal(size=network.shape)
        for number, work in ((1, ASCENT), (2, GRADIENT)):
            network.assign([Anchor(number, b, centre, 0.5 if work == ASCENT else lam, work=work) for b in range(2)])
            network.round(number, network.sizes)
        results.append([network.V, network.alpha.copy(), network.models])
    assert_close(*results[:2])
    assert_close(*results[1:])


def test_rows_that_arrive_late_are_not_seen_before(card: Any) -> None:
    """Terminals that begin with a part of their rows agree as well, with moments of the rows that are there."""
    data = federation(sizes=((7, 3, 12), (5, 4)), dtype=np.float32)
    present = np.array([4, 3, 11, 5, 4])
    engines = (engine(data, METHOD, seed=4, present=present) for engine in (InProcess, card))
    assert_close(*(numbers(engine, METHOD, late=True) for engine in engines))


def test_a_run_on_the_card_goes_on_from_its_state(card: Any) -> None:
    """What was put away and taken up again gives the same as a run that was never interrupted."""
    data = federation(sizes=((7, 3), (5, 4)), dtype=np.float32)
    whole, parts, fresh = (card(data, METHOD, seed=4) for _ in range(3))
    cloud = cloud_of(whole, METHOD.relationship)
    anchors = cloud.assign()
    for network in (whole, parts, fresh):
        network.assign(anchors)
    for network in (whole, parts):
        network.round(1, np.full(4, 6))
    fresh.resume(parts.state())
    for network in (whole, fresh):
        network.round(2, np.full(4, 6))
    np.testing.assert_array_equal(whole.V, fresh.V)
    np.testing.assert_array_equal(whole.alpha, fresh.alpha)


@pytest.mark.parametrize("loss", ["smoothed-hinge", "logistic"])
def test_the_gradient_uses_scaled_rows(card: Any, loss: str) -> None:
    """The last certificate of a run needs it; the dual variables do not change."""
    data = federation(sizes=((7, 8, 18), (5, 4)), weighted=True, dtype=np.float32)
    method, slopes = DualMethod(LOSSES[loss](), MeanRegularised(1e-2, 3e-2)), []
    for engine in (InProcess, card):
        network = engine(data, method, seed=4)
        network.scale(scalers(network.moments(), "standard-unit"))
        network.assign(cloud_of(network, method.relationship).assign())
        network.round(1, network.sizes)
        before = network.alpha.copy()
        models = np.random.default_rng(2).normal(size=(1, 2, *network.shape))
        sums = network.sums(Points(models, np.ones((1, 1)), gradient=True))
        slopes.append([station_sums.gradient for station_sums in sums])
        np.testing.assert_array_equal(network.alpha, before)
    assert_close(*slopes)


def test_restored_duals_make_the_sums_anew(card: Any) -> None:
    """U_b = Σ_t X_tᵀα_t after a start from given duals."""
    data = federation(sizes=((7, 3), (5, 4)), dtype=np.float32)
    alpha = np.random.default_rng(0).random((19, 1))
    networks = [engine(data, METHOD) for engine in (InProcess, card)]
    for network in networks:
        network.restore(alpha)
    np.testing.assert_allclose(networks[1].V, networks[0].V, rtol=1e-12, atol=1e-14)


def test_what_the_card_cannot_do_is_refused(card: Any) -> None:
    """Gradient methods, losses without a kernel and passes of the hinge are named, with the engine that has them."""

    class Own(SmoothedHinge):
        """A loss of the user."""

    data = federation(dtype=np.float32)
    for method in (SgdMethod(), DualMethod(Own()), DualMethod(Hinge())):
        with pytest.raises(ConfigError, match="inprocess"):
            card(data, method)


def test_without_a_gpu_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch is missing the error says what to install; where there is no GPU it names another engine."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    try:
        import torch
        import triton  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"pip install 'rhfedmtl\[gpu\]'"):
            Gpu(federation(), METHOD)
        return
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="inprocess"):
        Gpu(federation(), METHOD)


def test_shapes_on_the_card_hold_every_row() -> None:
    """Two parts of a power of two cover what is read of a row, for any number of features."""
    for features in (*range(1, 200), 561, 1000, 4096, 16384):
        shape = gpu_card.CardLayout(features, True)
        assert shape.features <= shape.filled <= shape.stride
        assert shape.main + shape.rest >= shape.filled
        assert shape.main <= shape.stride
        models = np.arange(2.0 * (features + 1)).reshape(2, features + 1)
        np.testing.assert_array_equal(shape.cut(shape.pad(models, np.float64)), models)
