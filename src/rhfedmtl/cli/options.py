"""Options that several commands share: a single parameter of a command stands for many options.

A command takes an object and is decorated::

    @app.command()
    @with_learning_options
    def train(options: Options, seed: int = 0) -> None: ...

The decorator replaces ``options`` by an option for each entry of ``LEARNING``, and builds the object from their values.
To add an option of a method, declare it where the method is registered: `_own` collects it from there.
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
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.features.registry import FEATURES
from rhfedmtl.maths.registry import LAMBDA2, LOSSES, RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.registry import Registry

R = TypeVar("R")
METHOD_PANEL = "Learning"
WORK_PANEL = "Work and budget"
RUNNING = "Running"


def print_json(facts: dict[str, Any]) -> None:
    """Print an object as JSON on a single line."""
    typer.echo(json.dumps(facts, allow_nan=False))


def option(panel: str, name: str, help: str, **more: Any) -> Any:  # noqa: A002
    """Return an option that the help lists in ``panel``."""
    return typer.Option(name, help=help, rich_help_panel=panel, **more)


def expand(
    command: Callable[..., R], parameter: str, options: Mapping[str, tuple[Any, Any]], build: Callable[..., Any]
) -> Callable[..., R]:
    """Replace ``parameter`` of a command by ``options``, which map a name to annotation and default.

    ``build`` makes the value of ``parameter`` from the values of the options.
    """

    @functools.wraps(command)
    def expanded(**values: Any) -> R:
        chosen = {name: values.pop(name) for name in options}
        return command(**{parameter: build(**chosen)}, **values)

    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(n, kind, default=default, annotation=a) for n, (a, default) in options.items()]
    # The replaced parameter may have a type that only type checkers import, so it is not resolved.
    unresolved = {str(command.__annotations__[parameter]): Any}
    annotations = get_type_hints(command, inspect.unwrap(command).__globals__, unresolved, include_extras=True)
    kept_parameters = [p for p in inspect.signature(command).parameters.values() if p.name != parameter]
    parameters = [p.replace(kind=kind, annotation=annotations[p.name]) for p in kept_parameters]
    # Arguments without a default come first, as in a hand-written signature.
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    expanded.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in [*parameters, *shared]}
    return expanded


def given(context: typer.Context, name: str) -> bool:
    """Return True if the command line, the environment or a settings file sets the option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def typed(context: typer.Context) -> set[str]:
    """Return the names of the options on the command line, without those from a settings file or a default."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def spelt(names: Iterable[str]) -> str:
    """Return options as a user types them."""
    return ", ".join("--" + name.replace("_", "-") for name in sorted(names))


def _learn(kind: Any, name: str, help: str, **more: Any) -> tuple[Any, None]:  # noqa: A002
    return Annotated[kind | None, option(METHOD_PANEL, name, help, **more)], None


def _work(kind: Any, name: str, help: str, **more: Any) -> tuple[Any, None]:  # noqa: A002
    return Annotated[kind | None, option(WORK_PANEL, name, help, **more)], None


def chosen_from(registry: Registry[Any], prefix: str = "", default: str = "") -> dict[str, Any]:
    """Return help and callback of an option with a name from a registry; the value ``help`` explains all names."""
    names = f"{prefix}{', '.join(registry)}; help explains them.{default and f' [{default}]'}"

    def explain(text: str | None) -> str | None:
        if text == "help":
            width = 2 + max(map(len, registry))
            for name, entry in registry.items():
                paragraph(entry.title, f"{name:{width}}", " " * width)
            raise typer.Exit
        return text

    return {"help": names, "callback": explain}


def _one_of(registry: Registry[Any], name: str, default: str, prefix: str = "", panel: str = METHOD_PANEL) -> Any:
    """Return an option that takes a name from a registry."""
    return Annotated[str | None, option(panel, name, **chosen_from(registry, prefix, default))], None


def _own(registry: Registry[Any], make: Callable[..., tuple[Any, None]] = _learn) -> dict[str, tuple[Any, None]]:
    """Return an option for everything that entries of a registry declare; its help names the entries."""
    options = {}
    for name, field in declared().items():
        if owners := [owner for owner, entry in registry.items() if field in entry.options]:
            default = (
                field.otherwise if field.default is None else f"{field.default:{'g' if field.kind is float else ''}}"
            )
            text = f"{field.help} ({', '.join(owners)}). [{default}]"
            options[name] = make(field.kind, "--" + name.replace("_", "-"), text, show_default=False)
    return options


def _weights(lambda1_help: str, lambda2_help: str) -> dict[str, tuple[Any, None]]:
    """Return λ1 and λ2, with the help that a command has for weights that are not set."""
    return {
        "lambda1": _learn(str, "--lambda1", f"Regularisation of each model{lambda1_help}", metavar="WEIGHT"),
        "lambda2": _learn(str, "--lambda2", f"Weight of the coupling of tasks{lambda2_help}", metavar="WEIGHT"),
    }


LEARNING: dict[str, tuple[Any, Any]] = {
    "loss": _one_of(LOSSES, "--loss", "by the labels"),
    **_own(LOSSES),
    "relationship": _one_of(RELATIONSHIPS, "--relationship", Options.relationship, "Coupling of tasks: "),
    **_own(RELATIONSHIPS),
    **_weights(f". [{Options.lambda1}]", f". [{LAMBDA2}]"),
    "merge": _one_of(MERGES, "--merge", Options.merge, "Aggregation of updates at stations: "),
    **_own(MERGES),
    "channel": _one_of(CHANNELS, "--channel", Options.channel, "Clipping, compression or masking of updates: "),
    **_own(CHANNELS),
    "masked": _learn(
        bool,
        "--masked",
        "Secure aggregation: stations see only sums over terminals. Short for --channel masked.",
        show_default=False,
    ),
    "intercept": _learn(bool, "--intercept/--no-intercept", "Add a constant feature; the paper has none. [add]"),
    "uniform": _learn(bool, "--uniform", "Draw rows with replacement, as in the paper.", show_default=False),
    "features": _learn(
        str,
        "--features",
        "Feature maps, as splines+pairs: "
        + "; ".join(entry.title.partition(": ")[0] for entry in FEATURES.values())
        + "; auto chooses on held-out rows. Default: no map.",
        show_default=False,
        metavar="MAPS",
    ),
    **_own(ALGORITHMS),
    "policy": _one_of(POLICIES, "--policy", "measured", "Chooses H and K: ", WORK_PANEL),
    "local_steps": _work(
        int, "--local-steps", "H: local steps of a terminal in a round, one row each. [2 with policy fixed]"
    ),
    "station_rounds": _work(int, "--station-rounds", "K: rounds of a station in a server iteration. [1]"),
    "cloud_rounds": _work(
        int, "--cloud-rounds", "M: server iterations. [until the budget is spent or the run converges]"
    ),
    **_own(POLICIES, _work),
}
CHOSEN = LEARNING | _weights(
    f", or auto. [{Options.lambda1}]",
    f". Default: chosen on training rows; with a budget, in the first rounds [from {LAMBDA2}]",
)
"""Options of commands that choose missing weights."""
# Comparisons choose only weights that the user sets to auto.
COMPARED = LEARNING | _weights(f", or auto. [{Options.lambda1}]", f", or auto: chosen in each run. [{LAMBDA2}]")

Address = Annotated[
    str | None,
    option(RUNNING, "--address", "Ray cluster to use with --engine ray: auto, or HOST:PORT. [a local one]"),
]
Budgets = Annotated[
    list[str] | None, option(WORK_PANEL, "--budget", "Hard limit, TYPE=AMOUNT (energy=1400); can be repeated.")
]
CertifyEvery = Annotated[
    str,
    option(
        WORK_PANEL,
        "--certify-every",
        "Rounds between certificates (gap and accuracy), charged by their bytes; auto: every round if that is free.",
    ),
]
Precision = Annotated[
    str,
    option(
        METHOD_PANEL,
        "--precision",
        "Precision of sent numbers: float64, float32, int16, int8; auto: int8 if bytes are limited or measured.",
    ),
]
FreeEvaluation = Annotated[
    bool,
    option(
        WORK_PANEL,
        "--free-evaluation",
        "Do not charge certificates and test metrics. By default their messages are charged by their bytes.",
    ),
]
Prices = Annotated[
    list[str] | None,
    option(WORK_PANEL, "--cost", "Prices, TYPE=STEP,STATION[,CLOUD] (energy=0.1,10); can be repeated; or a TOML file."),
]

PRESETS: dict[str, dict[str, Any]] = {
    "table2": {"cost": "energy=0.1,10", "resource": "energy", "budget": 1400, "lambda1": 1e-4, "lambda2": 1e-6}
}
"""Settings by the name of their source: Table II of the paper."""
PresetName = Annotated[
    str | None,
    option(
        WORK_PANEL,
        "--preset",
        "table2: prices, budget and weights of the paper's Table II. Options that you give next to it win.",
        metavar="NAME",
    ),
]


def with_preset(
    name: str | None, context: typer.Context, options: Options, cost: list[str] | None, budget: list[str] | None
) -> tuple[Options, list[str] | None, list[str] | None]:
    """Return options, prices and budgets. The preset fills the gaps."""
    if name is None:
        return options, cost, budget
    preset, options = preset_weights(name, context, options)
    return options, cost or [preset["cost"]], budget or [f"{preset['resource']}={preset['budget']}"]


def preset_weights(name: str, context: typer.Context, options: Options) -> tuple[dict[str, Any], Options]:
    """Return a preset, and the options with its weights unless the user set them."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}: choose from {', '.join(PRESETS)}{nearest(name, PRESETS)}")
    preset = PRESETS[name]
    weights = {weight: preset[weight] for weight in ("lambda1", "lambda2") if context.params[weight] is None}
    return preset, options.changed(**weights)


