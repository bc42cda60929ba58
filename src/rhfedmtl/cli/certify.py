"""Command line: ``certify`` (how far any models are from the best possible ones for some data)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rhfedmtl.algorithms.options import AUTO, USUAL, Options, build
from rhfedmtl.cli.data import OPTIONS, AsJson, check_seed, request_from_options
from rhfedmtl.cli.models import Model
from rhfedmtl.cli.options import LEARNING, expand, print_json, told, typed, without_usual
from rhfedmtl.cli.text import certified, fact
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.maths.registry import LOSSES, RELATIONSHIPS

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation

PROBLEM = ("loss", "relationship", "lambda1", "lambda2")
"""What names a problem; options that losses and relationships declare come along."""

SplitSeed = Annotated[
    int | None, typer.Option("--seed", help="Seed of the split. [that of the run]", min=0, callback=check_seed)
]


def _with_rows_and_problem(command: Any) -> Any:
    own = {option.name for known in (LOSSES, RELATIONSHIPS) for entry in known.values() for option in entry.options}
    problem = {n: o for n, o in LEARNING.items() if n in PROBLEM or n in own}
    known = expand(command, "problem", without_usual(problem), told)
    return expand(known, "rows", without_usual(OPTIONS), dict)


@_with_rows_and_problem
def certify(
    context: typer.Context,
    model: Model,
    rows: dict[str, Any],
    problem: dict[str, Any],
    seed: SplitSeed = None,
    as_json: AsJson = False,
) -> None:
    """Say how far models are at most from the best possible ones, in one round of sums over the training rows.

    The models may come from any method. Rows and problem are those that the models were trained on and for, as far as
    their file knows. Options change single settings of them: --path names another file, whose columns are what they
    were. --data names other rows, as for `train`. For example:

    rhfedmtl certify runs/20260102-120000-fedavg-har-0 --lambda2 0.1
    """
    from rhfedmtl.models.certify import certify as certificate_of
    from rhfedmtl.models.task_models import TaskModels

    try:
        models = TaskModels.load(model)
    except DataError as error:
        if not model.exists():
            raise
        raise DataError(
            f"{error}; weights of your own are certified in Python: rhfedmtl.certify(W, federation)"
        ) from None
    asked = {**_trained_for(models), **problem}
    if "auto" in asked.values():
        raise ConfigError("a certificate is for given weights: give --lambda1 and --lambda2 as numbers")
    known = models.provenance.get("configuration", {})
    request = _request(known.get("request"), rows, typed(context) & {"data", "path"})
    federation = request.federation(known.get("seed", 0) if seed is None else seed)
    found = certificate_of(models, federation, **asked)
    same = models.provenance.get("data", {}).get("fingerprint") == federation.fingerprint()
    facts = {name: getattr(found, name) for name in ("primal", "dual", "gap", "relative_gap")}
    facts |= {"primal_at_zero": found.zero, "words": found.words, "problem": asked}
    names = list(federation.task_names)
    unknown = [name for name, b in zip(names, models.find(names).tolist(), strict=True) if b < 0]
    facts |= {"data": federation.origin.name, "trained_on": same, "unknown_tasks": unknown}
    ours = same and not unknown and asked == _trained_for(models) and _stays(models, asked, federation)
    own = models.certificate if ours else None
    facts["gap_in_training"] = None if own is None or not own.gap < found.gap else own.gap
    if as_json:
        print_json(facts)
        return
    fact("certificate", certified(facts))
    if (gap := facts["gap_in_training"]) is not None:
        fact("in training", f"gap {gap:.2e}, by the run's own dual variables: that bound holds too")
    fact("at zero", f"{found.zero:.6f}, the objective of models that are zero")
    if unknown:
        fact("unseen tasks", f"{models.unseen_words} for {len(unknown)} of {federation.n_tasks} tasks")
    its_own = "the rows that the models were trained on"
    fact("data", f"{federation.origin.name}, {its_own if same else f'not {its_own}, or not in their places'}")
    fact("problem", ", ".join(f"{name} {value}" for name, value in asked.items()))


def _request(trained: dict[str, Any] | None, rows: dict[str, Any], typed_rows: set[str]) -> Request:
    """The rows that models were trained on, another file of the same kind, or other rows altogether."""
    if trained is not None and (not typed_rows or (typed_rows == {"path"} and trained["path"] is not None)):
        return _changed(Request(**trained), rows)
    if rows["data"] is None and rows["path"] is None:
        raise ConfigError("the file of these models does not know their rows: name them with --path, or --data")
    return request_from_options(**rows)


def _changed(trained: Request, rows: dict[str, Any]) -> Request:
    """The rows that models were trained on, but for what was given."""
    given = request_from_options(**{**rows, "data": trained.data})
    single = {
        name: value for name, value in vars(given).items() if value is not None and name not in ("data", "settings")
    }
    return replace(trained, **single, settings={**trained.settings, **given.settings})


def _trained_for(models: Any) -> dict[str, Any]:
    """Relationship and weights of the run or the estimator that models came from; the usual ones of unknown origin."""
    origin = models.provenance
    known = origin.get("estimator") or origin.get("configuration", {}).get("options", {})
    chosen = origin.get("chosen", {})
    usual = {"relationship": Options.relationship, **USUAL}
    told = {name: value for name, value in {**known, **chosen}.items() if value is not None}
    asked = {name: told.get(name, value) for name, value in usual.items()}
    algorithm = _algorithm(origin)
    return asked if algorithm is None else {**asked, "relationship": _relationship(algorithm, asked)}


def _stays(models: Any, asked: dict[str, Any], federation: Federation) -> bool:
    """Whether training certified this very problem: not one of a single task, nor of a relationship as it was then."""
    algorithm = _algorithm(models.provenance)
    if algorithm is None:
        return True
    built = build(algorithm, Options.of(**asked), federation.kind)
    used = getattr(built.method, "relationship", None)
    return (used is None or used.learns() is None) and built.regroup(federation).n_tasks == federation.n_tasks


def _algorithm(origin: dict[str, Any]) -> str | None:
    """By which models were learned, where their file knows."""
    found: str | None = origin.get("estimator", origin.get("configuration", {})).get("algorithm")
    return found


def _relationship(algorithm: str, asked: dict[str, Any]) -> str:
    """The relationship by which an algorithm learns, whatever was asked of it."""
    options = Options.of(**{name: value for name, value in asked.items() if value != AUTO})
    used = type(getattr(build(algorithm, options, "binary").method, "relationship", None))
    others = ("none", "learned")
    names = (name for name in others if type(options.changed(relationship=name).chosen_relationship()) is used)
    return next(names, str(asked["relationship"]))
