"""The problem that models were trained for: relationship and weights, from the record in their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rhfedmtl.algorithms.options import AUTO, USUAL, Options, build


def trained_problem(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the relationship and weights of the run or estimator; defaults if the origin is unknown."""
    settings = provenance.get("estimator") or provenance.get("configuration", {}).get("options", {})
    chosen = provenance.get("chosen", {})
    defaults = {"relationship": Options.relationship, **USUAL}
    recorded = {name: value for name, value in {**settings, **chosen}.items() if value is not None}
    problem = {name: recorded.get(name, value) for name, value in defaults.items()}
    algorithm = algorithm_of(provenance)
    return problem if algorithm is None else {**problem, "relationship": _relationship(algorithm, problem)}


def algorithm_of(provenance: Mapping[str, Any]) -> str | None:
    """Return the algorithm that trained the models, if their file records it."""
    algorithm: str | None = provenance.get("estimator", provenance.get("configuration", {})).get("algorithm")
    return algorithm


def _relationship(algorithm: str, problem: dict[str, Any]) -> str:
    """Return the relationship with which an algorithm really learns."""
    options = Options.of(**{name: value for name, value in problem.items() if value != AUTO})
    kind = type(getattr(build(algorithm, options, "binary").method, "relationship", None))
    alternatives = ("none", "learned")
    names = (name for name in alternatives if type(options.changed(relationship=name).chosen_relationship()) is kind)
    return next(names, str(problem["relationship"]))
