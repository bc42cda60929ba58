"""A round here against a round of Flower's and of pfl's simulation: the same linear model, clients and steps.

    python benchmarks/others/compare.py [--flower PYTHON] [--pfl PYTHON] [--json FILE]

25 terminals (and 2,500 with pfl), 14 samples, d = 561, 10 steps a round. Each framework gets an environment of its own
in a temporary folder unless the Python of one is given, and is skipped, with the reason, where it cannot be installed.
Ours is measured before and after each, on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from rhfedmtl.bench.measure import federation, iterations, medians, started

PACKAGES = {"flower": ("flwr[simulation]",), "pfl": ("pfl", "torch")}
CASES = (("flower", 25, 12), ("pfl", 25, 12), ("pfl", 2_500, 4))


def ours(terminals: int) -> float:
    """Seconds of a round here."""
    network = started(federation(5, terminals // 5, 14, 561), threads=1)
    return medians(max(20, 20_000 // terminals), iterations(network, 10))[0]


def theirs(name: str, python: str, terminals: int, rounds: int) -> dict[str, Any]:
    """Seconds of a round there, or why there are none."""
    script = Path(__file__).with_name(f"{name}_rounds.py")
    quiet = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    words = [python, str(script), str(terminals), str(rounds)]
    done = subprocess.run(words, capture_output=True, text=True, env=quiet, timeout=1800, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    if not found:
        return {"skipped": (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]}
    return dict(json.loads(found[-1].partition(" ")[2]))


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
            mine = statistics.mean([before, ours(terminals)])
            figures.append({"framework": name, "terminals": terminals, "ours": mine, **found})
            print(
                json.dumps(figures[-1] | ({"times": found["seconds"] / mine} if "seconds" in found else {})), flush=True
            )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
