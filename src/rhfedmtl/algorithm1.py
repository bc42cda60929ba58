"""Algorithm 1 of the RHFedMTL paper (Yi et al.) in plain NumPy, to be read from top to bottom.

Run ``python -m rhfedmtl.algorithm1`` for an example. The file uses nothing else of the package. The package tests its
own engine against it: models, dual variables, H, K and costs agree to 12 digits.

Comments name the paper's equations by number, and lines of its listings as A1:3 (Algorithm 1) and P1:3 (Procedure 1),
a line per statement. A comment that begins with "Departs" says where the printed line is wrong, and what stands here.

The problem: minimise over W = [w_1 … w_N]                                                                     # eq. 1
    P(W) = 1/N sum_b [ 1/n_b sum_i L(y_i x_i.w_b) + lambda1/2 |w_b|^2 + lambda2/2 |w_b - r|^2 ],
    r = mean_b w_b                                                                                             # eq. 2
subject to a budget for every type of resource.                                                          # eq. 4 and 5
L is the smoothed hinge, which is (1/gamma)-smooth. Rows have a norm of at most 1, as the theory assumes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Draws = Callable[[int, int, int], npt.NDArray[np.int64]]
"""Rows that a terminal visits, from (BS iteration counted through the run, terminal counted over all BSs, H)."""


class Terminal(NamedTuple):
    """The data of a terminal: S_{b,t} rows of features, and labels -1 or 1."""

    X: Array
    y: Array


class Problem(NamedTuple):
    """N base stations (BSs) with their terminals, and the weights of eq. 1. Each BS has a task."""

    stations: Sequence[Sequence[Terminal]]
    lambda1: float = 1e-4
    lambda2: float = 1e-6
    gamma: float = 1.0

    @property
    def lam(self) -> float:
        """lambda = lambda1 + lambda2."""
        return self.lambda1 + self.lambda2

    @property
    def rows(self) -> Array:
        """n_b: rows of every BS."""
        return np.array([sum(len(t.y) for t in station) for station in self.stations], dtype=float)


class Costs(NamedTuple):
    """C_dev, C_BS and C_bud: a number for each type of resource."""

    dev: Sequence[float]
    bs: Sequence[float]
    budget: Sequence[float]


class BSIteration(NamedTuple):
    """State after a BS iteration."""

    server_iteration: int
    K: int
    H: list[list[int]]
    spent: list[float]
    primal: float
    dual: float


class Learned(NamedTuple):
    """Last models w_b (a row per task), dual variables by BS and terminal, and all rounds."""

    W: Array
    alpha: list[list[Array]]
    rounds: list[BSIteration]


# ------------------------------------------------------------------------------------- terminal: the local subproblem


def local_sdca(t: Terminal, alpha: Array, w: Array, visited: Sequence[int], lam_n: float, gamma: float) -> Array:
    """Change of a terminal's dual variables after H = len(visited) coordinate steps; lam_n is lambda n_b."""
    change, w_local = np.zeros_like(alpha), w.copy()  # P1, Initialize
    for i in visited:  # P1:10 and 11: choose i uniformly at random
        x, y = t.X[i], t.y[i]
        # P1:12, eq. 8 (for another loss change this step and duality_gap): the best change of a dual variable. With
        # beta = y alpha in [0, 1], -L*(-alpha) is beta - gamma beta^2 / 2, and the maximum has a closed form.
        # Departs: eq. 8 mixes w_b and A alpha_b. This is D_b of eq. 7 as a function of a single alpha_i.
        beta = y * (alpha[i] + change[i])
        best = np.clip(beta + (1.0 - y * (x @ w_local) - gamma * beta) / (x @ x / lam_n + gamma), 0.0, 1.0)
        step = y * (best - beta)
        change[i] += step  # P1:13
        # P1:14. Departs: the printed step lacks 1/n_b, which A_i = x_i/n_b in eq. 7 asks for.
        w_local += step * x / lam_n
    return change  # Output


# ------------------------------------------------------------------------------------------ base station: merge updates


def merge(station: Sequence[Terminal], alpha: list[Array], changes: list[Array]) -> Array:
    """Add each change, divided by N_b, to alpha. Returns v_b = A_b alpha_b = 1/n_b sum_i alpha_i x_i."""
    # Departs: the printed procedure leaves alpha at the full change. Then v_b = A_b alpha_b is wrong.
    for own, change in zip(alpha, changes, strict=True):
        own += change / len(station)  # noqa: PLW2901  (changes the terminal's array)
    n = sum(len(t.y) for t in station)
    return np.asarray(sum(t.X.T @ a for t, a in zip(station, alpha, strict=True)) / n)


def model(v: Array, r: Array, problem: Problem) -> Array:
    """w_b = (lambda2 r + A_b alpha_b) / lambda, as below eq. 7."""
    # A1:9. Departs: the printed line adds w_b and lambda2 r again in every BS iteration.
    return np.asarray((problem.lambda2 * r + v) / problem.lam)


