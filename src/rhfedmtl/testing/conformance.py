"""Find all checks of an entry by its name, in every registry that has it.

To add a check, write it in `entries`, `losses` or `runs` and list it here under its kind.
"""

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
    """Registry of a kind, the checks of its entries, and the run that uses an entry, if there is such a run."""

    registry: str
    checks: tuple[Callable[[str], None], ...]
    case: Callable[[str], Case] | None = None


def _with(option: str) -> Callable[[str], Case]:
    """Return a run with the name as the value of this option."""
    return lambda name: Case("rhfedmtl", Options.of(**{option: name}))


ENTRY_KINDS = {
    "algorithm": EntryKind(
        "rhfedmtl.algorithms.registry:ALGORITHMS",
        (entries.several_classes, entries.options_matter, entries.grid_is_fair),
        Case,
    ),
    "loss": EntryKind(
        "rhfedmtl.maths.registry:LOSSES",
        OF_A_LOSS,
        lambda name: Case("rhfedmtl", Options(loss=name), 2 if LOSSES[name]().classifier else 0),
    ),
    "relationship": EntryKind(
        "rhfedmtl.maths.registry:RELATIONSHIPS",
        (entries.closed_forms_hold,),
        _with("relationship"),
    ),
    "merge": EntryKind("rhfedmtl.algorithms.registry:MERGES", (entries.dual_never_falls,), _with("merge")),
    "channel": EntryKind("rhfedmtl.algorithms.registry:CHANNELS", (), _with("channel")),
    "policy": EntryKind("rhfedmtl.policies.registry:POLICIES", (entries.plans_at_any_budget,), _with("policy")),
    "feature map": EntryKind("rhfedmtl.features.registry:FEATURES", (entries.map_is_pure,), _with("features")),
    "engine": EntryKind("rhfedmtl.engines.registry:ENGINES", (entries.engine_agrees, entries.engine_keeps)),
    "resource type": EntryKind("rhfedmtl.resources.registry:RESOURCES", (entries.prices_hold,)),
    "data set": EntryKind("rhfedmtl.data.registry:DATASETS", (entries.data_loads,)),
}


def light(registry: str, name: str) -> None:
    """The declaration imports no numerical package."""
    say = f"import sys; from rhfedmtl.registry import load; load({registry!r})[{name!r}]; "
    say += f"print(*sys.modules.keys() & {set(NUMERICAL)!r})"
    process = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=False)
    if process.returncode:
        return  # The entry was registered only in this process.
    require(
        not process.stdout.strip(), f"it imports {process.stdout.strip()}: name the class in a string, as module:class"
    )


def checks(name: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield kind, requirement and check for every entry with this name; refuse an unknown name."""
    registries: dict[str, Registry[Any]] = {kind: load(entry_kind.registry) for kind, entry_kind in ENTRY_KINDS.items()}
    names = [entry for registry in registries.values() for entry in (*registry, *registry.refused)]
    if name not in names:
        raise ConfigError(f"no entry is called {name!r}{nearest(name, names)}")
    for noun, kind in ENTRY_KINDS.items():
        registry = registries[noun]
        if name in registry or name in registry.refused:
            registry[name]
            yield noun, _requirement(light), partial(light, kind.registry, name)
            yield from ((noun, _requirement(check), partial(check, name)) for check in kind.checks)
            if kind.case is not None:
                yield from ((noun, _requirement(check), partial(check, kind.case(name))) for check in OF_A_RUN)


def _requirement(check: Callable[..., None]) -> str:
    return (check.__doc__ or check.__name__).strip()
