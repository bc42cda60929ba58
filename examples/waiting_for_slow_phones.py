"""Wait for slow phones, or let them do less? Time is the budget, and some phones are ten times slower.

Which of seven exercises is this (watch, 10 people, 5 phones each)? Two of every five phones are slow. A round lasts as
long as its slowest phone works; a merge takes 0.05 s and a server iteration 0.1 s. The test is on whole recordings that
nobody trained on.

    python examples/waiting_for_slow_phones.py [PICTURE.png]      # about 30 s
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data import Request, Split, federate
from rhfedmtl.engines.training import Settings, mean, train
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.measured import Measured
from rhfedmtl.resources.policies import Fixed

BUDGETS = np.array([1.0, 1.5, 2.0, 3.0, 6.0, 12.0])
STYLES = (("#D55E00", "^", "--"), ("#0072B2", "o", "-"))
SEEDS = range(6)


def prices(federation):
    """Seconds of every phone's step: 2 ms, or 20 ms on a slow one."""
    step = np.where(np.arange(federation.n_terminals) % 5 < 2, 0.02, 0.002)
    return Cost.of({"time": {"adds": "elapsed", "terminal_step": step, "station_round": 0.05, "cloud_round": 0.1}})


def accuracy(federation, policy, cost, seconds, seed):
    """Balanced accuracy, mean over people, when the time is up."""
    settings = Settings(seed=seed, certify_every=10_000)
    result = train(federation, DualMethod(), policy, settings, ledger=Ledger(cost, {"time": seconds}))
    return 100 * mean(result.metrics["balanced_accuracy"])


def main(picture):
    """Measure and draw."""
    source = Request("watch").source()
    federations = [federate(source, Split(terminals=5, grouped=True), seed) for seed in SEEDS]
    cost = prices(federations[0])
    policies = {"wait: the same 20 steps for all": Fixed(20), "measured: slow phones do less": Measured()}
    _, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for (name, policy), (colour, mark, dash) in zip(policies.items(), STYLES, strict=True):
        found = np.array([[accuracy(f, policy, cost, t, s) for s, f in enumerate(federations)] for t in BUDGETS])
        ax.plot(BUDGETS, found.mean(axis=1), color=colour, marker=mark, ls=dash, label=name)
        ax.fill_between(BUDGETS, found.min(axis=1), found.max(axis=1), color=colour, alpha=0.12, lw=0)
    ax.set(xscale="log", xlabel="time budget (s)", ylabel="balanced accuracy (%)", xticks=BUDGETS)
    ax.set_xticklabels([f"{t:g}" for t in BUDGETS])
    ax.minorticks_off()
    ax.set_title(f"40 % slow phones: mean and range of {len(SEEDS)} splits", fontsize=10)
    ax.grid(alpha=0.3)
    ax.legend(loc="lower right")
    plt.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path([*sys.argv, "waiting_for_slow_phones.png"][1]))
