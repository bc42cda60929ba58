"""Command ``certify``: bound how far any models are from the optimum of a problem.

The models may come from any method. The command reads the rows and the problem from the model file, applies the
options, and calls `rhfedmtl.models.certify.certify`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.algorithms.options import Options, build
from rhfedmtl.cli.data import OPTIONS, AsJson, check_seed, request_from_options
from rhfedmtl.cli.models import Model
from rhfedmtl.cli.options import LEARNING, expand, given_options, print_json, typed, without_usual
from rhfedmtl.cli.text import certified, fact
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS
from rhfedmtl.models.problem import algorithm_of, trained_problem

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation

PROBLEM = ("loss", "relationship", "lambda1", "lambda2")
"""Options that define a problem, in addition to the options that losses and relationships declare."""

SplitSeed = Annotated[
    int | None, typer.Option("--seed", help="Seed of the split. [the seed of the run]", min=0, callback=check_seed)
]


def _with_rows_and_problem(command: Any) -> Any:
    options = (option for kind in (LOSSES, RELATIONSHIPS) for entry in kind.values() for option in entry.options)
    names = {*PROBLEM, *(option.name for option in options)}
    problem = {name: option for name, option in LEARNING.items() if name in names}
    command = expand(command, "problem", without_usual(problem), given_options)
    return expand(command, "rows", without_usual(OPTIONS), dict)


@_with_rows_and_problem
def certify(
    context: typer.Context,
    model: Model,
    rows: dict[str, Any],
    problem: dict[str, Any],
    seed: SplitSeed = None,
    as_json: AsJson = False,
) -> None:
    """Bound how far models are from the optimum, with a single round of sums over the training rows.

    The models may come from any method. By default, rows and problem come from the model file. Options replace single
    settings: --path names another file with the same columns, and --data other rows, as for `train`. For example:

    rhfedmtl certify runs/20260102-120000-fedavg-har-0 --lambda2 0.1
    """
    from rhfedmtl.models.certify import certify as certificate_of
    from rhfedmtl.models.task_models import TaskModels

    try:
        models = TaskModels.load(model)
    except DataError as error:
        if not model.exists():
            raise
        raise DataError(f"{error}; to certify your own weights, use Python: rhfedmtl.certify(W, federation)") from None
    target = {**trained_problem(models.provenance), **problem}
    if "auto" in target.values():
        raise ConfigError("a certificate needs fixed weights: give --lambda1 and --lambda2 as numbers")
    configuration = models.provenance.get("configuration", {})
    request = _request(configuration.get("request"), rows, typed(context) & {"data", "path"})
    federation = request.federation(configuration.get("seed", 0) if seed is None else seed)
    certificate = certificate_of(models, federation, **target)
    same_rows = models.provenance.get("data", {}).get("fingerprint") == federation.fingerprint()
    facts = {name: getattr(certificate, name) for name in ("primal", "dual", "gap", "relative_gap")}
    facts |= {"primal_at_zero": certificate.zero, "words": certificate.words, "problem": target}
    task_names = list(federation.task_names)
    unknown = [name for name, b in zip(task_names, models.find(task_names).tolist(), strict=True) if b < 0]
    facts |= {"data": federation.origin.name, "trained_on": same_rows, "unknown_tasks": unknown}
    same_problem = same_rows and not unknown and target == trained_problem(models.provenance)
    trained = models.certificate if same_problem and _is_training_problem(models, target, federation) else None
    facts["gap_in_training"] = None if trained is None or not trained.gap < certificate.gap else trained.gap
    if as_json:
        print_json(facts)
        return
    fact("certificate", certified(facts))
    if (gap := facts["gap_in_training"]) is not None:
        fact("in training", f"gap {gap:.2e}, from the dual variables of the run; this bound holds too")
    fact("at zero", f"{certificate.zero:.6f}, the objective of the zero model")
    if unknown:
        fact("unseen tasks", f"{models.unseen_words} for {len(unknown)} of {federation.n_tasks} tasks")
    rows_text = "the training rows of the models" if same_rows else "other rows or another split than in training"
    fact("data", f"{federation.origin.name}, {rows_text}")
    fact("problem", ", ".join(f"{name} {value}" for name, value in target.items()))


def _request(trained: dict[str, Any] | None, rows: dict[str, Any], typed_rows: set[str]) -> Request:
    """Return the training rows of the models, another file of the same kind, or completely different rows."""
    if trained is not None and (not typed_rows or (typed_rows == {"path"} and trained["path"] is not None)):
        return _changed(Request(**trained), rows)
    if rows["data"] is None and rows["path"] is None:
        raise ConfigError("the model file does not record its training rows: name them with --path or --data")
    return request_from_options(**rows)


def _changed(trained: Request, rows: dict[str, Any]) -> Request:
    """Return the training rows with the settings that the options replace."""
    new = request_from_options(**{**rows, "data": trained.data})
    single = {
        name: value for name, value in vars(new).items() if value is not None and name not in ("data", "settings")
    }
    return replace(trained, **single, settings={**trained.settings, **new.settings})


def _is_training_problem(models: Any, problem: dict[str, Any], federation: Federation) -> bool:
    """Return True if training certified this very problem.

    It did not if the method solves a problem of a single task, or if it learns the relationship during the run.
    """
    algorithm = algorithm_of(models.provenance)
    if algorithm is None:
        return True
    built = build(algorithm, Options.of(**problem), federation.kind)
    relationship = getattr(built.method, "relationship", None)
    fixed = relationship is None or relationship.learns() is None
    return fixed and built.regroup(federation).n_tasks == federation.n_tasks
