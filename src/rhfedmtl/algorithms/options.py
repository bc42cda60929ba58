"""Settings of learning in plain values, and the objects that they describe.

Options of all algorithms are fields of `Options`. Entries of a registry may declare further options
(`rhfedmtl.registry.Option`), which appear next to the fields wherever options are read, written or shown. Commands,
estimators and networks build their algorithms with this module; it never trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_type_hints

from rhfedmtl.algorithms.registry import ALGORITHMS, CHANNELS, MERGES, Algorithm
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.maths.registry import LAMBDA1, LAMBDA2, LOSSES, RELATIONSHIPS
from rhfedmtl.policies.registry import POLICIES
from rhfedmtl.registry import Entry, Option, Registry

if TYPE_CHECKING:
    from rhfedmtl.algorithms.dual import DualMethod
    from rhfedmtl.algorithms.method import Channel
    from rhfedmtl.features.maps import Features
    from rhfedmtl.maths.losses import Loss
    from rhfedmtl.maths.relationships import Relationship
    from rhfedmtl.policies.base import Policy

DECLARING: dict[str, Registry[Any]] = {
    "loss": LOSSES,
    "relationship": RELATIONSHIPS,
    "merge": MERGES,
    "channel": CHANNELS,
    "cloud_rounds": POLICIES,
    "own": ALGORITHMS,
}
"""Registries whose entries may declare options, by the field after which these options appear."""


AUTO = "auto"
"""Value of a weight that training rows will choose."""
USUAL = {"lambda1": LAMBDA1, "lambda2": LAMBDA2}
"""Default weights, until the user sets them or training rows choose them."""


@dataclass(frozen=True)
class Options:
    """Settings of all algorithms; None leaves a choice to the algorithm or to the data.

    A weight may be ``auto``: it has its default until it is chosen (`selection.weights`). The same holds for λ2 = None,
    if λ2 can be chosen. ``own`` holds the declared options that differ from their defaults. `of` takes both kinds by
    name.
    """

    loss: str | None = None
    relationship: str = "mean"
    lambda1: float | str = LAMBDA1
    lambda2: float | str | None = None
    merge: str = "auto"
    channel: str = "identity"
    intercept: bool = True
    features: str = "none"
    uniform: bool = False
    policy: str | None = None
    local_steps: int | None = None
    station_rounds: int | None = None
    cloud_rounds: int | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError for options without a declaration, and drop options with their default value."""
        options = declared()
        for name in self.own:
            if name not in options:
                raise ConfigError(f"unknown option {name!r} of learning{nearest(name, option_kinds())}")
        defaults = {name: option.default for name, option in options.items()}
        changes = {name: self.own[name] for name, value in defaults.items() if self.own.get(name, value) != value}
        object.__setattr__(self, "own", changes)
        if "=" in self.features:
            from rhfedmtl.features.maps import pinned

            object.__setattr__(self, "features", pinned(self.features))

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Return options from plain values by name."""
        return cls().changed(**values)

    def changed(self, **values: Any) -> Options:
        """Return a copy with other values."""
        fixed = {name: values.pop(name) for name in list(values) if name in COMMON}
        return replace(self, **fixed, own={**self.own, **values})

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in COMMON else self.own.get(name, declared()[name].default)

    def set_names(self) -> list[str]:
        """Return the names of the settings that differ from their defaults."""
        return [name for name in COMMON if self[name] != DEFAULTS[name]] + list(self.own)

    def without(self, names: Iterable[str]) -> Options:
        """Return a copy with these settings at their defaults."""
        unset = set(names)
        common = {name: DEFAULTS[name] for name in COMMON if name in unset}
        return replace(self, **common, own={name: value for name, value in self.own.items() if name not in unset})

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values.

        Options that other packages declare are included only if they are set.
        """
        flat: dict[str, Any] = {}
        for part in fields(self):
            flat |= {part.name: self[part.name]} if part.name in COMMON else {}
            if part.name in DECLARING:
                registry = DECLARING[part.name]
                library = [registry[name] for name in registry if name in registry.own]
                flat |= {option.name: self[option.name] for entry in library for option in entry.options}
        return {**flat, **self.own}

    to_plain = to_dict

    @classmethod
    def from_plain(cls, table: dict[str, Any]) -> Options:
        """Return options from the result of `to_plain`; default values count as unset. Unknown names are ignored."""
        defaults = {**DEFAULTS, **{name: option.default for name, option in declared().items()}}
        return cls.of(**{name: value for name, value in table.items() if name in defaults and value != defaults[name]})

    def arguments(self, **names: str) -> dict[str, Any]:
        """Return the arguments whose option has a value: ``arguments(pull="mu")`` is ``{"pull": μ}`` or ``{}``."""
        return {name: self[option] for name, option in names.items() if self[option] is not None}

    def sgd(self, kind: str) -> dict[str, Any]:
        """Return the settings that all gradient methods share."""
        return {
            "loss": self.chosen_loss(kind),
            "intercept": self.intercept,
            "uniform": self.uniform,
            "lambda1": self.weight("lambda1"),
            "relationship": self.changed(lambda1=max(self.weight("lambda1"), LEAST_LAMBDA1)).chosen_relationship(),
            "channel": self.chosen_channel(),
            "features": self.chosen_features(),
            "step": self["step"],
            "decay": self["decay"],
        }

    def method(self, kind: str) -> DualMethod:
        """Return the dual method for labels of this kind (binary, classes or regression)."""
        from rhfedmtl.algorithms.dual import DualMethod

        merge = MERGES[self.merge]
        return DualMethod(
            loss=self.chosen_loss(kind),
            intercept=self.intercept,
            uniform=self.uniform,
            relationship=self.chosen_relationship(),
            merge=merge(**self._of(merge)),
            channel=self.chosen_channel(),
            features=self.chosen_features(),
        )

    def fixed_policy(self, station_rounds: int | None = None) -> Policy:
        """Return the policy with fixed H, K and M, for an algorithm that decides nothing itself."""
        if self["solver"] == "quasi-newton":
            raise ConfigError("solver quasi-newton needs policy measured: take rhfedmtl, or another solver")
        if self.policy not in (None, "fixed"):
            raise ConfigError(f"this algorithm has fixed H and K: use rhfedmtl for policy {self.policy!r}")
        if station_rounds is None:
            station_rounds = 1 if self.station_rounds is None else self.station_rounds
        elif self.station_rounds not in (None, station_rounds):
            raise ConfigError(
                f"this algorithm has {station_rounds} station round in a server iteration, not {self.station_rounds}: "
                "leave station_rounds out, or take hfedmtl or hierfavg"
            )
        return POLICIES["fixed"](
            local_steps=2 if self.local_steps is None else self.local_steps,
            station_rounds=station_rounds,
            cloud_rounds=self.cloud_rounds,
        )

    def chosen_policy(self, default: str) -> Policy:
        """Return the policy by name."""
        name = default if self.policy is None else self.policy
        entry = POLICIES[name]
        if name == "fixed":
            return self.fixed_policy()
        if self["solver"] == "quasi-newton" and name != "measured":
            raise ConfigError(f"solver quasi-newton needs policy measured, not {name}: take another solver or policy")
        if self.local_steps is not None or self.station_rounds is not None or self.cloud_rounds is not None:
            raise ConfigError(
                f"policy {name!r} decides H, K and M itself: leave out local_steps, station_rounds and cloud_rounds, "
                "or take policy 'fixed'"
            )
        if foreign := sorted((_names(POLICIES) & self.own.keys()) - self._of(entry).keys()):
            raise ConfigError(f"policy {name!r} has no {foreign[0]}: leave it out, or take another policy")
        return entry(**self._of(entry))

    def in_precision(self, precision: str, *, bytes_bind: bool = False) -> Options:
        """Return a copy with the channel that rounds to this precision; raise ConfigError if another channel is set.

        "auto" rounds to int8, the best value per byte (`benchmarks/bytes.py`), if bytes limit the run, and is exact
        otherwise.
        """
        if precision == AUTO:
            precision = "int8" if bytes_bind else "float64"
        if precision not in PRECISIONS:
            choices = (*PRECISIONS, AUTO)
            raise ConfigError(f"precision {precision}: choose from {', '.join(choices)}{nearest(precision, choices)}")
        if precision in ("float64", self.channel):
            return self
        if self.channel != DEFAULTS["channel"]:
            raise ConfigError(f"precision {precision} and channel {self.channel}: give one of them")
        return self.changed(channel=precision)

    def chosen_channel(self) -> Channel:
        """Return the channel for updates and models."""
        channel = CHANNELS[self.channel]
        return channel(**self._of(channel))

    def chosen_features(self) -> Features:
        """Return the feature maps."""
        from rhfedmtl.features.maps import COUNTS, Features
        from rhfedmtl.features.registry import FEATURES

        if self.features.partition("@")[0] == COUNTS:  # only round zero uses this map
            FEATURES[COUNTS]
        return Features("none" if self.features == AUTO else self.features)

    def chosen_relationship(self) -> Relationship:
        """Return the relationship between tasks: a method with another coupling is certified for this problem."""
        relationship = RELATIONSHIPS[self.relationship]
        return relationship(self.weight("lambda1"), self.weight("lambda2"), **self._of(relationship))

    @property
    def auto(self) -> tuple[str, ...]:
        """Weights that remain to be chosen."""
        return tuple(name for name in ("lambda1", "lambda2") if self[name] == AUTO)

    def weight(self, name: str) -> float:
        """Return a weight as a number: the default if it is not set, or not chosen yet."""
        value = USUAL[name] if self[name] in (None, AUTO) else self[name]
        if isinstance(value, str):
            raise ConfigError(f"{name}={value!r} is neither a number nor {AUTO!r}")
        return float(value)

    def chosen_loss(self, kind: str) -> Loss:
        """Return the loss by name, or by the kind of labels."""
        entry = LOSSES[self.loss or ("squared" if kind == "regression" else "smoothed-hinge")]
        return entry(**self._of(entry))

    def _of(self, entry: Entry[Any]) -> dict[str, Any]:
        """Return the values of the options that an entry declares, except None."""
        return self.arguments(**{option.name: option.name for option in entry.options})


