"""Theory against measurement: how far Θ(H), β and the three bounds on K are from what really happens.

Four settings: HAR (SITTING against the rest, N = 5, N_b = 5, 70 balanced rows a task of which a quarter is for the
test) and a synthetic federation of the same size, each at a small and at a larger λ. Everything is measured in the case
for which the theory speaks: smoothed hinge with γ = 1, unit rows, no intercept, averaging, a fixed anchor, rows drawn
with replacement. Optima are exact: a terminal's subproblem and a station's dual are box-constrained least squares
(scipy, active sets), not the limit of our own iteration.

    python benchmarks/theory.py --out out/theory              # 20 splits, 5 to 15 minutes on 2 cores; tables, PNG, PDF
    python benchmarks/theory.py --seeds 3 --only synthetic    # a quick look
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.request import Request
from rhfedmtl.data.scaling import scalers
from rhfedmtl.data.sums import station_moments
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths import theory
from rhfedmtl.maths.kernels import rounds, sdca
from rhfedmtl.maths.losses import SmoothedHinge
from rhfedmtl.maths.relationships import MeanRegularised, Relationship, Unrelated
from rhfedmtl.policies.fixed import Fixed
from rhfedmtl.roles.cloud import Cloud
from rhfedmtl.training.run import train
from rhfedmtl.training.settings import Settings

DATA = Path(os.environ.get("RHFEDMTL_DATA", "."))
GAMMA = 1.0
STEPS = 2 ** np.arange(11)  # H of the study of Θ: where kernels report the gain of a terminal
GRID = (1, 2, 5, 10, 20, 40, 80)  # H of the study of rounds
REAL_RUN = 10  # H of the one real run, with coupled tasks
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
STATES = (0, 10, 100)  # rounds done before Θ is measured
DRAWS = 100  # draws of rows behind each Θ
STATION_PRICE, STEP_PRICE = 10.0, 0.1
BOUNDS = ("text", "drawn", "sound")
MOST_ROUNDS = 100_000


@dataclass(frozen=True)
class Setting:
    """One federation and one strength of regularisation."""

    name: str
    request: Request
    lambda1: float
    lambda2: float

    @property
    def lam(self) -> float:
        """λ = λ1 + λ2, what a station sees."""
        return self.lambda1 + self.lambda2

    @property
    def label(self) -> str:
        """Name and λ, for titles."""
        return f"{self.name}, λ1={self.lambda1:g}, λ2={self.lambda2:g}"


def settings() -> list[Setting]:
    """HAR and synthetic data, at two λ each."""
    har = Request("har", str(DATA / "har.npz"), tasks=5, terminals=5, samples_per_task=70, positive="SITTING")
    made = Request("synthetic", tasks=5, terminals=5, samples_per_task=70)
    weights = ((1e-4, 1e-6), (1e-2, 1e-4))
    return [Setting(name, data, *w) for name, data in (("HAR", har), ("synthetic", made)) for w in weights]


def prepared(setting: Setting, seed: int) -> Federation:
    """Standardised unit rows in double precision, so that R = 1."""
    raw = setting.request.federation(seed)
    moments = station_moments(raw.X, raw.terminal_offsets, raw.task_offsets)
    scaler = scalers(moments, "standard-unit")[0]
    return replace(raw, X=scaler.transform(raw.X.astype(np.float64)), test_X=scaler.transform(raw.test_X))


def method(relationship: Relationship, *, uniform: bool) -> DualMethod:
    """What is learned; without an intercept, so that ‖x‖ = 1."""
    return DualMethod(loss=SmoothedHinge(GAMMA), relationship=relationship, intercept=False, uniform=uniform)


def best_gain(X: np.ndarray, y: np.ndarray, b: np.ndarray, z: np.ndarray, scale: float) -> float:
    """Exact maximum of the dual gain (times n) of some rows that start at b = yα with scores z; ``scale`` is λn."""
    YX = X * y[:, None]
    A = YX @ YX.T / scale
    c = 1.0 - y * z + A @ b
    L = np.linalg.cholesky(A + GAMMA * np.eye(len(y)))
    found = scipy.optimize.lsq_linear(
        L.T, scipy.linalg.solve_triangular(L, c, lower=True), (0.0, 1.0), method="bvls", tol=1e-14
    ).x
    d = found - b
    return float(np.sum(found - b - GAMMA / 2 * (found**2 - b**2)) - d @ (y * z) - d @ A @ d / 2)


def best_dual(fed: Federation, lam: float) -> float:
    """Exact optimum of (1/N) Σ_b D_b at the anchor 0."""
    total = 0.0
    for rows in task_rows(fed):
        n, y = rows.stop - rows.start, fed.targets()[rows, 0]
        total += best_gain(fed.X[rows], y, np.zeros(n), np.zeros(n), lam * n) / n
    return total / fed.n_tasks


def task_rows(fed: Federation) -> list[slice]:
    """Training rows of every task."""
    cuts = fed.terminal_offsets[fed.task_offsets]
    return [slice(int(a), int(b)) for a, b in pairwise(cuts)]


def measure_theta(fed: Federation, lam: float, done: int, *, uniform: bool, seed: int) -> np.ndarray:
    """Share of its own suboptimality that each terminal has left after H steps (terminal, H), mean over draws."""
    learned = method(Unrelated(lam), uniform=uniform)
    network = InProcess(fed, learned, seed=seed, threads=1)
    network.assign(Cloud(learned.relationship, fed.n_tasks, network.shape).assign())
    pass_steps = np.diff(fed.terminal_offsets).astype(np.int64)
    for number in range(1, done + 1):
        network.round(number, pass_steps)
    task, y = fed.terminal_task, fed.targets()
    n = np.array([rows.stop - rows.start for rows in task_rows(fed)])
    scale = lam * n[task]
    models = np.ascontiguousarray((network.V / lam)[task])
    alpha = network.alpha.copy()
    best = []
    for t, (a, b) in enumerate(pairwise(fed.terminal_offsets)):
        X, label = fed.X[a:b], y[a:b, 0]
        best.append(best_gain(X, label, label * alpha[a:b, 0], X @ models[t, 0], scale[t]))
    # Every terminal as a station of its own: the kernel then returns the gain curve of each.
    rows = rounds.make_rows(fed.X, y, np.asarray(fed.terminal_offsets, dtype=np.int64))
    layout = rounds.make_layout(np.arange(len(task)), len(task), rows.ids)
    gains = np.zeros((len(task), len(STEPS)))
    for draw in range(DRAWS):
        duals = rounds.make_duals(rows)._replace(alpha=alpha.copy())
        steps = np.full(len(task), STEPS[-1])
        number = np.uint64(1_000_000 + draw)
        ascent = np.zeros(len(task), dtype=bool)
        orders = rounds.Orders(models, scale, steps, np.uint64(seed), number, uniform, ascent)
        gains += sdca.run_round(learned.loss, rows, layout, duals, orders).gains[:, : len(STEPS)]
    return 1.0 - gains / DRAWS / np.array(best)[:, None]


def theta_in_theory(fed: Federation, lam: float) -> np.ndarray:
    """Θ_b(H) of each terminal's station (terminal, H)."""
    n, largest = sizes(fed)
    return theory.Theta(STEPS[None, :], n[fed.terminal_task, None], largest[fed.terminal_task, None], lam, GAMMA)


