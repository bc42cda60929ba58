"""Measure the effect of half and twice the value of every constant that steers learning.

    python -m benchmarks.constants cells                           # constants, and the groups in which they can act
    python -m benchmarks.constants run --keep constants.jsonl      # appends results, resumes where it stopped
    python -m benchmarks.constants tell --keep constants.jsonl     # prints the table
    python -m benchmarks.constants write                           # writes figures of the table beside the constants

`tools/metrics.py` lists the constants. `ACTS` names the groups of cells for each; `constants_cells.py` describes them.
No cell was used to choose a constant.

A fresh process runs the cells at a changed value. It changes the assignment while it imports the module. Defaults,
derived constants and copies in other modules follow. Compiled kernels get a cache of their own.

Numbers, tuples and arrays: every number times the factor; whole numbers are rounded and at least 1. `CHANGES` lists
the exceptions.

A difference is the changed run minus the unchanged run of the same cell. Its interval is over federations (and seeds of
HAR): a federation counts with the mean over its cells.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "constants.md"
PACKAGE = ROOT / "src" / "rhfedmtl"
UNCHANGED = "unchanged"
FACTORS = (0.5, 2.0)
KEYS = ("constant", "factor", "group", "problem", "seed", "passes")
COMPILED = ("maths/kernels/",)
"""Files whose constants are compiled into kernels."""

ACTS: dict[str, tuple[str, ...]] = {
    "maths/coupling.py MOST_ANCHOR_WEIGHT": ("weights", "ascent"),
    "maths/kernels/rounds.py BLOCK_TERMINALS": ("weights", "ascent"),
    "maths/kernels/rounds.py CURVE": ("weights", "ascent"),
    "maths/kernels/rounds.py FACTORS": ("search",),
    "maths/kernels/rounds.py THETAS": ("logistic",),
    "maths/kernels/rounds.py REVISIT_SHARE": ("free",),
    "maths/learned.py LEAST_SILHOUETTE": ("clusters",),
    "maths/learned.py MOST_CLUSTERS": ("clusters",),
    "maths/mixtures.py SHARE_STEP": ("bytes",),
    "maths/mixtures.py LARGEST_SHARE": ("bytes",),
    "maths/objective.py MOST_SCALED_TASKS": ("many",),
    "maths/objective.py MOST_SWEEPS": ("weights", "many"),
    "maths/quasi_newton.py LEAST_PAIRS": ("wide",),
    "maths/quasi_newton.py MOST_PAIRS": ("weights", "open"),
    "maths/quasi_newton.py PAIR_NUMBERS": ("wide",),
    "maths/quasi_newton.py LBFGS_PAIRS": ("lbfgs",),
    "maths/quasi_newton.py CG_STEPS": ("weights",),
    "maths/quasi_newton.py CG_TOLERANCE": ("weights",),
    "maths/quasi_newton.py LEAST_CURVATURE": ("weights",),
    "maths/quasi_newton.py ENOUGH_DECREASE": ("lbfgs",),
    "maths/quasi_newton.py OBJECTIVE_ROUNDING": ("weights",),
    "maths/quasi_newton.py STEP_LENGTHS": ("weights",),
    "maths/registry.py LAMBDA1": ("defaults",),
    "maths/registry.py LAMBDA2": ("defaults",),
    "maths/relationships.py MOST_START_RATIO": ("weak",),
    "policies/base.py MOST_CERTIFYING": ("bytes",),
    "policies/base.py REMEMBERED": ("open",),
    "policies/measured/allocation.py _SLACK": ("cloud",),
    "policies/measured/allocation.py MOST_TABLE_PASSES": ("speeds",),
    "policies/measured/allocation.py _LEVELS": ("speeds",),
    "policies/measured/allocation.py _MOST_LOOPED": ("cloud",),
    "policies/measured/policy.py MOST_PASSES": ("free",),
    "policies/measured/policy.py _DENSE_COUNTS": ("weights",),
    "policies/measured/policy.py _STATION_ROUNDS": ("cloud",),
    "policies/measured/progress.py PASS_RATE": ("ascent", "cloud"),
    "policies/measured/progress.py WAITING_SHARE": ("cloud",),
    "policies/measured/progress.py WAITING_POWER": ("cloud",),
    "policies/measured/progress.py _LEAST_WAITING": ("cloud",),
    "policies/measured/progress.py MOST_PARTNERS": ("ascent",),
    "policies/measured/progress.py _RATE_FACTORS": ("ascent", "cloud"),
    "policies/measured/progress.py _RATE_PENALTY": ("ascent", "cloud"),
    "policies/measured/solver.py NEWTON_RATE": ("weights",),
    "policies/measured/solver.py ROUGH_RATE": ("hinge",),
    "policies/measured/solver.py LEAST_START": ("weights",),
    "policies/measured/solver.py PACE_ROUNDS": ("weights",),
    "policies/measured/solver.py PRIOR_ROUNDS": ("weights",),
    "policies/measured/solver.py COMPARE_EVERY": ("weights",),
    "roles/cloud.py MODEL_SCALES": ("weights", "ascent"),
    "roles/cloud.py JOINT_SHARES": ("weights", "ascent"),
    "roles/cloud.py GAP_ROUNDING": ("weights",),
    "roles/cloud.py GRADIENT_TOLERANCE": ("weights",),
    "roles/cloud.py ROUNDED_TOLERANCE": ("bytes",),
    "roles/cloud.py PULL_DECAY": ("weak",),
    "roles/cloud.py DIVERGENCE_FACTOR": ("ascent",),
    "selection/regularisation.py PATH1": ("folds",),
    "selection/regularisation.py PATH2": ("folds",),
    "selection/regularisation.py PATIENCE": ("folds",),
    "selection/regularisation.py STANDARD_ERRORS": ("folds",),
    "selection/regularisation.py TRIM": ("folds",),
    "selection/regularisation.py SEARCH_ROWS": ("sample", "large"),
    "selection/tuning.py TRIALS": ("tune",),
    "selection/tuning.py NEIGHBOUR_WEIGHT": ("tune",),
    "selection/tuning.py AUC_WEIGHT": ("tune",),
    "selection/tuning.py INFORMATIVE_GAP": ("tune",),
    "selection/tuning.py METRIC_TOLERANCE": ("tune",),
    "selection/first_rounds.py FOLDS": ("choice",),
    "selection/first_rounds.py CHECK_SHARE": ("choice",),
    "selection/first_rounds.py CHECK_PASSES": ("choice",),
    "selection/first_rounds.py MOST_CHECKS": ("choice",),
    "selection/first_rounds.py MOST_CHANGES": ("choice",),
    "selection/first_rounds.py LEAST_PASSES": ("choice",),
    "selection/first_rounds.py LEAST_ROWS": ("choice",),
    "selection/weights.py MOST_DATA_NUMBERS": ("huge",),
    "selection/maps.py TRIAL_SHARE": ("maps",),
    "selection/first_rounds.py SIGNIFICANT": ("choice",),
    "selection/first_rounds.py LAMBDA2_FACTORS": ("choice",),
    "selection/first_rounds.py LAMBDA1_FACTORS": ("both",),
    "selection/first_rounds.py LAMBDA2_RANGE": ("choice",),
    "training/config.py MAX_ROUNDS": ("given",),
    "training/config.py PRECISION": ("given",),
    "training/config.py GOOD_ENOUGH": ("open",),
    "training/config.py OPEN_ROUNDS": ("open",),
    "training/config.py OPTIMUM": ("pooled",),
    "training/privacy.py CERTIFICATE_SHARE": ("private",),
    "training/privacy.py CERTIFICATE_FAILURE": ("private",),
    "training/privacy.py ACCEPTED_LOSS": ("private",),
    "training/privacy.py ASSUMED_FEATURES": ("private",),
    "training/run.py CLOSE": ("given",),
    "training/run.py LAST_DIGITS": ("given",),
}

Scaling = Callable[[Any, float], Any]


def power(value: Any, factor: float) -> Any:
    """Scale the logarithms: a grid of factors gets narrower or wider, and 1 stays in it."""
    return type(value)(x**factor for x in value) if isinstance(value, list | tuple) else value**factor


def excess(value: float, factor: float) -> float:
    """Scale the distance from 1."""
    return 1.0 + factor * (value - 1.0)


def but_first(value: tuple[float, ...], factor: float) -> tuple[float, ...]:
    """Scale all but the first: it stands for the point itself."""
    return (value[0], *(factor * x for x in value[1:]))


CHANGES: dict[str, Scaling] = {
    "maths/kernels/rounds.py FACTORS": power,
    "maths/kernels/rounds.py THETAS": power,
    "maths/quasi_newton.py STEP_LENGTHS": but_first,
    "policies/measured/allocation.py _SLACK": excess,
    "policies/measured/progress.py _RATE_FACTORS": power,
    "roles/cloud.py MODEL_SCALES": but_first,
    "selection/first_rounds.py LAMBDA2_FACTORS": power,
    "selection/first_rounds.py LAMBDA1_FACTORS": power,
}


def scaled(constant: str, value: Any, factor: float) -> Any:
    """Return a changed value."""
    if constant in CHANGES:
        return CHANGES[constant](value, factor)
    if isinstance(value, list | tuple):
        numbers = [scaled("", x, factor) for x in value]
        return type(value)(dict.fromkeys(numbers) if isinstance(value[0], int) else numbers)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


# --- constants and their assignments ----------------------------------------------------------------------------------
def listed() -> dict[str, str]:
    """Return the constants that steer learning, and further constants of `ACTS`, with their values."""
    spec = importlib.util.spec_from_file_location("metrics", ROOT / "tools" / "metrics.py")
    assert spec is not None
    assert spec.loader is not None
    metrics = sys.modules["metrics"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(metrics)
    groups = metrics.tomllib.loads(metrics.RECORD.with_suffix(".toml").read_text(encoding="utf-8"))["not_learning"]
    left_out = {name for names in groups.values() for name in names}
    values = {
        f"{module.name} {name}": ast.unparse(_value(node, name))
        for module in metrics.modules()
        for name, node in metrics.constants(module)
    }
    steering = {name: value for name, value in values.items() if name in ACTS or name not in left_out}
    if missing := sorted(name for name in steering if name not in ACTS):
        raise SystemExit(f"name the cells in which these act, in ACTS: {', '.join(missing)}")
    return {name: value for name, value in steering.items() if name in ACTS}


def _value(node: ast.stmt, name: str) -> ast.expr:
    """Return the expression that an assignment binds to a name."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target  # type: ignore[attr-defined]
    value: ast.expr = node.value  # type: ignore[attr-defined]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return next(part for part, bound in zip(value.elts, target.elts, strict=True) if bound.id == name)  # type: ignore[attr-defined]
    return value


