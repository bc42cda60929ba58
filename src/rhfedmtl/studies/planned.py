"""Plan studies, with the configuration of each run, and run them.

`spec` plans studies from files, `side_by_side` plans ``rhfedmtl compare``; `run_all` makes the runs and writes tables.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rhfedmtl.algorithms.options import Options, idle, no_effect
from rhfedmtl.algorithms.registry import ALGORITHMS, is_yardstick
from rhfedmtl.errors import ConfigError
from rhfedmtl.files import write_whole
from rhfedmtl.plain import plain
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.runs.sweep import Store, Watch, Workers, sweep
from rhfedmtl.studies import tables
from rhfedmtl.studies.findings import findings
from rhfedmtl.studies.study import FORMAT, Point, Study, StudyResult, Variant
from rhfedmtl.training.config import RunConfig


class PlannedStudy(NamedTuple):
    """A study before it is run, with the configuration of each run by its key."""

    study: Study
    configs: Mapping[str, RunConfig]

    def run(self, out: Path, *, workers: Workers = None, watch: Watch | None = None, command: str = "") -> StudyResult:
        """Make the runs that ``out`` does not have yet, and compare them."""
        (result,) = run_all([self], out, workers=workers, watch=watch, command=command)
        return result

    def replaces(self, out: Path) -> bool:
        """Return True if ``out`` has tables of a study of this name with other settings."""
        try:
            earlier = StudyResult.load(out, self.study.name).study
        except ConfigError:
            return False
        return _deciding_fields(earlier) != _deciding_fields(self.study)


def _deciding_fields(study: Study) -> tuple[Any, ...]:
    """Return the fields that decide the numbers of a study."""
    return study.points, study.metric, study.reference, study.last


def run_all(
    planned: Sequence[PlannedStudy],
    out: Path,
    *,
    workers: Workers = None,
    watch: Watch | None = None,
    command: str = "",
) -> list[StudyResult]:
    """Run several studies in a sweep; studies share runs with the same configuration.

    Write tables and descriptions next to the runs. ``command`` is the command line of the user, for the report.
    """
    store = Store(out / "runs")
    # Runs on the same split stand together: a process then reads and splits its data once.
    ordered = sorted((c for study in planned for c in study.configs.values()), key=lambda c: (c.seed, c.request.key))
    sweep(ordered, store, workers=workers, watch=watch)
    (out / "studies").mkdir(parents=True, exist_ok=True)
    results = []
    for study, _ in planned:
        result = StudyResult(replace(study, command=command), out)
        complete = replace(result.study, findings=[*findings(result), *study.notes])
        text = json.dumps({"format": FORMAT, **plain(complete)}, indent=1, allow_nan=False)
        write_whole(out / "studies" / f"{study.name}.json", text + "\n")
        tables.save(result, out)
        results.append(replace(result, study=complete))
    return results


WORK_OPTIONS = ("local_steps", "station_rounds", "cloud_rounds")


def taking_part(config: RunConfig, overrides: Collection[str] = ()) -> RunConfig:
    """Return the run without the shared settings that its algorithm ignores.

    An algorithm that decides its work itself ignores amounts of work. A yardstick ignores prices and faults. A setting
    in ``overrides`` belongs to this method: raise an error if it has no effect.
    """
    options = config.options
    if ALGORITHMS[config.algorithm].decides_steps and options.policy != "fixed":
        options = options.without(set(WORK_OPTIONS).difference(overrides))
    ignored = idle(config.algorithm, options)
    if refused := [name for name in ignored if name in overrides]:
        raise ConfigError(no_effect(config.algorithm, refused))
    config = replace(config, options=options.without(ignored))
    return replace(config, cost=(), budget=(), faults="") if is_yardstick(config.algorithm) else config


def side_by_side(
    base: RunConfig, algorithms: Sequence[str], budgets: Sequence[float], seeds: range, metric: str
) -> PlannedStudy:
    """Plan runs of several methods at several budgets of the priced resource; the rest is as in ``base``."""
    if not (algorithms and budgets and seeds):
        raise ConfigError("a comparison needs an algorithm, a budget and a seed")
    if len(set(algorithms)) < len(algorithms) or len(set(budgets)) < len(budgets):
        raise ConfigError(f"a comparison names each method and each budget once: {algorithms}, {budgets}")
    priced = list(base.resources()[0])
    if len(priced) != 1:
        raise ConfigError(
            f"a comparison needs the price of one resource type, got {', '.join(priced) or 'none'}: "
            "name it as in --cost energy=0.1,10"
        )
    axis = f"budget.{priced[0]}"
    policy = ("policy", *(option.name for entry in POLICIES.values() for option in entry.options))
    runs = {}
    for name in algorithms:  # a policy is for algorithms that decide their work themselves
        options = base.options if ALGORITHMS[name].decides_steps else base.options.without(policy)
        runs[name] = taking_part(replace(base, algorithm=name, options=options))
    _check_effect(base.options, list(runs.values()))
    entries = [
        (Point(name, {axis: budget}, seed, config.key), config)
        for budget in budgets
        for name, run in runs.items()
        for seed in seeds
        for config in [
            taking_part(
                replace(run, budget=(f"{priced[0]}={budget:.15g}",), seed=seed, noise_from_seed=bool(run.privacy))
            )
        ]
    ]
    study = Study(
        name="compare",
        title=f"Methods at equal cost on {base.request.data}",
        question=f"{', '.join(algorithms)}: which of them learns most from the same budget?",
        metric=metric,
        x=axis,
        seeds=len(seeds),
        first_seed=seeds.start,
        reference=algorithms[0],
        column=metric,
        variants=[Variant(name, name, name, bool(base.tune), is_yardstick(name)) for name in algorithms],
        axes={axis: list(budgets)},
        points=[point for point, _ in entries],
    )
    return PlannedStudy(study, {point.run: config for point, config in entries})


def _check_effect(options: Options, entrants: Sequence[RunConfig]) -> None:
    """Refuse a setting that all methods ignore."""
    settings = options.set_names()
    used = {name for name in settings for run in entrants if run.options[name] == options[name]}
    if ignored := sorted(set(settings) - used):
        raise ConfigError(no_effect(" or ".join(run.algorithm for run in entrants), ignored))
