"""What a channel does to updates: one by one and many at once, with what it keeps back and how large it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp
from tests.roles.channels import SAMPLES

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.errors import ConfigError
from rhfedmtl.roles.channel import Clip, FixedPoint, Int8, Rounding, settled
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.messages import Update, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal

NUMBERS = st.floats(-1e6, 1e6)
UPDATES = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 20)), elements=NUMBERS)
ROUNDINGS = {name: channel for name, channel in SAMPLES.items() if isinstance(channel, Rounding)}


@pytest.mark.parametrize("name", SAMPLES)
@given(delta=UPDATES, seed=st.integers(0, 100))
def test_a_terminal_alone_sends_what_it_sends_among_others(name: str, delta: Any, seed: int) -> None:
    """To the bit: deployments and simulations agree."""
    residual = np.random.default_rng(seed).normal(size=delta.shape)
    together = SAMPLES[name].send(delta, residual)
    for t in range(len(delta)):
        alone = SAMPLES[name].send(delta[t : t + 1], residual[t : t + 1])
        np.testing.assert_array_equal(alone.delta[0], together.delta[t])
        np.testing.assert_array_equal(alone.factor[0], together.factor[t])
        if alone.residual is not None and together.residual is not None:
            np.testing.assert_array_equal(alone.residual[0], together.residual[t])


@pytest.mark.parametrize("name", SAMPLES)
def test_large_updates_are_the_same_alone_and_among_others(name: str) -> None:
    """Sums over thousands of numbers are taken in the same order too."""
    delta = np.random.default_rng(0).normal(size=(7, 3, 1001))
    together = SAMPLES[name].send(delta, None).delta
    for t in range(7):
        np.testing.assert_array_equal(SAMPLES[name].send(delta[t : t + 1], None).delta[0], together[t])


@given(delta=UPDATES, bound=st.floats(1e-3, 1e3))
def test_clipping_is_a_factor_that_keeps_to_the_bound(delta: Any, bound: float) -> None:
    """Short updates pass as they are, long ones keep their direction."""
    sent = Clip(bound).send(delta, None)
    norms = np.linalg.norm(sent.delta.reshape(len(delta), -1), axis=1)
    assert (norms <= bound * (1 + 1e-12)).all()
    assert (sent.factor <= 1.0).all()
    np.testing.assert_array_equal(sent.delta, sent.factor[:, None, None] * delta)
    short = np.linalg.norm(delta.reshape(len(delta), -1), axis=1) < bound * (1 - 1e-12)
    np.testing.assert_array_equal(sent.delta[short], delta[short])


@pytest.mark.parametrize("name", ROUNDINGS)
@given(delta=UPDATES)
def test_rounding_loses_nothing_and_is_done_once(name: str, delta: Any) -> None:
    """What is sent and what is kept back are the update, and what the wire holds exactly is not rounded again."""
    channel = ROUNDINGS[name]
    sent = channel.send(delta, np.zeros_like(delta))
    assert sent.residual is not None
    np.testing.assert_allclose(sent.delta + sent.residual, delta, rtol=1e-15, atol=1e-300)
    np.testing.assert_array_equal(channel.rounded(sent.delta), sent.delta)


@given(delta=UPDATES)
def test_eight_bits_hold_whole_multiples_of_a_power_of_two(delta: Any) -> None:
    """Each update has its own step, none is more than twice as coarse as it must be, and all fit into a byte."""
    rounded = Int8().rounded(delta)
    for wanted, sent in zip(delta, rounded, strict=True):
        largest = np.abs(wanted).max()
        step = next(step for step in 2.0 ** np.arange(-1074.0, 20.0) if 127.0 * step >= largest)
        multiples = sent / step
        np.testing.assert_array_equal(multiples, multiples.astype(np.int8))
        assert np.abs(wanted - sent).max() <= step / 2.0


@given(factors=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5]), min_size=1, max_size=30))
def test_what_is_kept_back_makes_up_for_what_was_not_sent(factors: list[float]) -> None:
    """What a station holds and the residual are the exact share, whatever factors and drops there were."""
    rng, channel = np.random.default_rng(len(factors)), Int8()
    residual, held, true = (np.zeros((1, 1, 8)) for _ in range(3))
    for factor in factors:
        delta = rng.normal(size=(1, 1, 8)) * 10.0 ** rng.integers(-3, 3)
        sent = channel.send(delta, residual)
        assert sent.residual is not None
        residual = settled(residual, sent.residual, factor)
        held, true = held + factor * sent.delta, true + factor * delta
    np.testing.assert_allclose(held + residual, true, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "update", "model"),
    [
        ("float32", (4, 2), (4, 2)),
        ("int16", (2, 11), (2, 13)),
        ("int8", (1, 11), (1, 13)),
        ("fixed-point", (8, 11), (8, 0)),
    ],
)
def test_a_message_is_as_large_as_its_numbers_on_the_wire(
    name: str, update: tuple[int, int], model: tuple[int, int]
) -> None:
    """Fewer bytes for each number, how they are written, the step where there is one, and the model it is added to."""
    plain, small = (message_sizes((2, 50), 2, 3, SAMPLES[each]) for each in ("identity", name))
    report = (8, 0) if name == "fixed-point" else (4, 2)
    for kind, (a_number, more) in {"update": update, "order": model, "anchor": model, "report": report}.items():
        saved = getattr(plain, kind) - getattr(small, kind)
        assert abs(saved - (8 - a_number) * 100 + more) <= 4  # lengths take fewer bytes, too
    assert plain.named == small.named < plain.order - 800


@pytest.mark.parametrize("name", SAMPLES)
def test_a_restarted_terminal_sends_the_same(name: str) -> None:
    """What is kept back is part of the state: an answer after a restart is that of a terminal that was never away."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 3)), rng.choice([-1.0, 1.0], size=(6, 1))
    method = DualMethod(channel=SAMPLES[name])
    stayed, restarted = (Terminal(7, *rows, method) for _ in range(2))
    stayed.join()
    order = WorkOrder(1, 7, np.zeros((1, 4)), 0.5, 9, Verdict(0, 0.0, 0, 1))
    assert stayed.work(order) is not None
    restarted.restore(stayed.state)
    later = replace(order, round=2, verdict=Verdict(1, 0.5, 1, 1))
    one, other = stayed.work(later), restarted.work(later)
    assert isinstance(one, Update)
    assert isinstance(other, Update)
    np.testing.assert_array_equal(one.delta, other.delta)
    np.testing.assert_array_equal(SAMPLES[name].send(one.delta[None], None).delta[0], one.delta)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bounds_and_steps_that_are_none_are_refused(bad: float) -> None:
    """A channel that would send nothing, or nothing but zeros, is a mistake."""
    for channel in (Clip, FixedPoint):
        with pytest.raises(ConfigError, match=f"> 0, got {bad}"):
            channel(bad)