class Changed(MetaPathFinder, SourceFileLoader):
    """Imports the module of a constant with another value for it, without a change of the file."""

    def __init__(self, constant: str, factor: float) -> None:
        file, self.name_of_constant = constant.split()
        self.constant, self.factor = constant, factor
        name = "rhfedmtl." + file.removesuffix(".py").replace("/", ".")
        super().__init__(name, str(PACKAGE / file))
        self.done = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find the module of the constant alone."""
        spec = PathFinder.find_spec(fullname, path) if fullname == self.name else None
        if spec is not None:
            spec.loader = self
        return spec

    def get_code(self, fullname: str) -> Any:
        """Compile the module with ``scaled(constant, value, factor)`` in the place of the value."""
        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        for node in tree.body:
            target = getattr(node, "targets", [getattr(node, "target", None)])[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if any(isinstance(bound, ast.Name) and bound.id == self.name_of_constant for bound in names):
                value = _value(node, self.name_of_constant)
                call = ast.parse("__import__('benchmarks.constants').constants.scaled(0, 0, 0)", mode="eval").body
                assert isinstance(call, ast.Call)
                call.args = [ast.Constant(self.constant), _copy(value), ast.Constant(self.factor)]
                _replace(node, value, call)
                self.done = True
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _copy(value: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(value), mode="eval").body


def _replace(node: Any, old: ast.expr, new: ast.expr) -> None:
    if node.value is old:
        node.value = new
    else:
        node.value.elts = [new if part is old else part for part in node.value.elts]


# --- running ----------------------------------------------------------------------------------------------------------
def measure(constant: str, factor: float, text: str, todo: dict[str, list[Any]], keep: Path, kernels: str) -> None:
    """Run cells at a changed value, in this process, and append the results."""
    if constant != UNCHANGED:
        finder = Changed(constant, factor)
        sys.meta_path.insert(0, finder)
        if constant.startswith(COMPILED):
            import numba

            numba.config.CACHE_DIR = kernels
    groups = importlib.import_module("benchmarks.constants_cells")
    groups.TRIALS[0] = keep.with_suffix(".trials.json")
    with keep.open("a", encoding="utf-8") as file:
        for group, cells in todo.items():
            for cell in cells:
                start = time.perf_counter()
                row = {"constant": constant, "factor": factor, "value": text, **cell, "group": group}
                row |= groups.measure(cell)
                row["seconds"] = round(time.perf_counter() - start, 3)
                if constant == UNCHANGED and "primal" in row:
                    row["optimum"] = groups.optimum(cell)
                file.write(json.dumps(row) + "\n")
                file.flush()
    assert constant == UNCHANGED or finder.done, f"{constant} was not changed"


def run(keep: Path, limit_s: float, only: str) -> None:
    """Run the cells that are missing in the file, one process after another."""
    rows = read(keep)
    done = {tuple(row[key] for key in KEYS) for row in rows}
    chosen = {name: value for name, value in listed().items() if only in name}
    used = {group: None for name in chosen for group in ACTS[name]}
    for heavy in ("numba", "scipy.stats"):  # once for all processes
        importlib.import_module(heavy)
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        cells = pool.apply(_cells, (list(used),))
    jobs = [(UNCHANGED, 1.0, "", [group]) for group in used]
    jobs += [(name, factor, value, list(ACTS[name])) for name, value in chosen.items() for factor in FACTORS]
    begun = time.monotonic()
    for number, (constant, factor, text, groups) in enumerate(jobs):
        todo = {
            group: [c for c in cells[group] if (constant, factor, *(c[key] for key in KEYS[2:])) not in done]
            for group in groups
        }
        if not any(todo.values()) or time.monotonic() - begun > limit_s:
            continue
        with tempfile.TemporaryDirectory() as kernels:
            child = context.Process(target=measure, args=(constant, factor, text, todo, keep, kernels))
            child.start()
            child.join()
        print(f"{number + 1} of {len(jobs)}: {constant} ×{factor:g}, {time.monotonic() - begun:.0f} s", flush=True)


def _cells(groups: list[str]) -> dict[str, list[dict[str, Any]]]:
    module = importlib.import_module("benchmarks.constants_cells")
    return {group: list(module.cells(group)) for group in groups}


def read(keep: Path) -> list[dict[str, Any]]:
    """Return the rows of the file."""
    return [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()] if keep.exists() else []


# --- telling ----------------------------------------------------------------------------------------------------------
def paired(rows: list[dict[str, Any]]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """Return the differences of changed and unchanged runs, by constant and factor."""
    unchanged = {tuple(row[key] for key in KEYS[2:]): row for row in rows if row["constant"] == UNCHANGED}
    pairs: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        base = unchanged.get(tuple(row[key] for key in KEYS[2:]))
        if row["constant"] == UNCHANGED or base is None:
            continue
        pair: dict[str, Any] = {"unit": (row["problem"], row["seed"]), "failed": "error" in row and "error" not in base}
        if "points" in row and "points" in base:
            pair["points"] = row["points"] - base["points"]
            pair["same"] = (row["points"], row.get("primal")) == (base["points"], base.get("primal"))
            if base.get("optimum"):
                pair["decades"] = decades(row["primal"], base["optimum"]) - decades(base["primal"], base["optimum"])
        pairs[row["constant"], row["factor"]].append(pair)
    return pairs


def decades(primal: float, optimum: float) -> float:
    """Return the suboptimality."""
    return float(np.log10(max(primal / optimum - 1.0, 1e-4)))


def mean_of(pairs: list[dict[str, Any]], measure_name: str) -> str:
    """Return mean and 95 % interval over federations, in words."""
    from rhfedmtl.maths.intervals import interval

    units = defaultdict(list)
    for pair in pairs:
        if measure_name in pair:
            units[pair["unit"]].append(pair[measure_name])
    if len(units) < 2:
        return "–"
    middle, half = interval(np.array([np.mean(values) for values in units.values()]))
    return f"{middle:+.2f} ± {half:.2f}".replace("-", "−")


def effect(pairs: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the effect on points and on suboptimality, in words."""
    failed = sum(pair["failed"] for pair in pairs)
    if failed == len(pairs):
        return "no run possible", "–"
    if all(pair.get("same") for pair in pairs):
        return "same digits", "same digits"
    note = f" ({failed} of {len(pairs)} runs failed)" if failed else ""
    return mean_of(pairs, "points") + note, mean_of(pairs, "decades")


