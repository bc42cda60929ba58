"""The process of a node that a supervisor has started."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import sys
from pathlib import Path

from rhfedmtl.deploy.terminal.program import CANNOT_RUN
from rhfedmtl.errors import RHFedMTLError


def run_node(role: str, paths: list[Path], log: Path, environment: dict[str, str]) -> None:
    """Run a node in this process: its log goes to a file, and it ends when the supervisor ends.

    The imports come late: what they say belongs into the log.
    """
    os.environ |= environment
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    parent = mp.parent_process()
    from rhfedmtl.deploy.node.log import Log
    from rhfedmtl.deploy.node.serve import serve
    from rhfedmtl.deploy.node.state import UnwrittenError
    from rhfedmtl.deploy.nodes import ROLES

    with contextlib.suppress(KeyboardInterrupt):
        try:
            serve(ROLES[role](), paths, lambda: parent is not None and not parent.is_alive())
        except UnwrittenError as error:
            Log(log.stem)("ended", "error", reason=str(error))
            raise SystemExit(error.status) from None
        except RHFedMTLError as error:
            Log(log.stem)("cannot run", "error", reason=str(error))
            raise SystemExit(CANNOT_RUN) from None
