"""Files for containers and services that go with a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_DOCKERFILE = """FROM python:3.11-slim
RUN pip install --no-cache-dir 'rhfedmtl[deploy]'
ENTRYPOINT ["rhfedmtl", "serve"]
"""

_UNIT = """[Unit]
Description=rhfedmtl {role} of {network}
After=network-online.target
Wants=network-online.target

[Service]
User=rhfedmtl
WorkingDirectory=/etc/rhfedmtl/{folder}
ExecStart=/usr/bin/env rhfedmtl serve {role} --config {role}.toml
Restart=always
RestartSec=1
KillSignal=SIGTERM
TimeoutStopSec=60
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ProtectHome=true
ReadWritePaths=/etc/rhfedmtl/{folder}

[Install]
WantedBy=multi-user.target
"""


def write_compose(folder: Path, network: str, names: Sequence[str]) -> None:
    """A compose file and the image that it builds; addresses are those of the configuration, so the host's are used."""
    lines = [f"name: {network}", "services:"]
    for name in names:
        role = name.partition("-")[0]
        lines += [
            f"  {name}:",
            "    build: .",
            f'    command: ["{role}", "--config", "/node/{role}.toml"]',
            "    network_mode: host",
            "    restart: always",
            "    stop_grace_period: 60s",
            f"    volumes: [./{name}:/node{', ./ca:/ca:ro' if role == 'cloud' else ''}]",
        ]
    (folder / "compose.yaml").write_text("\n".join(lines) + "\n")
    (folder / "Dockerfile").write_text(_DOCKERFILE)


def write_units(folder: Path, network: str) -> None:
    """Units for systemd: one for the cloud, and templates for stations and terminals (``@0``, ``@1``, …)."""
    units = folder / "systemd"
    units.mkdir()
    for role, name, place in (
        ("cloud", "rhfedmtl-cloud.service", "cloud"),
        ("station", "rhfedmtl-station@.service", "station-%i"),
        ("terminal", "rhfedmtl-terminal@.service", "terminal-%i"),
    ):
        (units / name).write_text(_UNIT.format(role=role, network=network, folder=place))
