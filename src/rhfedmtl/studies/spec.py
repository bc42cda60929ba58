"""Specifications: read a TOML file as a study, and refuse errors with their line before any run starts.

Sections are ``[data]``, ``[learning]``, ``[cost.TYPE]``, ``[budget]``, ``[faults]``; a ``[[methods]]`` section per
method, whose settings override ``[learning]`` (a list of algorithms makes a method of each); and ``[axes]``, which
spans the grid: the place of a setting, and its values. ``[[paper]]`` has the printed values of a method in the order of
the grid, with the last axis fastest. ``pair`` names two methods; the paper's main claim is that the first is better.
``[[claims]]`` has further claims (`claims`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from rhfedmtl import toml
from rhfedmtl.algorithms.options import AUTO, Options, option_kinds
from rhfedmtl.algorithms.registry import is_yardstick
from rhfedmtl.data.registry import DATASETS
from rhfedmtl.data.request import Request
from rhfedmtl.errors import ConfigError, RHFedMTLError, nearest
from rhfedmtl.maths.registry import METRICS
from rhfedmtl.resources.costs import Cost
from rhfedmtl.runs.lookup import flat
from rhfedmtl.studies.claims import KINDS
from rhfedmtl.studies.planned import PlannedStudy, taking_part
from rhfedmtl.studies.study import Claim, Point, Printed, Study, Variant, grid
from rhfedmtl.training.config import RunConfig

Document = dict[str, Any]
Entry = tuple[Point, RunConfig]
TOP = {
    "title": str,
    "question": str,
    "metric": str,
    "seeds": int,
    "reference": str,
    "x": str,
    "last": int,
    "notes": list,
    "views": list,
    "column": str,
    "choice": float,
    "pair": list,
    "certify_every": (int, str),
}
RUN = {"scale": str, "target_gap": float, "privacy": str}
COPIED = ("title", "question", "metric", "last", "choice", "pair", "views", "column", "notes")
"""Keys that a study takes unchanged."""
METHOD = {"name": str, "label": str, "algorithm": str, "tune": (bool, str)}
MAX_RUNS = 1_000_000


@dataclass(frozen=True)
class SourceLines:
    """Line numbers of the settings in a file."""

    file: str
    line: Mapping[str, int]

    @classmethod
    def of(cls, file: str, text: str) -> SourceLines:
        """Scan a TOML text for the lines of its tables and keys."""
        line: dict[str, int] = {}
        counts: dict[str, int] = {}
        table = ""
        for number, content in enumerate(text.splitlines(), 1):
            if match := re.match(r"\s*\[\[\s*([^\]]+?)\s*\]\]", content):
                index = counts[match[1]] = counts.get(match[1], -1) + 1
                table = f"{match[1]}.{index}"
            elif match := re.match(r"\s*\[\s*([^\]]+?)\s*\]", content):
                table = match[1]
            elif match := re.match(r"""\s*("[^"]+"|'[^']+'|[\w.-]+)\s*=""", content):
                line.setdefault(_joined(table, match[1].strip("\"'")), number)
                continue
            line.setdefault(table.replace("-", "_"), number)
        return cls(file, line)

    def error(self, where: str, message: str) -> ConfigError:
        """Return the error with the line of ``where``, or of the nearest table around it."""
        while where and where not in self.line:
            where = where.rpartition(".")[0]
        number = f":{self.line[where]}" if where else ""
        return ConfigError(f"{self.file}{number}: {message}")


def read(
    path: Path, *, changes: Mapping[str, Any] | None = None, seeds: int | None = None, first_seed: int = 0
) -> PlannedStudy:
    """Read the study in a file; ``changes``, ``seeds`` and ``first_seed`` as in `study`."""
    lines = SourceLines.of(str(path), path.read_text())
    return study(toml.read(path), path.stem, lines, changes=changes, seeds=seeds, first_seed=first_seed)


