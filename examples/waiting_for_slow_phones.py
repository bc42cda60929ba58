"""Wait for slow phones, or let them do less? Time is the budget, and some phones are ten times slower.

Which of seven exercises is this (watch, 10 people, 5 phones each)? Two of every five phones are slow. A round lasts as
long as its slowest phone works; a merge takes 0.05 s and a server iteration 0.1 s. The test is on whole recordings that
nobody trained on.

    python examples/waiting_for_slow_phones.py [PICTURE.png]      # about 15 s; needs the extra plot
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from rhfedmtl import Cost, DualMethod, Fixed, Ledger, Measured, Request, Settings, Split, federate, train

BUDGETS = np.array([1.0, 1.5, 2.0, 3.0, 6.0, 12.0])
POLICIES = {
    "wait: the same 20 steps for all": (Fixed(20), "^--", "#D55E00"),
    "measured: slow phones do less": (Measured(), "o-", "#0072B2"),
}
SEEDS = range(6)


def prices(federation):
    """Seconds of every phone's step: 2 ms, or 20 ms on a slow one."""
    step = np.where(np.arange(federation.n_terminals) % 5 < 2, 0.02, 0.002)
    return Cost.of({"time": {"adds": "elapsed", "terminal_step": step, "station_round": 0.05, "cloud_round": 0.1}})


def accuracy(federation, policy, seconds, seed):
    """Balanced accuracy, mean over people, when the time is up."""
    ledger, settings = Ledger(prices(federation), {"time": seconds}), Settings(seed=seed, certify_every=10_000)
    return 100 * train(federation, DualMethod(), policy, settings, ledger=ledger).metrics["balanced_accuracy"].mean()


def main(picture):
    """Measure and draw."""
    source = Request("watch").source()
    federations = [federate(source, Split(terminals=5, grouped=True), seed) for seed in SEEDS]
    _, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, (policy, line, colour) in POLICIES.items():
        found = np.array([[accuracy(f, policy, t, s) for s, f in enumerate(federations)] for t in BUDGETS])
        print(name, found.mean(axis=1).round(1))
        ax.plot(BUDGETS, found.mean(axis=1), line, color=colour, label=name)
        ax.fill_between(BUDGETS, found.min(axis=1), found.max(axis=1), color=colour, alpha=0.12, lw=0)
    ax.set(xscale="log", xlabel="time budget (s)", ylabel="balanced accuracy (%)")
    ax.set_xticks(BUDGETS, [f"{t:g}" for t in BUDGETS])
    ax.minorticks_off()
    ax.set_title(f"40 % slow phones: mean and range of {len(SEEDS)} splits", fontsize=10)
    ax.grid(alpha=0.3)
    ax.legend(loc="lower right")
    plt.savefig(picture, dpi=110)
    print("drawn in", picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="waiting_for_slow_phones.png", help="default: %(default)s")
    main(**vars(parser.parse_args()))
