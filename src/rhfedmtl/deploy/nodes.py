"""The roles by name, as `rhfedmtl serve` runs them; each imports only what it needs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from rhfedmtl.deploy.node.config import read_station
from rhfedmtl.deploy.node.credentials import CLOUD, STATION, TERMINAL
from rhfedmtl.deploy.node.serve import Role
from rhfedmtl.errors import ConfigError


def _cloud() -> Role:
    from rhfedmtl.deploy.cloud.config import read_cloud
    from rhfedmtl.deploy.cloud.service import CloudService

    return Role(CLOUD, read_cloud, CloudService)


def _station() -> Role:
    from rhfedmtl.deploy.station.service import StationService

    return Role(STATION, read_station, StationService)


def _terminal() -> Role:
    from rhfedmtl.deploy.terminal import program

    made: Role = program.role()
    return made


def own_kernels(config: Path) -> None:
    """Let numba keep compiled code in a folder of the node alone: whoever can write there runs what he likes as it.

    Comes before anything is imported that compiles. Who sets NUMBA_CACHE_DIR names another folder, held to the same.
    """
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or config.resolve().parent / "kernels")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is of user {found.st_uid}, with mode {stat.S_IMODE(found.st_mode):o}: compiled code lies there, "
            f"so it must be a folder of user {os.getuid()} alone (mode 700); name another by NUMBA_CACHE_DIR"
        )
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


ROLES: dict[str, Callable[[], Role]] = {CLOUD: _cloud, STATION: _station, TERMINAL: _terminal}