PrivacyText = Annotated[
    str,
    option(
        WORK_PANEL,
        "--privacy",
        "Budget for the differential privacy of terminals: epsilon=1,delta=1e-6. With a given seed it is "
        "only a simulation. [no privacy]",
        show_default=False,
        metavar="EPSILON,DELTA",
    ),
]


def _explain_faults(text: str) -> str:
    """Print all faults with their defaults and meaning, for ``--faults help``."""
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
        "Simulated faults: dropout=0.3,moves=0.1,… (`--faults help` explains all).",
        callback=_explain_faults,
    ),
]
Scale = Annotated[
    str | None,
    option(
        METHOD_PANEL,
        "--scale",
        "standard-auto (rows of norm 1 with more than 16 features, of mean norm 1 with fewer), standard-unit, "
        "standard-rms, standard, unit, none. [standard-auto; standard-rms for regression]",
    ),
]


def every(text: str) -> Any:
    """Return a number of rounds, or the word auto."""
    return int(text) if text.isdecimal() else text


def given_options(**values: Any) -> dict[str, Any]:
    """Return the options that the user set; weights become numbers, unless they are ``auto``."""
    return {name: _weight(name, value) for name, value in values.items() if value is not None}


def _weight(name: str, value: Any) -> Any:
    if name not in ("lambda1", "lambda2") or value == AUTO:
        return value
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"--{name} needs a number, or {AUTO}, got {value!r}") from None


