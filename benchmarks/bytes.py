"""How many bytes does it take to come within 1 % of the best objective? By precision, and for FedAvg with the same.

Everything is charged, with a certificate in every round. FedAvg learns one model for all: its objective is reached
where tasks are tied together (λ2 = 1,000), and the best of a grid of steps and H is taken, in its favour.

    python benchmarks/bytes.py --seeds 3                       # about 3 minutes on one core; HAR needs RHFEDMTL_DATA
    python benchmarks/bytes.py vectors --seeds 3               # what a round takes, in vectors of d float64 numbers
    python benchmarks/bytes.py budgets --seeds 2               # the gap that a byte budget buys, by precision
    python benchmarks/bytes.py rounds --seeds 16               # gaps round by round beside those of float64
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from pathlib import Path

import numpy as np

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.errors import BudgetError, DivergenceError
from rhfedmtl.resources.events import CloudEvent, RoundEvent
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

GAP = 1e-2
MOST_ROUNDS = 400
CHANNELS = {"float64": "identity", "float32": "float32", "int16": "int16", "int8": "int8"}
BUDGETS = (1e5, 3e5, 1e6, 3e6, 1e7)
GRID = list(itertools.product((1.0, 3.0, 10.0), (5, 40)))


def requests() -> dict[str, Request]:
    """Data sets by name; HAR where it is to be had."""
    made = {"synthetic, d = 1,000": Request("synthetic", tasks=3, terminals=4, settings={"features": 999})}
    har = Path(os.environ.get("RHFEDMTL_DATA", "data"), "har.npz")
    if har.exists():
        split = {"positive": "SITTING", "tasks": 5, "terminals": 5, "samples_per_task": 70}
        made["HAR, d = 562"] = Request("har", str(har), **split)  # type: ignore[arg-type]
    return made


def spent(data: Federation, algorithm: str, options: Options, seed: int) -> tuple[float, float]:
    """Bytes until the certified gap is small, infinite where it never is; and the gap at the end."""
    built, ledger = build(algorithm, options, data.kind), Ledger("bytes=byte:1")
    settings = Settings(certify_every=1, seed=seed, target_relative_gap=GAP, max_rounds=MOST_ROUNDS)
    try:
        result = train(built.regroup(data), built.method, built.policy, settings, ledger=ledger)
    except DivergenceError:
        return math.inf, math.inf
    gap = result.certificate.relative_gap
    return ledger.spent["bytes"] if gap <= GAP else math.inf, gap


def vectors(data: Federation, options: Options, seed: int) -> list[float]:
    """Vectors a round of a run to a gap of 1e-3: to and from a terminal, to and from a station; and all bytes.

    Then bytes before the first round: round zero, which is sent once, and the first server iteration.
    """
    built, ledger = build("rhfedmtl", options, data.kind), Ledger("bytes=byte:1")
    settings = Settings(certify_every=1, seed=seed, target_relative_gap=1e-3, max_rounds=MOST_ROUNDS)
    result = train(built.regroup(data), built.method, built.policy, settings, ledger=ledger)
    held = [event for event in result.events if event.round and isinstance(event, RoundEvent)]
    told = [event for event in result.events if isinstance(event, CloudEvent) and event.merges]
    down, up, asked, answered = (
        sum(float(np.mean(getattr(event, name))) for event in held)
        for name in ("bytes_down", "bytes_up", "request_bytes", "result_bytes")
    )
    asked += sum(float(np.mean(event.bytes_down)) for event in told)
    answered += sum(float(np.mean(event.bytes_up)) for event in told)
    unit = 8.0 * result.models.shape[-1] * result.rounds
    zero = ledger.totals("round")["bytes"].get(0, 0.0)
    a_round = (ledger.spent["bytes"] - zero) / result.rounds
    return [down / unit, up / unit, asked / unit, answered / unit, a_round, zero]


def traffic(seeds: range) -> None:
    """Print what a round takes at d = 1,000."""
    federations = [requests()["synthetic, d = 1,000"].federation(seed) for seed in seeds]
    for (precision, channel), lambda2 in itertools.product(CHANNELS.items(), (0.01, 1.0)):
        options = Options.of(channel=channel, lambda2=lambda2)
        found = np.mean([vectors(data, options, seed) for seed, data in enumerate(federations)], axis=0)
        print(
            f"{precision:8s} λ2 = {lambda2:<5g} " + " ".join(f"{each:.2f}" for each in found[:4]),
            f"{found[4]:.0f} bytes, round zero {found[5]:.0f}",
        )


def budgets(seeds: range) -> None:
    """Print relative gaps at the end of byte budgets, geometric means, for each precision."""
    for (data, request), lambda2 in itertools.product(requests().items(), (0.01, 1.0)):
        federations = [request.federation(seed) for seed in seeds]
        for budget in BUDGETS:
            found = {
                precision: bought(federations, lambda2, channel, budget) for precision, channel in CHANNELS.items()
            }
            gaps = " ".join(f"{precision} {gap:8.2g}" for precision, gap in found.items())
            print(f"{data:22s} λ2 = {lambda2:<5g} bytes = {budget:<8g} {gaps}", flush=True)


def bought(federations: list[Federation], lambda2: float, channel: str, budget: float) -> float:
    """Geometric mean of the certified relative gaps; 1, that of no model at all, where not one round can be paid."""
    gaps = []
    for seed, data in enumerate(federations):
        built = build("rhfedmtl", Options.of(channel=channel, lambda2=lambda2), data.kind)
        ledger = Ledger("bytes=byte:1", {"bytes": budget})
        try:
            result = train(built.regroup(data), built.method, built.policy, Settings(seed=seed), ledger=ledger)
            gaps.append(max(result.certificate.relative_gap, 1e-12))
        except BudgetError:
            gaps.append(1.0)
    return math.exp(float(np.mean(np.log(gaps))))


def rounds(seeds: range) -> None:
    """Print how gaps of each precision compare with those of float64 at the same round, until these are 1e-3."""
    for (name, request), lambda2 in itertools.product(requests().items(), (0.01, 1.0)):
        federations = [request.federation(seed) for seed in seeds]
        exact, *others = (
            [gaps(data, Options.of(channel=channel, lambda2=lambda2), seed) for seed, data in enumerate(federations)]
            for channel in CHANNELS.values()
        )
        for precision, found in zip(list(CHANNELS)[1:], others, strict=True):
            print(f"{name:22s} λ2 = {lambda2:<5g} {precision:8s} {_compared(found, exact)}", flush=True)


def gaps(data: Federation, options: Options, seed: int) -> tuple[np.ndarray, float]:
    """Relative gaps of all rounds of a run to 1e-3, and bytes of a round but for round zero."""
    built, ledger = build("rhfedmtl", options, data.kind), Ledger("bytes=byte:1")
    settings = Settings(certify_every=1, seed=seed, target_relative_gap=1e-3, max_rounds=MOST_ROUNDS)
    result = train(built.regroup(data), built.method, built.policy, settings, ledger=ledger)
    certified = [each for each in result.history if each.certified and each.round]
    zero = ledger.totals("round")["bytes"].get(0, 0.0)
    told = np.array([each.gap / max(abs(each.primal), abs(each.dual)) for each in certified])
    return told, (ledger.spent["bytes"] - zero) / result.rounds


def _compared(found: list[tuple[np.ndarray, float]], exact: list[tuple[np.ndarray, float]]) -> str:
    """Ratios of gaps at all rounds that both have, as long as the exact one is 1e-3 or more; of rounds; of bytes."""
    pairs = [(a, b[b >= 1e-3]) for (a, _), (b, _) in zip(found, exact, strict=True)]
    ratio = np.concatenate([a[: len(b)] / b[: len(a)] for a, b in pairs])
    needed = [len(a) / len(b) for (a, _), (b, _) in zip(found, exact, strict=True)]
    low, median, high = np.quantile(ratio, (0.05, 0.5, 0.95))
    return (
        f"within 5 %: {np.mean(np.abs(ratio - 1) <= 0.05):.1%} of {len(ratio)}; ratio: median {median:.3f}, geometric "
        f"mean {np.exp(np.mean(np.log(ratio))):.3f}, 5 to 95 %: {low:.2f} to {high:.2f}, largest {ratio.max():.2f}; "
        f"rounds to 1e-3: {np.mean(needed):.3f} ({min(needed):.2f} to {max(needed):.2f}); "
        f"bytes a round: {np.sum([each[1] for each in found]) / np.sum([each[1] for each in exact]):.3f}"
    )


def over(federations: list[Federation], algorithm: str, options: Options) -> tuple[float, float]:
    """Means over the seeds."""
    found = [spent(data, algorithm, options, seed) for seed, data in enumerate(federations)]
    n_bytes, gap = np.mean(found, axis=0)
    return float(n_bytes), float(gap)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("gap", "vectors", "budgets", "rounds"), default="gap")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    seeds = range(given.seeds)
    if given.what != "gap":
        return {"vectors": traffic, "budgets": budgets, "rounds": rounds}[given.what](seeds)
    print(f"MB until a relative gap of {GAP}: mean over {len(seeds)} seeds")
    for name, request in requests().items():
        federations = [request.federation(seed) for seed in seeds]
        for lambda2, (precision, channel) in itertools.product((0.01, 1000.0), CHANNELS.items()):
            options = Options.of(channel=channel, lambda2=lambda2)
            report(name, lambda2, f"rhfedmtl {precision}", over(federations, "rhfedmtl", options))
        for precision in ("float64", "int8"):
            shared = {"channel": CHANNELS[precision], "lambda2": 1000.0}
            tries = [over(federations, "fedavg", Options.of(step=step, local_steps=H, **shared)) for step, H in GRID]
            report(name, 1000.0, f"fedavg {precision}", min(tries))


def report(name: str, lambda2: float, method: str, found: tuple[float, float]) -> None:
    """Print a line."""
    n_bytes, gap = found
    text = f"{n_bytes / 1e6:8.2f}" if np.isfinite(n_bytes) else f"never within {MOST_ROUNDS} rounds: {gap:.2g}"
    print(f"{name:22s} λ2 = {lambda2:<7g} {method:18s} {text}", flush=True)


if __name__ == "__main__":
    main()