def sizes(fed: Federation) -> tuple[np.ndarray, np.ndarray]:
    """n_b and ñ_b of every station."""
    own = np.diff(fed.terminal_offsets)
    largest = np.array([own[fed.terminal_task == b].max() for b in range(fed.n_tasks)], dtype=float)
    return np.array([rows.stop - rows.start for rows in task_rows(fed)], dtype=float), largest


def sigmas(fed: Federation) -> dict[str, np.ndarray]:
    """σ_min of every station: exact, bounded from the rows, bounded from the sizes."""
    exact, bound = [], []
    for b, rows in enumerate(task_rows(fed)):
        offsets = fed.terminal_offsets[fed.task_offsets[b] : fed.task_offsets[b + 1] + 1] - rows.start
        X = np.asarray(fed.X[rows], dtype=np.float64)
        M = -(X @ X.T)  # blockdiag_t(X_t X_tᵀ) − X Xᵀ
        for first, last in pairwise(offsets):
            M[first:last, first:last] = 0.0
        exact.append(max(0.0, float(np.linalg.eigvalsh(M)[-1])))
        bound.append(max(np.linalg.norm(part, 2) ** 2 for part in np.split(X, offsets[1:-1])))
    return {"exact": np.array(exact), "rows": np.array(bound), "sizes": theory.sigma_size_bound(sizes(fed)[1])}


