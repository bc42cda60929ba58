"""The roles of nodes by name, for `rhfedmtl serve` and for local networks.

Each entry imports only the modules of its role, when it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from rhfedmtl.deploy.node.config import read_station
from rhfedmtl.deploy.node.credentials import CLOUD, STATION, TERMINAL
from rhfedmtl.deploy.node.serve import Role


def _cloud() -> Role:
    from rhfedmtl.deploy.cloud.config import read_cloud
    from rhfedmtl.deploy.cloud.service import CloudService

    return Role(CLOUD, read_cloud, CloudService)


def _station() -> Role:
    from rhfedmtl.deploy.station.service import StationService

    return Role(STATION, read_station, StationService)


def _terminal() -> Role:
    from rhfedmtl.deploy.terminal.commands import role

    return role()


ROLES: dict[str, Callable[[], Role]] = {CLOUD: _cloud, STATION: _station, TERMINAL: _terminal}
"""Makes the role of a node: its name, the reader of its configuration, and its service."""
