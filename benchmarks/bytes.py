"""How many bytes does it take to come within 1 % of the best objective? By precision, and for FedAvg with the same.

Everything is charged, with a certificate in every round. FedAvg learns one model for all: its objective is reached
where tasks are tied together (λ2 = 1,000), and the best of a grid of steps and H is taken, in its favour.

    python benchmarks/bytes.py --seeds 3                       # about 3 minutes on one core; HAR needs RHFEDMTL_DATA
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
from rhfedmtl.errors import DivergenceError
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.run import Settings, train

GAP = 1e-2
MOST_ROUNDS = 400
CHANNELS = {"float64": "identity", "float32": "float32", "int8": "int8"}
GRID = list(itertools.product((0.3, 1.0, 3.0, 10.0), (5, 15, 40)))


def requests() -> dict[str, Request]:
    """Data sets by name; HAR where it is to be had."""
    made = {"synthetic, d = 1,000": Request("synthetic", tasks=3, terminals=4, settings={"features": 999})}
    har = Path(os.environ.get("RHFEDMTL_DATA", "data"), "har.npz")
    if har.exists():
        split = {"positive": "SITTING", "tasks": 5, "terminals": 5, "samples_per_task": 70}
        made["HAR, d = 562"] = Request("har", str(har), **split)  # type: ignore[arg-type]
    return made


def spent(data: Federation, algorithm: str, options: Options, seed: int) -> float:
    """Bytes until the certified gap is small; infinite where it never is."""
    built, ledger = build(algorithm, options, data.kind), Ledger("bytes=byte:1")
    settings = Settings(certify_every=1, seed=seed, target_relative_gap=GAP, max_rounds=MOST_ROUNDS)
    try:
        result = train(built.regroup(data), built.method, built.policy, settings, ledger=ledger)
    except DivergenceError:
        return math.inf
    return ledger.spent["bytes"] if result.certificate.relative_gap <= GAP else math.inf


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"MB until a relative gap of {GAP}: mean over {len(seeds)} seeds ± their standard deviation")
    for name, request in requests().items():
        federations = [request.federation(seed) for seed in seeds]
        for lambda2 in (0.01, 1000.0):
            for precision, channel in CHANNELS.items():
                options = Options.of(channel=channel, lambda2=lambda2)
                report(name, lambda2, f"rhfedmtl {precision}", over(federations, "rhfedmtl", options))
        for precision in ("float64", "int8"):
            tries = []
            for step, H in GRID:
                options = Options.of(channel=CHANNELS[precision], lambda2=1000.0, step=step, local_steps=H)
                tries.append(over(federations, "fedavg", options))
            report(name, 1000.0, f"fedavg {precision}", min(tries, key=lambda each: float(np.mean(each))))


def over(federations: list[Federation], algorithm: str, options: Options) -> list[float]:
    """What each of the seeds takes."""
    return [spent(data, algorithm, options, seed) for seed, data in enumerate(federations)]


def report(name: str, lambda2: float, method: str, found: list[float]) -> None:
    """Print a line."""
    mean = np.mean(found) / 1e6
    text = f"{mean:8.2f} ± {np.std(found) / 1e6:.2f}" if np.isfinite(mean) else f"never within {MOST_ROUNDS} rounds"
    print(f"{name:22s} λ2 = {lambda2:<7g} {method:18s} {text}", flush=True)


if __name__ == "__main__":
    main()
