"""Private runs: only clipped updates in noise and one certificate leave, and what they tell is never overspent."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from tests.conformance.test_engines_agree import assert_same, script
from tests.engines.shards import sharded
from tests.reference.problems import cloud_of, federation
from typer.testing import CliRunner

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.merges import Add
from rhfedmtl.algorithms.options import Options
from rhfedmtl.cli.main import app
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.message_passing import MessagePassing
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError, PeerError
from rhfedmtl.maths.gaussian_privacy import delta_of, largest_term, mu_of
from rhfedmtl.maths.losses import Hinge, Logistic, SmoothedHinge
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.certificates import NoisedCertificate
from rhfedmtl.roles.channel import Noised, NoisedSums
from rhfedmtl.roles.messages import Anchor, Noising, Probe, Scaling, Verdict, WorkOrder
from rhfedmtl.roles.terminal import Terminal
from rhfedmtl.runs.recording import record
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.privacy import Privacy, Released, certificate, private
from rhfedmtl.training.result import Result
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

MANY = Request(
    data="synthetic", tasks=2, terminals=60, settings={"samples": 8, "features": 6, "test": 50, "unequal": 0.4}
)
BOUND = "epsilon=4,delta=1e-3"
CONFIG = RunConfig(request=MANY, budget=("energy=1e5",), privacy=BOUND, noise_from_seed=True)


def run(config: RunConfig = CONFIG, engine: str = "inprocess") -> Result:
    """One run."""
    config.check()
    return config.run(config.federation(), execution=Execution(engine))


@pytest.mark.parametrize("loss", ["smoothed-hinge", "logistic"])
def test_noise_is_the_same_batched_message_by_message_and_in_shards(loss: str) -> None:
    """With drop-outs and moves, in several columns: every station draws at its own address."""
    method = DualMethod(LOSSES[loss](), MeanRegularised(1e-2, 3e-2), Add(), channel=Noised(0.3, 0.2))
    data = federation("classes", sizes=((7, 3, 12), (5, 4), (9, 4, 2, 6)))
    batched, *others = (engine(data, method, seed=4) for engine in (InProcess, MessagePassing, sharded))
    found = script(batched, method)
    for other in others:
        assert_same(found, script(other, method))
        np.testing.assert_allclose(other.station_shares(), batched.station_shares(), atol=1e-12)


def test_the_sum_differs_from_the_duals_by_the_noise_alone() -> None:
    """U_b = Σ_t X_tᵀα_t + Ξ_b with Ξ of the stated deviation, and no gain is told."""
    data = federation(sizes=((6,) * 20,), d=40)
    method = DualMethod(merge=Add(), intercept=False, channel=Noised(0.05, 0.7))
    network = InProcess(data, method, seed=3)
    network.assign(cloud_of(network, method.relationship).assign())
    outcomes = [network.round(k, np.full(20, 6)) for k in range(1, 26)]
    noise = network.state().U - network.station_shares()
    assert noise.std() == pytest.approx(0.7 * 5.0, rel=0.35)
    assert all(not outcome.gains.any() for outcome in outcomes)


def test_without_a_seed_noise_is_nobody_elses() -> None:
    """From the operating system: normal, and never the same again."""
    channel = Noised(1.0, 2.0)
    first, second = (channel.received(np.zeros((100, 200)), None, 1) for _ in range(2))
    assert not np.array_equal(first, second)
    assert first.std() == pytest.approx(2.0, rel=0.03)
    assert np.mean(np.abs(first) < 2.0) == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize("algorithm", ["rhfedmtl", "local", "hfedmtl", "fedavg", "cocoa+", "ditto"])
def test_what_is_spent_stays_within_the_bound(algorithm: str) -> None:
    """ε of the ledger's μ² is at most the one given, and the rounds are those of the plan."""
    config = replace(CONFIG, algorithm=algorithm)
    result = run(config)
    made = record(config, config.federation(), result)
    assert made.result is not None
    assert made.result.privacy is not None
    plan = made.result.privacy
    assert 0.99 * 4.0 <= made.result.spent["epsilon"] <= 4.0
    assert made.result.spent["privacy"] <= mu_of(4.0, 1e-3) ** 2 * (1 + 1e-12)
    assert result.rounds == plan["rounds"]
    assert plan["clip"] / plan["noise"] == pytest.approx(math.sqrt(plan["update_price"]))
    assert Ledger.replay(result.ledger.cost, result.ledger.budget, result.events) == result.ledger
    assert isinstance(result.certificate, NoisedCertificate)
    if algorithm in ("fedavg", "ditto"):
        assert result.certificate.words == "not certified"
    else:
        assert made.result.certified == result.certificate.words
        assert plan["certificate"]["probability"] == 1.0 - 1e-6


