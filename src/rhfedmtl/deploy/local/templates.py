"""Templates of the files for containers and services that `network init` writes next to the nodes.

`local.provision` calls `write_compose` and `write_units`. The files hold no keys; the folders of the nodes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rhfedmtl import __version__

FIRST_USER = 20000
_DOCKERFILE = f"""FROM python:3.11-slim
# Put packages that no package index has into wheels/: pip wheel --no-deps -w wheels PATH-OF-RHFEDMTL
COPY wheels/ /wheels/
RUN pip install --no-cache-dir --find-links /wheels 'rhfedmtl[deploy]=={__version__}'
ENTRYPOINT ["rhfedmtl", "serve"]
"""

_COMPOSE = """name: {network}

# Nodes differ in their folders and users only, so no node can write the files of another node. Run once, as root:
#   sh own.sh
# The containers use the network of the host, because the configurations have the addresses of the host.
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
# A terminal that has left the network ends with status 0. Status 2 means a wrong configuration: a restart cannot help.
Restart=on-failure
RestartSec=1
RestartPreventExitStatus=2
KillSignal=SIGTERM
TimeoutStopSec=60
UMask=0077
LimitNOFILE=65536

# Compiled kernels need memory that is first written and then executed, so MemoryDenyWriteExecute must stay off.
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
    """Write a compose file and the files of its image; the image contains no key.

    Every node gets a user of its own. If ``cloud_signs``, the cloud can read the key of the authority.
    """
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
    """Write units for systemd: cloud, templates for stations and terminals (``@0``, ``@1``, …), and a file of users."""
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