def study(
    document: Document,
    name: str,
    lines: SourceLines,
    *,
    changes: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    first_seed: int = 0,
) -> PlannedStudy:
    """Build a study from a document, with ``seeds`` seeds from ``first_seed`` on.

    ``changes`` replace settings by their place (``data.path``), or remove them.
    """
    document = _plain_keys(document)
    for where, value in (changes or {}).items():
        _put(document, where, value)
    if seeds is not None:
        document["seeds"] = seeds
    # A method with several algorithms becomes a method for each, at the same lines.
    methods: list[Document] = []
    line = {where: number for where, number in lines.line.items() if not where.startswith("methods.")}
    for i, method in enumerate(document.get("methods", ())):
        several = method.get("algorithm")
        for algorithm in several if isinstance(several, list) else [None]:
            places = {f"methods.{i}", *(f"methods.{i}.{key}" for key in method)} & lines.line.keys()
            line |= {where.replace(f".{i}", f".{len(methods)}", 1): lines.line[where] for where in places}
            methods.append(method if algorithm is None else {"name": algorithm, **method, "algorithm": algorithm})
    document, lines = {**document, "methods": methods} if methods else document, SourceLines(lines.file, line)
    _check_sections(document, lines)
    variants = []
    for i, method in enumerate(document["methods"]):
        if "algorithm" not in method:
            raise lines.error(f"methods.{i}", "a method needs its algorithm")
        tuned = bool(method.get("tune", False))
        title = method.get("name", method["algorithm"] + ("-tuned" if tuned else ""))
        variants.append(
            Variant(title, method.get("label", title), method["algorithm"], tuned, is_yardstick(method["algorithm"]))
        )
    if len({v.name for v in variants}) < len(variants):
        raise lines.error("methods", f"two methods have one name: {', '.join(v.name for v in variants)}")
    axes = _axes(document, lines)
    reference = document.get("reference", variants[0].name)
    if reference not in {v.name for v in variants}:
        raise lines.error("reference", f"no method {reference!r}{nearest(reference, [v.name for v in variants])}")
    count = document.get("seeds", 10)
    if count < 1 or count * len(variants) * int(np.prod([len(v) for v in axes.values()])) > MAX_RUNS:
        raise lines.error("seeds", f"{count} seeds × methods × grid must be between 1 and {MAX_RUNS} runs")
    x = document.get("x", next(iter(axes), None))
    if axes and x not in axes:
        raise lines.error("x", f"x = {x!r} is none of the axes: {', '.join(axes)}")
    cells, names, paper = grid(axes), [variant.name for variant in variants], list[Printed]()
    for i, printed in enumerate(document.get("paper", ())):
        values = np.array(printed.get("values", []), dtype=object).ravel()
        if printed.get("method") not in names or len(values) != len(cells):
            raise lines.error(
                f"paper.{i}", f"printed values: a method of {names} and {len(cells)} values, got {len(values)}"
            )
        paper += [Printed(printed["method"], at, float(value)) for at, value in zip(cells, values, strict=True)]
    entries = list(_entries(document, variants, axes, range(first_seed, first_seed + count), lines))
    _check_effect(document, axes, entries, lines)
    fields = {"title": name, "metric": "balanced_accuracy"} | {key: document[key] for key in COPIED if key in document}
    fields |= {"x": x, "seeds": count, "first_seed": first_seed, "reference": reference}
    fields.setdefault("column", fields["metric"])
    planned = Study(
        name=name,
        **fields,
        variants=variants,
        axes=axes,
        points=[point for point, _ in entries],
        paper=paper,
        claims=_claims(document, names, axes, lines),
    )
    return PlannedStudy(planned, {point.run: config for point, config in entries})


def _claims(document: Document, names: Sequence[str], axes: Mapping[str, list[Any]], lines: SourceLines) -> list[Claim]:
    """Return the claims of the paper, and check the pair of its main claim."""
    if (pair := document.get("pair")) and (len(pair) != 2 or not set(pair) <= set(names)):
        raise lines.error("pair", f"a pair is two of the methods {', '.join(names)}, got {pair}")
    claims = []
    for i, table in enumerate(document.get("claims", ())):
        claim = Claim(table["says"], table["kind"], table["methods"], table.get("along"))
        if claim.kind not in KINDS or len(claim.methods) != KINDS[claim.kind] or not set(claim.methods) <= set(names):
            needs = ", ".join(f"{kind} (methods: {count})" for kind, count in KINDS.items())
            raise lines.error(f"claims.{i}", f"a claim has a kind, {needs}, with names of methods; got {table}")
        if (claim.along or document.get("x")) not in axes:
            raise lines.error(f"claims.{i}", f"along = {claim.along!r} is none of the axes: {', '.join(axes)}")
        claims.append(claim)
    return claims


