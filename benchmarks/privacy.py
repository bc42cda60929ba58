"""What privacy costs: accuracy against ε, beside FedAvg under the same account; releases; time with clip and noise.

``python benchmarks/privacy.py terminals``: 5 tasks × 1,500 terminals × 16 rows, d = 32, δ = 1e-6, 20 seeds. FedAvg gets
the best of a grid of step sizes, rounds and clips for each ε, chosen in hindsight on the same seeds; as it learns one
model for all tasks, ``--tasks 1`` is the fair race. ``… clips`` tries clips around the planned one, ``… large`` has
one task of 100,000 terminals at ε = 0.5, ``… release`` HAR (30 tasks) and a 5-task cut of watch at row level,
``… groups`` masked sums over groups where terminals drop out, ``… time`` the ratio of rounds with clip and noise to
rounds without, ``… enough`` what a plan says that is lost beside what is. Prints tables; nothing is asserted. With
``--kept FILE`` each run is written there as it ends, and one that is there is not repeated: a study can be stopped, and
goes on with the same command. The file is of one version of the code: take another after a change.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.data.request import Request
from rhfedmtl.engines.inprocess import InProcess
from rhfedmtl.engines.registry import Execution
from rhfedmtl.maths.intervals import student
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.plain import plain
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.roles.channel import Noised
from rhfedmtl.roles.messages import Anchor
from rhfedmtl.training import faults as schedule
from rhfedmtl.training.config import RunConfig
from rhfedmtl.training.privacy import Privacy, PrivatePlan, private
from rhfedmtl.training.result import mean

EPSILONS = (0.5, 1.0, 2.0, 8.0)
RELEASED = (0.5, 1.0, 2.0, 4.0, 8.0)
ONE = Execution(threads=1)
FEDAVG = [(step, rounds, clip) for step in (0.3, 1.0, 3.0) for rounds in (5, 12, 30) for clip in (4.0, 16.0)]
Job = tuple[Any, ...]


def synthetic(tasks: int = 5, terminals: int = 1500, **more: float) -> Request:
    """The federation of the claims."""
    settings = {"samples": 16, "features": 32, "test": 2000, **more}
    return Request(data="synthetic", tasks=tasks, terminals=terminals, settings=settings)


def learn(job: Job) -> float:
    """Test accuracy of one run; the budget pays as many rounds of a terminal whatever their number."""
    request, algorithm, options, privacy, seed = job
    rows = max(1.0, request.settings["samples"] / 16)
    budget = f"energy={1e6 / 7500 * request.tasks * request.terminals * rows}"
    config = RunConfig(algorithm, request, options, budget=(budget,), privacy=privacy, seed=seed, scale="unit")
    config = replace(config, noise_from_seed=bool(privacy))
    return mean(config.run(config.federation(), execution=ONE).metrics["accuracy"])


def seeds_of(count: int) -> range:
    """Seeds that no constant was chosen on; those of the plan were, on 0, 1 and 60 to 67."""
    return range(10, 10 + count)


def bound(epsilon: float, rounds: int | None = None, clip: float | None = None) -> str:
    """The words of a bound."""
    return f"epsilon={epsilon},delta=1e-6" + (f",rounds={rounds},clip={clip}" if rounds else "")


def spread(values: Iterable[float]) -> str:
    """Mean and half of its 95 % interval, in points."""
    x = 100.0 * np.array(list(values))
    half = student(0.95, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else np.nan
    return f"{x.mean():6.2f} ± {half:.2f}"


def plan_of(request: Request, epsilon: float) -> PrivatePlan:
    """What is planned for an ε, where the budget is no limit."""
    return private("rhfedmtl", Options(), request.federation(0), Ledger({}), Privacy.parse(bound(epsilon)))[1]


def without(request: Request) -> dict[str, tuple[str, Options]]:
    """Ways to learn without privacy: what is lost is lost against the best of them."""
    plan = plan_of(request, 8.0)
    return {
        "weights of a plan": ("rhfedmtl", Options(lambda1=plan.lambda1, lambda2=plan.lambda2)),
        "three times its lambda1": ("rhfedmtl", Options(lambda1=3.0 * (plan.lambda1 or 0.0), lambda2=1e-6)),
        "default weights": ("rhfedmtl", Options()),
    }


def terminals(pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """Accuracy against ε: rhfedmtl and local as planned, FedAvg at its best in hindsight; paired differences."""
    request = synthetic(tasks, terminals=300 if small else 1500)
    runs = seeds_of(seeds)
    unbounded = {
        **without(request),
        **{f"fedavg, step {step:g}": ("fedavg", Options.of(step=step, local_steps=16)) for step in (0.3, 1.0, 3.0)},
    }
    found = {
        name: np.array(list(pool.map(learn, [(request, *entry, "", s) for s in runs])))
        for name, entry in unbounded.items()
    }
    print(f"{request.tasks} tasks of {request.terminals:,} terminals, {seeds} seeds. Without privacy:")
    for name, values in found.items():
        print(f"  {name}: {spread(values)}", flush=True)
    free = max((found[name] for name in without(request)), key=np.mean)
    for epsilon in EPSILONS:
        own = {
            name: np.array(list(pool.map(learn, [(request, name, Options(), bound(epsilon), s) for s in runs])))
            for name in ("rhfedmtl", "local")
        }
        grid = [
            (request, "fedavg", Options.of(step=step, local_steps=16), bound(epsilon, rounds, clip), s)
            for step, rounds, clip in (FEDAVG[::5] if small else FEDAVG)
            for s in runs
        ]
        rival = np.array(list(pool.map(learn, grid))).reshape(-1, seeds)
        best = rival[rival.mean(axis=1).argmax()]
        row = "  ".join(f"{name} {spread(values)}" for name, values in own.items())
        lost, ahead = spread(own["rhfedmtl"] - free), spread(own["rhfedmtl"] - best)
        print(f"epsilon {epsilon:g}: {row}  fedavg {spread(best)}  lost {lost}  ahead of fedavg {ahead}", flush=True)


CUTS: tuple[dict[str, Any], ...] = (
    {},
    {"tasks": 5},
    {"terminals": 300},
    {"terminals": 6000},
    {"features": 8},
    {"features": 128},
    {"samples": 4},
    {"samples": 64, "terminals": 500},
    {"samples": 64, "features": 128},
    {"noise": 0.2},
    {"tasks": 3, "terminals": 400, "samples": 64},
    {"classes": 4},
)
"""Other than one task, 1,500 terminals, 16 rows, 32 features, 5 % false labels, two classes."""


def best_without(pool: Any, request: Request, seeds: int) -> np.ndarray[Any, Any]:
    """Accuracy without privacy, the best way in the mean."""
    found = [
        list(pool.map(learn, [(request, *way, "", s) for s in seeds_of(seeds)])) for way in without(request).values()
    ]
    return np.array(max(found, key=np.mean))


def enough(pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """What a plan says that is lost, and how many terminals lose a point, beside what they lose."""
    for cut in CUTS[: 3 if small else None]:
        request = synthetic(**{"tasks": 1, **cut})
        free = best_without(pool, request, seeds)
        print(f"{cut or 'as it is'}: {spread(free)} without privacy")
        for epsilon in (0.25, *EPSILONS):
            plan = plan_of(request, epsilon)
            jobs = [(request, "rhfedmtl", Options(), bound(epsilon), s) for s in seeds_of(seeds)]
            lost, said = free - np.array(list(pool.map(learn, jobs))), 100.0 * plan.buys[1]["lost"]
            print(
                f"  epsilon {epsilon:g}: lost {spread(lost)}, said {said:.2f}; a point with {plan.enough_terminals:,}"
            )
        plan = plan_of(request, 1.0)
        so_many = replace(request, terminals=plan.enough_terminals)
        own = pool.map(learn, [(so_many, "rhfedmtl", Options(), bound(1.0), s) for s in seeds_of(seeds)])
        lost = best_without(pool, so_many, seeds) - np.array(list(own))
        print(f"  epsilon 1, {plan.enough_terminals:,} terminals: lost {spread(lost)}, said 1", flush=True)


def clips(pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """Accuracy at ε = 1 with the planned clip and others: what a quantile of norms could gain if it cost nothing."""
    request = synthetic(tasks, terminals=300 if small else 1500)
    plan = plan_of(request, 1.0)
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
        asked = bound(1.0, plan.rounds, factor * plan.clip)
        found = pool.map(learn, [(request, "rhfedmtl", Options(), asked, s) for s in seeds_of(seeds)])
        print(f"clip {factor * plan.clip:.3g}, {factor:g} × the planned: {spread(found)}", flush=True)


def large(pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """One task of very many terminals at ε = 0.5."""
    request = synthetic(1, 10_000 if small else 100_000)
    free = best_without(pool, request, seeds)
    own = list(pool.map(learn, [(request, "rhfedmtl", Options(), bound(0.5), s) for s in seeds_of(seeds)]))
    lost = np.array(own) - np.array(free)
    print(f"{request.terminals:,} terminals, epsilon 0.5: {spread(own)}, without {spread(free)}, lost {spread(lost)}")


def released(job: Job) -> list[float]:
    """Accuracy without noise, and released at each ε."""
    request, relationship, lambda1, lambda2, seed = job
    options = Options(relationship=relationship, lambda1=lambda1, lambda2=lambda2)
    config = RunConfig("rhfedmtl", request, options, scale="unit", target_gap=1e-8, seed=seed)
    data = config.federation()
    models = TaskModels.from_result(
        data,
        config.run(data, execution=ONE),
        options.chosen_loss(data.kind),
        {"configuration": plain(config.to_dict())},
    )
    noisy = [models.release(epsilon, 1e-6, address=(seed,)) for epsilon in RELEASED]
    return [_accuracy(each, data) for each in (models, *noisy)]


def _accuracy(models: TaskModels, data: Any) -> float:
    found = []
    for b, name in enumerate(data.task_names):
        X, y = data.test_rows(b)
        if len(y):
            found.append(np.mean(models.predict(X, name) == np.array(data.class_names)[y]))
    return float(np.mean(found))


def release(pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """Row level: tasks on their own, coupled, and as one; weights chosen for each ε on three other seeds."""
    cuts = {
        "HAR, 30 tasks": Request(data="har", positive="SITTING", tasks=30, terminals=2),
        "watch, 5 tasks": Request(data="watch", tasks=5, terminals=2),
    }
    ratios = {"none": (0.0,), "coupled": (10.0, 1000.0), "pooled": (1e5,)}
    runs = [*range(3), *seeds_of(seeds)]
    for name, request in list(cuts.items())[: 1 if small else 2]:
        found = {}
        for kind, each in ratios.items():
            weights = [(lambda1, lambda1 * ratio) for lambda1 in (1e-3, 1e-2, 1e-1) for ratio in each]
            jobs = [(request, "mean" if kind != "none" else "none", *pair, s) for pair in weights for s in runs]
            found[kind] = np.array(list(pool.map(released, jobs))).reshape(len(weights), len(runs), -1)
        print(f"{name}, {seeds} seeds: accuracy, and how far coupled is ahead")
        for k, epsilon in enumerate((np.inf, *RELEASED)):
            best = {kind: table[table[:, :3, k].mean(axis=1).argmax(), 3:, k] for kind, table in found.items()}
            cells = "  ".join(f"{kind} {spread(values)}" for kind, values in best.items())
            ahead = "  ".join(f"of {kind} {spread(best['coupled'] - best[kind])}" for kind in ("none", "pooled"))
            print(f"  epsilon {epsilon:g}: {cells}  ahead {ahead}", flush=True)


def dropped(job: Job) -> tuple[float, float]:
    """Accuracy and gap of masked training where updates get lost; ``free`` takes whoever answered, in no groups."""
    request, budget, least, lost, free, seed = job
    options, grouped = Options.of(channel="masked", least_summed=least), schedule.complete_groups
    config = RunConfig("rhfedmtl", request, options, budget=(budget,), seed=seed, faults=f"dropout={lost}")
    schedule.complete_groups = (lambda arrives, *_: arrives) if free else grouped
    try:
        result = config.run(config.federation(), execution=ONE)
    finally:
        schedule.complete_groups = grouped
    return mean(result.metrics["accuracy"]), result.certificate.gap


def groups(pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """What it costs that all of a group count or none, at several rates of lost updates; paired differences."""
    watch, har = (Request(data=name, tasks=5, positive=of) for name, of in (("watch", None), ("har", "SITTING")))
    cuts = [(watch, 5, 1400), (watch, 15, 3200), (har, 24, 6000)]
    for request, terminals, energy in cuts[: 1 if small else 3]:
        data, budget = replace(request, terminals=terminals), f"energy={energy}"
        for lost in (0.05, 0.1, 0.2, 0.3):
            cells = []
            for least, free in ((3, True), (3, False), (2, False)):
                jobs = [(data, budget, least, lost, free, s) for s in seeds_of(seeds)]
                accuracy, gap = np.array(list(pool.map(dropped, jobs))).T
                cells.append(f"{spread(accuracy)}, gap {np.median(gap):.1e}")
            print(
                f"{data.data} 5 x {terminals}, {lost:g} lost: free {cells[0]}; of 3 {cells[1]}; of 2 {cells[2]}",
                flush=True,
            )


def pace(_pool: Any, seeds: int, *, small: bool, tasks: int) -> None:
    """Time of a round on one core with clip and noise, beside one without, in turn."""
    data = synthetic(terminals=300 if small else 1500).federation(0)
    method = build("rhfedmtl", Options(merge="add", lambda1=1.0 / 32), data.kind).method
    networks = [InProcess(data, each, threads=1) for each in (method, replace(method, channel=Noised(0.25, 3.7)))]
    anchors = [Anchor(1, b, np.zeros((1, 33)), 1.0 / 32) for b in range(data.n_tasks)]
    steps = np.full(data.n_terminals, 16)
    times = np.zeros((3 + 5 * seeds, 2))
    for network in networks:
        network.assign(anchors)
    for k in range(len(times)):
        for i, network in enumerate(networks):
            start = time.process_time()
            network.round(k + 1, steps)
            times[k, i] = time.process_time() - start
    a, b = np.median(times[3:], axis=0)
    print(
        f"a round of {data.n_terminals:,} terminals: {1e3 * a:.2f} ms, with clip and noise {1e3 * b:.2f}: {b / a:.2f} ×"
    )


class Kept:
    """A pool whose results are written down, one line each, and are not asked for twice."""

    def __init__(self, pool: ProcessPoolExecutor, path: Path | None) -> None:
        self._pool, self._path, self._known = pool, path, dict[str, Any]()
        if path is not None and path.exists():
            self._known = dict(json.loads(line) for line in path.read_text().splitlines() if line.endswith("]"))

    def map(self, work: Callable[[Job], Any], jobs: Iterable[Job]) -> Iterator[Any]:
        """Results in the order of jobs."""
        names = {f"{work.__name__} {job}": job for job in jobs}
        new = [name for name in names if name not in self._known]
        for name, found in zip(new, self._pool.map(work, (names[name] for name in new)), strict=True):
            self._known[name] = found
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write("\n" * bool(file.tell()) + json.dumps([name, found]))
        return (self._known[name] for name in names)


PARTS = {
    "terminals": terminals,
    "clips": clips,
    "large": large,
    "enough": enough,
    "release": release,
    "groups": groups,
    "time": pace,
}


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=5, help="of the parts terminals and clips")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kept", type=Path, help="file of runs that are done")
    parser.add_argument("--small", action="store_true", help="a fifth of the size, to see that it works")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        PARTS[asked.part](Kept(pool, asked.kept), asked.seeds, small=asked.small, tasks=asked.tasks)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of processor, {used.ru_maxrss / 1e6:.2f} GB in a process at most")


if __name__ == "__main__":
    main()