def delta_by_brute_force(epsilon: float, releases: list[float]) -> float:
    """E[(1 − e^(ε − L))₊], L the privacy loss: of each release normal, with mean μ²/2 and variance μ², convolved."""
    step, total = 2e-3, np.array([1.0])
    lowest = 0
    for mu in releases:
        edges = np.arange(-math.ceil(9.0 * mu / step), math.ceil(9.0 * mu / step) + 1)
        chance = np.diff(norm.cdf((edges + 0.5) * step / mu), prepend=0.0)
        total, lowest = np.convolve(total, chance), lowest + int(edges[0])
    loss = (lowest + np.arange(len(total))) * step + sum(mu**2 for mu in releases) / 2.0
    return float(total[loss > epsilon] @ -np.expm1(epsilon - loss[loss > epsilon]))


def test_with_drop_outs_no_terminal_tells_more_than_the_ledger_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By brute force over the rounds that each was in: less for who missed some, δ itself for who missed none."""
    held: list[Any] = []

    def seen(self: InProcess, number: int, steps: Any, arrives: Any = None) -> Any:
        held.append(arrives)
        return hold(self, number, steps, arrives)

    hold = InProcess.round
    monkeypatch.setattr(InProcess, "round", seen)
    result = run(replace(CONFIG, faults="dropout=0.1"))
    assert result.private is not None
    rounds = np.sum(held, axis=0)
    assert rounds.min() < rounds.max() == len(held)
    update, last = math.sqrt(result.private.update_price), math.sqrt(result.private.certificate_price)
    epsilon = result.private.privacy.spent(result.ledger.spent["privacy"])
    found = {n: delta_by_brute_force(epsilon, [update] * n + [last]) for n in sorted(set(rounds.tolist()))}
    assert found[len(held)] == pytest.approx(1e-3, rel=1e-3)
    assert all(found[n] < 0.9 * found[m] for n, m in pairwise(found))


def test_the_ledger_refuses_another_round() -> None:
    """After the plan there is nothing left to tell, whatever else is."""
    result = run()
    with pytest.raises(Exception, match="privacy"):
        result.ledger.charge(result.events[1])


def test_engines_agree_on_private_runs() -> None:
    """Models, certificate and bill, with drop-outs."""
    config = replace(CONFIG, faults="dropout=0.3")
    batched, linked = (run(config, engine) for engine in ("inprocess", "message-passing"))
    np.testing.assert_array_equal(batched.models, linked.models)
    assert batched.certificate.gap == linked.certificate.gap
    assert batched.ledger == linked.ledger


def test_the_plan_keeps_to_the_budget() -> None:
    """A small budget pays for fewer rounds, each with less noise, and is not overspent."""
    rich, poor = run(), run(replace(CONFIG, budget=("energy=250",)))
    assert poor.rounds < rich.rounds
    assert poor.ledger.spent["energy"] <= 250.0
    assert poor.private is not None
    assert rich.private is not None
    assert poor.private.noise / poor.private.clip < rich.private.noise / rich.private.clip
    assert poor.ledger.spent["privacy"] == pytest.approx(rich.ledger.spent["privacy"])


@pytest.mark.parametrize(("terminals", "rows", "features"), [(300, 16, 32), (600, 4, 16), (150, 64, 32)])
def test_a_plan_says_about_what_is_lost(terminals: int, rows: int, features: int) -> None:
    """Points lost against learning without privacy, within a factor of 1.6, in the mean of four seeds."""
    made = {"samples": rows, "features": features, "test": 4000}
    request = Request(data="synthetic", tasks=1, terminals=terminals, settings=made)
    lost = []
    for seed in range(4):
        config = RunConfig(request=request, budget=("energy=1e6",), scale="unit", seed=seed)
        private_run, free = run(replace(config, privacy="epsilon=0.5,delta=1e-6", noise_from_seed=True)), run(config)
        lost.append(np.mean(free.metrics["accuracy"]) - np.mean(private_run.metrics["accuracy"]))
    assert private_run.private is not None
    assert 1 / 1.6 < private_run.private.buys[1]["lost"] / np.mean(lost) < 1.6
    assert private_run.private.enough_terminals > terminals


def test_a_private_model_is_kept_with_its_certificate(tmp_path: Any) -> None:
    """The file says what the run said."""
    result = run()
    TaskModels.from_result(CONFIG.federation(), result, SmoothedHinge()).save(tmp_path / "model.npz")
    assert repr(TaskModels.load(tmp_path / "model.npz").certificate) == repr(result.certificate)


REFUSED: dict[str, dict[str, Any]] = {
    "--scale unit": {"scale": "standard-unit"},
    "--merge add": {"options": Options(merge="line-search")},
    "weights as numbers": {"options": Options(lambda2="auto")},
    "leave --policy out": {"options": Options(policy="measured")},
    "fedavg for adaptive-fl": {"algorithm": "adaptive-fl"},
    "rhfedmtl for lbfgs": {"algorithm": "lbfgs"},
    "--target-gap": {"target_gap": 1e-3},
    "--certify-every": {"certify_every": 5},
    "out of --faults": {"faults": "moves=0.1"},
    "smoothed-hinge": {"options": Options(loss="squared-hinge")},
    "leave it out": {"options": Options(channel="int8")},
    "epsilon=1,delta=1e-6": {"privacy": "delta=1e-6"},
    "choose from epsilon": {"privacy": "eps=1"},
    "needs a number": {"privacy": "epsilon=much"},
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_would_tell_more_is_refused_with_the_way_out(way: str) -> None:
    """Before any data is read."""
    with pytest.raises(ConfigError, match=way):
        replace(CONFIG, **REFUSED[way]).check()


@pytest.mark.parametrize(("option", "held"), [("masked", "texts"), ("privacy", "texts"), ("privacy", "gaps")])
@pytest.mark.parametrize("network", [False, True])
def test_what_terminals_would_tell_of_a_table_is_refused(tmp_path: Path, option: str, held: str, network: bool) -> None:
    """Words, and under a bound what fills gaps, which no noise hides: by `train` and by `network init`."""
    cell = {"texts": ("red", "blue"), "gaps": ("1", "")}[held]
    lines = [f"{t % 2},{t % 8},{t},{cell[t % 3 == 0]},{t % 5 < 2}" for t in range(160)]
    (tmp_path / "t.csv").write_text("\n".join(["site,device,a,b,y", *lines]) + "\n")
    given = ["--path", str(tmp_path / "t.csv"), "--label", "y", "--task", "site", "--terminal", "device"]
    given += ["--masked"] if option == "masked" else ["--privacy", BOUND]
    start = ["network", "init", str(tmp_path / "net")] if network else ["train", "--budget", "energy=1000"]
    found = CliRunner().invoke(app, [*start, *given])
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception).startswith(f"column 'b' {'holds' if held == 'texts' else 'has'} {held}")
    assert f"leave --{option} out" in str(found.exception)


def test_masked_terminals_bring_the_noise_themselves() -> None:
    """Engines agree to the bit; m terminals bring m parts of it, of which the plan and the certificate know."""
    config = replace(CONFIG, options=Options.of(channel="masked", least_summed=15))
    first, second = (run(config, engine) for engine in ("inprocess", "message-passing"))
    np.testing.assert_array_equal(first.models, second.models)
    assert first.certificate.gap == pytest.approx(second.certificate.gap, rel=1e-6)
    assert first.ledger.spent["privacy"] <= Privacy.parse(BOUND).mu ** 2 * (1.0 + 1e-9)
    alone = run().private
    assert first.private is not None
    assert alone is not None
    assert first.private.predicted_noise > alone.predicted_noise
    assert first.private.enough_terminals > alone.enough_terminals
    lost = [each["lost"] for each in alone.buys]
    assert [each["epsilon"] / alone.epsilon for each in alone.buys] == [0.5, 1.0, 2.0, 4.0]
    assert lost == sorted(lost, reverse=True)


@pytest.mark.parametrize("residual", [None, 0.3])
def test_what_is_sent_is_never_longer_than_the_bound(residual: float | None) -> None:
    """Rounded, and with what was kept back before; duals that are not clipped stay as they are."""
    rng, channel = np.random.default_rng(0), NoisedSums(2.0**-6, 3, 1.0, 2.0)
    delta = rng.normal(size=(50, 2, 30)) * 10.0 ** rng.uniform(-3, 2, size=(50, 1, 1))
    kept = None if residual is None else residual * rng.uniform(-1, 1, size=delta.shape) * channel.grid_step
    sent = channel.send(delta, kept)
    norms = np.sqrt(np.square(sent.delta).sum(axis=(1, 2)))
    assert norms.max() <= 1.0
    assert norms.max() > 0.8
    assert (sent.factor < 1.0).any()
    assert (sent.factor == 1.0).any()
    whole = sent.factor[:, None, None] * delta + (0.0 if kept is None else kept)
    np.testing.assert_allclose(sent.delta + sent.residual, whole, atol=1e-12)


def _private_terminal(*, unit: bool = True) -> Terminal:
    """One of a masked private network, with an update pending that was clipped."""
    rng = np.random.default_rng(0)
    terminal = Terminal(
        0, rng.normal(size=(12, 6)), np.sign(rng.normal(size=(12, 1))), Options(channel="masked").method("classes")
    )
    terminal.scale(Scaling(np.empty(0), np.empty(0), unit))
    terminal.hide(Noising(0.05, 1.0, 1e-6))
    terminal.join()
    update = terminal.work(WorkOrder(1, 0, np.zeros(terminal.shape), 1.0, 12, Verdict(incarnation=1)))
    assert update is not None
    assert 0.04 < np.linalg.norm(update.delta) <= 0.05
    return terminal


@pytest.mark.parametrize("factor", [1e9, 1.5, -1.0, math.nan, math.inf])
def test_no_verdict_makes_an_answer_longer_than_the_bound(factor: float) -> None:
    """A station that claims to have applied an update a billion times would get residuals, or duals, so large."""
    terminal = _private_terminal()
    before = terminal.state
    told = Verdict(1, factor, 1, 1)
    with pytest.raises(PeerError, match="from 0 to 1"):
        terminal.work(WorkOrder(2, 0, np.zeros(terminal.shape), 1.0, 12, told))
    with pytest.raises(PeerError, match="from 0 to 1"):
        terminal.probe(Probe(0, 1, np.zeros((1, *terminal.shape)), np.ones((1, 1)), False, told, noise=100.0))
    np.testing.assert_array_equal(terminal.state.alpha, before.alpha)
    assert terminal.pending is before.update


def test_a_certificate_is_priced_for_rows_of_unit_norm_alone() -> None:
    """Rows that a station had scaled by anything else, and noise that is none, cost all that there is."""
    probe = Probe(0, 1, np.ones((1, 1, 7)), np.ones((1, 1)), False, Verdict(1, 1.0, 1, 1), noise=100.0)
    terminal = _private_terminal()
    price = terminal.certificate_price(probe)
    told = terminal.probe(probe)
    assert told is not None
    assert 0.0 < told.losses[0] <= math.sqrt(price) * 100.0
    assert _private_terminal(unit=False).certificate_price(probe) == math.inf
    for none in (None, 0.0, -1.0, math.nan, 1e-300):
        assert terminal.certificate_price(replace(probe, noise=none)) == math.inf


def _delta_on_grid(width: float, parts: int, shift: int, epsilon: float) -> float:
    """δ(ε) of a sum of rounded Gaussian parts of this width in steps, moved by whole steps: exactly, by its law."""
    from scipy.stats import norm

    reach = int(12 * width)
    k = np.arange(-reach, reach + 1)
    one = norm.cdf((k + 0.5) / width) - norm.cdf((k - 0.5) / width)
    law = np.array([1.0])
    for _ in range(parts):
        law = np.convolve(law, one)
    moved, law = np.append(np.zeros(shift), law), np.append(law, np.zeros(shift))
    return float(np.maximum(moved - math.exp(epsilon) * law, 0.0).sum())


def test_parts_of_noise_on_a_grid_tell_no_more_than_is_counted() -> None:
    """Four steps wide, δ is at most that of the formula; on a grid that is too coarse it is not."""
    for parts in (2, 3, 10):
        for shift in (1, 5, 20):
            mu = shift / (4.0 * math.sqrt(parts))
            for epsilon in (0.1, 0.5, 1.0, 2.0):
                assert _delta_on_grid(4.0, parts, shift, epsilon) <= delta_of(epsilon, mu) * (1.0 + 1e-9) + 1e-15
    coarse = 0.2
    assert _delta_on_grid(coarse, 2, 1, 1.0) > 1.05 * delta_of(1.0, 1.0 / (coarse * math.sqrt(2.0)))
    with pytest.raises(ConfigError, match="4 steps are the least"):
        NoisedSums(2.0**-6, 4, 0.01, 2.0**-4)


def test_row_weights_are_refused() -> None:
    """They are nobody's to know."""
    with pytest.raises(ConfigError, match="leave the weights out"):
        private("rhfedmtl", Options(), federation(weighted=True), Ledger({}), Privacy(1.0))


