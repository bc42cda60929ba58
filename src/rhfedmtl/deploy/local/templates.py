"""Files for containers and services that go with a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rhfedmtl import __version__

FIRST_USER = 20000
_DOCKERFILE = f"""FROM python:3.11-slim
# What is in no package index is taken from wheels/: pip wheel --no-deps -w wheels PATH-OF-RHFEDMTL
COPY wheels/ /wheels/
RUN pip install --no-cache-dir --find-links /wheels 'rhfedmtl[deploy]=={__version__}'
ENTRYPOINT ["rhfedmtl", "serve"]
"""

_COMPOSE = """name: {network}

# All nodes are alike but for their folders, and their users: no node can write what another one runs or reads. Once, as
# root:  sh own.sh
# Addresses are those of the configurations, so the host's are used.
x-node: &node
  build: .
  image: {network}-node
  network_mode: host
  restart: unless-stopped
  stop_grace_period: 60s
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]

services:
"""

_OWN = """# Gives every node to its own user.
set -e
cd "$(dirname "$0")"
"""

_SERVICE = """  {name}:
    <<: *node
    user: "{user}:{user}"
    command: ["{role}", "--config", "/node/{role}.toml"]
    volumes: [{volumes}]
"""

_UNIT = """[Unit]
Description=rhfedmtl {role} of {network}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
User=rhfedmtl-{folder}
Group=rhfedmtl-{folder}
WorkingDirectory=/var/lib/rhfedmtl/{folder}
ExecStart=/opt/rhfedmtl/bin/{program}
# A terminal that has left the network ends well (0); with a configuration that cannot work (2) nothing gets better.
Restart=on-failure
RestartSec=1
RestartPreventExitStatus=2
KillSignal=SIGTERM
TimeoutStopSec=60
UMask=0077
LimitNOFILE=65536

# Kernels are compiled, so memory that is written and then run (MemoryDenyWriteExecute) must stay allowed.
ReadWritePaths=/var/lib/rhfedmtl/{folder}
CapabilityBoundingSet=
LockPersonality=true
NoNewPrivileges=true
PrivateDevices=true
PrivateTmp=true
ProtectClock=true
ProtectControlGroups=true
ProtectHome=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


def write_compose(folder: Path, network: str, names: Sequence[str], *, cloud_signs: bool) -> None:
    """A compose file and the image that it builds; no key is sent along when it is built."""
    services, owners = [], []
    for user, name in enumerate(names, FIRST_USER):
        role = name.partition("-")[0]
        volumes = [f"./{name}:/node", *(["./ca:/ca:ro"] if role == "cloud" and cloud_signs else [])]
        services.append(_SERVICE.format(name=name, role=role, user=user, volumes=", ".join(volumes)))
        owners.append(f"chown -R {user}:{user} {name}{' ca' if role == 'cloud' and cloud_signs else ''}\n")
    (folder / "compose.yaml").write_text(_COMPOSE.format(network=network) + "".join(services))
    (folder / "own.sh").write_text(_OWN + "".join(owners))
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    (folder / ".dockerignore").write_text("*\n!wheels\n")
    (folder / "wheels").mkdir()


def write_units(folder: Path, network: str, names: Sequence[str], *, light: bool = False) -> None:
    """Units for systemd: one for the cloud, templates for stations and terminals (``@0``, ``@1``, …), their users."""
    units = folder / "systemd"
    units.mkdir()
    for role, name, place in (
        ("cloud", "rhfedmtl-cloud.service", "cloud"),
        ("station", "rhfedmtl-station@.service", "station-%i"),
        ("terminal", "rhfedmtl-terminal@.service", "terminal-%i"),
    ):
        small = light and role == "terminal"
        program = "rhfedmtl-terminal serve" if small else f"rhfedmtl serve {role} --config {role}.toml"
        (units / name).write_text(_UNIT.format(role=role, network=network, folder=place, program=program))
    users = (f'u rhfedmtl-{name} - "rhfedmtl {name} of {network}" /var/lib/rhfedmtl/{name}\n' for name in names)
    (units / "rhfedmtl.conf").write_text("# For systemd-sysusers: a user for each node.\n" + "".join(users))