# ------------------------------------------------------------------------------- cloud: reference model and certificate


def update_reference(W: Array) -> Array:
    """r = mean_b w_b."""  # A1:10, eq. 2
    return np.asarray(W.mean(axis=0))


def duality_gap(problem: Problem, alpha: list[list[Array]], W: Array) -> tuple[float, float]:
    """P(W) and D(alpha). The best objective lies between them, for every W and every alpha in its box."""
    N, g = len(problem.stations), problem.gamma
    losses, conjugates, V = np.zeros(N), np.zeros(N), np.zeros_like(W)
    for b, (station, n) in enumerate(zip(problem.stations, problem.rows, strict=True)):
        for t, a in zip(station, alpha[b], strict=True):
            short = np.maximum(1.0 - t.y * (t.X @ W[b]), 0.0)
            losses[b] += np.where(short < g, short**2 / (2.0 * g), short - g / 2.0).sum() / n
            beta = t.y * a
            conjugates[b] += (beta - g * beta**2 / 2.0).sum() / n  # -L*(-alpha)
            V[b] += t.X.T @ a / n
    r, mean = W.mean(axis=0), V.mean(axis=0)
    primal = losses.mean() + (problem.lambda1 * (W**2).sum() + problem.lambda2 * ((W - r) ** 2).sum()) / (2.0 * N)
    # Departs: the constant of eq. 7 is lambda1 lambda2 |r|^2. With the printed lambda2^2 |r|^2 the gap does not close.
    # With the corrected constant, eq. 6 at the r that suits alpha best, which is mean / lambda1, is:
    dual = conjugates.mean() - (((V - mean) ** 2).sum() / problem.lam + N * (mean**2).sum() / problem.lambda1) / (2 * N)
    return float(primal), float(dual)


# ------------------------------------------------------------------------------- Procedure 1: how many steps and rounds


def rounds_needed(problem: Problem, h: npt.NDArray[np.int64], bound: Literal["text", "drawn"]) -> Array:
    """K for H = h: ``text`` is eq. 12 as printed, ``drawn`` is the curve that the paper's figure of costs shows."""
    n, N_b = problem.rows, max(len(station) for station in problem.stations)
    largest = np.array([max(len(t.y) for t in station) for station in problem.stations])
    # Departs: eq. 12 is necessary and not sufficient (log x < x is used the wrong way round in its proof). The authors'
    # code draws a simpler curve, for another target than the text names.
    if bound == "drawn":
        return np.asarray(np.floor(math.log(n.mean() / 1e-4) * (1.0 - 1.0 / largest.max()) ** h))
    s = problem.lam * n * problem.gamma
    Theta = ((1.0 - s / (1.0 + s) / largest) ** h[:, None]).max(axis=1)  # eq. 11
    # Departs: the theorem prints two forms of eta. This form solves the condition of its proof, with sigma <= largest.
    eta = (s / (largest + s)).min()
    return np.asarray((1.0 - (1.0 - Theta) * eta / N_b) * max(math.log(n.mean() / 0.01), 0.0))  # eq. 12


def choose_local_steps(
    problem: Problem, costs: Costs, bound: Literal["text", "drawn"] = "drawn"
) -> tuple[list[list[int]], int]:
    """H of every terminal and K: Procedure 1, lines 1 to 9."""
    sizes = [[len(t.y) for t in station] for station in problem.stations]
    N, terminals, largest = len(sizes), sum(len(station) for station in sizes), max(max(station) for station in sizes)
    h = np.arange(1, largest + 2)
    K, M = rounds_needed(problem, h, bound), 2 if bound == "drawn" else 1  # M server iterations
    # f(h), eq. 25: the cost of M K rounds as a share of the budget; the scarcest resource counts.
    # Departs: the printed f lacks M, and N at the cost of terminals, which eq. 25 has.
    shares = [
        M * K * (N * c_bs + terminals * h * c_dev) / c_bud
        for c_dev, c_bs, c_bud in zip(costs.dev, costs.bs, costs.budget, strict=True)
    ]
    f = dict(zip(h.tolist(), np.max(shares, axis=0).tolist(), strict=True))

    def procedure(size: int) -> int:
        H, candidate, c = 0, 0, math.inf  # P1:1
        for step in range(size, 0, -1):  # P1:2
            if f[step] < c:  # P1:3
                c, candidate = f[step], step  # P1:4 and 5
            if f[step] <= 1.0 < f[step + 1]:  # P1:6
                H = step  # P1:7
        return H or candidate  # P1:8 and 9

    H = [[procedure(size) for size in station] for station in sizes]
    fewest = min(min(station) for station in H)
    return H, max(1, math.ceil(K[fewest - 1]))


# ------------------------------------------------------------------------------------------------ Algorithm 1: RHFedMTL