def tell(keep: Path) -> Iterator[str]:
    """Yield the table."""
    rows = read(keep)
    pairs = paired(rows)
    values = {row["constant"]: (row["value"], row["group"]) for row in rows}
    yield "| constant | value | cells | runs | ×0.5: points | ×0.5: decades | ×2: points | ×2: decades |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for constant in dict.fromkeys(name for name, _ in pairs):
        half, twice = pairs[constant, 0.5], pairs[constant, 2.0]
        value = " ".join(values[constant][0].split())
        groups = ", ".join(dict.fromkeys(row["group"] for row in rows if row["constant"] == constant))
        cells = " | ".join([*effect(half), *effect(twice)])
        short = value if len(value) <= 40 else value[:39] + "…"
        yield f"| {constant.replace('.py ', ' ')} | `{short}` | {groups} | {len(half) + len(twice)} | {cells} |"


def told() -> dict[str, list[str]]:
    """Return the effects in the table, by constant."""
    lines = [line.strip("| ").split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return {cells[0].replace(" ", ".py ", 1): cells[4:] for cells in lines if len(cells) == 8 and "/" in cells[0]}


def beside(file: str, source: str, table: dict[str, list[str]]) -> str:
    """Return a source file with the figures of the table beside its constants."""

    def measured(match: re.Match[str]) -> str:
        effects = table[f"{file} {match['name']}"]
        half, twice = (_plain(*effects[k : k + 2]) for k in (0, 2))
        return f"# Measured: benchmarks/results/constants.md; ×0.5: {half};\n# ×2: {twice}.\n"

    return re.sub(
        r"# Measured: benchmarks/results/constants\.md; ×0\.5: .*;\n# ×2: .*\.\n(?=(?P<name>\w+) ?[:=])",
        measured,
        source,
    )


def _plain(points: str, suboptimality: str) -> str:
    if points in ("same digits", "no run possible"):
        return points
    return f"{points} points" + (f", {suboptimality} decades" if suboptimality != "–" else "")


def write() -> None:
    """Write the figures of the table beside the constants."""
    table = told()
    for file in {name.split()[0] for name in listed()}:
        source = (PACKAGE / file).read_text(encoding="utf-8")
        (PACKAGE / file).write_text(beside(file, source, table), encoding="utf-8")


def main() -> None:
    """Run the cells, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("cells", "run", "tell", "write"))
    parser.add_argument("--keep", type=Path, default=Path("constants.jsonl"))
    parser.add_argument("--only", default="", help="a word that names of constants must contain")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no constant after so many seconds")
    arguments = parser.parse_args()
    if arguments.action == "run":
        run(arguments.keep, arguments.limit_s, arguments.only)
    elif arguments.action == "tell":
        print("\n".join(tell(arguments.keep)))
    elif arguments.action == "write":
        write()
    else:
        print("\n".join(f"{name} = {value}: {', '.join(ACTS[name])}" for name, value in listed().items()))


if __name__ == "__main__":
    main()
