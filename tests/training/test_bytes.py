"""A byte budget counts all that messages take, certificates among them, and pays for the last one from the start."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.shards import LOCAL
from tests.reference.problems import federation
from typer.testing import CliRunner

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.cli.main import app
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import Moments, Scaler
from rhfedmtl.deploy.wire import codec
from rhfedmtl.deploy.wire import wire_pb2 as wire
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import BudgetError, ConfigError, DataError
from rhfedmtl.maths.quasi_newton import ASCENT, GRADIENT, Work
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.resources.billing import event_totals
from rhfedmtl.resources.costs import read_resources
from rhfedmtl.resources.events import RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.sizes import framed
from rhfedmtl.roles.channel import Int8
from rhfedmtl.roles.message_sizes import message_sizes, round_zero_bytes
from rhfedmtl.roles.messages import (
    EMPTY,
    ENVELOPE,
    FLOAT64,
    Anchor,
    Message,
    MomentsReport,
    Probe,
    Report,
    Scaling,
    Sums,
    Update,
    Verdict,
    WorkOrder,
)
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import Run, train
from rhfedmtl.training.settings import Settings


def learn(budget: str = "", engine: str = "inprocess", **settings: object) -> Result:
    """A few rounds with bytes at one each."""
    cost, limits = read_resources(None, [budget] if budget else None, default=["bytes"])
    how = Settings(max_rounds=12, execution=Execution(engine), **settings)  # type: ignore[arg-type]
    return train(federation(), DualMethod(), Fixed(5), how, ledger=Ledger(cost, limits))


def certificates(result: Result) -> list[int]:
    """Rounds whose certificates were charged."""
    return [event.round for event in result.events if event.round and not event.merges]


@pytest.mark.parametrize("engine", ["inprocess", "message-passing"])
def test_every_certificate_is_charged(engine: str) -> None:
    """With bytes that cost and are not limited, in every round, and its gradient; not where evaluation is free."""
    result, free = (learn(engine=engine, free_evaluation=each) for each in (False, True))
    assert certificates(result) == [*range(1, 13), 12]
    assert not certificates(free)
    assert result.ledger.spent["bytes"] > 1.5 * free.ledger.spent["bytes"]
    np.testing.assert_array_equal(result.models, free.models)


@pytest.mark.parametrize(("channel", "most"), [("identity", 1.25), ("int16", 0.4), ("int8", 0.25)])
def test_a_round_with_its_certificate_takes_few_vectors_down(channel: str, most: float) -> None:
    """Ascent and search, from first to last: what terminals can make of models that they know is not sent."""
    built = build("rhfedmtl", Options.of(channel=channel), "classification")
    data = federation(sizes=[[6, 5, 7]] * 3, d=1000)
    result = train(data, built.method, built.policy, Settings(max_rounds=32), ledger=Ledger("bytes=byte:1"))
    solvers = {seen.solver for seen in result.observed}
    down = sum(float(np.mean(e.bytes_down)) for e in result.events if e.round and isinstance(e, RoundEvent))
    assert len(solvers) == 2
    assert down / (8 * 1001 * result.rounds) < most


@pytest.mark.parametrize(("name", "station_rounds"), [("permfl", 2), ("hierfavg", 2), ("fedavg", None)])
def test_certificates_spare_no_models_that_have_changed(name: str, station_rounds: int | None) -> None:
    """What terminals are told by a certificate, an order need not carry; any other model it must."""
    data = Request("synthetic", tasks=3, terminals=2, settings={"features": 300, "samples": 20}).federation(0)
    built = build(name, Options.of(local_steps=5, station_rounds=station_rounds, cloud_rounds=4), data.kind)
    often, never = (
        train(
            data, built.method, built.policy, Settings(certify_every=every), ledger=Ledger("bytes=terminal_byte_down:1")
        )
        for every in (1, 1000)
    )
    assert often.rounds == never.rounds
    assert often.ledger.spent["bytes"] >= never.ledger.spent["bytes"]


def test_a_limit_makes_certificates_rare_and_reserves_the_last() -> None:
    """They cost a tenth of the rounds on the way, and the last round has one; nothing is overspent."""
    whole = learn().ledger.spent["bytes"]
    result = learn(f"bytes={whole / 2}")
    assert result.certificate.round == result.rounds == certificates(result)[-1]
    assert len(certificates(result)) <= 2
    assert whole / 4 < result.ledger.spent["bytes"] <= whole / 2


def test_a_budget_without_its_last_certificate_is_refused() -> None:
    """Before anything was sent but round zero."""
    zero, one = (sum(c.total for c in learn().ledger.log.charges if c.round == number) for number in (0, 1))
    told = rf"budget bytes={zero + one / 2:.12g}, of which bytes=\d+ is spent before it, cannot pay one round"
    with pytest.raises(BudgetError, match=told):
        learn(f"bytes={zero + one / 2}")


def test_a_budget_that_is_refused_says_what_is_kept_and_what_would_help() -> None:
    """The sum of what is named is more than the budget; before the first round other steps would not help."""
    zero, one = (sum(c.total for c in learn().ledger.log.charges if c.round == number) for number in (0, 1))
    with pytest.raises(BudgetError, match="cannot pay one round") as refused:
        learn(f"bytes={zero + 0.9 * one}")
    budget, spent, kept, *_, costs = (float(each) for each in re.findall(r"bytes=([\d.]+)", str(refused.value)))
    assert f"bytes={kept:.12g} is kept for its certificate" in str(refused.value)
    assert spent + kept + costs > budget
    with pytest.raises(BudgetError, match=r"means and spreads of their rows and which costs .* as --scale unit does"):
        learn(f"bytes={zero / 10}")


def test_a_budget_with_nothing_to_spare_for_certificates_on_the_way_pays_a_round() -> None:
    """Once the last one is set aside."""
    first = Run(federation(), DualMethod(), Settings(), Ledger("bytes=byte:1", "bytes=1e9")).situation()
    least = event_totals(first.prices, first.cloud_event(), first.round_event(1), first.certificate_event())
    budget = first.ledger.spent["bytes"] + 1.01 * least["bytes"]
    result = train(federation(), DualMethod(), Measured(), ledger=Ledger("bytes=byte:1", f"bytes={budget}"))
    assert result.rounds == 1


def test_more_bytes_certify_more_where_tasks_are_all_but_one() -> None:
    """Server iterations take bytes, but rounds in their stead win nothing where the cloud couples tasks strongly."""
    data = Request("synthetic", tasks=5, terminals=3, settings={"features": 60, "samples": 60}).federation(0)
    built = build("rhfedmtl", Options.of(lambda1=1e-3, lambda2=1.0), data.kind)
    gaps = []
    for budget in (1.5e5, 2e5, 3e5, 4e5, 8e5):
        ledger = Ledger("bytes=byte:1", {"bytes": budget})
        gaps.append(train(data, built.method, built.policy, Settings(), ledger=ledger).certificate.relative_gap)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3


@pytest.mark.parametrize("d", [10, 100, 1000])
def test_sizes_are_those_of_the_wire(d: int) -> None:
    """Protobuf as it is written, up to a few bytes for whole numbers."""
    w, gains = np.random.default_rng(d).normal(size=(1, d)), np.ones(8)
    verdict, single = Verdict(7, 0.5, 7, 1), Int8.moments_dtype
    moments = Moments.of(np.random.default_rng(d).normal(size=(70, d)))
    scaler = Scaler.from_moments(moments, "standard-unit")
    said: list[Message] = [
        WorkOrder(8, 3, w, 2.0, 100, verdict),
        Update(8, 3, w, gains, np.ones(3)),
        Probe(3, 5, np.stack([w, w]), np.ones((26, 2)), False, verdict),
        Sums(3, 5, np.ones(26), np.ones(2), np.empty(0)),
        WorkOrder(8, 3, w, 2.0, 100, verdict, work=GRADIENT),
        Anchor(4, 1, w, 0.5),
        Anchor(4, 1, w, 0.5, work=GRADIENT),
        Report(4, 1, 8, w, 70, 1),
        Report(4, 1, 8, Int8().reported(w), 70, 1, Int8.report_dtype),
        MomentsReport.of(3, moments, FLOAT64),
        MomentsReport.of(3, moments, single),
        Scaling.of(scaler),
        Scaling.of(scaler.rounded(single), single),
    ]
    for message in said:
        written = framed(len(codec.to_wire(message).SerializeToString()))
        assert written <= message.n_bytes <= written + 20


@pytest.mark.parametrize("work", [ASCENT, GRADIENT])
def test_a_round_is_charged_what_its_orders_and_anchors_take_on_their_streams(work: Work) -> None:
    """An engine charges no less than the stream carries, and hardly more, for both kinds of work."""
    w, sizes = np.random.default_rng(0).normal(size=(1, 50)), message_sizes((1, 50), 1, 0)
    order, anchor = WorkOrder(8, 3, w, 2.0, 100, Verdict(7, 0.5, 7, 1), work=work), Anchor(4, 1, w, 0.5, work=work)
    for charged, sent in (
        (sizes.order, wire.TerminalDown(order=codec.to_wire(order))),
        (sizes.anchor, wire.StationDown(request=wire.Request(id=9, assign=codec.to_wire(anchor)))),
    ):
        written = framed(len(sent.SerializeToString()))
        assert written <= charged <= written + ENVELOPE


def test_round_zero_takes_half_the_bytes_where_numbers_are_rounded() -> None:
    """As charged, of terminals and stations, up and down: the messages, and an empty one for each of them."""
    data = federation(sizes=[[6, 5], [7]], d=1000)
    told, zero = {}, {}
    for channel in ("identity", "int8"):
        built = build("rhfedmtl", Options.of(channel=channel), "classification")
        run = Run(data, built.method, Settings(), Ledger("bytes=byte:1"))
        moments = MomentsReport.of(0, run.network.moments()[0], built.method.channel.moments_dtype)
        scaling = Scaling.of(run.units.scalers[0], built.method.channel.moments_dtype)
        told[channel] = round_zero_bytes(1000, channel=built.method.channel)
        assert told[channel] == ((moments.n_bytes + EMPTY, scaling.n_bytes + EMPTY),) * 2
        zero[channel] = run.ledger.spent["bytes"]
        assert zero[channel] == (3 + 2) * sum(told[channel][0])
    assert 0.5 < zero["int8"] / zero["identity"] < 0.51


@pytest.mark.parametrize("engine", LOCAL)
def test_a_column_that_single_precision_cannot_tell_is_refused_by_name(engine: str) -> None:
    """Before anything is learned, whoever adds up; in double precision it is no trouble."""
    data = federation()
    X, names = data.X.copy(), tuple(f"x{j}" for j in range(data.n_features))
    X[:, 2] += 1.7e9
    stamped = replace(data, X=X, feature_names=names)
    for channel in ("int8", "identity"):
        built = build("rhfedmtl", Options.of(channel=channel), "classification")
        settings = Settings(execution=Execution(engine), max_rounds=1)
        with (
            pytest.raises(DataError, match=r"column 'x2' has a mean of 1\.7e\+09")
            if channel == "int8"
            else nullcontext()
        ):
            train(stamped, built.method, Fixed(1), settings)


def test_precision_is_the_word_for_channels_that_round(tmp_path: Path) -> None:
    """With one byte a number more rounds fit into the same bytes; all of them are counted."""
    found = {}
    for precision in ("float64", "int8"):
        words = ["train", "--budget", "bytes=400000", "--precision", precision, "--json", "--out", str(tmp_path)]
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        found[precision] = json.loads(told.stdout)
        assert found[precision]["spent"]["bytes"] <= 400000
    assert found["int8"]["rounds"] >= found["float64"]["rounds"]
    both = CliRunner().invoke(app, ["train", "--precision", "int8", "--channel", "clip", "--out", str(tmp_path)])
    assert isinstance(both.exception, ConfigError)