@pytest.mark.parametrize("loss", [SmoothedHinge(0.5), SmoothedHinge(1.0), Hinge(), Logistic()])
def test_no_row_tells_more_of_a_certificate_than_is_hidden(loss: Any) -> None:
    """L + L* + αz is at most τ for every z within reach and α in the box, and τ is attained."""
    z, b = np.meshgrid(np.linspace(-3.0, 3.0, 61), np.linspace(0.0, 1.0, 21))
    terms = [loss.value(x, 1.0) + loss.conjugate(a, 1.0) + a * x for x, a in zip(z.flat, b.flat, strict=True)]
    assert max(terms) == pytest.approx(largest_term(loss, 3.0))
    assert min(terms) >= -1e-12


@pytest.mark.parametrize("seed", range(4))
def test_the_certificate_bounds_the_distance_from_the_best(seed: int) -> None:
    """P(W) − P* ≤ e + b for the noise that was really drawn, at unit rows, after few noisy rounds."""
    config = replace(CONFIG, seed=seed)
    data = config.federation()
    built, plan = private("rhfedmtl", Options(), data, Ledger({}), Privacy(4.0, 1e-3))
    method = built.method
    assert isinstance(method, DualMethod)
    found = train(data, method, built.policy, Settings(scale="unit", certify_every=10**9, seed=seed))
    network = InProcess(data, method, seed=seed)
    network.scale(found.scalers)
    cloud = cloud_of(network, method.relationship)
    for k in range(plan.rounds):
        network.assign(cloud.assign())
        network.round(k + 1, np.full(data.n_terminals, plan.local_steps))
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
    shares, n = network.station_shares(), np.diff(data.terminal_offsets[data.task_offsets])
    released = Released(method, method.relationship, cloud.V, np.full(2, plan.rounds * plan.noise**2), seed)
    said = certificate(plan, released, network)
    noise = (network.state().U - shares) / n[:, None, None]
    exact, silent = replace(plan, certificate_price=1e30), replace(released, noise=np.zeros(2))
    e = certificate(exact, silent, network).gap
    b = method.relationship.dual_energy(noise) / (2 * data.n_tasks)
    best = _best(data, method)
    from rhfedmtl.models.certify import certify

    weights = Options.of(lambda1=plan.lambda1, lambda2=plan.lambda2)
    models = replace(TaskModels.from_result(data, found, method.loss), models=said.models)
    primal = certify(models, data, lambda1=weights.lambda1, lambda2=weights.lambda2).primal
    assert primal - best <= e + b + 1e-9
    assert e + b <= said.gap


