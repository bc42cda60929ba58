"""What a user may say about learning, in plain values, and how it becomes objects.

Options that all algorithms may have are fields of `Options`; those that belong to some entries of a registry are
declared there (`rhfedmtl.registry.Option`), and stand beside the fields wherever options are read, written or shown.
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
"""Registries whose entries may have options of their own, by the field after which these stand."""


AUTO = "auto"
"""A weight that is to be chosen on training rows."""
USUAL = {"lambda1": LAMBDA1, "lambda2": LAMBDA2}
"""Weights where none are given or chosen."""


@dataclass(frozen=True)
class Options:
    """Settings of all algorithms; None leaves a choice to the algorithm or to the data.

    A weight may be ``auto``: it is as usual until it is chosen (`selection.weights`). So is λ2 that is None, where it
    can be chosen. ``own`` holds those that entries declare, where they are not as declared.
    `of` takes both kinds by name.
    """

    loss: str | None = None
    relationship: str = "mean"
    lambda1: float | str = LAMBDA1
    lambda2: float | str | None = None
    merge: str = "auto"
    channel: str = "identity"
    intercept: bool = True
    uniform: bool = False
    policy: str | None = None
    local_steps: int | None = None
    station_rounds: int | None = None
    cloud_rounds: int | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that nobody declares, and forget those that are as declared."""
        known = declared()
        for name in self.own:
            if name not in known:
                raise ConfigError(f"unknown option {name!r} of learning{nearest(name, option_kinds())}")
        told = {
            name: self.own[name] for name, each in known.items() if self.own.get(name, each.default) != each.default
        }
        object.__setattr__(self, "own", told)

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Options from plain values by name."""
        return cls().changed(**values)

    def changed(self, **values: Any) -> Options:
        """The same with other values."""
        fixed = {name: values.pop(name) for name in list(values) if name in COMMON}
        return replace(self, **fixed, own={**self.own, **values})

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in COMMON else self.own.get(name, declared()[name].default)

    def given(self) -> list[str]:
        """Names of the settings that are not as if they had never been set."""
        return [name for name in COMMON if self[name] != DEFAULTS[name]] + list(self.own)

    def without(self, names: Iterable[str]) -> Options:
        """The same with these settings as if they had never been set."""
        unset = set(names)
        common = {name: DEFAULTS[name] for name in COMMON if name in unset}
        return replace(self, **common, own={name: value for name, value in self.own.items() if name not in unset})

    def to_dict(self) -> dict[str, Any]:
        """All in plain values: those that the library's entries declare too, those of other packages where given."""
        flat: dict[str, Any] = {}
        for each in fields(self):
            flat |= {each.name: self[each.name]} if each.name in COMMON else {}
            if each.name in DECLARING:
                known = DECLARING[each.name]
                mine = {option.name: None for name in known if name in known.own for option in known[name].options}
                flat |= {name: self[name] for name in mine}
        return {**flat, **self.own}

    to_plain = to_dict

    @classmethod
    def from_plain(cls, table: dict[str, Any]) -> Options:
        """What `to_plain` gave; what is as if it had never been set counts as such. Unknown names are passed over."""
        known = {**DEFAULTS, **{name: option.default for name, option in declared().items()}}
        return cls.of(**{name: value for name, value in table.items() if name in known and value != known[name]})

    def told(self, **arguments: str) -> dict[str, Any]:
        """Arguments whose option has a value: ``told(pull="mu")`` is ``{"pull": μ}``, or nothing where μ is None."""
        return {name: self[option] for name, option in arguments.items() if self[option] is not None}

    def sgd(self, kind: str) -> dict[str, Any]:
        """Settings that all methods by gradient steps share."""
        return {
            "loss": self.chosen_loss(kind),
            "intercept": self.intercept,
            "uniform": self.uniform,
            "lambda1": self.weight("lambda1"),
            "relationship": self.changed(lambda1=max(self.weight("lambda1"), LEAST_LAMBDA1)).chosen_relationship(),
            "channel": self.chosen_channel(),
            "step": self["step"],
            "decay": self["decay"],
        }

    def method(self, kind: str) -> DualMethod:
        """Method for labels of this kind (binary, classes or regression)."""
        from rhfedmtl.algorithms.dual import DualMethod

        merge = MERGES[self.merge]
        return DualMethod(
            loss=self.chosen_loss(kind),
            intercept=self.intercept,
            uniform=self.uniform,
            relationship=self.chosen_relationship(),
            merge=merge(**self._of(merge)),
            channel=self.chosen_channel(),
        )

    def fixed_policy(self, station_rounds: int | None = None) -> Policy:
        """H, K and M as given, for an algorithm that decides nothing itself."""
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
        """Policy by name."""
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
        """The same with the channel that rounds so; refused where another channel is given.

        "auto" is what buys most for a byte where bytes are what is scarce (`benchmarks/bytes.py`), and exact elsewhere.
        """
        if precision == AUTO:
            precision = "int8" if bytes_bind else "float64"
        if precision not in PRECISIONS:
            known = (*PRECISIONS, AUTO)
            raise ConfigError(f"precision {precision}: choose from {', '.join(known)}{nearest(precision, known)}")
        if precision in ("float64", self.channel):
            return self
        if self.channel != DEFAULTS["channel"]:
            raise ConfigError(f"precision {precision} and channel {self.channel}: give one of them")
        return self.changed(channel=precision)

    def chosen_channel(self) -> Channel:
        """What happens to updates and models on their way."""
        channel = CHANNELS[self.channel]
        return channel(**self._of(channel))

    def chosen_relationship(self) -> Relationship:
        """How tasks are coupled; for a method that couples them otherwise, the problem that it is certified for."""
        relationship = RELATIONSHIPS[self.relationship]
        return relationship(self.weight("lambda1"), self.weight("lambda2"), **self._of(relationship))

    @property
    def auto(self) -> tuple[str, ...]:
        """Weights that are to be chosen."""
        return tuple(name for name in ("lambda1", "lambda2") if self[name] == AUTO)

    def weight(self, name: str) -> float:
        """A weight as a number: the usual one where none is given, or it is still to be chosen."""
        value = USUAL[name] if self[name] in (None, AUTO) else self[name]
        if isinstance(value, str):
            raise ConfigError(f"{name}={value!r} is neither a number nor {AUTO!r}")
        return float(value)

    def chosen_loss(self, kind: str) -> Loss:
        """Loss by name, or by the kind of labels."""
        entry = LOSSES[self.loss or ("squared" if kind == "regression" else "smoothed-hinge")]
        return entry(**self._of(entry))

    def _of(self, entry: Entry[Any]) -> dict[str, Any]:
        """Values of the options that an entry declares; it is not told what is None."""
        return self.told(**{option.name: option.name for option in entry.options})


