"""Registry of data sets by name; loaders are imported on first use, to keep listing cheap.

The CLI and `Request` look data sets up in ``DATASETS``. To add a data set, write a file with a loader (and a fetch
function if the data can be downloaded), and add a line to ``DATASETS``.
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
    """Entry of a data set. It is called with a path, its settings (if it has any), and the seed (if ``seeded``)."""

    licence: str = field(kw_only=True)
    obtain: str = field(kw_only=True)
    """Instruction for the user: how to get the files."""
    settings: str = field(default="", kw_only=True)
    """``module:class`` of the dataclass with the settings of this data set."""
    fetcher: str = field(default="", kw_only=True)
    """``module:function`` that downloads the data and returns its path."""
    federated: bool = field(default=False, kw_only=True)
    """True if the loader itself makes tasks × terminals, and no split follows."""
    sizes: tuple[str, ...] = field(default=(), kw_only=True)
    """Fields of a split that the loader accepts although it makes tasks × terminals itself."""
    seeded: bool = field(default=False, kw_only=True)

    def setting_types(self) -> dict[str, Any]:
        """Return the type of every setting of this data set."""
        return get_type_hints(load_from(self.settings)) if self.settings else {}

    def setting_defaults(self) -> dict[str, Any]:
        """Return the default value of every setting."""
        return dataclasses.asdict(load_from(self.settings)()) if self.settings else {}

    def load(self, path: Path | None = None, seed: int = 0, **settings: Any) -> Source | Federation:
        """Load the data from ``path``, or from its standard place if there is no path."""
        types = self.setting_types()
        for name in settings:
            if name not in types:
                raise ConfigError(f"no setting {name!r} here: there is {', '.join(sorted(types)) or 'none'}")
        arguments: list[Any] = [path]
        if self.settings:
            arguments.append(load_from(self.settings)(**settings))
        if self.seeded:
            arguments.append(seed)
        return self(*arguments)

    def fetch(self) -> Path:
        """Download the data, and return its path."""
        if not self.fetcher:
            raise DataError(f"there is nothing to fetch: {self.obtain}")
        path: Path = load_from(self.fetcher)()
        return path


def load(name: str, path: Path | str | None = None, seed: int = 0, **settings: Any) -> Source | Federation:
    """Load the data set ``name``; only generated data uses ``seed``."""
    return DATASETS[name].load(None if path is None else Path(path), seed, **settings)


def parse_setting(entry: Dataset, name: str, text: str) -> Any:
    """Parse a setting from the command line as the type that the data set declares."""
    type_name = str(entry.setting_types().get(name, str))
    try:
        if "int" in type_name:
            return int(text)
        return float(text) if "float" in type_name else text
    except ValueError as error:
        raise ConfigError(f"setting {name} needs a number, got {text!r}") from error


def parse_names(text: str) -> tuple[str, ...]:
    """Split a text at commas; a name that contains a comma must stand in quotes."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(name.strip() for names in lines for name in names if name.strip())


def join_names(names: Iterable[str]) -> str:
    """Join names into a text that `parse_names` reads."""
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
