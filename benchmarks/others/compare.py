"""A round here against a round of Flower's and of pfl's simulation: the same linear model, clients and steps.

    python benchmarks/others/compare.py [--flower PYTHON] [--pfl PYTHON] [--json FILE]

25 terminals (and 2,500 with pfl), 14 samples, d = 561, 10 steps a round. Each framework gets an environment of its own
in a temporary folder unless the Python of one is given, and is skipped, with the reason, where it cannot be installed.
Ours is measured before and after each, on one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.speed_timing import rounds_of

PACKAGES = {"flower": ("flwr[simulation]",), "pfl": ("pfl", "torch")}
CASES = (("flower", 25, 12), ("pfl", 25, 12), ("pfl", 2_500, 4))


def ours(terminals: int) -> dict[str, Any]:
    """Seconds of a round here, and memory, in a process of its own."""
    return rounds_of(terminals, 5, 14, 561, 10, threads=1)


def theirs(name: str, python: str, terminals: int, rounds: int) -> dict[str, Any]:
    """Seconds of a round there, or why there are none."""
    script = Path(__file__).with_name(f"{name}_rounds.py")
    quiet = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    words = [python, str(script), str(terminals), str(rounds)]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(words, stdout=said, stderr=complained, text=True, env=quiet)
        peak = _watch_memory(process)
        output, errors = (stream.seek(0) or stream.read() for stream in (said, complained))
    found = [line for line in output.splitlines() if line.startswith("FOUND")]
    if not found:
        return {"skipped": (errors.strip().splitlines() or ["it printed nothing"])[-1]}
    return json.loads(found[-1].partition(" ")[2]) | {"peak_mb": peak / 1e6}


def _watch_memory(process: subprocess.Popen[str], limit_s: float = 1800.0) -> int:
    """Wait for a process; the most memory that it and all below it had at once, what they share counted once."""
    peak, end = 0, time.monotonic() + limit_s
    while process.poll() is None:
        peak = max(peak, _memory_of_tree(process.pid))
        if time.monotonic() > end:
            process.kill()
        time.sleep(0.2)
    return peak


def _memory_of_tree(root: int) -> int:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    total, inside = 0, {root}
    for _ in range(8):  # a process may have a lower number than the one that started it
        inside |= {pid for pid, parent in parents.items() if parent in inside}
    for pid in inside:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def environment(name: str, folder: Path) -> str | None:
    """Python of a new environment with the framework; None where it cannot be installed."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES[name]], capture_output=True, check=False)
    return str(python) if done.returncode == 0 else None


def main() -> None:
    """Measure, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--flower", help="a Python that has Flower")
    parser.add_argument("--pfl", help="a Python that has pfl and PyTorch")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        pythons = {name: getattr(options, name) or environment(name, Path(folder) / name) for name in PACKAGES}
        for name, terminals, rounds in CASES:
            python = pythons[name]
            before = ours(terminals)
            found = theirs(name, python, terminals, rounds) if python else {"skipped": "it could not be installed"}
            mine = statistics.mean([before["seconds"], ours(terminals)["seconds"]])
            about = {"framework": name, "terminals": terminals, "ours": mine, "our_peak_mb": before["peak_mb"]}
            figures.append(about | found)
            print(
                json.dumps(figures[-1] | ({"times": found["seconds"] / mine} if "seconds" in found else {})), flush=True
            )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