PRECISIONS = ("float64", "float32", "int16", "int8")
"""Of numbers on the wire; those that round are channels."""
LEAST_LAMBDA1 = 1e-12
"""A problem without λ1, which gradient steps can be taken on, is certified as one with so little of it."""
DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Options) if each.name != "own"}
COMMON = tuple(DEFAULTS)
_WORDS = """
actors address algorithm algorithms as_json balanced budget budgets categories certify_every checkpoint_every
class_weight cloud_host cloud_signs columns context cost data deadline drop engine faults features folder
free_evaluation fsync group grouped kind label least_steps light log masked measure metric missing na options out own
partition path pilot pilot_rounds points port positive precision privacy request resource resume samples_per_task
scale seed seeds set small_tasks spec station_hosts station_watts stations target target_gap task tasks terminal
terminal_watts terminals test_fraction test_rest test_rows threads tune workers
"""
RESERVED = frozenset(_WORDS.split())
"""Words of commands: an option of that name could not be told from them."""


def declared() -> Mapping[str, Option]:
    """Options that entries have of their own, by name; an entry that declares one unlike the others is refused."""
    return _declared(*(registry.changes for registry in DECLARING.values()))


@lru_cache(maxsize=1)
def _declared(*_: int) -> Mapping[str, Option]:
    known: dict[str, Option] = {}
    for registry in DECLARING.values():
        for name, entry in list(registry.items()):
            for option in entry.options:
                if option.name in COMMON or option.name in RESERVED or not option.name.isidentifier():
                    registry.refuse(name, f"has an option {option.name!r}: that name is taken, or none; rename it")
                elif known.setdefault(option.name, option) != option:
                    registry.refuse(name, f"declares the option {option.name!r} unlike another entry: rename it")
    return known


def option_kinds() -> dict[str, Any]:
    """Type of every option, common and own, as it is annotated."""
    hints = get_type_hints(Options)
    return {name: hints[name] for name in COMMON} | {name: option.kind for name, option in declared().items()}


def build(name: str, options: Options, kind: str) -> Algorithm:
    """Algorithm called ``name`` for labels of this kind; it does not see options that only other algorithms declare."""
    entry = ALGORITHMS[name]
    mine = {option.name for option in entry.options}
    seen = mine | _names(LOSSES) | _names(RELATIONSHIPS) | _names(MERGES) | _names(CHANNELS) | _names(POLICIES)
    return entry(options.without(_names(ALGORITHMS) - seen), kind)


def _names(registry: Registry[Any]) -> set[str]:
    return {option.name for entry in registry.values() for option in entry.options}


def idle(name: str, options: Options, kind: str = "binary", built: Algorithm | None = None) -> list[str]:
    """Options that were set and that this algorithm pays no heed to: with another value it would be the same.

    ``built`` is what the options build, where the caller has it already.
    """
    shown = repr(built or build(name, options, kind))  # not all relationships compare by value, but all show it
    return [option for option in options.given() if repr(_rebuilt(name, options, kind, option)) == shown]


def _rebuilt(name: str, options: Options, kind: str, option: str) -> Algorithm | None:
    """The algorithm with another value of one option; None where it refuses that value, and so pays heed to it."""
    value: Any = options[option]
    other: Any = f"{value}?" if isinstance(value, str) else not value
    if isinstance(value, int | float) and not isinstance(value, bool):
        other = value + abs(value) + 1  # another number, however large it is
    try:
        return build(name, options.changed(**{option: other}), kind)
    except ConfigError:
        return None


def no_effect(name: str, unheeded: list[str], options: Options | None = None) -> str:
    """Return the error for options that change nothing.

    With ``options`` the error blames the chosen loss, relationship, merge or channel if only another has the option.
    """
    first = unheeded[0]
    if len(unheeded) == 1 and options is not None and (owner := _other_owner(first, options)) is not None:
        choice, entries = owner
        ways = " or ".join(f"{choice} {entry}" for entry in entries)
        return f"{first} has no effect on {choice} {options[choice]}: leave it out, or take {ways}"
    have, them = ("has", "it") if len(unheeded) == 1 else ("have", "them")
    return f"{', '.join(unheeded)} {have} no effect on {name}: leave {them} out"


def _other_owner(option: str, options: Options) -> tuple[str, list[str]] | None:
    """Return "loss", say, and the losses that have this option, if the chosen loss does not have it."""
    for choice in ("loss", "relationship", "merge", "channel"):
        registry = DECLARING[choice]
        entries = [name for name in registry if option in {own.name for own in registry[name].options}]
        if entries and options[choice] is not None and options[choice] not in entries:
            return choice, entries
    return None