def _best(data: Federation, method: DualMethod) -> float:
    plain = DualMethod(method.loss, method.relationship)
    from rhfedmtl.policies.fixed import Fixed

    settings = Settings(scale="unit", target_relative_gap=1e-5, max_rounds=3000, certify_every=50)
    return train(data, replace(plain, merge=Add()), Fixed(8, 1), settings).certificate.dual


def test_an_audit_finds_no_more_than_is_claimed_and_finds_half_of_the_noise() -> None:
    """A canary terminal, in or out, in whole rounds of the engine: the best attack there is, with teeth.

    The canary's one row always wants to move by more than C, and nobody else moves, so Σ_k ⟨Δ_k, x⟩ is the likelihood
    ratio. At every threshold P(in) ≤ e^ε P(out) + δ, but for chance; with half of the noise that is broken.
    """
    epsilon, rounds, runs = 1.0, 3, 2000
    mu = 0.8
    delta = delta_of(epsilon, mu)
    clip = 1.0 / rounds
    claimed = clip * math.sqrt(rounds) / mu
    assert delta - 0.05 <= _excess(epsilon, clip, claimed, rounds, runs) <= delta + 0.05
    assert _excess(epsilon, clip, claimed / 2.0, rounds, runs) > delta + 0.15


def _excess(epsilon: float, clip: float, noise: float, rounds: int, runs: int) -> float:
    """The largest P(in) − e^ε P(out) over thresholds; every station is a run of its own, half with a canary."""
    method = DualMethod(Hinge(), merge=Add(), intercept=False, channel=Noised(clip, noise))
    data = federation(sizes=((1, 1),) * (2 * runs), d=2)
    X = np.zeros_like(data.X)
    X[0 : 2 * runs : 2, 0] = 1.0
    network = InProcess(replace(data, X=X, y=np.ones_like(data.y)), method, seed=5)
    network.assign([Anchor(1, b, np.zeros((1, 2)), 1e3) for b in range(2 * runs)])
    for k in range(rounds):
        network.round(k + 1, np.ones(4 * runs, dtype=np.int64))
    scores = network.state().U[:, 0, 0]
    inside, outside = (np.sort(part) for part in (scores[:runs], scores[runs:]))
    found, false = (1.0 - np.searchsorted(part, scores) / runs for part in (inside, outside))
    return float(np.max(found - math.exp(epsilon) * false))
