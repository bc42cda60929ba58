"""The paper's cost figure: K and cost until the target over H, by two formulas, and the three budget cases.

This is theory and runs no training. ``text`` is the bound of the paper's text with its settings, ``drawn`` the curve of
its figure; each with ε = 0.01 (the text) and ε = 1e-4 (the authors' code).
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rhfedmtl.errors import ConfigError
from rhfedmtl.files import write_whole
from rhfedmtl.maths import theory
from rhfedmtl.plain import plain, read

FloatArray = npt.NDArray[np.float64]
FIGURE_NAME = "fig-cost"
TITLE = "Cost against H, by the bounds"
TASKS, TERMINALS = 5, 5
STEP_PRICE, STATION_PRICE = 0.1, 10.0
LAM, PAPER_GAMMA = 1e-4 + 1e-6, 1.0
EPSILONS = (0.01, 1e-4)
PAPER_EPSILON = {"text": 0.01, "drawn": 1e-4}
"""Target of each formula in the paper: its text says 0.01, and its figure is drawn for 1e-4."""
TEXT_ROWS, TEXT_LARGEST = 53, 11
"""Training rows of a task (of 70), and the largest number of rows of one of its 5 terminals."""
PAPER_ROWS, AUTHORS_LARGEST, AUTHORS_CLOUD_ROUNDS = 260, 26, 2


@dataclass(frozen=True)
class CostChoice:
    """Choice of the paper's procedure for a budget."""

    budget: float
    case: str
    local_steps: int
    rounds: float


@dataclass(frozen=True)
class CostCurve:
    """K and cost over H, by a formula at a target."""

    formula: str
    epsilon: float
    local_steps: list[int]
    rounds: list[float]
    cost: list[float]
    chosen: list[CostChoice]


def compute() -> list[CostCurve]:
    """Return the curves of both formulas at both targets."""
    return [_curve(formula, epsilon) for formula in ("text", "drawn") for epsilon in EPSILONS]


def _curve(formula: str, epsilon: float) -> CostCurve:
    n, largest, M = {
        "text": (TEXT_ROWS, TEXT_LARGEST, 1),
        "drawn": (PAPER_ROWS, AUTHORS_LARGEST, AUTHORS_CLOUD_ROUNDS),
    }[formula]
    H = np.arange(1, largest + 2)  # the procedure looks at H up to a terminal's rows
    if formula == "text":
        eta = theory.eta([float(n)], theory.sigma_size_bound([float(largest)]), LAM, PAPER_GAMMA)
        beta = theory.beta(
            theory.Theta(H[:, None], float(n), float(largest), LAM, PAPER_GAMMA).max(axis=1), eta, [TERMINALS]
        )
        K = theory.rounds_text(beta, theory.log_target([float(n)] * TASKS, epsilon))
    else:
        K = theory.rounds_drawn(H, float(largest), theory.log_target([float(n)] * TASKS, epsilon))
    cost = theory.predicted_cost(K, TASKS * (STATION_PRICE + TERMINALS * H * STEP_PRICE), M)
    # A budget for each of the three cases: too little for any H, enough for some, more than any H needs.
    low, high = float(cost.min()), float(cost.max())
    budgets = [float(10 * round(x / 10)) for x in (0.8 * low, (low + high) / 2, 1.1 * high)]
    chosen = [_choose(cost, K, budget) for budget in budgets]
    return CostCurve(formula, epsilon, H[:-1].tolist(), K[:-1].tolist(), cost[:-1].tolist(), chosen)


def _choose(cost: FloatArray, K: FloatArray, budget: float) -> CostChoice:
    choice = theory.paper_choice(cost, budget, [len(cost) - 1])
    H = int(choice.H[0])
    return CostChoice(budget, choice.case, H, float(K[H - 1]))


def save(out: Path) -> None:
    """Write the curves as fig-cost.csv, and with the choices for the report."""
    curves = compute()
    folder = out / "theory"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{FIGURE_NAME}.json", json.dumps(plain(curves), allow_nan=False) + "\n")
    with (out / f"{FIGURE_NAME}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["formula", "epsilon", "local_steps", "rounds", "cost"])
        for curve in curves:
            for row in zip(curve.local_steps, curve.rounds, curve.cost, strict=True):
                table.writerow([curve.formula, curve.epsilon, row[0], f"{row[1]:.6g}", f"{row[2]:.6g}"])


def load(out: Path) -> list[CostCurve] | None:
    """Return the curves in a results folder, or None."""
    path = out / "theory" / f"{FIGURE_NAME}.json"
    if not path.is_file():
        return None
    try:
        return [read(CostCurve, table) for table in json.loads(path.read_text())]
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as curves of cost: {error}") from error


def findings(curves: list[CostCurve]) -> list[str]:
    """Return the conclusions from the curves in sentences."""
    by_name = {(curve.formula, curve.epsilon): curve for curve in curves}
    text, drawn = by_name["text", 0.01], by_name["drawn", 1e-4]
    fall = 1e6 * (1.0 - text.rounds[-1] / text.rounds[0])
    first = ", ".join(f"{K:.0f}" for K in drawn.rounds[:10])
    return [
        f"The bound of the paper's text hardly falls with H ({fall:.2g} parts in a million from H = 1 to "
        f"{text.local_steps[-1]}), so its cheapest H is 1 whatever the budget: at the printed settings it gives no "
        "reason to work longer on a terminal.",
        f"The curve that the figure draws is another one: K = {first} for H = 1 … 10, with ε = 1e-4 and not 0.01.",
    ]