def _check_sections(document: Document, lines: SourceLines) -> None:
    sections = {"data", "learning", "cost", "budget", "faults", "methods", "axes", "paper", "claims"}
    for key in document:
        if key not in TOP and key not in sections:
            raise lines.error(key, f"unknown key {key!r}{nearest(key, [*TOP, *sections])}")
    for key, kind in TOP.items():
        if key in document:
            _typed(key, document[key], kind, lines)
    if document.get("metric", METRICS[0]) not in METRICS:
        raise lines.error("metric", f"no metric {document['metric']!r}: choose from {', '.join(METRICS)}")
    if not document.get("methods"):
        raise lines.error("", "no [[methods]]: a study compares at least one")
    _check_keys("data", document.get("data", {}), _data_types(), lines)
    _check_keys("learning", document.get("learning", {}), _options_types() | RUN, lines)
    for i, method in enumerate(document["methods"]):
        _check_keys(f"methods.{i}", method, METHOD | _options_types(), lines)
    for i, printed in enumerate(document.get("paper", ())):
        _check_keys(f"paper.{i}", printed, {"method": str, "values": list}, lines)
    for i, claim in enumerate(document.get("claims", ())):
        _check_keys(f"claims.{i}", claim, {"says": str, "kind": str, "methods": list, "along": str}, lines)
        if missing := {"says", "kind", "methods"} - claim.keys():
            raise lines.error(f"claims.{i}", f"a claim needs {', '.join(sorted(missing))}")


def _check_keys(section: str, table: Mapping[str, Any], types: Mapping[str, Any], lines: SourceLines) -> None:
    for key, value in table.items():
        where = f"{section}.{key}"
        if key not in types:
            name, _, _ = section.partition(".")
            raise lines.error(where, f"unknown key {key!r} in [{name}]{nearest(key, types)}")
        _typed(where, value, types[key], lines)