PRECISIONS = ("float64", "float32", "int16", "int8")
"""Types of numbers on the wire; all but float64 are channels that round."""
LEAST_LAMBDA1 = 1e-12
"""Smallest λ1 of a certified problem: gradient methods may set λ1 = 0, but a certificate needs λ1 > 0."""
DEFAULTS: dict[str, Any] = {part.name: part.default for part in fields(Options) if part.name != "own"}
COMMON = tuple(DEFAULTS)
_WORDS = """
actors address algorithm algorithms as_json balanced budget budgets categories certify_every checkpoint_every
class_weight cloud_host cloud_signs columns context cost data deadline drop engine faults features first_seed folder
free_evaluation fsync group grouped kind label least_steps light log masked measure metric missing na options out own
n_features partition path pilot pilot_rounds points port positive precision preset privacy request resource resume
samples_per_task scale seed seeds set small_tasks spec station_hosts station_watts stations target
target_gap task tasks terminal terminal_watts terminals test_fraction test_rest test_rows threads tune workers
"""
RESERVED = frozenset(_WORDS.split())
"""Words of commands: an option of that name would be ambiguous."""


def declared() -> Mapping[str, Option]:
    """Return the options that entries declare, by name; an entry whose declaration contradicts another is refused."""
    return _declared(*(registry.changes for registry in DECLARING.values()))


