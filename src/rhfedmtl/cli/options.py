"""Options that several commands share: one parameter of a command stands for many options.

A command is written for an object and decorated::

    @app.command()
    @with_learning_options
    def train(options: Options, seed: int = 0) -> None: ...

The decorator replaces ``options`` by one option per line of ``LEARNING``.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from rhfedmtl.algorithms.options import AUTO, Options, declared
from rhfedmtl.algorithms.registry import ALGORITHMS, CHANNELS, MERGES
from rhfedmtl.cli.text import paragraph
from rhfedmtl.errors import ConfigError
from rhfedmtl.maths.registry import LAMBDA2, LOSSES, RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.registry import Registry

R = TypeVar("R")
METHOD_PANEL = "Learning"
WORK_PANEL = "Work and budget"
RUNNING = "Running"


def print_json(facts: dict[str, Any]) -> None:
    """One JSON object on a line."""
    typer.echo(json.dumps(facts, allow_nan=False))


def option(panel: str, name: str, help: str, **more: Any) -> Any:  # noqa: A002
    """An option in a panel of the help."""
    return typer.Option(name, help=help, rich_help_panel=panel, **more)


def expand(
    command: Callable[..., R], parameter: str, options: Mapping[str, tuple[Any, Any]], build: Callable[..., Any]
) -> Callable[..., R]:
    """Replace ``parameter`` of a command by ``options`` (name: annotation, default); ``build`` makes it from them."""

    @functools.wraps(command)
    def expanded(**values: Any) -> R:
        given = {name: values.pop(name) for name in options}
        return command(**{parameter: build(**given)}, **values)

    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(n, kind, default=default, annotation=a) for n, (a, default) in options.items()]
    # The type of the replaced parameter is never asked for: it may be one that only type checkers import.
    unknown = {str(command.__annotations__[parameter]): Any}
    known = get_type_hints(command, inspect.unwrap(command).__globals__, unknown, include_extras=True)
    own = [p for p in inspect.signature(command).parameters.values() if p.name != parameter]
    parameters = [p.replace(kind=kind, annotation=known[p.name]) for p in own]
    # Arguments (without a default) stand first, as in a hand-written signature.
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    expanded.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in [*parameters, *shared]}
    return expanded


def typed(context: typer.Context) -> set[str]:
    """Names of the options that stand on the command line, rather than in a file of settings or nowhere."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def spelt(names: Iterable[str]) -> str:
    """Options as a user types them."""
    return ", ".join("--" + name.replace("_", "-") for name in sorted(names))


def _learn(kind: Any, name: str, help: str, **more: Any) -> tuple[Any, None]:  # noqa: A002
    return Annotated[kind | None, option(METHOD_PANEL, name, help, **more)], None


def _work(kind: Any, name: str, help: str, **more: Any) -> tuple[Any, None]:  # noqa: A002
    return Annotated[kind | None, option(WORK_PANEL, name, help, **more)], None


def chosen_from(registry: Registry[Any], what: str = "", usual: str = "") -> dict[str, Any]:
    """Help and callback of an option that takes a name of a registry: ``help`` in its place explains them all."""
    said = f"{what}{', '.join(registry)}; help explains them.{usual and f' [{usual}]'}"

    def explain(text: str | None) -> str | None:
        if text == "help":
            width = 2 + max(map(len, registry))
            for name, entry in registry.items():
                paragraph(entry.title, f"{name:{width}}", " " * width)
            raise typer.Exit
        return text

    return {"help": said, "callback": explain}


def _one_of(registry: Registry[Any], name: str, usual: str, what: str = "", panel: str = METHOD_PANEL) -> Any:
    """An option that takes a name of a registry."""
    return Annotated[str | None, option(panel, name, **chosen_from(registry, what, usual))], None


def _own(registry: Registry[Any], make: Callable[..., tuple[Any, None]] = _learn) -> dict[str, tuple[Any, None]]:
    """What entries have of their own: an option for all that declare it, which its help names."""
    found = {}
    for name, each in declared().items():
        if owners := [owner for owner, entry in registry.items() if each in entry.options]:
            usual = each.otherwise if each.default is None else f"{each.default:{'g' if each.kind is float else ''}}"
            text = f"{each.help} ({', '.join(owners)}). [{usual}]"
            found[name] = make(each.kind, "--" + name.replace("_", "-"), text, show_default=False)
    return found


def _weights(own: str, coupling: str) -> dict[str, tuple[Any, None]]:
    """λ1 and λ2, with what a command says of leaving them open."""
    return {
        "lambda1": _learn(str, "--lambda1", f"Weight of each model's own norm{own}", metavar="WEIGHT"),
        "lambda2": _learn(str, "--lambda2", f"Weight of the coupling{coupling}", metavar="WEIGHT"),
    }