def rhfedmtl(
    problem: Problem,
    costs: Costs,
    *,
    bound: Literal["text", "drawn"] = "drawn",
    H: int | None = None,
    K: int | None = None,
    draws: Draws | None = None,
) -> Learned:
    """Learn until the budget cannot pay another BS iteration. A given H and K make it HFedMTL."""
    if not all(c > 0 for c in costs.budget) or not any(
        dev + bs > 0 for dev, bs in zip(costs.dev, costs.bs, strict=True)
    ):
        raise ValueError("give budgets above 0, and a cost above 0 for at least one of them: nothing else ends the run")
    stations, lam = problem.stations, problem.lam
    sizes = [len(t.y) for station in stations for t in station]
    first = np.cumsum([0] + [len(station) for station in stations])  # terminals are counted over all BSs
    draws = draws or (lambda k, t, h: np.random.default_rng([k, t]).integers(sizes[t], size=h))

    alpha = [[np.zeros(len(t.y)) for t in station] for station in stations]  # Initialize
    W = np.zeros((len(stations), stations[0][0].X.shape[1]))
    V, rounds = np.zeros_like(W), list[BSIteration]()
    chosen, K_bound = choose_local_steps(problem, costs, bound)
    # Departs: in A1:8 every terminal chooses H again in every BS iteration. Its inputs never change,
    # so H is chosen once and sent to the terminals.
    steps = chosen if H is None else [[H] * len(station) for station in stations]
    K = K_bound if K is None else K
    price = [
        sum(c_bs + c_dev * sum(station) for station in steps)  # eq. 4, of a single BS iteration
        for c_dev, c_bs in zip(costs.dev, costs.bs, strict=True)
    ]

    def affordable(count: int) -> bool:
        # Departs: budgets are hard here. The slack of 1e-12 is for prices such as 0.1, which have no exact binary form.
        return all(count * p <= c * (1.0 + 1e-12) for p, c in zip(price, costs.budget, strict=True))

    server_iteration = 0
    while affordable(len(rounds) + 1):  # A1:1: server iterations
        server_iteration += 1
        r = update_reference(W)  # A1:10 of the last server iteration; A1:2: sent to all terminals through their BSs
        W = model(V, r, problem)
        for _ in range(K):  # A1:5: BS iterations. Departs: printed as 0, …, K, which would be K + 1.
            if not affordable(len(rounds) + 1):
                break
            for b, station in enumerate(stations):  # A1:3 and 6: in parallel on a network
                changes = [
                    local_sdca(
                        t,
                        alpha[b][i],
                        W[b],
                        draws(len(rounds) + 1, int(first[b]) + i, steps[b][i]).tolist(),
                        lam * problem.rows[b],
                        problem.gamma,
                    )
                    for i, t in enumerate(station)
                ]  # A1:7 and 8
                V[b] = merge(station, alpha[b], changes)
                W[b] = model(V[b], r, problem)  # A1:9
            spent = [(len(rounds) + 1) * p for p in price]
            rounds.append(BSIteration(server_iteration, K, steps, spent, *duality_gap(problem, alpha, W)))
    return Learned(W, alpha, rounds)  # Output


def example(seed: int = 0) -> Problem:
    """Made-up data of the size of the paper's: 5 BSs x 5 terminals, 52 rows a task, 561 features, unit rows."""
    rng = np.random.default_rng(seed)
    common, stations = rng.normal(size=561), []
    for _ in range(5):
        own = common + 0.5 * rng.normal(size=561)
        X = rng.normal(size=(52, 561)) + 0.5 * rng.choice([-1.0, 1.0], size=(52, 1)) * own / math.sqrt(561) * 4
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        y = np.where(X @ own > 0.0, 1.0, -1.0)
        parts = np.array_split(np.arange(52), 5)
        stations.append([Terminal(X[rows], y[rows]) for rows in parts])
    return Problem(stations)


def main() -> None:
    """Print the rounds of RHFedMTL and, below, of HFedMTL at the same budget: Table II of the paper."""
    problem, costs = example(), Costs([0.1], [10.0], [1400.0])
    learned = {
        "RHFedMTL, H and K by Procedure 1": rhfedmtl(problem, costs),
        "HFedMTL, H = 2, K = 1": rhfedmtl(problem, costs, H=2, K=1),
    }
    lines = []
    for name, run in learned.items():
        lines += [name, f"{'round':>5} {'server':>6} {'K':>3} {'H':>3} {'spent':>7} {'P':>8} {'D':>8} {'gap':>8}"]
        for number, (server, K, H, spent, P, D) in enumerate(run.rounds, 1):
            numbers = f"{number:5} {server:6} {K:3} {max(map(max, H)):3} {spent[0]:7.1f}"
            lines.append(f"{numbers} {P:8.4f} {D:8.4f} {P - D:8.4f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