@lru_cache(maxsize=1)
def _declared(*_: int) -> Mapping[str, Option]:
    options: dict[str, Option] = {}
    for registry in DECLARING.values():
        for name, entry in list(registry.items()):
            for option in entry.options:
                if option.name in COMMON or option.name in RESERVED or not option.name.isidentifier():
                    registry.refuse(name, f"has an option {option.name!r}: that name is taken, or invalid; rename it")
                elif options.setdefault(option.name, option) != option:
                    registry.refuse(name, f"declares the option {option.name!r} unlike another entry: rename it")
    return options


def option_kinds() -> dict[str, Any]:
    """Return the annotated type of every option, common or declared."""
    hints = get_type_hints(Options)
    return {name: hints[name] for name in COMMON} | {name: option.kind for name, option in declared().items()}


def build(name: str, options: Options, kind: str) -> Algorithm:
    """Return the algorithm ``name`` for labels of this kind, without the options that only other algorithms declare."""
    entry = ALGORITHMS[name]
    used = {option.name for option in entry.options}
    used |= _names(LOSSES) | _names(RELATIONSHIPS) | _names(MERGES) | _names(CHANNELS) | _names(POLICIES)
    return entry(options.without(_names(ALGORITHMS) - used), kind)


def _names(registry: Registry[Any]) -> set[str]:
    return {option.name for entry in registry.values() for option in entry.options}


def idle(name: str, options: Options, kind: str = "binary", built: Algorithm | None = None) -> list[str]:
    """Return the options that are set but have no effect: with another value the algorithm would be the same.

    ``built`` is the algorithm of these options, if the caller has it already.
    """
    text = repr(built or build(name, options, kind))  # some relationships do not compare by value, but all print it
    return [option for option in options.set_names() if repr(_rebuilt(name, options, kind, option)) == text]


def _rebuilt(name: str, options: Options, kind: str, option: str) -> Algorithm | None:
    """Return the algorithm with another value of an option, or None if it refuses the value, which proves an effect."""
    value: Any = options[option]
    changed: Any = f"{value}?" if isinstance(value, str) else not value
    if isinstance(value, int | float) and not isinstance(value, bool):
        changed = value + abs(value) + 1  # differs from any number
    try:
        return build(name, options.changed(**{option: changed}), kind)
    except ConfigError:
        return None


def no_effect(name: str, names: list[str], options: Options | None = None) -> str:
    """Return the error for options that change nothing.

    With ``options`` the error blames the chosen loss, relationship, merge or channel if only another has the option.
    """
    first = names[0]
    if len(names) == 1 and options is not None and (owner := _other_owner(first, options)) is not None:
        choice, entries = owner
        ways = " or ".join(f"{choice} {entry}" for entry in entries)
        return f"{first} has no effect on {choice} {options[choice]}: leave it out, or take {ways}"
    have, them = ("has", "it") if len(names) == 1 else ("have", "them")
    return f"{', '.join(names)} {have} no effect on {name}: leave {them} out"


def _other_owner(option: str, options: Options) -> tuple[str, list[str]] | None:
    """Return "loss", say, and the losses that have this option, if the chosen loss does not have it."""
    for choice in ("loss", "relationship", "merge", "channel"):
        registry = DECLARING[choice]
        entries = [name for name in registry if option in {declaration.name for declaration in registry[name].options}]
        if entries and options[choice] is not None and options[choice] not in entries:
            return choice, entries
    return None
