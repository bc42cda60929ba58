"""How often does the gap that `rhfedmtl plan` predicts hold? Random problems, a pilot of each, and the run itself.

Each problem has its own data (synthetic, or rows drawn from HAR, Landmine or scikit-learn's diabetes table, for classes
or for numbers), loss, weights, scaling, prices, policy and a budget for 5 to 6,000 rounds. The run that is predicted
uses other random numbers than the pilots. A prediction holds if the final gap lies in its interval, or below rounding
where its lower edge is 0.

    python benchmarks/forecasts.py --problems 400          # about 4 minutes on 2 idle cores
    python benchmarks/forecasts.py --problems 1600 --first 100000 --fit     # the factors of `pilot.py`, found anew
    python benchmarks/forecasts.py --stored        # pilots that were flown for other prices, budgets and no drop-outs

RHFEDMTL_DATA names the folder with har.npz and landmine.npz; without it these problems are left out. The factors in
`pilot.py` come from 1,833 problems of this kind drawn before, none of them from the diabetes table; the first 500 of
the second command alone give (2.3, 1.32, 0.31), (1.68, 1.04, 0.33) and (2.5, 0.73, 0.14).
"""

from __future__ import annotations

import argparse
import json
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation, Origin
from rhfedmtl.data.loaders.synthetic import Synthetic, make
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import RHFedMTLError
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.planning import pilot
from rhfedmtl.planning.data_shape import situation_of
from rhfedmtl.planning.dry_run import dry_run
from rhfedmtl.policies.base import Policy
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.policies.measured.policy import Measured
from rhfedmtl.policies.theoretical import Theoretical
from rhfedmtl.resources.costs import Cost
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.training.faults import Faults
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

FOR_CLASSES = ("synthetic", "har", "landmine")
FOR_NUMBERS = ("synthetic numbers", "har numbers", "landmine numbers", "diabetes")
CLASS_LOSSES = ("smoothed-hinge", "smoothed-hinge", "hinge", "squared-hinge", "logistic")
MOST_ROUNDS = 6000
Rng = np.random.Generator