def _typed(where: str, value: Any, kind: Any, lines: SourceLines) -> None:
    """Refuse a value of another type; an integer is a number, a switch is not a number."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fits = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    fits = fits and not (isinstance(value, str) and float in kinds and value != AUTO)
    if not fits or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(k.__name__ for k in kinds if k is not type(None))
        names = names.replace("float or str", f"float or {AUTO!r}")
        raise lines.error(where, f"{where.rsplit('.', 1)[-1]} must be {names}, got {value!r}")


def _data_types() -> dict[str, Any]:
    types = {name: _kinds(hint) for name, hint in get_type_hints(Request).items()}
    types["name"] = types.pop("data")
    return types | {"tasks": (int, list), "set": dict}


def _options_types() -> dict[str, Any]:
    return {name: _kinds(hint) for name, hint in option_kinds().items()}


def _kinds(hint: Any) -> tuple[type, ...]:
    """Return the types that a value may have, without None, because an unset value does not appear."""
    kinds = tuple(k for k in getattr(hint, "__args__", (hint,)) if isinstance(k, type) and k is not type(None))
    return kinds or (dict,)


def _axes(document: Document, lines: SourceLines) -> dict[str, list[Any]]:
    axes = {}
    for where, values in flat(document.get("axes", {})).items():  # also budget.energy = […] without quotes
        if not isinstance(values, list) or not values:
            raise lines.error(_joined("axes", where), f"axis {where!r} needs a list of values, got {values!r}")
        if len({str(value) for value in values}) < len(values):
            raise lines.error(_joined("axes", where), f"axis {where!r} has a value twice: {values}")
        section, _, key = where.partition(".")
        types = {"data": _data_types(), "learning": _options_types() | RUN}.get(section)
        if types is not None and key not in types:
            raise lines.error(_joined("axes", where), f"axis {where!r}: unknown key {key!r}{nearest(key, types)}")
        if types is None and section not in ("budget", "cost", "faults"):
            hint = "an axis is a setting by its place, as in data.terminals, budget.energy, cost.energy.step"
            raise lines.error(_joined("axes", where), f"axis {where!r} names no setting: {hint}")
        for value in values if types is not None else ():
            _typed(_joined("axes", where), value, (types or {})[key], lines)
        axes[where] = values
    return axes


def _entries(
    document: Document, variants: Sequence[Variant], axes: Mapping[str, list[Any]], seeds: range, lines: SourceLines
) -> Iterator[Entry]:
    """Yield every run with its point in the study."""
    for at in grid(axes):
        changed = copy.deepcopy(document)
        for where, value in at.items():
            _put(changed, where, value)
        for i, variant in enumerate(variants):
            first = _config(changed, i, variant, at, lines)
            from_seed = bool(first.privacy)
            runs = [replace(first, seed=seed, noise_from_seed=from_seed) for seed in seeds]
            yield from ((Point(variant.name, at, config.seed, config.key), config) for config in runs)


def _config(document: Document, index: int, variant: Variant, at: Mapping[str, Any], lines: SourceLines) -> RunConfig:
    """Return the run of a method at a place of the grid, with all checks that need no data."""
    method = {k: v for k, v in document["methods"][index].items() if k not in METHOD}
    shared = dict(document.get("learning", {}))
    run = {key: shared.pop(key) for key in RUN if key in shared}
    data = dict(document.get("data", {}))
    data["data"], data["settings"] = data.pop("name", "synthetic"), data.pop("set", {})
    if isinstance(data.get("tasks"), list):
        data["tasks"] = tuple(data["tasks"])
    _check_data(data["data"], at, lines)
    tune = document["methods"][index].get("tune", False)
    metric, faults = document.get("metric", "auto"), document.get("faults", "")
    try:
        config = RunConfig(
            variant.algorithm,
            Request(**data),
            Options.of(**{**shared, **method}),
            cost=Cost.of(document["cost"]).format() if document.get("cost") else (),
            budget=tuple(f"{name}={limit}" for name, limit in document.get("budget", {}).items()),
            faults=faults if isinstance(faults, str) else ",".join(f"{fault}={x}" for fault, x in faults.items()),
            certify_every=document.get("certify_every", AUTO),
            tune="" if not tune else tune if isinstance(tune, str) else metric,
            **run,
        )
        config = taking_part(config, overrides=method.keys())
        config.check()
    except (RHFedMTLError, TypeError, ValueError) as error:
        place = ", ".join(f"{axis} = {value}" for axis, value in at.items())
        suffix = f" (at {place})" if place else ""
        raise lines.error(f"methods.{index}", f"method {variant.name!r}: {error}{suffix}") from error
    return config


def _check_data(name: str, at: Mapping[str, Any], lines: SourceLines) -> None:
    try:
        DATASETS[name]
    except ConfigError as error:
        raise lines.error("axes.data.name" if "data.name" in at else "data.name", str(error)) from error


def _check_effect(document: Document, axes: Iterable[str], entries: Sequence[Entry], lines: SourceLines) -> None:
    """Refuse a setting of [learning], or an axis over it, that has no effect on any method."""
    shared = document.get("learning", {})
    places = {name: f"learning.{name}" for name in shared} | {
        axis.removeprefix("learning."): f"axes.{axis}" for axis in axes if axis.startswith("learning.")
    }
    for name in sorted(places.keys() & _options_types().keys()):
        settings = [(point.at.get(f"learning.{name}", shared.get(name)), config.options) for point, config in entries]
        settings = [(value, options) for value, options in settings if value != Options()[name]]
        if settings and not any(options[name] == value for value, options in settings):
            raise lines.error(places[name], f"{name} has no effect on any of the methods: leave it out")


def _put(document: Document, where: str, value: Any) -> None:
    *path, last = where.split(".")
    table = document
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: {part} is no table")
    table[last] = value
    if value is None:
        del table[last]


def _plain_keys(value: Any) -> Any:
    """Return the value with ``_`` instead of ``-`` in all keys."""
    if isinstance(value, dict):
        return {key.replace("-", "_"): _plain_keys(part) for key, part in value.items()}
    return [_plain_keys(part) for part in value] if isinstance(value, list) else value


def _joined(table: str, key: str) -> str:
    return (f"{table}.{key}" if table else key).replace("-", "_")