def bounds(fed: Federation, lam: float, sigma: np.ndarray) -> dict[str, np.ndarray]:
    """K by each bound (H, target), and β (H)."""
    n, largest = sizes(fed)
    H = np.array(GRID)
    Theta = theory.Theta(H[:, None], n, largest, lam, GAMMA).max(axis=1)
    beta = theory.beta(Theta, theory.eta(n, sigma, lam, GAMMA), np.diff(fed.task_offsets))
    L = [theory.log_target(n, epsilon) for epsilon in TARGETS]
    return {
        "beta": beta,
        "text": np.array([theory.rounds_text(beta, x) for x in L]).T,
        "sound": np.array([theory.rounds_sound(beta, x) for x in L]).T,
        "drawn": np.array([theory.rounds_drawn(H, float(largest.max()), x) for x in L]).T,
    }


def measure_rounds(fed: Federation, lam: float, H: int, seed: int, *, uniform: bool) -> dict[str, Any]:
    """Rounds at the anchor 0 until the dual suboptimality and the gap are at most each target, and the mean β.

    Every round up to 200 is looked at, later ones to 1 %.
    """
    optimum, learned = best_dual(fed, lam), method(Unrelated(lam), uniform=uniform)
    network = InProcess(fed, learned, seed=seed, threads=1)
    network.assign(Cloud(learned.relationship, fed.n_tasks, network.shape).assign())
    steps = np.full(fed.n_terminals, H)
    numbers, seen = [], []
    for number in range(1, MOST_ROUNDS + 1):
        network.round(number, steps)
        if number <= 200 or number % (number // 100) == 0:
            primal, dual = objectives(fed, lam, network)
            numbers.append(number)
            seen.append((optimum - dual, primal - dual))
            if primal - dual <= TARGETS[-1]:
                break
    left, gap = np.array(seen).T
    last = int(np.argmax(left <= TARGETS[-1]))
    return {
        "dual": [_first(numbers, left, epsilon) for epsilon in TARGETS],
        "gap": [_first(numbers, gap, epsilon) for epsilon in TARGETS],
        "beta": 1.0 - (max(left[last], 1e-16) / optimum) ** (1.0 / numbers[last]),
    }


def objectives(fed: Federation, lam: float, network: InProcess) -> tuple[float, float]:
    """(1/N) Σ_b P_b and (1/N) Σ_b D_b at the anchor 0, straight from their formulas."""
    V, y, b = network.V[:, 0], fed.targets()[:, 0], fed.targets()[:, 0] * network.alpha[:, 0]
    primal = dual = 0.0
    for task, rows in enumerate(task_rows(fed)):
        margin = 1.0 - y[rows] * (fed.X[rows] @ (V[task] / lam))
        loss = np.where(margin >= GAMMA, margin - GAMMA / 2, np.maximum(margin, 0.0) ** 2 / (2 * GAMMA))
        norm = V[task] @ V[task] / (2 * lam)
        primal += loss.mean() + norm
        dual += (b[rows] - GAMMA / 2 * b[rows] ** 2).mean() - norm
    return primal / fed.n_tasks, dual / fed.n_tasks


def alternating_rounds(fed: Federation, setting: Setting, H: int, seed: int) -> list[float]:
    """Rounds until the joint gap is at most each target in a real run: coupled tasks, new anchors after each round."""
    learned = method(MeanRegularised(setting.lambda1, setting.lambda2), uniform=False)
    run = Settings(
        scale="none", seed=seed, target_gap=TARGETS[-1], max_rounds=MOST_ROUNDS, execution=Execution(threads=1)
    )
    history = train(fed, learned, Fixed(H, 1, MOST_ROUNDS), run).history
    return [_first([m.round for m in history], np.array([m.gap for m in history]), e) for e in TARGETS]


def _first(numbers: list[int], values: np.ndarray, limit: float) -> float:
    """Number of the first round that reaches the limit; not a number where none does."""
    reached = np.flatnonzero(values <= limit)
    return float(numbers[reached[0]]) if len(reached) else float("nan")


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """All measurements of one split."""
    fed = prepared(setting, seed)
    lam, sigma = setting.lam, sigmas(fed)
    return {
        "sigma": sigma,
        "bounds": {name: bounds(fed, lam, value) for name, value in sigma.items()},
        "theta": {done: measure_theta(fed, lam, done, uniform=True, seed=seed) for done in STATES},
        "theta_passes": measure_theta(fed, lam, 0, uniform=False, seed=seed),
        "theta_theory": theta_in_theory(fed, lam),
        "fixed": [measure_rounds(fed, lam, H, seed, uniform=True) for H in GRID],
        "passes": [measure_rounds(fed, lam, H, seed, uniform=False) for H in GRID],
        "alternating": alternating_rounds(fed, setting, REAL_RUN, seed),
        "sizes": sizes(fed),
    }


def summarise(setting: Setting, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and 10 % and 90 % quantiles, over terminals and splits for Θ, over splits for the rest."""

    def spread(values: Any) -> list[list[float]]:
        return np.nanquantile(np.asarray(values, dtype=float), (0.5, 0.1, 0.9), axis=0).tolist()

    def needed(kind: str, what: str) -> list[list[list[float]]]:
        return spread([[cell[what] for cell in seed[kind]] for seed in seeds])

    return {
        "setting": setting.label,
        "seeds": len(seeds),
        "H_theta": STEPS.tolist(),
        "H": list(GRID),
        "targets": list(TARGETS),
        "n": float(np.mean([seed["sizes"][0] for seed in seeds])),
        "n_largest": float(np.max([seed["sizes"][1] for seed in seeds])),
        "theta": {done: spread(np.concatenate([seed["theta"][done] for seed in seeds])) for done in STATES},
        "theta_worst": np.max([seed["theta"][done] for seed in seeds for done in STATES], axis=(0, 1)).tolist(),
        "theta_passes": spread(np.concatenate([seed["theta_passes"] for seed in seeds])),
        "theta_theory": spread(np.concatenate([seed["theta_theory"] for seed in seeds])),
        "sigma": {name: spread([seed["sigma"][name].max() for seed in seeds]) for name in seeds[0]["sigma"]},
        "bounds": {
            name: {what: spread([seed["bounds"][name][what] for seed in seeds]) for what in ("beta", *BOUNDS)}
            for name in seeds[0]["bounds"]
        },
        "rounds_dual": needed("fixed", "dual"),
        "rounds_gap": needed("fixed", "gap"),
        "rounds_gap_passes": needed("passes", "gap"),
        "rounds_gap_alternating": spread([seed["alternating"] for seed in seeds]),
        "beta_measured": needed("fixed", "beta"),
        "beta_passes": needed("passes", "beta"),
        "choice": choices(seeds),
    }


def choices(seeds: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """For each target the H that is cheapest by measurement and by each bound, and what it really costs at that H.

    Costs are a station's (10 a round, 0.1 a step, 5 terminals), as a multiple of the cheapest, means over splits.
    """
    members = 5
    price = STATION_PRICE + members * STEP_PRICE * np.array(GRID)
    real = np.nanmean([[cell["gap"] for cell in seed["passes"]] for seed in seeds], axis=0) * price[:, None]
    chosen = {"measured": real.argmin(axis=0)}
    for bound in BOUNDS:
        K = np.mean([seed["bounds"]["exact"][bound] for seed in seeds], axis=0)
        chosen[bound] = (K * price[:, None]).argmin(axis=0)
    return {
        name: [(GRID[h], float(real[h, e] / real[:, e].min())) for e, h in enumerate(best)]
        for name, best in chosen.items()
    }


def show(s: dict[str, Any]) -> None:
    """Tables of one setting."""
    print(
        f"\n== {s['setting']}: {s['seeds']} splits, n_b about {s['n']:.0f}, largest terminal {s['n_largest']:.0f} rows"
    )
    print("sigma  exact {}   from rows {}   from sizes {}".format(*(_range(s["sigma"][k]) for k in s["sigma"])))
    print("\nTheta: share of a terminal's own suboptimality left after H steps, median [10 %, 90 %] over terminals")
    print("    H  theory        at the start          after 10 rounds       after 100 rounds      passes, start")
    for i, H in enumerate(s["H_theta"]):
        cells = [[q[i] for q in s["theta"][done]] for done in STATES] + [[q[i] for q in s["theta_passes"]]]
        print(f"{H:5d}  {s['theta_theory'][0][i]:.6f}  " + "  ".join(f"{_range(cell, '.4f'):20s}" for cell in cells))
    print("\nrounds to a dual suboptimality (fixed anchor, with replacement), median [10 %, 90 %] over splits; bounds")
    print("  target    H  measured                  gap: same  passes     drawn     text        sound")
    for e, epsilon in enumerate(s["targets"]):
        for i, H in enumerate(s["H"]):
            cell = [q[i][e] for q in s["rounds_dual"]]
            others = [s[key][0][i][e] for key in ("rounds_gap", "rounds_gap_passes")]
            K = [s["bounds"]["exact"][name][0][i][e] for name in ("drawn", "text", "sound")]
            print(
                f"{epsilon:8g} {H:4d}  {_range(cell, '.0f'):25s} {others[0]:9.0f} {others[1]:7.0f} "
                f"{K[0]:9.0f} {K[1]:8.2f} {K[2]:12.3g}"
            )
    real = ", ".join(f"{e:g}: {K:.0f}" for e, K in zip(s["targets"], s["rounds_gap_alternating"][0], strict=True))
    print(f"a real run at H={REAL_RUN} (passes, coupled tasks, new anchors after each round) took {real}")
    print("\nbeta: share of the dual gap that a round closes, mean over the way to 1e-4")
    print(
        "    H  measured                passes                  theory: exact sigma   rows    sizes   measured/theory"
    )
    for i, H in enumerate(s["H"]):
        mine, passes = ([q[i] for q in s[key]] for key in ("beta_measured", "beta_passes"))
        theirs = [s["bounds"][name]["beta"][0][i] for name in ("exact", "rows", "sizes")]
        print(
            f"{H:5d}  {_range(mine, '.4f'):22s}  {_range(passes, '.4f'):22s}  {theirs[0]:12.3g} {theirs[1]:12.3g} "
            f"{theirs[2]:8.3g} {mine[0] / theirs[0]:12.0f}"
        )
    print("\ncheapest H at 10 a round and 0.1 a step (cost of that H, as a multiple of the cheapest)")
    for name, cells in s["choice"].items():
        listed = ", ".join(f"{e:g}: H={H} ({c:.2f})" for e, (H, c) in zip(s["targets"], cells, strict=True))
        print(f"  {name:9s} {listed}")


def _range(cell: list[float], form: str = ".3g") -> str:
    middle, low, high = (x + 0.0 if abs(x) > 1e-9 else 0.0 for x in cell)
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


# Okabe and Ito's colours: told apart also by people who are colour-blind, and drawn with different marks and dashes.
BLUE, ORANGE, GREEN, RED, BLACK, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#000000", "#56B4E9"


def draw_theta(all_: list[dict[str, Any]], out: Path) -> None:
    """Θ over H: theory against terminals at the start and after 10 and 100 rounds."""
    fig, axes = _panels(all_)
    for ax, s in zip(axes, all_, strict=True):
        ax.plot(s["H_theta"], s["theta_theory"][0], color=BLACK, ls="--", label="theory Θ(H)")
        for (done, q), colour, mark in zip(s["theta"].items(), (BLUE, ORANGE, GREEN), "os^", strict=True):
            label = "measured at the start" if int(done) == 0 else f"measured after {done} rounds"
            ax.plot(s["H_theta"], q[0], color=colour, marker=mark, ms=4, label=label)
            ax.fill_between(s["H_theta"], q[1], q[2], color=colour, alpha=0.18, lw=0)
        ax.plot(s["H_theta"], s["theta_worst"], color=RED, ls=":", label="worst terminal, any state")
        ax.set(xscale="log", ylim=(-0.03, 1.05), title=s["setting"])
        ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    _finish(fig, axes, "H: steps of a terminal (rows visited)", "share of suboptimality left", out / "theta")


def draw_rounds(all_: list[dict[str, Any]], out: Path, target: float = 1e-3) -> None:
    """K over H: the three bounds against rounds that were needed."""
    fig, axes = _panels(all_)
    e = TARGETS.index(target)
    for ax, s in zip(axes, all_, strict=True):
        for name, colour, dash in (("sound", BLACK, "--"), ("text", RED, ":"), ("drawn", ORANGE, "-.")):
            K = np.maximum([row[e] for row in s["bounds"]["exact"][name][0]], 0.5)
            ax.plot(s["H"], K, color=colour, ls=dash, label=f"bound: {name}")
        for key, colour, mark, label in (
            ("rounds_dual", BLUE, "o", "measured: dual within target"),
            ("rounds_gap", SKY, "s", "measured: gap within target"),
            ("rounds_gap_passes", GREEN, "^", "measured: gap, in passes"),
        ):
            q = [[row[e] for row in quantile] for quantile in s[key]]
            ax.plot(s["H"], q[0], color=colour, marker=mark, ms=4, label=label)
            ax.fill_between(s["H"], q[1], q[2], color=colour, alpha=0.18, lw=0)
        ax.set(xscale="log", yscale="log", title=s["setting"])
        ax.set_xticks(s["H"], [str(H) for H in s["H"]])
        ax.minorticks_off()
    _finish(fig, axes, "H: steps of a terminal in a round", f"rounds to reach {target:g}", out / "rounds")


def draw_beta(all_: list[dict[str, Any]], out: Path) -> None:
    """β over H: what a round closes of the dual gap, by theory with three σ, and measured."""
    fig, axes = _panels(all_)
    for ax, s in zip(axes, all_, strict=True):
        for name, colour, dash in (("exact", BLACK, "--"), ("rows", RED, ":"), ("sizes", ORANGE, "-.")):
            ax.plot(s["H"], s["bounds"][name]["beta"][0], color=colour, ls=dash, label=f"theory, σ {WORDS[name]}")
        for key, colour, mark, label in (
            ("beta_measured", BLUE, "o", "measured, with replacement"),
            ("beta_passes", GREEN, "^", "measured, in passes"),
        ):
            q = s[key]
            ax.plot(s["H"], q[0], color=colour, marker=mark, ms=4, label=label)
            ax.fill_between(s["H"], q[1], q[2], color=colour, alpha=0.18, lw=0)
        ax.set(xscale="log", yscale="log", title=s["setting"])
        ax.set_xticks(s["H"], [str(H) for H in s["H"]])
        ax.minorticks_off()
    _finish(fig, axes, "H: steps of a terminal in a round", "share closed by a round", out / "beta")


WORDS = {"exact": "exact", "rows": "bounded from rows", "sizes": "bounded from sizes"}


def _panels(all_: list[dict[str, Any]]) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False})
    columns = min(2, len(all_))
    rows = -(-len(all_) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(3.9 * columns, 2.6 * rows + 0.7), sharey=True, squeeze=False)
    for ax in axes.ravel()[len(all_) :]:
        ax.remove()
    return fig, axes.ravel()[: len(all_)]


def _finish(fig: Any, axes: Any, x: str, y: str, stem: Path) -> None:
    for ax in axes:
        ax.grid(alpha=0.25, lw=0.5)
        if ax.get_subplotspec().is_last_row():
            ax.set_xlabel(x)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(y)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    for ending in (".png", ".pdf"):
        fig.savefig(stem.with_suffix(ending), dpi=115)


def main() -> None:
    """Measure, print tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="splits of each setting")
    parser.add_argument("--only", help="only settings whose name begins so")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="folder for theory.json and figures (PNG, PDF)")
    args = parser.parse_args()
    started, summaries = time.perf_counter(), []
    with ProcessPoolExecutor(args.workers) as pool:
        for setting in settings():
            if args.only and not setting.name.startswith(args.only):
                continue
            if setting.request.path and not Path(setting.request.path).exists():
                print(f"\n{setting.label}: skipped, {setting.request.path} is not there (set RHFEDMTL_DATA)")
                continue
            jobs = [pool.submit(one_seed, setting, seed) for seed in range(args.seeds)]
            summaries.append(summarise(setting, [job.result() for job in jobs]))
            show(summaries[-1])
    print(f"\n{time.perf_counter() - started:.0f} s")
    if args.out and summaries:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "theory.json").write_text(json.dumps(summaries, indent=1) + "\n")
        for draw in (draw_theta, draw_rounds, draw_beta):
            draw(summaries, args.out)
        print(f"drawn in {args.out}")


if __name__ == "__main__":
    main()