@cache
def table(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows, labels and whom each row belongs to; None where the data is not there."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        X, y = load_diabetes(return_X_y=True)
        return 20.0 * X, y, np.digitize(X[:, 0], np.quantile(X[:, 0], np.linspace(0, 1, 9)[1:-1]))
    path = Path(os.environ.get("RHFEDMTL_DATA", "")) / f"{name}.npz"
    if not path.is_file():
        return None
    with np.load(path) as file:
        return file["X"].astype(float), file["y"], file["subject" if name == "har" else "task"]


def federation(rng: Rng, kind: str) -> Federation | None:
    """Data of one problem."""
    name, _, numbers = kind.partition(" ")
    if name == "synthetic":
        noise = rng.choice([0.0, 0.1, 0.5, 2.0]) if numbers else rng.choice([0.0, 0.05, 0.2])
        made = Synthetic(
            tasks=int(rng.integers(2, 12)),
            terminals=int(rng.integers(2, 15)),
            samples=int(rng.integers(4, 30)),
            test=0,
            features=int(rng.integers(4, 60)),
            classes=0 if numbers else int(rng.choice([2, 2, 2, 3, 5])),
            relatedness=float(rng.choice([0.0, 0.5, 0.8, 1.0])),
            noise=float(noise),
            heterogeneity=float(rng.choice([0.0, 0.3, 1.0])),
            unequal=float(rng.choice([0.0, 0.3, 1.0])),
        )
        return make(made, int(rng.integers(1 << 30)))
    known = table(name)
    if known is None:
        return None
    X, y, group = known
    if name == "diabetes":
        return drawn(rng, X, y / float(rng.choice([1.0, 77.0, 1000.0])), group, 0)
    if not numbers:
        positive = rng.choice(np.unique(y))
        return drawn(rng, X, (y == positive).astype(np.int16), group, 2)
    order = rng.permutation(X.shape[1])[: int(rng.choice([20, 60, 200]))]
    return drawn(rng, X[:, order[1:]], X[:, order[0]].copy(), group, 0)


def drawn(rng: Rng, X: np.ndarray, y: np.ndarray, group: np.ndarray, classes: int) -> Federation:
    """Some rows of some groups, a task each, dealt to terminals evenly or not at all so."""
    names = np.unique(group)
    chosen = rng.choice(names, int(rng.integers(2, min(12, len(names)) + 1)), replace=False)
    terminals = int(rng.integers(2, 12))
    most = terminals * int(rng.integers(4, 25))
    rows = [rng.permutation(np.flatnonzero(group == name))[:most] for name in chosen]
    sizes: list[int] = []
    for own in rows:
        even = np.arange(1, terminals) * len(own) // terminals
        cuts = even if rng.random() < 0.7 else np.sort(rng.permutation(len(own) - 1)[: terminals - 1] + 1)
        sizes += np.diff([0, *cuts, len(own)]).tolist()
    at = np.concatenate(rows)
    return Federation(
        X=np.ascontiguousarray(X[at]),
        y=y[at],
        terminal_offsets=np.concatenate([[0], np.cumsum(sizes)]),
        task_offsets=np.arange(len(chosen) + 1) * terminals,
        test_X=X[:0],
        test_y=y[:0],
        test_offsets=np.zeros(len(chosen) + 1, dtype=np.int64),
        task_names=tuple(f"task {b}" for b in range(len(chosen))),
        class_names=("no", "yes")[:classes],
        origin=Origin("drawn"),
    )


def settings_of(rng: Rng, data: Federation) -> tuple[DualMethod, Policy, Settings, str, dict[str, float]]:
    """Loss, weights, scaling, policy, prices and budget of one problem."""
    numbers = data.kind == "regression"
    loss = "squared" if numbers else str(rng.choice(CLASS_LOSSES))
    tied = RELATIONSHIPS[str(rng.choice(["mean", "mean", "mean", "none"]))]
    method = DualMethod(
        LOSSES[loss](), tied(10 ** rng.uniform(-5, -1), 10 ** rng.uniform(-6, 0)), intercept=bool(rng.integers(2))
    )
    scale = "standard-rms" if numbers else "standard-unit"
    if rng.random() < 0.15:
        scale = str(rng.choice(["unit", "standard", "standard-unit"]))
    kind = rng.random()
    H, K = int(rng.choice([1, 2, 5, 10, 20, 40])), int(rng.choice([1, 1, 2, 4]))
    policy: Policy = Measured() if kind < 0.5 else Fixed(H, K)
    if kind > 0.9 and method.loss.smoothness > 0.0:
        policy = Theoretical("sound")
    step, cloud = 10 ** rng.uniform(-2, 0.3), float(rng.choice([0.0, 0.0, 20.0, 100.0]))
    round_ = 10.0 * data.n_tasks + cloud + step * data.n_terminals * (H if isinstance(policy, Fixed) else 5)
    settings = Settings(scale=scale, seed=int(rng.integers(1 << 30)), execution=Execution(threads=1))
    return method, policy, settings, f"energy={step},10,{cloud}", {"energy": round_ * 10 ** rng.uniform(0.8, 3.5)}


def flown_elsewhere(rng: Rng, job: tuple[Any, ...], cost: str, budget: dict[str, float], faults: Faults) -> pilot.Pilot:
    """A pilot of the same data, flown for other prices and another budget, under those that are asked for."""
    data, method, policy, settings = job
    known = Cost.of(cost)["energy"]
    step, round_ = (10 ** rng.uniform(-1, 1) * float(price) for price in (known.terminal_step, known.station_round))
    other = {"energy": budget["energy"] * 10 ** rng.uniform(-0.5, 0.5)}
    found = pilot.fly(
        data, method, policy, settings, Ledger(f"energy={step},{round_}", other), int(rng.integers(5, 65))
    )
    start = found.opened(Cost.of(cost))
    return found.under(replace(start, ledger=start.ledger.with_budget(budget)), faults)


def one(job: tuple[int, tuple[str, ...], bool]) -> dict[str, Any] | None:
    """Prediction and truth of one problem; None where it cannot be run, or takes too long."""
    seed, kinds, stored = job
    kind, rng = kinds[seed % len(kinds)], np.random.default_rng([2026, seed])
    data = federation(rng, kind)
    if data is None:
        return None
    method, policy, settings, cost, budget = settings_of(rng, data)
    try:
        start = situation_of(data, method, settings, Cost.of(cost))
        planned = dry_run(policy, replace(start, ledger=start.ledger.with_budget(budget)))
        if not 3 <= planned.rounds <= MOST_ROUNDS:
            return None
        ledger = Ledger(cost, budget)
        faults = Faults(dropout=float(rng.choice([0.0, 0.2, 0.5])) if stored else 0.0)
        problem = data, method, policy, settings
        if stored:
            flown = flown_elsewhere(rng, problem, cost, budget, faults)
        else:
            flown = pilot.fly(*problem, ledger, pilot.pilot_length(planned, policy, method))
        other = replace(settings, seed=settings.seed + 12345, certify_every=max(1, planned.rounds // 50))
        final = train(data, method, policy, other, ledger=ledger, faults=faults).certificate
    except RHFedMTLError:
        return None
    whole = flown.complete_run(policy, budget, settings.max_rounds)
    gap = flown.forecast(whole)
    truth = max(final.gap, 1e-15 * abs(final.primal))
    q, (start_gap, noise) = flown.fall, flown.gap
    return {
        "seed": seed,
        "kind": kind,
        "rounds": whole.rounds,
        "final": truth,
        "holds": gap.low <= truth <= gap.high,
        **vars(gap),
        "told": q is not None,
        "stretch": flown.stretch(whole),
        "dropout": faults.dropout,
        "start": start_gap,
        "noise": noise,
        "shown": pilot.Edges(1.0, 1.0, 1.0).falls(1.0 if q is None else q, flown.stretch(whole))[0],
    }


def table_of(found: list[dict[str, Any]]) -> str:
    """Coverage by loss and by kind of data, each with a 95 % interval (Wilson)."""
    groups = {
        "all": found,
        "loss for classes": [f for f in found if f["kind"] in FOR_CLASSES],
        "squared loss": [f for f in found if f["kind"] not in FOR_CLASSES],
        "pilot cannot tell": [f for f in found if not f["told"]],
        "up to 256 rounds": [f for f in found if f["rounds"] <= 256],
        "more than 1,000 rounds": [f for f in found if f["rounds"] > 1000],
        **{kind: [f for f in found if f["kind"] == kind] for kind in (*FOR_CLASSES, *FOR_NUMBERS)},
    }
    lines = ["| problems | number | held | below | above | high/low, median |", "| --- | --- | --- | --- | --- | --- |"]
    for name, group in groups.items():
        if group:
            n, held = len(group), sum(f["holds"] for f in group)
            low, high = wilson(held, n)
            below = sum(f["final"] < f["low"] for f in group) / n
            width = float(np.median([f["high"] / max(f["low"], 1e-15 * f["start"]) for f in group]))
            share = f"{held / n:.1%} [{low:.1%}, {high:.1%}]"
            lines.append(f"| {name} | {n} | {share} | {below:.1%} | {1 - held / n - below:.1%} | {width:.3g} |")
    return "\n".join(lines)


def wilson(k: int, n: int) -> tuple[float, float]:
    """95 % interval of a share."""
    z = 1.96
    middle, half = (k + z * z / 2) / (n + z * z), z * math.sqrt(k * (n - k) / n + z * z / 4) / (n + z * z)
    return middle - half, middle + half


def fitted(found: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Factors with the least quantile loss, for the three sets of `Edges`; falls end at rounding."""
    groups = {
        "CLASSES": [f for f in found if f["told"] and f["kind"] in FOR_CLASSES],
        "NUMBERS": [f for f in found if f["told"] and f["kind"] not in FOR_CLASSES],
        "UNCLEAR": [f for f in found if not f["told"]],
    }
    grid = np.arange(0.02, 5.0, 0.01)[:, None]
    factors = {}
    for name, group in groups.items():
        shown, start, final, noise = (np.array([f[key] for f in group]) for key in ("shown", "start", "final", "noise"))
        fell, most = np.log(start / final), np.log(start / np.minimum(final, 1e-15 * start))
        factors[name] = []
        for level, sign in ((0.95, 1), (0.5, 0), (0.05, -1)):
            miss = fell - np.minimum(grid * shown + sign * np.log(noise), most)
            loss = np.maximum(level * miss, (level - 1.0) * miss).mean(axis=1)
            factors[name].append(round(float(grid[np.argmin(loss), 0]), 2))
    return factors


def main() -> None:
    """Measure, and print the table; with ``--fit`` the factors as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write every problem here")
    given = parser.parse_args()
    kinds = FOR_CLASSES + FOR_NUMBERS[: 3 if given.fit else 4]
    jobs = [(seed, kinds, given.stored) for seed in range(given.first, given.first + given.problems)]
    with ProcessPoolExecutor(given.workers) as pool:
        found = [each for each in pool.map(one, jobs, chunksize=4) if each is not None]
    print(table_of(found))
    if given.fit:
        print(fitted(found))
    if given.json:
        given.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
