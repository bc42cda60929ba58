"""Rounds of many terminals: seconds and peak memory, each size in a process of its own.

python -m rhfedmtl.bench.scale TERMINALS TASKS SAMPLES FEATURES STEPS THREADS
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from rhfedmtl.bench.measure import federation, forget_peak, iterations, medians, resident, started


def rounds_of(
    terminals: int, tasks: int, samples: int = 16, d: int = 32, steps: int = 16, threads: int = 2
) -> dict[str, Any]:
    """Seconds of a round, and the peak of the resident memory with and without the data, in a fresh process."""
    words = (str(number) for number in (terminals, tasks, samples, d, steps, threads))
    command = [sys.executable, "-m", "rhfedmtl.bench.scale", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _here(terminals: int, tasks: int, samples: int, d: int, steps: int, threads: int) -> dict[str, Any]:
    iterations(started(federation(1, 2, samples, d), threads), steps)()  # compiles
    data = federation(tasks, terminals // tasks, samples, d)
    fields = {name: getattr(data, name) for name in data.__dataclass_fields__}
    forget_peak()
    before = resident()
    network = started(data, threads)
    repeats = max(3, min(50, 3_000_000 // (terminals * steps)))
    (seconds,) = medians(repeats, iterations(network, steps), warm=1)
    peak = resident("VmHWM")
    return {
        "terminals": terminals,
        "tasks": tasks,
        "samples": samples,
        "d": d,
        "steps": steps,
        "threads": threads,
        "seconds": seconds,
        "ns_per_step": 1e9 * seconds / (terminals * steps),
        "data_mb": fields["X"].nbytes / 1e6,
        "beyond_data_mb": (peak - before) / 1e6,
        "peak_mb": peak / 1e6,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_here(*(int(word) for word in sys.argv[1:]))) + "\n")
