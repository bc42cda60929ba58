"""Speed and memory of the kernels, as ratios within one run, each beside its target; for more, ``rhfedmtl bench``.

Times are medians over interleaved repeats, so that a busy machine slows both sides of a ratio alike. Nothing here is
asserted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from rhfedmtl.bench import kernels
from rhfedmtl.bench.measure import federation, forget_peak, iterations, machine, medians, resident, started
from rhfedmtl.data.federation import Federation


def one_pass() -> dict[str, float]:
    """A pass over 16 rows of 561 features on every terminal."""
    return kernels.stream_fraction(561, 16, 16)


def two_steps() -> dict[str, float]:
    """Two steps on terminals of 20 rows."""
    return kernels.stream_fraction(561, 20, 2)


def tiny_round() -> dict[str, float]:
    """A round of 25 terminals with d = 9, H = 2."""
    (seconds,) = medians(2000, iterations(started(federation(5, 5, 10, 9), threads=2), 2))
    return {"round_us": 1e6 * seconds}


def memory() -> dict[str, float]:
    """Growth of the peak resident memory beyond the data array, in a process of its own."""
    result = subprocess.run([sys.executable, __file__, "--memory"], capture_output=True, text=True, check=True)
    return dict(json.loads(result.stdout))


def _memory_here() -> dict[str, float]:
    def learn(data: Federation) -> None:
        network = started(data, threads=1)
        do = iterations(network, 20)
        for _ in range(5):
            do()
        network.sums(np.zeros((2, data.n_tasks, *network.shape)))

    learn(federation(2, 3, 4, 561))  # compiles
    data = federation(5, 400, 20, 561)
    fields = {name: getattr(data, name) for name in data.__dataclass_fields__}
    del data
    forget_peak()
    before = resident()
    learn(Federation(**fields))
    size, growth = fields["X"].nbytes, resident("VmHWM") - before
    return {"data_mib": size / 2**20, "growth_mib": growth / 2**20, "fraction": growth / size}


def main() -> None:
    """Measure, print a table, and write it down where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(_memory_here()))
        return
    figures: dict[str, dict[str, float]] = {}
    table = [
        ("share of the speed of reading rows, d=561, S=H=16", one_pass, "fraction", ">= 0.6"),
        ("the same, S=20, H=2", two_steps, "fraction", ""),
        ("round of 25 terminals, d=9, H=2, in microseconds", tiny_round, "round_us", "< 100"),
        ("two threads against one, 2,500 terminals", kernels.thread_speedup, "speedup", ">= 1.8"),
        ("memory beyond the data, d=561, as a fraction", memory, "fraction", "<= 0.10"),
    ]
    print(f"{'':58}{'measured':>10}  {'target':>8}")
    for name, measure, key, target in table:
        figures[name] = measure()
        print(f"{name:58}{figures[name][key]:10.3f}  {target:>8}", flush=True)
    ceiling = figures["two threads against one, 2,500 terminals"]["machine_speedup"]
    print(f"{'  what the machine gives to a loop that only touches rows':58}{ceiling:10.3f}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2), encoding="utf-8")
        print(f"written to {options.out}")


if __name__ == "__main__":
    main()
