"""Description of a federation in plain values, as a command line, a configuration file or a record contains it.

The CLI builds a `Request` from its options, run records save it, and `Request.federation` loads the data set and splits
it. The same request and seed always give the same federation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhfedmtl.data.registry import DATASETS, Dataset, join_names, parse_names
from rhfedmtl.errors import ConfigError

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation, Source
    from rhfedmtl.data.partition import Partition
    from rhfedmtl.data.split import Split

TEST_FRACTION = 0.25


@dataclass(frozen=True)
class Request:
    """A data set by name, its settings, and its split; a field that is None keeps the default.

    ``partition`` is the name of a partition, with its parameter after a colon: ``dirichlet:0.3``, ``powerlaw:1.5``.
    With ``class_weight`` "balanced", all classes of a task have equal weight in its loss. All other fields are fields
    of ``Split``.
    """

    data: str = "synthetic"
    path: str | None = None
    tasks: int | tuple[str, ...] | None = None
    terminals: int | None = None
    partition: str | None = None
    samples_per_task: int | None = None
    test_fraction: float | None = None
    test_rest: bool | None = None
    grouped: bool | None = None
    positive: str | None = None
    balanced: bool | None = None
    class_weight: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse settings that have an option outside of ``--set``."""
        for name in ("path", "seed"):
            if name in self.settings:
                raise ConfigError(f"--set {name}={self.settings[name]}: that is an option of its own, --{name}")

    def federation(self, seed: int = 0, source: Source | None = None) -> Federation:
        """Load (or generate) and split the data; pass the result of `source` to avoid loading it again."""
        entry = DATASETS[self.data]
        if entry.federated:
            return self._weighted(self._made(entry, seed))
        from rhfedmtl.data.split import federate

        split = self.split()
        return self._weighted(federate(source or self.source(), split, seed))

    def _weighted(self, federation: Federation) -> Federation:
        if self.class_weight is None:
            return federation
        from rhfedmtl.data.federation import class_weights

        if self.class_weight != "balanced":
            raise ConfigError(f"no class weight {self.class_weight!r}: balanced is the one that there is")
        if federation.kind == "regression":
            raise ConfigError("class weights need classes, and these labels are numbers: leave out --class-weight")
        return replace(federation, sample_weight=class_weights(federation.y, federation.row_task))

    def source(self) -> Source:
        """Return the rows before the split; raise an error for data that is already split."""
        entry = DATASETS[self.data]
        if entry.federated:
            raise ConfigError(f"{self.data} comes as a federation: there are no rows before a split")
        return entry.load(self._path(), **self.settings)  # type: ignore[return-value]

    def split(self) -> Split:
        """Return the split as an object."""
        from rhfedmtl.data.split import Split

        options = {name: getattr(self, name) for name in SPLIT_FIELDS if getattr(self, name) is not None}
        if "group" in self.settings:  # a user who names groups wants them kept together
            options.setdefault("grouped", True)
        if self.partition is not None:
            options["partition"] = parse_partition(self.partition)
        return Split(**options)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, for records and ``--json``."""
        return dataclasses.asdict(self)

    @property
    def key(self) -> str:
        """Text that identifies the request: all fields as JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def words(self) -> Iterator[str]:
        """Yield the command-line words for this request."""
        yield from ("--data", self.data)
        for name in ("path", *SPLIT_FIELDS, "class_weight"):
            value = getattr(self, name)
            if value == () or value is None:
                continue
            if name == "balanced":
                yield "--balanced" if value else "--unbalanced"
            else:
                yield from flag(name, value)
        for name, value in self.settings.items():
            yield from ("--set", f"{name}={value}")

    def _path(self) -> Path | None:
        return None if self.path is None else Path(self.path).expanduser()

    def _made(self, entry: Dataset, seed: int) -> Federation:
        for name in SPLIT_FIELDS:
            if getattr(self, name) is not None and name not in entry.sizes:
                word = name.replace("_", "-")
                raise ConfigError(f"{self.data} comes with its tasks and terminals: leave out --{word}")
        if self.tasks is not None and not isinstance(self.tasks, int):
            raise ConfigError(f"{self.data} makes as many tasks as wanted: give their number, not names")
        return entry.load(self._path(), seed, **{**self.settings, **self._sizes(entry)})  # type: ignore[return-value]

    def _sizes(self, entry: Dataset) -> dict[str, Any]:
        """Return the loader's settings that follow from fields of a split."""
        sizes = {name: getattr(self, name) for name in entry.sizes if getattr(self, name) is not None}
        if "samples_per_task" in entry.sizes:
            total, fraction = sizes.pop("samples_per_task", None), sizes.pop("test_fraction", None)
            if total is None and fraction is not None:
                raise ConfigError(f"{self.data} needs samples-per-task where test-fraction is given")
            if total is not None:
                sizes["test"] = int(total * (TEST_FRACTION if fraction is None else fraction) + 0.5)
                sizes["rows"] = total - sizes["test"]
        return sizes


SPLIT_FIELDS = tuple(
    item.name for item in dataclasses.fields(Request) if item.name not in ("data", "path", "class_weight", "settings")
)
"""Fields that ``Split`` has too."""


def flag(name: str, value: Any) -> list[str]:
    """Return an option as words: a switch, or a name and its value.

    The names of a tuple are joined by commas; a single name gets a trailing comma.
    """
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [option if value else "--no-" + option[2:]]
    if isinstance(value, tuple):
        return [option, join_names(value) + ("," if len(value) == 1 else "")]
    return [option, str(value)]


def parse_tasks(text: str | None) -> int | tuple[str, ...] | None:
    """Parse ``5`` as a number of tasks and ``a,b,c`` as names; ``5,`` is a single name that looks like a number."""
    if text is None:
        return None
    if text.strip().lstrip("-").isdigit():
        return int(text)
    return parse_names(text)


def parse_partition(text: str) -> Partition:
    """Parse the name of a partition and, after a colon, its parameter."""
    from rhfedmtl.data.partition import PARTITIONS

    name, colon, value = text.partition(":")
    if name not in PARTITIONS:
        raise ConfigError(f"no partition {name!r}: choose from {', '.join(PARTITIONS)}")
    parameters = dataclasses.fields(PARTITIONS[name])  # type: ignore[arg-type]
    if not colon:
        return PARTITIONS[name]()
    if not parameters:
        raise ConfigError(f"partition {name} has no parameter, got {text!r}")
    try:
        return PARTITIONS[name](**{parameters[0].name: float(value)})
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"partition {name} needs a number after the colon, got {value!r}") from error
