"""The data sets by name. Loaders are imported when used, so that listing them costs nothing.

A new data set is one file with a loader (and a way to fetch it, where it can be had from somewhere) and its line in
``DATASETS``.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from rhfedmtl.errors import ConfigError, DataError
from rhfedmtl.registry import Entry, Registry
from rhfedmtl.registry import load as load_from

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation, Source


@dataclass(frozen=True)
class Dataset(Entry["Source | Federation"]):
    """A data set; called with a path, its settings where it has any, and the seed if ``seeded``, it loads."""

    licence: str = field(kw_only=True)
    obtain: str = field(kw_only=True)
    """How a user comes by the files."""
    settings: str = field(default="", kw_only=True)
    """``module:class`` of the dataclass with the settings that this data set has of its own."""
    fetcher: str = field(default="", kw_only=True)
    """``module:function`` that brings the data onto this machine, and returns where it lies."""
    federated: bool = field(default=False, kw_only=True)
    """Whether the loader makes tasks × terminals itself, so that there is nothing to split."""
    sizes: tuple[str, ...] = field(default=(), kw_only=True)
    """What can still be asked of tasks × terminals that the loader makes."""
    seeded: bool = field(default=False, kw_only=True)

    def setting_types(self) -> dict[str, Any]:
        """Type of every setting that this data set has of its own."""
        return get_type_hints(load_from(self.settings)) if self.settings else {}

    def setting_defaults(self) -> dict[str, Any]:
        """Return the settings as they are without a word from the user."""
        return dataclasses.asdict(load_from(self.settings)()) if self.settings else {}

    def load(self, path: Path | None = None, seed: int = 0, **settings: Any) -> Source | Federation:
        """Load from ``path``, or from where the data set is found without one."""
        known = self.setting_types()
        for name in settings:
            if name not in known:
                raise ConfigError(f"no setting {name!r} here: there is {', '.join(sorted(known)) or 'none'}")
        arguments: list[Any] = [path]
        if self.settings:
            arguments.append(load_from(self.settings)(**settings))
        if self.seeded:
            arguments.append(seed)
        return self(*arguments)

    def fetch(self) -> Path:
        """Bring the data onto this machine, and return where it lies."""
        if not self.fetcher:
            raise DataError(f"there is nothing to fetch: {self.obtain}")
        path: Path = load_from(self.fetcher)()
        return path


def load(name: str, path: Path | str | None = None, seed: int = 0, **settings: Any) -> Source | Federation:
    """Load the data set called ``name``; ``seed`` counts only for data that is made."""
    return DATASETS[name].load(None if path is None else Path(path), seed, **settings)


def parse_setting(entry: Dataset, name: str, text: str) -> Any:
    """Setting from the command line, as the type that the data set asks for."""
    wanted = str(entry.setting_types().get(name, str))
    try:
        if "int" in wanted:
            return int(text)
        return float(text) if "float" in wanted else text
    except ValueError as error:
        raise ConfigError(f"setting {name} needs a number, got {text!r}") from error


def parse_names(text: str) -> tuple[str, ...]:
    """Names between commas; one that holds a comma stands in quotes."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(name.strip() for names in lines for name in names if name.strip())


def join_names(names: Iterable[str]) -> str:
    """What `parse_names` reads."""
    return ",".join('"' + name.replace('"', '""') + '"' if {",", '"'} & set(name) else name for name in names)


DATASETS: Registry[Dataset] = Registry(
    "data set",
    "data",
    Dataset,
    {
        "har": Dataset(
            title="UCI Human Activity Recognition: 30 people, 6 activities, 561 features",
            make="rhfedmtl.data.loaders.har:load",
            licence="CC BY 4.0 by the UCI page; cite Anguita et al. 2013",
            obtain="downloaded from UCI on first use, or --path FOLDER | ZIP | NPZ",
            fetcher="rhfedmtl.data.loaders.har:fetch",
        ),
        "watch": Dataset(
            title="smartwatch motion of 10 people at 7 shoulder exercises",
            make="rhfedmtl.data.loaders.watch:load",
            licence="BSD-3-Clause (Copyright 2018 David M. Burns)",
            obtain="from the PyPI package seglearn, on first use, or --path watch_dataset.npy",
            settings="rhfedmtl.data.loaders.watch:Windows",
            fetcher="rhfedmtl.data.loaders.watch:fetch",
        ),
        "landmine": Dataset(
            title="radar of 29 minefields: mine or clutter, 9 features",
            make="rhfedmtl.data.loaders.landmine:load",
            licence="not stated by its authors; cite Xue et al. 2007",
            obtain="no official download is left; give --path LandmineData.mat | NPZ",
        ),
        "landmine-authors": Dataset(
            title="1,464 rows of Landmine, fields joined and re-cut, as in the paper's code",
            make="rhfedmtl.data.loaders.landmine:load_authors",
            licence="Apache-2.0 (code of MOCHA); cite Xue et al. 2007 and Smith et al. 2017",
            obtain="give --path small.mat",
            settings="rhfedmtl.data.loaders.landmine:Recut",
            federated=True,
            sizes=("tasks", "terminals", "test_fraction"),
        ),
        "synthetic": Dataset(
            title="linear tasks with known relatives, up to a million terminals",
            make="rhfedmtl.data.loaders.synthetic:load",
            licence="none needed",
            obtain="made on the spot",
            settings="rhfedmtl.data.loaders.synthetic:Synthetic",
            federated=True,
            sizes=("tasks", "terminals", "samples_per_task", "test_fraction"),
            seeded=True,
        ),
        "table": Dataset(
            title="your own CSV, Parquet or NPZ with label, task and terminal columns",
            make="rhfedmtl.data.loaders.table:load",
            licence="yours",
            obtain="give --path FILE with --label, --task and, if there is one, --terminal",
            settings="rhfedmtl.data.loaders.table:Columns",
        ),
        "saved": Dataset(
            title="a federation written by `rhfedmtl data split … --out FOLDER`",
            make="rhfedmtl.data.loaders.saved:load",
            licence="as its origin says",
            obtain="give --path FOLDER",
            federated=True,
        ),
    },
)
