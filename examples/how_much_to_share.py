"""How strongly to tie the models of ten people together, if new recordings are what counts.

Ten people did seven shoulder exercises with a smartwatch; one person is one task, and their two arms are two terminals.
A quarter of the recordings is kept for the test, whole: neighbouring windows overlap, and a random split would leak.
λ2 goes from 0 (everybody alone) to where all models are nearly one. The picture shows a small budget, and one that is
thirty times larger.

    python examples/how_much_to_share.py [PICTURE.png]      # about 30 s; needs the extra plot
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from rhfedmtl import DualMethod, Ledger, MeanRegularised, Measured, Request, Settings, Split, federate, train

LAMBDA1 = 1e-3
LAMBDA2 = (0.0, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
SEEDS = range(8)
BUDGETS = {1_000: ("s--", "#E69F00"), 30_000: ("o-", "#0072B2")}


def accuracy(federation, lambda2, energy, seed):
    """Balanced accuracy on recordings that were not seen, mean over people."""
    ledger = Ledger("energy=0.1,10", {"energy": energy})
    method = DualMethod(relationship=MeanRegularised(LAMBDA1, lambda2))
    settings = Settings(seed=seed, certify_every=1000)
    return 100 * train(federation, method, Measured(), settings, ledger=ledger).metrics["balanced_accuracy"].mean()


def main(picture):
    """Measure and draw."""
    source = Request("watch").source()
    federations = [federate(source, Split(grouped=True), seed) for seed in SEEDS]
    places = np.arange(len(LAMBDA2))
    _, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for energy, (line, colour) in BUDGETS.items():
        found = np.array([[accuracy(f, lam, energy, s) for s, f in enumerate(federations)] for lam in LAMBDA2])
        print(f"energy {energy:,}", found.mean(axis=1).round(1))
        ax.plot(places, found.mean(axis=1), line, color=colour, label=f"energy {energy:,}")
        ax.fill_between(places, *np.quantile(found, (0.1, 0.9), axis=1), color=colour, alpha=0.2, lw=0)
    ax.set_xticks(places, [f"{value / LAMBDA1:g}" for value in LAMBDA2])
    ax.set(xlabel="λ2/λ1: pull to the mean model, against the pull to zero", ylabel="balanced accuracy (%)")
    ax.set_title(f"Seven exercises, new recordings: mean and 80 % range of {len(SEEDS)} splits", fontsize=10)
    ax.grid(alpha=0.3)
    ax.legend(loc="lower right")
    plt.savefig(picture, dpi=110)
    print("drawn in", picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="how_much_to_share.png", help="default: %(default)s")
    main(**vars(parser.parse_args()))
