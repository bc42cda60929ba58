"""Draw docs/figures/speed.png from benchmarks/results/speed.json, the output of ``benchmarks/speed.py --json``."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
COLOURS = {4: "#1b6ca8", 16: "#d1495b", 256: "#5b8c5a"}


def main() -> None:
    """Share of the speed of reading rows, by shape; time of a round, by terminals."""
    figures = json.loads((HERE / "results" / "speed.json").read_text(encoding="utf-8"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for S, colour in COLOURS.items():
        for factor, style in ((None, ":"), (1, "-"), (4, "--")):
            H = 2 if factor is None else factor * S
            rows = [row for row in figures["grid"] if row["S"] == S and row["H"] == H]
            label = f"S = {S}, H = {H}"
            d, shares = [r["d"] for r in rows], [r["fraction"] for r in rows]
            left.plot(d, shares, style, color=colour, marker="o", ms=3, label=label)
    left.set(xscale="log", xlabel="features d", ylabel="share of the speed of reading rows", ylim=(0, None))
    left.axhline(0.6, color="grey", lw=0.8)
    left.legend(fontsize=6, ncols=3)
    rows = figures["terminals"]
    terminals, seconds = [r["terminals"] for r in rows], [r["seconds"] for r in rows]
    right.loglog(terminals, seconds, "o-", color=COLOURS[16], label="measured")
    right.loglog(terminals, [seconds[-1] * t / terminals[-1] for t in terminals], "--", color="grey", label="linear")
    right.set(xlabel="terminals (16 rows, d = 32, H = 16)", ylabel="seconds of a round")
    right.legend()
    figure.savefig(HERE.parent / "docs" / "figures" / "speed.png", dpi=110)


if __name__ == "__main__":
    main()