def _options(masked: bool | None = None, **values: Any) -> Options:
    if masked and values.get("channel") not in (None, "masked"):
        raise ConfigError(f"--masked and --channel {values['channel']}: give one of them")
    return Options.of(**given_options(**values | ({"channel": "masked"} if masked else {})))


def with_learning_options(options: dict[str, tuple[Any, Any]]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Replace the parameter ``options`` of a command by these learning options."""
    return lambda command: expand(command, "options", options, _options)


def with_planning_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace ``options`` as `with_learning_options` does, for plans.

    A plan is for `rhfedmtl`, so options that only other algorithms use are hidden.
    """
    unused = _own(ALGORITHMS).keys() - {field.name for field in ALGORITHMS["rhfedmtl"].options}
    options = {name: _changed(*entry, hidden=True) if name in unused else entry for name, entry in CHOSEN.items()}
    return expand(command, "options", options, _options)


def without_usual(options: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Return the options without defaults in their help, for commands whose defaults come from a run."""
    return {
        name: _changed(a, default, show_default=False, help=re.sub(r" \[[^]]*\]$", "", a.__metadata__[0].help))
        for name, (a, default) in options.items()
    }


def _changed(annotation: Any, default: Any, **changes: Any) -> tuple[Any, Any]:
    changed_option = copy(annotation.__metadata__[0])
    vars(changed_option).update(changes)
    return Annotated[annotation.__origin__, changed_option], default