LEARNING: dict[str, tuple[Any, Any]] = {
    "loss": _one_of(LOSSES, "--loss", "by the labels"),
    **_own(LOSSES),
    "relationship": _one_of(RELATIONSHIPS, "--relationship", Options.relationship, "How tasks are coupled: "),
    **_own(RELATIONSHIPS),
    **_weights(f". [{Options.lambda1}]", f". [{LAMBDA2}]"),
    "merge": _one_of(MERGES, "--merge", Options.merge, "How stations aggregate updates: "),
    **_own(MERGES),
    "channel": _one_of(CHANNELS, "--channel", Options.channel, "Clipping, compression or masking of updates: "),
    **_own(CHANNELS),
    "masked": _learn(
        bool,
        "--masked",
        "Secure aggregation: stations see sums over terminals alone. Short for --channel masked.",
        show_default=False,
    ),
    "intercept": _learn(bool, "--intercept/--no-intercept", "Add a constant feature; the paper has none. [add]"),
    "uniform": _learn(bool, "--uniform", "Draw rows with replacement, as in the paper.", show_default=False),
    **_own(ALGORITHMS),
    "policy": _one_of(POLICIES, "--policy", "measured", "Who decides H and K: ", WORK_PANEL),
    "local_steps": _work(
        int, "--local-steps", "H: local steps of a terminal in a round, a row each. [2, where it is fixed]"
    ),
    "station_rounds": _work(int, "--station-rounds", "K: rounds of a station in a server iteration. [1]"),
    "cloud_rounds": _work(int, "--cloud-rounds", "M: server iterations. [until the budget is spent, or it converges]"),
    **_own(POLICIES, _work),
}
CHOSEN = LEARNING | _weights(
    f", or auto. [{Options.lambda1}]",
    f". If not given, it is chosen on training rows, under a budget in the first rounds [from {LAMBDA2}]",
)
"""The same where weights that are left open may be chosen; in comparisons only those that are asked for (auto)."""
COMPARED = LEARNING | _weights(f", or auto. [{Options.lambda1}]", f", or auto: chosen in each run. [{LAMBDA2}]")

Address = Annotated[
    str | None,
    option(RUNNING, "--address", "Ray cluster to use with --engine ray: auto, or HOST:PORT. [a local one]"),
]
Budgets = Annotated[
    list[str] | None, option(WORK_PANEL, "--budget", "Hard limit, TYPE=AMOUNT (energy=1400); may be repeated.")
]
CertifyEvery = Annotated[
    str,
    option(
        WORK_PANEL,
        "--certify-every",
        "Gap and accuracy every so many rounds, charged by their bytes; auto: always where that is free.",
    ),
]
Precision = Annotated[
    str,
    option(
        METHOD_PANEL,
        "--precision",
        "Of numbers on the wire: float64, float32, int16, int8; auto: int8 where bytes are limited or measured.",
    ),
]
FreeEvaluation = Annotated[
    bool,
    option(
        WORK_PANEL,
        "--free-evaluation",
        "Charge nothing for certificates and test metrics; else their messages are charged by their bytes.",
    ),
]
Prices = Annotated[
    list[str] | None,
    option(WORK_PANEL, "--cost", "Prices, TYPE=STEP,STATION[,CLOUD] (energy=0.1,10); may be repeated; or a TOML file."),
]

PrivacyText = Annotated[
    str,
    option(
        WORK_PANEL,
        "--privacy",
        "Differential privacy of whole terminals, a budget like others: epsilon=1,delta=1e-6. A given seed makes it a "
        "simulation. [none]",
        show_default=False,
        metavar="EPSILON,DELTA",
    ),
]


def _explain_faults(text: str) -> str:
    """List the faults for ``--faults help``: names with their defaults, and what they mean."""
    if text.strip() != "help":
        return text
    from rhfedmtl.training.faults import Faults

    described = (inspect.getdoc(Faults) or "").partition("----------\n")[2].replace("``", "")
    for names, meaning in re.findall(r"^(\w.*)\n((?: .*\n?)+)", described, re.MULTILINE):
        typer.echo(", ".join(f"{name}={getattr(Faults, name)}" for name in names.split(", ")))
        paragraph(" ".join(meaning.split()), "    ", "    ")
    raise typer.Exit


FaultText = Annotated[
    str,
    option(
        WORK_PANEL,
        "--faults",
        "What goes wrong: dropout=0.3,moves=0.1,… (`--faults help` explains all).",
        callback=_explain_faults,
    ),
]
Scale = Annotated[
    str | None,
    option(
        METHOD_PANEL,
        "--scale",
        "standard-auto (rows of norm 1 where there are more than 16 features, in the mean where fewer), standard-unit, "
        "standard-rms, standard, unit, none. [standard-auto; standard-rms for regression]",
    ),
]


def every(text: str) -> Any:
    """A number of rounds, or auto."""
    return int(text) if text.isdecimal() else text


def told(**given: Any) -> dict[str, Any]:
    """The options that were given, weights as numbers unless they are to be chosen."""
    return {name: _weight(name, value) for name, value in given.items() if value is not None}


def _weight(name: str, value: Any) -> Any:
    if name not in ("lambda1", "lambda2") or value == AUTO:
        return value
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"--{name} needs a number, or {AUTO}, got {value!r}") from None


def _options(masked: bool | None = None, **given: Any) -> Options:
    if masked and given.get("channel") not in (None, "masked"):
        raise ConfigError(f"--masked and --channel {given['channel']}: give one of them")
    return Options.of(**told(**given | ({"channel": "masked"} if masked else {})))


def with_learning_options(known: dict[str, tuple[Any, Any]]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Replace the parameter ``options`` of a command by these options of learning."""
    return lambda command: expand(command, "options", known, _options)


def with_planning_options(command: Callable[..., R]) -> Callable[..., R]:
    """The same for plans, which are made for `rhfedmtl`: options that other algorithms alone heed are not listed."""
    others = _own(ALGORITHMS).keys() - {each.name for each in ALGORITHMS["rhfedmtl"].options}
    shown = {name: _changed(*each, hidden=True) if name in others else each for name, each in CHOSEN.items()}
    return expand(command, "options", shown, _options)


def without_usual(options: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """The same where what is not given is that of a run: their help names no other default."""
    return {
        name: _changed(a, default, show_default=False, help=re.sub(r" \[[^]]*\]$", "", a.__metadata__[0].help))
        for name, (a, default) in options.items()
    }


def _changed(annotation: Any, default: Any, **changes: Any) -> tuple[Any, Any]:
    said = copy(annotation.__metadata__[0])
    vars(said).update(changes)
    return Annotated[annotation.__origin__, said], default
