"""Speed of the GPU engine on this machine's card, and how close its numbers are to those of the CPU.

    python benchmarks/gpu.py [agree] [maps] [rate] [uniform] [narrow] [full] [--json FILE]

``agree`` holds rounds, certificates and duals against engine `inprocess` for every loss and merge. ``rate`` counts
terminal steps per second at d = 561 (200,000 terminals, 16 samples, H = 16), of the kernel alone and of whole rounds,
with the bandwidth of the card beside it, in passes over the rows; ``uniform`` with rows drawn with replacement.
``maps`` holds whole runs behind feature maps against engine `inprocess`, and the widest map that the card takes.
``full`` runs HFedMTL over a million terminals (1,000 tasks, 16 samples,
d = 128) to a certified relative gap of 1e-3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.speed_timing import federation

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.algorithms.registry import MERGES
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.data.scaling import scalers
from rhfedmtl.engines.gpu.engine import Gpu
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ConfigError
from rhfedmtl.features.maps import Features
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.maths.relationships import MeanRegularised
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.training.run import Run
from rhfedmtl.training.settings import Settings


def agree(tasks: int = 5, terminals: int = 60) -> dict[str, Any]:
    """Largest difference from engine `inprocess`, relative to the largest number of each kind."""
    worst: dict[str, float] = {}
    for name, loss in LOSSES.items():
        classes = 0 if name == "squared" else 3
        data = make(Synthetic(tasks, terminals, samples=12, features=37, classes=classes, test=0))
        for merge in MERGES:
            for uniform in (True,) if name == "hinge" else (False, True):
                method = DualMethod(
                    loss(), MeanRegularised(1e-3, 1e-3), MERGES[merge](), intercept=True, uniform=uniform
                )
                seen = [_numbers(engine(data, method, seed=3), method) for engine in (InProcess, Gpu)]
                worst[f"{name}, {merge}{', uniform' if uniform else ''}"] = max(
                    float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-9)) for a, b in zip(*seen, strict=True)
                )
    return {"worst": max(worst.values()), **worst}


def _numbers(network: Any, method: DualMethod) -> list[Any]:
    cloud = Cloud(method.relationship, len(network.V), network.shape)
    network.scale(scalers(network.moments(), "standard-unit"))
    seen: list[Any] = []
    for number in range(1, 7):
        network.assign(cloud.assign())
        steps = np.arange(len(network.station)) % (9 * number)
        outcome = network.round(number, steps)
        for report in network.reports(cloud.cloud_round):
            cloud.receive(report)
        certificate = cloud.certify(network.sums(cloud.candidates()))
        assert certificate is not None
        seen += [np.asarray(outcome.factor), outcome.gains, network.V, certificate.models]
        seen += [np.array([certificate.primal, certificate.dual])]
    return [*seen, network.alpha.copy()]


def maps(tasks: int = 5, terminals: int = 60) -> dict[str, Any]:
    """Largest difference of the models and the objective from engine `inprocess`, relative, behind each map."""
    data = make(Synthetic(tasks, terminals, samples=12, features=12, classes=3, test=0))
    figures: dict[str, Any] = {}
    for text in ("splines", "splines+pairs", "fourier", "fourier=200:laplace", "sparse-fourier", "fourier=16000"):
        method = DualMethod(relationship=MeanRegularised(1e-3, 1e-2), features=Features(text))
        results = []
        for engine in ("inprocess", "gpu"):
            run = Run(data, method, Settings(execution=Execution(engine=engine)), Ledger({}))
            run.learn(Fixed(24, 1, 10))
            certificate = run.certify()
            results.append((certificate.models, certificate.primal, certificate.relative_gap))
        (W, primal, gap), (card, card_primal, card_gap) = results
        figures[text] = {
            "models": float(np.abs(W - card).max() / np.abs(W).max()),
            "primal": abs(primal - card_primal) / primal,
            "relative_gaps": [gap, card_gap],
        }
    method = DualMethod(relationship=MeanRegularised(1e-3, 1e-2), features=Features("fourier=17000"))
    try:
        Run(data, method, Settings(execution=Execution(engine="gpu")), Ledger({}))
    except ConfigError as error:
        figures["fourier=17000"] = str(error)
    return figures


def bandwidth() -> float:
    """Bytes per second that the card reads: the sum of a large array."""
    x = torch.ones(2**31, dtype=torch.float32, device="cuda")
    return 4 * x.numel() / _seconds(x.sum)


def _seconds(job: Callable[[], Any], repeats: int = 20) -> float:
    """Median seconds on the card, after three turns that do not count."""
    spent = []
    for _ in range(repeats + 3):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        job()
        stop.record()
        torch.cuda.synchronize()
        spent.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(spent[3:])


def rate(
    terminals: int = 200_000, rows: int = 16, d: int = 561, steps: int = 16, uniform: bool = False
) -> dict[str, Any]:
    """Terminal steps per second: of the kernel, and of whole rounds with draws, sums and the stations' part."""
    method = DualMethod(relationship=MeanRegularised(1e-3, 1e-4), intercept=False, uniform=uniform)
    start = time.perf_counter()
    network = Gpu(federation(5, terminals // 5, rows, d), method)
    loading = time.perf_counter() - start
    network.assign(Cloud(method.relationship, 5, network.shape).assign())
    numbers = iter(range(1, 1_000_000))
    work = np.broadcast_to(steps, terminals)
    n = terminals * steps

    def iteration() -> None:
        network.round(next(numbers), work)

    iteration()
    kernel = _kernel_seconds(network, iteration)
    spent = []
    for _ in range(23):
        start = time.perf_counter()
        iteration()
        spent.append(time.perf_counter() - start)
    whole = statistics.median(spent[3:])
    read = bandwidth()
    return {
        "terminals": terminals,
        "d": d,
        "steps_per_second_kernel": n / kernel,
        "steps_per_second_rounds": n / whole,
        "round_ms": 1e3 * whole,
        "kernel_ms": 1e3 * kernel,
        "kernel_bytes_per_second": n * (4 * d + 48) / kernel,
        "read_bytes_per_second": read,
        "loading_s": loading,
        "card_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def _kernel_seconds(network: Gpu, iteration: Callable[[], None], launches: int = 10) -> float:
    """Seconds of the launch that takes the steps, by events around several of them: Python launches them meanwhile."""
    module, asked = network.terminals._kernels, []
    kernel = module.ascend

    class Noted:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **more: asked.append((grid, args, more))

    module.ascend = Noted()
    iteration()
    module.ascend = kernel
    [(grid, args, more)] = asked

    def job() -> None:
        for _ in range(launches):
            kernel[grid](*args, **more)

    seconds = _seconds(job, 7) / launches
    network.terminals._pending.zero_()
    return seconds


def full(tasks: int = 1000, merge: str = "line-search", local_steps: int = 16) -> dict[str, Any]:
    """HFedMTL over tasks × 1,000 terminals to a certified relative gap of 1e-3; loading and compiling count apart."""
    start = time.perf_counter()
    _learn(make(Synthetic(2, 50, samples=16, features=128, test=20)), merge, local_steps)
    compiled = time.perf_counter() - start
    start = time.perf_counter()
    data = make(Synthetic(tasks, 1000, samples=16, features=128, test=20))
    made = time.perf_counter() - start
    return {
        "terminals": data.n_terminals,
        **_learn(data, merge, local_steps),
        "making_data_s": made,
        "compiling_s": compiled,
    }


def _learn(data: Any, merge: str, local_steps: int) -> dict[str, Any]:
    method = DualMethod(relationship=MeanRegularised(1e-3, 1e-4), merge=MERGES[merge](), intercept=False)
    settings = Settings(certify_every=5, target_relative_gap=1e-3, max_rounds=2000, execution=Execution(engine="gpu"))
    start = time.perf_counter()
    run = Run(data, method, settings, Ledger({}))
    loading = time.perf_counter() - start
    start = time.perf_counter()
    stopped = run.learn(Fixed(local_steps, 1, 2000))
    certificate = run.certify()
    return {
        "merge": merge,
        "seconds": time.perf_counter() - start,
        "stopped": stopped,
        "rounds": run.state.round,
        "relative_gap": certificate.relative_gap,
        "primal": certificate.primal,
        "terminal_steps": run.state.terminal_steps,
        "loading_s": loading,
        "card_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def narrow() -> dict[str, Any]:
    """As `rate`, for a million terminals with rows of 128 features."""
    return rate(1_000_000, 16, 128)


def uniform() -> dict[str, Any]:
    """As `rate`, with rows drawn with replacement, as the paper does: some come twice, others not at all."""
    return rate(uniform=True)


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "agree": agree,
    "maps": maps,
    "rate": rate,
    "uniform": uniform,
    "narrow": narrow,
    "full": full,
}


def main() -> None:
    """Run the parts asked for, print and write down what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all of them unless told")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(figures, flush=True)
    for name in options.parts or PARTS:
        figures[name] = PARTS[name]()
        print(name, json.dumps(figures[name], indent=1), flush=True)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
