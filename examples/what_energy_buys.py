"""What energy buys, and who spends it best: a fixed number of steps per round, or a policy that measures.

Each person has few labelled rows. With HAR: is this person sitting (5 people, 70 rows each)? Without that file: which
of seven exercises is this (watch, 10 people, 40 rows each)? A round costs 10 a station, a step 0.1. The test is on all
other rows.

    python examples/what_energy_buys.py [PICTURE.png] [--har har.npz]      # about 30 s; needs the extra plot
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from rhfedmtl import DualMethod, Fixed, Ledger, MeanRegularised, Measured, Request, Settings, train

POLICIES = {
    "fixed H = 2": (Fixed(2), "s:", "#E69F00"),
    "fixed H = 100": (Fixed(100), "^--", "#D55E00"),
    "measured (the default)": (Measured(), "o-", "#0072B2"),
}
SEEDS = range(10)
WATCH = Request("watch", terminals=5, samples_per_task=40, test_rest=True)


def accuracy(federation, policy, energy, seed):
    """Balanced accuracy, mean over people, when the energy is spent."""
    ledger = Ledger("energy=0.1,10", {"energy": energy})
    method = DualMethod(relationship=MeanRegularised(1e-4, 1e-3))
    result = train(federation, method, policy, Settings(seed=seed, certify_every=10_000), ledger=ledger)
    return 100 * result.metrics["balanced_accuracy"].mean()


def main(picture, path):
    """Measure and draw."""
    har = Request("har", path, tasks=5, terminals=5, samples_per_task=70, positive="SITTING", test_rest=True)
    federations = [(har if path else WATCH).federation(seed) for seed in SEEDS]
    dearest = 10 * federations[0].n_tasks + 10 * federations[0].n_terminals  # a round of H = 100
    budgets = dearest * np.array([1, 1.5, 2, 3, 4, 6, 8])
    _, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, (policy, line, colour) in POLICIES.items():
        found = np.array([[accuracy(f, policy, b, s) for s, f in enumerate(federations)] for b in budgets])
        print(name, found.mean(axis=1).round(1))
        ax.plot(budgets, found.mean(axis=1), line, color=colour, label=name)
        ax.fill_between(budgets, *np.quantile(found, (0.1, 0.9), axis=1), color=colour, alpha=0.15, lw=0)
    title = "HAR: sitting or not, 5 people" if path else "watch: seven exercises, 10 people"
    ax.set_title(f"{title}: mean and 80 % range of {len(SEEDS)} splits", fontsize=10)
    ax.set(xlabel="energy budget (units of the price list)", ylabel="balanced accuracy (%)")
    ax.grid(alpha=0.3)
    ax.legend(loc="lower right")
    plt.savefig(picture, dpi=110)
    print("drawn in", picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="what_energy_buys.png", help="default: %(default)s")
    parser.add_argument("--har", dest="path", metavar="PATH", help="har.npz, or the folder 'UCI HAR Dataset'")
    main(**vars(parser.parse_args()))
