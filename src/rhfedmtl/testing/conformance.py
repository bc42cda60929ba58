"""All checks of an entry by its name, whatever registry it stands in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from rhfedmtl.algorithms.options import Options
from rhfedmtl.errors import ConfigError, nearest
from rhfedmtl.maths.registry import LOSSES
from rhfedmtl.registry import Registry, load
from rhfedmtl.testing import entries
from rhfedmtl.testing.losses import OF_A_LOSS
from rhfedmtl.testing.runs import OF_A_RUN, Case, require

NUMERICAL = ("numpy", "scipy", "numba", "sklearn")


class EntryKind(NamedTuple):
    """Where entries of a kind are registered, what holds of one by its name, and the run that it is seen in."""

    registry: str
    checks: tuple[Callable[[str], None], ...]
    case: Callable[[str], Case] | None = None


def _case_of_loss(name: str) -> Case:
    return Case("rhfedmtl", Options(loss=name), 2 if LOSSES[name]().classifier else 0)


def _with(option: str) -> Callable[[str], Case]:
    """A run that takes the name for this option."""
    return lambda name: Case("rhfedmtl", Options.of(**{option: name}))


KINDS = {
    "algorithm": EntryKind(
        "rhfedmtl.algorithms.registry:ALGORITHMS",
        (entries.several_classes, entries.options_matter, entries.grid_is_fair),
        Case,
    ),
    "loss": EntryKind("rhfedmtl.maths.registry:LOSSES", OF_A_LOSS, _case_of_loss),
    "relationship": EntryKind(
        "rhfedmtl.maths.registry:RELATIONSHIPS",
        (entries.closed_forms_hold,),
        _with("relationship"),
    ),
    "merge": EntryKind("rhfedmtl.algorithms.registry:MERGES", (entries.dual_never_falls,), _with("merge")),
    "channel": EntryKind("rhfedmtl.algorithms.registry:CHANNELS", (), _with("channel")),
    "policy": EntryKind("rhfedmtl.policies.registry:POLICIES", (entries.plans_at_any_budget,), _with("policy")),
    "engine": EntryKind("rhfedmtl.engines.registry:ENGINES", (entries.engine_agrees, entries.engine_keeps)),
    "resource type": EntryKind("rhfedmtl.resources.registry:RESOURCES", (entries.prices_hold,)),
    "data set": EntryKind("rhfedmtl.data.registry:DATASETS", (entries.data_loads,)),
}


def light(registry: str, name: str) -> None:
    """Its declaration imports nothing numerical."""
    say = f"import sys; from rhfedmtl.registry import load; load({registry!r})[{name!r}]; "
    say += f"print(*sys.modules.keys() & {set(NUMERICAL)!r})"
    told = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=False)
    if told.returncode:
        return  # it was given its name in this process alone
    require(not told.stdout.strip(), f"it imports {told.stdout.strip()}: name the class in a string, as module:class")


def checks(name: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Kind, what must hold, and how to see it, for every entry of that name; an unknown name is refused."""
    registries: dict[str, Registry[Any]] = {kind: load(each.registry) for kind, each in KINDS.items()}
    known = [entry for registry in registries.values() for entry in (*registry, *registry.refused)]
    if name not in known:
        raise ConfigError(f"nothing is called {name!r}{nearest(name, known)}")
    for noun, kind in KINDS.items():
        registry = registries[noun]
        if name in registry or name in registry.refused:
            registry[name]
            yield noun, _says(light), partial(light, kind.registry, name)
            yield from ((noun, _says(check), partial(check, name)) for check in kind.checks)
            if kind.case is not None:
                yield from ((noun, _says(check), partial(check, kind.case(name))) for check in OF_A_RUN)


def _says(check: Callable[..., None]) -> str:
    return (check.__doc__ or check.__name__).strip()
