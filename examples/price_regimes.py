"""Which fixed number of steps is best depends on the prices; the default policy is as good under each price list.

Seven exercises, ten people with 30 labelled windows each. A round of a station costs 10, a step of a terminal 0.01,
0.1 or 10; the budget pays six rounds of a pass. Windows overlap, so the random split flatters all policies.

    python examples/price_regimes.py [PICTURE.png]      # about 30 s; needs the extra plot
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from rhfedmtl import DualMethod, Fixed, Ledger, Measured, Request, Settings, train
from rhfedmtl.errors import BudgetError
from rhfedmtl.maths.intervals import interval

REGIMES = {"rounds are dear": 0.01, "default prices": 0.1, "equal prices": 10.0}
STEPS = (1, 2, 5, 10, 20, 40, 80)
POLICIES = (*map(Fixed, STEPS), Measured())
SEEDS = range(20)


def accuracy(federation, policy, step, seed):
    """Balanced accuracy, mean over people, when the energy is spent; NaN if it pays no round."""
    ledger = Ledger(f"energy={step},10", {"energy": 6 * (10 * federation.n_tasks + step * len(federation.y))})
    try:
        result = train(federation, DualMethod(), policy, Settings(seed=seed), ledger=ledger)
        return 100 * result.metrics["balanced_accuracy"].mean()
    except BudgetError:
        return np.nan


def main(picture):
    """Measure and draw."""
    federations = [Request("watch", terminals=5, samples_per_task=40, test_rest=True).federation(s) for s in SEEDS]
    _, axes = plt.subplots(1, len(REGIMES), figsize=(10.2, 3.8), sharey=True, layout="constrained")
    for ax, (name, step) in zip(axes, REGIMES.items(), strict=True):
        scores = np.array([[accuracy(f, p, step, s) for s, f in enumerate(federations)] for p in POLICIES])
        (*means, middle), (*halves, half) = zip(*map(interval, scores), strict=True)
        best = int(np.nanargmax(means))
        print(name, np.round(means, 1), f"measured - best ({STEPS[best]}):", *interval(scores[-1] - scores[best]))
        ax.axhspan(middle - half, middle + half, color="#0072B2", alpha=0.25, lw=0)
        ax.axhline(middle, color="#0072B2", label="measured (the default)")
        ax.errorbar(range(len(STEPS)), means, halves, fmt="o-", color="#D55E00", capsize=3, label="fixed H")
        ax.plot(best, means[best], "o", color="#D55E00", ms=11, mfc="none", label="best fixed H in hindsight")
        for place in np.flatnonzero(np.isnan(means)):
            ax.text(place, np.nanmin(means), "no\nround", ha="center", fontsize=8)
        ax.set(title=f"{name}: step {step:g}, round 10", xlabel="H: steps in a round", xlim=(-0.5, len(STEPS) - 0.5))
        ax.set_xticks(range(len(STEPS)), STEPS)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel(f"balanced accuracy (%), {len(SEEDS)} splits")
    axes[0].legend(loc="lower right")
    plt.savefig(picture, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="price_regimes.png", help="default: %(default)s")
    main(**vars(parser.parse_args()))
