"""Data sets, the split into tasks and terminals, and the arithmetic of standardisation.

Start with `load` (a data set by name) or `from_frame` (a pandas or Polars frame), and turn its rows into a `Federation`
with `federate`. Each name is imported on first use, to keep ``import rhfedmtl.data`` cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rhfedmtl.data.federation import Federation, Origin, Source
    from rhfedmtl.data.loaders.synthetic import Synthetic
    from rhfedmtl.data.loaders.table import Columns, from_frame
    from rhfedmtl.data.partition import PARTITIONS
    from rhfedmtl.data.registry import DATASETS, Dataset, load
    from rhfedmtl.data.request import Request
    from rhfedmtl.data.scaling import SCALES, Moments, Scaler
    from rhfedmtl.data.split import Split, federate

_NAMES = {
    "registry": "DATASETS Dataset load",
    "request": "Request",
    "federation": "Federation Origin Source",
    "partition": "PARTITIONS",
    "scaling": "SCALES Moments Scaler",
    "split": "Split federate",
    "loaders.synthetic": "Synthetic",
    "loaders.table": "Columns from_frame",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SCALES",
    "Columns",
    "Dataset",
    "Federation",
    "Moments",
    "Origin",
    "Request",
    "Scaler",
    "Source",
    "Split",
    "Synthetic",
    "federate",
    "from_frame",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"rhfedmtl.data.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
