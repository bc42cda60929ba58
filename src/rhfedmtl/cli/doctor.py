"""Command ``doctor``: check the installation, time a kernel, and list missing extras."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from rhfedmtl import __version__
from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.options import print_json
from rhfedmtl.cli.text import fact
from rhfedmtl.registry import package, plugins
from rhfedmtl.roles.words import how_many

CORE = ("numpy", "scipy", "numba", "scikit-learn", "typer", "rich")
EXTRAS = {
    "frames": (("pandas", "polars"), "pandas and Polars frames as data"),
    "parquet": (("pyarrow",), "records and ledgers as Parquet"),
    "plot": (("matplotlib",), "charts in notebooks, pictures of data"),
    "onnx": (("onnx", "onnxruntime"), "export to ONNX, features onnx=FILE"),
    "tensorboard": (("tensorboardX",), "train --log tensorboard"),
    "mlflow": (("mlflow-skinny",), "train --log mlflow"),
    "ray": (("ray",), "train --engine ray, sweeps on a cluster"),
    "deploy": (("grpcio", "cryptography"), "serve and network: real base stations"),
    "dashboard": (("starlette", "uvicorn"), "the dashboard"),
    "gpu": (("torch", "triton"), "train --engine gpu"),
}
"""Packages of each extra, and its purpose."""


def doctor(as_json: AsJson = False) -> None:
    """Show versions, machine, speed and missing extras.

    It compiles and times a kernel, so the first call takes some seconds. For example:

    rhfedmtl doctor --json
    """
    from rhfedmtl.algorithms.options import DECLARING, declared
    from rhfedmtl.data.registry import DATASETS
    from rhfedmtl.engines.registry import ENGINES
    from rhfedmtl.resources.registry import RESOURCES
    from rhfedmtl.runs.tracking import LOGGERS

    facts = {"rhfedmtl": __version__, "python": platform.python_version(), **_machine()}
    facts["core"] = {name: _version(name) for name in CORE}
    facts["extras"] = {extra: {name: _version(name) for name in names} for extra, (names, _) in EXTRAS.items()}
    # Plugins of other packages: `declared` checks the options of their entries, and records why it refuses an entry.
    declared()
    registries = {entry.group: entry for entry in (*DECLARING.values(), DATASETS, ENGINES, RESOURCES, LOGGERS)}
    by_package: dict[str, list[dict[str, Any]]] = {}
    for point in plugins():
        registry = registries.get(point.group)
        kind, refused = point.group, f"{point.group} {point.name!r} is refused: there is no such group"
        if registry is not None:
            kind, refused = registry.noun, registry.refused.get(point.name, "")
        by_package.setdefault(package(point), []).append({"kind": kind, "name": point.name, "refused": refused or None})
    facts |= {"plugins": by_package} | _speed()
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _machine() -> dict[str, Any]:
    from rhfedmtl.data.cache import cache_folder
    from rhfedmtl.data.threads import cores

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
        if hasattr(os, "sysconf")
        else None,
        "cache": str(cache_folder()),
        "data_folder": os.environ.get("RHFEDMTL_DATA"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _speed() -> dict[str, Any]:
    """Return the seconds to compile (or to load compiled kernels), and the time of a terminal step."""
    from rhfedmtl.algorithms.dual import DualMethod
    from rhfedmtl.data.request import Request
    from rhfedmtl.engines.registry import Execution
    from rhfedmtl.policies.fixed import Fixed
    from rhfedmtl.training.run import train
    from rhfedmtl.training.settings import Settings

    federation = Request(settings={"features": 64}, tasks=4, terminals=16, samples_per_task=2000).federation(0)
    settings = Settings(certify_every=10**9, execution=Execution(threads=1))

    def timed(local_steps: int, rounds: int) -> tuple[float, int]:
        started = time.perf_counter()
        result = train(federation, DualMethod(), Fixed(local_steps, 1, rounds), settings)
        return time.perf_counter() - started, result.terminal_steps

    compiling, _ = timed(1, 1)
    # Best of three. The difference removes scaling and evaluation, which both runs pay.
    short, long = (min(timed(1000, rounds) for _ in range(3)) for rounds in (1, 11))
    return {"compile_seconds": compiling, "step_ns": 1e9 * max(long[0] - short[0], 0.0) / (long[1] - short[1])}


def _show(facts: dict[str, Any]) -> None:
    memory = f", {facts['memory_gib']} GiB" if facts["memory_gib"] else ""
    typer.echo(f"rhfedmtl {facts['rhfedmtl']} on Python {facts['python']}, {facts['system']}")
    fact("machine", f"{how_many(facts['cores'], 'core')}{memory}", 12)
    fact("cache", facts["cache"], 12)
    fact("data", facts["data_folder"] or "downloaded, or named by --path (RHFEDMTL_DATA is not set)", 12)
    fact("core", ", ".join(f"{name} {number or 'MISSING'}" for name, number in facts["core"].items()), 12)
    speed = f"{facts['step_ns']:.0f} ns per terminal step with 64 features on one thread"
    fact("kernels", f"ready after {facts['compile_seconds']:.1f} s, then {speed}", 12)
    for added_by, added in facts["plugins"].items():
        names = [f"{entry['kind']} {entry['name']}" for entry in added if entry["refused"] is None]
        fact("plugin", f"{added_by}: {', '.join(names) or 'no usable entries'}", 12)
        for entry in added:
            if entry["refused"] is not None:
                fact("refused", entry["refused"], 12)
    missing = [extra for extra, packages in facts["extras"].items() if not all(packages.values())]
    typer.echo("extras")
    for extra, packages in facts["extras"].items():
        versions = ", ".join(f"{name} {number}" for name, number in packages.items())
        fact(f"  {extra}", f"{'-' if extra in missing else versions} ({EXTRAS[extra][1]})", 16)
    if missing:
        fact("missing (-)", f"install by name: pip install 'rhfedmtl[{','.join(missing[:2])}]'", 12)
